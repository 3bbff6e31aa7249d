package witness

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// many returns so many lines, some of them with names that JSON does not have as they are.
func many(n int) map[string]Pair {
	lines := make(map[string]Pair, n)
	for i := range n {
		name := fmt.Sprintf("tag/order-%d", i)
		switch i % 20_000 {
		case 1:
			name = WorkerLine("a/pool", int64(i))
		case 2:
			name += "\"\\\n<ü\u2028"
		}
		lines[name] = Pair{int64(i % 3), int64(i % 7 * 1000)}
	}
	return lines
}

// size returns how long the log at path is, and of how many records.
func size(t *testing.T, path string) (bytesOf, records int) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return len(text), bytes.Count(text, []byte("\n"))
}

// A witness with many lines is what was written, whether at once, as a snapshot or as a
// change, and is not written anew at each start; it is where half of it is outdated, or its
// end is damaged.
func TestManyLines(t *testing.T) {
	const n = 10*bulkLines + 7
	path := filepath.Join(t.TempDir(), "witness")
	want := many(n)
	check := func(what string) {
		t.Helper()
		w, err := OpenFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if got := w.Lines(); !maps.Equal(got, want) {
			t.Errorf("%s: %d lines, or they are others; want %d", what, len(got), len(want))
		}
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	}
	w, err := OpenFile(path)
	if err != nil {
		t.Fatal(err)
	}
	rest, err := lines{pairs: want}.inParts(bulkLines, func(part lines) error {
		return w.commit(func(b *record) error { b.Lines = part.pairs; return nil })
	})
	if err := errors.Join(err, w.commit(func(b *record) error { b.Lines = rest.pairs; return nil }), w.Close()); err != nil {
		t.Fatal(err)
	}
	check("written in parts")
	check("opened again")
	before, _ := size(t, path)
	check("and again")
	if after, _ := size(t, path); after != before || before < logSlack {
		t.Errorf("opening took the log from %d to %d bytes; want more than %d, as it was", before, after, logSlack)
	}

	w, err = OpenFile(path)
	if err == nil {
		want["tag/order-0"] = Pair{9, 9}
		err = errors.Join(mark(w, "tag/order-0", Pair{9, 9}), mark(w, "tag/last", Pair{1, 1}), w.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	whole, _ := size(t, path)
	if err := os.Truncate(path, int64(whole)-3); err != nil { // the last change
		t.Fatal(err)
	}
	check("cut short")
	if after, records := size(t, path); after >= whole || records != 2+n/bulkLines {
		t.Errorf("cut short and opened: %d bytes in %d records; want a snapshot of less than %d", after, records, whole)
	}

	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	_, parts, _ := strings.Cut(string(text), "\n")
	if err := os.WriteFile(path, []byte(string(text)+parts+parts), 0o600); err != nil {
		t.Fatal(err)
	}
	check("each line three times")
	if after, _ := size(t, path); after > len(text)+1000 {
		t.Errorf("a log of which two thirds are outdated has %d bytes once it was opened; want about %d", after, len(text))
	}
}

// What a survey finds is learnt, however much it is, and the definitions with it.
func TestLearnsManyLines(t *testing.T) {
	path := filepath.Join(t.TempDir(), "witness")
	w, err := OpenFile(path)
	if err != nil {
		t.Fatal(err)
	}
	all := lines{many(2*bulkLines + 7), map[string]def{}}
	for name := range all.pairs {
		all.defs[name] = def{Step: 5}
	}
	g := &Guarded{witness: w}
	if err := errors.Join(g.learn(newRecord(), all, map[string]peer{"p": {Count: 1}}, nil, 1, 0, ""), w.Close()); err != nil {
		t.Fatal(err)
	}
	said, err := Read(path)
	if err != nil {
		t.Fatal(err)
	}
	if r := said.said; !maps.Equal(r.Lines, all.pairs) || !maps.Equal(r.Defs, all.defs) || len(r.Peers) != 1 || r.Joins != 1 {
		t.Errorf("%d lines, %d definitions, %d peers, %d joins; want %d, %[5]d, 1 and 1", len(r.Lines), len(r.Defs), len(r.Peers), r.Joins, len(all.pairs))
	}
}

// Who speaks for somebody with a floor has it raise what is a segment tag in the store,
// whatever it was before.
func TestFloorOfWhatATagIsNow(t *testing.T) {
	before := lines{map[string]Pair{"tag/t": {1, 10}}, map[string]def{"tag/t": {Kind: "snowflake"}}}
	a := &account{lines: before, statements: map[string]statement{"row": {Floor: 5000}}}
	if got := a.wants(lines{map[string]Pair{"tag/t": {1, 20}}, map[string]def{}})["tag/t"]; got.Mark != 5000 {
		t.Errorf("it is raised to %v, want 5000", got)
	}
}

// What a line is made anew from may become the default again, and stays that.
func TestDefaultAgain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "witness")
	for _, d := range []def{{Step: 5}, {}} {
		w, err := OpenFile(path)
		if err != nil {
			t.Fatal(err)
		}
		w.note(func(b *record) { b.Defs["tag/t"] = d }) // in one batch with the next change
		if err := errors.Join(mark(w, "tag/t", Pair{1, 1}), w.Close()); err != nil {
			t.Fatal(err)
		}
		said, err := Read(path)
		got, there := said.said.Defs["tag/t"]
		if err != nil || got != d || there != (d != def{}) {
			t.Errorf("it says %+v (%v), %v; want %+v, and nothing of the default", got, there, err, d)
		}
	}
}

// Lines are read as encoding/json reads them, or left to it.
func FuzzBulk(f *testing.F) {
	for _, text := range []string{
		`{"lines":{"tag/a":{"t":1,"m":2},"tag/b":{"m":3},"tag/c":{"t":4},"tag/d":{}}}`, `{"lines":{}}`, `{"lines":{"a":{"t":01}}}`,
		`{"lines":{"a":{"t":9223372036854775807}}}`, `{"lines":{"a":{"t":-1}}}`, `{"lines":{"a\"":{}}}`, `{"lines":{"a":{},}}`, `{"lines":{"a":{"m":1,"t":2}}}`,
		`{"lines":{"a":{}},"joins":1}`, `{"lines":{"a":{"m":1e3}}}`, `{"lines":{"a":{"t":1,}}}`, `{"lines":{"a":{"t":1}{"m":1}}}`, `{"lines":{"a":{,"m":1}}}`,
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		bulk, ok := readBulk(text)
		if !ok {
			return
		}
		var want record
		d := json.NewDecoder(strings.NewReader(text))
		d.DisallowUnknownFields()
		if err := d.Decode(&want); err != nil || d.More() {
			t.Fatalf("%q was read, and is no change: %v", text, err)
		}
		got := map[string]Pair{}
		for _, line := range bulk {
			got[line.name] = line.Pair
		}
		if !maps.Equal(got, want.Lines) {
			t.Fatalf("%q was read as %v; want %v", text, got, want.Lines)
		}
		written := record{Lines: got}.appendBulk(nil)
		payload, intact := verify(written)
		again := newRecord()
		if err := again.apply(payload, kindChange); !intact || err != nil || len(got) <= bulkLines && !maps.Equal(again.Lines, got) {
			t.Fatalf("%q was written as %q: %v", text, written, err)
		}
	})
}

// BenchmarkOpen opens a witness with 100,000 lines.
func BenchmarkOpen(b *testing.B) {
	path := filepath.Join(b.TempDir(), "witness")
	w, err := OpenFile(path)
	if err == nil {
		err = errors.Join(w.commit(func(r *record) error { r.Lines = many(100_000); return nil }), w.Close())
	}
	for err == nil && b.Loop() {
		if w, err = OpenFile(path); err == nil {
			err = w.Close()
		}
	}
	if err != nil {
		b.Fatal(err)
	}
}
