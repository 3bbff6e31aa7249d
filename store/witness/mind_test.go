package witness_test

import (
	"encoding/json"
	"errors"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/store/storetest"
	"github.com/hapax-id/hapax/store/witness"
)

// change replaces a row of the store behind everybody's back.
func (w *fleet) change(table, name string, change func(old []byte) []byte) {
	ctx := w.t.Context()
	old, err := w.store.Row(ctx, table, name)
	if err != nil {
		w.t.Error(err)
	}
	if ok, err := w.store.SwapRow(ctx, table, name, old, change(old)); !ok || err != nil {
		w.t.Error(ok, err)
	}
}

func (w *fleet) fence() (fence witness.Fence) {
	raw, err := w.store.Row(w.t.Context(), driver.TableFence, "fence")
	if err == nil && raw != nil {
		err = json.Unmarshal(raw, &fence)
	}
	if err != nil {
		w.t.Error(err)
	}
	return fence
}

// Evidence is complete in the end, whichever write of it goes wrong.
func TestEvidenceIsWrittenAgain(t *testing.T) {
	for name, fault := range map[string]func(w *fleet, n *testNode, writes int) storetest.Fault{
		"the second write fails": func(_ *fleet, _ *testNode, writes int) (f storetest.Fault) {
			if writes == 2 {
				f.Fail = hapax.ErrStoreUnavailable
			}
			return f
		},
		"the first row is changed meanwhile": func(w *fleet, n *testNode, writes int) (f storetest.Fault) {
			if writes == 1 {
				part := w.fence().ID + "/" + n.Witness().Node() + "/000000000"
				w.change(driver.TableEvidence, part, func([]byte) []byte { return []byte("{}") })
			}
			return f
		},
	} {
		t.Run(name, func(t *testing.T) {
			withFleet(t, func(t *testing.T, w *fleet) {
				n, link := w.linked("n", time.Second)
				n.mustUse("t", 10)
				writes := 0 // by the node's one goroutine
				link.Inject(func(op storetest.Op) (f storetest.Fault) {
					if op.Method == "SwapRow" && op.Line == driver.TableEvidence {
						writes++
						f = fault(w, n, writes)
					}
					return f
				})
				w.restore(w.later())
				time.Sleep(3 * time.Second)
				w.adopt(witness.AdoptRequest{})
				w.issue()
			})
		})
	}
}

// A heartbeat of the node's own that arrives late, when the fence was lifted, is no
// reason to refuse.
func TestLateHeartbeatWhileItRejoins(t *testing.T) {
	withFleet(t, func(t *testing.T, w *fleet) {
		n, link := w.linked("n", time.Second)
		n.mustUse("t", 10)
		w.restore(w.later())
		late := false
		once := sync.OnceFunc(func() {
			late = true
			w.change(driver.TableNodes, n.Witness().Node(), func(old []byte) []byte {
				row := map[string]json.RawMessage{}
				if err := json.Unmarshal(old, &row); err != nil {
					t.Error(err)
				}
				beat, err := strconv.Atoi(string(row["beat"]))
				if err != nil {
					t.Error(err)
				}
				row["beat"] = json.RawMessage(strconv.Itoa(beat + 1))
				raw, err := json.Marshal(row)
				if err != nil {
					t.Error(err)
				}
				return raw
			})
		})
		link.Inject(func(op storetest.Op) storetest.Fault {
			if op.Method == "SwapRow" && op.Line == driver.TableNodes && w.fence().ID == "" {
				once()
			}
			return storetest.Fault{}
		})
		w.adopt(witness.AdoptRequest{})
		w.issue()
		if !late {
			t.Error("no heartbeat was late")
		}
	})
}

const theirs = `{"id":"theirs","node":"x","name":"x","at":"2026-01-01T00:00:00Z","why":"test"}`

// A node that lost the answer to its heartbeat while it is fenced does not take the
// row for a store that went back, when a call that was under way looks at it.
func TestAnswerLostWhileItRejoins(t *testing.T) {
	withFleet(t, func(t *testing.T, w *fleet) {
		n, link := w.linked("n", time.Second)
		n.mustUse("t", 10)
		var mu sync.Mutex // guards what follows
		read, lost, compared := false, false, false
		link.Inject(func(op storetest.Op) (f storetest.Fault) {
			mu.Lock()
			defer mu.Unlock()
			fenced := n.Status().State == witness.Fenced
			switch {
			case op.Method == "Allocate":
				f.After = 10 * time.Second
			case op.Line != driver.TableNodes || !fenced:
			case op.Method == "Row" && !lost:
				read = true
			case op.Method == "Row" && !compared:
				f.Fail = hapax.ErrStoreUnavailable
			case op.Method == "SwapRow" && lost:
				compared = true
			case op.Method == "SwapRow" && read:
				lost, f.Lose = true, hapax.ErrStoreUnavailable
			}
			return f
		})
		done := make(chan error)
		go func() { done <- n.use("t", 10) }()
		synctest.Wait()
		w.change(driver.TableFence, "fence", func([]byte) []byte { return []byte(theirs) })
		if err := <-done; !errors.Is(err, hapax.ErrFenced) || !compared {
			t.Errorf("the call under way: %v; want ErrFenced; it came to its heartbeat: %v", err, compared)
		}
		if st := n.Status(); st.State != witness.Fenced || w.fence().ID != "theirs" {
			t.Errorf("the node is %q: %s; the fence is %+v", st.State, st.Why, w.fence())
		}
		link.Inject(nil)
		time.Sleep(3 * time.Second)
		w.adopt(witness.AdoptRequest{})
		w.issue()
	})
}

// A fence that replaces another one begins the wait anew: a node that the store does
// not know has to be heard about it.
func TestAdoptWaitsForTheNewFence(t *testing.T) {
	withFleet(t, func(t *testing.T, w *fleet) {
		backup := w.later()
		n, link := w.linked("n", time.Second)
		n.mustUse("t", 5000)
		link.Down()
		w.store.Restore(backup)
		time.Sleep(3 * time.Second)
		go func() {
			time.Sleep(1900 * time.Millisecond)
			w.change(driver.TableFence, "fence", func([]byte) []byte { return []byte(theirs) })
			time.Sleep(1100 * time.Millisecond)
			link.Up()
		}()
		if a := w.adopt(witness.AdoptRequest{Wait: 20 * time.Second}); !slices.Contains(a.Spoke, "n") {
			t.Errorf("heard were %v; want n as well", a.Spoke)
		}
		w.issue()
	})
}
