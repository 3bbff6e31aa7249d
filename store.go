package hapax

import (
	"context"
	"fmt"
	"unicode/utf8"
)

// Kind tells how the numbers of a tag are made.
type Kind string

// The kinds of a tag. A tag's kind is frozen when it is created.
const (
	KindSegment   Kind = "segment"
	KindSnowflake Kind = "snowflake"

	// KindUnreadable is that of a tag in a list whose definition in the store cannot be read,
	// such as after an edit by hand. Calls for the tag fail until that is mended.
	KindUnreadable Kind = "unreadable"
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
	Token   int64 // fencing token: raised by each hand-back, healing and CreateTombstone; set by the store

	// Delta and Remainder choose which numbers of the line are issued: those
	// that leave Remainder when divided by Delta; default all, 1 and 0. Frozen.
	Delta     int64
	Remainder int64

	// Of a snowflake tag.
	Pool string // the worker pool; default "default"

	// Extra is what layers above the library keep with the tag: up to
	// MaxExtraBytes of valid UTF-8, which the library and the stores only carry.
	Extra string

	Deleted bool // a tombstone: only its name, kind, pool, mark and token matter
}

// WithDefaults returns the tag with every unset field filled in, or an error
// that names the first field that is out of range.
func (t Tag) WithDefaults() (Tag, error) {
	if err := ValidateName("tag", t.Name); err != nil {
		return t, err
	}
	if len(t.Extra) > MaxExtraBytes || !utf8.ValidString(t.Extra) {
		return t, &ValueError{"extra", fmt.Sprintf("(%d bytes)", len(t.Extra)), fmt.Sprintf("valid UTF-8 of up to %d bytes", MaxExtraBytes), ErrInvalidArgument}
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
	setDefault(&t.Delta, 1)
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
	case t.Delta < 1 || t.Delta > MaxDelta:
		return t, &ValueError{"delta", t.Delta, fmt.Sprintf("1 to %d", int64(MaxDelta)), ErrInvalidArgument}
	case t.Remainder < 0 || t.Remainder >= t.Delta:
		return t, &ValueError{"remainder", t.Remainder, fmt.Sprintf("0 to delta - 1 (%d)", t.Delta-1), ErrInvalidArgument}
	}
	return t, nil
}

func (t Tag) snowflakeDefaults() (Tag, error) {
	if t.Start != 0 || t.Step != 0 || t.MinStep != 0 || t.MaxStep != 0 || t.Mark != 0 || t.Delta != 0 || t.Remainder != 0 {
		return t, &ValueError{"step", t.Step, "no start, step, min_step, max_step, delta or remainder on a snowflake tag", ErrInvalidArgument}
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

// ValidateName checks a name: valid UTF-8, 1 to [MaxTagBytes] bytes, no control
// characters. What is "tag", "pool" or "holder", for the identity of an instance, and
// names the field in the error, which matches [ErrInvalidTag], or [ErrInvalidArgument] for
// a holder.
func ValidateName(what, name string) error {
	sentinel := ErrInvalidTag
	if what == "holder" {
		sentinel = ErrInvalidArgument
	}
	ok := len(name) >= 1 && len(name) <= MaxTagBytes && utf8.ValidString(name)
	for _, r := range name {
		ok = ok && !isHidden(r)
		if !ok {
			break
		}
	}
	if !ok {
		return &ValueError{what, name, "valid UTF-8 of 1 to 128 bytes without control or invisible characters", sentinel}
	}
	return nil
}

// CreateMode decides whether a creation may revive a deleted tag.
type CreateMode int

// The modes of CreateTag.
const (
	CreateFirstUse CreateMode = iota // a tombstone stays: ErrTagDeleted
	CreateExplicit                   // a tombstone is revived, above its mark

	// CreateTombstone makes the tag deleted, or renews the tombstone that is there, above its mark:
	// its token grows.
	CreateTombstone

	// CreateFromToken revives a tombstone of which nothing was made since the tag's Token was
	// read: else ErrLeaseLost, and ErrTagNotFound where there is none.
	CreateFromToken
)

// A GrantKey is the secret of one grant: whoever shows it holds the grant. It is
// made by the side that grants, at random, and the store keeps only its hash.
// Formatting it hides it.
type GrantKey string

// String hides the key.
func (k GrantKey) String() string {
	if k == "" {
		return ""
	}
	return "(secret)"
}

// GoString hides the key.
func (k GrantKey) GoString() string { return k.String() }

// An Allocation is a segment granted, with the tag's definition at that moment.
type Allocation struct {
	Grant Grant
	Tag   Tag

	// Key is what the segment can be handed back with; empty where the store
	// takes nothing back.
	Key GrantKey

	// From is where the run of adjoining segments began that were granted one
	// after the other with each other's keys: how far a hand-back may go.
	From int64
}

// SegmentStore grants numbers of tags. All methods are safe for concurrent use
// and return when the context ends. An error other than one of the sentinels
// for bad input and tags means that the outcome is unknown: the caller abandons
// what may have been granted, but for time (see ExtendWorker), and asks anew.
type SegmentStore interface {
	// Allocate raises the tag's mark past n of its numbers (0: the tag's own
	// step) in one atomic step and returns [old mark, new mark) once that is
	// durable. last is the key of the caller's last allocation of this tag, if it
	// has one: where nobody else was granted any since, both can be handed back
	// together.
	// ErrTagNotFound, ErrTagDeleted, ErrKindMismatch, ErrLineExhausted.
	Allocate(ctx context.Context, tag string, n int64, last GrantKey) (Allocation, error)

	// HandBack lowers the tag's mark from a.Grant.Hi to next, the first number
	// that was not issued, and raises its token, in one atomic step. It does
	// nothing and returns ErrLeaseLost unless the mark is still a.Grant.Hi under
	// a.Key and the token a.Tag.Token, and next is a.From or more; a late or
	// repeated hand-back does nothing for that reason, and the pair of token and
	// mark, compared in this order, only grows. ErrNotSupported where the store
	// takes nothing back.
	HandBack(ctx context.Context, a Allocation, next int64) error

	// CreateTag creates a tag from a definition that WithDefaults has filled in,
	// and returns it as stored. ErrTagExists, ErrTagDeleted, ErrKindMismatch, and what the mode says.
	CreateTag(ctx context.Context, tag Tag, mode CreateMode) (Tag, error)
}

// WorkerStore grants stretches of the timelines of a pool's worker IDs. The
// rules of concurrency and of unknown outcomes are those of [SegmentStore]. Where it also
// has a method StoreTime(context.Context) (time.Time, error), as a store with a clock of
// its own has, an issuer refuses to start while that clock and its own differ too much.
type WorkerStore interface {
	// AcquireWorker takes a worker ID that is free and whose granted time is
	// over, and grants it a stretch of its timeline. ErrLayoutMismatch,
	// *NoWorkerError, ErrWorkerPoisoned, ErrTimeExhausted.
	AcquireWorker(ctx context.Context, req AcquireRequest) (Lease, error)

	// ExtendWorker raises the worker's mark and returns the lease with the grant
	// [lease.Grant.Hi, mark), also where an earlier extension whose answer was
	// lost had raised it already. ErrLeaseLost; ErrStoreRolledBack where only a
	// store that went back explains the row.
	ExtendWorker(ctx context.Context, lease Lease, layout Layout, term Term) (Lease, error)

	// SealWorker ends the lease and lowers the mark from lease.Grant.Hi to last,
	// which is at or above every tick issued. It does nothing and returns
	// ErrLeaseLost unless fencing token, key and mark are still the lease's.
	SealWorker(ctx context.Context, lease Lease, last int64) error
}
