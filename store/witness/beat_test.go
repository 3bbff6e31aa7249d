package witness_test

import (
	"encoding/json"
	"errors"
	"path/filepath"
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

// beatRow is a node's row as the tests change it.
type beatRow map[string]any

func (c *cell) row() beatRow {
	c.t.Helper()
	raw, err := c.store.Row(c.t.Context(), driver.TableNodes, c.Witness().Node())
	row := beatRow{}
	if err == nil {
		err = json.Unmarshal(raw, &row)
	}
	if err != nil {
		c.t.Fatal(err)
	}
	return row
}

// setRow replaces the node's row; nil removes it.
func (c *cell) setRow(row beatRow) {
	c.t.Helper()
	old, err := c.store.Row(c.t.Context(), driver.TableNodes, c.Witness().Node())
	var next []byte
	if err == nil && row != nil {
		next, err = json.Marshal(row)
	}
	ok := false
	if err == nil {
		ok, err = c.store.SwapRow(c.t.Context(), driver.TableNodes, c.Witness().Node(), old, next)
	}
	if !ok || err != nil {
		c.t.Fatal(ok, err)
	}
}

// The heartbeat after a grant tells what became of the node's row, also where the
// answer to the one before was lost: then the row may be one heartbeat further, as
// this process tried to write it, and nothing else.
func TestHeartbeatThatIsNotAsItWas(t *testing.T) {
	lose := storetest.Fault{Lose: hapax.ErrStoreUnavailable}
	for _, c := range []struct {
		name   string
		before storetest.Fault // happens to the heartbeat before
		change func(row beatRow) beatRow
		want   error // nil: nothing is wrong
	}{
		{name: "as it was"},
		{name: "the answer lost", before: lose},
		{name: "the request lost", before: storetest.Fault{Fail: hapax.ErrStoreUnavailable}},
		{name: "gone", change: func(beatRow) beatRow { return nil }, want: hapax.ErrStoreRolledBack},
		{name: "one behind", change: func(row beatRow) beatRow { return row.plus(-1, "") }, want: hapax.ErrStoreRolledBack},
		{name: "one ahead, and no answer was lost", change: func(row beatRow) beatRow { return row.plus(1, "") }, want: hapax.ErrStoreRolledBack},
		{name: "one behind what was lost", before: lose, change: func(row beatRow) beatRow { return row.plus(-2, "") }, want: hapax.ErrStoreRolledBack},
		{name: "one ahead of what was lost", before: lose, change: func(row beatRow) beatRow { return row.plus(1, "") }, want: hapax.ErrStoreRolledBack},
		{name: "another process, as far", change: func(row beatRow) beatRow { return row.plus(0, "other") }, want: hapax.ErrStoreRolledBack},
		{name: "another process, ahead", change: func(row beatRow) beatRow { return row.plus(1, "other") }, want: hapax.ErrStoreCopied},
		{name: "another process in place of what was lost", before: lose, change: func(row beatRow) beatRow { return row.plus(0, "other") }, want: hapax.ErrStoreCopied},
	} {
		t.Run(c.name, func(t *testing.T) {
			inCell(t, func(t *testing.T, n *cell) {
				n.take(10)
				n.take(10)
				if c.before != (storetest.Fault{}) {
					n.link.Inject(func(op storetest.Op) storetest.Fault {
						if op.Method == "SwapRow" && op.Line == driver.TableNodes {
							return c.before
						}
						return storetest.Fault{}
					})
					if _, err := n.Allocate(t.Context(), "t", 10, ""); !errors.Is(err, hapax.ErrStoreUnavailable) {
						t.Fatalf("without an answer: error is %v, want ErrStoreUnavailable", err)
					}
					n.link.Inject(nil)
				}
				if c.change != nil {
					n.setRow(c.change(n.row()))
				}
				_, err := n.Allocate(t.Context(), "t", 10, "")
				switch c.want {
				case nil:
					if err != nil {
						t.Errorf("error is %v, want none", err)
					}
				case hapax.ErrStoreCopied: // something is wrong with this node alone
					if !errors.Is(err, c.want) {
						t.Errorf("error is %v, want %v", err, c.want)
					}
					time.Sleep(10 * time.Second)
					if fence, err := n.store.Row(t.Context(), driver.TableFence, "fence"); fence != nil || err != nil {
						t.Errorf("the fence is %s, error %v; want none", fence, err)
					}
				default:
					n.wantFenced(err, c.want)
				}
			})
		})
	}
}

// plus returns the row some heartbeats on, by another process unless run is empty.
func (r beatRow) plus(beats int, run string) beatRow {
	r["beat"] = r["beat"].(float64) + float64(beats)
	r["at_ms"] = r["at_ms"].(float64) + 1
	if run != "" {
		r["run"] = run
	}
	return r
}

// A heartbeat that finds a fence stands for several grants, of which none is used.
func TestFenceFoundByASharedHeartbeat(t *testing.T) {
	inCell(t, func(t *testing.T, c *cell) {
		c.take(1)
		slow := make(chan storetest.Fault, 1)
		slow <- storetest.Fault{After: time.Second}
		c.link.Inject(func(op storetest.Op) storetest.Fault {
			if op.Method == "SwapRow" && op.Line == driver.TableNodes {
				select {
				case f := <-slow:
					return f
				default:
				}
			}
			return storetest.Fault{}
		})
		errs := make(chan error, 3)
		ask := func() {
			_, err := c.Allocate(t.Context(), "t", 10, "")
			errs <- err
		}
		go ask() // its heartbeat is under way, and has seen no fence,
		synctest.Wait()
		go ask() // while these two are granted
		go ask()
		synctest.Wait()
		c.fence()
		if mark, _ := c.Witness().Mark(witness.TagLine("t")); mark != 32 {
			t.Fatalf("the witness's mark is %d: not all three were granted before the fence", mark)
		}
		used := 0
		for range 3 {
			if err := <-errs; err == nil {
				used++
			} else if !errors.Is(err, hapax.ErrFenced) {
				t.Errorf("error is %v, want ErrFenced", err)
			}
		}
		if used > 1 {
			t.Errorf("%d grants are used: the fence was there before two of them had their heartbeat", used)
		}
	})
}

// fence raises one, as another node would.
func (c *cell) fence() {
	c.t.Helper()
	raw := []byte(`{"id":"F","node":"x","name":"x","at":"2026-01-01T00:00:00Z","why":"test"}`)
	if ok, err := c.store.SwapRow(c.t.Context(), driver.TableFence, "fence", nil, raw); !ok || err != nil {
		c.t.Fatal(ok, err)
	}
}

// A node that was stopped in good order starts again without a wait, and nothing is
// wrong; one that was cut off from the store at that moment neither.
func TestStoppedInGoodOrder(t *testing.T) {
	for name, cut := range map[string]bool{"its row removed": false, "cut off": true} {
		t.Run(name, func(t *testing.T) {
			withFleet(t, func(t *testing.T, w *fleet) {
				w.stop("a")
				w.stop("b")
				time.Sleep(forgotten)
				n, link := w.linked("n", time.Second)
				n.mustUse("t", 10)
				time.Sleep(10 * time.Second)
				if cut {
					link.Down()
				}
				if err := errors.Join(n.Guarded.Close(), n.Witness().Close()); err != nil {
					t.Fatal(err)
				}
				raw, err := w.store.Row(t.Context(), driver.TableNodes, n.Witness().Node())
				if err != nil || (raw != nil) != cut {
					t.Errorf("the row is %s, error %v", raw, err)
				}
				began := time.Now()
				w.start("n").mustUse("t", 10)
				if took := time.Since(began); took > 0 {
					t.Errorf("it waited for %v", took)
				}
			})
		})
	}
}

// A node that leaves under a fence stays known to the store: what it used is needed.
func TestLeavesUnderAFence(t *testing.T) {
	withFleet(t, func(t *testing.T, w *fleet) {
		b := w.nodes["b"]
		w.start("c").mustUse("t", 1)
		w.putBack(w.later()) // which a finds out
		if err := w.nodes["a"].use("t", 10); !errors.Is(err, hapax.ErrFenced) {
			t.Fatalf("error is %v, want ErrFenced", err)
		}
		if err := b.use("t", 10); !errors.Is(err, hapax.ErrFenced) {
			t.Fatalf("error is %v, want ErrFenced", err)
		}
		if err := errors.Join(b.Guarded.Close(), b.Witness().Close()); err != nil { // before it has said what it used
			t.Fatal(err)
		}
		delete(w.nodes, "b")
		if a, err := witness.Adopt(t.Context(), w.store, witness.AdoptRequest{}); !errors.Is(err, hapax.ErrFenced) || len(a.Missing) != 1 || a.Missing[0] != "b" {
			t.Fatalf("without b: %+v, %v", a, err)
		}
		_ = w.start("b").Ping(t.Context()) // as a server does
		time.Sleep(3 * time.Second)
		w.adopt(witness.AdoptRequest{})
		w.issue()
	})
}

// putBack puts the tags back by hand: the nodes' rows stay.
func (w *fleet) putBack(backup *memstore.Store) {
	w.t.Helper()
	ctx := w.t.Context()
	rows, err := w.store.ListRows(ctx, driver.TableNodes, "", 100)
	if err != nil {
		w.t.Fatal(err)
	}
	w.store.Restore(backup)
	for _, r := range rows {
		old, err := w.store.Row(ctx, driver.TableNodes, r.Name)
		if err != nil {
			w.t.Fatal(err)
		}
		if ok, err := w.store.SwapRow(ctx, driver.TableNodes, r.Name, old, r.Value); !ok || err != nil {
			w.t.Fatal(ok, err)
		}
	}
}

// linked starts a node whose calls can be made to fail, with a heartbeat of its own.
func (w *fleet) linked(name string, heartbeat time.Duration) (*testNode, *storetest.Faults) {
	w.t.Helper()
	wit, err := witness.Open(filepath.Join(w.dir, name))
	if err != nil {
		w.t.Fatal(err)
	}
	link := storetest.NewFaults(unclosed{w.store})
	g, err := witness.Guard(link, wit, witness.Options{Name: name, Heartbeat: heartbeat, Timeout: time.Hour})
	if err != nil {
		w.t.Fatal(err)
	}
	n := &testNode{g, w.t, w.path(name), name, w.used}
	w.nodes[name] = n
	return n, link
}

// A node that joins waits for one that is silent for a moment, or slow, and knows
// better.
func TestJoinsBesideASilentNode(t *testing.T) {
	for name, heartbeat := range map[string]time.Duration{"cut off for a moment": time.Second, "slow": 40 * time.Second} {
		t.Run(name, func(t *testing.T) {
			withFleet(t, func(t *testing.T, w *fleet) {
				w.stop("a")
				w.stop("b")
				time.Sleep(forgotten)
				silent, link := w.linked("silent", heartbeat)
				silent.mustUse("t", 10)
				time.Sleep(heartbeat)
				backup := w.store.Snapshot()
				time.Sleep(heartbeat)
				silent.mustUse("t", 1000)
				link.Down()
				w.store.Restore(backup)
				time.AfterFunc(2*heartbeat, link.Up)
				joins, _ := w.linked("joins", time.Second)
				if err := joins.use("t", 1000); !errors.Is(err, hapax.ErrFenced) {
					t.Errorf("error is %v, want ErrFenced", err)
				}
			})
		})
	}
}

// forgotten is more than a node that does not live is waited for.
const forgotten = 8 * 24 * time.Hour

// It waits for a heartbeat at least: one that knows better may be unknown to the
// store, while all others have been heard.
func TestJoinsBesideAnUnknownNode(t *testing.T) {
	withFleet(t, func(t *testing.T, w *fleet) {
		w.stop("a")
		w.stop("b")
		time.Sleep(forgotten)
		known, link := w.linked("known", time.Second)
		known.mustUse("t", 10)
		link.Down()
		backup := w.store.Snapshot()
		time.Sleep(400 * time.Millisecond)
		w.start("unknown").mustUse("t", 1000) // after three heartbeats of silence
		time.Sleep(50 * time.Millisecond)
		w.store.Restore(backup)
		link.Up() // which has written nothing since the copy was made, and goes on at once
		if err := w.start("joins").use("t", 1000); !errors.Is(err, hapax.ErrFenced) {
			t.Errorf("error is %v, want ErrFenced", err)
		}
	})
}

// A node that joins is known to the store while it waits, and heeds a fence that is
// raised meanwhile.
func TestFencedWhileItJoins(t *testing.T) {
	withFleet(t, func(t *testing.T, w *fleet) {
		w.stop("b") // and stays silent
		joins, _ := w.linked("joins", time.Second)
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := joins.Ping(t.Context()); !errors.Is(err, hapax.ErrFenced) {
				t.Errorf("error is %v, want ErrFenced", err)
			}
		})
		synctest.Wait()
		if raw, err := w.store.Row(t.Context(), driver.TableNodes, joins.Witness().Node()); raw == nil || err != nil {
			t.Errorf("the row is %s, error %v", raw, err)
		}
		raw := []byte(`{"id":"F","node":"x","name":"x","at":"2026-01-01T00:00:00Z","why":"test"}`)
		if ok, err := w.store.SwapRow(t.Context(), driver.TableFence, "fence", nil, raw); !ok || err != nil {
			t.Fatal(ok, err)
		}
		wg.Wait()
	})
}
