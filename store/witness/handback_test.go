package witness

import (
	"slices"
	"testing"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
)

// TestOneHandBackOfATag: clients that lease segments of one tag hand back at the same time,
// and a call names each tag once.
func TestOneHandBackOfATag(t *testing.T) {
	b := handBacks{runs: true}
	for _, tag := range []string{"a", "a", "b", "a", "c"} {
		b.waiting = append(b.waiting, handBack{HandBackOf: driver.HandBackOf{Allocation: hapax.Allocation{Tag: hapax.Tag{Name: tag}}}})
	}
	for _, want := range [][]string{{"a", "b", "c"}, {"a"}, {"a"}, nil} {
		var got []string
		for _, h := range b.next() {
			got = append(got, h.Tag.Name)
		}
		if !slices.Equal(got, want) || b.runs != (want != nil) {
			t.Errorf("the next call is of %q, runs %v; want %q", got, b.runs, want)
		}
	}
	for i := range maxTogether + 1 {
		b.waiting = append(b.waiting, handBack{HandBackOf: driver.HandBackOf{Allocation: hapax.Allocation{Tag: hapax.Tag{Name: string(rune('A' + i))}}}})
	}
	if n, rest := len(b.next()), len(b.next()); n != maxTogether || rest != 1 {
		t.Errorf("of %d tags %d are in the first call and %d in the second; want %d and 1", maxTogether+1, n, rest, maxTogether)
	}
}
