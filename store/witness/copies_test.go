package witness_test

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/store/memstore"
	"github.com/hapax-id/hapax/store/witness"
)

// copiedFleet makes a fleet whose store was copied while it served, and that serves in the copy; it returns the
// store as it was before the copy.
func copiedFleet(t *testing.T, f *fleet) (before *memstore.Store, a, b *machine) {
	t.Helper()
	a, b = f.start("a"), f.start("b")
	f.serve(20*time.Second, a, b)
	a.must("t", 100)
	before = f.store.Snapshot()
	copied, _ := f.retire()
	f.on(copied, a, b)
	f.serve(30*time.Second, a, b)
	a.must("t", 100)
	b.must("t", 100)
	return before, a, b
}

// on has nodes stop, and start on a store.
func (f *fleet) on(s *memstore.Store, nodes ...*machine) {
	f.t.Helper()
	for _, m := range nodes {
		m.stop()
	}
	f.store = s
	for _, m := range nodes {
		m.start()
	}
}

// refuses sees that a node uses its store for nothing, since that went on in the place of a URL.
func (m *machine) refuses(to string) {
	m.f.t.Helper()
	before := m.f.store.Snapshot()
	for range 30 {
		time.Sleep(time.Second)
		err := m.take("t", 10)
		if st := m.Status(); !errors.Is(err, hapax.ErrStoreRetired) || !strings.Contains(err.Error(), to) || st.Code != hapax.ErrStoreRetired.Code() || !strings.Contains(st.Command, to) {
			m.f.t.Fatalf("%s is told %v, and is %+v; want a refusal that names %s", m.name, err, st, to)
		}
	}
	if m.GoesOn(m.f.t.Context()) {
		m.f.t.Errorf("%s waits for the store to go on", m.name)
	}
	if !sameRows(m.f.t, m.f.store, before) {
		m.f.t.Errorf("%s has written to the store", m.name)
	}
}

// A node that has used a copy takes the store as it was before, put back from a backup that says nothing of
// the copy, for another one, while others go on in the copy. It is healed by no such node, no restart and no
// operator; once the URL is right the node goes on.
func TestStoreFromBeforeItsCopy(t *testing.T) {
	world(t, func(t *testing.T, f *fleet) {
		before, a, b := copiedFleet(t, f)
		copied := f.store
		f.on(before, a)
		time.Sleep(2 * time.Second)
		a.refuses("redis://there/0")
		b.must("t", 1000)
		if _, err := a.Adopt(t.Context(), witness.Statement{Floor: 1 << 40}); !errors.Is(err, hapax.ErrStoreRetired) {
			t.Errorf("adopt: %v", err)
		}
		if _, err := a.Settle(t.Context(), witness.Statement{Row: "b", Floor: 1 << 40}); !errors.Is(err, hapax.ErrStoreRetired) {
			t.Errorf("settle: %v", err)
		}
		a.crash()
		a.start()
		time.Sleep(2 * time.Second)
		a.refuses("redis://there/0")
		b.must("t", 1000)
		f.on(copied, a)
		f.serve(30*time.Second, a)
		a.must("t", 1000)
		f.neverFenced()
		f.store = before
		f.neverFenced()
	})
}

// The store as it was before is put in the place of the copy under a living fleet, and then the copy again.
func TestStoreFromBeforeInThePlaceOfItsCopy(t *testing.T) {
	world(t, func(t *testing.T, f *fleet) {
		before, a, b := copiedFleet(t, f)
		copied := f.store.Snapshot()
		time.Sleep(1500 * time.Millisecond)
		a.must("t", 1000)
		f.store.Restore(before)
		_ = a.take("t", 10)
		time.Sleep(2 * time.Second)
		for _, m := range []*machine{a, b} {
			m.refuses("redis://there/0")
		}
		f.store.Restore(copied) // which is behind
		a.within(30 * time.Second)
		b.within(30 * time.Second)
		if f.row(driver.TableGuard, "decision") == nil {
			t.Error("the copy was behind, and was not healed")
		}
	})
}

// A node that refuses its restored copy refuses what was before it, too, tells why, and comes back to the
// fence.
func TestStoreFromBeforeUnderAFence(t *testing.T) {
	world(t, func(t *testing.T, f *fleet) {
		before, a, b := copiedFleet(t, f)
		backup := f.store.Snapshot()
		time.Sleep(1500 * time.Millisecond)
		b.must("t", 1000)
		a.must("t", 1000)
		b.crash()
		f.store.Restore(backup)
		f.misses("b")
		copied := f.store
		f.on(before, a)
		time.Sleep(2 * time.Second)
		a.refuses("redis://there/0")
		f.on(copied, a)
		time.Sleep(5 * time.Second)
		if st := a.Status(); st.Code == hapax.ErrStoreRetired.Code() || len(st.Missing) != 1 {
			t.Errorf("back on the copy: %+v", st)
		}
		b.start()
		a.within(30 * time.Second)
		b.within(30 * time.Second)
	})
}

// A backup of the copy is the copy: it is healed.
func TestBackupOfACopy(t *testing.T) {
	world(t, func(t *testing.T, f *fleet) {
		_, a, b := copiedFleet(t, f)
		backup := f.store.Snapshot()
		time.Sleep(1500 * time.Millisecond)
		a.must("t", 1000)
		f.store.Restore(backup)
		a.within(30 * time.Second)
		b.within(30 * time.Second)
	})
}

// A copy that was copied back goes on there, and nothing from before that does.
func TestCopiedBack(t *testing.T) {
	world(t, func(t *testing.T, f *fleet) {
		before, a, b := copiedFleet(t, f)
		first := f.store.Snapshot()
		time.Sleep(1500 * time.Millisecond)
		back, _ := f.retireFor("D", "redis://here/0")
		f.on(back, a, b)
		f.serve(30*time.Second, a, b)
		a.must("t", 1000)
		for _, old := range []*memstore.Store{first, before} {
			f.on(old, a)
			time.Sleep(2 * time.Second)
			a.refuses("redis://here/0")
		}
		f.on(back, a)
		f.serve(30*time.Second, a, b)
		a.must("t", 1000)
	})
}

// A row of a copy whose value was damaged keeps nobody out, and counts: also a node that comes to know it then
// takes the store as it was before for another one, and goes on in a copy of the copy.
func TestDamagedRowOfACopy(t *testing.T) {
	world(t, func(t *testing.T, f *fleet) {
		before, a, b := copiedFleet(t, f)
		row := driver.RowCopied("C")
		if ok, err := f.store.SwapRow(t.Context(), driver.TableGuard, row, f.row(driver.TableGuard, row), []byte(`{"copy":"C","sto`)); err != nil || !ok {
			t.Fatal(ok, err)
		}
		c := f.start("c")
		f.serve(30*time.Second, a, b, c)
		for _, m := range []*machine{a, b, c} {
			m.stop()
			m.start()
			m.within(30 * time.Second)
			m.must("t", 1000)
		}
		first := f.store
		again, _ := f.retireFor("D", "redis://here/0")
		f.on(before, a, c)
		time.Sleep(2 * time.Second)
		a.refuses("redis://there/0")
		c.refuses("the URL of the copy")
		f.on(again, a, b, c)
		f.serve(30*time.Second, a, b, c)
		c.must("t", 1000)
		for _, old := range []*memstore.Store{first, before} {
			f.on(old, c)
			time.Sleep(2 * time.Second)
			c.refuses("redis://here/0")
		}
	})
}

// A copy that was wiped is healed, and what was before it is none that went on in its place, also for a node that
// first comes to the healed store.
func TestCopyThatWasWiped(t *testing.T) {
	world(t, func(t *testing.T, f *fleet) {
		before, a, b := copiedFleet(t, f)
		f.store.Restore(emptyStore())
		a.within(60 * time.Second)
		b.within(60 * time.Second)
		late := f.start("late")
		f.serve(30*time.Second, late)
		f.on(before, a, late)
		time.Sleep(2 * time.Second)
		a.refuses("redis://there/0")
		late.refuses("redis://there/0")
	})
}

// A copy that has lost the rows of all nodes, and its own, is no store from before, also for a node that comes later.
func TestCopyWithoutRows(t *testing.T) {
	world(t, func(t *testing.T, f *fleet) {
		before, a, b := copiedFleet(t, f)
		late := f.start("late")
		f.serve(30*time.Second, late)
		late.stop()
		time.Sleep(2 * time.Second)
		for _, table := range []string{driver.TableFence, driver.TableGuard, driver.TableBeats, driver.TableNodes, driver.TableEvidence} {
			if err := driver.AllRows(t.Context(), f.store, table, func(r driver.Row) error {
				_, err := f.store.SwapRow(t.Context(), table, r.Name, r.Value, nil)
				return err
			}); err != nil {
				t.Fatal(err)
			}
		}
		a.within(60 * time.Second)
		b.within(60 * time.Second)
		late.start()
		late.within(60 * time.Second)
		f.on(before, late)
		time.Sleep(2 * time.Second)
		late.refuses("redis://there/0")
	})
}

// On a store that nobody shares a node knows the copy when it is granted the first number, and not with its
// first survey.
func TestEmbeddedCopyIsKnownAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, path := newEmbedded(t, "t"), filepath.Join(memoryDir(t), "witness")
		first, _, end := e.guarded(t, path)
		if _, err := first.Allocate(t.Context(), "t", 10, ""); err != nil {
			t.Fatal(err)
		}
		end()
		before := e.Snapshot()
		id, err := e.StoreID(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		r := driver.Retirement{Copy: "C", Store: id, To: "bolt:there.db", By: "here", At: time.Now()}
		if ok, err := e.SwapRow(t.Context(), driver.TableGuard, driver.RowCopied("C"), nil, driver.EncodeRow(r)); err != nil || !ok {
			t.Fatal(ok, err)
		}
		release := e.hold()
		g, w, _ := e.guarded(t, path)
		if _, err := g.Allocate(t.Context(), "t", 10, ""); err != nil {
			t.Fatal(err)
		}
		g.Kill()
		release()
		_ = w.Close()
		e.Restore(before)
		again, _, end := e.guarded(t, path)
		defer end()
		if _, err := again.Allocate(t.Context(), "t", 10, ""); !errors.Is(err, hapax.ErrStoreRetired) {
			t.Errorf("on the store from before its copy: %v", err)
		}
	})
}

// A row that somebody wrote by hand, for a copy that has no row, stops nobody.
func TestCopyThatNeverWas(t *testing.T) {
	world(t, func(t *testing.T, f *fleet) {
		_, a, b := copiedFleet(t, f)
		id, err := f.store.StoreID(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		r := driver.Retirement{Copy: "X", Store: id, To: "redis://nowhere/0", By: "x", At: time.Now()}
		if ok, err := f.store.SwapRow(t.Context(), driver.TableGuard, driver.RowCopied("Y"), nil, driver.EncodeRow(r)); err != nil || !ok {
			t.Fatal(ok, err)
		}
		c := f.start("c") // so that all survey
		f.serve(30*time.Second, a, b, c)
		for _, m := range []*machine{a, b, c} {
			m.stop()
			m.start()
			m.within(30 * time.Second)
			m.must("t", 1000)
		}
	})
}

// A witness that knows the store as it went on in its copy speaks for nobody in the one from before.
func TestWitnessOfTheCopyInTheStoreFromBefore(t *testing.T) {
	world(t, func(t *testing.T, f *fleet) {
		before, a, b := copiedFleet(t, f)
		copied := f.store
		a.stop()
		b.stop()
		said, err := witness.Read(a.path)
		if err != nil {
			t.Fatal(err)
		}
		f.store = before
		c := f.start("c") // which has used neither
		time.Sleep(20 * time.Second)
		for _, settle := range []bool{true, false} {
			st := witness.Statement{Witness: []witness.Testimony{said}, DryRun: settle}
			if settle {
				st.Row = "a"
				_, err = c.Settle(t.Context(), st)
			} else {
				_, err = c.Adopt(t.Context(), st)
			}
			if !errors.Is(err, hapax.ErrStoreRetired) || !strings.Contains(err.Error(), "redis://there/0") {
				t.Errorf("settle: %v: %v", settle, err)
			}
		}
		c.stop()
		f.on(copied, a, b) // there it speaks as ever
		if _, err := a.Adopt(t.Context(), witness.Statement{Witness: []witness.Testimony{said}, DryRun: true}); errors.Is(err, hapax.ErrStoreRetired) {
			t.Error(err)
		}
	})
}
