package witness_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/store/witness"
)

// How the guard used to fail, and the tests that would notice:
//
//	a node that joined after the copy, and is dead, is not heard: TestJoinedAfterTheCopy
//	a decision with the server stopped hears nobody: TestMissingNode in internal/e2e
//	connections that hang, and a node that joins: TestHungConnections
//	a grant is used while a fence stands: TestNoGrantUnderAFence, TestGrantsUnderTheHeartbeat
//	a new disk on a restored store: TestNewNodeOnAWipedStore, TestCrashedPods in internal/e2e
//	healing that is cut off revives a deleted tag: heal/deleted tag in store/storetest
//	hand-backs of clients that overlap: TestOverlappingClients, TestHandBackWhoseAnswerIsLost
//	a primary that answers late, or anew: TestChangedPrimary, TestOperations in internal/e2e
//	a copied directory: TestCopiedDirectory, TestCopyInPlaceOfTheOriginal
//	a return after months, clocks that run wrong: TestReturnsAfterMonths
//	a return after an operator's floor: TestReturnsAfterAStatement, TestReturnsWithTheLowerPair
//	a primary that lacks the end: TestPrimaryThatLacksOthersGrants, TestSignalsAgree in internal/e2e
//	pods that vanish with their disks, floors: TestTheLivingSpeakForThoseWhoEnded, TestDryRun
//	calls of one line that overlap: TestOverlappingClients, TestAnswersTheOtherWayRound
//	a full disk: TestFullDisk

// Clients that start and stop on one tag overlap: hand-backs of one line race with
// grants and with each other, and stop nobody.
func TestOverlappingClients(t *testing.T) {
	world(t, func(t *testing.T, f *fleet) {
		nodes := []*machine{f.start("a"), f.start("b")}
		for _, m := range nodes {
			m.within(12 * time.Second)
		}
		var wg sync.WaitGroup
		for i := range 40 {
			wg.Go(func() {
				m := nodes[i%2]
				for range 50 {
					a, err := m.Allocate(t.Context(), "t", 1000, "")
					if err != nil {
						t.Errorf("client %d: %v", i, err)
						return
					}
					time.Sleep(time.Duration(i%7) * time.Millisecond)
					used := a.Grant.Lo + int64(1+i%5)
					f.enter(m.name, "t", hapax.Grant{Lo: a.Grant.Lo, Hi: used})
					if err := nodes[(i+1)%2].HandBack(t.Context(), a, used); err != nil && !errors.Is(err, hapax.ErrLeaseLost) {
						t.Errorf("client %d hands back: %v", i, err)
						return
					}
				}
			})
		}
		wg.Wait()
		for _, m := range nodes {
			if st := m.Status(); st.State != witness.Serving {
				t.Errorf("%s is %+v", m.name, st)
			}
		}
	})
}

// One hand-back is answered late, after the next grant, or its answer is lost: the
// store's mark went down legitimately.
func TestHandBackWhoseAnswerIsLost(t *testing.T) {
	world(t, func(t *testing.T, f *fleet) {
		a := f.start("a")
		a.within(12 * time.Second)
		first, err := a.Allocate(t.Context(), "t", 100, "")
		if err != nil {
			t.Fatal(err)
		}
		a.link.set(nil, func(op string) error {
			if op == "handback" {
				return errDown
			}
			return nil
		})
		if err := a.HandBack(t.Context(), first, first.Grant.Lo+1); !errors.Is(err, hapax.ErrStoreUnavailable) {
			t.Fatalf("the hand-back whose answer is lost: %v", err)
		}
		a.link.set(nil, nil)
		second, err := a.Allocate(t.Context(), "t", 10, "")
		if err != nil || second.Grant.Lo != first.Grant.Lo+1 {
			t.Errorf("the next grant is %v, error %v; want it from %d on", second.Grant, err, first.Grant.Lo+1)
		}
		if err := a.HandBack(t.Context(), first, first.Grant.Lo+1); !errors.Is(err, hapax.ErrLeaseLost) {
			t.Errorf("the hand-back again: %v; want ErrLeaseLost", err)
		}
		if st := a.Status(); st.State != witness.Serving {
			t.Errorf("the node is %+v", st)
		}
	})
}

// While a fence stands nothing that is answered is used, whatever else was under way.
func TestNoGrantUnderAFence(t *testing.T) {
	world(t, func(t *testing.T, f *fleet) {
		a := f.start("a")
		a.within(12 * time.Second)
		var once sync.Once
		a.link.set(nil, func(op string) error { // the store has granted; the fence comes before the answer
			if op == "allocate" {
				once.Do(func() {
					f.fence("another")
					time.Sleep(1500 * time.Millisecond) // a beat meets it
				})
			}
			return nil
		})
		if err := a.take("t", 10); !errors.Is(err, hapax.ErrFenced) {
			t.Errorf("a grant that is answered under a fence: %v; want ErrFenced", err)
		}
	})
}

// fence raises a fence by hand.
func (f *fleet) fence(id string) {
	raw := []byte(`{"id":"` + id + `","node":"x","row":"","at":"2026-01-01T00:00:00Z","why":"a test","code":"store_rolled_back"}`)
	if ok, err := f.store.SwapRow(context.Background(), driver.TableFence, driver.RowFence, nil, raw); err != nil || !ok {
		f.t.Fatal(ok, err)
	}
}

// A node that joined after the copy, and is dead when the copy is put back, is missed by
// name: its numbers are not granted again before somebody spoke for it, or it is back.
func TestJoinedAfterTheCopy(t *testing.T) {
	for _, back := range []bool{true, false} {
		world(t, func(t *testing.T, f *fleet) {
			a := f.start("a")
			a.within(12 * time.Second)
			backup := f.store.Snapshot()
			d := f.start("d")
			d.within(12 * time.Second)
			for range 10 {
				d.must("t", 1000)
			}
			d.crash()
			f.store.Restore(backup) // at once: nobody has seen d fall silent
			time.Sleep(15 * time.Second)
			st := a.Status()
			if st.State == witness.Serving || len(st.Missing) != 1 || st.Missing[0].Name != "d" {
				t.Fatalf("after the restore a is %+v; want it to miss d", st)
			}
			e := f.start("e") // a new node is granted nothing either
			if err := e.take("t", 10); !errors.Is(err, hapax.ErrFenced) && !errors.Is(err, hapax.ErrStoreUnavailable) {
				t.Errorf("e, which joins: %v", err)
			}
			if back {
				d.start()
				d.within(10 * time.Second)
			} else {
				if _, err := a.Settle(t.Context(), witness.Statement{Row: "d", Floor: 1}); !errors.Is(err, hapax.ErrInvalidArgument) {
					t.Errorf("a floor of 1: %v; want ErrInvalidArgument", err)
				}
				dry, err := a.Settle(t.Context(), witness.Statement{Row: "d", Floor: 1_000_000, DryRun: true})
				if err != nil || len(dry.Raised) == 0 {
					t.Errorf("the dry run: %+v, %v", dry, err)
				}
				if a.Status().State == witness.Serving {
					t.Error("a dry run ended the fence")
				}
				if _, err := a.Settle(t.Context(), witness.Statement{Row: "d", Floor: 1_000_000}); err != nil {
					t.Fatal(err)
				}
			}
			a.within(5 * time.Second)
			e.within(10 * time.Second)
		})
	}
}

// The same, where the others have seen it fall silent, or leave: they speak for it, and
// its disk may be gone.
func TestTheLivingSpeakForThoseWhoEnded(t *testing.T) {
	for _, graceful := range []bool{true, false} {
		world(t, func(t *testing.T, f *fleet) {
			a := f.start("a")
			a.within(12 * time.Second)
			backup := f.store.Snapshot()
			d := f.start("d")
			d.within(12 * time.Second)
			for range 10 {
				d.must("t", 1000)
			}
			if graceful {
				d.stop()
			} else {
				d.crash()
			}
			time.Sleep(8 * time.Second)
			f.store.Restore(backup)
			a.within(12 * time.Second)
			a.must("t", 1000)
		})
	}
}

// A living node's connections hang on the old store; it meets the restored one late, and
// a node that joins meanwhile has used nothing before.
func TestHungConnections(t *testing.T) {
	world(t, func(t *testing.T, f *fleet) {
		a := f.start("a")
		a.within(12 * time.Second)
		backup := f.store.Snapshot()
		time.Sleep(2 * time.Second)
		for range 5 {
			a.must("t", 1000)
		}
		a.link.hang()
		f.store.Restore(backup)
		time.AfterFunc(700*time.Millisecond, func() {
			a.link.mu.Lock()
			defer a.link.mu.Unlock()
			a.link.hangs = false // a handle that is dialled from now on works; those before stay silent
		})
		b := f.start("b")
		b.within(20 * time.Second)
		a.within(20 * time.Second)
	})
}

// A copied directory: the copy and the original both go on, the original can be started
// again, and nobody is fenced.
func TestCopiedDirectory(t *testing.T) {
	world(t, func(t *testing.T, f *fleet) {
		a, b := f.start("a"), f.start("b")
		a.within(12 * time.Second)
		b.within(12 * time.Second)
		a.must("t", 10)
		c := f.copyOf(a, "c")
		a.must("t", 10)
		c.within(12 * time.Second)
		for range 3 {
			a.must("t", 10)
			b.must("t", 10)
			c.must("t", 10)
			time.Sleep(time.Second)
		}
		a.stop()
		a.start()
		a.within(12 * time.Second)
		c.crash()
		c.start()
		c.within(12 * time.Second)
		b.must("t", 10)
	})
}

// A node returns after a week, or months; its row may be compacted meanwhile.
func TestReturnsAfterMonths(t *testing.T) {
	world(t, func(t *testing.T, f *fleet) {
		a, b := f.start("a"), f.start("b")
		a.within(12 * time.Second)
		b.within(12 * time.Second)
		b.crash()
		time.Sleep(30 * time.Second)
		for range 120 { // starts and stops of others, until rows are compacted
			c := f.start("c")
			c.within(12 * time.Second)
			c.stop()
		}
		rows, err := f.store.ListRows(t.Context(), driver.TableBeats, "", 1000)
		if err != nil || len(rows) > 110 {
			t.Errorf("there are %d rows, error %v; want the ended ones compacted", len(rows), err)
		}
		b.start()
		b.within(12 * time.Second)
		a.must("t", 10)
		f.neverFenced()
	})
}

// Starting again within the time that a living node takes, after a stop in good order,
// takes no time where the node was alone.
func TestStartsAtOnceAlone(t *testing.T) {
	world(t, func(t *testing.T, f *fleet) {
		witness.SetUptime(t, func() (string, int64) { return "boot", time.Now().UnixMilli() })
		a := f.start("a")
		a.within(7 * time.Second)
		a.stop()
		time.Sleep(2 * time.Second)
		a.start()
		if took := a.within(time.Second); took > 500*time.Millisecond {
			t.Errorf("started again after 2 s it waited %v", took)
		}
		command, err := witness.OneShot(f.store) // the node leaves before it has surveyed what this is granted
		if err != nil {
			t.Fatal(err)
		}
		grant, err := command.Allocate(t.Context(), "t", 10, "")
		if err != nil {
			t.Fatal(err)
		}
		f.enter("command", "t", grant.Grant)
		a.stop()
		a.start()
		if took := a.within(time.Second); took > 500*time.Millisecond {
			t.Errorf("started again after a command it waited %v", took)
		}
		a.stop()
		time.Sleep(6 * time.Second)
		a.start()
		if took := a.within(7 * time.Second); took < wait {
			t.Errorf("started again after 6 s it waited %v; want %v", took, wait)
		}
		a.stop()
		b := f.start("b") // somebody else was there meanwhile
		b.within(7 * time.Second)
		b.stop()
		a.start()
		if took := a.within(7 * time.Second); took < wait {
			t.Errorf("after somebody else was there it waited %v; want %v", took, wait)
		}
	})
}

// Another store at the same address is refused alone, and nothing is written to it; a
// wiped one is healed.
func TestOtherStoreAndWipedStore(t *testing.T) {
	world(t, func(t *testing.T, f *fleet) {
		a := f.start("a")
		a.within(12 * time.Second)
		for range 5 {
			a.must("t", 1000)
		}
		mine := f.store.Snapshot()
		other := newFleet(t)
		b := other.start("b")
		b.within(12 * time.Second)
		b.crash()
		f.store.Restore(other.store)
		before := f.store.Snapshot()
		time.Sleep(3 * time.Second)
		if st := a.Status(); st.State != witness.Refusing || st.Code != hapax.ErrStoreReplaced.Code() || st.Command == "" {
			t.Errorf("with another store a is %+v", st)
		}
		if !sameRows(t, before, f.store) {
			t.Error("it has written to the other store")
		}
		f.store.Restore(mine)
		a.within(10 * time.Second)
		f.store.Restore(emptyStore())
		a.within(15 * time.Second)
		a.must("t", 10)
	})
}

// A node for which an operator spoke returns, and knows more: its lines are raised, and
// nobody is stopped.
func TestReturnsAfterAStatement(t *testing.T) {
	for _, enough := range []bool{true, false} {
		world(t, func(t *testing.T, f *fleet) {
			a := f.start("a")
			a.within(12 * time.Second)
			backup := f.store.Snapshot()
			d := f.start("d")
			d.within(12 * time.Second)
			for range 10 {
				d.must("t", 1000)
			}
			d.link.cut()
			f.store.Restore(backup)
			time.Sleep(15 * time.Second)
			floor := int64(100_000)
			if !enough {
				floor = 5000
			}
			if _, err := a.Adopt(t.Context(), witness.Statement{Floor: floor}); err != nil {
				t.Fatal(err)
			}
			a.within(5 * time.Second)
			d.link.restore()
			time.Sleep(time.Second)
			d.within(12 * time.Second)
			a.must("t", 10)
			time.Sleep(3 * time.Second)
			a.must("t", 10)
			d.must("t", 10)
			if !enough {
				f.twice = nil // what the operator said was wrong
			}
		})
	}
}

// The primary changes: nobody is stopped but for moments, unless beats are missing.
func TestChangedPrimary(t *testing.T) {
	world(t, func(t *testing.T, f *fleet) {
		a, b := f.start("a"), f.start("b")
		a.link.primary, b.link.primary = "p1", "p1"
		a.within(12 * time.Second)
		b.within(12 * time.Second)
		time.Sleep(2 * time.Second)
		a.link.setPrimary("p2")
		b.link.setPrimary("p2")
		time.Sleep(50 * time.Millisecond)
		for _, m := range []*machine{a, b} {
			if took := m.within(4 * time.Second); took > 3*time.Second {
				t.Errorf("%s went on after %v", m.name, took)
			}
		}
		backup := f.store.Snapshot() // an asynchronous replica
		time.Sleep(1200 * time.Millisecond)
		a.must("t", 100)
		f.store.Restore(backup)
		a.link.setPrimary("p3")
		b.link.setPrimary("p3")
		a.within(12 * time.Second)
		b.within(12 * time.Second)
	})
}

// With Manual a person decides.
func TestManual(t *testing.T) {
	world(t, func(t *testing.T, f *fleet) {
		a, b := f.start("a"), f.start("b", witness.Options{Manual: true})
		a.within(12 * time.Second)
		b.within(12 * time.Second)
		time.Sleep(2 * time.Second)
		backup := f.store.Snapshot()
		time.Sleep(2 * time.Second)
		a.must("t", 100)
		f.store.Restore(backup)
		time.Sleep(20 * time.Second)
		if st := a.Status(); st.State == witness.Serving || st.Fence == nil || !st.Fence.Manual || st.Command != "hapax adopt" {
			t.Errorf("a is %+v", st)
		}
		if _, err := a.Adopt(t.Context(), witness.Statement{}); err != nil {
			t.Fatal(err)
		}
		a.within(5 * time.Second)
		b.within(5 * time.Second)
	})
}

// A refusal outlives the process.
func TestLatch(t *testing.T) {
	world(t, func(t *testing.T, f *fleet) {
		a, d := f.start("a"), f.start("d")
		a.within(12 * time.Second)
		d.within(12 * time.Second)
		time.Sleep(2 * time.Second)
		backup := f.store.Snapshot()
		time.Sleep(2 * time.Second)
		d.must("t", 100)
		d.crash()
		f.store.Restore(backup)
		time.Sleep(3 * time.Second)
		a.crash()
		if ok, err := f.store.SwapRow(t.Context(), driver.TableFence, driver.RowFence, f.row(driver.TableFence, driver.RowFence), nil); !ok || err != nil {
			t.Fatal(ok, err)
		}
		a.start() // the fence is gone without a decision: it is raised again
		time.Sleep(12 * time.Second)
		if st := a.Status(); st.State != witness.Refusing || len(st.Missing) == 0 {
			t.Errorf("started again a is %+v", st)
		}
		d.start()
		a.within(12 * time.Second)
		d.within(12 * time.Second)
	})
}
