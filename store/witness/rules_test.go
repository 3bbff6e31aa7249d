package witness_test

import (
	"errors"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/store/memstore"
	"github.com/hapax-id/hapax/store/witness"
)

// What follows are worlds in which one rule of the guard makes the difference.

// misses waits until the fence tells that the node is missing, and nobody else.
func (f *fleet) misses(name string) {
	f.t.Helper()
	f.until("that "+name+" is missing", func() bool {
		fence := f.standing()
		return fence != nil && len(fence.Missing) > 0
	})
	if missing := f.standing().Missing; len(missing) != 1 || missing[0].Name != name {
		f.t.Errorf("missing are %v; want %s alone", missing, name)
	}
}

// neverFenced fails the test if there was a fence: what happened is no loss.
func (f *fleet) neverFenced() {
	f.t.Helper()
	if f.standing() != nil || f.row(driver.TableGuard, "decision") != nil {
		f.t.Error("a store that has lost nothing was fenced")
	}
}

// A copy of a directory starts on a restored store, before the original has met that: it
// advances a row of its own, and not the original's, by which that finds the loss.
func TestCopyOfADirectoryOnARestoredStore(t *testing.T) {
	world(t, func(t *testing.T, f *fleet) {
		a := f.start("a")
		f.serve(12*time.Second, a)
		a.must("t", 10)
		f.copyDirectory(a, "c")
		backup := f.store.Snapshot()
		a.must("t", 1000)
		a.must("t", 1000)
		a.link.hang()
		f.store.Restore(backup)
		time.AfterFunc(2500*time.Millisecond, a.link.unhang)
		c := f.start("c")
		for _, m := range []*machine{a, c} {
			m.within(30 * time.Second)
		}
	})
}

// Nor does a copy speak for its original where the store has gone back, although nobody
// has seen that work since the directory was copied.
func TestCopySpeaksForNobody(t *testing.T) {
	world(t, func(t *testing.T, f *fleet) {
		a := f.start("a")
		f.serve(12*time.Second, a)
		a.must("t", 10)
		c := f.copyOf(a, "c")
		f.serve(12*time.Second, c)
		time.Sleep(2 * time.Second)
		backup := f.store.Snapshot()
		time.Sleep(1500 * time.Millisecond)
		c.must("t", 10)
		a.must("t", 5000)
		a.crash()
		f.store.Restore(backup)
		f.misses("a")
		a.start()
		for _, m := range []*machine{a, c} {
			m.within(20 * time.Second)
		}
	})
}

// The copy is started on the restored store in place of the original.
func TestCopyInPlaceOfTheOriginal(t *testing.T) {
	world(t, func(t *testing.T, f *fleet) {
		a := f.start("a")
		f.serve(12*time.Second, a)
		backup := f.store.Snapshot()
		time.Sleep(1200 * time.Millisecond)
		a.must("t", 10)
		f.copyDirectory(a, "c")
		a.must("t", 5000)
		a.crash()
		f.store.Restore(backup)
		c := f.start("c")
		for range 60 {
			_ = c.take("t", 10)
			time.Sleep(250 * time.Millisecond)
		}
		a.start()
		for _, m := range []*machine{a, c} {
			m.within(30 * time.Second)
		}
	})
}

// A witness that was restored from a backup does not speak for the work that others have seen its
// node do since.
func TestOlderWitness(t *testing.T) {
	world(t, func(t *testing.T, f *fleet) {
		a, b := f.start("a"), f.start("b")
		f.serve(12*time.Second, a, b)
		time.Sleep(2 * time.Second)
		old, err := os.ReadFile(b.path)
		if err != nil {
			t.Fatal(err)
		}
		backup := f.store.Snapshot()
		time.Sleep(2 * time.Second)
		for range 100 {
			b.must("t", 10)
		}
		time.Sleep(wait/2 + time.Second) // a has seen that, as the reader or as one that watches it
		b.crash()
		f.store.Restore(backup)
		if err := os.WriteFile(b.path, old, 0o600); err != nil {
			t.Fatal(err)
		}
		b.start()
		f.misses("b")
		if err := a.take("t", 10); err == nil {
			t.Error("a is granted numbers that b may have used")
		}
	})
}

// A node whose surveys fail knows by its heartbeats that another has joined, and misses
// it when the store goes back.
func TestNodeThatNobodySurveyed(t *testing.T) {
	world(t, func(t *testing.T, f *fleet) {
		a := f.start("a")
		f.serve(12*time.Second, a)
		time.Sleep(2 * time.Second)
		a.link.set(func(op string) error { // its surveys fail, its heartbeats do not
			if op == "tags" || op == "list" {
				return errDown
			}
			return nil
		}, nil)
		time.Sleep(100 * time.Millisecond)
		backup := f.store.Snapshot()
		c := f.start("c")
		f.serve(12*time.Second, c) // without a word of a
		c.must("t", 5000)
		time.Sleep(1200 * time.Millisecond)
		c.crash()
		f.store.Restore(backup)
		a.link.set(nil, nil)
		f.until("who is missing", func() bool { fence := f.standing(); return fence != nil && len(fence.Missing) == 1 })
		c.start()
		for _, m := range []*machine{a, c} {
			m.within(20 * time.Second)
		}
	})
}

// The lines alone are put back, and all rows are as they were. A node that lives and was
// granted numbers of them finds it with its next heartbeat where that was since the last one,
// and within a minute where it is idle; where it has left, those who speak for it find it with
// their next survey.
func TestLineSetBackByItself(t *testing.T) {
	for _, c := range []struct {
		who     string
		idle    time.Duration
		leaves  bool
		surveys bool // are made
		before  int  // so many have joined and ended before
		within  time.Duration
	}{
		{"a", 0, false, true, 0, 2500 * time.Millisecond},
		{"a", 2 * time.Second, false, false, 0, 65 * time.Second},
		{"b", 2 * time.Second, true, true, 0, 65 * time.Second},
		{"b", 2 * time.Second, true, true, 60, 65 * time.Second},
	} {
		world(t, func(t *testing.T, f *fleet) {
			if c.before > 0 {
				f.crowd(c.before, "n", "somewhere")()
			}
			a, b := f.start("a"), f.start("b")
			f.serve(12*time.Second, a, b)
			time.Sleep(2 * time.Second)
			backup := f.store.Snapshot()
			a.must("t", 5000)
			time.Sleep(c.idle)
			if c.leaves {
				a.stop()
				time.Sleep(3 * time.Second)
			}
			for _, m := range []*machine{a, b} {
				m.link.set(func(op string) error {
					if op == "tags" && !c.surveys {
						return errDown
					}
					return nil
				}, nil)
			}
			keepRows(t, backup, f.store)
			f.store.Restore(backup)
			began := time.Now()
			f.until("the fence", func() bool { return f.standing() != nil })
			if who := f.standing().Node; who != c.who || time.Since(began) > c.within {
				t.Errorf("%s found it after %v; want %s within %v", who, time.Since(began), c.who, c.within)
			}
			for _, m := range []*machine{a, b} {
				m.link.set(nil, nil)
			}
			b.within(20 * time.Second)
			if !c.leaves {
				a.within(20 * time.Second)
			}
		})
	}
}

// keepRows gives a copy of a store the rows that the store has now.
func keepRows(t *testing.T, backup, now *memstore.Store) {
	t.Helper()
	for _, table := range []string{driver.TableBeats, driver.TableNodes, driver.TableGuard} {
		rows, err := now.ListRows(t.Context(), table, "", 100)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range rows {
			old, err := backup.Row(t.Context(), table, r.Name)
			if err != nil {
				t.Fatal(err)
			}
			if string(old) == string(r.Value) {
				continue
			}
			if ok, err := backup.SwapRow(t.Context(), table, r.Name, old, r.Value); !ok || err != nil {
				t.Fatal(ok, err)
			}
		}
	}
}

// A mark was set back by hand, and all rows are as they were: a grant tells, and a survey.
func TestEditedMark(t *testing.T) {
	for _, survey := range []bool{false, true} {
		world(t, func(t *testing.T, f *fleet) {
			a := f.start("a")
			f.serve(12*time.Second, a)
			time.Sleep(2 * time.Second)
			backup := f.store.Snapshot()
			a.must("t", 5000)
			rows, err := f.store.ListRows(t.Context(), driver.TableBeats, "", 10)
			if err != nil || len(rows) != 1 {
				t.Fatal(rows, err)
			}
			old, err := backup.Row(t.Context(), driver.TableBeats, rows[0].Name)
			if err != nil {
				t.Fatal(err)
			}
			if ok, err := backup.SwapRow(t.Context(), driver.TableBeats, rows[0].Name, old, rows[0].Value); !ok || err != nil {
				t.Fatal(ok, err)
			}
			f.store.Restore(backup)
			if survey {
				b := f.start("b") // it has a survey the store
				time.Sleep(3 * time.Second)
				f.until("the fence", func() bool { return f.standing() != nil })
				b.within(20 * time.Second)
			} else if err := a.take("t", 10); !errors.Is(err, hapax.ErrStoreRolledBack) {
				t.Errorf("a grant below what was granted: %v; want ErrStoreRolledBack", err)
			}
			a.within(20 * time.Second)
		})
	}
}

// The store goes back while a node reads it: what it read is of two stores.
func TestSurveyAcrossARestore(t *testing.T) {
	world(t, func(t *testing.T, f *fleet) {
		a, b := f.start("a"), f.start("b")
		f.serve(12*time.Second, a, b)
		time.Sleep(2 * time.Second)
		backup := f.store.Snapshot()
		time.Sleep(1500 * time.Millisecond)
		b.must("t", 5000)
		var once sync.Once
		a.link.set(func(op string) error {
			if op == "tags" { // the rows were read
				once.Do(func() { f.store.Restore(backup) })
			}
			return nil
		}, nil)
		b.stop()
		time.Sleep(3 * time.Second)
		f.misses("b")
		b.start()
		for _, m := range []*machine{a, b} {
			m.within(20 * time.Second)
		}
	})
}

// A node works and leaves while another reads the store: who read that it has left has
// read what it was granted.
func TestLeavesDuringASurvey(t *testing.T) {
	world(t, func(t *testing.T, f *fleet) {
		a, b := f.start("a"), f.start("b")
		f.serve(12*time.Second, a, b)
		time.Sleep(2 * time.Second)
		backup := f.store.Snapshot()
		var mu sync.Mutex
		reads, done := 0, false
		a.link.set(func(op string) error {
			mu.Lock()
			defer mu.Unlock()
			switch {
			case op == "tags" && strings.HasSuffix(string(f.row(driver.TableGuard, driver.RowJoins)), "3"): // c is counted
				if reads++; reads > 1 { // only that one is to count: the next one would find all
					return errDown
				}
			case op == "beat" && reads == 1 && !done: // the lines were read, and the rows before them
				done = true
				b.must("t", 5000)
				b.stop()
			}
			return nil
		}, nil)
		c := f.start("c") // has a survey the store
		f.serve(12*time.Second, c)
		c.crash()
		time.Sleep(1500 * time.Millisecond)
		a.link.set(nil, nil)
		f.store.Restore(backup)
		if !done {
			t.Fatal("a has made no survey")
		}
		c.start()
		f.misses("b") // that it has left was read by nobody, with its grants
		b.start()
		for _, m := range []*machine{a, b, c} {
			m.within(30 * time.Second)
		}
	})
}

// lostWork makes a world in which c has joined while a was cut off, was granted numbers,
// and the store went back behind a's last heartbeat: only c knows of c.
func lostWork(f *fleet) (a, c *machine) {
	a = f.start("a")
	f.serve(12*time.Second, a)
	time.Sleep(2 * time.Second)
	backup := f.store.Snapshot()
	time.Sleep(1500 * time.Millisecond)
	a.link.cut()
	c = f.start("c")
	f.serve(15*time.Second, c)
	c.must("t", 5000)
	c.link.hang()
	f.store.Restore(backup)
	return a, c
}

// The healer gives everybody who lives the time to meet the store, before it believes
// that it knows of possible witnesses.
func TestHealerWaits(t *testing.T) {
	world(t, func(t *testing.T, f *fleet) {
		a, c := lostWork(f)
		a.link.restore()
		time.AfterFunc(2*time.Second, c.link.unhang)
		for _, m := range []*machine{a, c} {
			m.within(40 * time.Second)
		}
	})
}

// Who has found itself behind must speak, although nobody else knows of it; also where it
// has found that at the start of its next process.
func TestFinderMustSpeak(t *testing.T) {
	for _, restarted := range []bool{false, true} {
		finderMustSpeak(t, restarted)
	}
}

func finderMustSpeak(t *testing.T, restarted bool) {
	world(t, func(t *testing.T, f *fleet) {
		a, c := lostWork(f)
		c.link.unhang()
		if restarted {
			c.crash()
			c.start()
		}
		f.until("the fence of c", func() bool { return f.standing() != nil })
		c.crash()
		a.link.restore()
		f.until("who is missing", func() bool { fence := f.standing(); return fence != nil && len(fence.Missing) == 1 })
		c.start()
		for _, m := range []*machine{a, c} {
			m.within(40 * time.Second)
		}
	})
}

// A node that has not found the loss marks another silent, in the store as it is after
// that. Neither the mark nor its maker's word settles what the other was granted.
func TestMarkedSilentAfterTheLoss(t *testing.T) {
	world(t, func(t *testing.T, f *fleet) {
		a, b, c := f.start("a"), f.start("b"), f.start("c")
		f.serve(12*time.Second, a, b, c)
		time.Sleep(2 * time.Second)
		backup := f.store.Snapshot()
		a.must("t", 5000)
		b.must("t", 10)
		a.link.cut()
		b.link.hang()
		f.store.Restore(backup)
		time.Sleep(3 * wait) // c marks both silent, one after the other where they have read before it
		b.link.unhang()
		f.until("the fence", func() bool { return f.standing() != nil })
		time.Sleep(15 * time.Second)
		if fence := f.standing(); fence == nil || !slices.ContainsFunc(fence.Missing, func(n witness.Node) bool { return n.Name == "a" }) {
			t.Errorf("the fence is %+v; want a missing", fence)
		}
		a.link.restore()
		f.twice = nil // c went on: its last heartbeat is in the copy, a listed case
		for _, m := range []*machine{a, b, c} {
			m.within(40 * time.Second)
		}
	})
}

// Of two that know a line, one knows the higher mark and the other the higher token:
// the line is raised above both.
func TestRaisesAboveMarksAndTokens(t *testing.T) {
	world(t, func(t *testing.T, f *fleet) {
		a, b := f.start("a"), f.start("b")
		f.serve(12*time.Second, a, b)
		time.Sleep(2 * time.Second)
		backup := f.store.Snapshot()
		a.must("t", 5000)
		a.link.hang()
		f.store.Restore(backup)
		granted, err := b.Allocate(t.Context(), "t", 10, "") // not used; b has not met the loss
		if err != nil {
			t.Fatal(err)
		}
		if err := b.HandBack(t.Context(), granted, granted.Grant.Lo); err != nil {
			t.Fatal(err)
		}
		a.link.unhang()
		time.Sleep(2 * time.Second)
		for _, m := range []*machine{a, b} {
			m.within(20 * time.Second)
		}
	})
}

// The store goes back once more while it is raised: it is raised again.
func TestGoesBackWhileItIsRaised(t *testing.T) {
	world(t, func(t *testing.T, f *fleet) {
		a, b, c := f.start("a"), f.start("b"), f.start("c")
		f.serve(12*time.Second, a, b, c)
		time.Sleep(2 * time.Second)
		backup := f.store.Snapshot()
		time.Sleep(1500 * time.Millisecond)
		c.must("t", 5000)
		var once sync.Once
		for _, m := range []*machine{a, b} {
			m.link.set(nil, func(op string) error {
				if op == "heal" { // raised, and not yet lifted
					once.Do(func() { // the rows are as they are now, and the lines as before
						again := backup.Snapshot()
						f.rows(again)
						f.store.Restore(again)
						c.link.cut() // it has spoken, and would find that its line is behind
					})
				}
				return nil
			})
		}
		f.store.Restore(backup)
		f.until("that all have found it", func() bool { fence := f.standing(); return fence != nil && len(fence.Found) == 3 })
		c.link.hang() // so that another asks
		f.until("the question", func() bool { fence := f.standing(); return fence != nil && fence.Ask != "" })
		c.link.unhang()
		time.AfterFunc(20*time.Second, c.link.restore)
		for _, m := range []*machine{a, b, c} {
			m.within(40 * time.Second)
		}
	})
}

// rows gives another store the rows of the guard that this one has.
func (f *fleet) rows(to driver.Rows) {
	ctx := f.t.Context()
	for _, table := range []string{driver.TableBeats, driver.TableNodes, driver.TableFence, driver.TableGuard, driver.TableEvidence} {
		old, err := to.ListRows(ctx, table, "", 1000)
		if err != nil {
			f.t.Error(err)
		}
		for _, r := range old {
			if ok, err := to.SwapRow(ctx, table, r.Name, r.Value, nil); !ok || err != nil {
				f.t.Error(ok, err)
			}
		}
		now, err := f.store.ListRows(ctx, table, "", 1000)
		if err != nil {
			f.t.Error(err)
		}
		for _, r := range now {
			if ok, err := to.SwapRow(ctx, table, r.Name, nil, r.Value); !ok || err != nil {
				f.t.Error(ok, err)
			}
		}
	}
}

// Operators' floors reach lines that a wiped store lacks.
func TestFloorOnAWipedStore(t *testing.T) {
	world(t, func(t *testing.T, f *fleet) {
		a, b := f.start("a"), f.start("b")
		f.serve(12*time.Second, a, b)
		a.must("t", 10)
		time.Sleep(2 * time.Second)
		b.must("t", 50_000)
		b.crash()
		f.store.Restore(emptyStore())
		f.misses("b")
		if _, err := a.Settle(t.Context(), witness.Statement{Row: "b", Floor: 1_000_000}); err != nil {
			t.Fatal(err)
		}
		a.within(5 * time.Second)
		if tag, err := f.store.Tag(t.Context(), "t"); err != nil || tag.Mark < 1_000_000 {
			t.Errorf("the tag is at %d, error %v; want the floor or more", tag.Mark, err)
		}
	})
}

// The witness is synced with grants, and not with heartbeats.
func TestSyncsWithGrants(t *testing.T) {
	world(t, func(t *testing.T, f *fleet) {
		a, b := f.start("a"), f.start("b")
		f.serve(12*time.Second, a, b)
		time.Sleep(2 * time.Second)
		syncs := witness.CountSyncs(a.witness)
		time.Sleep(20 * time.Second)
		if n := syncs(); n != 0 {
			t.Errorf("20 s of heartbeats took %d syncs; want none", n)
		}
		for range 5 {
			a.must("t", 10)
		}
		if n := syncs(); n != 5 {
			t.Errorf("5 grants took %d syncs; want 5", n)
		}
	})
}

// A store is put back after all disks were lost: no possible witness is left, and the
// first node names those that nobody heard. One that finds a serving node, or has used
// the store before, does not.
func TestNamesWhomNobodyHeard(t *testing.T) {
	world(t, func(t *testing.T, f *fleet) {
		a, b := f.start("a"), f.start("b")
		f.serve(12*time.Second, a, b)
		time.Sleep(2 * time.Second)
		a.crash()
		b.crash()
		var first, second, again alarms
		warns := func(a *alarms) witness.Options {
			return witness.Options{Log: slog.New(slog.NewTextHandler(a, &slog.HandlerOptions{Level: slog.LevelWarn}))}
		}
		c := f.start("c", warns(&first))
		f.serve(12*time.Second, c)
		d := f.start("d", warns(&second))
		f.serve(12*time.Second, d)
		d.crash()
		c.crash()
		c.opts.Log = warns(&again).Log
		c.start()
		f.serve(12*time.Second, c)
		for name, c := range map[string]struct {
			said *alarms
			want bool
		}{"first": {&first, true}, "second": {&second, false}, "again": {&again, false}} {
			if has := strings.Contains(c.said.all(), `nodes="a, b" count=2`); has != c.want {
				t.Errorf("the %s says %q; names a and b: %v, want %v", name, c.said.all(), has, c.want)
			}
		}
	})
}
