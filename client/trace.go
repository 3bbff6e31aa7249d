package client

import (
	"context"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/api/hapaxv1"
)

// A TraceRequest tells which number is meant. Without a tag and a layout it is
// looked up on every line that the server knows.
type TraceRequest struct {
	Number string // in decimal digits, or with Code the text that shows it
	Code   bool
	Tag    string
	Layout string // name or spec, where no tag is given
}

// A Trace is what one server knows of a number. Each server knows of its own
// grants: ask every one of them, with a client of its own.
type Trace struct {
	Number  hapax.ID
	Node    string // who says so
	Lines   []TraceLine
	More    bool // there are more lines, grants or numbers than are told
	Ledger  TraceCoverage
	History TraceCoverage
}

// TraceCoverage is how much a server's records tell.
type TraceCoverage struct {
	On      bool
	Since   time.Time // the first record; zero if there is none
	Lost    int64     // records that could not be written
	Damaged int64     // records that cannot be read
}

// A TraceLine is a number as one tag's, or one worker's.
type TraceLine struct {
	Line   string // tag/NAME, or worker/POOL/ID; SYSTEM/ before it where a foreign table grants it
	System string // the foreign system
	Tag    string
	Pool   string
	Worker *int64 // of a worker's line
	Layout string
	Time   time.Time // that a worker's number holds

	ShownFor *hapax.ID // the line's own number, where a plugin shows another

	// Verdict is "issued" (the history has it), "granted" (and what became of it
	// is not recorded), "handed_back" (granted, and given back without being
	// issued), "elsewhere" (below the store's mark, and not in this ledger),
	// "never_granted", or "unknown" (the store was not asked).
	Verdict string
	Why     string // the same in words
	Grants  []TraceGrant
	Issued  []TraceHandout
}

// A TraceGrant is a stretch of a line that a node was granted.
type TraceGrant struct {
	Grant           hapax.Grant
	Node            string
	Time            time.Time
	Key             string // the first digits of the hash of a segment's key
	Token           string // the fencing token of a worker's lease
	Holder          string // of a worker's lease
	Caller, Address string // the lessee; empty: the node issues from it itself
	Given           string // "back" if the number was given back; "offered" if the answer was lost
	GivenAt         time.Time
}

// A TraceHandout is a run of numbers that somebody got, between two times.
type TraceHandout struct {
	Tag             string
	First, Last     hapax.ID
	Caller, Address string
	From, Until     time.Time
}

// Trace asks a server which node was granted a number, and which caller got it.
func (c *Client) Trace(ctx context.Context, req TraceRequest) (Trace, error) {
	res, err := call(ctx, c, repeatable, func(ctx context.Context, s *server) (*hapaxv1.TraceResponse, error) {
		return s.admin.Trace(ctx, &hapaxv1.TraceRequest{Number: req.Number, Code: req.Code, Tag: req.Tag, Layout: req.Layout})
	})
	if err != nil {
		return Trace{}, err
	}
	t := Trace{
		Number: hapax.ID(res.GetNumber()), Node: res.GetNode(), More: res.GetMore(),
		Ledger: coverageOf(res.GetLedger()), History: coverageOf(res.GetHistory()),
	}
	for _, l := range res.GetLines() {
		t.Lines = append(t.Lines, traceLineOf(l))
	}
	return t, nil
}

func coverageOf(m *hapaxv1.TraceCoverage) TraceCoverage {
	return TraceCoverage{On: m.GetOn(), Since: instant(m.GetSince()), Lost: m.GetLost(), Damaged: m.GetDamaged()}
}

// instant returns a time; the zero time if it is not given.
func instant(m *timestamppb.Timestamp) time.Time {
	if m == nil {
		return time.Time{}
	}
	return m.AsTime()
}

func traceLineOf(m *hapaxv1.TraceLine) TraceLine {
	l := TraceLine{
		Line: m.GetLine(), System: m.GetSystem(), Tag: m.GetTag(), Pool: m.GetPool(), Worker: m.Worker, Layout: m.GetLayout(), Time: instant(m.GetTime()),
		Verdict: m.GetVerdict(), Why: m.GetWhy(),
	}
	if m.ShownFor != nil {
		l.ShownFor = new(hapax.ID(m.GetShownFor()))
	}
	for _, g := range m.GetGrants() {
		l.Grants = append(l.Grants, TraceGrant{
			Grant: hapax.Grant{Lo: g.GetGrant().GetLo(), Hi: g.GetGrant().GetHi()}, Node: g.GetNode(), Time: instant(g.GetTime()),
			Key: g.GetKey(), Token: g.GetFencingToken(), Holder: g.GetHolder(), Caller: g.GetCaller(), Address: g.GetAddress(),
			Given: g.GetGiven(), GivenAt: instant(g.GetGivenAt()),
		})
	}
	for _, i := range m.GetIssued() {
		l.Issued = append(l.Issued, TraceHandout{
			Tag: i.GetTag(), First: hapax.ID(i.GetFirst()), Last: hapax.ID(i.GetLast()), Caller: i.GetCaller(), Address: i.GetAddress(),
			From: instant(i.GetFrom()), Until: instant(i.GetUntil()),
		})
	}
	return l
}
