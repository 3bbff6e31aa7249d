package witness_test

import (
	"encoding/json"
	"errors"
	"fmt"
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

// Where the store has no room for a fence the witness refuses alone: what is not new,
// and everything from then on, whatever its line, also what is under way and after a
// restart. The first reason stays.
func TestWatch(t *testing.T) {
	path := filepath.Join(t.TempDir(), "witness")
	open := func() *witness.Witness {
		w, err := witness.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		return w
	}
	watch := func(w *witness.Witness, line string) *witness.Watch {
		o, err := w.Watch(line)
		if err != nil {
			t.Fatal(err)
		}
		return o
	}
	w := open()
	first := watch(w, "tag/a")
	if err := first.Accept(hapax.Grant{Lo: 1, Hi: 11}); err != nil {
		t.Fatal(err)
	}
	first.End()
	other, again := watch(w, "tag/b"), watch(w, "tag/a")
	if since := again.Since(); since != 11 {
		t.Errorf("the line's mark is %d, want 11", since)
	}
	if err := again.Accept(hapax.Grant{Lo: 5, Hi: 15}); !errors.Is(err, hapax.ErrStoreRolledBack) || !errors.Is(err, hapax.ErrFenced) {
		t.Errorf("a grant that is not new: %v, want ErrStoreRolledBack and ErrFenced", err)
	}
	why := w.Refusal()
	if err := other.Accept(hapax.Grant{Lo: 1, Hi: 11}); !errors.Is(err, hapax.ErrFenced) {
		t.Errorf("another line, asked for before: %v, want ErrFenced", err)
	}
	_ = w.Refuse(fmt.Errorf("%w: something else", hapax.ErrStoreReplaced))
	for range 2 {
		if _, err := w.Watch("tag/b"); !errors.Is(err, hapax.ErrFenced) || why == "" || w.Refusal() != why {
			t.Errorf("another line: %v, because of %q; want ErrFenced because of %q", err, w.Refusal(), why)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		w = open()
	}
	if err := errors.Join(w.Readmit(), w.Close()); err != nil {
		t.Error(err)
	}
}

// A node remembers a bounded number of others.
func TestCrowd(t *testing.T) {
	inCell(t, func(t *testing.T, c *cell) {
		for i := range 1200 {
			row := fmt.Appendf(nil, `{"beat":3,"run":"r","name":"n","every_ms":1000,"since_ms":1,"at_ms":%d}`, time.Now().UnixMilli())
			if ok, err := c.store.SwapRow(t.Context(), driver.TableNodes, fmt.Sprint("n", i), nil, row); !ok || err != nil {
				t.Fatal(ok, err)
			}
		}
		c.take(1)
		time.Sleep(time.Minute)
		said, err := witness.Read(c.path)
		if err != nil {
			t.Fatal(err)
		}
		peers := 0
		for line := range said {
			if strings.HasPrefix(line, "peer/") {
				peers++
			}
		}
		if peers != 1000 {
			t.Errorf("it remembers %d others, want 1000", peers)
		}
	})
}

// After an adoption a node soon knows again who else is there, and asks for nobody
// whom the operator has decided about.
func TestRemembersOthersAfterAdopt(t *testing.T) {
	withFleet(t, func(t *testing.T, w *fleet) {
		w.start("dead").mustUse("t", 10)
		w.later()
		time.Sleep(time.Minute)
		w.stop("dead")
		wipe := func() {
			w.store.Restore(memstore.New())
			w.create()
			time.Sleep(3 * time.Second)
			w.refuse("t")
		}
		wipe()
		if a := w.adopt(witness.AdoptRequest{Floor: 100_000}); !slices.Equal(a.Unheard, []string{"dead"}) {
			t.Errorf("at first nobody hears of %v", a.Unheard)
		}
		w.issue()
		w.stop("b")
		wipe()
		a, err := witness.Adopt(t.Context(), w.store, witness.AdoptRequest{NoOthers: true})
		if !errors.Is(err, hapax.ErrFenced) || !slices.Equal(a.Unheard, []string{"b"}) {
			t.Errorf("then nobody hears of %v, error %v; want b", a.Unheard, err)
		}
	})
}

// A node that finds something while an operator lifts a fence that stood before raises
// another one: it was not heard for that.
func TestFindsWhileAFenceIsLifted(t *testing.T) {
	withFleet(t, func(t *testing.T, w *fleet) {
		w.stop("a")
		w.stop("b")
		time.Sleep(forgotten)
		n, link := w.linked("n", time.Second)
		n.mustUse("t", 10)
		backup := w.store.Snapshot()
		old := []byte(`{"id":"old","node":"x","name":"x","at":"2026-01-01T00:00:00Z","why":"test"}`)
		if ok, err := backup.SwapRow(t.Context(), driver.TableFence, "fence", nil, old); !ok || err != nil {
			t.Fatal(ok, err)
		}
		time.Sleep(3 * time.Second)
		id, err := w.store.StoreID(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		once := sync.OnceFunc(func() {
			lifted := fmt.Appendf(nil, `{"store":%q,"at":"2026-01-01T00:00:00Z"}`, id)
			for name, change := range map[string][2][]byte{"lifted/old": {nil, lifted}, "fence": {old, nil}} {
				if ok, err := w.store.SwapRow(t.Context(), driver.TableFence, name, change[0], change[1]); !ok || err != nil {
					t.Error(ok, err)
				}
			}
		})
		link.Inject(func(op storetest.Op) storetest.Fault {
			if op.Method == "SwapRow" && op.Line == driver.TableFence {
				once()
			}
			return storetest.Fault{}
		})
		w.store.Restore(backup)
		time.Sleep(5 * time.Second)
		if fence, err := w.store.Row(t.Context(), driver.TableFence, "fence"); fence == nil || err != nil {
			t.Errorf("the fence is %s, error %v; want another one", fence, err)
		}
		w.refuse("t")
		w.adopt(witness.AdoptRequest{})
		w.issue()
	})
}

// Heartbeats only grow, also where a node goes on after the store has gone back: it
// could else go back once more, to a later copy.
func TestHeartbeatsOnlyGrow(t *testing.T) {
	withFleet(t, func(t *testing.T, w *fleet) {
		a := w.nodes["a"]
		beat := func() (row struct{ Beat int64 }) {
			raw, err := w.store.Row(t.Context(), driver.TableNodes, a.Witness().Node())
			if err == nil {
				err = json.Unmarshal(raw, &row)
			}
			if err != nil {
				t.Fatal(err)
			}
			return row
		}
		backup := w.later()
		time.Sleep(time.Minute)
		before := beat()
		w.restore(backup)
		w.adopt(witness.AdoptRequest{})
		w.issue()
		if now := beat(); now.Beat <= before.Beat {
			t.Errorf("heartbeat %d follows %d", now.Beat, before.Beat)
		}
	})
}

// A call that is answered while the node leaves fences nobody.
func TestAnsweredWhileItLeaves(t *testing.T) {
	withFleet(t, func(t *testing.T, w *fleet) {
		n, link := w.linked("n", time.Second)
		n.mustUse("t", 10)
		link.Inject(func(op storetest.Op) storetest.Fault {
			if op.Method == "Allocate" {
				return storetest.Fault{After: time.Second}
			}
			return storetest.Fault{}
		})
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := n.use("t", 10); !errors.Is(err, hapax.ErrClosed) {
				t.Errorf("error is %v, want ErrClosed", err)
			}
		})
		synctest.Wait()
		if err := n.Guarded.Close(); err != nil {
			t.Fatal(err)
		}
		wg.Wait()
		if err := n.Witness().Close(); err != nil {
			t.Fatal(err)
		}
		w.start("n")
		w.issue()
	})
}

// What a node extended it can give back, and a hand-back whose answer was lost is no
// reason for adopt to change anything.
func TestGivesBackWhatItGranted(t *testing.T) {
	layout, err := hapax.ParseLayout(hapax.LayoutLeaf)
	if err != nil {
		t.Fatal(err)
	}
	inCell(t, func(t *testing.T, c *cell) {
		ctx, term := t.Context(), func() hapax.Term {
			return hapax.Term{Now: time.Now().AddDate(26, 0, 0), Length: 10 * time.Second, TTL: time.Minute}
		}
		lease, err := c.AcquireWorker(ctx, hapax.AcquireRequest{Pool: "p", Layout: layout, Workers: hapax.WorkerRange{Hi: 4}, Holder: "h", Term: term()})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Second)
		if lease, err = c.ExtendWorker(ctx, lease, hapax.ExtendRequest{Layout: layout, Term: term()}); err != nil {
			t.Fatal(err)
		}
		if err := c.SealWorker(ctx, lease, lease.Grant.Lo+1); err != nil {
			t.Fatal(err)
		}
		if workers, err := c.store.Workers(ctx, "p"); err != nil || workers[0].Mark != lease.Grant.Lo+1 {
			t.Errorf("the workers are %+v, error %v; want the mark %d", workers, err, lease.Grant.Lo+1)
		}

		a := c.take(100)
		c.link.Inject(func(op storetest.Op) storetest.Fault {
			if op.Method == "HandBack" {
				return storetest.Fault{Lose: hapax.ErrStoreUnavailable}
			}
			return storetest.Fault{}
		})
		if err := c.HandBack(ctx, a, 41); !errors.Is(err, hapax.ErrStoreUnavailable) {
			t.Fatal(err)
		}
		if a, err := c.Adopt(ctx, witness.AdoptRequest{}); err != nil || len(a.Raised) > 0 {
			t.Errorf("adopted %+v, error %v; want that nothing is wrong", a, err)
		}
	})
}
