package health

import (
	"context"
	"fmt"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/api"
	"github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/store/witness"
)

// Status tells how this node stands with its store, the others there, and for how long
// there will be numbers. It answers whatever the store does: of one that does not answer,
// the nodes are those that are missing.
func (m *Monitor) Status(ctx context.Context) api.Status {
	st, r := m.Standing(ctx), m.Readiness(ctx)
	all := api.Status{
		State: string(st.State), Code: st.Code, Why: st.Why, Command: st.Command, Fence: FenceOf(st.Fence), Missing: NodesOf(st.Missing),
		Foreign: m.Foreign(ctx), Budget: r.Budget, Forecasts: r.Forecasts, Alarms: r.Alarms, See: r.See,
	}
	g := GuardOf(m.opts.Store)
	if g == nil {
		return all
	}
	nodes, err := g.Nodes(ctx)
	if err != nil { // what is wrong with the store the status tells
		nodes = st.Missing
	}
	for i := range nodes {
		if nodes[i].Self { // its row says what it was when it last wrote it
			nodes[i].State = string(st.State)
		}
	}
	all.Nodes, all.StoreID, all.Split = NodesOf(nodes), g.Witness().StoreID(), st.Split
	all.Live = api.Live(all.Nodes)
	return all
}

// Adopt is an operator's word about missing nodes: about one where the statement names it.
func (m *Monitor) Adopt(ctx context.Context, st witness.Statement) (api.Adoption, error) {
	g := GuardOf(m.opts.Store)
	if g == nil {
		return api.Adoption{}, fmt.Errorf("%w: the server keeps no witness", hapax.ErrNotSupported)
	}
	declare := g.Adopt
	if st.Row != "" {
		declare = g.Settle
	}
	a, err := declare(ctx, st)
	return AdoptionOf(a), err
}

// NodesOf returns nodes as an operator sees them.
func NodesOf(nodes []witness.Node) (all []api.Node) {
	for _, n := range nodes {
		all = append(all, api.Node(n))
	}
	return all
}

// FenceOf returns a fence as an operator sees it; nil for none.
func FenceOf(f *witness.Fence) *api.Fence {
	if f == nil {
		return nil
	}
	return &api.Fence{ID: f.ID, Node: f.Node, At: f.At, Why: f.Why}
}

// AdoptionOf returns what a statement found and did as an operator sees it.
func AdoptionOf(a witness.Adoption) api.Adoption {
	return api.Adoption{
		StoreID: a.StoreID, Other: a.Other, Fence: FenceOf(a.Fence), Spoke: a.Spoke,
		Missing: NodesOf(a.Missing), Stated: NodesOf(a.Stated), Raised: RaisedOf(a.Raised), Proposed: a.Proposed,
	}
}

// ForeignAdoptionOf returns what a statement about a foreign table found and did as an
// operator sees it.
func ForeignAdoptionOf(f driver.Foreign) api.ForeignAdoption {
	return api.ForeignAdoption{Why: f.Why, Raised: RaisedOf(f.Raised), Skipped: f.Skipped}
}

// RaisedOf returns raised marks as an operator sees them.
func RaisedOf(marks []driver.Raised) (all []api.Raised) {
	for _, m := range marks {
		r := api.Raised{Tag: m.Tag, Pool: m.Pool, From: m.From, To: m.To}
		if r.Pool != "" {
			r.Worker = &m.Worker
		}
		all = append(all, r)
	}
	return all
}
