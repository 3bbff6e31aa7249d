package dump

import (
	"context"
	"fmt"
	"io"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
)

// Load makes a store of a dump, which was checked, and returns its identity: that of the dump or, with
// asNew, a fresh one, for which only the rows of tags, pools and workers are taken. Nobody can use the store
// until all rows are there. After an attempt that was broken off it goes on.
func Load(ctx context.Context, to Place, from io.Reader, head Header, checked Summary, asNew bool) (id string, err error) {
	f := driver.Founding{ID: head.Store, Closed: fmt.Sprintf("the dump with checksum %s is being loaded; if that was broken off, load the same dump again", checked.Sum)}
	if asNew {
		f.ID, f.Closed = "", "as a new store, "+f.Closed
	}
	t, err := establish(ctx, to, f, false, func(closed string) bool { return closed == f.Closed })
	if err != nil {
		return "", err
	}
	defer func() { err = closing(t, err) }()
	if id, err = t.StoreID(ctx); err != nil {
		return "", err
	}
	if err := t.takeOver(ctx, to, f.Closed, id, !asNew && id != head.Store); err != nil {
		return id, err
	}
	fence, err := t.fill(ctx, from, checked, asNew)
	if err != nil {
		return "", err
	}
	return id, t.open(ctx, fence)
}

// closing closes a store, and returns why it failed, too.
func closing(s io.Closer, err error) error {
	if failed := s.Close(); err == nil {
		err = failed
	}
	return err
}

// takeOver has a store that is to be filled be closed to all others. One that was found open is
// refused where it is used, or is a wrong one, unless only its fence is left of an attempt that was broken off:
// its rows are compared again, since the dump may have a fence of its own.
func (t *target) takeOver(ctx context.Context, to Place, closed, id string, wrong bool) error {
	if !t.found {
		return t.shut(ctx)
	}
	t.closed, t.fence = closed, fenceOf(closed)
	fence, err := t.Row(ctx, driver.TableFence, driver.RowFence)
	if err != nil {
		return err
	}
	if string(fence) == string(t.fence) {
		return t.reopen(ctx, to)
	}
	tables, err := used(ctx, t.Store)
	if err != nil {
		return err
	}
	if len(tables) > 0 || wrong {
		return refuseUsed(to, id, tables)
	}
	if err := t.reopen(ctx, to); err != nil {
		return err
	}
	if err := t.shut(ctx); err != nil {
		return err
	}
	// Once more under the fence, since somebody may have used the store between the look and this.
	if tables, err = used(ctx, t.Store); err != nil || len(tables) > 1 { // the fence is one
		_, undone := t.SwapRow(ctx, driver.TableFence, driver.RowFence, t.fence, nil)
		if err == nil {
			err = refuseUsed(to, id, tables)
		}
		if undone != nil {
			err = fmt.Errorf("%w; its fence could not be lifted: %w", err, undone)
		}
	}
	return err
}

// fill loads the rows of a dump, and returns the fence that is among them.
func (t target) fill(ctx context.Context, from io.Reader, checked Summary, linesOnly bool) (fence []byte, err error) {
	d, err := newReader(from)
	if err != nil {
		return nil, err
	}
	rows := loader{target: t}
	for {
		row, more, err := d.next()
		if err != nil {
			return nil, err
		}
		switch {
		case !more:
			if d.end.Sum != checked.Sum {
				return nil, fmt.Errorf("%w: the dump has changed while it was loaded; empty the store and begin again", hapax.ErrInvalidArgument)
			}
			return fence, rows.flush(ctx)
		case linesOnly && !driver.IsLine(row.Key):
		case row.Key == driver.Key{Table: driver.TableFence, Name: driver.RowFence}:
			// The rows are loaded under a fence of their own, in whose place this one comes at the end.
			fence = row.Value
		default:
			if err := rows.add(ctx, row); err != nil {
				return nil, err
			}
		}
	}
}
