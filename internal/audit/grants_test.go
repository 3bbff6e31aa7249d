package audit

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/ledger"
)

func readGrants(src io.Reader, name string) (*Grants, error) {
	r := newGrantReader()
	err := r.read(src, name)
	return r.grants, err
}

func TestReadGrants(t *testing.T) {
	good := "# line\tlo\thi\tnode\ttime\n\n" +
		"tag/my orders\t1\t1001\tnode a\t2026-01-02T03:04:05Z\n" +
		"tag/my orders\t1001\t2001\tb\t2026-01-02T03:04:06.5+01:00\ttoken 7\r\n" +
		"worker/po/ol/7\t5\t6\tb\t2026-01-02T03:04:05Z\r\n"
	g, err := readGrants(strings.NewReader(good), "g")
	if err != nil {
		t.Fatal(err)
	}
	if got, want := fmt.Sprint(g.nodes, g.lines), "[node a b] map[tag/my orders:[{1 1001 1767323045000000000 0} {1001 2001 1767319446500000000 1}] worker/po/ol/7:[{5 6 1767323045000000000 1}]]"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	for text, want := range map[string]string{
		"tag/a\t1\t2\tn":                                 "invalid g:1: grant",
		"tag/a 1 2 n 2026-01-02T03:04:05Z":               "invalid g:1: grant",
		"tag/\t1\t2\tn\t2026-01-02T03:04:05Z":            "invalid g:1: line \"tag/\"",
		"orders\t1\t2\tn\t2026-01-02T03:04:05Z":          "invalid g:1: line",
		"worker/7\t1\t2\tn\t2026-01-02T03:04:05Z":        "invalid g:1: line",
		"worker/p/x\t1\t2\tn\t2026-01-02T03:04:05Z":      "invalid g:1: line",
		"worker/p/-1\t1\t2\tn\t2026-01-02T03:04:05Z":     "invalid g:1: line",
		"worker/p/07\t1\t2\tn\t2026-01-02T03:04:05Z":     "invalid g:1: line",
		"\n#\ntag/a\t01\t2\tn\t2026-01-02T03:04:05Z":     "invalid g:3: lo",
		"tag/a\t2\t2\tn\t2026-01-02T03:04:05Z":           "invalid g:1: hi",
		"tag/a\t2\t9223372036854775808\tn\t2026-01-02":   "invalid g:1: hi",
		"tag/a\t1\t2\tn\t2026-01-02":                     "invalid g:1: time",
		"tag/a\t1\t2\t" + strings.Repeat("n", 5000) + "": "longer than 4096 bytes",
	} {
		if _, err := readGrants(strings.NewReader(text), "g"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %q", text, err, want)
		}
	}
}

// Of the grants that overlap, the latest counts, and nothing else is covered.
func TestDisjointProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var all []stretch
		for i, at := range rapid.Permutation([]int64{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}).Draw(t, "times") {
			lo := rapid.Int64Range(0, 40).Draw(t, "lo")
			all = append(all, stretch{lo, lo + rapid.Int64Range(1, 20).Draw(t, "length"), at, int32(i % 4)})
		}
		all = all[:rapid.IntRange(0, len(all)).Draw(t, "count")]
		flat := disjoint(all)
		for i, s := range flat {
			if s.lo >= s.hi || i > 0 && s.lo < flat[i-1].hi {
				t.Fatalf("%v gave %v, which is not disjoint", all, flat)
			}
		}
		w := walk{stretches: flat}
		for v := int64(-1); v < 70; v++ {
			want := stretch{at: -1, node: -1}
			for _, s := range all {
				if s.lo <= v && v < s.hi && s.at > want.at {
					want = s
				}
			}
			node := int32(-1)
			if s := w.find(v); s != nil {
				node = s.node
			}
			if node != want.node {
				t.Fatalf("%v gave %v: %d is of node %d, want %d", all, flat, v, node, want.node)
			}
		}
	})
}

// Numbers that hold a time are held against their worker's ticks.
func TestTicks(t *testing.T) {
	l, err := hapax.ParseLayout("type:1,time:20,worker:3,sequence:4,unit=1h,epoch=2026-01-01T00:00:00Z")
	if err != nil {
		t.Fatal(err)
	}
	id := func(kind, tick, worker int64) hapax.ID {
		id, err := l.Compose(hapax.Fields{{Name: "type", Value: kind}, {Name: "time", Value: tick}, {Name: "worker", Value: worker}, {Name: "sequence", Value: 3}})
		if err != nil {
			t.Fatal(err)
		}
		return id
	}
	g, err := readGrants(strings.NewReader(strings.ReplaceAll(`worker/p/1 10 20 a 2026-01-01T00:00:00Z
worker/p/1 15 30 b 2026-01-01T00:00:01Z
worker/p/2 0 1000 c 2026-01-01T00:00:00Z
worker/q/3 0 1000 d 2026-01-01T00:00:00Z
tag/p 0 1000 e 2026-01-01T00:00:00Z
`, " ", "\t")), "g")
	if err != nil {
		t.Fatal(err)
	}
	ids := []hapax.ID{
		id(0, 9, 1), id(0, 10, 1), id(1, 14, 1), id(0, 15, 1), id(1, 29, 1), id(0, 30, 1),
		id(0, 999, 2), id(1, 0, 2), id(0, 5, 3), id(0, 5, 4), 1 << 28,
	}
	r, err := Run(t.Context(), []string{dump(t, "ids", ids)}, nil, Options{Show: 20, Layout: l, Grants: g, Of: "p"})
	if err != nil {
		t.Fatal(err)
	}
	var outside []hapax.ID
	for _, f := range r.Outside.List {
		outside = append(outside, f.ID)
	}
	got := fmt.Sprint(outside, r.Misfits.Numbers, r.Nodes, r.Workers, r.Days)
	want := fmt.Sprint([]hapax.ID{ids[8], ids[9], ids[0], ids[5]}, 1, " [{a 2} {b 2} {c 2}] [{1 6} {2 2} {3 1} {4 1}] [{2026-01-01 7} {2026-01-02 2} {2026-02-11 1}]")
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func FuzzGrants(f *testing.F) {
	f.Add("tag/a\t1\t2\tn\t2026-01-02T03:04:05Z\n")
	f.Add("worker/p/1\t1\t2\tn\t2026-01-02T03:04:05Z\n")
	f.Fuzz(func(t *testing.T, text string) {
		g, err := readGrants(strings.NewReader(text), "g")
		if err != nil {
			return
		}
		for line, stretches := range g.lines {
			if _, _, ok := splitLine(line); !ok || len(stretches) == 0 {
				t.Errorf("%q gave the line %q", text, line)
			}
			disjoint(stretches)
		}
	})
}

// What a node has given back is no grant of its any more, whatever the clocks say;
// the ledger of a node is read from its directory.
func TestGivenBack(t *testing.T) {
	a, b := t.TempDir(), t.TempDir()
	at := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	open := func(dir, node string, at time.Time) *ledger.Ledger {
		l, err := ledger.Open(filepath.Join(dir, ledger.Dir), ledger.Options{Node: node, Now: func() time.Time { return at }})
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	alloc := func(lo, hi int64) hapax.Allocation {
		return hapax.Allocation{Tag: hapax.Tag{Name: "orders"}, Grant: hapax.Grant{Lo: lo, Hi: hi}, From: lo}
	}
	first, second := open(a, "a", at), open(b, "b", at.Add(-time.Minute)) // whose clock is behind
	for _, err := range []error{
		first.Allocated(alloc(1, 11), ledger.By{}, ""),
		first.Allocated(alloc(11, 21), ledger.By{}, ""),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	first.HandedBack(alloc(11, 21), 6, ledger.By{}, nil) // of both
	if err := second.Allocated(alloc(6, 16), ledger.By{}, ""); err != nil {
		t.Fatal(err)
	}
	second.HandedBack(alloc(6, 16), 9, ledger.By{}, nil)
	second.HandedBack(alloc(6, 9), 8, ledger.By{}, hapax.ErrStoreUnavailable)
	if err := errors.Join(first.Close(), second.Close()); err != nil {
		t.Fatal(err)
	}
	for _, names := range [][]string{{a, b}, {b, a}, {filepath.Join(a, ledger.Dir), b}} {
		g, damaged, err := ReadGrants(t.Context(), names...)
		if err != nil || damaged != 0 {
			t.Fatal(damaged, err)
		}
		of, err := g.of("orders", false)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, s := range of.workers[-1] {
			got = append(got, fmt.Sprint(s.lo, "-", s.hi, of.nodes[s.node]))
		}
		if want := "[1-6a 6-9b]"; fmt.Sprint(got) != want {
			t.Errorf("%v: %v, want %s", names, got, want)
		}
	}
	if _, _, err := ReadGrants(t.Context(), t.TempDir()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("an empty directory: %v", err)
	}
}
