package witness

import (
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hapax-id/hapax"
)

// Without a witness marks live in memory: they tell a line that went back, and refuse none for good.
func TestMarksInMemory(t *testing.T) {
	m := NewMarks(nil, func(string, string) { t.Error("a refusal is told") })
	if m.Durable() || m.Refused("a") != nil || m.RefusedLines() != nil || m.Readmit(func(string) bool { return true }) != nil {
		t.Errorf("at first: durable %v, refused %v", m.Durable(), m.RefusedLines())
	}
	if mark, ok := m.Mark("a"); ok || mark != 0 {
		t.Errorf("of a line that was never granted it knows %d", mark)
	}
	first, err := m.Begin("a")
	if err != nil {
		t.Fatal(err)
	}
	second, err := m.Begin("a")
	if err := errors.Join(err, second.Accept(hapax.Grant{Lo: 11, Hi: 21}), first.Accept(hapax.Grant{Lo: 1, Hi: 11})); err != nil {
		t.Errorf("two calls, answered the other way round: %v", err)
	}
	if mark, ok := m.Mark("a"); !ok || mark != 21 || !maps.Equal(m.Lines(), map[string]int64{"a": 21}) {
		t.Errorf("the mark is %d, %v; the lines are %v", mark, ok, m.Lines())
	}
	m.Lines()["b"] = 1
	if len(m.Lines()) != 1 {
		t.Error("the lines are not a copy")
	}
	third, err := m.Begin("a")
	if err := errors.Join(err, third.Accept(hapax.Grant{Lo: 21, Hi: 25})); err != nil {
		t.Errorf("from the mark on: %v", err)
	}
	if err := third.Accept(hapax.Grant{Lo: 20, Hi: 30}); !errors.Is(err, hapax.ErrStoreRolledBack) || errors.Is(err, hapax.ErrFenced) {
		t.Errorf("below the mark: %v", err)
	}
	if err := third.Accept(hapax.Grant{Lo: 25, Hi: 25}); !errors.Is(err, hapax.ErrStoreCorrupt) {
		t.Errorf("an empty grant: %v", err)
	}
	if _, err := m.Begin("a"); err != nil {
		t.Errorf("the next call: %v", err)
	}
}

// With a witness a refusal is told once, written once, and in force even if it cannot be written.
func TestMarksInAWitness(t *testing.T) {
	w, err := OpenFile(filepath.Join(inMemory(t), "witness"))
	if err != nil {
		t.Fatal(err)
	}
	told := 0
	m := NewMarks(w, func(_, message string) {
		told++
		if !strings.Contains(message, "went back") {
			t.Errorf("told is %q", message)
		}
	})
	syncs := CountSyncs(w)
	if !m.Durable() {
		t.Error("it is not durable")
	}
	call, err := m.Begin("a")
	if err := errors.Join(err, call.Accept(hapax.Grant{Lo: 1, Hi: 11})); err != nil || !maps.Equal(m.Lines(), map[string]int64{"a": 11}) || syncs() != 1 {
		t.Fatalf("%v, the lines are %v after %d syncs", err, m.Lines(), syncs())
	}
	if err := call.Accept(hapax.Grant{Lo: 5, Hi: 5}); !errors.Is(err, hapax.ErrStoreCorrupt) || syncs() != 1 {
		t.Errorf("an empty grant: %v, %d syncs", err, syncs())
	}
	for range 2 {
		if err := m.Behind("a", fmt.Errorf("%w: it went back", hapax.ErrStoreRolledBack)); !errors.Is(err, hapax.ErrStoreRolledBack) || !errors.Is(err, hapax.ErrFenced) || errors.Is(err, hapax.ErrWitnessFailed) {
			t.Errorf("a line that went back: %v", err)
		}
	}
	if told != 1 || syncs() != 2 || len(m.RefusedLines()) != 1 {
		t.Errorf("it was told %d times and written %d; refused are %v", told, syncs()-1, m.RefusedLines())
	}
	if err := call.Accept(hapax.Grant{Lo: 11, Hi: 21}); !errors.Is(err, hapax.ErrFenced) || m.Lines()["a"] != 11 {
		t.Errorf("a grant that was asked for before: %v, the lines are %v", err, m.Lines())
	}
	if _, err := m.Begin("a"); !errors.Is(err, hapax.ErrFenced) {
		t.Errorf("the next call: %v", err)
	}
	if err := m.Readmit(func(line string) bool { return line != "a" }); err != nil || syncs() != 2 || m.Refused("a") == nil {
		t.Errorf("others are readmitted: %v, %d syncs, refused %v", err, syncs(), m.Refused("a"))
	}
	if err := m.Readmit(func(line string) bool { return line == "a" }); err != nil || syncs() != 3 || m.Refused("a") != nil {
		t.Errorf("it is readmitted: %v, %d syncs, refused %v", err, syncs(), m.Refused("a"))
	}
	w.mu.Lock()
	file := w.log.file
	w.mu.Unlock()
	w.log.file = full{file}
	if err := m.Behind("a", fmt.Errorf("%w: it went back", hapax.ErrStoreRolledBack)); !errors.Is(err, hapax.ErrFenced) || !errors.Is(err, hapax.ErrWitnessFailed) || m.Refused("a") == nil {
		t.Errorf("on a full disk: %v, refused %v", err, m.Refused("a"))
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
}
