package service

import (
	"context"
	"errors"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/boltstore"
	"github.com/hapax-id/hapax/store/memstore"
	"github.com/hapax-id/hapax/store/storetest"
)

func openWitness(t *testing.T) *hapax.Witness {
	t.Helper()
	w, err := hapax.OpenWitness(filepath.Join(t.TempDir(), "witness"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.Close() })
	return w
}

// TestClientsLeaseThroughTheService runs the library's issuers on the service
// as their store, beside the service's own.
func TestClientsLeaseThroughTheService(t *testing.T) {
	w := openWitness(t)
	bubble(t, Options{Witness: w}, func(t *testing.T, s *Service, store *storetest.Faults) {
		seg, err := hapax.NewSegment(t.Context(), s, "orders", hapax.SegmentOptions{Clock: newTestClock()})
		if err != nil {
			t.Fatal(err)
		}
		defer seg.Close(t.Context())
		flake, err := hapax.NewSnowflake(t.Context(), s, hapax.SnowflakeOptions{Clock: newTestClock()})
		if err != nil {
			t.Fatal(err)
		}
		seen := map[hapax.ID]bool{}
		for range 5000 {
			theirs, err := seg.Next(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			ours := mustNext(t, s, "orders")
			if seen[theirs] || seen[ours] || theirs == ours {
				t.Fatalf("issued twice: %d or %d", theirs, ours)
			}
			seen[theirs], seen[ours] = true, true
		}
		theirs, err := flake.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		ours := mustNext(t, s, SnowflakeTag)
		a, _ := s.Parse(theirs, "")
		b, _ := s.Parse(ours, "")
		if wa, _ := a.Fields.Get("worker"); wa == func() int64 { v, _ := b.Fields.Get("worker"); return v }() {
			t.Errorf("client and service share worker %d", wa)
		}
		time.Sleep(time.Minute) // extensions are recorded too
		if _, err := flake.Next(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := flake.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		workers, err := s.Workers(t.Context(), hapax.DefaultPool)
		if err != nil || len(workers) != 2 {
			t.Fatalf("%+v, %v", workers, err)
		}
		for _, v := range workers {
			if mark, ok := w.Mark(hapax.WorkerLine(v.Pool, v.ID)); !ok || mark != v.Mark {
				t.Errorf("worker %d: the witness has mark %d, the store %d", v.ID, mark, v.Mark)
			}
		}
	})
}

// TestConcurrentLeasesAreNoRollback leases from one tag with many clients at
// once: recorded out of order, grants would look like a store that went back.
func TestConcurrentLeasesAreNoRollback(t *testing.T) {
	w := openWitness(t)
	bubble(t, Options{Witness: w}, func(t *testing.T, s *Service, store *storetest.Faults) {
		mustNext(t, s, "orders")
		store.Inject(func(op storetest.Op) storetest.Fault {
			return storetest.Fault{After: time.Duration(op.N*7%5) * time.Millisecond}
		})
		var wg sync.WaitGroup
		for range 50 {
			wg.Go(func() {
				if _, err := s.Allocate(t.Context(), "orders", 10); err != nil {
					t.Error(err)
				}
			})
		}
		for range 3000 {
			mustNext(t, s, "orders")
		}
		wg.Wait()
	})
}

func TestARolledBackStoreIsRefused(t *testing.T) {
	w := openWitness(t)
	synctest.Test(t, func(t *testing.T) {
		inner := memstore.New()
		store := storetest.NewFaults(inner)
		s := open(t, store, Options{Witness: w})
		synctest.Wait()
		before := inner.Snapshot()
		mustNext(t, s, "orders")
		mustNext(t, s, SnowflakeTag)
		if err := s.Close(t.Context()); err != nil {
			t.Fatal(err)
		}

		store.Swap(before)
		s = open(t, store, Options{Witness: w})
		if _, err := s.Next(t.Context(), "orders"); !errors.Is(err, hapax.ErrStoreRolledBack) {
			t.Errorf("a tag that the store has forgotten: %v", err)
		}
		if _, err := s.CreateTag(t.Context(), hapax.Tag{Name: "orders"}, hapax.CreateExplicit); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Allocate(t.Context(), "orders", 10); !errors.Is(err, hapax.ErrStoreRolledBack) {
			t.Errorf("a lease below the witnessed mark: %v", err)
		}

		store.Swap(memstore.New())
		s = open(t, store, Options{Witness: w})
		if _, err := s.Next(t.Context(), "invoices"); !errors.Is(err, hapax.ErrStoreReplaced) {
			t.Errorf("another store: %v", err)
		}
		if err := s.Ready(t.Context()); !errors.Is(err, hapax.ErrStoreReplaced) {
			t.Errorf("Ready on another store: %v", err)
		}
		if _, err := s.AcquireWorker(t.Context(), acquire(t, s)); !errors.Is(err, hapax.ErrStoreReplaced) {
			t.Errorf("a lease from another store: %v", err)
		}
	})
}

// acquire returns a request as a client makes it.
func acquire(t *testing.T, s *Service) hapax.AcquireRequest {
	t.Helper()
	l, err := s.Layout(hapax.LayoutLeaf)
	if err != nil {
		t.Fatal(err)
	}
	now, _ := s.opts.Clock.Now()
	tick, err := l.TickOf(now)
	if err != nil {
		t.Fatal(err)
	}
	return hapax.AcquireRequest{
		Pool: hapax.DefaultPool, Layout: l.String(), IDs: hapax.Grant{Lo: 0, Hi: 8}, Holder: "client",
		Floor: tick, Latest: tick + 10, To: tick + 10_000, End: l.EndTick(), Poison: tick + 86_400_000,
		Now: now, TTL: time.Minute, Tick: l.Unit(),
	}
}

func TestLeasesAreBounded(t *testing.T) {
	for name, spoil := range map[string]func(*hapax.AcquireRequest){
		"pool":       func(r *hapax.AcquireRequest) { r.Pool = "" },
		"layout":     func(r *hapax.AcquireRequest) { r.Layout = "nonsense" },
		"workers":    func(r *hapax.AcquireRequest) { r.IDs.Hi = 1025 },
		"no workers": func(r *hapax.AcquireRequest) { r.IDs.Hi = 0 },
		"to":         func(r *hapax.AcquireRequest) { r.To += 2 * 86_400_000; r.Poison = r.To },
		"ttl":        func(r *hapax.AcquireRequest) { r.TTL = 100 * time.Hour },
		"no ttl":     func(r *hapax.AcquireRequest) { r.TTL = 0 },
		"holder":     func(r *hapax.AcquireRequest) { r.Holder = "" },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, Options{}, func(t *testing.T, s *Service, store *storetest.Faults) {
				if _, err := s.AcquireWorker(t.Context(), acquire(t, s)); err != nil {
					t.Fatal(err)
				}
				req := acquire(t, s)
				spoil(&req)
				if _, err := s.AcquireWorker(t.Context(), req); hapax.CodeOf(err) == hapax.ErrInternal.Code() || err == nil {
					t.Errorf("got %v", err)
				}
			})
		})
	}
	bubble(t, Options{}, func(t *testing.T, s *Service, store *storetest.Faults) {
		req := acquire(t, s)
		req.End = 1 << 62 // the client does not decide where time ends
		lease, err := s.AcquireWorker(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		far := hapax.ExtendRequest{To: lease.Grant.Hi + 2*86_400_000, End: 1 << 62, Now: req.Now, TTL: time.Minute}
		if _, err := s.ExtendWorker(t.Context(), lease, far); !errors.Is(err, hapax.ErrInvalidArgument) {
			t.Errorf("an extension by two days: %v", err)
		}
		far.To = lease.Grant.Hi + 1000
		if lease, err = s.ExtendWorker(t.Context(), lease, far); err != nil || lease.Grant.Len() != 1000 {
			t.Errorf("an extension: %+v, %v", lease, err)
		}
		stranger := lease
		stranger.Pool = "elsewhere"
		if _, err := s.ExtendWorker(t.Context(), stranger, far); !errors.Is(err, hapax.ErrLeaseLost) {
			t.Errorf("an extension in a pool that was never used: %v", err)
		}
	})
}

// TestTheServiceKnowsTheLayout leases in the last hour of a layout's time, with
// a request that claims to know better than the layout.
func TestTheServiceKnowsTheLayout(t *testing.T) {
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC) // of the bubble's clock
	epoch := start.Add(time.Hour).Add(-time.Second << 20).Format(time.RFC3339)
	layout, err := hapax.ParseLayout("time:20,worker:1,sequence:12,unit=1s,epoch=" + epoch)
	if err != nil {
		t.Fatal(err)
	}
	opts := Options{Pools: map[string]PoolConfig{"short": {Layout: layout.String()}}}
	bubble(t, opts, func(t *testing.T, s *Service, store *storetest.Faults) {
		now, _ := s.opts.Clock.Now()
		tick := layout.EndTick() - 3600
		req := hapax.AcquireRequest{
			Pool: "short", Layout: layout.String(), IDs: hapax.Grant{Lo: 0, Hi: 1}, Holder: "client",
			Floor: tick, Latest: tick, To: tick + 7200, End: 1 << 62, Poison: tick + 86_400, Now: now, TTL: time.Minute,
		}
		lease, err := s.AcquireWorker(t.Context(), req)
		if err != nil || lease.Grant.Hi != layout.EndTick() {
			t.Fatalf("%+v, %v; the last tick is %d", lease, err, layout.EndTick()-1)
		}
		if _, err := s.ExtendWorker(t.Context(), lease, hapax.ExtendRequest{To: tick + 7200, End: 1 << 62, Now: now, TTL: time.Minute}); !errors.Is(err, hapax.ErrTimeExhausted) {
			t.Errorf("an extension beyond the end: %v", err)
		}
		if _, err := s.AcquireWorker(t.Context(), req); !errors.Is(err, hapax.ErrNoWorker) { // with no Tick to divide by
			t.Errorf("a second lease: %v", err)
		}
	})
}

// TestALateSealLeavesTheWitness seals a lease that was taken over meanwhile.
func TestALateSealLeavesTheWitness(t *testing.T) {
	w := openWitness(t)
	bubble(t, Options{Witness: w}, func(t *testing.T, s *Service, store *storetest.Faults) {
		req := acquire(t, s)
		req.IDs = hapax.Grant{Lo: 3, Hi: 4}
		old, err := s.AcquireWorker(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Minute)
		req = acquire(t, s)
		req.IDs, req.Holder = hapax.Grant{Lo: 3, Hi: 4}, "successor"
		next, err := s.AcquireWorker(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.SealWorker(t.Context(), old, old.From); !errors.Is(err, hapax.ErrLeaseLost) {
			t.Errorf("the late seal: %v", err)
		}
		if mark, _ := w.Mark(hapax.WorkerLine(next.Pool, 3)); mark != next.Grant.Hi {
			t.Errorf("the witness has mark %d, want %d", mark, next.Grant.Hi)
		}
	})
}

// TestRestartOnAFile runs a service on the embedded store, closes both and goes on.
func TestRestartOnAFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "hapax.db")
	w := openWitness(t)
	lastOrder, lastEvent := hapax.ID(0), hapax.ID(0)
	for range 3 {
		store, err := boltstore.Open(t.Context(), path, boltstore.Options{})
		if err != nil {
			t.Fatal(err)
		}
		s := open(t, store, Options{Witness: w, Pools: map[string]PoolConfig{"default": {Workers: "1"}}})
		var wg sync.WaitGroup
		wg.Go(func() {
			for range 2500 {
				if id := mustNext(t, s, "orders"); id <= lastOrder {
					t.Errorf("order %d after %d", id, lastOrder)
				} else {
					lastOrder = id
				}
			}
		})
		wg.Go(func() {
			for range 2500 {
				if id := mustNext(t, s, SnowflakeTag); id <= lastEvent {
					t.Errorf("event %d after %d", id, lastEvent)
				} else {
					lastEvent = id
				}
			}
		})
		wg.Wait()
		if err := s.Close(context.Background()); err != nil {
			t.Error(err)
		}
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	}
}
