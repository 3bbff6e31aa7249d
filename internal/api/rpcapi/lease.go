package rpcapi

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/api/hapaxv1"
	"github.com/hapax-id/hapax/api/hapaxv1/hapaxv1connect"
	"github.com/hapax-id/hapax/internal/service"
	"github.com/hapax-id/hapax/internal/service/define"
	"github.com/hapax-id/hapax/internal/wire"
	"github.com/hapax-id/hapax/store/driver"
)

var (
	_ driver.Store                       = serviceStore{}
	_ driver.Clock                       = serviceStore{}
	_ hapaxv1connect.LeaseServiceHandler = (*leaseServer)(nil)
)

// serviceStore is the service as a store.
type serviceStore struct{ *service.Service }

// Ping implements driver.Store.
func (s serviceStore) Ping(ctx context.Context) error { return s.Ready(ctx) }

// Close implements driver.Store: the service is not the handler's to close.
func (s serviceStore) Close() error { return nil }

// leaseServer serves hapax.v1.LeaseService.
type leaseServer struct {
	store    driver.Store
	validity time.Duration
}

// GetStoreID implements hapaxv1connect.LeaseServiceHandler.
func (s *leaseServer) GetStoreID(ctx context.Context, _ *hapaxv1.GetStoreIDRequest) (*hapaxv1.GetStoreIDResponse, error) {
	id, err := s.store.StoreID(ctx)
	if err != nil {
		return nil, err
	}
	return &hapaxv1.GetStoreIDResponse{StoreId: id}, nil
}

// GetStoreTime implements hapaxv1connect.LeaseServiceHandler.
func (s *leaseServer) GetStoreTime(ctx context.Context, _ *hapaxv1.GetStoreTimeRequest) (*hapaxv1.GetStoreTimeResponse, error) {
	clock, ok := s.store.(driver.Clock)
	if !ok {
		return nil, fmt.Errorf("%w: it has no clock", hapax.ErrNotSupported)
	}
	t, err := clock.StoreTime(ctx)
	if err != nil {
		return nil, err
	}
	return &hapaxv1.GetStoreTimeResponse{Time: timestamppb.New(t)}, nil
}

// Ping implements hapaxv1connect.LeaseServiceHandler.
func (s *leaseServer) Ping(ctx context.Context, _ *hapaxv1.PingRequest) (*hapaxv1.PingResponse, error) {
	if err := s.store.Ping(ctx); err != nil {
		return nil, err
	}
	return &hapaxv1.PingResponse{}, nil
}

// Allocate implements hapaxv1connect.LeaseServiceHandler.
func (s *leaseServer) Allocate(ctx context.Context, req *hapaxv1.AllocateRequest) (*hapaxv1.AllocateResponse, error) {
	a, err := s.store.Allocate(ctx, req.GetTag(), req.GetN(), hapax.GrantKey(req.GetLastKey()))
	if err != nil {
		return nil, err
	}
	return &hapaxv1.AllocateResponse{
		Grant: wire.NewGrant(a.Grant), Tag: wire.NewTag(a.Tag), ValidFor: durationpb.New(s.validity), Key: string(a.Key), From: a.From,
	}, nil
}

// HandBack implements hapaxv1connect.LeaseServiceHandler.
func (s *leaseServer) HandBack(ctx context.Context, req *hapaxv1.HandBackRequest) (*hapaxv1.HandBackResponse, error) {
	a := hapax.Allocation{Grant: wire.Grant(req.GetGrant()), Tag: hapax.Tag{Name: req.GetTag(), Token: req.GetToken()}, Key: hapax.GrantKey(req.GetKey()), From: req.GetFrom()}
	if err := s.store.HandBack(ctx, a, req.GetNext()); err != nil {
		return nil, err
	}
	return &hapaxv1.HandBackResponse{}, nil
}

// Renew implements hapaxv1connect.LeaseServiceHandler.
func (s *leaseServer) Renew(ctx context.Context, req *hapaxv1.RenewRequest) (*hapaxv1.RenewResponse, error) {
	// From the store: another server may have deleted it, of which this one has not heard.
	t, err := s.store.Tag(ctx, req.GetTag())
	switch {
	case err != nil:
		return nil, err
	case t.Deleted:
		return nil, fmt.Errorf("%w: %q", hapax.ErrTagDeleted, t.Name)
	case t.Kind != hapax.KindSegment:
		return nil, fmt.Errorf("%w: %q is a %s tag", hapax.ErrKindMismatch, t.Name, t.Kind)
	}
	return &hapaxv1.RenewResponse{ValidFor: durationpb.New(s.validity)}, nil
}

// FirstUse implements hapaxv1connect.LeaseServiceHandler.
func (s *leaseServer) FirstUse(ctx context.Context, req *hapaxv1.FirstUseRequest) (*hapaxv1.FirstUseResponse, error) {
	t, err := create(ctx, s.store, req.GetTag(), "", hapax.CreateFirstUse)
	if err != nil {
		return nil, err
	}
	return &hapaxv1.FirstUseResponse{Tag: t}, nil
}

func create(ctx context.Context, store driver.Store, m *hapaxv1.Tag, strategy string, mode hapax.CreateMode) (*hapaxv1.Tag, error) {
	def, err := wire.Tag(m)
	if err != nil {
		return nil, err
	}
	if def.Deleted {
		return nil, outOfRange("deleted", true, "false; delete the tag once it exists")
	}
	if def, err = define.WithStrategy(def, strategy); err != nil {
		return nil, err
	}
	if def, err = def.WithDefaults(); err != nil {
		return nil, err
	}
	t, err := store.CreateTag(ctx, def, mode)
	return wire.NewTag(t), err
}

// GetPool implements hapaxv1connect.LeaseServiceHandler.
func (s *leaseServer) GetPool(ctx context.Context, req *hapaxv1.GetPoolRequest) (*hapaxv1.GetPoolResponse, error) {
	name := poolName(req)
	if err := hapax.ValidateName("pool", name); err != nil {
		return nil, err
	}
	layout, err := s.layout(ctx, name)
	if err != nil {
		return nil, err
	}
	return &hapaxv1.GetPoolResponse{Pool: &hapaxv1.Pool{Name: name, Layout: layout}}, nil
}

// layout returns the spec that the pool is, or will be, frozen with.
func (s *leaseServer) layout(ctx context.Context, pool string) (string, error) {
	if svc, ok := s.store.(serviceStore); ok {
		l, err := svc.PoolLayout(ctx, pool)
		return l.String(), err
	}
	pools, err := s.store.Pools(ctx)
	if err != nil {
		return "", err
	}
	for _, p := range pools {
		if p.Name == pool {
			return p.Layout, nil
		}
	}
	l, err := hapax.ParseLayout(hapax.LayoutLeaf)
	return l.String(), err
}

// AcquireWorker implements hapaxv1connect.LeaseServiceHandler.
func (s *leaseServer) AcquireWorker(ctx context.Context, m *hapaxv1.AcquireWorkerRequest) (*hapaxv1.AcquireWorkerResponse, error) {
	req, err := wire.AcquireRequest(m)
	if err != nil {
		return nil, err
	}
	l, err := s.store.AcquireWorker(ctx, req)
	if err != nil {
		return nil, err
	}
	return &hapaxv1.AcquireWorkerResponse{Lease: wire.NewLease(l)}, nil
}

// ExtendWorker implements hapaxv1connect.LeaseServiceHandler.
func (s *leaseServer) ExtendWorker(ctx context.Context, m *hapaxv1.ExtendWorkerRequest) (*hapaxv1.ExtendWorkerResponse, error) {
	term, err := wire.Term(m.GetTerm())
	if err != nil {
		return nil, err
	}
	l, err := s.store.ExtendWorker(ctx, wire.Lease(m.GetLease()), hapax.Layout{}, term)
	if err != nil {
		return nil, err
	}
	return &hapaxv1.ExtendWorkerResponse{Lease: wire.NewLease(l)}, nil
}

// SealWorker implements hapaxv1connect.LeaseServiceHandler.
func (s *leaseServer) SealWorker(ctx context.Context, m *hapaxv1.SealWorkerRequest) (*hapaxv1.SealWorkerResponse, error) {
	if err := s.store.SealWorker(ctx, wire.Lease(m.GetLease()), m.GetLast()); err != nil {
		return nil, err
	}
	return &hapaxv1.SealWorkerResponse{}, nil
}
