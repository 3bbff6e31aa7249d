package hapax_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/store/memstore"
)

// twoNodes is a store behind two nodes. The first one's answer to an extension is
// lost; the second one does what follows.
type twoNodes struct {
	driver.Store
	lost   bool
	sealed int64
}

func (s *twoNodes) ExtendWorker(ctx context.Context, lease hapax.Lease, layout hapax.Layout, term hapax.Term) (hapax.Lease, error) {
	l, err := s.Store.ExtendWorker(ctx, lease, layout, term)
	if err == nil && !s.lost {
		s.lost = true
		return lease, hapax.ErrStoreUnavailable
	}
	return l, err
}

func (s *twoNodes) SealWorker(ctx context.Context, lease hapax.Lease, last int64) error {
	s.sealed = last
	return s.Store.SealWorker(ctx, lease, last)
}

// An answer that was lost at one node stops nothing at the next.
func TestLostAnswerThenAnotherNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(time.Until(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))) // the layout's epoch is over
		store := &twoNodes{Store: memstore.New()}
		flake, err := hapax.NewSnowflake(t.Context(), store, hapax.SnowflakeOptions{Grant: time.Second, MaxGrant: time.Second})
		if err != nil {
			t.Fatal(err)
		}
		worker := flake.Stats().Worker
		for range 100 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			if _, err := flake.Next(ctx); err != nil {
				t.Fatal(err)
			}
			cancel()
			time.Sleep(50 * time.Millisecond)
		}
		if !store.lost || flake.Stats().Worker != worker {
			t.Errorf("lost is %t, and worker %d became %d", store.lost, worker, flake.Stats().Worker)
		}
		if err := flake.Close(t.Context()); err != nil {
			t.Error(err)
		}
		if store.sealed == 0 {
			t.Error("nothing was given back")
		}
	})
}
