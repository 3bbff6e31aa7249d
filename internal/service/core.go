package service

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/service/define"
	"github.com/hapax-id/hapax/internal/service/health"
	"github.com/hapax-id/hapax/internal/service/watch"
	"github.com/hapax-id/hapax/store/witness"
	"github.com/hapax-id/hapax/strategy"
)

// core is what all parts of a service stand on: its store, options, clocks and end.
type core struct {
	store      *watch.Store
	opts       Options
	log        *slog.Logger
	throttle   throttle
	errWait    error // why a wait ends at Options.MaxWait
	began      time.Time
	engine     *hapax.EngineClock // what leases go by: a wall clock that is set back shortens none
	strategies *strategy.Registry
	metrics    *health.Counters

	// observe is the one way up: parts tell of events, and know nothing of the listeners.
	observe func(hapax.Event)

	life     context.Context // ends with Close
	stop     context.CancelFunc
	children sync.WaitGroup

	gate   sync.Mutex // guards closed; never held while waiting
	closed bool
}

func (c *core) isClosed() bool {
	c.gate.Lock()
	defer c.gate.Unlock()
	return c.closed
}

// whileOpen calls f, which must not wait, unless the service is closed, and reports whether
// it did: Close begins after it.
func (c *core) whileOpen(f func()) bool {
	c.gate.Lock()
	defer c.gate.Unlock()
	if c.closed {
		return false
	}
	f()
	return true
}

// spawn starts a goroutine that Close waits for, unless the service is closed.
func (c *core) spawn(f func()) bool { return c.whileOpen(func() { c.children.Go(f) }) }

// capped bounds a context by Options.MaxWait.
func (c *core) capped(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, c.opts.MaxWait, c.errWait)
}

// admin makes one call on the store, bounded like every other wait, and has its
// error match ErrStoreUnavailable and the context's when that ended it.
func admin[T any](ctx context.Context, c *core, f func(context.Context) (T, error)) (T, error) {
	if c.isClosed() {
		var zero T
		return zero, hapax.ErrClosed
	}
	ctx, cancel := c.capped(ctx)
	defer cancel()
	v, err := f(ctx)
	if err != nil && ctx.Err() != nil && !errors.Is(err, context.Cause(ctx)) {
		err = &hapax.WaitError{Cause: err, Context: context.Cause(ctx)}
	}
	return v, err
}

// retry calls f until it succeeds or fails for good, with backoff while the
// store is in trouble, until the context ends.
func (c *core) retry(ctx context.Context, why *watch.Reason, f func(context.Context) error) error {
	for failures := 1; ; failures++ {
		err := f(ctx)
		why.Set(err)
		if err == nil || !watch.IsAway(err) {
			return err
		}
		// Before there is an issuer, no supply asks again: the first callers of a tag or a pool would
		// fail though the store returns while they wait.
		select {
		case <-ctx.Done():
			return &hapax.WaitError{Cause: err, Context: context.Cause(ctx)}
		case <-time.After(hapax.Backoff(failures)):
		}
	}
}

// declared returns the configured definition of a tag.
func (c *core) declared(name string) (define.Tag, bool) {
	t, ok := c.opts.defined[name]
	return t, ok
}

// now returns the time, with the clock's reading that only goes forward where it is the
// system's.
func (c *core) now() time.Time {
	now, _ := c.clocks()
	return now
}

// clocks returns the time by the wall clock, and by one that only goes forward.
func (c *core) clocks() (now time.Time, elapsed time.Duration) {
	if c.opts.Clock == nil {
		_, elapsed = hapax.SystemClock{}.Now()
		return time.Now(), elapsed
	}
	return c.opts.Clock.Now()
}

// leaseTime is the time that leases go by.
func (c *core) leaseTime() time.Time {
	now, _ := c.engine.Now()
	return now
}

// StoreTime returns the store's time, or this node's where the store has no
// clock, for clients to compare theirs with.
func (c *core) StoreTime(ctx context.Context) (time.Time, error) {
	t, err := admin(ctx, c, c.store.StoreTime)
	if errors.Is(err, hapax.ErrNotSupported) {
		return c.leaseTime(), nil
	}
	return t, err
}

// checkClock refuses to choose a period by a clock that differs too much from the store's,
// where the store has one, either way: a date that is wrong is no better for being unique.
// Where it is the store's clock that was set, this one's period is the right one.
func (c *core) checkClock(ctx context.Context, name string) error {
	// The lines of periods are segments, which have no pool: the default pool's bound counts.
	_, err := c.engine.Compare(ctx, c.store.StoreTime, cmp.Or(c.opts.Pools[hapax.DefaultPool].MaxSkew, hapax.DefaultMaxSkew))
	if errors.Is(err, hapax.ErrClockSkew) {
		c.observe(hapax.Event{Kind: hapax.EventClockSkew, Tag: name, Err: err})
	}
	return err
}

// StoreID returns the identity of the store, which clients keep as their own
// store's.
func (c *core) StoreID(ctx context.Context) (string, error) {
	return admin(ctx, c, c.store.StoreID)
}

// KnownStore returns the identity of the store that this node works with, without
// asking where it is known.
func (c *core) KnownStore(ctx context.Context) (string, error) {
	if g := c.Guard(); g != nil && g.Status().State == witness.Serving { // else it may be another store than the witness knows
		if id := g.Witness().StoreID(); id != "" {
			return id, nil
		}
	}
	return c.StoreID(ctx)
}

// StoreFor returns the identity by which a client knows the store: want, empty before it knows
// any. ErrStoreReplaced where that is neither this node's store nor one in whose place that goes on.
func (c *core) StoreFor(ctx context.Context, want string) (string, error) {
	id, err := c.KnownStore(ctx)
	g := c.Guard()
	switch {
	case err != nil || want == "" || want == id:
		return id, err
	case g == nil:
	case g.StandsFor(want):
		return want, nil
	default:
		// A client that is told of another store gives up what it has in hand, and asks no more.
		if err := g.StandsLater(want, id); err != nil {
			return id, err
		}
	}
	return id, fmt.Errorf("%w: the request is for another store than the server's", hapax.ErrStoreReplaced)
}

// Guard returns the guard around the store; nil where there is none.
func (c *core) Guard() *witness.Guarded { return health.GuardOf(c.store) }

// explain tells callers who wait for a grant that it is the store which keeps
// them waiting.
func (c *core) explain(err error) error {
	w, ok := errors.AsType[*hapax.WaitError](err)
	if !ok || !errors.Is(w.Cause, hapax.ErrRefillPending) {
		return err
	}
	if trouble := health.Trouble(c.store); trouble != nil && watch.IsAway(trouble) {
		return &hapax.WaitError{Cause: trouble, Context: w.Context}
	}
	return err
}
