package driver

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/hapax-id/hapax"
)

// founding is the key of a context's value; see [WithFounding].
type founding struct{}

// A Founding is how a store is made whose rows come from elsewhere.
type Founding struct {
	ID string // the identity; empty: a random one

	// Closed says why nobody may use the store yet. The store has it from the first, and until
	// [Founded].OpenToAll only a caller with the same in its own Founding can open it.
	Closed string
}

// Founded is implemented by stores that can be made closed.
type Founded interface {
	// OpenToAll lets everybody open the store. It does nothing where they may already.
	OpenToAll(ctx context.Context) error
}

// WithFounding returns a context for opening a store: one that is made by that is made so.
func WithFounding(ctx context.Context, f Founding) context.Context {
	return context.WithValue(ctx, founding{}, f)
}

// FoundingIn returns the Founding of a context, for a driver that makes its store under another one.
func FoundingIn(ctx context.Context) Founding {
	f, _ := ctx.Value(founding{}).(Founding)
	return f
}

// NewStoreID returns the identity of a store that a driver makes: a random one, or the one
// of [WithFounding].
func NewStoreID(ctx context.Context) string {
	if id := FoundingIn(ctx).ID; id != "" {
		return id
	}
	return rand.Text()
}

// NewClosed returns Closed of [WithFounding], for a driver that makes a store; empty: everybody may
// use it.
func NewClosed(ctx context.Context) string {
	return FoundingIn(ctx).Closed
}

// A ClosedError is the refusal of a store that is being filled.
type ClosedError struct{ Closed string }

func (c *ClosedError) Error() string {
	return fmt.Sprintf("%v: %s", hapax.ErrStoreUnavailable, c.Closed)
}

// Unwrap returns hapax.ErrStoreUnavailable.
func (*ClosedError) Unwrap() error { return hapax.ErrStoreUnavailable }

// CheckClosed refuses a store that is being filled to everybody but its filler.
func CheckClosed(ctx context.Context, closed string) error {
	if closed == "" || closed == NewClosed(ctx) {
		return nil
	}
	return &ClosedError{closed}
}

// CopyTables returns the tables of a store in the order in which they are copied, but for those of
// workers, which follow the pools: see [TableOfWorkers]. A store that is in use changes
// meanwhile. Heartbeats come before lines: what a node was granted that the copy
// lacks, it was granted with a heartbeat that the copy lacks too, or that it knows to be
// older than the grant.
func CopyTables() []string {
	return []string{TableFence, TableGuard, TableBeats, TableNodes, TableEvidence, tablePools, ""}
}

// TablePools is the table of the pools.
const TablePools = tablePools

// TableOfWorkers returns the table of a pool's workers.
func TableOfWorkers(pool string) string { return tableWorkers + pool }

// CheckRow judges a row that comes from outside.
func CheckRow(key Key, value []byte) error {
	pool, isWorker := strings.CutPrefix(key.Table, tableWorkers)
	switch {
	case len(value) == 0 || len(value) > MaxValueBytes:
		return &hapax.ValueError{Field: "value of row " + fmt.Sprintf("%.300q", key.Name), Value: fmt.Sprintf("(%d bytes)", len(value)), Allowed: fmt.Sprintf("1 to %d bytes", MaxValueBytes), Err: hapax.ErrInvalidArgument}
	case !utf8.Valid(value) || bytes.IndexByte(value, 0) >= 0:
		return &hapax.ValueError{Field: "value of row " + fmt.Sprintf("%.300q", key.Name), Value: fmt.Sprintf("%.100q", value), Allowed: "UTF-8 without NUL", Err: hapax.ErrInvalidArgument}
	case key.Table == "":
		if err := hapax.ValidateName("tag", key.Name); err != nil {
			return err
		}
		_, err := decodeTag(key.Name, value)
		return err
	}
	if err := checkName("row", key.Name, MaxNameBytes); err != nil {
		return err
	}
	switch {
	case isWorker:
		if err := hapax.ValidateName("pool", pool); err != nil {
			return err
		}
		_, err := decodeWorker(pool, key.Name, value)
		return err
	case key.Table == tablePools:
		if err := hapax.ValidateName("pool", key.Name); err != nil {
			return err
		}
		_, err := decodePool(key.Name, value)
		return err
	case key.Table == TableBeats:
		_, _, err := DecodeBeat(key.Name, value)
		return err
	}
	return nil
}

// LoadRows writes rows that are not in the store, as long as the fence's row is the closed one. A
// row that is there with the same value was written by an attempt before; any other ends it with
// ErrInvalidArgument, or is replaced: over an old row, nil stands for none.
func (b *Base) LoadRows(ctx context.Context, closed []byte, rows []Put, over bool) error {
	for len(rows) > 0 {
		n, size := 0, 0
		for n < len(rows) && n < b.opts.MaxChanges && (n == 0 || size+len(rows[n].Value) <= b.opts.MaxBytes) {
			size += len(rows[n].Value)
			n++
		}
		if err := b.loadRows(ctx, closed, rows[:n], over); err != nil {
			return err
		}
		rows = rows[n:]
	}
	return nil
}

func (b *Base) loadRows(ctx context.Context, closed []byte, rows []Put, over bool) error {
	// Kept for another attempt, which has a time-out of its own.
	called := ctx
	ctx, cancel, err := b.calls.Begin(ctx)
	if err != nil {
		return err
	}
	defer cancel()
	fence, err := b.kv.Get(ctx, Current, fenceKey)
	if err != nil {
		return err
	}
	step, keys := Step{If: []Cond{{Key: fenceKey, Same: fence[0]}}}, make([]Key, len(rows))
	for i, row := range rows {
		keys[i] = row.Key
	}
	was, err := b.cellsOf(ctx, keys) // an engine may know a row by more than its value
	if err != nil {
		return err
	}
	for i, row := range rows {
		switch now := was[i].Value; {
		case sameValue(now, row.Value):
		case now == nil || over:
			step.Each = append(step.Each, Change{row.Key, was[i], row.Value})
		default:
			return fmt.Errorf("%w: row %q of table %q is in the store with another value", hapax.ErrInvalidArgument, row.Key.Name, row.Key.Table)
		}
	}
	if !bytes.Equal(fence[0].Value, closed) {
		return errOpened
	}
	if len(step.Each) == 0 {
		return nil
	}
	r, err := b.kv.Step(ctx, step)
	if half := len(rows) / 2; errors.Is(err, ErrTooMany) && half > 0 {
		return errors.Join(b.loadRows(called, closed, rows[:half], over), b.loadRows(called, closed, rows[half:], over))
	}
	switch {
	case err != nil:
		return err
	case !r.Met:
		return errOpened
	}
	for _, done := range r.Each {
		if !done.Done {
			return b.loadRows(called, closed, rows, over) // another attempt is at it, too
		}
	}
	return nil
}

// errOpened ends an attempt to fill a store that another one has finished.
var errOpened = fmt.Errorf("%w: the store is not closed any more: another process has filled it, or has begun to use it", hapax.ErrStoreUnavailable)

func (b *Base) cellsOf(ctx context.Context, keys []Key) (cells []Cell, err error) {
	for some := range slices.Chunk(keys, MaxNamed) {
		found, err := b.kv.Get(ctx, Current, some...)
		if err != nil {
			return nil, err
		}
		cells = append(cells, found...)
	}
	return cells, nil
}

// IsTableOfWorkers reports whether a table is one of a pool's workers.
func IsTableOfWorkers(table string) bool {
	pool, ok := strings.CutPrefix(table, tableWorkers)
	return ok && hapax.ValidateName("pool", pool) == nil
}

// IsLine reports whether a row is one of a tag, a pool or a worker.
func IsLine(key Key) bool {
	return key.Table == "" || key.Table == tablePools || strings.HasPrefix(key.Table, tableWorkers)
}
