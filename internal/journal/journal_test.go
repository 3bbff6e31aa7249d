package journal

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func open(t *testing.T, dir string, opts Options) *Journal {
	t.Helper()
	j, err := Open(dir, "x", opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := j.Close(); err != nil {
			t.Error(err)
		}
	})
	return j
}

// records returns the records that are not the journal's own.
func records(t *testing.T, dir string) (all []string, damaged int) {
	t.Helper()
	damaged, err := Read(t.Context(), dir, "x", func(r []byte) error {
		if r[0] != '#' {
			all = append(all, string(r))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all, damaged
}

func TestRoundTrip(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "ledger")
	var want []string
	for range 3 {
		j, err := Open(dir, "x", Options{})
		if err != nil {
			t.Fatal(err)
		}
		for i := range 5 {
			if err := j.Append("a", strconv.Itoa(len(want)), "tab\there\nline"); err != nil {
				t.Fatal(err)
			}
			want = append(want, "a\t"+strconv.Itoa(len(want))+"\ttab here line")
			if got, damaged := records(t, dir); !slices.Equal(got, want) || damaged != 0 {
				t.Fatalf("after record %d: %q, %d damaged", i, got, damaged)
			}
		}
		if got := j.Stats(); got != (Stats{Written: 6}) {
			t.Errorf("after five records and the one that begins the file: %+v", got)
		}
		if err := errors.Join(j.Close(), j.Close()); err != nil {
			t.Fatal(err)
		}
		if err := j.Append("late"); !errors.Is(err, os.ErrClosed) {
			t.Errorf("after Close: %v", err)
		}
	}
	if files, _ := Files(dir, "x"); len(files) != 1 {
		t.Errorf("there are %d files after three starts", len(files))
	}
}

// Whatever a crash leaves of the last record, the others are read, and later ones
// are written behind it.
func TestTornLastRecord(t *testing.T) {
	whole := t.TempDir()
	j := open(t, whole, Options{})
	for i := range 3 {
		if err := j.Append("record", strconv.Itoa(i)); err != nil {
			t.Fatal(err)
		}
	}
	files, _ := Files(whole, "x")
	data, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	start := bytes.LastIndexByte(data[:len(data)-1], '\n') + 1
	for cut := start; cut < len(data); cut++ {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, filepath.Base(files[0])), data[:cut], 0o600); err != nil {
			t.Fatal(err)
		}
		if got, damaged := records(t, dir); len(got) != 2 || damaged != 0 {
			t.Fatalf("cut at %d, while it may be written: %q, %d damaged", cut, got, damaged)
		}
		j := open(t, dir, Options{})
		if err := j.Append("later"); err != nil {
			t.Fatal(err)
		}
		want, torn := []string{"record\t0", "record\t1", "later"}, 1
		switch cut {
		case start:
			torn = 0
		case len(data) - 1: // only the line's end was missing
			want, torn = slices.Insert(want, 2, "record\t2"), 0
		}
		if got, damaged := records(t, dir); !slices.Equal(got, want) || damaged != torn {
			t.Fatalf("cut at %d: %q, %d damaged", cut, got, damaged)
		}
	}
}

// A byte that changed costs its record, and if it ends a line the next one, too.
func TestDamageCostsOneRecord(t *testing.T) {
	dir := t.TempDir()
	j := open(t, dir, Options{})
	for i := range 3 {
		if err := j.Append("record", strconv.Itoa(i)); err != nil {
			t.Fatal(err)
		}
	}
	files, _ := Files(dir, "x")
	data, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	first := bytes.IndexByte(data, '\n') + 1
	for at := first; at < len(data); at++ {
		for _, flip := range []byte{1, 0x80, data[at] ^ '\n'} {
			bad := bytes.Clone(data)
			bad[at] ^= flip
			var got []string
			damaged, err := Scan(t.Context(), bytes.NewReader(bad), false, func(r []byte) error {
				if r[0] != '#' {
					got = append(got, string(r))
				}
				return nil
			})
			most := 1
			if data[at] == '\n' || bad[at] == '\n' {
				most = 2
			}
			if flip != 0 && (err != nil || len(got) < 3-most || damaged < 1 || damaged > 2) {
				t.Fatalf("byte %d: %q, %d damaged, %v", at, got, damaged, err)
			}
			for _, r := range got {
				if !slices.Contains([]string{"record\t0", "record\t1", "record\t2"}, r) {
					t.Fatalf("byte %d: %q was never written", at, r)
				}
			}
		}
	}
}

// Files are rotated while they are written and read, and the oldest go first.
func TestRotationAndSize(t *testing.T) {
	dir := t.TempDir()
	j := open(t, dir, Options{Bytes: MinBytes})
	long := strings.Repeat("z", 1000)
	const writers, each = 4, 700 // 2.8 MB in files of 64 KiB
	var wg sync.WaitGroup
	stop := make(chan struct{})
	var reading sync.WaitGroup
	reading.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				if _, damaged := records(t, dir); damaged != 0 {
					t.Errorf("%d records are damaged for one who reads while they are written", damaged)
					return
				}
			}
		}
	})
	for w := range writers {
		wg.Go(func() {
			for i := range each {
				if err := j.Append(strconv.Itoa(w), strconv.Itoa(i), long); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	close(stop)
	reading.Wait()
	if err := j.Sync(); err != nil {
		t.Fatal(err)
	}
	if err := j.sweep(); err != nil {
		t.Fatal(err)
	}
	if err := j.Close(); err != nil { // or it sweeps while files are looked at
		t.Fatal(err)
	}
	files, _ := Files(dir, "x")
	size := int64(0)
	for _, f := range files {
		info, err := os.Stat(f)
		if err != nil {
			t.Fatal(err)
		}
		size += info.Size()
	}
	if len(files) < 10 || size > MinBytes+MinBytes/parts {
		t.Errorf("%d files have %d bytes", len(files), size)
	}
	next := map[string]int{}
	got, damaged := records(t, dir)
	for _, r := range got {
		w, rest, _ := strings.Cut(r, "\t")
		number, _, _ := strings.Cut(rest, "\t")
		i, _ := strconv.Atoi(number)
		if was, ok := next[w]; ok && i != was {
			t.Fatalf("writer %s: record %d follows %d", w, i, was-1)
		}
		next[w] = i + 1
	}
	if len(got) < 900 || len(got) > 1100 || damaged != 0 {
		t.Errorf("%d records of a kilobyte are kept, %d damaged", len(got), damaged)
	}
	last, _, _ := strings.Cut(got[len(got)-1], "\t")
	if next[last] != each {
		t.Errorf("the last record is number %d of writer %s, which wrote %d", next[last]-1, last, each)
	}
}

func TestAge(t *testing.T) {
	dir := t.TempDir()
	var mu sync.Mutex
	now := time.Date(2026, 11, 21, 0, 0, 0, 0, time.UTC)
	advance := func(d time.Duration) {
		mu.Lock()
		defer mu.Unlock()
		now = now.Add(d)
	}
	j := open(t, dir, Options{Age: 16 * time.Hour, Now: func() time.Time { mu.Lock(); defer mu.Unlock(); return now }})
	for i := range 40 {
		if err := j.Append(strconv.Itoa(i)); err != nil {
			t.Fatal(err)
		}
		files, _ := Files(dir, "x")
		mu.Lock()
		at := now
		mu.Unlock()
		if err := os.Chtimes(files[len(files)-1], at, at); err != nil {
			t.Fatal(err)
		}
		advance(time.Hour)
	}
	if err := j.sweep(); err != nil {
		t.Fatal(err)
	}
	got, _ := records(t, dir)
	if len(got) == 0 || got[0] != "24" || got[len(got)-1] != "39" {
		t.Errorf("what is kept is %q", got)
	}
}

// A disk for tests that has room for so many bytes, and loses what was not synced.
type disk struct {
	mu    sync.Mutex
	room  int // -1: enough
	files []*diskFile

	unsynced bool // it syncs nothing
}

type diskFile struct {
	*os.File
	disk   *disk
	size   int64
	synced int64
	stuck  bool // it cannot be truncated either
}

func (d *disk) open(path string) (File, error) {
	f, err := openFile(path)
	if err != nil {
		return nil, err
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.files = append(d.files, &diskFile{File: f.(*os.File), disk: d, size: info.Size(), synced: info.Size()})
	return d.files[len(d.files)-1], nil
}

var errFull = errors.New("no space left on device")

func (f *diskFile) Write(p []byte) (int, error) {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	fits := len(p)
	if f.disk.room >= 0 {
		fits = min(fits, f.disk.room)
		f.disk.room -= fits
	}
	n, err := f.File.Write(p[:fits])
	f.size += int64(n)
	if err == nil && n < len(p) {
		err = errFull
	}
	return n, err
}

func (f *diskFile) Truncate(size int64) error {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	if f.stuck {
		return errFull
	}
	if f.disk.room >= 0 {
		f.disk.room += int(f.size - size)
	}
	f.size = size
	return f.File.Truncate(size)
}

func (f *diskFile) Sync() error {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	if f.disk.unsynced {
		return errFull
	}
	f.synced = f.size
	return nil
}

// lose is a power loss.
func (d *disk) lose(t *testing.T) {
	t.Helper()
	for _, f := range d.files {
		if err := os.Truncate(f.Name(), f.synced); err != nil {
			t.Fatal(err)
		}
	}
}

// A full disk delays records; it loses none as long as they fit into memory.
func TestFullDisk(t *testing.T) {
	for _, stuck := range []bool{false, true} {
		t.Run(fmt.Sprintf("stuck=%t", stuck), func(t *testing.T) {
			dir := t.TempDir()
			d := &disk{room: -1}
			told := make(chan error, 10)
			j := open(t, dir, Options{Open: d.open, Trouble: func(err error) { told <- err }})
			if err := j.Append("first"); err != nil {
				t.Fatal(err)
			}
			d.mu.Lock()
			d.room, d.files[0].stuck = 5, stuck
			d.mu.Unlock()
			for i := range 3 {
				if err := j.Append("while full", strconv.Itoa(i)); !errors.Is(err, errFull) {
					t.Fatalf("on a full disk: %v", err)
				}
			}
			if err := <-told; !errors.Is(err, errFull) {
				t.Errorf("told of %v", err)
			}
			if s := j.Stats(); s.Waiting < 3 || s.Lost != 0 {
				t.Errorf("the counts are %+v", s)
			}
			d.mu.Lock()
			d.room = -1
			d.mu.Unlock()
			if err := j.Ready(); err != nil {
				t.Fatal(err)
			}
			if err := <-told; err != nil {
				t.Errorf("told of %v", err)
			}
			want := []string{"first", "while full\t0", "while full\t1", "while full\t2"}
			if s := j.Stats(); s != (Stats{Written: 5}) {
				t.Errorf("after four records and the one that begins the file, the counts are %+v", s)
			}
			got, damaged := records(t, dir)
			if !slices.Equal(got, want) || (damaged > 0) != stuck {
				t.Errorf("%q, %d damaged", got, damaged)
			}
		})
	}
}

// What does not fit into memory either is lost, and the journal says so.
func TestLost(t *testing.T) {
	dir := t.TempDir()
	d := &disk{room: 0}
	j := open(t, dir, Options{Open: d.open})
	long := strings.Repeat("z", 10_000)
	for i := range 200 {
		if err := j.Append(strconv.Itoa(i), long); err == nil {
			t.Fatal("a full disk has taken a record")
		}
	}
	lost := j.Stats().Lost
	if lost < 50 || lost > 150 {
		t.Errorf("%d of 200 records of 10 kB are lost; a MiB is kept", lost)
	}
	d.mu.Lock()
	d.room = -1
	d.mu.Unlock()
	if err := errors.Join(j.Ready(), j.Append("last")); err != nil { // Ready has said what was lost
		t.Fatal(err)
	}
	var said int64
	n := 0
	_, err := Read(t.Context(), dir, "x", func(r []byte) error {
		if fields := strings.Split(string(r), "\t"); fields[0] == Lost {
			said, _ = strconv.ParseInt(fields[3], 10, 64)
		} else if fields[0] != Opened {
			n++
		}
		return nil
	})
	if err != nil || said != lost || int64(n) != 201-lost {
		t.Errorf("%d are lost, the journal says %d, and has %d of 201: %v", lost, said, n, err)
	}
	if err := j.Append("too long", strings.Repeat("z", MaxRecord)); err != nil || j.Stats().Lost != lost+1 {
		t.Errorf("a record that is too long: %v, %+v", err, j.Stats())
	}
}

// A file that was rotated away and could not be synced is synced by the next Sync, which promises its
// records, too.
func TestRetiredIsSyncedAgain(t *testing.T) {
	dir := t.TempDir()
	d := &disk{room: -1}
	j := open(t, dir, Options{Open: d.open, Bytes: MinBytes})
	long := strings.Repeat("z", 10_000)
	appended := 0
	for ; len(d.files) < 2; appended++ {
		if err := j.Append(strconv.Itoa(appended), long); err != nil {
			t.Fatal(err)
		}
	}
	d.mu.Lock()
	d.unsynced = true
	d.mu.Unlock()
	if err := j.Sync(); !errors.Is(err, errFull) {
		t.Fatalf("on a disk that does not sync: %v", err)
	}
	d.mu.Lock()
	d.unsynced = false
	d.mu.Unlock()
	if err := j.Sync(); err != nil {
		t.Fatal(err)
	}
	d.mu.Lock()
	d.lose(t)
	d.mu.Unlock()
	if got, damaged := records(t, dir); len(got) != appended || damaged != 0 {
		t.Errorf("%d of %d records are left, %d damaged", len(got), appended, damaged)
	}
}

// What Sync has returned for is there after a power loss.
func TestPowerLoss(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		dir := filepath.Join(t.TempDir(), rand.Text())
		d := &disk{room: -1}
		j, err := Open(dir, "x", Options{Open: d.open, Bytes: MinBytes})
		if err != nil {
			t.Fatal(err)
		}
		long := strings.Repeat("z", 3000)
		var appended, durable int
		for range rapid.IntRange(1, 100).Draw(r, "steps") {
			if rapid.IntRange(0, 4).Draw(r, "step") == 0 {
				if err := j.Sync(); err != nil {
					t.Fatal(err)
				}
				durable = appended
				continue
			}
			if err := j.Append(strconv.Itoa(appended), long); err != nil {
				t.Fatal(err)
			}
			appended++
		}
		d.mu.Lock()
		d.lose(t)
		d.mu.Unlock()
		got, damaged := records(t, dir)
		if len(got) < durable || damaged != 0 {
			r.Errorf("%d of %d records were durable, %d are there, %d damaged", durable, appended, len(got), damaged)
		}
		_ = j.Close() // its disk is gone
	})
}

func TestBadOptions(t *testing.T) {
	for _, o := range []Options{{Bytes: MinBytes - 1}, {Bytes: -1}, {Age: time.Millisecond}, {Age: -time.Hour}} {
		if j, err := Open(t.TempDir(), "x", o); err == nil {
			t.Errorf("%+v is taken", o)
			_ = j.Close()
		}
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(file, "x", Options{}); err == nil {
		t.Error("a file is taken for a directory")
	}
	if n, err := Read(context.Background(), filepath.Join(file, "none"), "x", nil); n != 0 || err == nil {
		t.Errorf("reading below a file: %d, %v", n, err)
	}
	if n, err := Read(context.Background(), filepath.Join(t.TempDir(), "none"), "x", nil); n != 0 || err != nil {
		t.Errorf("reading nothing: %d, %v", n, err)
	}
}

// Whatever is in a file, what is read was written so, with its checksum.
func FuzzScan(f *testing.F) {
	f.Add([]byte("a\tb\t00000000\n"))
	f.Add([]byte("\n\n\t\n" + strings.Repeat("x", 5*MaxRecord) + "\nshort"))
	f.Fuzz(func(t *testing.T, data []byte) {
		lines := bytes.Count(data, []byte{'\n'}) + 1
		n := 0
		damaged, err := Scan(t.Context(), bytes.NewReader(data), false, func(r []byte) error {
			if n++; !bytes.Contains(data, append(bytes.Clone(r), '\t')) {
				t.Errorf("%q is not in the file", r)
			}
			return nil
		})
		if err != nil || n+damaged > lines {
			t.Errorf("%d records and %d damaged of %d lines: %v", n, damaged, lines, err)
		}
	})
}
