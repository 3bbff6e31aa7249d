package witness_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/store/memstore"
	"github.com/hapax-id/hapax/store/storetest"
	"github.com/hapax-id/hapax/store/witness"
)

// A fleet is nodes on one store.
type fleet struct {
	t     *testing.T
	store *memstore.Store
	dir   string
	used  map[hapax.ID]string
	nodes map[string]*testNode
}

// withFleet runs a test in virtual time with nodes a and b, which have issued.
func withFleet(t *testing.T, f func(*testing.T, *fleet)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &fleet{t, memstore.New(), t.TempDir(), map[hapax.ID]string{}, map[string]*testNode{}}
		w.create()
		defer func() {
			for _, n := range w.nodes {
				n.stop()
			}
		}()
		w.start("a").mustUse("t", 500)
		w.start("b").mustUse("t", 500)
		f(t, w)
	})
}

func (w *fleet) create() {
	w.t.Helper()
	if _, err := w.store.CreateTag(w.t.Context(), hapax.Tag{Name: "t"}, hapax.CreateExplicit); err != nil {
		w.t.Fatal(err)
	}
}

func (w *fleet) path(name string) string { return filepath.Join(w.dir, name) }

func (w *fleet) start(name string) *testNode {
	w.t.Helper()
	n := startNode(w.t, w.store, w.path(name), name, w.used)
	w.nodes[name] = n
	return n
}

func (w *fleet) stop(name string) {
	w.t.Helper()
	w.nodes[name].stop()
	delete(w.nodes, name)
}

// restore puts the backup back, and waits until all nodes have seen the fence.
func (w *fleet) restore(backup *memstore.Store) {
	w.t.Helper()
	w.store.Restore(backup)
	time.Sleep(3 * time.Second)
	w.refuse("t")
}

func (w *fleet) refuse(tag string) {
	w.t.Helper()
	for name, n := range w.nodes {
		if err := n.use(tag, 10); !errors.Is(err, hapax.ErrFenced) {
			w.t.Fatalf("%s: error is %v, want ErrFenced", name, err)
		}
	}
}

// issue lets every node issue.
func (w *fleet) issue() {
	w.t.Helper()
	time.Sleep(3 * time.Second)
	for _, name := range slices.Sorted(maps.Keys(w.nodes)) {
		w.nodes[name].mustUse("t", 100)
	}
}

func (w *fleet) adopt(req witness.AdoptRequest) witness.Adoption {
	w.t.Helper()
	a, err := witness.Adopt(w.t.Context(), w.store, req)
	if err != nil {
		w.t.Fatalf("adopt: %+v, %v", a, err)
	}
	return a
}

// later returns a backup after which both nodes have issued.
func (w *fleet) later() *memstore.Store {
	w.t.Helper()
	time.Sleep(2 * time.Second)
	backup := w.store.Snapshot()
	time.Sleep(2 * time.Second)
	for _, name := range slices.Sorted(maps.Keys(w.nodes)) {
		w.nodes[name].mustUse("t", 3000)
	}
	return backup
}

func TestAdoptSaidTwiceAtOnce(t *testing.T) {
	withFleet(t, func(t *testing.T, w *fleet) {
		w.restore(w.later())
		var said sync.WaitGroup
		for _, n := range w.nodes {
			said.Go(func() {
				if _, err := n.Adopt(t.Context(), witness.AdoptRequest{}); err != nil && !errors.Is(err, hapax.ErrFenced) {
					t.Errorf("%s: %v", n.name, err)
				}
			})
		}
		said.Wait()
		w.issue()
	})
}

// A node that finds something while an adoption waits has to be heard as well, and
// one that does so later makes it fail.
func TestFenceRaisedDuringAdopt(t *testing.T) {
	withFleet(t, func(t *testing.T, w *fleet) {
		w.restore(w.later())
		anew := func(replaces string) {
			old, err := w.store.Row(t.Context(), driver.TableFence, "fence")
			if err != nil {
				t.Error(err)
			}
			raw := fmt.Appendf(nil, `{"id":"anew","node":"x","name":"x","at":"2026-01-01T00:00:00Z","why":"test","replaces":[%q]}`, replaces)
			if ok, err := w.store.SwapRow(t.Context(), driver.TableFence, "fence", old, raw); !ok || err != nil {
				t.Error(ok, err)
			}
		}
		first := w.nodes["a"].Status().Fence.ID
		var said sync.WaitGroup
		said.Go(func() {
			time.Sleep(300 * time.Millisecond)
			anew(first)
		})
		if a := w.adopt(witness.AdoptRequest{}); a.Fence.ID != "anew" {
			t.Errorf("lifted %+v", a.Fence)
		}
		said.Wait()
		w.issue()

		w.restore(w.later())
		late := storetest.NewFaults(unclosed{w.store})
		once := sync.OnceFunc(func() { anew("") })
		late.Inject(func(op storetest.Op) storetest.Fault {
			if op.Method == "UpdateTag" { // the marks are raised: all were heard
				once()
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

// An adoption that ends anywhere, because it is killed or cut off, leaves the fence
// or has done its work; saying it again completes it.
func TestAdoptCutOff(t *testing.T) {
	for _, written := range []bool{false, true} {
		for step := 0; ; step++ {
			steps := 0
			withFleet(t, func(t *testing.T, w *fleet) {
				w.restore(w.later())
				link := storetest.NewFaults(unclosed{w.store})
				link.Inject(func(op storetest.Op) storetest.Fault {
					if op.Method != "UpdateTag" && op.Method != "SwapRow" {
						return storetest.Fault{}
					}
					steps++
					switch {
					case steps == step+1 && written:
						return storetest.Fault{Lose: hapax.ErrStoreUnavailable}
					case steps > step:
						return storetest.Fault{Fail: hapax.ErrStoreUnavailable}
					}
					return storetest.Fault{}
				})
				_, err := witness.Adopt(t.Context(), link, witness.AdoptRequest{})
				if (err == nil) != (steps <= step) {
					t.Errorf("cut off at step %d: %v", step, err)
				}
				time.Sleep(3 * time.Second)
				for _, n := range w.nodes { // whatever is granted now is new
					if err := n.use("t", 10); err != nil && !errors.Is(err, hapax.ErrFenced) {
						t.Errorf("step %d: %v", step, err)
					}
				}
				w.adopt(witness.AdoptRequest{})
				w.issue()
			})
			if steps <= step || t.Failed() {
				break
			}
		}
	}
}

// A node that does not live adopts the store; it is killed at any step.
func TestAdoptWithCutOff(t *testing.T) {
	for step := range 8 {
		withFleet(t, func(t *testing.T, w *fleet) {
			backup := w.later()
			w.stop("a")
			w.restore(backup)
			wit, err := witness.Open(w.path("a"))
			if err != nil {
				t.Fatal(err)
			}
			link, steps := storetest.NewFaults(unclosed{w.store}), 0
			link.Inject(func(op storetest.Op) storetest.Fault {
				if op.Method == "UpdateTag" || op.Method == "SwapRow" {
					steps++
				}
				if steps > step {
					return storetest.Fault{Fail: hapax.ErrStoreUnavailable}
				}
				return storetest.Fault{}
			})
			_, _ = witness.AdoptWith(t.Context(), link, wit, witness.AdoptRequest{})
			if err := wit.Close(); err != nil {
				t.Error(err)
			}
			w.start("a")
			time.Sleep(3 * time.Second)
			for _, n := range w.nodes {
				if err := n.use("t", 10); err != nil && !errors.Is(err, hapax.ErrFenced) {
					t.Errorf("step %d: %v", step, err)
				}
			}
			w.adopt(witness.AdoptRequest{})
			w.issue()
		})
	}
}

// A store is put back to the same copy again: after it was adopted, while it is
// fenced, and with a fence and evidence of long ago in it.
func TestRestoredTwice(t *testing.T) {
	withFleet(t, func(t *testing.T, w *fleet) {
		first := w.later()
		w.restore(first)
		fenced := w.store.Snapshot()
		time.Sleep(3 * time.Second)
		w.adopt(witness.AdoptRequest{})
		w.issue()
		time.Sleep(2 * time.Second)

		w.restore(first)
		w.restore(first)
		w.adopt(witness.AdoptRequest{})
		w.issue()
		time.Sleep(2 * time.Second)

		w.restore(fenced)
		w.adopt(witness.AdoptRequest{})
		w.issue()
	})
}

// A fence that came back with the store has evidence of long ago. A node that does
// not live, and has issued since, is missed all the same.
func TestEvidenceOfLongAgo(t *testing.T) {
	withFleet(t, func(t *testing.T, w *fleet) {
		w.restore(w.later())
		fenced := w.store.Snapshot()
		w.adopt(witness.AdoptRequest{})
		w.issue()
		time.Sleep(2 * time.Second)
		w.nodes["b"].mustUse("t", 5000)
		w.stop("b")
		w.restore(fenced)
		if a, err := witness.Adopt(t.Context(), w.store, witness.AdoptRequest{}); !errors.Is(err, hapax.ErrFenced) || !slices.Equal(a.Missing, []string{"b"}) {
			t.Fatalf("without b: %+v, %v", a, err)
		}
		_ = w.start("b").Ping(t.Context()) // as a server does
		time.Sleep(3 * time.Second)
		w.adopt(witness.AdoptRequest{})
		w.issue()
	})
}

// Evidence of which a part is missing does not count.
func TestIncompleteEvidence(t *testing.T) {
	withFleet(t, func(t *testing.T, w *fleet) {
		w.restore(w.later())
		time.Sleep(3 * time.Second)
		b := w.nodes["b"].Witness().Node()
		w.stop("b")
		err := driver.AllRows(t.Context(), w.store, driver.TableEvidence, func(row driver.Row) error {
			if !strings.Contains(row.Name, b) || strings.HasSuffix(row.Name, "done") {
				return nil
			}
			_, err := w.store.SwapRow(t.Context(), driver.TableEvidence, row.Name, row.Value, nil)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		if a, err := witness.Adopt(t.Context(), w.store, witness.AdoptRequest{}); !errors.Is(err, hapax.ErrFenced) || !slices.Equal(a.Missing, []string{"b"}) {
			t.Errorf("without a part of what b used: %+v, %v", a, err)
		}
	})
}

// A node that starts under such a fence says what it used since.
func TestEvidenceIsBroughtUpToDate(t *testing.T) {
	withFleet(t, func(t *testing.T, w *fleet) {
		a := w.nodes["a"]
		delete(w.nodes, "a")
		if err := errors.Join(a.Close(), a.Witness().Close()); err != nil { // it leaves in good order
			t.Fatal(err)
		}
		w.restore(w.later())
		fenced := w.store.Snapshot()
		w.adopt(witness.AdoptRequest{})
		w.issue()
		w.nodes["b"].mustUse("t", 5000)
		w.stop("b")
		w.store.Restore(fenced)
		_ = w.start("b").Ping(t.Context())
		time.Sleep(3 * time.Second)
		w.adopt(witness.AdoptRequest{})
		w.start("c")
		w.issue()
	})
}

// A fence that vanished, or was lifted over a store that is behind, is no reason to
// go on: only an operator's decision about a sound store is.
func TestFenceThatVanished(t *testing.T) {
	lift := func(w *fleet, decided bool) {
		ctx := w.t.Context()
		fence, err := w.store.Row(ctx, driver.TableFence, "fence")
		if err != nil || fence == nil {
			w.t.Fatal(err)
		}
		if decided {
			id, _ := w.store.StoreID(ctx)
			for _, n := range w.nodes {
				row := fmt.Appendf(nil, `{"store":%q,"at":"2026-01-01T00:00:00Z"}`, id)
				name := "lifted/" + n.Status().Fence.ID
				old, _ := w.store.Row(ctx, driver.TableFence, name)
				if old == nil {
					_, _ = w.store.SwapRow(ctx, driver.TableFence, name, nil, row)
				}
			}
		}
		if ok, err := w.store.SwapRow(ctx, driver.TableFence, "fence", fence, nil); !ok || err != nil {
			w.t.Fatal(ok, err)
		}
	}
	t.Run("nobody has decided", func(t *testing.T) {
		withFleet(t, func(t *testing.T, w *fleet) {
			w.restore(w.later())
			floor := int64(100_000)
			if _, err := w.store.UpdateTag(t.Context(), "t", hapax.TagUpdate{Floor: &floor}); err != nil {
				t.Fatal(err)
			}
			lift(w, false)
			time.Sleep(3 * time.Second)
			w.refuse("t")
		})
	})
	t.Run("the store is behind", func(t *testing.T) {
		withFleet(t, func(t *testing.T, w *fleet) {
			w.restore(w.later())
			lift(w, true)
			time.Sleep(3 * time.Second)
			if err := w.start("c").use("t", 10); !errors.Is(err, hapax.ErrFenced) { // it has not used what is missing; the others see to it
				t.Fatalf("c: error is %v, want ErrFenced", err)
			}
			w.refuse("t")
		})
	})
}

// A node that saw a fence which another one replaced goes on when that is lifted.
func TestLiftedWithWhatItReplaces(t *testing.T) {
	withFleet(t, func(t *testing.T, w *fleet) {
		w.restore(w.later())
		b := w.nodes["b"].Status().Fence.ID
		w.stop("b")
		said, err := witness.Read(w.path("b"))
		if err != nil {
			t.Fatal(err)
		}
		old, _ := w.store.Row(t.Context(), driver.TableFence, "fence")
		raw := fmt.Appendf(nil, `{"id":"anew","node":"x","name":"x","at":"2026-01-01T00:00:00Z","why":"test","replaces":[%q]}`, b)
		if ok, err := w.store.SwapRow(t.Context(), driver.TableFence, "fence", old, raw); !ok || err != nil {
			t.Fatal(ok, err)
		}
		time.Sleep(2 * time.Second)
		w.adopt(witness.AdoptRequest{Lines: []map[string]int64{said}})
		w.start("b")
		w.issue()
	})
}

// The marks are raised before the fence is lifted: nobody else lives who would notice.
func TestAdoptCutOffWithNobodyElse(t *testing.T) {
	for step := range 6 {
		withFleet(t, func(t *testing.T, w *fleet) {
			w.restore(w.later())
			var req witness.AdoptRequest
			for _, name := range []string{"a", "b"} {
				w.stop(name)
				said, err := witness.Read(w.path(name))
				if err != nil {
					t.Fatal(err)
				}
				req.Lines = append(req.Lines, said)
			}
			link, steps := storetest.NewFaults(unclosed{w.store}), 0
			link.Inject(func(op storetest.Op) storetest.Fault {
				if op.Method == "UpdateTag" || op.Method == "SwapRow" {
					steps++
				}
				if steps > step {
					return storetest.Fault{Fail: hapax.ErrStoreUnavailable}
				}
				return storetest.Fault{}
			})
			_, _ = witness.Adopt(t.Context(), link, req)
			c := w.start("c")
			time.Sleep(5 * time.Second)
			if err := c.use("t", 100); err != nil && !errors.Is(err, hapax.ErrFenced) {
				t.Errorf("step %d: %v", step, err)
			}
			w.adopt(req)
			w.issue()
		})
	}
}

// A witness that was lost cannot say what it knew; those that live name its node.
func TestLostWitness(t *testing.T) {
	withFleet(t, func(t *testing.T, w *fleet) {
		backup := w.later()
		time.Sleep(time.Minute)
		w.nodes["b"].mustUse("t", 9000)
		w.stop("b")
		if err := os.Remove(w.path("b")); err != nil {
			t.Fatal(err)
		}
		w.store.Restore(backup)
		w.start("b") // a new node, for all that anybody knows
		time.Sleep(3 * time.Second)
		w.refuse("t")
		a, err := witness.Adopt(t.Context(), w.store, witness.AdoptRequest{})
		if !errors.Is(err, hapax.ErrFenced) || len(a.Missing) != 1 {
			t.Fatalf("without the numbers of the lost witness: %+v, %v", a, err)
		}
		w.adopt(witness.AdoptRequest{WithoutMissing: true, Floor: 50_000})
		w.issue()
	})
}

// Only the workers were put back: the node that holds one finds out with its next
// extension, and one that starts by comparing all it knows.
func TestOnlyWorkersPutBack(t *testing.T) {
	layout, err := hapax.ParseLayout(hapax.LayoutLeaf)
	if err != nil {
		t.Fatal(err)
	}
	const table, row = "workers/p", "0000000000000000000"
	put := func(w *fleet, raw []byte) {
		old, err := w.store.Row(w.t.Context(), table, row)
		if err != nil {
			w.t.Fatal(err)
		}
		if ok, err := w.store.SwapRow(w.t.Context(), table, row, old, raw); !ok || err != nil {
			w.t.Fatal(ok, err)
		}
	}
	for name, restart := range map[string]bool{"it runs": false, "it starts": true, "the row is gone": false, "the row is gone, it starts": true} {
		t.Run(name, func(t *testing.T) {
			withFleet(t, func(t *testing.T, w *fleet) {
				ctx, now := t.Context(), func() hapax.Term {
					return hapax.Term{Now: time.Now().AddDate(26, 0, 0), Length: 10 * time.Second, TTL: time.Minute}
				}
				a := w.nodes["a"]
				lease, err := a.AcquireWorker(ctx, hapax.AcquireRequest{Pool: "p", Layout: layout, Workers: hapax.WorkerRange{Hi: 4}, Holder: "a", Term: now()})
				if err != nil {
					t.Fatal(err)
				}
				raw, _ := w.store.Row(ctx, table, row)
				time.Sleep(2 * time.Second)
				if lease, err = a.ExtendWorker(ctx, lease, hapax.ExtendRequest{Layout: layout, Term: now()}); err != nil {
					t.Fatal(err)
				}
				if restart {
					w.stop("a")
				}
				if strings.HasPrefix(name, "the row is gone") {
					raw = nil
				}
				put(w, raw)
				if restart {
					err = w.start("a").use("t", 1)
				} else {
					_, err = a.ExtendWorker(ctx, lease, hapax.ExtendRequest{Layout: layout, Term: now()})
				}
				if !errors.Is(err, hapax.ErrFenced) || !errors.Is(err, hapax.ErrStoreRolledBack) {
					t.Fatalf("error is %v", err)
				}
				time.Sleep(3 * time.Second)
				w.adopt(witness.AdoptRequest{})
				if now, err := w.store.Workers(context.WithoutCancel(ctx), "p"); err != nil || now[0].Mark < lease.Grant.Hi {
					t.Errorf("the worker is %+v after the adoption, was used below %d, error %v", now, lease.Grant.Hi, err)
				}
				w.issue()
			})
		})
	}
}

// A copy that is made and put back between two heartbeats is noticed at the next
// one by a node that was granted something in between, and never by one that was not.
func TestRestoredWithinAHeartbeat(t *testing.T) {
	withFleet(t, func(t *testing.T, w *fleet) {
		time.Sleep(2300 * time.Millisecond)
		backup := w.store.Snapshot()
		w.nodes["a"].mustUse("t", 10)
		w.store.Restore(backup)
		time.Sleep(1100 * time.Millisecond) // a heartbeat
		w.refuse("t")
	})
}
