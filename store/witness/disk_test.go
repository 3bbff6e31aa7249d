package witness

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/iotest"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/durable"
)

// A failing disk makes no file.
type refusing struct {
	durable.Disk
	err error
}

func (d refusing) Create(string) (durable.File, error) { return nil, d.err }

// A disk that is full lets the witness be opened, and grants wait for room; any other failure does not.
func TestOpensOnAFullDisk(t *testing.T) {
	path := filepath.Join(t.TempDir(), "witness")
	w, err := openOn(path, refusing{durable.OS, syscall.ENOSPC})
	if err != nil {
		t.Fatal(err)
	}
	if !errors.Is(w.Failed(), syscall.ENOSPC) {
		t.Errorf("it tells %v", w.Failed())
	}
	if err := mark(w, "tag/t", Pair{0, 1}); !errors.Is(err, hapax.ErrWitnessFailed) || !strings.Contains(err.Error(), "cannot be replaced") {
		t.Errorf("a change: %v", err)
	}
	w.log.disk = durable.OS
	if err := errors.Join(mark(w, "tag/t", Pair{0, 2}), w.Close()); err != nil || w.Failed() != nil {
		t.Errorf("once there is room: %v, %v", err, w.Failed())
	}
	for range 2 { // nor is its lock kept
		if w, err := openOn(filepath.Join(t.TempDir(), "witness"), refusing{durable.OS, syscall.EIO}); !errors.Is(err, hapax.ErrWitnessFailed) || w != nil {
			t.Errorf("on a broken disk: %v", err)
		}
	}
	if _, err := OpenFile(filepath.Join(t.TempDir(), "none", "witness")); !errors.Is(err, hapax.ErrWitnessFailed) {
		t.Errorf("in no directory: %v", err)
	}
	if _, err := Read("\x00"); !errors.Is(err, hapax.ErrWitnessFailed) {
		t.Errorf("a name that is none: %v", err)
	}
}

// gone is a disk that takes away what it was given.
type gone struct{ durable.Disk }

func (d gone) Rename(from, _ string) error { return d.Remove(from) }

// A log knows its size: it is rewritten when it has grown by a megabyte or doubled, and not before.
func TestSizeOfALog(t *testing.T) {
	w, err := OpenFile(filepath.Join(t.TempDir(), "witness"))
	if err != nil {
		t.Fatal(err)
	}
	check := func(when string) (size int64) {
		t.Helper()
		info, err := os.Stat(w.log.path)
		if err != nil || info.Size() != w.log.size {
			t.Errorf("%s: it is %d bytes long, and takes itself for %d, %v", when, info.Size(), w.log.size, err)
		}
		return info.Size()
	}
	check("at first")
	rewritten, was := 0, int64(0)
	for i := range 40 {
		if err := mark(w, fmt.Sprintf("tag/%02d-%s", i, strings.Repeat("x", 60_000)), Pair{0, 1}); err != nil {
			t.Fatal(err)
		}
		if size := w.log.long; size != was && was != 0 {
			rewritten++
		}
		check("after a change")
		was = w.log.long
	}
	if rewritten != 2 {
		t.Errorf("it was rewritten %d times", rewritten)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	before, err := os.Stat(w.log.path)
	if err != nil {
		t.Fatal(err)
	}
	if w, err = OpenFile(w.log.path); err != nil {
		t.Fatal(err)
	}
	after, err := os.Stat(w.log.path)
	if err != nil || !os.SameFile(before, after) {
		t.Errorf("a long log was written anew by its opening, %v", err)
	}
	check("a long log")
	if w.log.long < 2*w.log.size-1<<20 || w.log.isDue() {
		t.Errorf("a long log is due at %d of %d", w.log.size, w.log.long)
	}
	if err := errors.Join(mark(w, "tag/t", Pair{0, 1}), w.Close()); err != nil {
		t.Fatal(err)
	}
	l := &log{path: filepath.Join(t.TempDir(), "none"), disk: gone{durable.OS}}
	if err := l.reopen(newRecord()); !errors.Is(err, hapax.ErrWitnessFailed) || !strings.Contains(err.Error(), "cannot be opened") {
		t.Errorf("a log that is not there: %v", err)
	}
	if err := l.rewrite(newRecord()); !errors.Is(err, hapax.ErrWitnessFailed) || !strings.Contains(err.Error(), "cannot be opened") || l.file != nil {
		t.Errorf("a log that is taken away: %v", err)
	}
	l = &log{path: os.DevNull}
	if err := l.reopen(newRecord()); !errors.Is(err, hapax.ErrWitnessFailed) || !strings.Contains(err.Error(), "cannot be used") {
		t.Errorf("a log that cannot be synced: %v", err)
	}
}

// What is read of a log is all of it or an error, whatever is wrong and wherever.
func TestUnreadableLogs(t *testing.T) {
	first := string(newRecord().encode(kindSnapshot))
	line := func(kind, text string) string { return string(appendRecord(nil, kind, []byte(text))) }
	bulk := newRecord()
	for i := range bulkLines {
		bulk.Lines[fmt.Sprint("tag/", i)] = Pair{0, 1}
	}
	if text := string(bulk.encodeAll()); !strings.Contains(text[:40], kindSnapshot) {
		t.Errorf("a snapshot of lines alone begins with %.40q", text)
	}
	for name, v := range map[string]struct{ text, want string }{
		"whole":                      {first + line(kindChange, `{"joins":3}`), ""},
		"without its last newline":   {strings.TrimSuffix(first+line(kindChange, `{"joins":3}`), "\n"), "nothing"},
		"a second snapshot":          {first + line(kindSnapshot, `{"joins":3}`), "is not a record of kind change"},
		"a field that is not known":  {first + line(kindChange, `{"joint":3}`), fmt.Sprintf("the record at byte %d", len(first))},
		"what is no JSON":            {first + line(kindChange, `{"joins":`), "the record at byte"},
		"damage, and a whole record": {first + "x\n" + line(kindChange, `{"joins":3}`), fmt.Sprintf("the record at byte %d is damaged", len(first))},
	} {
		r := newRecord()
		_, whole, err := r.replay(strings.NewReader(v.text), "w")
		ok := err == nil && whole && r.Joins == 3
		switch v.want {
		case "":
		case "nothing":
			ok = err == nil && !whole && r.Joins == 0
		default:
			ok = errors.Is(err, hapax.ErrStoreCorrupt) && strings.Contains(err.Error(), v.want)
		}
		if !ok {
			t.Errorf("%s: whole %v, %v, %d joins", name, whole, err, r.Joins)
		}
	}
	if _, err := ReadFrom(iotest.ErrReader(errors.New("the disk")), "w"); !errors.Is(err, hapax.ErrWitnessFailed) || !strings.Contains(err.Error(), "the disk") {
		t.Errorf("a reader that fails: %v", err)
	}
	_, err := ReadFrom(strings.NewReader(first), "w")
	if bad, ok := errors.AsType[*hapax.ValueError](err); !ok || bad.Field != "witness file" || bad.Value != "w" || bad.Allowed == "" || !errors.Is(err, hapax.ErrInvalidArgument) {
		t.Errorf("a witness of nothing: %v", err)
	}
	for text, want := range map[string]string{"": "not whole", line(kindChange, "{}"): "is not a record of kind", line(kindSnapshot, "{"): "the testimony: "} {
		if _, err := DecodeTestimony([]byte(text)); !errors.Is(err, hapax.ErrStoreCorrupt) || !strings.Contains(err.Error(), want) {
			t.Errorf("the testimony %q: %v; want %q", text, err, want)
		}
	}
}
