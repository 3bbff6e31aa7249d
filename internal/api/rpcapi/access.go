package rpcapi

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"
	"connectrpc.com/grpchealth"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/api/hapaxv1"
	"github.com/hapax-id/hapax/api/hapaxv1/hapaxv1connect"
	"github.com/hapax-id/hapax/internal/service/auth"
	"github.com/hapax-id/hapax/internal/service/health"
	"github.com/hapax-id/hapax/internal/wire"
	"github.com/hapax-id/hapax/strategy"
)

// permissions tell what a procedure asks for. The name that goes with it is in
// the request.
var permissions = map[string]auth.Permission{
	hapaxv1connect.IssueServiceNextProcedure:        auth.Issue,
	hapaxv1connect.IssueServiceNextStreamProcedure:  auth.Issue,
	hapaxv1connect.IssueServiceParseProcedure:       auth.Nothing,
	hapaxv1connect.IssueServiceComposeProcedure:     auth.Nothing,
	hapaxv1connect.IssueServiceParseCodeProcedure:   auth.Issue,
	hapaxv1connect.IssueServiceExplainTagProcedure:  auth.Show,
	hapaxv1connect.IssueServiceListLayoutsProcedure: auth.Nothing,

	hapaxv1connect.LeaseServiceGetStoreIDProcedure:    auth.Nothing,
	hapaxv1connect.LeaseServiceGetStoreTimeProcedure:  auth.Nothing,
	hapaxv1connect.LeaseServicePingProcedure:          auth.Nothing,
	hapaxv1connect.LeaseServiceAllocateProcedure:      auth.LeaseTag,
	hapaxv1connect.LeaseServiceHandBackProcedure:      auth.LeaseTag,
	hapaxv1connect.LeaseServiceRenewProcedure:         auth.LeaseTag,
	hapaxv1connect.LeaseServiceFirstUseProcedure:      auth.LeaseTag,
	hapaxv1connect.LeaseServiceGetPoolProcedure:       auth.LeaseWorker,
	hapaxv1connect.LeaseServiceAcquireWorkerProcedure: auth.LeaseWorker,
	hapaxv1connect.LeaseServiceExtendWorkerProcedure:  auth.LeaseWorker,
	hapaxv1connect.LeaseServiceSealWorkerProcedure:    auth.LeaseWorker,

	hapaxv1connect.AdminServiceGetTagProcedure:             auth.Show,
	hapaxv1connect.AdminServiceListTagsProcedure:           auth.List,
	hapaxv1connect.AdminServiceCreateTagProcedure:          auth.Define,
	hapaxv1connect.AdminServiceUpdateTagProcedure:          auth.Define,
	hapaxv1connect.AdminServiceDeleteTagProcedure:          auth.Define,
	hapaxv1connect.AdminServiceListPoolsProcedure:          auth.ListPools,
	hapaxv1connect.AdminServiceListWorkersProcedure:        auth.SeeWorkers,
	hapaxv1connect.AdminServiceListPoolStatusesProcedure:   auth.ListPools,
	hapaxv1connect.AdminServiceListWorkerStatusesProcedure: auth.SeeWorkers,
	hapaxv1connect.AdminServiceGetWorkerStatusProcedure:    auth.SeeWorkers,
	hapaxv1connect.AdminServiceRetireWorkerProcedure:       auth.Workers,
	hapaxv1connect.AdminServiceCreatePoolProcedure:         auth.Workers,
	hapaxv1connect.AdminServiceDeletePoolProcedure:         auth.Workers,
	hapaxv1connect.AdminServiceTraceProcedure:              auth.Trace,
	hapaxv1connect.AdminServiceTraceFleetProcedure:         auth.Trace,
	hapaxv1connect.AdminServiceGetStatusProcedure:          auth.Watch,
	hapaxv1connect.AdminServiceGetFleetStatusProcedure:     auth.Watch,
	hapaxv1connect.AdminServiceAdoptProcedure:              auth.Operate,
	hapaxv1connect.AdminServiceSettleNodeProcedure:         auth.Operate,
	hapaxv1connect.AdminServiceListPluginsProcedure:        auth.Watch,
	hapaxv1connect.AdminServiceAdoptForeignProcedure:       auth.Operate,
	hapaxv1connect.AdminServiceSetPluginProcedure:          auth.Operate,
	hapaxv1connect.AdminServiceGetUsageProcedure:           auth.Define,
}

// permissionOf returns what a procedure asks for.
func permissionOf(procedure string) auth.Permission {
	if p, ok := permissions[procedure]; ok {
		return p
	}
	if strings.HasPrefix(procedure, "/grpc.reflection.") {
		return auth.Nothing
	}
	return auth.ListPools // whatever is forgotten here: for administrators of everything
}

// isPublic reports whether a procedure asks for no credentials: health tells nothing
// that /healthz would not.
func isPublic(procedure string) bool {
	return strings.HasPrefix(procedure, "/"+grpchealth.HealthV1ServiceName+"/")
}

// nameIn returns the name of the tag or pool that a request is about.
func nameIn(m any) string {
	switch m := m.(type) {
	case *hapaxv1.GetPoolRequest:
		return poolName(m)
	case interface{ GetLease() *hapaxv1.Lease }:
		return m.GetLease().GetPool()
	case interface{ GetTag() *hapaxv1.Tag }:
		return m.GetTag().GetName()
	case interface{ GetTag() string }:
		return m.GetTag()
	case interface{ GetName() string }:
		return m.GetName()
	case interface{ GetPool() string }:
		return m.GetPool()
	}
	return ""
}

func poolName(m *hapaxv1.GetPoolRequest) string {
	if m.GetPool() == "" {
		return hapax.DefaultPool
	}
	return m.GetPool()
}

var _ connect.Interceptor = boundary{}

// A boundary is where callers are let in, and where errors become what clients
// see.
type boundary struct {
	policy  *auth.Policy // may be nil
	counter counter
	routes  *sync.Map // *health.Route by procedure
}

// A counter counts the errors that clients are told, and writes down the clients that were
// refused; the service is one.
type counter interface {
	Failed(api string, err error)
	Refused(api string, code hapax.Code)
	Attempted(ctx context.Context, action string, err error, about ...any)
	Route(api, route string) *health.Route
}

// uncounted is for handlers without a service.
type uncounted struct{}

func (uncounted) Failed(string, error)       {}
func (uncounted) Refused(string, hapax.Code) {}

func (uncounted) Attempted(context.Context, string, error, ...any) {}

func (uncounted) Route(string, string) *health.Route { return nil }

// count adds a call to the metrics.
func (b boundary) count(procedure string, began time.Time, err error) {
	if b.routes == nil {
		return
	}
	known, ok := b.routes.Load(procedure)
	if !ok {
		known, _ = b.routes.LoadOrStore(procedure, b.counter.Route(API, strings.TrimPrefix(procedure, "/")))
	}
	route := known.(*health.Route)
	if route == nil {
		return
	}
	failed := 0
	if err != nil {
		failed = 1
	}
	route.Served(1, failed)
	route.Took(time.Since(began).Seconds())
}

// admit returns who makes a call, and counts it until End.
func (b boundary) admit(ctx context.Context, procedure string, header http.Header, allow func(*auth.Caller) error) (*auth.Caller, error) {
	if b.policy == nil || isPublic(procedure) {
		return nil, nil
	}
	// Without the address: known has counted a wrong token before the body was read.
	caller, err := b.policy.Enter(ctx, "", header["Authorization"])
	if err == nil {
		err = allow(caller)
	}
	if err == nil {
		err = auth.ConnFromContext(ctx).Use(caller)
	}
	if err == nil {
		err = caller.Begin()
	}
	return caller, err
}

// WrapUnary implements connect.Interceptor.
func (b boundary) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (_ connect.AnyResponse, failed error) {
		procedure, began := req.Spec().Procedure, time.Now()
		defer func() { b.count(procedure, began, failed) }()
		from := req.Peer().Addr
		caller, err := b.admit(ctx, procedure, req.Header(), func(c *auth.Caller) error {
			return c.Allow(permissionOf(procedure), nameIn(req.Any()))
		})
		ctx = auth.NewContext(ctx, caller, from)
		if err != nil {
			b.counter.Attempted(ctx, procedure, err, "name", nameIn(req.Any()))
			return nil, b.translate(ctx, err)
		}
		defer caller.End()
		res, err := next(ctx, req)
		return res, b.translate(ctx, err)
	}
}

// WrapStreamingClient implements connect.Interceptor.
func (b boundary) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
}

// WrapStreamingHandler implements connect.Interceptor. The request has not been
// read yet: where a name matters, the handler asks the caller that the context
// carries.
func (b boundary) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return func(ctx context.Context, conn connect.StreamingHandlerConn) (failed error) {
		procedure, began := conn.Spec().Procedure, time.Now()
		defer func() { b.count(procedure, began, failed) }()
		caller, err := b.admit(ctx, conn.Spec().Procedure, conn.RequestHeader(), func(c *auth.Caller) error {
			return c.Allow(auth.Nothing, "")
		})
		ctx = auth.NewContext(ctx, caller, conn.Peer().Addr)
		if err != nil {
			b.counter.Attempted(ctx, conn.Spec().Procedure, err)
			return b.translate(ctx, err)
		}
		defer caller.End()
		if err := ctx.Err(); err != nil {
			return b.translate(ctx, err)
		}
		return b.translate(ctx, next(ctx, request{conn}))
	}
}

// A request is a stream whose broken frames are an error of the client's.
type request struct{ connect.StreamingHandlerConn }

// Receive implements connect.StreamingHandlerConn.
func (r request) Receive(message any) error {
	err := r.StreamingHandlerConn.Receive(message)
	if e, ok := errors.AsType[*connect.Error](err); ok && e.Code() == connect.CodeInternal {
		return connect.NewError(connect.CodeInvalidArgument, e.Unwrap())
	}
	return err
}

// translate returns an error as it goes to the client.
func (b boundary) translate(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	gone := errors.Is(context.Cause(ctx), context.Canceled)
	if gone { // the client has disconnected: nothing is counted
		return wire.Error(err)
	}
	if said, ok := errors.AsType[*connect.Error](err); ok {
		// Said of the connection, by a health check, or after a panic.
		switch said.Code() {
		case connect.CodeInternal:
			b.counter.Failed(API, hapax.ErrInternal)
		case connect.CodeInvalidArgument:
			b.counter.Refused(API, codeProtocol)
		}
		return said
	}
	// A store's own limit ends with the same error, and is no deadline of the client's.
	if _, ours := errors.AsType[*hapax.Error](err); !ours && errors.Is(err, context.DeadlineExceeded) {
		b.counter.Refused(API, codeDeadline)
		return connect.NewError(connect.CodeDeadlineExceeded, errors.New("hapax: the call's deadline is over"))
	}
	b.counter.Failed(API, err)
	out := wire.Error(err)
	if veto, ok := errors.AsType[*strategy.VetoError](err); ok && !veto.At.IsZero() {
		// Rounded up: a client that comes earlier is refused once more.
		out.Meta().Set("Retry-After", strconv.FormatInt(int64(max(time.Until(veto.At)+time.Second-1, time.Second)/time.Second), 10))
	}
	if limit, ok := errors.AsType[*auth.LimitError](err); ok {
		out.Meta().Set("Retry-After", strconv.Itoa(int((limit.After+time.Second-1)/time.Second)))
	}
	return out
}
