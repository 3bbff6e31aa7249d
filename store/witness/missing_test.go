package witness_test

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hapax-id/hapax"
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
