// Package marks judges how far an operator raises the rows of a foreign table.
package marks

import (
	"fmt"
	"slices"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/witness"
)

// Why returns why lines are refused for which ours is true.
func Why(m *witness.Marks, ours func(line string) bool) (all []string) {
	for line, why := range m.RefusedLines() {
		if ours(line) {
			all = append(all, why)
		}
	}
	slices.Sort(all)
	return all
}

// Raise returns the mark that a row gets: at or above what is known to be used, and
// a margin above what it has, for the foreign system's own nodes.
func Raise(tag string, have, known, margin int64) (int64, error) {
	if margin < 0 || have > hapax.MaxMark-margin {
		return 0, &hapax.ValueError{Field: "margin", Value: margin, Allowed: fmt.Sprintf("0 to what is left above mark %d of %q", have, tag), Err: hapax.ErrInvalidArgument}
	}
	return max(have+margin, known), nil
}
