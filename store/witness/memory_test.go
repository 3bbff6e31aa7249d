package witness

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
)

// What a witness tells is a copy; a decision ends what it knew of rows, and compaction of those up to it.
func TestWhatAWitnessTells(t *testing.T) {
	w := newScene(t).g.witness
	know := func(f func(*record)) {
		t.Helper()
		if err := w.commit(func(b *record) error { f(b); return nil }); err != nil {
			t.Fatal(err)
		}
	}
	one, two, three := rowOf(1, "A"), rowOf(2, "A"), rowOf(3, "A")
	know(func(b *record) {
		b.Own[one], b.Lines["tag/t"], b.Defs["tag/t"], b.Refused["x"] = own{Count: 1}, Pair{0, 1}, def{Start: 2}, "why"
		b.Peers = map[string]peer{two: {}, three: {}}
		b.Lines[WorkerLine("p", 1)], b.Lines[WorkerLine("pp", 1)] = Pair{1, 1}, Pair{1, 2}
	})
	for _, r := range []record{w.rows(), w.snapshot()} {
		r.Own["y"], r.Peers["y"], r.Refused["y"], r.Copies["y"] = own{}, peer{}, "y", driver.Retirement{}
		if r.Lines != nil {
			r.Lines["y"], r.Defs["y"] = Pair{}, def{}
		}
	}
	r := w.snapshot()
	if len(r.Own) != 1 || len(r.Peers) != 2 || len(r.Refused) != 1 || len(r.Copies) > 0 || len(r.Lines) != 3 || len(r.Defs) != 1 {
		t.Errorf("a copy that was changed has changed it: %+v", r)
	}
	if r := w.rows(); r.Lines != nil || r.Defs != nil {
		t.Errorf("its rows have %d lines", len(r.Lines))
	}
	if got := w.pairsOf("p"); len(got) != 1 || got[WorkerLine("p", 1)] != (Pair{1, 1}) {
		t.Errorf("the lines of a pool are %v", got)
	}
	know(func(b *record) { b.Joins, b.Compacted = 9, 2 })
	if r := w.rows(); len(r.Peers) != 1 || r.Joins != 9 || r.Compacted != 2 {
		t.Errorf("compacted: %+v", r)
	}
	know(func(b *record) { b.Decision, b.Joins, b.Compacted = &decisionID{1, "D"}, 4, 1 })
	if r := w.rows(); len(r.Peers) > 0 || len(r.Own) > 0 || r.Joins != 4 || r.Compacted != 1 {
		t.Errorf("after a decision: %+v", r)
	}
}

// setLatch makes a latch durable, where it is news.
func (w *Witness) setLatch(l latch, row string, all own, joins int64) error {
	err := w.noteLatch(l, row, all, joins)
	switch err {
	case errNoChange:
		return nil
	case nil:
		err = w.flush()
	}
	return err
}

// A change is written once, a note with the next one, and nothing after the end.
func TestWritesOnce(t *testing.T) {
	c := newScene(t)
	w := c.g.witness
	syncs := CountSyncs(w)
	row := "1-r"
	l := latch{State: Fenced, Fence: "F"}
	for i, v := range []struct {
		l    latch
		row  string
		own  own
		want int
	}{
		{l, row, own{Grants: 2}, 1},
		{l, row, own{Grants: 2}, 1},
		{l, row, own{Grants: 1}, 1},
		{l, "", own{Grants: 9}, 1},
		{l, row, own{Grants: 3}, 2},
		{latch{State: Refusing}, row, own{Grants: 3}, 3},
		{latch{State: Refusing}, "2-r", own{}, 3},
	} {
		if err := w.setLatch(v.l, v.row, v.own, 5); err != nil || syncs() != v.want {
			t.Errorf("latch %d is written: %v, %d syncs; want %d", i, err, syncs(), v.want)
		}
	}
	if err := w.rewrite(); err != nil || syncs() != 3 {
		t.Errorf("a sound witness is written anew: %v", err)
	}
	w.note(func(b *record) { b.Own["9-x"] = own{Count: 1} })
	if syncs() != 3 {
		t.Error("a note is written by itself")
	}
	c.know(func(b *record) { b.Joins = 6 })
	c.know(func(b *record) { b.Own["9-x"] = own{Gone: true} })
	c.know(func(b *record) { b.Joins = 7 })
	said, err := Read(w.log.path)
	if _, ok := said.said.Own["9-x"]; err != nil || ok || said.said.Joins != 7 {
		t.Errorf("the file says %+v, %v", said.said.Own, err)
	}
	// A write takes all that is noted, also before its caller has come.
	if err := w.enter(func(b *record) error { b.Joins = 8; return nil }); err != nil {
		t.Fatal(err)
	}
	c.know(func(b *record) { b.Joins = 9 })
	before := syncs()
	if err := w.flush(); err != nil || syncs() != before {
		t.Errorf("a change that is durable is written again: %v", err)
	}
	if err := errors.Join(w.enter(func(b *record) error { b.Joins = 10; return nil }), w.Close()); err != nil {
		t.Fatal(err)
	}
	if err := w.flush(); !errors.Is(err, hapax.ErrClosed) || w.Failed() != nil {
		t.Errorf("a change that was under way: %v", err)
	}
	if err := w.commit(func(b *record) error { b.Joins = 99; return nil }); !errors.Is(err, hapax.ErrClosed) || w.rows().Joins == 99 {
		t.Errorf("a change after the end: %v, it knows %d", err, w.rows().Joins)
	}
	if err := (&Witness{}).findCopied("\x00"); !errors.Is(err, hapax.ErrWitnessFailed) {
		t.Errorf("a lock that is not there: %v", err)
	}
}

// Changes that come during a write share the next one, and what becomes of it.
func TestWritesAreShared(t *testing.T) {
	const many = 20
	for name, v := range map[string]struct {
		disk  func(logFile) logFile
		syncs int
		want  error
	}{
		"a sound disk": {func(f logFile) logFile { return f }, 1, nil},
		"a full disk":  {func(f logFile) logFile { return full{f} }, 0, syscall.ENOSPC},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, err := OpenFile(filepath.Join(t.TempDir(), "witness"))
				if err != nil {
					t.Fatal(err)
				}
				slow := syncing{w.log.file, make(chan struct{}), make(chan struct{})}
				was := w.log.file
				w.log.file = slow
				errs := make(chan error, many)
				first := make(chan error, 1)
				go func() { first <- mark(w, "tag/first", Pair{1, 1}) }()
				<-slow.begun
				for i := range many {
					go func() { errs <- mark(w, fmt.Sprint("tag/", i), Pair{1, 1}) }()
				}
				synctest.Wait()
				syncs := CountSyncs(w)
				w.log.file = v.disk(was) // the first goes on with its own
				close(slow.may)
				if err := <-first; err != nil {
					t.Error(err)
				}
				for range many {
					if err := <-errs; !errors.Is(err, v.want) {
						t.Errorf("a change that shared a write: %v, want %v", err, v.want)
					}
				}
				if n := syncs(); n != v.syncs {
					t.Errorf("%d syncs, want %d", n, v.syncs)
				}
				// What was refused is not lost.
				err = errors.Join(mark(w, "tag/last", Pair{1, 1}), w.Close())
				said, errRead := Read(w.log.path)
				if err != nil || errRead != nil || len(said.said.Lines) != many+2 {
					t.Errorf("the file has %d lines, want %d; %v, %v", len(said.said.Lines), many+2, err, errRead)
				}
			})
		})
	}
}

// The end waits for a write that is under way.
func TestClosesAfterAWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, err := OpenFile(filepath.Join(t.TempDir(), "witness"))
		if err != nil {
			t.Fatal(err)
		}
		slow := syncing{w.log.file, make(chan struct{}), make(chan struct{})}
		w.log.file = slow
		wrote, closed := make(chan error, 1), make(chan error, 1)
		go func() { wrote <- mark(w, "tag/t", Pair{1, 1}) }()
		<-slow.begun
		go func() { closed <- w.Close() }()
		synctest.Wait()
		if len(closed) > 0 {
			t.Error("it is closed during a write")
		}
		close(slow.may)
		if err := errors.Join(<-wrote, <-closed); err != nil {
			t.Error(err)
		}
	})
}

// That a store is retired stays the reason, whatever is found after it; another retirement takes its place.
func TestRetirementStays(t *testing.T) {
	w := newScene(t).g.witness
	first, second := driver.Retirement{Copy: "C", Store: "s"}, driver.Retirement{Copy: "D", Store: "s"}
	for _, v := range []struct {
		l    latch
		want string // the copy
	}{
		{latch{State: Refusing, Why: "a loss"}, ""},
		{latch{State: Refusing, Retired: &first}, "C"},
		{latch{State: Fenced, Why: "a fence"}, "C"},
		{latch{State: Refusing, Retired: &second}, "D"},
	} {
		if err := w.setLatch(v.l, "", own{}, 0); err != nil {
			t.Fatal(err)
		}
		if l := w.latch(); l.isRetired() != (v.want != "") || l.isRetired() && l.Retired.Copy != v.want {
			t.Errorf("after %+v it is %+v; want copy %q", v.l, l, v.want)
		}
	}
}

// A look at a witness that cannot be looked at is an error, and one at a store tells why it is behind.
func TestLooksCarefully(t *testing.T) {
	path := filepath.Join(t.TempDir(), "witness")
	w, err := OpenFile(path)
	if err != nil {
		t.Fatal(err)
	}
	err = w.commit(func(b *record) error { b.Lines["tag/t"] = Pair{0, 101}; return nil })
	if err := errors.Join(err, w.Close(), os.Remove(path+lockSuffix), os.Mkdir(path+lockSuffix, 0o700)); err != nil {
		t.Fatal(err)
	}
	if l, err := LookFile(path); !errors.Is(err, hapax.ErrWitnessFailed) {
		t.Errorf("a lock that is a directory: %+v, %v", l, err)
	}
	c := servingScene(t)
	if l, err := LookAt(t.Context(), c.store, path); err != nil || !errors.Is(l.Behind, hapax.ErrStoreRolledBack) {
		t.Errorf("at a store that is behind: %+v, %v", l, err)
	}
	c.put(driver.TableFence, driver.RowFence, []byte("~"))
	if _, err := LookAt(t.Context(), c.store, path); !errors.Is(err, hapax.ErrStoreCorrupt) {
		t.Errorf("at a fence that is none: %v", err)
	}
	c.put(driver.TableGuard, rowFormat, []byte("~"))
	if _, err := checkFormat(t.Context(), c.store); !errors.Is(err, hapax.ErrStoreCorrupt) || !strings.Contains(err.Error(), `row "format" of table "guard"`) {
		t.Errorf("a format that is none: %v", err)
	}
	fresh := newScene(t)
	if told, err := claim(t.Context(), fresh.store); err != nil || told == nil || told.Key != guardRow(rowFormat) || told.Old != nil || !strings.Contains(string(told.Next), `"by":"`+hapax.Version()) {
		t.Errorf("a fresh store is to be told %+v, %v", told, err)
	}
}

// A handle that is the only one is never dropped; another is, with the calls on it, and dialled once
// for all callers.
func TestHandlesAreReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := servingScene(t)
		opens := 0
		open := func(context.Context) (driver.Store, error) {
			opens++
			time.Sleep(time.Second)
			return &counted{Store: c.store.Store, shared: true}, nil
		}
		for _, fixed := range []bool{true, false} {
			h := newHandle(open, fixed)
			h.clock, h.again, opens = c.g.opts.Clock, true, 0
			var wg sync.WaitGroup
			for range 3 {
				wg.Go(func() { _, _ = h.get(t.Context()) })
			}
			wg.Wait()
			s := h.peek()
			if opens != 1 || s == nil {
				t.Errorf("three callers dial %d times", opens)
			}
			ctx, end := h.while(t.Context(), s)
			other, endOther := h.while(t.Context(), c.store)
			if ctx.Err() != nil || other.Err() == nil {
				t.Errorf("while it is used: %v; while another was: %v", ctx.Err(), other.Err())
			}
			h.answered(s, h.clock(), true, time.Second)
			h.answered(c.store, h.clock(), false, 0)
			if now := h.peek(); now != s {
				t.Error("a handle that answers is dropped")
			}
			h.drop(nil)
			h.drop(c.store)
			if now := h.peek(); now != s {
				t.Error("another than it is dropped")
			}
			h.drop(s)
			synctest.Wait()
			if now := h.peek(); (now == nil) == fixed || (ctx.Err() == nil) != fixed {
				t.Errorf("the only one %v: dropped %v, %v", fixed, now == nil, ctx.Err())
			}
			end()
			endOther()
			if err := errors.Join(h.close(), h.close()); err != nil {
				t.Error(err)
			}
			h.drop(s)
		}
		w, err := OpenFile(filepath.Join(inMemory(t), "witness"))
		if err != nil {
			t.Fatal(err)
		}
		if err := w.setLatch(latch{State: Fenced, Why: "the reason"}, "", own{}, 0); err != nil {
			t.Fatal(err)
		}
		g, err := GuardOpened(func(context.Context) (driver.Store, error) { return nil, errInjected }, w, Options{})
		if err != nil {
			t.Fatal(err)
		}
		if st := g.Status(); st.State != Fenced || !strings.Contains(st.Why, "the reason") || !g.beats.again || g.used.turn == 0 || g.since == 0 {
			t.Errorf("a node that was fenced begins as %+v", st)
		}
		if err := errors.Join(g.Close(), w.Close()); err != nil {
			t.Error(err)
		}
	})
}
