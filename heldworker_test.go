package hapax_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/patience"
	"github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/store/memstore"
	"github.com/hapax-id/hapax/store/storetest"
)

func hold(t *testing.T, store hapax.WorkerStore, opts hapax.HoldOptions) *hapax.HeldWorker {
	t.Helper()
	h, err := hapax.HoldWorker(t.Context(), store, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = h.Abandon(context.Background()) })
	return h
}

// isLost reports whether the worker ID is lost by now.
func isLost(h *hapax.HeldWorker) bool {
	synctest.Wait()
	select {
	case <-h.Lost():
		return true
	default:
		return false
	}
}

// While the store answers, a worker ID stays held, and what is left never falls below
// what a holder needs to stop.
func TestHeldWorkerIsExtended(t *testing.T) {
	bubble(t, "an hour", func(t *testing.T) {
		h := hold(t, memstore.New(), hapax.HoldOptions{Clock: newTestClock()})
		for range 3600 {
			time.Sleep(time.Second)
			if left := h.Remaining(); left <= hapax.DefaultHoldGrace || isLost(h) {
				t.Fatalf("%v are left, and lost is %v", left, h.Err())
			}
		}
		if err := h.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
}

// lateWorkers answers the first question for a worker ID when most of the grant is over.
type lateWorkers struct {
	*memstore.Store
	late time.Duration
}

func (s *lateWorkers) AcquireWorker(ctx context.Context, req hapax.AcquireRequest) (hapax.Lease, error) {
	lease, err := s.Store.AcquireWorker(ctx, req)
	patience.Slow(s.late)
	return lease, err
}

// The rest of a first grant that came late is extended, and the holder may begin at once.
func TestHeldWorkerWhoseGrantComesLate(t *testing.T) {
	bubble(t, "an answer after 3 s of 4", func(t *testing.T) {
		began := time.Now()
		h := hold(t, &lateWorkers{memstore.New(), 3 * time.Second}, hapax.HoldOptions{
			Clock: newTestClock(), Grant: 4 * time.Second, Grace: 1500 * time.Millisecond, RunAhead: 100 * time.Millisecond,
		})
		if left, took := h.Remaining(), time.Since(began); left <= 1500*time.Millisecond || took > 3100*time.Millisecond || isLost(h) {
			t.Errorf("%v are left after %v; lost: %v", left, took, h.Err())
		}
	})
}

// Without a store to extend it, Lost closes before the time is over, by Grace.
func TestHeldWorkerIsLostInTime(t *testing.T) {
	bubble(t, "the store is away", func(t *testing.T) {
		store := storetest.NewFaults(memstore.New())
		h := hold(t, store, hapax.HoldOptions{Clock: newTestClock(), Grace: 5 * time.Second})
		store.Down()
		<-h.Lost()
		if left := h.Remaining(); left > 5*time.Second || left < 4*time.Second {
			t.Errorf("told with %v left, want 5s", left)
		}
		if !errors.Is(h.Err(), hapax.ErrStoreUnavailable) {
			t.Errorf("the reason is %v", h.Err())
		}
		time.Sleep(5 * time.Second)
		if left := h.Remaining(); left > 0 {
			t.Errorf("%v are left after the end", left)
		}
	})
	bubble(t, "an operator retires it", func(t *testing.T) {
		store := memstore.New()
		h := hold(t, store, hapax.HoldOptions{Clock: newTestClock()})
		if _, err := store.RetireWorker(t.Context(), hapax.DefaultPool, h.ID()); err != nil {
			t.Fatal(err)
		}
		<-h.Lost()
		if left := h.Remaining(); !errors.Is(h.Err(), hapax.ErrLeaseLost) || left <= hapax.DefaultHoldGrace {
			t.Errorf("told with %v left: %v", left, h.Err())
		}
	})
	bubble(t, "the clock is set back", func(t *testing.T) {
		clock := newTestClock()
		h := hold(t, memstore.New(), hapax.HoldOptions{Clock: clock})
		clock.step(-time.Second)
		time.Sleep(time.Second)
		if !isLost(h) || !errors.Is(h.Err(), hapax.ErrClockRollback) {
			t.Errorf("a second after the clock was set back: %v", h.Err())
		}
	})
}

// What counts is time, asleep or awake. A clock set back lengthens nothing.
func TestHeldWorkerGoesByTheClock(t *testing.T) {
	for _, tt := range []struct {
		name string
		turn func(*testClock, *hapax.HeldWorker)
		want time.Duration
	}{
		{"forward", func(c *testClock, _ *hapax.HeldWorker) { c.step(40 * time.Second) }, 20 * time.Second},
		{"back", func(c *testClock, _ *hapax.HeldWorker) { c.step(-40 * time.Second) }, time.Minute},
		{"forward, seen, and back", func(c *testClock, h *hapax.HeldWorker) {
			c.step(40 * time.Second)
			h.Remaining()
			c.step(-40 * time.Second)
		}, 20 * time.Second},
		{"asleep, with a wall clock that stood still", func(c *testClock, _ *hapax.HeldWorker) { c.asleep.Add(int64(40 * time.Second)) }, 20 * time.Second},
	} {
		bubble(t, tt.name, func(t *testing.T) {
			clock := newTestClock()
			h := hold(t, memstore.New(), hapax.HoldOptions{Clock: clock, OnRollback: hapax.RollbackContinue})
			synctest.Wait() // a keeper that looks first after the turn asks for more, as it should
			tt.turn(clock, h)
			if left := h.Remaining(); left != tt.want {
				t.Errorf("%v are left of a minute, want %v", left, tt.want)
			}
		})
	}
}

// hosted is one store as hosts with different clocks see it: through a server, whose
// clock decides.
type hosted struct {
	driver.Store
	clock *testClock
}

func (s hosted) StoreTime(context.Context) (time.Time, error) { return s.clock.wall(), nil }

func (s hosted) AcquireWorker(ctx context.Context, req hapax.AcquireRequest) (hapax.Lease, error) {
	req.Term.Now = s.clock.wall()
	return s.Store.AcquireWorker(ctx, req)
}

func (s hosted) ExtendWorker(ctx context.Context, l hapax.Lease, layout hapax.Layout, term hapax.Term) (hapax.Lease, error) {
	term.Now = s.clock.wall()
	return s.Store.ExtendWorker(ctx, l, layout, term)
}

// Holders of one worker ID follow each other on hosts whose clocks differ, by giving it
// back, by being lost, or by a crash. No two of them read the same time, counting how far their
// generators run ahead; with a holder that does not wait for its clock some do.
func TestHeldWorkersTimeIsTheirsAlone(t *testing.T) {
	for _, waits := range []bool{true, false} {
		name := map[bool]string{true: "who waits", false: "who does not wait"}[waits]
		bubble(t, name, func(t *testing.T) {
			random := rand.New(rand.NewPCG(1, 2))
			server := newTestClock()
			store := hosted{memstore.New(), server}
			opts := hapax.HoldOptions{Workers: hapax.WorkerRange{Lo: 7, Hi: 8}, Grant: 20 * time.Second, Grace: 2 * time.Second, RunAhead: 3 * time.Second}
			var used time.Time // by all holders
			repeated := 0
			for range 200 {
				clock := newTestClock()
				clock.step(time.Duration(random.Int64N(int64(16*time.Second))) - 8*time.Second)
				opts.Clock, opts.Holder = clock, fmt.Sprint(random.Int64())
				began := clock.wall()
				h := hold(t, store, opts)
				if waits {
					began = clock.wall()
				}
				if began.Before(used) {
					repeated++
				}
				time.Sleep(time.Duration(random.Int64N(int64(30 * time.Second))))
				var err error
				switch end := clock.wall().Add(opts.RunAhead); random.IntN(3) {
				case 0:
					used, err = end, h.Close(t.Context())
				case 1:
					used, err = end, h.Abandon(t.Context())
				default:
					used = h.Until().Add(opts.RunAhead) // as long as it may
					time.Sleep(h.Remaining())
					err = h.Abandon(t.Context())
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			if waits && repeated > 0 || !waits && repeated == 0 {
				t.Errorf("%d holders began before their predecessor's time was over", repeated)
			}
		})
	}
}

// A clock that is too far from the store's is refused with both times.
func TestHoldWorkerOnAWrongClock(t *testing.T) {
	bubble(t, "a minute behind", func(t *testing.T) {
		clock := newTestClock()
		clock.step(-time.Minute)
		_, err := hapax.HoldWorker(t.Context(), hosted{memstore.New(), newTestClock()}, hapax.HoldOptions{Clock: clock})
		if !errors.Is(err, hapax.ErrClockSkew) {
			t.Fatal(err)
		}
		for _, at := range []time.Time{clock.wall(), clock.wall().Add(time.Minute)} {
			if !strings.Contains(err.Error(), at.UTC().Format("15:04:05")) {
				t.Errorf("the error does not name %v: %v", at, err)
			}
		}
	})
}

func TestHoldOptions(t *testing.T) {
	for _, tt := range []struct {
		opts hapax.HoldOptions
		want string
	}{
		{hapax.HoldOptions{RunAhead: -1}, "run_ahead"},
		{hapax.HoldOptions{Grace: 30 * time.Second}, "grant"},
		{hapax.HoldOptions{Grant: time.Minute, MaxGrant: time.Second}, "max_grant"},
		{hapax.HoldOptions{Workers: hapax.WorkerRange{Lo: 0, Hi: 5000}}, "workers"},
		{hapax.HoldOptions{OnRollback: "sulk"}, "on_rollback"},
	} {
		_, err := hapax.HoldWorker(t.Context(), memstore.New(), tt.opts)
		if e, ok := errors.AsType[*hapax.ValueError](err); !ok || e.Field != tt.want {
			t.Errorf("%+v: %v, want an error for %s", tt.opts, err, tt.want)
		}
	}
}
