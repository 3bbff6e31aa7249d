package witness

import (
	"context"
	"errors"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/durable"
	"github.com/hapax-id/hapax/store/driver"
)

// A node that comes late to a decision raises the lines that are behind it, and tells of numbers that it
// used above the assumed mark.
func TestAmendsADecision(t *testing.T) {
	row := rowOf(2, "B")
	for name, v := range map[string]struct {
		knows, now Pair
		stated     []int64 // floors for its rows
		raisedTo   int64
		healed     bool
		told       string
	}{
		"nothing was assumed of it":      {Pair{1, 3000}, Pair{1, 5000}, nil, 0, false, ""},
		"it used no more than assumed":   {Pair{1, 3000}, Pair{1, 5000}, []int64{3000}, 0, false, ""},
		"it used more":                   {Pair{1, 3000}, Pair{1, 5000}, []int64{1000}, 0, false, "from=1000 to=3000"},
		"... than the higher assumption": {Pair{1, 3000}, Pair{1, 5000}, []int64{1000, 500}, 0, false, "from=1000 to=3000"},
		"... in the other order":         {Pair{1, 3000}, Pair{1, 5000}, []int64{500, 1000}, 0, false, "from=1000 to=3000"},
		"... than the line was raised":   {Pair{1, 3000}, Pair{1, 5000}, []int64{1000}, 2000, false, "from=2000 to=3000"},
		"the line is as it knows it":     {Pair{1, 5000}, Pair{1, 5000}, []int64{5000}, 0, false, ""},
		"the line is behind":             {Pair{1, 7000}, Pair{1, 5000}, nil, 5000, true, ""},
		"... and was used above":         {Pair{1, 7000}, Pair{1, 5000}, nil, 0, true, "from=0 to=5000"},
		"its token is behind":            {Pair{2, 3000}, Pair{1, 5000}, []int64{3000}, 0, true, ""},
	} {
		c := newScene(t)
		c.tag("t", v.now.Mark)
		before := record{Own: map[string]own{row: {}}, Lines: map[string]Pair{"tag/t": v.knows}}
		d := &decision{Stated: map[string]statement{}}
		for i, floor := range v.stated {
			d.Stated[[]string{row, rowName(2, "")}[i]] = statement{Floor: floor}
		}
		if v.raisedTo > 0 {
			d.Most = []Raised{raisedOf("tag/t", 1, v.raisedTo)}
		}
		have := stored{lines: lines{map[string]Pair{"tag/t": v.now}, nil}}
		if err := c.g.amend(t.Context(), c.store, before, have, d); err != nil {
			t.Fatal(name, err)
		}
		if healed := len(c.store.heals) > 0; healed != v.healed || healed && (c.store.heals[0].Mark != max(v.knows.Mark, v.now.Mark) || c.store.heals[0].Token != max(v.knows.Token, v.now.Token)) {
			t.Errorf("%s: healed are %+v", name, c.store.heals)
		}
		if text := c.log.String(); (text != "") != (v.told != "") || !strings.Contains(text, v.told) {
			t.Errorf("%s: it tells %q; want %q", name, text, v.told)
		}
	}
}

// Whatever waits ends with its context.
func TestWaitsEndWithTheirContext(t *testing.T) {
	b := rowOf(2, "B")
	for name, f := range map[string]func(c *scene, ctx context.Context) error{
		"for a verdict": func(c *scene, ctx context.Context) error {
			c.g.me.row = ""
			_, err := c.g.awaitVerdict(ctx, time.Hour)
			return err
		},
		"... of an adopter": func(c *scene, ctx context.Context) error {
			c.g.me.row = ""
			_, err := c.g.Adopt(ctx, Statement{})
			return err
		},
		"for an account": func(c *scene, ctx context.Context) error {
			c.fence(Fence{ID: "F"})
			_, err := c.g.awaitAccount(ctx, c.store, time.Hour)
			return err
		},
		"for a decision": func(c *scene, ctx context.Context) error {
			c.fence(Fence{ID: "F"})
			return c.g.awaitDecision(ctx, c.store, "F", Statement{Wait: time.Hour}, &Adoption{})
		},
		"for another store's nodes": func(c *scene, ctx context.Context) error {
			return c.g.judgeOther(ctx, c.store, Statement{}, &Adoption{})
		},
		"for a row": func(c *scene, ctx context.Context) error {
			c.peer(b, "b", driver.Beat{Count: 3}, "")
			_, err := c.g.endRow(ctx, c.store, Statement{Row: "b"})
			return err
		},
		"for other operators": func(c *scene, ctx context.Context) error {
			c.store.swapped = func(string) bool { return false }
			return c.g.say(ctx, c.store, "said/F/r", statement{Floor: 5})
		},
		"to approve": func(c *scene, ctx context.Context) error {
			f, _ := c.fence(Fence{ID: "F", Manual: true})
			c.store.swapped = func(string) bool { return false }
			return c.g.write(ctx, c.store, f, Statement{}, nil, nil)
		},
		"for a connection": func(c *scene, ctx context.Context) error {
			_ = c.g.calls.close()
			_, err := c.g.Adopt(ctx, Statement{})
			if errors.Is(err, hapax.ErrClosed) {
				err = errInjected
			}
			return err
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			c := newScene(t)
			c.joins(1)
			c.member(1, 2)
			c.g.state = Joining
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			defer cancel()
			began := time.Now()
			if err := f(c, ctx); !errors.Is(err, hapax.ErrStoreUnavailable) || time.Since(began) > 100*time.Millisecond {
				t.Errorf("%s: %v after %v", name, err, time.Since(began))
			}
		})
	}
	c := newScene(t)
	f, _ := c.fence(Fence{ID: "F", Manual: true})
	if err := c.g.write(t.Context(), c.store, f, Statement{}, nil, nil); err != nil || !c.standing().Approved {
		t.Errorf("a person decides: %v, %+v", err, c.standing())
	}
	c.store.reset(0)
	if err := c.g.write(t.Context(), c.store, f, Statement{}, nil, nil); err != nil || len(c.store.made()) != 1 {
		t.Errorf("... again: %v after %v", err, c.store.made())
	}
	c.put(driver.TableFence, driver.RowFence, nil)
	if err := c.g.write(t.Context(), c.store, f, Statement{}, nil, nil); err != nil {
		t.Errorf("where the fence is gone: %v", err)
	}
}

// What seems to matter little: a witness that is full from its start, the machine's run, nobody unheard.
func TestSmallRules(t *testing.T) {
	path := filepath.Join(t.TempDir(), "witness")
	w, err := OpenFile(path)
	if err := errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
	if w, err = openOn(path, refusing{durable.OS, syscall.ENOSPC}); err != nil || !errors.Is(w.Failed(), syscall.ENOSPC) {
		t.Errorf("a witness whose disk is full: %v, %v", err, w.Failed())
	}
	_ = w.Close()
	if boot, up := uptime(); (boot == "") != (up == 0) || (boot == "") == (runtime.GOOS == "linux") || boot != "" && (len(boot) != 36 || up < 1000) {
		t.Errorf("the machine's run is %q, and lasts %d ms", boot, up)
	}
	c := servingScene(t)
	if c.g.tellUnheard(); c.log.Len() > 0 {
		t.Errorf("of nobody it tells %q", c.log)
	}
	if cause, err := c.g.judgeLatest(t.Context(), c.store, map[string]own{"r": {Count: 1}}); cause != nil || err != nil || len(c.store.made()) > 0 {
		t.Errorf("without a row to judge by: %v, %v after %v", cause, err, c.store.made())
	}
	if err := c.g.HandBack(t.Context(), hapax.Allocation{Tag: hapax.Tag{Name: "t"}, Grant: hapax.Grant{Lo: 1, Hi: 9}}, 10); !errors.Is(err, hapax.ErrInvalidArgument) || len(c.store.made()) > 0 {
		t.Errorf("a hand-back above its end: %v after %v", err, c.store.made())
	}
	c.know(func(b *record) { b.Lines = map[string]Pair{"tag/t": {0, 100}, "tag/zz": {0, 1}} })
	pages := 0
	c.store.pages = func(page *[]hapax.Tag) {
		if pages++; pages == 2 { // it goes back between two readings
			(*page)[0].Mark = 99
		}
	}
	if found, err := compareLines(t.Context(), c.store, c.g.witness.snapshot()); err != nil || !found.behind || found.line != "tag/t" {
		t.Errorf("the first that is behind is %q, %v", found.line, err)
	}
	row := rowOf(2, "B")
	for name, v := range map[string]struct {
		about string
		peer  *sighting
		want  bool
	}{
		"it says nothing of itself": {"", &sighting{}, true},
		"it beats every second":     {`{"every_ms":1000}`, &sighting{}, true},
		"it beats less often":       {`{"every_ms":2000}`, &sighting{}, false},
		"nobody has observed it":    {`{"every_ms":1000}`, nil, false},
	} {
		c := servingScene(t)
		now := time.Hour
		c.g.opts.Clock = func() time.Duration { return now }
		if v.about != "" {
			c.put(driver.TableNodes, row, []byte(v.about))
		}
		if v.peer != nil {
			v.peer.at = now - 5*time.Second - 1
			c.g.peers[row] = v.peer
		}
		late, err := c.g.isLate(t.Context(), c.store, row)
		if err != nil || late != v.want {
			t.Errorf("%s: late %v, %v", name, late, err)
		}
		if v.peer != nil && v.about != "" {
			v.peer.at = now - 5*time.Second
			if late, _ := c.g.isLate(t.Context(), c.store, row); late {
				t.Errorf("%s: it is late in time", name)
			}
		}
	}
}
