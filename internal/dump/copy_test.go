package dump

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/store/memstore"
	"github.com/hapax-id/hapax/store/witness"
)

// A removal is a copy between two places in memory, while others go on to take numbers at both.
type removal struct {
	t        *testing.T
	from, to *spot
	given    map[int64]string // the numbers that were granted, and where
	wrong    []string

	take func(*spot) (int64, error) // a grant from FROM; nil: as a command does
}

func newRemoval(t *testing.T) *removal {
	t.Helper()
	r := &removal{t: t, from: &spot{store: memstore.New(), id: "FROM"}, to: new(spot), given: map[int64]string{}}
	filled(t, &opened{r.from.store, r.from})
	return r
}

// grants takes a number at both places.
func (r *removal) grants() {
	served := 0
	for name, s := range map[string]*spot{"from": r.from, "to": r.to} {
		take := func(s *spot) (int64, error) { return s.take(context.Background()) }
		if r.take != nil && s == r.from {
			take = r.take
		}
		n, err := take(s)
		if err != nil {
			continue
		}
		served++
		if was, ok := r.given[n]; ok {
			r.wrong = append(r.wrong, fmt.Sprintf("%d was granted in %s, and in %s", n, was, name))
		}
		r.given[n] = name
	}
	if served == 2 {
		r.wrong = append(r.wrong, "both stores serve")
	}
}

// copy makes a copy that is killed.
func (r *removal) copy(k killer) error {
	k.each = r.grants
	r.from.kill, r.to.kill = &k, &k
	retired, whole := false, false
	tell := func(text string) {
		retired = retired || strings.Contains(text, "is retired")
		whole = whole || strings.Contains(text, "was copied")
	}
	_, err := Copy(context.Background(), r.from.place("from"), r.to.place("to"), CopyOptions{Tell: tell})
	if err != nil && retired && !whole && !strings.Contains(err.Error(), "run the same command again") {
		r.wrong = append(r.wrong, fmt.Sprintf("a copy that broke off does not say what to do: %v", err))
	}
	r.from.kill, r.to.kill = nil, nil
	r.grants()
	return err
}

// moved copies, and again after that was killed, and says what is wrong.
func (r *removal) moved(k killer) (over bool, wrong []string) {
	err := r.copy(k)
	if over = err == nil; !over && !errors.Is(err, errKilled) {
		r.wrong = append(r.wrong, fmt.Sprintf("it ends with %v", err))
	}
	for range 2 { // and once more: nothing is left to do
		if err := r.copy(killer{}); err != nil {
			r.wrong = append(r.wrong, fmt.Sprintf("again: %v", err))
		}
	}
	if _, err := r.from.take(context.Background()); !errors.Is(err, hapax.ErrStoreRetired) || !strings.Contains(err.Error(), "copied to to") {
		r.wrong = append(r.wrong, fmt.Sprintf("from is not retired: %v", err))
	}
	before := slices.Max(slices.AppendSeq([]int64{0}, maps.Keys(r.given)))
	if n, err := r.to.take(context.Background()); err != nil || n <= before {
		r.wrong = append(r.wrong, fmt.Sprintf("to goes on at %d after %d, %v", n, before, err))
	}
	if id := r.to.id; id != r.from.id {
		r.wrong = append(r.wrong, "to is "+id)
	}
	return over, append(r.wrong, r.differ()...)
}

// differ compares the rows that no grant has changed since.
func (r *removal) differ() (wrong []string) {
	for _, table := range append(driver.CopyTables()[1:], driver.TableOfWorkers("events")) {
		have := map[string]string{}
		for row, err := range rowsOf(r.t.Context(), &opened{r.to.store, r.to}, table) {
			if err != nil {
				return []string{err.Error()}
			}
			have[row.Name] = string(row.Value)
		}
		for row, err := range rowsOf(r.t.Context(), &opened{r.from.store, r.from}, table) {
			if err != nil || row.Name != theTag && have[row.Name] != string(row.Value) {
				wrong = append(wrong, fmt.Sprintf("row %q of %q is %q, %v", row.Name, table, have[row.Name], err))
			}
		}
	}
	return wrong
}

// A copy is killed at each of its calls on both stores, before that is made and after, while numbers
// are taken between any two. Made again, it ends: no number comes twice, no row is lost, and never do both serve.
func TestCopyKilledAnywhere(t *testing.T) {
	points := 0
	for at, over := 1, false; !over; at++ {
		for _, after := range []bool{false, true} {
			var wrong []string
			if over, wrong = newRemoval(t).moved(killer{at: at, after: after}); len(wrong) > 0 {
				t.Fatalf("killed at call %d, after it: %t: %s", at, after, strings.Join(wrong, "; "))
			}
			points++
		}
	}
	if points < 40 {
		t.Errorf("it was killed at %d points", points)
	}
}

// Broken copies, and broken grants, each of which the same test catches.
func TestCopyCatchesBroken(t *testing.T) {
	caught := func(name string, of func(r *removal)) bool {
		for at := 1; at < 60; at++ {
			r := newRemoval(t)
			of(r)
			if _, wrong := r.moved(killer{at: at}); len(wrong) > 0 {
				t.Logf("%s: caught at %d: %.300s", name, at, strings.Join(wrong, "; "))
				return true
			}
		}
		return false
	}
	for name, of := range map[string]func(r *removal){
		"a grant that ignores the fence": func(r *removal) {
			r.take = func(s *spot) (int64, error) { return ignorant(s.store).take() }
		},
		"TO is opened before its rows are there": func(r *removal) {
			r.to.wrap = func(o *opened) Store { return &early{o} }
		},
		"FROM is retired after its rows were read": func(r *removal) {
			r.from.wrap = func(o *opened) Store { return &late{opened: o} }
		},
		"a retirement that does not last": func(r *removal) {
			r.from.wrap = func(o *opened) Store { return &forgetful{o} }
		},
	} {
		if !caught(name, of) {
			t.Errorf("%s: not caught", name)
		}
	}
	if caught("whole", func(*removal) {}) {
		t.Error("the whole one is caught, too")
	}
}

// An unfenced KV makes steps whatever fence stands.
type unfenced struct{ driver.KV }

func (u unfenced) Step(ctx context.Context, step driver.Step) (driver.Result, error) {
	step.If = slices.DeleteFunc(slices.Clone(step.If), func(c driver.Cond) bool { return c.Key.Table == driver.TableFence })
	return u.KV.Step(ctx, step)
}

type granter struct{ *driver.Base }

func ignorant(s *memstore.Store) granter {
	return granter{driver.NewBase(&driver.Calls{Service: "memory"}, unfenced{s.KV()}, driver.BaseOptions{})}
}

func (g granter) take() (int64, error) {
	a, err := g.Allocate(context.Background(), theTag, 1, "")
	return a.Grant.Lo, err
}

// An early store is open as soon as it is filled.
type early struct{ *opened }

func (e *early) LoadRows(ctx context.Context, closed []byte, rows []driver.Put, over bool) error {
	fence := driver.Key{Table: driver.TableFence, Name: driver.RowFence}
	if err := e.OpenToAll(ctx); err != nil {
		return err
	}
	step := driver.Step{Each: []driver.Change{{Key: fence, Old: driver.Cell{Known: true, Value: closed}}}}
	for _, row := range rows {
		step.Each = append(step.Each, driver.Change{Key: row.Key, Old: driver.Cell{Known: true}, Next: row.Value})
	}
	if _, err := e.KV().Step(ctx, step); err != nil {
		return err
	}
	_, err := e.spot.take(ctx) // somebody uses it
	if err == nil {
		e.spot.kill.each()
	}
	return ctx.Err()
}

// A late store is retired once it is closed.
type late struct {
	*opened
	old, next []byte
}

func (l *late) SwapRow(ctx context.Context, table, name string, old, next []byte) (bool, error) {
	l.old, l.next = old, next
	return true, ctx.Err()
}

func (l *late) Close() error {
	if l.next != nil {
		_, err := l.opened.SwapRow(context.Background(), driver.TableFence, driver.RowFence, l.old, l.next)
		return err
	}
	return nil
}

// A forgetful store is as it was once it was copied.
type forgetful struct{ *opened }

func (f *forgetful) Close() error {
	raw, err := f.Row(context.Background(), driver.TableFence, driver.RowFence)
	if err == nil && raw != nil {
		_, err = f.opened.SwapRow(context.Background(), driver.TableFence, driver.RowFence, raw, nil)
	}
	return err
}

// What cannot be copied, or not to there, is refused, and both places are as they were.
func TestCopyRefuses(t *testing.T) {
	fence := `{"id":"F","node":"n","row":"","at":"2026-01-01T00:00:00Z","why":"a test","code":"store_rolled_back"}`
	put := func(s *spot, table, name, value string) {
		if ok, err := s.store.SwapRow(t.Context(), table, name, nil, []byte(value)); err != nil || !ok {
			t.Fatal(ok, err)
		}
	}
	for name, c := range map[string]struct {
		change func(r *removal)
		want   string
		code   error
	}{
		"another store":      {func(r *removal) { *r.to = spot{store: filledSpot(t).store, id: "OTHER"} }, "store OTHER, with rows in guard, pools, tags", hapax.ErrInvalidArgument},
		"an empty store":     {func(r *removal) { *r.to = spot{store: memstore.New(), id: "OTHER"} }, "store OTHER, without rows", hapax.ErrInvalidArgument},
		"the same store":     {func(r *removal) { *r.to = *r.from }, "the same store", hapax.ErrInvalidArgument},
		"being filled":       {func(r *removal) { *r.to = spot{store: memstore.New(), id: "FROM", closed: "a dump is being loaded"} }, "another store is being made", hapax.ErrInvalidArgument},
		"of another copy":    {func(r *removal) { *r.to = spot{store: memstore.New(), id: "X", closed: copying("X", "N")} }, "another store is being made", hapax.ErrInvalidArgument},
		"a fence in FROM":    {func(r *removal) { put(r.from, driver.TableFence, driver.RowFence, fence) }, "cannot be copied before that is over", hapax.ErrFenced},
		"FROM is being made": {func(r *removal) { r.from.closed = "a dump is being loaded" }, "a dump is being loaded", hapax.ErrStoreUnavailable},
		"FROM of the future": {func(r *removal) { put(r.from, driver.TableGuard, "format", `{"format":99,"by":"9.9"}`) }, "format 99", hapax.ErrStoreCorrupt},
		"TO is retired": {func(r *removal) {
			*r.to = *filledSpot(t)
			put(r.to, driver.TableFence, driver.RowFence, string(driver.Retirement{Copy: "N", Store: "X", To: "redis://there"}.Encode()))
		}, "redis://there", hapax.ErrStoreRetired},
		"FROM went elsewhere": {func(r *removal) {
			put(r.from, driver.TableFence, driver.RowFence, string(driver.Retirement{Copy: "N", Store: "FROM", To: "redis://there"}.Encode()))
		}, "redis://there", hapax.ErrStoreRetired},
	} {
		r := newRemoval(t)
		c.change(r)
		from, to := state(t, r.from), state(t, r.to)
		_, err := Copy(t.Context(), r.from.place("from"), r.to.place("to"), CopyOptions{Tell: func(string) {}})
		if !errors.Is(err, c.code) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
		if state(t, r.from) != from || state(t, r.to) != to {
			t.Errorf("%s: something was written", name)
		}
	}
}

func filledSpot(t *testing.T) *spot {
	s := &spot{store: memstore.New(), id: "OTHER"}
	filled(t, &opened{s.store, s})
	return s
}

// state is all that stands at a place.
func state(t *testing.T, s *spot) string {
	t.Helper()
	if s.store == nil {
		return "none"
	}
	return s.id + s.closed + rows(dumped(t, &opened{s.store, s}))
}

// Two copies to two places: one of them retires the store, and the other says where it went. An operator can say
// that the first one is gone.
func TestCopyToTwoPlaces(t *testing.T) {
	r := newRemoval(t)
	for at := 1; ; at++ { // until it is retired
		if err := r.copy(killer{at: at}); !errors.Is(err, errKilled) {
			t.Fatalf("at %d: %v", at, err)
		}
		if _, err := r.from.take(t.Context()); errors.Is(err, hapax.ErrStoreRetired) {
			break
		}
	}
	first := r.to
	r.to = new(spot)
	if err := r.copy(killer{}); !errors.Is(err, hapax.ErrStoreRetired) || !strings.Contains(err.Error(), "--anew") || r.to.store != nil {
		t.Errorf("a second copy: %v", err)
	}
	_, err := Copy(t.Context(), r.from.place("from"), r.to.place("second"), CopyOptions{Anew: true, Tell: func(string) {}})
	if err != nil {
		t.Fatal(err)
	}
	second := r.to
	r.to = first
	if err := r.copy(killer{}); !errors.Is(err, hapax.ErrStoreRetired) || !strings.Contains(err.Error(), "copied to second") {
		t.Errorf("the first one again: %v", err)
	}
	raw, err := r.from.store.Row(t.Context(), driver.TableFence, driver.RowFence)
	if gone := driver.RetirementIn(raw); err != nil || gone == nil || len(gone.Former) != 1 {
		t.Fatalf("it is retired with %+v, %v", gone, err)
	} else {
		for _, number := range append(gone.Former, gone.Copy) { // nodes that have seen the first go on, too
			if raw, err := second.store.Row(t.Context(), driver.TableGuard, driver.RowCopied(number)); raw == nil || err != nil {
				t.Errorf("the copy does not say that it is %s: %v", number, err)
			}
		}
	}
	if first.closed == "" {
		t.Error("the first one is open")
	}
	if _, err := second.take(t.Context()); err != nil {
		t.Error(err)
	}
}

// Changes under no heartbeat are made before a store is retired, or not at all.
func TestNothingChangesInARetiredStore(t *testing.T) {
	r := newRemoval(t)
	if err := r.copy(killer{}); err != nil {
		t.Fatal(err)
	}
	s := r.from.store
	before := state(t, r.from)
	step := int64(7)
	layout, err := hapax.ParseLayout(hapax.LayoutLeaf)
	if err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func() error{
		"create": func() error {
			_, err := s.CreateTag(t.Context(), hapax.Tag{Name: "new", Kind: hapax.KindSegment}, hapax.CreateExplicit)
			return err
		},
		"first use": func() error {
			_, err := s.CreateTag(t.Context(), hapax.Tag{Name: "new", Kind: hapax.KindSegment}, hapax.CreateFirstUse)
			return err
		},
		"allocate": func() error { _, err := s.Allocate(t.Context(), theTag, 1, ""); return err },
		"update":   func() error { _, err := s.UpdateTag(t.Context(), theTag, driver.TagUpdate{Step: &step}); return err },
		"delete":   func() error { _, err := s.DeleteTag(t.Context(), theTag); return err },
		"raise":    func() error { _, err := s.RaiseTag(t.Context(), theTag, 1e6); return err },
		"heal": func() error {
			_, err := s.HealTag(t.Context(), hapax.Tag{Name: theTag, Kind: hapax.KindSegment, Step: 1, MinStep: 1, MaxStep: 1, Mark: 1e6})
			return err
		},
		"create a pool": func() error { _, err := s.CreatePool(t.Context(), "more", layout.String()); return err },
		"delete a pool": func() error { _, err := s.DeletePool(t.Context(), "events"); return err },
		"retire":        func() error { _, err := s.RetireWorker(t.Context(), "events", 3); return err },
	} {
		if err := change(); !errors.Is(err, hapax.ErrStoreRetired) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if shot, err := witness.OneShot(s); err != nil {
		t.Error(err)
	} else if _, err := shot.CreateTag(t.Context(), hapax.Tag{Name: "new", Kind: hapax.KindSegment}, hapax.CreateExplicit); !errors.Is(err, hapax.ErrStoreRetired) {
		t.Errorf("a command creates: %v", err)
	}
	if state(t, r.from) != before {
		t.Error("something was changed")
	}
}
