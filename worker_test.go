package hapax_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/memstore"
)

// Whatever range or list may be used, and however much of it is in use, every
// worker ID is handed out once and none outside; the error tells how many there
// are.
func TestAcquireWorkerHandsOutWhatItMay(t *testing.T) {
	leaf := mustLayout(t, hapax.LayoutLeaf)
	rapid.Check(t, func(t *rapid.T) {
		store := memstore.New()
		req := hapax.AcquireRequest{
			Pool: "p", Layout: leaf, Workers: hapax.WorkerRange{Lo: rapid.Int64Range(0, 5).Draw(t, "lo"), Hi: rapid.Int64Range(6, 20).Draw(t, "hi")},
			Term: hapax.Term{Now: time.Now(), Length: 100 * time.Millisecond, TTL: time.Second},
		}
		want := map[int64]bool{}
		for id := req.Workers.Lo; id < req.Workers.Hi; id++ {
			want[id] = true
		}
		if rapid.Bool().Draw(t, "list") {
			clear(want)
			req.Among = rapid.SliceOfNDistinct(rapid.Int64Range(req.Workers.Lo, req.Workers.Hi-1), 1, 10, rapid.ID).Draw(t, "among")
			slices.Sort(req.Among)
			for _, id := range req.Among {
				want[id] = true
			}
		}
		for _, id := range rapid.SliceOfDistinct(rapid.Int64Range(0, 20), rapid.ID).Draw(t, "in use") {
			other := req
			other.Workers, other.Among, other.Holder = hapax.WorkerRange{Lo: id, Hi: id + 1}, nil, "other"
			if _, err := store.AcquireWorker(t.Context(), other); err != nil {
				t.Fatal(err)
			}
			delete(want, id)
		}
		size := req.Workers.Len()
		if req.Among != nil {
			size = int64(len(req.Among))
		}
		for n := len(want); n > 0; n-- {
			req.Holder = fmt.Sprint("holder ", n)
			lease, err := store.AcquireWorker(t.Context(), req)
			if err != nil || !want[lease.Worker] {
				t.Fatalf("worker %d, error %v; want one of %v", lease.Worker, err, want)
			}
			delete(want, lease.Worker)
		}
		req.Holder = "one too many"
		_, err := store.AcquireWorker(t.Context(), req)
		if no, ok := errors.AsType[*hapax.NoWorkerError](err); !ok || no.Size != size {
			t.Fatalf("with all in use the error is %v; want a NoWorkerError of size %d", err, size)
		}
	})
}

// An instance with a list of worker IDs that crashes goes on with the next one,
// and comes back to the first when its time is over.
func TestSnowflakeRollsAlongAList(t *testing.T) {
	bubble(t, "3, 7, 9", func(t *testing.T) {
		store, clock := memstore.New(), newTestClock()
		opts := hapax.SnowflakeOptions{Clock: clock, Holder: "me", Among: []int64{9, 3, 7}}
		var used []int64
		for range 3 {
			s := newSnowflake(t, store, opts) // and crashes: nothing is sealed
			next(t, s)
			used = append(used, s.Stats().Worker)
		}
		time.Sleep(time.Minute)
		used = append(used, newSnowflake(t, store, opts).Stats().Worker)
		if !slices.Equal(used, []int64{3, 7, 9, 3}) {
			t.Errorf("the workers were %v", used)
		}
	})
}

// Nodes of two kinds share a pool, each in its part of the worker IDs.
func TestReservedParts(t *testing.T) {
	bubble(t, "0-923 and 924-1023", func(t *testing.T) {
		store, clock := memstore.New(), newTestClock()
		for _, part := range []hapax.WorkerRange{{Lo: 0, Hi: 924}, {Lo: 924, Hi: 1024}} {
			for range 3 {
				s := newSnowflake(t, store, hapax.SnowflakeOptions{Clock: clock, Workers: part})
				if w := s.Stats().Worker; w < part.Lo || w >= part.Hi {
					t.Errorf("got worker %d, want one of %v", w, part)
				}
			}
		}
	})
}

func TestAmongIsChecked(t *testing.T) {
	for name, opts := range map[string]hapax.SnowflakeOptions{
		"beyond the layout": {Among: []int64{0, 1024}},
		"negative":          {Among: []int64{-1}},
		"outside Workers":   {Workers: hapax.WorkerRange{Lo: 5, Hi: 8}, Among: []int64{5, 8}},
	} {
		if err := opts.Validate(); !errors.Is(err, hapax.ErrInvalidArgument) {
			t.Errorf("%s: error is %v", name, err)
		}
	}
}

// The way out of a poisoned mark: no number is issued in the worker's past, and
// others are told when it frees up.
func TestRetiredWorkerWaitsForTheClock(t *testing.T) {
	bubble(t, "years ahead", func(t *testing.T) {
		store, clock := memstore.New(), newTestClock()
		opts := hapax.SnowflakeOptions{Clock: clock, Workers: hapax.WorkerRange{Lo: 7, Hi: 8}}
		const ahead = 365 * 24 * time.Hour
		clock.step(ahead)
		newSnowflake(t, store, opts) // and crashes
		clock.step(-ahead)
		if _, err := hapax.NewSnowflake(t.Context(), store, opts); !errors.Is(err, hapax.ErrWorkerPoisoned) {
			t.Fatalf("error is %v, want ErrWorkerPoisoned", err)
		}
		w, err := store.RetireWorker(t.Context(), hapax.DefaultPool, 7)
		if err != nil || !w.Retired() {
			t.Fatalf("retired is %+v, error %v", w, err)
		}
		_, err = store.AcquireWorker(t.Context(), hapax.AcquireRequest{
			Pool: hapax.DefaultPool, Layout: mustLayout(t, hapax.LayoutLeaf), Workers: opts.Workers, Holder: "x",
			Term: hapax.Term{Now: clock.wall(), Length: time.Second, TTL: time.Second},
		})
		if _, ok := errors.AsType[*hapax.NoWorkerError](err); !ok {
			t.Errorf("error is %v, want a NoWorkerError", err)
		}
		clock.step(ahead + time.Minute)
		if got := newSnowflake(t, store, opts).Stats().Token; got != w.Token+1 {
			t.Errorf("after the mark the fencing token is %d, want %d", got, w.Token+1)
		}
	})
}

// A worker whose mark has gone back under its lease is not extended from there:
// the ticks above it are in use.
func TestExtendRefusesALowerMark(t *testing.T) {
	store, ctx, leaf := memstore.New(), t.Context(), mustLayout(t, hapax.LayoutLeaf)
	lease, err := store.AcquireWorker(ctx, hapax.AcquireRequest{
		Pool: "p", Layout: leaf, Workers: hapax.WorkerRange{Lo: 0, Hi: 4}, Holder: "h",
		Term: hapax.Term{Now: time.Now(), Length: time.Second, TTL: time.Minute},
	})
	if err != nil {
		t.Fatal(err)
	}
	backup := store.Snapshot()
	term := hapax.Term{Now: time.Now(), Length: time.Minute, TTL: time.Minute}
	if lease, err = store.ExtendWorker(ctx, lease, leaf, term); err != nil {
		t.Fatal(err)
	}
	store.Restore(backup)
	if l, err := store.ExtendWorker(ctx, lease, leaf, term); !errors.Is(err, hapax.ErrStoreRolledBack) {
		t.Errorf("extended to %+v, error %v", l, err)
	}
}
