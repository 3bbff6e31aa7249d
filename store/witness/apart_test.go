package witness

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
)

// A caller whose time ends while the node joins is told that it joins, however many wait; it takes no
// place in a step.
func TestWaitersAreToldThatItJoins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := servingScene(t)
		if _, err := c.g.calls.get(t.Context()); err != nil {
			t.Fatal(err)
		}
		c.g.state = Joining
		a := hapax.Allocation{Tag: hapax.Tag{Name: "t"}, Grant: hapax.Grant{Lo: 1, Hi: 9}, Key: "k"}
		for name, call := range map[string]func(context.Context) error{
			"Allocate": func(ctx context.Context) error { _, err := c.g.Allocate(ctx, "t", 5, ""); return err },
			"HandBack": func(ctx context.Context) error { return c.g.HandBack(ctx, a, 5) },
		} {
			var wg sync.WaitGroup
			for range 10 {
				wg.Go(func() {
					ctx, cancel := context.WithTimeout(t.Context(), time.Second)
					defer cancel()
					err := call(ctx)
					if _, ok := errors.AsType[*hapax.WaitError](err); !ok || !errors.Is(err, context.DeadlineExceeded) {
						t.Errorf("%s: %v", name, err)
					}
				})
			}
			wg.Wait()
		}
		if made := c.store.made(); len(made) > 0 {
			t.Errorf("called are %v", made)
		}
	})
}

// A tag is in one step at a time: its calls wait, and go together. A step of hand-backs names it
// once.
func TestOneStepOfATag(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := servingScene(t)
		made, err := c.g.Allocate(t.Context(), "t", 10, "")
		if err != nil {
			t.Fatal(err)
		}
		for call, ask := range map[string]func(i int64) error{
			"allocate": func(int64) error { _, err := c.g.Allocate(t.Context(), "t", 10, ""); return err },
			"handback": func(i int64) error {
				err := c.g.HandBack(t.Context(), made, made.Grant.Lo+i)
				if errors.Is(err, hapax.ErrLeaseLost) { // another was first
					err = nil
				}
				return err
			},
		} {
			gate := make(chan struct{})
			c.store.before = func(string) { <-gate }
			c.store.reset(0)
			var wg sync.WaitGroup
			for i := range 4 {
				wg.Go(func() {
					if err := ask(int64(i)); err != nil {
						t.Errorf("%s: %v", call, err)
					}
				})
				synctest.Wait()
			}
			if n := c.g.allocations.Waiting() + c.g.handBacks.Waiting(); n != 3 {
				t.Errorf("%s: %d wait; want 3", call, n)
			}
			close(gate)
			wg.Wait()
			steps := 0
			for _, one := range c.store.made() {
				if one == call {
					steps++
				}
			}
			if want := map[string]int{"allocate": 2, "handback": 4}[call]; steps != want {
				t.Errorf("4 of %s took %d steps; want %d", call, steps, want)
			}
		}
	})
}

// So many steps of allocations are under way at a time, and none begins beside one of as many calls: under load few
// steps serve many.
func TestFewStepsAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := servingScene(t)
		gate := make(chan struct{})
		c.store.before = func(call string) {
			if call == "allocate" {
				<-gate
			}
		}
		var wg sync.WaitGroup
		ask := func(tags ...string) {
			for _, tag := range tags {
				wg.Go(func() {
					if _, err := c.g.Allocate(t.Context(), tag, 10, ""); !errors.Is(err, hapax.ErrTagNotFound) {
						t.Errorf("%s: %v", tag, err)
					}
				})
				synctest.Wait()
			}
		}
		check := func(what string, steps, waiting int) {
			t.Helper()
			if made, waits := countOf(c.store.made(), "allocate"), c.g.allocations.Waiting(); made != steps || waits != waiting {
				t.Errorf("%s: %d steps have begun, and %d calls wait; want %d and %d", what, made, waits, steps, waiting)
			}
		}
		ask("a", "b", "c", "d", "e", "f")
		check("six tags", 4, 2)
		close(gate)
		wg.Wait()
		gate = make(chan struct{})
		c.store.reset(0)
		ask("a", "a", "a", "a", "a")
		check("five calls of one tag", 1, 4)
		gate <- struct{}{}
		synctest.Wait()
		check("the rest of these", 2, 0)
		ask("b")
		check("another beside these", 2, 1)
		close(gate)
		wg.Wait()
	})
}

// A silent store answers no step.
type silent struct{ *counted }

func (silent) AllocateAllWith(ctx context.Context, _ driver.Pulse, _ []driver.AllocateOf) ([]driver.Allocated, driver.Contact, error) {
	<-ctx.Done()
	return nil, driver.Contact{}, ctx.Err()
}

func (silent) HandBackAllWith(ctx context.Context, _ driver.Pulse, _ []driver.HandBackOf) ([]bool, driver.Contact, error) {
	<-ctx.Done()
	return nil, driver.Contact{}, ctx.Err()
}

// A call ends with its caller and with the guard, whatever the store does; none that was not made is answered.
func TestStepsEnd(t *testing.T) {
	for name, call := range map[string]func(c *scene, ctx context.Context) error{
		"Allocate": func(c *scene, ctx context.Context) error { _, err := c.g.Allocate(ctx, "t", 10, ""); return err },
		"HandBack": func(c *scene, ctx context.Context) error {
			return c.g.HandBack(ctx, hapax.Allocation{Tag: hapax.Tag{Name: "t"}, Grant: hapax.Grant{Lo: 1, Hi: 9}, Key: "k"}, 5)
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			c := servingScene(t)
			gone, cancel := context.WithCancel(t.Context())
			cancel()
			if err := call(c, gone); !errors.Is(err, context.Canceled) || !errors.Is(err, hapax.ErrStoreUnavailable) || len(c.store.made()) > 0 {
				t.Errorf("%s by a caller that is gone: %v after %v", name, err, c.store.made())
			}
			c.hasStore(silent{c.store})
			began := time.Now()
			time.AfterFunc(time.Second, c.g.stop)
			if err := call(c, t.Context()); err == nil || time.Since(began) != time.Second {
				t.Errorf("%s under way as the guard ends: %v after %v", name, err, time.Since(began))
			}
			c.g.halt()
			if err := call(c, t.Context()); !errors.Is(err, hapax.ErrClosed) {
				t.Errorf("%s after that: %v", name, err)
			}
		})
	}
}

// Segments of one tag adjoin for the holder of the last one, so that both may be handed back; and nothing is granted
// of a row that could not be read, before it is compared.
func TestGrantsUnderAKey(t *testing.T) {
	c := servingScene(t)
	a, err := c.g.Allocate(t.Context(), "t", 10, "")
	if err != nil {
		t.Fatal(err)
	}
	b, err := c.g.Allocate(t.Context(), "t", 10, a.Key)
	if err != nil || b.From != a.Grant.Lo {
		t.Errorf("after %+v it is granted %+v, %v", a, b, err)
	}
	c.g.me.busy = true // the survey is under way
	c.g.block("tag/t")
	if d, err := c.g.Allocate(t.Context(), "t", 10, b.Key); !errors.Is(err, hapax.ErrStoreUnavailable) || d.Key != "" {
		t.Errorf("of a row that was mended: %+v, %v", d, err)
	}
	if known, _ := c.g.witness.Pair("tag/t"); known.Mark != b.Grant.Hi {
		t.Errorf("the witness knows %+v of it; want the grants alone", known)
	}
}

// A store that grants two callers of one step the same numbers is corrupt, and grants nothing.
func TestOneStretchForTwo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := servingScene(t)
		var once sync.Once
		gate := make(chan struct{})
		c.store.before = func(call string) {
			if call == "allocate" {
				once.Do(func() { <-gate })
			}
		}
		var first *hapax.Allocation // of the second step
		calls := 0
		c.store.alloc = func(a *hapax.Allocation) {
			if calls++; calls == 2 {
				first = a
			} else if calls == 3 {
				*a = *first
			}
		}
		errs := make([]error, 3)
		var wg sync.WaitGroup
		for i := range errs {
			wg.Go(func() { _, errs[i] = c.g.Allocate(t.Context(), "t", 10, "") })
			synctest.Wait()
		}
		close(gate)
		wg.Wait()
		if errs[0] != nil || !errors.Is(errs[1], hapax.ErrStoreCorrupt) || !errors.Is(errs[2], hapax.ErrStoreCorrupt) {
			t.Errorf("they are told %v; want ErrStoreCorrupt for the second and the third", errs)
		}
	})
}

// The witness keeps a definition that is not the usual one, so that the line can be made anew from it.
func TestKeepsTheDefinition(t *testing.T) {
	c := servingScene(t)
	c.tag("odd", 100, func(x *hapax.Tag) { x.Start = 7 })
	if _, err := c.g.Allocate(t.Context(), "odd", 5, ""); err != nil {
		t.Fatal(err)
	}
	if d := c.g.witness.snapshot().Defs["tag/odd"]; d.Start != 7 {
		t.Errorf("kept is %+v", d)
	}
}
