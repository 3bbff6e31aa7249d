package audit

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/hapax-id/hapax"
)

// dump writes numbers into a file, a line each.
func dump(t *testing.T, name string, ids []hapax.ID) string {
	t.Helper()
	var text []byte
	for _, id := range ids {
		text = append(id.Append(text), '\n')
	}
	return file(t, name, string(text))
}

// file writes a file, packed where its name says so.
func file(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if strings.HasSuffix(name, ".gz") {
		text = pack(t, text)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func pack(t *testing.T, text string) string {
	t.Helper()
	var packed bytes.Buffer
	w, err := gzip.NewWriterLevel(&packed, gzip.BestSpeed)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(w, text); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return packed.String()
}

// The one number that occurs twice among two million is found, and where, though
// there is memory for few of them only.
func TestPlanted(t *testing.T) {
	const n, planted = 2_000_000, 1_234_567
	random := rand.New(rand.NewPCG(1, 2))
	ids := make([]hapax.ID, n)
	for i := range ids {
		ids[i] = hapax.ID(uint64(i) * 0x9E3779B97F4A7C15) // each once, in no order
	}
	for i := range 1000 { // and some stretches in order
		slices.Sort(ids[i*1000 : i*1000+random.IntN(1000)])
	}
	duplicate := ids[planted]
	files := []string{dump(t, "a.txt", ids[:n/2]), dump(t, "b.txt.gz", append(slices.Clone(ids[n/2:]), duplicate))}
	temp := t.TempDir()
	a, err := newAudit(files, nil, Options{Memory: 4 << 20, Temp: temp, Show: 5})
	if err != nil {
		t.Fatal(err)
	}
	report, err := a.run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want := []Finding{{duplicate, 2, []Place{{files[1], planted - n/2 + 1}, {files[1], n/2 + 1}}}}
	if report.Numbers != n+1 || report.Distinct != n || fmt.Sprint(report.Duplicates.List) != fmt.Sprint(want) {
		t.Errorf("%d numbers, %d different, duplicates %v; want %d, %d, %v", report.Numbers, report.Distinct, report.Duplicates, n+1, n, want)
	}
	// Some thirty runs were sorted, and fifteen can be merged at a time.
	if most := int(a.merging / mergeBytes); len(a.sorted.list) > most || a.sorted.file != nil || a.sorted.size == 0 {
		t.Errorf("%d runs, want %d at most, in a file that is closed; %d bytes", len(a.sorted.list), most, a.sorted.size)
	}
	if left, err := os.ReadDir(temp); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// What an audit reports is what a map tells, however the numbers are spread over
// runs and the cores' spans.
func TestAgainstMap(t *testing.T) {
	grants := &Grants{nodes: []string{"a", "b"}, lines: map[string][]stretch{
		"tag/x": {{-1000, 0, 1, 0}, {0, 500, 2, 1}, {700, 800, 3, 0}, {math.MaxInt64 - 1, math.MaxInt64, 4, 1}},
	}}
	number := rapid.OneOf(
		rapid.Int64Range(-1200, 1200), rapid.Int64(), rapid.SampledFrom([]int64{math.MinInt64, math.MaxInt64, math.MaxInt64 - 1, -1, 0}),
	)
	path := filepath.Join(t.TempDir(), "ids")
	rapid.Check(t, func(t *rapid.T) {
		var text strings.Builder
		count := map[hapax.ID]int64{}
		where := map[hapax.ID][]Place{}
		ids := rapid.SliceOfN(number, 0, 3000).Draw(t, "ids")
		for i, v := range ids {
			fmt.Fprintln(&text, v)
			id := hapax.ID(v)
			count[id]++
			if len(where[id]) < maxPlaces {
				where[id] = append(where[id], Place{path, int64(i + 1)})
			}
		}
		if err := os.WriteFile(path, []byte(text.String()), 0o600); err != nil {
			t.Fatal(err)
		}
		show := rapid.SampledFrom([]int{0, 1, 10, MaxShow}).Draw(t, "show")
		a, err := newAudit([]string{path}, nil, Options{Memory: MinMemory, Show: show, Grants: grants})
		if err != nil {
			t.Fatal(err)
		}
		a.cores = rapid.IntRange(1, 4).Draw(t, "cores")
		a.chunk = rapid.IntRange(1, 1000).Draw(t, "chunk")
		a.sorted.room = rapid.SampledFrom([]int64{0, 1 << 10, 1 << 20}).Draw(t, "room")
		a.merging = rapid.SampledFrom([]int64{0, 4 * mergeBytes, 1 << 30}).Draw(t, "for merging")
		a.blockSize = rapid.IntRange(24, 4000).Draw(t, "block")
		got, err := a.run(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		want := &Report{Numbers: int64(len(ids)), Distinct: int64(len(count)), Outside: &Findings{}}
		var byNode [2]int64
		for id, n := range count {
			node := -1
			for _, s := range grants.lines["tag/x"] {
				if s.lo <= int64(id) && int64(id) < s.hi {
					node = int(s.node)
				}
			}
			if want.Min == nil || id < *want.Min {
				want.Min = &id
			}
			if want.Max == nil || id > *want.Max {
				want.Max = &id
			}
			if n > 1 {
				want.Duplicates.Numbers++
				want.Duplicates.Times += n
				want.Duplicates.List = append(want.Duplicates.List, Finding{id, n, where[id]})
			}
			if node < 0 {
				want.Outside.Numbers++
				want.Outside.Times += n
				want.Outside.List = append(want.Outside.List, Finding{id, n, where[id]})
			} else {
				byNode[node] += n
			}
		}
		for i, n := range byNode {
			if n > 0 {
				want.Nodes = append(want.Nodes, NodeCount{grants.nodes[i], n})
			}
		}
		for _, f := range []*Findings{&want.Duplicates, want.Outside} {
			slices.SortFunc(f.List, func(a, b Finding) int {
				if a.ID < b.ID {
					return -1
				}
				return 1
			})
			f.List = append([]Finding{}, f.List[:min(len(f.List), show)]...)
		}
		want.Invalid.List, want.Unreadable = []InvalidLine{}, []Unreadable{}
		if g, w := jsonText(t, got), jsonText(t, want); g != w {
			t.Fatalf("got  %s\nwant %s", g, w)
		}
	})
}

func jsonText(t interface{ Fatal(args ...any) }, v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// Workers and days are those that the layout itself tells.
func TestLayouts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l, err := hapax.ParseLayout(rapid.SampledFrom(append(hapax.Layouts(), "type:2,time:10,worker:3,sequence:5,unit=1h,epoch=1969-12-30T05:30:00Z",
			"time:8,sequence:4,unit=25m,epoch=2026-01-01T00:10:00Z", "time:40,worker:18,sequence:4,unit=1h,epoch=2026-01-01T00:00:00Z")).Draw(t, "layout"))
		if err != nil {
			t.Fatal(err)
		}
		days, workers, misfits := map[string]int64{}, map[int64]int64{}, int64(0)
		var keys []uint64
		var id int64
		for range rapid.IntRange(1, 300).Draw(t, "count") {
			if rapid.Bool().Draw(t, "near") {
				id += rapid.Int64Range(0, 1<<36).Draw(t, "step")
			} else {
				id = int64(rapid.Uint64().Draw(t, "id") >> rapid.IntRange(0, 40).Draw(t, "shift"))
			}
			keys = append(keys, keyOf(hapax.ID(id)))
		}
		slices.Sort(keys)
		for _, k := range keys {
			fields, err := l.Parse(idOf(k))
			if err != nil {
				misfits++
				continue
			}
			if worker, ok := fields.Get(l.WorkerField()); ok {
				workers[worker]++
			}
			at, err := l.Time(idOf(k))
			if err != nil {
				t.Fatal(err)
			}
			days[at.Format(time.DateOnly)]++
		}
		tallies := []*tally{newTally(0, l, nil), newTally(0, l, nil)}
		cut := rapid.IntRange(0, len(keys)).Draw(t, "cut")
		tallies[0].take(keys[:cut])
		tallies[1].take(keys[cut:])
		r := Report{Misfits: &Findings{}}
		r.fill(tallies, 0)
		if r.Misfits.Times != misfits || len(r.Days) != len(days) || len(r.Workers) != len(workers) {
			t.Fatalf("%s: %d misfits, %v, %v; want %d, %v, %v", l, r.Misfits.Times, r.Days, r.Workers, misfits, days, workers)
		}
		for _, d := range r.Days {
			if days[d.Day] != d.Numbers {
				t.Fatalf("%s: %v, want %v", l, r.Days, days)
			}
		}
		for _, w := range r.Workers {
			if workers[w.Worker] != w.Numbers {
				t.Fatalf("%s: %v, want %v", l, r.Workers, workers)
			}
		}
	})
}

func TestSortProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		random := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		keys := make([]uint64, rapid.SampledFrom([]int{0, 1, 2, 64, 5000, 50_003}).Draw(t, "n"))
		mask := rapid.SampledFrom([]uint64{0, 1, 0xff, 0x1ff, 0xff00ff, 0xff << 56, 1 << 63, math.MaxUint64}).Draw(t, "mask")
		ordered := rapid.IntRange(0, len(keys)).Draw(t, "ordered")
		for i := range keys {
			keys[i] = random.Uint64() & mask
		}
		slices.Sort(keys[:ordered])
		want := slices.Sorted(slices.Values(keys))
		if got := sortKeys(keys, make([]uint64, len(keys))); !slices.Equal(got, want) {
			t.Fatal("not sorted")
		}
	})
}

// What is broken, hostile or empty is told, with its place, and what can be read
// is read.
func TestHostile(t *testing.T) {
	long := strings.Repeat("9", 3*blockSize)
	many := strings.Repeat("12345678901\n", 100_000)
	for _, test := range []struct {
		name, file, text string
		cut              int // bytes that the file lacks
		numbers          int64
		invalid          []int64
		unreadable       string
	}{
		{name: "empty", file: "a.txt"},
		{name: "empty and packed", file: "a.gz"},
		{name: "one byte", file: "a.txt", text: "7", numbers: 1},
		{name: "half a mark", file: "a.txt", text: "\x1f", invalid: []int64{1}},
		{name: "mark of gzip only", file: "a.txt", text: "\x1f\x8b", unreadable: "unexpected EOF"},
		{name: "no gzip behind the mark", file: "a.txt", text: "\x1f\x8b1234567890", unreadable: "gzip: invalid header"},
		{name: "long line", file: "a.txt", text: "1\n" + long + "\n2\n", numbers: 2, invalid: []int64{2}},
		{name: "long line at the end", file: "a.txt", text: "1\n" + long, numbers: 1, invalid: []int64{2}},
		{name: "long line packed", file: "a.gz", text: "1\n" + long + "\n2", numbers: 2, invalid: []int64{2}},
		{name: "line as long as a block", file: "a.txt", text: long[:blockSize] + "\n2", numbers: 1, invalid: []int64{1}},
		{name: "zero bytes", file: "a.txt", text: strings.Repeat("\x00", 5000) + "\n5", numbers: 1, invalid: []int64{1}},
		{name: "broken off", file: "a.gz", text: many + "123", cut: 5, numbers: 1, invalid: nil, unreadable: "unexpected EOF"},
		{name: "packed twice over", file: "a.gz", text: "\x1f\x8b\n5\n", numbers: 1, invalid: []int64{1}},
	} {
		t.Run(test.name, func(t *testing.T) {
			path := file(t, test.file, test.text)
			if test.cut > 0 {
				info, _ := os.Stat(path)
				if err := os.Truncate(path, info.Size()-int64(test.cut)); err != nil {
					t.Fatal(err)
				}
			}
			r, err := Run(t.Context(), []string{path}, nil, Options{Memory: MinMemory, Show: 10})
			if err != nil {
				t.Fatal(err)
			}
			var invalid []int64
			for _, x := range r.Invalid.List {
				invalid = append(invalid, x.Line)
			}
			unreadable := ""
			for _, x := range r.Unreadable {
				unreadable = x.Error
			}
			if !slices.Equal(invalid, test.invalid) || unreadable != test.unreadable {
				t.Errorf("invalid %v, unreadable %q; want %v, %q", invalid, unreadable, test.invalid, test.unreadable)
			}
			if test.cut > 0 && r.Distinct > 1 {
				t.Errorf("the beginning of a line was taken for a number: %v", r.Max)
			}
			if test.cut == 0 && r.Numbers != test.numbers {
				t.Errorf("%d numbers, want %d", r.Numbers, test.numbers)
			}
		})
	}
}

// A file that unpacks to a thousand times its size takes no more memory than
// another.
func TestBomb(t *testing.T) {
	const size = 64 << 20
	path := filepath.Join(t.TempDir(), "bomb.gz")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	w, err := gzip.NewWriterLevel(f, gzip.BestSpeed)
	if err != nil {
		t.Fatal(err)
	}
	zeros := make([]byte, 1<<20)
	for range size / len(zeros) {
		w.Write(zeros)
	}
	if err := errors.Join(w.Close(), f.Close()); err != nil {
		t.Fatal(err)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	r, err := Run(t.Context(), []string{path}, nil, Options{Memory: MinMemory, Show: 10})
	runtime.ReadMemStats(&after)
	if err != nil || r.Invalid.Lines != 1 || r.Numbers != 0 {
		t.Errorf("got %+v, %v, want one line without a number", r, err)
	}
	if used := after.TotalAlloc - before.TotalAlloc; used > size/2 {
		t.Errorf("%d bytes were allocated for a file that unpacks to %d", used, size)
	}
}

// The list of lines without a number stays short and holds the first ones.
func TestInvalidIsBounded(t *testing.T) {
	var text strings.Builder
	for i := range 50_000 {
		fmt.Fprintf(&text, "x%d\n", i)
	}
	a, err := newAudit([]string{file(t, "a", text.String()), file(t, "b", "y")}, nil, Options{Memory: MinMemory, Show: 3})
	if err != nil {
		t.Fatal(err)
	}
	a.blockSize = 1000
	r, err := a.run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(r.Invalid.Lines, r.Invalid.List); got != fmt.Sprintf("50001 [{{%[1]s 1} x0 0} {{%[1]s 2} x1 0} {{%[1]s 3} x2 0}]", a.files[0]) {
		t.Errorf("got %s", got)
	}
}

func TestRefusals(t *testing.T) {
	path := file(t, "a.csv", "id,name\n1,x\n")
	grants := &Grants{lines: map[string][]stretch{"tag/a": nil, "tag/b": nil}}
	leaf, err := hapax.ParseLayout(hapax.LayoutLeaf)
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name  string
		files []string
		opts  Options
		want  string
	}{
		{"memory", []string{path}, Options{Memory: 1}, "invalid memory 1: want 1048576 to 1099511627776 bytes"},
		{"show", []string{path}, Options{Show: -1}, "invalid show -1"},
		{"column 0", []string{path}, Options{Column: "0"}, `invalid column "0"`},
		{"separator", []string{path}, Options{Column: "1", Separator: '"'}, "invalid separator"},
		{"column missing", []string{path}, Options{Column: "ID"}, `whose first record is "id, name"`},
		{"directory", []string{t.TempDir()}, Options{}, "this is a directory"},
		{"missing", []string{path + "x"}, Options{}, "no such file"},
		{"twice", []string{path, path}, Options{}, "each file once"},
		{"twice by another name", []string{path, filepath.Dir(path) + "/./a.csv"}, Options{}, "each file once"},
		{"standard input twice", []string{"-", "-"}, Options{}, "each file once"},
		{"several tags", []string{path}, Options{Grants: grants}, "one of the tags that there are grants of: a, b"},
		{"unknown tag", []string{path}, Options{Grants: grants, Of: "c"}, `invalid tag "c"`},
		{"no pool", []string{path}, Options{Grants: grants, Layout: leaf}, "of which the file has none"},
		{"no room and no file", []string{dump(t, "n", make([]hapax.ID, 3_000_000))}, Options{Memory: MinMemory, Temp: filepath.Join(path, "x")}, "name a directory with --temp"},
	} {
		t.Run(test.name, func(t *testing.T) {
			r, err := Run(t.Context(), test.files, strings.NewReader(""), test.opts)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %+v, %v, want %q", r, err, test.want)
			}
		})
	}
	random := make([]hapax.ID, 300_000)
	for i := range random {
		random[i] = hapax.ID(rand.Uint64())
	}
	if _, err := Run(t.Context(), []string{dump(t, "n", random)}, nil, Options{Memory: MinMemory, Temp: filepath.Join(path, "x")}); err == nil || !strings.Contains(err.Error(), "--temp") {
		t.Errorf("without a directory for the temporary file: %v", err)
	}
}

// endless gives numbers, and calls stop when it was read so often.
type endless struct {
	stop func()
	left int
	text []byte
}

func (e *endless) Read(p []byte) (int, error) {
	if e.left--; e.left == 0 {
		e.stop()
	}
	for len(e.text) < len(p) {
		e.text = append(strconv.AppendInt(e.text, rand.Int64(), 10), '\n')
	}
	n := copy(p, e.text)
	e.text = append(e.text[:0], e.text[n:]...)
	return n, nil
}

// An audit that is interrupted ends, and leaves nothing behind.
func TestInterrupted(t *testing.T) {
	temp := t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	if _, err := Run(ctx, []string{"-"}, &endless{stop: cancel, left: 10}, Options{Memory: 4 << 20, Temp: temp}); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want that it was cancelled", err)
	}
	if left, err := os.ReadDir(temp); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// What cannot be read a second time has no places.
func TestStandardInput(t *testing.T) {
	path := file(t, "a", "5\n6\n5\n")
	r, err := Run(t.Context(), []string{"-", path}, strings.NewReader("6\n7\nx\n"), Options{Show: 9})
	if err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf("[{5 2 [{%s 1} {%s 3}]} {6 2 [{%s 2}]}]", path, path, path)
	if got := fmt.Sprint(r.Duplicates.List); got != want || r.Invalid.List[0].Place != (Place{"-", 3}) {
		t.Errorf("got %s, %v, want %s", got, r.Invalid.List, want)
	}
}

func TestProgress(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	var last Progress
	_, err := Run(ctx, []string{"-"}, &endless{}, Options{Memory: 64 << 20, Progress: func(p Progress) {
		last = p
		cancel()
	}})
	if !errors.Is(err, context.Canceled) || last.Phase != "reading" || last.Done == 0 || last.Total != 0 || last.Elapsed == 0 {
		t.Errorf("told %+v, %v", last, err)
	}
}
