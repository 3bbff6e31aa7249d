package witness

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
)

// A line is fresh until a heartbeat is acknowledged that was sent after its grant.
func TestWhichLinesAreFresh(t *testing.T) {
	c := servingScene(t)
	c.g.me.beat.Count = 7
	c.g.grantedLocked([]granted{{line: "tag/t"}, {line: "tag/v"}})
	c.g.me.beat.Count = 9
	c.g.grantedLocked([]granted{{line: "tag/u"}, {line: "tag/v"}})
	for _, v := range []struct {
		sure int64
		want []string
	}{{7, []string{"tag/t", "tag/u", "tag/v"}}, {8, []string{"tag/u", "tag/v"}}, {9, []string{"tag/u", "tag/v"}}, {10, nil}} {
		c.g.me.sure = v.sure
		c.g.settleFresh()
		if got := slices.Sorted(maps.Keys(c.g.fresh)); !slices.Equal(got, v.want) {
			t.Errorf("once heartbeat %d is acknowledged: fresh are %v; want %v", v.sure, got, v.want)
		}
	}
	c.g.shared = false
	c.g.grantedLocked([]granted{{line: "tag/t"}})
	if len(c.g.fresh) > 0 {
		t.Errorf("on a store of its own: fresh are %v", c.g.fresh)
	}

	c = servingScene(t)
	c.g.me.acked.Count, c.g.fresh = 9, map[string]int64{"tag/t": 9}
	c.g.keepRow()
	if c.g.fresh["tag/t"] != 0 || c.g.witness.rows().Own[c.g.me.row].Count != 9 {
		t.Errorf("a lost row leaves %v fresh, and the witness knows %v", c.g.fresh, c.g.witness.rows().Own)
	}
	c.g.me.row = ""
	c.g.keepRow()
	if own := c.g.witness.rows().Own; len(own) != 1 {
		t.Errorf("without a row the witness learns %v", own)
	}
}

// A process reports in the store at which primary it has found its grants: once, only where that
// is the one that it has asked, and also where the answer was lost.
func TestReportsThePrimary(t *testing.T) {
	found := question{"p2", 3, false}
	for name, v := range map[string]struct {
		q           question
		primary     string
		told, stood string
		swapped     func(string) bool
		want        string // how it stands, and was told
		written     bool
	}{
		"for the first time":                  {q: found, primary: "p2", want: "p2", written: true},
		"the primary has changed since":       {q: question{"p1", 3, false}, primary: "p2"},
		"it has begun to wait anew":           {q: question{"p2", 2, false}, primary: "p2"},
		"it was granted nothing":              {q: question{"p1", 2, true}, primary: "p2", want: "p2", written: true},
		"the store does not tell its primary": {q: question{"", 3, true}},
		"it is told already":                  {q: found, primary: "p2", told: "p2", stood: "p2", want: "p2"},
		"another was told":                    {q: found, primary: "p2", told: "p1", stood: "p1", want: "p2", written: true},
		"an answer was lost":                  {q: found, primary: "p2", stood: "p2", want: "p2", written: true},
		"... that told of another":            {q: found, primary: "p2", stood: "p1", want: "p2", written: true},
		"another is always first":             {q: found, primary: "p2", stood: "p1", swapped: func(string) bool { return false }, want: "", written: true},
	} {
		set := func(t *testing.T) *scene {
			c := servingScene(t)
			c.g.me.begun, c.g.me.over = 3, 3
			c.g.me.primary, c.g.me.told = v.primary, v.told
			c.store.primary = v.primary
			if v.stood != "" {
				c.put(tablePrimaries, c.g.me.row, []byte(v.stood))
			}
			c.store.swapped = v.swapped
			return c
		}
		c := set(t)
		err := c.g.tellPrimary(t.Context(), c.store, v.q)
		stands := v.want
		if v.want == "" {
			stands = v.stood
		}
		if err != nil || c.row(tablePrimaries, c.g.me.row) != stands || c.g.me.told != v.want || (len(c.store.made()) > 0) != v.written {
			t.Errorf("%s: %v, there stands %q, told is %q after %v", name, err, c.row(tablePrimaries, c.g.me.row), c.g.me.told, c.store.made())
		}
		for n := range len(c.store.made()) {
			c := set(t)
			c.store.reset(n + 1)
			if err := c.g.tellPrimary(t.Context(), c.store, v.q); !errors.Is(err, errInjected) || c.g.me.told != v.told {
				t.Errorf("%s: call %d fails: %v, told is %q", name, n+1, err, c.g.me.told)
			}
		}
	}
}

// Where a node asks whether its grants are there, a fresh line that is behind is a loss: a tag's
// and a worker's, by token and mark.
func TestComparesFreshLines(t *testing.T) {
	w1, w2 := WorkerLine("p", 1), WorkerLine("p", 2)
	known := map[string]Pair{"tag/t": {0, 100}, w1: {3, 50}} // healing has raised the worker's token
	for name, v := range map[string]struct {
		known  map[string]Pair
		fresh  []string
		behind bool
	}{
		"all is there":                    {nil, []string{"tag/t", w1}, false},
		"a tag's mark":                    {map[string]Pair{"tag/t": {0, 101}}, []string{"tag/t", w1}, true},
		"... which is not fresh":          {map[string]Pair{"tag/t": {0, 101}}, []string{w1}, false},
		"a worker's mark":                 {map[string]Pair{w1: {3, 51}}, []string{"tag/t", w1}, true},
		"a worker's token":                {map[string]Pair{w1: {4, 0}}, []string{w1}, true},
		"... which is not fresh, too":     {map[string]Pair{w1: {4, 0}, w2: {}}, []string{w2, "tag/t"}, false},
		"a worker that is not there":      {map[string]Pair{w2: {1, 1}}, []string{w2}, true},
		"a worker of a pool that is gone": {map[string]Pair{WorkerLine("q", 1): {1, 1}}, []string{WorkerLine("q", 1)}, true},
		"nothing is fresh":                {map[string]Pair{"tag/t": {9, 9}, w1: {9, 9}}, nil, false},
		"what is no line":                 {nil, []string{"odd"}, false},
	} {
		c := servingScene(t)
		withPool(c)
		c.know(func(b *record) { maps.Copy(b.Lines, known); maps.Copy(b.Lines, v.known) })
		c.g.fresh = map[string]int64{}
		for _, line := range v.fresh {
			c.g.fresh[line] = 1
		}
		c.g.me.primary, c.g.me.begun = "p2", 3
		q, err := c.g.compareFresh(t.Context(), c.store)
		if errors.Is(err, hapax.ErrStoreRolledBack) != v.behind || (err != nil) != v.behind || (c.g.state == Refusing) != v.behind {
			t.Errorf("%s: %v, %s", name, err, c.g.state)
		}
		if want := (question{"p2", 3, len(v.fresh) == 0}); q != want {
			t.Errorf("%s: the question is %+v; want %+v", name, q, want)
		}
	}
	for _, n := range []int{driver.MaxNamed - 1, driver.MaxNamed, driver.MaxNamed + 1} {
		c := servingScene(t)
		asked, calls := 0, 0
		c.g.fresh = map[string]int64{}
		for i := range n {
			c.tag(fmt.Sprint("u", i), 5)
			c.g.fresh[TagLine(fmt.Sprint("u", i))] = 1
		}
		c.store.named = func(tags *[]hapax.Tag) { calls++; asked += len(*tags) }
		if _, err := c.g.compareFresh(t.Context(), c.store); err != nil || asked != n || calls != (n+driver.MaxNamed-1)/driver.MaxNamed {
			t.Errorf("of %d tags %d are read, in %d calls, %v", n, asked, calls, err)
		}
	}
	for n := 1; ; n++ {
		c := servingScene(t)
		withPool(c)
		c.know(func(b *record) { maps.Copy(b.Lines, known) })
		c.g.fresh = map[string]int64{w1: 1}
		for i := range driver.MaxNamed + 1 {
			c.tag(fmt.Sprint("u", i), 5)
			c.g.fresh[TagLine(fmt.Sprint("u", i))] = 1
		}
		c.store.reset(n)
		_, err := c.g.compareFresh(t.Context(), c.store)
		if len(c.store.made()) < n {
			break
		}
		if !errors.Is(err, errInjected) {
			t.Errorf("call %d fails: %v", n, err)
		}
	}
}
