package hapax

import (
	"context"
	"errors"
	"fmt"
	"math"
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
	// Round strips the monotonic reading: with it, Sub and Before would go by that, and never see the wall clock
	// go back.
	t := time.Now()
	return t.Round(0), t.Sub(processStart)
}

// An EngineClock is the time that issuers go by: the wall clock, except that it never goes
// back. Where the wall clock does, engine time goes on with the monotonic clock from the
// last reading that was ahead. It is safe for concurrent use.
type EngineClock struct {
	source Clock

	mu   sync.Mutex    // guards the fields below
	wall time.Time     // the highest engine time at which the wall clock led
	mono time.Duration // the monotonic clock at that moment
	seen time.Duration // the monotonic clock of the latest reading
	lag  time.Duration // how far the wall clock was last known to be behind

	agreed accord
	skew   time.Duration // what Compare last knew
}

// An accord is when this clock and a store's last were within bounds.
type accord struct {
	theirs time.Time     // what the store's clock showed, less moved; zero: never yet
	at     time.Duration // by the clock that counts sleep
	unsure time.Duration // by how much theirs may be wrong
	moved  time.Duration // by how much the store's clock was set meanwhile
}

// step is by how much a store's clock was set since, if it shows theirs at a moment: 0
// where the two round trips explain it, or clocks that drift apart, which takes days.
func (a accord) step(theirs time.Time, at, unsure time.Duration) time.Duration {
	since := at - a.at
	by := theirs.Add(-a.moved).Sub(a.theirs.Add(since))
	if beyond(by, unsure+a.unsure+since/drift+rollbackSlack) == 0 {
		return 0
	}
	return by
}

// NewEngineClock returns the engine time over a clock; nil stands for [SystemClock].
func NewEngineClock(source Clock) *EngineClock {
	if source == nil {
		source = SystemClock{}
	}
	c := &EngineClock{source: source}
	c.wall, c.mono = source.Now()
	c.seen = c.mono
	return c
}

// Now returns engine time, and how far the wall clock lies behind it.
func (c *EngineClock) Now() (engine time.Time, lag time.Duration) {
	engine, lag = c.read(rollbackSlack)
	if lag > rollbackSlack {
		// A reader that was descheduled between the two clocks of one reading has an
		// old wall clock beside a new monotonic one. That does not happen twice.
		engine, lag = c.read(math.MaxInt64)
	}
	return engine, lag
}

// read is one reading; a lag above most is not believed yet. No lock is held while the
// clock is read: the reader may be descheduled there, and would have everybody wait. So
// its reading may be older than later ones of others, and then says nothing of
// how the clocks stand now.
func (c *EngineClock) read(most time.Duration) (engine time.Time, lag time.Duration) {
	wall, mono := c.source.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	if mono < c.seen {
		return c.wall.Add(c.seen - c.mono), c.lag
	}
	c.seen = mono
	engine = c.wall.Add(mono - c.mono)
	if !wall.Before(engine) {
		c.wall, c.mono, c.lag = wall, mono, 0
		return wall, 0
	}
	if lag = engine.Sub(wall); lag <= most {
		c.lag = lag
	}
	return engine, lag
}

// Elapsed returns the monotonic clock.
func (c *EngineClock) Elapsed() time.Duration {
	_, mono := c.source.Now()
	return mono
}

// awake returns a clock that goes on while the machine sleeps, where there is one.
func (c *EngineClock) awake() time.Duration {
	elapsed := c.Elapsed()
	if s, ok := c.source.(sleepClock); ok {
		elapsed += s.Asleep()
	}
	return elapsed
}

// drift is the part of a time by which two clocks may drift apart in it, at most.
const drift = 5000

// Compare asks a store for its time, and returns how far this machine's wall clock is
// ahead of it beyond what the round trip explains; less than zero: behind.
//
// The error is [ErrClockSkew] where that is more than most, unless it is the store's clock
// that was set since both were within it. Where they never were, nobody can tell which of
// the two is wrong, and it is this one that is said to be. Other errors are the store's,
// but for [ErrNotSupported]: a store without a clock disagrees with nobody.
func (c *EngineClock) Compare(ctx context.Context, store func(context.Context) (time.Time, error), most time.Duration) (ahead time.Duration, err error) {
	began := c.awake() // before the wall clock: what comes between is part of the round trip
	before, _ := c.source.Now()
	theirs, err := store(ctx)
	if errors.Is(err, ErrNotSupported) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	unsure := (c.awake() - began) / 2
	at, ours := began+unsure, before.Add(unsure)
	by := ours.Sub(theirs)
	ahead = beyond(by, unsure)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.skew = min(max(c.skew, by-unsure), by+unsure) // a slow answer leaves what it does not disprove
	next := accord{theirs, at, unsure, 0}
	within := ahead.Abs() <= most
	if !within && !c.agreed.theirs.IsZero() {
		// step leaves out what earlier ones explain, so that each is counted once.
		c.agreed.moved += c.agreed.step(theirs, at, unsure)
		next.moved = c.agreed.moved
		next.theirs = theirs.Add(-next.moved)
		within = beyond(ours.Sub(next.theirs), unsure).Abs() <= most
	}
	if !within {
		return ahead, fmt.Errorf("%w: here it is %s, there %s; allowed is %v: set the clock that is wrong", ErrClockSkew,
			ours.UTC().Format(time.RFC3339Nano), theirs.UTC().Format(time.RFC3339Nano), most)
	}
	// Only a quick answer becomes the reference: what it may be wrong by is allowed to each later one, too.
	if c.agreed.theirs.IsZero() || unsure <= most/8 {
		c.agreed = next
	}
	return ahead, nil
}

// Skew returns how far the wall clock is ahead of the store's, as far as Compare has seen.
func (c *EngineClock) Skew() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.skew
}

// beyond returns what of d is more than slack, either way.
func beyond(d, slack time.Duration) time.Duration {
	if d < 0 {
		return min(0, d+slack)
	}
	return max(0, d-slack)
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
		// Twice, as in woke: a baseline that is too high would hide a short sleep.
		w.asleep = min(w.clock.Asleep(), w.clock.Asleep())
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
	if asleep-w.asleep >= sleepLimit {
		// A reader that was descheduled between two clocks takes that for sleep.
		asleep = min(asleep, w.clock.Asleep())
	}
	slept := asleep - w.asleep
	w.asleep = max(w.asleep, asleep)
	if slept < sleepLimit {
		return 0
	}
	return slept
}
