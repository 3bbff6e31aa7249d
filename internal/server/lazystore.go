package server

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/hapax-id/hapax"
)

var (
	_ hapax.Store      = (*lazyStore)(nil)
	_ hapax.StoreClock = (*lazyStore)(nil)
)

// reopenEvery is how often a store that cannot be reached is tried again.
const reopenEvery = 500 * time.Millisecond

// A lazyStore is a shared store that a server does not wait for when it starts. It
// is opened by the first call, and again by later ones while that fails.
type lazyStore struct {
	open    func(context.Context) (hapax.Store, error)
	opening chan struct{} // holds an element while somebody opens

	mu     sync.Mutex // guards what follows; never held during I/O
	store  hapax.Store
	err    error // why the last attempt failed
	tried  time.Time
	closed bool
}

func newLazyStore(open func(context.Context) (hapax.Store, error)) *lazyStore {
	return &lazyStore{open: open, opening: make(chan struct{}, 1)}
}

// get returns the store, and opens it where that was not tried just now.
func (l *lazyStore) get(ctx context.Context) (hapax.Store, error) {
	if store, err, due := l.state(); !due {
		return store, err
	}
	select {
	case l.opening <- struct{}{}:
		defer func() { <-l.opening }()
	case <-ctx.Done():
		return nil, fmt.Errorf("%w: %w", hapax.ErrStoreUnavailable, context.Cause(ctx))
	}
	if store, err, due := l.state(); !due {
		return store, err
	}
	store, err := l.open(ctx)

	l.mu.Lock()
	closed := l.closed
	l.tried, l.err = time.Now(), err
	if err == nil && !closed {
		l.store = store
	}
	l.mu.Unlock()
	switch {
	case err != nil:
		return nil, err
	case closed:
		return nil, errors.Join(errStoreClosed(), store.Close())
	}
	return store, nil
}

// state returns what is known, and whether the store should be opened.
func (l *lazyStore) state() (store hapax.Store, err error, due bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.closed:
		return nil, errStoreClosed(), false
	case l.store != nil:
		return l.store, nil, false
	}
	return nil, l.err, time.Since(l.tried) >= reopenEvery
}

func errStoreClosed() error { return fmt.Errorf("%w: it is closed", hapax.ErrStoreUnavailable) }

// Close releases the store if it was opened.
func (l *lazyStore) Close() error {
	l.mu.Lock()
	store := l.store
	l.store, l.closed = nil, true
	l.mu.Unlock()
	if store == nil {
		return nil
	}
	return store.Close()
}

// through calls f on the store.
func through[T any](ctx context.Context, l *lazyStore, f func(hapax.Store) (T, error)) (T, error) {
	store, err := l.get(ctx)
	if err != nil {
		var none T
		return none, err
	}
	return f(store)
}

func (l *lazyStore) Ping(ctx context.Context) error {
	store, err := l.get(ctx)
	if err != nil {
		return err
	}
	return store.Ping(ctx)
}

// StoreTime returns the store's time, or hapax.ErrNotSupported if it has none.
func (l *lazyStore) StoreTime(ctx context.Context) (time.Time, error) {
	return through(ctx, l, func(s hapax.Store) (time.Time, error) {
		if clock, ok := s.(hapax.StoreClock); ok {
			return clock.StoreTime(ctx)
		}
		return time.Time{}, hapax.ErrNotSupported
	})
}

// RetireWorker implements hapax.WorkerRetirer for stores that can.
func (l *lazyStore) RetireWorker(ctx context.Context, pool string, id int64) (hapax.Worker, error) {
	return through(ctx, l, func(s hapax.Store) (hapax.Worker, error) { return hapax.RetireWorker(ctx, s, pool, id) })
}

func (l *lazyStore) StoreID(ctx context.Context) (string, error) {
	return through(ctx, l, func(s hapax.Store) (string, error) { return s.StoreID(ctx) })
}

func (l *lazyStore) Allocate(ctx context.Context, tag string, n int64) (hapax.Allocation, error) {
	return through(ctx, l, func(s hapax.Store) (hapax.Allocation, error) { return s.Allocate(ctx, tag, n) })
}

func (l *lazyStore) CreateTag(ctx context.Context, tag hapax.Tag, mode hapax.CreateMode) (hapax.Tag, error) {
	return through(ctx, l, func(s hapax.Store) (hapax.Tag, error) { return s.CreateTag(ctx, tag, mode) })
}

func (l *lazyStore) Tag(ctx context.Context, name string) (hapax.Tag, error) {
	return through(ctx, l, func(s hapax.Store) (hapax.Tag, error) { return s.Tag(ctx, name) })
}

func (l *lazyStore) Tags(ctx context.Context, after string, limit int) ([]hapax.Tag, error) {
	return through(ctx, l, func(s hapax.Store) ([]hapax.Tag, error) { return s.Tags(ctx, after, limit) })
}

func (l *lazyStore) UpdateTag(ctx context.Context, name string, u hapax.TagUpdate) (hapax.Tag, error) {
	return through(ctx, l, func(s hapax.Store) (hapax.Tag, error) { return s.UpdateTag(ctx, name, u) })
}

func (l *lazyStore) DeleteTag(ctx context.Context, name string) (hapax.Tag, error) {
	return through(ctx, l, func(s hapax.Store) (hapax.Tag, error) { return s.DeleteTag(ctx, name) })
}

func (l *lazyStore) AcquireWorker(ctx context.Context, req hapax.AcquireRequest) (hapax.Lease, error) {
	return through(ctx, l, func(s hapax.Store) (hapax.Lease, error) { return s.AcquireWorker(ctx, req) })
}

func (l *lazyStore) ExtendWorker(ctx context.Context, lease hapax.Lease, req hapax.ExtendRequest) (hapax.Lease, error) {
	return through(ctx, l, func(s hapax.Store) (hapax.Lease, error) { return s.ExtendWorker(ctx, lease, req) })
}

func (l *lazyStore) SealWorker(ctx context.Context, lease hapax.Lease, last int64) error {
	_, err := through(ctx, l, func(s hapax.Store) (struct{}, error) { return struct{}{}, s.SealWorker(ctx, lease, last) })
	return err
}

func (l *lazyStore) Workers(ctx context.Context, pool string) ([]hapax.Worker, error) {
	return through(ctx, l, func(s hapax.Store) ([]hapax.Worker, error) { return s.Workers(ctx, pool) })
}

func (l *lazyStore) Pools(ctx context.Context) ([]hapax.Pool, error) {
	return through(ctx, l, func(s hapax.Store) ([]hapax.Pool, error) { return s.Pools(ctx) })
}
