package hapax_test

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/memstore"
)

// trying is what both issuers can do.
type trying interface {
	hapax.Issuer
	TryNext() (hapax.ID, bool)
	TryNextN(dst []hapax.ID) int
}

// TestInterleavings has adds, batches, seals, drops, swaps and extensions meet in
// as many ways as the machine's threads find, several issuers one after the other
// on one line, and looks for a number that came twice. Under the race detector the
// conditions are checked at each step, too.
func TestInterleavings(t *testing.T) {
	rounds := 60
	if testing.Short() {
		rounds = 15
	}
	for name, open := range map[string]func(*memstore.Store) (trying, func(), error){
		"segment": func(store *memstore.Store) (trying, func(), error) {
			s, err := hapax.NewSegment(t.Context(), store, "t", hapax.SegmentOptions{Step: 7, MaxStep: 300})
			return s, s.Drop, err
		},
		"segment with a delta": func(store *memstore.Store) (trying, func(), error) {
			s, err := hapax.NewSegment(t.Context(), store, "t", hapax.SegmentOptions{Step: 5, MaxStep: 100, Delta: 3, Remainder: 2})
			return s, s.Drop, err
		},
		"snowflake": func(store *memstore.Store) (trying, func(), error) {
			s, err := hapax.NewSnowflake(t.Context(), store, hapax.SnowflakeOptions{
				Layout: mustLayout(t, narrow), Grant: 2 * time.Millisecond, MaxGrant: 4 * time.Millisecond, Lease: time.Second, MaxAhead: time.Second,
			})
			return s, func() {}, err
		},
	} {
		t.Run(name, func(t *testing.T) {
			store, seen := memstore.New(), sync.Map{}
			var total atomic.Int64
			note := func(ids ...hapax.ID) {
				for _, id := range ids {
					if _, twice := seen.LoadOrStore(id, nil); twice {
						t.Errorf("%d came twice", id)
					}
				}
				total.Add(int64(len(ids)))
			}
			for range rounds {
				s, drop, err := open(store)
				if err != nil {
					t.Fatal(err)
				}
				var wg sync.WaitGroup
				var used atomic.Int64 // how many users have come to their end
				for k := range 4 {
					wg.Go(func() { useUntilClosed(t, s, k, note); used.Add(1) })
				}
				for range 3 {
					for more := total.Load() + 200; total.Load() < more && used.Load() < 4; {
						runtime.Gosched()
					}
					drop()
				}
				if err := s.Close(context.Background()); err != nil {
					t.Error(err)
				}
				wg.Wait()
			}
			if total.Load() < int64(rounds) {
				t.Errorf("only %d numbers were issued", total.Load())
			}
		})
	}
}

// useUntilClosed takes numbers in one of four ways.
func useUntilClosed(t *testing.T, s trying, way int, note func(...hapax.ID)) {
	batch := make([]hapax.ID, 9)
	for range 2000 {
		var err error
		switch way {
		case 0:
			var id hapax.ID
			if id, err = s.Next(context.Background()); err == nil {
				note(id)
			}
		case 1:
			var n int
			n, err = s.NextN(context.Background(), batch)
			note(batch[:n]...)
		case 2:
			if id, ok := s.TryNext(); ok {
				note(id)
			}
		case 3:
			note(batch[:s.TryNextN(batch)]...)
		}
		if errors.Is(err, hapax.ErrClosed) {
			return
		}
		if err != nil {
			t.Error(err)
			return
		}
	}
}
