package service

import (
	"context"
	"crypto/rand"
	"errors"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/patience"
	"github.com/hapax-id/hapax/store/boltstore"
	"github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/store/memstore"
	"github.com/hapax-id/hapax/store/storetest"
	"github.com/hapax-id/hapax/store/witness"
	"github.com/hapax-id/hapax/strategy"
)

func openWitness(t *testing.T) *witness.Witness {
	t.Helper()
	w, err := witness.OpenFile(filepath.Join(t.TempDir(), "witness"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.Close() })
	return w
}

// guard puts a witness before a store, until the end of the test. The store stays
// the caller's.
func guard(t *testing.T, store *storetest.Faults, w *witness.Witness) *witness.Guarded {
	t.Helper()
	g, err := witness.Guard(kept{store}, w, witness.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := g.Close(); err != nil && !errors.Is(err, hapax.ErrStoreUnavailable) {
			t.Errorf("closing the guard: %v", err)
		}
	})
	return g
}

// joined waits until a node that nothing keeps has joined.
func joined(t *testing.T, g *witness.Guarded) *witness.Guarded {
	t.Helper()
	patience.Await(t, "the node joins", func() (witness.Status, error) { return g.Status(), nil },
		func(st witness.Status) bool { return st.State != witness.Joining })
	return g
}

// kept is a store that stays open.
type kept struct{ *storetest.Faults }

func (kept) Close() error { return nil }

// guardedBubble is bubble with a witness before the store.
func guardedBubble(t *testing.T, opts Options, f func(t *testing.T, s *Service, store *storetest.Faults, w *witness.Witness)) {
	t.Helper()
	w := openWitness(t)
	synctest.Test(t, func(t *testing.T) {
		store := storetest.NewFaults(memstore.New())
		f(t, open(t, joined(t, guard(t, store, w)), opts), store, w)
	})
}

// Where others give out worker IDs of a pool too, clients are leased the rest.
func TestClientsLeaseWhatNobodyElseGivesOut(t *testing.T) {
	pools := map[string]PoolConfig{
		"none": PoolConfig{Workers: "7"}.Lending(hapax.WorkerRange{}, "a table"),
		"some": PoolConfig{}.Lending(hapax.WorkerRange{Lo: 17, Hi: 20}, "a tree"),
		"all":  {},
	}
	guardedBubble(t, Options{Pools: pools}, func(t *testing.T, s *Service, _ *storetest.Faults, _ *witness.Witness) {
		for _, tt := range []struct {
			pool    string
			workers hapax.WorkerRange
			among   []int64
			want    int64
			err     error
		}{
			{"all", hapax.WorkerRange{}, nil, 0, nil},
			{"some", hapax.WorkerRange{}, nil, 17, nil},
			{"some", hapax.WorkerRange{Lo: 0, Hi: 1024}, nil, 18, nil},
			{"some", hapax.WorkerRange{Lo: 3, Hi: 1024}, []int64{3, 19, 20}, 19, nil},
			{"some", hapax.WorkerRange{Lo: 0, Hi: 1024}, nil, 0, hapax.ErrNoWorker},
			{"some", hapax.WorkerRange{Lo: 0, Hi: 17}, nil, 0, hapax.ErrInvalidArgument},
			{"some", hapax.WorkerRange{Lo: 0, Hi: 1024}, []int64{16, 20}, 0, hapax.ErrInvalidArgument},
			{"none", hapax.WorkerRange{}, nil, 0, strategy.ErrRejected},
			{"none", hapax.WorkerRange{Lo: 7, Hi: 8}, nil, 0, strategy.ErrRejected},
		} {
			lease, err := s.AcquireWorker(t.Context(), hapax.AcquireRequest{
				Pool: tt.pool, Workers: tt.workers, Among: tt.among, Holder: rand.Text(), Term: hapax.Term{Length: time.Minute},
			})
			if !errors.Is(err, tt.err) || tt.err == nil && lease.Worker != tt.want {
				t.Errorf("pool %s, workers %v, among %v: worker ID %d, %v; want %d, %v", tt.pool, tt.workers, tt.among, lease.Worker, err, tt.want, tt.err)
			}
		}
	})
}

// TestClientsLeaseThroughTheService runs the library's issuers on the service
// as their store, beside the service's own.
func TestClientsLeaseThroughTheService(t *testing.T) {
	guardedBubble(t, Options{}, func(t *testing.T, s *Service, store *storetest.Faults, w *witness.Witness) {
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
			stored := witness.Pair{Token: v.Token, Mark: v.Mark}
			if p, ok := w.Pair(witness.WorkerLine(v.Pool, v.ID)); !ok || stored.Less(p) || v.Mark > p.Mark {
				t.Errorf("worker %d: the witness has %+v, the store %+v", v.ID, p, stored) // a seal lowers the mark, and raises the token
			}
		}
	})
}

// TestClientsHaveNoRow: programs that lease from a server only have no row in the store, and no
// heartbeat: however many there are, nobody reads or waits for them.
func TestClientsHaveNoRow(t *testing.T) {
	guardedBubble(t, Options{}, func(t *testing.T, s *Service, store *storetest.Faults, _ *witness.Witness) {
		for range 5 {
			seg, err := hapax.NewSegment(t.Context(), s, "orders", hapax.SegmentOptions{Clock: newTestClock()})
			if err != nil {
				t.Fatal(err)
			}
			defer seg.Close(t.Context())
			flake, err := hapax.NewSnowflake(t.Context(), s, hapax.SnowflakeOptions{Clock: newTestClock()})
			if err != nil {
				t.Fatal(err)
			}
			defer flake.Close(t.Context())
			for _, next := range []func(context.Context) (hapax.ID, error){seg.Next, flake.Next} {
				if _, err := next(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
		}
		time.Sleep(time.Minute)
		for _, table := range []string{driver.TableBeats, driver.TableNodes} {
			if rows, err := store.ListRows(t.Context(), table, "", 100); err != nil || len(rows) != 1 {
				t.Errorf("table %s has %d rows, %v; want the server's alone", table, len(rows), err)
			}
		}
	})
}

// TestConcurrentLeasesAreNoRollback leases from one tag with many clients at
// once: recorded out of order, grants would look like a store that went back.
func TestConcurrentLeasesAreNoRollback(t *testing.T) {
	guardedBubble(t, Options{}, func(t *testing.T, s *Service, store *storetest.Faults, w *witness.Witness) {
		mustNext(t, s, "orders")
		store.Inject(func(op storetest.Op) storetest.Fault {
			return storetest.Fault{After: time.Duration(op.N*7%5) * time.Millisecond}
		})
		var wg sync.WaitGroup
		for range 50 {
			wg.Go(func() {
				if _, err := s.Allocate(t.Context(), "orders", 10, ""); err != nil {
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

// TestARolledBackStoreIsRefused starts a node on a store that went back: it refuses,
// says so in one voice, and heals the store by itself, after which nothing is left of it.
func TestARolledBackStoreIsRefused(t *testing.T) {
	w := openWitness(t)
	synctest.Test(t, func(t *testing.T) {
		inner := memstore.New()
		store := storetest.NewFaults(inner)
		g := joined(t, guard(t, store, w))
		s := open(t, g, Options{})
		before := inner.Snapshot()
		used := mustNext(t, s, "orders")
		mustNext(t, s, SnowflakeTag)
		if err := s.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := g.Close(); err != nil {
			t.Fatal(err)
		}

		store.Swap(before)
		g = joined(t, guard(t, store, w))
		s = open(t, g, Options{})
		for what, err := range map[string]error{
			"a number":   second(s.Next(t.Context(), "orders")),
			"a new tag":  second(s.CreateTag(t.Context(), hapax.Tag{Name: "orders"}, hapax.CreateExplicit)),
			"a segment":  second(s.Allocate(t.Context(), "orders", 10, "")),
			"a worker":   second(s.AcquireWorker(t.Context(), acquire("client", 0, 8))),
			"readiness":  s.Ready(t.Context()),
			"the status": g.Refused(),
		} {
			if code := hapax.CodeOf(err); code != hapax.ErrStoreRolledBack.Code() {
				t.Errorf("%s in a store that went back: code %q, %v", what, code, err)
			}
		}
		if r, st := s.Readiness(t.Context()), g.Status(); !r.Fenced || r.Ready || r.State != "refusing" || r.StoreDetail != st.Why || r.Store != string(st.Code) {
			t.Errorf("readiness is %+v, the status %+v", r, st)
		}
		time.Sleep(30 * time.Second)
		if id := mustNext(t, s, "orders"); id <= used {
			t.Errorf("healed, got %d after %d", id, used)
		}
		mustNext(t, s, SnowflakeTag)
		if r := s.Readiness(t.Context()); r.Fenced || r.Degraded || !r.Ready || r.Store != "ok" || r.State != "serving" || r.Command != "" {
			t.Errorf("healed, readiness is %+v", r)
		}
	})
}

// TestAnotherStoreIsRefused gives a node the URL of another store, and then the right one
// again.
func TestAnotherStoreIsRefused(t *testing.T) {
	w := openWitness(t)
	synctest.Test(t, func(t *testing.T) {
		mine := memstore.New()
		store := storetest.NewFaults(mine)
		g := joined(t, guard(t, store, w))
		s := open(t, g, Options{})
		mustNext(t, s, "orders")
		if err := errors.Join(s.Close(t.Context()), g.Close()); err != nil {
			t.Fatal(err)
		}
		stranger := memstore.New()
		if _, err := stranger.CreateTag(t.Context(), hapax.Tag{Name: "theirs", Step: 1, Start: 1, MinStep: 1, MaxStep: 1, Delta: 1, Kind: hapax.KindSegment}, hapax.CreateExplicit); err != nil {
			t.Fatal(err)
		}
		store.Swap(stranger)
		g = joined(t, guard(t, store, w))
		s = open(t, g, Options{})
		for range 2 {
			if _, err := s.Next(t.Context(), "invoices"); hapax.CodeOf(err) != hapax.ErrStoreReplaced.Code() {
				t.Errorf("another store: %v", err)
			}
			if _, err := s.AcquireWorker(t.Context(), acquire("client", 0, 8)); hapax.CodeOf(err) != hapax.ErrStoreReplaced.Code() {
				t.Errorf("a lease from another store: %v", err)
			}
			if r := s.Readiness(t.Context()); !r.Fenced || r.Store != "store_replaced" || !strings.Contains(r.Command, "URL") {
				t.Errorf("readiness is %+v", r)
			}
			time.Sleep(time.Hour)
		}
		if tags, err := stranger.Tags(t.Context(), "", 10); err != nil || len(tags) != 1 {
			t.Errorf("the other store has %v, %v", tags, err)
		}
		store.Swap(mine)
		time.Sleep(30 * time.Second)
		mustNext(t, s, "orders")
	})
}

// second returns the error of a call.
func second[T any](_ T, err error) error { return err }

// acquire returns a request as a client makes it.
func acquire(holder string, lo, hi int64) hapax.AcquireRequest {
	return hapax.AcquireRequest{
		Pool: hapax.DefaultPool, Workers: hapax.WorkerRange{Lo: lo, Hi: hi}, Holder: holder,
		Term: hapax.Term{Length: 10 * time.Second},
	}
}

func TestLeasesAreBounded(t *testing.T) {
	other, err := hapax.ParseLayout("time:41,worker:4,sequence:18,unit=1ms,epoch=2024-01-01T00:00:00Z")
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		spoil func(*hapax.AcquireRequest)
		want  error
	}{
		"pool":         {func(r *hapax.AcquireRequest) { r.Pool = "" }, hapax.ErrInvalidTag},
		"unknown pool": {func(r *hapax.AcquireRequest) { r.Pool = "elsewhere" }, hapax.ErrInvalidArgument},
		"layout":       {func(r *hapax.AcquireRequest) { r.Layout = other }, hapax.ErrLayoutMismatch},
		"workers":      {func(r *hapax.AcquireRequest) { r.Workers.Hi = 1025 }, hapax.ErrInvalidArgument},
		"no workers":   {func(r *hapax.AcquireRequest) { r.Workers.Lo = 8 }, hapax.ErrInvalidArgument},
		"among":        {func(r *hapax.AcquireRequest) { r.Among = []int64{8} }, hapax.ErrInvalidArgument},
		"length":       {func(r *hapax.AcquireRequest) { r.Term.Length = 24*time.Hour + 1 }, hapax.ErrInvalidArgument},
		"no length":    {func(r *hapax.AcquireRequest) { r.Term.Length = 0 }, hapax.ErrInvalidArgument},
		"holder":       {func(r *hapax.AcquireRequest) { r.Holder = "" }, hapax.ErrInvalidArgument},
		"ugly holder":  {func(r *hapax.AcquireRequest) { r.Holder = "\n\x1b[31mX" }, hapax.ErrInvalidArgument},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, Options{}, func(t *testing.T, s *Service, store *storetest.Faults) {
				if _, err := s.AcquireWorker(t.Context(), acquire("client", 0, 8)); err != nil {
					t.Fatal(err)
				}
				req := acquire("client", 0, 8)
				c.spoil(&req)
				if _, err := s.AcquireWorker(t.Context(), req); !errors.Is(err, c.want) {
					t.Errorf("got %v, want %v", err, c.want)
				}
			})
		})
	}
}

// TestTheServerDecidesATerm: what a client claims of the time, and of how much of
// it it should have, does not reach the store.
func TestTheServerDecidesATerm(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, s *Service, store *storetest.Faults) {
		layout, err := s.Layout(hapax.LayoutLeaf)
		if err != nil {
			t.Fatal(err)
		}
		now, _ := s.opts.Clock.Now()
		tick, err := layout.TickOf(now)
		if err != nil {
			t.Fatal(err)
		}
		greedy := hapax.Term{
			Now: now.AddDate(40, 0, 0), Length: 24 * time.Hour, Ahead: 24 * time.Hour, Behind: 24 * time.Hour, TTL: 100 * time.Hour,
		}
		req := acquire("client", 0, 1)
		req.Term = greedy
		lease, err := s.AcquireWorker(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		if most := tick + hapax.DefaultMaxGrant.Milliseconds(); lease.Grant.Lo < tick || lease.Grant.Hi > most {
			t.Errorf("granted %v at tick %d; want nothing before it, and no more than %v", lease.Grant, tick, hapax.DefaultMaxGrant)
		}
		if most := now.Add(hapax.DefaultMaxGrant + hapax.DefaultLease); lease.Expires.After(most) {
			t.Errorf("the lease expires at %v; want no later than %v", lease.Expires, most)
		}
		thief := acquire("thief", 0, 1)
		thief.Term = greedy
		if _, err := s.AcquireWorker(t.Context(), thief); !errors.Is(err, hapax.ErrNoWorker) {
			t.Errorf("by a clock of the far future, another's worker: %v", err)
		}

		thief.Term.Now = now
		thief.Term.Length = hapax.DefaultMaxGrant
		if _, err := s.AcquireWorker(t.Context(), thief); !errors.Is(err, hapax.ErrNoWorker) {
			t.Errorf("running ahead of the clock by a day, another's worker: %v", err)
		}
		if err := s.SealWorker(t.Context(), lease, lease.Grant.Hi); err != nil { // free, but for its time
			t.Fatal(err)
		}
		if early, err := s.AcquireWorker(t.Context(), thief); !errors.Is(err, hapax.ErrNoWorker) {
			t.Errorf("running ahead of the clock by a day, a worker whose mark is minutes ahead: %v, %v", early.Grant, err)
		}
		time.Sleep(hapax.DefaultMaxGrant - hapax.DefaultMaxAhead/2)
		prompt := req
		prompt.Term.Ahead = 0
		if early, err := s.AcquireWorker(t.Context(), prompt); !errors.Is(err, hapax.ErrNoWorker) {
			t.Errorf("not running ahead of the clock, a worker whose mark is ahead of it: %v, %v", early.Grant, err)
		}
		if lease, err = s.AcquireWorker(t.Context(), req); err != nil {
			t.Fatalf("running ahead as far as this server itself would: %v", err)
		}

		time.Sleep(time.Second)
		more, err := s.ExtendWorker(t.Context(), lease, hapax.Layout{}, greedy)
		if err != nil || more.Grant.Lo != lease.Grant.Hi || more.Grant.Len() != 1000 {
			t.Errorf("a second later, an extension: %+v, %v; want 1000 ticks behind %v", more, err, lease.Grant)
		}
		if _, err := s.ExtendWorker(t.Context(), more, hapax.Layout{}, hapax.Term{Length: 48 * time.Hour}); !errors.Is(err, hapax.ErrInvalidArgument) {
			t.Errorf("an extension by two days: %v", err)
		}
		stranger := more
		stranger.Pool = "elsewhere"
		if _, err := s.ExtendWorker(t.Context(), stranger, hapax.Layout{}, greedy); !errors.Is(err, hapax.ErrPoolNotFound) {
			t.Errorf("an extension in a pool that was never used: %v", err)
		}
	})
}

// TestTheServiceKnowsTheLayout leases in the last minute of a layout's time.
func TestTheServiceKnowsTheLayout(t *testing.T) {
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC) // of the bubble's clock
	epoch := start.Add(time.Minute).Add(-time.Second << 20).Format(time.RFC3339)
	layout, err := hapax.ParseLayout("time:20,worker:1,sequence:12,unit=1s,epoch=" + epoch)
	if err != nil {
		t.Fatal(err)
	}
	opts := Options{Pools: map[string]PoolConfig{"short": {Layout: layout.String()}}}
	bubble(t, opts, func(t *testing.T, s *Service, store *storetest.Faults) {
		req := acquire("client", 0, 1)
		req.Pool, req.Term.Length = "short", time.Hour
		lease, err := s.AcquireWorker(t.Context(), req)
		if err != nil || lease.Grant.Hi != layout.EndTick() {
			t.Fatalf("%+v, %v; the last tick is %d", lease, err, layout.EndTick()-1)
		}
		if _, err := s.ExtendWorker(t.Context(), lease, hapax.Layout{}, req.Term); !errors.Is(err, hapax.ErrTimeExhausted) {
			t.Errorf("an extension beyond the end: %v", err)
		}
		req.Holder = "another"
		if _, err := s.AcquireWorker(t.Context(), req); !errors.Is(err, hapax.ErrNoWorker) {
			t.Errorf("a second lease: %v", err)
		}
	})
}

// TestALateSealLeavesTheWitness seals a lease that was taken over meanwhile.
func TestALateSealLeavesTheWitness(t *testing.T) {
	guardedBubble(t, Options{}, func(t *testing.T, s *Service, store *storetest.Faults, w *witness.Witness) {
		req := acquire("client", 3, 4)
		old, err := s.AcquireWorker(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(hapax.DefaultLease + time.Minute)
		req = acquire("successor", 3, 4)
		next, err := s.AcquireWorker(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.SealWorker(t.Context(), old, old.From); !errors.Is(err, hapax.ErrLeaseLost) {
			t.Errorf("the late seal: %v", err)
		}
		if p, _ := w.Pair(witness.WorkerLine(next.Pool, 3)); p.Mark != next.Grant.Hi {
			t.Errorf("the witness has mark %d, want %d", p.Mark, next.Grant.Hi)
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
		s := open(t, guard(t, storetest.NewFaults(store), w), Options{Pools: map[string]PoolConfig{"default": {Workers: "1"}}})
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
