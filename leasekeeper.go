package hapax

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// A storeClock is a store that has a clock of its own.
type storeClock interface {
	StoreTime(ctx context.Context) (time.Time, error)
}

// A leaseKeeper takes a worker ID from a store and extends its lease, for a Snowflake
// that issues from the time granted or a HeldWorker that tells others how long they
// may. Its methods are used by one refill at a time.
type leaseKeeper struct {
	workers WorkerStore
	opts    SnowflakeOptions
	layout  Layout
	clock   *EngineClock
	end     int64 // the tick after the layout's last

	behind bool // whether it was announced that the local clock is behind the store's

	held  bool // whether lease is
	span  time.Duration
	marks map[int64]int64 // the highest mark used, by worker ID

	lease Lease // written by refill under the owner's lock
}

func newLeaseKeeper(workers WorkerStore, opts SnowflakeOptions) leaseKeeper {
	return leaseKeeper{
		workers: workers, opts: opts, layout: opts.Layout, clock: NewEngineClock(opts.Clock), end: opts.Layout.EndTick(),
		span: opts.Grant, marks: map[int64]int64{},
	}
}

func (k *leaseKeeper) elapsed() time.Duration { return k.clock.Elapsed() }

func (k *leaseKeeper) observeOn(worker int64, e Event) {
	e.Pool, e.Worker = k.opts.Pool, worker
	if k.opts.Observer != nil {
		k.opts.Observer(e)
	}
}

// forget gives up the lease, so that the next one begins with a short grant again.
func (k *leaseKeeper) forget() { k.held, k.span = false, k.opts.Grant }

// checkSkew compares the local clock with the store's, where it has one. A clock that is
// ahead is refused: the time that it asks for would be nobody's until then. One that is
// behind asks for time that is past, if anything, and what is granted is nobody else's:
// that is announced, once, and refused only where OnRollback says so.
func (k *leaseKeeper) checkSkew(ctx context.Context) error {
	clock, ok := k.workers.(storeClock)
	if !ok {
		return nil
	}
	ahead, err := k.clock.Compare(ctx, clock.StoreTime, k.opts.MaxSkew)
	if !errors.Is(err, ErrClockSkew) {
		k.behind = false
		return err
	}
	if ahead > 0 || k.opts.OnRollback == RollbackRefuse {
		return err
	}
	if !k.behind {
		k.behind = true
		k.observeOn(k.lease.Worker, Event{Kind: EventClockSkew, By: ahead, Err: err})
	}
	return nil
}

// extend asks for more time under the lease. One that is lost is forgotten.
func (k *leaseKeeper) extend(ctx context.Context) (Lease, error) {
	lease, err := k.workers.ExtendWorker(ctx, k.lease, k.layout, k.term())
	switch {
	case errors.Is(err, ErrLeaseLost):
		k.forget()
		k.observeOn(k.lease.Worker, Event{Kind: EventWorkerLost, Err: err})
	// An extension begins where the caller's grant ends, also after a lost answer: one that begins elsewhere is
	// not of this lease.
	case err == nil && lease.Grant.Lo != k.lease.Grant.Hi:
		return lease, fmt.Errorf("%w: pool %q, worker %d: the store extended a grant that ends at tick %d from tick %d on", ErrStoreCorrupt, k.opts.Pool, lease.Worker, k.lease.Grant.Hi, lease.Grant.Lo)
	case err == nil:
		// Longer each time: what has run for long may hold more, which bridges an outage of the store.
		k.span = min(2*k.span, k.opts.MaxGrant)
	}
	return lease, err
}

func (k *leaseKeeper) acquire(ctx context.Context) (Lease, error) {
	lease, err := k.workers.AcquireWorker(ctx, AcquireRequest{
		Pool: k.opts.Pool, Layout: k.layout, Workers: k.opts.Workers, Among: k.opts.Among, Holder: k.opts.Holder, Term: k.term(),
	})
	if err == nil {
		k.observeOn(lease.Worker, Event{Kind: EventWorkerAcquired, Grant: lease.Grant})
	}
	return lease, err
}

// term returns what the next grant is for. It reaches beyond what numbers may
// lead the clock by, so that a cursor far ahead does not need a grant a tick.
func (k *leaseKeeper) term() Term {
	now, _ := k.clock.Now()
	return Term{Now: now, Length: k.span + k.opts.MaxAhead, Ahead: k.opts.MaxAhead, Behind: k.opts.MaxBehind, TTL: k.span + k.opts.MaxAhead + k.opts.Lease}
}

// accept decides whether a lease can be used: its grant must lie above all that
// this issuer took of that worker before (condition 3). What may be given back can
// begin within it: an extension through one node, whose answer was lost, and another
// through a second node, which gives back nothing of the first one's.
func (k *leaseKeeper) accept(l Lease) error {
	g := l.Grant
	if !k.opts.mayUse(l.Worker) || g.Lo < 0 || g.Len() <= 0 || g.Hi > k.end || l.Token < 1 || l.From < 0 || l.From > g.Hi {
		return fmt.Errorf("%w: pool %q: the store granted worker %d ticks [%d, %d) from %d under token %d", ErrStoreCorrupt, k.opts.Pool, l.Worker, g.Lo, g.Hi, l.From, l.Token)
	}
	if mark := k.marks[l.Worker]; g.Lo < mark {
		return fmt.Errorf("%w: pool %q, worker %d: the store granted ticks from %d, but those below %d are taken", ErrStoreRolledBack, k.opts.Pool, l.Worker, g.Lo, mark)
	}
	// Kept beyond the lease: the same ID may come back from a store that went back meanwhile.
	k.marks[l.Worker] = g.Hi
	return nil
}

// mayUse reports whether the options allow a worker ID.
func (o *SnowflakeOptions) mayUse(worker int64) bool {
	return o.Workers.Contains(worker) && (len(o.Among) == 0 || slices.Contains(o.Among, worker))
}
