package service

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/memstore"
)

// looked counts how often a store was asked for the tag "new".
type looked struct {
	*memstore.Store
	times atomic.Int64
}

func (s *looked) Tag(ctx context.Context, name string) (hapax.Tag, error) {
	if name == "new" {
		s.times.Add(1)
	}
	return s.Store.Tag(ctx, name)
}

func TestExisting(t *testing.T) { synctest.Test(t, testExisting) } // what is not there is remembered for a second

func testExisting(t *testing.T) {
	store := &looked{Store: memstore.New()}
	s, err := New(t.Context(), store, Options{Tags: map[string]TagConfig{"defined": {}}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close(context.Background())
	for range 3 {
		if err := s.Existing(t.Context(), "new"); !errors.Is(err, hapax.ErrTagNotFound) {
			t.Errorf("a tag that is nowhere: %v", err)
		}
	}
	if n := store.times.Load(); n != 1 {
		t.Errorf("the store was asked %d times", n)
	}
	if id, err := s.Next(t.Context(), "new"); err != nil || id != 1 {
		t.Errorf("its first use by another caller: %d, %v", id, err)
	}
	for tag, want := range map[string]error{"new": nil, "defined": nil, SnowflakeTag: hapax.ErrKindMismatch} {
		if err := s.Existing(t.Context(), tag); !errors.Is(err, want) {
			t.Errorf("%s: %v; want %v", tag, err, want)
		}
	}
	for i := range 2 * maxRefusals {
		_ = s.Existing(t.Context(), fmt.Sprint("none", i))
	}
	if len(s.absent) > maxRefusals {
		t.Errorf("%d names are remembered", len(s.absent))
	}
}
