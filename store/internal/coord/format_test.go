package coord

import (
	"errors"
	"strings"
	"testing"

	"github.com/hapax-id/hapax"
)

func TestNewerFormat(t *testing.T) {
	for format, want := range map[int64]string{
		0: "", FormatNow - 1: "", FormatNow: "",
		FormatNow + 1: "/hapax/store says format 4, and this version, hapax " + hapax.Version() + ", knows formats up to 3",
	} {
		err := CheckFormat("/hapax/store", format)
		if want == "" && err != nil || want != "" && (!errors.Is(err, hapax.ErrStoreCorrupt) || !strings.Contains(err.Error(), want)) {
			t.Errorf("format %d: %v; want %q", format, err, want)
		}
	}
}
