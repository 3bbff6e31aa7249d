package witness

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
)

// Whoever presides asks once all who live had the time to meet the store, takes over from one
// that presides no more, names the missing nodes, and that it lives while it waits.
func TestPresides(t *testing.T) {
	wait := 5 * time.Second
	for name, v := range map[string]struct {
		fence Fence
		met   time.Duration // since the fence was first seen
		still time.Duration // since it has been as it is
		apart bool          // nobody shares the store
		hold  bool
		want  string // what is done
	}{
		"too early":                   {Fence{}, wait - 1, 0, false, false, ""},
		"nobody has asked":            {Fence{Raised: "R", Missing: []Node{{Row: "x"}}, More: 2}, wait, 0, false, false, "asks"},
		"... on a store of its own":   {Fence{}, 0, 0, true, false, "asks"},
		"another asks":                {Fence{Ask: "A", Healer: "other"}, 4 * wait, 2 * wait, false, false, ""},
		"... and does so no more":     {Fence{Ask: "A", Healer: "other"}, 4 * wait, 2*wait + 1, false, false, "asks"},
		"one is missing":              {Fence{Ask: "A", Healer: theRun}, wait, 2 * time.Second, false, false, "tells"},
		"... and was just asked":      {Fence{Ask: "A", Healer: theRun}, wait, 2*time.Second - 1, false, false, ""},
		"... as was told":             {Fence{Ask: "A", Healer: theRun, Missing: []Node{missingB}}, 4 * wait, wait, false, false, ""},
		"... long ago":                {Fence{Ask: "A", Healer: theRun, Missing: []Node{missingB}}, 4 * wait, wait + 1, false, false, "tells"},
		"... and another was told of": {Fence{Ask: "A", Healer: theRun, Missing: []Node{{Row: "x"}}}, 4 * wait, 0, false, false, "tells"},
		"all have spoken":             {Fence{Ask: "A", Healer: theRun}, wait, 0, false, false, "decides"},
		"... and one was told of":     {Fence{Ask: "A", Healer: theRun, Missing: []Node{{Row: "x"}}}, wait, 0, false, false, "tells"},
		"... and an operator decides": {Fence{Ask: "A", Healer: theRun}, wait, 0, false, true, ""},
		"a person decides":            {Fence{Ask: "A", Healer: theRun, Manual: true}, wait, 0, false, false, ""},
		"... and has":                 {Fence{Ask: "A", Healer: theRun, Manual: true, Approved: true}, wait, 0, false, false, "decides"},
	} {
		synctest.Test(t, func(t *testing.T) {
			c, _, _ := lostScene(t)
			c.put(driver.TableGuard, rowReplaces+"before", nil)
			if strings.Contains(name, "missing") || strings.HasPrefix(name, "...") && v.fence.Missing != nil && !strings.Contains(name, "one was") || name == "... and was just asked" {
				c.peer(rowOf(2, "B"), "b", driver.Beat{Count: 3, Grants: 9}, "")
			}
			if v.fence.Manual {
				c.g.opts.Manual = true
			}
			c.g.opts.Hold = v.hold
			c.g.shared = !v.apart
			f, raw := c.fence(v.fence)
			if f.Ask != "" {
				if err := c.g.giveEvidence(t.Context(), c.store, f.Ask); err != nil {
					t.Fatal(err)
				}
			}
			c.g.seenAt, c.g.fenceRaw, c.g.fenceAt = c.g.now()-v.met, string(raw), c.g.now()-v.still
			if v.hold && c.g.holds(f) != true {
				t.Error("it does not wait for an operator")
			}
			if err := c.g.askAndDecide(t.Context(), c.store, f, raw); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			now, got := c.standing(), ""
			switch {
			case now == nil:
				got = "decides"
			case now.Ask != f.Ask:
				got = "asks"
				if now.Healer != theRun || now.Raised != "" || len(now.Missing) > 0 || now.More != 0 || now.Ask == "" {
					t.Errorf("%s: it asks with %+v", name, now)
				}
			case c.row(driver.TableFence, driver.RowFence) != string(raw):
				got = "tells"
				if now.Turn != f.Turn+1 {
					t.Errorf("%s: it tells with turn %d", name, now.Turn)
				}
			}
			if got != v.want {
				t.Errorf("%s: it %s; want that it %s", name, got, v.want)
			}
		})
	}
	c, f, _ := lostScene(t)
	c.g.opts.Hold = true
	if !c.g.holds(f) || c.g.heard != "ASK" {
		t.Errorf("a command does not wait for its operator, or does not say that all have spoken: %q", c.g.heard)
	}
	if c.g.approved = f.ID; c.g.holds(f) {
		t.Error("a command waits although its operator has decided")
	}
}

// A dozing store answers who it is, unless it is mute, and nothing else.
type dozing struct {
	*counted
	mute *bool
}

func (d dozing) StoreID(ctx context.Context) (string, error) {
	if *d.mute {
		<-ctx.Done()
		return "", ctx.Err()
	}
	return d.counted.StoreID(ctx)
}

func (d dozing) Row(ctx context.Context, table, name string) ([]byte, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// A turn towards healing that was too short is followed by longer ones, within a bound, where the store answers;
// the process leaves another that presides as much time. A store that does not answer takes no more than a call.
func TestTurnsTowardsHealing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _, _ := lostScene(t)
		c.put(driver.TableGuard, rowReplaces+"before", nil)
		mute := false
		c.hasStore(dozing{c.store, &mute})
		takes := func(want time.Duration) {
			t.Helper()
			began := c.g.now()
			if err := c.g.longTurn(c.g.heal); err == nil || c.g.now()-began != want {
				t.Errorf("a turn takes %v: %v; want %v", c.g.now()-began, err, want)
			}
		}
		for _, times := range []int{1, 2, 4, 8, 16, 32, 64, 64} {
			takes(time.Duration(times) * c.g.opts.Timeout)
		}
		long := c.g.healing
		mute = true
		takes(long)
		takes(c.g.opts.Timeout)

		for _, still := range []time.Duration{2 * long, 2*long + 1} {
			c.g.healing = long
			f, raw := c.fence(Fence{Ask: "A", Healer: "other"})
			c.g.seenAt, c.g.fenceRaw, c.g.fenceAt = c.g.now()-2*still, string(raw), c.g.now()-still
			c.g.beats.dialled = c.g.now() - 2*still
			if err := c.g.askAndDecide(t.Context(), c.store, f, raw); err != nil {
				t.Fatal(err)
			}
			if asks := c.standing().Ask != "A"; asks != (still > 2*long) {
				t.Errorf("another presides and stands still for %v: it asks itself: %v", still, asks)
			}
		}
		c.g.state = Serving
		if c.g.turn(); c.g.healing != 0 {
			t.Errorf("a process that serves gives a turn towards healing %v", c.g.healing)
		}
	})
}

var missingB = Node{Row: rowOf(2, "B"), Name: "b", Address: "at-b", State: "missing", Grants: 9}

// A decision raises the lines, counts the joins, is recorded with its evidence, leaves
// no statement behind, and ends the fence.
func TestDecides(t *testing.T) {
	said := func() *account {
		return &account{
			joins: 5, decision: 7, heard: []string{"x", theRun}, stores: []string{"one", "", "older"}, statements: map[string]statement{"r": {Floor: 9000}},
			lines: lines{map[string]Pair{"tag/t": {0, 5000}}, nil},
		}
	}
	c, f, raw := lostScene(t)
	f.Missing, f.More = nil, 0
	c.put(driver.TableEvidence, "ASK/x/000000000", []byte("{}"))
	c.put(driver.TableGuard, "decision/OLD/000000000", []byte("{}"))
	id, err := c.store.Store.StoreID(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := c.g.decide(t.Context(), c.store, f, raw, said()); err != nil {
		t.Fatal(err)
	}
	d, _, err := readDecision(t.Context(), c.store)
	if err != nil || d == nil {
		t.Fatal(d, err)
	}
	if d.Number != 8 || d.ID == "" || d.Store != id || d.Joins != 5 || !slices.Equal(d.Heard, []string{"x", theRun}) || d.Stated["r"].Floor != 9000 || d.Raised != 1 || len(d.Most) != 1 || d.Most[0].To != 9000 || d.At.IsZero() {
		t.Errorf("the decision is %+v", d)
	}
	if d.Fence.ID != "F" || d.Fence.Raised == "" || d.Fence.Found != nil {
		t.Errorf("it is about %+v", d.Fence)
	}
	if tag, err := c.store.Store.Tag(t.Context(), "t"); err != nil || tag.Mark != 9000 || tag.Token < 1 {
		t.Errorf("the tag is %+v, %v", tag, err)
	}
	if c.standing() != nil || c.row(driver.TableGuard, driver.RowJoins) != string(driver.EncodeCounter(5)) || c.row(driver.TableGuard, rowCompacted) != string(driver.EncodeCounter(5)) {
		t.Errorf("the fence is %v, joins %s, compacted %s", c.standing(), c.row(driver.TableGuard, driver.RowJoins), c.row(driver.TableGuard, rowCompacted))
	}
	for name, want := range map[string]bool{"one": true, "older": true, id: false, "": false} {
		if got := c.row(driver.TableGuard, rowReplaces+name) == `"F"`; got != want {
			t.Errorf("the store stands in the place of %q: %v; want %v", name, got, want)
		}
	}
	for _, table := range []string{driver.TableEvidence, driver.TableBeats, driver.TableNodes} {
		if rows, err := readRows(t.Context(), c.store, table); err != nil || len(rows) > 0 {
			t.Errorf("of table %s there are still %d rows, %v", table, len(rows), err)
		}
	}
	if c.row(driver.TableGuard, "decision/OLD/000000000") != "" {
		t.Error("a part of an earlier decision is still there")
	}
	select {
	case <-c.g.kick:
	default:
		t.Error("it does not go on at once")
	}

	for name, v := range map[string]struct {
		change func(c *scene, a *account)
		want   string
		stands bool
	}{
		"another has joined": {func(c *scene, a *account) { c.joins(6) }, "another node has joined meanwhile", true},
		"... while it counts the joins": {func(c *scene, a *account) {
			c.store.swapped = func(name string) bool { return name != driver.RowJoins }
		}, "another node has joined meanwhile", true},
		"as many have joined as it knows": {func(c *scene, a *account) { c.joins(5) }, "", false},
		"the fence was changed":           {func(c *scene, a *account) { c.fence(Fence{ID: "F", Ask: "B"}) }, "the fence was changed meanwhile", true},
		"another decision was made": {func(c *scene, a *account) {
			c.store.swapped = func(name string) bool { return name != rowDecision }
		}, "another decision was made meanwhile", true},
		"a later decision is known": {func(c *scene, a *account) { c.decided(20, nil) }, "", false},
		"the store has gone back": {func(c *scene, a *account) {
			c.store.pages = func(page *[]hapax.Tag) {
				if strings.Contains(strings.Join(c.store.made(), " "), "swap "+driver.RowFence) {
					(*page)[0].Mark = 1
				}
			}
		}, "gone back while it was healed", true},
	} {
		c, f, raw := lostScene(t)
		a := said()
		v.change(c, a)
		err := c.g.decide(t.Context(), c.store, f, raw, a)
		if (err == nil) != (v.want == "") || err != nil && !strings.Contains(err.Error(), v.want) || (c.standing() != nil) != v.stands {
			t.Errorf("%s: %v, and the fence is %v; want %q", name, err, c.standing(), v.want)
		}
		if d, _, _ := readDecision(t.Context(), c.store.Store); v.want == "" && d.Number != max(8, map[bool]int64{true: 21}[name == "a later decision is known"]) {
			t.Errorf("%s: it is decision %d", name, d.Number)
		}
	}
}

// A node that takes a decision joins again with the store's present lines. It waits for those that
// were heard with it alone, if it was in contact since; and amends the assumption about it, if
// it was not heard.
func TestTakesADecision(t *testing.T) {
	for name, v := range map[string]struct {
		heard bool
		away  time.Duration // since the fence was last seen to stand
		keeps bool
	}{
		"was heard":                     {true, 5 * time.Second, true},
		"was heard, and out of contact": {true, 5*time.Second + 1, false},
		"was not heard":                 {false, 0, false},
	} {
		c, _, _ := lostScene(t)
		c.put(driver.TableFence, driver.RowFence, nil)
		c.know(func(b *record) { b.Defs = map[string]def{"tag/t": {Start: 3}} })
		began := c.g.now()
		c.g.opts.Clock = func() time.Duration { return began }
		d := c.decided(1, func(d *decision) {
			if v.heard {
				d.Heard = append(d.Heard, theRun)
			}
			d.Joins = 4
		})
		c.g.me.heard = []string{"from before"}
		c.g.stoodAt = began - v.away
		if err := c.g.catchUp(t.Context(), c.store, d, "new"); err != nil {
			t.Fatal(name, err)
		}
		r := c.g.witness.snapshot()
		if r.Store != "new" || *r.Decision != d.decisionID || r.Joins != 4 || r.Compacted != 4 || r.Latch.State != "" || len(r.Own) > 0 || len(r.Peers) > 0 {
			t.Errorf("%s: the witness is %+v", name, r)
		}
		if _, ok := r.Defs["tag/t"]; ok {
			t.Errorf("%s: a definition that is no longer there: %v", name, r.Defs)
		}
		if c.g.state != Joining || c.g.fence != nil || (len(c.g.me.heard) == 2) != v.keeps || !v.keeps && c.g.me.heard != nil {
			t.Errorf("%s: it is %s, and waits for %q", name, c.g.state, c.g.me.heard)
		}
		tag, err := c.store.Store.Tag(t.Context(), "t")
		if err != nil || (tag.Mark == 5000) == v.heard {
			t.Errorf("%s: its line is at %d, %v", name, tag.Mark, err)
		}
		if !strings.Contains(c.log.String(), "the store was healed") {
			t.Errorf("%s: it logs %q", name, c.log)
		}
		select {
		case <-c.g.kick:
		default:
			t.Errorf("%s: it does not go on at once", name)
		}
	}
	c, _, _ := lostScene(t)
	d := c.decided(1, nil)
	c.store.reads = func(table, name string, value []byte) []byte {
		if name == rowDecision {
			return nil
		}
		return value
	}
	if err := c.g.catchUp(t.Context(), c.store, d, "new"); err == nil || !strings.Contains(err.Error(), "has gone back while it was read") || c.g.witness.StoreID() == "new" {
		t.Errorf("a decision that is gone by now: %v", err)
	}
	c, _, _ = lostScene(t)
	c.know(func(b *record) { b.Latch = &latch{} })
	if err := c.g.catchUp(t.Context(), c.store, c.decided(1, nil), "new"); err != nil || strings.Contains(c.log.String(), "healed, and") {
		t.Errorf("a node that was never refused: %v, %s", err, c.log)
	}
}

// Only a decision that the node does not know is new.
func TestNewDecisions(t *testing.T) {
	c := newScene(t)
	c.know(func(b *record) { b.Decision = &decisionID{5, "X"} })
	for d, want := range map[decisionID]bool{{5, "X"}: false, {5, "Y"}: true, {6, "Z"}: true, {4, "W"}: false} {
		if got := c.g.isNew(&decision{decisionID: d}); got != want {
			t.Errorf("%+v is new: %v; want %v", d, got, want)
		}
	}
	if c.g.isNew(nil) {
		t.Error("none is new")
	}
}

// A fence that vanished without a decision is raised again, by its finder with its finding;
// a decision explains nothing of another store than its own.
func TestAfterAFence(t *testing.T) {
	for name, v := range map[string]struct {
		state   State
		decided bool
		verdict verdict
		raised  bool
	}{
		"no decision":                       {Refusing, false, isSame, true},
		"... for one that was only fenced":  {Fenced, false, isSame, true},
		"a decision":                        {Refusing, true, isSame, false},
		"... of a store in another's place": {Refusing, true, isLost, true},
	} {
		c, _, _ := lostScene(t)
		c.put(driver.TableFence, driver.RowFence, nil)
		row := c.g.me.row
		c.know(func(b *record) { b.Latch = &latch{State: v.state, Why: "why", Code: "code", Row: "its row"} })
		if v.decided {
			c.decided(1, nil)
		}
		if err := c.g.afterFence(t.Context(), c.store, "id", v.verdict); err != nil {
			t.Fatal(name, err)
		}
		f := c.standing()
		if (f != nil) != v.raised {
			t.Errorf("%s: the fence is %v", name, f)
			continue
		}
		if f == nil {
			continue
		}
		if f.ID == "" || f.Node != "me" || f.Row != "its row" || f.Why != "why" || f.Code != "code" || f.At.IsZero() {
			t.Errorf("%s: it is %+v", name, f)
		}
		if _, ok := f.Found[row]; ok != (v.state == Refusing) || (len(f.Stores) > 0) != (v.state == Refusing) {
			t.Errorf("%s: found by %v, of the stores %v", name, f.Found, f.Stores)
		}
	}
}

// A turn of healing: a store that is another is refused, one that is right again goes on, and
// a fence is obeyed.
func TestTurnOfHealing(t *testing.T) {
	other := func(c *scene) { c.g.cause = errors.Join(hapax.ErrStoreReplaced, errOther) }
	for name, v := range map[string]struct {
		change func(c *scene)
		state  State
		kicked bool
	}{
		"another store": {func(c *scene) {
			c.know(func(b *record) { b.Store, b.Former = "x", nil })
			c.put(driver.TableFence, driver.RowFence, nil)
			c.g.state = Fenced
		}, Refusing, false},
		"the URL was corrected":         {func(c *scene) { other(c); c.know(func(b *record) { b.Latch = &latch{} }) }, Joining, true},
		"... and there was a loss":      {other, Refusing, true},
		"no other store, and a loss":    {func(c *scene) {}, Refusing, true},
		"fenced, by one's own rows not": {func(c *scene) { c.g.state = Fenced; c.know(func(b *record) { b.Latch = &latch{State: Fenced} }) }, Fenced, true},
		"fenced, and behind": {func(c *scene) {
			c.g.state = Fenced
			c.know(func(b *record) { b.Latch = &latch{State: Fenced} })
			c.joins(1)
		}, Refusing, false},
	} {
		c, _, _ := lostScene(t)
		c.g.seenAt = c.g.now()
		v.change(c)
		c.store.shared = false
		err := c.g.heal(t.Context(), c.store)
		if err != nil || c.g.state != v.state && !(v.state == Refusing && c.standing() == nil) {
			t.Errorf("%s: %v, it is %s; want %s", name, err, c.g.state, v.state)
		}
		if c.g.shared && name != "another store" {
			if c.g.shared {
				t.Errorf("%s: it takes the store for one that is shared", name)
			}
		}
	}
}

// What keeps a node from its part is told once; that the store does not answer is not that.
func TestToldOfHindrances(t *testing.T) {
	c := newScene(t)
	say := func(err error, told int, hindered bool) {
		t.Helper()
		c.g.noteFailure(err)
		if n := strings.Count(c.log.String(), "cannot do its part"); n != told || (c.g.hindered != nil) != hindered {
			t.Errorf("after %v it was told %d times, and is hindered by %v; want %d", err, n, c.g.hindered, told)
		}
	}
	odd, other := errors.New("odd"), errors.New("other")
	say(errInjected, 0, false)
	say(context.DeadlineExceeded, 0, false)
	say(context.Canceled, 0, false)
	say(odd, 1, true)
	say(odd, 1, true)
	say(errInjected, 1, true)
	say(other, 2, true)
	say(nil, 2, false)
	say(nil, 2, false)
	say(other, 3, true)
}

// What is written by nobody else is written once.
func TestPutRow(t *testing.T) {
	c := newScene(t)
	put := func(value any) (int, error) {
		c.store.reset(0)
		err := putRow(t.Context(), c.store, driver.TableGuard, "x", value)
		return len(c.store.made()), err
	}
	for i, want := range []int{2, 1} {
		if n, err := put("a"); n != want || err != nil {
			t.Errorf("written %d times: %d calls, %v; want %d", i+1, n, err, want)
		}
	}
	c.store.swapped = func(string) bool { return false }
	if _, err := put("b"); err == nil || !strings.Contains(err.Error(), `row "x" of table "guard" was changed meanwhile`) {
		t.Errorf("written by another meanwhile: %v", err)
	}
}

// A witness is given as evidence with its stores, and one that has used none has none.
func TestIdentitiesOfAWitness(t *testing.T) {
	c := newScene(t)
	if got := c.g.witness.stores(); got != nil {
		t.Errorf("before the first use: %q", got)
	}
	for _, id := range []string{"a", "b", "a", "c"} {
		c.know(func(b *record) { b.Store = id })
	}
	if got := c.g.witness.stores(); !slices.Equal(got, []string{"c", "a", "b"}) {
		t.Errorf("the stores are %q", got)
	}
	if e := evidenceOf(record{}); e.Finder || e.Decision != 0 {
		t.Errorf("an empty witness says %+v", e)
	}
	if want := (map[string]own{}); !maps.Equal(c.g.ownRows(), want) {
		t.Errorf("a process without a row has %v", c.g.ownRows())
	}
}
