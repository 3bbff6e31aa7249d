package service

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/ledger"
	"github.com/hapax-id/hapax/internal/service/auth"
	"github.com/hapax-id/hapax/internal/service/define"
	"github.com/hapax-id/hapax/internal/service/watch"
	"github.com/hapax-id/hapax/strategy"
)

// maxLeaseTime bounds what a client may ask for at once, which is as much as what
// the library's issuers accept as settings. It gets less.
const maxLeaseTime = 24 * time.Hour

// leases are grants for clients that issue by themselves.
type leases struct {
	*core
	*definitions

	holders *holders
}

// Allocate leases the next n numbers of a segment tag to a client, up to the
// tag's largest step; 0 stands for its step. It never creates the tag: see
// CreateTag. ErrTagNotFound, ErrTagDeleted, ErrKindMismatch, ErrLineExhausted,
// ErrLimitExceeded.
func (ls *leases) Allocate(ctx context.Context, tag string, n int64, last hapax.GrantKey) (hapax.Allocation, error) {
	if err := hapax.ValidateName("tag", tag); err != nil {
		return hapax.Allocation{}, err
	}
	return admin(ctx, ls.core, func(ctx context.Context) (hapax.Allocation, error) {
		n, def, err := ls.leasable(ctx, tag, n)
		if err != nil {
			return hapax.Allocation{}, err
		}
		caller := auth.FromContext(ctx)
		if err := caller.TakeNumbers(n); err != nil {
			return hapax.Allocation{}, err
		}
		a, err := ls.store.Of(def).Allocate(ls.leased(ctx), tag, n, last)
		if err != nil {
			if !errors.Is(ctx.Err(), context.Canceled) { // whoever leaves may have burnt them
				caller.ReturnNumbers(n)
			}
			return a, err
		}
		// Of the tag as it came with the grant: it may be another than when its bounds were noted.
		return a, ls.opts.keys().CheckLease(ls.bounds.note(a.Tag).def)
	})
}

// HandBack takes back what a client did not issue of a segment that was leased
// to it. ErrLeaseLost.
func (ls *leases) HandBack(ctx context.Context, a hapax.Allocation, next int64) error {
	if err := hapax.ValidateName("tag", a.Tag.Name); err != nil {
		return err
	}
	_, err := admin(ctx, ls.core, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, ls.store.HandBack(ls.leased(ctx), a, next)
	})
	if b, ok := ls.bounds.of(a.Tag.Name); ok && err == nil {
		auth.FromContext(ctx).ReturnNumbers(b.below(a.Grant.Hi) - b.below(next))
	}
	return err
}

// AcquireWorker leases a worker ID to a client. The server decides what is the
// server's: the pool's layout, the time and how long the lease lasts at most; a
// layout in the request is a check.
func (ls *leases) AcquireWorker(ctx context.Context, req hapax.AcquireRequest) (hapax.Lease, error) {
	lease, err := ls.acquireWorker(ctx, req)
	if about := []any{"pool", req.Pool, "holder", req.Holder}; err == nil {
		ls.Attempted(ctx, "lease worker", nil, append(about, "worker", lease.Worker, "fencing_token", lease.Token)...)
	} else if isRefused(err) {
		ls.Attempted(ctx, "lease worker", err, about...)
	}
	return lease, err
}

func (ls *leases) acquireWorker(ctx context.Context, req hapax.AcquireRequest) (hapax.Lease, error) {
	if err := hapax.ValidateName("pool", req.Pool); err != nil {
		return hapax.Lease{}, err
	}
	if err := ls.admitPool(ctx, req.Pool); err != nil {
		return hapax.Lease{}, err
	}
	if err := ls.mayLeaseWorkers(ctx, req.Pool); err != nil {
		return hapax.Lease{}, err
	}
	layout, err := ls.PoolLayout(ctx, req.Pool)
	if err != nil {
		return hapax.Lease{}, err
	}
	lease, err := ls.acquireAs(ctx, req, layout)
	if errors.Is(err, hapax.ErrLayoutMismatch) { // the pool may be another one than when this node read it
		now, nowErr := admin(ctx, ls.core, func(ctx context.Context) (hapax.Layout, error) { return ls.layoutNow(ctx, req.Pool) })
		if nowErr == nil && now != layout {
			return ls.acquireAs(ctx, req, now)
		}
	}
	return lease, err
}

// acquireAs leases a worker ID of a pool that has the layout.
func (ls *leases) acquireAs(ctx context.Context, req hapax.AcquireRequest, layout hapax.Layout) (_ hapax.Lease, err error) {
	if !req.Layout.IsZero() && req.Layout != layout {
		return hapax.Lease{}, fmt.Errorf("%w: pool %q has %s, the caller asks for %s", hapax.ErrLayoutMismatch, req.Pool, layout, req.Layout)
	}
	req.Layout = layout
	if req.Workers == (hapax.WorkerRange{}) {
		req.Workers.Hi = layout.Workers()
	}
	if req, err = ls.lent(req); err != nil {
		return hapax.Lease{}, err
	}
	if err := hapax.ValidateName("holder", req.Holder); err != nil {
		return hapax.Lease{}, err
	}
	if req.Term, err = ls.term(req.Pool, layout, req.Term); err != nil {
		return hapax.Lease{}, err
	}
	// Counted before the store is asked: leases that are asked for at the same time share the quota.
	settle, err := auth.FromContext(ctx).AskLease()
	if err != nil {
		return hapax.Lease{}, err
	}
	lease, err := admin(ctx, ls.core, func(ctx context.Context) (hapax.Lease, error) { return ls.store.AcquireWorker(ls.leased(ctx), req) })
	settle(lease, err == nil)
	if err == nil {
		ls.settleLayout(req.Pool, layout)
		ls.holders.note(lease)
	}
	return lease, err
}

// lent narrows a request to the worker IDs of the pool that nobody else gives out.
func (ls *leases) lent(req hapax.AcquireRequest) (hapax.AcquireRequest, error) {
	c := ls.opts.Pools[req.Pool]
	if c.others == "" {
		return req, nil
	}
	if c.lends.Len() <= 0 {
		return req, fmt.Errorf("%w: %s gives out the worker IDs of pool %q, also to programs that the store knows nothing of, so none is leased: take another pool", strategy.ErrRejected, c.others, req.Pool)
	}
	asked, among := req.Workers, len(req.Among) > 0
	req.Workers = hapax.WorkerRange{Lo: max(asked.Lo, c.lends.Lo), Hi: min(asked.Hi, c.lends.Hi)}
	req.Among = slices.DeleteFunc(slices.Clone(req.Among), func(id int64) bool { return !c.lends.Contains(id) })
	if req.Workers.Len() <= 0 || among && len(req.Among) == 0 {
		return req, outOfRange("workers", fmt.Sprintf("[%d, %d)", asked.Lo, asked.Hi), fmt.Sprintf("worker IDs from %d to %d, since the others are those of %s", c.lends.Lo, c.lends.Hi-1, c.others))
	}
	return req, nil
}

// ExtendWorker extends a client's lease, by the layout that the store has frozen. ErrLeaseLost.
func (ls *leases) ExtendWorker(ctx context.Context, lease hapax.Lease, _ hapax.Layout, term hapax.Term) (hapax.Lease, error) {
	layout, err := admin(ctx, ls.core, func(ctx context.Context) (hapax.Layout, error) { return ls.layoutNow(ctx, lease.Pool) })
	if err != nil {
		return lease, err
	}
	if term, err = ls.term(lease.Pool, layout, term); err != nil {
		return lease, err
	}
	extended, err := admin(ctx, ls.core, func(ctx context.Context) (hapax.Lease, error) {
		return ls.store.ExtendWorker(ls.leased(ctx), lease, layout, term)
	})
	switch {
	case err == nil:
		ls.settleLayout(lease.Pool, layout)
		auth.FromContext(ctx).NoteLease(extended)
		ls.holders.note(extended)
	case isRefused(err):
		ls.Attempted(ctx, "extend lease", err, "pool", lease.Pool, "worker", lease.Worker)
	}
	return extended, err
}

// SealWorker ends a client's lease; last is at or above every tick it used.
// ErrLeaseLost.
func (ls *leases) SealWorker(ctx context.Context, lease hapax.Lease, last int64) error {
	if err := hapax.ValidateName("pool", lease.Pool); err != nil {
		return err
	}
	_, err := admin(ctx, ls.core, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, ls.store.SealWorker(ls.leased(ctx), lease, last)
	})
	switch {
	case err == nil:
		auth.FromContext(ctx).EndLease(lease)
		ls.holders.end(lease)
	case isRefused(err):
		ls.Attempted(ctx, "seal lease", err, "pool", lease.Pool, "worker", lease.Worker)
	}
	return err
}

// term returns what a client may have of the term that it asks for: by this
// server's clock, and no longer than this server itself would take.
func (ls *leases) term(pool string, layout hapax.Layout, asked hapax.Term) (hapax.Term, error) {
	opts, err := ls.opts.poolOptions(pool, layout)
	if err != nil {
		return asked, err
	}
	if asked.Length <= 0 || asked.Length > maxLeaseTime {
		return asked, outOfRange("length", asked.Length, fmt.Sprintf("more than 0, up to %v", maxLeaseTime))
	}
	orDefault := func(d, standard time.Duration) time.Duration {
		if d == 0 {
			return standard
		}
		return d
	}
	length := min(asked.Length, orDefault(opts.MaxGrant, hapax.DefaultMaxGrant))
	ahead := orDefault(opts.MaxAhead, max(hapax.DefaultMaxAhead, layout.Unit()))
	return hapax.Term{
		Now: ls.leaseTime(), Length: length, Ahead: min(max(0, asked.Ahead), ahead), Behind: min(max(0, asked.Behind), opts.MaxBehind),
		TTL: length + orDefault(opts.Lease, hapax.DefaultLease),
	}, nil
}

// leased returns a context in which grants are for the caller, and not for
// this node.
func (ls *leases) leased(ctx context.Context) context.Context {
	by := ledger.By{Name: auth.FromContext(ctx).Name(), Address: auth.AddressFrom(ctx)}
	if ls.opts.OneShot {
		by = ledger.Command
	}
	return watch.For(ctx, by)
}

// leasable returns how many numbers a lease of n is, where 0 stands for the tag's
// step: no more than the tag's largest step, so that nobody ends a line. It also returns the
// tag as it is known.
func (ls *leases) leasable(ctx context.Context, tag string, n int64) (int64, define.Tag, error) {
	b, known := ls.bounds.of(tag)
	if !known || n > b.most { // it may have been raised
		t, err := ls.store.Tag(ctx, tag)
		switch {
		case err != nil:
			return 0, b.def, err
		case t.Deleted:
			return 0, b.def, fmt.Errorf("%w: %q", hapax.ErrTagDeleted, tag)
		case t.Kind != hapax.KindSegment:
			return 0, b.def, fmt.Errorf("%w: %q is a %s tag", hapax.ErrKindMismatch, tag, t.Kind)
		}
		b = ls.bounds.note(t)
	}
	switch {
	case n == 0:
		n = b.step
	case n < 0 || n > b.most:
		return 0, b.def, outOfRange("n", n, fmt.Sprintf("0, for the tag's step, to its max_step (%d)", b.most))
	}
	plugins, err := ls.pluginsOf(ctx, b.def)
	if err == nil {
		err = ls.opts.keepsApart(b.def, plugins.Name)
	}
	if err == nil {
		err = ls.mayLease(ctx, plugins, n)
	}
	return n, b.def, err
}

// pluginsOf returns the tag whose plugins count where numbers of a tag are leased:
// the same, or that of which it is a period's line.
func (ls *leases) pluginsOf(ctx context.Context, t define.Tag) (define.Tag, error) {
	of, _, ok := define.CutLine(t.Name)
	if !ok {
		return t, nil
	}
	parent, err := ls.store.Definition(ctx, of)
	if errors.Is(err, hapax.ErrTagNotFound) {
		return t, nil
	}
	if err != nil {
		return t, err
	}
	if c, err := ls.opts.keys().Code(parent); err != nil || !c.HasPeriod() {
		return t, err
	}
	return parent, nil
}
