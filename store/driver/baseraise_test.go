package driver_test

import (
	"errors"
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
