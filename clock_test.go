package hapax_test

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hapax-id/hapax"
)

// testClock runs with the bubble's time, thirty years on, and can be set wrong.
type testClock struct {
	origin time.Time
	offset atomic.Int64
	asleep atomic.Int64
	frozen atomic.Int64 // since the origin, where it stands still; 0: it runs
	reads  atomic.Int64
}

func newTestClock() *testClock { return &testClock{origin: time.Now()} }

func (c *testClock) Now() (time.Time, time.Duration) {
	c.reads.Add(1)
	now := time.Now()
	if at := c.frozen.Load(); at != 0 {
		now = c.origin.Add(time.Duration(at))
	}
	return c.at(now), now.Sub(c.origin)
}

func (c *testClock) Asleep() time.Duration { return time.Duration(c.asleep.Load()) }

func (c *testClock) at(now time.Time) time.Time {
	return now.Round(0).AddDate(26, 0, 0).Add(time.Duration(c.offset.Load()))
}

// wall is what the clock shows now.
func (c *testClock) wall() time.Time { return c.at(time.Now()) }

// pause stops the clock for a while. Whoever goes by it does what a process does
// that is stopped after it has read the clock, and goes on later.
func (c *testClock) pause(d time.Duration) {
	c.frozen.Store(int64(time.Since(c.origin)))
	time.Sleep(d)
	c.frozen.Store(0)
}

// step moves the wall clock alone.
func (c *testClock) step(d time.Duration) { c.offset.Add(int64(d)) }

func mustLayout(t testing.TB, name string) hapax.Layout {
	t.Helper()
	l, err := hapax.ParseLayout(name)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// bubble runs a test in virtual time.
func bubble(t *testing.T, name string, f func(t *testing.T)) {
	t.Helper()
	t.Run(name, func(t *testing.T) { synctest.Test(t, f) })
}
