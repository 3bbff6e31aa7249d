package witness

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
)

// A beat is followed by the work that is due: the rows of all, or the watched one, the used tags, and
// a survey.
func TestLooksAfterABeat(t *testing.T) {
	a := readerRow(1, "A")
	for name, v := range map[string]struct {
		set     func(c *scene)
		calls   string
		surveys bool
	}{
		"nothing is due":             {func(*scene) {}, "", false},
		"it reads":                   {func(c *scene) { c.g.me.read = c.g.now() - 2500*time.Millisecond }, "list beats", false},
		"... not yet":                {func(c *scene) { c.g.me.read = c.g.now() - 2500*time.Millisecond + 1 }, "", false},
		"... since somebody is late": {func(c *scene) { c.g.me.late = true }, "list beats", false},
		"... while it surveys":       {func(c *scene) { c.g.me.late, c.g.me.busy = true, true }, "", true},
		"... for long": {func(c *scene) {
			c.g.me.late, c.g.me.busy = true, true
			c.g.me.read = c.g.now() - 5*time.Second
		}, "list beats", true},
		"... and compares":          {func(c *scene) { c.g.me.late = true; c.g.used.add("t") }, "list beats, named", false},
		"it compares":               {func(c *scene) { c.g.used.add("t") }, "named", false},
		"it watches with its beats": {func(c *scene) { c.g.me.late, c.g.me.watches = true, true; c.g.peers[a] = &sighting{} }, "", false},
		"it watches":                {func(c *scene) { c.g.me.late = true; c.g.peers[a] = &sighting{} }, "row " + a, false},
		"... and compares, too":     {func(c *scene) { c.g.me.late = true; c.g.peers[a] = &sighting{}; c.g.used.add("t") }, "row " + a + ", named", false},
		"... with its beats, likewise": {func(c *scene) {
			c.g.me.late, c.g.me.watches = true, true
			c.g.peers[a] = &sighting{}
			c.g.used.add("t")
		}, "named", false},
		"... which reads them itself": {func(c *scene) { c.g.me.late = true; c.g.me.joins++ }, "row compacted, row decision", true},
		"another has joined":          {func(c *scene) { c.g.me.joins++ }, "", true},
		"another has ended":           {func(c *scene) { c.g.me.changes = 8 }, "", true},
		"fewer have":                  {func(c *scene) { c.g.me.changes = 6 }, "", true},
		"the lines are due":           {func(c *scene) { c.g.me.again = c.g.now() }, "", true},
		"... not yet, too":            {func(c *scene) { c.g.me.again = c.g.now() + 1 }, "", false},
		"it joins":                    {func(c *scene) { c.g.state, c.g.me.late = Joining, true; c.g.me.joins++ }, "", false},
		"it has no row":               {func(c *scene) { c.g.me.row, c.g.me.late = "", true; c.g.me.joins++ }, "", false},
		"the reading fails": {func(c *scene) {
			c.g.me.late = true
			c.g.used.add("t")
			c.store.reset(1)
		}, "list beats", false},
	} {
		synctest.Test(t, func(t *testing.T) {
			c := servingScene(t)
			if _, err := c.g.calls.get(t.Context()); err != nil {
				t.Fatal(err)
			}
			c.put(driver.TableBeats, c.g.me.row, nil)
			c.g.me.row = readerRow(2, "R")
			c.g.me.learnt, c.g.me.changes, c.g.me.read, c.g.me.again = 7, 7, c.g.now(), c.g.now()+time.Hour
			c.g.used.turn = c.g.now() + time.Hour
			v.set(c)
			c.g.look()
			c.g.mu.Lock()
			surveys := c.g.me.busy
			c.g.mu.Unlock()
			synctest.Wait()
			if text := c.log.String(); strings.Contains(text, "the look at the rows") != (name == "the reading fails") {
				t.Errorf("%s: it logs %q", name, text)
			}
			made := []string{}
			for _, call := range c.store.made() {
				if strings.HasPrefix(call, "list") || strings.HasPrefix(call, "row") || call == "named" {
					made = append(made, call)
				}
			}
			if got := strings.Join(made, ", "); (!v.surveys || strings.HasPrefix(name, "... ")) && got != v.calls || surveys != v.surveys {
				t.Errorf("%s: it calls %q, and surveys: %v; want %q, %v", name, got, surveys, v.calls, v.surveys)
			}
			if strings.Contains(v.calls, a) && (c.g.me.read != c.g.now()) {
				t.Errorf("%s: it has looked at %v", name, c.g.me.read)
			}
			c.g.stop()
			c.g.loop.Wait()
		})
	}
}

// The work after a beat is done beside the next ones, once at a time, for as long as a living node
// may take, and costs the heartbeats nothing if it is not answered.
func TestLooksBesideItsBeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := servingScene(t)
		lists := 0
		dials := c.hasStore(listless{c.store, &lists})
		beats := c.g.beats
		c.g.calls = newHandle(beats.open, false)
		c.g.calls.clock = c.g.opts.Clock
		c.g.opts.Timeout = time.Minute
		t.Cleanup(func() { _ = c.g.calls.close() })
		c.g.me.late, c.g.me.again, c.g.me.seen, c.g.me.learnt = true, c.g.now()+time.Hour, c.g.me.joins, c.g.me.changes
		began := c.g.now()
		for range 5 {
			if err := c.g.beat(); err != nil || c.g.now() != began {
				t.Fatalf("a beat ends after %v: %v", c.g.now()-began, err)
			}
			synctest.Wait()
		}
		if lists != 1 {
			t.Errorf("it reads %d times at once", lists)
		}
		time.Sleep(c.g.opts.wait() - 1)
		synctest.Wait()
		if c.g.look(); lists != 1 {
			t.Error("it reads again before the time of the first is over")
		}
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		c.g.look()
		synctest.Wait()
		if lists != 2 || *dials != 2 || beats.peek() == nil {
			t.Errorf("it has read %d times, and dialled %d; want two of each, and none for the heartbeats", lists, *dials)
		}
		time.Sleep(c.g.opts.wait()) // until the second is over, too
		synctest.Wait()
		c.g.calls.drop(c.g.calls.peek())
		c.g.me.late, c.g.me.read, c.g.me.contact = false, c.g.now(), c.g.now()
		if err := c.g.beat(); err != nil || c.g.now()-began != 2*c.g.opts.wait() {
			t.Errorf("a beat waits for another handle: %v", err)
		}
		if synctest.Wait(); lists != 2 || *dials != 3 || c.g.calls.peek() == nil {
			t.Errorf("it has read %d times, and dialled %d; want the dropped handle dialled, and no reading", lists, *dials)
		}
		c.g.stop()
		c.g.loop.Wait()
	})
}

// hasStore has the guard use a store by one handle, which dials it anew where it was dropped.
func (c *scene) hasStore(s driver.Store) (dials *int) {
	dials = new(int)
	h := newHandle(func(context.Context) (driver.Store, error) { *dials++; return s, nil }, false)
	h.clock, h.again = c.g.opts.Clock, true
	c.g.calls, c.g.beats = h, h
	c.t.Cleanup(func() { _ = h.close() })
	return dials
}

// A listless store answers all but lists.
type listless struct {
	*counted
	lists *int
}

func (l listless) ListRows(ctx context.Context, _, _ string, _ int) ([]driver.Row, error) {
	*l.lists++
	<-ctx.Done()
	return nil, ctx.Err()
}

// An end that nobody has told is told by whoever surveys it.
func TestTellsOfUntoldEnds(t *testing.T) {
	a, b := rowOf(1, "A"), rowOf(2, "B")
	for name, v := range map[string]struct {
		change      func(g *Guarded)
		before, now map[string]peer
		changes     int64
		want        bool
	}{
		"it has ended":              {func(*Guarded) {}, map[string]peer{a: {}}, map[string]peer{a: {How: "left"}}, 7, true},
		"it lives":                  {func(*Guarded) {}, map[string]peer{a: {}}, map[string]peer{a: {}}, 7, false},
		"it had ended":              {func(*Guarded) {}, map[string]peer{a: {How: "left"}}, map[string]peer{a: {How: "left"}}, 7, false},
		"it has joined since":       {func(*Guarded) {}, nil, map[string]peer{b: {How: "left"}}, 7, false},
		"... and not just":          {func(*Guarded) {}, nil, map[string]peer{a: {How: "left"}}, 7, true},
		"the number was moved":      {func(*Guarded) {}, map[string]peer{a: {}}, map[string]peer{a: {How: "left"}}, 8, false},
		"on a store of its own":     {func(g *Guarded) { g.shared = false }, map[string]peer{a: {}}, map[string]peer{a: {How: "left"}}, 7, false},
		"with its first survey":     {func(g *Guarded) { g.me.known = false }, map[string]peer{a: {}}, map[string]peer{a: {How: "left"}}, 7, false},
		"one has, and one has not":  {func(*Guarded) {}, map[string]peer{a: {}, b: {}}, map[string]peer{b: {}, a: {How: "silent"}}, 7, true},
		"nobody has ever been here": {func(*Guarded) {}, nil, nil, 7, false},
	} {
		g := &Guarded{shared: true, me: member{known: true, learnt: 7, seen: 1}}
		v.change(g)
		if got := g.isUntold(v.before, v.now, v.changes); got != v.want {
			t.Errorf("%s: %v; want %v", name, got, v.want)
		}
	}
}

// A survey takes what is new into the witness: lines, rows of others, and which of its own rows are
// over; and nothing of a store that is behind.
func TestSurveys(t *testing.T) {
	mine, a, copied := rowOf(6, "R"), rowOf(4, "A"), rowOf(3, "C")
	set := func(t *testing.T) *scene {
		c := servingScene(t)
		withPool(c)
		c.joins(6)
		c.g.me.row = mine
		c.put(driver.TableBeats, mine, driver.Beat{Count: 2}.Encode())
		c.g.me.known, c.g.me.seen, c.g.me.joins, c.g.me.changes = false, 0, 6, 0
		c.put(driver.TableGuard, rowCompacted, driver.EncodeCounter(2))
		c.peer(a, "a", driver.Beat{Count: 3, Grants: 4}, "left")
		c.peer(copied, "me", driver.Beat{Count: 9, Grants: 9}, "")
		c.peer(rowOf(2, "O"), "o", driver.Beat{Count: 3}, "left")
		c.know(func(b *record) {
			b.Joins = 6
			b.Own = map[string]own{mine: {Count: 2}, copied: {Count: 5, Grants: 3}, rowOf(2, "E"): {Count: 5}, rowOf(5, "G"): {Count: 1}}
			b.Lines = map[string]Pair{"tag/t": {0, 90}}
		})
		return c
	}
	c := set(t)
	if err := c.g.survey(t.Context(), c.store); err != nil {
		t.Fatal(err)
	}
	r := c.g.witness.snapshot()
	if r.Lines["tag/t"].Mark != 100 || r.Lines[WorkerLine("p", 1)].Mark != 50 || r.Defs[poolDef("p")].Layout == "" {
		t.Errorf("of lines it knows %v, %v", r.Lines, r.Defs)
	}
	if want := (peer{Name: "a", Address: "at-a", Count: 3, Grants: 4, Every: 1000, How: "left"}); r.Peers[a] != want || len(r.Peers) != 2 || r.Joins != 6 || r.Compacted != 2 {
		t.Errorf("of others it knows %+v, %d joins, compacted up to %d", r.Peers, r.Joins, r.Compacted)
	}
	if len(r.Own) != 2 || r.Own[mine].Count != 2 || r.Own[rowOf(5, "G")].Count != 1 || !strings.Contains(c.log.String(), "an earlier row of this node is further") {
		t.Errorf("its rows are %+v; it logs %s", r.Own, c.log)
	}
	if m := c.g.me; !m.known || m.seen != 6 || m.learnt != m.changes || m.again != c.g.now()+surveyEvery && m.again < c.g.now()+surveyEvery-time.Second || m.rowsAgain < c.g.now()+surveyEvery-time.Second {
		t.Errorf("after it: %+v", m)
	}
	for name, v := range map[string]struct {
		set  func(c *scene)
		want string
	}{
		"joins": {func(c *scene) {
			c.store.contact = func(at *driver.Contact) { at.Joins = 6 }
			c.joins(5)
		}, "5 nodes have joined it, and 6 had"},
		"a line": {func(c *scene) { c.know(func(b *record) { b.Lines["tag/t"] = Pair{0, 101} }) }, "tag/t is at token 0, mark 100"},
	} {
		c := set(t)
		v.set(c)
		if err := c.g.survey(t.Context(), c.store); !errors.Is(err, hapax.ErrStoreRolledBack) || !strings.Contains(err.Error(), v.want) || c.g.state != Refusing || len(c.g.witness.snapshot().Peers) > 0 {
			t.Errorf("%s is behind: %v, it is %s", name, err, c.g.state)
		}
	}
}

// Where nobody has joined or ended a survey reads the lines alone.
func TestSurveysTheLinesAlone(t *testing.T) {
	for name, v := range map[string]struct {
		change func(c *scene)
		whole  bool
	}{
		"nothing has moved":  {func(*scene) {}, false},
		"not surveyed yet":   {func(c *scene) { c.g.me.known = false }, true},
		"another has joined": {func(c *scene) { c.g.me.seen = 0 }, true},
		"one has ended":      {func(c *scene) { c.g.me.learnt = 6 }, true},
		"the rows are due":   {func(c *scene) { c.g.me.rowsAgain = c.g.now() }, true},
	} {
		synctest.Test(t, func(t *testing.T) {
			c := servingScene(t)
			c.g.me.rowsAgain = c.g.now() + 1
			c.tag("u", 20, func(x *hapax.Tag) { x.Start = 5 })
			v.change(c)
			syncs := CountSyncs(c.g.witness)
			if err := c.g.survey(t.Context(), c.store); err != nil {
				t.Fatal(name, err)
			}
			whole := strings.Contains(strings.Join(c.store.made(), " "), "list beats")
			r := c.g.witness.snapshot()
			if whole != v.whole || r.Lines["tag/u"].Mark != 20 || r.Defs["tag/u"].Start != 5 || c.g.me.again != c.g.now()+surveyEvery {
				t.Errorf("%s: it reads rows: %v; it knows %v, %v; again at %v", name, whole, r.Lines, r.Defs, c.g.me.again-c.g.now())
			}
			was := syncs()
			c.g.me.known, c.g.me.seen, c.g.me.learnt, c.g.me.rowsAgain = true, 1, c.g.me.changes, c.g.now()+1
			if err := c.g.survey(t.Context(), c.store); err != nil || syncs() != was {
				t.Errorf("%s: what is known is written %d times, %v", name, syncs()-was, err)
			}
			c.know(func(b *record) { b.Lines["tag/u"] = Pair{0, 21} })
			if err := c.g.survey(t.Context(), c.store); !errors.Is(err, hapax.ErrStoreRolledBack) {
				t.Errorf("%s: a line that is behind: %v", name, err)
			}
		})
	}
	synctest.Test(t, func(t *testing.T) { // a long survey is made less often
		c := servingScene(t)
		c.g.me.rowsAgain = 0
		for i := range int64(40) {
			c.peer(rowOf(i+10, "A"), "a", driver.Beat{Count: 3}, "left")
		}
		c.joins(60)
		c.store.before = func(call string) {
			if call == "pools" {
				time.Sleep(2 * time.Second)
			}
		}
		if err := c.g.survey(t.Context(), c.store); err != nil || c.g.me.again != c.g.now()+200*time.Second || c.g.me.rowsAgain != c.g.now()+82*time.Second {
			t.Errorf("%v, the lines again in %v, the rows in %v", err, c.g.me.again-c.g.now(), c.g.me.rowsAgain-c.g.now())
		}
		c.g.me.learnt, c.g.me.seen, c.g.me.joins = c.g.me.changes, 60, 60
		if err := c.g.survey(t.Context(), c.store); err != nil || c.g.me.again != c.g.now()+200*time.Second {
			t.Errorf("of the lines: %v, again in %v", err, c.g.me.again-c.g.now())
		}
	})
}

// Rows are read ahead in one call, and all others when they are asked for.
func TestReadsAhead(t *testing.T) {
	c := servingScene(t)
	a, err := readAhead(t.Context(), c.store, guardRow(driver.RowJoins), guardRow(rowDecision))
	if err != nil {
		t.Fatal(err)
	}
	c.store.reset(0)
	if raw, err := a.Row(t.Context(), driver.TableGuard, driver.RowJoins); err != nil || string(raw) != string(driver.EncodeCounter(1)) || len(c.store.made()) > 0 {
		t.Errorf("a row that was read: %q, %v after %v", raw, err, c.store.made())
	}
	if raw, err := a.Row(t.Context(), driver.TableGuard, rowDecision); err != nil || raw != nil || len(c.store.made()) > 0 {
		t.Errorf("one that is not there: %q, %v after %v", raw, err, c.store.made())
	}
	if raw, err := a.Row(t.Context(), driver.TableBeats, c.g.me.row); err != nil || raw == nil || len(c.store.made()) != 1 {
		t.Errorf("another: %q, %v", raw, err)
	}
	c.store.reset(1)
	if _, err := readAhead(t.Context(), c.store, guardRow(driver.RowJoins)); !errors.Is(err, errInjected) {
		t.Errorf("the call fails: %v", err)
	}
}

// A survey that cannot be taken into the witness, or reads what is none, fails; an own row that is no
// further than the witness knows stays its own.
func TestSurveysThatFail(t *testing.T) {
	for name, v := range map[string]struct {
		set  func(c *scene)
		want error
	}{
		"the witness is closed":       {func(c *scene) { _ = c.g.witness.Close() }, hapax.ErrClosed},
		"... of the lines alone":      {func(c *scene) { c.g.me.rowsAgain = c.g.now() + time.Hour; _ = c.g.witness.Close() }, hapax.ErrClosed},
		"a counter is none":           {func(c *scene) { c.put(driver.TableGuard, rowCompacted, []byte("~")) }, hapax.ErrStoreCorrupt},
		"what is owed is none":        {func(c *scene) { c.put(driver.TableGuard, rowOwed+"tag/u", []byte("~")) }, hapax.ErrStoreCorrupt},
		"a row is none":               {func(c *scene) { c.put(driver.TableBeats, rowOf(2, "B"), []byte("~")) }, hapax.ErrStoreCorrupt},
		"what a process says is none": {func(c *scene) { c.put(driver.TableNodes, rowOf(2, "B"), []byte("~")) }, hapax.ErrStoreCorrupt},
		"... and nothing is judged": {func(c *scene) {
			c.put(driver.TableBeats, rowOf(2, "B"), []byte("~"))
			c.know(func(b *record) { b.Lines["tag/t"] = Pair{0, 101} })
		}, hapax.ErrStoreCorrupt},
		"what is owed cannot be learnt": {func(c *scene) {
			c.g.me.rowsAgain, c.g.blocked = c.g.now()+time.Hour, map[string]bool{"tag/t": true}
			c.know(func(b *record) { b.Lines["tag/t"] = Pair{0, 100} })
			c.put(driver.TableGuard, rowOwed+"tag/u", driver.EncodeRow(owedLine{Pair: Pair{0, 50}}))
			_ = c.g.witness.Close()
		}, hapax.ErrClosed},
	} {
		c := servingScene(t)
		v.set(c)
		if err := c.g.survey(t.Context(), c.store); !errors.Is(err, v.want) {
			t.Errorf("%s: %v; want %v", name, err, v.want)
		}
	}
	c := servingScene(t)
	c.g.me.known = false
	row := rowOf(2, "B")
	c.joins(2)
	c.peer(row, "me", driver.Beat{Count: 5, Grants: 3}, "left")
	c.know(func(b *record) { b.Own[row] = own{Count: 4, Grants: 3} })
	if err := c.g.survey(t.Context(), c.store); err != nil || c.g.witness.rows().Own[row].Grants != 3 || c.log.Len() > 0 {
		t.Errorf("%v, its rows are %+v; it logs %s", err, c.g.witness.rows().Own, c.log)
	}
	c = newScene(t)
	c.joins(1)
	c.member(1, 2)
	c.g.state, c.g.me.quick = Joining, true
	_ = c.g.witness.Close()
	if err := c.g.join(t.Context(), c.store); !errors.Is(err, hapax.ErrClosed) || c.g.state != Joining {
		t.Errorf("it joins with a witness that is closed: %v, it is %s", err, c.g.state)
	}
}

// Rows that were read come to be compacted as they were; one that is none ends that.
func TestCompactsNoRowThatIsNone(t *testing.T) {
	c := servingScene(t)
	if err := c.g.compact(t.Context(), c.store, map[string][]byte{rowOf(2, "B"): []byte("~")}, 0); !errors.Is(err, hapax.ErrStoreCorrupt) {
		t.Errorf("%v; want ErrStoreCorrupt", err)
	}
}

// A joining process surveys, and marks nobody silent: it may be the one that the store does not answer in time.
func TestMarksNobodyWhileItJoins(t *testing.T) {
	for state, want := range map[State]string{Joining: "", Serving: "silent"} {
		c := servingScene(t)
		aSilentRow(c)
		c.g.state, c.g.me.known = state, false
		if err := c.g.survey(t.Context(), c.store); err != nil {
			t.Fatal(err)
		}
		if _, how, err := driver.DecodeBeat(rowOf(2, "B"), []byte(c.row(driver.TableBeats, rowOf(2, "B")))); err != nil || how != want {
			t.Errorf("%s: the other row has ended as %q, %v; want %q", state, how, err, want)
		}
	}
}

// Whoever marks others silent tells that, with one move of the number after the marks, also where somebody else was
// first with one of these.
func TestTellsOfItsMarks(t *testing.T) {
	b, last := rowOf(2, "B"), rowOf(3, "C")
	for name, v := range map[string]struct {
		others []string // rows that another process marks before this one does
		want   string
	}{
		"all are its own":       {nil, string(driver.EncodeCounter(1))},
		"the last is another's": {[]string{last}, string(driver.EncodeCounter(1))},
		"all are another's":     {[]string{b, last}, ""},
	} {
		c := servingScene(t)
		aSilentRow(c)
		beat := driver.Beat{Count: 3}
		c.peer(last, "c", beat, "")
		c.g.peers[last] = &sighting{value: string(beat.Encode()), beat: beat, at: c.g.now() - time.Minute}
		c.g.me.busy = true // no survey, which would tell, too
		c.store.before = func(call string) {
			if row := strings.TrimPrefix(call, "swap "); slices.Contains(v.others, row) {
				c.put(driver.TableBeats, row, beat.EncodeEnded("silent"))
			}
		}
		if err := c.g.read(t.Context(), c.store); err != nil {
			t.Fatal(name, err)
		}
		if got := c.row(driver.TableGuard, driver.RowChanges); got != v.want {
			t.Errorf("%s: the number of changes is %q; want %q", name, got, v.want)
		}
	}
}

// A survey whose first heartbeat gets no answer is told from one that is cut off, and has its handle dialled
// anew; one that fails otherwise does not.
func TestSurveyThatHangs(t *testing.T) {
	for name, v := range map[string]struct {
		answers bool
		cut     bool // the survey's own time ends first
		hangs   bool
	}{"nothing answers": {false, false, true}, "it is cut off": {false, true, false}, "it answers": {true, false, false}} {
		synctest.Test(t, func(t *testing.T) {
			c := servingScene(t)
			ctx, cancel := context.WithTimeout(t.Context(), 4*c.g.opts.Timeout)
			defer cancel()
			if v.cut {
				ctx, cancel = context.WithTimeout(ctx, c.g.opts.Timeout/2)
				defer cancel()
			}
			s := mute{c.store, v.answers}
			if err := c.g.survey(ctx, s); err == nil || errors.Is(err, errHangs) != v.hangs {
				t.Errorf("%s: %v", name, err)
			}
			dials := 0
			h := newHandle(func(context.Context) (driver.Store, error) { dials++; return s, nil }, false)
			h.clock = c.g.opts.Clock
			c.g.surveyOn(h)
			c.g.loop.Wait()
			if _, err := h.get(t.Context()); err != nil || (dials == 2) != !v.answers {
				t.Errorf("%s: it is dialled %d times, %v", name, dials, err)
			}
			_ = h.close()
		})
	}
}

// A survey that gets no answer until its time is over has its handle dialled anew; failures that are answers do
// not, however many there are.
func TestSurveyOnADeadHandle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := servingScene(t)
		c.g.me.known = false
		dials := c.hasStore(listless{c.store, new(int)})
		survey := func() {
			t.Helper()
			c.g.surveyLater()
			c.g.loop.Wait()
		}
		began := c.g.now()
		survey()
		if _, err := c.g.calls.get(t.Context()); err != nil || *dials != 2 || c.g.now()-began != surveyTimeouts*c.g.opts.Timeout {
			t.Errorf("a survey without an answer: dialled %d times after %v, %v", *dials, c.g.now()-began, err)
		}

		c = servingScene(t)
		dials = c.hasStore(c.store)
		for range 3 {
			c.store.reset(1)
			survey()
			time.Sleep(c.g.opts.Timeout)
		}
		if _, err := c.g.calls.get(t.Context()); err != nil || *dials != 1 {
			t.Errorf("surveys that fail: dialled %d times, %v", *dials, err)
		}
		for range 3 { // likewise the calls of others
			c.store.reset(1)
			if _, err := c.g.StoreID(t.Context()); !errors.Is(err, errInjected) {
				t.Errorf("a call that fails: %v", err)
			}
			time.Sleep(c.g.opts.Timeout)
		}
		if _, err := c.g.StoreID(t.Context()); err != nil || *dials != 1 {
			t.Errorf("calls that fail: dialled %d times, %v", *dials, err)
		}
	})
}

// A mute store answers no heartbeat, or refuses each.
type mute struct {
	*counted
	answers bool
}

func (m mute) Beat(ctx context.Context, _ driver.Pulse) (driver.Contact, error) {
	if !m.answers {
		<-ctx.Done()
		return driver.Contact{}, ctx.Err()
	}
	return driver.Contact{}, errInjected
}

// Where the driver sees to it that rows come from the store that was opened, its identity is not asked for.
func TestAsksNoOpenedStoreForItsIdentity(t *testing.T) {
	c := newScene(t)
	if id, err := (ahead{store: opened{c.store}}).StoreID(t.Context()); id != "opened" || err != nil || len(c.store.made()) > 0 {
		t.Errorf("%q, %v, after %v", id, err, c.store.made())
	}
	if id, err := (ahead{store: c.store}).StoreID(t.Context()); id == "" || err != nil || len(c.store.made()) != 1 {
		t.Errorf("another: %q, %v, after %v", id, err, c.store.made())
	}
}

type opened struct{ *counted }

func (opened) OpenedID() string { return "opened" }
