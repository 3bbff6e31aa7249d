package hapax_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/memstore"
	"github.com/hapax-id/hapax/store/storetest"
)

// An issuer that is closed while the store is asked for more waits for the answer, and
// hands that back with the rest: the next one goes on without a gap.
func TestCloseDuringRefill(t *testing.T) {
	for _, delay := range []storetest.Fault{{Before: time.Second}, {After: time.Second}} {
		bubble(t, "", func(t *testing.T) {
			store := storetest.NewFaults(memstore.New())
			s := newSegment(t, store, hapax.SegmentOptions{Clock: newTestClock(), Step: 10})
			store.Inject(func(op storetest.Op) storetest.Fault {
				if op.Method == "Allocate" {
					return delay
				}
				return storetest.Fault{}
			})
			last := next(t, s)
			for range 3 { // beyond the threshold, so that the next segment is asked for
				last = next(t, s)
			}
			synctest.Wait()
			if store.Calls("Allocate") < 2 {
				t.Fatal("no segment was asked for")
			}
			if err := s.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
			if id := next(t, newSegment(t, store, hapax.SegmentOptions{Clock: newTestClock()})); id != last+1 {
				t.Errorf("after %d and a stop in good order comes %d", last, id)
			}
		})
	}
}

// The same of a snowflake issuer: what an extension grants meanwhile is sealed too.
func TestCloseDuringExtension(t *testing.T) {
	bubble(t, "", func(t *testing.T) {
		inner := memstore.New()
		store := storetest.NewFaults(inner)
		clock := newTestClock()
		s, err := hapax.NewSnowflake(t.Context(), store, hapax.SnowflakeOptions{Clock: clock, KeepWarm: true})
		if err != nil {
			t.Fatal(err)
		}
		next(t, s)
		store.Inject(func(op storetest.Op) storetest.Fault {
			if op.Method == "ExtendWorker" {
				return storetest.Fault{After: time.Second}
			}
			return storetest.Fault{}
		})
		for store.Calls("ExtendWorker") == 0 {
			time.Sleep(100 * time.Millisecond)
		}
		if err := s.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		workers, err := inner.Workers(t.Context(), hapax.DefaultPool)
		now, tickErr := mustLayout(t, "leaf").TickOf(clock.wall())
		if err := errors.Join(err, tickErr); err != nil || len(workers) != 1 || workers[0].Mark > now {
			t.Errorf("after a stop in good order at tick %d the workers are %+v, error %v; want no granted time left", now, workers, err)
		}
	})
}

// What cannot go back is told, with the stretch.
func TestCloseTellsWhatIsBurnt(t *testing.T) {
	type burnt struct {
		grant hapax.Grant
		err   error
	}
	for _, tc := range []struct {
		name  string
		spoil func(t *testing.T, store *storetest.Faults)
		want  hapax.Grant
		err   error // of Close
		event error
	}{
		{"another was granted numbers above", func(t *testing.T, store *storetest.Faults) {
			if _, err := store.Allocate(t.Context(), "orders", 5, ""); err != nil {
				t.Fatal(err)
			}
		}, hapax.Grant{Lo: 2, Hi: 11}, nil, hapax.ErrLeaseLost},
		{"the store is away", func(_ *testing.T, store *storetest.Faults) { store.Down() }, hapax.Grant{Lo: 2, Hi: 11}, hapax.ErrStoreUnavailable, hapax.ErrStoreUnavailable},
		{"nothing stands against it", func(*testing.T, *storetest.Faults) {}, hapax.Grant{}, nil, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			bubble(t, "", func(t *testing.T) {
				store := storetest.NewFaults(memstore.New())
				var got []burnt
				s := newSegment(t, store, hapax.SegmentOptions{Clock: newTestClock(), Step: 10, Observer: func(e hapax.Event) {
					if e.Kind == hapax.EventBurnt {
						got = append(got, burnt{e.Grant, e.Err})
					}
				}})
				next(t, s)
				synctest.Wait()
				tc.spoil(t, store)
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				if err := s.Close(ctx); !errors.Is(err, tc.err) {
					t.Errorf("closed with %v; want %v", err, tc.err)
				}
				if tc.want == (hapax.Grant{}) {
					if len(got) > 0 {
						t.Errorf("%v was told of; want nothing", got)
					}
					return
				}
				if !slices.ContainsFunc(got, func(b burnt) bool { return b.grant == tc.want && errors.Is(b.err, tc.event) }) || len(got) != 1 {
					t.Errorf("%v was told of; want %v because of %v", got, tc.want, tc.event)
				}
			})
		})
	}
}
