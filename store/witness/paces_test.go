package witness

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hapax-id/hapax/store/driver"
)

// Beats in a row are counted that are slow, and those that would do with the shortest interval. The
// fastest of the slow ones tells the distance.
func TestCountsSlowBeats(t *testing.T) {
	const ms = time.Millisecond
	lasting := 267 * ms // above a third of 800 ms
	for name, v := range map[string]struct {
		took []time.Duration
		want pace
	}{
		"as long as may be":     {[]time.Duration{800 * ms / 3}, pace{took: 800 * ms / 3, fast: 1}},
		"a slow one":            {[]time.Duration{lasting}, pace{took: lasting, slow: 1, want: 1250 * ms}},
		"the fastest counts":    {[]time.Duration{2 * time.Second, lasting, time.Second}, pace{took: time.Second, slow: 3, want: 1250 * ms}},
		"... of those in a row": {[]time.Duration{lasting, 1, 2 * time.Second}, pace{took: 2 * time.Second, slow: 1, want: 7500 * ms}},
		"a fast one":            {[]time.Duration{lasting, 1}, pace{took: 1, fast: 1}},
		"two":                   {[]time.Duration{1, 2}, pace{took: 2, fast: 2}},
		"none any more":         {[]time.Duration{1, 2, lasting}, pace{took: lasting, slow: 1, want: 1250 * ms}},
		"a beat of a minute":    {[]time.Duration{time.Minute}, pace{took: time.Minute, slow: 1, want: longestInterval}},
	} {
		g := &Guarded{opts: Options{Heartbeat: time.Second}}
		for _, took := range v.took {
			g.timed(took)
		}
		if g.pace != v.want {
			t.Errorf("%s: %+v; want %+v", name, g.pace, v.want)
		}
	}
	g := &Guarded{opts: Options{Heartbeat: 1500 * ms}}
	if g.timed(400 * ms); g.pace.slow != 0 || g.pace.fast != 1 {
		t.Errorf("a third of its time: %+v", g.pace)
	}
	g = &Guarded{opts: Options{Heartbeat: time.Second}, pace: pace{interval: 2 * time.Second}}
	g.timed(500 * ms) // not slow for its interval, and too slow for the shortest
	if g.pace.slow != 0 || g.pace.fast != 0 {
		t.Errorf("with a longer interval: %+v", g.pace)
	}
}

// deafToBeats is a store that answers no heartbeat.
type deafToBeats struct{ store }

func (deafToBeats) Beat(ctx context.Context, _ driver.Pulse) (driver.Contact, error) {
	<-ctx.Done()
	return driver.Contact{}, ctx.Err()
}

// A heartbeat that is not answered counts as slow where it is the first on its connection, on a store that
// is far away: else the connection may be lost.
func TestCountsLateFirstBeats(t *testing.T) {
	for name, v := range map[string]struct {
		interval time.Duration
		age      time.Duration // of the connection
		survey   bool          // by the handle for calls
		want     pace
	}{
		"a store that is far away": {2 * time.Second, 0, false, pace{interval: 2 * time.Second, slow: slowBeats, want: 6 * time.Second}},
		"... and answered before":  {2 * time.Second, time.Second, false, pace{interval: 2 * time.Second}},
		"... and a survey's":       {2 * time.Second, 0, true, pace{interval: 2 * time.Second}},
		"a store that is near":     {0, 0, false, pace{}},
	} {
		synctest.Test(t, func(t *testing.T) {
			c := servingScene(t)
			c.hasStore(deafToBeats{c.store})
			c.g.pace = pace{interval: v.interval}
			if _, _, err := c.g.beatStore(t.Context()); err != nil {
				t.Fatal(err)
			}
			time.Sleep(v.age)
			beat := c.g.beat
			if v.survey {
				beat = func() error {
					ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
					defer cancel()
					return c.g.beatOnce(ctx, deafCalls{deafToBeats{c.store}})
				}
			}
			if err := beat(); err == nil {
				t.Errorf("%s: the heartbeat is answered", name)
			}
			if c.g.pace != v.want {
				t.Errorf("%s: %+v; want %+v", name, c.g.pace, v.want)
			}
			c.g.stop()
			c.g.loop.Wait()
		})
	}
}

// deafCalls is another handle than that for heartbeats.
type deafCalls struct{ deafToBeats }

// A process that says that it serves while it comes to beat less often keeps the longer interval in its row.
func TestServesWhileItAdapts(t *testing.T) {
	c := servingScene(t)
	row := c.g.me.row
	c.g.me.about = nodeRow{Name: "me", Every: 1250}.encode()
	c.put(driver.TableNodes, row, c.g.me.about)
	c.g.pace = pace{interval: 1250 * time.Millisecond, took: 300 * time.Millisecond}
	s := adapting{c.store, new(sync.Once), func() {
		c.put(driver.TableNodes, row, nodeRow{Name: "me", Every: 3000}.encode())
		c.g.mu.Lock()
		defer c.g.mu.Unlock()
		c.g.pace.interval = 3 * time.Second
	}}
	if err := c.g.announce(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	nodes, err := readNodes(t.Context(), c.store)
	if every := nodes[row].Every; err != nil || every != 3000 || c.g.interval() != 3*time.Second || !nodes[row].Serves {
		t.Errorf("it beats every %v, and says %d ms, %v; want 3 s", c.g.interval(), every, err)
	}
}

// adapting is a store before whose first change of a row the process has changed its interval.
type adapting struct {
	*counted
	once  *sync.Once
	adapt func()
}

func (s adapting) SwapRowWith(ctx context.Context, p driver.Pulse, table, name string, old, next []byte) (bool, driver.Contact, error) {
	s.once.Do(s.adapt)
	return s.counted.SwapRowWith(ctx, p, table, name, old, next)
}

// dialling is a store of which each call at a time needs a connection.
type dialling struct{ *counted }

func (dialling) DialsForCalls() bool { return true }

// Readings are made at once on a store that is far away, unless a connection has to be dialled for that.
func TestReadsAtOnce(t *testing.T) {
	c := servingScene(t)
	for _, v := range []struct {
		interval time.Duration
		s        store
		want     bool
	}{
		{0, c.store, false},
		{2 * time.Second, c.store, true},
		{0, dialling{c.store}, false},
		{2 * time.Second, dialling{c.store}, false},
	} {
		c.g.pace.interval = v.interval
		if got := c.g.readsAtOnce(v.s); got != v.want {
			t.Errorf("with an interval of %v, %T: %v; want %v", v.interval, v.s, got, v.want)
		}
	}
}

// twoTrips is a store whose heartbeats may take two round trips.
type twoTrips struct{ *counted }

func (twoTrips) BeatTrips() int { return 2 }

// A process that begins to serve, on such a store that is far away, says that it beats less often, and does.
func TestServesWithTimeForEachTrip(t *testing.T) {
	const ms = time.Millisecond
	for name, v := range map[string]struct {
		before, want time.Duration
		trips        bool
	}{
		"two trips":  {1250 * ms, 2250 * ms, true},
		"one trip":   {1250 * ms, 1250 * ms, false},
		"it is near": {1000 * ms, 1000 * ms, true},
		"longer yet": {5000 * ms, 5000 * ms, true},
	} {
		c := servingScene(t)
		row := c.g.me.row
		c.put(driver.TableNodes, row, nodeRow{Name: "me", Every: v.before.Milliseconds()}.encode())
		c.g.pace = pace{interval: v.before, took: 300 * ms}
		var s store = c.store
		if v.trips {
			s = twoTrips{c.store}
		}
		if err := c.g.announce(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		nodes, err := readNodes(t.Context(), c.store)
		if every := nodes[row].Every; err != nil || every != v.want.Milliseconds() || c.g.interval() != v.want || !nodes[row].Serves {
			t.Errorf("%s: it beats every %v, and says %d ms, %v; want %v", name, c.g.interval(), every, err, v.want)
		}
	}
}

// The interval grows after some slow beats in a row, once the row says so, and shrinks after many fast ones, before it
// does.
func TestAdaptsItsInterval(t *testing.T) {
	const s = time.Second
	for name, v := range map[string]struct {
		before   pace
		noRow    bool
		fails    bool
		interval time.Duration
		every    int64 // as the row says
		reset    bool  // it counts anew
		told     bool
	}{
		"one too few":                  {pace{slow: slowBeats - 1, want: 3 * s, took: s}, false, false, 0, 1000, false, false},
		"slow":                         {pace{slow: slowBeats, fast: 2, want: 3 * s, took: s}, false, false, 3 * s, 3000, true, true},
		"... and no slower than it is": {pace{interval: 3 * s, slow: slowBeats, fast: 2, want: 3 * s, took: s}, false, false, 3 * s, 1000, true, false},
		"... without a row":            {pace{slow: slowBeats, want: 3 * s, took: s}, true, false, 3 * s, 1000, true, false},
		"... which cannot be told":     {pace{slow: slowBeats, want: 3 * s, took: s}, false, true, 0, 1000, true, false},
		"one fast too few":             {pace{interval: 3 * s, fast: fastBeats - 1}, false, false, 3 * s, 1000, false, false},
		"fast":                         {pace{interval: 3 * s, fast: fastBeats}, false, false, s, 1000, true, false},
		"... as it is already":         {pace{interval: s, fast: fastBeats + 1}, false, false, s, 1000, false, false},
		"... and slow once":            {pace{interval: 3 * s, fast: fastBeats, slow: 1}, false, false, s, 1000, true, false},
	} {
		c := servingScene(t)
		row := c.g.me.row
		c.put(driver.TableNodes, row, nodeRow{Name: "me", Every: 1000}.encode())
		if c.g.pace = v.before; v.noRow {
			c.g.me.row = ""
		}
		if v.fails {
			c.store.reset(1)
		}
		if err := c.g.adapt(); v.fails != errors.Is(err, errInjected) || !v.fails && err != nil {
			t.Errorf("%s: %v", name, err)
		}
		var about nodeRow
		if err := driver.DecodeRow(driver.TableNodes, row, []byte(c.row(driver.TableNodes, row)), &about); err != nil {
			t.Fatal(err)
		}
		if c.g.pace.interval != v.interval || about.Every != v.every {
			t.Errorf("%s: the interval is %v, and the row says %d", name, c.g.pace.interval, about.Every)
		}
		if now := c.g.pace; v.reset != (now.slow == 0 && now.fast == 0) || !v.reset && (now.slow != v.before.slow || now.fast != v.before.fast) {
			t.Errorf("%s: it counts %+v", name, now)
		}
		if text := c.log.String(); strings.Contains(text, "far away or slow") != v.told || v.told && !(strings.Contains(text, "interval=3s") && strings.Contains(text, "of=800ms") && strings.Contains(text, "heartbeat_takes=1s")) {
			t.Errorf("%s: it logs %q", name, text)
		}
	}
	for took, want := range map[time.Duration]string{800 * time.Millisecond / 3: "", 900 * time.Millisecond: "a heartbeat takes 0.9 s of 0.8 s (heartbeat: 1s)", 0: ""} {
		if got := (&pace{took: took}).text(s); got != want {
			t.Errorf("of %v it says %q; want %q", took, got, want)
		}
	}
	if got := (&pace{interval: 2 * s, took: 300 * time.Millisecond}).text(s); got != "a heartbeat takes 0.3 s of 1.6 s (heartbeat: 2s)" {
		t.Errorf("with a longer interval it says %q", got)
	}
	if got := (&pace{took: 400 * time.Millisecond}).text(1500 * time.Millisecond); got != "" {
		t.Errorf("of a third of its time it says %q", got)
	}
}
