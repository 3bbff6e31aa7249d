package witness

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hapax-id/hapax/store/driver"
)

// A process may serve once each living node attests its join and one of them serves, or when it has
// waited for as long as a living one takes.
func TestMayServe(t *testing.T) {
	a, b := rowOf(1, "A"), rowOf(2, "B")
	s := time.Second
	attests := func(c *scene, rows ...string) {
		for _, row := range rows {
			c.g.peers[row].beat.Seen, c.g.peers[row].met = 5, true
		}
	}
	for name, v := range map[string]struct {
		set     func(c *scene)
		ready   bool
		founds  bool
		unheard string
	}{
		"nobody attests":              {func(*scene) {}, false, true, ""},
		"one does not":                {func(c *scene) { attests(c, a) }, false, true, ""},
		"all do":                      {func(c *scene) { attests(c, a, b) }, true, false, ""},
		"... with a beat from before": {func(c *scene) { attests(c, a, b); c.g.peers[b].met = false }, false, true, ""},
		"... of an earlier join":      {func(c *scene) { attests(c, a, b); c.g.peers[b].beat.Seen = 4 }, false, true, ""},
		"... and none serves":         {func(c *scene) { attests(c, a, b); c.says(a, 1000); c.says(b, 1000) }, false, true, ""},
		"... one serves":              {func(c *scene) { attests(c, a, b); c.says(b, 1000) }, true, false, ""},
		"the other has ended":         {func(c *scene) { attests(c, a); c.end(b) }, true, false, ""},
		"it has waited":               {func(c *scene) { c.g.me.waits -= 5 * s }, true, true, "a, b"},
		"... not for long enough":     {func(c *scene) { c.g.me.waits -= 5*s - 1 }, false, true, ""},
		"... and one serves":          {func(c *scene) { c.g.me.waits -= 5 * s; attests(c, a) }, true, false, ""},
		"... and one was heard":       {func(c *scene) { c.g.me.waits -= 5 * s; c.g.peers[a].met = true }, true, true, "b"},
		"... and one has ended":       {func(c *scene) { c.g.me.waits -= 5 * s; c.end(a) }, true, true, "b"},
		"... for one that beats less": {func(c *scene) { c.g.me.waits -= 5 * s; c.says(b, 2000) }, false, true, ""},
		"... for so long":             {func(c *scene) { c.g.me.waits -= 10 * s; c.says(b, 2000) }, true, true, "a, b"},
		"... for one that boasts":     {func(c *scene) { c.g.me.waits -= 300 * s; c.says(b, 1<<40) }, true, true, "a, b"},
		"... and has dialled since":   {func(c *scene) { c.g.me.waits -= 5 * s; c.g.beats.dialled = c.g.now() - 5*s + 1 }, false, true, ""},
		"it need not wait":            {func(c *scene) { c.g.me.quick = true }, true, true, ""},
		"on a store of its own":       {func(c *scene) { c.g.shared = false }, true, true, ""},
		"it asks about a primary":     {func(c *scene) { c.asks(); attests(c, a, b); c.says(a, 1000); c.says(b, 1000) }, true, true, ""},
		"... where one looks still":   {func(c *scene) { c.asks(); attests(c, a, b); c.put(tablePrimaries, b, []byte("p1")) }, false, true, ""},
		"... where one has looked":    {func(c *scene) { c.asks(); attests(c, a, b); c.put(tablePrimaries, b, []byte("p2")) }, true, false, ""},
		"... which changes meanwhile": {func(c *scene) {
			c.asks()
			attests(c, a, b)
			c.store.before = func(call string) {
				if call == "list primaries" {
					c.g.mu.Lock()
					c.g.me.asks = false
					c.g.mu.Unlock()
				}
			}
		}, false, true, ""},
		"those heard have joined": {func(c *scene) {
			c.g.me.heard = []string{theRun, runOf("A"), runOf("B")}
			attests(c, a, b)
			c.says(a, 1000)
			c.says(b, 1000)
		}, true, true, ""},
		"one of them has not": {func(c *scene) {
			c.g.me.heard = []string{theRun, runOf("C")}
			attests(c, a, b)
			c.says(a, 1000)
			c.says(b, 1000)
		}, false, true, ""},
	} {
		synctest.Test(t, func(t *testing.T) {
			c := newScene(t)
			c.joins(5)
			c.member(5, 2)
			c.g.state, c.g.me.begun = Joining, 3
			beat := driver.Beat{Count: 3}
			for row, name := range map[string]string{a: "a", b: "b"} {
				c.peer(row, name, beat, "")
				c.g.peers[row] = &sighting{value: string(beat.Encode()), at: c.g.now(), beat: beat}
			}
			v.set(c)
			ready, err := c.g.ready(t.Context(), c.store)
			m := c.g.me
			if err != nil || ready != v.ready || (m.over == m.begun) != ready || ready && m.asks && v.unheard != "" {
				t.Errorf("%s: %v, %v; over %d of %d, asks %v", name, ready, err, m.over, m.begun, m.asks)
			}
			if strings.Contains(name, "primary") && m.asks {
				t.Errorf("%s: it asks still", name)
			}
			if ready && m.founds != v.founds || strings.Join(m.unheard, ", ") != v.unheard {
				t.Errorf("%s: it founds: %v; unheard are %v", name, m.founds, m.unheard)
			}
			if asked := slices.Contains(c.store.made(), "list processes"); ready && !asked || asked && (name == "nobody attests" || name == "one does not") {
				t.Errorf("%s: it reads the processes: %v", name, asked)
			}
		})
	}
}

func (c *scene) asks() { c.g.me.asks, c.g.me.primary = true, "p2" }

// says has a process say how often it beats, and that it does not serve.
func (c *scene) says(row string, every int64) {
	c.t.Helper()
	c.put(driver.TableNodes, row, nodeRow{Name: strings.ToLower(row[20:21]), Every: every}.encode())
}

func (c *scene) end(row string) {
	c.t.Helper()
	c.put(driver.TableBeats, row, driver.Beat{Count: 3}.EncodeEnded("left"))
}
