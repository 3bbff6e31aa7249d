package witness_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/witness"
)

// More worlds in which one rule makes the difference, most of them shortest traces of the
// model.

// learns has b be granted numbers of a tag, and a survey that.
func (f *fleet) learns(a, b *machine, tag string) {
	was, _ := a.witness.Pair(witness.TagLine(tag))
	b.must(tag, 10)
	f.start("c")
	for began := time.Now(); ; time.Sleep(time.Millisecond) {
		if now, _ := a.witness.Pair(witness.TagLine(tag)); was.Less(now) {
			return
		}
		if time.Since(began) > wait-500*time.Millisecond {
			f.t.Error("the node has not surveyed the grant of another one in the time of a call")
			return
		}
	}
}

// A grant is answered after the node has surveyed a later one: its pair is lower than the one
// that is known by then, and no loss.
func TestAnswersTheOtherWayRound(t *testing.T) {
	world(t, func(t *testing.T, f *fleet) {
		a, b := f.start("a"), f.start("b")
		f.serve(12*time.Second, a, b)
		var meanwhile atomic.Bool
		a.link.set(nil, func(op string) error {
			if op == "allocate" && meanwhile.CompareAndSwap(false, true) {
				f.learns(a, b, "t")
			}
			return nil
		})
		a.must("t", 10)
		f.neverFenced()
	})
}

// A process is killed within a grant, and the store goes back before anybody has seen it
// fall silent: its directory speaks for it, since what was not answered was not used.
func TestKilledWithinAGrant(t *testing.T) {
	world(t, func(t *testing.T, f *fleet) {
		a, b := f.start("a"), f.start("b")
		f.serve(12*time.Second, a, b)
		time.Sleep(2 * time.Second)
		backup := f.store.Snapshot()
		time.Sleep(1500 * time.Millisecond)
		b.must("t", 10)
		b.link.set(nil, func(op string) error {
			if op == "allocate" {
				return errDown
			}
			return nil
		})
		for range 3 {
			if err := b.take("t", 1000); err == nil {
				t.Error("an answer that was lost")
			}
		}
		time.Sleep(1100 * time.Millisecond) // a has seen how many b has asked for
		b.crash()
		f.store.Restore(backup)
		b.start()
		for _, m := range []*machine{a, b} {
			m.within(20 * time.Second)
		}
	})
}

// A node only meets the fence: its own last heartbeat is in the copy. The copy is put back
// once more, so that the fence is gone without a decision, and the one that found the loss
// is dead. What the node has seen it remembers, also in its next process, and also where a
// decision stands in the store that it knows.
func TestFenceThatVanishes(t *testing.T) {
	for name, c := range map[string]struct{ healed, restarted bool }{
		"under the same process": {},
		"under the next process": {restarted: true},
		"after a decision":       {healed: true},
	} {
		t.Run(name, func(t *testing.T) {
			world(t, func(t *testing.T, f *fleet) {
				a, b := f.start("a"), f.start("b")
				f.serve(12*time.Second, a, b)
				time.Sleep(2 * time.Second)
				if c.healed {
					before := f.store.Snapshot()
					time.Sleep(1500 * time.Millisecond)
					f.store.Restore(before)
					time.Sleep(1100 * time.Millisecond)
					f.serve(20*time.Second, a, b)
					time.Sleep(2 * time.Second)
				}
				a.link.hang() // so that its last heartbeat is in the copy
				time.Sleep(10 * time.Millisecond)
				backup := f.store.Snapshot()
				b.must("t", 5000)
				f.store.Restore(backup)
				f.until("the fence", func() bool { return f.standing() != nil })
				a.link.unhang()
				f.until("that a meets it", func() bool { return a.Status().State == witness.Fenced })
				b.crash()
				if c.restarted {
					a.crash()
				}
				f.store.Restore(backup)
				if c.restarted {
					a.start()
				}
				for range 40 {
					if err := a.take("t", 100); err == nil {
						t.Fatal("a is granted numbers, and nobody has decided about the fence")
					}
					time.Sleep(250 * time.Millisecond)
				}
				b.start()
				for _, m := range []*machine{a, b} {
					m.within(20 * time.Second)
				}
			})
		})
	}
}

// A planned or unplanned switch to a replica that lacks the end: a node whose own last
// heartbeat is there is granted nothing before the others have looked for theirs.
func TestPrimaryThatLacksOthersGrants(t *testing.T) {
	world(t, func(t *testing.T, f *fleet) {
		a, b := f.start("a"), f.start("b")
		for _, m := range []*machine{a, b} {
			m.link.setPrimary("p1")
		}
		f.serve(12*time.Second, a, b)
		time.Sleep(2 * time.Second)
		a.must("t", 10) // and a heartbeat with it
		replica := f.store.Snapshot()
		b.must("t", 5000)
		f.store.Restore(replica)
		for _, m := range []*machine{a, b} {
			m.link.setPrimary("p2")
		}
		_ = a.take("t", 10)
		for _, m := range []*machine{a, b} {
			m.within(20 * time.Second)
		}
	})
}

// A joiner's connection breaks while it waits, and it dials anew: the store that answers
// then is one that a living node meets no later than it has waited once more.
func TestWaitBeginsAnew(t *testing.T) {
	world(t, func(t *testing.T, f *fleet) {
		a := f.start("a")
		f.serve(12*time.Second, a)
		time.Sleep(2 * time.Second)
		a.link.set(func(op string) error { // its surveys fail, so that it vouches for nobody
			if op == "tags" {
				return errDown
			}
			return nil
		}, nil)
		c := f.start("c")
		time.Sleep(4 * time.Second)
		c.link.hang() // what it dials from now on answers
		time.Sleep(10 * time.Millisecond)
		backup := f.store.Snapshot() // c's last heartbeat is in it
		a.must("t", 5000)
		a.link.hang()
		f.store.Restore(backup)
		c.link.unhang()
		time.AfterFunc(3*time.Second, a.link.unhang)
		time.Sleep(3500 * time.Millisecond)
		_ = c.take("t", 10)
		a.link.set(nil, nil)
		for _, m := range []*machine{a, c} {
			m.within(30 * time.Second)
		}
	})
}

// Two commands share a row: a node that has read it before the second one's grant reads
// the lines again when their number is counted.
func TestCommandsThatShareARow(t *testing.T) {
	world(t, func(t *testing.T, f *fleet) {
		a := f.start("a")
		f.serve(12*time.Second, a)
		if err := f.command(nil, 1); err != nil { // makes the row under which commands look for the fence
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second)
		backup := f.store.Snapshot()
		time.Sleep(1100 * time.Millisecond)
		l, swaps := &link{store: f.store}, 0
		l.set(func(op string) error {
			if op == "swap" {
				swaps++
			}
			if swaps == 3 { // the first one's row is there, and not counted
				swaps++
				time.Sleep(2500 * time.Millisecond)
				if err := f.command(nil, 5000); err != nil {
					t.Error(err)
				}
			}
			return nil
		}, nil)
		if err := f.command(l, 10); err != nil || swaps != 4 {
			t.Fatal(swaps, err)
		}
		time.Sleep(2500 * time.Millisecond)
		f.store.Restore(backup)
		time.Sleep(1100 * time.Millisecond)
		a.within(12 * time.Second)
	})
}

// A node that left in good order finds its row as it left it, and its own heartbeat.
func TestStopsAndStarts(t *testing.T) {
	world(t, func(t *testing.T, f *fleet) {
		a, b := f.start("a"), f.start("b")
		f.serve(12*time.Second, a, b)
		for range 3 {
			a.must("t", 10)
			b.must("t", 10)
			b.stop()
			b.start()
			f.serve(5*time.Second, b)
		}
		f.neverFenced()
	})
}

// A call that waits for the join to end leaves time for the store to answer, or is not
// made: else its numbers are granted to nobody.
func TestNothingIsGrantedToWhoIsGone(t *testing.T) {
	world(t, func(t *testing.T, f *fleet) {
		a := f.start("a")
		time.Sleep(300 * time.Millisecond)
		a.link.set(func(op string) error {
			if op == "allocate" {
				time.Sleep(500 * time.Millisecond)
			}
			return nil
		}, nil)
		ctx, cancel := context.WithTimeout(t.Context(), wait)
		defer cancel()
		if _, err := a.Allocate(ctx, "t", 100, ""); err == nil {
			t.Error("a call that cannot be answered in time was made")
		}
		got, err := a.Allocate(t.Context(), "t", 100, "")
		if err != nil || got.Grant.Lo != 1 {
			t.Errorf("the next call was granted %v, error %v; want the first numbers", got.Grant, err)
		}
	})
}

// Nothing is made before a joiner serves: a first use of a store that was wiped would
// make it look like another store than the one that living nodes know.
func TestNothingIsMadeBeforeServing(t *testing.T) {
	world(t, func(t *testing.T, f *fleet) {
		a := f.start("a")
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		def, err := hapax.Tag{Name: "early"}.WithDefaults()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := a.CreateTag(ctx, def, hapax.CreateFirstUse); err == nil {
			t.Error("a tag was created by a node that only joins")
		}
		if _, err := f.store.Tag(t.Context(), "early"); err == nil {
			t.Error("it is there")
		}
	})
}
