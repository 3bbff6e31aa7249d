package witness

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/hapax-id/hapax"
)

// acceptNow asks and accepts with nothing in between.
func acceptNow(w *Witness, line string, g hapax.Grant) error {
	c := w.begin(line)
	defer w.end(c)
	return w.accept(c, g, 0)
}

// lower is a hand-back that the store has taken.
func lower(w *Witness, line string, next int64) error {
	return errors.Join(w.offer(line, next), w.settle(line, true))
}

// Grants of one line that are under way together are accepted in any order, unless
// they overlap: then the store went back between them.
func TestWitnessAcceptsGrantsUnderWayTogether(t *testing.T) {
	w := newWitness(t)
	first, second, third := w.begin("tag/orders"), w.begin("tag/orders"), w.begin("tag/orders")
	for _, c := range []struct {
		*call
		hapax.Grant
	}{{second, hapax.Grant{Lo: 1001, Hi: 2001}}, {first, hapax.Grant{Lo: 1, Hi: 1001}}} {
		if err := w.accept(c.call, c.Grant, 0); err != nil {
			t.Errorf("accept %v: %v", c.Grant, err)
		}
	}
	for _, g := range []hapax.Grant{{Lo: 1000, Hi: 1500}, {Lo: 2000, Hi: 2001}, {Lo: 0, Hi: 9999}} {
		if err := w.accept(third, g, 0); !errors.Is(err, hapax.ErrStoreRolledBack) {
			t.Errorf("accept %v, which overlaps what was accepted meanwhile: %v, want ErrStoreRolledBack", g, err)
		}
	}
	for _, c := range []*call{first, second, third} {
		w.end(c)
	}
	if mark, _ := w.Mark("tag/orders"); mark != 2001 {
		t.Errorf("mark is %d, want 2001", mark)
	}
	if err := acceptNow(w, "tag/orders", hapax.Grant{Lo: 1001, Hi: 3001}); !errors.Is(err, hapax.ErrStoreRolledBack) {
		t.Errorf("a grant asked for later that begins below the mark: %v, want ErrStoreRolledBack", err)
	}
	if len(w.calls) != 0 {
		t.Errorf("%d lines are kept although no call is under way", len(w.calls))
	}
}

// A hand-back may be answered before or after a grant that was asked for before
// it, and a crash may fall between any two steps: what was handed back may be
// granted anew, and nothing below it.
func TestWitnessHandBack(t *testing.T) {
	const line = "tag/orders"
	for name, c := range map[string]struct {
		steps func(*Witness) error
		low   int64 // the lowest grant that is accepted afterwards
	}{
		"offered":             {func(w *Witness) error { return w.offer(line, 400) }, 400},
		"taken":               {func(w *Witness) error { return lower(w, line, 400) }, 400},
		"refused":             {func(w *Witness) error { return errors.Join(w.offer(line, 400), w.settle(line, false)) }, 1001},
		"above what is known": {func(w *Witness) error { return lower(w, line, 5000) }, 1001},
		"granted above it, its outcome unknown": {func(w *Witness) error {
			return errors.Join(w.offer(line, 400), acceptNow(w, line, hapax.Grant{Lo: 1001, Hi: 2001}))
		}, 2001},
		"granted before it is settled": {func(w *Witness) error {
			return errors.Join(w.offer(line, 400), acceptNow(w, line, hapax.Grant{Lo: 400, Hi: 700}), w.settle(line, true))
		}, 700},
	} {
		for _, restart := range []bool{false, true} {
			w := newWitness(t)
			accept(t, w, line, 1, 1001)
			early := w.begin(line)
			if err := c.steps(w); err != nil {
				t.Fatal(name, err)
			}
			if restart {
				w = reopen(t, w)
				early = w.begin(line)
			}
			if mark, _ := w.Mark(line); mark != c.low {
				t.Errorf("%s, restart %v: the mark is %d, want %d", name, restart, mark, c.low)
			}
			if err := acceptNow(w, line, hapax.Grant{Lo: c.low - 1, Hi: c.low + 10}); !errors.Is(err, hapax.ErrStoreRolledBack) {
				t.Errorf("%s, restart %v: a grant below %d: %v", name, restart, c.low, err)
			}
			if err := w.accept(early, hapax.Grant{Lo: c.low, Hi: c.low + 10}, 0); err != nil {
				t.Errorf("%s, restart %v: a grant from %d, asked for before: %v", name, restart, c.low, err)
			}
		}
	}
}

func openWitness(t testing.TB, path string) *Witness {
	t.Helper()
	w, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.Close() })
	return w
}

func newWitness(t testing.TB) *Witness { return openWitness(t, filepath.Join(t.TempDir(), "witness")) }

// reopen closes the witness and opens it again.
func reopen(t testing.TB, w *Witness) *Witness {
	t.Helper()
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return openWitness(t, w.log.path)
}

func accept(t testing.TB, w *Witness, line string, lo, hi int64) {
	t.Helper()
	if err := acceptNow(w, line, hapax.Grant{Lo: lo, Hi: hi}); err != nil {
		t.Fatal(err)
	}
}

func TestWitnessRemembers(t *testing.T) {
	w := newWitness(t)
	if info, err := os.Stat(w.log.path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode is %v, %v", info.Mode(), err)
	}
	if err := w.setStore("store-1"); err != nil {
		t.Fatal(err)
	}
	orders, worker := TagLine("orders ἅπαξ"), WorkerLine("a/b", 7)
	accept(t, w, orders, 1, 1001)
	accept(t, w, orders, 1001, 2001) // adjacent
	accept(t, w, orders, 5000, 6000) // after a gap
	accept(t, w, worker, 0, 10)
	want := map[string]int64{"tag/orders ἅπαξ": 6000, "worker/a/b/7": 10}
	for range 3 {
		if got := w.Lines(); !maps.Equal(got, want) {
			t.Fatalf("lines are %v, want %v", got, want)
		}
		if mark, ok := w.Mark(orders); !ok || mark != 6000 {
			t.Fatalf("mark is %d, %v", mark, ok)
		}
		w = reopen(t, w)
	}
	if err := w.setStore("store-1"); err != nil {
		t.Error(err)
	}
	if _, ok := w.Mark("tag/other"); ok {
		t.Error("an unknown line has a mark")
	}
}

func TestWitnessRolledBack(t *testing.T) {
	w := newWitness(t)
	accept(t, w, "tag/orders", 1, 1001)
	for _, g := range []hapax.Grant{{Lo: 1000, Hi: 2000}, {Lo: 1, Hi: 1001}, {Lo: 0, Hi: 5000}} {
		err := acceptNow(w, "tag/orders", g)
		if !errors.Is(err, hapax.ErrStoreRolledBack) {
			t.Errorf("Accept(%v) = %v, want hapax.ErrStoreRolledBack", g, err)
			continue
		}
		for _, part := range []string{`"tag/orders"`, fmt.Sprint(g.Lo), fmt.Sprint(g.Hi)} {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%v does not tell %s", err, part)
			}
		}
	}
	if mark, _ := w.Mark("tag/orders"); mark != 1001 {
		t.Errorf("after refusals the mark is %d", mark)
	}
	if err := acceptNow(reopen(t, w), "tag/orders", hapax.Grant{Lo: 1000, Hi: 2000}); !errors.Is(err, hapax.ErrStoreRolledBack) {
		t.Errorf("after opening again: %v", err)
	}
}

func TestWitnessLower(t *testing.T) {
	w := newWitness(t)
	accept(t, w, "worker/default/1", 100, 200)
	for _, test := range []struct {
		line       string
		mark, want int64
		known      bool
	}{
		{"worker/default/1", 201, 200, true},
		{"worker/default/1", 200, 200, true},
		{"worker/default/1", 150, 150, true},
		{"worker/default/1", 180, 150, true},
		{"worker/default/2", 10, 0, false},
	} {
		if err := lower(w, test.line, test.mark); err != nil {
			t.Fatal(err)
		}
		w = reopen(t, w)
		if mark, known := w.Mark(test.line); mark != test.want || known != test.known {
			t.Errorf("after Lower(%s, %d): %d, %v", test.line, test.mark, mark, known)
		}
	}
	accept(t, w, "worker/default/1", 150, 160)
}

func TestWitnessRefusesImpossibleGrants(t *testing.T) {
	w := newWitness(t)
	for name, g := range map[string]hapax.Grant{"empty": {Lo: 5, Hi: 5}, "backwards": {Lo: 5, Hi: 4}, "negative": {Lo: -1, Hi: 4}} {
		if err := acceptNow(w, "a", g); !errors.Is(err, hapax.ErrStoreCorrupt) {
			t.Errorf("%s: %v, want ErrStoreCorrupt", name, err)
		}
	}
	if len(w.Lines()) != 0 {
		t.Errorf("refused calls left %v", w.Lines())
	}
}

// However many lines there are, the witness opens.
func TestWitnessHasNoSizeLimit(t *testing.T) {
	w := newWitness(t)
	const many = 300_000
	for i := range many {
		w.state.Marks[TagLine(strconv.Itoa(i))] = 1
	}
	w.log.long = 0
	accept(t, w, "one more", 1, 2)
	if got := len(reopen(t, w).Lines()); got != many+1 {
		t.Errorf("%d lines were kept, want %d", got, many+1)
	}
}

func TestWitnessLock(t *testing.T) {
	w := newWitness(t)
	if _, err := Open(w.log.path); !errors.Is(err, hapax.ErrStoreLocked) {
		t.Errorf("opened twice: %v, want hapax.ErrStoreLocked", err)
	}
	accept(t, w, "a", 1, 2) // the refused one did no harm
	w = reopen(t, w)
	if mark, _ := w.Mark("a"); mark != 2 {
		t.Errorf("mark is %d, want 2", mark)
	}
}

func TestWitnessClose(t *testing.T) {
	w := newWitness(t)
	for range 2 {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	}
	for name, err := range map[string]error{
		"Accept": acceptNow(w, "a", hapax.Grant{Lo: 1, Hi: 2}), "Lower": lower(w, "a", 1), "Store": w.setStore("s"), "Adopt": w.setStore("s"),
	} {
		if !errors.Is(err, hapax.ErrClosed) {
			t.Errorf("%s after Close: %v, want hapax.ErrClosed", name, err)
		}
	}
}

func TestOpenFails(t *testing.T) {
	dir := t.TempDir()
	if _, err := Open(filepath.Join(dir, "missing", "witness")); !errors.Is(err, hapax.ErrStoreUnavailable) || !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no directory: %v", err)
	}
	path := filepath.Join(dir, "witness")
	if err := os.Mkdir(path, 0o700); err != nil {
		t.Fatal(err)
	}
	for range 2 { // a lock that stays taken would show the second time
		if _, err := Open(path); !errors.Is(err, hapax.ErrStoreUnavailable) {
			t.Errorf("a directory: %v, want hapax.ErrStoreUnavailable", err)
		}
	}
}

// A logFileSpy stands between a log and its file.
type logFileSpy struct {
	logFile
	syncs  atomic.Int64
	onSync func() error // runs instead of a sync if it returns an error
	write  error        // fails the writes
}

func (f *logFileSpy) Write(p []byte) (int, error) {
	if f.write != nil {
		return 0, f.write
	}
	return f.logFile.Write(p)
}

func (f *logFileSpy) Sync() error {
	f.syncs.Add(1)
	if f.onSync != nil {
		if err := f.onSync(); err != nil {
			return err
		}
	}
	return f.logFile.Sync()
}

// A change that cannot be made durable is refused, and the next one mends the file.
func TestWitnessSurvivesAFailedWrite(t *testing.T) {
	broken := errors.New("no space left on device")
	for name, spy := range map[string]*logFileSpy{
		"write": {write: broken},
		"sync":  {onSync: func() error { return broken }},
	} {
		w := newWitness(t)
		accept(t, w, "a", 1, 10)
		spy.logFile = w.log.file
		w.log.file = spy
		if err := acceptNow(w, "a", hapax.Grant{Lo: 10, Hi: 20}); !errors.Is(err, hapax.ErrStoreUnavailable) || !errors.Is(err, broken) {
			t.Errorf("%s: %v, want ErrStoreUnavailable and the cause", name, err)
		}
		accept(t, w, "a", 20, 30)
		accept(t, w, "b", 1, 2)
		if got, want := reopen(t, w).Lines(), map[string]int64{"a": 30, "b": 2}; !maps.Equal(got, want) {
			t.Errorf("%s: %v was kept, want %v", name, got, want)
		}
	}
}

// While one batch is being synced, all that comes shares the next sync.
func TestWitnessGroupCommit(t *testing.T) {
	const callers = 100
	w := newWitness(t)
	syncing, release := make(chan struct{}, 2), make(chan struct{})
	spy := &logFileSpy{logFile: w.log.file, onSync: func() error {
		syncing <- struct{}{}
		<-release
		return nil
	}}
	w.log.file = spy

	var wg sync.WaitGroup
	start := func(line string) {
		wg.Go(func() {
			if err := acceptNow(w, line, hapax.Grant{Lo: 1, Hi: 2}); err != nil {
				t.Error(err)
			}
			data, err := os.ReadFile(w.log.path)
			if err != nil || !bytes.Contains(data, []byte(strconv.Quote(line)+":2")) {
				t.Errorf("%s was acknowledged before it was written (%v)", line, err)
			}
		})
	}
	start("first")
	<-syncing
	for i := range callers {
		start(fmt.Sprintf("line-%03d", i))
	}
	for len(w.Lines()) < callers+1 {
		time.Sleep(time.Millisecond)
	}
	close(release)
	wg.Wait()
	if got := spy.syncs.Load(); got != 2 {
		t.Errorf("%d callers took %d syncs, want 2", callers+1, got)
	}
	if got := len(reopen(t, w).Lines()); got != callers+1 {
		t.Errorf("%d lines were kept, want %d", got, callers+1)
	}
}

// A batch that waits when the witness is closed is refused, not lost silently.
func TestWitnessCloseWhileWriting(t *testing.T) {
	w := newWitness(t)
	syncing, release := make(chan struct{}, 2), make(chan struct{})
	w.log.file = &logFileSpy{logFile: w.log.file, onSync: func() error {
		syncing <- struct{}{}
		<-release
		return nil
	}}
	var first, second error
	var wg sync.WaitGroup
	wg.Go(func() { first = acceptNow(w, "first", hapax.Grant{Lo: 1, Hi: 2}) })
	<-syncing
	wg.Go(func() { second = acceptNow(w, "second", hapax.Grant{Lo: 1, Hi: 2}) })
	for len(w.Lines()) < 2 {
		time.Sleep(time.Millisecond)
	}
	wg.Go(func() { w.Close() })
	for closed := false; !closed; time.Sleep(time.Millisecond) {
		w.mu.Lock()
		closed = w.closed
		w.mu.Unlock()
	}
	close(release)
	wg.Wait()
	if first != nil || !errors.Is(second, hapax.ErrClosed) {
		t.Errorf("the batch being written: %v, the waiting one: %v, want nil and hapax.ErrClosed", first, second)
	}
	if got, want := reopen(t, w).Lines(), map[string]int64{"first": 2}; !maps.Equal(got, want) {
		t.Errorf("%v was kept, want %v", got, want)
	}
}

// Concurrent changes of many lines are all kept, across rewrites of the log.
func TestWitnessConcurrent(t *testing.T) {
	const lines, grants = 16, 60
	w := newWitness(t)
	w.log.long = 0 // the first change rewrites
	var wg sync.WaitGroup
	for i := range lines {
		line := TagLine(fmt.Sprint(i))
		wg.Go(func() {
			for n := range int64(grants) {
				if err := acceptNow(w, line, hapax.Grant{Lo: n, Hi: n + 1}); err != nil {
					t.Error(err)
					return
				}
				if n%20 == 10 {
					w.writer.Lock()
					w.log.long = 0
					w.writer.Unlock()
				}
			}
		})
	}
	wg.Wait()
	got := reopen(t, w).Lines()
	for i := range lines {
		if mark := got[TagLine(fmt.Sprint(i))]; mark != grants {
			t.Errorf("line %d: the mark is %d, want %d", i, mark, grants)
		}
	}
}

// Any run of calls and restarts agrees with a map.
func TestWitnessModel(t *testing.T) {
	path := filepath.Join(t.TempDir(), "witness")
	rapid.Check(t, func(t *rapid.T) {
		os.Remove(path)
		w, err := Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { w.Close() }()
		model := map[string]int64{}
		line := rapid.SampledFrom([]string{TagLine("a"), TagLine("b"), WorkerLine("p", 1)})
		mark := rapid.Int64Range(0, 20)
		t.Repeat(map[string]func(*rapid.T){
			"Accept": func(t *rapid.T) {
				l, lo := line.Draw(t, "line"), mark.Draw(t, "lo")
				err := acceptNow(w, l, hapax.Grant{Lo: lo, Hi: lo + 3})
				if lo < model[l] {
					if !errors.Is(err, hapax.ErrStoreRolledBack) {
						t.Fatalf("%v, want hapax.ErrStoreRolledBack", err)
					}
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				model[l] = lo + 3
			},
			"Lower": func(t *rapid.T) {
				l, m := line.Draw(t, "line"), mark.Draw(t, "mark")
				if err := lower(w, l, m); err != nil {
					t.Fatal(err)
				}
				if known, ok := model[l]; ok {
					model[l] = min(known, m)
				}
			},
			"rewrite": func(*rapid.T) { w.log.long = 0 },
			"restart": func(t *rapid.T) {
				if err := w.Close(); err != nil {
					t.Fatal(err)
				}
				if w, err = Open(path); err != nil {
					t.Fatal(err)
				}
			},
			"": func(t *rapid.T) {
				if got := w.Lines(); !maps.Equal(got, model) {
					t.Fatalf("lines are %v, want %v", got, model)
				}
			},
		})
	})
}
