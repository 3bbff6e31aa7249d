package witness_test

import (
	"testing"
	"time"

	"github.com/hapax-id/hapax/store/witness"
)

// A store stands for the one that was lost once it is healed, where the node has used that one: a
// node that has not may have numbers in hand that it was granted before. A stranger's never does.
func TestStandsFor(t *testing.T) {
	world(t, func(t *testing.T, f *fleet) {
		a := f.start("a")
		f.serve(12*time.Second, a)
		a.must("t", 1000)
		lost := a.Witness().StoreID()
		if !a.StandsFor(lost) || a.StandsFor("another") {
			t.Error("a store stands for itself alone")
		}
		mine := f.store.Snapshot()
		other := newFleet(t)
		b := other.start("b")
		b.within(12 * time.Second)
		if b.StandsFor(lost) {
			t.Error("a stranger's store stands for a's")
		}
		b.crash()
		f.store.Restore(other.store)
		time.Sleep(3 * time.Second)
		if a.StandsFor(lost) {
			t.Error("a stands by a stranger's store")
		}
		f.store.Restore(mine)
		a.within(10 * time.Second)

		f.store.Restore(emptyStore())
		refused := false
		for range 200 {
			time.Sleep(100 * time.Millisecond)
			if st := a.Status().State; st == witness.Refusing || st == witness.Fenced {
				refused = true
				if a.StandsFor(lost) {
					t.Fatal("a store stands for another before it is healed")
				}
			}
		}
		if !refused {
			t.Error("the node did not refuse the wiped store")
		}
		a.within(15 * time.Second)
		now := a.Witness().StoreID()
		if now == lost || !a.StandsFor(now) || !a.StandsFor(lost) || a.StandsFor("another") {
			t.Errorf("healed, %q does not stand for %q", now, lost)
		}
		c := f.start("c")
		c.within(12 * time.Second)
		if !c.StandsFor(now) || c.StandsFor(lost) {
			t.Error("a node that has not used the lost store speaks for it")
		}
	})
}
