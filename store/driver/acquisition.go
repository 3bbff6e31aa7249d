package driver

import (
	"fmt"
	"hash/fnv"
	"slices"
	"time"

	"github.com/hapax-id/hapax"
)

// An acquisition is a request in ticks.
type acquisition struct {
	hapax.AcquireRequest
	ticks
}

func newAcquisition(req hapax.AcquireRequest) (acquisition, error) {
	a := acquisition{AcquireRequest: req}
	if err := hapax.ValidateName("pool", req.Pool); err != nil {
		return a, err
	}
	t, err := newTicks(req.Layout, req.Term)
	if err != nil {
		return a, err
	}
	a.ticks = t
	switch {
	case req.Workers.Lo < 0 || req.Workers.Len() <= 0 || req.Workers.Hi > req.Layout.Workers():
		return a, &hapax.ValueError{Field: "workers", Value: fmt.Sprintf("[%d, %d)", req.Workers.Lo, req.Workers.Hi), Allowed: fmt.Sprintf("a range of worker IDs within 0 to %d", req.Layout.Workers()-1), Err: hapax.ErrInvalidArgument}
	case !a.amongWorkers():
		return a, &hapax.ValueError{Field: "among", Value: fmt.Sprintf("(%d worker IDs)", len(req.Among)), Allowed: fmt.Sprintf("ascending worker IDs within [%d, %d)", req.Workers.Lo, req.Workers.Hi), Err: hapax.ErrInvalidArgument}
	}
	return a, hapax.ValidateName("holder", req.Holder)
}

// amongWorkers reports whether Among holds ascending worker IDs of the range.
func (a acquisition) amongWorkers() bool {
	next := a.Workers.Lo
	for _, id := range a.Among {
		if id < next || id >= a.Workers.Hi {
			return false
		}
		next = id + 1
	}
	return true
}

// size returns how many worker IDs may be used.
func (a acquisition) size() int64 {
	if n := len(a.Among); n > 0 {
		return int64(n)
	}
	return a.Workers.Len()
}

// nth returns the worker ID that comes after n lower ones that may be used.
func (a acquisition) nth(n int64) int64 {
	if len(a.Among) > 0 {
		return a.Among[n]
	}
	return a.Workers.Lo + n
}

// allows reports whether a worker ID may be used.
func (a acquisition) allows(id int64) bool {
	if len(a.Among) > 0 {
		_, ok := slices.BinarySearch(a.Among, id)
		return ok
	}
	return a.Workers.Contains(id)
}

// spread returns a number below n that differs between holders and, for one holder,
// between attempts, so that holders that raced for one worker try for others. It is not
// random, so that a run can be repeated.
func (a acquisition) spread(lost int, n int64) int64 {
	h := fnv.New64a()
	fmt.Fprintf(h, "%d/%s", lost, a.Holder)
	return int64(h.Sum64() % uint64(n))
}

// pick chooses the row to take, or an unused ID as a worker without a row, after
// so many lost races.
func (a acquisition) pick(rows []worker, lost int) (worker, error) {
	var eligible []worker
	var poisoned *worker
	var nextFree time.Time
	for _, w := range rows {
		free := a.freeAt(w)
		switch {
		// One that was retired with such a mark is no mistake any more: it is free once the clock has passed it.
		case w.Mark > a.poison && !w.Retired():
			poisoned = &w
		case !free.After(a.Term.Now):
			if w.Holder == a.Holder {
				return w, nil
			}
			eligible = append(eligible, w)
		case nextFree.IsZero() || free.Before(nextFree):
			nextFree = free
		}
	}
	if unused := a.unused(rows, lost); unused >= 0 {
		return worker{Worker: Worker{Pool: a.Pool, ID: unused}}, nil
	}
	if len(eligible) > 0 {
		if lost > 0 {
			return eligible[a.spread(lost, int64(len(eligible)))], nil
		}
		// Clamped, since the difference of two marks may not fit an int of 32 bits.
		return slices.MinFunc(eligible, func(x, y worker) int { return int(min(max(x.Mark-y.Mark, -1), 1)) }), nil
	}
	if nextFree.IsZero() && poisoned != nil {
		return worker{}, fmt.Errorf("%w: pool %q, worker %d: its mark is tick %d, the clock plus the allowed margin is tick %d; correct the clock, or retire the worker",
			hapax.ErrWorkerPoisoned, a.Pool, poisoned.ID, poisoned.Mark, a.poison)
	}
	return worker{}, &hapax.NoWorkerError{Pool: a.Pool, Size: a.size(), NextFree: nextFree}
}

// freeAt returns when the worker becomes eligible: when its granted time is over
// and, unless it is the caller's own, its lease has run out.
func (a acquisition) freeAt(w worker) time.Time {
	at := a.Term.Now
	if over := w.Mark - a.latest; over > 0 {
		// A mark far beyond the clock would overflow the duration, and the worker look free.
		at = at.Add(time.Duration(min(over, int64(1<<62/a.unit))) * a.unit)
	}
	if w.Holder != a.Holder && w.Expires.After(at) {
		at = w.Expires
	}
	return at
}

// unused returns a worker ID that has no row, or -1: the lowest one, or, after
// lost races, one of the lowest 64. Rows are ordered by ID.
func (a acquisition) unused(rows []worker, lost int) int64 {
	skip := int64(0)
	if free := a.size() - int64(len(rows)); free <= 0 {
		return -1
	} else if lost > 0 {
		skip = a.spread(lost, min(free, 64))
	}
	n := skip // what nth takes if every row comes after it
	for _, w := range rows {
		if w.ID > a.nth(n) {
			break
		}
		n++
	}
	return a.nth(n)
}

// ticks are a term in ticks of a layout, counted from its epoch.
type ticks struct {
	floor  int64 // the first tick of use to the caller
	latest int64 // the highest mark of a worker that is free
	to     int64 // where a grant should end
	end    int64 // where the layout's time ends; no grant passes it
	poison int64 // a mark above this is absurd
	unit   time.Duration
}

func newTicks(layout hapax.Layout, term hapax.Term) (ticks, error) {
	if layout.IsZero() {
		return ticks{}, &hapax.ValueError{Field: "layout", Value: "", Allowed: "a layout", Err: hapax.ErrInvalidLayout}
	}
	for _, f := range []struct {
		name string
		d    time.Duration
	}{{"length", term.Length}, {"ahead", term.Ahead}, {"behind", term.Behind}, {"ttl", term.TTL}} {
		// The longest TTL that options allow: a grant and a lead of half the margin each, and a lease of all of it.
		if f.d < 0 || f.d > 2*hapax.PoisonMargin {
			return ticks{}, &hapax.ValueError{Field: f.name, Value: f.d, Allowed: fmt.Sprintf("0 to %v", 2*hapax.PoisonMargin), Err: hapax.ErrInvalidArgument}
		}
	}
	now, err := layout.TickOf(term.Now)
	if err != nil {
		return ticks{}, err
	}
	unit := layout.Unit()
	up := func(d time.Duration) int64 { return int64((d + unit - 1) / unit) }
	t := ticks{
		floor: max(0, now-int64(term.Behind/unit)), latest: now + int64(term.Ahead/unit), to: now + up(term.Length),
		end: layout.EndTick(), poison: now + up(hapax.PoisonMargin), unit: unit,
	}
	if t.to > t.poison {
		return t, &hapax.ValueError{Field: "length", Value: term.Length, Allowed: fmt.Sprintf("at most %v", hapax.PoisonMargin), Err: hapax.ErrInvalidArgument}
	}
	return t, nil
}

// reach returns where a grant that begins at lo ends: where it should, but after
// a tick at least, and not past the layout's time.
func (t ticks) reach(lo int64) int64 { return min(max(t.to, lo+1), t.end) }
