package witness

import (
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/memstore"
)

// A logOf is a log with what was acknowledged after how many bytes.
type logOf struct {
	data   []byte
	points []witnessPoint // in the order of size
}

type witnessPoint struct {
	size  int
	store string
	lines map[string]int64
}

// recordWitness makes changes one by one and notes the file's size and the
// state after each.
func recordWitness(t *testing.T) logOf {
	w := newWitness(t)
	var log logOf
	note := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		if log.data, err = os.ReadFile(w.log.path); err != nil {
			t.Fatal(err)
		}
		log.points = append(log.points, witnessPoint{len(log.data), w.state.Store, w.Lines()})
	}
	if err := acceptNow(w, "tag/old", hapax.Grant{Lo: 1, Hi: 9}); err != nil {
		t.Fatal(err)
	}
	w = reopen(t, w) // so that the snapshot holds something
	note(nil)
	note(w.setStore("store-1"))
	note(acceptNow(w, "tag/a", hapax.Grant{Lo: 1, Hi: 1001}))
	note(acceptNow(w, "worker/default/3", hapax.Grant{Lo: 17, Hi: 99}))
	note(acceptNow(w, "tag/a", hapax.Grant{Lo: 1001, Hi: 2001}))
	note(w.offer("worker/default/3", 40))
	note(w.settle("worker/default/3", true))
	note(w.setStore("store-2"))
	note(acceptNow(w, "tag/old", hapax.Grant{Lo: 9, Hi: 10}))
	return log
}

// crashed opens a witness over a file as a crash may have left it.
func crashed(t *testing.T, data []byte) (*Witness, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "witness")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	w, err := Open(path)
	if err == nil {
		t.Cleanup(func() { w.Close() })
	}
	return w, err
}

// A crash keeps what was acknowledged, whatever it leaves of the record that
// was being written: the state after it is exactly that of the last
// acknowledgement, and one more change works.
func TestWitnessCrash(t *testing.T) {
	log := recordWitness(t)
	first := log.points[0].size
	for cut := first; cut <= len(log.data); cut++ {
		want := log.points[0]
		for _, p := range log.points {
			if p.size <= cut {
				want = p
			}
		}
		for name, tail := range map[string]string{"nothing": "", "zeros and breaks": "\x00\x00\n\x00\n"} {
			w, err := crashed(t, append(log.data[:cut:cut], tail...))
			if err != nil {
				t.Fatalf("cut at %d, then %s: %v", cut, name, err)
			}
			if got := w.Lines(); !maps.Equal(got, want.lines) || w.state.Store != want.store {
				t.Fatalf("cut at %d, then %s: %q %v, want %q %v", cut, name, w.state.Store, got, want.store, want.lines)
			}
			if tail == "" {
				accept(t, w, "tag/a", 5000, 6000)
				w = reopen(t, w)
				if mark, _ := w.Mark("tag/a"); mark != 6000 {
					t.Fatalf("cut at %d: a later mark is lost", cut)
				}
			}
			w.Close()
		}
	}
	for cut := range first { // a snapshot appears by a rename, so it is whole or damaged
		if _, err := crashed(t, log.data[:cut]); !errors.Is(err, hapax.ErrStoreCorrupt) {
			t.Fatalf("cut at %d of a snapshot of %d: %v, want ErrStoreCorrupt", cut, first, err)
		}
	}
}

// Every damaged byte before the last record is noticed.
func TestWitnessCorruption(t *testing.T) {
	log := recordWitness(t)
	last := log.points[len(log.points)-2].size
	for i := range last - 1 { // the break before the last record joins the two
		data := bytes.Clone(log.data)
		data[i] ^= 0x10
		if w, err := crashed(t, data); !errors.Is(err, hapax.ErrStoreCorrupt) || !strings.Contains(err.Error(), "witness") {
			t.Fatalf("byte %d of %d changed: %v, %v", i, len(data), w, err)
		}
	}
	for name, data := range map[string][]byte{
		"empty":                  {},
		"a snapshot of tomorrow": record{}.encode("hapax-witness-3"),
		"a change first":         record{}.encode(kindChange),
		"two snapshots":          append(record{}.encode(kindSnapshot), record{}.encode(kindSnapshot)...),
		"no JSON":                sealed(kindSnapshot + "\t{"),
		"a mark that is none":    sealed(kindSnapshot + `	{"marks":{"tag/a":"x"}}`),
		"a field of tomorrow":    sealed(kindSnapshot + `	{"colour":"red"}`),
	} {
		if _, err := crashed(t, data); !errors.Is(err, hapax.ErrStoreCorrupt) {
			t.Errorf("%s: %v, want ErrStoreCorrupt", name, err)
		}
	}
}

// sealed returns a line of a log with that payload.
func sealed(payload string) []byte {
	return fmt.Appendf(nil, "%08x\t%s\n", crc32.Checksum([]byte(payload), castagnoli), payload)
}

// A log that has grown by its slack shrinks to a snapshot, and not before.
func TestWitnessRewrite(t *testing.T) {
	w := newWitness(t)
	accept(t, w, "a", 1, 10)
	filler := newRecord()
	for i := range 2000 {
		filler.Marks[fmt.Sprintf("%0256d", i)] = 1
	}
	var rewritten bool
	for n := int64(10); !rewritten; n++ {
		if err := w.log.append(filler); err != nil {
			t.Fatal(err)
		}
		grown := w.log.size
		accept(t, w, "a", n, n+1)
		if rewritten = w.log.size < grown; rewritten != (grown > logSlack) {
			t.Fatalf("at %d bytes: rewritten is %v", grown, rewritten)
		}
		if info, err := os.Stat(w.log.path); err != nil || info.Size() != w.log.size {
			t.Fatalf("the file has %d bytes, the log thinks %d (%v)", info.Size(), w.log.size, err)
		}
		if rewritten {
			accept(t, w, "b", n, n+1)
			if got, want := reopen(t, w).Lines(), map[string]int64{"a": n + 1, "b": n + 1}; !maps.Equal(got, want) {
				t.Errorf("%d lines were kept, want %v", len(got), want)
			}
		}
	}
}

func TestWitnessRewriteFails(t *testing.T) {
	w := newWitness(t)
	accept(t, w, "a", 1, 10)
	blocker := filepath.Join(w.log.path+".tmp", "in the way")
	if err := os.MkdirAll(blocker, 0o700); err != nil {
		t.Fatal(err)
	}
	w.log.long = 0
	for lo := range int64(2) {
		if err := acceptNow(w, "a", hapax.Grant{Lo: 10 + lo, Hi: 11 + lo}); !errors.Is(err, hapax.ErrStoreUnavailable) {
			t.Errorf("%v, want ErrStoreUnavailable", err)
		}
	}
	if err := os.RemoveAll(w.log.path + ".tmp"); err != nil {
		t.Fatal(err)
	}
	// What a crash during a rewrite leaves is not read.
	if err := os.WriteFile(w.log.path+".tmp", []byte("half a snapsh"), 0o644); err != nil {
		t.Fatal(err)
	}
	w = reopen(t, w)
	if mark, _ := w.Mark("a"); mark != 10 {
		t.Errorf("the mark is %d, want 10", mark)
	}
	if info, err := os.Stat(w.log.path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode is %v, %v", info.Mode(), err)
	}
}

// A node whose witness cannot be written says so, and goes on when it can.
func TestPingOfFullDisk(t *testing.T) {
	w := newWitness(t)
	g, err := Guard(memstore.New(), w, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	allocate := func() error {
		_, err := g.Allocate(t.Context(), "t", 10, "")
		return err
	}
	if _, err := g.CreateTag(t.Context(), hapax.Tag{Name: "t"}, hapax.CreateFirstUse); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(g.Ping(t.Context()), allocate()); err != nil {
		t.Fatal(err)
	}
	blocker := filepath.Join(w.log.path+".tmp", "in the way")
	if err := os.MkdirAll(blocker, 0o700); err != nil {
		t.Fatal(err)
	}
	w.log.long = 0
	for range 2 {
		if err := allocate(); !errors.Is(err, hapax.ErrStoreUnavailable) {
			t.Errorf("a grant: %v, want ErrStoreUnavailable", err)
		}
		if err := g.Ping(t.Context()); !errors.Is(err, hapax.ErrStoreUnavailable) {
			t.Errorf("Ping: %v, want ErrStoreUnavailable", err)
		}
	}
	if err := os.RemoveAll(w.log.path + ".tmp"); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(g.Ping(t.Context()), allocate()); err != nil {
		t.Error(err)
	}
}

// What the log accepts it writes again with the same meaning.
func FuzzWitnessRecord(f *testing.F) {
	for _, payload := range []string{
		"", "\t", kindSnapshot, kindSnapshot + "\t{}", kindSnapshot + `	{"store":"store-1","marks":{"tag/a":17,"worker/p/1":9}}`,
		kindSnapshot + `	{"offers":{"tag/a":-1},"refusal":"why"}`, kindSnapshot + `	{"marks":{"tag/a":99999999999999999999}}`, kindChange + "\t{}",
	} {
		f.Add(payload)
	}
	f.Fuzz(func(t *testing.T, payload string) {
		state, again := newRecord(), newRecord()
		line := strings.ReplaceAll(payload, "\n", " ")
		line = fmt.Sprintf("%08x\t%s\n", crc32.Checksum([]byte(line), castagnoli), line)
		if err := state.replay(strings.NewReader(line), "path"); err != nil {
			if !errors.Is(err, hapax.ErrStoreCorrupt) {
				t.Fatal(err)
			}
			return
		}
		if err := again.replay(bytes.NewReader(state.encode(kindSnapshot)), "path"); err != nil {
			t.Fatal(err)
		}
		if again.Store != state.Store || !maps.Equal(again.Marks, state.Marks) || !maps.Equal(again.Offers, state.Offers) {
			t.Fatalf("%q comes back as %v, want %v", line, again, state)
		}
	})
}
