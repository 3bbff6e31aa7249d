package service

import (
	"context"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/boltstore"
	"github.com/hapax-id/hapax/store/memstore"
)

// A tag that is not used is let go of, and its numbers handed back; its next use
// goes on without a gap. A tag that is used stays.
func TestIdleTagsAreEvicted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := New(t.Context(), memstore.New(), Options{TagIdle: 10 * time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close(context.Background())
		next := func(tag string, want hapax.ID) {
			t.Helper()
			if id, err := s.Next(t.Context(), tag); err != nil || id != want {
				t.Errorf("%s: %d, %v; want %d", tag, id, err, want)
			}
		}
		next("idle", 1)
		for i := range 40 {
			next("busy", hapax.ID(i+1))
			time.Sleep(time.Minute)
			synctest.Wait()
		}
		if s.tags.find("idle") != nil {
			t.Error("the idle tag is still in use")
		}
		if s.tags.find("busy") == nil {
			t.Error("the busy tag was closed")
		}
		if tag, err := s.Tag(t.Context(), "idle"); err != nil || tag.Mark != 2 {
			t.Errorf("the mark of the idle tag is %d, %v; want 2: handed back", tag.Mark, err)
		}
		next("idle", 2)
	})
}

// A node that is restarted gracefully loses no number.
func TestRestartsLeaveNoGap(t *testing.T) {
	path, want := filepath.Join(t.TempDir(), "db"), hapax.ID(1)
	for restart := range 100 {
		store, err := boltstore.Open(t.Context(), path, boltstore.Options{})
		if err != nil {
			t.Fatal(err)
		}
		s, err := New(t.Context(), store, Options{})
		if err != nil {
			t.Fatal(err)
		}
		for range 1 + restart*7%40 {
			id, err := s.Next(t.Context(), "orders")
			if err != nil || id != want {
				t.Fatalf("restart %d: %d, %v; want %d", restart, id, err, want)
			}
			want++
		}
		if err := s.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := store.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// Several nodes lose no more than the numbers below the grants of others.
func TestRestartsAmongOthers(t *testing.T) {
	const nodes, rounds, step = 3, 10, 100
	store, used := memstore.New(), map[hapax.ID]bool{}
	opts := Options{Tags: map[string]TagConfig{"orders": {Step: step, MaxStep: step}}}
	top := hapax.ID(0)
	for round := range rounds {
		var all []*Service
		for range nodes {
			s, err := New(t.Context(), store, opts)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, s)
			for range 5 {
				id, err := s.Next(t.Context(), "orders")
				if err != nil || used[id] {
					t.Fatalf("%d, %v; issued before: %v", id, err, used[id])
				}
				used[id] = true
				top = max(top, id)
			}
		}
		for _, s := range all {
			if err := s.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if lost, most := int(top)-len(used), (round+1)*(nodes-1)*2*step; lost > most {
			t.Fatalf("after %d rounds %d numbers are lost, want at most %d", round+1, lost, most)
		}
	}
}
