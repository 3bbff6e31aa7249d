package redismongo

import (
	"strings"

	"github.com/redis/go-redis/v9"
)

// The scripts, for tests that send them at a time of their own.
var (
	TakeScript    = takeScript
	InstallScript = installScript
)

// Break replaces a text in both scripts, for all issuers of the process, until the
// function that it returns is called. It reports whether the text is there.
func Break(old, replacement string) (mend func(), found bool) {
	found = strings.Contains(takeSource, old)
	takeScript = redis.NewScript(strings.ReplaceAll(takeSource, old, replacement))
	installScript = redis.NewScript(strings.ReplaceAll(installSource, old, replacement))
	return func() { takeScript, installScript = TakeScript, InstallScript }, found
}

// BreakWatch has transactions watch nothing, until the function that it returns is called.
func BreakWatch() (mend func()) {
	was := watched
	watched = func(string) []string { return nil }
	return func() { watched = was }
}
