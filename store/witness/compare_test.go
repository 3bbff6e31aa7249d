package witness

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
)

// The tags that were used are compared in turn, and one that lags behind only on a server that
// lags behind is no loss.
func TestComparesUsedTags(t *testing.T) {
	u := used{}
	if u.due(time.Hour) || len(u.next(time.Hour)) > 0 {
		t.Error("none were used, and some are compared")
	}
	u = used{}
	names := map[string]bool{}
	for i := range driver.MaxNamed + 2 {
		u.add(fmt.Sprint(i))
		u.add(fmt.Sprint(i))
	}
	step := func(what string, now time.Duration, want int, due bool) (some []string) {
		t.Helper()
		some = u.next(now)
		if len(some) != want || u.due(now) != due {
			t.Errorf("%s %d are compared, and more are due: %v; want %d, %v", what, len(some), u.due(now), want, due)
		}
		for _, name := range some {
			names[name] = true
		}
		return some
	}
	step("of those used since", 0, driver.MaxNamed, true)
	step("of the rest, and in turn", 0, driver.MaxNamed, true)
	if len(names) != driver.MaxNamed+2 {
		t.Errorf("%d were compared; want all", len(names))
	}
	step("of the turn's rest", 0, 4, false)
	step("before the next turn", turnEvery-1, 0, false)
	u.add("3")
	if got := step("of one used again", turnEvery-1, 1, false); got[0] != "3" {
		t.Errorf("compared is %s", got[0])
	}
	if !u.due(turnEvery) {
		t.Error("no turn is due after a minute")
	}
	step("in the next turn", turnEvery, driver.MaxNamed, true)
	u.again([]string{"5"})
	if got := step("of one that could not be", turnEvery, 3, false); got[0] != "5" {
		t.Errorf("compared first is %s", got[0])
	}
	for name, v := range map[string]struct {
		known  Pair
		change func(c *scene)
		behind bool
	}{
		"as it was":                    {Pair{0, 100}, func(*scene) {}, false},
		"further":                      {Pair{0, 90}, func(*scene) {}, false},
		"behind":                       {Pair{0, 101}, func(*scene) {}, true},
		"its token is behind":          {Pair{1, 5}, func(*scene) {}, true},
		"not listed, but there":        {Pair{0, 100}, func(c *scene) { c.store.named = func(tags *[]hapax.Tag) { *tags = nil } }, false},
		"lower, on a server that lags": {Pair{0, 100}, func(c *scene) { c.store.named = func(tags *[]hapax.Tag) { (*tags)[0].Mark = 1 } }, false},
		"gone": {Pair{0, 100}, func(c *scene) {
			c.store.before = func(string) {}
			c.g.used.add("gone")
			c.know(func(b *record) { b.Lines["tag/gone"] = Pair{0, 1} })
		}, true},
	} {
		c := servingScene(t)
		c.know(func(b *record) { b.Lines["tag/t"] = v.known })
		c.g.used.add("t")
		v.change(c)
		err := c.g.compare(t.Context(), c.store)
		if errors.Is(err, hapax.ErrStoreRolledBack) != v.behind || (err != nil) != v.behind || (c.g.state == Refusing) != v.behind {
			t.Errorf("%s: %v, %s", name, err, c.g.state)
		}
	}
	c := servingScene(t)
	if err := c.g.compare(t.Context(), c.store); err != nil || len(c.store.made()) > 0 {
		t.Errorf("none were used: %v, %v", err, c.store.made())
	}
}
