package witness

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/durable/losing"
)

func mark(w *Witness, line string, p Pair) error {
	return w.commit(func(b *record) error { b.Lines[line] = p; return nil })
}

// What was acknowledged outlives a power loss.
func TestPowerLoss(t *testing.T) {
	for name, lose := range map[string]func(*losing.Disk) error{"names": (*losing.Disk).LoseNames, "contents": (*losing.Disk).LoseContents} {
		path, disk := filepath.Join(t.TempDir(), "witness"), losing.New()
		for i := range int64(3) {
			w, err := openOn(path, disk)
			if err != nil {
				t.Fatal(err)
			}
			if p, _ := w.Pair("tag/t"); p.Mark != i*10 {
				t.Errorf("after a power loss that took the %s: %v; want mark %d", name, p, i*10)
			}
			if err := errors.Join(mark(w, "tag/t", Pair{0, i*10 + 10}), w.Close(), lose(disk)); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// A last change that was cut short is dropped; anything else that is wrong is an error
// that says what.
func TestDamagedFiles(t *testing.T) {
	path := filepath.Join(t.TempDir(), "witness")
	w, err := OpenFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := OpenFile(path); !errors.Is(err, hapax.ErrStoreLocked) {
		t.Errorf("opened twice: %v; want ErrStoreLocked", err)
	}
	if err := errors.Join(mark(w, "tag/t", Pair{1, 5}), mark(w, "tag/u", Pair{2, 6}), w.Close()); err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.SplitAfter(strings.TrimSuffix(string(whole), "\n"), "\n")
	for name, c := range map[string]struct {
		text string
		want string // of the error; empty: it opens, without the last change
	}{
		"cut short":      {string(whole[:len(whole)-4]), ""},
		"damaged within": {strings.Replace(string(whole), `"m":5`, `"m":4`, 1), "damaged and not the last"},
		"no snapshot":    {strings.Join(lines[1:], ""), `begins with "change"`},
		"not a witness":  {"hello\n", "does not begin with an intact snapshot"},
		"a newer one":    {string(newRecord().encode("hapax-witness-4")), `reads the format hapax-witness-3: use the version that wrote it`},
	} {
		if err := os.WriteFile(path, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		w, err := OpenFile(path)
		if c.want == "" {
			if err != nil {
				t.Errorf("%s: %v", name, err)
				continue
			}
			_, u := w.Pair("tag/u")
			if p, _ := w.Pair("tag/t"); p != (Pair{1, 5}) || u {
				t.Errorf("%s: tag/t is %v, tag/u is there: %v", name, p, u)
			}
			if err := w.Close(); err != nil {
				t.Error(err)
			}
			continue
		}
		if !errors.Is(err, hapax.ErrStoreCorrupt) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v; want ErrStoreCorrupt with %q", name, err, c.want)
		}
	}
}

// full is a disk without room.
type full struct{ logFile }

func (full) Write([]byte) (int, error) { return 0, syscall.ENOSPC }

// A full disk has a code of its own, and what is refused then is not lost afterwards.
func TestFullDisk(t *testing.T) {
	w, err := OpenFile(filepath.Join(t.TempDir(), "witness"))
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	w.log.file = full{w.log.file}
	err = mark(w, "tag/t", Pair{0, 10})
	if hapax.CodeOf(err) != hapax.ErrWitnessFailed.Code() || !errors.Is(err, syscall.ENOSPC) || errors.Is(err, hapax.ErrStoreUnavailable) {
		t.Errorf("on a full disk: %v; want ErrWitnessFailed", err)
	}
	if w.Failed() == nil {
		t.Error("the failure is not told")
	}
	if err := w.commit(func(*record) error { return errNoChange }); err != nil || w.Failed() == nil {
		t.Errorf("what is no change is written: %v", err)
	}
	if err := w.rewrite(); err != nil || w.Failed() != nil {
		t.Errorf("once there is room: %v, %v", err, w.Failed())
	}
	said, err := Read(w.log.path)
	if err != nil || said.said.Lines["tag/t"].Mark != 10 {
		t.Errorf("the file says %v, error %v", said, err)
	}
}

// Changes that are made at the same time are all durable when they are acknowledged, and
// a row that was dropped stays dropped.
func TestConcurrentChanges(t *testing.T) {
	path := filepath.Join(t.TempDir(), "witness")
	w, err := OpenFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for i := range 50 {
		wg.Go(func() {
			row := rowName(int64(i+1), "x")
			err := w.commit(func(b *record) error { b.Own[row] = own{Count: 1}; return nil })
			if i%2 == 0 && err == nil {
				err = w.commit(func(b *record) error { b.Own[row] = own{Gone: true}; return nil })
			}
			if err := errors.Join(err, mark(w, fmt.Sprint("tag/", i), Pair{1, 1})); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	said, err := Read(path)
	if err != nil || len(said.said.Own) != 25 || len(said.said.Lines) != 50 {
		t.Errorf("%d rows and %d lines, error %v; want 25 and 50", len(said.said.Own), len(said.said.Lines), err)
	}
	again, err := DecodeTestimony(said.Encode())
	if err != nil || len(again.Rows()) != 25 {
		t.Errorf("encoded and decoded: %d rows, error %v", len(again.Rows()), err)
	}
}

// A copy of a directory does not speak for its rows; the directory itself does, up to
// what had been asked for.
func TestCopiedRowsAreNotSpokenFor(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "witness")
	w, err := OpenFile(path)
	if err != nil {
		t.Fatal(err)
	}
	row := rowName(1, "x")
	err = w.commit(func(b *record) error { b.Own[row] = own{Count: 3, Grants: 2, Asked: 66}; return nil })
	if err := errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "copy"), text, 0o600)
		AwaitTick(t, path+lockSuffix)
	}
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]own{"witness": {Count: 3, Grants: 2, Asked: 66}, "copy": {Count: 3, Grants: 2, Asked: 66, Copied: true}} {
		for range 2 { // nor does the copy once it was started again
			w, err := OpenFile(filepath.Join(dir, name))
			if err != nil {
				t.Fatal(err)
			}
			if got := w.snapshot().Own[row]; got != want {
				t.Errorf("%s holds %+v; want %+v", name, got, want)
			}
			if err := w.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}
