package driver

import (
	"errors"
	"fmt"
	"math"
	"testing"

	"github.com/hapax-id/hapax"
)

// A counter is read back as it was written, and nothing else is taken for one.
func TestCounters(t *testing.T) {
	for _, n := range []int64{0, 1, 42, 1<<63 - 1} {
		if got, err := DecodeCounter(TableBeats, "joins", EncodeCounter(n)); got != n || err != nil {
			t.Errorf("%d is read back as %d, %v", n, got, err)
		}
	}
	if n, err := DecodeCounter(TableBeats, "joins", nil); n != 0 || err != nil {
		t.Errorf("no row: %d, %v", n, err)
	}
	for _, value := range []string{"", "7", "0000000000000000007 ", "+000000000000000007", "-000000000000000007", "9999999999999999999", "000000000000000000x"} {
		if n, err := DecodeCounter(TableBeats, "joins", []byte(value)); !errors.Is(err, hapax.ErrStoreCorrupt) {
			t.Errorf("%q is read as %d, %v; want ErrStoreCorrupt", value, n, err)
		}
	}
}

// TestDigits: counts are written as fmt writes them.
func TestDigits(t *testing.T) {
	for _, n := range []int64{0, 1, 9, 10, 1234567890, math.MaxInt64, -1, math.MinInt64} {
		if got, want := string(EncodeCounter(n)), fmt.Sprintf("%019d", n); got != want {
			t.Errorf("%d is written %s; want %s", n, got, want)
		}
	}
}
