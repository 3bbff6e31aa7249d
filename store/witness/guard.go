package witness

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
)

var (
	_ hapax.Store      = (*Guarded)(nil)
	_ hapax.StoreClock = (*Guarded)(nil)
)

// Defaults of Options.
const (
	DefaultTimeout   = hapax.DefaultStoreTimeout
	DefaultHeartbeat = time.Second
)

// reopenEvery is how often a store that could not be opened is tried again.
const reopenEvery = 500 * time.Millisecond

// Options tune a Guarded store. The zero value suits most uses.
type Options struct {
	// Name is what operators know this node by; default the node's identity.
	Name string

	// Timeout bounds one answer of the store; default 5 s.
	Timeout time.Duration

	// Heartbeat is how often the node writes to a shared store at least, and how
	// long a node that joins waits; default 1 s, 100 ms to 1 min.
	Heartbeat time.Duration

	// Accept, if set, opens the store for Adopt where it has moved to another
	// primary or cluster, so that it cannot be opened otherwise.
	Accept func(context.Context) (hapax.Store, error)

	// Changed, if set, is called when Status has changed, with no lock held.
	Changed func(Status)
}

// A Guarded is a store behind a witness. Its methods are safe for concurrent use.
type Guarded struct {
	open    func(context.Context) (hapax.Store, error)
	fixed   bool // open returns the same store each time
	witness *Witness
	opts    Options
	life    context.Context // ends with Close
	stop    context.CancelFunc
	loop    sync.WaitGroup

	opening  chan struct{} // holds an element while somebody opens or verifies the store
	trusted  atomic.Bool   // the store was verified since the last trouble
	unraised atomic.Bool   // this node has found something that its fence does not tell yet
	held     held
	heart    heart

	mu       sync.Mutex // guards the fields below; never held during I/O
	store    hapax.Store
	openErr  error // why the last attempt to open the store failed
	tried    time.Time
	closed   bool
	status   Status
	watching bool // the goroutine of watch runs
}

// Guard returns the store behind the witness, which stays the caller's to close;
// Close closes the store. It does not wait for the store.
//
// A handle of etcd, ZooKeeper or Redis that has found its store behind or replaced
// refuses every further call, so that after an adoption the program is to be
// started again; with GuardOpened it goes on by itself.
func Guard(store hapax.Store, w *Witness, opts Options) (*Guarded, error) {
	g, err := GuardOpened(func(context.Context) (hapax.Store, error) { return store, nil }, w, opts)
	if err == nil {
		g.fixed = true
	}
	return g, err
}

// GuardOpened is Guard for a store that is opened at the first call that finds
// it, again after a failure, and again when its handle has found the store behind
// or replaced. Each call of open returns a handle of its own.
func GuardOpened(open func(context.Context) (hapax.Store, error), w *Witness, opts Options) (*Guarded, error) {
	if opts.Timeout == 0 {
		opts.Timeout = DefaultTimeout
	}
	if opts.Heartbeat == 0 {
		opts.Heartbeat = DefaultHeartbeat
	}
	if opts.Heartbeat < 100*time.Millisecond || opts.Heartbeat > time.Minute {
		return nil, &hapax.ValueError{Field: "heartbeat", Value: opts.Heartbeat, Allowed: "100ms to 1m0s", Err: hapax.ErrInvalidArgument}
	}
	if opts.Name == "" {
		opts.Name = w.Node()
	}
	g := &Guarded{open: open, witness: w, opts: opts, opening: make(chan struct{}, 1)}
	g.heart.slot = make(chan struct{}, 1)
	g.life, g.stop = context.WithCancel(context.Background())
	if why := w.Refusal(); why != "" {
		g.status = Status{State: Refusing, Why: why}
		g.unraised.Store(w.fence() == "")
		g.watch()
	}
	return g, nil
}

// Witness returns the witness.
func (g *Guarded) Witness() *Witness { return g.witness }

// Close stops the heartbeat, leaves the other nodes in good order if the store
// can be reached, and closes the store.
func (g *Guarded) Close() error {
	g.mu.Lock()
	first := !g.closed
	g.closed = true
	store := g.store
	g.mu.Unlock()
	if !first {
		return nil
	}
	g.stop()
	g.loop.Wait()
	if store == nil {
		return nil
	}
	return errors.Join(g.leave(store), store.Close())
}

// opened returns the store, and opens it where that was not tried just now.
func (g *Guarded) opened(ctx context.Context) (hapax.Store, error) {
	if store, err, due := g.state(); !due {
		return store, err
	}
	if err := g.lock(ctx); err != nil {
		return nil, err
	}
	defer g.unlock()
	if store, err, due := g.state(); !due {
		return store, err
	}
	store, err := g.open(ctx)
	g.mu.Lock()
	closed := g.closed
	g.tried, g.openErr = time.Now(), err
	if err == nil && !closed {
		g.store = store
	}
	g.mu.Unlock()
	switch {
	case err != nil:
		return nil, err
	case closed:
		return nil, errors.Join(errClosed(), store.Close())
	}
	return store, nil
}

// heed makes the node refuse where the store's driver has found by itself that the
// store went back or is another one. Such a handle is of no more use; it is replaced,
// so that the fence can be raised and the store be adopted.
func (g *Guarded) heed(ctx context.Context, store hapax.Store, err error) error {
	found := errors.Is(err, hapax.ErrStoreRolledBack) || errors.Is(err, hapax.ErrStoreReplaced)
	switch {
	case errors.Is(err, hapax.ErrFenced): // the guard has found it
		return err
	case found && g.isDropped(store): // found before, and perhaps decided about meanwhile
		if refused := g.Refused(); refused != nil {
			return refused
		}
		return fmt.Errorf("%w: the store is opened anew: %v", hapax.ErrStoreUnavailable, err)
	case found:
		g.drop(store)
		return g.refuse(ctx, err)
	case errors.Is(err, hapax.ErrClosed) && g.isDropped(store):
		return fmt.Errorf("%w: the store is opened anew: %v", hapax.ErrStoreUnavailable, err)
	}
	return err
}

// drop closes the handle, which the next call replaces.
func (g *Guarded) drop(store hapax.Store) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.fixed || g.closed || g.store != store {
		return
	}
	g.store, g.openErr = nil, nil
	g.loop.Go(func() { _ = store.Close() })
}

func (g *Guarded) isDropped(store hapax.Store) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return !g.closed && g.store != store
}

func errClosed() error { return fmt.Errorf("%w: the store", hapax.ErrClosed) }

// state returns what is known, and whether the store should be opened.
func (g *Guarded) state() (store hapax.Store, err error, due bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.closed:
		return nil, errClosed(), false
	case g.store != nil:
		return g.store, nil, false
	}
	return nil, g.openErr, g.openErr == nil || time.Since(g.tried) >= reopenEvery
}

func (g *Guarded) lock(ctx context.Context) error {
	select {
	case g.opening <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", hapax.ErrStoreUnavailable, context.Cause(ctx))
	}
}

func (g *Guarded) unlock() { <-g.opening }

// ask makes one call with the guard's time-out. An error that is not the
// store's word, or says that it is away, means that it may come back as another.
func ask[T any](ctx context.Context, g *Guarded, f func(context.Context, hapax.Store) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, g.opts.Timeout)
	defer cancel()
	store, err := g.opened(ctx)
	if err != nil {
		var zero T
		return zero, err
	}
	v, err := f(ctx, store)
	err = g.heed(ctx, store, err)
	if err != nil && hapax.CodeOf(err) == hapax.ErrInternal.Code() {
		err = fmt.Errorf("%w: %w", hapax.ErrStoreUnavailable, err)
	}
	if errors.Is(err, hapax.ErrStoreUnavailable) {
		g.trusted.Store(false)
	}
	return v, err
}

// verified is ask on a store that was verified, on behalf of somebody who wants
// to change or use something.
func verified[T any](ctx context.Context, g *Guarded, f func(context.Context, hapax.Store) (T, error)) (T, error) {
	if err := g.Refused(); err != nil { // also while the store cannot be opened
		var zero T
		return zero, err
	}
	return ask(ctx, g, func(ctx context.Context, store hapax.Store) (T, error) {
		if err := g.verify(ctx, store); err != nil {
			var zero T
			return zero, err
		}
		return f(ctx, store)
	})
}

// nothing is the result of calls that have none.
type nothing struct{}

// StoreID implements hapax.Store.
func (g *Guarded) StoreID(ctx context.Context) (string, error) {
	return ask(ctx, g, func(ctx context.Context, s hapax.Store) (string, error) { return s.StoreID(ctx) })
}

// StoreTime implements hapax.StoreClock for stores that do.
func (g *Guarded) StoreTime(ctx context.Context) (time.Time, error) {
	return ask(ctx, g, func(ctx context.Context, s hapax.Store) (time.Time, error) {
		if clock, ok := s.(hapax.StoreClock); ok {
			return clock.StoreTime(ctx)
		}
		return time.Time{}, hapax.ErrNotSupported
	})
}

// Ping implements hapax.Store: it reports whether the store can grant now and is
// allowed to, and whether the witness can record it.
func (g *Guarded) Ping(ctx context.Context) error {
	_, err := verified(ctx, g, func(ctx context.Context, s hapax.Store) (nothing, error) { return nothing{}, s.Ping(ctx) })
	if err != nil {
		return err
	}
	return g.witness.mend()
}

// Allocate implements hapax.SegmentStore.
func (g *Guarded) Allocate(ctx context.Context, tag string, n int64, last hapax.GrantKey) (hapax.Allocation, error) {
	return verified(ctx, g, func(ctx context.Context, s hapax.Store) (hapax.Allocation, error) {
		c := g.witness.begin(TagLine(tag))
		defer g.witness.end(c)
		if !g.held.has(tag, last) {
			last = "" // another node granted it, and its witness knows nothing of what is handed back here
		}
		a, err := s.Allocate(ctx, tag, n, last)
		if err != nil {
			return hapax.Allocation{}, g.missing(ctx, tag, err)
		}
		if err := g.confirm(ctx, s, c, a.Grant); err != nil {
			return hapax.Allocation{}, err
		}
		g.held.note(tag, a)
		return a, nil
	})
}

// AcquireWorker implements hapax.WorkerStore. Which line the grant will be of is
// not known before the answer; nobody else of this node uses it then.
func (g *Guarded) AcquireWorker(ctx context.Context, req hapax.AcquireRequest) (hapax.Lease, error) {
	return verified(ctx, g, func(ctx context.Context, s hapax.Store) (hapax.Lease, error) {
		l, err := s.AcquireWorker(ctx, req)
		if err != nil {
			return hapax.Lease{}, err
		}
		c := g.witness.begin(WorkerLine(l.Pool, l.Worker))
		defer g.witness.end(c)
		if err := g.confirm(ctx, s, c, l.Grant); err != nil {
			return hapax.Lease{}, err
		}
		return l, nil
	})
}

// ExtendWorker implements hapax.WorkerStore. What a caller says of its lease is
// no evidence against the store; what the witness recorded is.
func (g *Guarded) ExtendWorker(ctx context.Context, lease hapax.Lease, req hapax.ExtendRequest) (hapax.Lease, error) {
	return verified(ctx, g, func(ctx context.Context, s hapax.Store) (hapax.Lease, error) {
		c := g.witness.begin(WorkerLine(lease.Pool, lease.Worker))
		defer g.witness.end(c)
		l, err := s.ExtendWorker(ctx, lease, req)
		switch {
		case errors.Is(err, hapax.ErrStoreRolledBack):
			return lease, g.behind(ctx, s, c, lease, err)
		case err != nil:
			return lease, err
		}
		c.since, c.again = min(c.since, lease.Grant.Hi), true // the store says that the caller holds the lease
		if err := g.confirm(ctx, s, c, l.Grant); err != nil {
			return lease, err
		}
		return l, nil
	})
}

// SealWorker implements hapax.WorkerStore. What another node granted under the
// lease is not given back, and nothing is while an extension is under way, whose
// answer the witness has not seen.
func (g *Guarded) SealWorker(ctx context.Context, lease hapax.Lease, last int64) error {
	last = max(last, lease.From)
	if !g.witness.settled(WorkerLine(lease.Pool, lease.Worker), lease.Grant.Hi) {
		last = max(last, lease.Grant.Hi)
	}
	return g.giveBack(ctx, WorkerLine(lease.Pool, lease.Worker), lease.Grant.Hi, last, func(ctx context.Context, s hapax.Store) error {
		return s.SealWorker(ctx, lease, last)
	})
}

// HandBack implements hapax.SegmentStore. ErrLeaseLost also for a segment that
// another node granted, or this one before it was restarted.
func (g *Guarded) HandBack(ctx context.Context, a hapax.Allocation, next int64) error {
	if !g.held.has(a.Tag.Name, a.Key) {
		return driver.NotHeld(a.Tag.Name)
	}
	return g.giveBack(ctx, TagLine(a.Tag.Name), a.Grant.Hi, next, func(ctx context.Context, s hapax.Store) error {
		return s.HandBack(ctx, a, next)
	})
}

// giveBack gives the stretch [from, hi) of a line back to the store. The witness
// is told before, so that a crash leaves no store that seems to be behind, and
// its mark goes down only when the store has taken it.
func (g *Guarded) giveBack(ctx context.Context, line string, hi, from int64, f func(context.Context, hapax.Store) error) error {
	_, err := verified(ctx, g, func(ctx context.Context, s hapax.Store) (nothing, error) {
		mark, known := g.witness.Mark(line)
		ours := known && mark == hi // else it is late, and takes nothing
		if ours {
			if err := g.witness.offer(line, from); err != nil {
				return nothing{}, err
			}
		}
		err := f(ctx, s)
		if ours && !isUnknown(err) {
			return nothing{}, errors.Join(err, g.witness.settle(line, err == nil))
		}
		return nothing{}, err
	})
	return err
}

// isUnknown reports whether an error leaves open what happened in the store.
func isUnknown(err error) bool {
	code := hapax.CodeOf(err)
	return code == hapax.ErrStoreUnavailable.Code() || code == hapax.ErrInternal.Code()
}

// confirm lets a grant be used: the witness records it, and the heartbeat after
// it shows that the store is still the one that the node has written to.
func (g *Guarded) confirm(ctx context.Context, s hapax.Store, c *call, grant hapax.Grant) error {
	if err := g.witness.accept(c, grant, g.heart.acked()); err != nil {
		return err // heed refuses a store that went back
	}
	return g.beatAfter(ctx, s)
}

// missing turns "not found" into a refusal where the witness knows better.
func (g *Guarded) missing(ctx context.Context, tag string, err error) error {
	if !errors.Is(err, hapax.ErrTagNotFound) {
		return err
	}
	if mark, ok := g.witness.Mark(TagLine(tag)); ok {
		return g.refuse(ctx, fmt.Errorf("%w: it does not know tag %q, which was used up to %d here", hapax.ErrStoreRolledBack, tag, mark-1))
	}
	return err
}

// behind judges a lease whose row seems to have been put back, against the lowest
// mark that the row can have had during the call.
func (g *Guarded) behind(ctx context.Context, s hapax.Store, c *call, lease hapax.Lease, cause error) error {
	_, known := g.witness.Mark(WorkerLine(lease.Pool, lease.Worker))
	workers, err := s.Workers(ctx, lease.Pool)
	if err != nil {
		return err
	}
	mark := g.witness.sinceOf(c)
	for _, w := range workers {
		if w.ID == lease.Worker && (!known || w.Mark >= mark) {
			return fmt.Errorf("%w: pool %q, worker %d", hapax.ErrLeaseLost, lease.Pool, lease.Worker)
		}
	}
	if !known {
		return fmt.Errorf("%w: pool %q, worker %d", hapax.ErrLeaseLost, lease.Pool, lease.Worker)
	}
	return g.refuse(ctx, cause)
}

// CreateTag implements hapax.SegmentStore.
func (g *Guarded) CreateTag(ctx context.Context, tag hapax.Tag, mode hapax.CreateMode) (hapax.Tag, error) {
	return verified(ctx, g, func(ctx context.Context, s hapax.Store) (hapax.Tag, error) {
		if mode == hapax.CreateFirstUse {
			if _, ok := g.witness.Mark(TagLine(tag.Name)); ok {
				return hapax.Tag{}, g.firstUse(ctx, s, tag.Name)
			}
		}
		return s.CreateTag(ctx, tag, mode)
	})
}

// firstUse judges the first use of a tag that was used here.
func (g *Guarded) firstUse(ctx context.Context, s hapax.Store, tag string) error {
	t, err := s.Tag(ctx, tag)
	switch {
	case err != nil:
		return g.missing(ctx, tag, err)
	case t.Deleted:
		return fmt.Errorf("%w: %q", hapax.ErrTagDeleted, tag)
	}
	return fmt.Errorf("%w: %q", hapax.ErrTagExists, tag)
}

// Tag implements hapax.TagStore.
func (g *Guarded) Tag(ctx context.Context, name string) (hapax.Tag, error) {
	return verified(ctx, g, func(ctx context.Context, s hapax.Store) (hapax.Tag, error) {
		t, err := s.Tag(ctx, name)
		return t, g.missing(ctx, name, err)
	})
}

// Tags implements hapax.TagStore.
func (g *Guarded) Tags(ctx context.Context, after string, limit int) ([]hapax.Tag, error) {
	return ask(ctx, g, func(ctx context.Context, s hapax.Store) ([]hapax.Tag, error) { return s.Tags(ctx, after, limit) })
}

// UpdateTag implements hapax.TagStore.
func (g *Guarded) UpdateTag(ctx context.Context, name string, u hapax.TagUpdate) (hapax.Tag, error) {
	return verified(ctx, g, func(ctx context.Context, s hapax.Store) (hapax.Tag, error) { return s.UpdateTag(ctx, name, u) })
}

// DeleteTag implements hapax.TagStore.
func (g *Guarded) DeleteTag(ctx context.Context, name string) (hapax.Tag, error) {
	return verified(ctx, g, func(ctx context.Context, s hapax.Store) (hapax.Tag, error) { return s.DeleteTag(ctx, name) })
}

// Pools implements hapax.PoolStore.
func (g *Guarded) Pools(ctx context.Context) ([]hapax.Pool, error) {
	return ask(ctx, g, func(ctx context.Context, s hapax.Store) ([]hapax.Pool, error) { return s.Pools(ctx) })
}

// CreatePool implements hapax.PoolStore.
func (g *Guarded) CreatePool(ctx context.Context, pool, layout string) (hapax.Pool, error) {
	return verified(ctx, g, func(ctx context.Context, s hapax.Store) (hapax.Pool, error) { return s.CreatePool(ctx, pool, layout) })
}

// DeletePool implements hapax.PoolStore.
func (g *Guarded) DeletePool(ctx context.Context, pool string) (hapax.Pool, error) {
	return verified(ctx, g, func(ctx context.Context, s hapax.Store) (hapax.Pool, error) { return s.DeletePool(ctx, pool) })
}

// Workers implements hapax.PoolStore.
func (g *Guarded) Workers(ctx context.Context, pool string) ([]hapax.Worker, error) {
	return ask(ctx, g, func(ctx context.Context, s hapax.Store) ([]hapax.Worker, error) { return s.Workers(ctx, pool) })
}

// RetireWorker implements hapax.PoolStore.
func (g *Guarded) RetireWorker(ctx context.Context, pool string, id int64) (hapax.Worker, error) {
	return verified(ctx, g, func(ctx context.Context, s hapax.Store) (hapax.Worker, error) { return s.RetireWorker(ctx, pool, id) })
}

// rows returns the store's small rows, and whether it has any.
func rows(store hapax.Store) (driver.Rows, bool) {
	r, ok := store.(driver.Rows)
	return r, ok
}

// Kill stops the guard as a crash of the process would: nothing is written any
// more, and the store stays open. It is for tests.
func (g *Guarded) Kill() {
	g.mu.Lock()
	g.closed = true
	g.mu.Unlock()
	g.stop()
	g.loop.Wait()
}
