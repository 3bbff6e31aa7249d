package service

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hapax-id/hapax"
)

// Bounds on what a client may lease at once. They are as wide as what the
// library's issuers accept as settings.
const (
	maxLeaseTime = 24 * time.Hour
	maxLeaseTTL  = 48 * time.Hour
)

// StoreID returns the identity of the store, which clients keep as their own
// store's.
func (s *Service) StoreID(ctx context.Context) (string, error) {
	return admin(ctx, s, s.store.StoreID)
}

// Allocate leases the next n numbers of a segment tag to a client; 0 stands for
// the tag's step. It never creates the tag: see CreateTag. ErrTagNotFound,
// ErrTagDeleted, ErrKindMismatch, ErrLineExhausted.
func (s *Service) Allocate(ctx context.Context, tag string, n int64) (hapax.Allocation, error) {
	if err := hapax.ValidateName("tag", tag); err != nil {
		return hapax.Allocation{}, err
	}
	return admin(ctx, s, func(ctx context.Context) (hapax.Allocation, error) { return s.store.Allocate(ctx, tag, n) })
}

// AcquireWorker leases a worker ID to a client. The layout must be the pool's;
// the end of its time is the layout's, whatever the request says.
func (s *Service) AcquireWorker(ctx context.Context, req hapax.AcquireRequest) (hapax.Lease, error) {
	if err := hapax.ValidateName("pool", req.Pool); err != nil {
		return hapax.Lease{}, err
	}
	layout, err := hapax.ParseLayout(req.Layout)
	if err != nil {
		return hapax.Lease{}, err
	}
	if req.IDs.Lo < 0 || req.IDs.Len() < 1 || req.IDs.Hi > layout.Workers() {
		return hapax.Lease{}, outOfRange("workers", fmt.Sprintf("[%d, %d)", req.IDs.Lo, req.IDs.Hi), fmt.Sprintf("a range within 0 to %d", layout.Workers()-1))
	}
	if err := s.checkReach(layout, req.To, req.TTL); err != nil {
		return hapax.Lease{}, err
	}
	if err := s.admitLayout(ctx, req.Pool, layout); err != nil {
		return hapax.Lease{}, err
	}
	latest, err := s.reach(layout)
	if err != nil {
		return hapax.Lease{}, err
	}
	req.Layout, req.Tick, req.End = layout.String(), layout.Unit(), layout.EndTick()
	req.Latest, req.Poison = min(req.Latest, latest), min(req.Poison, latest)
	return admin(ctx, s, func(ctx context.Context) (hapax.Lease, error) { return s.store.AcquireWorker(ctx, req) })
}

// ExtendWorker extends a client's lease. ErrLeaseLost.
func (s *Service) ExtendWorker(ctx context.Context, lease hapax.Lease, req hapax.ExtendRequest) (hapax.Lease, error) {
	layout, err := admin(ctx, s, func(ctx context.Context) (hapax.Layout, error) { return s.frozenLayout(ctx, lease.Pool) })
	if err != nil {
		return lease, err
	}
	if err := s.checkReach(layout, req.To, req.TTL); err != nil {
		return lease, err
	}
	req.End = layout.EndTick()
	return admin(ctx, s, func(ctx context.Context) (hapax.Lease, error) { return s.store.ExtendWorker(ctx, lease, req) })
}

// SealWorker ends a client's lease; last is at or above every tick it used.
// ErrLeaseLost.
func (s *Service) SealWorker(ctx context.Context, lease hapax.Lease, last int64) error {
	if err := hapax.ValidateName("pool", lease.Pool); err != nil {
		return err
	}
	_, err := admin(ctx, s, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, s.store.SealWorker(ctx, lease, last)
	})
	return err
}

// StoreTime returns the store's time, or this node's where the store has no
// clock, for clients to compare theirs with.
func (s *Service) StoreTime(ctx context.Context) (time.Time, error) {
	t, err := admin(ctx, s, s.store.StoreTime)
	if errors.Is(err, hapax.ErrNotSupported) {
		return s.now(), nil
	}
	return t, err
}

// reach returns the highest tick that a lease may reach now.
func (s *Service) reach(layout hapax.Layout) (int64, error) {
	tick, err := layout.TickOf(s.now())
	return tick + int64(maxLeaseTime/layout.Unit()), err
}

// checkReach refuses a lease that would lock a worker ID up for long.
func (s *Service) checkReach(layout hapax.Layout, to int64, ttl time.Duration) error {
	most, err := s.reach(layout)
	switch {
	case err != nil:
		return err
	case to > most:
		return outOfRange("to", to, fmt.Sprintf("up to tick %d, which is %v from now", most, maxLeaseTime))
	case ttl <= 0 || ttl > maxLeaseTTL:
		return outOfRange("ttl", ttl, fmt.Sprintf("up to %v", maxLeaseTTL))
	}
	return nil
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
		return l, fmt.Errorf("%w: pool %q was never used", hapax.ErrLeaseLost, pool)
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
			s.store.health.note(KindPool, p.Name, err)
			if pass, dropped := s.throttle.pass("layout"); pass {
				s.log.Error("a pool cannot be used", "pool", p.Name, "error", err.Error(), "suppressed", dropped)
			}
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range pools {
		if l, err := hapax.ParseLayout(p.Layout); err == nil {
			s.layouts[p.Name] = l
		}
	}
	return nil
}
