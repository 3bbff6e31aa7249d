package hapax_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/memstore"
)

// Of the time that a lease brings anew, no tick may be among those taken, not even one.
func TestOneTickThatWasTaken(t *testing.T) {
	for name, tt := range map[string]struct {
		overlap int64
		refused bool
	}{"none": {0, false}, "the last one": {1, true}} {
		bubble(t, name, func(t *testing.T) {
			store := memstore.New()
			var refusal error
			var taken hapax.Grant
			acquired := 0
			s := newSnowflake(t, liar{Store: store, lease: func(l *hapax.Lease) {
				if acquired++; acquired == 1 {
					taken = l.Grant
					return
				}
				l.Grant.Lo = taken.Hi - tt.overlap
				l.From = l.Grant.Lo
			}}, hapax.SnowflakeOptions{
				Clock: newTestClock(), Workers: hapax.WorkerRange{Lo: 0, Hi: 1}, Grant: time.Second, KeepWarm: true,
				Observer: func(e hapax.Event) {
					if e.Kind == hapax.EventRefused {
						refusal = e.Err
					}
				},
			})
			next(t, s)
			if _, err := store.RetireWorker(t.Context(), hapax.DefaultPool, 0); err != nil { // its lease ends before it is extended
				t.Fatal(err)
			}
			time.Sleep(10 * time.Second)
			synctest.Wait() // what the observer wrote is read below
			if acquired < 2 {
				t.Fatal("no lease was acquired anew")
			}
			if tt.refused != errors.Is(refusal, hapax.ErrStoreRolledBack) {
				t.Errorf("a lease from tick %d on, after [%d, %d) was taken: %v", taken.Hi-tt.overlap, taken.Lo, taken.Hi, refusal)
			}
		})
	}
}

// Calls that are refused leave the cursor where it is: else it would run away from the
// clock while they are made, and nothing could be issued until the clock has caught up.
func TestRefusedCallsBurnNothing(t *testing.T) {
	bubble(t, "snowflake", func(t *testing.T) {
		clock := newTestClock()
		s := newSnowflake(t, memstore.New(), hapax.SnowflakeOptions{
			Clock: clock, Layout: mustLayout(t, hapax.LayoutLeaf), OnRollback: hapax.RollbackRefuse,
		})
		for range 100 { // single adds are open from the first of them on
			next(t, s)
		}
		clock.offset.Store(-int64(time.Hour))
		issued := 0
		for range 100_000 {
			if _, ok := s.TryNext(); ok {
				issued++
			}
		}
		if issued >= 4096 {
			t.Fatalf("%d numbers came while the clock was wrong", issued)
		}
		clock.offset.Store(0)
		time.Sleep(2 * time.Millisecond)
		if _, ok := s.TryNext(); !ok {
			t.Error("the clock is right again, and there is no number")
		}
	})
}
