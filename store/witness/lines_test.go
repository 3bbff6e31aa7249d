package witness

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/store/internal/fileid"
)

// Only what appendLine writes is read as lines, to the last byte; all else is left to
// encoding/json.
func TestBulkTexts(t *testing.T) {
	one := func(text string) string { return `{"lines":{` + text + `}}` }
	for text, want := range map[string]*namedPair{
		one(`"tag/a":{"t":1,"m":2}`):             {"tag/a", Pair{1, 2}},
		one(`"tag/a":{"t":1}`):                   {"tag/a", Pair{1, 0}},
		one(`"tag/a":{"m":90}`):                  {"tag/a", Pair{0, 90}},
		one(`"tag/a":{}`):                        {"tag/a", Pair{}},
		one(`"tag/a":{"m":0}`):                   {"tag/a", Pair{}},
		one(`" ~":{}`):                           {" ~", Pair{}},
		one(`"tag/a":{"m":999999999999999999}`):  {"tag/a", Pair{0, 999999999999999999}},
		one(`"tag/a":{"m":1000000000000000000}`): nil,
		one(`"tag/a":{"m":01}`):                  nil,
		one(`"tag/a":{"m":}`):                    nil,
		one(`"tag/a":{"m":-1}`):                  nil,
		one(`"tag/a":{"m":1:}`):                  nil,
		one(`"tag/a":{"m":/}`):                   nil,
		one(`"tag/a":{"t":1"m":2}`):              nil,
		one(`"tag/a":{"t":1,"m":2,}`):            nil,
		one(`"tag/a":{,"m":2}`):                  nil,
		one("\"tag\x1f\":{}"):                    nil,
		one("\"tag\x7f\":{}"):                    nil,
		one("\"tagé\":{}"):                       nil,
		one(`"tag\n":{}`):                        nil,
		one(`tag/a":{}`):                         nil,
		one(`"tag/a`):                            nil,
		one(`"tag/a":{}`) + " ":                  nil,
		`{"lines":{"tag/a":{}}`:                  nil,
		`{"lines":{"tag/a":{"m":1`:               nil,
		`{"joins":1,"lines":{"tag/a":{}}}`:       nil,
	} {
		got, ok := readBulk(text)
		switch {
		case ok != (want != nil):
			t.Errorf("%q is one that is read here: %v; want %v", text, ok, want != nil)
		case ok && (len(got) != 1 || got[0] != *want):
			t.Errorf("%q is read as %v; want %v", text, got, *want)
		}
	}
	if got, ok := readBulk(one(`"a":{"m":1},"b":{"t":2}`)); !ok || !slices.Equal(got, []namedPair{{"a", Pair{0, 1}}, {"b", Pair{2, 0}}}) {
		t.Errorf("two lines are read as %v, %v", got, ok)
	}
}

// A change of many lines is written as lines only if it holds nothing else, and a snapshot
// is followed by such where it has more of them.
func TestBulkChanges(t *testing.T) {
	full := func() record {
		r := newRecord()
		for i := range bulkLines {
			r.Lines[fmt.Sprint("tag/", i)] = Pair{0, 1}
		}
		return r
	}
	if r := full(); !r.isBulk() || r.encode(kindChange)[9] != 'c' || !strings.Contains(string(r.encode(kindChange)[:40]), kindChange+"\t"+bulkBegin) {
		t.Errorf("a change of %d lines is written as %.60q", bulkLines, r.encode(kindChange))
	}
	if text := string(full().encodeAll()); strings.Count(text, "\n") != 1 {
		t.Errorf("a snapshot of %d lines has %d records; want one", bulkLines, strings.Count(text, "\n"))
	}
	for name, change := range map[string]func(*record){
		"another line": func(r *record) { r.Lines["x"] = Pair{} },
		"one less":     func(r *record) { delete(r.Lines, "tag/0") },
		"store":        func(r *record) { r.Store = "s" },
		"former":       func(r *record) { r.Former = []string{"s"} },
		"home":         func(r *record) { r.Home = &fileid.Identity{} },
		"own":          func(r *record) { r.Own["x"] = own{} },
		"defs":         func(r *record) { r.Defs["x"] = def{} },
		"joins":        func(r *record) { r.Joins = 1 },
		"decision":     func(r *record) { r.Decision = &decisionID{} },
		"compacted":    func(r *record) { r.Compacted = 1 },
		"peers":        func(r *record) { r.Peers["x"] = peer{} },
		"latch":        func(r *record) { r.Latch = &latch{} },
		"left":         func(r *record) { r.Left = &departure{} },
		"refused":      func(r *record) { r.Refused["x"] = "y" },
		"copies":       func(r *record) { r.Copies["x"] = driver.Retirement{} },
	} {
		r := full()
		change(&r)
		if r.isBulk() {
			t.Errorf("with %s it is taken for lines alone", name)
		}
	}
}

// The names of lines tell what they are of, and nothing else is taken for one.
func TestNamesOfLines(t *testing.T) {
	for line, want := range map[string]struct {
		pool string
		id   int64
		ok   bool
	}{
		"worker/p/3": {"p", 3, true}, "worker/a/b/0": {"a/b", 0, true},
		"worker/p/x": {}, "worker/p/03": {}, "tag/p/3": {}, "worker": {}, "3": {}, "": {}, "worker/p/": {}, "x/p/3": {},
	} {
		pool, id, ok := CutWorkerLine(line)
		if ok != want.ok || ok && (pool != want.pool || id != want.id) {
			t.Errorf("%q is of pool %q, worker %d: %v; want %+v", line, pool, id, ok, want)
		}
	}
	for line, want := range map[string]Raised{
		"tag/t":      {Tag: "t", From: 1, To: 2},
		"worker/p/3": {Pool: "p", Worker: 3, From: 1, To: 2},
	} {
		if got := raisedOf(line, 1, 2); got != want {
			t.Errorf("the raise of %s is %+v; want %+v", line, got, want)
		}
	}
	d := decision{Most: []Raised{raisedOf("worker/p/3", 1, 2), raisedOf("tag/t", 5, 9)}}
	if x, y, z := d.raisedTo("tag/t"), d.raisedTo("worker/p/3"), d.raisedTo("tag/u"); x != 9 || y != 2 || z != 0 {
		t.Errorf("they were raised to %d, %d and %d; want 9, 2 and 0", x, y, z)
	}
}

// A lost line is made anew as it was defined; what has the defaults need not be kept.
func TestDefinitionsOfLines(t *testing.T) {
	usual, err := hapax.Tag{Name: "t"}.WithDefaults()
	if err != nil {
		t.Fatal(err)
	}
	if d := defOf(usual); d != (def{}) {
		t.Errorf("a tag with the defaults has the definition %+v; want none", d)
	}
	for name, change := range map[string]func(*hapax.Tag){
		"start":     func(x *hapax.Tag) { x.Start = 7 },
		"step":      func(x *hapax.Tag) { x.Step, x.MinStep = 500, 500 },
		"min step":  func(x *hapax.Tag) { x.MinStep = 3 },
		"max step":  func(x *hapax.Tag) { x.MaxStep = x.Step },
		"delta":     func(x *hapax.Tag) { x.Delta, x.Remainder = 3, 2 },
		"pool":      func(x *hapax.Tag) { *x = hapax.Tag{Name: "t", Kind: hapax.KindSnowflake, Pool: "p"} },
		"extra":     func(x *hapax.Tag) { x.Extra = "e" },
		"tombstone": func(x *hapax.Tag) { x.Deleted = true },
	} {
		tag := usual
		change(&tag)
		d := defOf(tag)
		again, err := d.tag("t", Pair{4, 50}), error(nil)
		if d.Kind == "" {
			again, err = again.WithDefaults()
		}
		tag.Token, tag.Mark = 4, 50
		if err != nil || again != tag || d == (def{}) {
			t.Errorf("%s: %+v becomes %+v, then %+v, %v", name, tag, d, again, err)
		}
	}
	huge := usual
	huge.Step, huge.MinStep, huge.MaxStep = 2*hapax.DefaultMaxStep, 2*hapax.DefaultMaxStep, 2*hapax.DefaultMaxStep
	if d := defOf(huge); d != (def{Step: huge.Step}) {
		t.Errorf("a step above the usual maximum has the definition %+v", d)
	}
	have := lines{map[string]Pair{"tag/t": {}, "tag/u": {}}, map[string]def{"tag/u": {Start: 2}}}
	got := have.defsFor(record{Defs: map[string]def{"tag/t": {Start: 9}, "tag/u": {Start: 9}, "tag/gone": {Start: 9}}})
	if want := map[string]def{"tag/t": {}, "tag/u": {Start: 2}}; !maps.Equal(got, want) {
		t.Errorf("what was known is now %v; want %v", got, want)
	}
}

// All lines of a store are read, however many pages they take, and what is told of one that
// is behind is the first by name.
func TestComparesAllLines(t *testing.T) {
	c := newScene(t)
	withPool(c)
	for i := range tagPage {
		c.tag(fmt.Sprintf("t%05d", i), 10)
	}
	c.tag("u", 20, func(x *hapax.Tag) { x.Start = 5 })
	have, err := readLines(t.Context(), c.store, newLines())
	worker := WorkerLine("p", 1)
	if err != nil || len(have.pairs) != tagPage+2 || have.pairs["tag/u"] != (Pair{0, 20}) || have.pairs[worker].Mark != 50 {
		t.Fatalf("%d lines are read, %v, %v", len(have.pairs), have.pairs["tag/u"], err)
	}
	if want := map[string]def{"tag/u": {Start: 5}, "pool/p": have.defs["pool/p"]}; !maps.Equal(have.defs, want) || want["pool/p"].Layout == "" {
		t.Errorf("they are made anew from %v", have.defs)
	}
	known := func(change map[string]Pair) record {
		r := record{Lines: maps.Clone(have.pairs), Defs: maps.Clone(have.defs)}
		maps.Copy(r.Lines, change)
		return r
	}
	for name, v := range map[string]struct {
		knows  record
		behind string
		news   int
	}{
		"nothing new":            {known(nil), "", 0},
		"a mark is lower":        {known(map[string]Pair{"tag/t00007": {0, 11}}), "tag/t00007 is at token 0, mark 10, and was at token 0, mark 11", 0},
		"of two the first":       {known(map[string]Pair{"tag/t00007": {0, 11}, "tag/u": {1, 0}}), "tag/t00007", 0},
		"one is not there":       {known(map[string]Pair{"tag/gone": {2, 3}}), "tag/gone is at token 0, mark 0, and was at token 2, mark 3", 0},
		"of two that are not":    {known(map[string]Pair{"tag/gone": {2, 3}, "tag/a": {2, 3}}), "tag/a ", 0},
		"a worker is not there":  {known(map[string]Pair{WorkerLine("q", 1): {2, 3}}), "worker/q/1", 0},
		"a mark is higher":       {known(map[string]Pair{"tag/t00007": {0, 9}}), "", 1},
		"a worker's is higher":   {known(map[string]Pair{worker: {0, 9}}), "", 1},
		"a definition differs":   {record{Lines: have.pairs, Defs: map[string]def{"tag/u": {Start: 5}, "pool/p": {Layout: "x"}}}, "", 1},
		"nothing is known of it": {record{}, "", tagPage + 4},
	} {
		found, err := compareLines(t.Context(), c.store, v.knows)
		if err != nil || found.behind != (v.behind != "") || found.behind && !strings.Contains(found.cause().Error(), v.behind) {
			t.Errorf("%s: behind %v, %v, %v; want %q", name, found.behind, found.cause(), err, v.behind)
		}
		if n := len(found.news.pairs) + len(found.news.defs); n != v.news && v.behind == "" {
			t.Errorf("%s: %d are news; want %d", name, n, v.news)
		}
	}
	sizes := []int{}
	rest, err := have.inParts(2500, func(part lines) error { sizes = append(sizes, len(part.pairs)+len(part.defs)); return nil })
	if err != nil || !slices.Equal(sizes, []int{2500, 2500}) || len(rest.pairs)+len(rest.defs) != 4 {
		t.Errorf("in parts they are %v, and %d left, %v", sizes, len(rest.pairs)+len(rest.defs), err)
	}
	n := 0
	if _, err := have.inParts(10, func(lines) error { n++; return errInjected }); err == nil || n != 1 {
		t.Errorf("after a part that fails there are %d more, %v", n-1, err)
	}
}

// A witness that is cut off between two parts of lines knows no line without its definition, which
// it would take for a segment tag's with the defaults.
func TestDefinitionsComeBeforeTheirLines(t *testing.T) {
	have := newLines()
	for i := range 40 {
		name := fmt.Sprint("tag/", i)
		have.pairs[name], have.defs[name] = Pair{1, 1}, def{Kind: hapax.KindSnowflake, Pool: "p"}
	}
	defined := newLines()
	see := func(part lines) error {
		maps.Copy(defined.defs, part.defs)
		for name := range part.pairs {
			if _, ok := defined.defs[name]; !ok {
				t.Errorf("%s is noted before its definition", name)
			}
		}
		return nil
	}
	rest, err := have.inParts(7, see)
	if err != nil {
		t.Fatal(err)
	}
	if err := see(rest); err != nil || len(defined.defs) != len(have.defs) {
		t.Errorf("%d of %d definitions were noted", len(defined.defs), len(have.defs))
	}
}

// Lines are raised above the account, and not where they are above it: tags and workers,
// those that the store lacks as they were defined, and no other kind's.
func TestRaisesLines(t *testing.T) {
	c := newScene(t)
	withPool(c)
	c.tag("low", 10)
	c.tag("high", 100)
	c.tag("token", 100, func(x *hapax.Tag) { x.Token = 1 })
	a := &account{lines: lines{map[string]Pair{
		"tag/low": {0, 50}, "tag/high": {0, 50}, "tag/token": {4, 50}, "tag/gone": {2, 70}, "tag/flake": {3, 9}, WorkerLine("p", 1): {1, 90}, WorkerLine("q", 2): {5, 30}, "odd": {1, 1},
	}, map[string]def{"tag/gone": {Start: 7, Extra: "x"}, "tag/flake": {Kind: hapax.KindSnowflake, Pool: "p"}, poolDef("q"): {Layout: "leaf"}}}}
	raised, err := c.g.raise(t.Context(), c.store, a)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, r := range raised {
		names = append(names, fmt.Sprintf("%s%s/%d %d to %d", r.Tag, r.Pool, r.Worker, r.From, r.To))
	}
	slices.Sort(names)
	if want := []string{"/0 0 to 1", "flake/0 0 to 9", "gone/0 0 to 70", "low/0 10 to 50", "p/1 50 to 90", "q/2 0 to 30", "token/0 100 to 100"}; !slices.Equal(names, want) {
		t.Errorf("raised are %q; want %q", names, want)
	}
	for name, want := range map[string]Pair{"low": {0, 50}, "high": {0, 100}, "token": {4, 100}, "gone": {2, 70}} {
		tag, err := c.store.Store.Tag(t.Context(), name)
		if err != nil || tag.Mark < want.Mark || tag.Token < want.Token || name != "high" && tag.Token == want.Token || tag.Mark > max(want.Mark, 100) {
			t.Errorf("%s is at %d, %d, %v; want %v, and a token above", name, tag.Token, tag.Mark, err, want)
		}
	}
	gone, err := c.store.Store.Tag(t.Context(), "gone")
	if err != nil || gone.Start != 7 || gone.Extra != "x" {
		t.Errorf("the tag that was not there is %+v, %v", gone, err)
	}
	if flake, err := c.store.Store.Tag(t.Context(), "flake"); err != nil || flake.Kind != hapax.KindSnowflake || flake.Pool != "p" || flake.Mark > 1 {
		t.Errorf("the tag of a pool is %+v, %v", flake, err)
	}
	if w := c.store.healed[WorkerLine("q", 2)]; w.Mark != 30 || w.Token != 5 || c.store.layouts["q"] != "leaf" {
		t.Errorf("the worker of a pool that was not there is %+v, of layout %q", w, c.store.layouts["q"])
	}
	a.lines.pairs = map[string]Pair{WorkerLine("unknown", 1): {1, 1}}
	if _, err := c.g.raise(t.Context(), c.store, a); err == nil || !strings.Contains(err.Error(), "worker/unknown/1: ") || !strings.Contains(err.Error(), errNoLine.Error()) {
		t.Errorf("a worker of a pool that nobody knows: %v", err)
	}
	if _, err := healing(unhealable{c.store}); err == nil {
		t.Error("a store that cannot be healed is healed")
	}
}

// unhealable is a store without driver.Healing.
type unhealable struct{ store }

var _ store = unhealable{}

// Nodes are named for people, and for commands as a shell reads one word.
func TestNamesOfNodes(t *testing.T) {
	n := Node{Row: "0000000000000000012-ABCDEF", Name: "db", Address: "host:1", Grants: 5}
	if got := n.String(); got != "db at host:1 (row 0000000000000000012-ABCDEF, 5 grants known)" {
		t.Errorf("a node is %q", got)
	}
	if got := (Node{Row: "r"}).String(); got != "a node of which only the number is known (row r, 0 grants known)" {
		t.Errorf("one without a name is %q", got)
	}
	for _, name := range []string{"0", "9", "A", "Z", "a", "z", "a-_./:@%+=,z"} {
		if got := (Node{Name: name, Row: n.Row}).word(); got != name {
			t.Errorf("%q is called %q", name, got)
		}
	}
	for _, r := range "\u0080/:;<>?[\\]^`{|}~ '\"!#$&()*" {
		if name := "x" + string(r) + "x"; strings.ContainsRune("/:", r) == ((Node{Name: name, Row: n.Row}).word() != name) {
			t.Errorf("%q is taken for a word, or is none", name)
		}
	}
	for name, want := range map[string]bool{
		"db": true, "0000000000000000012-ABCDEF": true, "12": true, "12-": true, "12-ABC": true, "12-ABC…": true, "12-ABCDEF": true,
		"": false, "…": false, "1": false, "12-X": false, "12-ABCDEFG": false, "d": false, "012": false, "12-ABD": false, "2-ABC": false,
	} {
		if n.isNamed(name) != want {
			t.Errorf("%q names the node: %v; want %v", name, !want, want)
		}
	}
}

// The row of a fence names those who are missing as far as they fit, to the byte.
func TestMissingThatFit(t *testing.T) {
	node := func(size int) Node { // as JSON
		n := Node{Row: "1-A", Name: "x", State: "missing"}
		empty := len(`{"row":"1-A","name":"","state":"missing"}`)
		n.Name = strings.Repeat("x", size-empty)
		return n
	}
	f := &Fence{}
	if !f.lacks([]Node{node(missingBytes - 100), node(100), node(100)}, false) || len(f.Missing) != 2 || f.More != 1 {
		t.Errorf("%d fit and %d do not; want 2 and 1", len(f.Missing), f.More)
	}
	if f.lacks([]Node{node(missingBytes - 100), node(100), node(100)}, false) {
		t.Error("the same are news")
	}
	for name, isNew := range map[string]bool{
		"more":    f.lacks([]Node{node(missingBytes - 100), node(100), node(100), node(100)}, false),
		"manual":  f.lacks([]Node{node(missingBytes - 100), node(100), node(100), node(100)}, true),
		"another": f.lacks([]Node{node(101)}, true),
		"none":    f.lacks(nil, true),
	} {
		if !isNew {
			t.Errorf("%s is no news", name)
		}
	}
	if f.More != 0 || len(f.Missing) != 0 || !f.Manual {
		t.Errorf("in the end it is %+v", f)
	}
	if driver.MaxValueBytes < 8*100 {
		t.Error("the sizes above do not fit")
	}
}
