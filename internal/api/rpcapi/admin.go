package rpcapi

import (
	"context"
	"fmt"

	"connectrpc.com/connect"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/api"
	"github.com/hapax-id/hapax/api/hapaxv1"
	"github.com/hapax-id/hapax/api/hapaxv1/hapaxv1connect"
	"github.com/hapax-id/hapax/internal/service"
	"github.com/hapax-id/hapax/internal/wire"
	"github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/store/witness"
)

var _ hapaxv1connect.AdminServiceHandler = (*adminServer)(nil)

// adminServer serves hapax.v1.AdminService.
type adminServer struct {
	store driver.Store
	fleet Fleet // nil: other nodes are not asked
}

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
	def := req.GetTag()
	extra, err := withCode(def.GetExtra(), req.GetCode(), req.GetZone())
	if err != nil {
		return nil, err
	}
	if def != nil {
		def.Extra = extra
	}
	mode := hapax.CreateExplicit
	switch {
	case req.GetTombstone():
		mode = hapax.CreateTombstone
	case req.FromToken != nil && def != nil:
		def.Token, mode = req.GetFromToken(), hapax.CreateFromToken
	}
	t, err := create(ctx, s.store, def, req.GetStrategy(), mode)
	if err != nil {
		return nil, err
	}
	return &hapaxv1.CreateTagResponse{Tag: t}, nil
}

// UpdateTag implements hapaxv1connect.AdminServiceHandler.
func (s *adminServer) UpdateTag(ctx context.Context, req *hapaxv1.UpdateTagRequest) (*hapaxv1.UpdateTagResponse, error) {
	extra, err := withCode(req.GetExtra(), req.GetCode(), req.GetZone())
	if err != nil {
		return nil, err
	}
	u := wire.TagUpdate(req)
	// Only where one is given: an empty text stands for a tag without a code.
	if req.GetCode() != "" {
		u.Extra = &extra
	}
	t, err := s.store.UpdateTag(ctx, req.GetName(), u)
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

// An operator is a service: beside its store it has a configuration, a guard, plugins and a
// ledger.
type operator interface {
	PoolStatuses(ctx context.Context) ([]api.PoolStatus, error)
	WorkerStatuses(ctx context.Context, pool string) ([]api.WorkerStatus, error)
	WorkerStatus(ctx context.Context, pool string, id int64) (api.WorkerStatus, error)
	Status(ctx context.Context) api.Status
	Adopt(ctx context.Context, st witness.Statement) (api.Adoption, error)
	AdoptForeign(ctx context.Context, system, tag string, margin int64, dryRun bool) (api.ForeignAdoption, error)
	Trace(ctx context.Context, req service.TraceRequest) (api.Trace, error)
	Plugins() []api.Plugin
	SetPlugin(ctx context.Context, name string, on *bool, order *int) (api.Plugin, error)
	Usage(tag string) []api.Usage
}

// operator returns the service behind the store.
func (s *adminServer) operator() (operator, error) {
	if o, ok := s.store.(operator); ok {
		return o, nil
	}
	return nil, fmt.Errorf("%w: this server is a store alone, without configuration, guard, plugins and ledger", hapax.ErrNotSupported)
}

// ListPoolStatuses implements hapaxv1connect.AdminServiceHandler.
func (s *adminServer) ListPoolStatuses(ctx context.Context, _ *hapaxv1.ListPoolStatusesRequest) (*hapaxv1.ListPoolStatusesResponse, error) {
	o, err := s.operator()
	if err != nil {
		return nil, err
	}
	pools, err := o.PoolStatuses(ctx)
	if err != nil {
		return nil, err
	}
	res := &hapaxv1.ListPoolStatusesResponse{Pools: make([]*hapaxv1.PoolStatus, len(pools))}
	for i, p := range pools {
		res.Pools[i] = wire.NewPoolStatus(p)
	}
	return res, nil
}

// ListWorkerStatuses implements hapaxv1connect.AdminServiceHandler.
func (s *adminServer) ListWorkerStatuses(ctx context.Context, req *hapaxv1.ListWorkerStatusesRequest) (*hapaxv1.ListWorkerStatusesResponse, error) {
	o, err := s.operator()
	if err != nil {
		return nil, err
	}
	workers, err := o.WorkerStatuses(ctx, req.GetPool())
	if err != nil {
		return nil, err
	}
	res := &hapaxv1.ListWorkerStatusesResponse{Workers: make([]*hapaxv1.WorkerStatus, len(workers))}
	for i, w := range workers {
		res.Workers[i] = wire.NewWorkerStatus(w)
	}
	return res, nil
}

// GetWorkerStatus implements hapaxv1connect.AdminServiceHandler.
func (s *adminServer) GetWorkerStatus(ctx context.Context, req *hapaxv1.GetWorkerStatusRequest) (*hapaxv1.GetWorkerStatusResponse, error) {
	o, err := s.operator()
	if err != nil {
		return nil, err
	}
	w, err := o.WorkerStatus(ctx, req.GetPool(), req.GetWorker())
	if err != nil {
		return nil, err
	}
	return &hapaxv1.GetWorkerStatusResponse{Worker: wire.NewWorkerStatus(w)}, nil
}

// RetireWorker implements hapaxv1connect.AdminServiceHandler.
func (s *adminServer) RetireWorker(ctx context.Context, req *hapaxv1.RetireWorkerRequest) (*hapaxv1.RetireWorkerResponse, error) {
	worker, err := s.store.RetireWorker(ctx, req.GetPool(), req.GetWorker())
	if err != nil {
		return nil, err
	}
	return &hapaxv1.RetireWorkerResponse{Worker: wire.NewWorker(worker)}, nil
}

// CreatePool implements hapaxv1connect.AdminServiceHandler.
func (s *adminServer) CreatePool(ctx context.Context, req *hapaxv1.CreatePoolRequest) (*hapaxv1.CreatePoolResponse, error) {
	layout, err := hapax.ParseLayout(req.GetLayout())
	if err != nil {
		return nil, err
	}
	pool, err := s.store.CreatePool(ctx, req.GetPool(), layout.String())
	if err != nil {
		return nil, err
	}
	return &hapaxv1.CreatePoolResponse{Pool: wire.NewPool(pool)}, nil
}

// DeletePool implements hapaxv1connect.AdminServiceHandler.
func (s *adminServer) DeletePool(ctx context.Context, req *hapaxv1.DeletePoolRequest) (*hapaxv1.DeletePoolResponse, error) {
	pool, err := s.store.DeletePool(ctx, req.GetPool())
	if err != nil {
		return nil, err
	}
	return &hapaxv1.DeletePoolResponse{Pool: wire.NewPool(pool)}, nil
}

// GetStatus implements hapaxv1connect.AdminServiceHandler. It answers whatever the
// store does.
func (s *adminServer) GetStatus(ctx context.Context, _ *hapaxv1.GetStatusRequest) (*hapaxv1.GetStatusResponse, error) {
	o, err := s.operator()
	if err != nil {
		return nil, err
	}
	return wire.NewServerStatus(o.Status(ctx)), nil
}

// GetFleetStatus implements hapaxv1connect.AdminServiceHandler.
func (s *adminServer) GetFleetStatus(ctx context.Context, _ *hapaxv1.GetFleetStatusRequest) (*hapaxv1.GetFleetStatusResponse, error) {
	if s.fleet == nil {
		return nil, errNoFleet
	}
	return wire.NewFleetStatus(s.fleet.Status(ctx)), nil
}

var errNoFleet = fmt.Errorf("%w: this server asks no other nodes", hapax.ErrNotSupported)

// Adopt implements hapaxv1connect.AdminServiceHandler.
func (s *adminServer) Adopt(ctx context.Context, req *hapaxv1.AdoptRequest) (*hapaxv1.AdoptResponse, error) {
	a, err := s.adopt(ctx, "", req.GetStatement())
	if err != nil {
		return nil, err
	}
	return &hapaxv1.AdoptResponse{Adoption: wire.NewAdoption(a)}, nil
}

// SettleNode implements hapaxv1connect.AdminServiceHandler.
func (s *adminServer) SettleNode(ctx context.Context, req *hapaxv1.SettleNodeRequest) (*hapaxv1.SettleNodeResponse, error) {
	a, err := s.adopt(ctx, req.GetNode(), req.GetStatement())
	if err != nil {
		return nil, err
	}
	return &hapaxv1.SettleNodeResponse{Adoption: wire.NewAdoption(a)}, nil
}

// adopt carries out what an operator says of one node, or of all that are missing.
func (s *adminServer) adopt(ctx context.Context, node string, m *hapaxv1.Statement) (api.Adoption, error) {
	st, err := statement(m)
	if err != nil {
		return api.Adoption{}, err
	}
	st.Row = node
	o, err := s.operator()
	if err != nil {
		return api.Adoption{}, err
	}
	a, err := o.Adopt(ctx, st)
	if err != nil {
		return a, wire.OperatorError(err) // it names the nodes that are missing
	}
	return a, nil
}

// AdoptForeign implements hapaxv1connect.AdminServiceHandler.
func (s *adminServer) AdoptForeign(ctx context.Context, req *hapaxv1.AdoptForeignRequest) (*hapaxv1.AdoptForeignResponse, error) {
	o, err := s.operator()
	if err != nil {
		return nil, err
	}
	a, err := o.AdoptForeign(ctx, req.GetSystem(), req.GetKey(), req.GetMargin(), req.GetDryRun())
	if err != nil {
		return nil, wire.OperatorError(err)
	}
	return wire.NewForeignAdoption(a), nil
}

// Trace implements hapaxv1connect.AdminServiceHandler.
func (s *adminServer) Trace(ctx context.Context, req *hapaxv1.TraceRequest) (*hapaxv1.TraceResponse, error) {
	o, err := s.operator()
	if err != nil {
		return nil, err
	}
	t, err := o.Trace(ctx, service.TraceRequest{Text: req.GetNumber(), Code: req.GetCode(), Tag: req.GetTag(), Layout: req.GetLayout()})
	if err != nil {
		return nil, err
	}
	return wire.NewTrace(t), nil
}

// TraceFleet implements hapaxv1connect.AdminServiceHandler.
func (s *adminServer) TraceFleet(ctx context.Context, req *hapaxv1.TraceFleetRequest) (*hapaxv1.TraceFleetResponse, error) {
	if s.fleet == nil {
		return nil, errNoFleet
	}
	all, err := s.fleet.Trace(ctx, service.TraceRequest{Text: req.GetNumber(), Code: req.GetCode(), Tag: req.GetTag(), Layout: req.GetLayout()})
	if err != nil {
		return nil, err
	}
	return wire.NewFleetTrace(all), nil
}

// ListPlugins implements hapaxv1connect.AdminServiceHandler.
func (s *adminServer) ListPlugins(context.Context, *hapaxv1.ListPluginsRequest) (*hapaxv1.ListPluginsResponse, error) {
	o, err := s.operator()
	if err != nil {
		return nil, err
	}
	res := &hapaxv1.ListPluginsResponse{}
	for _, p := range o.Plugins() {
		res.Plugins = append(res.Plugins, wire.NewPlugin(p))
	}
	return res, nil
}

// SetPlugin implements hapaxv1connect.AdminServiceHandler.
func (s *adminServer) SetPlugin(ctx context.Context, req *hapaxv1.SetPluginRequest) (*hapaxv1.SetPluginResponse, error) {
	o, err := s.operator()
	if err != nil {
		return nil, err
	}
	var order *int
	if req.Order != nil {
		order = new(int(req.GetOrder()))
	}
	p, err := o.SetPlugin(ctx, req.GetName(), req.On, order)
	if err != nil {
		return nil, err
	}
	return &hapaxv1.SetPluginResponse{Plugin: wire.NewPlugin(p)}, nil
}

// GetUsage implements hapaxv1connect.AdminServiceHandler.
func (s *adminServer) GetUsage(_ context.Context, req *hapaxv1.GetUsageRequest) (*hapaxv1.GetUsageResponse, error) {
	o, err := s.operator()
	if err != nil {
		return nil, err
	}
	res := &hapaxv1.GetUsageResponse{}
	for _, u := range o.Usage(req.GetTag()) {
		res.Usages = append(res.Usages, wire.NewUsage(u))
	}
	return res, nil
}

// maxStatement bounds a request with witness files, in bytes; larger ones are given to
// the command on the data directory.
const maxStatement = 16 << 20

// statements lets requests with witness files be longer than others.
func statements(spec connect.Spec) []connect.HandlerOption {
	switch spec.Procedure {
	case hapaxv1connect.AdminServiceAdoptProcedure, hapaxv1connect.AdminServiceSettleNodeProcedure:
		return []connect.HandlerOption{connect.WithReadMaxBytes(maxStatement)}
	}
	return nil
}

// statement returns what an operator says.
func statement(m *hapaxv1.Statement) (witness.Statement, error) {
	if m == nil { // earlier versions asked otherwise, and would have their dry run taken for the real thing
		return witness.Statement{}, &hapax.ValueError{Field: "statement", Value: "(none)", Allowed: "a statement, which commands of an earlier version do not make; this server is hapax " + hapax.Version() + ": use the command of that version", Err: hapax.ErrInvalidArgument}
	}
	said := wire.Statement(m)
	st := witness.Statement{Floor: said.Floor, Ahead: said.Ahead, DryRun: said.DryRun}
	for _, text := range said.Witness {
		t, err := witness.DecodeTestimony(text)
		if err != nil {
			return st, &hapax.ValueError{Field: "witness", Value: fmt.Sprintf("(%d bytes)", len(text)), Allowed: "the text of a witness file: " + hapax.Message(err), Err: hapax.ErrInvalidArgument}
		}
		st.Witness = append(st.Witness, t)
	}
	return st, nil
}
