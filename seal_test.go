package hapax_test

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/memstore"
)

// firm is a store that takes back nothing that it granted before the last extension.
type firm struct {
	*memstore.Store
	from, sealed int64
}

func (s *firm) ExtendWorker(ctx context.Context, l hapax.Lease, layout hapax.Layout, term hapax.Term) (hapax.Lease, error) {
	l, err := s.Store.ExtendWorker(ctx, l, layout, term)
	l.From, s.from = l.Grant.Lo, l.Grant.Lo
	return l, err
}

func (s *firm) SealWorker(_ context.Context, _ hapax.Lease, last int64) error {
	s.sealed = last
	return nil
}

// A seal goes no lower than the lease says.
func TestCloseSealsNoLowerThanFrom(t *testing.T) {
	bubble(t, filepath.Base(t.Name()), func(t *testing.T) {
		store := &firm{Store: memstore.New()}
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
		if err := s.Close(t.Context()); err != nil {
			t.Errorf("closed with %v", err)
		}
		if store.from == 0 || store.sealed != store.from {
			t.Errorf("sealed at %d; want %d, where the lease says that it begins", store.sealed, store.from)
		}
	})
}
