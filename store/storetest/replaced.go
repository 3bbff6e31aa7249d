package storetest

import (
	"bytes"
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
)

// RunReplaced tries that no step writes to another store than the one that was opened: open opens
// an empty store, and replace makes another of it, whose rows are the same. That a step is refused
// is not enough: it may have been made before.
func RunReplaced(t *testing.T, open func(ctx context.Context) (Handle, error), replace func(ctx context.Context) error) {
	t.Helper()
	check{run: func(e *env) { e.checkReplaced(open, replace) }}.runOn(t, Harness{Open: func(t testing.TB) Handle {
		h, err := open(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return h
	}})
}

// checkReplaced makes steps of each form of which a driver may make a statement of its own.
func (e *env) checkReplaced(open func(ctx context.Context) (Handle, error), replace func(ctx context.Context) error) {
	k := e.kv(e.roles)
	table := k.table
	keys := map[string]driver.Key{}
	for i, of := range []string{table, ""} { // tags may lie elsewhere
		for _, name := range []string{"a", "b", "new", "newer"} {
			keys[name+strings.Repeat(" tag", i)] = driver.Key{Table: of, Name: name}
		}
	}
	keys["beat"] = driver.Key{Table: driver.TableBeats, Name: "n"}
	keys["fence"] = driver.Key{Table: driver.TableFence, Name: driver.RowFence}
	keys["joins"] = driver.Key{Table: driver.TableGuard, Name: driver.RowJoins}
	for name, key := range keys {
		if name == "fence" || name == "joins" || strings.HasPrefix(name, "new") {
			continue
		}
		if r, err := k.Step(k.ctx, driver.Step{Each: []driver.Change{{Key: key, Old: e.cellOf(k, key), Next: []byte("1")}}}); err != nil || !r.Met || !r.Each[0].Done {
			e.Fatalf("the row %s is not made: %+v, %v", name, r, err)
		}
	}
	cells := map[string]driver.Cell{}
	for name, key := range keys {
		cells[name] = e.cellOf(k, key)
	}
	change := func(name, next string) driver.Change {
		return driver.Change{Key: keys[name], Old: cells[name], Next: valueOf(next)}
	}
	beat := func(each ...driver.Change) driver.Step {
		return driver.Step{
			If:    []driver.Cond{{Key: keys["beat"], Least: []byte("1")}, {Key: keys["fence"]}},
			Raise: []driver.Put{{Key: keys["beat"], Value: []byte("2")}}, Each: each, Look: []driver.Key{keys["joins"]},
		}
	}
	steps := map[string]driver.Step{"a beat": beat()}
	for _, tag := range []string{"", " tag"} {
		one, other := change("a"+tag, "2"), change("b"+tag, "2")
		added, gone := change("new"+tag, "2"), change("b"+tag, "")
		for form, changes := range map[string][]driver.Change{
			"changed": {one}, "added": {added}, "removed": {gone}, "left as it is": {change("a"+tag, "1")},
			"two changed": {one, other}, "two added": {added, change("newer"+tag, "2")}, "one of each": {one, added, gone},
		} {
			form += tag
			steps[form] = driver.Step{Each: changes}
			steps[form+" together"] = driver.Step{Then: changes}
			steps[form+" with a beat"] = beat(changes...)
			steps[form+" while there is no fence"] = driver.Step{If: []driver.Cond{{Key: keys["fence"], Same: cells["fence"]}}, Each: changes}
			steps[form+" while a row is the same"] = driver.Step{If: []driver.Cond{{Key: keys["beat"], Same: cells["beat"]}}, Then: changes}
			both := beat()
			both.Then = changes
			steps[form+" together with a beat"] = both
		}
	}
	for name, to := range map[string]string{"a": "2", "new": "2"} {
		steps["raise of "+name] = driver.Step{Raise: []driver.Put{{Key: keys[name], Value: []byte(to)}}}
	}
	e.must(replace(k.ctx))
	h, err := open(k.ctx)
	e.must(err)
	now := e.kv(e.adopted(h))
	for form, step := range steps {
		r, err := k.Step(k.ctx, step)
		e.refused(form, r, err)
		e.unchanged(form, now, keys, cells)
		if kv, ok := k.KV.(driver.LockingKV); ok {
			var locked []driver.Key
			for _, c := range slices.Concat(step.Then, step.Each) {
				locked = append(locked, c.Key)
			}
			if len(locked) == 0 {
				continue
			}
			r, err := kv.StepLocked(k.ctx, locked, func([]driver.Cell) (driver.Step, error) { return step, nil })
			e.refused(form+", locked", r, err)
			e.unchanged(form+", locked", now, keys, cells)
		}
	}
}

// refused reports a step that says that it did something. A lone change may be told as refused like
// one whose row has changed; the row is then read, which finds the other store.
func (e *env) refused(what string, r driver.Result, err error) {
	e.Helper()
	done := slices.ContainsFunc(slices.Concat(r.Then, r.Each), func(o driver.Outcome) bool { return o.Done || o.Now.Known })
	if err == nil && len(r.Each) == 1 && !done {
		return
	}
	e.wantErr(what, err, hapax.ErrStoreReplaced)
}

// cellOf reads a row.
func (e *env) cellOf(k kv, key driver.Key) driver.Cell {
	e.Helper()
	cells, err := k.Get(k.ctx, driver.Current, key)
	e.must(err)
	return cells[0]
}

// unchanged reports rows that have other values than before.
func (e *env) unchanged(what string, k kv, keys map[string]driver.Key, before map[string]driver.Cell) {
	e.Helper()
	for name, key := range keys {
		if got := e.cellOf(k, key).Value; !bytes.Equal(got, before[name].Value) {
			e.Fatalf("%s: the row %s of another store is %q; it was %q", what, name, got, before[name].Value)
		}
	}
}
