package driver_test

import (
	"errors"
	"math"
	"testing"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/memstore"
)

// TestRaiseTagEndsRuns: what was granted from below the mark that an operator states cannot be
// handed back, whether the tag's mark had to be raised or not; what lies above it can.
func TestRaiseTagEndsRuns(t *testing.T) {
	for name, c := range map[string]struct {
		to   int64 // after a grant of [1, 11)
		fits bool
	}{
		"above the mark":     {20, false},
		"to the mark":        {11, false},
		"inside of a grant":  {5, false},
		"where it began":     {1, true},
		"below all of a tag": {0, true},
	} {
		t.Run(name, func(t *testing.T) {
			s, ctx := memstore.New(), t.Context()
			if _, err := s.CreateTag(ctx, hapax.Tag{Name: "t"}, hapax.CreateFirstUse); err != nil {
				t.Fatal(err)
			}
			a, err := s.Allocate(ctx, "t", 10, "")
			if err != nil {
				t.Fatal(err)
			}
			raised, err := s.RaiseTag(ctx, "t", c.to)
			if want := max(c.to, 11); err != nil || raised.Mark != want {
				t.Fatalf("the mark is %d, error %v; want %d", raised.Mark, err, want)
			}
			if err := s.HandBack(ctx, a, 3); c.fits && err != nil || !c.fits && !errors.Is(err, hapax.ErrLeaseLost) {
				t.Errorf("the hand-back has error %v", err)
			}
			tag, err := s.Tag(ctx, "t")
			if want := max(c.to, 11); err != nil || c.fits != (tag.Mark == 3) || !c.fits && tag.Mark != want {
				t.Errorf("the mark is %d after the hand-back, error %v", tag.Mark, err)
			}
		})
	}
}

// TestRaiseAllCountsNumbers: a tag is raised by so many of its numbers, however far apart they
// are, and not beyond the end of its line.
func TestRaiseAllCountsNumbers(t *testing.T) {
	for name, c := range map[string]struct{ delta, mark, numbers, want int64 }{
		"every number":                 {1, 11, 500, 511},
		"every tenth":                  {10, 11, 500, 5011},
		"more than are left":           {1, hapax.MaxMark - 5, 500, hapax.MaxMark},
		"more than are left, apart":    {10, hapax.MaxMark - 25, 500, hapax.MaxMark - 5},
		"more places than there are":   {hapax.MaxDelta, 1, math.MaxInt64, 1 + (hapax.MaxMark-1)/hapax.MaxDelta*hapax.MaxDelta},
		"numbers of a line at its end": {7, hapax.MaxMark, 500, hapax.MaxMark},
	} {
		t.Run(name, func(t *testing.T) {
			s, ctx := memstore.New(), t.Context()
			if _, err := s.CreateTag(ctx, hapax.Tag{Name: "t", Delta: c.delta}, hapax.CreateFirstUse); err != nil {
				t.Fatal(err)
			}
			if _, err := s.RaiseTag(ctx, "t", c.mark); err != nil {
				t.Fatal(err)
			}
			raised, err := s.RaiseAll(ctx, c.numbers, 0)
			if err != nil || len(raised) != 1 || raised[0].To != c.want {
				t.Errorf("raised: %+v, %v; want it at %d", raised, err, c.want)
			}
		})
	}
}
