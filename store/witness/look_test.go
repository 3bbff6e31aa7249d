package witness

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
)

// A look at a store tells what its rows do, changes nothing, and judges the store as a node
// with the witness would.
func TestLooksAtAStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, f, _ := lostScene(t)
		c.peer(rowOf(3, "C"), "c", driver.Beat{Count: 1}, "")
		c.put(driver.TableGuard, rowFormat, []byte(`{"format":3,"by":"1.2.3"}`))
		older := func(name string, beat string) {
			c.put(tableNodesBefore, name, []byte(`{"beat":`+beat+`,"name":"old-`+name+`","every_ms":2000}`))
		}
		older("x", "1")
		older("y", "1")
		time.AfterFunc(4900*time.Millisecond, func() { older("x", "2") })
		began := time.Now()
		got, err := LookAt(t.Context(), c.store, filepath.Join(t.TempDir(), "none"))
		if err != nil {
			t.Fatal(err)
		}
		if got.Format != 3 || got.By != "1.2.3" || got.Before != 2 || !slices.Equal(got.Older, []string{"old-x"}) || !slices.Equal(got.Nodes, []string{"me", "c"}) || got.Fence != f.text() || got.Behind != nil {
			t.Errorf("it tells %+v", got)
		}
		if took := time.Since(began); took != 5*time.Second {
			t.Errorf("it took %v; want two and a half heartbeats of the slowest", took)
		}
		for _, call := range c.store.made() {
			if strings.HasPrefix(call, "swap") || strings.HasPrefix(call, "heal") || call == "beat" {
				t.Errorf("it wrote: %s", call)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := LookAt(ctx, c.store, "none"); !errors.Is(err, hapax.ErrStoreUnavailable) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("that has no time: %v", err)
		}
		if _, err := LookAt(t.Context(), struct{ driver.Store }{c.store}, "none"); !errors.Is(err, hapax.ErrNotSupported) {
			t.Errorf("at a store without rows: %v", err)
		}
		path := filepath.Join(t.TempDir(), "damaged")
		if err := os.WriteFile(path, []byte("x\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := LookAt(t.Context(), c.store, path); !errors.Is(err, hapax.ErrStoreCorrupt) {
			t.Errorf("with a witness that is damaged: %v", err)
		}
		old := newScene(t)
		old.put(tableNodesBefore, "n", []byte("~"))
		if _, err := LookAt(t.Context(), old.store, "none"); !errors.Is(err, hapax.ErrStoreCorrupt) {
			t.Errorf("at a row that is none: %v", err)
		}
		began = time.Now()
		if l, err := LookAt(t.Context(), newScene(t).store, "none"); err != nil || l.Format != 0 || time.Since(began) > 0 {
			t.Errorf("at an empty store: %+v, %v, after %v", l, err, time.Since(began))
		}
	})
	for name, v := range map[string]struct {
		change func(c *scene, r *record)
		want   error
	}{
		"as it was": {func(c *scene, r *record) {}, nil},
		"another store": {func(c *scene, r *record) {
			r.Store, r.Former = "x", nil
			c.put(driver.TableFence, driver.RowFence, nil)
		}, errOther},
		"it goes on in another's place": {func(c *scene, r *record) {
			r.Store, r.Former = "x", nil
			c.put(driver.TableGuard, rowReplaces+"x", []byte(`"F"`))
		}, nil},
		"a row is behind":                 {func(c *scene, r *record) { r.Own[c.g.me.row] = own{Count: 10} }, hapax.ErrStoreRolledBack},
		"... and a decision is new":       {func(c *scene, r *record) { r.Own[c.g.me.row] = own{Count: 10}; c.decided(1, nil) }, nil},
		"a refusal stands":                {func(c *scene, r *record) { r.Latch = &latch{State: Fenced, Why: "x"} }, hapax.ErrFenced},
		"a line is behind":                {func(c *scene, r *record) { r.Lines = map[string]Pair{"tag/t": {0, 101}} }, hapax.ErrStoreRolledBack},
		"... that an older version knows": {func(c *scene, r *record) { r.Lines = map[string]Pair{"tag/t": {0, 101}}; r.Older = new(true) }, nil},
	} {
		c, _, _ := lostScene(t)
		r := c.g.witness.snapshot()
		r.Latch, r.Lines = nil, map[string]Pair{"tag/t": {0, 100}}
		v.change(c, &r)
		cause, err := judgeAs(t.Context(), c.store, r)
		if err != nil || v.want == nil && cause != nil || !errors.Is(cause, v.want) {
			t.Errorf("%s: %v, %v; want %v", name, cause, err, v.want)
		}
	}
}

// A look at a witness file tells its format, its store, and whether a process uses it.
func TestLooksAtAFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "witness")
	look := func() LookedFile {
		t.Helper()
		l, err := LookFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	if l := look(); l != (LookedFile{}) {
		t.Errorf("where there is none: %+v", l)
	}
	w, err := OpenFile(path)
	if err == nil {
		err = w.commit(func(b *record) error { b.Store = "s"; return nil })
	}
	if err != nil {
		t.Fatal(err)
	}
	if l := look(); l != (LookedFile{FormatOfFiles(), "s", true}) {
		t.Errorf("while it is used: %+v", l)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if l := look(); l != (LookedFile{FormatOfFiles(), "s", false}) {
		t.Errorf("when it was closed: %+v", l)
	}
	if l := look(); l.Used {
		t.Error("the look has kept its lock")
	}
	if err := os.Remove(path + lockSuffix); err != nil {
		t.Fatal(err)
	}
	if l := look(); l.Used || l.Store != "s" {
		t.Errorf("without a lock file: %+v", l)
	}
	if _, err := os.Stat(path + lockSuffix); err == nil {
		t.Error("the look has made a lock file")
	}
	for name, text := range map[string]string{
		"damaged":       "hello\n",
		"a newer one":   string(newRecord().encode("hapax-witness-4")),
		"damaged later": string(newRecord().encode(kindSnapshot)) + "x\n" + string(newRecord().encode(kindChange)),
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if l, err := LookFile(path); !errors.Is(err, hapax.ErrStoreCorrupt) {
			t.Errorf("%s: %+v, %v", name, l, err)
		}
	}
	if _, err := LookFile(t.TempDir() + "/\x00"); !errors.Is(err, hapax.ErrWitnessFailed) {
		t.Errorf("a path that cannot be opened: %v", err)
	}
}

// Records of older versions are read as those wrote them, or refused.
func TestReadsOlderRecords(t *testing.T) {
	for name, v := range map[string]struct {
		text string
		want string // the lines; "!": it is refused
	}{
		"first":              {"hapax-witness-1\tstore\t7\ttag/t\t8\ttag/u", "store t=7 u=8"},
		"first, no store":    {"hapax-witness-1\t\t7\ttag/t", " t=7"},
		"first, of a kind":   {"change\tstore", "!"},
		"first, half a pair": {"hapax-witness-1\tstore\t7", "!"},
		"first, nothing":     {"hapax-witness-1", "!"},
		"first, no number":   {"hapax-witness-1\tstore\tx\ttag/t", "!"},
	} {
		r := newRecord()
		r.Store = "before"
		err := r.applyFirst([]byte(v.text), kindFirst)
		want := strings.Fields(strings.Replace(v.want, " ", "before ", map[bool]int{true: 1}[v.want[0] == ' ']))
		if (err != nil) != (v.want == "!") {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if err == nil && (r.Store != want[0] || r.Lines["tag/t"].Mark != 7 || len(want) == 3 && r.Lines["tag/u"].Mark != 8) {
			t.Errorf("%s: %q, %v", name, r.Store, r.Lines)
		}
	}
	for name, v := range map[string]struct {
		text  string
		state State
		why   string
		bad   bool
	}{
		"refused":      {kindSecond + "\t" + `{"store":"s","refusal":"it went back","marks":{"tag/t":4}}`, Refusing, "it went back", false},
		"no longer":    {kindSecond + "\t" + `{"store":"s","refusal":"","marks":{"tag/t":4}}`, "", "", false},
		"unchanged":    {kindSecond + "\t" + `{"store":"s","marks":{"tag/t":4}}`, Fenced, "", false},
		"another kind": {"change\t{}", "", "", true},
		"a newer one":  {kindSecond + "\t" + `{"more":1}`, "", "", true},
	} {
		r := newRecord()
		r.Latch = &latch{State: Fenced}
		err := r.applySecond([]byte(v.text), kindSecond)
		if (err != nil) != v.bad {
			t.Errorf("%s: %v", name, err)
		}
		if err == nil && (r.Store != "s" || r.Latch == nil || r.Latch.State != v.state || r.Latch.Why != v.why || r.Lines["tag/t"] != (Pair{0, 4})) {
			t.Errorf("%s: %q, %+v, %v", name, r.Store, r.Latch, r.Lines)
		}
		if err == nil && v.state == Refusing && r.Latch.Code != string(hapax.ErrStoreRolledBack.Code()) {
			t.Errorf("%s: the code is %q", name, r.Latch.Code)
		}
	}
	r := newRecord()
	r.Store = "before"
	if err := r.applySecond([]byte(kindSecond+"\t{}"), kindSecond); err != nil || r.Store != "before" || r.Latch != nil {
		t.Errorf("a record of nothing: %v, %q", err, r.Store)
	}
}

// The store is raised to the marks of an older version's witness, once, but for tags without
// segments.
func TestRaisesToOlderMarks(t *testing.T) {
	c := newScene(t)
	c.tag("low", 10)
	c.tag("as", 50)
	c.tag("high", 90)
	if _, err := c.store.CreateTag(t.Context(), hapax.Tag{Name: "flake", Kind: hapax.KindSnowflake, Pool: "p"}, hapax.CreateExplicit); err != nil {
		t.Fatal(err)
	}
	c.know(func(b *record) {
		b.Older = new(true)
		b.Lines = map[string]Pair{"tag/low": {0, 50}, "tag/as": {0, 50}, "tag/high": {0, 50}, "tag/flake": {0, 50}}
	})
	for range 2 {
		if err := c.g.raiseOlder(t.Context(), c.store); err != nil {
			t.Fatal(err)
		}
	}
	if len(c.store.heals) != 1 || c.store.heals[0].Name != "low" || c.store.heals[0].Mark != 50 || c.g.witness.isOlder() {
		t.Errorf("raised were %+v, and it is older still: %v", c.store.heals, c.g.witness.isOlder())
	}
	if text := c.log.String(); !strings.Contains(text, "lines=4") || !strings.Contains(text, "lines_raised=1") {
		t.Errorf("it logs %q", text)
	}
	c.know(func(b *record) { b.Older = new(true) })
	if err := c.g.raiseOlder(t.Context(), unhealable{c.store}); !errors.Is(err, hapax.ErrNotSupported) {
		t.Errorf("a store that cannot be raised: %v", err)
	}
}

// Older versions are kept from the store: once none of them runs, by their own fence.
func TestKeepsOlderVersionsOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newScene(t)
		c.put(tableNodesBefore, "n", []byte(`{"beat":1,"name":"old","every_ms":2000}`))
		if err := c.g.closeToOlder(t.Context(), c.store); err == nil || !strings.Contains(err.Error(), "may run on this store; that is known in 10s") {
			t.Errorf("at first: %v", err)
		}
		time.Sleep(10*time.Second - 1)
		if err := c.g.closeToOlder(t.Context(), c.store); err == nil || !strings.Contains(err.Error(), "may run") {
			t.Errorf("just before it is known: %v", err)
		}
		time.Sleep(time.Nanosecond)
		if err := c.g.closeToOlder(t.Context(), c.store); err != nil {
			t.Fatalf("when it is known: %v", err)
		}
		raw := c.row(driver.TableFence, rowFenceBefore)
		if !strings.Contains(raw, `"id":"format-3"`) || !strings.Contains(raw, `"node":"`+theRun+`"`) || !strings.Contains(raw, `"name":"me"`) || !strings.Contains(raw, `"at":"2000-`) {
			t.Errorf("the fence is %s", raw)
		}
		if c.store.excl != 1 || c.row(tableNodesBefore, "n") != "" || !strings.Contains(c.log.String(), "nodes=1") {
			t.Errorf("excluded %d times, its row %q, log %q", c.store.excl, c.row(tableNodesBefore, "n"), c.log)
		}
		if err := c.g.closeToOlder(t.Context(), c.store); err != nil || c.store.excl != 2 {
			t.Errorf("again: %v, excluded %d times", err, c.store.excl)
		}
		fresh := newScene(t)
		if err := fresh.g.closeToOlder(t.Context(), fresh.store); err != nil || strings.Contains(fresh.log.String(), "took over") {
			t.Errorf("where none ever ran: %v, %q", err, fresh.log)
		}
		apart := newScene(t)
		apart.store.shared = false
		if err := apart.g.closeToOlder(t.Context(), apart.store); err != nil || len(apart.store.made()) > 0 {
			t.Errorf("where nobody shares the store: %v, %v", err, apart.store.made())
		}
		raced := newScene(t)
		raced.put(tableNodesBefore, "n", []byte(`{"beat":1,"name":"old","every_ms":2000}`))
		raced.g.older = map[string]olderNode{"n": {value: `{"beat":1,"name":"old","every_ms":2000}`, at: raced.g.now() - time.Hour}}
		raced.store.swapped = func(name string) bool { return name != rowFenceBefore }
		if err := raced.g.closeToOlder(t.Context(), raced.store); err != nil || raced.row(tableNodesBefore, "n") == "" || raced.store.excl > 0 {
			t.Errorf("where another was first: %v, its row %q", err, raced.row(tableNodesBefore, "n"))
		}
		told := newScene(t)
		told.put(driver.TableGuard, rowFormat, []byte(`{"format":3,"by":"theirs"}`))
		if err := told.g.claim(t.Context(), told.store); err != nil || told.row(driver.TableGuard, rowFormat) != `{"format":3,"by":"theirs"}` {
			t.Errorf("a store that tells its format: %v, %s", err, told.row(driver.TableGuard, rowFormat))
		}
		if err := fresh.g.claim(t.Context(), fresh.store); err != nil || !strings.Contains(fresh.row(driver.TableGuard, rowFormat), `"format":3`) {
			t.Errorf("one that does not: %v, %s", err, fresh.row(driver.TableGuard, rowFormat))
		}
	})
}

// A command refuses under a fence whatever it does, and tells those who live what it took.
func TestCommands(t *testing.T) {
	layout, err := hapax.ParseLayout("leaf")
	if err != nil {
		t.Fatal(err)
	}
	def, err := hapax.Tag{Name: "u"}.WithDefaults()
	if err != nil {
		t.Fatal(err)
	}
	lease := func(ctx context.Context, o driver.Store) (hapax.Lease, error) {
		return o.AcquireWorker(ctx, hapax.AcquireRequest{Pool: "p", Layout: layout, Workers: hapax.WorkerRange{Lo: 0, Hi: 8}, Holder: "h", Term: testTerm()})
	}
	ctx := t.Context()
	for name, f := range map[string]func(o driver.Store) error{
		"Ping":          func(o driver.Store) error { return o.Ping(ctx) },
		"CreateTag":     func(o driver.Store) error { _, err := o.CreateTag(ctx, def, hapax.CreateExplicit); return err },
		"UpdateTag":     func(o driver.Store) error { _, err := o.UpdateTag(ctx, "t", driver.TagUpdate{}); return err },
		"DeleteTag":     func(o driver.Store) error { _, err := o.DeleteTag(ctx, "t"); return err },
		"CreatePool":    func(o driver.Store) error { _, err := o.CreatePool(ctx, "q", "leaf"); return err },
		"DeletePool":    func(o driver.Store) error { _, err := o.DeletePool(ctx, "p"); return err },
		"RetireWorker":  func(o driver.Store) error { _, err := o.RetireWorker(ctx, "p", 1); return err },
		"Allocate":      func(o driver.Store) error { _, err := o.Allocate(ctx, "t", 1, ""); return err },
		"AcquireWorker": func(o driver.Store) error { _, err := lease(ctx, o); return err },
		"HandBack": func(o driver.Store) error {
			return o.HandBack(ctx, hapax.Allocation{Tag: hapax.Tag{Name: "t"}, Grant: hapax.Grant{Lo: 1, Hi: 5}}, 2)
		},
	} {
		for fenced, want := range map[bool]bool{true: true, false: false} {
			c := newScene(t)
			c.tag("t", 100)
			withPool(c)
			if fenced {
				c.fence(Fence{})
			}
			o, err := OneShot(c.store)
			if err != nil {
				t.Fatal(err)
			}
			if err := f(o); errors.Is(err, hapax.ErrFenced) != want {
				t.Errorf("%s under a fence %v: %v", name, fenced, err)
			}
		}
	}
	for name, v := range map[string]struct {
		apart, nobody bool
		raced         bool
		told          int64
	}{"beside a node": {told: 6}, "on a store of its own": {apart: true, told: 5}, "where nobody lives": {nobody: true, told: 5}, "where another counts": {raced: true, told: 5}} {
		c := newScene(t)
		c.tag("t", 100)
		withPool(c)
		c.joins(5)
		c.store.shared = !v.apart
		how := ""
		if v.nobody {
			how = "left"
		}
		c.peer(rowOf(5, "B"), "b", driver.Beat{Count: 2}, how)
		if v.raced {
			c.store.swapped = func(name string) bool { return name != driver.RowJoins }
		}
		o, err := OneShot(c.store)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := o.Allocate(ctx, "t", 1, ""); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if got := c.row(driver.TableGuard, driver.RowJoins); got != string(driver.EncodeCounter(v.told)) {
			t.Errorf("%s: joined have %s; want %d", name, got, v.told)
		}
		if row := c.row(driver.TableBeats, rowName(6, runCommands)); (row == string(driver.Beat{Count: 1, Grants: 1}.EncodeEnded("left"))) != (v.told == 6 || v.raced) {
			t.Errorf("%s: its row is %q", name, row)
		}
		if v.told == 6 {
			l, err := lease(ctx, o)
			if err == nil {
				_, err = o.ExtendWorker(ctx, l, layout, testTerm())
			}
			if got := c.row(driver.TableGuard, driver.RowJoins); err != nil || got != string(driver.EncodeCounter(8)) {
				t.Errorf("a lease and its extension: %v, joined have %s; want both told", err, got)
			}
		}
	}
	c := newScene(t)
	c.tag("t", 100)
	c.store.swapped = func(string) bool { return false }
	o, err := OneShot(c.store)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := o.Allocate(ctx, "t", 1, ""); err == nil || !strings.Contains(err.Error(), "does not stay in the store") {
		t.Errorf("whose row does not stay: %v", err)
	}
	if _, err := OneShot(struct{ driver.Store }{c.store}); !errors.Is(err, hapax.ErrNotSupported) {
		t.Errorf("on a store without rows: %v", err)
	}
	for _, clock := range []bool{true, false} {
		var s store = c.store
		if clock {
			s = timed{c.store}
		}
		o, err := OneShot(s)
		if err != nil {
			t.Fatal(err)
		}
		at, err := o.(driver.Clock).StoreTime(ctx)
		c.g.state = Serving
		h := newHandle(func(context.Context) (driver.Store, error) { return s, nil }, true)
		h.clock = c.g.opts.Clock
		c.g.calls = h
		at2, err2 := c.g.StoreTime(ctx)
		if (err == nil) != clock || (err2 == nil) != clock || clock && (at.Unix() != 77 || at2.Unix() != 77) {
			t.Errorf("the time of a store that has one %v: %v, %v, %v, %v", clock, at, err, at2, err2)
		}
	}
}

// timed is a store that tells its time.
type timed struct{ *counted }

func (timed) StoreTime(context.Context) (time.Time, error) { return time.Unix(77, 0), nil }
