package fleet

import (
	"context"
	"errors"
	"net/url"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/api"
	"github.com/hapax-id/hapax/internal/service"
	"github.com/hapax-id/hapax/store/witness"
)

// The questions that every node answers.
const (
	aboutStatus = "status"
	aboutTrace  = "trace"
)

// tellStatus leaves out the nodes: the asking node has their rows.
func (f *Fleet) tellStatus(ctx context.Context, _ url.Values) (any, error) {
	st := f.opts.Service.Status(ctx)
	st.Nodes, st.Missing = nil, nil
	return st, nil
}

func (f *Fleet) tellTrace(ctx context.Context, q url.Values) (any, error) {
	return f.opts.Service.Trace(ctx, service.TraceRequest{Text: q.Get("number"), Tag: q.Get("tag"), Layout: q.Get("layout"), Code: q.Get("code") != ""})
}

// Status returns how each node that lives stands, this one first.
func (f *Fleet) Status(ctx context.Context) []api.NodeStatus {
	own := f.opts.Service.Status(ctx)
	all := []api.NodeStatus{{Name: f.opts.Name, Self: true, Status: own}}
	for _, a := range Ask[api.Status](ctx, f, f.others(ctx), aboutStatus, nil) {
		all = append(all, api.NodeStatus{Name: called(a.Node), Err: message(a.Err), Status: a.Said})
	}
	return all
}

// Trace returns what each node that lives, or is missing, knows of a number, this one first. It fails
// where the request makes no sense to any node.
func (f *Fleet) Trace(ctx context.Context, req service.TraceRequest) ([]api.NodeTrace, error) {
	own, err := f.opts.Service.Trace(ctx, req)
	if errors.Is(err, hapax.ErrInvalidArgument) || errors.Is(err, hapax.ErrInvalidID) || errors.Is(err, hapax.ErrInvalidLayout) || errors.Is(err, hapax.ErrTagNotFound) {
		return nil, err
	}
	all := []api.NodeTrace{{Name: f.opts.Name, Err: message(err), Trace: own}}
	q := url.Values{"number": {req.Text}, "tag": {req.Tag}, "layout": {req.Layout}}
	if req.Code {
		q.Set("code", "1")
	}
	for _, a := range Ask[api.Trace](ctx, f, f.others(ctx), aboutTrace, q) {
		all = append(all, api.NodeTrace{Name: called(a.Node), Err: message(a.Err), Trace: a.Said})
	}
	return all, nil
}

// others returns the rows of other nodes to ask.
func (f *Fleet) others(ctx context.Context) (others []witness.Node) {
	rows, _ := f.Rows(ctx)
	for _, n := range rows {
		if !n.Self && n.State != "silent" {
			others = append(others, n)
		}
	}
	return others
}
