package driver

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/hapax-id/hapax"
)

// Every change of a store is made here: of one row or of many, under a pulse or without. A row is
// read once and then kept together with the version that the engine needs to recognise it.
// A change is a conditional write of the whole row:
//
//	          +----------- lost: the store's current row ----------+
//	          v                                                    |
//	unknown -read-> known -change-> new row -conditional write-> known
//	   ^                                |
//	   +---- outcome unknown: error ----+
//
// A row that is kept may be out of date; then the write is refused and nothing is lost. Errors,
// such as that a tag is deleted, are told only from a row that was current during the call.

// A rowChange is the change of one row, by itself or among others.
type rowChange struct {
	key   Key
	guess held // of the row, where nothing is known of it

	// to returns what a row is to be, as it is held: its Value, nil for no row, and the tag where
	// it is one. It may be called several times; the last call counts.
	to func(row held) (held, error)

	slot    *slot
	row     held
	current bool // row was found in this call
	next    held // what the row is to be
	locked  bool // in the step that was made last

	done bool
	err  error // of to, for the row as it was during the call: the change was not made
}

const maxPause = 50 * time.Millisecond // unit of the pause after lost races

// maxLost is how many changes of a step's rows may be lost to other handles, of one row or of
// several, before the rows are locked first.
const maxLost = 2

// update makes one change without a pulse.
func (b *Base) update(ctx context.Context, c *rowChange) error {
	_, err := b.change(ctx, nil, c)
	return cmp.Or(err, c.err)
}

// change makes changes of rows, each named once. It is a step for each hundred of them, as long as
// nobody else has changed the rows since this handle last saw them. Each step makes the beat,
// where there is a pulse. One change that is not made keeps none of the others back.
func (b *Base) change(ctx context.Context, p *Pulse, all ...*rowChange) (contact Contact, err error) {
	if p != nil {
		if err := p.Check(); err != nil {
			return contact, err
		}
	}
	// Calls for the same rows take them in the same order, so that none waits for another
	// that waits for it.
	turns := slices.SortedFunc(slices.Values(all), func(x, y *rowChange) int { return cmp.Compare(x.key.Name, y.key.Name) })
	for i, c := range turns[min(1, len(turns)):] {
		if c.key == turns[i].key {
			return contact, &hapax.ValueError{Field: "tags", Value: c.key.Name, Allowed: "each named once", Err: hapax.ErrInvalidArgument}
		}
	}
	for some := range slices.Chunk(turns, b.opts.MaxChanges) {
		if contact, err = b.changeSome(ctx, p, some); err != nil || !contact.Met {
			break
		}
	}
	return contact, err
}

// changeSome changes as many rows as may be one step.
func (b *Base) changeSome(ctx context.Context, p *Pulse, left []*rowChange) (contact Contact, err error) {
	ctx, cancel, err := b.calls.Begin(ctx)
	if err != nil {
		return contact, err
	}
	defer cancel()
	for _, c := range left {
		if c.slot, err = b.take(ctx, c.key); err != nil {
			return contact, err
		}
		defer c.slot.leave()
		c.row, c.slot.row = c.slot.row, held{} // until the outcome is known
		if !c.row.Known {
			c.row = c.guess
		}
	}
	most, beaten := b.opts.MaxChanges, p == nil
	for lost := 0; ; {
		if err := b.readMissing(ctx, left); err != nil {
			return contact, err
		}
		var judged bool
		left, judged = b.judge(left)
		switch {
		case !judged:
			continue
		case len(left) == 0 && beaten:
			return contact, nil
		case len(left) == 0:
			// No change is left to carry the beat, and errors of tags count only with a contact.
			return b.beat(ctx, *p)
		}
		some := left[:b.stepOf(left, most)]
		rest := left[len(some):]
		sent := time.Now()
		r, some, err := b.makeStep(ctx, p, some)
		// The only error after which it is certain that nothing was done.
		if errors.Is(err, ErrTooMany) && len(some) > 1 {
			most = len(some) / 2
			continue
		}
		if err != nil {
			return Contact{}, err
		}
		if contact, err = p.contactOf(r); err != nil || !contact.Met {
			return contact, err
		}
		beaten = beaten || r.Met
		refused := b.settle(some, r.Each)
		left = slices.Concat(refused, rest)
		if len(refused) > 0 && b.locking(p, left) == nil { // whoever locks waits in the store, where those before are served first
			if err := pause(ctx, lost, time.Since(sent)); err != nil {
				return Contact{}, b.calls.Unavailable(ctx, err)
			}
			lost++
		}
	}
}

// locking returns the KV if it must lock the rows first, since they were lost to others again and
// again; else nil.
func (b *Base) locking(p *Pulse, some []*rowChange) LockingKV {
	kv, ok := b.kv.(LockingKV)
	if !ok || p == nil {
		return nil
	}
	lost := 0
	for _, c := range some {
		lost += c.slot.lost
	}
	if lost < maxLost {
		return nil
	}
	return kv
}

// makeStep makes the step of these changes, and returns those that it was made of. Where
// their rows were lost to others, again and again, all are locked before the changes are made up,
// for as long as others go on to change them.
func (b *Base) makeStep(ctx context.Context, p *Pulse, some []*rowChange) (Result, []*rowChange, error) {
	kv := b.locking(p, some)
	for _, c := range some {
		c.locked = kv != nil
	}
	if kv == nil {
		var r Result
		var err error
		if p == nil {
			r, err = b.stepBesides(ctx, changesOf(some))
		} else {
			r, err = b.kv.Step(ctx, p.step(changesOf(some)...))
		}
		return r, some, err
	}
	keys := []Key{{TableBeats, p.Row}}
	for _, c := range some {
		keys = append(keys, c.key)
	}
	var left []*rowChange
	r, err := kv.StepLocked(ctx, keys, func(cells []Cell) (Step, error) {
		for i, c := range some {
			if now := cells[i+1]; c.row.Known && bytes.Equal(c.row.Value, now.Value) {
				c.row.Cell = now
				if !c.current { // nobody has changed it since this handle did
					c.slot.lost = 0
				}
			} else {
				c.row = held{Cell: now}
			}
			c.current = true
		}
		left, _ = b.judge(some)
		return p.step(changesOf(left)...), nil
	})
	return r, left, err
}

func changesOf(some []*rowChange) []Change {
	changes := make([]Change, len(some))
	for i, c := range some {
		changes[i] = Change{c.key, c.row.Cell, c.next.Value}
	}
	return changes
}

// settle notes what became of changes, and returns those that were refused.
func (b *Base) settle(some []*rowChange, outcomes []Outcome) (refused []*rowChange) {
	for i, c := range some {
		now := outcomes[i].Now
		if c.done = outcomes[i].Done; c.done {
			c.next.Cell = now
			b.kept.keep(c.slot, c.next)
			if !c.locked {
				c.slot.lost = 0
			}
			continue
		}
		c.slot.lost++
		c.row, c.current = held{Cell: now}, true
		refused = append(refused, c)
	}
	return refused
}

// judge computes the new rows, and returns the changes that are still to be made. It
// reports false where a row has to be read first: no error may come from one that is out
// of date.
func (b *Base) judge(all []*rowChange) (left []*rowChange, judged bool) {
	judged = true
	for _, c := range all {
		c.next, c.err = c.to(c.row)
		switch {
		case c.err == nil:
		case !c.current:
			c.row, judged = held{}, false
		default:
			b.kept.keep(c.slot, c.row)
			continue
		}
		left = append(left, c)
	}
	return left, judged
}

// stepOf returns how many of the first changes are one step.
func (b *Base) stepOf(left []*rowChange, most int) int {
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
func (b *Base) readMissing(ctx context.Context, all []*rowChange) error {
	var missing []*rowChange
	for _, c := range all {
		if !c.row.Known {
			missing = append(missing, c)
		}
	}
	for some := range slices.Chunk(missing, MaxNamed) {
		keys := make([]Key, len(some))
		for i, c := range some {
			keys[i] = c.key
		}
		cells, err := b.kv.Get(ctx, Current, keys...)
		if err != nil {
			return err
		}
		if len(cells) != len(keys) {
			return fmt.Errorf("%w: %s: %d rows for %d keys", hapax.ErrStoreCorrupt, b.calls.Service, len(cells), len(keys))
		}
		for i, c := range some {
			c.row, c.current = held{Cell: cells[i]}, true
		}
	}
	return nil
}

// pause spreads out calls that race for one row. After a first defeat the next
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
