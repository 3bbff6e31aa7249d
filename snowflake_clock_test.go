package hapax_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/store/memstore"
	"github.com/hapax-id/hapax/store/storetest"
)

func TestSnowflakeMaxBehind(t *testing.T) {
	bubble(t, "a burst uses the ticks just past", func(t *testing.T) {
		s := newSnowflake(t, memstore.New(), hapax.SnowflakeOptions{Clock: newTestClock(), MaxBehind: time.Second, Layout: mustLayout(t, "js-safe-53")})
		next(t, s)
		time.Sleep(2 * time.Second)
		began := time.Now()
		buf := make([]hapax.ID, 512*1000) // one second's worth
		if _, err := s.NextN(t.Context(), buf); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took > 0 {
			t.Errorf("a burst within MaxBehind had to wait %v", took)
		}
	})
}

func TestSnowflakeClockSteps(t *testing.T) {
	for kind, mutex := range map[string]bool{"atomic": false, "mutex": true} {
		bubble(t, "continue/"+kind, func(t *testing.T) {
			var ev events
			clock := newTestClock()
			s := newSnowflake(t, memstore.New(), hapax.SnowflakeOptions{Clock: clock, Observer: ev.observe, Mutex: mutex})
			var last hapax.ID
			for i, step := range []time.Duration{0, -time.Hour, time.Second, time.Hour, -time.Second, 2 * time.Hour, -3 * time.Hour} {
				clock.step(step)
				for range 200 {
					id := next(t, s)
					if id <= last {
						t.Fatalf("after step %d (%v) %d follows %d", i, step, id, last)
					}
					last = id
					time.Sleep(time.Millisecond)
				}
			}
			if ev.count(hapax.EventRollback) == 0 {
				t.Error("no rollback was announced")
			}
		})
		bubble(t, "refuse/"+kind, func(t *testing.T) {
			clock := newTestClock()
			s := newSnowflake(t, memstore.New(), hapax.SnowflakeOptions{Clock: clock, OnRollback: hapax.RollbackRefuse, Mutex: mutex})
			last := next(t, s)
			clock.step(-time.Minute)
			time.Sleep(2 * time.Millisecond) // the pacer looks every millisecond
			if _, err := s.Next(t.Context()); !errors.Is(err, hapax.ErrClockRollback) {
				t.Fatalf("a minute back: %v, want ErrClockRollback", err)
			}
			time.Sleep(time.Second)
			if _, err := s.Next(t.Context()); !errors.Is(err, hapax.ErrClockRollback) {
				t.Fatalf("a second later: %v, want ErrClockRollback", err)
			}
			clock.step(time.Minute)
			if id := next(t, s); id <= last {
				t.Fatalf("with the clock right %d follows %d", id, last)
			}
		})
	}
}

func TestSnowflakeSuspend(t *testing.T) {
	bubble(t, "drops the grant and takes another, rising", func(t *testing.T) {
		var ev events
		clock := newTestClock()
		s := newSnowflake(t, memstore.New(), hapax.SnowflakeOptions{Clock: clock, Observer: ev.observe})
		last, token := next(t, s), s.Stats().Token
		worker := s.Stats().Worker
		clock.asleep.Add(int64(2 * time.Second)) // as much as the grant still holds
		clock.step(2 * time.Second)
		time.Sleep(time.Second)
		if id := next(t, s); id <= last {
			t.Errorf("%d follows %d", id, last)
		}
		if st := s.Stats(); st.Token == token && st.Worker == worker {
			t.Error("goes on under the old lease")
		}
		if n := ev.count(hapax.EventSuspended); n != 1 {
			t.Errorf("%d events, want 1", n)
		}
	})
	bubble(t, "drops what the store granted meanwhile", func(t *testing.T) {
		var ev events
		clock, store := newTestClock(), storetest.NewFaults(memstore.New())
		s := newSnowflake(t, store, hapax.SnowflakeOptions{Clock: clock, Observer: ev.observe})
		token, worker := s.Stats().Token, s.Stats().Worker
		store.Inject(func(storetest.Op) storetest.Fault { return storetest.Fault{After: 100 * time.Millisecond} })
		time.Sleep(6 * time.Second)
		next(t, s) // more than half of the grant is over: an extension is under way
		time.Sleep(60 * time.Millisecond)
		clock.asleep.Add(int64(2 * time.Second))
		next(t, s)
		time.Sleep(time.Second)
		next(t, s)
		if st := s.Stats(); st.Token == token && st.Worker == worker {
			t.Error("goes on under the old lease")
		}
		if n := ev.count(hapax.EventSuspended); n != 1 {
			t.Errorf("%d events, want 1", n)
		}
	})
}

// Without a store there is one worker ID, whose time goes on above what was in hand before.
func TestSleepWithoutStore(t *testing.T) {
	for _, slept := range []time.Duration{100 * time.Millisecond, 500 * time.Millisecond, 5 * time.Second, time.Hour} {
		bubble(t, slept.String(), func(t *testing.T) {
			var ev events
			clock := newTestClock()
			s := newSnowflake(t, nil, hapax.SnowflakeOptions{Clock: clock, Workers: hapax.WorkerRange{Lo: 3, Hi: 4}, Observer: ev.observe})
			last := next(t, s)
			for range 100 { // the grants of a long life
				time.Sleep(10 * time.Second)
				last = next(t, s)
			}
			clock.asleep.Add(int64(slept))
			clock.step(slept)
			began := time.Now()
			for range 1000 {
				id := next(t, s)
				if id <= last {
					t.Fatalf("%d follows %d", id, last)
				}
				last = id
			}
			if waited := time.Since(began); waited > 3*time.Second { // as long as a grant
				t.Errorf("after a sleep of %v callers waited %v", slept, waited)
			}
			if n := ev.count(hapax.EventSuspended); n != 1 {
				t.Errorf("%d events, want 1", n)
			}
		})
	}
}

func TestSnowflakeTimeEnds(t *testing.T) {
	bubble(t, "warned a year ahead, an error at the end, never negative", func(t *testing.T) {
		var ev events
		layout := mustLayout(t, "uidgenerator-29-21-13")
		clock := newTestClock()
		clock.step(layout.Ends().Add(-time.Minute).Sub(clock.wall()))
		s := newSnowflake(t, memstore.New(), hapax.SnowflakeOptions{Clock: clock, Layout: layout, Observer: ev.observe, KeepWarm: true})
		var err error
		var last hapax.ID
		for err == nil {
			var id hapax.ID
			if id, err = s.Next(t.Context()); err == nil && id <= last {
				t.Fatalf("%d follows %d", id, last)
			}
			last = max(last, id)
			time.Sleep(10 * time.Millisecond)
		}
		if !errors.Is(err, hapax.ErrTimeExhausted) {
			t.Fatalf("error is %v, want ErrTimeExhausted", err)
		}
		if at, _ := layout.Time(last); layout.Ends().Sub(at) > 2*time.Second {
			t.Errorf("the last number carries %v, time ends at %v", at, layout.Ends())
		}
		if ev.count(hapax.EventTimeRunningOut) == 0 {
			t.Error("no warning")
		}
	})
}

func TestSnowflakeSkew(t *testing.T) {
	bubble(t, "a local clock far from the store's is refused, saying both", func(t *testing.T) {
		clock := newTestClock()
		var ev events
		store := clockedStore{memstore.New(), newTestClock()}
		clock.step(time.Hour)
		_, err := hapax.NewSnowflake(t.Context(), store, hapax.SnowflakeOptions{Clock: clock, Observer: ev.observe})
		if !errors.Is(err, hapax.ErrClockSkew) {
			t.Fatalf("error is %v, want ErrClockSkew", err)
		}
		clock.step(-time.Hour + 9*time.Second)
		if skew := newSnowflake(t, store, hapax.SnowflakeOptions{Clock: clock}).Stats().Skew; skew != 9*time.Second {
			t.Errorf("skew is %v, want 9 s", skew)
		}
	})
}

type clockedStore struct {
	driver.Store
	clock *testClock
}

func (s clockedStore) StoreTime(context.Context) (time.Time, error) { return s.clock.wall(), nil }
