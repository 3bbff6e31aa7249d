package hapax

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// DefaultPool is the worker pool that is used when none is named.
const DefaultPool = "default"

// PoisonMargin is how far a mark may lie ahead of the clock. A mark beyond it is
// absurd: one of them is wrong.
const PoisonMargin = 24 * time.Hour

// A Pool is a set of worker IDs that share a layout, which is frozen when the
// pool is first used.
type Pool struct {
	Name   string
	Layout string // the canonical spec
}

// A Worker is one worker ID's timeline, as the store keeps it.
type Worker struct {
	Pool    string
	ID      int64     // the value of the layout's worker field
	Mark    int64     // high-water mark in ticks: the next grant starts here or later
	Epoch   int64     // fencing number: grows with every acquisition and seal; 0: never used
	Holder  string    // identity of the instance that holds it, or held it last
	Expires time.Time // when others may have it; in the past once sealed; precision 1 ms
}

// A Lease is a worker ID held under an epoch, with its current grant.
type Lease struct {
	Pool   string
	Worker int64
	Epoch  int64
	Holder string
	Grant  Grant // the latest grant, in ticks since the layout's epoch
	From   int64 // the tick at which the lease's first grant began
}

// An AcquireRequest tells what worker is wanted. All ticks count from the
// epoch of the pool's layout in the layout's unit.
type AcquireRequest struct {
	Pool   string
	Layout string    // canonical spec, frozen at the pool's first use
	IDs    Grant     // the worker IDs that may be used, [Lo, Hi)
	Among  []int64   // if not empty, only these within IDs may be used; ascending
	Holder string    // identity of the instance, 1 to 128 bytes
	Floor  int64     // the first tick of use to the caller; its clock less the allowed lag
	Latest int64     // the highest mark that is acceptable: the caller's clock plus the allowed lead
	To     int64     // where the grant should end
	End    int64     // the tick at which the layout's time ends; no grant passes it
	Poison int64     // a mark above this is absurd and refused
	Now    time.Time // the caller's clock, for expiry
	TTL    time.Duration
	Tick   time.Duration // the layout's unit, to tell when a mark is passed
}

// An ExtendRequest tells how far a lease should reach.
type ExtendRequest struct {
	To  int64     // where the grant should end, in ticks
	End int64     // as in AcquireRequest
	Now time.Time // the caller's clock, for expiry
	TTL time.Duration
}

// A WorkerTable is what a driver provides to carry workers: rows that change
// only by compare-and-swap. AcquireWorker, ExtendWorker and SealWorker turn it
// into a WorkerStore, so that every driver follows one set of rules.
type WorkerTable interface {
	// FreezePool stores the pool's layout unless it has one, and returns the
	// one that is stored.
	FreezePool(ctx context.Context, pool, layout string) (string, error)

	// Worker returns one row; the zero Epoch tells that it does not exist.
	Worker(ctx context.Context, pool string, id int64) (Worker, error)

	// Workers returns the rows of a pool, by ID.
	Workers(ctx context.Context, pool string) ([]Worker, error)

	// SwapWorker writes next in one atomic, durable step if the stored row
	// still has old's Epoch and Mark (or, when old.Epoch is 0, if there is no
	// row), and tells whether it did.
	SwapWorker(ctx context.Context, old, next Worker) (bool, error)
}

// swapAttempts bounds how often a lost race is tried again.
const swapAttempts = 1000

// AcquireWorker implements WorkerStore.AcquireWorker over a table.
//
// Eligible is a worker whose mark is at or below req.Latest, so that its grant
// is not open, and that nobody else holds a running lease on. One's own
// previous worker comes first, then one that was never used, then the one whose
// mark is oldest. After a lost race the choice is random, so that many
// instances that start at once spread out.
func AcquireWorker(ctx context.Context, t WorkerTable, req AcquireRequest) (Lease, error) {
	if err := req.validate(); err != nil {
		return Lease{}, err
	}
	frozen, err := t.FreezePool(ctx, req.Pool, req.Layout)
	if err != nil {
		return Lease{}, err
	}
	if frozen != req.Layout {
		return Lease{}, fmt.Errorf("%w: pool %q has %s, the caller asks for %s", ErrLayoutMismatch, req.Pool, frozen, req.Layout)
	}
	for attempt := range swapAttempts {
		rows, err := req.rows(ctx, t)
		if err != nil {
			return Lease{}, err
		}
		old, err := req.pick(rows, attempt > 0)
		if err != nil {
			return Lease{}, err
		}
		lo := max(old.Mark, req.Floor, 0)
		if lo >= req.End {
			return Lease{}, fmt.Errorf("%w: pool %q, worker %d", ErrTimeExhausted, req.Pool, old.ID)
		}
		next := old
		next.Mark = min(max(req.To, lo+1), req.End)
		next.Epoch++
		next.Holder = req.Holder
		next.Expires = req.Now.Add(req.TTL)
		ok, err := t.SwapWorker(ctx, old, next)
		if err != nil {
			return Lease{}, err
		}
		if ok {
			return Lease{req.Pool, next.ID, next.Epoch, next.Holder, Grant{lo, next.Mark}, lo}, nil
		}
	}
	return Lease{}, fmt.Errorf("%w: pool %q: lost %d races for a worker", ErrStoreUnavailable, req.Pool, swapAttempts)
}

func (req AcquireRequest) validate() error {
	if err := ValidateName("pool", req.Pool); err != nil {
		return err
	}
	switch {
	case req.IDs.Lo < 0 || req.IDs.Len() <= 0:
		return &ValueError{"workers", fmt.Sprintf("[%d, %d)", req.IDs.Lo, req.IDs.Hi), "a range of at least one worker ID", ErrInvalidArgument}
	case !req.amongIDs():
		return &ValueError{"among", fmt.Sprintf("%d worker IDs", len(req.Among)), fmt.Sprintf("ascending worker IDs within [%d, %d)", req.IDs.Lo, req.IDs.Hi), ErrInvalidArgument}
	case len(req.Holder) < 1 || len(req.Holder) > MaxTagBytes:
		return &ValueError{"holder", req.Holder, "1 to 128 bytes", ErrInvalidArgument}
	case req.To > req.Poison:
		return &ValueError{"to", req.To, fmt.Sprintf("at most %d", req.Poison), ErrInvalidArgument}
	case req.Tick <= 0:
		return &ValueError{"tick", req.Tick, "a positive duration", ErrInvalidArgument}
	}
	return nil
}

// amongIDs tells whether Among holds ascending worker IDs of the range.
func (req AcquireRequest) amongIDs() bool {
	next := req.IDs.Lo
	for _, id := range req.Among {
		if id < next || id >= req.IDs.Hi {
			return false
		}
		next = id + 1
	}
	return true
}

// size returns how many worker IDs may be used.
func (req AcquireRequest) size() int64 {
	if n := len(req.Among); n > 0 {
		return int64(n)
	}
	return req.IDs.Len()
}

// nth returns the worker ID that comes after n lower ones that may be used.
func (req AcquireRequest) nth(n int64) int64 {
	if len(req.Among) > 0 {
		return req.Among[n]
	}
	return req.IDs.Lo + n
}

// allows tells whether a worker ID may be used.
func (req AcquireRequest) allows(id int64) bool {
	if len(req.Among) > 0 {
		return isIn(req.Among, id)
	}
	return id >= req.IDs.Lo && id < req.IDs.Hi
}

// isIn tells whether ascending worker IDs hold one.
func isIn(ids []int64, id int64) bool {
	_, ok := slices.BinarySearch(ids, id)
	return ok
}

// rows returns the existing rows among the worker IDs that may be used.
func (req AcquireRequest) rows(ctx context.Context, t WorkerTable) ([]Worker, error) {
	if req.size() == 1 {
		w, err := t.Worker(ctx, req.Pool, req.nth(0))
		if err != nil || w.Epoch == 0 {
			return nil, err
		}
		return []Worker{w}, nil
	}
	rows, err := t.Workers(ctx, req.Pool)
	rows = slices.DeleteFunc(rows, func(w Worker) bool { return !req.allows(w.ID) })
	return rows, err
}

// pick chooses the row to take, or an unused ID as a row with epoch 0.
func (req AcquireRequest) pick(rows []Worker, random bool) (Worker, error) {
	var eligible []Worker
	var poisoned Worker
	var nextFree time.Time
	for _, w := range rows {
		free := req.freeAt(w)
		switch {
		case w.Mark > req.Poison && !w.Retired():
			poisoned = w
		case !free.After(req.Now):
			if w.Holder == req.Holder {
				return w, nil
			}
			eligible = append(eligible, w)
		case nextFree.IsZero() || free.Before(nextFree):
			nextFree = free
		}
	}
	if unused := req.unused(rows, random); unused >= 0 {
		return Worker{Pool: req.Pool, ID: unused}, nil
	}
	if len(eligible) > 0 {
		if random {
			return eligible[randomN(int64(len(eligible)))], nil
		}
		return slices.MinFunc(eligible, func(a, b Worker) int { return int(min(max(a.Mark-b.Mark, -1), 1)) }), nil
	}
	if nextFree.IsZero() && poisoned.Epoch != 0 {
		return Worker{}, fmt.Errorf("%w: pool %q, worker %d: its mark is tick %d, the clock plus the allowed margin is tick %d; correct the clock, or retire the worker",
			ErrWorkerPoisoned, req.Pool, poisoned.ID, poisoned.Mark, req.Poison)
	}
	return Worker{}, &NoWorkerError{Pool: req.Pool, Size: req.size(), NextFree: nextFree}
}

// freeAt tells when the worker becomes eligible: when its granted time is over
// and, unless it is the caller's own, its lease has run out.
func (req AcquireRequest) freeAt(w Worker) time.Time {
	at := req.Now
	if over := w.Mark - req.Latest; over > 0 {
		at = at.Add(time.Duration(min(over, int64(1<<62/req.Tick))) * req.Tick)
	}
	if w.Holder != req.Holder && w.Expires.After(at) {
		at = w.Expires
	}
	return at
}

// unused returns a worker ID that has no row, or -1: the lowest one, or, after
// a lost race, one of the lowest 64 at random. Rows are ordered by ID.
func (req AcquireRequest) unused(rows []Worker, random bool) int64 {
	skip := int64(0)
	if free := req.size() - int64(len(rows)); free <= 0 {
		return -1
	} else if random {
		skip = randomN(min(free, 64))
	}
	n := skip // what nth takes if every row comes after it
	for _, w := range rows {
		if w.ID > req.nth(n) {
			break
		}
		n++
	}
	return req.nth(n)
}

// ExtendWorker implements WorkerStore.ExtendWorker over a table. In the steady
// state it is one round trip; it looks the row up again only when the mark is
// not the one that the lease knows, as after an extension whose acknowledgement
// was lost.
func ExtendWorker(ctx context.Context, t WorkerTable, lease Lease, req ExtendRequest) (Lease, error) {
	old := Worker{Pool: lease.Pool, ID: lease.Worker, Mark: lease.Grant.Hi, Epoch: lease.Epoch, Holder: lease.Holder}
	for range swapAttempts {
		if old.Mark >= req.End {
			return lease, fmt.Errorf("%w: pool %q, worker %d", ErrTimeExhausted, lease.Pool, lease.Worker)
		}
		next := old
		next.Mark = min(max(req.To, old.Mark+1), req.End)
		next.Expires = req.Now.Add(req.TTL)
		ok, err := t.SwapWorker(ctx, old, next)
		if err != nil {
			return lease, err
		}
		if ok {
			lease.Grant = Grant{old.Mark, next.Mark}
			return lease, nil
		}
		if old, err = t.Worker(ctx, lease.Pool, lease.Worker); err != nil {
			return lease, err
		}
		if old.Epoch != lease.Epoch {
			return lease, fmt.Errorf("%w: pool %q, worker %d: epoch %d, the store has %d", ErrLeaseLost, lease.Pool, lease.Worker, lease.Epoch, old.Epoch)
		}
		if old.Mark < lease.Grant.Hi {
			return lease, fmt.Errorf("%w: pool %q, worker %d: its mark is tick %d, ticks below %d are granted", ErrStoreRolledBack, lease.Pool, lease.Worker, old.Mark, lease.Grant.Hi)
		}
	}
	return lease, fmt.Errorf("%w: pool %q, worker %d: lost %d races to extend", ErrStoreUnavailable, lease.Pool, lease.Worker, swapAttempts)
}

// SealWorker implements WorkerStore.SealWorker over a table. The bumped epoch
// makes a late or repeated seal do nothing. The row keeps the name of its last
// holder, who thus finds its own worker ID again.
func SealWorker(ctx context.Context, t WorkerTable, lease Lease, last int64) error {
	if last < lease.From || last > lease.Grant.Hi {
		return &ValueError{"last", last, fmt.Sprintf("%d to %d, what the lease was granted", lease.From, lease.Grant.Hi), ErrInvalidArgument}
	}
	old := Worker{Pool: lease.Pool, ID: lease.Worker, Mark: lease.Grant.Hi, Epoch: lease.Epoch}
	next := Worker{Pool: lease.Pool, ID: lease.Worker, Mark: last, Epoch: lease.Epoch + 1, Holder: lease.Holder, Expires: time.UnixMilli(0)}
	ok, err := t.SwapWorker(ctx, old, next)
	if err == nil && !ok {
		err = fmt.Errorf("%w: pool %q, worker %d: epoch or mark changed before the seal", ErrLeaseLost, lease.Pool, lease.Worker)
	}
	return err
}

// A WorkerRetirer is a store that retires worker IDs by itself, such as one that
// stands in front of another. For the others RetireWorker does.
type WorkerRetirer interface {
	// RetireWorker does what the function of that name says.
	RetireWorker(ctx context.Context, pool string, id int64) (Worker, error)
}

// RetireWorker takes a worker ID out of use until the clock passes its mark: the
// lease on it ends, and its mark stays. It is the way out for a mark that a wrong
// clock has set years ahead. The holder, if it lives, may use up what it was
// granted, and then finds its lease lost.
//
// It returns the worker as stored: without a holder, under a new epoch. Errors:
// ErrInvalidArgument for a worker ID that was never used, ErrNotSupported.
func RetireWorker(ctx context.Context, store WorkerStore, pool string, id int64) (Worker, error) {
	if r, ok := store.(WorkerRetirer); ok {
		return r.RetireWorker(ctx, pool, id)
	}
	t, ok := store.(WorkerTable)
	if !ok {
		return Worker{}, fmt.Errorf("%w: %T cannot retire a worker ID", ErrNotSupported, store)
	}
	if err := ValidateName("pool", pool); err != nil {
		return Worker{}, err
	}
	for range swapAttempts {
		old, err := t.Worker(ctx, pool, id)
		if err != nil {
			return Worker{}, err
		}
		if old.Epoch == 0 {
			return Worker{}, &ValueError{FieldWorker, id, fmt.Sprintf("a worker ID of pool %q that was used", pool), ErrInvalidArgument}
		}
		next := old
		next.Epoch++
		next.Holder, next.Expires = "", time.UnixMilli(0)
		if ok, err := t.SwapWorker(ctx, old, next); err != nil || ok {
			return next, err
		}
	}
	return Worker{}, fmt.Errorf("%w: pool %q, worker %d: lost %d races to retire", ErrStoreUnavailable, pool, id, swapAttempts)
}

// Retired tells whether the worker ID was taken out of use; see RetireWorker.
func (w Worker) Retired() bool { return w.Epoch > 0 && w.Holder == "" }
