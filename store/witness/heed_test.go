package witness_test

import (
	"context"
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

// A latching store is one whose driver refuses by itself, as those of etcd and
// ZooKeeper do: a handle that has found the store behind refuses every call.
type latching struct {
	unclosed
	link   *storetest.Faults
	closed bool
}

type handles struct {
	mu    sync.Mutex // guards what follows
	store *memstore.Store
	all   []*latching
	latch error         // what the first handle answers from now on
	late  time.Duration // how long that takes
}

func (h *handles) open(context.Context) (hapax.Store, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := len(h.all)
	l := &latching{unclosed: unclosed{h.store}}
	l.link = storetest.NewFaults(l)
	l.link.Inject(func(storetest.Op) storetest.Fault {
		h.mu.Lock()
		defer h.mu.Unlock()
		if h.latch != nil && n == 0 {
			return storetest.Fault{Before: h.late, Fail: h.latch}
		}
		return storetest.Fault{}
	})
	h.all = append(h.all, l)
	return l.link, nil
}

func (l *latching) Close() error {
	l.closed = true
	return nil
}

// What a driver finds out by itself is heeded as what the guard finds: by a call, or
// by the heartbeat where nobody calls. The handle is replaced, so that the fence can
// be raised and lifted without a restart.
func TestDriverRefusesByItself(t *testing.T) {
	for name, latch := range map[string]error{"behind": hapax.ErrStoreRolledBack, "replaced": hapax.ErrStoreReplaced} {
		for _, called := range []bool{true, false} {
			synctest.Test(t, func(t *testing.T) {
				h := &handles{store: memstore.New()}
				if _, err := h.store.CreateTag(t.Context(), hapax.Tag{Name: "t"}, hapax.CreateExplicit); err != nil {
					t.Fatal(err)
				}
				w, err := witness.Open(filepath.Join(t.TempDir(), "witness"))
				if err != nil {
					t.Fatal(err)
				}
				g, err := witness.GuardOpened(h.open, w, witness.Options{})
				if err != nil {
					t.Fatal(err)
				}
				if _, err := g.Allocate(t.Context(), "t", 10, ""); err != nil {
					t.Fatal(err)
				}
				h.mu.Lock()
				h.latch = latch
				h.mu.Unlock()
				if called {
					if _, err := g.Allocate(t.Context(), "t", 10, ""); !errors.Is(err, hapax.ErrFenced) || !errors.Is(err, latch) {
						t.Errorf("%s: error is %v, want ErrFenced and the driver's", name, err)
					}
				}
				time.Sleep(2 * time.Second)
				if st := g.Status(); st.State != witness.Refusing || st.Fence == nil || w.Refusal() == "" {
					t.Fatalf("%s, called %v: the status is %+v", name, called, st)
				}
				if raw, err := h.store.Row(t.Context(), driver.TableFence, "fence"); raw == nil || err != nil {
					t.Errorf("%s: the fence is %q, error %v", name, raw, err)
				}
				if len(h.all) != 2 || !h.all[0].closed || h.all[1].closed {
					t.Errorf("%s: %d handles", name, len(h.all))
				}
				if _, err := g.Adopt(t.Context(), witness.AdoptRequest{}); err != nil {
					t.Errorf("%s: adopt: %v", name, err)
				}
				time.Sleep(2 * time.Second)
				if a, err := g.Allocate(t.Context(), "t", 10, ""); err != nil || a.Grant.Lo != 11 {
					t.Errorf("%s: after adopt: %v, %v", name, a.Grant, err)
				}
				if err := errors.Join(g.Close(), w.Close()); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// An operator who adopts before the node has raised the fence for what it has found
// lifts that fence too.
func TestAdoptAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &handles{store: memstore.New()}
		if _, err := h.store.CreateTag(t.Context(), hapax.Tag{Name: "t"}, hapax.CreateExplicit); err != nil {
			t.Fatal(err)
		}
		w, err := witness.Open(filepath.Join(t.TempDir(), "witness"))
		if err != nil {
			t.Fatal(err)
		}
		g, err := witness.GuardOpened(h.open, w, witness.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := g.Allocate(t.Context(), "t", 10, ""); err != nil {
			t.Fatal(err)
		}
		h.mu.Lock()
		h.latch = hapax.ErrStoreReplaced
		h.mu.Unlock()
		if _, err := g.Allocate(t.Context(), "t", 10, ""); !errors.Is(err, hapax.ErrFenced) {
			t.Errorf("error is %v, want ErrFenced", err)
		}
		if raw, err := h.store.Row(t.Context(), driver.TableFence, "fence"); raw != nil || err != nil {
			t.Fatalf("the fence stands already: %q, %v", raw, err)
		}
		if a, err := g.Adopt(t.Context(), witness.AdoptRequest{Floor: 1000}); err != nil || a.Fence == nil {
			t.Errorf("the adoption is %+v, error %v", a, err)
		}
		time.Sleep(2 * time.Second)
		if a, err := g.Allocate(t.Context(), "t", 10, ""); err != nil || a.Grant.Lo < 1000 {
			t.Errorf("after adopt: %v, %v", a.Grant, err)
		}
		if err := errors.Join(g.Close(), w.Close()); err != nil {
			t.Error(err)
		}
	})
}

// What a handle finds that was replaced meanwhile is no finding: an operator may have
// decided about it.
func TestLateFindingOfAReplacedHandle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &handles{store: memstore.New()}
		if _, err := h.store.CreateTag(t.Context(), hapax.Tag{Name: "t"}, hapax.CreateExplicit); err != nil {
			t.Fatal(err)
		}
		w, err := witness.Open(filepath.Join(t.TempDir(), "witness"))
		if err != nil {
			t.Fatal(err)
		}
		g, err := witness.GuardOpened(h.open, w, witness.Options{Timeout: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := g.Allocate(t.Context(), "t", 10, ""); err != nil {
			t.Fatal(err)
		}
		find := func(late time.Duration) {
			h.mu.Lock()
			defer h.mu.Unlock()
			h.latch, h.late = hapax.ErrStoreReplaced, late
		}
		find(time.Minute)
		var wg sync.WaitGroup
		wg.Go(func() {
			if a, err := g.Allocate(t.Context(), "t", 10, ""); err == nil {
				t.Errorf("the late answer: %v", a.Grant)
			}
		})
		synctest.Wait()
		find(0)
		if _, err := g.Allocate(t.Context(), "t", 10, ""); !errors.Is(err, hapax.ErrFenced) {
			t.Errorf("before adopt: %v", err)
		}
		time.Sleep(2 * time.Second)
		if _, err := g.Adopt(t.Context(), witness.AdoptRequest{}); err != nil {
			t.Fatal(err)
		}
		wg.Wait()
		time.Sleep(2 * time.Second)
		if _, err := g.Allocate(t.Context(), "t", 10, ""); err != nil {
			t.Errorf("after the late answer: %v, %+v", err, g.Status())
		}
		if err := errors.Join(g.Close(), w.Close()); err != nil {
			t.Error(err)
		}
	})
}

// A store that its driver refuses to open, because it has moved, is adopted through
// a node that runs.
func TestAdoptAcceptsAStoreThatMoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &handles{store: memstore.New()}
		if _, err := h.store.CreateTag(t.Context(), hapax.Tag{Name: "t"}, hapax.CreateExplicit); err != nil {
			t.Fatal(err)
		}
		w, err := witness.Open(filepath.Join(t.TempDir(), "witness"))
		if err != nil {
			t.Fatal(err)
		}
		moved := false
		opts := witness.Options{Accept: func(ctx context.Context) (hapax.Store, error) { moved = false; return h.open(ctx) }}
		g, err := witness.GuardOpened(func(ctx context.Context) (hapax.Store, error) {
			if moved {
				return nil, hapax.ErrStoreReplaced
			}
			return h.open(ctx)
		}, w, opts)
		if err != nil {
			t.Fatal(err)
		}
		backup := h.store.Snapshot()
		if _, err := g.Allocate(t.Context(), "t", 10, ""); err != nil {
			t.Fatal(err)
		}
		h.mu.Lock()
		h.latch = hapax.ErrStoreReplaced
		moved = true
		h.mu.Unlock()
		h.store.Restore(backup)
		time.Sleep(5 * time.Second)
		if _, err := g.Adopt(t.Context(), witness.AdoptRequest{DryRun: true}); !errors.Is(err, hapax.ErrStoreReplaced) || !moved {
			t.Errorf("the dry run: %v", err)
		}
		if _, err := g.Allocate(t.Context(), "t", 10, ""); !errors.Is(err, hapax.ErrFenced) {
			t.Errorf("before adopt: %v", err)
		}
		if a, err := g.Adopt(t.Context(), witness.AdoptRequest{}); err != nil || a.Fence == nil || len(a.Raised) != 1 {
			t.Errorf("adopt: %+v, %v", a, err)
		}
		time.Sleep(2 * time.Second)
		if a, err := g.Allocate(t.Context(), "t", 10, ""); err != nil || a.Grant.Lo != 11 {
			t.Errorf("after adopt: %v, %v", a.Grant, err)
		}
		if err := errors.Join(g.Close(), w.Close()); err != nil {
			t.Error(err)
		}
	})
}

// A segment that was accepted and handed back while an older call is under way may
// be what that call is answered.
func TestHandBackOfWhatWasTakenMeanwhile(t *testing.T) {
	inCell(t, func(t *testing.T, c *cell) {
		c.take(10)
		slow := true
		c.link.Inject(func(op storetest.Op) storetest.Fault {
			if op.Method == "Allocate" && slow {
				slow = false
				return storetest.Fault{Before: time.Second}
			}
			return storetest.Fault{}
		})
		var wg sync.WaitGroup
		wg.Go(func() {
			if b := c.take(10); b.Grant.Lo != 41 {
				t.Errorf("granted %v, want what was handed back from 41 on", b.Grant)
			}
		})
		synctest.Wait()
		a := c.take(100)
		if err := c.HandBack(t.Context(), a, 41); err != nil {
			t.Fatal(err)
		}
		wg.Wait()
	})
}

// Nothing is given back by a seal while an answer to an extension is under way that
// the witness would take for use: the next holder would seem to repeat it.
func TestSealWhileAnExtensionIsUnderWay(t *testing.T) {
	layout, err := hapax.ParseLayout(hapax.LayoutLeaf)
	if err != nil {
		t.Fatal(err)
	}
	inCell(t, func(t *testing.T, c *cell) {
		ctx, term := t.Context(), func() hapax.Term {
			return hapax.Term{Now: time.Now().AddDate(26, 0, 0), Length: 10 * time.Second, Ahead: time.Minute, TTL: time.Minute}
		}
		req := hapax.AcquireRequest{Pool: "p", Layout: layout, Workers: hapax.WorkerRange{Hi: 1}, Holder: "h", Term: term()}
		lease, err := c.AcquireWorker(ctx, req)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		slow := true
		c.link.Inject(func(op storetest.Op) storetest.Fault {
			if op.Method == "ExtendWorker" && slow {
				slow = false
				return storetest.Fault{After: time.Second}
			}
			return storetest.Fault{}
		})
		var wg sync.WaitGroup
		wg.Go(func() { _, _ = c.ExtendWorker(ctx, lease, hapax.ExtendRequest{Layout: layout, Term: term()}) })
		synctest.Wait()
		longer, err := c.ExtendWorker(ctx, lease, hapax.ExtendRequest{Layout: layout, Term: term()}) // it was tried again
		if err != nil {
			t.Fatal(err)
		}
		if err := c.SealWorker(ctx, longer, longer.Grant.Lo+1); err != nil {
			t.Fatal(err)
		}
		wg.Wait()
		req.Term = term()
		if l, err := c.AcquireWorker(ctx, req); err != nil {
			t.Errorf("the next holder: %+v, %v", l, err)
		}
	})
}

// A program that never reached the store that moved has its own fence raised there
// when it accepts it: one that came along was heard for long ago.
func TestAcceptedWithAnOldFence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &handles{store: memstore.New()}
		old := []byte(`{"id":"old","node":"x","name":"x","at":"2026-01-01T00:00:00Z","why":"long ago"}`)
		if ok, err := h.store.SwapRow(t.Context(), driver.TableFence, "fence", nil, old); !ok || err != nil {
			t.Fatal(ok, err)
		}
		w, err := witness.Open(filepath.Join(t.TempDir(), "witness"))
		if err != nil {
			t.Fatal(err)
		}
		accepted := false
		g, err := witness.GuardOpened(func(ctx context.Context) (hapax.Store, error) {
			if !accepted {
				return nil, hapax.ErrStoreReplaced
			}
			return h.open(ctx)
		}, w, witness.Options{Accept: func(ctx context.Context) (hapax.Store, error) { accepted = true; return h.open(ctx) }})
		if err != nil {
			t.Fatal(err)
		}
		if a, err := g.Adopt(t.Context(), witness.AdoptRequest{}); err != nil || a.Fence == nil || a.Fence.ID == "old" {
			t.Errorf("adopted %+v with the fence %+v, error %v; want one of its own", a, a.Fence, err)
		}
		if err := errors.Join(g.Close(), w.Close()); err != nil {
			t.Error(err)
		}
	})
}
