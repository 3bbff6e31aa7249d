package witness

import (
	"errors"
	"testing"

	"github.com/hapax-id/hapax/store/driver"
)

// A tag is known if its columns were read under the present founding.
func TestKnownSinceTheFounding(t *testing.T) {
	for name, v := range map[string]struct {
		founding, row string
		known         bool
		above         string
	}{
		"read under it":        {"f1", "read since f1 0:5", true, "0:5"},
		"with nothing besides": {"f1", "read since f1 ", true, ""},
		"read under another":   {"f2", "read since f1 0:5", false, "read since f1 0:5"},
		"never read":           {"f1", "", false, ""},
		"nobody has founded":   {"", "", false, ""},
	} {
		c := servingScene(t)
		if v.founding != "" {
			c.put(driver.TableGuard, rowFounding, []byte(v.founding))
		}
		if v.row != "" {
			c.put(tableFloors, "t", []byte(v.row))
		}
		known, above, founding, err := c.g.Known(t.Context(), "t")
		if err != nil || known != v.known || above != v.above || founding != v.founding {
			t.Errorf("%s: known %v, above %q, founding %q, %v", name, known, above, founding, err)
		}
		for n := range 2 {
			c.store.reset(n + 1)
			if known, _, _, err := c.g.Known(t.Context(), "t"); !errors.Is(err, errInjected) || known && n == 0 {
				t.Errorf("%s: call %d fails: %v, %v", name, n+1, known, err)
			}
		}
	}
}

// That a tag's columns were read is noted once.
func TestNotesKnownTags(t *testing.T) {
	c := servingScene(t)
	note := func(above, founding string, calls int) {
		t.Helper()
		c.store.reset(0)
		if err := c.g.NoteKnown(t.Context(), "t", above, founding); err != nil || len(c.store.made()) != calls {
			t.Errorf("%q under %s: %v after %v; want %d calls", above, founding, err, c.store.made(), calls)
		}
		if got := c.row(tableFloors, "t"); got != "read since "+founding+" "+above {
			t.Errorf("%q under %s: noted is %q", above, founding, got)
		}
	}
	note("5", "f1", 2)
	note("5", "f1", 1)
	note("6", "f1", 2)
	note("6", "f2", 2)
	for n := range 2 {
		c.store.reset(n + 1)
		if err := c.g.NoteKnown(t.Context(), "t", "7", "f2"); !errors.Is(err, errInjected) {
			t.Errorf("call %d fails: %v", n+1, err)
		}
	}
	c.store.reset(0)
	c.store.swapped = func(string) bool { return false }
	if err := c.g.NoteKnown(t.Context(), "t", "8", "f2"); err != nil {
		t.Errorf("another was first: %v", err)
	}
}

// A founding is noted by a process that founds and has not used the store, and by no other.
func TestWhoNotesAFounding(t *testing.T) {
	for name, v := range map[string]struct {
		founds  bool
		store   string
		swapped func(string) bool
		calls   int
		fails   bool
	}{
		"it founds":                {true, "", nil, 2, false},
		"somebody serves":          {false, "", nil, 0, false},
		"it has used the store":    {true, "s", nil, 0, false},
		"neither":                  {false, "s", nil, 0, false},
		"another founds meanwhile": {true, "", func(string) bool { return false }, 2, true},
	} {
		c := servingScene(t)
		c.g.me.founds = v.founds
		c.know(func(b *record) { b.Store = v.store })
		c.store.swapped = v.swapped
		err := c.g.noteFounding(t.Context(), c.store)
		if (err != nil) != v.fails || len(c.store.made()) != v.calls || (c.row(driver.TableGuard, rowFounding) == c.g.me.row) != (v.calls > 0 && !v.fails) {
			t.Errorf("%s: %v after %v", name, err, c.store.made())
		}
	}
	for n := range 2 {
		c := servingScene(t)
		c.g.me.founds = true
		c.store.reset(n + 1)
		if err := c.g.noteFounding(t.Context(), c.store); !errors.Is(err, errInjected) {
			t.Errorf("call %d fails: %v", n+1, err)
		}
	}
}
