package storetest

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"testing"

	"github.com/hapax-id/hapax/store/driver"
)

// kvChecks are those of the primitive that a driver implements.
var kvChecks = []check{
	{"kv/get and scan", always, checkKVGet},
	{"kv/conditions", always, checkKVConditions},
	{"kv/raise", always, checkKVRaise},
	{"kv/all or none", always, checkKVThen},
	{"kv/each by itself", always, checkKVEach},
	{"kv/the row as it is now", always, checkKVNow},
	{"kv/the same value", always, checkKVSame},
	{"kv/after an error", always, checkKVError},
	{"kv/many at once", always, checkKVRace},
	{"kv/a row that cannot be read", always, checkKVUnreadable},
	{"kv/at random", always, checkKVModel},
	{"kv/beats with changes at random", always, checkKVPulse},
}

// RunKV runs the checks of the primitive, for a store whose handles tell it by a method KV, as
// those that embed [driver.Base] do.
func RunKV(t *testing.T, h Harness) {
	t.Helper()
	for _, c := range kvChecks {
		t.Run(c.name, func(t *testing.T) { c.runOn(t, h) })
	}
}

// A kv is the primitive of one handle, and a table of the check's own.
type kv struct {
	*env
	driver.KV
	table string
}

// kv returns the primitive of a handle.
func (e *env) kv(r roles) kv {
	e.Helper()
	h, ok := r.handle.(interface{ KV() driver.KV })
	if !ok {
		e.Fatalf("%T has no method KV", r.handle)
	}
	return kv{e, h.KV(), e.name("kv")}
}

func (k kv) key(name string) driver.Key { return driver.Key{Table: k.table, Name: name} }

// cell reads a row.
func (k kv) cell(name string) driver.Cell {
	k.Helper()
	return k.cells(name)[0]
}

// cells reads rows in one call.
func (k kv) cells(names ...string) []driver.Cell {
	k.Helper()
	keys := make([]driver.Key, len(names))
	for i, name := range names {
		keys[i] = k.key(name)
	}
	cells, err := k.Get(k.ctx, driver.Current, keys...)
	k.must(err)
	if len(cells) != len(keys) || slices.ContainsFunc(cells, func(c driver.Cell) bool { return !c.Known }) {
		k.Fatalf("Get of %d rows returns %+v", len(keys), cells)
	}
	return cells
}

// is reports a row that has another value; empty stands for no row.
func (k kv) is(what, name, want string) {
	k.Helper()
	k.holds(what, k.cell(name), want)
}

func (k kv) holds(what string, got driver.Cell, want string) {
	k.Helper()
	if string(got.Value) != want || (got.Value == nil) != (want == "") {
		k.Errorf("%s is %q; want %q", what, got.Value, want)
	}
}

// change is the change of a row from what it is to another value.
func (k kv) change(name, next string) driver.Change {
	k.Helper()
	return driver.Change{Key: k.key(name), Old: k.cell(name), Next: valueOf(next)}
}

// step makes a step.
func (k kv) step(s driver.Step) driver.Result {
	k.Helper()
	r, err := k.Step(k.ctx, s)
	k.must(err)
	if len(r.Then) != len(s.Then) || len(r.Each) != len(s.Each) || len(r.Look) != len(s.Look) || !r.Met && len(r.If) != len(s.If) {
		k.Fatalf("the result %+v does not tell of each part of %+v", r, s)
	}
	return r
}

// set makes a row what it is to be, whatever it is.
func (k kv) set(name, value string) {
	k.Helper()
	if r := k.step(driver.Step{Each: []driver.Change{k.change(name, value)}}); !r.Met || !r.Each[0].Done {
		k.Fatalf("the change of row %q is not made: %+v", name, r)
	}
}

// checkKVGet: rows are found under their names and nobody else's, and listed in their order.
func checkKVGet(e *env) {
	k := e.kv(e.roles)
	names := []string{"a", "a/b", "a0", "b", "b%2F", "ü", "日本", "A"}
	for _, name := range names {
		k.is("a row that was not written", name, "")
		k.set(name, "value "+name)
	}
	slices.Sort(names)
	keys := []driver.Key{k.key("none"), {Table: k.table + "/a", Name: "b"}}
	for _, name := range names {
		keys = append(keys, k.key(name))
	}
	for from, what := range map[driver.Freshness]string{driver.Current: "current", driver.Lagging: "lagging"} {
		cells, err := k.Get(k.ctx, from, keys...)
		k.must(err)
		equal(e, "the number of cells", len(cells), len(keys))
		for i, key := range keys {
			want := "value " + key.Name
			if i < 2 {
				want = ""
			}
			if from == driver.Current || cells[i].Value != nil {
				k.holds(fmt.Sprintf("the %s row %q", what, key.Name), cells[i], want)
			}
		}
	}
	for from := range names {
		for _, limit := range []int{1, 3, len(names) + 5} {
			after := ""
			if from > 0 {
				after = names[from-1]
			}
			rows, err := k.Scan(k.ctx, k.table, after, limit)
			k.must(err)
			want := names[from:min(from+limit, len(names))]
			var got []string
			for _, row := range rows {
				got = append(got, row.Name)
				equal(e, "the value of a listed row", string(row.Value), "value "+row.Name)
			}
			if !slices.Equal(got, want) {
				e.Errorf("%d rows after %q are %q; want %q", limit, after, got, want)
			}
		}
	}
	k.set("b", "")
	k.is("a removed row", "b", "")
}

// checkKVConditions: a step is done if its conditions hold, and tells the rows of those that
// do not.
func checkKVConditions(e *env) {
	k := e.kv(e.roles)
	k.set("row", "5")
	old := k.cell("row")
	k.set("other", "x")
	for i, c := range []struct {
		what string
		cond driver.Cond
		want bool
	}{
		{"absent, and it is", driver.Cond{Key: k.key("none")}, true},
		{"absent, and it is there", driver.Cond{Key: k.key("row")}, false},
		{"the same", driver.Cond{Key: k.key("row"), Same: old}, true},
		{"at least what it is", driver.Cond{Key: k.key("row"), Least: []byte("5")}, true},
		{"at least less", driver.Cond{Key: k.key("row"), Least: []byte("4")}, true},
		{"at least more", driver.Cond{Key: k.key("row"), Least: []byte("6")}, false},
		{"at least something, and it is not there", driver.Cond{Key: k.key("none"), Least: []byte("1")}, false},
	} {
		for _, conds := range [][]driver.Cond{{c.cond}, {{Key: k.key("nothing")}, c.cond}} {
			value := fmt.Sprintf("%03d", 10*i+len(conds))
			r := k.step(driver.Step{
				If: conds, Raise: []driver.Put{{Key: k.key("raised"), Value: []byte(value)}},
				Then: []driver.Change{k.change("other", value)}, Look: []driver.Key{k.key("row")},
			})
			equal(e, c.what+": met", r.Met, c.want)
			k.holds(c.what+": the row that is looked at", r.Look[0], "5")
			got := k.cell("other")
			equal(e, c.what+": the change was made", string(got.Value) == value, c.want)
			equal(e, c.what+": the row was raised", string(k.cell("raised").Value) == value, c.want)
			if !c.want && !r.Met {
				want := "5"
				if c.cond.Key.Name == "none" {
					want = ""
				}
				k.holds(c.what+": the row of the condition", r.If[len(conds)-1], want)
			}
		}
	}
	k.set("row", "7")
	r := k.step(driver.Step{If: []driver.Cond{{Key: k.key("row"), Same: old}}, Each: []driver.Change{k.change("other", "late")}})
	equal(e, "the same, and it was changed: met", r.Met, false)
	if !r.Met {
		k.holds("the same, and it was changed: the row", r.If[0], "7")
	}
}

// checkKVRaise: a row is written where it is lower or missing, and never goes down.
func checkKVRaise(e *env) {
	k := e.kv(e.roles)
	for _, c := range []struct{ to, want string }{{"b5", "b5"}, {"b7", "b7"}, {"b6", "b7"}, {"b", "b7"}, {"b7", "b7"}, {"b70", "b70"}, {"c", "c"}} {
		for _, also := range [][]driver.Cond{nil, {{Key: k.key("row"), Least: []byte("b")}}} {
			if c.to == "b5" {
				also = nil
			}
			equal(e, "a step that only raises is met", k.step(driver.Step{If: also, Raise: []driver.Put{{Key: k.key("row"), Value: []byte(c.to)}}}).Met, true)
			k.is("the row raised to "+c.to, "row", c.want)
		}
	}
	// Beats of one process overtake each other.
	var wg sync.WaitGroup
	handles := e.handles(2)
	for i, h := range handles {
		mine := e.kv(h)
		wg.Go(func() {
			for n := range 30 {
				value := fmt.Sprintf("d%04d", 2*((n*7)%30)+i)
				r, err := mine.Step(e.ctx, driver.Step{Raise: []driver.Put{{Key: mine.key("row"), Value: []byte(value)}}})
				if err != nil || !r.Met {
					e.Errorf("the row is not raised to %s: %+v, %v", value, r, err)
					return
				}
				cells, err := mine.Get(e.ctx, driver.Current, mine.key("row"))
				if err != nil || string(cells[0].Value) < value {
					e.Errorf("after it was raised to %s the row is %+v, error %v", value, cells, err)
				}
			}
		})
	}
	wg.Wait()
	k.is("the row at last", "row", fmt.Sprintf("d%04d", 2*29+len(handles)-1))
}

// checkKVThen: of changes that belong together all are made, or none and nothing else.
func checkKVThen(e *env) {
	k := e.kv(e.roles)
	k.set("a", "1")
	k.set("b", "1")
	stale := k.change("b", "3")
	k.set("b", "2")
	r := k.step(driver.Step{
		Raise: []driver.Put{{Key: k.key("raised"), Value: []byte("9")}},
		Then:  []driver.Change{k.change("a", "3"), stale, k.change("c", "3")},
		Each:  []driver.Change{k.change("d", "3")},
	})
	equal(e, "met with one change refused", r.Met, false)
	for i, then := range r.Then {
		equal(e, fmt.Sprintf("change %d was made", i), then.Done, false)
	}
	for name, want := range map[string]string{"a": "1", "b": "2", "c": "", "d": "", "raised": ""} {
		k.is("row "+name+" after a step with one change refused", name, want)
	}
	r = k.step(driver.Step{Then: []driver.Change{k.change("a", "3"), k.change("b", ""), k.change("c", "3")}})
	equal(e, "met with nothing refused", r.Met, true)
	for name, want := range map[string]string{"a": "3", "b": "", "c": "3"} {
		k.is("row "+name+" after the step", name, want)
	}
}

// checkKVEach: changes that stand by themselves are made or not whatever becomes of the others,
// and none where a condition fails.
func checkKVEach(e *env) {
	k := e.kv(e.roles)
	k.set("a", "1")
	k.set("b", "1")
	stale := k.change("b", "3")
	k.set("b", "2")
	each := []driver.Change{k.change("a", "3"), stale, k.change("c", "3")}
	r := k.step(driver.Step{If: []driver.Cond{{Key: k.key("a")}}, Each: each})
	equal(e, "met without the condition", r.Met, false)
	for i, want := range []string{"1", "2", ""} {
		equal(e, fmt.Sprintf("change %d was made without the condition", i), r.Each[i].Done, false)
		k.is("a row after it", each[i].Key.Name, want)
	}
	r = k.step(driver.Step{If: []driver.Cond{{Key: k.key("none")}}, Each: each})
	equal(e, "met with one change refused", r.Met, true)
	for i, done := range []bool{true, false, true} {
		equal(e, fmt.Sprintf("change %d was made", i), r.Each[i].Done, done)
	}
	for name, want := range map[string]string{"a": "3", "b": "2", "c": "3"} {
		k.is("row "+name+" after the step", name, want)
	}
}

// checkKVSame: a change to the value that the row has is done like any other, and refused where
// the row is another one.
func checkKVSame(e *env) {
	k := e.kv(e.roles)
	k.set("a", "1")
	k.set("b", "1")
	for _, then := range []bool{false, true} {
		for range 2 {
			step, outcomes := driver.Step{Each: []driver.Change{k.change("a", "1")}}, func(r driver.Result) []driver.Outcome { return r.Each }
			if then {
				step, outcomes = driver.Step{Then: step.Each}, func(r driver.Result) []driver.Outcome { return r.Then }
			}
			r := k.step(step)
			equal(e, "the step was met", r.Met, true)
			equal(e, "a change to the same value was made", outcomes(r)[0].Done, true)
			k.is("the row after it", "a", "1")
		}
	}
	stale := k.change("b", "1")
	k.set("b", "2")
	r := k.step(driver.Step{Each: []driver.Change{stale, k.change("a", "1"), k.change("c", "1")}})
	for i, done := range []bool{false, true, true} {
		equal(e, fmt.Sprintf("change %d of those together was made", i), r.Each[i].Done, done)
	}
	k.is("the other's row", "b", "2")
}

// checkKVNow: what a result says of a row is how it is after the step, and serves the next one.
func checkKVNow(e *env) {
	k := e.kv(e.roles)
	others := e.handles(2)
	other := e.kv(others[len(others)-1])
	row := k.change("row", "1")
	for i := range 5 {
		r := k.step(driver.Step{Each: []driver.Change{row}})
		equal(e, "a change after the one before was made", r.Each[0].Done, true)
		row.Old = r.Each[0].Now
		if !row.Old.Known {
			row.Old = k.cell("row")
		}
		k.holds("the row as it is told", row.Old, string(row.Next))
		row.Next = strconv.AppendInt(nil, int64(i)+2, 10)
	}
	other.set("row", "another's")
	for _, then := range []bool{false, true} {
		s := driver.Step{Each: []driver.Change{row}}
		if then {
			s = driver.Step{Then: s.Each}
		}
		r := k.step(s)
		outcome := slices.Concat(r.Then, r.Each)[0]
		equal(e, "a change that another overtook was made", outcome.Done, false)
		if outcome.Now.Known {
			k.holds("the row as it is told after another's change", outcome.Now, "another's")
		}
	}
	other.set("row", "")
	r := k.step(driver.Step{Each: []driver.Change{row}})
	if now := r.Each[0].Now; r.Each[0].Done || now.Known && now.Value != nil {
		e.Errorf("a change of a row that was removed: %+v", r.Each[0])
	}
}

// checkKVError: after a step that failed the rows are those of the store, whatever the handle
// knew of them.
func checkKVError(e *env) {
	k := e.kv(e.roles)
	others := e.handles(2)
	other := e.kv(others[len(others)-1])
	k.set("row", "1")
	k.step(driver.Step{Raise: []driver.Put{{Key: k.key("beat"), Value: []byte("1")}}})
	failing := driver.Step{
		Raise: []driver.Put{{Key: k.key("beat"), Value: []byte("2")}},
		Each:  []driver.Change{k.change("row", "2")},
	}
	ctx, cancel := context.WithCancel(e.ctx)
	cancel()
	_, err := k.Step(ctx, failing)
	if done := string(k.cell("row").Value) == "2"; err == nil && !done {
		e.Error("a step that was not done has no error")
	}
	other.set("row", "3")
	other.set("beat", "0") // as after a restore
	for _, what := range []string{"after an error", "again"} {
		k.is("the row "+what, "row", "3")
		r := k.step(driver.Step{
			If:   []driver.Cond{{Key: k.key("beat"), Least: []byte("1")}},
			Each: failing.Each, Look: []driver.Key{k.key("row")},
		})
		if r.Met || r.Each[0].Done {
			e.Errorf("%s: a step whose beat went back: %+v", what, r)
		}
	}
	r := k.step(driver.Step{Each: failing.Each})
	if r.Each[0].Done {
		e.Error("the change that failed is made over another's")
	}
}

// checkKVRace: of changes that were made up from the same row one is made.
func checkKVRace(e *env) {
	const rounds = 10
	k := e.kv(e.roles)
	keys := []driver.Key{k.key("x"), k.key("y"), k.key("z")}
	handles := e.handles(4)
	for round := range rounds {
		var wg sync.WaitGroup
		var mu sync.Mutex // guards made
		made := map[string][]byte{}
		steps := make([]driver.Step, len(handles))
		for i, h := range handles {
			cells, err := e.kv(h).Get(e.ctx, driver.Current, keys...)
			e.must(err)
			for j, cell := range cells {
				steps[i].Each = append(steps[i].Each, driver.Change{Key: keys[j], Old: cell, Next: fmt.Appendf(nil, "%d/%d", round, i)})
			}
		}
		for i, h := range handles {
			mine := e.kv(h)
			wg.Go(func() {
				r, err := mine.Step(e.ctx, steps[i])
				if err != nil {
					e.Error(err)
					return
				}
				mu.Lock()
				defer mu.Unlock()
				for j, o := range r.Each {
					if !o.Done {
						continue
					}
					if other := made[keys[j].Name]; other != nil {
						e.Errorf("row %s was made %s and %s", keys[j].Name, other, steps[i].Each[j].Next)
					}
					made[keys[j].Name] = steps[i].Each[j].Next
				}
			})
		}
		wg.Wait()
		for _, key := range keys {
			k.is("the row after changes at the same moment", key.Name, string(made[key.Name]))
		}
	}
}

// checkKVModel: steps at random do to rows what they do to a map, and tell what became of them.
// The cells that a handle names may be out of date: then a change is refused. Values never come
// again, since an engine may recognise a row by more, and refuse what it saw earlier.
func checkKVModel(e *env) {
	seed := rand.Uint64()
	e.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	names := []string{"a", "b", "c", "d", "e"}
	model := map[string]string{}
	var handles []kv
	var seen []map[string]driver.Cell
	var tried, done int
	for _, h := range e.handles(2) {
		handles, seen = append(handles, e.kv(h)), append(seen, map[string]driver.Cell{})
	}
	for n := range 120 {
		at := rnd.IntN(len(handles))
		k := handles[at]
		value := func() string { return fmt.Sprintf("%03d/%03d", rnd.IntN(1000), n) }
		var s driver.Step
		want := maps.Clone(model)
		met := true
		holds := map[string]bool{}
		current := k.cells(names...)
		for i, name := range names {
			old := seen[at][name]
			if !old.Known || string(old.Value) == model[name] || rnd.IntN(4) > 0 {
				old = current[i]
			}
			seen[at][name] = old
			holds[name] = string(old.Value) == model[name]
			switch next := value(); rnd.IntN(8) {
			case 0:
				s.If = append(s.If, driver.Cond{Key: k.key(name), Same: old})
				met = met && holds[name]
			case 1:
				s.If = append(s.If, driver.Cond{Key: k.key(name), Least: []byte("3")})
				met = met && model[name] >= "3"
			case 2, 3:
				s.Then = append(s.Then, driver.Change{Key: k.key(name), Old: old, Next: []byte(next)})
				met, want[name] = met && holds[name], next
			case 4, 5:
				if old.Value != nil && rnd.IntN(3) == 0 {
					next = ""
				}
				if s.Each = append(s.Each, driver.Change{Key: k.key(name), Old: old, Next: valueOf(next)}); holds[name] {
					want[name] = next
				}
			}
		}
		if len(s.Then)+len(s.Each) == 0 || rnd.IntN(2) == 0 { // one row is a heartbeat, which only grows
			s.Raise = []driver.Put{{Key: k.key("beat"), Value: fmt.Appendf(nil, "%03d", n)}}
			want["beat"] = string(s.Raise[0].Value)
		}
		if met {
			tried++
		}
		r := k.step(s)
		if r.Met { // one whose conditions hold may be refused, as after the loss of a connection
			done++
		} else {
			want = model
		}
		if r.Met && !met {
			e.Errorf("step %d was made, though its conditions do not hold: %+v", n, s)
		}
		outcomes := slices.Concat(r.Then, r.Each)
		for i, c := range slices.Concat(s.Then, s.Each) {
			name := c.Key.Name
			switch made := outcomes[i].Done; {
			case made && !(r.Met && holds[name]), i < len(r.Then) && made != r.Met:
				e.Errorf("step %d: the change of %s was made: %v; met: %v; its row is as it was: %v", n, name, made, r.Met, holds[name])
			case !made: // likewise
				want[name] = model[name]
			}
			if outcomes[i].Now.Known {
				k.holds(fmt.Sprintf("step %d: row %s as it is told", n, name), outcomes[i].Now, want[name])
			}
		}
		model = want
		all := slices.Concat(names, []string{"beat"})
		for i, cell := range k.cells(all...) {
			k.holds(fmt.Sprintf("step %d %+v: row %s", n, s, all[i]), cell, model[all[i]])
		}
		if e.Failed() {
			return
		}
	}
	if done < tried/2 {
		e.Errorf("of %d steps whose conditions hold %d were made", tried, done)
	}
}
