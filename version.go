package hapax

import (
	_ "embed"
	"strings"
)

//go:embed VERSION
var version string

// stamped stands in for the file VERSION where a binary was linked with
// -X github.com/hapax-id/hapax.stamped=….
var stamped string

// Version returns the version of the library, as the file VERSION has it.
func Version() string {
	if stamped != "" {
		return stamped
	}
	return strings.TrimSpace(version)
}
