package hapax_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/memstore"
	"github.com/hapax-id/hapax/store/storetest"
)

// wide is a layout whose ticks hold more than anybody can use.
const wide = "time:40,worker:1,sequence:22,unit=1ms,epoch=2020-01-01T00:00:00Z"

// events collects what an observer was told.
type events struct {
	mu  sync.Mutex
	all []hapax.Event
}

func (e *events) observe(ev hapax.Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.all = append(e.all, ev)
}

func (e *events) count(kind hapax.EventKind) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	n := 0
	for _, ev := range e.all {
		if ev.Kind == kind {
			n++
		}
	}
	return n
}

func newSnowflake(t *testing.T, store hapax.WorkerStore, opts hapax.SnowflakeOptions) *hapax.Snowflake {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	s, err := hapax.NewSnowflake(ctx, store, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close(context.Background()) })
	return s
}

func next(t *testing.T, s hapax.Issuer) hapax.ID {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	id, err := s.Next(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func TestSnowflakeZeroOptions(t *testing.T) {
	s := newSnowflake(t, memstore.New(), hapax.SnowflakeOptions{})
	before := time.Now()
	id := next(t, s)
	leaf := mustLayout(t, "leaf")
	at, err := leaf.Time(id)
	if err != nil {
		t.Fatal(err)
	}
	if d := at.Sub(before); d < -10*time.Millisecond || d > time.Second {
		t.Errorf("ID carries %v, it was %v", at, before)
	}
	if w := s.Stats().Worker; w != 0 {
		t.Errorf("worker is %d, want the lowest, 0", w)
	}
}

func TestSnowflakeOptionsAreChecked(t *testing.T) {
	for name, tc := range map[string]struct {
		opts  hapax.SnowflakeOptions
		field string
	}{
		"worker beyond the layout": {hapax.SnowflakeOptions{Workers: hapax.WorkerRange{Lo: 1020, Hi: 1025}}, "workers"},
		"worker below zero":        {hapax.SnowflakeOptions{Workers: hapax.WorkerRange{Lo: -1, Hi: 1}}, "workers"},
		"empty range":              {hapax.SnowflakeOptions{Workers: hapax.WorkerRange{Lo: 5, Hi: 5}}, "workers"},
		"lease too short":          {hapax.SnowflakeOptions{Lease: time.Nanosecond}, "lease"},
		"grant below two ticks":    {hapax.SnowflakeOptions{Grant: time.Millisecond}, "grant"},
		"grant above its maximum":  {hapax.SnowflakeOptions{Grant: time.Hour, MaxGrant: time.Minute}, "max_grant"},
		"negative lead":            {hapax.SnowflakeOptions{MaxAhead: -1}, "max_ahead"},
		"sequence start too large": {hapax.SnowflakeOptions{SequenceStart: 4097}, "sequence_start"},
		"unknown policy":           {hapax.SnowflakeOptions{OnRollback: "panic"}, "on_rollback"},
		"unknown constant":         {hapax.SnowflakeOptions{Fields: hapax.Fields{{Name: "rack", Value: 1}}}, "field"},
		"bad pool":                 {hapax.SnowflakeOptions{Pool: "a\nb"}, "pool"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := hapax.NewSnowflake(t.Context(), memstore.New(), tc.opts)
			e, ok := errors.AsType[*hapax.ValueError](err)
			if !ok || e.Field != tc.field {
				t.Errorf("error is %v, want one about %s", err, tc.field)
			}
		})
	}
	if _, err := hapax.NewSnowflake(t.Context(), nil, hapax.SnowflakeOptions{}); !errors.Is(err, hapax.ErrInvalidArgument) {
		t.Errorf("without store and worker: %v, want ErrInvalidArgument", err)
	}
}

func TestSnowflakeNumbersAreUniqueAndRise(t *testing.T) {
	for kind, mutex := range map[string]bool{"atomic": false, "mutex": true} {
		for _, layout := range []string{"leaf", wide, "js-safe-53"} {
			t.Run(kind+"/"+layout[:4], func(t *testing.T) {
				s := newSnowflake(t, memstore.New(), hapax.SnowflakeOptions{Layout: mustLayout(t, layout), Mutex: mutex, Grant: 20 * time.Millisecond, MaxGrant: 40 * time.Millisecond})
				const callers, each = 6, 3000
				got := make([][]hapax.ID, callers)
				var wg sync.WaitGroup
				for i := range callers {
					wg.Go(func() {
						buf := make([]hapax.ID, 7)
						for len(got[i]) < each {
							id, err := s.Next(t.Context())
							if err != nil {
								t.Error(err)
								return
							}
							n, err := s.NextN(t.Context(), buf)
							if err != nil {
								t.Error(err)
								return
							}
							got[i] = append(append(got[i], id), buf[:n]...)
						}
					})
				}
				wg.Wait()
				var all []hapax.ID
				for _, g := range got {
					if !slices.IsSorted(g) {
						t.Error("one caller saw numbers go back")
					}
					all = append(all, g...)
				}
				slices.Sort(all)
				if n := len(all); len(slices.Compact(all)) != n {
					t.Error("a number was issued twice")
				}
				if st := s.Stats(); st.Issued != int64(len(all)) {
					t.Errorf("Stats says %d issued, %d were", st.Issued, len(all))
				}
			})
		}
	}
}

func TestSnowflakeIdleLag(t *testing.T) {
	bubble(t, "a call after a pause reads the clock itself", func(t *testing.T) {
		clock := newTestClock()
		leaf := mustLayout(t, "leaf")
		s := newSnowflake(t, memstore.New(), hapax.SnowflakeOptions{Clock: clock})
		for _, pause := range []time.Duration{0, 500 * time.Microsecond, 3 * time.Millisecond, 9 * time.Millisecond, 11 * time.Millisecond, 40 * time.Millisecond, time.Second, time.Hour} {
			for range 20 {
				time.Sleep(pause)
				id := next(t, s)
				at, _ := leaf.Time(id)
				if lag := clock.wall().Sub(at); lag > 10*time.Millisecond || lag < -10*time.Millisecond {
					t.Fatalf("after a pause of %v the number is %v behind the clock", pause, lag)
				}
			}
		}
	})
}

func TestSnowflakeCeiling(t *testing.T) {
	bubble(t, "callers wait for the clock and get all of it", func(t *testing.T) {
		var ev events
		clock := newTestClock()
		s := newSnowflake(t, memstore.New(), hapax.SnowflakeOptions{Clock: clock, Observer: ev.observe, Layout: mustLayout(t, "js-safe-53")})
		began := time.Now()
		buf := make([]hapax.ID, 100)
		for range 10_240 {
			if _, err := s.NextN(t.Context(), buf); err != nil {
				t.Fatal(err)
			}
		}
		// 1,024,000 numbers at 512 a millisecond take 2 s, less the 10 ms lead.
		if took := time.Since(began); took < 1980*time.Millisecond || took > 2010*time.Millisecond {
			t.Errorf("2 s worth of numbers took %v", took)
		}
		if n := ev.count(hapax.EventTickExhausted); n != 1 {
			t.Errorf("%d events for the beginning of the wait, want 1", n)
		}
		if n := ev.count(hapax.EventTickUsed); n != 1 {
			t.Errorf("%d events for the end of a tick's numbers, want 1", n)
		}
		time.Sleep(3 * time.Second)
		if n := ev.count(hapax.EventTickResumed); n != 1 {
			t.Errorf("%d events for the end of the wait, want 1", n)
		}
		if s.Stats().TickWaits == 0 {
			t.Error("no wait was counted")
		}
	})
	bubble(t, "a deadline ends the wait with both causes", func(t *testing.T) {
		s := newSnowflake(t, memstore.New(), hapax.SnowflakeOptions{Clock: newTestClock(), Layout: mustLayout(t, "uidgenerator-29-21-13")})
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		buf := make([]hapax.ID, 100_000)
		n, err := s.NextN(ctx, buf)
		if !errors.Is(err, hapax.ErrTickExhausted) || !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("error is %v, want ErrTickExhausted and the deadline", err)
		}
		if n != 2*8192 && n != 3*8192 { // this second and the one ahead, and perhaps a third
			t.Errorf("issued %d before the deadline", n)
		}
	})
}

// That the numbers of a tick are used up is told where nobody waits, too, by either
// populator, and for calls of one number and of many.
func TestSnowflakeTellsOfUsedTick(t *testing.T) {
	for _, mutex := range []bool{false, true} {
		for _, many := range []bool{false, true} {
			bubble(t, fmt.Sprintf("mutex %t, many %t", mutex, many), func(t *testing.T) {
				var ev events
				s := newSnowflake(t, memstore.New(), hapax.SnowflakeOptions{Clock: newTestClock(), Observer: ev.observe, Layout: mustLayout(t, "js-safe-53"), Mutex: mutex})
				take := func(n int) {
					t.Helper()
					if many {
						if _, err := s.NextN(t.Context(), make([]hapax.ID, n)); err != nil {
							t.Fatal(err)
						}
						return
					}
					for range n {
						next(t, s)
					}
				}
				told := func(want int) {
					t.Helper()
					time.Sleep(5 * time.Millisecond) // of the pacer, which looks after single calls
					if n := ev.count(hapax.EventTickUsed); n != want {
						t.Errorf("%d events, want %d", n, want)
					}
				}
				time.Sleep(time.Second)
				take(100) // of 512 that a tick has
				told(0)
				time.Sleep(time.Second)
				take(2000)
				take(2000)
				told(1)
				time.Sleep(10 * time.Second)
				take(2000)
				told(2)
				if n := ev.count(hapax.EventTickExhausted); n != 0 {
					t.Errorf("%d events of callers that waited", n)
				}
			})
		}
	}
}

// Of more single adds at once than the limit leaves room for, some come out above what the
// clock and the grant allow: those are not issued.
func TestSnowflakeAdmitsNoneBeyondItsBound(t *testing.T) {
	bubble(t, "at the bound", func(t *testing.T) {
		s := newSnowflake(t, memstore.New(), hapax.SnowflakeOptions{Clock: newTestClock(), Workers: hapax.WorkerRange{Lo: 3, Hi: 4}})
		next(t, s)
		for above, want := range map[int64]bool{-1: true, 0: false, 1: false, 1 << 20: false} {
			if s.AdmitsAt(above) != want {
				t.Errorf("the cursor %d above the bound: admitted is %v, want %v", above, !want, want)
			}
		}
	})
}

func TestSnowflakeSealHandsBackTime(t *testing.T) {
	bubble(t, "the next holder starts at once, above what was issued", func(t *testing.T) {
		store, clock := memstore.New(), newTestClock()
		opts := hapax.SnowflakeOptions{Clock: clock, Workers: hapax.WorkerRange{Lo: 3, Hi: 4}}
		s := newSnowflake(t, store, opts)
		last := next(t, s)
		if err := s.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Next(t.Context()); !errors.Is(err, hapax.ErrClosed) {
			t.Fatalf("after Close: %v, want ErrClosed", err)
		}
		if err := s.Close(t.Context()); err != nil {
			t.Fatalf("second Close: %v", err)
		}
		began := time.Now()
		s = newSnowflake(t, store, opts)
		if id := next(t, s); id <= last {
			t.Fatalf("%d follows %d", id, last)
		}
		if took := time.Since(began); took > 20*time.Millisecond {
			t.Errorf("the next holder waited %v after a seal", took)
		}
	})
	bubble(t, "after a crash it waits until the grant is over", func(t *testing.T) {
		store, clock := memstore.New(), newTestClock()
		opts := hapax.SnowflakeOptions{Clock: clock, Workers: hapax.WorkerRange{Lo: 3, Hi: 4}}
		opts.Holder = "me"
		last := next(t, newSnowflake(t, store, opts))
		began := time.Now()
		s := newSnowflake(t, store, opts) // the first one never says goodbye
		if id := next(t, s); id <= last {
			t.Fatalf("%d follows %d", id, last)
		}
		if took := time.Since(began); took < 2900*time.Millisecond || took > 4*time.Second {
			t.Errorf("waited %v for a grant of 3 s", took)
		}
	})
}

func TestSnowflakeStoreOutage(t *testing.T) {
	bubble(t, "rides on its grant, then waits, then recovers within a second", func(t *testing.T) {
		var ev events
		faults := storetest.NewFaults(memstore.New())
		s := newSnowflake(t, faults, hapax.SnowflakeOptions{Clock: newTestClock(), Observer: ev.observe, KeepWarm: true})
		time.Sleep(20 * time.Minute) // grants have grown to 5 min
		next(t, s)
		faults.Down()
		began := time.Now()
		for s.Stats().Remaining > 0 {
			next(t, s)
			time.Sleep(100 * time.Millisecond)
		}
		if rode := time.Since(began); rode < 2*time.Minute {
			t.Errorf("issued on for %v only", rode)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		time.Sleep(time.Second)
		if _, err := s.Next(ctx); !errors.Is(err, hapax.ErrStoreUnavailable) || !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("with the grant used up: %v, want ErrStoreUnavailable and the deadline", err)
		}
		faults.Up()
		back := time.Now()
		next(t, s)
		if took := time.Since(back); took > time.Second {
			t.Errorf("recovered after %v", took)
		}
		synctest.Wait()
		if ev.count(hapax.EventStoreLost) != 1 || ev.count(hapax.EventStoreBack) != 1 {
			t.Errorf("%d lost, %d back, want one each", ev.count(hapax.EventStoreLost), ev.count(hapax.EventStoreBack))
		}
	})
}

func TestSnowflakeIdleLapsesUnlessKeptWarm(t *testing.T) {
	for name, tc := range map[string]struct{ warm, remains bool }{"cold": {false, false}, "warm": {true, true}} {
		bubble(t, name, func(t *testing.T) {
			faults := storetest.NewFaults(memstore.New())
			s := newSnowflake(t, faults, hapax.SnowflakeOptions{Clock: newTestClock(), KeepWarm: tc.warm})
			time.Sleep(time.Hour)
			if got := s.Stats().Remaining > 0; got != tc.remains {
				t.Errorf("time remains: %v, want %v", got, tc.remains)
			}
			if calls := faults.Calls("ExtendWorker"); calls > 60*60/60 {
				t.Errorf("%d extensions in an idle hour", calls)
			}
			next(t, s)
		})
	}
}

func TestSnowflakeIdleSleeps(t *testing.T) {
	bubble(t, "an idle issuer does nothing more than once a second", func(t *testing.T) {
		clock := newTestClock()
		s := newSnowflake(t, memstore.New(), hapax.SnowflakeOptions{Clock: clock, KeepWarm: true})
		next(t, s)
		time.Sleep(time.Second)
		before := clock.reads.Load()
		time.Sleep(time.Hour)
		if reads := clock.reads.Load() - before; reads > 3600 {
			t.Errorf("read the clock %d times in an idle hour", reads)
		}
	})
}

func TestSnowflakeLostLease(t *testing.T) {
	bubble(t, "goes on with another worker, rising", func(t *testing.T) {
		var ev events
		store, clock := memstore.New(), newTestClock()
		a := newSnowflake(t, store, hapax.SnowflakeOptions{Clock: clock, Observer: ev.observe})
		last := next(t, a)
		time.Sleep(time.Hour) // the idle issuer's grant and lease run out
		b := newSnowflake(t, store, hapax.SnowflakeOptions{Clock: clock, Workers: hapax.WorkerRange{Lo: 0, Hi: 1}})
		other := next(t, b)
		id := next(t, a)
		if id <= last || id == other {
			t.Errorf("%d follows %d, the other issued %d", id, last, other)
		}
		if a.Stats().Worker == b.Stats().Worker {
			t.Error("both hold one worker")
		}
		synctest.Wait()
		if ev.count(hapax.EventWorkerLost) != 1 {
			t.Errorf("%d events of a lost lease, want 1", ev.count(hapax.EventWorkerLost))
		}
	})
}

// A lost answer costs nothing: the issuer uses its grant to the end, and what the
// lost answer granted belongs to it. The pool has no other worker ID.
func TestSnowflakeLostAnswerStallsNobody(t *testing.T) {
	bubble(t, "goes on as the same worker", func(t *testing.T) {
		store, clock := storetest.NewFaults(memstore.New()), newTestClock()
		s := newSnowflake(t, store, hapax.SnowflakeOptions{Clock: clock, KeepWarm: true, Workers: hapax.WorkerRange{Lo: 0, Hi: 1}, MaxGrant: 5 * time.Minute})
		time.Sleep(30 * time.Minute) // until grants are long
		lost := false
		store.Inject(func(op storetest.Op) storetest.Fault {
			if op.Method != "ExtendWorker" || lost {
				return storetest.Fault{}
			}
			lost = true
			return storetest.Fault{Lose: hapax.ErrStoreUnavailable}
		})
		var last hapax.ID
		for range 1200 {
			began := time.Now()
			if id := next(t, s); id <= last {
				t.Fatalf("after %d came %d", last, id)
			} else {
				last = id
			}
			if took := time.Since(began); took > 2*time.Millisecond {
				t.Fatalf("a call took %v", took)
			}
			time.Sleep(time.Second)
		}
		if st := s.Stats(); !lost || st.Token != 1 {
			t.Errorf("lost: %v; the fencing token is %d, want 1", lost, st.Token)
		}
	})
}

func TestSnowflakePoolExhausted(t *testing.T) {
	bubble(t, "names the pool and when a worker frees up, and takes it then", func(t *testing.T) {
		store, clock := memstore.New(), newTestClock()
		opts := hapax.SnowflakeOptions{Clock: clock, Pool: "p", Workers: hapax.WorkerRange{Lo: 0, Hi: 2}, KeepWarm: true}
		newSnowflake(t, store, opts)
		b := newSnowflake(t, store, opts)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := hapax.NewSnowflake(ctx, store, opts)
		e, ok := errors.AsType[*hapax.NoWorkerError](err)
		if !ok || e.Pool != "p" || e.Size != 2 || e.NextFree.IsZero() || !errors.Is(err, hapax.ErrNoWorker) || !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("error is %v, want one with pool, size and time", err)
		}
		go func() { time.Sleep(10 * time.Second); _ = b.Close(context.Background()) }()
		began := time.Now()
		c := newSnowflake(t, store, opts)
		if took := time.Since(began); took < 10*time.Second || took > 11*time.Second {
			t.Errorf("took the freed worker after %v, it was freed after 10 s", took)
		}
		if c.Stats().Worker != 1 {
			t.Errorf("got worker %d, want 1", c.Stats().Worker)
		}
	})
}

func TestSnowflakePoisonedMark(t *testing.T) {
	bubble(t, "is refused at once and not repaired", func(t *testing.T) {
		store, clock := memstore.New(), newTestClock()
		opts := hapax.SnowflakeOptions{Clock: clock, Workers: hapax.WorkerRange{Lo: 7, Hi: 8}}
		clock.step(20 * 365 * 24 * time.Hour)
		s := newSnowflake(t, store, opts)
		next(t, s)
		_ = s.Close(t.Context())
		clock.step(-20 * 365 * 24 * time.Hour)
		if _, err := hapax.NewSnowflake(t.Context(), store, opts); !errors.Is(err, hapax.ErrWorkerPoisoned) {
			t.Fatalf("error is %v, want ErrWorkerPoisoned", err)
		}
		opts.Workers = hapax.WorkerRange{Lo: 0, Hi: 1024}
		if w := newSnowflake(t, store, opts).Stats().Worker; w == 7 {
			t.Error("took the poisoned worker")
		}
	})
}

func TestSnowflakeLayoutIsFrozen(t *testing.T) {
	store := memstore.New()
	newSnowflake(t, store, hapax.SnowflakeOptions{})
	_, err := hapax.NewSnowflake(t.Context(), store, hapax.SnowflakeOptions{Layout: mustLayout(t, "js-safe-53")})
	if !errors.Is(err, hapax.ErrLayoutMismatch) {
		t.Fatalf("error is %v, want ErrLayoutMismatch", err)
	}
}

func TestSnowflakeWithoutStore(t *testing.T) {
	bubble(t, "waits out one tick at start", func(t *testing.T) {
		clock := newTestClock()
		opts := hapax.SnowflakeOptions{Clock: clock, Workers: hapax.WorkerRange{Lo: 5, Hi: 6}}
		a := newSnowflake(t, nil, opts)
		buf := make([]hapax.ID, 4096*8)
		if _, err := a.NextN(t.Context(), buf); err != nil {
			t.Fatal(err)
		}
		b := newSnowflake(t, nil, opts) // as after a crash
		if id := next(t, b); id <= buf[len(buf)-1] {
			t.Errorf("%d follows %d", id, buf[len(buf)-1])
		}
	})
}
