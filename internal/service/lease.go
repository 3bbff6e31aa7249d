package service

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/ledger"
	"github.com/hapax-id/hapax/internal/service/auth"
	"github.com/hapax-id/hapax/internal/service/watch"
	"github.com/hapax-id/hapax/store/witness"
)

// maxLeaseTime bounds what a client may ask for at once, which is as much as what
// the library's issuers accept as settings. It gets less.
const maxLeaseTime = 24 * time.Hour

// StoreID returns the identity of the store, which clients keep as their own
// store's.
func (s *Service) StoreID(ctx context.Context) (string, error) {
	return admin(ctx, s, s.store.StoreID)
}

// KnownStore returns the identity of the store that this node works with, without
// asking where it is known.
func (s *Service) KnownStore(ctx context.Context) (string, error) {
	if g := s.Guard(); g != nil && g.Status().State == witness.Serving { // else it may be another store than the witness knows
		if id := g.Witness().StoreID(); id != "" {
			return id, nil
		}
	}
	return s.StoreID(ctx)
}

// Guard returns the guard around the store; nil where there is none.
func (s *Service) Guard() *witness.Guarded {
	g, _ := s.store.Store.(*witness.Guarded)
	return g
}

// Allocate leases the next n numbers of a segment tag to a client, up to the
// tag's largest step; 0 stands for its step. It never creates the tag: see
// CreateTag. ErrTagNotFound, ErrTagDeleted, ErrKindMismatch, ErrLineExhausted,
// ErrLimitExceeded.
func (s *Service) Allocate(ctx context.Context, tag string, n int64, last hapax.GrantKey) (hapax.Allocation, error) {
	if err := hapax.ValidateName("tag", tag); err != nil {
		return hapax.Allocation{}, err
	}
	return admin(ctx, s, func(ctx context.Context) (hapax.Allocation, error) {
		n, err := s.leasable(ctx, tag, n)
		if err != nil {
			return hapax.Allocation{}, err
		}
		caller := auth.FromContext(ctx)
		if err := caller.TakeNumbers(n); err != nil {
			return hapax.Allocation{}, err
		}
		a, err := s.store.Allocate(s.leased(ctx), tag, n, last)
		if err != nil {
			if !errors.Is(ctx.Err(), context.Canceled) { // whoever leaves may have burnt them
				caller.ReturnNumbers(n)
			}
			return a, err
		}
		s.bounds.note(a.Tag)
		return a, s.opts.keys().CheckLease(a.Tag)
	})
}

// HandBack takes back what a client did not issue of a segment that was leased
// to it. ErrLeaseLost.
func (s *Service) HandBack(ctx context.Context, a hapax.Allocation, next int64) error {
	if err := hapax.ValidateName("tag", a.Tag.Name); err != nil {
		return err
	}
	_, err := admin(ctx, s, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, s.store.HandBack(s.leased(ctx), a, next)
	})
	if b, ok := s.bounds.of(a.Tag.Name); ok && err == nil {
		auth.FromContext(ctx).ReturnNumbers((a.Grant.Hi - next) / b.delta)
	}
	return err
}

// AcquireWorker leases a worker ID to a client. The server decides what is the
// server's: the pool's layout, the time and how long the lease lasts at most; a
// layout in the request is a check.
func (s *Service) AcquireWorker(ctx context.Context, req hapax.AcquireRequest) (hapax.Lease, error) {
	lease, err := s.acquireWorker(ctx, req)
	if about := []any{"pool", req.Pool, "holder", req.Holder}; err == nil {
		s.Attempted(ctx, "lease worker", nil, append(about, "worker", lease.Worker, "fencing_token", lease.Token)...)
	} else if isRefused(err) {
		s.Attempted(ctx, "lease worker", err, about...)
	}
	return lease, err
}

func (s *Service) acquireWorker(ctx context.Context, req hapax.AcquireRequest) (hapax.Lease, error) {
	if err := hapax.ValidateName("pool", req.Pool); err != nil {
		return hapax.Lease{}, err
	}
	if err := s.admitPool(ctx, req.Pool); err != nil {
		return hapax.Lease{}, err
	}
	if err := s.mayLeaseWorkers(ctx, req.Pool); err != nil {
		return hapax.Lease{}, err
	}
	layout, err := s.PoolLayout(ctx, req.Pool)
	if err != nil {
		return hapax.Lease{}, err
	}
	if !req.Layout.IsZero() && req.Layout != layout {
		return hapax.Lease{}, fmt.Errorf("%w: pool %q has %s, the caller asks for %s", hapax.ErrLayoutMismatch, req.Pool, layout, req.Layout)
	}
	req.Layout = layout
	if req.Workers == (hapax.WorkerRange{}) {
		req.Workers.Hi = layout.Workers()
	}
	if err := hapax.ValidateName("holder", req.Holder); err != nil {
		return hapax.Lease{}, err
	}
	if req.Term, err = s.term(req.Pool, layout, req.Term); err != nil {
		return hapax.Lease{}, err
	}
	settle, err := auth.FromContext(ctx).AskLease()
	if err != nil {
		return hapax.Lease{}, err
	}
	lease, err := admin(ctx, s, func(ctx context.Context) (hapax.Lease, error) { return s.store.AcquireWorker(s.leased(ctx), req) })
	settle(lease, err == nil)
	if err == nil {
		s.holders.note(lease)
	}
	return lease, err
}

// ExtendWorker extends a client's lease, by the layout that the store has frozen. ErrLeaseLost.
func (s *Service) ExtendWorker(ctx context.Context, lease hapax.Lease, _ hapax.Layout, term hapax.Term) (hapax.Lease, error) {
	layout, err := admin(ctx, s, func(ctx context.Context) (hapax.Layout, error) { return s.frozenLayout(ctx, lease.Pool) })
	if err != nil {
		return lease, err
	}
	if term, err = s.term(lease.Pool, layout, term); err != nil {
		return lease, err
	}
	extended, err := admin(ctx, s, func(ctx context.Context) (hapax.Lease, error) {
		return s.store.ExtendWorker(s.leased(ctx), lease, layout, term)
	})
	switch {
	case err == nil:
		auth.FromContext(ctx).NoteLease(extended)
		s.holders.note(extended)
	case isRefused(err):
		s.Attempted(ctx, "extend lease", err, "pool", lease.Pool, "worker", lease.Worker)
	}
	return extended, err
}

// SealWorker ends a client's lease; last is at or above every tick it used.
// ErrLeaseLost.
func (s *Service) SealWorker(ctx context.Context, lease hapax.Lease, last int64) error {
	if err := hapax.ValidateName("pool", lease.Pool); err != nil {
		return err
	}
	_, err := admin(ctx, s, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, s.store.SealWorker(s.leased(ctx), lease, last)
	})
	switch {
	case err == nil:
		auth.FromContext(ctx).EndLease(lease)
		s.holders.end(lease)
	case isRefused(err):
		s.Attempted(ctx, "seal lease", err, "pool", lease.Pool, "worker", lease.Worker)
	}
	return err
}

// term returns what a client may have of the term that it asks for: by this
// server's clock, and no longer than this server itself would take.
func (s *Service) term(pool string, layout hapax.Layout, asked hapax.Term) (hapax.Term, error) {
	opts, err := s.opts.poolOptions(pool, layout)
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
		Now: s.leaseTime(), Length: length, Ahead: min(max(0, asked.Ahead), ahead), Behind: min(max(0, asked.Behind), opts.MaxBehind),
		TTL: length + orDefault(opts.Lease, hapax.DefaultLease),
	}, nil
}

// StoreTime returns the store's time, or this node's where the store has no
// clock, for clients to compare theirs with.
func (s *Service) StoreTime(ctx context.Context) (time.Time, error) {
	t, err := admin(ctx, s, s.store.StoreTime)
	if errors.Is(err, hapax.ErrNotSupported) {
		return s.leaseTime(), nil
	}
	return t, err
}

// leaseTime is the time that leases go by.
func (s *Service) leaseTime() time.Time {
	now, _ := s.engine.Now()
	return now
}

// frozenLayout returns the layout that the store has frozen the pool with.
func (s *Service) frozenLayout(ctx context.Context, pool string) (hapax.Layout, error) {
	s.mu.Lock()
	l, ok := s.layouts[pool]
	s.mu.Unlock()
	if ok {
		return l, nil
	}
	if err := s.learnPools(ctx); err != nil {
		return hapax.Layout{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if l, ok = s.layouts[pool]; !ok {
		return l, fmt.Errorf("%w: %q", hapax.ErrPoolNotFound, pool)
	}
	return l, nil
}

// learnPools reads the frozen layouts, which never change again.
func (s *Service) learnPools(ctx context.Context) error {
	pools, err := s.store.Pools(ctx)
	if err != nil {
		return err
	}
	for _, p := range pools {
		if err := s.opts.checkPool(p); err != nil {
			s.store.Note(watch.Pool(p.Name), err)
			if pass, dropped := s.throttle.pass("layout"); pass {
				s.log.Error("a pool cannot be used", "pool", p.Name, "code", string(hapax.CodeOf(err)), "err", err, "suppressed", dropped)
			}
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range pools {
		if l, err := hapax.ParseLayout(p.Layout); err == nil && !p.Deleted {
			s.layouts[p.Name] = l
		}
	}
	return nil
}

// leased returns a context in which grants are for the caller, and not for
// this node.
func (s *Service) leased(ctx context.Context) context.Context {
	by := ledger.By{Name: auth.FromContext(ctx).Name(), Address: auth.AddressFrom(ctx)}
	if s.opts.OneShot {
		by = ledger.Command
	}
	return watch.For(ctx, by)
}
