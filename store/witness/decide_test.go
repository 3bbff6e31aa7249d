package witness_test

import (
	"errors"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/store/memstore"
	"github.com/hapax-id/hapax/store/storetest"
	"github.com/hapax-id/hapax/store/witness"
)

// acquire takes a worker of a pool through a node or on the store.
func acquire(t *testing.T, s hapax.WorkerStore, pool, holder string) hapax.Lease {
	t.Helper()
	layout, err := hapax.ParseLayout("time:41,worker:10,sequence:12,unit=1ms,epoch=1990-01-01T00:00:00Z")
	if err != nil {
		t.Fatal(err)
	}
	lease, err := s.AcquireWorker(t.Context(), hapax.AcquireRequest{
		Pool: pool, Layout: layout, Workers: hapax.WorkerRange{Hi: 4}, Holder: holder, Term: hapax.Term{Now: time.Now(), Length: 10 * time.Second, TTL: time.Minute},
	})
	if err != nil {
		t.Fatal(err)
	}
	return lease
}

// markOf returns the mark of the pool's worker 0 as a time.
func (w *fleet) markOf(pool string) time.Time {
	w.t.Helper()
	workers, err := w.store.Workers(w.t.Context(), pool)
	if err != nil || len(workers) == 0 {
		w.t.Fatal(workers, err)
	}
	return time.UnixMilli(workers[0].Mark).Add(time.Date(1990, 1, 1, 0, 0, 0, 0, time.UTC).Sub(time.Unix(0, 0)))
}

// Where grants are unknown, time is raised past all that anybody can have been granted:
// for every worker of every pool, also those that no witness tells of.
func TestUnknownTimeIsRaised(t *testing.T) {
	for name, c := range map[string]struct {
		change func(w *fleet) // what becomes of the store, and of the nodes
		req    witness.AdoptRequest
		raised bool
	}{
		"a node is missing": {func(w *fleet) {
			backup := w.later()
			w.stop("b")
			w.store.Restore(backup)
		}, witness.AdoptRequest{Floor: 100_000, WithoutMissing: true}, true},
		"a node is missing, and more is asked for": {func(w *fleet) {
			backup := w.later()
			w.stop("b")
			w.store.Restore(backup)
		}, witness.AdoptRequest{Floor: 100_000, WithoutMissing: true, Ahead: time.Hour}, true},
		"replaced": {func(w *fleet) {
			w.later()
			w.store.Restore(memstore.New())
			w.create()
			acquire(w.t, w.store, "known", "x")
			acquire(w.t, w.store, "unknown", "x")
		}, witness.AdoptRequest{Floor: 100_000}, true},
		"all were heard": {func(w *fleet) {
			w.store.Restore(w.later())
		}, witness.AdoptRequest{}, false},
	} {
		t.Run(name, func(t *testing.T) {
			withFleet(t, func(t *testing.T, w *fleet) {
				acquire(t, w.nodes["a"], "known", "a")
				acquire(t, w.store, "unknown", "x") // by a node that keeps no witness
				c.change(w)
				time.Sleep(3 * time.Second)
				w.refuse("t")
				before := time.Now()
				w.adopt(c.req)
				ahead := max(c.req.Ahead, 15*time.Minute)
				for _, pool := range []string{"known", "unknown"} {
					if past := w.markOf(pool).Sub(before); (past >= ahead) != c.raised {
						t.Errorf("pool %q: the mark lies %v ahead of the clock; raised by %v is to be %v", pool, past, ahead, c.raised)
					}
				}
				w.issue()
			})
		})
	}
}

// A node that comes back after its store was replaced needs no second decision; and
// nodes that an operator has decided about are not asked for again.
func TestDecidedOnce(t *testing.T) {
	withFleet(t, func(t *testing.T, w *fleet) {
		w.later()
		time.Sleep(time.Minute)
		w.stop("b")
		w.store.Restore(memstore.New())
		w.create()
		time.Sleep(3 * time.Second)
		w.refuse("t")
		w.adopt(witness.AdoptRequest{Floor: 100_000})
		w.issue()

		_ = w.start("b").Ping(t.Context()) // as a server does
		time.Sleep(3 * time.Second)
		w.refuse("t")
		w.adopt(witness.AdoptRequest{}) // no floor again
		w.issue()
	})
}

// A witness that is given speaks for its own node, and for no other.
func TestWitnessSpeaksForItsNode(t *testing.T) {
	withFleet(t, func(t *testing.T, w *fleet) {
		backup := w.later()
		w.start("c").mustUse("t", 1)
		w.stop("b")
		w.stop("c")
		w.store.Restore(backup)
		time.Sleep(3 * time.Second)
		c, err := witness.Read(w.path("c"))
		if err != nil {
			t.Fatal(err)
		}
		if a, err := witness.Adopt(t.Context(), w.store, witness.AdoptRequest{Lines: []map[string]int64{c}}); !errors.Is(err, hapax.ErrFenced) || !slices.Equal(a.Missing, []string{"b"}) {
			t.Errorf("with the witness of c: %+v, %v; want b to be missing", a, err)
		}
		if lines, err := witness.Read(w.path("nobody")); !errors.Is(err, hapax.ErrStoreUnavailable) {
			t.Errorf("a witness that is not there: %v, %v; want ErrStoreUnavailable", lines, err)
		}
	})
}

// A fence that is replaced while it is being lifted stands.
func TestFenceReplacedWhileItIsLifted(t *testing.T) {
	withFleet(t, func(t *testing.T, w *fleet) {
		w.restore(w.later())
		late, swaps := storetest.NewFaults(unclosed{w.store}), 0
		late.Inject(func(op storetest.Op) storetest.Fault {
			if op.Method != "SwapRow" || op.Line != driver.TableFence {
				return storetest.Fault{}
			}
			if swaps++; swaps == 2 { // after the note that it is lifted
				old, _ := w.store.Row(t.Context(), driver.TableFence, "fence")
				next := []byte(`{"id":"anew","node":"x","name":"x","at":"2026-01-01T00:00:00Z","why":"test"}`)
				if ok, err := w.store.SwapRow(t.Context(), driver.TableFence, "fence", old, next); !ok || err != nil {
					t.Error(ok, err)
				}
			}
			return storetest.Fault{}
		})
		if a, err := witness.Adopt(t.Context(), late, witness.AdoptRequest{}); !errors.Is(err, hapax.ErrFenced) {
			t.Errorf("adopted over a fence that nobody was heard for: %+v, %v", a, err)
		}
		time.Sleep(3 * time.Second)
		w.refuse("t")
		w.adopt(witness.AdoptRequest{})
		w.issue()
	})
}

// What the store lost altogether, and what is a tombstone, begins above the floor too;
// a tombstone stays what it was.
func TestFloorOfLostTagsAndTombstones(t *testing.T) {
	withFleet(t, func(t *testing.T, w *fleet) {
		ctx := t.Context()
		odd, err := hapax.Tag{Name: "odd", Step: 7, Delta: 3, Remainder: 1}.WithDefaults()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.store.CreateTag(ctx, odd, hapax.CreateExplicit); err != nil {
			t.Fatal(err)
		}
		use := func(tag string) {
			if _, err := w.nodes["a"].Allocate(ctx, tag, 10, ""); err != nil {
				t.Fatal(err)
			}
		}
		use("odd")
		if _, err := w.store.DeleteTag(ctx, "odd"); err != nil {
			t.Fatal(err)
		}
		backup := w.later()
		if _, err := w.store.CreateTag(ctx, hapax.Tag{Name: "lost"}, hapax.CreateExplicit); err != nil {
			t.Fatal(err)
		}
		use("lost")
		w.restore(backup)
		w.adopt(witness.AdoptRequest{Floor: 50_000})
		if lost, err := w.store.Tag(ctx, "lost"); err != nil || lost.Mark != 50_000 || lost.Deleted {
			t.Errorf("the lost tag is %+v, error %v", lost, err)
		}
		want := odd
		want.Deleted, want.Mark = true, 50_000
		if got, err := w.store.Tag(ctx, "odd"); err != nil || got != want {
			t.Errorf("the tombstone is %+v, error %v; want %+v", got, err, want)
		}
		w.issue()
	})
}

// A store of one process is adopted at once: its only witness is heard, whether or not
// it has been published.
func TestAdoptedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		if _, err := store.CreateTag(t.Context(), hapax.Tag{Name: "t"}, hapax.CreateExplicit); err != nil {
			t.Fatal(err)
		}
		w, err := witness.Open(filepath.Join(t.TempDir(), "witness"))
		if err != nil {
			t.Fatal(err)
		}
		g, err := witness.Guard(lone{store}, w, witness.Options{})
		if err != nil {
			t.Fatal(err)
		}
		backup := store.Snapshot()
		if _, err := g.Allocate(t.Context(), "t", 1000, ""); err != nil {
			t.Fatal(err)
		}
		store.Restore(backup)
		if _, err := g.Allocate(t.Context(), "t", 10, ""); !errors.Is(err, hapax.ErrFenced) {
			t.Fatalf("error is %v, want ErrFenced", err)
		}
		if a, err := g.Adopt(t.Context(), witness.AdoptRequest{}); err != nil || len(a.Raised) != 1 || a.Raised[0].To != 1001 {
			t.Fatalf("adopted %+v, error %v", a, err)
		}
		time.Sleep(2 * time.Second)
		if a, err := g.Allocate(t.Context(), "t", 10, ""); err != nil || a.Grant.Lo != 1001 {
			t.Errorf("granted %v, error %v", a.Grant, err)
		}
		if err := errors.Join(g.Close(), w.Close()); err != nil {
			t.Error(err)
		}
	})
}

// A fence of long ago that came back with the store is replaced, also where that did
// not work out at first.
func TestOldFenceIsReplacedInTheEnd(t *testing.T) {
	withFleet(t, func(t *testing.T, w *fleet) {
		w.stop("b")
		w.stop("a")
		time.Sleep(forgotten)
		n, link := w.linked("n", time.Second)
		n.mustUse("t", 10)
		backup := w.store.Snapshot()
		old := []byte(`{"id":"old","node":"x","name":"x","at":"2026-01-01T00:00:00Z","why":"long ago"}`)
		if ok, err := backup.SwapRow(t.Context(), driver.TableFence, "fence", nil, old); !ok || err != nil {
			t.Fatal(ok, err)
		}
		time.Sleep(3 * time.Second)
		link.Inject(func(op storetest.Op) storetest.Fault {
			if op.Method == "SwapRow" && op.Line == driver.TableFence {
				return storetest.Fault{Fail: hapax.ErrStoreUnavailable}
			}
			return storetest.Fault{}
		})
		w.store.Restore(backup)
		time.Sleep(3 * time.Second)
		w.refuse("t")
		link.Inject(nil)
		time.Sleep(3 * time.Second)
		if st := n.Status(); st.State != witness.Refusing || st.Fence == nil || !slices.Equal(st.Fence.Replaces, []string{"old"}) {
			t.Errorf("the status is %+v, with the fence %+v", st, st.Fence)
		}
		w.adopt(witness.AdoptRequest{})
		w.issue()
	})
}

// A node that the restored store does not know keeps its row while a fence stands, so
// that it is missed as long as it has not said what it used.
func TestUnknownNodeIsMissed(t *testing.T) {
	withFleet(t, func(t *testing.T, w *fleet) {
		backup := w.later()
		c, link := w.linked("c", time.Second)
		c.mustUse("t", 5000)
		link.Inject(func(op storetest.Op) storetest.Fault {
			if op.Line == driver.TableEvidence {
				return storetest.Fault{Fail: hapax.ErrStoreUnavailable}
			}
			return storetest.Fault{}
		})
		w.restore(backup)
		if a, err := witness.Adopt(t.Context(), w.store, witness.AdoptRequest{}); !errors.Is(err, hapax.ErrFenced) || !slices.Equal(a.Missing, []string{"c"}) {
			t.Fatalf("without c: %+v, %v", a, err)
		}
		link.Inject(nil)
		time.Sleep(3 * time.Second)
		w.adopt(witness.AdoptRequest{})
		w.issue()
	})
}

// A node that is cut off while an operator adopts the store, by its witness, goes on
// when it is back.
func TestCutOffDuringAdopt(t *testing.T) {
	withFleet(t, func(t *testing.T, w *fleet) {
		c, link := w.linked("c", time.Second)
		c.mustUse("t", 10)
		backup := w.later()
		c.mustUse("t", 5000)
		w.restore(backup)
		link.Down()
		lines, err := witness.Read(w.path("c"))
		if err != nil {
			t.Fatal(err)
		}
		w.adopt(witness.AdoptRequest{Lines: []map[string]int64{lines}})
		time.Sleep(10 * time.Second)
		link.Up()
		w.issue()
	})
}

// A slow node that joined after the copy was made is unknown to the store until its
// next heartbeat: an adoption waits for as long as nodes of this store may be silent.
func TestAdoptWaitsForSlowNodes(t *testing.T) {
	withFleet(t, func(t *testing.T, w *fleet) {
		w.stop("a")
		w.stop("b")
		time.Sleep(forgotten)
		first, _ := w.linked("first", 40*time.Second)
		first.mustUse("t", 10)
		backup := w.store.Snapshot()
		second, _ := w.linked("second", 40*time.Second)
		second.mustUse("t", 5000)
		w.store.Restore(backup)
		if err := first.use("t", 10); !errors.Is(err, hapax.ErrFenced) {
			t.Fatalf("error is %v, want ErrFenced", err)
		}
		a := w.adopt(witness.AdoptRequest{Wait: time.Minute})
		if !slices.Contains(a.Spoke, "second") {
			t.Errorf("heard were %v", a.Spoke)
		}
		time.Sleep(time.Minute)
		w.issue()
	})
}
