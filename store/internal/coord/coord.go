// Package coord is what the drivers for coordination services, etcd and
// ZooKeeper, share: tags and rows in a space of keys that change by
// compare-and-swap, and the form of the URLs.
//
// A row is read once and then kept together with what the service needs to
// recognise it. Every change is one conditional write of the whole row:
//
//	          +---------- lost: the service's current row ---------+
//	          v                                                    |
//	unknown -read-> known -change-> new row -conditional write-> known
//	   ^                                |
//	   +---- outcome unknown: error ----+
//
// A row that is kept may be out of date; then the write is refused and nothing
// is lost. Errors, such as that a tag is deleted, are told only from a row that
// was current during the call.
package coord

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
)

// A Key names a row.
type Key struct {
	Table string // as in driver.Rows; empty for the tags
	Name  string // empty for the place that rows are listed from
}

// A Cell is a row as the service had it.
type Cell struct {
	Raw   []byte // nil: there is no such row
	Known bool   // false: nothing is known, and Raw means nothing
	Token any    // what the driver recognises the row by
}

// A Space is a service's keys. Errors leave the outcome of a write unknown. The
// contexts have deadlines.
type Space interface {
	// Read returns the current row.
	Read(ctx context.Context, key Key) (Cell, error)

	// ReadEach returns the rows of a table by these names, at most driver.MaxNamed, and nil
	// for those that there are not. They may lag behind.
	ReadEach(ctx context.Context, table string, names []string) ([][]byte, error)

	// Swap writes next, or removes the row if next is nil, durably and in one
	// atomic step, if the row is still old. It reports whether it did, and
	// returns the row as it is now; that cell may be unknown.
	Swap(ctx context.Context, key Key, old Cell, next []byte) (bool, Cell, error)

	// Beat makes a beat and, in the same step, swaps rows as Swap does. Either all is
	// done or nothing. ErrTooMany if there are more than the service takes in one step.
	Beat(ctx context.Context, m Heartbeat, changes ...Change) (BeatAnswer, error)

	// List calls f for up to limit rows of a table whose names come after the
	// given one, in the byte order of the names.
	List(ctx context.Context, table, after string, limit int, f func(name string, raw []byte) error) error
}

const (
	defaultTimeout = 5 * time.Second
	maxPause       = 50 * time.Millisecond // unit of the pause after lost races
	maxSlots       = 1 << 16
	maxKept        = 4 << 10 // bytes; a larger row is read before each change
)

// Calls are the calls on one handle.
type Calls struct {
	Service string        // for messages: the service and its hosts
	Timeout time.Duration // of one call; default 5 s
	closed  atomic.Bool
}

// Begin refuses a call that cannot be served, and bounds one that can.
func (c *Calls) Begin(ctx context.Context) (context.Context, context.CancelFunc, error) {
	if c.closed.Load() {
		return nil, nil, fmt.Errorf("%w: the store in %s", hapax.ErrClosed, c.Service)
	}
	if cause := context.Cause(ctx); cause != nil {
		return nil, nil, c.Unavailable(ctx, cause)
	}
	timeout := c.Timeout
	if timeout <= 0 {
		timeout = defaultTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	return ctx, cancel, nil
}

// Unavailable wraps what a service or its client reports. A context that ended
// stays visible.
func (c *Calls) Unavailable(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil && !errors.Is(err, cause) {
		err = fmt.Errorf("%w: %w", cause, err)
	}
	return fmt.Errorf("%w: %s: %w", hapax.ErrStoreUnavailable, c.Service, err)
}

// End makes Begin refuse from now on, and reports whether it did not before.
func (c *Calls) End() bool { return !c.closed.Swap(true) }

// Rows are the tags and rows in a space. They implement driver.Guarding,
// driver.Healing and driver.Store but for StoreID, Ping and Close. They are safe for concurrent use.
type Rows struct {
	driver.Leases

	calls *Calls
	space Space

	mu    sync.Mutex // guards slots
	slots map[Key]*slot
}

// NewRows returns the rows of a space.
func NewRows(calls *Calls, space Space) *Rows {
	r := &Rows{calls: calls, space: space, slots: map[Key]*slot{}}
	r.Leases = driver.LeasesIn(r)
	return r
}

// A slot is what a handle keeps about one key. Calls for the same key take
// turns, so that one handle never races against itself.
type slot struct {
	turn chan struct{} // has room for one: the call that put it there owns cell
	cell Cell
}

// keep remembers a row, unless it is large.
func (s *slot) keep(c Cell) {
	if len(c.Raw) <= maxKept {
		s.cell = c
	}
}

// slot returns the key's slot. When there are too many, all are forgotten: that
// costs a read each, and calls that hold an old one race against new ones, which
// the conditional writes decide.
func (r *Rows) slot(key Key) *slot {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.slots[key]
	if s == nil {
		if len(r.slots) >= maxSlots {
			clear(r.slots)
		}
		s = &slot{turn: make(chan struct{}, 1)}
		r.slots[key] = s
	}
	return s
}

// take returns the key's slot when the key's other calls on this handle are over. Who
// takes it leaves it.
func (r *Rows) take(ctx context.Context, key Key) (*slot, error) {
	s := r.slot(key)
	select {
	case s.turn <- struct{}{}:
		return s, nil
	case <-ctx.Done():
		return nil, r.calls.Unavailable(ctx, context.Cause(ctx))
	}
}

func (s *slot) leave() { <-s.turn }

// inTurn runs f when the key's other calls on this handle are over.
func (r *Rows) inTurn(ctx context.Context, key Key, f func(ctx context.Context, s *slot) error) error {
	ctx, cancel, err := r.calls.Begin(ctx)
	if err != nil {
		return err
	}
	defer cancel()
	s, err := r.take(ctx, key)
	if err != nil {
		return err
	}
	defer s.leave()
	return f(ctx, s)
}

// update replaces a row by what change makes of it; nil stands for a row that
// does not exist. An error of change ends it, unless the row was not the current
// one. change may be called several times; the last call counts.
func (r *Rows) update(ctx context.Context, key Key, change func(raw []byte) ([]byte, error)) error {
	return r.inTurn(ctx, key, func(ctx context.Context, s *slot) error {
		return r.try(ctx, s, key, change, func(cell Cell, next []byte) (bool, Cell, error) { return r.space.Swap(ctx, key, cell, next) })
	})
}

// try swaps a row for what change makes of it until that succeeds.
func (r *Rows) try(ctx context.Context, s *slot, key Key, change func(raw []byte) ([]byte, error), swap func(Cell, []byte) (bool, Cell, error)) (err error) {
	cell := s.cell
	s.cell = Cell{} // until the outcome is known
	current := false
	for lost := 0; ; lost++ {
		if !cell.Known {
			if cell, err = r.space.Read(ctx, key); err != nil {
				return err
			}
			current = true
		}
		next, err := change(cell.Raw)
		if err != nil && !current {
			cell = Cell{}
			continue
		}
		if err != nil {
			s.keep(cell)
			return err
		}
		sent := time.Now()
		ok, now, err := swap(cell, next)
		if err != nil {
			return err
		}
		if ok {
			s.keep(now)
			return nil
		}
		if err := pause(ctx, lost, time.Since(sent)); err != nil {
			return r.calls.Unavailable(ctx, err)
		}
		cell, current = now, true
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
func (r *Rows) get(ctx context.Context, key Key) ([]byte, error) {
	ctx, cancel, err := r.calls.Begin(ctx)
	if err != nil {
		return nil, err
	}
	defer cancel()
	cell, err := r.space.Read(ctx, key)
	return cell.Raw, err
}

func (r *Rows) list(ctx context.Context, table, after string, limit int, f func(name string, raw []byte) error) error {
	ctx, cancel, err := r.calls.Begin(ctx)
	if err != nil {
		return err
	}
	defer cancel()
	return r.space.List(ctx, table, after, limit, f)
}
