package strategy

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/journal"
	"github.com/hapax-id/hapax/store/memstore"
)

func openHistory(t *testing.T, dir string, opts HistoryOptions) *History {
	t.Helper()
	h, err := OpenHistory(dir, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	})
	return h
}

// withHistory returns a line whose numbers a history records.
func withHistory(t *testing.T, h *History, more ...Plugin) *Line {
	t.Helper()
	store := memstore.New()
	r := NewRegistry(Options{})
	for _, err := range []error{r.Register("segment", Segment(store, hapax.SegmentOptions{})), r.Use(h.Plugin("history", 100))} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, p := range more {
		if err := r.Use(p); err != nil {
			t.Fatal(err)
		}
	}
	l, err := r.Open(t.Context(), "segment", hapax.Tag{Name: "orders"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return l
}

func issues(t *testing.T, h *History, id hapax.ID) []Issue {
	t.Helper()
	found, err := h.Find(t.Context(), id, nil)
	if err != nil || found.Damaged > 0 || found.Lost > 0 {
		t.Fatalf("%+v, %v", found, err)
	}
	return found.Issues
}

// Each number is found once, with its caller and its time, whatever calls it came by.
func TestHistory(t *testing.T) {
	for _, sync := range []bool{false, true} {
		t.Run(fmt.Sprintf("sync=%t", sync), func(t *testing.T) {
			began := time.Now().Truncate(time.Millisecond)
			dir := t.TempDir()
			h := openHistory(t, dir, HistoryOptions{Sync: sync, Caller: func(ctx context.Context) (string, string) { return CallerOf(ctx), "192.0.2.1:5" }})
			l := withHistory(t, h)
			got := map[hapax.ID]string{}
			take := func(caller string, n int) {
				ids := make([]hapax.ID, n)
				ctx := WithCaller(t.Context(), caller)
				if n == 1 {
					id, err := l.Next(ctx)
					if ids[0] = id; err != nil {
						t.Fatal(err)
					}
				} else if _, err := l.NextN(ctx, ids); err != nil {
					t.Fatal(err)
				}
				for _, id := range ids {
					got[id] = caller
				}
			}
			for i := range 30 {
				take([]string{"ann", "bob"}[i%2], 1)
				take([]string{"bob", "carl"}[i%2], 7)
			}
			g, err := l.InARow(WithCaller(t.Context(), "dora"), 10, func(ctx context.Context) (hapax.Grant, error) {
				return hapax.Grant{Lo: 5000, Hi: 5020}, nil // every second number
			})
			if err != nil {
				t.Fatal(err)
			}
			for id := g.Lo; id < g.Hi; id += 2 {
				got[hapax.ID(id)] = "dora"
			}
			for id, caller := range got {
				all := issues(t, h, id)
				if len(all) != 1 {
					t.Fatalf("%d was issued to %s, the history says %+v", id, caller, all)
				}
				i := all[0]
				if i.Caller != caller || i.Address != "192.0.2.1:5" || i.Tag != "orders" || i.Strategy != "segment" || i.First > id || i.Last < id {
					t.Errorf("%d was issued to %s, the history says %+v", id, caller, i)
				}
				if i.From.Before(began) || i.Until.Before(i.From) || i.Until.After(time.Now()) {
					t.Errorf("%d was issued between %v and %v", id, i.From, i.Until)
				}
			}
			for _, id := range []hapax.ID{0, -1, 5001, 5020, 1 << 40} {
				if all := issues(t, h, id); len(all) > 0 {
					t.Errorf("%d was not issued, the history says %+v", id, all)
				}
			}
			found, err := FindHistory(t.Context(), dir, 1, func(tag, strategy string) bool { return tag == "other" })
			if err != nil || len(found.Issues) > 0 || found.Since.IsZero() {
				t.Errorf("of another tag: %+v, %v", found, err)
			}
		})
	}
}

// A history that cannot be written keeps the numbers from the caller only with Sync.
func TestHistoryThatCannotBeWritten(t *testing.T) {
	for _, sync := range []bool{false, true} {
		h := openHistory(t, t.TempDir(), HistoryOptions{Sync: sync})
		l := withHistory(t, h)
		if err := h.Close(); err != nil {
			t.Fatal(err)
		}
		id, err := l.Next(t.Context())
		ids := make([]hapax.ID, 3)
		n, err2 := l.NextN(t.Context(), ids)
		if sync && (id != 0 || n != 0 || ids[0] != 0 || !errors.Is(err, ErrPluginFailed) || !errors.Is(err2, ErrPluginFailed)) {
			t.Errorf("sync: %d, %d, %v: %v, %v", id, n, ids, err, err2)
		}
		if !sync && (id != 1 || n != 3 || err != nil || err2 != nil) {
			t.Errorf("not sync: %d, %d: %v, %v", id, n, err, err2)
		}
		_, err = l.InARow(t.Context(), 5, func(context.Context) (hapax.Grant, error) { return hapax.Grant{Lo: 1, Hi: 6}, nil })
		if errors.Is(err, ErrPluginFailed) != sync {
			t.Errorf("sync=%t, in a row: %v", sync, err)
		}
	}
}

// fullDisk is a file that cannot be written while full is set.
type fullDisk struct {
	*os.File

	full *atomic.Bool
}

func (f fullDisk) Write(p []byte) (int, error) {
	if f.full.Load() {
		return 0, syscall.ENOSPC
	}
	return f.File.Write(p)
}

// What nobody got because it could not be written is not in the history when the disk
// has room again.
func TestHistoryForgetsWhatNobodyGot(t *testing.T) {
	var full atomic.Bool
	h := NewHistory(HistoryOptions{Sync: true})
	h.dir = t.TempDir()
	var err error
	h.journal, err = journal.Open(h.dir, historyPrefix, journal.Options{Open: func(path string) (journal.File, error) {
		f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		return fullDisk{f, &full}, err
	}})
	if err != nil {
		t.Fatal(err)
	}
	h.closed = false
	go h.run()
	t.Cleanup(func() { _ = h.Close() })
	l := withHistory(t, h)
	for i := range 3 {
		full.Store(i == 1)
		if _, err := l.Next(t.Context()); (err != nil) != full.Load() {
			t.Fatalf("number %d: %v", i+1, err)
		}
	}
	for id, want := range map[hapax.ID]int{1: 1, 2: 0, 3: 1} {
		if found, err := h.Find(t.Context(), id, nil); err != nil || len(found.Issues) != want || found.Lost > 0 || found.Damaged > 0 {
			t.Errorf("%d: %+v, %v", id, found, err)
		}
	}
	if st := h.Stats(); st.Waiting != 0 {
		t.Errorf("%+v", st)
	}
}

// A strict plugin that panics keeps the numbers from the caller, too.
func TestStrictPanic(t *testing.T) {
	h := openHistory(t, t.TempDir(), HistoryOptions{})
	strict := Plugin{Name: "strict", Strict: true, After: func(context.Context, Call, Numbers) error { panic("no") }}
	l := withHistory(t, h, strict)
	if id, err := l.Next(t.Context()); id != 0 || !errors.Is(err, ErrPluginFailed) {
		t.Errorf("%d, %v", id, err)
	}
	ids := make([]hapax.ID, 2)
	if n, err := l.NextN(t.Context(), ids); n != 0 || ids[1] != 0 || !errors.Is(err, ErrPluginFailed) {
		t.Errorf("%d, %v, %v", n, ids, err)
	}
}

// What comes faster than it can be written is lost, counted, and said.
func TestHistoryIsBounded(t *testing.T) {
	dir := t.TempDir()
	h := NewHistory(HistoryOptions{})
	if err := h.open(dir, nil); err != nil { // and nobody writes it yet
		t.Fatal(err)
	}
	ctx := t.Context()
	ids := make([]hapax.ID, 1000)
	for i := range ids {
		ids[i] = hapax.ID(2 * i) // nothing of it is in a row
	}
	c := NewCall("segment", "orders", len(ids))
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 200 { // three times what is kept
				if err := h.add(ctx, c, newNumbers(ids...)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	h.mu.Lock()
	kept := h.batch.runs
	h.mu.Unlock()
	if kept > maxRuns {
		t.Errorf("%d runs are kept", kept)
	}
	go h.run()
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
	lost := h.Stats().Lost
	found, err := FindHistory(ctx, dir, 1, nil)
	if err != nil || lost == 0 || found.Lost != lost || found.Damaged > 0 {
		t.Errorf("%d are lost, it says %+v, %v", lost, found, err)
	}
}

// What stands in a row counts once towards the bound.
func TestRunsOfABatch(t *testing.T) {
	for want, ids := range [][]hapax.ID{{}, {7}, {7, 9}, {7, 8, 10, 11, 10}, {1, 3, 5, 7}} {
		if runs := new(History).runsOf(newNumbers(ids...)); runs != want {
			t.Errorf("%v has %d runs, want %d", ids, runs, want)
		}
	}
}

func TestHistoryOverAFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenHistory(file, HistoryOptions{}); err == nil || !strings.Contains(err.Error(), "history") {
		t.Errorf("a file for a directory: %v", err)
	}
	if found, err := FindHistory(t.Context(), filepath.Join(t.TempDir(), "none"), 1, nil); err != nil || !found.Since.IsZero() {
		t.Errorf("nothing: %+v, %v", found, err)
	}
}

func BenchmarkHistory(b *testing.B) {
	h, err := OpenHistory(b.TempDir(), HistoryOptions{})
	if err != nil {
		b.Fatal(err)
	}
	defer h.Close()
	c := NewCall("segment", "orders", 1)
	ctx := b.Context()
	id := hapax.ID(0)
	for b.Loop() {
		id++
		if err := h.add(ctx, c, newNumbers(id)); err != nil {
			b.Fatal(err)
		}
	}
}
