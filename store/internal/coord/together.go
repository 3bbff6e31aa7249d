package coord

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
)

const (
	// together is how many rows one step changes at most. With what else a beat looks
	// at it is below the 128 operations that etcd allows unless it is told otherwise.
	together = 100

	togetherBytes = 64 << 10 // of the rows in one step; both services bound a request
	readsAtOnce   = 64
)

// ErrTooMany is the error of a step that the service refuses for its length.
var ErrTooMany = errors.New("too many changes for one step")

// HandsBackTogether implements driver.Together.
func (r *Rows) HandsBackTogether() bool { return true }

// HandBackAllWith implements driver.Together. It is a step for each hundred tags, as long
// as nobody else has changed them since this handle last saw them.
func (r *Rows) HandBackAllWith(ctx context.Context, p driver.Pulse, all []driver.HandBackOf) (given []bool, contact driver.Contact, err error) {
	if err := p.Check(); err != nil {
		return nil, contact, err
	}
	batch := make([]*changed, len(all))
	for i, h := range all {
		if err := driver.CheckHandBack(h.Allocation, h.Next); err != nil {
			return nil, contact, err
		}
		batch[i] = &changed{key: tagKey(h.Tag.Name), change: tagChange(h.Tag.Name, func(t driver.Tag) (driver.Tag, error) {
			return driver.HandBack(t, h.Allocation, h.Next)
		})}
	}
	contact, err = r.changeAll(ctx, p, batch)
	given = make([]bool, len(all))
	for i, h := range batch {
		given[i] = h.done
	}
	return given, contact, err
}

// changeAll changes the rows of many tags, each named once.
func (r *Rows) changeAll(ctx context.Context, p driver.Pulse, batch []*changed) (contact driver.Contact, err error) {
	// Calls for the same tags take them in the same order, so that none waits for another
	// that waits for it.
	turns := slices.SortedFunc(slices.Values(batch), func(a, b *changed) int { return cmp.Compare(a.key.Name, b.key.Name) })
	for i, h := range turns[min(1, len(turns)):] {
		if h.key == turns[i].key {
			return contact, &hapax.ValueError{Field: "tags", Value: h.key.Name, Allowed: "each named once", Err: hapax.ErrInvalidArgument}
		}
	}
	for some := range slices.Chunk(turns, together) {
		if contact, err = r.changeSome(ctx, p, some); err != nil || !contact.Met {
			break
		}
	}
	return contact, err
}

// A changed is the change of one row among others.
type changed struct {
	key    Key
	change func(raw []byte) ([]byte, error)

	slot    *slot
	cell    Cell
	current bool   // cell was found in this call
	next    []byte // what the row is to be
	done    bool
}

func (r *Rows) changeSome(ctx context.Context, p driver.Pulse, left []*changed) (contact driver.Contact, err error) {
	ctx, cancel, err := r.calls.Begin(ctx)
	if err != nil {
		return contact, err
	}
	defer cancel()
	for _, h := range left {
		if h.slot, err = r.take(ctx, h.key); err != nil {
			return contact, err
		}
		defer h.slot.leave()
		h.cell, h.slot.cell = h.slot.cell, Cell{} // until the outcome is known
	}
	most, beaten := together, false
	for lost := 0; ; {
		if err := r.readMissing(ctx, left); err != nil {
			return contact, err
		}
		var judged bool
		if left, judged, err = judge(left); err != nil {
			return contact, err
		}
		switch {
		case !judged:
			continue
		case len(left) == 0 && beaten:
			return contact, nil
		case len(left) == 0:
			return r.beat(ctx, p)
		}
		some := left[:stepOf(left, most)]
		changes := make([]Change, len(some))
		for i, h := range some {
			changes[i] = Change{h.key, h.cell, h.next}
		}
		sent := time.Now()
		met, err := r.space.Beat(ctx, heartbeatOf(p), changes...)
		if errors.Is(err, ErrTooMany) && len(some) > 1 {
			most = len(some) / 2
			continue
		}
		if err != nil {
			return driver.Contact{}, err
		}
		if contact, err = contactOf(p, met); err != nil || !contact.Met {
			return contact, err
		}
		for i, h := range some {
			h.cell, h.current = met.cell(i), true
		}
		if !met.Done {
			if err := pause(ctx, lost, time.Since(sent)); err != nil {
				return driver.Contact{}, r.calls.Unavailable(ctx, err)
			}
			lost++
			continue
		}
		beaten, left = true, left[len(some):]
		for _, h := range some {
			h.done = true
			h.slot.keep(h.cell)
		}
	}
}

// judge computes what the rows are to be, and returns those that are still to be
// changed. It reports false where a row has to be read first, since no error is told from one
// that may be out of date.
func judge(all []*changed) (left []*changed, judged bool, err error) {
	judged = true
	for _, h := range all {
		h.next, err = h.change(h.cell.Raw)
		switch {
		case err == nil:
		case !h.current:
			h.cell, judged = Cell{}, false
		case driver.IsOfTag(err):
			h.slot.keep(h.cell)
			continue
		default:
			return nil, false, err
		}
		left = append(left, h)
	}
	return left, judged, nil
}

// stepOf returns how many of the first changes are one step.
func stepOf(left []*changed, most int) int {
	n, size := 1, len(left[0].next)
	for n < min(len(left), most) {
		if size += len(left[n].next); size > togetherBytes {
			break
		}
		n++
	}
	return n
}

// readMissing reads the rows of which nothing is known.
func (r *Rows) readMissing(ctx context.Context, all []*changed) error {
	var (
		wg    sync.WaitGroup
		slots = make(chan struct{}, readsAtOnce)
		errs  = make([]error, len(all))
	)
	for i, h := range all {
		if h.cell.Known {
			continue
		}
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			h.cell, errs[i] = r.space.Read(ctx, h.key)
			h.current = true
		})
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
