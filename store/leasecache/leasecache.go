// Package leasecache keeps the lease of a shared store in a local file, so that an
// issuer can start again while that store is away.
//
// The file holds the lease's key, with which the worker ID can be extended and
// sealed: it is for its owner alone (mode 0600), and no error or warning repeats
// it.
package leasecache

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/durable"
	"github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/store/internal/fileid"
)

var (
	_ hapax.WorkerStore = (*Cache)(nil)
	_ driver.Clock      = (*Cache)(nil)
)

// An Upstream is the store that grants the leases.
type Upstream interface {
	hapax.WorkerStore
	StoreID(ctx context.Context) (string, error)
}

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

// Options tune a Cache. The zero value suits most uses.
type Options struct {
	// Part is how much of a grant is handed out at a time: what a crash costs.
	// Default 3 s.
	Part time.Duration

	// Reserve is how much of the granted time is to be in hand: the store is asked for
	// more when less is left. Default half of the latest grant.
	Reserve time.Duration

	// Warn, if set, receives what makes the cache start without a lease although
	// there is a file: a copy, a damaged file, another store.
	Warn func(code, message string)
}

// A Cache lets one issuer start while its store is away. It keeps the lease that
// the store has granted in a local file and hands out short parts of its time,
// each recorded in the file before it is used. After a crash the next issuer with
// the same holder goes on above the last part, inside the time that the store
// granted:
//
//	store's grant  [======================================)
//	parts          [====)[====)[====)
//	                          ^crash ^goes on here
//
// A store that can be reached is asked first: it extends the lease, by which it
// shows that its row is not behind. A store that was put back, replaced or fenced
// is an error, however much time is left, and so is one that tells so when more
// time is due, that is when half of its grant is handed out, or less than
// Options.Reserve is left; and one that was away at the start is asked as soon as it
// answers. Until then the cache
// does not see what happens to the store: that a running node notices sooner is
// the business of its heartbeat. A store that does not answer within a second is
// away.
//
// Where going on is not possible the cache does what the store says: when the granted time
// is over, when layout, holder or worker IDs are others, when the machine was
// started anew, perhaps with an older disk, or when the file is a copy, came from
// another machine or is damaged. The parts of a lease that was dropped are lost,
// never repeated.
//
// A Cache serves one pool and one issuer. Its methods are safe for concurrent
// use. The file is locked until Close.
type Cache struct {
	disk     durable.Disk
	path     string
	upstream Upstream
	opts     Options
	lock     io.Closer
	turn     chan struct{} // holds the right to everything below, and to the file
	closed   atomic.Bool
	rest     atomic.Pointer[rest] // see Spare; the holder of the turn writes it

	kept    kept // as it is in the file, or may be
	resumes bool // the lease in kept was found in the file, and nobody has it yet
	lost    bool // the store has ended the lease; what is left of its grant is still good
	direct  bool // the file could not be written: the current lease is not in it
	unheard bool // the lease was resumed, and the store has not said what it knows of it
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
	Pool    string `json:"pool"`
	Worker  int64  `json:"worker"`
	Token   int64  `json:"token"`
	Key     string `json:"key"` // a secret
	Holder  string `json:"holder"`
	Expires int64  `json:"expires_ms"` // Unix milliseconds
	Lo      int64  `json:"lo"`         // of the store's latest grant
	Hi      int64  `json:"hi"`
	From    int64  `json:"from"`
	Mark    int64  `json:"mark"` // the end of the last part: ticks below it are taken
}

func (k *keptLease) lease() hapax.Lease {
	return hapax.Lease{
		Pool: k.Pool, Worker: k.Worker, Token: k.Token, Key: hapax.GrantKey(k.Key), Holder: k.Holder,
		Grant: hapax.Grant{Lo: k.Lo, Hi: k.Hi}, From: k.From, Expires: time.UnixMilli(k.Expires).UTC(),
	}
}

// matches reports whether a lease that a caller has is the kept one.
func (k *keptLease) matches(l hapax.Lease) bool {
	return k != nil && k.Pool == l.Pool && k.Worker == l.Worker && k.Token == l.Token && k.Key == string(l.Key)
}

const format = "hapax lease 2"

// Open returns a cache of the store's leases in the file at path, which is
// made if it does not exist; its directory must. The store stays the caller's to
// close. ErrStoreLocked if another process has the file open, ErrStoreCorrupt if
// another version has written it, which is left alone; ErrStoreUnavailable if it
// cannot be locked.
func Open(ctx context.Context, path string, upstream Upstream, opts Options) (*Cache, error) {
	return open(ctx, path, upstream, opts, durable.OS)
}

func open(ctx context.Context, path string, upstream Upstream, opts Options, disk durable.Disk) (*Cache, error) {
	if opts.Part == 0 {
		opts.Part = DefaultPart
	}
	if opts.Part < time.Millisecond || opts.Part > hapax.DefaultMaxGrant {
		return nil, &hapax.ValueError{Field: "part", Value: opts.Part, Allowed: fmt.Sprintf("1ms to %v", hapax.DefaultMaxGrant), Err: hapax.ErrInvalidArgument}
	}
	if opts.Reserve < 0 || opts.Reserve > hapax.PoisonMargin {
		return nil, &hapax.ValueError{Field: "reserve", Value: opts.Reserve, Allowed: fmt.Sprintf("0 to %v", hapax.PoisonMargin), Err: hapax.ErrInvalidArgument}
	}
	if opts.Warn == nil {
		opts.Warn = func(string, string) {}
	}
	lockCtx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	lock, err := durable.Lock(lockCtx, path+".lock")
	switch {
	case err != nil && lockCtx.Err() != nil && ctx.Err() == nil:
		return nil, fmt.Errorf("%w: %s is in use by another process", hapax.ErrStoreLocked, path)
	case err != nil:
		return nil, hapax.StoreError(fmt.Errorf("%s: %w", path, err))
	}
	c := &Cache{disk: disk, path: path, upstream: upstream, opts: opts, lock: lock, turn: make(chan struct{}, 1)}
	c.kept, err = readFile(path)
	switch {
	case errors.Is(err, errFormat): // it is that version's
		return nil, errors.Join(err, lock.Close())
	case err != nil:
		// A copy or a damaged file stops nobody: what its lease had left is lost, and never repeated.
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
	return c.lock.Close()
}

// Part returns how much of a grant is handed out at a time.
func (c *Cache) Part() time.Duration { return c.opts.Part }

// A rest is the granted time that is not handed out, and when it is over.
type rest struct {
	length time.Duration
	over   time.Time
}

// Spare returns how much of the granted time is not handed out yet, and is not of the past:
// for so long, beside what the issuer has, the store is not needed.
func (c *Cache) Spare() time.Duration {
	r := c.rest.Load()
	if r == nil {
		return 0
	}
	return max(0, min(r.length, time.Until(r.over)))
}

// Layout returns the layout of the lease in the file, with which an issuer can go
// on; the zero Layout if there is none.
func (c *Cache) Layout(ctx context.Context) (hapax.Layout, error) {
	done, err := c.begin(ctx)
	if err != nil {
		return hapax.Layout{}, err
	}
	defer done()
	if !c.resumes {
		return hapax.Layout{}, nil
	}
	return hapax.ParseLayout(c.kept.Layout)
}

// begin takes the turn; done gives it back.
func (c *Cache) begin(ctx context.Context) (done func(), err error) {
	if c.closed.Load() {
		return nil, fmt.Errorf("%w: the lease cache in %s", hapax.ErrClosed, c.path)
	}
	select {
	case c.turn <- struct{}{}:
		return func() { <-c.turn }, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("%w: %w", hapax.ErrStoreUnavailable, context.Cause(ctx))
	}
}

// isAway reports whether an error says that the store was not heard.
func isAway(err error) bool {
	return hapax.CodeOf(hapax.StoreError(err)) == hapax.ErrStoreUnavailable.Code()
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

// StoreTime implements driver.Clock for stores that do. The store is asked
// once a minute; while it is away there is no time to compare with.
func (c *Cache) StoreTime(ctx context.Context) (time.Time, error) {
	clock, ok := c.upstream.(driver.Clock)
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

// AcquireWorker implements hapax.WorkerStore: it goes on with the lease in the
// file if that is possible, or else takes one from the store.
func (c *Cache) AcquireWorker(ctx context.Context, req hapax.AcquireRequest) (hapax.Lease, error) {
	done, err := c.begin(ctx)
	if err != nil {
		return hapax.Lease{}, err
	}
	defer done()
	if c.layout = req.Layout; c.layout.IsZero() {
		return hapax.Lease{}, &hapax.ValueError{Field: "layout", Value: "", Allowed: "a layout", Err: hapax.ErrInvalidLayout}
	}
	t, err := c.ticks(req.Term)
	if err != nil {
		return hapax.Lease{}, err
	}
	open := c.resumes && c.mayResume(req, t)
	if open && c.kept.Lease.Mark <= t.latest {
		c.unheard = true
		if err := c.check(ctx, req); err != nil {
			return hapax.Lease{}, err
		}
		if c.resumes {
			return c.resume(t)
		}
		open = false
	}
	var cancel context.CancelFunc = func() {}
	if open { // the last part is not over: somebody else's worker may be free now
		ctx, cancel = context.WithTimeout(ctx, patience)
	}
	defer cancel()
	lease, err := c.acquire(ctx, req, t)
	if err != nil && open && c.kept.Lease != nil && (isAway(err) || hapax.CodeOf(err) == hapax.ErrNoWorker.Code()) {
		over := time.Duration(c.kept.Lease.Mark-t.latest) * c.layout.Unit() // of a part, which is short
		return hapax.Lease{}, &hapax.NoWorkerError{Pool: req.Pool, Size: 1, NextFree: req.Term.Now.Add(over)}
	}
	return lease, err
}

// ticks are a term in ticks of the layout.
type ticks struct {
	now    int64
	floor  int64 // the first tick of use
	latest int64 // the highest mark of a worker that is free
	to     int64 // where a grant should end
	poison int64 // a mark above this is absurd
}

func (c *Cache) ticks(term hapax.Term) (ticks, error) {
	now, err := c.layout.TickOf(term.Now)
	up := func(d time.Duration) int64 { return int64((d + c.layout.Unit() - 1) / c.layout.Unit()) }
	return ticks{
		now: now, floor: max(0, now-int64(term.Behind/c.layout.Unit())), latest: now + int64(term.Ahead/c.layout.Unit()),
		to: now + up(term.Length), poison: now + up(hapax.PoisonMargin),
	}, err
}

// mayResume reports whether the kept lease is what the request asks for, and has
// time left.
func (c *Cache) mayResume(req hapax.AcquireRequest, t ticks) bool {
	k := c.kept.Lease
	return k.Pool == req.Pool && k.Holder == req.Holder && c.kept.Layout == req.Layout.String() &&
		req.Workers.Contains(k.Worker) && (len(req.Among) == 0 || slices.Contains(req.Among, k.Worker)) &&
		k.Hi <= req.Layout.EndTick() && k.Hi <= t.poison && max(k.Mark, t.floor) < k.Hi
}

// check has the store, if it can be reached, say what it knows of the lease in
// the file, before that is resumed. A lease that it has ended, or that another
// store has granted, is dropped. What else the store says against it is an error.
func (c *Cache) check(ctx context.Context, req hapax.AcquireRequest) error {
	asked, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	k := *c.kept.Lease
	if _, err := c.storeID(asked); err != nil || c.kept.Lease == nil {
		return c.unlessAway(ctx, err)
	}
	err := c.renew(asked, &k, req.Layout, req.Term)
	if err == nil && !c.lost {
		next := c.kept
		next.Lease = &k
		return c.write(next)
	}
	if c.lost {
		c.kept.Lease, c.resumes, c.lost = nil, false, false
		return nil
	}
	return c.unlessAway(ctx, err)
}

// unlessAway drops the error of a store that is away, unless the caller's context
// has ended.
func (c *Cache) unlessAway(ctx context.Context, err error) error {
	if err != nil && isAway(err) && ctx.Err() == nil {
		return nil
	}
	return err
}

func (c *Cache) resume(t ticks) (hapax.Lease, error) {
	k := *c.kept.Lease
	lo := max(k.Mark, t.floor)
	g, err := c.part(&k, lo, t)
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
func (c *Cache) acquire(ctx context.Context, req hapax.AcquireRequest, t ticks) (hapax.Lease, error) {
	id, err := c.storeID(ctx)
	if err != nil {
		return hapax.Lease{}, err
	}
	probe := c.kept
	if probe.Lease == nil {
		probe = kept{Store: id, Layout: req.Layout.String()}
	}
	writable := c.write(probe)
	lease, err := c.upstream.AcquireWorker(ctx, req)
	if err != nil {
		return lease, err
	}
	c.resumes, c.lost, c.unheard = false, false, false
	if c.direct = writable != nil; c.direct {
		c.rest.Store(nil)
		c.opts.Warn(string(hapax.ErrStoreUnavailable.Code()), writable.Error()+"; a restart will need the store")
		return lease, nil
	}
	c.kept = kept{Store: id, Layout: req.Layout.String()}
	k := keptLease{
		lease.Pool, lease.Worker, lease.Token, string(lease.Key), lease.Holder, lease.Expires.UnixMilli(), lease.Grant.Lo, lease.Grant.Hi, lease.From, lease.Grant.Lo,
	}
	lease.Grant, err = c.part(&k, lease.Grant.Lo, t)
	return lease, err
}

// part hands out the next part of a lease, from lo on, once the file says so.
func (c *Cache) part(k *keptLease, lo int64, t ticks) (hapax.Grant, error) {
	most := t.now + int64((c.opts.Part+c.layout.Unit()-1)/c.layout.Unit())
	hi := min(k.Hi, max(lo+1, min(most, t.to)))
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
func (c *Cache) ExtendWorker(ctx context.Context, lease hapax.Lease, layout hapax.Layout, term hapax.Term) (hapax.Lease, error) {
	done, err := c.begin(ctx)
	if err != nil {
		return lease, err
	}
	defer done()
	if c.direct {
		return c.upstream.ExtendWorker(ctx, lease, layout, term)
	}
	if c.resumes || !c.kept.Lease.matches(lease) {
		return lease, fmt.Errorf("%w: pool %q, worker %d: the cache has another lease", hapax.ErrLeaseLost, lease.Pool, lease.Worker)
	}
	k := *c.kept.Lease
	reserve := (k.Hi - k.Lo) / 2
	if c.opts.Reserve > 0 {
		reserve = int64(c.opts.Reserve / c.layout.Unit())
	}
	due := c.unheard || k.Mark >= k.Hi-reserve
	t, err := c.ticks(term)
	if err != nil {
		return lease, err
	}
	if left := k.Mark < k.Hi; due && !c.lost && !(left && time.Now().Before(c.deafUntil)) {
		err = c.renew(ctx, &k, layout, term)
	}
	// What the store says against the lease counts, however much time is left.
	if err != nil && !isAway(err) && !errors.Is(err, hapax.ErrLeaseLost) {
		return lease, err
	}
	if k.Mark >= k.Hi {
		if err == nil {
			err = fmt.Errorf("%w: pool %q, worker %d", hapax.ErrLeaseLost, lease.Pool, lease.Worker)
		}
		return lease, err
	}
	g, err := c.part(&k, k.Mark, t)
	if err != nil {
		return lease, err
	}
	lease.Grant = g
	return lease, nil
}

// renew asks the store for more time, shortly as long as there is some left. A
// grant that does not follow on is not used: what is left is used up, and then
// another worker taken.
func (c *Cache) renew(ctx context.Context, k *keptLease, layout hapax.Layout, term hapax.Term) error {
	if k.Mark < k.Hi {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, patience)
		defer cancel()
	}
	longer, err := c.upstream.ExtendWorker(ctx, k.lease(), layout, term)
	switch {
	case err == nil && longer.Grant.Lo == k.Hi:
		k.Lo, k.Hi, k.Expires = longer.Grant.Lo, longer.Grant.Hi, longer.Expires.UnixMilli()
		c.unheard = false
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
	// By a question that changes nothing: a seal without an answer may have ended the lease that the file would
	// keep.
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
	next.Format = format
	err := durable.Replace(c.disk, c.path, func(f *os.File) ([]byte, error) {
		id, err := fileid.Of(f)
		if err != nil {
			return nil, err
		}
		next.File, next.Boot = id, fileid.Boot()
		text, err := json.Marshal(next)
		return fmt.Appendf(text, "\n%08x\n", checksum(text)), err
	})
	if err != nil {
		return fmt.Errorf("%w: %s: %w", hapax.ErrStoreUnavailable, c.path, err)
	}
	c.kept = next
	c.rest.Store(nil)
	if k := next.Lease; k != nil && !c.layout.IsZero() {
		length := time.Duration(k.Hi-k.Mark) * c.layout.Unit()
		c.rest.Store(&rest{length, time.Now().Add(c.opts.Part + length)})
	}
	return nil
}
