package rpcapi

import (
	"context"
	"fmt"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/api/hapaxv1"
	"github.com/hapax-id/hapax/api/hapaxv1/hapaxv1connect"
	"github.com/hapax-id/hapax/internal/service"
	"github.com/hapax-id/hapax/internal/wire"
)

var _ hapaxv1connect.AdminServiceHandler = (*adminServer)(nil)

// adminServer serves hapax.v1.AdminService.
type adminServer struct{ store hapax.Store }

// GetTag implements hapaxv1connect.AdminServiceHandler.
func (s *adminServer) GetTag(ctx context.Context, req *hapaxv1.GetTagRequest) (*hapaxv1.GetTagResponse, error) {
	t, err := s.store.Tag(ctx, req.GetName())
	if err != nil {
		return nil, err
	}
	return &hapaxv1.GetTagResponse{Tag: wire.NewTag(t)}, nil
}

const defaultPage = 100

// ListTags implements hapaxv1connect.AdminServiceHandler.
func (s *adminServer) ListTags(ctx context.Context, req *hapaxv1.ListTagsRequest) (*hapaxv1.ListTagsResponse, error) {
	limit := int(req.GetLimit())
	switch {
	case limit < 0 || limit > service.MaxPage:
		return nil, outOfRange("limit", limit, fmt.Sprintf("0 to %d", service.MaxPage))
	case limit == 0:
		limit = defaultPage
	}
	tags, err := s.store.Tags(ctx, req.GetAfter(), limit)
	if err != nil {
		return nil, err
	}
	return &hapaxv1.ListTagsResponse{Tags: wire.NewTags(tags)}, nil
}

// CreateTag implements hapaxv1connect.AdminServiceHandler.
func (s *adminServer) CreateTag(ctx context.Context, req *hapaxv1.CreateTagRequest) (*hapaxv1.CreateTagResponse, error) {
	t, err := create(ctx, s.store, req.GetTag(), hapax.CreateExplicit)
	if err != nil {
		return nil, err
	}
	return &hapaxv1.CreateTagResponse{Tag: t}, nil
}

// UpdateTag implements hapaxv1connect.AdminServiceHandler.
func (s *adminServer) UpdateTag(ctx context.Context, req *hapaxv1.UpdateTagRequest) (*hapaxv1.UpdateTagResponse, error) {
	t, err := s.store.UpdateTag(ctx, req.GetName(), hapax.TagUpdate{
		Step: req.Step, MinStep: req.MinStep, MaxStep: req.MaxStep, Floor: req.Floor,
	})
	if err != nil {
		return nil, err
	}
	return &hapaxv1.UpdateTagResponse{Tag: wire.NewTag(t)}, nil
}

// DeleteTag implements hapaxv1connect.AdminServiceHandler.
func (s *adminServer) DeleteTag(ctx context.Context, req *hapaxv1.DeleteTagRequest) (*hapaxv1.DeleteTagResponse, error) {
	t, err := s.store.DeleteTag(ctx, req.GetName())
	if err != nil {
		return nil, err
	}
	return &hapaxv1.DeleteTagResponse{Tag: wire.NewTag(t)}, nil
}

// ListPools implements hapaxv1connect.AdminServiceHandler.
func (s *adminServer) ListPools(ctx context.Context, _ *hapaxv1.ListPoolsRequest) (*hapaxv1.ListPoolsResponse, error) {
	pools, err := s.store.Pools(ctx)
	if err != nil {
		return nil, err
	}
	return &hapaxv1.ListPoolsResponse{Pools: wire.NewPools(pools)}, nil
}

// ListWorkers implements hapaxv1connect.AdminServiceHandler.
func (s *adminServer) ListWorkers(ctx context.Context, req *hapaxv1.ListWorkersRequest) (*hapaxv1.ListWorkersResponse, error) {
	workers, err := s.store.Workers(ctx, req.GetPool())
	if err != nil {
		return nil, err
	}
	return &hapaxv1.ListWorkersResponse{Workers: wire.NewWorkers(workers)}, nil
}

// RetireWorker implements hapaxv1connect.AdminServiceHandler.
func (s *adminServer) RetireWorker(ctx context.Context, req *hapaxv1.RetireWorkerRequest) (*hapaxv1.RetireWorkerResponse, error) {
	worker, err := hapax.RetireWorker(ctx, s.store, req.GetPool(), req.GetWorker())
	if err != nil {
		return nil, err
	}
	return &hapaxv1.RetireWorkerResponse{Worker: wire.NewWorkers([]hapax.Worker{worker})[0]}, nil
}
