package witness_test

import (
	"errors"
	"path/filepath"
	"testing"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/witness"
)

// A line of a foreign table that went back is refused, also by the next process, and the
// other lines are not.
func TestMarks(t *testing.T) {
	path := filepath.Join(t.TempDir(), "witness")
	var told []string
	warn := func(code, _ string) { told = append(told, code) }
	process := func(f func(m *witness.Marks)) {
		t.Helper()
		w, err := witness.OpenFile(path)
		if err != nil {
			t.Fatal(err)
		}
		f(witness.NewMarks(w, warn))
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
	}
	grant := func(m *witness.Marks, line string, lo, hi int64) error {
		c, err := m.Begin(line)
		if err != nil {
			return err
		}
		return c.Accept(hapax.Grant{Lo: lo, Hi: hi})
	}
	process(func(m *witness.Marks) {
		first, err := m.Begin("a")
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(grant(m, "a", 11, 21), first.Accept(hapax.Grant{Lo: 1, Hi: 11}), grant(m, "b", 1, 5)); err != nil {
			t.Errorf("two calls at a time, answered the other way round: %v", err)
		}
	})
	process(func(m *witness.Marks) {
		if err := grant(m, "a", 15, 30); !errors.Is(err, hapax.ErrStoreRolledBack) || !errors.Is(err, hapax.ErrFenced) {
			t.Errorf("below the mark: %v", err)
		}
	})
	process(func(m *witness.Marks) {
		if err := grant(m, "a", 100, 110); !errors.Is(err, hapax.ErrFenced) {
			t.Errorf("the next process: %v; want ErrFenced", err)
		}
		if err := grant(m, "b", 5, 9); err != nil {
			t.Errorf("another line: %v", err)
		}
		if err := m.Readmit(func(string) bool { return true }); err != nil {
			t.Fatal(err)
		}
	})
	process(func(m *witness.Marks) {
		if err := grant(m, "a", 100, 110); err != nil || len(m.RefusedLines()) != 0 {
			t.Errorf("readmitted: %v, refused %v", err, m.RefusedLines())
		}
	})
	if len(told) != 1 || told[0] != "fenced" {
		t.Errorf("told of %q; want one refusal", told)
	}
}
