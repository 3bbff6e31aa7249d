package driver

import (
	"slices"
	"strings"

	"github.com/hapax-id/hapax"
)

// Nearest returns the name with the fewest letters to insert, delete or replace
// to get there, empty where there is none.
func Nearest(given string, names []string) string {
	if len(names) == 0 {
		return ""
	}
	return slices.MinFunc(names, func(a, b string) int { return Distance(given, a) - Distance(given, b) })
}

// Distance returns how many letters have to be inserted, deleted or replaced to make one
// name of another.
func Distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			replace := diagonal
			if a[i] != b[j] {
				replace++
			}
			diagonal = row[j+1]
			row[j+1] = min(replace, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}

// WrongParameter returns the error for an unknown parameter of a store's URL. It suggests the nearest
// of known, which must not be empty; rest names what else is allowed. It does not show the value, which
// may be a password.
func WrongParameter(name string, known []string, rest string) error {
	allowed := strings.Join(known, ", ")
	if rest != "" {
		allowed += ", " + rest
	}
	from := func(other string) int { return Distance(strings.ToLower(name), strings.ToLower(other)) }
	// Not more than half of a short name: within three letters it is near to any other.
	if meant := slices.MinFunc(known, func(a, b string) int { return from(a) - from(b) }); from(meant) <= min(3, (len(name)+1)/2) {
		allowed = meant + ", if that is meant; or " + allowed
	}
	return &hapax.ValueError{Field: "store URL parameter", Value: name, Allowed: allowed, Err: hapax.ErrInvalidArgument}
}
