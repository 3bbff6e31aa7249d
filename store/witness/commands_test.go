package witness

import (
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

// A command takes as many as it asks for, once for one key, and tells by which machine it was made.
func TestCommandTakesWhatItAsksFor(t *testing.T) {
	c := newScene(t)
	c.tag("t", 100)
	c.joins(5)
	c.peer(rowOf(5, "B"), "b", driver.Beat{Count: 2}, "")
	o, err := OneShot(c.store)
	if err != nil {
		t.Fatal(err)
	}
	a, err := o.Allocate(t.Context(), "t", 7, "")
	if err != nil || a.Grant.Hi-a.Grant.Lo != 7 {
		t.Fatalf("it is granted %+v, %v", a.Grant, err)
	}
	again, err := o.Allocate(t.Context(), "t", 7, a.Key)
	if err != nil || again.Grant.Lo < a.Grant.Hi || again.From != a.Grant.Lo {
		t.Errorf("the next is granted %+v, %v; want it to adjoin the first, so that both may be handed back", again, err)
	}
	beats, err := c.store.ListRows(t.Context(), driver.TableBeats, "", 10)
	of := 0
	for _, r := range beats {
		if IsRowOfCommands(r.Name) {
			of++
		}
	}
	if err != nil || of != 1 || len(beats) != 4 {
		t.Errorf("%d rows of %v are of all commands, %v; want one beside that of b and of each grant", of, beats, err)
	}
	if about := c.row(driver.TableNodes, rowName(6, runCommands)); !strings.Contains(about, `"name":"hapax command on `) {
		t.Errorf("its row says %q", about)
	}
}

// A command that is refused names the nodes that are missing.
func TestCommandNamesTheMissing(t *testing.T) {
	c := newScene(t)
	c.tag("t", 100)
	c.fence(Fence{Ask: "ASK", Missing: []Node{missingB}})
	o, err := OneShot(c.store)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := o.Allocate(t.Context(), "t", 7, ""); !errors.Is(err, hapax.ErrFenced) || !strings.Contains(err.Error(), "; missing: "+missingB.String()) {
		t.Errorf("the error is %v", err)
	}
	c.put(driver.TableFence, driver.RowFence, nil)
	c.fence(Fence{Ask: "ASK"})
	if _, err := o.Allocate(t.Context(), "t", 7, ""); !errors.Is(err, hapax.ErrFenced) || strings.Contains(err.Error(), "missing") {
		t.Errorf("where nobody is missing: %v", err)
	}
}

// A command hands back from where it says, once, also as the first one in its store.
func TestCommandHandsBack(t *testing.T) {
	c := newScene(t)
	c.tag("t", 100)
	a, err := c.store.Store.Allocate(t.Context(), "t", 7, "")
	if err != nil {
		t.Fatal(err)
	}
	o, err := OneShot(c.store)
	if err != nil {
		t.Fatal(err)
	}
	if err := o.HandBack(t.Context(), a, a.Grant.Lo+3); err != nil {
		t.Errorf("it hands back: %v", err)
	}
	if tag, err := c.store.Store.Tag(t.Context(), "t"); err != nil || tag.Mark != a.Grant.Lo+3 {
		t.Errorf("the tag is %+v, %v; want the mark at %d", tag, err, a.Grant.Lo+3)
	}
	if err := o.HandBack(t.Context(), a, a.Grant.Lo+3); !errors.Is(err, hapax.ErrLeaseLost) {
		t.Errorf("once more: %v", err)
	}
}

// Statements about one node at a decision are told by its name, and a statement is read before it is
// raised.
func TestStatementsOfOneNode(t *testing.T) {
	b, other := rowOf(2, "B"), rowOf(3, "C")
	c := newScene(t)
	c.decided(1, func(d *decision) {
		d.Stated = map[string]statement{b: {Floor: 1000, Name: "b"}, other: {Floor: 2000, Name: "c"}}
	})
	nodes, err := settledBefore(t.Context(), c.store, Statement{Row: "b", Floor: 2000})
	if err != nil || !slices.Equal(nodes, []Node{{Row: b, Name: "b", State: settled}}) {
		t.Errorf("they are %+v, %v", nodes, err)
	}
	if _, err := settledBefore(t.Context(), c.store, Statement{Row: "b", Floor: 2001}); !errors.Is(err, hapax.ErrInvalidArgument) {
		t.Errorf("a higher floor: %v", err)
	}
	c.put(driver.TableEvidence, "said/F/r", []byte("~"))
	if err := c.g.say(t.Context(), c.store, "said/F/r", statement{Floor: 5}); !errors.Is(err, hapax.ErrStoreCorrupt) {
		t.Errorf("a statement that is none: %v", err)
	}
	synctest.Test(t, func(t *testing.T) {
		c := newScene(t)
		tries := 0
		c.store.swapped = func(string) bool { tries++; return tries > 2 }
		began := time.Now()
		if err := c.g.say(t.Context(), c.store, "said/F/r", statement{Floor: 5}); err != nil || time.Since(began) != time.Second/2 {
			t.Errorf("where others are first: %v after %v", err, time.Since(began))
		}
	})
}

// Rows that have ended are compacted once there are enough of them, but for the latest; a process in
// their way takes another.
func TestCompacts(t *testing.T) {
	for name, v := range map[string]struct {
		first, after int // rows that have ended before, and after, the one that lives
		lives        string
		state        State
		upTo         int64
		renews       bool
	}{
		"one too few":             {compactAt - 1, 0, "other", Serving, 0, false},
		"enough":                  {compactAt, 0, "other", Serving, compactAt - compactKeep, false},
		"enough, but it is there": {0, compactAt, "other", Serving, 0, false},
		"it is in the way":        {0, compactAt, "me", Serving, 0, true},
		"... of one too few":      {0, compactAt - 1, "me", Serving, 0, false},
		"... while it joins":      {0, compactAt, "me", Joining, 0, false},
		"... of some, and first":  {compactAt, 3, "me", Serving, compactAt - compactKeep, false},
	} {
		c := newScene(t)
		n, beats := int64(0), map[string][]byte{}
		add := func(value []byte) string {
			n++
			row := rowOf(n, "E")
			c.put(driver.TableBeats, row, value)
			beats[row] = value
			return row
		}
		for range v.first {
			add(driver.Beat{Count: 1}.EncodeEnded("left"))
		}
		row := add(driver.Beat{Count: 2}.Encode())
		for range v.after {
			add(driver.Beat{Count: 1}.EncodeEnded("silent"))
		}
		c.joins(n)
		if v.lives != "me" {
			n++
			row = rowOf(n, "R")
			c.put(driver.TableBeats, row, driver.Beat{Count: 2}.Encode())
			c.joins(n)
		}
		c.g.state = v.state
		c.g.me = member{row: row, number: 1, acked: driver.Beat{Count: 2}, beat: driver.Beat{Count: 2}, contact: c.g.now(), known: true}
		if err := c.g.compact(t.Context(), c.store, beats, 0); err != nil {
			t.Fatal(name, err)
		}
		upTo, _, err := readCounter(t.Context(), c.store, rowCompacted)
		if err != nil || upTo != v.upTo || (c.g.me.row != row) != v.renews {
			t.Errorf("%s: compacted up to %d, %v; another row: %v", name, upTo, err, c.g.me.row != row)
		}
		rows, err := readRows(t.Context(), c.store, driver.TableBeats)
		for left := range rows {
			if joinOf(left) <= v.upTo {
				t.Errorf("%s: %s is still there, %v", name, left, err)
			}
		}
	}
	c := newScene(t) // a row below the counter does not live, whatever it says
	c.joins(200)
	c.member(200, 2)
	low := rowOf(1, "A")
	beats := map[string][]byte{low: driver.Beat{Count: 1}.Encode()}
	for i := range int64(compactAt) {
		beats[rowOf(i+2, "E")] = driver.Beat{Count: 1}.EncodeEnded("left")
	}
	if err := c.g.compact(t.Context(), c.store, beats, 1); err != nil || c.row(driver.TableGuard, rowCompacted) == "" {
		t.Errorf("after a row that was removed: %v", err)
	}
	c = servingScene(t)
	c.put(driver.TableGuard, rowCompacted, driver.EncodeCounter(5))
	c.peer(rowOf(4, "A"), "a", driver.Beat{Count: 1}, "left")
	if err := c.g.removeUpTo(t.Context(), c.store, 5); err != nil || c.row(driver.TableBeats, rowOf(4, "A")) != "" || strings.Contains(strings.Join(c.store.made(), " "), "swap "+rowCompacted) {
		t.Errorf("what was left of an earlier removal: %v, %v", err, c.store.made())
	}
	c = servingScene(t)
	c.peer(rowOf(4, "A"), "a", driver.Beat{Count: 1}, "left")
	c.store.swapped = func(name string) bool { return name != rowCompacted }
	if err := c.g.removeUpTo(t.Context(), c.store, 5); err != nil || c.row(driver.TableBeats, rowOf(4, "A")) == "" {
		t.Errorf("while another compacts: %v", err)
	}
	peers, err := peersOf(map[string]nodeRow{rowOf(3, "A"): {Name: "a", Address: "at", Every: 7}}, map[string][]byte{rowOf(3, "A"): driver.Beat{Count: 2, Grants: 1}.Encode(), rowOf(2, "A"): []byte("~")}, 2)
	if want := map[string]peer{rowOf(3, "A"): {Name: "a", Address: "at", Count: 2, Grants: 1, Every: 7}}; err != nil || !maps.Equal(peers, want) {
		t.Errorf("others are %+v, %v", peers, err)
	}
}

// A survey is under way once, tells how it ended, and has a joiner go on.
func TestSurveysBeside(t *testing.T) {
	for name, v := range map[string]struct {
		set   func(c *scene)
		calls bool
		woken bool
		log   string
	}{
		"it serves":        {func(*scene) {}, true, false, ""},
		"it joins":         {func(c *scene) { c.g.state = Joining }, true, true, ""},
		"it is fenced":     {func(c *scene) { c.g.state = Fenced }, false, false, ""},
		"it has no row":    {func(c *scene) { c.g.me.row = "" }, false, false, ""},
		"one is under way": {func(c *scene) { c.g.me.busy = true }, false, false, ""},
		"it fails":         {func(c *scene) { c.g.state = Joining; c.store.reset(1) }, true, false, "the survey of the store has failed"},
	} {
		synctest.Test(t, func(t *testing.T) {
			c := servingScene(t)
			was := c.g.me.busy
			v.set(c)
			busy := c.g.me.busy
			c.g.surveyLater()
			c.g.surveyLater() // is none
			c.g.loop.Wait()
			made := strings.Join(c.store.made(), " ")
			if (len(made) > 0) != v.calls || v.calls && v.log == "" && strings.Count(made, "pools") != 1 || !busy && c.g.me.busy || was {
				t.Errorf("%s: it calls %v, under way %v", name, made, c.g.me.busy)
			}
			woken := false
			select {
			case <-c.g.kick:
				woken = true
			default:
			}
			if woken != v.woken || !strings.Contains(c.log.String(), v.log) || v.log == "" && strings.Contains(c.log.String(), "survey") {
				t.Errorf("%s: woken %v, it logs %q", name, woken, c.log)
			}
		})
	}
}
