package witness

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
)

// A node need not wait only if nobody can have been granted anything since it left.
func TestNobodyWasThereMeanwhile(t *testing.T) {
	mine, theirs := rowOf(3, "R"), rowOf(2, "B")
	gone := departure{Row: mine, Joins: 3, Boot: "boot", Up: 10_000}
	for name, v := range map[string]struct {
		change func(c *scene, d *departure, joins *int64)
		boot   string
		up     int64
		want   bool
	}{
		"it was the last one":        {func(*scene, *departure, *int64) {}, "boot", 12_000, true},
		"away for as long":           {func(*scene, *departure, *int64) {}, "boot", 15_000, true},
		"away for longer":            {func(*scene, *departure, *int64) {}, "boot", 15_001, false},
		"at once":                    {func(*scene, *departure, *int64) {}, "boot", 10_000, true},
		"the clock went back":        {func(*scene, *departure, *int64) {}, "boot", 9_999, false},
		"the machine was restarted":  {func(*scene, *departure, *int64) {}, "another", 12_000, false},
		"nothing tells that":         {func(_ *scene, d *departure, _ *int64) { d.Boot = "" }, "", 12_000, false},
		"it never left":              {func(_ *scene, d *departure, _ *int64) { d.Row = "" }, "boot", 12_000, false},
		"another has joined":         {func(_ *scene, _ *departure, joins *int64) { *joins = 4 }, "boot", 12_000, false},
		"fewer have joined":          {func(_ *scene, _ *departure, joins *int64) { *joins = 2 }, "boot", 12_000, false},
		"another lives":              {func(c *scene, _ *departure, _ *int64) { c.peer(theirs, "b", driver.Beat{Count: 3}, "") }, "boot", 12_000, false},
		"another has fallen silent":  {func(c *scene, _ *departure, _ *int64) { c.peer(theirs, "b", driver.Beat{Count: 3}, "silent") }, "boot", 12_000, true},
		"its row is gone":            {func(c *scene, _ *departure, _ *int64) { c.put(driver.TableBeats, mine, nil) }, "boot", 12_000, false},
		"its row lives":              {func(c *scene, _ *departure, _ *int64) { c.peer(mine, "me", driver.Beat{Count: 9}, "") }, "boot", 12_000, false},
		"its row was marked silent":  {func(c *scene, _ *departure, _ *int64) { c.peer(mine, "me", driver.Beat{Count: 9}, "silent") }, "boot", 12_000, false},
		"its row is of another beat": {func(c *scene, _ *departure, _ *int64) { c.peer(mine, "me", driver.Beat{Count: 8}, "left") }, "boot", 12_000, false},
	} {
		c := newScene(t)
		c.peer(mine, "me", driver.Beat{Count: 9}, "left")
		c.peer(theirs, "b", driver.Beat{Count: 3}, "left")
		d, joins := gone, int64(3)
		v.change(c, &d, &joins)
		SetUptime(t, func() (string, int64) { return v.boot, v.up })
		alone, err := c.g.isAlone(t.Context(), c.store, record{Left: &d, Own: map[string]own{mine: {Count: 9}}}, joins)
		if err != nil || alone != v.want {
			t.Errorf("%s: alone %v, %v; want %v", name, alone, err, v.want)
		}
	}
	c := newScene(t)
	if alone, err := c.g.isAlone(t.Context(), c.store, record{}, 0); alone || err != nil {
		t.Errorf("one that never left: %v, %v", alone, err)
	}
	c.peer(mine, "me", driver.Beat{Count: 9}, "left")
	SetUptime(t, func() (string, int64) { return "boot", 12_000 })
	for n := 1; ; n++ {
		c.store.reset(n)
		_, err := c.g.isAlone(t.Context(), c.store, record{Left: &gone, Own: map[string]own{mine: {Count: 9}}}, 3)
		if len(c.store.made()) < n {
			break
		}
		if !errors.Is(err, errInjected) {
			t.Errorf("call %d fails: %v", n, err)
		}
	}
	c.store.reset(0)
	c.put(driver.TableBeats, mine, []byte("~"))
	if _, err := c.g.isAlone(t.Context(), c.store, record{Left: &gone}, 3); !errors.Is(err, hapax.ErrStoreCorrupt) {
		t.Errorf("a row that is none: %v", err)
	}
}

// Nobody is waited for longer than for others: an earlier row of the directory is closed where
// the witness knows all that was granted under it, and no other row is.
func TestClosesEarlierRows(t *testing.T) {
	row := rowOf(2, "E")
	for name, v := range map[string]struct {
		beat driver.Beat
		how  string
		own  own
		want string // how it ends
	}{
		"as it was left":       {driver.Beat{Count: 5, Grants: 3}, "", own{Count: 5, Grants: 3}, "left"},
		"within what it asked": {driver.Beat{Count: 5, Grants: 3}, "", own{Count: 5, Grants: 2, Asked: 3}, "left"},
		"further":              {driver.Beat{Count: 5, Grants: 4}, "", own{Count: 5, Grants: 2, Asked: 3}, ""},
		"further than a copy":  {driver.Beat{Count: 5, Grants: 3}, "", own{Count: 5, Grants: 2, Asked: 3, Copied: true}, ""},
		"it has fallen silent": {driver.Beat{Count: 5, Grants: 3}, "silent", own{Count: 5, Grants: 3}, "silent"},
	} {
		c := newScene(t)
		c.joins(3)
		mine := c.member(3, 2)
		c.peer(row, "me before", v.beat, v.how)
		c.know(func(b *record) { b.Own = map[string]own{row: v.own, mine: {Count: 2}, rowOf(1, "G"): {Count: 2}} })
		if err := c.g.closeEarlier(t.Context(), c.store); err != nil {
			t.Fatal(name, err)
		}
		beat, how, err := driver.DecodeBeat(row, []byte(c.row(driver.TableBeats, row)))
		if err != nil || how != v.want || beat != v.beat {
			t.Errorf("%s: it ends as %q at %+v, %v; want %q", name, how, beat, err, v.want)
		}
		if _, how, err := driver.DecodeBeat(mine, []byte(c.row(driver.TableBeats, mine))); err != nil || how != "" {
			t.Errorf("%s: its own row ends as %q, %v", name, how, err)
		}
	}
}

// A row that the store never had is written as ended, so that others can attest for it: unless it
// has arrived once, was removed, may have gone on under a copy's original, or has a number that may
// be given anew.
func TestClosesRowsThatNeverArrived(t *testing.T) {
	for name, v := range map[string]struct {
		join      int64
		own       own
		compacted int64
		written   bool
	}{
		"it never arrived":           {2, own{Count: 1, Asked: askAhead}, 1, true},
		"another took its number":    {3, own{Count: 1, Asked: askAhead}, 0, true},
		"it was acknowledged":        {2, own{Count: 2, Asked: askAhead}, 1, false},
		"it was removed":             {2, own{Count: 1, Asked: askAhead}, 2, false},
		"the witness is a copy":      {2, own{Count: 1, Asked: askAhead, Copied: true}, 1, false},
		"its number may come anew":   {4, own{Count: 1, Asked: askAhead}, 1, false},
		"removed, as is all so far":  {2, own{Count: 1, Asked: askAhead}, 3, false},
		"nothing was removed so far": {1, own{Count: 1, Asked: askAhead}, 0, true},
	} {
		c := newScene(t)
		c.joins(3)
		c.member(3, 2)
		if v.compacted > 0 {
			c.put(driver.TableGuard, rowCompacted, driver.EncodeCounter(v.compacted))
		}
		row := rowOf(v.join, "E")
		c.know(func(b *record) { b.Own = map[string]own{row: v.own} })
		if err := c.g.closeEarlier(t.Context(), c.store); err != nil {
			t.Fatal(name, err)
		}
		want := ""
		if v.written {
			want = string(driver.Beat{Count: 1}.EncodeEnded("left"))
		}
		if got := c.row(driver.TableBeats, row); got != want || (c.row(driver.TableGuard, driver.RowChanges) != "") != v.written {
			t.Errorf("%s: its row is %q, want %q; changes are %q", name, got, want, c.row(driver.TableGuard, driver.RowChanges))
		}
	}
}

// More earlier rows than a store reads at once are all looked at.
func TestClosesManyEarlierRows(t *testing.T) {
	c := newScene(t)
	c.joins(3)
	c.member(3, 2)
	all := map[string]own{}
	for i := range 2*driver.MaxNamed + 1 {
		all[rowOf(2, fmt.Sprintf("E%03d", i))] = own{Count: 5}
	}
	for row := range all {
		c.peer(row, "me before", driver.Beat{Count: 5}, "")
	}
	c.know(func(b *record) { b.Own = all })
	if err := c.g.closeEarlier(t.Context(), c.store); err != nil {
		t.Fatal(err)
	}
	for row := range all {
		if got := c.row(driver.TableBeats, row); !strings.Contains(got, "left") {
			t.Errorf("row %s is %q", row, got)
		}
	}
}

// The list of nodes shows all that the store knows, and those that are missing.
func TestListsNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newScene(t)
		c.joins(5)
		c.member(1, 9)
		c.peer(rowOf(2, "B"), "b", driver.Beat{Count: 3, Grants: 2}, "")
		c.put(driver.TableNodes, rowOf(3, "C"), nodeRow{Name: "c"}.encode())
		c.put(driver.TableBeats, rowOf(3, "C"), driver.Beat{Count: 1}.Encode())
		c.peer(rowOf(4, "D"), "d", driver.Beat{Count: 4}, "silent")
		c.g.peers[rowOf(2, "B")] = &sighting{value: string(driver.Beat{Count: 3, Grants: 2}.Encode()), at: c.g.now(), beat: driver.Beat{Count: 3, Grants: 2}}
		time.Sleep(2 * time.Second)
		states := func() (text string) {
			t.Helper()
			nodes, err := c.g.Nodes(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for _, n := range nodes {
				text += n.Name + " " + n.State + ", "
				if n.Self != (n.Name == "me") || (n.Seen == 2*time.Second) != (n.Name == "b") {
					t.Errorf("a node is %+v", n)
				}
				if n.Name == "b" && n.State != "missing" && (n.Address != "at-b" || n.Beats != 3 || n.Grants != 2) {
					t.Errorf("b is %+v", n)
				}
			}
			return text
		}
		if got, want := states(), "me joining, b serving, c joining, d silent, "; got != want {
			t.Errorf("they are %q; want %q", got, want)
		}
		c.g.state, c.g.cause, c.g.fence = Fenced, hapax.ErrFenced, &Fence{ID: "F", Missing: []Node{{Row: rowOf(2, "B"), Name: "b"}, {Row: rowOf(5, "X"), Name: "x", State: "missing"}}}
		if got, want := states(), "me fenced, b missing, c fenced, d silent, x missing, "; got != want {
			t.Errorf("under a fence they are %q; want %q", got, want)
		}
	})
}

// Where no fence stands a statement ends the row of a node that does not advance, and of no
// other.
func TestEndsRows(t *testing.T) {
	for name, v := range map[string]struct {
		row  string
		dry  bool
		runs bool
		how  string
		want string // how it ends
		err  string
	}{
		"it has crashed":  {"b", false, false, "", "silent", ""},
		"a dry run":       {"b", true, false, "", "", ""},
		"it runs":         {"b", false, true, "", "", "has just written its heartbeat"},
		"it has left":     {"b", false, false, "left", "left", ""},
		"it is this node": {"me", false, false, "", "", "another node that the store knows"},
		"nobody knows it": {"x", false, false, "", "", "another node that the store knows"},
	} {
		synctest.Test(t, func(t *testing.T) {
			c := newScene(t)
			c.joins(2)
			mine := c.member(1, 9)
			row := rowOf(2, "B")
			c.peer(row, "b", driver.Beat{Count: 3}, v.how)
			if v.runs {
				time.AfterFunc(time.Second, func() { c.put(driver.TableBeats, row, driver.Beat{Count: 4}.Encode()) })
			}
			began := time.Now()
			nodes, err := c.g.endRow(t.Context(), c.store, Statement{Row: v.row, DryRun: v.dry})
			if v.err == "" && (err != nil || len(nodes) != 1 || nodes[0].Name != "b") || v.err != "" && (!errors.Is(err, hapax.ErrInvalidArgument) || !strings.Contains(err.Error(), v.err)) {
				t.Errorf("%s: %v, %v; want %q", name, nodes, err, v.err)
			}
			if waited := time.Since(began); waited != 0 && v.how != "" || v.how == "" && v.row == "b" && waited < 5*time.Second {
				t.Errorf("%s: it waited %v", name, waited)
			}
			if _, how, err := driver.DecodeBeat(row, []byte(c.row(driver.TableBeats, row))); err != nil || how != v.want {
				t.Errorf("%s: its row ends as %q, %v; want %q", name, how, err, v.want)
			}
			if _, how, err := driver.DecodeBeat(mine, []byte(c.row(driver.TableBeats, mine))); err != nil || how != "" {
				t.Errorf("%s: this node's row ends as %q, %v", name, how, err)
			}
		})
	}
}

// A node that crashed twice has two rows; one that is compacted meanwhile keeps the other from nothing.
func TestEndsAllRowsOfANode(t *testing.T) {
	for _, compacted := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			c := servingScene(t)
			first, second := rowOf(2, "B"), rowOf(3, "C")
			for _, row := range []string{first, second} {
				c.peer(row, "b", driver.Beat{Count: 3}, "")
			}
			if compacted {
				time.AfterFunc(time.Second, func() { c.put(driver.TableBeats, first, nil) })
			}
			nodes, err := c.g.endRow(t.Context(), c.store, Statement{Row: "b"})
			if err != nil || len(nodes) != 2 {
				t.Errorf("ended are %v, %v", nodes, err)
			}
			if _, how, err := driver.DecodeBeat(second, []byte(c.row(driver.TableBeats, second))); err != nil || how != "silent" {
				t.Errorf("the first is compacted %v: the second ends as %q, %v", compacted, how, err)
			}
		})
	}
}

// A statement is judged by earlier ones: which node it speaks for, which are missing then, what
// will be raised, and which floor is high enough.
func TestJudgesStatements(t *testing.T) {
	b, gone := rowOf(2, "B"), rowOf(3, "C")
	file := Testimony{record{Own: map[string]own{b: {Grants: 500}}, Lines: map[string]Pair{"tag/u": {0, 700}}, Defs: map[string]def{"tag/u": {Start: 5}}}}
	for name, v := range map[string]struct {
		st      Statement
		stated  map[string]statement // before
		given   map[string]evidence  // files, before
		refused string
		missing int
		raised  string
		for_    []string
	}{
		"a floor for one":             {Statement{Row: "b", Floor: 9000, Ahead: time.Second}, nil, nil, "", 1, "t", []string{b}},
		"a floor for all":             {Statement{Floor: 9000, Ahead: time.Second}, nil, nil, "", 0, "t", []string{b, gone}},
		"no floor":                    {Statement{Row: "b"}, nil, nil, "is missing and not spoken for", 0, "", nil},
		"a floor that is too low":     {Statement{Row: "b", Floor: 4999}, nil, nil, `at least 5000, which tag "t" is known to have reached`, 0, "", nil},
		"the lowest floor":            {Statement{Row: "b", Floor: 5000}, nil, nil, "", 1, "t", []string{b}},
		"one who is not missing":      {Statement{Row: "me", Floor: 9000}, nil, nil, "one of those that are missing: b at at-b", 0, "", nil},
		"its witness file":            {Statement{Row: "b", Witness: []Testimony{file}}, nil, nil, "", 1, "u", []string{b}},
		"for whom another has spoken": {Statement{Row: "b"}, map[string]statement{b: {Floor: 8000}}, nil, "", 1, "t", []string{b}},
		"... with a higher floor":     {Statement{Row: "b", Floor: 9000}, map[string]statement{b: {Floor: 8000, Ahead: time.Hour}}, nil, "", 1, "t", []string{b}},
		"whose file was given before": {Statement{Row: "b"}, nil, map[string]evidence{"f": evidenceOfFile(file)}, "", 1, "u", []string{b}},
	} {
		c, f, _ := lostScene(t)
		c.peer(b, "b", driver.Beat{Count: 3, Grants: 500}, "")
		c.peer(gone, "c", driver.Beat{Count: 1}, "")
		if err := c.g.giveEvidence(t.Context(), c.store, f.Ask); err != nil {
			t.Fatal(err)
		}
		h, err := c.g.inquire(t.Context(), c.store, f)
		if err != nil {
			t.Fatal(err)
		}
		maps.Copy(h.stated, v.stated)
		maps.Copy(h.files, v.given)
		var a Adoption
		stated, err := c.g.judgeStatement(t.Context(), c.store, v.st, h, &a)
		if (err != nil) != (v.refused != "") || err != nil && !strings.Contains(err.Error(), v.refused) {
			t.Errorf("%s: %v; want %q", name, err, v.refused)
		}
		if a.Spoke != 1 {
			t.Errorf("%s: %d have spoken", name, a.Spoke)
		}
		if slices.ContainsFunc(a.Stated, func(n Node) bool { return n.Row == "" || isAmong(n, a.Missing) }) {
			t.Errorf("%s: stated for %v, and missing are %v", name, a.Stated, a.Missing)
		}
		if err != nil {
			continue
		}
		var rows, tags []string
		for _, n := range a.Stated {
			rows = append(rows, n.Row)
			if (n.State == settled) != ((v.stated != nil || v.given != nil) && v.st.Floor == 0) {
				t.Errorf("%s: it is stated for %+v", name, n)
			}
		}
		for _, r := range a.Raised {
			if r.Tag != "" {
				tags = append(tags, r.Tag)
			}
		}
		if !slices.Equal(rows, v.for_) || len(a.Missing) != v.missing || !slices.Contains(tags, v.raised) {
			t.Errorf("%s: stated for %v, missing %v, raised %v", name, rows, a.Missing, tags)
		}
		if want := max(5000, 0) + int64(proposedMargin); a.Proposed != want {
			t.Errorf("%s: proposed is %d; want %d", name, a.Proposed, want)
		}
		for _, row := range rows {
			st := stated[row]
			if v.st.Floor > 0 && (st.Floor != v.st.Floor || st.Ahead < v.st.Ahead || v.stated != nil && st.Ahead != time.Hour || st.Name == "" || st.At.IsZero()) {
				t.Errorf("%s: for %s it is %+v", name, row, st)
			}
		}
	}
}
