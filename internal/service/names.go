package service

import (
	"golang.org/x/text/unicode/norm"

	"github.com/hapax-id/hapax"
)

// checkForm refuses a new name that is not in Unicode's normal form C: two names that
// look the same would be two lines of numbers.
func checkForm(what, name string) error {
	if norm.NFC.IsNormalString(name) {
		return nil
	}
	return &hapax.ValueError{Field: what, Value: name, Allowed: "a name in Unicode's normal form C, here " + norm.NFC.String(name), Err: hapax.ErrInvalidTag}
}
