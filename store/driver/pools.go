package driver

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"

	"github.com/hapax-id/hapax"
)

// maxLayoutBytes bounds a pool's layout specification.
const maxLayoutBytes = 1024

// readPool returns a pool and the bytes of its row, nil if there is none.
func (l Leases) readPool(ctx context.Context, name string) (Pool, []byte, error) {
	raw, err := l.rows.Row(ctx, tablePools, name)
	if err != nil || raw == nil {
		return Pool{Name: name}, nil, err
	}
	p, err := decodePool(name, raw)
	return p, raw, err
}

func decodePool(name string, raw []byte) (Pool, error) {
	var row poolRow
	err := DecodeRow(tablePools, name, raw, &row)
	return Pool{Name: name, Layout: row.Layout, Deleted: row.Deleted != ""}, err
}

func encodePool(p Pool) []byte {
	row := poolRow{Layout: p.Layout}
	if p.Deleted {
		row.Deleted = rand.Text()
	}
	return EncodeRow(row)
}

// errUnchanged ends a change that leaves the pool as it is.
var errUnchanged = errors.New("nothing to change")

// changePool replaces a pool by the one that f makes of it, unless f fails. The pool has
// no layout if there is none.
func (l Leases) changePool(ctx context.Context, name string, f func(Pool) (Pool, error)) (Pool, error) {
	if err := hapax.ValidateName("pool", name); err != nil {
		return Pool{}, err
	}
	for range swapAttempts {
		old, raw, err := l.readPool(ctx, name)
		if err != nil {
			return old, err
		}
		next, err := f(old)
		if errors.Is(err, errUnchanged) {
			return old, nil
		}
		if err != nil {
			return old, err
		}
		if ok, err := l.rows.SwapRow(ctx, tablePools, name, raw, encodePool(next)); err != nil || ok {
			return next, err
		}
	}
	return Pool{}, lostRaces("pool", name)
}

// freezePool makes sure that the pool has the layout: it creates the pool where
// there is none.
func (l Leases) freezePool(ctx context.Context, name, layout string) error {
	_, err := l.changePool(ctx, name, func(p Pool) (Pool, error) {
		switch {
		case p.Layout == "":
			p.Layout = layout
			return p, checkLayout(layout)
		case p.Deleted:
			return p, fmt.Errorf("%w: %q", hapax.ErrPoolDeleted, name)
		case p.Layout != layout:
			return p, otherLayout(p, layout)
		}
		return p, errUnchanged
	})
	return err
}

func checkLayout(layout string) error {
	if len(layout) > maxLayoutBytes {
		return &hapax.ValueError{Field: "layout", Value: layout, Allowed: fmt.Sprintf("at most %d bytes", maxLayoutBytes), Err: hapax.ErrInvalidLayout}
	}
	_, err := hapax.ParseLayout(layout)
	return err
}

func otherLayout(p Pool, layout string) error {
	return fmt.Errorf("%w: pool %q has %s, the caller asks for %s", hapax.ErrLayoutMismatch, p.Name, p.Layout, layout)
}

// CreatePool implements [PoolStore].
func (l Leases) CreatePool(ctx context.Context, name, layout string) (Pool, error) {
	if err := checkLayout(layout); err != nil {
		return Pool{}, err
	}
	return l.changePool(ctx, name, func(p Pool) (Pool, error) {
		switch {
		case p.Layout != "" && p.Layout != layout:
			return p, otherLayout(p, layout)
		case p.Layout != "" && !p.Deleted:
			return p, errUnchanged
		}
		p.Layout, p.Deleted = layout, false
		return p, nil
	})
}

// DeletePool implements [PoolStore]. The tombstone comes first: whoever takes
// a worker ID looks at the pool once more afterwards, so that one of the two sees
// the other. Each tombstone has a random text, so that only the one that stood when
// the workers were looked for is removed.
func (l Leases) DeletePool(ctx context.Context, name string) (Pool, error) {
	if err := hapax.ValidateName("pool", name); err != nil {
		return Pool{}, err
	}
	for range swapAttempts {
		p, raw, err := l.readPool(ctx, name)
		switch {
		case err != nil:
			return p, err
		case p.Layout == "":
			return p, fmt.Errorf("%w: %q", hapax.ErrPoolNotFound, name)
		case !p.Deleted:
			p.Deleted = true
			old := raw
			raw = encodePool(p)
			if ok, err := l.rows.SwapRow(ctx, tablePools, name, old, raw); err != nil {
				return p, err
			} else if !ok {
				continue
			}
		}
		used, err := l.rows.ListRows(ctx, tableWorkers+name, "", 1)
		if err != nil || len(used) > 0 {
			return p, err
		}
		removed, err := l.rows.SwapRow(ctx, tablePools, name, raw, nil)
		if removed {
			p.Layout = ""
		}
		return p, err
	}
	return Pool{}, lostRaces("pool", name)
}

// Pools implements [PoolStore].
func (l Leases) Pools(ctx context.Context) ([]Pool, error) {
	var pools []Pool
	err := AllRows(ctx, l.rows, tablePools, func(r Row) error {
		p, err := decodePool(r.Name, r.Value)
		pools = append(pools, p)
		return err
	})
	if err != nil {
		return nil, err
	}
	return pools, nil
}
