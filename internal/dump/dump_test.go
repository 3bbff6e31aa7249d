package dump

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/patience"
	"github.com/hapax-id/hapax/store/boltstore"
	"github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/store/memstore"
	"github.com/hapax-id/hapax/store/witness"
)

// filled returns a store with tags, a tombstone, a pool and a worker.
func filled(t *testing.T, s Store) Store {
	t.Helper()
	for i := range 250 { // more than a page, and than a step
		if _, err := s.CreateTag(t.Context(), hapax.Tag{Name: fmt.Sprintf("tag %03d, \"ü\"<&", i), Kind: hapax.KindSegment}, hapax.CreateExplicit); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Allocate(t.Context(), "tag 001, \"ü\"<&", 1000, ""); err != nil {
		t.Fatal(err)
	}
	if _, err := s.DeleteTag(t.Context(), "tag 001, \"ü\"<&"); err != nil {
		t.Fatal(err)
	}
	layout, err := hapax.ParseLayout(hapax.LayoutLeaf)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.CreatePool(t.Context(), "events", layout.String()); err != nil {
		t.Fatal(err)
	}
	table, name, value := driver.RowOfWorker(driver.Worker{Pool: "events", ID: 3, Mark: 7, Token: 2})
	if _, err := s.SwapRow(t.Context(), table, name, nil, value); err != nil {
		t.Fatal(err)
	}
	if _, err := s.SwapRow(t.Context(), driver.TableGuard, driver.RowJoins, nil, driver.EncodeCounter(4)); err != nil {
		t.Fatal(err)
	}
	return s
}

func dumped(t *testing.T, s Store) string {
	t.Helper()
	var text bytes.Buffer
	if _, err := Write(t.Context(), s, &text); err != nil {
		t.Fatal(err)
	}
	return text.String()
}

// load is what the command does with a file.
func load(ctx context.Context, to *spot, text string, asNew bool) error {
	head, sum, err := Check(strings.NewReader(text))
	if err != nil {
		return err
	}
	_, err = Load(ctx, to.place("there"), strings.NewReader(text), head, sum, asNew)
	return err
}

// rows are the lines of a dump between header and end.
func rows(text string) string {
	_, text, _ = strings.Cut(text, "\n")
	text, _, _ = strings.Cut(text, `{"end":`)
	return text
}

func TestLoadedRowsAreThoseDumped(t *testing.T) {
	text := dumped(t, filled(t, inMemory()))
	copied := new(spot)
	if err := load(t.Context(), copied, text, false); err != nil {
		t.Fatal(err)
	}
	if got := dumped(t, copied.open(t)); rows(got) != rows(text) || strings.Count(rows(text), "\n") != 253 {
		t.Errorf("the dump of the copy has other rows:\n%s\nwant\n%s", got, text)
	}
	if err := load(t.Context(), copied, text, false); !errors.Is(err, hapax.ErrInvalidArgument) || !strings.Contains(err.Error(), "rows in guard, pools, tags") {
		t.Errorf("load into a store in use: %v", err)
	}
	fresh := new(spot)
	if err := load(t.Context(), fresh, text, true); err != nil {
		t.Fatal(err)
	}
	if raw, err := fresh.open(t).Row(t.Context(), driver.TableGuard, driver.RowJoins); raw != nil || err != nil {
		t.Errorf("a new store has the joins of the original: %q, %v", raw, err)
	}
	if fresh.id == copied.id {
		t.Error("a new store has the identity of the original")
	}
}

// What a command leaves that only looked for a number is no use of a store.
func TestLoadsWhereACommandWas(t *testing.T) {
	text := dumped(t, filled(t, inMemory()))
	for _, asNew := range []bool{true, false} {
		there := &spot{store: memstore.New(), id: "another"}
		shot, err := witness.OneShot(there.store)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := shot.Allocate(t.Context(), "none", 1, ""); !errors.Is(err, hapax.ErrTagNotFound) {
			t.Fatal(err)
		}
		switch err := load(t.Context(), there, text, asNew); {
		case asNew && err != nil:
			t.Errorf("as a new store: %v", err)
		case !asNew && (!errors.Is(err, hapax.ErrInvalidArgument) || !strings.Contains(err.Error(), "store another, without rows")):
			t.Errorf("in the place of another store: %v", err)
		}
	}
}

// A load is killed at each of its calls, before it is made and after. Nobody is granted anything until another
// one has ended.
func TestLoadKilledAnywhere(t *testing.T) {
	text := dumped(t, filled(t, inMemory()))
	for _, asNew := range []bool{false, true} {
		for at, over := 1, false; !over; at++ {
			for _, after := range []bool{false, true} {
				to := new(spot)
				to.kill = &killer{at: at, after: after, each: func() { // others try to use it meanwhile
					if n, err := to.take(context.Background()); err == nil {
						t.Errorf("at %d: %d is granted while the load goes on", at, n)
					}
				}}
				err := load(t.Context(), to, text, asNew)
				over = err == nil
				if to.kill = nil; !over && !errors.Is(err, errKilled) {
					t.Fatalf("at %d, after it %t: %v", at, after, err)
				}
				serves := to.grant(t) == nil
				if err := load(t.Context(), to, text, asNew); err != nil && !serves {
					t.Fatalf("at %d, after it %t, again: %v", at, after, err)
				}
				if serves && !over && !after {
					t.Errorf("at %d: granted before the load was over", at)
				}
				if got := dumped(t, to.open(t)); !asNew && !serves && rows(got) != rows(text) {
					t.Errorf("at %d, after it %t: other rows", at, after)
				}
				if err := to.grant(t); err != nil {
					t.Errorf("at %d, after it %t: %v", at, after, err)
				}
			}
		}
	}
}

// The fence of a dump stands in the store that is made of it, wherever an attempt was killed.
func TestLoadKeepsTheFence(t *testing.T) {
	from := filled(t, inMemory())
	fence := []byte(`{"id":"F","node":"n","row":"","at":"2026-01-01T00:00:00Z","why":"a test","code":"store_rolled_back"}`)
	if ok, err := from.SwapRow(t.Context(), driver.TableFence, driver.RowFence, nil, fence); err != nil || !ok {
		t.Fatal(ok, err)
	}
	text := dumped(t, from)
	for at, over := 1, false; !over; at++ {
		for _, after := range []bool{false, true} {
			to := &spot{kill: &killer{at: at, after: after}}
			over = load(t.Context(), to, text, false) == nil
			to.kill = nil
			_ = load(t.Context(), to, text, false) // refused where the first one was over
			if raw, err := to.store.Row(t.Context(), driver.TableFence, driver.RowFence); err != nil || string(raw) != string(fence) {
				t.Errorf("at %d, after it %t: the fence is %q, %v", at, after, raw, err)
			}
		}
	}
}

func TestHostileDumpsAreRefused(t *testing.T) {
	text := dumped(t, filled(t, inMemory()))
	lines := strings.SplitAfter(text, "\n")
	for name, c := range map[string]struct{ text, want string }{
		"empty":           {"", "line 1 of the dump is missing"},
		"something else":  {"{}\n", "not the header"},
		"another format":  {strings.Replace(text, `"hapax_dump":1`, `"hapax_dump":2`, 1), "says format 2"},
		"no end":          {strings.Join(lines[:len(lines)-2], ""), "cut off"},
		"a row less":      {strings.Join(append(lines[:5:5], lines[6:]...), ""), "not whole"},
		"a row twice":     {strings.Join(append(lines[:5:5], lines[4:]...), ""), "twice"},
		"a changed mark":  {strings.Replace(text, `\"mark\":7`, `\"mark\":8`, 1), "checksum"},
		"a wrong tag":     {strings.Replace(text, `{\"kind\":\"segment\"`, `{\"kind\":\"sigment\"`, 1), "line"},
		"another table":   {strings.Replace(text, `"table":"guard"`, `"table":"guards"`, 1), "no table"},
		"a wrong store":   {strings.Replace(text, `"store":"`, `"store":"../`, 1), "identity is"},
		"a field too":     {strings.Replace(text, `{"table"`, `{"x":1,"table"`, 1), "unknown field"},
		"a line too long": {lines[0] + strings.Repeat("x", maxLine+1), "longer than"},
		"after the end":   {text + "{}\n", "follows the end"},
	} {
		if c.text == text {
			t.Errorf("%s: nothing was changed", name)
		}
		s := new(spot)
		err := load(t.Context(), s, c.text, false)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
		if s.store != nil {
			t.Errorf("%s: a store was made", name)
		}
	}
}

// granted starts a node, and returns what it is granted.
func granted(t *testing.T, path, file string) hapax.Grant {
	t.Helper()
	s, err := boltstore.Open(t.Context(), path, boltstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	w, err := witness.OpenFile(file)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	g, err := witness.Guard(s, w, witness.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	var a hapax.Allocation
	patience.Until(t, "a grant", func() bool {
		a, err = g.Allocate(t.Context(), "orders", 100, "")
		return err == nil
	})
	return a.Grant
}

func TestNodesFindThatALoadedStoreIsOlder(t *testing.T) {
	dir := t.TempDir()
	from, file := filepath.Join(dir, "from"), filepath.Join(dir, "witness")
	s, err := boltstore.Open(t.Context(), from, boltstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.CreateTag(t.Context(), hapax.Tag{Name: "orders", Kind: hapax.KindSegment}, hapax.CreateExplicit); err != nil {
		t.Fatal(err)
	}
	s.Close()
	granted(t, from, file)
	if s, err = boltstore.Open(t.Context(), from, boltstore.Options{Look: true}); err != nil {
		t.Fatal(err)
	}
	text := dumped(t, s)
	s.Close()
	last := granted(t, from, file) // the dump lacks it
	for _, c := range []struct {
		witness string
		repeats bool
	}{{"without one", true}, {"witness", false}} { // a node that knows nothing shows that the dump is older
		to := filepath.Join(dir, "to "+c.witness)
		head, _, err := Check(strings.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		_, sum, err := Check(strings.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		if id, err := Load(t.Context(), boltAt(to), strings.NewReader(text), head, sum, false); id != head.Store || err != nil {
			t.Fatalf("the store is %q, %v, want %q", id, err, head.Store)
		}
		if got := granted(t, to, filepath.Join(dir, c.witness)); got.Lo < last.Hi != c.repeats {
			t.Errorf("%s: granted %v after %v, repeats should be %v", c.witness, got, last, c.repeats)
		}
	}
}
