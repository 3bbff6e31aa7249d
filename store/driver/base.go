package driver

import (
	"bytes"
	"context"
	"errors"
	"sync/atomic"

	"github.com/hapax-id/hapax"
)

// BaseOptions describe a KV.
type BaseOptions struct {
	MaxChanges int // in one step; default 100
	MaxBytes   int // of the values in one step; default 64 KiB

	// ByValue is set for an engine that recognises a row by its value alone. Of a row that this
	// handle has not seen, the old value of a swap is then believed, and a row to be made is taken
	// for missing, which saves a round trip.
	ByValue bool

	// Absent is set for an engine that recognises a missing row without a version. Then only a
	// row to be made saves the round trip.
	Absent bool

	// Split says that a step is several writes, each of one row by itself. Its conditions are
	// checked before the changes and after them. Where they fail afterwards the step is not met,
	// though it may have changed rows: see [Guarding].
	Split bool

	// Near is set for an engine in this process, where a read takes no round trip. Few rows are
	// kept then.
	Near bool
}

// A Base makes a store of a KV: it does everything with tags, rows, pools and workers. It
// implements [Guarding], [Healing] and, except for StoreID, Ping and Close, [Store]. It is safe for
// concurrent use.
type Base struct {
	Leases
	calls *Calls
	kv    KV
	opts  BaseOptions
	kept  kept
	fence atomic.Pointer[Cell] // a fence's row as it was seen last, that does not retire the store; nil: none
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

// KV returns the KV below the store, for tests and tools. Changes made through it bypass all
// rules.
func (b *Base) KV() KV { return b.kv }

// take returns the key's slot once this handle's other calls for the key are over. Its caller must
// leave it.
func (b *Base) take(ctx context.Context, key Key) (*slot, error) {
	s := b.kept.slot(key)
	// First without the context: if both were ready, select might choose the context, and a call that need
	// not wait would fail.
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
	b.learn(key, cells[0])
	return cells[0].Value, nil
}

// learn keeps a row that was read for its reader, who may change it next, where the engine recognises
// it by more than its value. A row that is out of date loses the race and is read again.
func (b *Base) learn(key Key, cell Cell) {
	if b.opts.ByValue || b.opts.Near {
		return
	}
	s := b.kept.slot(key)
	select {
	case s.turn <- struct{}{}:
		if !s.row.Known || !sameValue(s.row.Value, cell.Value) {
			cell.Value = bytes.Clone(cell.Value) // the reader has the other
			b.kept.keep(s, held{Cell: cell})
		}
		s.leave()
	default: // a call changes it
	}
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

// swap is the change of a row from one value to another.
func swap(key Key, old, next []byte) *rowChange {
	next = bytes.Clone(next) // it is kept
	return &rowChange{key: key, to: func(row held) (held, error) {
		if !sameValue(row.Value, old) {
			return held{}, errOtherValue
		}
		return held{Cell: Cell{Value: next}}, nil
	}}
}

// guess is a row of which only its caller's expectation is known.
func (b *Base) guess(old []byte) held {
	return held{Cell: Cell{Value: bytes.Clone(old), Known: b.opts.ByValue || old == nil && b.opts.Absent}}
}

// SwapRow implements [Rows]. It is one round trip if this handle has read
// or written the row before, or the engine recognises rows by their values.
func (b *Base) SwapRow(ctx context.Context, table, name string, old, next []byte) (bool, error) {
	if err := CheckSwap(table, name, old, next); err != nil {
		return false, err
	}
	c := swap(Key{table, name}, old, next)
	c.guess = b.guess(old)
	_, err := b.change(ctx, nil, c)
	return c.done, err
}

// SwapRowWith implements [Guarding].
func (b *Base) SwapRowWith(ctx context.Context, p Pulse, table, name string, old, next []byte) (bool, Contact, error) {
	if err := p.CheckSwap(table, name, old, next); err != nil {
		return false, Contact{}, err
	}
	c := swap(Key{table, name}, old, next)
	c.guess = b.guess(old)
	contact, err := b.change(ctx, &p, c)
	return c.done, contact, err
}

// Shared implements [Rows].
func (b *Base) Shared() bool { return true }

// Split implements [Guarding].
func (b *Base) Split() bool { return b.opts.Split }

var _ interface {
	hapax.SegmentStore
	TagStore
	hapax.WorkerStore
	PoolStore
	Guarding
	Healing
} = (*Base)(nil)
