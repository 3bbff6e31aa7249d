package hapax_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/hapax-id/hapax"
)

// An issuer without a store is an error, and no panic of another goroutine.
func TestSegmentWithoutStore(t *testing.T) {
	s, err := hapax.NewSegment(t.Context(), nil, "orders", hapax.SegmentOptions{})
	if s != nil || !errors.Is(err, hapax.ErrInvalidArgument) || !strings.Contains(err.Error(), "missing store") {
		t.Errorf("%v, %v", s, err)
	}
}
