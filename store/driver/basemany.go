package driver

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/hapax-id/hapax"
)

// HandsBackTogether implements [Together].
func (b *Base) HandsBackTogether() bool { return true }

// HandBackAllWith implements [Together]. It is a step for each hundred tags, as long
// as nobody else has changed them since this handle last saw them.
func (b *Base) HandBackAllWith(ctx context.Context, p Pulse, all []HandBackOf) (given []bool, contact Contact, err error) {
	if err := p.Check(); err != nil {
		return nil, contact, err
	}
	batch := make([]*oneOf, len(all))
	for i, h := range all {
		if err := CheckHandBack(h.Allocation, h.Next); err != nil {
			return nil, contact, err
		}
		batch[i] = &oneOf{key: tagKey(h.Tag.Name), change: tagChange(h.Tag.Name, func(t Tag) (Tag, error) {
			return HandBack(t, h.Allocation, h.Next)
		})}
	}
	contact, err = b.changeAll(ctx, p, batch)
	given = make([]bool, len(all))
	for i, h := range batch {
		given[i] = h.done
	}
	return given, contact, err
}

// AllocateAllWith implements [TogetherAllocating]. It is a step for each hundred tags,
// as long as nobody else has changed them since this handle last saw them.
func (b *Base) AllocateAllWith(ctx context.Context, p Pulse, all []AllocateOf) ([]Allocated, Contact, error) {
	if err := p.Check(); err != nil {
		return nil, Contact{}, err
	}
	made := make([]Allocated, len(all))
	var batch []*oneOf
	of := map[string][]int{}
	for i, one := range all {
		if err := hapax.ValidateName("tag", one.Tag); err != nil {
			return nil, Contact{}, err
		}
		if of[one.Tag] = append(of[one.Tag], i); len(of[one.Tag]) > 1 {
			continue
		}
		batch = append(batch, &oneOf{key: tagKey(one.Tag), change: func(row held) (held, error) {
			return advanceAll(one.Tag, row, all, made, of[one.Tag])
		}})
	}
	contact, err := b.changeAll(ctx, p, batch)
	if err != nil || !contact.Met {
		return nil, contact, err
	}
	return made, contact, nil
}

// advanceAll makes those of the allocations that are of one tag, and returns its row. The
// error is one that all of them have.
func advanceAll(tag string, row held, all []AllocateOf, made []Allocated, of []int) (next held, err error) {
	t, err := row.tagNamed(tag)
	if err != nil {
		return held{}, err
	}
	known, advanced := t.Name != "", false
	for _, i := range of {
		var a hapax.Allocation
		if !known {
			err = notFound(tag)
		} else {
			a, t, err = Advance(t, all[i].N, all[i].Last)
		}
		if err != nil && !IsOfTag(err) {
			return held{}, err
		}
		made[i] = Allocated{Allocation: a, Err: err}
		advanced = advanced || err == nil
	}
	if !advanced {
		return held{}, err
	}
	return heldTag(t), nil
}

// changeAll changes the rows of many tags, each named once.
func (b *Base) changeAll(ctx context.Context, p Pulse, batch []*oneOf) (contact Contact, err error) {
	// Calls for the same tags take them in the same order, so that none waits for another
	// that waits for it.
	turns := slices.SortedFunc(slices.Values(batch), func(x, y *oneOf) int { return cmp.Compare(x.key.Name, y.key.Name) })
	for i, h := range turns[min(1, len(turns)):] {
		if h.key == turns[i].key {
			return contact, &hapax.ValueError{Field: "tags", Value: h.key.Name, Allowed: "each named once", Err: hapax.ErrInvalidArgument}
		}
	}
	for some := range slices.Chunk(turns, b.opts.MaxChanges) {
		if contact, err = b.changeSome(ctx, p, some); err != nil || !contact.Met {
			break
		}
	}
	return contact, err
}

// oneOf is the change of one row among others.
type oneOf struct {
	key    Key
	change changing

	slot    *slot
	row     held
	current bool // row was found in this call
	next    held // what the row is to be
	locked  bool // in the step that was made last
	done    bool
}

// changeSome changes as many rows as may be one step. Each step makes the beat.
func (b *Base) changeSome(ctx context.Context, p Pulse, left []*oneOf) (contact Contact, err error) {
	ctx, cancel, err := b.calls.Begin(ctx)
	if err != nil {
		return contact, err
	}
	defer cancel()
	for _, h := range left {
		if h.slot, err = b.take(ctx, h.key); err != nil {
			return contact, err
		}
		defer h.slot.leave()
		h.row, h.slot.row = h.slot.row, held{} // until the outcome is known
	}
	most, beaten := b.opts.MaxChanges, false
	for lost := 0; ; {
		if err := b.readMissing(ctx, left); err != nil {
			return contact, err
		}
		var judged bool
		if left, judged, err = b.judge(left); err != nil {
			return contact, err
		}
		switch {
		case !judged:
			continue
		case len(left) == 0 && beaten:
			return contact, nil
		case len(left) == 0:
			return b.beat(ctx, p)
		}
		some := left[:b.stepOf(left, most)]
		rest := left[len(some):]
		sent := time.Now()
		r, some, err := b.makeStep(ctx, p, some)
		if errors.Is(err, ErrTooMany) && len(some) > 1 {
			most = len(some) / 2
			continue
		}
		if err != nil {
			return Contact{}, err
		}
		if contact, err = contactOf(p, r); err != nil || !contact.Met {
			return contact, err
		}
		beaten = beaten || r.Met
		refused := b.settle(some, r.Each)
		left = append(refused, rest...)
		if len(refused) > 0 && b.locking(left) == nil { // whoever locks waits in the store, where those before are served first
			if err := pause(ctx, lost, time.Since(sent)); err != nil {
				return Contact{}, b.calls.Unavailable(ctx, err)
			}
			lost++
		}
	}
}

// maxLost is how often a row is lost to other handles before it is locked first.
const maxLost = 2

// locking returns the KV that is to lock rows first, since one was lost to others, again and
// again; nil where none is to.
func (b *Base) locking(some []*oneOf) LockingKV {
	if kv, ok := b.kv.(LockingKV); ok && slices.ContainsFunc(some, func(h *oneOf) bool { return h.slot.lost >= maxLost }) {
		return kv
	}
	return nil
}

// makeStep makes the step of these changes, and returns those that it was made of. Where one of
// their rows was lost to others, again and again, all are locked before the changes are made up,
// for as long as others go on to change it.
func (b *Base) makeStep(ctx context.Context, p Pulse, some []*oneOf) (Result, []*oneOf, error) {
	kv := b.locking(some)
	for _, h := range some {
		h.locked = kv != nil
	}
	if kv == nil {
		r, err := b.kv.Step(ctx, p.step(changesOf(some)...))
		return r, some, err
	}
	keys := []Key{{TableBeats, p.Row}}
	for _, h := range some {
		keys = append(keys, h.key)
	}
	var left []*oneOf
	r, err := kv.StepLocked(ctx, keys, func(cells []Cell) (Step, error) {
		for i, h := range some {
			if now := cells[i+1]; h.row.Known && bytes.Equal(h.row.Value, now.Value) {
				h.row.Cell = now
				if !h.current { // nobody has changed it since this handle did
					h.slot.lost = 0
				}
			} else {
				h.row = held{Cell: now}
			}
			h.current = true
		}
		var err error
		left, _, err = b.judge(some)
		return p.step(changesOf(left)...), err
	})
	return r, left, err
}

func changesOf(some []*oneOf) []Change {
	changes := make([]Change, len(some))
	for i, h := range some {
		changes[i] = Change{h.key, h.row.Cell, h.next.Value}
	}
	return changes
}

// settle notes what became of changes, and returns those that were refused.
func (b *Base) settle(some []*oneOf, outcomes []Outcome) (refused []*oneOf) {
	for i, h := range some {
		now := outcomes[i].Now
		if h.done = outcomes[i].Done; h.done {
			h.next.Cell = now
			b.kept.keep(h.slot, h.next)
			if !h.locked {
				h.slot.lost = 0
			}
			continue
		}
		h.slot.lost++
		h.row, h.current = held{Cell: now}, true
		refused = append(refused, h)
	}
	return refused
}

// judge computes what the rows are to be, and returns those that are still to be
// changed. It reports false where a row has to be read first, since no error is told from one
// that may be out of date.
func (b *Base) judge(all []*oneOf) (left []*oneOf, judged bool, err error) {
	judged = true
	for _, h := range all {
		h.next, err = h.change(h.row)
		switch {
		case err == nil:
		case !h.current:
			h.row, judged = held{}, false
		case IsOfTag(err):
			b.kept.keep(h.slot, h.row)
			continue
		default:
			return nil, false, err
		}
		left = append(left, h)
	}
	return left, judged, nil
}

// stepOf returns how many of the first changes are one step.
func (b *Base) stepOf(left []*oneOf, most int) int {
	n, size := 1, len(left[0].next.Value)
	for n < min(len(left), most) {
		if size += len(left[n].next.Value); size > b.opts.MaxBytes {
			break
		}
		n++
	}
	return n
}

// readMissing reads the rows of which nothing is known.
func (b *Base) readMissing(ctx context.Context, all []*oneOf) error {
	var missing []*oneOf
	for _, h := range all {
		if !h.row.Known {
			missing = append(missing, h)
		}
	}
	for some := range slices.Chunk(missing, MaxNamed) {
		keys := make([]Key, len(some))
		for i, h := range some {
			keys[i] = h.key
		}
		cells, err := b.kv.Get(ctx, Current, keys...)
		if err != nil {
			return err
		}
		if len(cells) != len(keys) {
			return fmt.Errorf("%w: %s: %d rows for %d keys", hapax.ErrStoreCorrupt, b.calls.Service, len(cells), len(keys))
		}
		for i, h := range some {
			h.row, h.current = held{Cell: cells[i]}, true
		}
	}
	return nil
}
