package rpcapi

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/api/hapaxv1"
	"github.com/hapax-id/hapax/api/hapaxv1/hapaxv1connect"
	"github.com/hapax-id/hapax/internal/service"
	"github.com/hapax-id/hapax/internal/service/auth"
	"github.com/hapax-id/hapax/internal/service/define"
	"github.com/hapax-id/hapax/internal/wire"
)

var _ hapaxv1connect.IssueServiceHandler = (*issueServer)(nil)

// issueServer serves hapax.v1.IssueService.
type issueServer struct {
	svc      *service.Service
	stopping <-chan struct{}
}

// Next implements hapaxv1connect.IssueServiceHandler.
func (s *issueServer) Next(ctx context.Context, req *hapaxv1.NextRequest) (*hapaxv1.NextResponse, error) {
	count := int(req.GetCount())
	switch {
	case count < 0 || count > s.svc.MaxCount():
		return nil, outOfRange("count", count, fmt.Sprintf("0 to %d", s.svc.MaxCount()))
	case req.GetCodes():
		return s.nextCodes(ctx, req.GetTag(), max(1, count))
	case count <= 1:
		id, err := s.svc.Next(ctx, req.GetTag())
		if err != nil {
			return nil, err
		}
		return &hapaxv1.NextResponse{Ids: []int64{int64(id)}}, nil
	}
	ids := make([]hapax.ID, count)
	if _, err := s.svc.NextN(ctx, req.GetTag(), ids); err != nil {
		return nil, err
	}
	return &hapaxv1.NextResponse{Ids: appendNumbers(make([]int64, 0, count), ids)}, nil
}

func appendNumbers(dst []int64, ids []hapax.ID) []int64 {
	for _, id := range ids {
		dst = append(dst, int64(id))
	}
	return dst
}

const (
	streamBatch    = 4096             // numbers in one message of a stream
	streamTimeout  = 30 * time.Second // how long a caller may take no message before it is cut off
	streamPatience = streamTimeout / 6
)

// NextStream implements hapaxv1connect.IssueServiceHandler. At any time at most
// one batch is issued and not yet handed to the connection.
func (s *issueServer) NextStream(ctx context.Context, req *hapaxv1.NextStreamRequest, stream *connect.ServerStream[hapaxv1.NextStreamResponse]) error {
	left := req.GetCount()
	if left < 0 {
		return outOfRange("count", left, "0, for numbers without end, or more")
	}
	caller := auth.FromContext(ctx)
	// The boundary could not: it lets streams in before their request is read.
	if err := caller.Allow(auth.Issue, req.GetTag()); err != nil {
		return err
	}
	endless := left == 0
	ids := make([]hapax.ID, min(streamBatch, s.svc.MaxCount()))
	res := &hapaxv1.NextStreamResponse{Ids: make([]int64, 0, len(ids))}
	limit := streamLimit{control: controlOf(ctx)}
	for endless || left > 0 {
		// Each round: a stop would wait for a stream without an end until its drain is over.
		select {
		case <-s.stopping:
			return fmt.Errorf("%w: the server is about to stop", hapax.ErrClosed)
		default:
		}
		batch := ids
		if !endless {
			batch = ids[:min(int64(len(ids)), left)]
		}
		n, err := s.svc.NextN(ctx, req.GetTag(), batch)
		for isLimited(err) && len(batch) > 1 { // the quota may be good for fewer
			batch = batch[:len(batch)/2]
			n, err = s.svc.NextN(ctx, req.GetTag(), batch)
		}
		// Numbers that came before an error are the client's, too.
		if n > 0 {
			limit.extend()
			res.Ids = appendNumbers(res.Ids[:0], batch[:n])
			if err := stream.Send(res); err != nil {
				return err
			}
		}
		if err != nil {
			return err
		}
		if left -= int64(n); endless || left > 0 {
			if err := caller.Wait(ctx); err != nil { // a batch counts as a request
				return err
			}
		}
	}
	return nil
}

func isLimited(err error) bool {
	_, limited := errors.AsType[*auth.LimitError](err)
	return limited
}

// streamLimit has a caller cut off that takes nothing for streamTimeout, in place
// of the server's limit on how long a response may take.
type streamLimit struct {
	control *http.ResponseController // may be nil
	set     time.Time
}

// extend moves the limit on, every few seconds.
func (l *streamLimit) extend() {
	now := time.Now()
	if l.control == nil || now.Sub(l.set) < streamPatience {
		return
	}
	l.set = now
	_ = l.control.SetWriteDeadline(now.Add(streamTimeout)) // not every connection can
}

type controlKey struct{}

// controlled hands the connection of a stream to its handler.
func controlled(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), controlKey{}, http.NewResponseController(w))))
	})
}

func controlOf(ctx context.Context) *http.ResponseController {
	control, _ := ctx.Value(controlKey{}).(*http.ResponseController)
	return control
}

// Parse implements hapaxv1connect.IssueServiceHandler.
func (s *issueServer) Parse(_ context.Context, req *hapaxv1.ParseRequest) (*hapaxv1.ParseResponse, error) {
	p, err := s.svc.Parse(hapax.ID(req.GetId()), req.GetLayout())
	if err != nil {
		return nil, err
	}
	return &hapaxv1.ParseResponse{Id: int64(p.ID), Layout: p.Layout, Time: timestamppb.New(p.Time), Fields: wire.NewFields(p.Fields)}, nil
}

// maxFields bounds the fields of one number; no layout has more.
const maxFields = 8

// Compose implements hapaxv1connect.IssueServiceHandler.
func (s *issueServer) Compose(_ context.Context, req *hapaxv1.ComposeRequest) (*hapaxv1.ComposeResponse, error) {
	layout, err := s.svc.Layout(req.GetLayout())
	if err != nil {
		return nil, err
	}
	if n := len(req.GetFields()); n > maxFields {
		return nil, outOfRange("fields", n, fmt.Sprintf("up to %d fields", maxFields))
	}
	fields := wire.Fields(req.GetFields())
	if at := req.GetTime(); at != nil {
		if _, both := fields.Get(hapax.FieldTime); both || at.CheckValid() != nil {
			return nil, outOfRange("time", at.String(), "a time in the years 1 to 9999, unless the fields hold one")
		}
		tick, err := layout.TickOf(at.AsTime())
		if err != nil {
			return nil, err
		}
		fields = append(fields, hapax.Field{Name: hapax.FieldTime, Value: tick})
	}
	id, err := s.svc.Compose(layout.String(), fields)
	if err != nil {
		return nil, err
	}
	return &hapaxv1.ComposeResponse{Id: int64(id), Layout: service.LayoutName(layout)}, nil
}

// ExplainTag implements hapaxv1connect.IssueServiceHandler.
func (s *issueServer) ExplainTag(ctx context.Context, req *hapaxv1.ExplainTagRequest) (*hapaxv1.ExplainTagResponse, error) {
	t, err := s.svc.Tag(ctx, req.GetTag())
	if err != nil {
		return nil, err
	}
	res := &hapaxv1.ExplainTagResponse{Tag: wire.NewTag(t)}
	if t.Kind == hapax.KindSnowflake {
		layout, err := s.svc.PoolLayout(ctx, t.Pool)
		if err != nil {
			return nil, err
		}
		res.Layout = wire.NewLayout(layout)
	} else if last, ok := s.svc.Last(t.Name); ok {
		res.Last = new(int64(last))
	}
	shown := define.Shown(t)
	res.Code, res.OldCodes, res.Strategy = shown.Code, shown.Old, shown.Strategy
	return res, nil
}

// ListLayouts implements hapaxv1connect.IssueServiceHandler.
func (s *issueServer) ListLayouts(context.Context, *hapaxv1.ListLayoutsRequest) (*hapaxv1.ListLayoutsResponse, error) {
	res := &hapaxv1.ListLayoutsResponse{}
	for _, l := range s.svc.Layouts() {
		res.Layouts = append(res.Layouts, wire.NewLayout(l))
	}
	return res, nil
}

func outOfRange(field string, value any, allowed string) error {
	return &hapax.ValueError{Field: field, Value: value, Allowed: allowed, Err: hapax.ErrInvalidArgument}
}
