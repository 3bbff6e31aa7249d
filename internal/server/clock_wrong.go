//go:build hapaxtest

package server

import (
	"os"
	"strings"
	"time"

	"github.com/hapax-id/hapax"
)

// clockOffsetEnv makes a server's wall clock wrong: a duration such as -5s, or @FILE
// with one that is read anew each time.
const clockOffsetEnv = "HAPAX_TEST_CLOCK_OFFSET"

// testClock returns the clock that the environment asks for, or nil.
func testClock() (hapax.Clock, error) {
	text, ok := os.LookupEnv(clockOffsetEnv)
	if !ok || text == "" {
		return nil, nil
	}
	if path, isFile := strings.CutPrefix(text, "@"); isFile {
		return offsetClock{path: path}, nil
	}
	offset, err := time.ParseDuration(text)
	if err != nil {
		return nil, &hapax.ValueError{Field: clockOffsetEnv, Value: text, Allowed: "a duration or @FILE", Err: hapax.ErrInvalidArgument}
	}
	return offsetClock{offset: offset}, nil
}

// offsetClock is the system's clock with a wrong wall clock.
type offsetClock struct {
	offset time.Duration
	path   string // file to read the offset from; empty: none
}

// Now implements hapax.Clock. A file that cannot be read means no offset.
func (c offsetClock) Now() (time.Time, time.Duration) {
	wall, mono := hapax.SystemClock{}.Now()
	if c.path != "" {
		if data, err := os.ReadFile(c.path); err == nil {
			c.offset, _ = time.ParseDuration(strings.TrimSpace(string(data)))
		}
	}
	return wall.Add(c.offset), mono
}
