package wire

import (
	"math"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/api"
	"github.com/hapax-id/hapax/api/hapaxv1"
)

// NewTrace returns the message of a trace.
func NewTrace(t api.Trace) *hapaxv1.TraceResponse {
	return &hapaxv1.TraceResponse{
		Number: int64(t.Number), Node: t.Node, Lines: each(t.Lines, newTraceLine), More: t.More, Ledger: newCoverage(t.Ledger), History: newCoverage(t.History),
	}
}

// Trace returns what the node of a message knows of a number.
func Trace(m *hapaxv1.TraceResponse) api.Trace {
	return api.Trace{
		Number: hapax.ID(m.GetNumber()), Node: m.GetNode(), Lines: orEmpty(each(m.GetLines(), traceLine)), More: m.GetMore(),
		Ledger: coverage(m.GetLedger()), History: coverage(m.GetHistory()),
	}
}

// NewFleetTrace returns the message of the traces of a fleet.
func NewFleetTrace(all []api.NodeTrace) *hapaxv1.TraceFleetResponse {
	return &hapaxv1.TraceFleetResponse{Nodes: each(all, func(n api.NodeTrace) *hapaxv1.NodeTrace {
		return &hapaxv1.NodeTrace{Name: n.Name, Error: n.Err, Trace: NewTrace(n.Trace)}
	})}
}

// FleetTrace returns the traces of a message.
func FleetTrace(m *hapaxv1.TraceFleetResponse) []api.NodeTrace {
	return each(m.GetNodes(), func(n *hapaxv1.NodeTrace) api.NodeTrace {
		return api.NodeTrace{Name: n.GetName(), Err: n.GetError(), Trace: Trace(n.GetTrace())}
	})
}

// orEmpty returns a list that JSON shows as one, even without entries.
func orEmpty[T any](all []T) []T {
	if all == nil {
		return []T{}
	}
	return all
}

func newCoverage(c api.TraceCoverage) *hapaxv1.TraceCoverage {
	return &hapaxv1.TraceCoverage{On: c.On, Since: optionalTime(c.Since), Lost: c.Lost, Damaged: c.Damaged}
}

func coverage(m *hapaxv1.TraceCoverage) api.TraceCoverage {
	return api.TraceCoverage{On: m.GetOn(), Since: timeOrNil(m.GetSince()), Lost: m.GetLost(), Damaged: m.GetDamaged()}
}

func optionalTime(t *time.Time) *timestamppb.Timestamp {
	if t == nil {
		return nil
	}
	return timestamppb.New(*t)
}

func timeOrNil(m *timestamppb.Timestamp) *time.Time {
	if m == nil {
		return nil
	}
	return new(m.AsTime())
}

func newTraceLine(l api.TraceLine) *hapaxv1.TraceLine {
	return &hapaxv1.TraceLine{
		Line: l.Name, System: l.System, Tag: l.Tag, Pool: l.Pool, Worker: l.Worker, Layout: l.Layout, Time: optionalTime(l.Time), ShownFor: (*int64)(l.Shown),
		Verdict: string(l.Verdict), Why: l.Why, Grants: each(l.Grants, newTraceGrant), Issued: each(l.Issued, newHandout),
	}
}

func traceLine(m *hapaxv1.TraceLine) api.TraceLine {
	return api.TraceLine{
		Name: m.GetLine(), System: m.GetSystem(), Tag: m.GetTag(), Pool: m.GetPool(), Worker: m.Worker, Layout: m.GetLayout(), Time: timeOrNil(m.GetTime()), Shown: (*hapax.ID)(m.ShownFor),
		Verdict: api.Verdict(m.GetVerdict()), Why: m.GetWhy(), Grants: orEmpty(each(m.GetGrants(), traceGrant)), Issued: orEmpty(each(m.GetIssued(), handout)),
	}
}

func newTraceGrant(g api.TraceGrant) *hapaxv1.TraceGrant {
	return &hapaxv1.TraceGrant{
		Grant: &hapaxv1.Grant{Lo: g.Lo, Hi: g.Hi}, Node: g.Node, Time: timestamppb.New(g.Time), Key: g.Key, FencingToken: g.Token,
		Holder: g.Holder, Caller: g.Caller, Address: g.Address, Given: g.Given, GivenAt: optionalTime(g.GivenAt),
	}
}

func traceGrant(m *hapaxv1.TraceGrant) api.TraceGrant {
	return api.TraceGrant{
		Lo: m.GetGrant().GetLo(), Hi: m.GetGrant().GetHi(), Node: m.GetNode(), Time: timeOf(m.GetTime()), Key: m.GetKey(), Token: m.GetFencingToken(),
		Holder: m.GetHolder(), Caller: m.GetCaller(), Address: m.GetAddress(), Given: m.GetGiven(), GivenAt: timeOrNil(m.GetGivenAt()),
	}
}

func newHandout(h api.TraceHandout) *hapaxv1.TraceHandout {
	return &hapaxv1.TraceHandout{
		Tag: h.Tag, First: int64(h.First), Last: int64(h.Last), Caller: h.Caller, Address: h.Address, From: timestamppb.New(h.From), Until: timestamppb.New(h.Until),
	}
}

func handout(m *hapaxv1.TraceHandout) api.TraceHandout {
	return api.TraceHandout{
		Tag: m.GetTag(), First: hapax.ID(m.GetFirst()), Last: hapax.ID(m.GetLast()), Caller: m.GetCaller(), Address: m.GetAddress(),
		From: timeOf(m.GetFrom()), Until: timeOf(m.GetUntil()),
	}
}

// NewPlugin returns the message of a plugin.
func NewPlugin(p api.Plugin) *hapaxv1.Plugin {
	return &hapaxv1.Plugin{
		Name: p.Name, Order: int32(min(max(p.Order, math.MinInt32), math.MaxInt32)), On: p.On, Hooks: p.Hooks,
		Strategies: p.Strategies, Tags: p.Tags, Vetoes: p.Vetoes, Failures: p.Failures,
	}
}

// Plugin returns the plugin of a message.
func Plugin(m *hapaxv1.Plugin) api.Plugin {
	return api.Plugin{
		Name: m.GetName(), Order: int(m.GetOrder()), On: m.GetOn(), Hooks: m.GetHooks(),
		Strategies: m.GetStrategies(), Tags: m.GetTags(), Vetoes: m.GetVetoes(), Failures: m.GetFailures(),
	}
}

// NewUsage returns the message of a plugin's count.
func NewUsage(u api.Usage) *hapaxv1.Usage {
	m := &hapaxv1.Usage{
		Plugin: u.Plugin, Tag: u.Tag, Caller: u.Caller, Window: durationpb.New(time.Duration(u.Window)), Current: int64(u.Current), Previous: int64(u.Previous),
	}
	if u.Limit > 0 {
		m.Limit = (*int64)(&u.Limit)
	}
	return m
}

// Usage returns what the plugin of a message has counted.
func Usage(m *hapaxv1.Usage) api.Usage {
	return api.Usage{
		Plugin: m.GetPlugin(), Tag: m.GetTag(), Caller: m.GetCaller(), Window: api.Window(m.GetWindow().AsDuration()),
		Current: hapax.ID(m.GetCurrent()), Previous: hapax.ID(m.GetPrevious()), Limit: hapax.ID(m.GetLimit()),
	}
}
