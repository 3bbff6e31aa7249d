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
