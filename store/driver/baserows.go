package driver

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/hapax-id/hapax"
)

// RowsNamed implements [Guarding].
func (b *Base) RowsNamed(ctx context.Context, keys ...Key) ([][]byte, error) {
	ctx, cancel, err := b.calls.Begin(ctx)
	if err != nil {
		return nil, err
	}
	defer cancel()
	cells, err := b.cellsAt(ctx, keys)
	if err != nil {
		return nil, err
	}
	values := make([][]byte, len(keys))
	for i, cell := range cells {
		values[i] = cell.Value
		b.learn(keys[i], cell)
	}
	return values, nil
}

// cellsAt returns the current cells of keys.
func (b *Base) cellsAt(ctx context.Context, keys []Key) ([]Cell, error) {
	if len(keys) == 0 {
		return nil, nil
	}
	if len(keys) > MaxNamed {
		return nil, &hapax.ValueError{Field: "rows", Value: len(keys), Allowed: fmt.Sprintf("at most %d", MaxNamed), Err: hapax.ErrInvalidArgument}
	}
	cells, err := b.kv.Get(ctx, Current, keys...)
	if err == nil && len(cells) != len(keys) {
		err = fmt.Errorf("%w: %s: %d rows for %d keys", hapax.ErrStoreCorrupt, b.calls.Service, len(cells), len(keys))
	}
	return cells, err
}

// stays reports whether the swap is a condition.
func (s Swap) stays() bool { return sameValue(s.Old, s.Next) }

// SwapRows implements [Guarding]. It is one round trip where the engine recognises rows by their
// values.
func (b *Base) SwapRows(ctx context.Context, all ...Swap) (bool, error) {
	for _, swap := range all {
		next := swap.Next
		// CheckSwap refuses a swap that changes nothing, which is a condition here.
		if swap.stays() {
			next = []byte("another")
		}
		if err := CheckSwap(swap.Table, swap.Name, swap.Old, next); err != nil {
			return false, err
		}
	}
	ctx, cancel, err := b.calls.Begin(ctx)
	if err != nil {
		return false, err
	}
	defer cancel()
	slots, err := b.takeAll(ctx, all)
	defer func() {
		for _, s := range slots {
			s.leave()
		}
	}()
	if err != nil {
		return false, err
	}
	cells, keys := make([]Cell, len(all)), make([]Key, len(all))
	for i, swap := range all {
		s := slots[swap.Key]
		keys[i], cells[i] = swap.Key, b.guess(swap.Old).Cell
		// What was read before has the version that some engines need; a guess has none.
		if s.row.Known && sameValue(s.row.Value, swap.Old) {
			cells[i] = s.row.Cell
		}
		s.row = held{} // until the outcome is known
	}
	for lost := 0; ; lost++ {
		if lost > 0 || slices.ContainsFunc(cells, func(c Cell) bool { return !c.Known }) {
			if cells, err = b.cellsAt(ctx, keys); err != nil {
				return false, err
			}
			for i, cell := range cells {
				if !sameValue(cell.Value, all[i].Old) {
					return false, nil
				}
			}
		}
		step := stepTo(all, cells)
		sent := time.Now()
		r, err := b.kv.Step(ctx, step)
		if err != nil {
			return false, err
		}
		if r.Met {
			for i, c := range step.Then {
				b.kept.keep(slots[c.Key], held{Cell: r.Then[i].Now})
			}
			return true, nil
		}
		if b.opts.Split { // some of them may be made
			return false, nil
		}
		if err := pause(ctx, lost, time.Since(sent)); err != nil {
			return false, b.calls.Unavailable(ctx, err)
		}
	}
}

// stepTo returns the step that makes the swaps of rows whose cells are these.
func stepTo(all []Swap, cells []Cell) (step Step) {
	for i, swap := range all {
		switch {
		case swap.stays() && swap.Old == nil:
			step.If = append(step.If, Cond{Key: swap.Key})
		case swap.stays():
			step.If = append(step.If, Cond{Key: swap.Key, Same: cells[i]})
		default:
			step.Then = append(step.Then, Change{swap.Key, cells[i], bytes.Clone(swap.Next)})
		}
	}
	return step
}

// takeAll takes the slots of all keys, in one order, so that no two calls wait for each other. The
// caller must leave those that it returns, also those beside an error.
func (b *Base) takeAll(ctx context.Context, all []Swap) (map[Key]*slot, error) {
	slots := make(map[Key]*slot, len(all))
	turns := slices.SortedFunc(slices.Values(all), func(x, y Swap) int {
		return cmp.Or(cmp.Compare(x.Table, y.Table), cmp.Compare(x.Name, y.Name))
	})
	for _, swap := range turns {
		if slots[swap.Key] != nil {
			return slots, &hapax.ValueError{Field: "rows", Value: swap.Table + "/" + swap.Name, Allowed: "each named once", Err: hapax.ErrInvalidArgument}
		}
		s, err := b.take(ctx, swap.Key)
		if err != nil {
			return slots, err
		}
		slots[swap.Key] = s
	}
	return slots, nil
}
