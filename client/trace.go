package client

import (
	"context"

	"github.com/hapax-id/hapax/api"
	"github.com/hapax-id/hapax/api/hapaxv1"
	"github.com/hapax-id/hapax/internal/wire"
)

// A TraceRequest tells which number is meant. Without a tag and a layout it is
// looked up on every line that the server knows.
type TraceRequest struct {
	Number string // in decimal digits, or with Code the text that shows it
	Code   bool
	Tag    string
	Layout string // name or spec, where no tag is given
}

// What a server knows of a number. Each server knows of its own grants: see FleetTrace.
type (
	// Trace is the whole answer of a server.
	Trace = api.Trace

	// TraceCoverage is how much its records tell.
	TraceCoverage = api.TraceCoverage

	// TraceLine is the number as one tag's, or one worker's.
	TraceLine = api.TraceLine

	// TraceGrant is a stretch of a line in which it lies.
	TraceGrant = api.TraceGrant

	// TraceHandout is a run of numbers that somebody got.
	TraceHandout = api.TraceHandout

	// NodeTrace is the answer of one node of a fleet.
	NodeTrace = api.NodeTrace

	// Verdict is the conclusion on one line.
	Verdict = api.Verdict
)

// Trace asks a server which node was granted a number, and which caller got it.
func (c *Client) Trace(ctx context.Context, req TraceRequest) (Trace, error) {
	res, err := call(ctx, c, repeatable, func(ctx context.Context, s *server) (*hapaxv1.TraceResponse, error) {
		return s.admin.Trace(ctx, &hapaxv1.TraceRequest{Number: req.Number, Code: req.Code, Tag: req.Tag, Layout: req.Layout})
	})
	if err != nil {
		return Trace{}, err
	}
	return wire.Trace(res), nil
}

// FleetTrace has a server ask the other living nodes of its store for a number, and returns what
// each knows, the server first.
func (c *Client) FleetTrace(ctx context.Context, req TraceRequest) ([]NodeTrace, error) {
	res, err := call(ctx, c, repeatable, func(ctx context.Context, s *server) (*hapaxv1.TraceFleetResponse, error) {
		return s.admin.TraceFleet(ctx, &hapaxv1.TraceFleetRequest{Number: req.Number, Code: req.Code, Tag: req.Tag, Layout: req.Layout})
	})
	if err != nil {
		return nil, err
	}
	return wire.FleetTrace(res), nil
}
