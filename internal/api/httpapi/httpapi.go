// Package httpapi serves a service over HTTP:
//
//	GET    /v1/tags/{tag}/next?count=N   numbers as text, one a line; JSON if Accept says so
//	POST   /v1/tags/{tag}/ids?count=N    {"ids":["1","2"]}; text if Accept says so
//	POST   /v1/tags/{tag}/take           numbers for a client that issues them itself: see docs/client-protocol.md
//	POST   /v1/tags/{tag}/handback       those of them that were not issued
//	GET    /v1/tags/{tag}/codes/{code}   what a code of the tag says: number and period
//	GET    /v1/ids/{id}?layout=L         what an ID says: layout, time and fields
//	POST   /v1/ids/compose               {"layout":L,"fields":{"time":T,"worker":W}} to an ID
//	GET    /v1/tags?after=NAME&limit=N   a page of tags, tombstones among them
//	GET    /v1/tags/{tag}                one tag
//	PUT    /v1/tags/{tag}                create or change: kind, start, step, min_step, max_step, delta,
//	                                     remainder, pool, floor, code, zone
//	DELETE /v1/tags/{tag}                leave a tombstone
//	GET    /v1/layouts                   the known layouts
//	GET    /v1/pools                     the worker pools
//	GET    /v1/pools/{pool}/workers      the worker IDs of a pool that were ever used
//	GET    /v1/pools/{pool}/workers/{worker}
//	                                     one worker ID, used or not
//	POST   /v1/pools/{pool}/workers/{worker}/retire
//	                                     take a worker ID out of use until the clock passes its mark
//	GET    /v1/trace/{number}?tag=T&layout=L
//	                                     the node that was granted a number, and the caller that got it; format=code for a code of the tag
//	GET    /v1/openapi.json              this list as OpenAPI 3.1
//	GET    /healthz, /readyz, /metrics   is it alive, can it issue, and Prometheus
//
// L is a layout's name or spec, and the default pool's if it is missing; T is
// RFC 3339 or ticks. A tag's name stands percent-encoded in the path. A PUT with
// "If-None-Match: *" only creates, with "If-Match: *" only changes.
//
// Where the policy has tokens, "Authorization: Bearer TOKEN" must come with every
// request but the first two of the last line, and the one before it.
//
// The number routes take format=code, too: they answer with the texts that show
// the numbers, {"ids":["1"],"codes":["INV-20261121-0000018"],"period":"20261121"}.
//
// IDs and the numbers of a tag's line are JSON strings, or bare decimal text on
// the number routes. The count may come as {"count":N} or as a form, too. What is
// not known in a query or a body is refused. Errors are application/problem+json with a stable code. No
// response may be cached.
package httpapi

import (
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/build"
	"github.com/hapax-id/hapax/internal/service"
	"github.com/hapax-id/hapax/internal/service/auth"
	"github.com/hapax-id/hapax/internal/service/health"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Options tune the handler. The zero value suits most uses.
type Options struct {
	// LoopbackOnly refuses what a web page could make a browser on this machine
	// send: a Host that is not a loopback name, a foreign Origin, and requests
	// that the browser calls cross-site. Set it where the listener is on loopback.
	LoopbackOnly bool

	// Hosts reports whether a Host is a name of this server. If it is given, it
	// refuses the same as LoopbackOnly, but for those names. Set it where clients
	// show only certificates, or nothing: a web page can have a browser show these
	// for it.
	Hosts func(host string) bool

	// Validity is how long a client may keep numbers that it takes ahead of use; default
	// an hour.
	Validity time.Duration

	// Policy asks clients for tokens, and knows what each is good for; nil asks
	// for none.
	Policy *auth.Policy

	// Routes are further handlers that share the address, by patterns of
	// http.ServeMux. What is refused by Host and Origin here, and logged, holds
	// for them, too; they ask for tokens themselves.
	Routes map[string]http.Handler

	// Known reports whether a request's caller is known otherwise than
	// by the policy, such as by a cookie; nil: nobody is.
	Known func(*http.Request) bool

	// Logger receives panics, and every request at debug level; default
	// slog.Default().
	Logger *slog.Logger

	// Gatherer is what /metrics shows; default the service's metrics and those
	// of the Go runtime and the process.
	Gatherer prometheus.Gatherer
}

// restAPI is what the handlers share.
type restAPI struct {
	svc    *service.Service
	opts   Options
	mux    *http.ServeMux
	hosts  func(string) bool // whether a Host is this server's; nil: each is taken
	bodies budget            // what requests' bodies take of memory
	unseen budget            // what those of strangers take

	next, ids *health.Route // the routes that most requests are for
	plain     atomic.Uint64 // requests for the first of them outside of a front
}

// routes lists what is served, as patterns of http.ServeMux.
func (a *restAPI) routes() map[string]http.HandlerFunc {
	return map[string]http.HandlerFunc{
		"GET /v1/tags":                                  a.listTags,
		"GET /v1/tags/{tag}":                            a.getTag,
		"PUT /v1/tags/{tag}":                            a.putTag,
		"DELETE /v1/tags/{tag}":                         a.deleteTag,
		"POST /v1/tags/{tag}/ids":                       a.postIDs,
		"GET /v1/tags/{tag}/next":                       a.getNext,
		"POST /v1/tags/{tag}/take":                      a.take,
		"POST /v1/tags/{tag}/handback":                  a.handBack,
		"GET /v1/tags/{tag}/codes/{code}":               a.getCode,
		"HEAD /v1/tags/{tag}/next":                      a.unrouted, // it would take a number and not show it
		"GET /v1/ids/{id}":                              a.getID,
		"POST /v1/ids/compose":                          a.compose,
		"GET /v1/layouts":                               a.listLayouts,
		"GET /v1/pools":                                 a.listPools,
		"GET /v1/pools/{pool}/workers":                  a.listWorkers,
		"GET /v1/pools/{pool}/workers/{worker}":         a.getWorker,
		"POST /v1/pools/{pool}/workers/{worker}/retire": a.retireWorker,
		"GET /v1/trace/{number}":                        a.trace,
		"GET /v1/openapi.json":                          a.openAPI,
		"GET /healthz":                                  a.healthz,
		"GET /readyz":                                   a.readyz,
		"GET /metrics":                                  a.metrics(),
		"/":                                             a.unrouted,
	}
}

// New returns the handler of all routes.
func New(svc *service.Service, opts Options) http.Handler {
	if opts.Logger == nil {
		opts.Logger = slog.Default()
	}
	if opts.Validity == 0 {
		opts.Validity = defaultValidity
	}
	if opts.Gatherer == nil {
		r := prometheus.NewRegistry()
		r.MustRegister(svc.Collector(), collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
		opts.Gatherer = r
	}
	svc.Counting(API, Codes()...)
	a := &restAPI{svc: svc, opts: opts, mux: http.NewServeMux(), hosts: opts.Hosts}
	a.bodies.most, a.bodies.each = maxBodies, maxBody
	a.unseen.most, a.unseen.each = maxBodiesUnseen, maxBodyUnseen
	if opts.LoopbackOnly {
		a.hosts = isLoopbackHost
	}
	for pattern, handler := range a.routes() {
		// Counted outside of the guard: a refused request is one of the route's, too.
		a.mux.HandleFunc(pattern, counted(svc.Route(API, routeName(pattern)), a.guarded(pattern, a.asked(pattern, handler))))
	}
	a.next, a.ids = svc.Route(API, routeNext), svc.Route(API, routeIDs)
	for pattern, handler := range opts.Routes {
		a.mux.Handle(pattern, handler)
	}
	return a
}

// Header values that every response shares; nobody changes them.
var (
	noStore         = []string{"no-store"}
	product         = []string{build.Product()}
	typeText        = []string{"text/plain; charset=utf-8"}
	typeJSON        = []string{"application/json"}
	typeProblemJSON = []string{"application/problem+json"}
)

// ServeHTTP implements http.Handler.
func (a *restAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	defer a.recover(w, r)
	conn := auth.ConnFromContext(r.Context())
	conn.Begin() // which counts until a good token is shown
	w.Header()["Cache-Control"], w.Header()["Server"] = noStore, product
	if a.hosts != nil && !isOwn(r, a.hosts) {
		a.refuseForeign(w)
		return
	}
	conn.Secure(r.TLS)
	if a.opts.Logger.Enabled(r.Context(), slog.LevelDebug) {
		began := time.Now()
		logged := &statusWriter{ResponseWriter: w, status: http.StatusOK}
		defer func() {
			a.opts.Logger.Debug("request", "method", r.Method, "path", r.URL.Path, "status", logged.status, "took", time.Since(began))
		}()
		w = logged
	}
	if a.opts.Policy == nil { // else admit tells who it is
		r = from(r, nil)
	}
	if tag, ok := plainNext(r); ok {
		if a.opts.Policy != nil {
			caller := a.admit(w, r, auth.Issue, tag)
			if caller == nil {
				return
			}
			defer caller.End()
			r = from(r, caller)
		}
		a.plainly(w, r, tag)
		return
	}
	if r.ContentLength != 0 {
		// Knows counts nothing: a wrong token is counted by the route, once.
		budget := &a.bodies
		if !a.opts.Policy.Knows(r.Context(), r.Header["Authorization"]) && (a.opts.Known == nil || !a.opts.Known(r)) {
			budget = &a.unseen
			_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(unseenTime)) // a recorder has none
			if r.ProtoMajor == 1 {
				w.Header().Set("Connection", "close") // else what is left of the body is waited for, before the answer
			}
		}
		held := budget.hold(w, r)
		if held == nil {
			a.fail(w, r, errBusy)
			return
		}
		defer held.release()
		w = held
	}
	if path := r.URL.EscapedPath(); !isClean(path) { // the router would serve another one
		a.fail(w, r, &hapax.ValueError{Field: "path", Value: path, Allowed: "one without empty parts, such as that of a tag without a name, and with . and .. percent-encoded", Err: hapax.ErrInvalidArgument})
		return
	}
	a.mux.ServeHTTP(w, r)
}

// The routes that most requests are for, as metrics name them.
const (
	routeNext = "GET /v1/tags/{tag}/next"
	routeIDs  = "POST /v1/tags/{tag}/ids"
)

// routeName returns the name of a pattern in metrics.
func routeName(pattern string) string {
	if pattern == "/" {
		return "other"
	}
	return pattern
}

// plainly is writeNext, of which one in many is measured.
func (a *restAPI) plainly(w http.ResponseWriter, r *http.Request, tag string) {
	measured := a.plain.Add(1)%health.Every == 0
	var began time.Time
	if measured {
		began = time.Now()
	}
	failed := 0
	if !a.writeNext(w, r, tag) {
		failed = 1
	}
	if a.next.Served(1, failed); measured {
		a.next.Took(time.Since(began).Seconds())
	}
}

// isClean reports whether no part of a path is empty or made of dots.
func isClean(path string) bool {
	for part := range strings.SplitSeq(strings.TrimPrefix(path, "/"), "/") {
		if part == "." || part == ".." {
			return false
		}
	}
	return !strings.Contains(path, "//")
}

// recover answers for a handler that panicked. The client learns nothing of it.
func (a *restAPI) recover(w http.ResponseWriter, r *http.Request) {
	switch p := recover(); p {
	case nil:
	case http.ErrAbortHandler:
		panic(p)
	default:
		a.opts.Logger.Error("panic while serving a request", "api", API, "method", r.Method, "path", r.URL.Path, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
		a.refuse(w, http.StatusInternalServerError, problem{Code: string(hapax.ErrInternal.Code()), Title: "an internal error"})
	}
}

func isLoopbackHost(host string) bool {
	if host == "" {
		return true // an HTTP/1.0 client; browsers always send it
	}
	name, _, err := net.SplitHostPort(host)
	if err != nil {
		name = strings.Trim(host, "[]")
	}
	if strings.EqualFold(name, "localhost") {
		return true
	}
	ip, err := netip.ParseAddr(name)
	return err == nil && ip.IsLoopback()
}

func (a *restAPI) healthz(w http.ResponseWriter, _ *http.Request) { writeText(w, "ok\n") }

func (a *restAPI) readyz(w http.ResponseWriter, r *http.Request) {
	state, status := a.svc.Readiness(r.Context()), http.StatusOK
	if !state.Ready {
		status = http.StatusServiceUnavailable
		w.Header().Set("Retry-After", "1")
	}
	caller, err := a.opts.Policy.Enter(r.Context(), r.RemoteAddr, r.Header["Authorization"])
	// Balancers show no token: they get the same answer, without names.
	if err != nil || caller.Allow(auth.Metrics, "") != nil {
		state = state.Bare()
	}
	writeJSON(w, status, state)
}

func (a *restAPI) metrics() http.HandlerFunc {
	return promhttp.HandlerFor(a.opts.Gatherer, promhttp.HandlerOpts{}).ServeHTTP
}

func writeText(w http.ResponseWriter, text string) {
	w.Header()["Content-Type"] = typeText
	_, _ = w.Write([]byte(text)) // an error means that the client has disconnected
}
