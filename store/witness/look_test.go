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
		got, err := LookAt(t.Context(), c.store, filepath.Join(t.TempDir(), "none"))
		if err != nil {
			t.Fatal(err)
		}
		if got.Format != 3 || got.By != "1.2.3" || !slices.Equal(got.Nodes, []string{"me", "c"}) || got.Fence != f.text() || got.Behind != nil {
			t.Errorf("it tells %+v", got)
		}
		for _, call := range c.store.made() {
			if strings.HasPrefix(call, "swap") || strings.HasPrefix(call, "heal") || call == "beat" {
				t.Errorf("it wrote: %s", call)
			}
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
		if l, err := LookAt(t.Context(), newScene(t).store, "none"); err != nil || l.Format != 0 {
			t.Errorf("at an empty store: %+v, %v", l, err)
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
		"a row is behind":           {func(c *scene, r *record) { r.Own[c.g.me.row] = own{Count: 10} }, hapax.ErrStoreRolledBack},
		"... and a decision is new": {func(c *scene, r *record) { r.Own[c.g.me.row] = own{Count: 10}; c.decided(1, nil) }, nil},
		"a refusal stands":          {func(c *scene, r *record) { r.Latch = &latch{State: Fenced, Why: "x"} }, hapax.ErrFenced},
		"its store is retired":      {func(c *scene, r *record) { c.latchesRetired(r) }, hapax.ErrStoreRetired},
		"... and this is the copy": {func(c *scene, r *record) {
			c.put(driver.TableGuard, driver.RowCopied("C"), driver.EncodeRow(c.latchesRetired(r)))
		}, nil},
		"a line is behind": {func(c *scene, r *record) { r.Lines = map[string]Pair{"tag/t": {0, 101}} }, hapax.ErrStoreRolledBack},
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

// latchesRetired has a witness know that the scene's store was retired.
func (c *scene) latchesRetired(r *record) driver.Retirement {
	c.t.Helper()
	gone := c.retirement("C", 0)
	r.Latch = &latch{State: Refusing, Retired: &gone}
	return gone
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
	if l := look(); l != (LookedFile{kindSnapshot, "s", true}) {
		t.Errorf("while it is used: %+v", l)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if l := look(); l != (LookedFile{kindSnapshot, "s", false}) {
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

// A store that tells no format is told this one, with the row of the first process.
func TestTellsTheFormat(t *testing.T) {
	told := newScene(t)
	told.put(driver.TableGuard, rowFormat, []byte(`{"format":3,"by":"theirs"}`))
	if _, err := told.g.register(t.Context(), told.store); err != nil || told.row(driver.TableGuard, rowFormat) != `{"format":3,"by":"theirs"}` {
		t.Errorf("a store that tells its format: %v, %s", err, told.row(driver.TableGuard, rowFormat))
	}
	fresh := newScene(t)
	if _, err := fresh.g.register(t.Context(), fresh.store); err != nil || !strings.Contains(fresh.row(driver.TableGuard, rowFormat), `"format":3`) {
		t.Errorf("one that does not: %v, %s", err, fresh.row(driver.TableGuard, rowFormat))
	}
	other := newScene(t)
	other.put(driver.TableGuard, rowFormat, []byte(`{"format":2,"by":"theirs"}`))
	if _, err := other.g.register(t.Context(), other.store); !errors.Is(err, hapax.ErrStoreCorrupt) || other.row(driver.TableGuard, driver.RowJoins) != "" {
		t.Errorf("one that tells another: %v; %q have joined", err, other.row(driver.TableGuard, driver.RowJoins))
	}
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
			return o.HandBack(ctx, hapax.Allocation{Tag: hapax.Tag{Name: "t"}, Grant: hapax.Grant{Lo: 1, Hi: 5}, Key: "k"}, 2)
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
