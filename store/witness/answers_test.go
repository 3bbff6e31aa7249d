package witness

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
)

// A heartbeat counts for the question about fresh lines only if no question about the primary was open
// when it was sent or answered.
func TestWhichHeartbeatsAreSure(t *testing.T) {
	for name, v := range map[string]struct {
		set  func(c *scene, p *pulse, at *driver.Contact)
		want int64
	}{
		"no question":             {func(*scene, *pulse, *driver.Contact) {}, 10},
		"one is open":             {func(c *scene, _ *pulse, _ *driver.Contact) { c.g.me.over = 2 }, 4},
		"one was, as it was sent": {func(_ *scene, p *pulse, _ *driver.Contact) { p.begun = 2 }, 4},
		"one begins":              {func(_ *scene, _ *pulse, at *driver.Contact) { at.Primary = "p2" }, 4},
		"it was out of contact":   {func(c *scene, _ *pulse, _ *driver.Contact) { c.g.me.contact -= time.Minute }, 4},
		"a later one is known":    {func(c *scene, _ *pulse, _ *driver.Contact) { c.g.me.sure = 99 }, 99},
	} {
		c := servingScene(t)
		c.g.me.begun, c.g.me.over, c.g.me.sure, c.g.me.primary = 3, 3, 4, "p1"
		c.g.me.beat.Count = 9
		p, at := c.g.pulse(false), driver.Contact{Met: true, Joins: 1, Primary: "p1"}
		v.set(c, &p, &at)
		_ = c.g.found(t.Context(), c.store, p, at, nil)
		if c.g.me.sure != v.want {
			t.Errorf("%s: the last that is sure is %d; want %d", name, c.g.me.sure, v.want)
		}
	}
	c := servingScene(t)
	if c.g.awaitOthersLocked(); c.g.noted != c.g.me.waits || c.g.noted == 0 {
		t.Errorf("rows that were read before %v count", c.g.noted)
	}
}

// A grant is asked for only by a serving node whose witness can be written, and used only without an error.
func TestGrantsEndToEnd(t *testing.T) {
	got := granted{line: "tag/t", to: Pair{0, 200}, of: "tag/t"}
	none := func() func(string) (Pair, bool) { return func(string) (Pair, bool) { return Pair{}, false } }
	for name, v := range map[string]struct {
		set    func(c *scene)
		all    []granted
		err    error
		want   error
		called bool
		known  bool
	}{
		"a grant":                  {func(*scene) {}, []granted{got}, nil, nil, true, true},
		"no grant":                 {func(*scene) {}, nil, nil, nil, true, false},
		"one with an error":        {func(*scene) {}, []granted{got}, errInjected, errInjected, true, false},
		"it is fenced":             {func(c *scene) { c.g.state, c.g.cause = Fenced, hapax.ErrFenced }, []granted{got}, nil, hapax.ErrFenced, false, false},
		"the witness is closed":    {func(c *scene) { _ = c.g.witness.Close() }, []granted{got}, nil, hapax.ErrStoreUnavailable, false, false},
		"... while it is asked":    {func(c *scene) { c.g.me.asked = 1 << 40 }, []granted{got}, nil, hapax.ErrStoreUnavailable, true, false},
		"the store is not reached": {func(c *scene) { _ = c.g.calls.close() }, []granted{got}, nil, hapax.ErrClosed, false, false},
	} {
		c := servingScene(t)
		v.set(c)
		called := false
		err := c.g.grant(t.Context(), none, func(context.Context, store, pulse) ([]granted, error) {
			if called = true; name == "... while it is asked" {
				_ = c.g.witness.Close()
			}
			return v.all, v.err
		})
		if !errors.Is(err, v.want) || v.want == nil && err != nil || called != v.called {
			t.Errorf("%s: %v, called %v", name, err, called)
		}
		if p, _ := c.g.witness.Pair("tag/t"); (p.Mark == 200) != v.known {
			t.Errorf("%s: the witness knows %v", name, p)
		}
		if fresh := len(c.g.fresh) > 0; fresh != (v.known && v.want == nil) {
			t.Errorf("%s: fresh are %v", name, c.g.fresh)
		}
	}
	c := servingScene(t)
	p := c.g.pulse(true)
	c.g.me.asked = p.Now.Grants
	syncs := CountSyncs(c.g.witness)
	if err := c.g.reserve(p); err != nil || syncs() != 0 {
		t.Errorf("a grant that may be asked for is written %d times, %v", syncs(), err)
	}
}

// What a driver says of its own connection has it replaced, and a closed one was replaced.
func TestReplacesLostHandles(t *testing.T) {
	for name, v := range map[string]struct {
		err   error
		ended bool
		want  error
		state State
		drops bool
	}{
		"no error":           {nil, false, nil, Serving, false},
		"a failure":          {errors.New("odd"), false, hapax.ErrStoreUnavailable, Serving, false},
		"a fence":            {fmt.Errorf("%w %w", hapax.ErrFenced, hapax.ErrStoreRolledBack), false, hapax.ErrFenced, Serving, false},
		"it is closed":       {hapax.ErrClosed, false, hapax.ErrStoreUnavailable, Serving, false},
		"... with this node": {hapax.ErrClosed, true, hapax.ErrClosed, Serving, false},
		"it went back":       {hapax.ErrStoreRolledBack, false, hapax.ErrStoreUnavailable, Joining, true},
		"it is another":      {hapax.ErrStoreReplaced, false, hapax.ErrStoreUnavailable, Joining, true},
	} {
		c := servingScene(t)
		h := newHandle(func(context.Context) (driver.Store, error) { return c.store, nil }, false)
		h.clock, h.again = c.g.opts.Clock, true
		s, err := h.get(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if v.ended {
			c.g.stop()
		}
		err = c.g.replaceLost(h, s, v.err)
		now := h.peek()
		if !errors.Is(err, v.want) || v.want == nil && err != nil || c.g.state != v.state || (now == nil) != v.drops {
			t.Errorf("%s: %v, it is %s, dropped %v", name, err, c.g.state, now == nil)
		}
		if name == "it is closed" && !strings.Contains(err.Error(), "was replaced while it was used") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A statement whose handle is replaced meanwhile, as that of a store that hangs is, does not say that the node is closed.
func TestStatementOnAReplacedHandle(t *testing.T) {
	for ended, want := range map[bool]error{false: hapax.ErrStoreUnavailable, true: hapax.ErrClosed} {
		c := servingScene(t)
		if err := c.g.calls.close(); err != nil {
			t.Fatal(err)
		}
		if ended {
			c.g.stop()
		}
		if _, err := c.g.Adopt(t.Context(), Statement{}); !errors.Is(err, want) {
			t.Errorf("the node has ended %t: %v, want %v", ended, err, want)
		}
	}
}

// A file that has something happen while it is synced.
type meanwhile struct {
	logFile
	f func()
}

func (m meanwhile) Sync() error {
	m.f()
	return m.logFile.Sync()
}

// A lease is taken under one row, and its line's definition and end are known to the witness.
func TestLeasesUnderOneRow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		layout, err := hapax.ParseLayout("leaf")
		if err != nil {
			t.Fatal(err)
		}
		ctx, term := t.Context(), testTerm()
		req := hapax.AcquireRequest{Pool: "p", Layout: layout, Workers: hapax.WorkerRange{Lo: 3, Hi: 4}, Holder: "h", Term: term}
		moves := func(c *scene) {
			c.store.before = func(call string) {
				if !strings.HasPrefix(call, "swap") {
					c.g.mu.Lock()
					c.g.me.row = "another"
					c.g.mu.Unlock()
				}
			}
		}
		c := servingScene(t)
		moves(c)
		if _, err := c.g.AcquireWorker(ctx, req); !errors.Is(err, hapax.ErrStoreUnavailable) || strings.Contains(strings.Join(c.store.made(), " "), "swap") {
			t.Errorf("its row has changed: %v after %v", err, c.store.made())
		}
		c = servingScene(t)
		l, err := c.g.AcquireWorker(ctx, req)
		if err != nil {
			t.Fatal(err)
		}
		c.know(func(b *record) { b.Defs[poolDef("p")] = def{} })
		if l, err = c.g.ExtendWorker(ctx, l, layout, term); err != nil || c.g.witness.snapshot().Defs[poolDef("p")].Layout != layout.String() {
			t.Errorf("an extension leaves %v, %v", c.g.witness.snapshot().Defs, err)
		}
		c.store.reset(0)
		row, file := c.g.me.row, c.g.witness.log.file
		c.g.me.asked = 0 // the witness is to know of the grant before it is asked for
		c.g.witness.log.file = meanwhile{file, func() {
			c.g.mu.Lock()
			c.g.me.row = "another"
			c.g.mu.Unlock()
		}}
		if _, err := c.g.ExtendWorker(ctx, l, layout, term); !errors.Is(err, hapax.ErrStoreUnavailable) || strings.Contains(strings.Join(c.store.made(), " "), "swap") {
			t.Errorf("its row has changed during an extension: %v after %v", err, c.store.made())
		}
		c.g.witness.log.file, c.g.me.row = file, row
		if err := c.g.SealWorker(ctx, l, l.Grant.Lo); err != nil {
			t.Fatal(err)
		}
		if p, _ := c.g.witness.Pair(WorkerLine("p", 3)); p != (Pair{l.Token + 1, l.Grant.Lo}) {
			t.Errorf("after the seal the witness knows %v; want token %d, mark %d", p, l.Token+1, l.Grant.Lo)
		}
	})
}
