package driver

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/hapax-id/hapax"
)

// newStoreID is the key of a context's value; see [WithStoreID].
type newStoreID struct{}

// WithStoreID has a store that is opened with the context, and made by that, take the
// identity: it is one that is restored.
func WithStoreID(ctx context.Context, id string) context.Context {
	return context.WithValue(ctx, newStoreID{}, id)
}

// NewStoreID returns the identity of a store that a driver makes: a random one, or the one
// of [WithStoreID].
func NewStoreID(ctx context.Context) string {
	if id, ok := ctx.Value(newStoreID{}).(string); ok {
		return id
	}
	return rand.Text()
}

// CopyTables are the tables of a store in the order in which they are copied, but for those of
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

// LoadRows writes rows that are not in the store. One that is there with the same value was
// written by an attempt before; any other ends it with ErrInvalidArgument. It looks at no fence.
func (b *Base) LoadRows(ctx context.Context, rows []Put) error {
	for len(rows) > 0 {
		n, size := 0, 0
		for n < len(rows) && n < b.opts.MaxChanges && (n == 0 || size+len(rows[n].Value) <= b.opts.MaxBytes) {
			size += len(rows[n].Value)
			n++
		}
		if err := b.loadRows(ctx, rows[:n]); err != nil {
			return err
		}
		rows = rows[n:]
	}
	return nil
}

func (b *Base) loadRows(ctx context.Context, rows []Put) error {
	called := ctx
	ctx, cancel, err := b.calls.Begin(ctx)
	if err != nil {
		return err
	}
	defer cancel()
	step, keys := Step{}, make([]Key, len(rows))
	for i, row := range rows {
		step.Each = append(step.Each, Change{row.Key, Cell{Known: true}, row.Value})
		keys[i] = row.Key
	}
	r, err := b.kv.Step(ctx, step)
	if half := len(rows) / 2; errors.Is(err, ErrTooMany) && half > 0 {
		return errors.Join(b.loadRows(called, rows[:half]), b.loadRows(called, rows[half:]))
	}
	if err != nil {
		return err
	}
	for i, done := range r.Each {
		if done.Done {
			continue
		}
		cells, err := b.kv.Get(ctx, Current, keys[i])
		if err != nil {
			return err
		}
		if !bytes.Equal(cells[0].Value, rows[i].Value) {
			return fmt.Errorf("%w: row %q of table %q is in the store with another value", hapax.ErrInvalidArgument, keys[i].Name, keys[i].Table)
		}
	}
	return nil
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
