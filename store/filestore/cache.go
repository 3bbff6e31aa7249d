package filestore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/internal/fileid"
)

var (
	_ hapax.WorkerStore = (*Cache)(nil)
	_ hapax.StoreClock  = (*Cache)(nil)
)

// DefaultPart is how much of a grant a Cache hands out at a time.
const DefaultPart = 3 * time.Second

const (
	// patience is how long a store may take to answer while there is time left
	// without it.
	patience = time.Second

	// deafness is how long a store that did not answer is not asked again, while
	// there is time left without it.
	deafness = 3 * time.Second

	// clockLife is how long a reading of the store's clock is good for.
	clockLife = time.Minute
)

// CacheOptions tune a Cache. The zero value suits most uses.
type CacheOptions struct {
	// Part is how much of a grant is handed out at a time: what a crash costs.
	// Default 3 s.
	Part time.Duration

	// Warn, if set, receives what makes the cache start without a lease although
	// there is a file: a copy, a damaged file, another store.
	Warn func(code, message string)
}

// A Cache lets one issuer start while its store is away. It keeps the lease that
// the store has granted in a local file and hands out short parts of its time,
// each recorded in the file before it is used. After a crash the next issuer with
// the same holder goes on above the last part, inside the time that the store
// granted, without asking it:
//
//	store's grant  [======================================)
//	parts          [====)[====)[====)
//	                          ^crash ^goes on here
//
// Where that is not possible it does what the store says: when the granted time
// is over, when layout, holder or worker IDs are others, when the machine was
// started anew, perhaps with an older disk, or when the file is a copy, came from
// another machine or is damaged. The parts of a lease that was dropped are lost,
// never repeated.
//
// A Cache serves one pool and one issuer. Its methods are safe for concurrent
// use. The file is locked until Close.
type Cache struct {
	path     string
	upstream hapax.WorkerStore
	opts     CacheOptions
	unlock   func() error
	turn     chan struct{} // holds the right to everything below, and to the file
	closed   atomic.Bool

	kept    kept // as it is in the file, or may be
	resumes bool // the lease in kept was found in the file, and nobody has it yet
	lost    bool // the store has ended the lease; what is left of its grant is still good
	direct  bool // the file could not be written: the current lease is not in it
	layout  hapax.Layout

	clockRead time.Time // when the store's clock was read
	clockAt   time.Time // what it said
	deafUntil time.Time // the store was away just now, and is not waited for until then
}

// kept is what the file holds: JSON on its first line, and its CRC-32C on the
// second.
type kept struct {
	Format string          `json:"format"`
	File   fileid.Identity `json:"file"`           // of the very file
	Boot   string          `json:"boot,omitempty"` // of the machine, when it was written; empty: cannot be told
	Store  string          `json:"store"`
	Layout string          `json:"layout"`
	Lease  *keptLease      `json:"lease"` // null: none
}

type keptLease struct {
	Pool   string `json:"pool"`
	Worker int64  `json:"worker"`
	Epoch  int64  `json:"epoch"`
	Holder string `json:"holder"`
	Lo     int64  `json:"lo"` // of the store's latest grant
	Hi     int64  `json:"hi"`
	From   int64  `json:"from"`
	Mark   int64  `json:"mark"` // the end of the last part: ticks below it are taken
}

func (k *keptLease) lease() hapax.Lease {
	return hapax.Lease{Pool: k.Pool, Worker: k.Worker, Epoch: k.Epoch, Holder: k.Holder, Grant: hapax.Grant{Lo: k.Lo, Hi: k.Hi}, From: k.From}
}

// matches tells whether a lease that a caller has is the kept one.
func (k *keptLease) matches(l hapax.Lease) bool {
	return k != nil && k.Pool == l.Pool && k.Worker == l.Worker && k.Epoch == l.Epoch
}

const cacheFormat = "hapax lease 1"

// OpenCache returns a cache of the store's leases in the file at path, which is
// made if it does not exist; its directory must. The store stays the caller's to
// close. ErrStoreLocked if another process has the file open,
// ErrStoreUnavailable if it cannot be locked, ErrNotSupported where files cannot.
func OpenCache(ctx context.Context, path string, upstream hapax.WorkerStore, opts CacheOptions) (*Cache, error) {
	if opts.Part == 0 {
		opts.Part = DefaultPart
	}
	if opts.Part < time.Millisecond || opts.Part > hapax.DefaultMaxGrant {
		return nil, &hapax.ValueError{Field: "part", Value: opts.Part, Allowed: fmt.Sprintf("1ms to %v", hapax.DefaultMaxGrant), Err: hapax.ErrInvalidArgument}
	}
	if opts.Warn == nil {
		opts.Warn = func(string, string) {}
	}
	lockCtx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	unlock, err := lock(lockCtx, path+".lock")
	switch {
	case err != nil && lockCtx.Err() != nil && ctx.Err() == nil:
		return nil, fmt.Errorf("%w: %s is in use by another process", hapax.ErrStoreLocked, path)
	case err != nil && hapax.CodeOf(err) == hapax.ErrInternal.Code():
		return nil, fmt.Errorf("%w: %s: %w", hapax.ErrStoreUnavailable, path, err)
	case err != nil:
		return nil, err
	}
	c := &Cache{path: path, upstream: upstream, opts: opts, unlock: unlock, turn: make(chan struct{}, 1)}
	if c.kept, err = readCache(path); err != nil {
		opts.Warn(string(hapax.CodeOf(err)), err.Error()+"; the store is asked for a lease")
		c.kept = kept{}
	}
	c.resumes = c.kept.Lease != nil
	return c, nil
}

// Close releases the file.
func (c *Cache) Close() error {
	if c.closed.Swap(true) {
		return nil
	}
	return c.unlock()
}

// begin takes the turn; done gives it back.
func (c *Cache) begin(ctx context.Context) (done func(), err error) {
	if c.closed.Load() {
		return nil, fmt.Errorf("%w: the cache is closed", hapax.ErrStoreUnavailable)
	}
	select {
	case c.turn <- struct{}{}:
		return func() { <-c.turn }, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("%w: %w", hapax.ErrStoreUnavailable, context.Cause(ctx))
	}
}

// isAway tells that the store was not heard.
func isAway(err error) bool {
	code := hapax.CodeOf(err)
	return code == hapax.ErrStoreUnavailable.Code() || code == hapax.ErrInternal.Code()
}

// StoreID implements hapax.WorkerStore. While the store is away it is the ID of
// the one that granted the kept lease.
func (c *Cache) StoreID(ctx context.Context) (string, error) {
	done, err := c.begin(ctx)
	if err != nil {
		return "", err
	}
	defer done()
	id, err := c.storeID(ctx)
	if err != nil && isAway(err) && c.kept.Lease != nil {
		return c.kept.Store, nil
	}
	return id, err
}

// storeID asks the store, and drops a lease that another one has granted.
func (c *Cache) storeID(ctx context.Context) (string, error) {
	if c.kept.Lease != nil {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, patience)
		defer cancel()
	}
	id, err := c.upstream.StoreID(ctx)
	if err == nil && c.kept.Lease != nil && c.kept.Store != id {
		c.opts.Warn(string(hapax.ErrStoreReplaced.Code()), fmt.Sprintf("%s holds a lease of the store %s, and this is %s; the store is asked for a lease", c.path, c.kept.Store, id))
		c.kept.Lease, c.resumes = nil, false
	}
	return id, err
}

// StoreTime implements hapax.StoreClock for stores that do. The store is asked
// once a minute; while it is away there is no time to compare with.
func (c *Cache) StoreTime(ctx context.Context) (time.Time, error) {
	clock, ok := c.upstream.(hapax.StoreClock)
	if !ok {
		return time.Time{}, hapax.ErrNotSupported
	}
	done, err := c.begin(ctx)
	if err != nil {
		return time.Time{}, err
	}
	defer done()
	if age := time.Since(c.clockRead); age < clockLife {
		return c.clockAt.Add(age), nil
	}
	if time.Now().Before(c.deafUntil) {
		return time.Time{}, fmt.Errorf("%w while the store is away", hapax.ErrNotSupported)
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	began := time.Now()
	at, err := clock.StoreTime(ctx)
	if err != nil && isAway(err) {
		c.deafUntil = time.Now().Add(deafness)
		return time.Time{}, fmt.Errorf("%w while the store is away", hapax.ErrNotSupported)
	}
	if err == nil {
		c.clockRead, c.clockAt = time.Now(), at.Add(time.Since(began)/2)
	}
	return at, err
}

// Workers implements hapax.WorkerStore.
func (c *Cache) Workers(ctx context.Context, pool string) ([]hapax.Worker, error) {
	return c.upstream.Workers(ctx, pool)
}

// Pools implements hapax.WorkerStore. While the store is away it is the pool of
// the kept lease, whose layout is frozen.
func (c *Cache) Pools(ctx context.Context) ([]hapax.Pool, error) {
	done, err := c.begin(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	if c.kept.Lease == nil {
		return c.upstream.Pools(ctx)
	}
	asked, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	pools, err := c.upstream.Pools(asked)
	if err != nil && isAway(err) {
		return []hapax.Pool{{Name: c.kept.Lease.Pool, Layout: c.kept.Layout}}, nil
	}
	return pools, err
}

// AcquireWorker implements hapax.WorkerStore: it goes on with the lease in the
// file if that is possible, or else takes one from the store.
func (c *Cache) AcquireWorker(ctx context.Context, req hapax.AcquireRequest) (hapax.Lease, error) {
	done, err := c.begin(ctx)
	if err != nil {
		return hapax.Lease{}, err
	}
	defer done()
	if c.layout, err = hapax.ParseLayout(req.Layout); err != nil {
		return hapax.Lease{}, err
	}
	open := c.resumes && c.mayResume(req)
	if k := c.kept.Lease; open && k.Mark <= req.Latest {
		return c.resume(req)
	}
	var cancel context.CancelFunc = func() {}
	if open { // the last part is not over: somebody else's worker may be free now
		ctx, cancel = context.WithTimeout(ctx, patience)
	}
	defer cancel()
	lease, err := c.acquire(ctx, req)
	if err != nil && open && c.kept.Lease != nil && (isAway(err) || hapax.CodeOf(err) == hapax.ErrNoWorker.Code()) {
		over := time.Duration(c.kept.Lease.Mark-req.Latest) * req.Tick // of a part, which is short
		return hapax.Lease{}, &hapax.NoWorkerError{Pool: req.Pool, Size: 1, NextFree: req.Now.Add(over)}
	}
	return lease, err
}

// mayResume tells whether the kept lease is what the request asks for, and has
// time left.
func (c *Cache) mayResume(req hapax.AcquireRequest) bool {
	k := c.kept.Lease
	return k.Pool == req.Pool && k.Holder == req.Holder && c.kept.Layout == req.Layout &&
		k.Worker >= req.IDs.Lo && k.Worker < req.IDs.Hi && (len(req.Among) == 0 || slices.Contains(req.Among, k.Worker)) &&
		k.Hi <= req.End && k.Hi <= req.Poison && max(k.Mark, req.Floor) < k.Hi
}

func (c *Cache) resume(req hapax.AcquireRequest) (hapax.Lease, error) {
	k := *c.kept.Lease
	lo := max(k.Mark, req.Floor, 0)
	g, err := c.part(&k, lo, req.Now, req.To)
	if err != nil {
		return hapax.Lease{}, err
	}
	c.resumes, c.direct, c.lost = false, false, false
	lease := k.lease()
	lease.Grant, lease.From = g, lo
	return lease, nil
}

// acquire takes a lease from the store. A file that cannot be written is found
// out before, so that no worker ID is taken in vain; then the cache stands aside.
func (c *Cache) acquire(ctx context.Context, req hapax.AcquireRequest) (hapax.Lease, error) {
	id, err := c.storeID(ctx)
	if err != nil {
		return hapax.Lease{}, err
	}
	probe := c.kept
	if probe.Lease == nil {
		probe = kept{Store: id, Layout: req.Layout}
	}
	writable := c.write(probe)
	lease, err := c.upstream.AcquireWorker(ctx, req)
	if err != nil {
		return lease, err
	}
	c.resumes, c.lost = false, false
	if c.direct = writable != nil; c.direct {
		c.opts.Warn(string(hapax.ErrStoreUnavailable.Code()), writable.Error()+"; a restart will need the store")
		return lease, nil
	}
	c.kept = kept{Store: id, Layout: req.Layout}
	k := keptLease{lease.Pool, lease.Worker, lease.Epoch, lease.Holder, lease.Grant.Lo, lease.Grant.Hi, lease.From, lease.Grant.Lo}
	lease.Grant, err = c.part(&k, lease.Grant.Lo, req.Now, req.To)
	return lease, err
}

// part hands out the next part of a lease, from lo on, once the file says so.
func (c *Cache) part(k *keptLease, lo int64, now time.Time, to int64) (hapax.Grant, error) {
	hi := k.Hi
	if tick, err := c.layout.TickOf(now); err == nil {
		most := tick + int64((c.opts.Part+c.layout.Unit()-1)/c.layout.Unit())
		hi = min(hi, max(lo+1, min(most, to)))
	}
	k.Mark = hi
	next := c.kept
	next.Lease = k
	if err := c.write(next); err != nil {
		return hapax.Grant{}, err
	}
	return hapax.Grant{Lo: lo, Hi: hi}, nil
}

// ExtendWorker implements hapax.WorkerStore: it hands out the next part, and asks
// the store for more time when half of its grant is handed out.
func (c *Cache) ExtendWorker(ctx context.Context, lease hapax.Lease, req hapax.ExtendRequest) (hapax.Lease, error) {
	done, err := c.begin(ctx)
	if err != nil {
		return lease, err
	}
	defer done()
	if c.direct {
		return c.upstream.ExtendWorker(ctx, lease, req)
	}
	if c.resumes || !c.kept.Lease.matches(lease) {
		return lease, fmt.Errorf("%w: pool %q, worker %d: the cache has another lease", hapax.ErrLeaseLost, lease.Pool, lease.Worker)
	}
	k := *c.kept.Lease
	due := k.Mark >= k.Hi-(k.Hi-k.Lo)/2
	if left := k.Mark < k.Hi; due && !c.lost && !(left && time.Now().Before(c.deafUntil)) {
		err = c.renew(ctx, &k, req)
	}
	if k.Mark >= k.Hi {
		if err == nil {
			err = fmt.Errorf("%w: pool %q, worker %d", hapax.ErrLeaseLost, lease.Pool, lease.Worker)
		}
		return lease, err
	}
	g, err := c.part(&k, k.Mark, req.Now, req.To)
	if err != nil {
		return lease, err
	}
	lease.Grant = g
	return lease, nil
}

// renew asks the store for more time, shortly as long as there is some left. A
// grant that does not follow on, since the answer to an earlier request was lost,
// begins too far ahead to be of use: what is left is used up, and then another
// worker taken.
func (c *Cache) renew(ctx context.Context, k *keptLease, req hapax.ExtendRequest) error {
	if k.Mark < k.Hi {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, patience)
		defer cancel()
	}
	longer, err := c.upstream.ExtendWorker(ctx, k.lease(), req)
	switch {
	case err == nil && longer.Grant.Lo == k.Hi:
		k.Lo, k.Hi = longer.Grant.Lo, longer.Grant.Hi
	case err == nil || errors.Is(err, hapax.ErrLeaseLost):
		c.lost = true
	case isAway(err):
		c.deafUntil = time.Now().Add(deafness)
	}
	return err
}

// SealWorker implements hapax.WorkerStore. While the store is away the lease
// stays in the file, from its last tick on, for the next start.
func (c *Cache) SealWorker(ctx context.Context, lease hapax.Lease, last int64) error {
	done, err := c.begin(ctx)
	if err != nil {
		return err
	}
	defer done()
	if c.direct {
		return c.upstream.SealWorker(ctx, lease, last)
	}
	k := c.kept.Lease
	if c.resumes || !k.matches(lease) {
		return fmt.Errorf("%w: pool %q, worker %d: the cache has another lease", hapax.ErrLeaseLost, lease.Pool, lease.Worker)
	}
	if last < lease.From || last > k.Mark {
		return &hapax.ValueError{Field: "last", Value: last, Allowed: fmt.Sprintf("%d to %d, what was handed out", lease.From, k.Mark), Err: hapax.ErrInvalidArgument}
	}
	asked, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	next := c.kept
	if _, err := c.upstream.StoreID(asked); err != nil && isAway(err) {
		sealed := *k
		sealed.Mark = last
		next.Lease = &sealed
		err := c.write(next)
		c.resumes = err == nil
		return err
	}
	// Forgotten first: a lease that the store has taken back must not be resumed.
	next.Lease = nil
	if err := c.write(next); err != nil {
		return err
	}
	return c.upstream.SealWorker(ctx, k.lease(), last)
}

// write makes the file say what is kept. When it fails, the file may say so all
// the same, or still what it said before: neither hands anything out twice, as
// long as nothing is used that it does not say.
func (c *Cache) write(next kept) error {
	next.Format = cacheFormat
	err := replaceSynced(c.path, func(id fileid.Identity) ([]byte, error) {
		next.File, next.Boot = id, fileid.Boot()
		text, err := json.Marshal(next)
		return fmt.Appendf(text, "\n%08x\n", checksum(text)), err
	})
	if err != nil {
		return fmt.Errorf("%w: %s: %w", hapax.ErrStoreUnavailable, c.path, err)
	}
	c.kept = next
	return nil
}
