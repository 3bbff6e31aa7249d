package witness

import (
	"errors"
	"maps"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
)

// readerRow is the row of a process that reads.
func readerRow(join int64, letter string) string {
	return rowName(join, runOf(letter)[:runLength]+readsMark+"1")
}

// The reader is the living process with the lowest row that reads at all; one that stands still is
// passed over.
func TestWatchesTheLowestRow(t *testing.T) {
	for row, want := range map[string]bool{readerRow(1, "A"): true, rowOf(1, "A"): false, rowName(1, runOf("A")[:runLength]): false, "": false, rowName(1, runOf("A")[:runLength]+readsMark): true} {
		if reads(row) != want {
			t.Errorf("%q reads: %v; want %v", row, !want, want)
		}
	}
	a, b, me, d := readerRow(2, "A"), readerRow(3, "B"), readerRow(5, "R"), readerRow(7, "D")
	beat := driver.Beat{Count: 3}
	value := string(beat.Encode())
	g := &Guarded{opts: Options{Heartbeat: time.Second}, me: member{row: me}, peers: map[string]*sighting{
		rowOf(1, "X"): {}, a: {}, b: {interval: 2000}, d: {}, readerRow(1, "L"): {how: "left"}, me: {},
	}}
	step := func(now time.Duration, want string, since time.Duration) {
		t.Helper()
		if got := g.watchedLocked(now); got != want || g.watch.row != want || want != "" && g.watch.since != since {
			t.Errorf("at %v it watches %q (%q) since %v; want %q since %v", now, got, g.watch.row, g.watch.since, want, since)
		}
	}
	s := time.Second
	g.watch = watch{row: d, value: "x", since: 1}
	step(10*s, a, 10*s)
	if g.watch.value != "" {
		t.Errorf("a row that it has not watched before was %q", g.watch.value)
	}
	step(15*s, a, 10*s)
	step(15*s+1, b, 15*s+1) // which beats every two seconds
	if !g.watch.still[a] || g.peers[a].at != 0 {
		t.Errorf("the first stands still: %v, since %v", g.watch.still, g.peers[a].at)
	}
	g.watch.value = value
	step(25*s+1, b, 15*s+1)
	step(25*s+2, "", 0)
	if !g.watch.still[b] || g.peers[b].at != 15*s+1 || g.peers[b].value != value {
		t.Errorf("the second stands still: %v, %+v", g.watch.still, g.peers[b])
	}
	g.watch.still = nil
	g.peers[a].at = 40 * s
	g.watch = watch{row: a, value: value, since: 30 * s}
	step(36*s, b, 36*s)
	if g.peers[a].at != 40*s || g.peers[a].value != "" {
		t.Errorf("what was observed later is taken back: %+v", g.peers[a])
	}
	g.watch.still = map[string]bool{a: true, b: true}
	step(50*s, "", 0)
	g.me.row = a
	step(50*s, "", 0)
}

// The watched row is observed with each beat: when it advances, and up to which grant.
func TestObservesTheWatchedRow(t *testing.T) {
	a := readerRow(1, "A")
	now := 10 * time.Second
	set := func() *Guarded {
		now = 10 * time.Second
		return &Guarded{
			opts: Options{Heartbeat: time.Second, Clock: func() time.Duration { return now }}, me: member{row: "me", watches: true, changes: 1},
			peers: map[string]*sighting{a: {beat: driver.Beat{Count: 3, Grants: 1}}}, watch: watch{row: a, value: "v", since: 1},
		}
	}
	next := driver.Beat{Count: 4, Grants: 2}
	for name, v := range map[string]struct {
		row   string
		value []byte
		since time.Duration
		beat  driver.Beat
	}{
		"it advances":     {a, next.Encode(), 10 * time.Second, next},
		"it stands still": {a, []byte("v"), 1, driver.Beat{Count: 3, Grants: 1}},
		"another row":     {"x", next.Encode(), 1, driver.Beat{Count: 3, Grants: 1}},
		"it is no beat":   {a, []byte("~"), 10 * time.Second, driver.Beat{Count: 3, Grants: 1}},
		"it is older":     {a, driver.Beat{Count: 2, Grants: 9}.Encode(), 10 * time.Second, driver.Beat{Count: 3, Grants: 1}},
		"it is as it was": {a, driver.Beat{Count: 3, Grants: 9}.Encode(), 10 * time.Second, driver.Beat{Count: 3, Grants: 1}},
	} {
		g := set()
		g.sawLocked(v.row, v.value)
		if g.watch.since != v.since || g.peers[a].beat != v.beat || v.since > 1 && g.watch.value != string(v.value) {
			t.Errorf("%s: %+v, %+v", name, g.watch, g.peers[a])
		}
	}
	g := set()
	g.peers = nil
	g.sawLocked(a, next.Encode()) // which was never read
	for name, v := range map[string]struct {
		p       pulse
		c       driver.Contact
		changes int64
		watches bool
		since   time.Duration
	}{
		"a beat":             {pulse{Pulse: driver.Pulse{Row: "me", Watch: a}}, driver.Contact{Met: true, Changes: 7, Watches: true, Watched: next.Encode()}, 7, true, 10 * time.Second},
		"... that was none":  {pulse{Pulse: driver.Pulse{Row: "me", Watch: a}}, driver.Contact{Changes: 7, Watches: true, Watched: next.Encode()}, 1, true, 1},
		"... of another row": {pulse{Pulse: driver.Pulse{Row: "x", Watch: a}}, driver.Contact{Met: true, Changes: 7, Watches: true, Watched: next.Encode()}, 1, true, 1},
		"it looks at none":   {pulse{Pulse: driver.Pulse{Row: "me"}}, driver.Contact{Met: true, Changes: 7}, 7, true, 1},
		"it cannot look":     {pulse{Pulse: driver.Pulse{Row: "me", Watch: a}}, driver.Contact{Met: true, Changes: 7}, 7, false, 1},
	} {
		g := set()
		g.noteBeat(v.p, v.c)
		if g.me.changes != v.changes || g.me.watches != v.watches || g.watch.since != v.since {
			t.Errorf("%s: changes %d, watches %v, watched since %v", name, g.me.changes, g.me.watches, g.watch.since)
		}
	}
}

// Rows are noted as they were read: what is new, which stand still for too long, and which have
// advanced.
func TestNotesRows(t *testing.T) {
	a, me := rowOf(2, "A"), rowOf(5, "R")
	old, next := driver.Beat{Count: 3, Grants: 1}, driver.Beat{Count: 4, Grants: 2}
	s := time.Second
	for name, v := range map[string]struct {
		set    func(c *scene, rows map[string][]byte)
		since  time.Duration // ago
		due    bool
		silent bool
		late   bool
		met    bool
		at     time.Duration // ago
		beat   driver.Beat
	}{
		"it advances":               {func(_ *scene, rows map[string][]byte) { rows[a] = next.Encode() }, 0, false, false, false, true, 0, next},
		"it stands still":           {func(*scene, map[string][]byte) {}, 0, false, false, true, false, 3 * s, old},
		"... for as long as may be": {func(c *scene, _ map[string][]byte) { c.g.peers[a].at = c.g.now() - 5*s }, 0, false, false, true, false, 5 * s, old},
		"... for too long":          {func(c *scene, _ map[string][]byte) { c.g.peers[a].at = c.g.now() - 5*s - 1 }, 0, false, true, true, false, 5*s + 1, old},
		"... for its interval": {func(c *scene, _ map[string][]byte) {
			c.g.peers[a].at = c.g.now() - 6*s
			c.know(func(b *record) { b.Peers[a] = peer{Every: 2000} })
		}, 0, false, false, true, false, 6 * s, old},
		"it has ended": {func(c *scene, rows map[string][]byte) { rows[a] = old.EncodeEnded("left") }, 0, true, false, false, true, 0, old},
		"... long ago": {func(c *scene, rows map[string][]byte) {
			rows[a] = old.EncodeEnded("left")
			c.g.peers[a] = &sighting{value: string(rows[a]), at: c.g.now() - 9*s, beat: old, how: "left"}
			c.know(func(b *record) { b.Peers[a] = peer{How: "left"} })
		}, 0, false, false, false, false, 9 * s, old},
		"it was not surveyed": {func(c *scene, _ map[string][]byte) {
			c.know(func(b *record) { b.Compacted = 1; delete(c.g.witness.state.Peers, a) })
		}, 0, true, false, true, false, 3 * s, old},
		"another has joined":    {func(c *scene, _ map[string][]byte) { c.g.me.joins = 6 }, 0, true, false, true, false, 3 * s, old},
		"it is seen anew":       {func(c *scene, _ map[string][]byte) { c.g.peers[a].value = "" }, 0, false, false, false, false, 0, old},
		"it is read as it was":  {func(_ *scene, rows map[string][]byte) { rows[a] = driver.Beat{Count: 2}.Encode() }, 0, false, false, false, false, 0, old},
		"it is met already":     {func(c *scene, rows map[string][]byte) { c.g.peers[a].met = true }, 0, false, false, true, true, 3 * s, old},
		"it was read too early": {func(c *scene, rows map[string][]byte) { rows[a] = next.Encode() }, 4*s + 1, false, false, false, false, 3 * s, old},
		"... just then":         {func(c *scene, rows map[string][]byte) { rows[a] = next.Encode() }, 4 * s, false, false, false, true, 0, next},
		"... and has ended":     {func(c *scene, rows map[string][]byte) { rows[a] = next.EncodeEnded("left") }, 4*s + 1, true, false, false, false, 3 * s, old},
	} {
		synctest.Test(t, func(t *testing.T) {
			c := newScene(t)
			c.joins(5)
			c.g.me = member{row: me, joins: 5, seen: 5, late: true}
			c.know(func(b *record) { b.Peers[a] = peer{} })
			c.g.noted = c.g.now() - 4*s
			c.g.peers[a] = &sighting{value: string(old.Encode()), at: c.g.now() - 3*s, beat: old}
			c.g.peers["gone"] = &sighting{}
			c.g.watch.still = map[string]bool{a: true}
			rows := map[string][]byte{a: old.Encode(), me: next.Encode()}
			v.set(c, rows)
			n, err := c.g.noteRows(rows, c.g.now()-v.since)
			late := v.since > 4*s
			if err != nil || n.due != v.due || slices.Contains(n.silent, a) != v.silent || len(n.silent) > 1 {
				t.Errorf("%s: %+v, %v", name, n, err)
			}
			if c.g.me.late != (v.late || late) || (c.g.me.read == c.g.now()) == late || (c.g.noted == c.g.now()) == late {
				t.Errorf("%s: somebody is late: %v; read at %v, noted at %v", name, c.g.me.late, c.g.me.read, c.g.noted)
			}
			got := c.g.peers[a]
			if got.met != v.met || c.g.now()-got.at != v.at || got.beat != v.beat {
				t.Errorf("%s: it is %+v, %v ago", name, got, c.g.now()-got.at)
			}
			if advanced := string(rows[a]) != string(old.Encode()) && !late; advanced && (got.value != string(rows[a]) || name != "... long ago" && c.g.watch.still[a]) {
				t.Errorf("%s: it is known as %q, still %v", name, got.value, c.g.watch.still)
			}
			if _, how, _ := driver.DecodeBeat(a, rows[a]); !late && got.how != how {
				t.Errorf("%s: it has ended %q", name, got.how)
			}
			if _, ok := c.g.peers["gone"]; ok != late {
				t.Errorf("%s: a row that is gone is kept: %v", name, ok)
			}
			if _, ok := c.g.peers[me]; ok {
				t.Errorf("%s: it observes itself", name)
			}
		})
	}
	c := newScene(t)
	c.g.me = member{row: me, joins: 5, seen: 5}
	c.know(func(b *record) { b.Compacted = 2 })
	if n, err := c.g.noteRows(map[string][]byte{a: old.Encode()}, c.g.now()); err != nil || n.due || len(c.g.peers) > 0 {
		t.Errorf("a compacted row is observed: %+v, %v, %v", n, err, maps.Collect(maps.All(c.g.peers)))
	}
	three := rowOf(3, "A")
	if n, err := c.g.noteRows(map[string][]byte{three: old.Encode()}, c.g.now()); err != nil || !n.due || c.g.peers[three] == nil || c.g.peers[three].value != string(old.Encode()) || c.g.peers[three].at == 0 || c.g.peers[three].beat != old || c.g.peers[three].met {
		t.Errorf("a new row: %+v, %v, %+v", n, err, c.g.peers[three])
	}
	if _, err := c.g.noteRows(map[string][]byte{a: []byte("~")}, c.g.now()); !errors.Is(err, hapax.ErrStoreCorrupt) {
		t.Errorf("a row that is none: %v", err)
	}
}
