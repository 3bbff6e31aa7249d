package hapax_test

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/store/memstore"
)

// through makes each call on leases as another node, as a client does whose servers
// take turns.
type through struct {
	*memstore.Store
	node string
}

func (s *through) AcquireWorker(ctx context.Context, req hapax.AcquireRequest) (hapax.Lease, error) {
	return s.Store.AcquireWorker(driver.WithNode(ctx, "first"), req)
}

func (s *through) ExtendWorker(ctx context.Context, l hapax.Lease, req hapax.ExtendRequest) (hapax.Lease, error) {
	return s.Store.ExtendWorker(driver.WithNode(ctx, s.node), l, req)
}

func (s *through) SealWorker(ctx context.Context, l hapax.Lease, last int64) error {
	return s.Store.SealWorker(driver.WithNode(ctx, s.node), l, last)
}

// What another node granted under the lease stays granted: the seal goes no lower
// than where that ends, and is no error.
func TestCloseSealsNoLowerThanFrom(t *testing.T) {
	bubble(t, filepath.Base(t.Name()), func(t *testing.T) {
		store := &through{memstore.New(), "second"}
		s, err := hapax.NewSnowflake(t.Context(), store, hapax.SnowflakeOptions{Clock: newTestClock(), KeepWarm: true})
		if err != nil {
			t.Fatal(err)
		}
		for grants := s.Stats().Grants; s.Stats().Grants == grants; { // until it was extended, well before its grant ends
			time.Sleep(time.Second)
		}
		if _, err := s.Next(t.Context()); err != nil {
			t.Fatal(err)
		}
		workers, err := store.Workers(t.Context(), hapax.DefaultPool)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Close(t.Context()); err != nil {
			t.Errorf("closed with %v", err)
		}
		after, err := store.Workers(t.Context(), hapax.DefaultPool)
		if err != nil || after[0].Mark != workers[0].From || after[0].Token == workers[0].Token {
			t.Errorf("the worker was %+v and is %+v, error %v; want it sealed where the first node's grant ends", workers[0], after[0], err)
		}
	})
}

// A seal through another node than the one that granted frees the worker and gives no
// time back: the witness of the first knows nothing of it.
func TestSealThroughAnotherNodeGivesNothingBack(t *testing.T) {
	store := &through{memstore.New(), "second"}
	layout := mustLayout(t, hapax.LayoutLeaf)
	lease, err := store.AcquireWorker(t.Context(), hapax.AcquireRequest{
		Pool: "p", Layout: layout, Workers: hapax.WorkerRange{Hi: 4}, Holder: "h", Term: hapax.Term{Now: time.Now(), Length: 10 * time.Second, TTL: time.Minute},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := store.SealWorker(t.Context(), lease, lease.Grant.Lo+1); err != nil {
		t.Fatal(err)
	}
	if after, err := store.Workers(t.Context(), "p"); err != nil || after[0].Mark != lease.Grant.Hi || after[0].Token == lease.Token {
		t.Errorf("the worker is %+v, error %v; want it free at %d", after, err, lease.Grant.Hi)
	}
}
