package witness

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
)

// A turn does the work of the state, and leaves the cause of a state that it has changed.
func TestTurns(t *testing.T) {
	for name, v := range map[string]struct {
		set      func(c *scene)
		ended    bool // the node is being closed
		state    State
		cause    error
		woken    bool // callers that wait are
		hindered bool
		logged   string
		first    string // call
	}{
		"it serves":              {func(c *scene) {}, false, Serving, nil, false, false, "", "beat"},
		"... and the beat fails": {func(c *scene) { c.store.reset(1) }, false, Serving, nil, false, false, "the guard tries again", "beat"},
		"... while it is closed": {func(c *scene) { c.store.reset(1) }, true, Serving, nil, false, false, "", ""},
		"it joins":               {func(c *scene) { c.g.state, c.g.cause = Joining, errInjected }, false, Joining, nil, false, false, "", ""},
		"... and a call fails":   {func(c *scene) { c.g.state = Joining; c.store.reset(1) }, false, Joining, errInjected, true, false, "the guard tries again", ""},
		"... and meets a fence":  {func(c *scene) { c.g.state, c.g.me = Joining, member{}; c.fence(Fence{}) }, false, Fenced, hapax.ErrFenced, true, false, "", "row " + driver.RowFence},
		"it is fenced":           {func(c *scene) { c.fence(Fence{}); c.g.state, c.g.cause = Fenced, hapax.ErrFenced }, false, Fenced, hapax.ErrFenced, false, false, "", "id"},
		"... and the store is not sound": {func(c *scene) {
			c.put(driver.TableFence, driver.RowFence, []byte("~"))
			c.g.state, c.g.cause = Fenced, hapax.ErrFenced
		}, false, Fenced, hapax.ErrFenced, false, true, "cannot do its part", "id"},
		"... nor is it as it refuses": {func(c *scene) {
			c.put(driver.TableFence, driver.RowFence, []byte("~"))
			c.g.state, c.g.cause = Refusing, hapax.ErrStoreRolledBack
		}, false, Refusing, hapax.ErrStoreRolledBack, false, true, "cannot do its part", "id"},
		"it joins a store that is not sound": {func(c *scene) {
			c.g.state, c.g.me = Joining, member{}
			c.put(driver.TableFence, driver.RowFence, []byte("~"))
		}, false, Joining, hapax.ErrStoreCorrupt, true, false, "the guard tries again", "row " + driver.RowFence},
		"it has left": {func(c *scene) { c.g.state = Left }, false, Left, nil, false, false, "", ""},
	} {
		synctest.Test(t, func(t *testing.T) {
			c := servingScene(t)
			c.put(driver.TableNodes, c.g.me.row, nodeRow{Name: "me", Every: 1000}.encode())
			v.set(c)
			if v.ended {
				c.g.stop()
			}
			changed := c.g.changed
			c.g.turn()
			if c.g.state != v.state || !errors.Is(c.g.cause, v.cause) || v.cause == nil && c.g.cause != nil {
				t.Errorf("%s: it is %s for %v; want %s for %v", name, c.g.state, c.g.cause, v.state, v.cause)
			}
			if (c.g.changed != changed) != v.woken || (c.g.hindered != nil) != v.hindered {
				t.Errorf("%s: callers are woken: %v; hindered by %v", name, c.g.changed != changed, c.g.hindered)
			}
			if text := c.log.String(); v.logged == "" && strings.Contains(text, "again") || !strings.Contains(text, v.logged) {
				t.Errorf("%s: it logs %q; want %q", name, text, v.logged)
			}
			if made := c.store.made(); v.first != "" && (len(made) == 0 || made[0] != v.first) {
				t.Errorf("%s: it calls %v", name, made)
			}
		})
	}
}

// A node is cut off when its beats fail for too long, and then joins; after a beat that failed
// nothing else is tried.
func TestBeatThatFails(t *testing.T) {
	for name, v := range map[string]struct {
		state State
		since time.Duration
		want  State
	}{
		"just now":               {Serving, 5 * time.Second, Serving},
		"for too long":           {Serving, 5*time.Second + 1, Joining},
		"while it joins":         {Joining, 5*time.Second + 1, Joining},
		"under a fence, too, it": {Fenced, 5*time.Second + 1, Fenced},
	} {
		synctest.Test(t, func(t *testing.T) {
			c := servingScene(t)
			c.g.state = v.state
			c.g.me.contact = c.g.now() - v.since
			c.g.used.add("t")
			c.store.reset(1)
			if err := c.g.beat(); !errors.Is(err, errInjected) {
				t.Errorf("%s: %v", name, err)
			}
			if c.g.state != v.want || (c.g.cause != nil) != (v.state == Serving && v.want == Joining) {
				t.Errorf("%s: it is %s for %v; want %s", name, c.g.state, c.g.cause, v.want)
			}
			if made := c.store.made(); !slices.Equal(made, []string{"beat"}) {
				t.Errorf("%s: it calls %v", name, made)
			}
		})
	}
	c := servingScene(t)
	c.g.shared, c.store.shared = false, false
	if err := c.g.beat(); err != nil || slices.Contains(c.store.made(), "beat") {
		t.Errorf("on a store of its own it beats: %v, %v", err, c.store.made())
	}
}

// A process that has tried to register beside others waits the longer the more often it has, up to a bound.
func TestCrowdSpreadsOut(t *testing.T) {
	for _, v := range []struct {
		state State
		row   string
		tries int
		want  time.Duration
	}{{Joining, "", 5, 5}, {Joining, "r", 5, 0}, {Serving, "r", 5, 0}, {Serving, "", 5, 0}, {Fenced, "", 5, 0}} {
		g := &Guarded{state: v.state, me: member{row: v.row}, attempts: v.tries}
		if got := g.crowd(); got != v.want {
			t.Errorf("%s, row %q: %d; want %d", v.state, v.row, got, v.want)
		}
	}
	g := &Guarded{opts: Options{Heartbeat: time.Second, Timeout: 5 * time.Second}}
	for crowd, want := range map[time.Duration]time.Duration{1: time.Second / 4, 8: 2 * time.Second, 100: 2 * time.Second} {
		if got := g.spread(crowd); got != want {
			t.Errorf("after %d attempts: %v; want %v", crowd, got, want)
		}
	}
	if got := g.joinTimeout(); got != 5*time.Second {
		t.Errorf("near its store a turn has %v", got)
	}
	if g.pace.interval = 1001 * time.Millisecond; g.joinTimeout() != 15*time.Second {
		t.Errorf("far from it a turn has %v", g.joinTimeout())
	}
}

// To dial may take longer than a heartbeat; a handle is dropped where the time of what was done on it is
// over, or nothing answers, and for no other failure.
func TestWithinItsTime(t *testing.T) {
	for name, v := range map[string]struct {
		f     func(ctx context.Context) error
		dials int
	}{
		"it is done":      {func(context.Context) error { return nil }, 1},
		"it fails":        {func(context.Context) error { return errInjected }, 1},
		"it is too long":  {func(ctx context.Context) error { <-ctx.Done(); return errInjected }, 2},
		"nothing answers": {func(context.Context) error { return fmt.Errorf("%w (%w)", errInjected, errHangs) }, 2},
	} {
		synctest.Test(t, func(t *testing.T) {
			c := servingScene(t)
			dials := 0
			h := newHandle(func(ctx context.Context) (driver.Store, error) {
				dials++
				select {
				case <-time.After(1900 * time.Millisecond):
					return c.store, nil
				case <-ctx.Done():
					return nil, ctx.Err()
				}
			}, false)
			h.clock, h.again = c.g.opts.Clock, true
			c.g.calls, c.g.beats = h, h
			for range 2 {
				_ = c.g.within(800*time.Millisecond, func(ctx context.Context, _ store) error { return v.f(ctx) })
			}
			if dials != v.dials {
				t.Errorf("%s: it dials %d times; want %d", name, dials, v.dials)
			}
			_ = h.close()
		})
	}
}

// A serving or joining process changes its pace after its turn, and tells where it cannot.
func TestPacesItselfInItsTurn(t *testing.T) {
	for name, v := range map[string]struct {
		state    State
		ended    bool
		fails    bool
		interval time.Duration
		logged   bool
	}{
		"it serves":               {Serving, false, false, 3 * time.Second, false},
		"... and cannot tell it":  {Serving, false, true, 0, true},
		"... while it is closed":  {Serving, true, true, 0, false},
		"it joins without a row":  {Joining, false, false, 3 * time.Second, false},
		"it is fenced":            {Fenced, false, false, 0, false},
		"it refuses a loss of it": {Refusing, false, false, 0, false},
	} {
		synctest.Test(t, func(t *testing.T) {
			c := servingScene(t)
			c.put(driver.TableNodes, c.g.me.row, nodeRow{Name: "me", Every: 1000}.encode())
			c.g.state, c.g.used.turn, c.g.me.again = v.state, c.g.now()+time.Hour, c.g.now()+time.Hour
			c.g.me.read = c.g.now()
			if v.state != Serving {
				c.g.cause = hapax.ErrFenced
				c.fence(Fence{ID: "F", Ask: "A"})
			}
			if v.state == Joining {
				c.g.me = member{}
				c.put(driver.TableFence, driver.RowFence, nil)
			}
			c.g.pace = pace{slow: slowBeats, want: 3 * time.Second, took: time.Second}
			if v.fails {
				c.store.swapped = func(string) bool { return false }
			}
			beats := 0
			c.store.before = func(call string) {
				if call == "beat" && beats == 0 { // it is slow once more
					beats++
					time.Sleep(300 * time.Millisecond)
				}
				if v.ended && strings.HasPrefix(call, "swap") {
					c.g.stop()
				}
			}
			c.g.turn()
			if c.g.pace.interval != v.interval && !(v.state == Serving && v.interval > 0 && c.g.pace.interval > time.Second) {
				t.Errorf("%s: its interval is %v; want %v", name, c.g.pace.interval, v.interval)
			}
			if logged := strings.Contains(c.log.String(), "the interval cannot be told yet"); logged != v.logged {
				t.Errorf("%s: it logs %q", name, c.log)
			}
		})
	}
}
