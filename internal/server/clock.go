//go:build !hapaxtest

package server

import "github.com/hapax-id/hapax"

// testClock returns no clock: only binaries that are built for tests, with the tag
// hapaxtest, can have a wrong one.
func testClock() (hapax.Clock, error) { return nil, nil }
