package witness

import (
	"errors"
	"strings"
	"testing"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
)

// leavingScene is a scene whose node is being closed.
func leavingScene(t *testing.T) *scene {
	c := servingScene(t)
	SetUptime(t, func() (string, int64) { return "boot", 77 })
	c.joins(3)
	c.put(driver.TableBeats, c.g.me.row, driver.Beat{Count: 8, Grants: 5}.Encode())
	c.g.me.acked, c.g.me.beat = driver.Beat{Count: 7, Grants: 5}, driver.Beat{Count: 9, Grants: 6}
	c.g.me.joins, c.g.state = 2, Leaving
	return c
}

// A node that leaves says so in its row, after its witness knows how it left, and moves the number of
// changes; not where anything keeps it from that, which the others find silent.
func TestLeaves(t *testing.T) {
	for name, v := range map[string]struct {
		set   func(c *scene)
		left  bool // its row says so
		knows bool // the witness does
		moved bool
		err   error
		calls bool
	}{
		"in good order":             {func(*scene) {}, true, true, true, nil, true},
		"from a store of its own":   {func(c *scene) { c.store.shared = false }, true, true, false, nil, true},
		"it is not leaving":         {func(c *scene) { c.g.state = Left }, false, false, false, nil, false},
		"it has no row":             {func(c *scene) { c.g.me.row = "" }, false, false, false, nil, false},
		"a fence stands":            {func(c *scene) { c.fence(Fence{}) }, false, false, false, nil, true},
		"its row is gone":           {func(c *scene) { c.put(driver.TableBeats, c.g.me.row, nil) }, false, false, false, nil, true},
		"its row is behind":         {func(c *scene) { c.put(driver.TableBeats, c.g.me.row, driver.Beat{Count: 6}.Encode()) }, false, false, false, nil, true},
		"as it was acknowledged":    {func(c *scene) { c.g.me.acked.Count = 8 }, true, true, true, nil, true},
		"its row is no beat":        {func(c *scene) { c.put(driver.TableBeats, c.g.me.row, []byte("~")) }, false, false, false, hapax.ErrStoreCorrupt, true},
		"it was marked silent":      {func(c *scene) { c.put(driver.TableBeats, c.g.me.row, driver.Beat{Count: 8}.EncodeEnded("silent")) }, false, false, false, nil, true},
		"the numbers are not sound": {func(c *scene) { c.put(driver.TableGuard, driver.RowChanges, []byte("~")) }, true, true, false, hapax.ErrStoreCorrupt, true},
		"the witness cannot be written": {func(c *scene) {
			c.g.witness.log.file = full{c.g.witness.log.file}
		}, false, true, false, nil, true},
		"the witness is closed": {func(c *scene) { _ = c.g.witness.Close() }, false, false, false, hapax.ErrClosed, true},
	} {
		c := leavingScene(t)
		row := c.g.me.row
		v.set(c)
		err := c.g.leave()
		if !errors.Is(err, v.err) || v.err == nil && err != nil || c.g.state != Left {
			t.Errorf("%s: %v, it is %s", name, err, c.g.state)
		}
		if got := strings.Contains(c.row(driver.TableBeats, row), "left"); got != v.left {
			t.Errorf("%s: its row is %q; want that it has left: %v", name, c.row(driver.TableBeats, row), v.left)
		}
		if beat, _, err := driver.DecodeBeat(row, []byte(c.row(driver.TableBeats, row))); v.left && (err != nil || beat != driver.Beat{Count: 8, Grants: 5}) {
			t.Errorf("%s: its row is %+v, %v", name, beat, err)
		}
		r := c.g.witness.snapshot()
		knows := r.Left != nil && *r.Left == departure{Row: row, Joins: 3, Boot: "boot", Up: 77} && r.Own[row] == own{Count: 8, Grants: 5, Asked: 6} && r.Joins == 2
		if knows != v.knows {
			t.Errorf("%s: the witness knows %+v, %+v, %d joins", name, r.Left, r.Own, r.Joins)
		}
		if moved := c.row(driver.TableGuard, driver.RowChanges) == string(driver.EncodeCounter(1)); moved != v.moved {
			t.Errorf("%s: changes are %q", name, c.row(driver.TableGuard, driver.RowChanges))
		}
		if calls := len(c.store.made()) > 0; calls != v.calls {
			t.Errorf("%s: it calls %v", name, c.store.made())
		}
		if warned := strings.Contains(c.log.String(), "the witness cannot be written"); warned != (name == "the witness cannot be written") {
			t.Errorf("%s: it logs %q", name, c.log)
		}
	}
	whole := leavingScene(t)
	if err := whole.g.leave(); err != nil {
		t.Fatal(err)
	}
	for n := range len(whole.store.made()) {
		c := leavingScene(t)
		c.store.reset(n + 1)
		if err := c.g.leave(); err != nil || c.g.state != Left {
			t.Errorf("call %d fails: %v, it is %s", n+1, err, c.g.state)
		}
		if made := c.store.made(); len(made) != n+1 {
			t.Errorf("after call %d has failed it goes on: %v", n+1, made)
		}
	}
	c := leavingScene(t)
	h := newHandle(nil, false)
	h.clock = c.g.opts.Clock
	_ = h.close()
	if c.g.calls = h; c.g.leave() != nil || len(c.store.made()) > 0 {
		t.Errorf("without a connection it calls %v", c.store.made())
	}
}
