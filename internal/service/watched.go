package service

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/ledger"
	"github.com/hapax-id/hapax/internal/service/auth"
	"github.com/hapax-id/hapax/store/driver"
)

// A watchedStore is the service's store, which notes what the calls tell of it, and
// has every grant recorded before it is used.
type watchedStore struct {
	driver.Store

	ledger  *ledger.Ledger // nil: nothing is recorded
	timeout time.Duration  // bounds one answer
	maker   func(hapax.Tag) string
	health  health
}

var (
	_ driver.Store     = (*watchedStore)(nil)
	_ hapax.StoreClock = (*watchedStore)(nil)
)

// watch makes one call and notes what it tells of the store.
func watch[T any](ctx context.Context, w *watchedStore, f func(context.Context) (T, error)) (T, error) {
	defer w.health.begin()()
	asking, cancel := context.WithTimeout(ctx, w.timeout)
	defer cancel()
	v, err := f(asking)
	if hapax.CodeOf(err) == hapax.ErrInternal.Code() { // not the store's word
		err = fmt.Errorf("%w: %w", hapax.ErrStoreUnavailable, err)
	}
	switch {
	case isGuarded(err):
	case isBarred(err):
		w.health.tell(err)
	case !isAway(err):
		w.health.tell(nil)
	case ctx.Err() == nil: // else it was the caller who did not wait
		w.health.tell(err)
	}
	return v, err
}

// isGuarded reports whether a guard refuses, which tells of that itself for as long as
// it does.
func isGuarded(err error) bool {
	return errors.Is(err, hapax.ErrFenced) || errors.Is(err, hapax.ErrWitnessFailed)
}

// isBarred reports whether nothing can be granted until an operator has done something.
func isBarred(err error) bool {
	return errors.Is(err, hapax.ErrStoreReplaced) || errors.Is(err, hapax.ErrStoreCopied)
}

// Ping implements driver.Store.
func (w *watchedStore) Ping(ctx context.Context) error {
	_, err := watch(ctx, w, func(ctx context.Context) (struct{}, error) { return struct{}{}, w.Store.Ping(ctx) })
	if err == nil {
		w.health.admit()
	}
	return err
}

// Tag implements driver.TagStore.
func (w *watchedStore) Tag(ctx context.Context, name string) (hapax.Tag, error) {
	return watch(ctx, w, func(ctx context.Context) (hapax.Tag, error) { return w.Store.Tag(ctx, name) })
}

// Tags implements driver.TagStore.
func (w *watchedStore) Tags(ctx context.Context, after string, limit int) ([]hapax.Tag, error) {
	return watch(ctx, w, func(ctx context.Context) ([]hapax.Tag, error) { return w.Store.Tags(ctx, after, limit) })
}

// Pools implements driver.PoolStore.
func (w *watchedStore) Pools(ctx context.Context) ([]driver.Pool, error) {
	return watch(ctx, w, func(ctx context.Context) ([]driver.Pool, error) { return w.Store.Pools(ctx) })
}

// StoreTime implements hapax.StoreClock for stores that do.
func (w *watchedStore) StoreTime(ctx context.Context) (time.Time, error) {
	clock, ok := w.Store.(hapax.StoreClock)
	if !ok {
		return time.Time{}, hapax.ErrNotSupported
	}
	return watch(ctx, w, func(ctx context.Context) (time.Time, error) { return clock.StoreTime(ctx) })
}

// Allocate implements hapax.SegmentStore.
func (w *watchedStore) Allocate(ctx context.Context, tag string, n int64, last hapax.GrantKey) (hapax.Allocation, error) {
	if err := w.ledger.Ready(); err != nil {
		return hapax.Allocation{}, err
	}
	a, err := watch(ctx, w, func(ctx context.Context) (hapax.Allocation, error) { return w.Store.Allocate(ctx, tag, n, last) })
	w.health.note(KindTag, tag, err)
	if err == nil {
		err = w.ledger.Allocated(a, grantee(ctx), w.maker(a.Tag))
	}
	return a, err
}

// HandBack implements hapax.SegmentStore.
func (w *watchedStore) HandBack(ctx context.Context, a hapax.Allocation, next int64) error {
	err := w.Store.HandBack(ctx, a, next)
	w.ledger.HandedBack(a, next, grantee(ctx), err)
	return err
}

// AcquireWorker implements hapax.WorkerStore.
func (w *watchedStore) AcquireWorker(ctx context.Context, req hapax.AcquireRequest) (hapax.Lease, error) {
	if err := w.ledger.Ready(); err != nil {
		return hapax.Lease{}, err
	}
	l, err := watch(ctx, w, func(ctx context.Context) (hapax.Lease, error) { return w.Store.AcquireWorker(ctx, req) })
	w.health.note(KindPool, req.Pool, err)
	if err == nil {
		err = w.ledger.Acquired(l, req.Layout, grantee(ctx))
	}
	return l, err
}

// ExtendWorker implements hapax.WorkerStore.
func (w *watchedStore) ExtendWorker(ctx context.Context, lease hapax.Lease, req hapax.ExtendRequest) (hapax.Lease, error) {
	if err := w.ledger.Ready(); err != nil {
		return lease, err
	}
	l, err := watch(ctx, w, func(ctx context.Context) (hapax.Lease, error) { return w.Store.ExtendWorker(ctx, lease, req) })
	w.health.note(KindPool, lease.Pool, err)
	if err == nil {
		err = w.ledger.Extended(l, req.Layout, grantee(ctx))
	}
	if err != nil {
		return lease, err
	}
	return l, nil
}

// SealWorker implements hapax.WorkerStore.
func (w *watchedStore) SealWorker(ctx context.Context, lease hapax.Lease, last int64) error {
	err := w.Store.SealWorker(ctx, lease, last)
	w.ledger.Sealed(lease, last, grantee(ctx), err)
	return err
}

type granteeKey struct{}

// leased returns a context in which grants are for who makes the call, and not for
// this node.
func (s *Service) leased(ctx context.Context) context.Context {
	by := ledger.By{Name: auth.FromContext(ctx).Name(), Address: auth.AddressFrom(ctx)}
	if s.opts.OneShot {
		by = ledger.Command
	}
	return context.WithValue(ctx, granteeKey{}, by)
}

// grantee returns for whom a grant is taken.
func grantee(ctx context.Context) ledger.By {
	by, _ := ctx.Value(granteeKey{}).(ledger.By)
	return by
}
