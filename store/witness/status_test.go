package witness

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
)

// What the status says in each state, and what an operator may do about it.
func TestStatusSays(t *testing.T) {
	lost := fmt.Errorf("%w: a loss", hapax.ErrStoreRolledBack)
	missing := []Node{{Row: rowOf(2, "B"), Name: "b"}}
	full := fmt.Errorf("%w: no room", hapax.ErrWitnessFailed)
	for name, v := range map[string]struct {
		state    State
		cause    error
		row      string
		fence    *Fence
		hindered error
		disk     error

		code            hapax.Code
		why, command    string
		hasFence, waits bool
	}{
		"serving":                 {state: Serving, cause: lost, fence: &Fence{Missing: missing}, hindered: full},
		"serving on a full disk":  {state: Serving, disk: full, code: hapax.ErrWitnessFailed.Code(), why: "no room", command: "make room on the witness's disk, or give it another"},
		"joining on a full disk":  {state: Joining, row: "r", disk: full, code: hapax.ErrWitnessFailed.Code(), why: "no room", command: "make room on the witness's disk, or give it another"},
		"refusing on a full disk": {state: Refusing, cause: lost, disk: full, code: hapax.ErrStoreRolledBack.Code(), why: "a loss"},
		"joining at first":        {state: Joining, code: hapax.ErrStoreUnavailable.Code(), why: "the store has not answered yet"},
		"joining and waiting":     {state: Joining, row: "r", fence: &Fence{}, hindered: full, code: hapax.ErrStoreUnavailable.Code(), why: "waits until every living node", waits: true},
		"joining and failing":     {state: Joining, row: "r", cause: errInjected, code: hapax.ErrStoreUnavailable.Code(), why: "this call fails"},
		"fenced":                  {state: Fenced, cause: lost, fence: &Fence{}, code: hapax.ErrStoreRolledBack.Code(), why: "a loss", hasFence: true},
		"fenced and hindered":     {state: Fenced, cause: lost, fence: &Fence{}, hindered: full, code: hapax.ErrStoreRolledBack.Code(), why: "a loss; this node cannot go on: ", hasFence: true},
		"refusing and hindered":   {state: Refusing, cause: lost, hindered: full, code: hapax.ErrStoreRolledBack.Code(), why: "; this node cannot go on: "},
		"one is missing":          {state: Refusing, cause: lost, fence: &Fence{Missing: missing}, code: hapax.ErrStoreRolledBack.Code(), why: "a loss", command: "start b again, or hapax nodes settle b --witness-file FILE, or --floor N", hasFence: true},
		"three are missing":       {state: Fenced, cause: lost, fence: &Fence{Missing: missing, More: 2}, code: hapax.ErrStoreRolledBack.Code(), why: "a loss", command: "start b again, or hapax nodes settle b --witness-file FILE, or --floor N; hapax nodes lists all 3 who are missing", hasFence: true},
		"a person decides":        {state: Fenced, cause: lost, fence: &Fence{Manual: true}, code: hapax.ErrStoreRolledBack.Code(), why: "a loss", command: "hapax adopt", hasFence: true},
		"... and has":             {state: Fenced, cause: lost, fence: &Fence{Manual: true, Approved: true}, code: hapax.ErrStoreRolledBack.Code(), why: "a loss", hasFence: true},
		"another store":           {state: Refusing, cause: fmt.Errorf("%w (%w)", hapax.ErrStoreReplaced, errOther), fence: &Fence{Missing: missing}, code: hapax.ErrStoreReplaced.Code(), command: "check the store's URL; hapax adopt if the store was replaced on purpose", hasFence: true},
		"left":                    {state: Left, fence: &Fence{Missing: missing}, hindered: full, disk: full},
	} {
		g := &Guarded{opts: Options{Clock: func() time.Duration { return 0 }}, state: v.state, cause: v.cause, fence: v.fence, hindered: v.hindered, me: member{row: v.row}}
		st := g.statusLocked(v.disk)
		if st.State != v.state || st.Code != v.code || !strings.Contains(st.Why, v.why) || v.why == "" && v.code == "" && st.Why != "" || st.Command != v.command || (st.Fence != nil) != v.hasFence || st.Waits != v.waits || !errors.Is(st.Disk, v.disk) {
			t.Errorf("%s: %+v", name, st)
		}
		if len(v.why) > 0 && !strings.Contains(v.why, "cannot go on") && strings.Contains(st.Why, "cannot go on") {
			t.Errorf("%s: it says that it cannot go on: %s", name, st.Why)
		}
		if st.Ready() != (v.state == Serving && v.disk == nil) {
			t.Errorf("%s: it is ready: %v", name, st.Ready())
		}
	}
}

// A refusal wraps ErrFenced once, whatever its cause.
func TestRefusalsAreFenced(t *testing.T) {
	fence, retired := fmt.Errorf("%w: a fence", hapax.ErrFenced), (driver.Retirement{Copy: "C", Store: "s", To: "redis://there/0", By: "here"}).Err()
	for _, v := range []struct {
		state State
		cause error
		want  string
	}{
		{Serving, fence, ""},
		{Joining, fence, ""},
		{Fenced, fence, fence.Error()},
		{Refusing, fence, fence.Error()},
		{Refusing, hapax.ErrStoreRolledBack, fmt.Sprintf("%v (%v)", hapax.ErrStoreRolledBack, hapax.ErrFenced)},
		{Refusing, retired, retired.Error()}, // which no fence explains
	} {
		err := (&Guarded{state: v.state, cause: v.cause}).Refused()
		if v.want == "" && err != nil || v.want != "" && (err == nil || err.Error() != v.want || !errors.Is(err, hapax.ErrFenced)) {
			t.Errorf("in state %s for %v it refuses with %v; want %q", v.state, v.cause, err, v.want)
		}
	}
}

// What an event leaves: the cause that is told, the fence that is known, what is known of
// others, and what was said.
func TestWhatAnEventLeaves(t *testing.T) {
	first, second, elsewhere := errors.New("first"), errors.New("second"), other
	other := fmt.Errorf("second (%w)", errOther)
	set := func(state State, cause error) *Guarded {
		c := newScene(t)
		c.g.state, c.g.cause, c.g.fence = state, cause, &Fence{ID: "OLD"}
		c.g.me = member{row: "1-r", quick: true, heard: []string{"x"}, acked: driver.Beat{Count: 4, Grants: 2}, beat: driver.Beat{Count: 5, Grants: 3}, joins: 6}
		c.g.peers["2-x"], c.g.said = &sighting{}, spoken{"a", "b"}
		return c.g
	}
	for name, v := range map[string]struct {
		state State
		cause error
		e     event
		told  error
		fence *Fence

		want                               error
		keepsFence, keepsPeers, keepsHeard bool
		keepsRow, keepsSaid                bool
	}{
		"serves at last":              {Joining, first, joined, nil, nil, nil, true, true, true, true, false},
		"joins anew":                  {Serving, nil, lost, second, nil, second, true, false, false, false, false},
		"joins, and again":            {Joining, first, lost, second, nil, second, true, false, false, false, true},
		"is unsure":                   {Serving, nil, unsure, second, nil, second, true, true, true, true, false},
		"unsure, joining":             {Joining, first, unsure, second, nil, second, true, true, true, true, true},
		"meets a fence":               {Serving, nil, fenced, second, nil, second, true, true, false, true, false},
		"meets it again":              {Fenced, first, fenced, second, nil, first, true, true, false, true, true},
		"finds a loss":                {Serving, nil, behind, second, nil, second, true, true, false, true, false},
		"finds another":               {Refusing, first, behind, second, nil, first, true, true, false, true, true},
		"finds it in another store":   {Refusing, other, behind, second, nil, second, true, true, false, true, true},
		"meets it in its store again": {Refusing, other, fenced, second, nil, second, true, true, false, true, true},
		"refuses, and is elsewhere":   {Refusing, first, elsewhere, other, nil, other, true, true, true, true, true},
		"is another store, and again": {Refusing, first, unsure, second, nil, first, true, true, true, true, true},
		"is healed":                   {Refusing, first, decided, nil, nil, nil, false, false, true, false, false},
		"is healed while serving":     {Serving, nil, decided, nil, nil, nil, true, true, true, true, true},
	} {
		g := set(v.state, v.cause)
		g.apply(v.e, v.told, v.fence)
		if !errors.Is(g.cause, v.want) || v.want == nil && g.cause != nil {
			t.Errorf("%s: the cause is %v; want %v", name, g.cause, v.want)
		}
		if (g.fence != nil) != v.keepsFence || (len(g.peers) > 0) != v.keepsPeers || (g.me.heard != nil) != v.keepsHeard || (g.me.row != "") != v.keepsRow || (g.said != spoken{}) != v.keepsSaid {
			t.Errorf("%s: it keeps the fence %v, the others %v, those heard %v, its row %v, what it said %v", name, g.fence != nil, len(g.peers) > 0, g.me.heard != nil, g.me.row != "", g.said != spoken{})
		}
		if g.me.quick != (v.keepsRow && v.e != fenced && v.e != behind) {
			t.Errorf("%s: it need not wait: %v", name, g.me.quick)
		}
	}
}

// The witness remembers why nothing is granted: the first finding of the node itself, the
// latest fence, its row, and what it was granted.
func TestWhatIsLatched(t *testing.T) {
	c := newScene(t)
	c.g.state, c.g.me = Serving, member{row: "1-r", acked: driver.Beat{Count: 4, Grants: 2}, beat: driver.Beat{Count: 5, Grants: 3}, joins: 6}
	loss := func(text string) error { return fmt.Errorf("%w: %s", hapax.ErrStoreRolledBack, text) }
	steps := []struct {
		e     event
		cause error
		fence *Fence
		want  latch
	}{
		{unsure, errInjected, nil, latch{}},
		{fenced, fmt.Errorf("%w: by b", hapax.ErrFenced), &Fence{ID: "F"}, latch{State: Fenced, Code: string(hapax.ErrFenced.Code()), Why: "by b", Fence: "F", Row: "1-r", Count: 4}},
		{fenced, fmt.Errorf("%w: by c", hapax.ErrFenced), &Fence{ID: "G"}, latch{State: Fenced, Code: string(hapax.ErrFenced.Code()), Why: "by b", Fence: "G", Row: "1-r", Count: 4}},
		{behind, loss("mine"), nil, latch{State: Refusing, Code: string(hapax.ErrStoreRolledBack.Code()), Why: "mine", Fence: "G", Row: "1-r", Count: 4}},
		{behind, loss("again"), nil, latch{State: Refusing, Code: string(hapax.ErrStoreRolledBack.Code()), Why: "mine", Fence: "G", Row: "1-r", Count: 4}},
	}
	for i, s := range steps {
		c.g.apply(s.e, s.cause, s.fence)
		got := c.g.witness.latch()
		if !strings.HasSuffix(got.Why, s.want.Why) || s.want.Why == "" && got.Why != "" {
			t.Errorf("step %d: it says %q; want %q", i, got.Why, s.want.Why)
		}
		got.Why, s.want.Why = "", ""
		if got != s.want {
			t.Errorf("step %d: it holds %+v; want %+v", i, got, s.want)
		}
	}
	r := c.g.witness.rows()
	if r.Own["1-r"] != (own{Count: 4, Grants: 2, Asked: 3}) || r.Joins != 6 {
		t.Errorf("of the row it knows %+v, and %d joins", r.Own["1-r"], r.Joins)
	}
}

// The status says whether a step of the store is several writes, as operators are shown.
func TestStatusOfASplitStore(t *testing.T) {
	for _, split := range []bool{false, true} {
		c := servingScene(t)
		c.store.split = split
		if c.g.Status().Split {
			t.Error("it says so of a store that was not dialled yet")
		}
		if _, err := c.g.calls.get(t.Context()); err != nil || c.g.Status().Split != split {
			t.Errorf("it says that each step is several writes: %v, %v; want %v", c.g.Status().Split, err, split)
		}
	}
}

// Options.Changed is told what has changed: the state, its cause, the missing nodes, or the
// operator's command; and of nothing else.
func TestToldOfChanges(t *testing.T) {
	told := 0
	g := newScene(t).g
	g.opts.Changed = func(Status) { told++ }
	g.state, g.told.State = Serving, Serving
	say := func(what string, want int) {
		t.Helper()
		told = 0
		g.tell()
		g.tell()
		if told != want {
			t.Errorf("%s: told %d times; want %d", what, told, want)
		}
	}
	say("nothing", 0)
	g.state, g.cause = Fenced, hapax.ErrFenced
	say("the state", 1)
	g.cause = hapax.ErrStoreRolledBack
	say("the code", 1)
	g.fence = &Fence{Manual: true}
	say("the command", 1)
	g.fence = &Fence{Manual: true, Turn: 3}
	say("another turn", 0)
	g.fence = &Fence{Missing: []Node{{Row: "1-x"}}}
	say("one is missing", 1)
	g.fence = &Fence{Missing: []Node{{Row: "1-x"}, {Row: "2-x"}}}
	say("two are", 1)
	g.opts.Changed = nil
	g.state = Left
	g.tell()
}

// When a fence changes, those who live are given their time anew; not when it is read again.
func TestFenceSeenAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newScene(t).g
		g.state = Serving
		step := func(f *Fence, isNew bool) {
			t.Helper()
			time.Sleep(time.Second)
			was := g.seenAt
			g.apply(fenced, hapax.ErrFenced, f)
			if (g.seenAt != was) != isNew {
				t.Errorf("%+v is seen anew: %v; want %v", f, !isNew, isNew)
			}
			if g.fence != f {
				t.Error("it is not the one that is known")
			}
		}
		step(&Fence{ID: "F"}, true)
		step(&Fence{ID: "F", Turn: 2}, false)
		step(&Fence{ID: "F", Found: map[string]int64{"x": 1}}, true)
		step(&Fence{ID: "F", Found: map[string]int64{"x": 1}}, false)
		step(&Fence{ID: "G", Found: map[string]int64{"x": 1}}, true)
	})
}

// Close ends what was opened, once, and Kill writes nothing more.
func TestClosesWhatWasOpened(t *testing.T) {
	for _, v := range []struct{ closes, two bool }{{true, false}, {false, false}, {true, true}} {
		c := newScene(t)
		c.g.closes = v.closes
		beats := &counted{Store: c.store.Store, shared: true}
		open := func(s driver.Store) *handle {
			h := newHandle(func(context.Context) (driver.Store, error) { return s, nil }, false)
			h.clock = c.g.opts.Clock
			if _, err := h.get(t.Context()); err != nil {
				t.Fatal(err)
			}
			return h
		}
		c.g.calls = open(c.store)
		c.g.beats = c.g.calls
		if v.two {
			c.g.beats = open(beats)
		}
		c.member(1, 2)
		if err := errors.Join(c.g.Close(), c.g.Close()); err != nil {
			t.Error(err)
		}
		if n := strings.Count(strings.Join(c.store.made(), " "), "close"); n != 1 {
			t.Errorf("the store was closed %d times", n)
		}
		if n := len(beats.made()); n > 0 != v.two {
			t.Errorf("the store for heartbeats was closed %d times; there is one: %v", n, v.two)
		}
		err := c.g.witness.commit(func(b *record) error { b.Joins = 99; return nil })
		if errors.Is(err, hapax.ErrClosed) != v.closes {
			t.Errorf("the witness is closed: %v; want %v", err, v.closes)
		}
	}
	c := newScene(t)
	row := c.member(1, 2)
	c.g.Kill()
	if st := c.g.Status().State; st != Left || c.g.me.row != "" || c.row(driver.TableBeats, row) != string(driver.Beat{Count: 2}.Encode()) {
		t.Errorf("after Kill it is %s, and its row %q", st, c.row(driver.TableBeats, row))
	}
}

// Whoever has waited for the join, so that the store's answer could come too late, asks
// again; and so does everybody while the node cannot join.
func TestWaitsToServe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, v := range map[string]struct {
			waits bool
			left  time.Duration
			want  bool
		}{
			"at once, little time left": {false, time.Millisecond, true},
			"after a wait, enough left": {true, 800 * time.Millisecond, true},
			"after a wait, too little":  {true, 799 * time.Millisecond, false},
		} {
			g := newScene(t).g
			g.state = Serving
			if v.waits {
				g.state = Joining
				time.AfterFunc(time.Second, func() { g.apply(joined, nil, nil) })
				v.left += time.Second
			}
			ctx, cancel := context.WithTimeout(t.Context(), v.left)
			err := g.serving(ctx)
			cancel()
			if (err == nil) != v.want {
				t.Errorf("%s: %v", name, err)
			}
		}
		g := newScene(t).g
		g.cause = errInjected
		if err := g.serving(t.Context()); !errors.Is(err, errInjected) {
			t.Errorf("while it cannot join: %v", err)
		}
	})
}

// Joining is trouble where it fails, or takes twice as long as a living node takes to meet
// the store: a first node waits for that long, and then does what is left.
func TestJoiningIsTrouble(t *testing.T) {
	for _, v := range []struct {
		state State
		cause error
		since time.Duration
		want  bool
	}{{Joining, nil, 10 * time.Second, false}, {Joining, nil, 10*time.Second + 1, true}, {Joining, errInjected, 0, true}, {Serving, errInjected, time.Hour, false}} {
		g := newScene(t).g
		began := g.now()
		g.opts.Clock = func() time.Duration { return began + v.since }
		g.state, g.cause, g.since = v.state, v.cause, began
		if st := g.Status(); st.Trouble != v.want {
			t.Errorf("%s for %v, %v: trouble %v; want %v", v.state, v.since, v.cause, st.Trouble, v.want)
		}
	}
}
