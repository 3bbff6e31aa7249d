package wire

import (
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/api"
	"github.com/hapax-id/hapax/api/hapaxv1"
)

// each returns what of makes of every one; nil for none.
func each[A, B any](all []A, of func(A) B) (made []B) {
	for _, a := range all {
		made = append(made, of(a))
	}
	return made
}

// NewServerStatus returns the message of how a server stands.
func NewServerStatus(s api.Status) *hapaxv1.GetStatusResponse {
	m := &hapaxv1.GetStatusResponse{
		State: s.State, Code: string(s.Code), Why: s.Why, Command: s.Command, Fence: newFence(s.Fence), Missing: each(s.Missing, newNode),
		StoreId: s.StoreID, Split: s.Split, Nodes: each(s.Nodes, newNode), Foreign: each(s.Foreign, newForeign),
		Forecasts: each(s.Forecasts, newForecast), Alarms: each(s.Alarms, newAlarm), See: s.See,
	}
	if b := s.Budget; b != nil {
		m.OutageBudget = &hapaxv1.OutageBudget{Kind: b.Kind, Name: b.Name, Seconds: b.Seconds}
	}
	return m
}

// NewFleetStatus returns the message of how the nodes of a fleet stand.
func NewFleetStatus(all []api.NodeStatus) *hapaxv1.GetFleetStatusResponse {
	return &hapaxv1.GetFleetStatusResponse{Nodes: each(all, func(n api.NodeStatus) *hapaxv1.NodeStatus {
		return &hapaxv1.NodeStatus{Name: n.Name, Self: n.Self, Error: n.Err, Status: NewServerStatus(n.Status)}
	})}
}

// FleetStatus returns how the nodes of a message stand.
func FleetStatus(m *hapaxv1.GetFleetStatusResponse) []api.NodeStatus {
	return each(m.GetNodes(), func(n *hapaxv1.NodeStatus) api.NodeStatus {
		return api.NodeStatus{Name: n.GetName(), Self: n.GetSelf(), Err: n.GetError(), Status: ServerStatus(n.GetStatus())}
	})
}

// ServerStatus returns how the server of a message stands.
func ServerStatus(m *hapaxv1.GetStatusResponse) api.Status {
	s := api.Status{
		State: m.GetState(), Code: hapax.Code(m.GetCode()), Why: m.GetWhy(), Command: m.GetCommand(), Fence: fence(m.GetFence()), Missing: each(m.GetMissing(), node),
		StoreID: m.GetStoreId(), Split: m.GetSplit(), Nodes: each(m.GetNodes(), node), Foreign: each(m.GetForeign(), foreign),
		Forecasts: each(m.GetForecasts(), forecast), Alarms: each(m.GetAlarms(), alarm), See: m.GetSee(),
	}
	// Counted from the list, so that the two cannot disagree.
	s.Live = api.Live(s.Nodes)
	if b := m.GetOutageBudget(); b != nil {
		s.Budget = &api.Budget{Kind: b.GetKind(), Name: b.GetName(), Seconds: b.GetSeconds()}
	}
	return s
}

func newFence(f *api.Fence) *hapaxv1.Fence {
	if f == nil {
		return nil
	}
	return &hapaxv1.Fence{Id: f.ID, Name: f.Node, At: timestamppb.New(f.At), Why: f.Why}
}

func fence(m *hapaxv1.Fence) *api.Fence {
	if m == nil {
		return nil
	}
	return &api.Fence{ID: m.GetId(), Node: m.GetName(), At: m.GetAt().AsTime(), Why: m.GetWhy()}
}

func newNode(n api.Node) *hapaxv1.Node {
	m := &hapaxv1.Node{Row: n.Row, Name: n.Name, Address: n.Address, State: n.State, Beats: n.Beats, Grants: n.Grants, Self: n.Self}
	if n.Seen > 0 {
		m.Seen = durationpb.New(n.Seen)
	}
	return m
}

func node(m *hapaxv1.Node) api.Node {
	return api.Node{
		Row: m.GetRow(), Name: m.GetName(), Address: m.GetAddress(), State: m.GetState(), Beats: m.GetBeats(), Grants: m.GetGrants(),
		Seen: m.GetSeen().AsDuration(), Self: m.GetSelf(),
	}
}

func newForeign(f api.ForeignStatus) *hapaxv1.ForeignStatus {
	return &hapaxv1.ForeignStatus{Name: f.Name, State: f.State, Code: string(f.Code), Why: f.Why, Command: f.Command}
}

func foreign(m *hapaxv1.ForeignStatus) api.ForeignStatus {
	return api.ForeignStatus{Name: m.GetName(), State: m.GetState(), Code: hapax.Code(m.GetCode()), Why: m.GetWhy(), Command: m.GetCommand()}
}

func newForecast(f api.Forecast) *hapaxv1.Forecast {
	return &hapaxv1.Forecast{What: f.What, Kind: f.Kind, Name: f.Name, Ends: timestamppb.New(f.Ends)}
}

func forecast(m *hapaxv1.Forecast) api.Forecast {
	return api.Forecast{What: m.GetWhat(), Kind: m.GetKind(), Name: m.GetName(), Ends: m.GetEnds().AsTime()}
}

func newAlarm(a api.Alarm) *hapaxv1.Alarm {
	return &hapaxv1.Alarm{Name: a.Name, About: a.About, Detail: a.Detail, Since: timestamppb.New(a.Since), See: a.See}
}

func alarm(m *hapaxv1.Alarm) api.Alarm {
	return api.Alarm{Name: m.GetName(), About: m.GetAbout(), Detail: m.GetDetail(), Since: m.GetSince().AsTime(), See: m.GetSee()}
}

// NewStatement returns the message of an operator's statement.
func NewStatement(st api.Statement) *hapaxv1.Statement {
	return &hapaxv1.Statement{DryRun: st.DryRun, Floor: st.Floor, Ahead: durationpb.New(st.Ahead), Witness: st.Witness}
}

// Statement returns what an operator says in a message.
func Statement(m *hapaxv1.Statement) api.Statement {
	return api.Statement{DryRun: m.GetDryRun(), Floor: m.GetFloor(), Ahead: m.GetAhead().AsDuration(), Witness: m.GetWitness()}
}

// NewAdoption returns the message of an adoption.
func NewAdoption(a api.Adoption) *hapaxv1.Adoption {
	return &hapaxv1.Adoption{
		StoreId: a.StoreID, Other: a.Other, Fence: newFence(a.Fence), Spoke: int64(a.Spoke),
		Missing: each(a.Missing, newNode), Stated: each(a.Stated, newNode), Raised: each(a.Raised, newRaised), ProposedFloor: a.Proposed,
	}
}

// Adoption returns what the statement of a message found and did.
func Adoption(m *hapaxv1.Adoption) api.Adoption {
	return api.Adoption{
		StoreID: m.GetStoreId(), Other: m.GetOther(), Fence: fence(m.GetFence()), Spoke: int(m.GetSpoke()),
		Missing: each(m.GetMissing(), node), Stated: each(m.GetStated(), node), Raised: each(m.GetRaised(), raised), Proposed: m.GetProposedFloor(),
	}
}

// NewForeignAdoption returns the message of an adoption in a foreign table.
func NewForeignAdoption(a api.ForeignAdoption) *hapaxv1.AdoptForeignResponse {
	return &hapaxv1.AdoptForeignResponse{Why: a.Why, Skipped: a.Skipped, Raised: each(a.Raised, newRaised)}
}

// ForeignAdoption returns what the statement of a message about a foreign table did.
func ForeignAdoption(m *hapaxv1.AdoptForeignResponse) api.ForeignAdoption {
	return api.ForeignAdoption{Why: m.GetWhy(), Skipped: m.GetSkipped(), Raised: each(m.GetRaised(), raised)}
}

func newRaised(r api.Raised) *hapaxv1.RaisedMark {
	m := &hapaxv1.RaisedMark{Tag: r.Tag, Pool: r.Pool, From: r.From, To: r.To}
	if r.Worker != nil {
		m.Worker = *r.Worker
	}
	return m
}

func raised(m *hapaxv1.RaisedMark) api.Raised {
	// Worker 0 is one, too: it is the pool that tells a worker's mark from a tag's.
	if m.GetPool() != "" {
		return api.Raised{Pool: m.GetPool(), Worker: new(m.GetWorker()), From: m.GetFrom(), To: m.GetTo()}
	}
	return api.Raised{Tag: m.GetTag(), From: m.GetFrom(), To: m.GetTo()}
}
