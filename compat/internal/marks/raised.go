// Package marks judges how far an operator raises the rows of a foreign table.
package marks

import (
	"fmt"

	"github.com/hapax-id/hapax"
)

// Raise returns the mark that a row gets: at or above what is known to be used, and
// a margin above what it has, for the foreign system's own nodes.
func Raise(tag string, have, known, margin int64) (int64, error) {
	if margin < 0 || have > hapax.MaxMark-margin {
		return 0, &hapax.ValueError{Field: "margin", Value: margin, Allowed: fmt.Sprintf("0 to what is left above mark %d of %q", have, tag), Err: hapax.ErrInvalidArgument}
	}
	return max(have+margin, known), nil
}
