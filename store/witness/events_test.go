package witness

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hapax-id/hapax"
)

// A join that another primary has overtaken is none; an event that ends a row forgets what was
// observed and granted under it.
func TestEventsForget(t *testing.T) {
	set := func() *scene {
		c := servingScene(t)
		c.g.me.acked.Count, c.g.me.begun, c.g.me.over = 4, 3, 3
		c.g.watch, c.g.noted, c.g.since, c.g.fresh = watch{row: "w"}, 1, 1, map[string]int64{"tag/t": 4}
		c.g.peers["x"] = &sighting{}
		return c
	}
	c := set()
	c.g.state, c.g.me.over = Joining, 2
	if c.g.apply(joined, nil, nil) || c.g.state != Joining {
		t.Errorf("a join that was overtaken: it is %s", c.g.state)
	}
	c.g.me.over = 3
	if !c.g.apply(joined, nil, nil) || c.g.state != Serving || c.g.since == 1 {
		t.Errorf("a join: it is %s since %v", c.g.state, c.g.since)
	}
	for _, v := range []struct {
		e     event
		from  State
		fresh bool
	}{{lost, Serving, true}, {decided, Fenced, false}} {
		c := set()
		c.g.state = v.from
		c.g.apply(v.e, errInjected, nil)
		if c.g.watch.row != "" || c.g.noted == 1 || len(c.g.peers) > 0 || (c.g.fresh != nil) != v.fresh || c.g.since == 1 || c.g.state != Joining {
			t.Errorf("%s: it watches %q, has noted at %v, fresh are %v, it is %s", v.e, c.g.watch.row, c.g.noted, c.g.fresh, c.g.state)
		}
	}
	c = set()
	c.g.apply(behind, fmt.Errorf("%w: a loss", hapax.ErrStoreRolledBack), nil)
	if o := c.g.witness.rows().Own[c.g.me.row]; o.Count != 4 || c.g.since == 1 {
		t.Errorf("of a loss the witness knows %+v", o)
	}
	c.g.since = 1
	if c.g.apply(behind, hapax.ErrStoreRolledBack, nil); c.g.since != 1 {
		t.Error("the same state begins anew")
	}
	l := c.g.latchLocked(latch{State: Fenced, Fence: "F"}, behind, nil)
	if l.Fence != "F" || l.State != Refusing {
		t.Errorf("a fence that was seen before is forgotten: %+v", l)
	}
}

// The status is told again where a fence is news, without another state.
func TestToldOfFences(t *testing.T) {
	told := 0
	g := newScene(t).g
	g.state, g.cause, g.told.State, g.told.Code = Fenced, hapax.ErrFenced, Fenced, hapax.ErrFenced.Code()
	g.opts.Changed = func(Status) { told++ }
	g.apply(fenced, hapax.ErrFenced, nil)
	if told != 0 {
		t.Errorf("of nothing it was told %d times", told)
	}
	g.apply(fenced, hapax.ErrFenced, &Fence{ID: "F", Missing: []Node{{Row: "1-x"}}})
	if told != 1 {
		t.Errorf("of a fence with a missing node it was told %d times", told)
	}
}

// Trouble while joining is told at once, and again where its reason changes, once in a while.
func TestToldOfTrouble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newScene(t).g
		told := []string{}
		g.opts.Changed = func(s Status) { told = append(told, s.Why) }
		g.since, g.me.row = g.now(), "r"
		step := func(what string, cause error, wait time.Duration, want bool) {
			t.Helper()
			time.Sleep(wait)
			was := len(told)
			g.cause = cause
			g.tell()
			if (len(told) > was) != want {
				t.Errorf("%s: told %q", what, told[was:])
			}
		}
		one := func(text string) error { return fmt.Errorf("%w: %s", hapax.ErrStoreUnavailable, text) }
		g.told = g.statusLocked(nil)
		step("nothing", nil, 0, false)
		step("trouble", one("a"), 0, true)
		step("the same", one("a"), time.Minute, false)
		step("another", one("b"), 0, true)
		step("... soon after", one("c"), 5*time.Second-1, false)
		step("... a while after", one("c"), 1, true)
		step("no more", nil, -1, false)
		step("no more, late", nil, time.Hour, true) // it takes longer than it should
	})
}

// How long a heartbeat takes is told where it is too long, and with the reason while the node joins.
func TestStatusOfASlowStore(t *testing.T) {
	const tells = "a heartbeat takes 0.9 s of 0.8 s (heartbeat: 1s)"
	for name, v := range map[string]struct {
		state State
		cause error
		took  time.Duration
		slow  string
		why   string
	}{
		"serving":         {Serving, nil, 900 * time.Millisecond, tells, ""},
		"joining":         {Joining, errInjected, 900 * time.Millisecond, tells, "; " + tells},
		"... near":        {Joining, errInjected, time.Millisecond, "", "fails"},
		"... and waiting": {Joining, nil, 900 * time.Millisecond, tells, "met the store"},
		"fenced":          {Fenced, hapax.ErrFenced, 900 * time.Millisecond, tells, hapax.Message(hapax.ErrFenced)},
	} {
		g := &Guarded{opts: Options{Heartbeat: time.Second, Clock: func() time.Duration { return 0 }}, state: v.state, cause: v.cause, me: member{row: "r"}, pace: pace{took: v.took}}
		st := g.statusLocked(nil)
		if st.Slow != v.slow || !strings.HasSuffix(st.Why, v.why) || v.why == "" && st.Why != "" {
			t.Errorf("%s: slow %q, why %q", name, st.Slow, st.Why)
		}
	}
	g := &Guarded{opts: Options{Heartbeat: time.Second, Clock: func() time.Duration { return 0 }}}
	if errors.Is(g.Refused(), hapax.ErrFenced) {
		t.Error("it refuses")
	}
}
