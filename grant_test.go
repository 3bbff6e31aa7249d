package hapax_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/memstore"
	"github.com/hapax-id/hapax/store/storetest"
)

// Drop burns the segment that was fetched ahead, too.
func TestDropBurnsWhatWasFetchedAhead(t *testing.T) {
	bubble(t, "segment", func(t *testing.T) {
		s := newSegment(t, memstore.New(), hapax.SegmentOptions{Clock: newTestClock(), Step: 10, MaxStep: 10})
		for range 3 {
			next(t, s)
		}
		synctest.Wait() // [11, 21) has arrived
		if got := s.Stats().Remaining; got != 17 {
			t.Fatalf("%d numbers are in hand, want 17", got)
		}
		s.Drop()
		if id := next(t, s); id != 21 {
			t.Errorf("went on at %d, want 21", id)
		}
	})
}

// What a call of NextN has got goes with the rest, if Drop is called while it waits for more.
func TestDropTakesWhatACallHas(t *testing.T) {
	for name, way := range map[string]func(s *hapax.Segment) func(context.Context, []hapax.ID) (int, error){
		"issuer": func(s *hapax.Segment) func(context.Context, []hapax.ID) (int, error) { return s.NextN },
		"lane":   func(s *hapax.Segment) func(context.Context, []hapax.ID) (int, error) { return s.Lane().NextN },
	} {
		bubble(t, name, func(t *testing.T) {
			store := storetest.NewFaults(memstore.New())
			s := newSegment(t, store, hapax.SegmentOptions{Clock: newTestClock(), Step: 10, MaxStep: 10})
			take := way(s)
			store.Inject(func(op storetest.Op) storetest.Fault {
				if op.Method == "Allocate" {
					return storetest.Fault{Fail: hapax.ErrStoreUnavailable}
				}
				return storetest.Fault{}
			})
			if _, err := take(t.Context(), make([]hapax.ID, 1)); err != nil {
				t.Fatal(err)
			}
			ids := make([]hapax.ID, 15)
			ended := make(chan error, 1)
			go func() {
				n, err := take(t.Context(), ids)
				if err == nil && n != len(ids) {
					err = fmt.Errorf("%d numbers, want %d", n, len(ids))
				}
				ended <- err
			}()
			time.Sleep(5 * time.Second) // it waits
			for range 2 {
				s.Drop()
			}
			store.Inject(nil)
			if err := <-ended; err != nil {
				t.Fatal(err)
			}
			for i, id := range ids {
				if want := hapax.ID(11 + i); id != want {
					t.Fatalf("the call gives %v; want 11 to 25: what it had before is dropped", ids)
				}
			}
			// What a lane had counts as issued.
			if st := s.Stats(); name == "issuer" && (st.Issued != 16 || st.Burnt != 9) {
				t.Errorf("%d are issued, %d burnt; want 16, 9", st.Issued, st.Burnt)
			}
		})
	}
}

// A tag that the store has forgotten is not made anew by an issuer that has used
// it.
func TestForgottenTagIsNotMadeAnew(t *testing.T) {
	bubble(t, "segment", func(t *testing.T) {
		store := memstore.New()
		s := newSegment(t, store, hapax.SegmentOptions{Clock: newTestClock(), Step: 10, MaxStep: 10})
		next(t, s)
		synctest.Wait()
		store.Restore(memstore.New())
		var err error
		for err == nil {
			_, err = s.Next(t.Context())
		}
		if !errors.Is(err, hapax.ErrStoreRolledBack) {
			t.Errorf("error is %v, want ErrStoreRolledBack", err)
		}
		if tags, err := store.Tags(t.Context(), "", 10); err != nil || len(tags) != 0 {
			t.Errorf("the store has %v, %v", tags, err)
		}
	})
}

// What others' grants lie above is burnt, and the rest is handed back.
func TestCloseHandsBack(t *testing.T) {
	for name, c := range map[string]struct {
		others bool // somebody else is granted a segment between the issuer's two
		issue  int
		want   hapax.ID // what the next issuer begins with
	}{
		"nothing fetched ahead":          {false, 1, 2},
		"with what was fetched ahead":    {false, 4, 5},
		"all of the first":               {false, 10, 11},
		"into the second":                {false, 14, 15},
		"somebody else in between":       {true, 4, 21},
		"somebody else, into the second": {true, 14, 25},
	} {
		bubble(t, name, func(t *testing.T) {
			store, clock := memstore.New(), newTestClock()
			opts := hapax.SegmentOptions{Clock: clock, Step: 10, MaxStep: 10}
			s := newSegment(t, store, opts)
			next(t, s)
			if c.others {
				if _, err := store.Allocate(t.Context(), "orders", 10, ""); err != nil {
					t.Fatal(err)
				}
			}
			for range c.issue - 1 {
				next(t, s)
				synctest.Wait()
			}
			if err := s.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
			if id := next(t, newSegment(t, store, opts)); id != c.want {
				t.Errorf("the next issuer began with %d, want %d", id, c.want)
			}
		})
	}
}

// Of numbers that are apart as many are told to be handed back, and fewer to be burnt, as were not issued: the
// grant may begin and end anywhere between them.
func TestHandedBackOfDelta(t *testing.T) {
	for remainder := range int64(3) {
		for issue := range int64(11) {
			bubble(t, fmt.Sprintf("remainder %d, %d issued", remainder, issue), func(t *testing.T) {
				told := int64(0)
				s := newSegment(t, memstore.New(), hapax.SegmentOptions{
					Clock: newTestClock(), Step: 10, MaxStep: 10, Delta: 3, Remainder: remainder,
					Observer: func(e hapax.Event) {
						if e.Kind == hapax.EventHandedBack {
							told = e.Value
						}
					},
				})
				for range issue {
					next(t, s)
					synctest.Wait()
				}
				if err := s.Close(t.Context()); err != nil {
					t.Fatal(err)
				}
				st := s.Stats()
				if rest := 10*st.Refills - issue; told != rest || st.Burnt != 0 || st.Issued != issue {
					t.Errorf("%d are handed back, and the counts are %+v; want %d, and none burnt", told, st, rest)
				}
			})
		}
	}
}

// A grant that adjoins under another fencing token is another lease.
func TestAdjoiningGrantOfAnotherLease(t *testing.T) {
	bubble(t, "snowflake", func(t *testing.T) {
		store, clock := memstore.New(), newTestClock()
		s := newSnowflake(t, store, hapax.SnowflakeOptions{Clock: clock, Workers: hapax.WorkerRange{Lo: 0, Hi: 1}, Grant: time.Second, KeepWarm: true})
		next(t, s)
		if _, err := store.RetireWorker(t.Context(), hapax.DefaultPool, 0); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Second)
		next(t, s)
		workers, err := store.Workers(t.Context(), hapax.DefaultPool)
		if err != nil || s.Stats().Token != workers[0].Token || workers[0].Token != 3 {
			t.Errorf("the issuer has fencing token %d, the store %+v, %v", s.Stats().Token, workers, err)
		}
	})
}

// skipping is a store that extends a lease from above its end.
type skipping struct{ *memstore.Store }

func (s skipping) ExtendWorker(ctx context.Context, l hapax.Lease, layout hapax.Layout, term hapax.Term) (hapax.Lease, error) {
	l, err := s.Store.ExtendWorker(ctx, l, layout, term)
	l.Grant.Lo++
	return l, err
}

func TestExtensionThatSkipsIsRefused(t *testing.T) {
	bubble(t, "snowflake", func(t *testing.T) {
		var refused atomic.Bool
		s := newSnowflake(t, skipping{memstore.New()}, hapax.SnowflakeOptions{
			Clock: newTestClock(), Grant: time.Second, KeepWarm: true,
			Observer: func(e hapax.Event) {
				refused.Store(refused.Load() || e.Kind == hapax.EventRefused && errors.Is(e.Err, hapax.ErrStoreCorrupt))
			},
		})
		next(t, s)
		time.Sleep(3 * time.Second)
		if !refused.Load() {
			t.Error("the extension was taken")
		}
	})
}

// Callers that ask for more than a small layout has cost it next to nothing.
func TestOverloadBurnsNothing(t *testing.T) {
	bubble(t, "640 numbers a second", func(t *testing.T) {
		layout := mustLayout(t, "time:40,worker:5,sequence:6,unit=100ms,epoch=2020-01-01T00:00:00Z")
		s := newSnowflake(t, memstore.New(), hapax.SnowflakeOptions{Clock: newTestClock(), Layout: layout})
		var issued atomic.Int64
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		var wg sync.WaitGroup
		for range 16 {
			wg.Go(func() {
				for {
					if _, err := s.Next(ctx); err != nil {
						return
					}
					issued.Add(1)
				}
			})
		}
		wg.Wait()
		if got := issued.Load(); got < 12_600 {
			t.Errorf("%d numbers in 20 s, the layout has 12,800", got)
		}
	})
}

// Numbers that may lead the clock by more than a grant do not need a grant a tick.
func TestFarAheadOfTheClock(t *testing.T) {
	bubble(t, "a minute", func(t *testing.T) {
		store := storetest.NewFaults(memstore.New())
		s := newSnowflake(t, store, hapax.SnowflakeOptions{
			Clock: newTestClock(), Layout: mustLayout(t, narrow), Grant: 2 * time.Second, MaxGrant: 2 * time.Second, MaxAhead: time.Minute,
		})
		dst := make([]hapax.ID, 1000)
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		for ctx.Err() == nil {
			if n, _ := s.NextN(ctx, dst); n == 0 {
				break
			}
		}
		if calls := store.Calls("ExtendWorker"); calls > 60 {
			t.Errorf("%d extensions in 30 s", calls)
		}
	})
}
