package hapax

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
)

// acceptNow asks and accepts with nothing in between.
func acceptNow(w *Witness, line string, g Grant) error {
	since, _ := w.Mark(line)
	return w.Accept(line, g, since)
}

func TestWitnessAcceptsGrantsUnderWayTogether(t *testing.T) {
	w := newWitness(t)
	since, _ := w.Mark("tag/orders") // both are asked for now
	for _, g := range []Grant{{1001, 2001}, {1, 1001}} {
		if err := w.Accept("tag/orders", g, since); err != nil {
			t.Errorf("Accept(%v): %v", g, err)
		}
	}
	if mark, _ := w.Mark("tag/orders"); mark != 2001 {
		t.Errorf("mark is %d, want 2001", mark)
	}
	if err := acceptNow(w, "tag/orders", Grant{1001, 3001}); !errors.Is(err, ErrStoreRolledBack) {
		t.Errorf("a grant asked for later that begins below the mark: %v, want ErrStoreRolledBack", err)
	}
}

func openWitness(t testing.TB, path string) *Witness {
	t.Helper()
	w, err := OpenWitness(path)
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
	if err := acceptNow(w, line, Grant{lo, hi}); err != nil {
		t.Fatal(err)
	}
}

func TestWitnessRemembers(t *testing.T) {
	w := newWitness(t)
	if info, err := os.Stat(w.log.path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode is %v, %v", info.Mode(), err)
	}
	if err := w.Store("store-1"); err != nil {
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
	if err := w.Store("store-1"); err != nil {
		t.Error(err)
	}
	if _, ok := w.Mark("tag/other"); ok {
		t.Error("an unknown line has a mark")
	}
}

func TestWitnessRolledBack(t *testing.T) {
	w := newWitness(t)
	accept(t, w, "tag/orders", 1, 1001)
	for _, g := range []Grant{{1000, 2000}, {1, 1001}, {0, 5000}} {
		err := acceptNow(w, "tag/orders", g)
		if !errors.Is(err, ErrStoreRolledBack) {
			t.Errorf("Accept(%v) = %v, want ErrStoreRolledBack", g, err)
			continue
		}
		for _, part := range []string{`"tag/orders"`, fmt.Sprint(g.Lo), fmt.Sprint(g.Hi), "1001 or higher"} {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%v does not tell %s", err, part)
			}
		}
	}
	if mark, _ := w.Mark("tag/orders"); mark != 1001 {
		t.Errorf("after refusals the mark is %d", mark)
	}
	if err := acceptNow(reopen(t, w), "tag/orders", Grant{1000, 2000}); !errors.Is(err, ErrStoreRolledBack) {
		t.Errorf("after opening again: %v", err)
	}
}

func TestWitnessReplacedStore(t *testing.T) {
	w := newWitness(t)
	if err := w.Store("first"); err != nil {
		t.Fatal(err)
	}
	accept(t, w, "tag/orders", 1, 1001)
	w = reopen(t, w)
	err := w.Store("second")
	if !errors.Is(err, ErrStoreReplaced) || !strings.Contains(err.Error(), `"first"`) || !strings.Contains(err.Error(), `"second"`) {
		t.Fatalf("%v, want ErrStoreReplaced naming both", err)
	}
	if err := w.Adopt("second"); err != nil {
		t.Fatal(err)
	}
	w = reopen(t, w)
	if err := w.Store("second"); err != nil {
		t.Errorf("after adopting: %v", err)
	}
	if err := w.Store("first"); !errors.Is(err, ErrStoreReplaced) {
		t.Errorf("the old store: %v, want ErrStoreReplaced", err)
	}
	if err := acceptNow(w, "tag/orders", Grant{1, 1001}); !errors.Is(err, ErrStoreRolledBack) {
		t.Errorf("adopting dropped the mark: %v", err)
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
		if err := w.Lower(test.line, test.mark); err != nil {
			t.Fatal(err)
		}
		w = reopen(t, w)
		if mark, known := w.Mark(test.line); mark != test.want || known != test.known {
			t.Errorf("after Lower(%s, %d): %d, %v", test.line, test.mark, mark, known)
		}
	}
	accept(t, w, "worker/default/1", 150, 160)
}

func TestWitnessRefusesArguments(t *testing.T) {
	w := newWitness(t)
	good := Grant{1, 2}
	for name, err := range map[string]error{
		"grant empty":     acceptNow(w, "a", Grant{5, 5}),
		"grant backwards": acceptNow(w, "a", Grant{5, 4}),
		"grant negative":  acceptNow(w, "a", Grant{-1, 4}),
		"line empty":      acceptNow(w, "", good),
		"line with tab":   acceptNow(w, "a\tb", good),
		"line with break": acceptNow(w, "a\nb", good),
		"line not UTF-8":  acceptNow(w, "\xff", good),
		"line too long":   acceptNow(w, strings.Repeat("a", maxWitnessName+1), good),
		"store ID empty":  w.Store(""),
		"store ID break":  w.Store("a\nb"),
		"adopt empty":     w.Adopt(""),
		"mark negative":   w.Lower("a", -1),
	} {
		if _, ok := errors.AsType[*ValueError](err); !ok || !errors.Is(err, ErrInvalidArgument) {
			t.Errorf("%s: %v, want a ValueError", name, err)
		}
	}
	if len(w.Lines()) != 0 {
		t.Errorf("refused calls left %v", w.Lines())
	}
	longest := WorkerLine(strings.Repeat("p", MaxTagBytes), 1<<62)
	accept(t, w, longest, 1, 2)
}

func TestWitnessIsFull(t *testing.T) {
	w := newWitness(t)
	accept(t, w, "known", 1, 2)
	for i := range maxWitnessLines - 1 {
		w.state.marks[TagLine(strconv.Itoa(i))] = 1
	}
	if err := acceptNow(w, "one more", Grant{1, 2}); !errors.Is(err, ErrLimitExceeded) {
		t.Errorf("%v, want ErrLimitExceeded", err)
	}
	accept(t, w, "known", 2, 3)
}

func TestWitnessLock(t *testing.T) {
	w := newWitness(t)
	if _, err := OpenWitness(w.log.path); !errors.Is(err, ErrStoreLocked) {
		t.Errorf("opened twice: %v, want ErrStoreLocked", err)
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
		"Accept": acceptNow(w, "a", Grant{1, 2}), "Lower": w.Lower("a", 1), "Store": w.Store("s"), "Adopt": w.Adopt("s"),
	} {
		if !errors.Is(err, ErrClosed) {
			t.Errorf("%s after Close: %v, want ErrClosed", name, err)
		}
	}
}

func TestOpenWitnessFails(t *testing.T) {
	dir := t.TempDir()
	if _, err := OpenWitness(filepath.Join(dir, "missing", "witness")); !errors.Is(err, ErrStoreUnavailable) || !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no directory: %v", err)
	}
	path := filepath.Join(dir, "witness")
	if err := os.Mkdir(path, 0o700); err != nil {
		t.Fatal(err)
	}
	for range 2 { // a lock that stays taken would show the second time
		if _, err := OpenWitness(path); !errors.Is(err, ErrStoreUnavailable) {
			t.Errorf("a directory: %v, want ErrStoreUnavailable", err)
		}
	}
}

// A witnessFileSpy stands between a log and its file.
type witnessFileSpy struct {
	witnessFile
	syncs  atomic.Int64
	onSync func() error // runs instead of a sync if it returns an error
	write  error        // fails the writes
}

func (f *witnessFileSpy) Write(p []byte) (int, error) {
	if f.write != nil {
		return 0, f.write
	}
	return f.witnessFile.Write(p)
}

func (f *witnessFileSpy) Sync() error {
	f.syncs.Add(1)
	if f.onSync != nil {
		if err := f.onSync(); err != nil {
			return err
		}
	}
	return f.witnessFile.Sync()
}

func TestWitnessFailureStays(t *testing.T) {
	broken := errors.New("disk on fire")
	for name, spy := range map[string]*witnessFileSpy{
		"write": {write: broken},
		"sync":  {onSync: func() error { return broken }},
	} {
		w := newWitness(t)
		accept(t, w, "a", 1, 10)
		spy.witnessFile = w.log.file
		w.log.file = spy
		if err := acceptNow(w, "a", Grant{10, 20}); !errors.Is(err, ErrStoreUnavailable) || !errors.Is(err, broken) {
			t.Errorf("%s: %v, want ErrStoreUnavailable and the cause", name, err)
		}
		w.log.file = spy.witnessFile // the disk is well again, what it holds is unknown
		for i, err := range []error{acceptNow(w, "a", Grant{20, 30}), acceptNow(w, "b", Grant{1, 2}), w.Lower("a", 1), w.Store("s"), w.Adopt("s")} {
			if !errors.Is(err, ErrStoreUnavailable) || !errors.Is(err, broken) {
				t.Errorf("%s: later call %d: %v, want the first failure", name, i, err)
			}
		}
		w = reopen(t, w)
		if mark, _ := w.Mark("a"); mark != 10 && mark != 20 {
			t.Errorf("%s: the mark is %d", name, mark)
		}
	}
}

// While one batch is being synced, all that comes shares the next sync.
func TestWitnessGroupCommit(t *testing.T) {
	const callers = 100
	w := newWitness(t)
	syncing, release := make(chan struct{}, 2), make(chan struct{})
	spy := &witnessFileSpy{witnessFile: w.log.file, onSync: func() error {
		syncing <- struct{}{}
		<-release
		return nil
	}}
	w.log.file = spy

	var wg sync.WaitGroup
	start := func(line string) {
		wg.Go(func() {
			if err := acceptNow(w, line, Grant{1, 2}); err != nil {
				t.Error(err)
			}
			data, err := os.ReadFile(w.log.path)
			if err != nil || !bytes.Contains(data, []byte("\t2\t"+line)) {
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
	w.log.file = &witnessFileSpy{witnessFile: w.log.file, onSync: func() error {
		syncing <- struct{}{}
		<-release
		return nil
	}}
	var first, second error
	var wg sync.WaitGroup
	wg.Go(func() { first = acceptNow(w, "first", Grant{1, 2}) })
	<-syncing
	wg.Go(func() { second = acceptNow(w, "second", Grant{1, 2}) })
	for len(w.Lines()) < 2 {
		time.Sleep(time.Millisecond)
	}
	wg.Go(func() { w.Close() })
	for closed := false; !closed; time.Sleep(time.Millisecond) {
		w.mu.Lock()
		closed = w.refusal != nil
		w.mu.Unlock()
	}
	close(release)
	wg.Wait()
	if first != nil || !errors.Is(second, ErrClosed) {
		t.Errorf("the batch being written: %v, the waiting one: %v, want nil and ErrClosed", first, second)
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
				if err := acceptNow(w, line, Grant{n, n + 1}); err != nil {
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
		w, err := OpenWitness(path)
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
				err := acceptNow(w, l, Grant{lo, lo + 3})
				if lo < model[l] {
					if !errors.Is(err, ErrStoreRolledBack) {
						t.Fatalf("%v, want ErrStoreRolledBack", err)
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
				if err := w.Lower(l, m); err != nil {
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
				if w, err = OpenWitness(path); err != nil {
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
