package rpcapi

import (
	"context"
	"fmt"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

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
type adminServer struct{ store driver.Store }

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
	t, err := create(ctx, s.store, def, req.GetStrategy(), hapax.CreateExplicit)
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
	u := driver.TagUpdate{Step: req.Step, MinStep: req.MinStep, MaxStep: req.MaxStep, Floor: req.Floor, Extra: req.Extra}
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

// An overseer is a store with a configuration, which knows how its pools and worker
// IDs stand.
type overseer interface {
	PoolStatuses(ctx context.Context) ([]api.PoolStatus, error)
	WorkerStatuses(ctx context.Context, pool string) ([]api.WorkerStatus, error)
	WorkerStatus(ctx context.Context, pool string, id int64) (api.WorkerStatus, error)
}

// overseen returns the overseer of the store.
func (s *adminServer) overseen() (overseer, error) {
	if o, ok := s.store.(overseer); ok {
		return o, nil
	}
	return nil, fmt.Errorf("%w: the server has no configuration of pools", hapax.ErrNotSupported)
}

// ListPoolStatuses implements hapaxv1connect.AdminServiceHandler.
func (s *adminServer) ListPoolStatuses(ctx context.Context, _ *hapaxv1.ListPoolStatusesRequest) (*hapaxv1.ListPoolStatusesResponse, error) {
	o, err := s.overseen()
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
	o, err := s.overseen()
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
	o, err := s.overseen()
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

// A guard is a store that can tell how this node stands with it.
type guard interface {
	Guard() *witness.Guarded
}

// guarded returns the guard around the store.
func (s *adminServer) guarded() (*witness.Guarded, error) {
	if g, ok := s.store.(guard); ok && g.Guard() != nil {
		return g.Guard(), nil
	}
	return nil, fmt.Errorf("%w: the server keeps no witness", hapax.ErrNotSupported)
}

// A standing is a store that can tell how the server stands with it.
type standing interface {
	Standing(ctx context.Context) witness.Status
}

// GetStatus implements hapaxv1connect.AdminServiceHandler. It answers whatever the
// store does; the nodes are missing where that does not.
func (s *adminServer) GetStatus(ctx context.Context, _ *hapaxv1.GetStatusRequest) (*hapaxv1.GetStatusResponse, error) {
	who, ok := s.store.(standing)
	if !ok {
		return nil, fmt.Errorf("%w: the server does not know how its store is", hapax.ErrNotSupported)
	}
	st := who.Standing(ctx)
	res := &hapaxv1.GetStatusResponse{
		State: string(st.State), Code: string(st.Code), Why: st.Why, Command: st.Command, Fence: newFence(st.Fence), Missing: newNodes(st.Missing),
	}
	if svc, ok := s.store.(interface {
		Readiness(ctx context.Context) service.Readiness
	}); ok {
		ends(res, svc.Readiness(ctx))
	}
	if f, ok := s.store.(foreigner); ok {
		for _, t := range f.Foreign(ctx) {
			res.Foreign = append(res.Foreign, &hapaxv1.ForeignStatus{Name: t.Name, State: string(t.State), Code: string(t.Code), Why: t.Why, Command: t.Command})
		}
	}
	if g, err := s.guarded(); err == nil {
		nodes, err := g.Nodes(ctx)
		if err != nil { // what is wrong with the store the status tells
			nodes = st.Missing
		}
		for i := range nodes {
			if nodes[i].Self { // its row says what it was when it last wrote it
				nodes[i].State = string(st.State)
			}
		}
		res.Nodes, res.StoreId = newNodes(nodes), g.Witness().StoreID()
	}
	return res, nil
}

// ends tells for how long there will be numbers, and what is wrong.
func ends(res *hapaxv1.GetStatusResponse, r service.Readiness) {
	res.See = r.See
	if b := r.Budget; b != nil {
		res.OutageBudget = &hapaxv1.OutageBudget{Kind: b.Kind, Name: b.Name, Seconds: b.Seconds}
	}
	for _, f := range r.Forecasts {
		res.Forecasts = append(res.Forecasts, &hapaxv1.Forecast{What: f.What, Kind: f.Kind, Name: f.Name, Ends: timestamppb.New(f.Ends)})
	}
	for _, a := range r.Alarms {
		res.Alarms = append(res.Alarms, &hapaxv1.Alarm{Name: a.Name, About: a.About, Detail: a.Detail, Since: timestamppb.New(a.Since), See: a.See})
	}
}

// Adopt implements hapaxv1connect.AdminServiceHandler.
func (s *adminServer) Adopt(ctx context.Context, req *hapaxv1.AdoptRequest) (*hapaxv1.AdoptResponse, error) {
	g, st, err := s.statement(req.GetStatement())
	if err != nil {
		return nil, err
	}
	a, err := g.Adopt(ctx, st)
	if err != nil {
		return nil, wire.OperatorError(err) // it names the nodes that are missing
	}
	return &hapaxv1.AdoptResponse{Adoption: newAdoption(a)}, nil
}

// SettleNode implements hapaxv1connect.AdminServiceHandler.
func (s *adminServer) SettleNode(ctx context.Context, req *hapaxv1.SettleNodeRequest) (*hapaxv1.SettleNodeResponse, error) {
	g, st, err := s.statement(req.GetStatement())
	if err != nil {
		return nil, err
	}
	st.Row = req.GetNode()
	a, err := g.Settle(ctx, st)
	if err != nil {
		return nil, wire.OperatorError(err)
	}
	return &hapaxv1.SettleNodeResponse{Adoption: newAdoption(a)}, nil
}

// A foreigner is a server that stands in for foreign systems.
type foreigner interface {
	Foreign(ctx context.Context) []service.ForeignStatus
	AdoptForeign(ctx context.Context, system, tag string, margin int64, dryRun bool) (driver.Foreign, error)
}

// AdoptForeign implements hapaxv1connect.AdminServiceHandler.
func (s *adminServer) AdoptForeign(ctx context.Context, req *hapaxv1.AdoptForeignRequest) (*hapaxv1.AdoptForeignResponse, error) {
	f, ok := s.store.(foreigner)
	if !ok {
		return nil, fmt.Errorf("%w: the server stands in for no foreign system", hapax.ErrNotSupported)
	}
	a, err := f.AdoptForeign(ctx, req.GetSystem(), req.GetKey(), req.GetMargin(), req.GetDryRun())
	if err != nil {
		return nil, wire.OperatorError(err)
	}
	return &hapaxv1.AdoptForeignResponse{Why: a.Why, Skipped: a.Skipped, Raised: newRaised(a.Raised)}, nil
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

// statement returns what an operator says, and the guard that hears it.
func (s *adminServer) statement(m *hapaxv1.Statement) (*witness.Guarded, witness.Statement, error) {
	if m == nil { // earlier versions asked otherwise, and would have their dry run taken for the real thing
		return nil, witness.Statement{}, &hapax.ValueError{Field: "statement", Value: "(none)", Allowed: "a statement, which commands of an earlier version do not make; this server is hapax " + hapax.Version() + ": use the command of that version", Err: hapax.ErrInvalidArgument}
	}
	st := witness.Statement{Floor: m.GetFloor(), Ahead: m.GetAhead().AsDuration(), DryRun: m.GetDryRun()}
	for _, text := range m.GetWitness() {
		t, err := witness.DecodeTestimony(text)
		if err != nil {
			return nil, st, &hapax.ValueError{Field: "witness", Value: fmt.Sprintf("(%d bytes)", len(text)), Allowed: "the text of a witness file: " + hapax.Message(err), Err: hapax.ErrInvalidArgument}
		}
		st.Witness = append(st.Witness, t)
	}
	g, err := s.guarded()
	return g, st, err
}

func newAdoption(a witness.Adoption) *hapaxv1.Adoption {
	m := &hapaxv1.Adoption{
		StoreId: a.StoreID, Other: a.Other, Fence: newFence(a.Fence), Spoke: int64(a.Spoke),
		Missing: newNodes(a.Missing), Stated: newNodes(a.Stated), ProposedFloor: a.Proposed,
	}
	m.Raised = newRaised(a.Raised)
	return m
}

func newRaised(raised []driver.Raised) (all []*hapaxv1.RaisedMark) {
	for _, r := range raised {
		all = append(all, &hapaxv1.RaisedMark{Tag: r.Tag, Pool: r.Pool, Worker: r.Worker, From: r.From, To: r.To})
	}
	return all
}

func newNodes(nodes []witness.Node) []*hapaxv1.Node {
	var all []*hapaxv1.Node
	for _, n := range nodes {
		m := &hapaxv1.Node{Row: n.Row, Name: n.Name, Address: n.Address, State: n.State, Beats: n.Beats, Grants: n.Grants, Self: n.Self}
		if n.Seen > 0 {
			m.Seen = durationpb.New(n.Seen)
		}
		all = append(all, m)
	}
	return all
}

func newFence(f *witness.Fence) *hapaxv1.Fence {
	if f == nil {
		return nil
	}
	return &hapaxv1.Fence{Id: f.ID, Name: f.Node, At: timestamppb.New(f.At), Why: f.Why}
}
