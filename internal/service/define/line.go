package define

import (
	"fmt"
	"strings"
	"time"

	"golang.org/x/text/unicode/norm"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/codec"
)

// LineMark stands in the name of a period's line between the tag and the period.
const LineMark = "@@"

const (
	maxPeriodName = len("2026112123")
	maxPeriodTag  = hapax.MaxTagBytes - len(LineMark) - maxPeriodName
)

// PeriodLine returns the name of the line of a tag's period.
func PeriodLine(tag string, p codec.Period) string { return tag + LineMark + p.String() }

// CutLine takes the name of a period's line apart.
func CutLine(name string) (tag, period string, ok bool) {
	// The last one, since the tag's own name may hold the mark.
	at := strings.LastIndex(name, LineMark)
	if at < 1 {
		return "", "", false
	}
	tag, period = name[:at], name[at+len(LineMark):]
	form := strings.Map(func(r rune) rune {
		if '0' <= r && r <= '9' {
			return '0'
		}
		return r
	}, period)
	switch form {
	case "0000", "0000Q0", "000000", "0000W00", "00000000", "0000000000":
		return tag, period, true
	}
	return "", "", false
}

// IsPeriodLine reports whether a name has the form of a period's line.
func IsPeriodLine(name string) bool {
	_, _, ok := CutLine(name)
	return ok
}

// MayRestart reports whether a tag can have a line for each period, without reading its
// Extra or making its codec, which may take a while. Other tags can look like it.
func MayRestart(t hapax.Tag) bool {
	return strings.HasPrefix(t.Extra, prefix) && strings.Contains(t.Extra, "{seq:")
}

// CheckLease refuses to lease numbers of a tag that has a line for each period.
func (k Keys) CheckLease(t Tag) error {
	if !MayRestart(t.Tag) {
		return nil
	}
	c, err := k.Code(t)
	if err != nil || !c.HasPeriod() {
		return err
	}
	example := "its name, " + LineMark + " and the period"
	if p, err := c.Period(time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)); err == nil {
		example = "such as " + PeriodLine(t.Name, p)
	}
	return outOfRange("tag", t.Name, fmt.Sprintf("the line of one period to lease from, %s: its numbers restart each %v", example, c.Unit()))
}

// CheckForm refuses a new name that is not in Unicode's normal form C: two names that
// look the same would be two lines of numbers.
func CheckForm(what, name string) error {
	if norm.NFC.IsNormalString(name) {
		return nil
	}
	return &hapax.ValueError{Field: what, Value: name, Allowed: "a name in Unicode's normal form C, here " + norm.NFC.String(name), Err: hapax.ErrInvalidTag}
}
