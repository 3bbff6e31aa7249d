package server

import "github.com/hapax-id/hapax"

// TestClock returns the clock that the environment asks for, for commands that keep
// time beside a server; nil but in binaries that are built for tests.
func TestClock() (hapax.Clock, error) { return testClock() }
