package witness

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
)

var (
	ofNumbers = def{Step: 5}
	ofTimes   = def{Kind: hapax.KindSnowflake, Pool: "p"}
)

// owed puts into the store what is owed of tag t.
func (c *scene) owed(o owedLine) {
	c.t.Helper()
	c.put(driver.TableGuard, rowOwed+"tag/t", driver.EncodeRow(o))
}

// isOwed fails the test unless that much is owed of tag t; nil: nothing.
func (c *scene) isOwed(when string, want *owedLine) {
	c.t.Helper()
	got, _, err := readOwedLine(c.t.Context(), c.store.Store, "tag/t")
	if err != nil || !reflect.DeepEqual(got, want) {
		c.t.Errorf("%s: owed is %+v, %v; want %+v", when, got, err, want)
	}
}

// What is owed is read from its rows alone, and is covered where no line is owed more than that.
func TestWhatIsOwed(t *testing.T) {
	owed, err := owedIn(map[string][]byte{rowOwed + "tag/t": []byte(`{"t":1,"m":5}`), "other": []byte("?")})
	if err != nil || len(owed) != 1 {
		t.Errorf("it is read as %+v, %v", owed, err)
	}
	if _, err := owedIn(map[string][]byte{rowOwed + "tag/t": []byte("?")}); !errors.Is(err, hapax.ErrStoreCorrupt) {
		t.Errorf("a damaged row: %v; want ErrStoreCorrupt", err)
	}
	a := &account{lines: lines{map[string]Pair{"tag/t": {1, 5}}, map[string]def{}}}
	have := stored{newLines(), map[string]bool{"tag/t": true, "tag/unknown": true}}
	for name, v := range map[string]struct {
		owed Pair
		want bool
	}{"all": {Pair{1, 5}, true}, "more": {Pair{2, 6}, true}, "a lower mark": {Pair{1, 4}, false}, "a lower token": {Pair{0, 5}, false}} {
		if got := (owedLines{"tag/t": {Pair: v.owed}}).covers(a, have); got != v.want {
			t.Errorf("%s is owed: it covers the account %v; want %v", name, got, v.want)
		}
	}
	for _, v := range []struct {
		line  string
		floor int64 // of an operator
		want  Pair
		known bool
	}{{"tag/t", 0, Pair{1, 5}, true}, {"tag/t", 100, Pair{1, 100}, true}, {"tag/unknown", 0, Pair{}, false}} {
		a.statements = map[string]statement{"x": {Floor: v.floor}}
		have := stored{newLines(), map[string]bool{v.line: true}}
		if got := (owedLines{v.line: {Pair: v.want}}).covers(a, have); !got {
			t.Errorf("%s with a floor of %d: %+v is not enough", v.line, v.floor, v.want)
		}
		if got := (owedLines{}).covers(a, have); got == v.known {
			t.Errorf("%s with a floor of %d: nothing is enough", v.line, v.floor)
		}
		less := Pair{v.want.Token, v.want.Mark - 1}
		if got := (owedLines{v.line: {Pair: less}}).covers(a, have); got == v.known {
			t.Errorf("%s with a floor of %d: %+v is enough", v.line, v.floor, less)
		}
	}
}

// A witness takes what is owed where that is more, or of the kind that the tag had surely; what it knows of
// another kind stays where it knows more numbers.
func TestTakesWhatIsOwed(t *testing.T) {
	for name, v := range map[string]struct {
		pair Pair
		def  def
		owed owedLine
		want bool
	}{
		"more":                           {Pair{0, 5}, ofNumbers, owedLine{Pair{0, 6}, ofNumbers}, true},
		"as much":                        {Pair{0, 5}, ofNumbers, owedLine{Pair{0, 5}, ofNumbers}, false},
		"less, of another kind":          {Pair{0, 10}, ofNumbers, owedLine{Pair{0, 5}, ofTimes}, false},
		"a higher mark, of another kind": {Pair{1, 0}, ofTimes, owedLine{Pair{0, 5}, ofNumbers}, true},
	} {
		pairs, defs := owedLines{"tag/t": v.owed}.newTo(record{Lines: map[string]Pair{"tag/t": v.pair}, Defs: map[string]def{"tag/t": v.def}})
		if (len(pairs) == 1) != v.want || (len(defs) == 1) != v.want {
			t.Errorf("%s: it takes %+v, %+v; want any %v", name, pairs, defs, v.want)
		}
	}
	c := newScene(t)
	before := c.g.witness.log.syncs.Load()
	known := c.g.witness.snapshot()
	if err := c.g.learnOwed(owedLines{"tag/t": {Pair{0, 5}, ofNumbers}}, known); err != nil || known.Lines["tag/t"].Mark != 5 || known.Defs["tag/t"] != ofNumbers {
		t.Errorf("what is owed is taken as %+v, %v", known, err)
	}
	if err := c.g.learnOwed(owedLines{"tag/t": {Pair{0, 5}, ofNumbers}}, known); err != nil || c.g.witness.log.syncs.Load() != before+1 {
		t.Errorf("the witness is written %d times for one piece of news, %v", c.g.witness.log.syncs.Load()-before, err)
	}
}

// A healer takes over what is owed: a definition that it knows of the same kind is later than the one owed.
func TestHealerTakesWhatIsOwed(t *testing.T) {
	later := def{Step: 7}
	for name, v := range map[string]struct {
		known *def
		owed  def
		want  def
	}{
		"of a line that nobody knows": {nil, ofNumbers, ofNumbers},
		"of the same kind":            {&later, ofNumbers, later},
		"of another kind":             {&ofTimes, ofNumbers, ofNumbers},
	} {
		c := newScene(t)
		c.owed(owedLine{Pair{0, 50}, v.owed})
		a := &account{lines: newLines()}
		if v.known != nil {
			a.learn(map[string]Pair{"tag/t": {0, 5}}, map[string]def{"tag/t": *v.known})
		}
		if err := a.learnOwed(t.Context(), c.store); err != nil || a.lines.defs["tag/t"] != v.want || a.lines.pairs["tag/t"].Mark != 50 {
			t.Errorf("%s: it knows %+v, %v; want %+v", name, a.lines, err, v.want)
		}
	}
	c := newScene(t)
	a := &account{lines: lines{map[string]Pair{"tag/t": {0, 5}}, map[string]def{"tag/t": ofTimes}}}
	have := stored{newLines(), map[string]bool{"tag/t": true, "tag/unknown": true}}
	if err := a.owe(t.Context(), c.store, have); err != nil {
		t.Error(err)
	}
	c.isOwed("what a healer knows", &owedLine{Pair{0, 5}, ofTimes})
	c.store.swapped = func(string) bool { return false }
	a.lines.pairs["tag/t"] = Pair{0, 6}
	if err := a.owe(t.Context(), c.store, have); !errors.Is(err, hapax.ErrStoreUnavailable) {
		t.Errorf("a healer whose row was changed meanwhile: %v", err)
	}
}

// More is owed than before, or nothing is written; of another kind the one with more numbers.
func TestOwe(t *testing.T) {
	for name, v := range map[string]struct {
		before *owedLine
		owe    owedLine
		want   owedLine
		writes bool
	}{
		"at first":               {nil, owedLine{Pair{0, 5}, ofNumbers}, owedLine{Pair{0, 5}, ofNumbers}, true},
		"more":                   {&owedLine{Pair{0, 4}, ofNumbers}, owedLine{Pair{0, 5}, ofNumbers}, owedLine{Pair{0, 5}, ofNumbers}, true},
		"more, of another kind":  {&owedLine{Pair{0, 4}, ofTimes}, owedLine{Pair{0, 5}, ofNumbers}, owedLine{Pair{0, 5}, ofNumbers}, true},
		"as much":                {&owedLine{Pair{0, 5}, ofNumbers}, owedLine{Pair{0, 5}, ofNumbers}, owedLine{Pair{0, 5}, ofNumbers}, false},
		"less":                   {&owedLine{Pair{1, 5}, ofNumbers}, owedLine{Pair{0, 4}, ofTimes}, owedLine{Pair{1, 5}, ofNumbers}, false},
		"a token, and less else": {&owedLine{Pair{0, 5}, ofNumbers}, owedLine{Pair{1, 4}, ofTimes}, owedLine{Pair{1, 5}, ofNumbers}, true},
	} {
		c := newScene(t)
		if v.before != nil {
			c.owed(*v.before)
		}
		c.store.reset(0)
		if err := owe(t.Context(), c.store, "tag/t", v.owe); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		c.isOwed(name, &v.want)
		if writes := len(c.store.made()) == 2; writes != v.writes {
			t.Errorf("%s: it calls %v; want a write %v", name, c.store.made(), v.writes)
		}
	}
	c := newScene(t)
	c.put(driver.TableGuard, rowOwed+"tag/t", []byte("?"))
	if err := owe(t.Context(), c.store, "tag/t", owedLine{}); !errors.Is(err, hapax.ErrStoreCorrupt) {
		t.Errorf("a damaged row: %v; want ErrStoreCorrupt", err)
	}
}

// ofKind has the store's tag t be of a kind.
func (c *scene) ofKind(kind hapax.Kind, pool string) {
	c.store.pages = func(page *[]hapax.Tag) {
		for i := range *page {
			if of := &(*page)[i]; of.Name == "t" {
				*of = hapax.Tag{Name: "t", Kind: kind, Pool: pool, Mark: of.Mark}
			}
		}
	}
}

// Of a row that cannot be read, or is of another kind, nothing is taken, whether or not the line is known; nor does it
// stand for a line that is not there, or have all lines read twice.
func TestTakesNothingOfUnreadableRows(t *testing.T) {
	for name, v := range map[string]struct {
		kind  hapax.Kind
		pool  string
		known map[string]Pair
		defs  map[string]def
		lost  bool
	}{
		"of a known line":                     {hapax.KindUnreadable, "", map[string]Pair{"tag/t": {0, 100}, "tag/u": {0, 20}}, nil, false},
		"of an unknown line":                  {hapax.KindUnreadable, "", map[string]Pair{"tag/u": {0, 20}}, nil, false},
		"beside a line that is not there":     {hapax.KindUnreadable, "", map[string]Pair{"tag/u": {0, 20}, "tag/gone": {0, 1}}, nil, true},
		"of another kind":                     {hapax.KindSnowflake, "p", map[string]Pair{"tag/t": {0, 100}, "tag/u": {0, 20}}, nil, false},
		"of another kind, without numbers":    {hapax.KindSegment, "", map[string]Pair{"tag/t": {0, 0}, "tag/u": {0, 20}}, map[string]def{"tag/t": ofTimes}, false},
		"of the kind, and another is missing": {hapax.KindUnreadable, "", map[string]Pair{"tag/t": {0, 100}, "tag/gone": {0, 1}}, nil, true},
	} {
		c := newScene(t)
		c.tag("t", 100)
		c.tag("u", 20)
		c.ofKind(v.kind, v.pool)
		known := record{Lines: v.known, Defs: v.defs}
		found, err := compareLines(t.Context(), c.store, known)
		_, pair := found.news.pairs["tag/t"]
		_, def := found.news.defs["tag/t"]
		if err != nil || pair || def || !found.unread["tag/t"] || found.behind != v.lost {
			t.Errorf("%s: compared: %+v, %v", name, found, err)
		}
		if n := countOf(c.store.made(), "tags"); n != 1 && !v.lost {
			t.Errorf("%s: the lines are read %d times", name, n)
		}
		have, err := readLines(t.Context(), c.store, known.lines())
		_, pair = have.pairs["tag/t"]
		_, def = have.defs["tag/t"]
		if err != nil || pair || def || !have.unread["tag/t"] {
			t.Errorf("%s: read: %+v, %v", name, have, err)
		}
	}
}

// A node that takes a decision owes what it knows of a tag whose row is of another kind now, and stays by what the tag
// was; of one whose kind is as it was it owes nothing.
func TestDecisionBesideARowOfAnotherKind(t *testing.T) {
	for name, v := range map[string]struct {
		was   def
		now   hapax.Kind
		known Pair
		debt  bool
	}{
		"it had numbers":            {ofNumbers, hapax.KindSnowflake, Pair{0, 500}, true},
		"it is a snowflake as ever": {ofTimes, hapax.KindSnowflake, Pair{}, false},
	} {
		c := newScene(t, func(b *record) { b.Lines["tag/t"], b.Defs["tag/t"] = v.known, v.was })
		c.joins(1)
		c.tag("t", 0)
		c.ofKind(v.now, "p")
		d := &decision{decisionID: decisionID{1, "D"}, Joins: 1}
		c.putJSON(driver.TableGuard, rowDecision, d)
		if err := c.g.catchUp(t.Context(), c.store, d, "id"); err != nil {
			t.Fatal(name, err)
		}
		if got, _ := c.g.witness.def("tag/t"); got != v.was || len(c.store.heals) > 0 {
			t.Errorf("%s: the witness takes it for %+v, and healed are %+v", name, got, c.store.heals)
		}
		var want *owedLine
		if v.debt {
			want = &owedLine{v.known, v.was}
		}
		c.isOwed(name, want)
	}
}

// afterASurvey is a scene whose process has surveyed a store with a line that cannot be read, one that was mended,
// and one that nobody knows; it settles that.
func afterASurvey(t *testing.T) (*scene, func(context.Context, store) error) {
	t.Helper()
	c := newScene(t)
	c.joins(1)
	c.member(1, 2)
	c.put(driver.TableGuard, rowOwed+"tag/mended", driver.EncodeRow(owedLine{Pair{0, 9}, ofNumbers}))
	c.g.blocked = map[string]bool{"tag/mended": true}
	return c, func(ctx context.Context, s store) error {
		known := record{Lines: map[string]Pair{"tag/t": {0, 5}, "tag/mended": {0, 9}}, Defs: map[string]def{"tag/t": ofNumbers, "tag/mended": ofNumbers}}
		unread := map[string]bool{"tag/t": true, "tag/unknown": true}
		return c.g.settleUnread(ctx, s, known, unread, owedLines{"tag/mended": {Pair{0, 9}, ofNumbers}})
	}
}

// A survey has the store keep what is known of lines that it could not read, moves the number of changes after
// that, and takes back what was owed of lines that it has compared: a process that serves does.
func TestSettlesWhatIsOwed(t *testing.T) {
	c, settle := afterASurvey(t)
	if err := settle(t.Context(), c.store); err != nil {
		t.Fatal(err)
	}
	c.isOwed("what it knows", &owedLine{Pair{0, 5}, ofNumbers})
	if rows := []string{c.row(driver.TableGuard, rowOwed+"tag/unknown"), c.row(driver.TableGuard, rowOwed+"tag/mended")}; rows[0]+rows[1] != "" {
		t.Errorf("what nobody knows, and what was mended, is owed as %q", rows)
	}
	if n, err := driver.DecodeCounter(driver.TableGuard, driver.RowChanges, []byte(c.row(driver.TableGuard, driver.RowChanges))); err != nil || n != 1 {
		t.Errorf("the number of changes is %d, %v; want 1", n, err)
	}
	if !c.g.isBlocked("tag/t") || !c.g.isBlocked("tag/unknown") || c.g.isBlocked("tag/mended") || !c.g.blocks() {
		t.Errorf("blocked are %v", c.g.blocked)
	}
	owed := owedLines{"tag/t": {Pair{0, 5}, ofNumbers}}
	c.store.reset(0)
	if err := c.g.settleUnread(t.Context(), c.store, record{Lines: map[string]Pair{"tag/t": {0, 5}}}, map[string]bool{"tag/t": true}, owed); err != nil || len(c.store.made()) > 0 {
		t.Errorf("what is owed already: %v, calls %v; want none", err, c.store.made())
	}
	synctest.Test(t, func(t *testing.T) { failing(t, afterASurvey) })

	c, settle = afterASurvey(t)
	c.g.state = Joining
	c.store.reset(0)
	if err := settle(t.Context(), c.store); err != nil || len(c.store.made()) > 0 || !c.g.isBlocked("tag/t") {
		t.Errorf("a process that joins: %v, calls %v, blocked %v; want no call", err, c.store.made(), c.g.blocked)
	}
}

// What is owed of a line that was read stays for the account that owes it, until that has had the time to look:
// a process to which the row was never blocked takes back what it finds again as it was. It is owed as numbers
// that lie further apart, where this process knows those, and left alone where neither account is surer.
func TestLeavesWhatIsOwed(t *testing.T) {
	odd, wide := def{Delta: 2, Remainder: 1}, def{Delta: 4, Remainder: 1}
	for name, v := range map[string]struct {
		owed, known def
		want        []*owedLine // after each look
		changes     string
	}{
		"as it is known":    {odd, odd, []*owedLine{{Pair{0, 9}, odd}, nil}, ""},
		"nearer":            {odd, wide, []*owedLine{{Pair{1, 9}, wide}, {Pair{1, 9}, wide}, nil}, string(driver.EncodeCounter(1))},
		"with another rest": {odd, def{Delta: 2}, []*owedLine{{Pair{0, 9}, odd}, {Pair{0, 9}, odd}}, ""},
		"of another kind":   {ofTimes, odd, []*owedLine{{Pair{0, 9}, ofTimes}, {Pair{0, 9}, ofTimes}}, ""},
		"of another pool":   {def{Kind: hapax.KindSnowflake, Pool: "q"}, ofTimes, []*owedLine{{Pair{0, 9}, def{Kind: hapax.KindSnowflake, Pool: "q"}}}, ""},
	} {
		c := newScene(t)
		c.joins(1)
		c.member(1, 2)
		c.owed(owedLine{Pair{0, 9}, v.owed})
		for i, want := range v.want {
			owed, err := readOwed(t.Context(), c.store)
			if err != nil {
				t.Fatal(err)
			}
			known := record{Lines: map[string]Pair{"tag/t": {1, 5}}, Defs: map[string]def{"tag/t": v.known}}
			if err := c.g.settleUnread(t.Context(), c.store, known, nil, owed); err != nil {
				t.Fatal(err)
			}
			if err := c.g.settleUnread(t.Context(), c.store, known, nil, nil); err != nil { // a survey that does not look for it
				t.Fatal(err)
			}
			c.isOwed(fmt.Sprintf("%s: look %d", name, i), want)
		}
		if got := c.row(driver.TableGuard, driver.RowChanges); got != v.changes {
			t.Errorf("%s: the number of changes is %q", name, got)
		}
	}
}

// A line is blocked for all that look from then on, and not in what others have read before.
func TestBlocks(t *testing.T) {
	c := newScene(t)
	if c.g.block("tag/t"); !c.g.isBlocked("tag/t") || c.g.isBlocked("tag/u") {
		t.Errorf("blocked are %v; want tag/t", c.g.blocked)
	}
	before := maps.Clone(c.g.blocked)
	read := c.g.blocked
	if c.g.block("tag/u"); !c.g.isBlocked("tag/t") || !c.g.isBlocked("tag/u") || !maps.Equal(read, before) {
		t.Errorf("blocked are %v, and %v in what was read before", c.g.blocked, read)
	}
}

// A row of another kind than the tag had counts as unreadable, and the refusal tells what is known.
func TestKindsThatTagsHad(t *testing.T) {
	c := newScene(t)
	c.know(func(b *record) {
		b.Lines = map[string]Pair{"tag/numbers": {2, 500}, "tag/times": {}}
		b.Defs = map[string]def{"tag/numbers": ofNumbers, "tag/times": ofTimes}
	})
	for tag, want := range map[string]string{"numbers": `of a snowflake, and the tag is a segment`, "times": "", "unknown": ""} {
		err := c.g.wasSegment(tag)
		if got := isUnreadable(err); got != (want != "") || got && !strings.Contains(err.Error(), want) {
			t.Errorf("tag %s without numbers: %v; want %q", tag, err, want)
		}
	}
	cause := &driver.UnreadableError{Tag: "numbers", Cause: errInjected}
	if err := c.g.unreadable("tag/numbers", cause); !isUnreadable(err) || !strings.Contains(err.Error(), "below 500 were used, under token 2") || !c.g.isBlocked("tag/numbers") {
		t.Errorf("a line that is known: %v", err)
	}
	cause = &driver.UnreadableError{Tag: "unknown", Cause: errInjected}
	if err := c.g.unreadable("tag/unknown", cause); err != cause || !c.g.isBlocked("tag/unknown") {
		t.Errorf("a line that is not: %v", err)
	}
	if err := c.g.unreadable("tag/other", errInjected); err != errInjected || c.g.isBlocked("tag/other") {
		t.Errorf("another error: %v", err)
	}
}

// A list shows a tag of another kind as one that cannot be read, and all others as they are, a mended one among them.
func TestListsBesideABlockedRow(t *testing.T) {
	for name, v := range map[string]struct {
		blocked string
		kind    hapax.Kind
		want    hapax.Kind // of t
	}{
		"nothing is blocked": {"", hapax.KindSegment, hapax.KindSegment},
		"t was mended":       {"tag/t", hapax.KindSegment, hapax.KindSegment},
		"... as another":     {"tag/t", hapax.KindSnowflake, hapax.KindUnreadable},
		"... or not at all":  {"tag/t", hapax.KindUnreadable, hapax.KindUnreadable},
		"another is blocked": {"tag/x", hapax.KindSnowflake, hapax.KindUnreadable},
	} {
		c := newScene(t, func(b *record) { b.Lines = map[string]Pair{"tag/t": {0, 100}, "tag/u": {0, 20}} })
		c.tag("t", 100)
		c.tag("u", 20)
		c.ofKind(v.kind, "")
		if v.blocked != "" {
			c.g.block(v.blocked)
		}
		tags, err := c.g.Tags(t.Context(), "", 10)
		if err != nil || len(tags) != 2 || tags[0].Kind != v.want || v.want == hapax.KindUnreadable && tags[0] != (hapax.Tag{Name: "t", Kind: v.want}) && v.kind != v.want || tags[1].Kind != hapax.KindSegment || tags[1].Mark != 20 {
			t.Errorf("%s: listed are %+v, %v; want t as %s", name, tags, err, v.want)
		}
	}
}

// The row of a tag is looked at before a change of it where that is blocked, and only there.
func TestLooksBeforeAChange(t *testing.T) {
	c := newScene(t)
	c.tag("t", 500)
	if err := c.g.asBlocked(t.Context(), c.store, "t"); err != nil || countOf(c.store.made(), "tag t") > 0 {
		t.Errorf("a tag that is not blocked: %v, calls %v", err, c.store.made())
	}
	c.g.block("tag/t")
	if err := c.g.asBlocked(t.Context(), c.store, "t"); err != nil || countOf(c.store.made(), "tag t") != 1 {
		t.Errorf("a tag that was mended: %v, calls %v", err, c.store.made())
	}
	c.know(func(b *record) { b.Lines["tag/t"], b.Defs["tag/t"] = Pair{}, ofTimes })
	if err := c.g.asBlocked(t.Context(), c.store, "t"); !isUnreadable(err) {
		t.Errorf("a tag of another kind: %v", err)
	}
	c.store.reset(1)
	if err := c.g.asBlocked(t.Context(), c.store, "t"); !errors.Is(err, errInjected) {
		t.Errorf("a store that fails: %v", err)
	}
}

// countOf counts the calls of a name.
func countOf(calls []string, name string) (n int) {
	for _, call := range calls {
		if call == name {
			n++
		}
	}
	return n
}

// What a tag was tells the witness, or else what is owed; a command asks for that alone.
func TestWhatATagWas(t *testing.T) {
	c := newScene(t)
	c.joins(1)
	c.member(1, 2)
	one := &oneShot{c.store}
	for what, was := range map[string]func(context.Context, string) (hapax.Tag, bool, error){"node": c.g.Was, "command": one.Was} {
		if tag, known, err := was(t.Context(), "t"); known || err != nil {
			t.Errorf("a %s that nobody told anything: %+v, %v, %v", what, tag, known, err)
		}
	}
	c.owed(owedLine{Pair{0, 5}, ofTimes})
	for what, was := range map[string]func(context.Context, string) (hapax.Tag, bool, error){"node": c.g.Was, "command": one.Was} {
		if tag, known, err := was(t.Context(), "t"); !known || err != nil || tag.Name != "t" || tag.Kind != hapax.KindSnowflake || tag.Pool != "p" {
			t.Errorf("a %s by what is owed: %+v, %v, %v", what, tag, known, err)
		}
		c.store.reset(1)
		if _, known, err := was(t.Context(), "t"); known || !errors.Is(err, errInjected) {
			t.Errorf("a %s on a store that fails: %v, %v", what, known, err)
		}
		c.store.reset(0)
	}
	c.know(func(b *record) { b.Lines["tag/t"], b.Defs["tag/t"] = Pair{0, 5}, ofNumbers })
	c.store.reset(0)
	if tag, known, err := c.g.Was(t.Context(), "t"); !known || err != nil || tag.Kind != hapax.KindSegment || len(c.store.made()) > 0 {
		t.Errorf("by the witness: %+v, %v, %v, calls %v", tag, known, err, c.store.made())
	}
}

// A command is granted nothing of a row below what is owed, or of another kind.
func TestCommandsAndWhatIsOwed(t *testing.T) {
	c := newScene(t)
	c.owed(owedLine{Pair{2, 100}, def{}})
	o := &oneShot{c.store}
	grant := func(token, lo int64) hapax.Allocation {
		return hapax.Allocation{Tag: hapax.Tag{Name: "t", Kind: hapax.KindSegment, Token: token}, Grant: hapax.Grant{Lo: lo, Hi: lo + 1}}
	}
	for _, v := range []struct {
		token, lo int64
		want      error
	}{{2, 100, nil}, {2, 101, nil}, {3, 1, nil}, {2, 99, hapax.ErrStoreRolledBack}, {1, 200, hapax.ErrStoreRolledBack}} {
		if err := o.judgeOwed(t.Context(), "t", grant(v.token, v.lo)); !errors.Is(err, v.want) {
			t.Errorf("granted from %d under token %d: %v; want %v", v.lo, v.token, err, v.want)
		}
	}
	a := grant(2, 100)
	a.Tag.Kind, a.Tag.Pool = hapax.KindSnowflake, "p"
	if err := o.judgeOwed(t.Context(), "t", a); !isUnreadable(err) {
		t.Errorf("a row of another kind: %v", err)
	}
}
