package memstore_test

import (
	"errors"
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

// No repair lowers a worker's mark, and a row that nobody can have written is no
// worker's.
func TestWorkerRows(t *testing.T) {
	ctx, s := t.Context(), memstore.New()
	const table, row = "workers/p", "0000000000000000007"
	if w, err := s.RaiseWorker(ctx, "p", 7, 1000); err != nil || w.Mark != 1000 {
		t.Fatal(w, err)
	}
	before, err := s.Workers(ctx, "p")
	if err != nil {
		t.Fatal(err)
	}
	if w, err := s.RaiseWorker(ctx, "p", 7, 10); err != nil || w.Mark != 1000 || w.Token <= before[0].Token {
		t.Errorf("raised to less it is %+v, error %v; want the mark 1000 and another token", w, err)
	}
	raw, err := s.Row(ctx, table, row)
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"no token":         `{"mark":10,"from":5,"token":0}`,
		"negative mark":    `{"mark":-1,"from":0,"token":1}`,
		"negative from":    `{"mark":10,"from":-5,"token":1}`,
		"from beyond mark": `{"mark":10,"from":11,"token":1}`,
		"unknown field":    `{"mark":10,"from":5,"token":1,"floor":7}`,
		"two objects":      `{"mark":10,"from":5,"token":1}{}`,
	} {
		next := []byte(text)
		if ok, err := s.SwapRow(ctx, table, row, raw, next); !ok || err != nil {
			t.Fatal(ok, err)
		}
		raw = next
		if w, err := s.Workers(ctx, "p"); !errors.Is(err, hapax.ErrStoreCorrupt) {
			t.Errorf("%s: %+v, error %v; want ErrStoreCorrupt", name, w, err)
		}
	}
}
