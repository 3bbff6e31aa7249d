package hapax

import (
	"crypto/rand"
	"fmt"
	"slices"
	"time"
)

// fixedGrant is the grant of the only worker of its range.
const fixedGrant = 3 * time.Second

// A RollbackPolicy tells what an issuer does while the wall clock is behind
// what it was.
type RollbackPolicy string

// The rollback policies.
const (
	// RollbackContinue goes on: the granted ticks are the issuer's alone,
	// whatever the clock says. The default.
	RollbackContinue RollbackPolicy = "continue"
	// RollbackRefuse fails with [ErrClockRollback] until the clock is right again.
	RollbackRefuse RollbackPolicy = "refuse"
)

// SnowflakeOptions tune a [Snowflake]. The zero value suits most uses.
type SnowflakeOptions struct {
	// Pool is the worker pool; default DefaultPool.
	Pool string

	// Layout is the pool's layout; default the built-in "leaf". The store
	// freezes it when the pool is first used.
	Layout Layout

	// Workers is the range of worker IDs to choose from, [Lo, Hi); the zero
	// value stands for all that the layout can hold. A range of one fixes the ID.
	Workers WorkerRange

	// Among, if not empty, lists the only worker IDs within Workers to choose from.
	Among []int64

	// Fields are the values of the layout's constant fields; default 0 each.
	Fields Fields

	// Holder identifies this instance with the store, so that it finds its own
	// worker ID again: 1 to 128 bytes, unlike any other instance's. Default random.
	Holder string

	// Lease is how long past the end of its grant a silent instance keeps its
	// worker ID from being recycled; default 30 s. Safety does not depend on it.
	Lease time.Duration

	// Grant is the length of the first grant, which doubles with each extension
	// up to MaxGrant: defaults 10 s and 5 min, or 3 s each when there is one ID
	// to choose from. A crash can cost the next holder that much waiting.
	Grant, MaxGrant time.Duration

	// MaxAhead is how far the numbers may lead the clock; default 10 ms, or one
	// tick if that is longer. MaxBehind is how far they may lag behind it, so
	// that a burst can use ticks just past; default 0.
	MaxAhead, MaxBehind time.Duration

	// SequenceStart is where the sequence begins when the clock enters a new tick:
	// SequenceZero, the default; SequenceContinue, where the last tick stopped; or for
	// n > 0 at random below n. The latter two spread id % n evenly at low rates; numbers
	// skipped cost capacity in that tick. A tick that is entered because the one before
	// is used up begins at 0.
	SequenceStart int64

	// Mutex makes the same numbers under one lock: several times slower, and plain to
	// read.
	Mutex bool

	// Populate, if set, is a populator of your own, and not beside Mutex. Of the cursors
	// that are free, each tick<<sequenceBits | sequence, it returns the first one to issue
	// and how many to issue from there, at most most. Those below the first are passed
	// over for good; one beyond free has the caller wait until the clock has come so far.
	// Below free, or without a number, it has not chosen: then free is issued from its
	// beginning. It is called with a lock held and must return soon.
	Populate func(free Grant, most int64, sequenceBits int) (first, n int64)

	// OnRollback chooses what to do while the wall clock is behind; default
	// RollbackContinue.
	OnRollback RollbackPolicy

	// KeepWarm extends the grant also while no numbers are asked for.
	KeepWarm bool

	// MaxSkew is how far the local clock may be ahead of the store's, where the store has
	// one, and by RollbackRefuse how far behind; default 10 s. Where it is the store's
	// clock that was set, that is announced and refuses nothing.
	MaxSkew time.Duration

	// StoreTimeout bounds one extension, and each other question to the store; default 5 s.
	StoreTimeout time.Duration

	// Observer, if set, receives events.
	Observer func(Event)

	// Clock is where the time is read; default SystemClock.
	Clock Clock
}

// withDefaults returns the options with every unset field filled in, or an error
// that names the first one that is out of range.
func (o SnowflakeOptions) withDefaults(storeless bool) (SnowflakeOptions, error) {
	if o.Pool == "" {
		o.Pool = DefaultPool
	}
	if err := ValidateName("pool", o.Pool); err != nil {
		return o, err
	}
	if o.Layout.IsZero() {
		o.Layout, _ = ParseLayout(LayoutLeaf)
	}
	if o.Holder == "" {
		o.Holder = rand.Text()
	}
	all := WorkerRange{0, o.Layout.Workers()}
	if storeless && o.Workers.Len() != 1 && all.Len() != 1 {
		return o, &ValueError{"workers", fmt.Sprint(o.Workers), "exactly one worker ID when there is no store to tell workers apart", ErrInvalidArgument}
	}
	if o.Workers == (WorkerRange{}) {
		o.Workers = all
	}
	if o.Workers.Lo < 0 || o.Workers.Len() <= 0 || o.Workers.Hi > all.Hi {
		return o, &ValueError{"workers", fmt.Sprintf("[%d, %d)", o.Workers.Lo, o.Workers.Hi), fmt.Sprintf("a range of worker IDs within 0 to %d", all.Hi-1), ErrInvalidArgument}
	}
	if err := o.sortAmong(); err != nil {
		return o, err
	}
	grant, maxGrant := DefaultGrant, DefaultMaxGrant
	// With no other ID to go on with, the next start after a crash waits until the grant is over: so it is
	// short.
	if o.Workers.Len() == 1 || len(o.Among) == 1 {
		grant, maxGrant = fixedGrant, fixedGrant
	}
	unit := o.Layout.Unit()
	if o.Grant == 0 {
		o.Grant = max(grant, 4*unit)
	}
	if o.MaxGrant == 0 {
		o.MaxGrant = max(maxGrant, o.Grant)
	}
	for _, d := range []struct {
		name     string
		value    *time.Duration
		standard time.Duration
		least    time.Duration
		most     time.Duration
	}{
		{"lease", &o.Lease, DefaultLease, time.Second, PoisonMargin},
		// Halves of the margin: a mark is a grant and the lead beyond the clock, and one beyond the whole is
		// poisoned.
		{"grant", &o.Grant, o.Grant, 2 * unit, PoisonMargin / 2},
		{"max_grant", &o.MaxGrant, o.MaxGrant, o.Grant, PoisonMargin / 2},
		{"max_ahead", &o.MaxAhead, max(DefaultMaxAhead, unit), 0, PoisonMargin / 2},
		{"max_behind", &o.MaxBehind, 0, 0, PoisonMargin / 2},
		{"max_skew", &o.MaxSkew, DefaultMaxSkew, time.Millisecond, PoisonMargin},
	} {
		if *d.value == 0 {
			*d.value = d.standard
		}
		if *d.value < d.least || *d.value > d.most {
			return o, &ValueError{d.name, *d.value, fmt.Sprintf("%v to %v", d.least, d.most), ErrInvalidArgument}
		}
	}
	if perTick := o.Layout.PerTick(); o.SequenceStart < SequenceContinue || o.SequenceStart > perTick {
		return o, &ValueError{"sequence_start", o.SequenceStart, fmt.Sprintf("zero, continue, or random below 1 to %d", perTick), ErrInvalidArgument}
	}
	if o.Mutex && o.Populate != nil {
		return o, &ValueError{"mutex", true, "false beside Populate", ErrInvalidArgument}
	}
	switch o.OnRollback {
	case "":
		o.OnRollback = RollbackContinue
	case RollbackContinue, RollbackRefuse:
	default:
		return o, &ValueError{"on_rollback", string(o.OnRollback), `"continue" or "refuse"`, ErrInvalidArgument}
	}
	// Made once to see whether it can be: newStretch, which has nobody to tell, panics.
	_, err := o.Layout.encoder(o.Workers.Lo, o.Fields)
	return o, err
}

// sortAmong puts Among in order, and narrows Workers to it.
func (o *SnowflakeOptions) sortAmong() error {
	if len(o.Among) == 0 {
		return nil
	}
	o.Among = slices.Compact(slices.Sorted(slices.Values(o.Among)))
	first, last := o.Among[0], o.Among[len(o.Among)-1]
	for _, id := range []int64{first, last} {
		if id < o.Workers.Lo || id >= o.Workers.Hi {
			return &ValueError{"among", id, fmt.Sprintf("worker IDs from %d to %d", o.Workers.Lo, o.Workers.Hi-1), ErrInvalidArgument}
		}
	}
	o.Workers = WorkerRange{first, last + 1}
	return nil
}
