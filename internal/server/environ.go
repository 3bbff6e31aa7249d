package server

import (
	"slices"
	"strings"

	"github.com/hapax-id/hapax/store/driver"
)

// otherVariables are the variables of hapax that are no settings of a server.
var otherVariables = []string{
	storePasswordEnv, "HAPAX_CONFIG", "HAPAX_SERVER", "HAPAX_TOKEN", "HAPAX_CA_FILE", "HAPAX_CERT_FILE",
}

// unknownVariables returns the names in an environment that look like settings and
// are none, each with the one that was probably meant. They may be somebody
// else's: Kubernetes sets HAPAX_SERVICE_HOST and HAPAX_PORT for a service hapax.
func unknownVariables(environ []string) []string {
	known := slices.Clone(otherVariables)
	for _, s := range settings {
		known = append(known, s.Env())
	}
	for _, s := range systems {
		known = append(known, s.Env...)
	}
	var unknown []string
	for _, entry := range environ {
		name, _, _ := strings.Cut(entry, "=")
		if !strings.HasPrefix(name, "HAPAX_") || strings.HasPrefix(name, "HAPAX_TEST_") || slices.Contains(known, name) {
			continue
		}
		if meant := driver.Nearest(name, known); driver.Distance(name, meant) <= 3 {
			name += " (did you mean " + meant + "?)"
		}
		unknown = append(unknown, name)
	}
	slices.Sort(unknown)
	return unknown
}
