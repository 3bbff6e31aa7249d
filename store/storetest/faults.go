package storetest

import (
	"context"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
)

var (
	_ driver.Store    = (*Faults)(nil)
	_ driver.Guarding = (*Faults)(nil)
	_ driver.Healing  = (*Faults)(nil)
)

// Forever is a delay that only the end of the call's context ends.
const Forever time.Duration = math.MaxInt64

// An Op is one call on a store that a [Faults] wraps.
type Op struct {
	Method string // of driver.Store, driver.Guarding or driver.Healing, such as "Allocate"
	Line   string // the tag, pool or table, if the method has one
	N      int64  // 1 for the first call on the wrapper, 2 for the second, …
}

// A Fault tells what happens to one call; the zero value lets it pass. The
// steps happen in the order of the fields.
type Fault struct {
	// Before is how long the call takes to reach the store. If the context ends
	// first, it never does.
	Before time.Duration

	// Fail, if set, is what the call returns instead of reaching the store.
	Fail error

	// After is how long the answer takes to come back. If the context ends
	// first, the outcome is ambiguous: the call took effect, and fails.
	After time.Duration

	// Lose, if set, is what the call returns instead of the store's answer: the
	// call took effect, and fails.
	Lose error
}

// Faults is a store that does to another one's calls what the test decides. It
// decides nothing itself, so that a run depends on the test's decisions alone,
// and its delays are timers, which run in virtual time where the test does. Its
// methods are safe for concurrent use.
type Faults struct {
	mu     sync.Mutex // guards everything below
	inner  driver.Store
	inject func(Op) Fault
	down   error
	calls  map[string]int64
	n      int64
}

// NewFaults returns a wrapper that lets every call pass.
func NewFaults(inner driver.Store) *Faults {
	return &Faults{inner: inner, calls: map[string]int64{}}
}

// Inject has f decide about every call from now on; nil lets all pass. It is
// called without a lock held, by the goroutine that makes the call.
func (f *Faults) Inject(decide func(Op) Fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.inject = decide
}

// Down has every call fail with ErrStoreUnavailable until Up, as if nothing
// listened where the store was. A call that is on its way fails too.
func (f *Faults) Down() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.down = fmt.Errorf("%w: it is down", hapax.ErrStoreUnavailable)
}

// Up ends Down.
func (f *Faults) Up() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.down = nil
}

// Swap puts another store behind the wrapper: an earlier copy of the one that
// was there is a rollback, one with another identity a replacement. Calls that
// have not reached the store yet reach the new one.
func (f *Faults) Swap(inner driver.Store) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.inner = inner
}

// Calls returns how many calls of a method were made.
func (f *Faults) Calls(method string) int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls[method]
}

// begin counts a call and decides about it.
func (f *Faults) begin(method, line string) Fault {
	f.mu.Lock()
	f.n++
	f.calls[method]++
	op, decide := Op{method, line, f.n}, f.inject
	f.mu.Unlock()
	if decide == nil {
		return Fault{}
	}
	return decide(op)
}

// reach returns the store behind the wrapper, or why it cannot be reached.
func (f *Faults) reach() (driver.Store, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.inner, f.down
}

// do makes one call.
func do[T any](ctx context.Context, f *Faults, method, line string, call func(driver.Store) (T, error)) (T, error) {
	var zero T
	fault := f.begin(method, line)
	if err := sleep(ctx, fault.Before); err != nil {
		return zero, err
	}
	if fault.Fail != nil {
		return zero, fault.Fail
	}
	inner, err := f.reach()
	if err != nil {
		return zero, err
	}
	result, err := call(inner)
	if err := sleep(ctx, fault.After); err != nil {
		return zero, err
	}
	if fault.Lose != nil {
		return zero, fault.Lose
	}
	return result, err
}

// sleep waits, and fails as a driver does if the context ends first.
func sleep(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return nil
	}
	var over <-chan time.Time
	if d != Forever {
		t := time.NewTimer(d)
		defer t.Stop()
		over = t.C
	}
	select {
	case <-over:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", hapax.ErrStoreUnavailable, context.Cause(ctx))
	}
}

// StoreID implements driver.Store.
func (f *Faults) StoreID(ctx context.Context) (string, error) {
	return do(ctx, f, "StoreID", "", func(s driver.Store) (string, error) { return s.StoreID(ctx) })
}

// Ping implements driver.Store.
func (f *Faults) Ping(ctx context.Context) error {
	_, err := do(ctx, f, "Ping", "", func(s driver.Store) (struct{}, error) { return struct{}{}, s.Ping(ctx) })
	return err
}

// Close closes the store behind the wrapper. No fault applies to it.
func (f *Faults) Close() error {
	f.mu.Lock()
	inner := f.inner
	f.mu.Unlock()
	return inner.Close()
}

// Allocate implements hapax.SegmentStore.
func (f *Faults) Allocate(ctx context.Context, tag string, n int64, last hapax.GrantKey) (hapax.Allocation, error) {
	return do(ctx, f, "Allocate", tag, func(s driver.Store) (hapax.Allocation, error) { return s.Allocate(ctx, tag, n, last) })
}

// HandBack implements hapax.SegmentStore.
func (f *Faults) HandBack(ctx context.Context, a hapax.Allocation, next int64) error {
	_, err := do(ctx, f, "HandBack", a.Tag.Name, func(s driver.Store) (struct{}, error) { return struct{}{}, s.HandBack(ctx, a, next) })
	return err
}

// CreateTag implements hapax.SegmentStore.
func (f *Faults) CreateTag(ctx context.Context, tag hapax.Tag, mode hapax.CreateMode) (hapax.Tag, error) {
	return do(ctx, f, "CreateTag", tag.Name, func(s driver.Store) (hapax.Tag, error) { return s.CreateTag(ctx, tag, mode) })
}

// Tag implements driver.TagStore.
func (f *Faults) Tag(ctx context.Context, name string) (hapax.Tag, error) {
	return do(ctx, f, "Tag", name, func(s driver.Store) (hapax.Tag, error) { return s.Tag(ctx, name) })
}

// Tags implements driver.TagStore.
func (f *Faults) Tags(ctx context.Context, after string, limit int) ([]hapax.Tag, error) {
	return do(ctx, f, "Tags", "", func(s driver.Store) ([]hapax.Tag, error) { return s.Tags(ctx, after, limit) })
}

// UpdateTag implements driver.TagStore.
func (f *Faults) UpdateTag(ctx context.Context, name string, u driver.TagUpdate) (hapax.Tag, error) {
	return do(ctx, f, "UpdateTag", name, func(s driver.Store) (hapax.Tag, error) { return s.UpdateTag(ctx, name, u) })
}

// DeleteTag implements driver.TagStore.
func (f *Faults) DeleteTag(ctx context.Context, name string) (hapax.Tag, error) {
	return do(ctx, f, "DeleteTag", name, func(s driver.Store) (hapax.Tag, error) { return s.DeleteTag(ctx, name) })
}

// AcquireWorker implements hapax.WorkerStore.
func (f *Faults) AcquireWorker(ctx context.Context, req hapax.AcquireRequest) (hapax.Lease, error) {
	return do(ctx, f, "AcquireWorker", req.Pool, func(s driver.Store) (hapax.Lease, error) { return s.AcquireWorker(ctx, req) })
}

// ExtendWorker implements hapax.WorkerStore.
func (f *Faults) ExtendWorker(ctx context.Context, lease hapax.Lease, layout hapax.Layout, term hapax.Term) (hapax.Lease, error) {
	return do(ctx, f, "ExtendWorker", lease.Pool, func(s driver.Store) (hapax.Lease, error) { return s.ExtendWorker(ctx, lease, layout, term) })
}

// SealWorker implements hapax.WorkerStore.
func (f *Faults) SealWorker(ctx context.Context, lease hapax.Lease, last int64) error {
	_, err := do(ctx, f, "SealWorker", lease.Pool, func(s driver.Store) (struct{}, error) { return struct{}{}, s.SealWorker(ctx, lease, last) })
	return err
}

// Pools implements driver.PoolStore.
func (f *Faults) Pools(ctx context.Context) ([]driver.Pool, error) {
	return do(ctx, f, "Pools", "", func(s driver.Store) ([]driver.Pool, error) { return s.Pools(ctx) })
}

// CreatePool implements driver.PoolStore.
func (f *Faults) CreatePool(ctx context.Context, pool, layout string) (driver.Pool, error) {
	return do(ctx, f, "CreatePool", pool, func(s driver.Store) (driver.Pool, error) { return s.CreatePool(ctx, pool, layout) })
}

// DeletePool implements driver.PoolStore.
func (f *Faults) DeletePool(ctx context.Context, pool string) (driver.Pool, error) {
	return do(ctx, f, "DeletePool", pool, func(s driver.Store) (driver.Pool, error) { return s.DeletePool(ctx, pool) })
}

// Workers implements driver.PoolStore.
func (f *Faults) Workers(ctx context.Context, pool string) ([]driver.Worker, error) {
	return do(ctx, f, "Workers", pool, func(s driver.Store) ([]driver.Worker, error) { return s.Workers(ctx, pool) })
}

// RetireWorker implements driver.PoolStore.
func (f *Faults) RetireWorker(ctx context.Context, pool string, id int64) (driver.Worker, error) {
	return do(ctx, f, "RetireWorker", pool, func(s driver.Store) (driver.Worker, error) { return s.RetireWorker(ctx, pool, id) })
}

// rows returns the rows of the store behind the wrapper.
func rows(s driver.Store) (driver.Rows, error) {
	if r, ok := s.(driver.Rows); ok {
		return r, nil
	}
	return nil, fmt.Errorf("%w: %T keeps no rows", hapax.ErrNotSupported, s)
}

// Row implements driver.Rows, where the store behind the wrapper does.
func (f *Faults) Row(ctx context.Context, table, name string) ([]byte, error) {
	return do(ctx, f, "Row", table, func(s driver.Store) ([]byte, error) {
		r, err := rows(s)
		if err != nil {
			return nil, err
		}
		return r.Row(ctx, table, name)
	})
}

// ListRows implements driver.Rows, where the store behind the wrapper does.
func (f *Faults) ListRows(ctx context.Context, table, after string, limit int) ([]driver.Row, error) {
	return do(ctx, f, "ListRows", table, func(s driver.Store) ([]driver.Row, error) {
		r, err := rows(s)
		if err != nil {
			return nil, err
		}
		return r.ListRows(ctx, table, after, limit)
	})
}

// SwapRow implements driver.Rows, where the store behind the wrapper does.
func (f *Faults) SwapRow(ctx context.Context, table, name string, old, next []byte) (bool, error) {
	return do(ctx, f, "SwapRow", table, func(s driver.Store) (bool, error) {
		r, err := rows(s)
		if err != nil {
			return false, err
		}
		return r.SwapRow(ctx, table, name, old, next)
	})
}

// Shared implements driver.Rows. No fault applies to it.
func (f *Faults) Shared() bool {
	f.mu.Lock()
	r, err := rows(f.inner)
	f.mu.Unlock()
	return err == nil && r.Shared()
}
