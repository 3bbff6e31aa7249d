package driver

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/hapax-id/hapax"
)

const maxPause = 50 * time.Millisecond // unit of the pause after lost races

// BaseOptions tell what a KV is like.
type BaseOptions struct {
	MaxChanges int // in one step; default 100
	MaxBytes   int // of the values in one step; default 64 KiB

	// ByValue is set for an engine that recognises a row by its value alone. A row that is to be
	// made is then taken for missing while nothing is known of it, which saves a round trip.
	ByValue bool

	// Split says that a step is several writes, each of one row by itself. Its conditions are
	// looked at before the changes and after them, and it is not met where they fail then,
	// whatever it has changed: see [Guarding].
	Split bool

	// Near is set for an engine in this process, where a read takes no round trip. Few rows are
	// kept then.
	Near bool
}

// A Base makes a store of a KV: everything that is done to tags, rows, pools and workers. It
// implements [Store] but for StoreID, Ping and Close, and [Guarding], [Healing], [Together] and
// [TogetherAllocating]. It is safe for concurrent use.
//
// A row is read once and then kept together with the version that the engine needs to
// recognise it. Every change is one conditional write of the whole row:
//
//	          +----------- lost: the store's current row ----------+
//	          v                                                    |
//	unknown -read-> known -change-> new row -conditional write-> known
//	   ^                                |
//	   +---- outcome unknown: error ----+
//
// A row that is kept may be out of date; then the write is refused and nothing
// is lost. Errors, such as that a tag is deleted, are told only from a row that
// was current during the call.
type Base struct {
	Leases
	calls *Calls
	kv    KV
	opts  BaseOptions
	kept  kept
}

// NewBase returns the store in a KV.
func NewBase(calls *Calls, kv KV, opts BaseOptions) *Base {
	if opts.MaxChanges <= 0 {
		opts.MaxChanges = 100
	}
	if opts.MaxBytes <= 0 {
		opts.MaxBytes = 64 << 10
	}
	most := maxKept
	if opts.Near {
		most = maxKeptNear
	}
	b := &Base{calls: calls, kv: kv, opts: opts, kept: kept{most: most}}
	b.Leases = LeasesIn(b)
	return b
}

// KV returns what the store stands on, for tests and tools. Rows that are changed by it are
// changed past all rules.
func (b *Base) KV() KV { return b.kv }

// take returns the key's slot when the key's other calls on this handle are over. Who
// takes it leaves it.
func (b *Base) take(ctx context.Context, key Key) (*slot, error) {
	s := b.kept.slot(key)
	select {
	case s.turn <- struct{}{}:
		return s, nil
	default:
	}
	select {
	case s.turn <- struct{}{}:
		return s, nil
	case <-ctx.Done():
		return nil, b.calls.Unavailable(ctx, context.Cause(ctx))
	}
}

func (s *slot) leave() { <-s.turn }

// A changing makes of a row, as it is held, what it is to be: its Value, nil for no row, and
// the tag where it is one.
type changing func(row held) (held, error)

// update replaces a row by the one that change makes of it. An error of change ends it, unless the row
// was not the current one. change may be called several times; the last call counts.
func (b *Base) update(ctx context.Context, key Key, change changing) error {
	return b.updateFrom(ctx, key, held{}, change)
}

// updateFrom is update from a guess, where nothing is known of the row.
func (b *Base) updateFrom(ctx context.Context, key Key, guess held, change changing) error {
	ctx, cancel, err := b.calls.Begin(ctx)
	if err != nil {
		return err
	}
	defer cancel()
	s, err := b.take(ctx, key)
	if err != nil {
		return err
	}
	defer s.leave()
	if !s.row.Known {
		s.row = guess
	}
	return b.try(ctx, s, change, func(c Change) (Outcome, error) {
		r, err := b.kv.Step(ctx, Step{Each: []Change{c}})
		if err != nil {
			return Outcome{}, err
		}
		return r.Each[0], nil
	})
}

// try swaps a row for the one that change makes of it until that succeeds.
func (b *Base) try(ctx context.Context, s *slot, change changing, swap func(Change) (Outcome, error)) error {
	row := s.row
	s.row = held{} // until the outcome is known
	current := false
	for lost := 0; ; lost++ {
		if !row.Known {
			cells, err := b.kv.Get(ctx, Current, s.key)
			if err != nil {
				return err
			}
			row, current = held{Cell: cells[0]}, true
		}
		next, err := change(row)
		if err != nil && !current {
			row = held{}
			continue
		}
		if err != nil {
			b.kept.keep(s, row)
			return err
		}
		sent := time.Now()
		done, err := swap(Change{s.key, row.Cell, next.Value})
		if err != nil {
			return err
		}
		if done.Done {
			next.Cell = done.Now
			b.kept.keep(s, next)
			return nil
		}
		if err := pause(ctx, lost, time.Since(sent)); err != nil {
			return b.calls.Unavailable(ctx, err)
		}
		row, current = held{Cell: done.Now}, true
	}
}

// pause spreads out those who race for one row. After a first defeat the next
// attempt follows at once; after every second one in a row a random time of up
// to as many round trips as were lost makes room for others.
func pause(ctx context.Context, lost int, roundTrip time.Duration) error {
	if lost%2 == 0 {
		return nil
	}
	timer := time.NewTimer(rand.N(time.Duration(min(lost+1, 16)) * max(1, min(roundTrip, maxPause))))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// get returns a row's current value, nil if there is none.
func (b *Base) get(ctx context.Context, key Key) ([]byte, error) {
	ctx, cancel, err := b.calls.Begin(ctx)
	if err != nil {
		return nil, err
	}
	defer cancel()
	cells, err := b.kv.Get(ctx, Current, key)
	if err != nil {
		return nil, err
	}
	return cells[0].Value, nil
}

// Row implements [Rows].
func (b *Base) Row(ctx context.Context, table, name string) ([]byte, error) {
	return b.get(ctx, Key{table, name})
}

// ListRows implements [Rows].
func (b *Base) ListRows(ctx context.Context, table, after string, limit int) ([]Row, error) {
	ctx, cancel, err := b.calls.Begin(ctx)
	if err != nil {
		return nil, err
	}
	defer cancel()
	if limit <= 0 {
		return nil, nil
	}
	return b.kv.Scan(ctx, table, after, limit)
}

// errOtherValue ends a swap that expected another value.
var errOtherValue = errors.New("another value")

// swapTo is the change of a row from one value to another.
func swapTo(old, next []byte) changing {
	next = bytes.Clone(next) // it is kept
	return func(row held) (held, error) {
		if (row.Value == nil) != (old == nil) || !bytes.Equal(row.Value, old) {
			return held{}, errOtherValue
		}
		return held{Cell: Cell{Value: next}}, nil
	}
}

// SwapRow implements [Rows]. It is one round trip if this handle has read
// or written the row before.
func (b *Base) SwapRow(ctx context.Context, table, name string, old, next []byte) (bool, error) {
	if err := CheckSwap(table, name, old, next); err != nil {
		return false, err
	}
	err := b.update(ctx, Key{table, name}, swapTo(old, next))
	if errors.Is(err, errOtherValue) {
		return false, nil
	}
	return err == nil, err
}

// Shared implements [Rows].
func (b *Base) Shared() bool { return true }

var _ interface {
	hapax.SegmentStore
	TagStore
	hapax.WorkerStore
	PoolStore
	Guarding
	Healing
	Together
	TogetherAllocating
} = (*Base)(nil)
