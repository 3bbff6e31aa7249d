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
func load(ctx context.Context, s Store, text string, linesOnly bool) error {
	_, sum, err := Check(strings.NewReader(text))
	if err != nil {
		return err
	}
	return Load(ctx, s, strings.NewReader(text), sum, linesOnly)
}

// rows are the lines of a dump between header and end.
func rows(text string) string {
	_, text, _ = strings.Cut(text, "\n")
	text, _, _ = strings.Cut(text, `{"end":`)
	return text
}

func TestLoadedRowsAreThoseDumped(t *testing.T) {
	text := dumped(t, filled(t, memstore.New()))
	copied := memstore.New()
	if err := load(t.Context(), copied, text, false); err != nil {
		t.Fatal(err)
	}
	if got := dumped(t, copied); rows(got) != rows(text) || strings.Count(rows(text), "\n") != 253 {
		t.Errorf("the dump of the copy has other rows:\n%s\nwant\n%s", got, text)
	}
	if err := load(t.Context(), copied, text, false); !errors.Is(err, hapax.ErrInvalidArgument) || !strings.Contains(err.Error(), "rows in guard, pools, tags") {
		t.Errorf("load into a store in use: %v", err)
	}
	fresh := memstore.New()
	if err := load(t.Context(), fresh, text, true); err != nil {
		t.Fatal(err)
	}
	if raw, err := fresh.Row(t.Context(), driver.TableGuard, driver.RowJoins); raw != nil || err != nil {
		t.Errorf("a new store has the joins of the original: %q, %v", raw, err)
	}
}

// brokenOff restores some rows, and then none.
type brokenOff struct {
	Store
	left int
}

var errBrokenOff = errors.New("broken off")

func (b *brokenOff) LoadRows(ctx context.Context, rows []driver.Put) error {
	if b.left--; b.left < 0 {
		return errBrokenOff
	}
	return b.Store.LoadRows(ctx, rows)
}

func TestHalfALoadGrantsNothingAndGoesOn(t *testing.T) {
	text := dumped(t, filled(t, memstore.New()))
	for left := range 3 {
		s := memstore.New()
		if err := load(t.Context(), &brokenOff{s, left}, text, false); !errors.Is(err, errBrokenOff) {
			t.Fatalf("after %d pages: %v", left, err)
		}
		shot, err := witness.OneShot(s)
		if err != nil {
			t.Fatal(err)
		}
		if a, err := shot.Allocate(t.Context(), "tag 000, \"ü\"<&", 10, ""); !errors.Is(err, hapax.ErrStoreUnavailable) || !strings.Contains(err.Error(), "a dump is being loaded") {
			t.Errorf("after %d pages a grant: %v, %v", left, a, err)
		}
		if err := load(t.Context(), s, text, false); err != nil {
			t.Fatalf("after %d pages, again: %v", left, err)
		}
		if got := dumped(t, s); rows(got) != rows(text) {
			t.Errorf("after %d pages and again, the copy has other rows", left)
		}
		if _, err := shot.Allocate(t.Context(), "tag 000, \"ü\"<&", 10, ""); err != nil {
			t.Errorf("after the load: %v", err)
		}
	}
}

func TestHostileDumpsAreRefused(t *testing.T) {
	text := dumped(t, filled(t, memstore.New()))
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
		s := memstore.New()
		err := load(t.Context(), s, c.text, false)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
		if got := rows(dumped(t, s)); got != "" {
			t.Errorf("%s: written: %s", name, got)
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
		s, err := boltstore.Open(driver.WithStoreID(t.Context(), head.Store), to, boltstore.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if id, err := s.StoreID(t.Context()); id != head.Store || err != nil {
			t.Fatalf("the store is %q, %v, want %q", id, err, head.Store)
		}
		if err := load(t.Context(), s, text, false); err != nil {
			t.Fatal(err)
		}
		s.Close()
		if got := granted(t, to, filepath.Join(dir, c.witness)); got.Lo < last.Hi != c.repeats {
			t.Errorf("%s: granted %v after %v, repeats should be %v", c.witness, got, last, c.repeats)
		}
	}
}
