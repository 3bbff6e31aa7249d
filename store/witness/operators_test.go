package witness_test

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/witness"
)

// Two operators speak for one node at the same time, or one after the other, each at
// another node: both are told that it is settled, or one that his higher floor came too
// late; the higher floor holds, and the fleet goes on.
func TestTwoOperators(t *testing.T) {
	const low, high = 100_000, 200_000
	for _, c := range []struct {
		name   string
		said   [2]witness.Statement
		after  time.Duration // the second one, after the first
		others bool          // somebody else is missing as well, so that the fence stays
	}{
		{"the same at once", [2]witness.Statement{{Row: "c", Floor: low}, {Row: "c", Floor: low}}, 0, false},
		{"low and high at once", [2]witness.Statement{{Row: "c", Floor: low}, {Row: "c", Floor: high}}, 0, false},
		{"settle and adopt at once", [2]witness.Statement{{Row: "c", Floor: low}, {Floor: high}}, 0, false},
		{"the same, soon after", [2]witness.Statement{{Row: "c", Floor: low}, {Row: "c", Floor: low}}, 20 * time.Millisecond, false},
		{"the same, after the decision", [2]witness.Statement{{Row: "c", Floor: low}, {Row: "c", Floor: low}}, 30 * time.Second, false},
		{"low, and high after the decision", [2]witness.Statement{{Row: "c", Floor: low}, {Row: "c", Floor: high}}, 30 * time.Second, false},
		{"the same, while another is missing", [2]witness.Statement{{Row: "c", Floor: low}, {Row: "c", Floor: low}}, time.Second, true},
		{"low, then high, while another is missing", [2]witness.Statement{{Row: "c", Floor: low}, {Row: "c", Floor: high}}, time.Second, true},
		{"high, then low, while another is missing", [2]witness.Statement{{Row: "c", Floor: high}, {Row: "c", Floor: low}}, time.Second, true},
		{"high and low at once, while another is missing", [2]witness.Statement{{Row: "c", Floor: high}, {Row: "c", Floor: low}}, 0, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			world(t, func(t *testing.T, f *fleet) {
				a, b, gone := f.start("a"), f.start("b"), f.start("c")
				all := []*machine{a, b, gone}
				if c.others {
					all = append(all, f.start("d"))
				}
				f.serve(15*time.Second, all...)
				time.Sleep(2 * time.Second)
				backup := f.store.Snapshot()
				time.Sleep(1500 * time.Millisecond)
				for _, m := range all {
					m.must("t", 10)
				}
				for _, m := range all[2:] {
					m.crash()
				}
				f.store.Restore(backup)
				f.until("that they are missing", func() bool {
					fence := f.standing()
					return fence != nil && len(fence.Missing) == len(all)-2
				})
				var said sync.WaitGroup
				var errs [2]error
				var got [2]witness.Adoption
				for i, m := range []*machine{a, b} {
					c.said[i].Wait = 20 * time.Second
					said.Go(func() {
						time.Sleep(time.Duration(i) * c.after)
						got[i], errs[i] = m.declare(c.said[i], false)
					})
				}
				said.Wait()
				if c.others {
					if _, err := a.declare(witness.Statement{Row: "d", Floor: 1000 + low}, false); err != nil {
						t.Errorf("d: %v", err)
					}
				}
				for i, err := range errs {
					switch {
					case c.others && errors.Is(err, hapax.ErrFenced): // d is missing still
					case err == nil && len(got[i].Stated) == 1:
					case c.said[i].Floor == high && errors.Is(err, hapax.ErrInvalidArgument) && strings.Contains(err.Error(), "was settled before"):
						c.said[i].Floor = low // it came too late, and is told so
					default:
						t.Errorf("operator %d is told %v, about %v", i, err, got[i].Stated)
					}
				}
				f.until("the decision", func() bool { return f.standing() == nil })
				f.serve(15*time.Second, a, b)
				next, err := a.Allocate(t.Context(), "t", 10, "")
				if floor := max(c.said[0].Floor, c.said[1].Floor); err != nil || next.Grant.Lo < floor {
					t.Errorf("the next grant is %+v, %v; want one from %d", next, err, floor)
				}
			})
		})
	}
}
