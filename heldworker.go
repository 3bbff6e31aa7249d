package hapax

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"
)

// HoldOptions tune [HoldWorker]. The zero value suits most generators.
type HoldOptions struct {
	// Pool, Layout, Workers, Among, Holder, Lease, MaxSkew, StoreTimeout, Observer
	// and Clock are those of SnowflakeOptions. Of the layout only the unit, the epoch
	// and the number of worker IDs matter. Holder should not be used twice, or a
	// restart does not leave the time after a crash that Lease is for.
	Pool         string
	Layout       Layout
	Workers      WorkerRange
	Among        []int64
	Holder       string
	Lease        time.Duration
	MaxSkew      time.Duration
	StoreTimeout time.Duration
	Observer     func(Event)
	Clock        Clock

	// Grant is how long the worker ID may be used at first, which doubles with each
	// extension up to MaxGrant; servers may grant less. Defaults 1 min and 5 min, or 1
	// min each when there is one ID to choose from: after a crash it stays unused for
	// as long.
	Grant, MaxGrant time.Duration

	// RunAhead is how far the time in the generator's numbers may be ahead of the
	// clock, plus the unit of that time; default 1 s.
	RunAhead time.Duration

	// Grace is how long before the worker ID must not be used any more Lost closes;
	// default 10 s. Half of Grant must be more.
	Grace time.Duration

	// OnRollback chooses what happens when the wall clock goes back, after which a
	// generator without protection of its own repeats itself; default RollbackRefuse:
	// Lost closes within a second.
	OnRollback RollbackPolicy
}

// A HeldWorker is a worker ID for a generator that is not this library's: one that
// reads the clock itself, and knows nothing of grants.
//
//	joining: the store granted [Lo, Hi) of the ID's time, and the clock is below Lo
//	held:    the clock is in it; more is asked for when half of it is over
//	lost:    Grace before Hi less RunAhead, or when it is known that no more will come
//	closed:  the generator has stopped, and the ID is given back
//
// What makes this safe is the time granted, not the lease: whoever has the ID next
// starts when its own clock is past Hi.
type HeldWorker struct {
	leaseKeeper // its lease is guarded by mu

	supply   supply
	runAhead time.Duration
	grace    time.Duration
	policy   RollbackPolicy
	lost     chan struct{} // closed once err is set

	mu    sync.Mutex    // guards the fields below, and lease; never held while waiting
	id    int64         // -1 before the first grant
	first time.Time     // when the time of the first grant begins; not changed after
	until time.Time     // when the time granted, less runAhead, is over
	dies  time.Duration // the same by the clock that goes on while the machine sleeps
	half  time.Duration // how much is left when more is asked for
	why   error         // why the last extension failed
	err   error         // why the worker ID is lost
}

// HoldWorker returns a worker ID that nobody else may use until its validity ends,
// which is extended in the background. It waits until there is one and this clock is
// past all that its last holder may have used, or until the context ends. Close must be
// called when nothing uses the ID any more.
//
// Errors: those of [NewSnowflake]; [ErrClockSkew] names both times.
func HoldWorker(ctx context.Context, workers WorkerStore, opts HoldOptions) (*HeldWorker, error) {
	if workers == nil {
		return nil, &ValueError{"workers", "", "a store to take worker IDs from", ErrInvalidArgument}
	}
	opts, snowflake, err := opts.withDefaults()
	if err != nil {
		return nil, err
	}
	h := &HeldWorker{
		leaseKeeper: newLeaseKeeper(workers, snowflake),

		runAhead: opts.RunAhead, grace: opts.Grace, policy: opts.OnRollback, lost: make(chan struct{}), id: -1,
	}
	h.supply.init(h, opts.StoreTimeout)
	if err := h.ready(ctx); err != nil {
		// The context is often what failed: with it the worker ID could not be given back, and would stay taken
		// until its time is over.
		_ = h.Close(context.WithoutCancel(ctx))
		return nil, err
	}
	return h, nil
}

func (h *HeldWorker) observe(e Event) { h.observeOn(h.ID(), e) }

// withDefaults returns the options with every unset field filled in, and what they are
// to the leaseKeeper, or an error that names the first one that is out of range.
func (o HoldOptions) withDefaults() (HoldOptions, SnowflakeOptions, error) {
	one := o.Workers.Len() == 1 || len(o.Among) == 1
	for _, d := range []struct {
		value    *time.Duration
		standard time.Duration
	}{{&o.Grant, DefaultHoldGrant}, {&o.RunAhead, DefaultRunAhead}, {&o.Grace, DefaultHoldGrace}} {
		if *d.value == 0 {
			*d.value = d.standard
		}
	}
	if o.MaxGrant == 0 {
		o.MaxGrant = max(o.Grant, DefaultMaxGrant)
		if one {
			o.MaxGrant = o.Grant
		}
	}
	switch {
	// Quarters, since grant and run-ahead are added below, and their sum is bounded by half of the margin.
	case o.RunAhead < 0 || o.RunAhead > PoisonMargin/4:
		return o, SnowflakeOptions{}, &ValueError{"run_ahead", o.RunAhead, fmt.Sprintf("0 to %v", PoisonMargin/4), ErrInvalidArgument}
	case o.Grace < 0 || o.Grace > PoisonMargin/4:
		return o, SnowflakeOptions{}, &ValueError{"grace", o.Grace, fmt.Sprintf("0 to %v", PoisonMargin/4), ErrInvalidArgument}
	case o.Grant <= 2*o.Grace || o.Grant > PoisonMargin/4:
		return o, SnowflakeOptions{}, &ValueError{"grant", o.Grant, fmt.Sprintf("more than twice the grace of %v, up to %v", o.Grace, PoisonMargin/4), ErrInvalidArgument}
	case o.MaxGrant < o.Grant || o.MaxGrant > PoisonMargin/4:
		return o, SnowflakeOptions{}, &ValueError{"max_grant", o.MaxGrant, fmt.Sprintf("the grant of %v to %v", o.Grant, PoisonMargin/4), ErrInvalidArgument}
	}
	if o.OnRollback == "" {
		o.OnRollback = RollbackRefuse
	}
	s, err := SnowflakeOptions{
		Pool: o.Pool, Layout: o.Layout, Workers: o.Workers, Among: o.Among, Holder: o.Holder, Lease: o.Lease,
		// The generator's numbers may be that far ahead of the clock, and their time must be granted as well.
		Grant: o.Grant + o.RunAhead, MaxGrant: o.MaxGrant + o.RunAhead, OnRollback: o.OnRollback,
		MaxSkew: o.MaxSkew, StoreTimeout: o.StoreTimeout, Observer: o.Observer, Clock: o.Clock,
	}.withDefaults(false)
	s.MaxAhead = 0 // a mark ahead of the clock is waited for
	return o, s, err
}

// ready waits until enough is granted, and until the clock is past the beginning. The rest
// of a grant whose answer came late may be too little, and is extended.
func (h *HeldWorker) ready(ctx context.Context) error {
	for {
		change := h.supply.watch()
		if h.ID() >= 0 && h.Remaining() > h.grace {
			break
		}
		if err := h.tooShort(); err != nil {
			return err
		}
		if err := h.supply.want(); err != nil {
			return err
		}
		if err := h.supply.wait(ctx, change, nil); err != nil {
			return err
		}
	}
	h.supply.start(h.keep)
	for {
		wall, _ := h.clock.source.Now()
		early := h.first.Sub(wall)
		if early <= 0 {
			return h.Err()
		}
		select {
		case <-time.After(min(early, time.Second)): // the clock may be set meanwhile
		case <-h.lost:
			return h.Err()
		case <-ctx.Done():
			return waitError(ctx, fmt.Errorf("%w: here it is %s, and the last holder of worker ID %d may have used the time up to %s",
				ErrClockSkew, wall.UTC().Format(time.RFC3339Nano), h.ID(), h.first.Format(time.RFC3339Nano)))
		}
	}
}

// tooShort returns an error if the worker ID is lost already, or was granted for so short a
// time that Lost would close at once.
func (h *HeldWorker) tooShort() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.err != nil || !h.held {
		return h.err
	}
	granted := h.layout.TimeOf(h.lease.Grant.Hi).Sub(h.first)
	if granted-h.runAhead > h.grace {
		return nil
	}
	return &ValueError{"grace", h.grace, fmt.Sprintf("less than the %v that are granted at once, without the run-ahead of %v", granted, h.runAhead), ErrInvalidArgument}
}

// ID returns the worker ID.
func (h *HeldWorker) ID() int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.id
}

// Token returns the lease's fencing token, which grows each time that anybody takes
// the worker ID.
func (h *HeldWorker) Token() int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.lease.Token
}

// Until returns the time by this clock from which on the worker ID must not be used,
// unless it is extended meanwhile.
func (h *HeldWorker) Until() time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.until
}

// Remaining returns how much longer the worker ID may be used; 0 or less: not any
// more. It counts the time in which the machine was asleep, where that can be told,
// and no step back of the wall clock lengthens it.
func (h *HeldWorker) Remaining() time.Duration {
	now, _ := h.clock.Now()
	boot := h.clock.awake()
	h.mu.Lock()
	defer h.mu.Unlock()
	return min(h.until.Sub(now), h.dies-boot)
}

// Lost returns a channel that closes once the worker ID is about to be lost: the Grace
// of the options before the end, or earlier where it is known that no more time will be
// granted. The generator must have stopped when Remaining is 0.
func (h *HeldWorker) Lost() <-chan struct{} { return h.lost }

// Err returns nil until Lost closes, and then why.
func (h *HeldWorker) Err() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.err
}

// refill takes one grant of time from the store.
func (h *HeldWorker) refill(ctx context.Context) error {
	began := h.clock.Elapsed()
	lease, err := h.obtain(ctx)
	h.mu.Lock()
	h.why = err
	h.mu.Unlock()
	switch {
	case errors.Is(err, ErrLeaseLost):
		h.lose(err)
		return nil // what is left of the time granted stays granted, and nothing is asked for any more
	case err != nil:
		return err
	}
	h.take(lease)
	h.observeOn(lease.Worker, Event{Kind: EventGrant, Grant: lease.Grant, Took: h.clock.Elapsed() - began})
	return nil
}

func (h *HeldWorker) obtain(ctx context.Context) (Lease, error) {
	if err := h.checkSkew(ctx); err != nil {
		return Lease{}, err
	}
	next := h.acquire
	if h.held {
		next = h.extend
	}
	lease, err := next(ctx)
	if err == nil {
		err = h.accept(lease)
	}
	return lease, err
}

// take makes what was granted the validity.
func (h *HeldWorker) take(l Lease) {
	boot := h.clock.awake() // first: what comes between counts as used
	now, _ := h.clock.Now()
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.held {
		h.first = h.layout.TimeOf(l.Grant.Lo)
	}
	h.lease, h.held, h.id = l, true, l.Worker
	h.until = h.layout.TimeOf(l.Grant.Hi).Add(-h.runAhead)
	left := h.until.Sub(now)
	h.dies, h.half = boot+left, left/2
}

// keep extends the lease when half of the granted time is over, and closes Lost when
// that did not succeed in time. It looks once a second at least, since clocks can be
// set and machines sleep.
func (h *HeldWorker) keep() {
	ends := h.supply.ends()
	for {
		left := h.Remaining()
		h.mu.Lock()
		half, why := h.half, h.why
		h.mu.Unlock()
		_, lag := h.clock.Now()
		switch {
		case left <= h.grace:
			if why == nil {
				why = ErrRefillPending
			}
			h.lose(fmt.Errorf("pool %q, worker ID %d: no more time was granted: %w", h.opts.Pool, h.ID(), why))
			return
		case lag > rollbackSlack && h.policy == RollbackRefuse:
			h.lose(fmt.Errorf("%w: it is %v behind what it was", ErrClockRollback, lag))
			return
		case left <= half:
			_ = h.supply.want() // a failure is kept as the reason
		}
		wait := left - h.grace
		if left > half {
			wait = min(wait, left-half)
		}
		select {
		case <-ends:
			return
		case <-h.lost:
			return
		case <-time.After(max(min(wait, time.Second), time.Millisecond)):
		}
	}
}

// lose closes Lost.
func (h *HeldWorker) lose(why error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.err == nil {
		h.err = why
		close(h.lost)
	}
}

// Close gives the worker ID back, with the time that was granted and is not over:
// call it when nothing uses the ID any more. Where that is not sure, call Abandon.
func (h *HeldWorker) Close(ctx context.Context) error {
	first, err := h.supply.close(ctx)
	h.lose(ErrClosed)
	if !first || err != nil || !h.held {
		return err
	}
	now, _ := h.clock.Now()
	// A clock that the layout cannot express tells nothing: then the whole grant counts as used.
	last := int64(math.MaxInt64)
	if tick, err := h.layout.TickOf(now.Add(h.runAhead)); err == nil {
		last = tick + 1
	}
	h.mu.Lock()
	lease := h.lease
	h.mu.Unlock()
	last = max(min(last, lease.Grant.Hi), lease.From)
	err = h.supply.last(ctx, func(ctx context.Context) error { return h.workers.SealWorker(ctx, lease, last) })
	if errors.Is(err, ErrLeaseLost) {
		return nil // somebody else goes on from a mark above ours
	}
	if err == nil {
		h.observeOn(lease.Worker, Event{Kind: EventWorkerSealed, Value: last})
	}
	return err
}

// Abandon stops extending, and gives nothing back: nobody is granted the worker ID
// before the time granted and the lease are over.
func (h *HeldWorker) Abandon(ctx context.Context) error {
	_, err := h.supply.close(ctx)
	h.lose(ErrClosed)
	return err
}
