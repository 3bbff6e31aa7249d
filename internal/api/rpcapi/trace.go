package rpcapi

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/api/hapaxv1"
	"github.com/hapax-id/hapax/internal/ledger"
	"github.com/hapax-id/hapax/internal/service"
)

// A tracer is a store that can tell which node was granted a number.
type tracer interface {
	Trace(ctx context.Context, req service.TraceRequest) (ledger.Trace, error)
}

// Trace implements hapaxv1connect.AdminServiceHandler.
func (s *adminServer) Trace(ctx context.Context, req *hapaxv1.TraceRequest) (*hapaxv1.TraceResponse, error) {
	store, ok := s.store.(tracer)
	if !ok {
		return nil, fmt.Errorf("%w: the server keeps no ledger", hapax.ErrNotSupported)
	}
	t, err := store.Trace(ctx, service.TraceRequest{Text: req.GetNumber(), Code: req.GetCode(), Tag: req.GetTag(), Layout: req.GetLayout()})
	if err != nil {
		return nil, err
	}
	res := &hapaxv1.TraceResponse{
		Number: int64(t.Number), Node: t.Node, More: t.More, Ledger: newCoverage(t.Ledger), History: newCoverage(t.History),
	}
	for _, l := range t.Lines {
		res.Lines = append(res.Lines, newTraceLine(l))
	}
	return res, nil
}

func newCoverage(c ledger.Coverage) *hapaxv1.TraceCoverage {
	return &hapaxv1.TraceCoverage{On: c.On, Since: optionalTime(c.Since), Lost: c.Lost, Damaged: int64(c.Damaged)}
}

func optionalTime(t *time.Time) *timestamppb.Timestamp {
	if t == nil {
		return nil
	}
	return timestamppb.New(*t)
}

func newTraceLine(l ledger.Line) *hapaxv1.TraceLine {
	m := &hapaxv1.TraceLine{
		Line: l.Name, Tag: l.Tag, Pool: l.Pool, Worker: l.Worker, Layout: l.Layout, Time: optionalTime(l.Time),
		Verdict: string(l.Verdict), Why: l.Why, System: l.System,
	}
	if l.Shown != nil {
		m.ShownFor = new(int64(*l.Shown))
	}
	for _, g := range l.Grants {
		m.Grants = append(m.Grants, &hapaxv1.TraceGrant{
			Grant: &hapaxv1.Grant{Lo: g.Lo, Hi: g.Hi}, Node: g.Node, Time: timestamppb.New(g.Time), Key: g.Key, FencingToken: g.Token,
			Holder: g.Holder, Caller: g.Caller, Address: g.Address, Given: g.Given, GivenAt: optionalTime(g.GivenAt),
		})
	}
	for _, i := range l.Issued {
		m.Issued = append(m.Issued, &hapaxv1.TraceHandout{
			Tag: i.Tag, First: int64(i.First), Last: int64(i.Last), Caller: i.Caller, Address: i.Address,
			From: timestamppb.New(i.From), Until: timestamppb.New(i.Until),
		})
	}
	return m
}
