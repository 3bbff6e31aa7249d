package memstore_test

import (
	"testing"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/memstore"
	"github.com/hapax-id/hapax/store/storetest"
)

func TestSnapshotAndRestore(t *testing.T) {
	ctx := t.Context()
	s := memstore.New()
	if _, err := s.CreateTag(ctx, hapax.Tag{Name: "a"}, hapax.CreateExplicit); err != nil {
		t.Fatal(err)
	}
	old := s.Snapshot()
	first, err := s.Allocate(ctx, "a", 10, "")
	if err != nil {
		t.Fatal(err)
	}
	if tag, err := old.Tag(ctx, "a"); err != nil || tag.Mark != first.Grant.Lo {
		t.Fatalf("the snapshot has mark %d, error %v; want %d", tag.Mark, err, first.Grant.Lo)
	}

	s.Restore(old)
	again, err := s.Allocate(ctx, "a", 10, "")
	if err != nil || again.Grant != first.Grant {
		t.Fatalf("after the rollback: %v, error %v; want %v again", again.Grant, err, first.Grant)
	}
	if tag, _ := old.Tag(ctx, "a"); tag.Mark != first.Grant.Lo {
		t.Fatal("the snapshot changed with the store that was restored from it")
	}

	before, _ := s.StoreID(ctx)
	s.Restore(memstore.New())
	after, _ := s.StoreID(ctx)
	if before == after {
		t.Fatal("the store ID is the same after a replacement")
	}
}

func BenchmarkAllocate(b *testing.B) {
	s := memstore.New()
	if _, err := s.CreateTag(b.Context(), hapax.Tag{Name: "a"}, hapax.CreateExplicit); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, err := s.Allocate(b.Context(), "a", 1, ""); err != nil {
			b.Fatal(err)
		}
	}
}

func TestConformance(t *testing.T) {
	storetest.Run(t, storetest.Harness{
		Open: func(testing.TB) storetest.Handle { return memstore.New() },
	})
}
