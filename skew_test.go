package hapax_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/store/memstore"
)

// A slowClock is a store with a clock of its own, which takes a while to tell it.
type slowClock struct {
	driver.Store
	clock *testClock
	takes *atomic.Int64
}

func (s slowClock) StoreTime(context.Context) (time.Time, error) {
	at := s.clock.wall()
	time.Sleep(time.Duration(s.takes.Load()))
	return at, nil
}

// TestSkewOfEither sets the clocks of two nodes and of their store, and sees who issues. A
// clock that is behind is announced; one that is ahead is refused, where it is the node's.
func TestSkewOfEither(t *testing.T) {
	type world struct {
		store, a, b *testClock
	}
	tests := []struct {
		name         string
		policy       hapax.RollbackPolicy
		set          func(w world)
		a, b         error // what each says while it is so
		announcedByA bool
	}{
		{name: "nobody's"},
		{name: "a node's 90 s back", set: func(w world) { w.a.step(-90 * time.Second) }, announcedByA: true},
		{name: "a node's a day back", set: func(w world) { w.a.step(-24 * time.Hour) }, announcedByA: true},
		{name: "a node's 90 s ahead", set: func(w world) { w.a.step(90 * time.Second) }, a: hapax.ErrClockSkew},
		{name: "a node's 11 s ahead", set: func(w world) { w.a.step(11 * time.Second) }, a: hapax.ErrClockSkew},
		{name: "the store's an hour back", set: func(w world) { w.store.step(-time.Hour) }},
		{name: "the store's 11 s back", set: func(w world) { w.store.step(-11 * time.Second) }},
		{name: "the store's an hour ahead", set: func(w world) { w.store.step(time.Hour) }},
		{name: "the store's twice, and right", set: func(w world) {
			w.store.step(-time.Hour)
			time.Sleep(time.Minute)
			w.store.step(2 * time.Hour)
			time.Sleep(time.Minute)
			w.store.step(-time.Hour)
		}},
		{name: "the store's back, then a node's ahead", set: func(w world) {
			w.store.step(-time.Hour)
			time.Sleep(time.Minute)
			w.a.step(time.Minute)
		}, a: hapax.ErrClockSkew},
		{name: "the store's back and right again, then a node's ahead", set: func(w world) {
			w.store.step(-time.Hour)
			time.Sleep(time.Minute)
			w.store.step(time.Hour)
			time.Sleep(time.Minute)
			w.a.step(time.Minute)
		}, a: hapax.ErrClockSkew},
		{name: "a node's that runs fast", set: func(w world) {
			for range 110 { // no step is as large as a second
				w.a.step(100 * time.Millisecond)
				time.Sleep(time.Minute)
			}
		}, a: hapax.ErrClockSkew},
		{name: "a node's back, refused", policy: hapax.RollbackRefuse, set: func(w world) { w.a.step(-90 * time.Second) }, a: hapax.ErrClockRollback},
		{name: "the store's an hour back, where rollbacks are refused", policy: hapax.RollbackRefuse, set: func(w world) { w.store.step(-time.Hour) }},
	}
	for _, tt := range tests {
		bubble(t, tt.name, func(t *testing.T) {
			w := world{newTestClock(), newTestClock(), newTestClock()}
			store := slowClock{memstore.New(), w.store, new(atomic.Int64)}
			var told events
			node := func(c *testClock, observe func(hapax.Event)) *hapax.Snowflake {
				return newSnowflake(t, store, hapax.SnowflakeOptions{
					Clock: c, OnRollback: tt.policy, Observer: observe, KeepWarm: true, Grant: time.Second, MaxGrant: time.Second,
				})
			}
			a, b := node(w.a, told.observe), node(w.b, nil)
			next(t, a)
			next(t, b)
			if tt.set != nil {
				tt.set(w)
			}
			time.Sleep(3 * time.Second) // what was granted before is over
			for _, n := range []struct {
				name string
				of   *hapax.Snowflake
				want error
			}{{"a", a, tt.a}, {"b", b, tt.b}} {
				seen := map[hapax.ID]bool{}
				for range 10 {
					ctx, cancel := context.WithTimeout(t.Context(), time.Second)
					id, err := n.of.Next(ctx)
					cancel()
					if !errors.Is(err, n.want) || n.want == nil && seen[id] {
						t.Fatalf("%s: %d, %v; want %v", n.name, id, err, n.want)
					}
					seen[id] = true
					time.Sleep(time.Second)
				}
			}
			if n := told.count(hapax.EventClockSkew); tt.announcedByA && n != 1 || tt.a == nil && !tt.announcedByA && n != 0 {
				t.Errorf("the skew was announced %d times", n)
			}
			w.a.offset.Store(0)
			w.store.offset.Store(0)
			time.Sleep(3 * time.Second)
			next(t, a) // with the clocks right
		})
	}
}

// A difference that the time of the answer can explain is none, and one that was seen is
// over only when an answer says so.
func TestSkewOfASlowAnswer(t *testing.T) {
	bubble(t, "", func(t *testing.T) {
		local := newTestClock()
		store := slowClock{memstore.New(), newTestClock(), new(atomic.Int64)}
		c := hapax.NewEngineClock(local)
		for i, step := range []struct {
			offset, takes, want time.Duration
		}{
			{0, 2400 * time.Millisecond, 0}, // the middle of the round trip is 1.2 s after the answer
			{-5 * time.Second, 0, -5 * time.Second},
			{-5 * time.Second, 20 * time.Second, -5 * time.Second},
			{-5 * time.Second, 4 * time.Second, -5 * time.Second}, // -3 s, give or take two
			{0, 2 * time.Millisecond, 0},
			{1500 * time.Millisecond, 0, 1500 * time.Millisecond},
			{1500 * time.Millisecond, 4 * time.Second, 1500 * time.Millisecond},
		} {
			local.offset.Store(int64(step.offset))
			store.takes.Store(int64(step.takes))
			if _, err := c.Compare(t.Context(), store.StoreTime, 10*time.Second); err != nil {
				t.Fatal(err)
			}
			if got := c.Skew(); got != step.want {
				t.Errorf("step %d: the skew is %v, want %v", i, got, step.want)
			}
		}
	})
}

// A clock that drifts away is the node's, though each step is small enough to be the
// store's; one that leaps is not.
func TestSkewOfADrift(t *testing.T) {
	for name, tt := range map[string]struct {
		slower time.Duration // the store's clock, each minute
		want   error
	}{"drifts": {10 * time.Millisecond, hapax.ErrClockSkew}, "leaps": {9 * time.Second, nil}} {
		bubble(t, name, func(t *testing.T) {
			store := slowClock{memstore.New(), newTestClock(), new(atomic.Int64)}
			c := hapax.NewEngineClock(newTestClock())
			for minute := range 1200 {
				ahead, err := c.Compare(t.Context(), store.StoreTime, 10*time.Second)
				if want := time.Duration(minute) * tt.slower; ahead != want {
					t.Fatalf("after %d minutes it is %v ahead, want %v", minute, ahead, want)
				} else if want > 10*time.Second && !errors.Is(err, tt.want) || want <= 10*time.Second && err != nil {
					t.Fatalf("after %d minutes, %v ahead: %v, want %v", minute, ahead, err, tt.want)
				}
				time.Sleep(time.Minute)
				store.clock.step(-tt.slower)
			}
		})
	}
}

// Readers that are descheduled after they have read a clock that never steps see no
// rollback, and no worker ID that is held is lost for one.
func TestNoRollbackByAReaderThatWaits(t *testing.T) {
	for name, tt := range map[string]struct{ readers, every int64 }{"after both clocks": {8, 2}, "between the two": {1, 5}} {
		bubble(t, name, func(t *testing.T) {
			clock := &waitingClock{testClock: newTestClock(), every: tt.every, between: tt.readers == 1}
			c := hapax.NewEngineClock(clock)
			h := hold(t, memstore.New(), hapax.HoldOptions{Clock: &waitingClock{testClock: clock.testClock, every: tt.every, between: clock.between}})
			var readers sync.WaitGroup
			for range tt.readers {
				readers.Go(func() {
					for range 200 {
						if _, lag := c.Now(); lag != 0 {
							t.Errorf("a clock that never steps is %v behind", lag)
						}
						if !clock.between {
							h.Remaining()
						}
						time.Sleep(12 * time.Millisecond)
					}
				})
			}
			readers.Wait()
			if err := h.Err(); err != nil {
				t.Errorf("the worker ID that is held: %v", err)
			}
			clock.step(-time.Second)
			if _, lag := c.Now(); lag != time.Second {
				t.Errorf("a clock that went back by a second is %v behind", lag)
			}
		})
	}
}

// A waitingClock has every so many readers wait for 30 ms after it has read the clock, or
// between the wall clock and the monotonic one.
type waitingClock struct {
	*testClock
	every   int64
	between bool
	n       atomic.Int64
}

func (c *waitingClock) Now() (time.Time, time.Duration) {
	wall, mono := c.testClock.Now()
	if c.n.Add(1)%c.every == 0 {
		time.Sleep(30 * time.Millisecond)
		if c.between {
			_, mono = c.testClock.Now()
		}
	}
	return wall, mono
}

// A reader that is descheduled between the two clocks that tell of sleep drops no grant; a
// machine that was asleep does, also where that reader came before.
func TestNoSleepByAReaderThatWaits(t *testing.T) {
	bubble(t, "", func(t *testing.T) {
		clock := &drowsyClock{testClock: newTestClock()}
		var told events
		s := newSnowflake(t, memstore.New(), hapax.SnowflakeOptions{Clock: clock, Observer: told.observe})
		for range 100 {
			next(t, s)
			time.Sleep(60 * time.Millisecond)
		}
		if n := told.count(hapax.EventSuspended); n != 0 {
			t.Errorf("%d times a machine that never slept was asleep", n)
		}
		clock.asleep.Add(int64(150 * time.Millisecond))
		for range 10 {
			next(t, s)
			time.Sleep(60 * time.Millisecond)
		}
		if n := told.count(hapax.EventSuspended); n != 1 {
			t.Errorf("a machine that slept once was asleep %d times", n)
		}
	})
}

type drowsyClock struct {
	*testClock
	n atomic.Int64
}

func (c *drowsyClock) Asleep() time.Duration {
	asleep := c.testClock.Asleep()
	if c.n.Add(1)%3 == 1 {
		asleep += 200 * time.Millisecond
	}
	return asleep
}
