package hapax

import (
	"context"
	"fmt"
	"time"
	"unicode"
	"unicode/utf8"
)

// MaxMark is where every line of numbers ends: the highest number of a segment
// tag is MaxMark-1. The 2^32 numbers above stay unused, so that refused
// attempts at the very end of a line can never overflow.
const MaxMark = 1<<63 - 1<<32

// Limits and defaults of a tag.
const (
	MaxTagBytes    = 128       // length of a tag's or pool's name, in bytes
	DefaultStep    = 1000      // numbers in a segment, until the rate is known
	DefaultMaxStep = 1_000_000 // the largest segment that the rate can lead to
	MaxStep        = 1 << 40   // the largest segment that can be asked for
)

// A Grant is the half-open stretch [Lo, Hi) of a line from which exactly one
// process image may issue. On a tag's line the unit is the number, on a
// worker's timeline it is the tick.
type Grant struct{ Lo, Hi int64 }

// Len returns how many units the grant holds.
func (g Grant) Len() int64 { return g.Hi - g.Lo }

// Kind tells how the numbers of a tag are made.
type Kind string

// The kinds of a tag. A tag's kind is frozen when it is created.
const (
	KindSegment   Kind = "segment"
	KindSnowflake Kind = "snowflake"
)

// A Tag is one name that numbers are issued for, as the store keeps it.
type Tag struct {
	Name string
	Kind Kind // zero value: KindSegment

	// Of a segment tag.
	Start   int64 // the first number; default 1
	Step    int64 // numbers a segment begins with; default DefaultStep
	MinStep int64 // lower bound of the adaptive step; default Step
	MaxStep int64 // upper bound of the adaptive step; default max(Step, DefaultMaxStep)
	Mark    int64 // high-water mark: the next grant starts here; set by the store

	// Of a snowflake tag.
	Pool string // the worker pool; default "default"

	Deleted bool // a tombstone: only its name, kind, pool and mark matter
}

// WithDefaults returns the tag with every unset field filled in, or an error
// that names the first field that is out of range.
func (t Tag) WithDefaults() (Tag, error) {
	if err := ValidateName("tag", t.Name); err != nil {
		return t, err
	}
	switch t.Kind {
	case KindSegment, "":
		t.Kind = KindSegment
		return t.segmentDefaults()
	case KindSnowflake:
		return t.snowflakeDefaults()
	}
	return t, &ValueError{"kind", string(t.Kind), `"segment" or "snowflake"`, ErrInvalidArgument}
}

func (t Tag) segmentDefaults() (Tag, error) {
	if t.Pool != "" {
		return t, &ValueError{"pool", t.Pool, "empty for a segment tag", ErrInvalidArgument}
	}
	setDefault(&t.Start, 1)
	setDefault(&t.Step, DefaultStep)
	setDefault(&t.MinStep, t.Step)
	setDefault(&t.MaxStep, max(t.Step, t.MinStep, DefaultMaxStep))
	t.Mark = max(t.Mark, t.Start)
	switch {
	case t.Start < 1 || t.Start >= MaxMark:
		return t, &ValueError{"start", t.Start, fmt.Sprintf("1 to %d", int64(MaxMark-1)), ErrInvalidArgument}
	case t.Step < 1 || t.Step > MaxStep:
		return t, &ValueError{"step", t.Step, fmt.Sprintf("1 to %d", int64(MaxStep)), ErrInvalidArgument}
	case t.MinStep < 1 || t.MinStep > t.Step:
		return t, &ValueError{"min_step", t.MinStep, fmt.Sprintf("1 to step (%d)", t.Step), ErrInvalidArgument}
	case t.MaxStep < t.Step || t.MaxStep > MaxStep:
		return t, &ValueError{"max_step", t.MaxStep, fmt.Sprintf("step (%d) to %d", t.Step, int64(MaxStep)), ErrInvalidArgument}
	}
	return t, nil
}

func (t Tag) snowflakeDefaults() (Tag, error) {
	if t.Start != 0 || t.Step != 0 || t.MinStep != 0 || t.MaxStep != 0 || t.Mark != 0 {
		return t, &ValueError{"step", t.Step, "no start, step, min_step or max_step on a snowflake tag", ErrInvalidArgument}
	}
	if t.Pool == "" {
		t.Pool = DefaultPool
	}
	return t, ValidateName("pool", t.Pool)
}

func setDefault(v *int64, d int64) {
	if *v == 0 {
		*v = d
	}
}

// ValidateName checks a tag's or pool's name: valid UTF-8, 1 to MaxTagBytes
// bytes, no control characters. What is "tag" or "pool" and names the field in
// the error.
func ValidateName(what, name string) error {
	ok := len(name) >= 1 && len(name) <= MaxTagBytes && utf8.ValidString(name)
	for _, r := range name {
		ok = ok && !unicode.IsControl(r)
		if !ok {
			break
		}
	}
	if !ok {
		return &ValueError{what, name, "valid UTF-8 of 1 to 128 bytes without control characters", ErrInvalidTag}
	}
	return nil
}

// A TagUpdate changes a segment tag; nil fields stay as they are.
type TagUpdate struct {
	Step, MinStep, MaxStep *int64
	Floor                  *int64 // the next number is at least this; marks only grow
}

// Apply returns t changed by u, or an error that names the first bad field.
// Stores use it, so that all of them judge an update alike.
func (u TagUpdate) Apply(t Tag) (Tag, error) {
	if t.Deleted {
		return t, fmt.Errorf("%w: %q", ErrTagDeleted, t.Name)
	}
	if t.Kind != KindSegment {
		return t, fmt.Errorf("%w: %q is a %s tag and has no step or floor", ErrKindMismatch, t.Name, t.Kind)
	}
	for _, f := range []struct{ to, from *int64 }{{&t.Step, u.Step}, {&t.MinStep, u.MinStep}, {&t.MaxStep, u.MaxStep}} {
		if f.from != nil {
			*f.to = *f.from
		}
	}
	if u.Step != nil { // bounds that were not given follow the step
		if u.MinStep == nil {
			t.MinStep = min(t.MinStep, t.Step)
		}
		if u.MaxStep == nil {
			t.MaxStep = max(t.MaxStep, t.Step)
		}
	}
	for _, f := range []struct {
		name string
		v    int64
	}{{"step", t.Step}, {"min_step", t.MinStep}, {"max_step", t.MaxStep}} {
		if f.v == 0 { // zero is "unset" at creation, and an error here
			return t, &ValueError{f.name, f.v, fmt.Sprintf("1 to %d", int64(MaxStep)), ErrInvalidArgument}
		}
	}
	if u.Floor != nil {
		if *u.Floor < 1 || *u.Floor >= MaxMark {
			return t, &ValueError{"floor", *u.Floor, fmt.Sprintf("1 to %d", int64(MaxMark-1)), ErrInvalidArgument}
		}
		t.Mark = max(t.Mark, *u.Floor)
	}
	return t.WithDefaults()
}

// Advance returns the grant of n numbers (0: the tag's step) and the tag with
// its mark moved past it. Stores that compute the new mark in Go use it; the
// others must agree with it.
func (t Tag) Advance(n int64) (Grant, Tag, error) {
	switch {
	case t.Deleted:
		return Grant{}, t, fmt.Errorf("%w: %q", ErrTagDeleted, t.Name)
	case t.Kind != KindSegment:
		return Grant{}, t, fmt.Errorf("%w: %q is a %s tag", ErrKindMismatch, t.Name, t.Kind)
	case n < 0 || n > MaxStep:
		return Grant{}, t, &ValueError{"n", n, fmt.Sprintf("0 to %d", int64(MaxStep)), ErrInvalidArgument}
	case n == 0:
		n = t.Step
	}
	if t.Mark > MaxMark-n {
		return Grant{}, t, fmt.Errorf("%w: tag %q has %d numbers left, %d were asked for", ErrLineExhausted, t.Name, max(0, MaxMark-t.Mark), n)
	}
	g := Grant{t.Mark, t.Mark + n}
	t.Mark = g.Hi
	return g, t, nil
}

// Revive returns the tag that results from creating def where old stands:
// ErrTagExists if old is alive, ErrTagDeleted if it is a tombstone and mode is
// CreateFirstUse, and otherwise def resuming above old's mark.
func (t Tag) Revive(def Tag, mode CreateMode) (Tag, error) {
	switch {
	case !t.Deleted:
		return t, fmt.Errorf("%w: %q", ErrTagExists, t.Name)
	case mode != CreateExplicit:
		return t, fmt.Errorf("%w: %q", ErrTagDeleted, t.Name)
	case t.Kind != def.Kind || t.Pool != def.Pool:
		return t, fmt.Errorf("%w: %q was a %s", ErrKindMismatch, t.Name, t.kindInWords())
	}
	def.Mark = max(def.Mark, t.Mark)
	return def, nil
}

// kindInWords names the kind and, where there is one, the pool.
func (t Tag) kindInWords() string {
	if t.Kind == KindSegment {
		return "segment tag"
	}
	return fmt.Sprintf("%s tag of pool %q", t.Kind, t.Pool)
}

// CreateMode tells whether a creation may revive a deleted tag.
type CreateMode int

// The modes of CreateTag.
const (
	CreateFirstUse CreateMode = iota // a tombstone stays: ErrTagDeleted
	CreateExplicit                   // a tombstone is revived, above its mark
)

// An Allocation is a segment granted, with the tag's definition at that moment.
type Allocation struct {
	Grant Grant
	Tag   Tag
}

// SegmentStore grants numbers of tags. All methods are safe for concurrent use
// and return when the context ends. An error other than one of the sentinels
// for bad input and tags means that the outcome is unknown: the caller abandons
// what may have been granted and asks anew.
type SegmentStore interface {
	// StoreID returns the store's random identity, read from the store itself.
	StoreID(ctx context.Context) (string, error)

	// Allocate raises the tag's mark by n (0: the tag's own step) in one atomic
	// step and returns [old mark, new mark) once that is durable.
	// ErrTagNotFound, ErrTagDeleted, ErrKindMismatch, ErrLineExhausted.
	Allocate(ctx context.Context, tag string, n int64) (Allocation, error)

	// CreateTag creates a tag from a definition that WithDefaults has filled in,
	// and returns it as stored. ErrTagExists, ErrTagDeleted, ErrKindMismatch.
	CreateTag(ctx context.Context, tag Tag, mode CreateMode) (Tag, error)
}

// TagStore administers tags.
type TagStore interface {
	// Tag returns one tag, also when it is a tombstone. ErrTagNotFound.
	Tag(ctx context.Context, name string) (Tag, error)

	// Tags returns up to limit tags, tombstones among them, whose names come
	// after the given one, in the byte order of their names.
	Tags(ctx context.Context, after string, limit int) ([]Tag, error)

	// UpdateTag changes a live segment tag (see TagUpdate.Apply) in one atomic
	// step and returns it as stored. ErrTagNotFound, ErrTagDeleted, ErrKindMismatch.
	UpdateTag(ctx context.Context, name string, u TagUpdate) (Tag, error)

	// DeleteTag leaves a tombstone, which keeps the mark, and returns it.
	// ErrTagNotFound, ErrTagDeleted.
	DeleteTag(ctx context.Context, name string) (Tag, error)
}

// WorkerStore grants stretches of the timelines of a pool's worker IDs. The
// rules of concurrency and of unknown outcomes are those of SegmentStore. A
// driver implements WorkerTable and gets these methods from Workers.
type WorkerStore interface {
	// StoreID returns the store's random identity, read from the store itself.
	StoreID(ctx context.Context) (string, error)

	// AcquireWorker takes a worker ID that is free and whose granted time is
	// over, and grants it a stretch of its timeline. ErrLayoutMismatch,
	// *NoWorkerError, ErrWorkerPoisoned, ErrTimeExhausted.
	AcquireWorker(ctx context.Context, req AcquireRequest) (Lease, error)

	// ExtendWorker raises the worker's mark to at least req.To and returns the
	// lease with the grant [mark before, mark after). ErrLeaseLost.
	ExtendWorker(ctx context.Context, lease Lease, req ExtendRequest) (Lease, error)

	// SealWorker ends the lease and lowers the mark from lease.Grant.Hi to last,
	// which is at or above every tick issued. It does nothing and returns
	// ErrLeaseLost unless epoch and mark are still the lease's.
	SealWorker(ctx context.Context, lease Lease, last int64) error

	// Workers returns the workers of a pool that were ever used, by worker ID.
	Workers(ctx context.Context, pool string) ([]Worker, error)

	// Pools returns the pools that were ever used, by name.
	Pools(ctx context.Context) ([]Pool, error)
}

// A Store carries every role. Servers and tools ask for it; the issuers ask
// only for the role that they need.
type Store interface {
	SegmentStore
	TagStore
	WorkerStore

	// Ping reports whether the store can grant now.
	Ping(ctx context.Context) error

	// Close releases the store. It does not wait for calls in flight.
	Close() error
}

// A StoreClock is implemented by stores that have a clock of their own.
type StoreClock interface {
	// StoreTime returns the store's current time.
	StoreTime(ctx context.Context) (time.Time, error)
}
