package service

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/hapax-id/hapax"
)

var (
	_ hapax.Store         = (*guardedStore)(nil)
	_ hapax.StoreClock    = (*guardedStore)(nil)
	_ hapax.WorkerRetirer = (*guardedStore)(nil)
)

// guardedStore is the store behind the witness: no grant gets past it, to an
// issuer of this node or to a client, before the witness has recorded it. Every
// answer is bounded by the store's timeout.
type guardedStore struct {
	hapax.Store
	witness *hapax.Witness // may be nil
	timeout time.Duration
	trusted atomic.Bool // the store's identity was verified since the last trouble
	health  health
}

func newGuardedStore(store hapax.Store, witness *hapax.Witness, timeout time.Duration) *guardedStore {
	return &guardedStore{Store: store, witness: witness, timeout: timeout}
}

// call makes one call with its timeout, after verifying the store's identity
// where that is due.
func call[T any](ctx context.Context, g *guardedStore, f func(context.Context) (T, error)) (T, error) {
	caller := ctx
	ctx, cancel := context.WithTimeout(ctx, g.timeout)
	defer cancel()
	defer g.health.begin()()
	if err := g.verify(ctx); err != nil {
		if caller.Err() == nil {
			g.health.tell(err)
		}
		var zero T
		return zero, err
	}
	v, err := f(ctx)
	if err == nil {
		g.health.tell(nil)
		return v, nil
	}
	if hapax.CodeOf(err) == hapax.ErrInternal.Code() { // not a word from the store
		err = fmt.Errorf("%w: %w", hapax.ErrStoreUnavailable, err)
	}
	switch {
	case !isTransient(err):
		g.health.tell(nil)
	case caller.Err() == nil: // else it was the caller who did not wait
		g.health.tell(err)
		fallthrough
	default:
		g.trusted.Store(false)
	}
	return v, err
}

// verify makes sure, at first and after trouble, that the store is the one that
// the witness knows.
func (g *guardedStore) verify(ctx context.Context) error {
	if g.witness == nil || g.trusted.Load() {
		return nil
	}
	id, err := g.Store.StoreID(ctx)
	if err != nil {
		return err
	}
	if err := g.witness.Store(id); err != nil {
		return err
	}
	g.trusted.Store(true)
	return nil
}

// missing turns "not found" into a rollback where the witness knows better.
func (g *guardedStore) missing(tag string, err error) error {
	if g.witness == nil || !errors.Is(err, hapax.ErrTagNotFound) {
		return err
	}
	if mark, ok := g.witness.Mark(hapax.TagLine(tag)); ok {
		return fmt.Errorf("%w: it does not know tag %q, which was used up to %d here", hapax.ErrStoreRolledBack, tag, mark-1)
	}
	return err
}

func (g *guardedStore) StoreID(ctx context.Context) (string, error) {
	g.trusted.Store(false)
	return call(ctx, g, g.Store.StoreID)
}

// StoreTime implements hapax.StoreClock for stores that do.
func (g *guardedStore) StoreTime(ctx context.Context) (time.Time, error) {
	clock, ok := g.Store.(hapax.StoreClock)
	if !ok {
		return time.Time{}, hapax.ErrNotSupported
	}
	return call(ctx, g, clock.StoreTime)
}

func (g *guardedStore) Ping(ctx context.Context) error {
	_, err := call(ctx, g, func(ctx context.Context) (struct{}, error) { return struct{}{}, g.Store.Ping(ctx) })
	return err
}

func (g *guardedStore) Allocate(ctx context.Context, tag string, n int64) (hapax.Allocation, error) {
	a, err := g.allocate(ctx, tag, n)
	g.health.note(KindTag, tag, err)
	return a, err
}

func (g *guardedStore) allocate(ctx context.Context, tag string, n int64) (hapax.Allocation, error) {
	since := g.mark(hapax.TagLine(tag))
	a, err := call(ctx, g, func(ctx context.Context) (hapax.Allocation, error) { return g.Store.Allocate(ctx, tag, n) })
	if err != nil {
		return a, g.missing(tag, err)
	}
	return a, g.accept(hapax.TagLine(tag), a.Grant, since)
}

// mark returns what the witness knows of a line before the store is asked.
func (g *guardedStore) mark(line string) int64 {
	if g.witness == nil {
		return 0
	}
	mark, _ := g.witness.Mark(line)
	return mark
}

// accept records a grant with the witness.
func (g *guardedStore) accept(line string, grant hapax.Grant, since int64) error {
	if g.witness == nil {
		return nil
	}
	return g.witness.Accept(line, grant, since)
}

func (g *guardedStore) CreateTag(ctx context.Context, tag hapax.Tag, mode hapax.CreateMode) (hapax.Tag, error) {
	return call(ctx, g, func(ctx context.Context) (hapax.Tag, error) {
		return g.Store.CreateTag(ctx, tag, mode)
	})
}

func (g *guardedStore) Tag(ctx context.Context, name string) (hapax.Tag, error) {
	t, err := call(ctx, g, func(ctx context.Context) (hapax.Tag, error) { return g.Store.Tag(ctx, name) })
	return t, g.missing(name, err)
}

func (g *guardedStore) Tags(ctx context.Context, after string, limit int) ([]hapax.Tag, error) {
	return call(ctx, g, func(ctx context.Context) ([]hapax.Tag, error) { return g.Store.Tags(ctx, after, limit) })
}

func (g *guardedStore) UpdateTag(ctx context.Context, name string, u hapax.TagUpdate) (hapax.Tag, error) {
	return call(ctx, g, func(ctx context.Context) (hapax.Tag, error) { return g.Store.UpdateTag(ctx, name, u) })
}

func (g *guardedStore) DeleteTag(ctx context.Context, name string) (hapax.Tag, error) {
	return call(ctx, g, func(ctx context.Context) (hapax.Tag, error) { return g.Store.DeleteTag(ctx, name) })
}

func (g *guardedStore) AcquireWorker(ctx context.Context, req hapax.AcquireRequest) (hapax.Lease, error) {
	l, err := call(ctx, g, func(ctx context.Context) (hapax.Lease, error) { return g.Store.AcquireWorker(ctx, req) })
	if err == nil {
		line := hapax.WorkerLine(l.Pool, l.Worker)
		err = g.accept(line, l.Grant, g.mark(line)) // nobody else was granted that time since
	}
	g.health.note(KindPool, req.Pool, err)
	return l, err
}

func (g *guardedStore) ExtendWorker(ctx context.Context, lease hapax.Lease, req hapax.ExtendRequest) (hapax.Lease, error) {
	l, err := call(ctx, g, func(ctx context.Context) (hapax.Lease, error) { return g.Store.ExtendWorker(ctx, lease, req) })
	if err == nil {
		line := hapax.WorkerLine(l.Pool, l.Worker)
		err = g.accept(line, l.Grant, g.mark(line)) // nobody else was granted that time since
	}
	g.health.note(KindPool, lease.Pool, err)
	return l, err
}

func (g *guardedStore) SealWorker(ctx context.Context, lease hapax.Lease, last int64) error {
	_, err := call(ctx, g, func(ctx context.Context) (struct{}, error) {
		if err := g.lower(lease, last); err != nil {
			return struct{}{}, err
		}
		return struct{}{}, g.Store.SealWorker(ctx, lease, last)
	})
	return err
}

// lower takes back from the witness what a seal is about to give back to the
// store. A late seal, of a worker that was granted more since, takes nothing.
func (g *guardedStore) lower(lease hapax.Lease, last int64) error {
	if g.witness == nil {
		return nil
	}
	line := hapax.WorkerLine(lease.Pool, lease.Worker)
	if mark, ok := g.witness.Mark(line); !ok || mark != lease.Grant.Hi {
		return nil
	}
	return g.witness.Lower(line, last)
}

func (g *guardedStore) Workers(ctx context.Context, pool string) ([]hapax.Worker, error) {
	return call(ctx, g, func(ctx context.Context) ([]hapax.Worker, error) { return g.Store.Workers(ctx, pool) })
}

// RetireWorker implements hapax.WorkerRetirer for stores that can.
func (g *guardedStore) RetireWorker(ctx context.Context, pool string, id int64) (hapax.Worker, error) {
	return call(ctx, g, func(ctx context.Context) (hapax.Worker, error) { return hapax.RetireWorker(ctx, g.Store, pool, id) })
}

func (g *guardedStore) Pools(ctx context.Context) ([]hapax.Pool, error) {
	return call(ctx, g, g.Store.Pools)
}
