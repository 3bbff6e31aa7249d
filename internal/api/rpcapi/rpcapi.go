// Package rpcapi serves a service by remote procedure calls: gRPC, gRPC-Web and
// the Connect protocol, which is plain HTTP with JSON or binary bodies, all from
// the same address and the same handlers. The calls are those of proto/hapax/v1:
//
//	IssueService   numbers one by one, in batches or in bulk; what a number says
//	LeaseService   stretches of numbers and of workers' time, for the Go client
//	AdminService   tags, pools and workers
//
// Beside them are the health and reflection services that gRPC's tools know.
//
// Every error carries an ErrorDetail with the stable code. A call waits no
// longer than its own deadline or the service's limit, whichever comes first. No
// response may be cached.
package rpcapi

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"connectrpc.com/connect"
	"connectrpc.com/grpchealth"
	"connectrpc.com/grpcreflect"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/api"
	"github.com/hapax-id/hapax/api/hapaxv1/hapaxv1connect"
	"github.com/hapax-id/hapax/internal/service"
	"github.com/hapax-id/hapax/internal/service/auth"
	"github.com/hapax-id/hapax/internal/wire"
	"github.com/hapax-id/hapax/store/driver"
)

// API is the protocol's name in metrics and logs.
const API = "rpc"

// Codes of errors that only this protocol has.
const (
	codeDeadline hapax.Code = "deadline_exceeded" // the client's own was over before the call began
	codeProtocol hapax.Code = "protocol_error"    // what came is no call
)

// Codes returns the codes of errors that only this protocol has.
func Codes() []hapax.Code { return []hapax.Code{codeDeadline, codeProtocol} }

// DefaultValidity is how long leased numbers may be used without a word from a
// server: it bounds both how long a client outlasts an outage and how long one
// that is cut off goes on with a tag that was deleted.
const DefaultValidity = time.Hour

// maxRequest bounds a request, in bytes.
const maxRequest = 64 << 10

// maxProbe bounds a health check, which strangers send, in bytes.
const maxProbe = 4 << 10

// Options tune the handlers. The zero value suits most uses.
type Options struct {
	// Validity is what leases of numbers carry; default DefaultValidity.
	Validity time.Duration

	// Policy asks clients for tokens, and knows what each is good for; nil asks
	// for none.
	Policy *auth.Policy

	// Fleet asks the other nodes of the store; nil: they are not asked.
	Fleet Fleet

	// Stopping, if set, is closed when the server is about to stop: streams end
	// then with ErrClosed, instead of being cut off.
	Stopping <-chan struct{}

	// Logger receives panics; default slog.Default().
	Logger *slog.Logger
}

// A Fleet asks all nodes of a store.
type Fleet interface {
	Status(ctx context.Context) []api.NodeStatus
	Trace(ctx context.Context, req service.TraceRequest) ([]api.NodeTrace, error)
}

func (o Options) withDefaults() Options {
	if o.Validity == 0 {
		o.Validity = DefaultValidity
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	return o
}

// services are the names of the services, as health and reflection tell them.
var services = []string{
	hapaxv1connect.IssueServiceName,
	hapaxv1connect.LeaseServiceName,
	hapaxv1connect.AdminServiceName,
}

// New returns the handlers of all services, by the prefix of their paths.
func New(svc *service.Service, opts Options) map[string]http.Handler {
	opts = opts.withDefaults()
	svc.Counting(API, Codes()...)
	shared := opts.handlerOptions(svc.StoreFor, svc)
	routes := map[string]http.Handler{}
	mount := func(path string, h http.Handler) { routes[path] = uncached(opts.known(svc, framed(svc, h))) }
	mount(hapaxv1connect.NewIssueServiceHandler(&issueServer{svc: svc, stopping: opts.Stopping}, shared...))
	mount(hapaxv1connect.NewLeaseServiceHandler(&leaseServer{store: serviceStore{svc}, validity: opts.Validity}, shared...))
	// Clipped, lest the options of one service be written into another's.
	mount(hapaxv1connect.NewAdminServiceHandler(&adminServer{store: serviceStore{svc}, fleet: opts.Fleet}, append(slices.Clip(shared), connect.WithConditionalHandlerOptions(statements))...))
	mount(grpchealth.NewHandler(checker{svc}, append(slices.Clip(shared), connect.WithReadMaxBytes(maxProbe))...))
	reflector := grpcreflect.NewStaticReflector(services...)
	mount(grpcreflect.NewHandlerV1(reflector, shared...))
	mount(grpcreflect.NewHandlerV1Alpha(reflector, shared...))
	path := hapaxv1connect.IssueServiceNextStreamProcedure
	routes[path] = controlled(routes["/"+hapaxv1connect.IssueServiceName+"/"])
	return routes
}

// NewStore returns the handlers of LeaseService and AdminService over a store,
// without the policy of a service.
func NewStore(store driver.Store, opts Options) map[string]http.Handler {
	opts = opts.withDefaults()
	shared := opts.handlerOptions(only(store.StoreID), uncounted{})
	routes := map[string]http.Handler{}
	mount := func(path string, h http.Handler) { routes[path] = uncached(h) }
	mount(hapaxv1connect.NewLeaseServiceHandler(&leaseServer{store: store, validity: opts.Validity}, shared...))
	mount(hapaxv1connect.NewAdminServiceHandler(&adminServer{store: store}, shared...))
	return routes
}

func (o Options) handlerOptions(known func(context.Context, string) (string, error), counter counter) []connect.HandlerOption {
	return append(jsonCodecs(),
		connect.WithReadMaxBytes(maxRequest),
		connect.WithCompressMinBytes(math.MaxInt), // numbers hardly shrink, and time matters
		connect.WithInterceptors(boundary{o.Policy, counter, &sync.Map{}}, named{known}),
		connect.WithRecover(func(_ context.Context, spec connect.Spec, _ http.Header, p any) error {
			o.Logger.Error("panic while serving a call", "api", API, "path", spec.Procedure, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
			return wire.Error(hapax.ErrInternal)
		}),
	)
}

// uncached forbids caches to keep replies.
func uncached(h http.Handler) http.Handler {
	noStore := []string{"no-store"} // nobody changes it: a value that is added goes into a copy
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header()["Cache-Control"] = noStore
		h.ServeHTTP(w, r)
	})
}

// checker answers gRPC's health checks: the server serves if it can issue.
type checker struct{ svc *service.Service }

// Check implements grpchealth.Checker.
func (h checker) Check(ctx context.Context, req *grpchealth.CheckRequest) (*grpchealth.CheckResponse, error) {
	known := req.Service == ""
	for _, name := range services {
		known = known || req.Service == name
	}
	if !known {
		return nil, connect.NewError(connect.CodeNotFound, fmt.Errorf("no service has the name %.100q", req.Service))
	}
	res := &grpchealth.CheckResponse{Status: grpchealth.StatusServing}
	if h.svc.Ready(ctx) != nil {
		res.Status = grpchealth.StatusNotServing
	}
	return res, nil
}
