// Package patience is where tests get their time-outs from, so that one setting fits
// all of them to a slow machine: HAPAX_TEST_TIMESCALE multiplies them. As they are,
// they outlast a load of four busy processes on two cores.
//
// They bound what has to happen, and a test that passes never waits for one. A short
// time-out that a test wants to see expire does not belong here.
package patience

import (
	"fmt"
	"net"
	"os"
	"strconv"
	"testing"
	"time"
)

// Variable names the setting, a number above 0.
const Variable = "HAPAX_TEST_TIMESCALE"

var scale = mustScale(os.Getenv(Variable))

var (
	// Long is for what must happen at some time: a process to start, a store to be
	// back, a connection to end.
	Long = Scale(2 * time.Minute)

	// Call is for a call to a store or a server that works; also the time-out to open
	// a store with whose tests count on answers.
	Call = Scale(30 * time.Second)
)

// Scale returns the time-out that fits this machine, for a machine that has little
// else to do.
func Scale(d time.Duration) time.Duration { return time.Duration(float64(d) * scale) }

func mustScale(text string) float64 {
	if text == "" {
		return 1
	}
	s, err := strconv.ParseFloat(text, 64)
	if err != nil || !(s > 0 && s <= 1000) {
		panic(fmt.Sprintf("invalid %s %q: want a number above 0, up to 1000", Variable, text))
	}
	return s
}

// Dial connects within Call, for clients that give a connection less of their own accord.
func Dial(network, address string, _ time.Duration) (net.Conn, error) {
	return net.DialTimeout(network, address, Call)
}

// Until asks again and again until so, and ends the test if that takes longer than
// Long.
func Until(t testing.TB, what string, so func() bool) {
	t.Helper()
	for end := time.Now().Add(Long); !so(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", Long, what)
		}
	}
}
