package hapax

import (
	"sync"
	"time"
)

// A Clock is where an issuer reads the time; the default is [SystemClock]. Where it also
// has a method Asleep, as [SystemClock] has on Linux, an issuer notices that the machine
// was asleep.
type Clock interface {
	// Now returns the wall clock and, read at the same moment, a monotonic
	// clock that counts from an arbitrary origin.
	Now() (wall time.Time, mono time.Duration)
}

// A sleepClock is a Clock that can tell how long the machine has been asleep
// since it booted, as a suspended laptop or a paused virtual machine is. On Linux
// SystemClock can.
type sleepClock interface {
	Clock
	Asleep() time.Duration
}

// SystemClock is the system's wall and monotonic clock.
type SystemClock struct{}

var processStart = time.Now()

// Now implements [Clock].
func (SystemClock) Now() (time.Time, time.Duration) {
	t := time.Now()
	return t.Round(0), t.Sub(processStart)
}

// engineClock is the time that an issuer goes by: the wall clock, except that
// it never goes back. Where the wall clock does, engine time goes on with the
// monotonic clock from the last reading that was ahead.
type engineClock struct {
	source Clock

	mu   sync.Mutex    // guards the anchor
	wall time.Time     // the highest engine time at which the wall clock led
	mono time.Duration // the monotonic clock at that moment
}

func newEngineClock(source Clock) *engineClock {
	if source == nil {
		source = SystemClock{}
	}
	c := &engineClock{source: source}
	c.wall, c.mono = source.Now()
	return c
}

// now returns engine time, and how far the wall clock lies behind it.
func (c *engineClock) now() (engine time.Time, lag time.Duration) {
	wall, mono := c.source.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	engine = c.wall.Add(max(0, mono-c.mono))
	if !wall.Before(engine) {
		c.wall, c.mono = wall, mono
		return wall, 0
	}
	return engine, engine.Sub(wall)
}

// elapsed returns the monotonic clock.
func (c *engineClock) elapsed() time.Duration {
	_, mono := c.source.Now()
	return mono
}

// sleepLimit is how much longer than before the machine may have been asleep
// until that counts; reading two clocks takes a moment between them.
const sleepLimit = 100 * time.Millisecond

// sleepWatch notices that the machine was asleep.
type sleepWatch struct {
	clock sleepClock // nil: cannot be told

	mu     sync.Mutex // guards the fields below
	asleep time.Duration
	looked time.Time
}

func newSleepWatch(source Clock) *sleepWatch {
	w := &sleepWatch{}
	if w.clock, _ = source.(sleepClock); w.clock != nil {
		w.asleep = w.clock.Asleep()
	}
	return w
}

// woke returns how long the machine was asleep since the last look, if that was
// long enough to matter. It looks no more often than 20 times a second.
func (w *sleepWatch) woke(now time.Time) time.Duration {
	if w.clock == nil {
		return 0
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if since := now.Sub(w.looked); since >= 0 && since < 50*time.Millisecond {
		return 0
	}
	w.looked = now
	asleep := w.clock.Asleep()
	slept := asleep - w.asleep
	w.asleep = asleep
	if slept < sleepLimit {
		return 0
	}
	return slept
}
