package witness

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
)

// Who is missing follows from what was said and from what the store shows.
func TestWhoIsMissing(t *testing.T) {
	a, b, c := rowOf(1, "A"), rowOf(2, "B"), rowOf(3, "C")
	mine := func(row string, grants int64) evidence {
		return evidence{Own: map[string]own{row: {Count: 2, Grants: grants}}}
	}
	sees := func(finder bool, row string, p peer) evidence {
		return evidence{Finder: finder, Own: map[string]own{a: {Count: 1}}, Peers: map[string]peer{row: p}}
	}
	for name, v := range map[string]struct {
		h    inquiry
		want []string // as which one they joined, and how many grants are known
	}{
		"nobody":                                         {inquiry{}, nil},
		"a row of the store":                             {inquiry{present: map[string]peer{a: {Grants: 7}}}, []string{"1:7"}},
		"it speaks":                                      {inquiry{present: map[string]peer{a: {Grants: 7}}, said: map[string]evidence{"A": mine(a, 7)}}, nil},
		"it knows less than others":                      {inquiry{present: map[string]peer{a: {Grants: 7}}, said: map[string]evidence{"A": mine(a, 6)}}, []string{"1:7"}},
		"... but for what it had asked for":              {inquiry{present: map[string]peer{a: {Grants: 7}}, said: map[string]evidence{"A": {Own: map[string]own{a: {Count: 2, Grants: 6, Asked: 7}}}}}, nil},
		"a copy of it speaks":                            {inquiry{present: map[string]peer{a: {}}, said: map[string]evidence{"A": {Own: map[string]own{a: {Count: 2, Copied: true}}}}}, []string{"1:0"}},
		"two speak, the one knows enough":                {inquiry{present: map[string]peer{a: {Grants: 7}}, said: map[string]evidence{"A": mine(a, 7), "B": mine(a, 3)}}, nil},
		"... in the other order":                         {inquiry{present: map[string]peer{a: {Grants: 7}}, said: map[string]evidence{"A": mine(a, 3), "B": mine(a, 7)}}, nil},
		"a witness file speaks":                          {inquiry{present: map[string]peer{a: {Grants: 7}}, files: map[string]evidence{"f": mine(a, 7)}}, nil},
		"an operator speaks":                             {inquiry{present: map[string]peer{a: {Grants: 7}}, stated: map[string]statement{a: {}}}, nil},
		"a finder that nobody knows":                     {inquiry{fence: &Fence{Found: map[string]int64{a: 3}}}, []string{"1:0"}},
		"a finder without a row":                         {inquiry{fence: &Fence{Found: map[string]int64{"RUN": 0}}}, nil},
		"another saw it live":                            {inquiry{said: map[string]evidence{"A": sees(true, b, peer{Grants: 4})}}, []string{"2:4"}},
		"a finder saw it end":                            {inquiry{said: map[string]evidence{"A": sees(true, b, peer{Grants: 4, How: "left"})}}, nil},
		"... with fewer grants than there are":           {inquiry{present: map[string]peer{b: {Grants: 5}}, said: map[string]evidence{"A": sees(true, b, peer{Grants: 4, How: "left"})}}, []string{"2:5"}},
		"one that is no finder saw it end":               {inquiry{said: map[string]evidence{"A": sees(false, b, peer{Grants: 4, How: "silent"})}}, []string{"2:4"}},
		"its heartbeats were seen":                       {inquiry{said: map[string]evidence{"A": {Own: map[string]own{a: {Count: 1}}, Seen: map[string]int64{b: 9}}, "B": mine(b, 8)}}, []string{"2:9"}},
		"a number that is not accounted for":             {inquiry{said: map[string]evidence{"A": mine(a, 0)}, joins: 2}, []string{"2:0"}},
		"... of which a witness tells":                   {inquiry{said: map[string]evidence{"A": {Own: map[string]own{a: {Count: 1}}, Joins: 2}}}, []string{"2:0"}},
		"... below a row that is there":                  {inquiry{said: map[string]evidence{"C": mine(c, 0)}}, []string{"1:0", "2:0"}},
		"... for which an operator speaks":               {inquiry{said: map[string]evidence{"A": mine(a, 0)}, joins: 2, stated: map[string]statement{rowName(2, ""): {}}}, nil},
		"... and whose registration may have failed":     {inquiry{said: map[string]evidence{"A": mine(a, 0), "C": {Own: map[string]own{b: {Asked: 64}, c: {Count: 1}}}}}, []string{"2:0"}},
		"... but for one that another surveyed":          {inquiry{said: map[string]evidence{"A": sees(false, b, peer{Count: 1}), "C": {Own: map[string]own{b: {Asked: 64}, c: {Count: 1}}}}}, nil},
		"... with a number that nobody is known to have": {inquiry{said: map[string]evidence{"A": {Own: map[string]own{a: {Count: 1}, c: {Asked: 64}}}}}, nil},
		"compacted before":                               {inquiry{said: map[string]evidence{"A": {Finder: true, Compacted: 2, Own: map[string]own{c: {Count: 1}}}}, present: map[string]peer{b: {Grants: 5}}}, nil},
		"... as one that is no finder says":              {inquiry{said: map[string]evidence{"A": {Compacted: 2, Own: map[string]own{c: {Count: 1}}}}, present: map[string]peer{b: {Grants: 5}}}, []string{"1:0", "2:5"}},
		"the row of commands":                            {inquiry{present: map[string]peer{rowCommands: {Grants: 5}}}, nil},
	} {
		h := v.h
		if h.fence == nil {
			h.fence = &Fence{}
		}
		got := h.findMissing()
		var names []string
		for _, n := range got.missing {
			names = append(names, fmt.Sprintf("%d:%d", joinOf(n.Row), n.Grants))
			if n.State != "missing" {
				t.Errorf("%s: the state is %q", name, n.State)
			}
		}
		if !slices.Equal(names, v.want) {
			t.Errorf("%s: missing are %v; want %v", name, names, v.want)
		}
	}
}

// An account is the sum of all statements, and of the acts of operators and the store.
func TestAccountIsTheSum(t *testing.T) {
	a, b := rowOf(1, "A"), rowOf(5, "B")
	h := inquiry{
		fence: &Fence{}, joins: 2, stated: map[string]statement{b: {Floor: 3}},
		present: map[string]peer{a: {Name: "a", Address: "at-a"}},
		said: map[string]evidence{
			"A": {Own: map[string]own{rowOf(9, "A"): {Asked: 64}}, Stores: []string{"s1"}, Decision: 3, Joins: 1, Lines: map[string]Pair{"tag/t": {1, 9}}, Defs: map[string]def{"tag/t": {Start: 2}}},
			"B": {Own: map[string]own{b: {Count: 1}}, Stores: []string{"s2"}, Decision: 2, Manual: true, Lines: map[string]Pair{"tag/t": {2, 5}, "tag/u": {0, 1}}},
		},
		files: map[string]evidence{"f": {Own: map[string]own{}, Lines: map[string]Pair{"tag/v": {0, 8}}}},
	}
	got := h.findMissing()
	if !slices.Equal(got.heard, []string{"A", "B"}) || !slices.Equal(got.stores, []string{"s1", "s2"}) || got.joins != 5 || got.decision != 3 || !got.manual || got.statements[b].Floor != 3 {
		t.Errorf("the account is %+v", got)
	}
	if want := map[string]Pair{"tag/t": {2, 9}, "tag/u": {0, 1}, "tag/v": {0, 8}}; !maps.Equal(got.lines.pairs, want) || got.lines.defs["tag/t"].Start != 2 {
		t.Errorf("the lines are %v; want %v", got.lines.pairs, want)
	}
	if n := got.missing[0]; n.Name != "a" || n.Address != "at-a" {
		t.Errorf("the first that is missing is %+v; want a with its address", n)
	}
	h.manual, h.said = true, nil
	if !h.findMissing().manual {
		t.Error("a row in the store wants a person, and the account does not")
	}
}

// Of a line that processes know as two kinds, the kind counts of the one that knows more numbers, in
// whatever order they are heard.
func TestLearnsTheSurerKind(t *testing.T) {
	const line = "tag/t"
	segment, flake := def{}, def{Kind: hapax.KindSnowflake, Pool: "p"}
	for name, v := range map[string]struct {
		segment, flake Pair
		want           def
	}{
		"the segment": {Pair{1, 9}, Pair{2, 5}, segment},
		"the other":   {Pair{2, 5}, Pair{1, 9}, flake},
	} {
		for _, first := range []bool{false, true} {
			a := &account{lines: newLines()}
			tell := func(d def, p Pair) { a.learn(map[string]Pair{line: p}, map[string]def{line: d}) }
			if first {
				tell(segment, v.segment)
			}
			tell(flake, v.flake)
			if !first {
				tell(segment, v.segment)
			}
			if got := a.lines.defs[line]; got.isAnother(v.want) || a.lines.pairs[line] != (Pair{2, 9}) {
				t.Errorf("%s knows more, and is first: %v: it is %+v, %v", name, first, got, a.lines.pairs[line])
			}
		}
	}
	alone := &account{lines: newLines()} // a tag without numbers of its own
	if alone.learn(map[string]Pair{line: {}}, map[string]def{line: flake}); alone.lines.defs[line] != flake {
		t.Errorf("of a kind that one process alone knows: %+v", alone.lines.defs[line])
	}
	if got := segment.was("t"); got.Kind != hapax.KindSegment || got.Name != "t" {
		t.Errorf("a segment tag was %+v", got)
	}
	if segment.kind() != "segment" || flake.kind() != `snowflake of pool "p"` {
		t.Errorf("the kinds are %s, %s", segment.kind(), flake.kind())
	}
}

// Of numbers of a line that differ those count that lie further apart, whoever knows more of them, in
// whatever order they are heard, and also where they are owed.
func TestLearnsTheSurerNumbers(t *testing.T) {
	const line = "tag/t"
	odd := def{Delta: 2, Remainder: 1}
	for _, other := range []def{{}, {Delta: 2}, {Delta: 4, Remainder: 1}} {
		want := odd
		if other.Delta != 2 {
			want = []def{odd, other}[other.Delta/4]
		}
		for _, further := range []def{odd, other} {
			if other.Delta == odd.Delta { // neither is safe for the other one's region
				want = further
			}
			less, more := owedLine{Pair{1, 5}, odd}, owedLine{Pair{1, 9}, other}
			if further == odd {
				less, more = owedLine{Pair{1, 5}, other}, owedLine{Pair{1, 9}, odd}
			}
			for _, told := range [][]owedLine{{less, more}, {more, less}} {
				a := &account{lines: newLines()}
				for _, o := range told {
					a.learn(map[string]Pair{line: o.Pair}, map[string]def{line: o.Def})
				}
				if got := a.lines.defs[line]; got != want || a.lines.pairs[line] != more.Pair {
					t.Errorf("told of %+v: %+v, %v; want %+v", told, got, a.lines.pairs[line], want)
				}
				known := record{Lines: map[string]Pair{line: told[0].Pair}, Defs: map[string]def{line: told[0].Def}}
				pairs, defs := owedLines{line: told[1]}.newTo(known)
				maps.Copy(known.Lines, pairs)
				maps.Copy(known.Defs, defs)
				if got := known.Defs[line]; got != want || known.Lines[line] != more.Pair {
					t.Errorf("owed after %+v: %+v, %v; want %+v", told, got, known.Lines[line], want)
				}
			}
		}
	}
}

// What a process says arrives as it is, in however many parts it stands in the store, and
// not at all where a part is missing or of an earlier account.
func TestEvidenceArrivesWhole(t *testing.T) {
	c := newScene(t)
	r := newRecord()
	for i := range 3000 {
		r.Lines[fmt.Sprintf("tag/%04d-%s", i, strings.Repeat("x", 60))] = Pair{1, int64(i)}
	}
	r.Lines[WorkerLine("p", 1)], r.Lines["tag/t"], r.Lines["tag/usual"] = Pair{2, 3}, Pair{4, 5}, Pair{0, 1}
	r.Defs = map[string]def{poolDef("p"): {Layout: "leaf"}, "tag/t": {Start: 3}, "tag/usual": {}}
	r.Own, r.Peers = map[string]own{rowOf(1, "A"): {Count: 3, Grants: 2}}, map[string]peer{rowOf(2, "B"): {Name: "b", Grants: 4, Count: 8, Every: 1000, How: "left"}}
	r.Store, r.Former, r.Joins, r.Compacted, r.Decision, r.Latch = "s", []string{"f"}, 7, 1, &decisionID{4, "d"}, &latch{State: Refusing}
	e := evidenceOf(r)
	e.Manual, e.Seen = true, map[string]int64{rowOf(2, "B"): 4, rowOf(3, "C"): 1}
	parts := e.parts(r)
	if len(parts) < 3 {
		t.Fatalf("it has %d parts; want more", len(parts))
	}
	if err := publish(t.Context(), c.store, "W/A/", parts); err != nil {
		t.Fatal(err)
	}
	read := func() (evidence, bool) {
		t.Helper()
		all, err := readEvidence(t.Context(), c.store, "W/")
		if err != nil || len(all) > 1 {
			t.Fatal(len(all), err)
		}
		got, ok := all["A"]
		return got, ok
	}
	got, ok := read()
	if !ok || !maps.Equal(got.Lines, r.Lines) || !maps.Equal(got.Own, r.Own) {
		t.Fatalf("it arrives: %v, with %d lines", ok, len(got.Lines))
	}
	if want := (peer{Name: "b", Grants: 4, How: "left"}); got.Peers[rowOf(2, "B")] != want || !maps.Equal(got.Seen, map[string]int64{rowOf(3, "C"): 1}) {
		t.Errorf("of others it says %v, seen %v; want %v, and what is more than that", got.Peers, got.Seen, want)
	}
	if want := map[string]def{poolDef("p"): {Layout: "leaf"}, "tag/t": {Start: 3}}; !maps.Equal(got.Defs, want) {
		t.Errorf("its lines are made anew from %v; want %v", got.Defs, want)
	}
	if !got.Manual || !got.Finder || got.Decision != 4 || got.Joins != 7 || got.Compacted != 1 || !slices.Equal(got.Stores, []string{"s", "f"}) {
		t.Errorf("of itself it says %+v", evidence{Manual: got.Manual, Finder: got.Finder, Decision: got.Decision, Joins: got.Joins, Compacted: got.Compacted, Stores: got.Stores})
	}
	last := partName("W/A/", len(parts)-1)
	whole := c.row(driver.TableEvidence, last)
	c.put(driver.TableEvidence, last, nil)
	if _, ok := read(); ok {
		t.Error("it is heard although a part is missing")
	}
	c.put(driver.TableEvidence, last, []byte(whole))
	r.Lines["tag/t"] = Pair{4, 6} // it knows more now, and its first part is not written yet
	again := e.parts(r)
	if parts[0].Sum == again[0].Sum || parts[0].Sum == "" {
		t.Error("another account has the same sum")
	}
	c.putJSON(driver.TableEvidence, last, again[len(again)-1])
	if _, ok := read(); ok {
		t.Error("it is heard although a part is of another account")
	}
	c.put(driver.TableEvidence, partName("W/A/", 0), nil)
	c.put(driver.TableEvidence, last, []byte(whole))
	if _, ok := read(); ok {
		t.Error("it is heard although its first part is missing")
	}
}

// Evidence of many processes is read page by page.
func TestEvidenceOfMany(t *testing.T) {
	for _, n := range []int{99, 100, 101, 200} {
		c := newScene(t)
		for i := range n {
			if err := publish(t.Context(), c.store, fmt.Sprintf("W/%03d/", i), evidence{Joins: 1}.parts(newRecord())); err != nil {
				t.Fatal(err)
			}
		}
		c.put(driver.TableEvidence, "X/other/000000000", []byte(`{"parts":1}`))
		if all, err := readEvidence(t.Context(), c.store, "W/"); err != nil || len(all) != n {
			t.Errorf("%d of %d are heard, %v", len(all), n, err)
		}
	}
}

// What a node says stands in the store under the word that was asked with, also after a copy
// of the store that holds less; what stands there already is not written again.
func TestGivesEvidence(t *testing.T) {
	c, f, _ := lostScene(t)
	c.g.opts.Manual = true
	c.g.peers[rowOf(9, "C")] = &sighting{beat: driver.Beat{Count: 3, Grants: 6}}
	c.g.me.acked, c.g.me.beat = driver.Beat{Count: 12, Grants: 5}, driver.Beat{Count: 14, Grants: 6}
	give := func() (writes int) {
		t.Helper()
		c.store.reset(0)
		if err := c.g.giveEvidence(t.Context(), c.store, f.Ask); err != nil {
			t.Fatal(err)
		}
		for _, call := range c.store.made() {
			if strings.HasPrefix(call, "swap") {
				writes++
			}
		}
		return writes
	}
	if n := give(); n < 2 {
		t.Fatalf("it wrote %d rows", n)
	}
	all, err := readEvidence(t.Context(), c.store, f.Ask+"/")
	e := all[theRun]
	if err != nil || !e.Manual || !e.Finder || e.Seen[rowOf(9, "C")] != 6 || e.Own[c.g.me.row] != (own{Count: 12, Grants: 5, Asked: 6}) || e.Lines["tag/t"].Mark != 5000 {
		t.Errorf("it says %+v, %v", e, err)
	}
	if n := give(); n != 0 || len(c.store.made()) != 1 {
		t.Errorf("what stands there was written again, %d rows", n)
	}
	c.put(driver.TableEvidence, partName(f.Ask+"/"+theRun+"/", 0), nil)
	if n := give(); n != 1 {
		t.Errorf("after a copy without it %d rows were written; want the first", n)
	}
	c.g.said = spoken{"OTHER", c.g.said.first}
	c.store.reset(0)
	if give() != 0 || len(c.store.made()) < 3 {
		t.Errorf("under another word it was not looked at: %v", c.store.made())
	}
	c.store.before = func(call string) { // its state changes meanwhile: it may know more
		if strings.HasPrefix(call, "swap") {
			c.g.mu.Lock()
			c.g.changed, c.g.said = make(chan struct{}), spoken{}
			c.g.mu.Unlock()
		}
	}
	c.put(driver.TableEvidence, partName(f.Ask+"/"+theRun+"/", 0), nil)
	give()
	c.store.before = nil
	c.store.reset(0)
	give()
	if len(c.store.made()) < 3 {
		t.Errorf("what may be more now was not looked at again: %v", c.store.made())
	}
}

// A node that is behind adds itself to those who must speak, by all rows under which it may
// have been granted something; what was asked before counts no longer.
func TestFindsItselfBehind(t *testing.T) {
	c, _, _ := lostScene(t)
	other, first := rowOf(7, "C"), rowOf(8, "D")
	c.know(func(b *record) {
		b.Own[other] = own{Count: 2}
		b.Own[first] = own{Count: 1} // its first heartbeat may never have arrived
	})
	f, raw := c.fence(Fence{
		ID: "F", Ask: "ASK", Healer: "H", Raised: "R", Missing: []Node{{Row: "x"}}, More: 3, Approved: true, Manual: true,
		Found: map[string]int64{c.g.me.row: 4, rowOf(9, "E"): 5}, Stores: []string{"theirs"},
	})
	changed, err := c.g.findOwn(t.Context(), c.store, f, raw)
	if err != nil || !changed {
		t.Fatal(changed, err)
	}
	got := c.standing()
	if want := map[string]int64{c.g.me.row: 9, rowOf(9, "E"): 5, other: 2}; !maps.Equal(got.Found, want) {
		t.Errorf("those who must speak are %v; want %v", got.Found, want)
	}
	stores := append([]string{"theirs"}, c.g.witness.stores()...)
	slices.Sort(stores)
	if !slices.Equal(got.Stores, stores) || len(stores) != 3 {
		t.Errorf("the stores are %v; want %v", got.Stores, stores)
	}
	if got.Ask != "" || got.Healer != "" || got.Raised != "" || len(got.Missing) != 0 || got.More != 0 || got.Approved || !got.Manual {
		t.Errorf("of what was asked before there is still %+v", got)
	}
	f, raw, err = readFence(t.Context(), c.store)
	if changed, err2 := c.g.findOwn(t.Context(), c.store, f, raw); err != nil || err2 != nil || changed {
		t.Errorf("it adds itself again: %v, %v, %v", changed, err, err2)
	}
	if found := newScene(t).g.finders(map[string]int64{"x": 3}); !maps.Equal(found, map[string]int64{"x": 3, theRun: 0}) {
		t.Errorf("a process without a row adds %v; want itself", found)
	}
}

// The store is behind if it lacks a decision, a heartbeat, a join or a row that the node
// knows; a decision that the node does not know explains all of it.
func TestJudgesTheStore(t *testing.T) {
	b := rowOf(2, "B")
	for name, v := range map[string]struct {
		change func(c *scene)
		want   string // empty: it is not behind
	}{
		"nothing is missing":                {func(*scene) {}, ""},
		"a decision":                        {func(c *scene) { c.know(func(r *record) { r.Decision = &decisionID{5, "X"} }) }, "lacks decision 5"},
		"the one known and not that before": {func(c *scene) { c.decided(5, nil); c.know(func(r *record) { r.Decision = &decisionID{5, "D"} }) }, ""},
		"a lower decision":                  {func(c *scene) { c.decided(4, nil); c.know(func(r *record) { r.Decision = &decisionID{5, "X"} }) }, "lacks decision 5"},
		"an own heartbeat":                  {func(c *scene) { c.g.me.acked.Count = 10 }, "has this node's heartbeat 9, and has acknowledged 10"},
		"its own row":                       {func(c *scene) { c.put(driver.TableBeats, c.g.me.row, nil) }, "lacks this node's row"},
		"... that was compacted": {func(c *scene) {
			c.put(driver.TableBeats, c.g.me.row, nil)
			c.put(driver.TableGuard, rowCompacted, driver.EncodeCounter(1))
		}, ""},
		"joins":          {func(c *scene) { c.joins(1) }, "1 nodes have joined it, and 2 had"},
		"a surveyed row": {func(c *scene) { c.put(driver.TableBeats, b, nil) }, "lacks the row " + b},
		"... that was compacted since": {func(c *scene) {
			c.put(driver.TableBeats, b, nil)
			c.put(driver.TableGuard, rowCompacted, driver.EncodeCounter(2))
		}, ""},
		"heartbeats of a surveyed row": {func(c *scene) { c.peer(b, "b", driver.Beat{Count: 2}, "") }, `has heartbeat 2 of "b", and had 3`},
		"as many of it":                {func(c *scene) { c.peer(b, "b", driver.Beat{Count: 3}, "") }, ""},
		"all, after a decision":        {func(c *scene) { c.joins(1); c.put(driver.TableBeats, b, nil); c.decided(1, nil) }, ""},
	} {
		c, _, _ := lostScene(t)
		v.change(c)
		cause, err := c.g.judgeAll(t.Context(), c.store)
		if err != nil || (cause != nil) != (v.want != "") || cause != nil && !strings.Contains(cause.Error(), v.want) {
			t.Errorf("%s: %v, %v; want %q", name, cause, err, v.want)
		}
	}
}

// Only rows under which something may have been granted judge, and of those the latest.
func TestLatestRowJudges(t *testing.T) {
	c := newScene(t)
	c.peer(rowOf(2, "A"), "a", driver.Beat{Count: 5}, "left")
	for name, v := range map[string]struct {
		rows   map[string]own
		behind bool
	}{
		"none":                          {nil, false},
		"a row that never arrived":      {map[string]own{rowOf(9, "A"): {Count: 1}}, false},
		"one that did":                  {map[string]own{rowOf(9, "A"): {Count: 2}}, true},
		"an earlier one is behind":      {map[string]own{rowOf(1, "A"): {Count: 2}, rowOf(2, "A"): {Count: 5}}, false},
		"the latest is":                 {map[string]own{rowOf(1, "A"): {Count: 2}, rowOf(2, "A"): {Count: 6}}, true},
		"the latest is as it should be": {map[string]own{rowOf(2, "A"): {Count: 5}}, false},
	} {
		cause, err := c.g.judgeLatest(t.Context(), c.store, v.rows)
		if err != nil || (cause != nil) != v.behind {
			t.Errorf("%s: %v, %v; want behind: %v", name, cause, err, v.behind)
		}
	}
}

// However many spoke, and for however many operators did, a decision is read as it was made.
func TestDecisionOfManyRows(t *testing.T) {
	c := newScene(t)
	stated := map[string]statement{}
	for _, row := range manyRuns()[:2] {
		stated[row] = statement{Floor: 5}
	}
	for name, change := range map[string]func(*decision){
		"few":        func(d *decision) {},
		"many spoke": func(d *decision) { d.Heard = append(manyRuns(), manyRuns()...) },
		"many were spoken for": func(d *decision) {
			d.Stated = map[string]statement{}
			for _, row := range manyRuns() {
				d.Stated[row] = statement{Floor: 9}
			}
		},
		"none": func(d *decision) { d.Heard, d.Stated = nil, nil },
		"both": func(d *decision) { d.Heard, d.Stated = manyRuns(), stated },
	} {
		want := c.decided(1, change)
		d, raw, err := readDecision(t.Context(), c.store)
		if err == nil {
			err = d.complete(t.Context(), c.store)
		}
		if err != nil || !slices.Equal(d.Heard, want.Heard) || !maps.EqualFunc(d.Stated, want.Stated, func(x, y statement) bool { return x.Floor == y.Floor }) || d.Stated == nil {
			t.Errorf("%s: %d spoke and %d were spoken for, %v; want %d and %d", name, len(d.Heard), len(d.Stated), err, len(want.Heard), len(want.Stated))
		}
		if len(raw) > driver.MaxValueBytes/2 {
			t.Errorf("%s: the first row has %d bytes", name, len(raw))
		}
	}
	d := c.decided(2, func(d *decision) { d.Heard = manyRuns() })
	c.put(driver.TableGuard, partName(d.prefix(), 0), nil)
	read, _, err := readDecision(t.Context(), c.store)
	if err == nil {
		err = read.complete(t.Context(), c.store)
	}
	if err == nil || !strings.Contains(err.Error(), "another decision was made") {
		t.Errorf("a decision of which a row is gone: %v", err)
	}
}

// What operators said reaches tags that have segments, and timelines as far ahead as they
// said.
func TestWhatAStatementAssumes(t *testing.T) {
	at := time.Now()
	defs := map[string]def{"tag/flake": {Kind: hapax.KindSnowflake}, poolDef("p"): {Layout: "leaf"}}
	layout, err := hapax.ParseLayout("leaf")
	if err != nil {
		t.Fatal(err)
	}
	tick, err := layout.TickOf(at.Add(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	for name, v := range map[string]struct {
		st   statement
		line string
		want int64
	}{
		"a tag":                       {statement{Floor: 7}, "tag/t", 7},
		"a tag of a pool":             {statement{Floor: 7}, "tag/flake", 0},
		"a worker":                    {statement{Floor: 7, Ahead: time.Hour, At: at}, WorkerLine("p", 1), tick},
		"a worker without a lead":     {statement{Floor: 7, At: at}, WorkerLine("p", 1), 0},
		"a worker of an unknown pool": {statement{Floor: 7, Ahead: time.Hour, At: at}, WorkerLine("q", 1), 0},
		"before the layout's time":    {statement{Floor: 7, Ahead: time.Hour, At: time.Unix(0, 0)}, WorkerLine("p", 1), 0},
	} {
		if got := v.st.assumed(v.line, defs); got != v.want {
			t.Errorf("%s: %d; want %d", name, got, v.want)
		}
	}
	known := lines{map[string]Pair{"tag/t": {0, 5}, "tag/flake": {0, 90}, WorkerLine("p", 1): {0, 80}, "tag/u": {0, 9}}, defs}
	if mark, tag := highest(known, lines{map[string]Pair{"tag/v": {0, 9}}, nil}); mark != 9 || tag != "u" {
		t.Errorf("the highest mark is %d of %q; want 9 of u", mark, tag)
	}
}
