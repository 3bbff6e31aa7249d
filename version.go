package hapax

import (
	_ "embed"
	"strings"
)

//go:embed VERSION
var version string

// Version returns the version of the library, as the file VERSION has it.
func Version() string { return strings.TrimSpace(version) }
