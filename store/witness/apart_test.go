package witness

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
)

// An apart store has no steps of many calls. Its answers are scripted, by the tag.
type apart struct {
	store
	mu     sync.Mutex // guards what follows
	errs   map[string]error
	unmet  map[string]bool
	before func(tag string)
	asked  []string
}

func (s *apart) answer(what, tag string) (driver.Contact, error) {
	s.mu.Lock()
	s.asked = append(s.asked, what+" "+tag)
	before := s.before
	s.mu.Unlock()
	if before != nil {
		before(tag)
	}
	return driver.Contact{Met: !s.unmet[tag], Joins: 1}, s.errs[tag]
}

func (s *apart) AllocateWith(_ context.Context, _ driver.Pulse, tag string, n int64, last hapax.GrantKey) (hapax.Allocation, driver.Contact, error) {
	c, err := s.answer(fmt.Sprintf("allocate %d %s", n, string(last)), tag)
	return hapax.Allocation{Tag: hapax.Tag{Name: tag}, Grant: hapax.Grant{Lo: 1, Hi: 1 + n}}, c, err
}

func (s *apart) HandBackWith(_ context.Context, _ driver.Pulse, a hapax.Allocation, next int64) (driver.Contact, error) {
	return s.answer(fmt.Sprint("hand back ", next), a.Tag.Name)
}

// Where a store has no step for many, each call is made by itself: an error about a tag is that call's,
// and after any other nothing of the step is used.
func TestStepsOfAStoreWithoutSteps(t *testing.T) {
	lost := fmt.Errorf("%w: t", hapax.ErrLeaseLost)
	for name, v := range map[string]struct {
		tags      string
		errs      map[string]error
		unmet     map[string]bool
		allocated string // +: made, -: an error of the call; empty: none
		handed    string
	}{
		"all is well":            {"t u", nil, nil, "++", "++"},
		"an error about a tag":   {"t u v", map[string]error{"u": lost}, nil, "+-+", "+-+"},
		"... about all of one":   {"t", map[string]error{"t": lost}, nil, "-", ""},
		"a call fails":           {"t u v", map[string]error{"u": errInjected}, nil, "", ""},
		"a beat is not made":     {"t u v", nil, map[string]bool{"u": true}, "", ""},
		"... with an error":      {"t u", map[string]error{"t": lost}, map[string]bool{"t": true}, "", ""},
		"another error of a tag": {"t u", map[string]error{"t": hapax.ErrTagNotFound}, nil, "-+", ""},
	} {
		s := &apart{errs: v.errs, unmet: v.unmet}
		var some []driver.AllocateOf
		var back []driver.HandBackOf
		for _, tag := range strings.Fields(v.tags) {
			some = append(some, driver.AllocateOf{Tag: tag, N: 5, Last: "key"})
			back = append(back, driver.HandBackOf{Allocation: hapax.Allocation{Tag: hapax.Tag{Name: tag}}, Next: 3})
		}
		made, c, err := allocateIn(t.Context(), s, driver.Pulse{}, some)
		got := ""
		for _, m := range made {
			if m.Err == nil && m.Grant.Hi == 6 {
				got += "+"
			} else if errors.Is(m.Err, v.errs[m.Tag.Name]) {
				got += "-"
			}
		}
		if got != v.allocated || got != "" && (!c.Met || errors.Is(err, errInjected)) || v.errs["u"] == errInjected && !errors.Is(err, errInjected) {
			t.Errorf("%s: allocated %q, %+v, %v; want %q", name, got, c, err, v.allocated)
		}
		if !strings.HasPrefix(s.asked[0], "allocate 5 key t") {
			t.Errorf("%s: asked %q", name, s.asked)
		}
		s.asked = nil
		given, c, err := handBackIn(t.Context(), s, driver.Pulse{}, back)
		got = ""
		for _, ok := range given {
			got += map[bool]string{true: "+", false: "-"}[ok]
		}
		if got != v.handed || got != "" && (err != nil || !c.Met) || v.handed == "" && len(v.unmet) == 0 && err == nil {
			t.Errorf("%s: handed back %q, %+v, %v; want %q", name, got, c, err, v.handed)
		}
		if s.asked[0] != "hand back 3 t" {
			t.Errorf("%s: asked %q", name, s.asked)
		}
	}
}

// On such a store calls of one tag do not wait for each other.
func TestCallsAreMadeApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := servingScene(t)
		s := &apart{store: c.store, before: func(string) { time.Sleep(time.Second) }}
		c.g.calls = newHandle(func(context.Context) (driver.Store, error) { return s, nil }, true)
		c.g.calls.clock = c.g.opts.Clock
		if _, err := c.g.calls.get(t.Context()); err != nil {
			t.Fatal(err)
		}
		a := hapax.Allocation{Tag: hapax.Tag{Name: "t"}, Grant: hapax.Grant{Lo: 1, Hi: 9}, Key: "k"}
		for name, call := range map[string]func() error{
			"Allocate": func() error { _, err := c.g.Allocate(t.Context(), "t", 5, "key"); return err },
			"HandBack": func() error { return c.g.HandBack(t.Context(), a, 5) },
		} {
			began := time.Now()
			var wg sync.WaitGroup
			for range 6 {
				wg.Go(func() {
					if err := call(); err != nil {
						t.Error(name, err)
					}
				})
			}
			wg.Wait()
			if took := time.Since(began); took != time.Second {
				t.Errorf("%s: six calls take %v; want a second", name, took)
			}
		}
		if !slices.Contains(s.asked, "allocate 5 key t") {
			t.Errorf("asked is %q", s.asked)
		}
	})
}

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
