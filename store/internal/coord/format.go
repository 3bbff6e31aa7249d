package coord

import (
	"encoding/json"
	"fmt"

	"github.com/hapax-id/hapax"
)

// FormatNow is the format of the keys that this version keeps, as it stands with the
// store's ID; that of versions before has none there. Those refuse what has one.
const FormatNow = 3

// CheckFormat refuses the format that stands at a place if it is newer than this version's.
func CheckFormat(place string, format int64) error {
	if format <= FormatNow {
		return nil
	}
	return fmt.Errorf("%w: %s says format %d, and this version, hapax %s, knows formats up to %d: use a newer version", hapax.ErrStoreCorrupt, place, format, hapax.Version(), FormatNow)
}

// FirstFormat refuses a store of the first version, which shows at the place.
func FirstFormat(place string) error {
	return fmt.Errorf("%w: %s is of format 1, as hapax 9fd0ef2 left it, and this version, hapax %s, knows formats 2 to %d here: "+
		"use a new prefix, and raise each tag's floor above what was issued", hapax.ErrStoreCorrupt, place, hapax.Version(), FormatNow)
}

// IsFirstTag reports whether a tag's row is one of the first version, which had no delta.
// The row of a tag that has no numbers of its own does not tell.
func IsFirstTag(raw []byte) (first, tells bool) {
	var r tagRow
	if json.Unmarshal(raw, &r) != nil || r.Kind != hapax.KindSegment {
		return false, false
	}
	return r.Delta == 0, true
}
