package witness

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hapax-id/hapax"
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

// What is begun while the node is being closed is refused at once, since nobody would wait for it.
func TestNothingBeginsWhileItIsClosed(t *testing.T) {
	for _, state := range []State{Joining, Serving, Fenced, Refusing, Leaving, Left} {
		c := newScene(t)
		c.g.state = state
		gate, began := make(chan struct{}), make(chan struct{})
		if state == Leaving || state == Left {
			close(gate)
		}
		c.g.inLoop(func() { close(began); <-gate })
		<-began
		if state != Leaving && state != Left {
			close(gate)
		}
		c.g.loop.Wait()
	}
}

// While as many calls are in steps as may be no other step begins, whatever waits.
func TestFewSteps(t *testing.T) {
	b := &batcher[string, int]{tag: func(tag string) string { return tag }, most: 10, few: 2}
	enter := func(tag string) *turn[string, int] {
		one := &turn[string, int]{ask: tag}
		b.enter(one)
		return one
	}
	names := func(some []*turn[string, int]) (text string) {
		for _, one := range some {
			text += one.ask
		}
		return text
	}
	x, y := enter("x"), enter("y")
	for _, tag := range []string{"a", "b"} {
		enter(tag)
	}
	some := b.next([]*turn[string, int]{x})
	if names(some) != "ab" {
		t.Errorf("after x there are %q in a step", names(some))
	}
	enter("c")
	if rest := b.next([]*turn[string, int]{y}); rest != nil {
		t.Errorf("while two are in a step another begins: %q", names(rest))
	}
	if rest := b.next(some); names(rest) != "c" {
		t.Errorf("after them there are %q in a step", names(rest))
	}
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
