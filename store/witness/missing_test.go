package witness_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/store/witness"
)

// That a tag was not there is no loss where another node has used it, and this one surveyed
// that, before the answer came.
func TestTagThatIsCreatedMeanwhile(t *testing.T) {
	world(t, func(t *testing.T, f *fleet) {
		a, b := f.start("a"), f.start("b")
		f.serve(12*time.Second, a, b)
		var meanwhile atomic.Bool
		a.link.set(nil, func(op string) error {
			if op == "allocate" && meanwhile.CompareAndSwap(false, true) {
				f.create("late")
				f.learns(a, b, "late")
			}
			return nil
		})
		if _, err := a.Allocate(t.Context(), "late", 10, ""); !errors.Is(err, hapax.ErrTagNotFound) || errors.Is(err, hapax.ErrFenced) {
			t.Errorf("the tag was not there when it was asked for: %v; want ErrTagNotFound", err)
		}
		if !meanwhile.Load() {
			t.Error("nothing happened before the answer")
		}
		if st := a.Status(); st.State != witness.Serving {
			t.Errorf("the node is %+v", st)
		}
	})
}

// What a store that went back says of a tag is neither told nor the end of an issuer that has
// used the tag: it issues again, above what it did, when the store was healed.
func TestTagThatAStoreLacksWhichWentBack(t *testing.T) {
	for _, fence := range []bool{false, true} {
		t.Run(fmt.Sprintf("a fence stands: %v", fence), func(t *testing.T) {
			world(t, func(t *testing.T, f *fleet) {
				a := f.start("a")
				f.serve(12*time.Second, a)
				time.Sleep(1500 * time.Millisecond)
				backup := f.store.Snapshot()
				f.create("late")
				seg, err := hapax.NewSegment(t.Context(), a, "late", hapax.SegmentOptions{Step: 10, MaxStep: 10})
				if err != nil {
					t.Fatal(err)
				}
				defer func() { _ = seg.Close(t.Context()) }()
				last, err := seg.Next(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				f.store.Restore(backup)
				if fence {
					f.fence("another")
				}
				if _, err := f.store.Allocate(t.Context(), "late", 10, ""); !errors.Is(err, hapax.ErrTagNotFound) { // from now on the handle knows
					t.Fatal(err)
				}
				f.until("the end of what the issuer has in hand", func() bool {
					ctx, cancel := context.WithTimeout(t.Context(), time.Second)
					defer cancel()
					id, err := seg.Next(ctx)
					last = max(last, id)
					if driver.IsOfTag(err) {
						t.Errorf("the store was put back, and the issuer is told of the tag: %v", err)
					}
					return err != nil
				})
				a.within(30 * time.Second)
				time.Sleep(2 * time.Second) // failures are told for a second
				if id, err := seg.Next(t.Context()); err != nil || id <= last {
					t.Errorf("the store was healed, and the issuer issues %d after %d: %v", id, last, err)
				}
			})
		})
	}
}

// A process whose registration failed knows a row under a number that is another's in the end. That
// one is missed, where it has worked and died and nobody has surveyed it, and the store goes back.
func TestNumberOfALostRegistration(t *testing.T) {
	world(t, func(t *testing.T, f *fleet) {
		a := f.start("a")
		f.serve(12*time.Second, a)
		a.stop()
		backup := f.store.Snapshot()
		a.start()
		a.cutAtRegistration()
		b := f.start("b")
		f.serve(12*time.Second, b)
		b.must("t", 5000)
		b.crash()
		a.beatsWithoutASurvey(nil, nil)
		f.store.Restore(backup)
		a.link.set(nil, nil)
		f.until("b is missing", func() bool { fence := f.standing(); return fence != nil && len(fence.Missing) == 1 })
		b.start()
		f.serve(20*time.Second, a, b)
		a.must("t", 10)
	})
}

// cutAtRegistration has the node try to register, and cuts its link before the call arrives.
func (m *machine) cutAtRegistration() {
	m.f.t.Helper()
	m.link.set(func(op string) error {
		if op == "swap" {
			m.link.cut()
			return errDown
		}
		return nil
	}, nil)
	m.f.until("an attempt to register", func() bool { return !m.link.whole() })
}

// beatsWithoutASurvey has the node register and beat, while its surveys fail.
func (m *machine) beatsWithoutASurvey(before, lose func(op string) error) {
	m.f.t.Helper()
	var beats atomic.Int64
	m.link.set(func(op string) error {
		switch op {
		case "tags", "list":
			return errDown
		case "beat":
			beats.Add(1)
		}
		if before != nil {
			return before(op)
		}
		return nil
	}, lose)
	m.link.restore()
	m.f.until("a heartbeat of its row", func() bool { return beats.Load() > 2 })
}

// A registration that failed as the store went away tells of no other process: healing waits for
// nobody.
func TestHealsAfterALostRegistration(t *testing.T) {
	world(t, func(t *testing.T, f *fleet) {
		a := f.start("a")
		f.serve(12*time.Second, a)
		time.Sleep(1500 * time.Millisecond)
		backup := f.store.Snapshot()
		a.must("t", 5000)
		a.stop()
		a.start()
		a.cutAtRegistration()
		f.store.Restore(backup)
		a.link.set(nil, nil)
		a.link.restore()
		a.within(20 * time.Second)
	})
}

// A process whose registration got no answer looks for its row at once: the others have heard of its
// number alone, and the store goes back before it can try again.
func TestLooksAtOnceAfterALostAnswer(t *testing.T) {
	world(t, func(t *testing.T, f *fleet) {
		a := f.start("a")
		f.serve(12*time.Second, a)
		a.must("t", 5000)
		time.Sleep(1500 * time.Millisecond)
		backup := f.store.Snapshot()
		a.link.set(func(op string) error {
			if op == "tags" || op == "list" { // it surveys nothing
				return errDown
			}
			return nil
		}, nil)
		b := f.start("b")
		var lost, looked atomic.Bool
		b.link.set(func(op string) error {
			if lost.Load() && (op != "row" || looked.Swap(true)) {
				return errDown
			}
			return nil
		}, func(op string) error {
			if op == "swap" && lost.CompareAndSwap(false, true) {
				return errDown
			}
			return nil
		})
		f.until("a lost answer", lost.Load)
		time.Sleep(1500 * time.Millisecond) // a heartbeat of a
		f.store.Restore(backup)
		a.await(witness.Refusing) // before b registers anew, perhaps under the same number
		a.link.set(nil, nil)
		b.link.set(nil, nil)
		f.serve(20*time.Second, a, b)
		if !looked.Load() {
			t.Error("it has not looked")
		}
	})
}

// Where the answer was lost, and the look after it failed, the next attempt finds the row, and nobody is
// waited for.
func TestHealsAfterALostAnswer(t *testing.T) {
	world(t, func(t *testing.T, f *fleet) {
		a := f.start("a")
		f.serve(12*time.Second, a)
		a.must("t", 5000)
		a.crash()
		backup := f.store.Snapshot()
		a.start()
		var lost, looked atomic.Bool
		a.beatsWithoutASurvey(func(op string) error {
			if op == "row" && lost.Load() && looked.CompareAndSwap(false, true) {
				return errDown
			}
			return nil
		}, func(op string) error {
			if op == "swap" && lost.CompareAndSwap(false, true) {
				return errDown
			}
			return nil
		})
		f.store.Restore(backup)
		a.link.set(nil, nil)
		a.within(20 * time.Second)
	})
}
