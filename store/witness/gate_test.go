package witness_test

import (
	"context"
	"errors"
	"fmt"
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

// The first call of a node that starts changes nothing in a store that is fenced, or
// is another one than the node knows, whichever call it is.
func TestNothingIsChangedUnseen(t *testing.T) {
	layout, err := hapax.ParseLayout(hapax.LayoutLeaf)
	if err != nil {
		t.Fatal(err)
	}
	step := int64(7)
	calls := map[string]func(context.Context, hapax.Store) error{
		"Ping":     func(ctx context.Context, s hapax.Store) error { return s.Ping(ctx) },
		"Tag":      func(ctx context.Context, s hapax.Store) error { _, err := s.Tag(ctx, "t"); return err },
		"Allocate": func(ctx context.Context, s hapax.Store) error { _, err := s.Allocate(ctx, "t", 1, ""); return err },
		"CreatePool": func(ctx context.Context, s hapax.Store) error {
			_, err := s.CreatePool(ctx, "q", layout.String())
			return err
		},
		"DeletePool": func(ctx context.Context, s hapax.Store) error { _, err := s.DeletePool(ctx, "p"); return err },
		"UpdateTag": func(ctx context.Context, s hapax.Store) error {
			_, err := s.UpdateTag(ctx, "t", hapax.TagUpdate{Step: &step})
			return err
		},
		"DeleteTag": func(ctx context.Context, s hapax.Store) error { _, err := s.DeleteTag(ctx, "t"); return err },
		"CreateTag": func(ctx context.Context, s hapax.Store) error {
			_, err := s.CreateTag(ctx, hapax.Tag{Name: "u"}, hapax.CreateExplicit)
			return err
		},
		"RetireWorker": func(ctx context.Context, s hapax.Store) error { _, err := s.RetireWorker(ctx, "p", 0); return err },
		"AcquireWorker": func(ctx context.Context, s hapax.Store) error {
			_, err := s.AcquireWorker(ctx, hapax.AcquireRequest{Pool: "p", Layout: layout, Workers: hapax.WorkerRange{Lo: 1, Hi: 2}, Holder: "h", Term: hapax.Term{Now: time.Now().AddDate(26, 0, 0), Length: time.Second}})
			return err
		},
	}
	for _, kind := range []string{"fenced", "fenced, of one process", "another"} {
		for name, call := range calls {
			t.Run(kind+"/"+name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					ctx, store := t.Context(), memstore.New()
					c := &cell{t: t, store: store, path: filepath.Join(t.TempDir(), "witness")}
					c.create(layout)
					c.start()
					defer func() { c.stop() }()
					if kind == "another" {
						c.take(1)
						time.Sleep(time.Second)
						store.Restore(memstore.New())
						c.create(layout)
					} else {
						c.fence()
					}
					c.restart()
					var s hapax.Store = c.Guarded
					if kind == "fenced, of one process" {
						g, err := witness.Guard(lone{store}, c.Witness(), witness.Options{})
						if err != nil {
							t.Fatal(err)
						}
						defer g.Kill()
						s = g
					}
					if err := call(ctx, s); !errors.Is(err, hapax.ErrFenced) {
						t.Errorf("error is %v, want ErrFenced", err)
					}
					tag, err := store.Tag(ctx, "t")
					pools, err2 := store.Pools(ctx)
					workers, err3 := store.Workers(ctx, "p")
					if err := errors.Join(err, err2, err3); err != nil || tag.Step == step || tag.Mark > 2 || tag.Deleted || len(pools) != 1 || pools[0].Deleted || len(workers) != 1 || workers[0].Token != 1 {
						t.Errorf("the tag is %+v, the pools %+v, the workers %+v, error %v", tag, pools, workers, err)
					}
				})
			})
		}
	}
}

// create makes the tag t, and the pool p with a worker that was used.
func (c *cell) create(layout hapax.Layout) {
	c.t.Helper()
	_, err := c.store.CreateTag(c.t.Context(), hapax.Tag{Name: "t"}, hapax.CreateExplicit)
	if err == nil {
		_, err = c.store.AcquireWorker(c.t.Context(), hapax.AcquireRequest{Pool: "p", Layout: layout, Workers: hapax.WorkerRange{Hi: 1}, Holder: "h", Term: hapax.Term{Now: time.Now().AddDate(26, 0, 0), Length: time.Second}})
	}
	if err != nil {
		c.t.Fatal(err)
	}
}

// lone is a store of one process.
type lone struct{ *memstore.Store }

func (lone) Shared() bool { return false }
func (lone) Close() error { return nil }

// What a call finds in the store of one process holds for those that are under way.
func TestFencedDuringACall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		c := &cell{t: t, store: store, path: filepath.Join(t.TempDir(), "witness")}
		if _, err := store.CreateTag(t.Context(), hapax.Tag{Name: "t"}, hapax.CreateExplicit); err != nil {
			t.Fatal(err)
		}
		w, err := witness.Open(c.path)
		if err != nil {
			t.Fatal(err)
		}
		link := storetest.NewFaults(lone{store})
		g, err := witness.Guard(link, w, witness.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if err := g.Ping(t.Context()); err != nil {
			t.Fatal(err)
		}
		link.Inject(func(op storetest.Op) storetest.Fault {
			if op.Method == "Allocate" {
				return storetest.Fault{After: time.Second}
			}
			return storetest.Fault{}
		})
		time.AfterFunc(time.Millisecond, c.fence)
		if a, err := g.Allocate(t.Context(), "t", 10, ""); !errors.Is(err, hapax.ErrFenced) {
			t.Errorf("granted %v, error %v; want ErrFenced", a.Grant, err)
		}
		if err := errors.Join(g.Close(), w.Close()); err != nil {
			t.Error(err)
		}
	})
}

// A tag that was used here and that the store does not know any more was lost, in
// whatever way that comes to light. One that is there was used before.
func TestLostTagInOtherWays(t *testing.T) {
	first := func(c *cell) error {
		_, err := c.CreateTag(c.t.Context(), hapax.Tag{Name: "t"}, hapax.CreateFirstUse)
		return err
	}
	for name, find := range map[string]func(*cell) error{
		"looked at":  func(c *cell) error { _, err := c.Tag(c.t.Context(), "t"); return err },
		"made anew":  first,
		"asked from": func(c *cell) error { _, err := c.Allocate(c.t.Context(), "t", 1, ""); return err },
	} {
		t.Run(name, func(t *testing.T) {
			inCell(t, func(t *testing.T, c *cell) {
				c.take(10)
				c.link.Inject(func(op storetest.Op) storetest.Fault {
					if op.Line == "t" {
						return storetest.Fault{Fail: fmt.Errorf("%w: %q", hapax.ErrTagNotFound, "t")}
					}
					return storetest.Fault{}
				})
				c.wantFenced(find(c), hapax.ErrStoreRolledBack)
			})
		})
	}
	inCell(t, func(t *testing.T, c *cell) {
		c.take(10)
		if err := first(c); !errors.Is(err, hapax.ErrTagExists) {
			t.Errorf("made anew while it is there: %v, want ErrTagExists", err)
		}
		if _, err := c.DeleteTag(t.Context(), "t"); err != nil {
			t.Fatal(err)
		}
		if err := first(c); !errors.Is(err, hapax.ErrTagDeleted) {
			t.Errorf("made anew where it was deleted: %v, want ErrTagDeleted", err)
		}
	})
}

// An error that is not the store's word leaves open which store will answer next.
func TestReplacedAfterAnErrorOfAnotherKind(t *testing.T) {
	inCell(t, func(t *testing.T, c *cell) {
		c.take(10)
		c.link.Inject(func(op storetest.Op) storetest.Fault {
			if op.Method == "Allocate" {
				return storetest.Fault{Fail: errors.New("the driver knows no better")}
			}
			return storetest.Fault{}
		})
		if _, err := c.Allocate(t.Context(), "t", 1, ""); !errors.Is(err, hapax.ErrStoreUnavailable) {
			t.Fatalf("error is %v, want ErrStoreUnavailable", err)
		}
		c.link.Inject(nil)
		other := memstore.New()
		if _, err := other.CreateTag(t.Context(), hapax.Tag{Name: "t"}, hapax.CreateExplicit); err != nil {
			t.Fatal(err)
		}
		c.store.Restore(other)
		_, err := c.Allocate(t.Context(), "t", 1, "")
		c.wantFenced(err, hapax.ErrStoreReplaced)
		if tag, err := c.store.Tag(t.Context(), "t"); err != nil || tag.Mark != 1 {
			t.Errorf("the other store's mark is %d, %v: it was asked for numbers", tag.Mark, err)
		}
	})
}

// A generous store extends from where it likes.
type generous struct {
	unclosed
	lower int64
}

func (s *generous) ExtendWorker(ctx context.Context, lease hapax.Lease, req hapax.ExtendRequest) (hapax.Lease, error) {
	l, err := s.unclosed.ExtendWorker(ctx, lease, req)
	l.Grant.Lo -= s.lower
	return l, err
}

// An extension begins at the end of what its caller has, no lower; it may repeat what
// an earlier one granted whose answer was lost on the way.
func TestWhereExtensionsBegin(t *testing.T) {
	layout, err := hapax.ParseLayout(hapax.LayoutLeaf)
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		s := &generous{unclosed: unclosed{memstore.New()}}
		w, err := witness.Open(filepath.Join(t.TempDir(), "witness"))
		if err != nil {
			t.Fatal(err)
		}
		g, err := witness.Guard(s, w, witness.Options{})
		if err != nil {
			t.Fatal(err)
		}
		term := func() hapax.Term {
			return hapax.Term{Now: time.Now().AddDate(26, 0, 0), Length: 10 * time.Second, TTL: time.Minute}
		}
		lease, err := g.AcquireWorker(t.Context(), hapax.AcquireRequest{Pool: "p", Layout: layout, Workers: hapax.WorkerRange{Hi: 4}, Holder: "h", Term: term()})
		if err != nil {
			t.Fatal(err)
		}
		for range 3 { // of the same lease: the caller heard of none of them
			time.Sleep(time.Second)
			l, err := g.ExtendWorker(t.Context(), lease, hapax.ExtendRequest{Layout: layout, Term: term()})
			if err != nil || l.Grant.Lo != lease.Grant.Hi {
				t.Fatalf("extended by %v, error %v; want it to begin at %d", l.Grant, err, lease.Grant.Hi)
			}
		}
		time.Sleep(time.Second)
		s.lower = 1
		if l, err := g.ExtendWorker(t.Context(), lease, hapax.ExtendRequest{Layout: layout, Term: term()}); !errors.Is(err, hapax.ErrStoreRolledBack) {
			t.Errorf("extended by %v, error %v; want ErrStoreRolledBack", l.Grant, err)
		}
		if err := errors.Join(g.Close(), w.Close()); err != nil {
			t.Error(err)
		}
	})
}

// What a caller makes up about a worker fences nobody: not one that was never used,
// and not one that is extended at the same time.
func TestForgedLeases(t *testing.T) {
	layout, err := hapax.ParseLayout(hapax.LayoutLeaf)
	if err != nil {
		t.Fatal(err)
	}
	inCell(t, func(t *testing.T, c *cell) {
		ctx, term := t.Context(), func() hapax.ExtendRequest {
			return hapax.ExtendRequest{Layout: layout, Term: hapax.Term{Now: time.Now().AddDate(26, 0, 0), Length: 10 * time.Second, TTL: time.Minute}}
		}
		lease, err := c.AcquireWorker(ctx, hapax.AcquireRequest{Pool: "p", Layout: layout, Workers: hapax.WorkerRange{Hi: 4}, Holder: "h", Term: term().Term})
		if err != nil {
			t.Fatal(err)
		}
		forged := lease
		forged.Token += 7
		unused := forged
		unused.Worker = 3
		if _, err := c.ExtendWorker(ctx, unused, term()); !errors.Is(err, hapax.ErrLeaseLost) || errors.Is(err, hapax.ErrFenced) {
			t.Errorf("a worker that was never used: %v, want ErrLeaseLost alone", err)
		}
		c.link.Inject(func(op storetest.Op) storetest.Fault {
			if op.Method == "Workers" {
				return storetest.Fault{After: time.Second}
			}
			return storetest.Fault{}
		})
		var wg sync.WaitGroup
		wg.Go(func() {
			if _, err := c.ExtendWorker(ctx, forged, term()); !errors.Is(err, hapax.ErrLeaseLost) || errors.Is(err, hapax.ErrFenced) {
				t.Errorf("a worker that is extended meanwhile: %v, want ErrLeaseLost alone", err)
			}
		})
		time.Sleep(500 * time.Millisecond)
		if _, err := c.ExtendWorker(ctx, lease, term()); err != nil {
			t.Error(err)
		}
		wg.Wait()
		if fence, err := c.store.Row(ctx, driver.TableFence, "fence"); fence != nil || err != nil {
			t.Errorf("the fence is %s, error %v; want none", fence, err)
		}
	})
}
