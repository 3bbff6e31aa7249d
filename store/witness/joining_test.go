package witness

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hapax-id/hapax/store/driver"
)

// A process serves only after all that its way to serving takes: its survey, a beat that says so, and
// those that it has to wait for; and its witness knows the store from then on.
func TestStepsOfJoining(t *testing.T) {
	knows := func(c *scene, left string) {
		id, err := c.store.Store.StoreID(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		c.know(func(b *record) { b.Store, b.Left = id, &departure{Row: left} })
	}
	for name, v := range map[string]struct {
		set    func(c *scene)
		serves bool
		syncs  bool
	}{
		"for the first time":    {func(*scene) {}, true, true},
		"again":                 {func(c *scene) { knows(c, "") }, true, false},
		"after it has left":     {func(c *scene) { knows(c, "x") }, true, true},
		"others wait":           {func(c *scene) { c.g.me.quick = false; c.peer(rowOf(1, "A"), "a", driver.Beat{Count: 3}, "") }, false, false},
		"a survey is under way": {func(c *scene) { c.g.me.known, c.g.me.busy = false, true }, false, false},
		"those who were heard are more by now": {func(c *scene) {
			c.g.me.heard, c.g.me.seen, c.g.me.busy = []string{theRun}, 0, true
		}, false, false},
		"it was not heard": {func(c *scene) { c.g.me.seen, c.g.me.busy = 0, true }, true, true},
	} {
		synctest.Test(t, func(t *testing.T) {
			c := newScene(t)
			c.joins(1)
			c.member(1, 2)
			c.g.state, c.g.me.quick = Joining, true
			v.set(c)
			syncs := CountSyncs(c.g.witness)
			if err := c.g.join(t.Context(), c.store); err != nil {
				t.Fatal(name, err)
			}
			r := c.g.witness.snapshot()
			id, err := c.store.Store.StoreID(t.Context())
			if err != nil || (c.g.state == Serving) != v.serves || (r.Store == id) != v.serves || (syncs() > 0) != v.syncs || r.Left != nil && r.Left.Row != "" {
				t.Errorf("%s: it is %s, %v; the witness knows %q, %+v after %d syncs", name, c.g.state, err, r.Store, r.Left, syncs())
			}
			if got := strings.Contains(c.row(driver.TableNodes, c.g.me.row), `"serves":true`); got != v.serves {
				t.Errorf("%s: it says that it serves: %v", name, got)
			}
		})
	}
	c := newScene(t) // a fresh process registers, and keeps that it was heard
	c.g.me.heard = []string{"x"}
	if err := c.g.join(t.Context(), c.store); err != nil || c.g.me.row == "" || c.g.state != Joining || !slices.Equal(c.g.me.heard, []string{"x"}) || slices.Contains(c.store.made(), "beat") {
		t.Errorf("it registers: %v, %+v after %v", err, c.g.me, c.store.made())
	}
	select {
	case <-c.g.kick:
	default:
		t.Error("it does not go on at once")
	}
	for what, v := range map[string]struct {
		set  func(c *scene)
		want State
	}{
		"a fence":       {func(c *scene) { c.fence(Fence{}) }, Fenced},
		"a decision":    {func(c *scene) { c.decided(1, nil) }, Joining},
		"another store": {func(c *scene) { c.tag("t", 5); c.know(func(b *record) { b.Store = "another" }) }, Refusing},
	} {
		c := newScene(t)
		v.set(c)
		_ = c.g.join(t.Context(), c.store)
		if c.g.me.row != "" || c.g.state != v.want {
			t.Errorf("with %s it is %s, and registers: %q", what, c.g.state, c.g.me.row)
		}
	}
}

// The quickest of the first calls tells the distance: the row says from the first how often it beats.
func TestFirstDistance(t *testing.T) {
	for name, v := range map[string]struct {
		takes [2]time.Duration // the fence, and the other rows
		want  time.Duration
	}{
		"near":                 {[2]time.Duration{0, 0}, time.Second},
		"far":                  {[2]time.Duration{time.Second, 600 * time.Millisecond}, 2250 * time.Millisecond},
		"the first is quicker": {[2]time.Duration{600 * time.Millisecond, time.Second}, 2250 * time.Millisecond},
	} {
		synctest.Test(t, func(t *testing.T) {
			c := newScene(t)
			c.store.before = func(call string) {
				for i, at := range []string{"row " + driver.RowFence, "row " + rowDecision} {
					if call == at {
						time.Sleep(v.takes[i])
					}
				}
			}
			if _, may, err := c.g.prepare(t.Context(), c.store); err != nil || !may || c.g.pace.interval != v.want {
				t.Errorf("%s: %v, %v; the interval is %v; want %v", name, may, err, c.g.pace.interval, v.want)
			}
		})
	}
}
