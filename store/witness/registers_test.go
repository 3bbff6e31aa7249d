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

// A process registers with a row that says all of it, and whose number counts last.
func TestRegisters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newScene(t)
		c.joins(6)
		c.g.opts.Address, c.g.opts.Manual, c.g.pace.interval = "here", true, 3*time.Second
		me, err := c.g.register(t.Context(), c.store)
		if err != nil {
			t.Fatal(err)
		}
		row := rowName(7, theRun[:runLength]+readsMark+"1")
		about := nodeRow{Name: "me", Address: "here", Every: 3000, Manual: true}.encode()
		first := driver.Beat{Count: 1}
		if me.row != row || string(me.about) != string(about) || me.number != 7 || me.beat != first || me.acked != first || me.asked != askAhead || me.joins != 7 || me.contact != c.g.now() || me.waits != c.g.now() || me.quick {
			t.Errorf("it is %+v", me)
		}
		if c.row(driver.TableNodes, row) != string(about) || c.row(driver.TableBeats, row) != string(first.Encode()) || c.row(driver.TableGuard, driver.RowJoins) != string(driver.EncodeCounter(7)) {
			t.Error("its rows are not in the store")
		}
		if o := c.g.witness.rows().Own[row]; o != (own{Count: 1, Asked: askAhead}) {
			t.Errorf("the witness knows %+v", o)
		}
		if again, err := c.g.register(t.Context(), c.store); err != nil || again.row != rowName(8, theRun[:runLength]+readsMark+"2") {
			t.Errorf("the next time it is %q, %v", again.row, err)
		}
		made := strings.Join(c.store.made(), " ")
		if at := strings.Index(made, "swap "+driver.RowJoins); at < 0 || at < strings.Index(made, "swap "+row) {
			t.Errorf("the order is %s", made)
		}
	})
	row := rowName(7, theRun[:runLength]+readsMark+"1")
	for _, split := range []bool{false, true} { // where a step is several writes, its row stands already, and ends
		c := newScene(t)
		c.joins(6)
		c.store.split = split
		c.store.swapped = func(name string) bool { return name != driver.RowJoins }
		if _, err := c.g.register(t.Context(), c.store); !errors.Is(err, hapax.ErrStoreUnavailable) || !strings.Contains(err.Error(), "joined meanwhile") || strings.Contains(c.row(driver.TableBeats, row), "left") != split || !split && c.row(driver.TableBeats, row) != "" {
			t.Errorf("another was first, split %v: %v, and its row is %q", split, err, c.row(driver.TableBeats, row))
		}
		if o := c.g.witness.rows().Own[row]; o != (own{Asked: askAhead}) { // a copy of the witness may know it: the row is to be ended
			t.Errorf("another was first, split %v: the witness knows %+v of its row; want no heartbeat, since the number is another's", split, o)
		}
	}
	for name, v := range map[string]struct {
		knows func(b *record)
		want  string
	}{
		"joins":   {func(b *record) { b.Joins = 7 }, "6 nodes have joined it, and 7 had"},
		"its row": {func(b *record) { b.Own[rowOf(5, "R")] = own{Count: 3} }, "lacks this node's row"},
	} {
		c := newScene(t, v.knows)
		c.joins(6)
		if _, err := c.g.register(t.Context(), c.store); !errors.Is(err, hapax.ErrStoreRolledBack) || !strings.Contains(err.Error(), v.want) || c.g.state != Refusing || strings.Contains(strings.Join(c.store.made(), " "), "swap") {
			t.Errorf("%s is behind: %v after %v", name, err, c.store.made())
		}
	}
	c := newScene(t)
	_ = c.g.witness.Close()
	if _, err := c.g.register(t.Context(), c.store); !errors.Is(err, hapax.ErrClosed) || strings.Contains(strings.Join(c.store.made(), " "), "swap") {
		t.Errorf("with a witness that is closed: %v after %v", err, c.store.made())
	}
}

// A row that stands in the store, and of which the witness cannot know, is not used.
func TestRegistersOnAFailingDisk(t *testing.T) {
	c := newScene(t)
	c.store.before = func(call string) {
		if call == "swap "+driver.RowJoins {
			_ = c.g.witness.Close()
		}
	}
	if me, err := c.g.register(t.Context(), c.store); !errors.Is(err, hapax.ErrClosed) || me.row != "" || c.row(driver.TableGuard, driver.RowJoins) == "" {
		t.Errorf("it is %+v, %v", me, err)
	}
}

// What a process was judged by may not change until its row stands: neither the fence, nor the
// decision, nor the latest row that it had.
func TestRegistersInWhatItJudged(t *testing.T) {
	latest := rowOf(1, "R")
	for name, change := range map[string]func(c *scene){
		"nothing":        func(*scene) {},
		"the fence":      func(c *scene) { c.put(driver.TableFence, driver.RowFence, []byte("{}")) },
		"the decision":   func(c *scene) { c.put(driver.TableGuard, rowDecision, []byte("{}")) },
		"the latest row": func(c *scene) { c.put(driver.TableBeats, latest, driver.Beat{Count: 2}.Encode()) },
		"the joins":      func(c *scene) { c.joins(7) },
	} {
		c := newScene(t, func(b *record) { b.Own[latest] = own{Count: 3} })
		c.joins(6)
		c.peer(latest, "me", driver.Beat{Count: 3}, "")
		before, may, err := c.g.prepare(t.Context(), c.store)
		if err != nil || !may || countOf(c.store.made(), "row "+driver.RowFence) != 1 {
			t.Fatalf("it may register: %v, %v after %v; want one look at the fence", may, err, c.store.made())
		}
		change(c)
		joins := c.row(driver.TableGuard, driver.RowJoins)
		_, err = c.g.register(t.Context(), before)
		if (err == nil) != (name == "nothing") || (c.row(driver.TableGuard, driver.RowJoins) != joins) != (name == "nothing") {
			t.Errorf("%s has changed: %v, %q have joined", name, err, c.row(driver.TableGuard, driver.RowJoins))
		}
	}
}

// The next registration finds out whether the latest one without an answer has arrived.
func TestFindsWhatHasArrived(t *testing.T) {
	earlier, lost := rowOf(5, "E"), rowOf(6, "L")
	for name, v := range map[string]struct {
		change func(c *scene)
		want   int64
	}{
		"it stands there":                {func(*scene) {}, 1},
		"it has gone on":                 {func(c *scene) { c.peer(lost, "me", driver.Beat{Count: 4}, "") }, 1},
		"it never arrived":               {func(c *scene) { c.put(driver.TableBeats, lost, nil) }, 0},
		"it was written as ended":        {func(c *scene) { c.peer(lost, "me", driver.Beat{Count: 1}, "left") }, 0},
		"a step is several writes":       {func(c *scene) { c.store.split = true }, 1},
		"... and another has its number": {func(c *scene) { c.store.split = true; c.peer(rowOf(6, "O"), "other", driver.Beat{Count: 1}, "left") }, 0},
		"... which nobody has yet":       {func(c *scene) { c.store.split = true; c.joins(5) }, 0},
		"the answer to it had come": {func(c *scene) {
			c.know(func(b *record) { b.Own[lost] = own{Count: 3} })
			c.peer(lost, "me", driver.Beat{Count: 3}, "")
		}, 3},
		"its beat cannot be understood": {func(c *scene) { c.put(driver.TableBeats, lost, []byte("x")) }, -1},
	} {
		c := newScene(t, func(b *record) { b.Own = map[string]own{earlier: {}, lost: {Asked: askAhead}} })
		c.joins(6)
		c.peer(earlier, "me", driver.Beat{Count: 1}, "left")
		c.peer(lost, "me", driver.Beat{Count: 1}, "")
		v.change(c)
		before, _, err := c.g.prepare(t.Context(), c.store)
		if err != nil {
			t.Fatal(err)
		}
		c.store.reset(0)
		me, err := c.g.register(t.Context(), before)
		if (err != nil) != (v.want < 0) || err != nil && len(c.store.made()) > 0 {
			t.Errorf("%s: %v, after %v", name, err, c.store.made())
		}
		if err != nil {
			continue
		}
		r := c.g.witness.rows()
		if r.Own[lost].Count != v.want || r.Own[earlier].Count != 0 || r.Own[me.row] != (own{Count: 1, Asked: askAhead}) {
			t.Errorf("%s: the witness knows %+v; want heartbeat %d of the second", name, r.Own, v.want)
		}
		for _, call := range c.store.made() {
			if !strings.HasPrefix(call, "swap") && !c.store.split {
				t.Errorf("%s: it was read for by itself: %v", name, c.store.made())
			}
		}
	}
}

// Another row of a serving process takes over all that it has surveyed; its old row ends.
func TestRenewsItsRow(t *testing.T) {
	c := servingScene(t)
	old := c.g.me.row
	c.know(func(b *record) { b.Own[old] = own{Count: 2} })
	m := &c.g.me
	m.primary, m.seen, m.learnt, m.changes, m.again, m.rowsAgain, m.read, m.watches = "p", 1, 3, 4, 5, 6, 7, true
	c.put(driver.TableGuard, driver.RowChanges, driver.EncodeCounter(4))
	if err := c.g.renew(t.Context(), c.store); err != nil {
		t.Fatal(err)
	}
	if m.row == old || m.number != 2 || m.primary != "p" || !m.known || m.seen != 1 || m.learnt != 3 || m.changes != 4 || m.again != 5 || m.rowsAgain != 6 || m.read != 7 || !m.watches {
		t.Errorf("it is %+v", m)
	}
	if !strings.Contains(c.row(driver.TableBeats, old), "left") || !strings.Contains(c.row(driver.TableNodes, m.row), `"serves":true`) || c.row(driver.TableGuard, driver.RowChanges) != string(driver.EncodeCounter(5)) {
		t.Errorf("the old row is %q, the new one says %q", c.row(driver.TableBeats, old), c.row(driver.TableNodes, m.row))
	}
	for _, state := range []State{Joining, Fenced} {
		c := servingScene(t)
		old := c.g.me.row
		c.store.before = func(call string) {
			if call == "beat" {
				c.g.mu.Lock()
				c.g.state = state
				c.g.mu.Unlock()
			}
		}
		_ = c.g.renew(t.Context(), c.store)
		if c.g.me.row != old {
			t.Errorf("a process that does not serve any more has another row")
		}
	}
	c = servingScene(t)
	c.g.me.row = ""
	if _ = c.g.renew(t.Context(), c.store); c.g.me.row != "" {
		t.Error("a process that was made to join again has another row")
	}
}

// An end is told in the store where it is one, and only on a store that is shared.
func TestTellsOfClosedRows(t *testing.T) {
	e, f := rowOf(2, "E"), rowOf(3, "F")
	for name, v := range map[string]struct {
		raced string // rows that advance meanwhile
		apart bool
		told  bool
	}{
		"two are closed":        {"", false, true},
		"the last is not":       {f, false, true},
		"nor is the first":      {e, false, true},
		"none is":               {e + f, false, false},
		"on a store of its own": {"", true, false},
	} {
		for range 5 { // the order of rows is any
			c := servingScene(t)
			c.peer(e, "me", driver.Beat{Count: 3}, "")
			c.peer(f, "me", driver.Beat{Count: 3}, "")
			c.know(func(b *record) { b.Own = map[string]own{e: {Count: 3}, f: {Count: 3}} })
			c.store.shared = !v.apart
			c.store.before = func(call string) {
				if row, ok := strings.CutPrefix(call, "swap "); ok && strings.Contains(v.raced, row) {
					c.put(driver.TableBeats, row, driver.Beat{Count: 4}.Encode())
				}
			}
			if err := c.g.closeEarlier(t.Context(), c.store); err != nil {
				t.Fatal(name, err)
			}
			if got := c.row(driver.TableGuard, driver.RowChanges); (got != "") != v.told {
				t.Errorf("%s: changes are %q", name, got)
			}
		}
	}
}

// A survey at the way to serving is made beside the heartbeats where it is long or nobody shares the
// store, and once at a time.
func TestFirstSurveys(t *testing.T) {
	for name, v := range map[string]struct {
		set        func(c *scene)
		done, busy bool
		long       bool
		err        error
	}{
		"short":                 {func(*scene) {}, true, false, false, nil},
		"one is under way":      {func(c *scene) { c.g.me.busy = true }, false, true, false, nil},
		"long":                  {func(c *scene) { c.g.long = true }, false, true, true, nil},
		"on a store of its own": {func(c *scene) { c.g.shared, c.store.shared = false, false }, false, true, false, nil},
		"it fails":              {func(c *scene) { c.store.reset(1) }, false, false, false, errInjected},
	} {
		synctest.Test(t, func(t *testing.T) {
			c := servingScene(t)
			c.g.state = Joining
			v.set(c)
			done, err := c.g.surveyFirst(t.Context(), c.store)
			c.g.mu.Lock()
			busy := c.g.me.busy
			c.g.mu.Unlock()
			if done != v.done || busy != v.busy || c.g.long != v.long || !errors.Is(err, v.err) || v.err == nil && err != nil {
				t.Errorf("%s: done %v, under way %v, long %v, %v", name, done, busy, c.g.long, err)
			}
			c.g.stop()
			c.g.loop.Wait()
			time.Sleep(time.Second)
		})
	}
	for _, shared := range []bool{true, false} { // a long one on the handle that is kept for heartbeats, where there is one
		c := servingScene(t)
		beats := &counted{Store: c.store.Store, shared: true}
		h := newHandle(func(context.Context) (driver.Store, error) { return beats, nil }, true)
		h.clock = c.g.opts.Clock
		c.g.state, c.g.beats, c.g.shared, c.store.shared, c.g.long = Joining, h, shared, shared, true
		if done, err := c.g.surveyFirst(t.Context(), c.store); done || err != nil {
			t.Errorf("a long one: %v, %v", done, err)
		}
		c.g.loop.Wait()
		if other := countOf(beats.made(), "list beats") > 0; other != shared || countOf(c.store.made(), "list beats") > 0 == shared {
			t.Errorf("on a store that is shared %v it is made by the other handle: %v", shared, other)
		}
	}
	for name, v := range map[string]struct {
		shared bool
		waited time.Duration
		rows   int
		want   bool
	}{
		"after a while":        {false, surveyHead, compactAt - 1, true},
		"too soon":             {false, surveyHead - 1, 0, false},
		"many starts before":   {false, surveyHead, compactAt, false},
		"on a store of others": {true, time.Hour, 0, false},
	} {
		synctest.Test(t, func(t *testing.T) {
			c := newScene(t)
			c.store.shared = v.shared
			c.g.me.waits = c.g.now() - v.waited
			c.know(func(b *record) {
				for i := range v.rows {
					b.Own[fmt.Sprint("row", i)] = own{Count: 1}
				}
			})
			if got := c.g.maySurveyLater(c.store); got != v.want {
				t.Errorf("%s: it may serve before its survey: %v; want %v", name, got, v.want)
			}
		})
	}
}

// What a process says of itself is changed from what it has said last, and from what stands there
// where that is something else.
func TestReportsOfItself(t *testing.T) {
	serves := string(nodeRow{Name: "me", Every: 1000, Serves: true}.encode())
	for name, v := range map[string]struct {
		said, stands string
		swapped      func(string) bool
		calls        int
		want         string
		told         bool
		err          bool
	}{
		"as it has said":           {`{"name":"me","every_ms":1000}`, `{"name":"me","every_ms":1000}`, nil, 1, serves, true, false},
		"it has said nothing":      {"", `{"name":"me","every_ms":1000}`, nil, 2, serves, true, false},
		"another stands there":     {`{"name":"x","every_ms":1000}`, `{"name":"me","every_ms":1000}`, nil, 3, serves, true, false},
		"it says so already":       {serves, serves, nil, 0, serves, false, false},
		"... as is read":           {"", serves, nil, 1, serves, false, false},
		"nothing stands there":     {"", "", nil, 1, "", false, false},
		"somebody is always first": {`{"name":"me"}`, `{"name":"me","every_ms":1000}`, func(string) bool { return false }, 3, `{"name":"me","every_ms":1000}`, false, true},
		"it is not sound":          {"", "~", nil, 1, "~", false, true},
	} {
		c := servingScene(t)
		row := c.g.me.row
		c.put(driver.TableNodes, row, nil)
		if v.stands != "" {
			c.put(driver.TableNodes, row, []byte(v.stands))
		}
		if v.said != "" {
			c.g.me.about = []byte(v.said)
		}
		c.store.swapped = v.swapped
		err := c.g.announce(t.Context(), c.store)
		if (err != nil) != v.err || c.row(driver.TableNodes, row) != v.want || len(c.store.made()) != v.calls {
			t.Errorf("%s: %v, there stands %q after %v", name, err, c.row(driver.TableNodes, row), c.store.made())
		}
		if got := string(c.g.me.about) == serves; got != (v.told || v.said == serves) {
			t.Errorf("%s: it has said %q", name, c.g.me.about)
		}
	}
	c := servingScene(t) // of another row it knows nothing
	other := rowOf(3, "X")
	c.put(driver.TableNodes, other, []byte(`{"name":"x","every_ms":5}`))
	c.g.me.about = []byte(`{"name":"me","every_ms":1000}`)
	if err := c.g.sayOfItself(t.Context(), c.store, other, func(about *nodeRow) { about.Manual = true }); err != nil || !strings.Contains(c.row(driver.TableNodes, other), `"name":"x","every_ms":5,"manual":true`) || strings.Contains(string(c.g.me.about), "manual") {
		t.Errorf("of another row: %v, %q, %q", err, c.row(driver.TableNodes, other), c.g.me.about)
	}
}
