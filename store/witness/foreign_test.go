package witness_test

import (
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"strings"
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

// Without a witness marks last as long as the process: a line that is behind is told to its caller, and refused to
// nobody.
func TestMarksInMemory(t *testing.T) {
	m := witness.NewMarks(nil, func(code, message string) { t.Errorf("it warns: %s, %s", code, message) })
	first, err := m.Begin("a")
	if err != nil || m.Durable() {
		t.Fatal(m.Durable(), err)
	}
	second, err := m.Begin("a")
	if err == nil {
		err = errors.Join(second.Accept(hapax.Grant{Lo: 11, Hi: 21}), first.Accept(hapax.Grant{Lo: 1, Hi: 11}))
	}
	if err != nil {
		t.Fatalf("two calls at a time, answered the other way round: %v", err)
	}
	mark, known := m.Mark("a")
	if _, other := m.Mark("b"); mark != 21 || !known || other || !maps.Equal(m.Lines(), map[string]int64{"a": 21}) {
		t.Errorf("it knows %v, the mark of a is %d, %v, and one of b %v", m.Lines(), mark, known, other)
	}
	third, err := m.Begin("a")
	if err != nil || third.Since != 21 {
		t.Fatalf("since %d, %v", third.Since, err)
	}
	if err := third.Accept(hapax.Grant{Lo: 20, Hi: 30}); !errors.Is(err, hapax.ErrStoreRolledBack) || errors.Is(err, hapax.ErrFenced) {
		t.Errorf("below the mark: %v; want no fence", err)
	}
	if err := errors.Join(m.Refused("a"), m.Readmit(func(string) bool { return true })); err != nil || m.RefusedLines() != nil {
		t.Errorf("refused are %v, %v", m.RefusedLines(), err)
	}
	if fourth, err := m.Begin("a"); err != nil || fourth.Accept(hapax.Grant{Lo: 21, Hi: 22}) != nil {
		t.Errorf("the line is refused: %v", err)
	}
}

// A refusal begins once, with its reason, holds for calls that began before, and ends for the lines that an operator
// readmits. It is told also where the witness cannot be written.
func TestRefusesALine(t *testing.T) {
	w, err := witness.OpenFile(filepath.Join(t.TempDir(), "witness"))
	if err != nil {
		t.Fatal(err)
	}
	var told []string
	m := witness.NewMarks(w, func(code, message string) { told = append(told, code+": "+message) })
	begin := func(line string) *witness.Call {
		t.Helper()
		c, err := m.Begin(line)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	a, late, b := begin("a"), begin("a"), begin("b")
	if err := a.Accept(hapax.Grant{Lo: 5, Hi: 5}); !errors.Is(err, hapax.ErrStoreCorrupt) || !m.Durable() || len(m.Lines()) > 0 {
		t.Errorf("an empty grant: %v, it knows %v", err, m.Lines())
	}
	if err := errors.Join(a.Accept(hapax.Grant{Lo: 0, Hi: 10}), b.Accept(hapax.Grant{Lo: 0, Hi: 3})); err != nil {
		t.Fatal(err)
	}
	if mark, known := m.Mark("a"); mark != 10 || !known || !maps.Equal(m.Lines(), map[string]int64{"a": 10, "b": 3}) || begin("a").Since != 10 {
		t.Errorf("it knows %v, and of a %d, %v", m.Lines(), mark, known)
	}
	cause := fmt.Errorf("%w: it went back", hapax.ErrStoreRolledBack)
	for range 2 {
		if err := m.Behind("a", cause); !errors.Is(err, hapax.ErrStoreRolledBack) || !errors.Is(err, hapax.ErrFenced) {
			t.Errorf("a line that is behind: %v", err)
		}
	}
	if len(told) != 1 || !strings.HasPrefix(told[0], "fenced: ") || !strings.Contains(told[0], "it went back") {
		t.Errorf("told is %q; want the refusal once", told)
	}
	if err := late.Accept(hapax.Grant{Lo: 10, Hi: 20}); !errors.Is(err, hapax.ErrFenced) || !strings.Contains(err.Error(), "it went back") {
		t.Errorf("an answer to a call from before: %v", err)
	}
	if _, err := m.Begin("a"); !errors.Is(err, hapax.ErrFenced) || m.Refused("b") != nil || len(m.RefusedLines()) != 1 || !strings.Contains(m.RefusedLines()["a"], "it went back") {
		t.Errorf("the next call: %v; refused are %v", err, m.RefusedLines())
	}
	syncs := witness.CountSyncs(w)
	if err := m.Readmit(func(line string) bool { return line == "b" }); err != nil || syncs() > 0 || m.Refused("a") == nil {
		t.Errorf("another is readmitted: %v, with %d writes; a is refused: %v", err, syncs(), m.Refused("a"))
	}
	if err := m.Readmit(func(line string) bool { return line == "a" }); err != nil || syncs() != 1 || m.Refused("a") != nil || len(m.RefusedLines()) > 0 {
		t.Errorf("it is readmitted: %v, with %d writes; refused are %v", err, syncs(), m.RefusedLines())
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := m.Behind("b", cause); !errors.Is(err, hapax.ErrFenced) || !errors.Is(err, hapax.ErrStoreRolledBack) || !errors.Is(err, hapax.ErrClosed) || len(told) != 2 {
		t.Errorf("a witness that is closed: %v, told %q", err, told)
	}
}
