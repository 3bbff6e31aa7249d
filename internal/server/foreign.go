package server

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/api"
	"github.com/hapax-id/hapax/internal/gate"
	"github.com/hapax-id/hapax/internal/service"
	"github.com/hapax-id/hapax/store/witness"
)

// A foreignPart is a part of the server that stands in for a foreign system. Its
// methods are called in this order, but for close, which ends what is not served.
type foreignPart interface {
	// listen opens the addresses of its own.
	listen(ctx context.Context, c Config) error
	// open opens tables and trees, and the services over them, which besides tells.
	open(ctx context.Context, c Config, n *Node, log *slog.Logger) error
	besides() map[string]*service.Service
	// build makes the handlers, over the server's own service or those besides.
	build(c Config, own *service.Service, log *slog.Logger) error
	// routes are those of the main listener.
	routes() map[string]http.Handler
	// serve starts to answer. An error that ends a part goes to failed.
	serve(failed chan<- error)
	// stop answers what was asked, and waits.
	stop(drain context.Context) error
	// close closes everything that was opened.
	close(ctx context.Context) error
}

// foreignParts are all of them, in the order of the documentation.
type foreignParts []foreignPart

func newForeignParts(c Config) foreignParts {
	var parts foreignParts
	if c.Compat.Leaf != nil {
		parts = append(parts, &leafServer{config: c.Compat.Leaf})
	}
	return parts
}

func (ps foreignParts) each(f func(foreignPart) error) error {
	for _, p := range ps {
		if err := f(p); err != nil {
			return err
		}
	}
	return nil
}

func (ps foreignParts) besides() map[string]*service.Service {
	all := map[string]*service.Service{}
	for _, p := range ps {
		maps.Copy(all, p.besides())
	}
	return all
}

// observer returns what wants to hear of the events of the server's own service; nil
// if nothing does.
func (ps foreignParts) observer() hapax.Observer {
	for _, p := range ps {
		if l, ok := p.(*leafServer); ok && l.config.segments() == native {
			return l.board.note
		}
	}
	return nil
}

func (ps foreignParts) close(ctx context.Context) error {
	var errs []error
	for _, p := range ps {
		errs = append(errs, p.close(ctx))
	}
	return errors.Join(errs...)
}

func (ps foreignParts) stop(drain context.Context) error {
	errs := make([]error, len(ps))
	var draining sync.WaitGroup
	for i, p := range ps {
		draining.Go(func() { errs[i] = p.stop(drain) })
	}
	draining.Wait()
	return errors.Join(errs...)
}

// gatherer returns what /metrics shows: the metrics of the server's own service, and
// with the label beside those of the foreign systems' tables and trees.
func gatherer(own *service.Service, besides map[string]*service.Service) prometheus.Gatherer {
	r := prometheus.NewRegistry()
	r.MustRegister(own.Collector(), collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	all := prometheus.Gatherers{r}
	for name, svc := range besides {
		r := prometheus.NewRegistry()
		prometheus.WrapRegistererWith(prometheus.Labels{"beside": name}, r).MustRegister(svc.Collector())
		all = append(all, r)
	}
	return all
}

// foreignOptions are the options of a service over a foreign table or tree.
func foreignOptions(c Config, n *Node, log *slog.Logger, name string) (service.Options, error) {
	clock, err := testClock()
	return service.Options{
		NoAutoCreate: true, OneShot: true, // rows are made by whoever runs the table
		MaxCount: 1_000_000, MaxWait: c.MaxWait, Refresh: min(c.Refresh, time.Minute), StoreTimeout: c.StoreTimeout,
		TagIdle: 10_000 * time.Hour, // a foreign table takes nothing back
		Logger:  log.With("beside", name), Clock: clock, Strategies: c.strategies, Ledger: n.Ledger.In(name),
	}, err
}

// A foreignHTTP answers the routes of a foreign system, at an address of its own or
// at the main listener.
type foreignHTTP struct {
	name     string
	listener net.Listener // nil: the main listener
	web      *http.Server
	main     map[string]http.Handler
	serving  sync.WaitGroup
}

// open opens the address of its own, if there is one.
func (f *foreignHTTP) open(ctx context.Context, c Config, e endpoint, networks []netip.Prefix) error {
	if e.address == "" {
		return nil
	}
	l, err := listen(ctx, c, e)
	if err == nil {
		f.listener = &allowing{l, networks}
	}
	return err
}

// handle sets what answers, and where the patterns of http.ServeMux are for the main
// listener. At an address of its own /healthz and /readyz tell of the services that
// issue there.
func (f *foreignHTTP) handle(c Config, own *service.Service, issuing []*service.Service, h http.Handler, patterns []string, log *slog.Logger) {
	if f.listener == nil {
		f.main = map[string]http.Handler{}
		for _, p := range patterns {
			f.main[p] = h
		}
		return
	}
	f.listener = gated(f.listener, c.HTTPConnections, c, own, f.name)
	f.web = newForeignWeb(c, guardLoopback(f.listener, answering(issuing, h)), log)
}

// gated bounds the connections of a foreign system's listener as those of the
// others. Nobody has to show anything there, but a whole request.
func gated(l net.Listener, places int, c Config, own *service.Service, name string) net.Listener {
	own.Counting(name)
	return gate.Listen(l, gate.New(places), true, func() {
		c.crowded()
		own.Refused(name, api.ErrLimitExceeded.Code())
	})
}

// newForeignWeb returns the server of an address of a foreign system.
func newForeignWeb(c Config, h http.Handler, log *slog.Logger) *http.Server {
	return &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if pass, ok := r.Context().Value(passKey{}).(*gate.Pass); ok {
				pass.Vouch()
			}
			h.ServeHTTP(w, r)
		}),
		ReadHeaderTimeout: readHeaderTimeout, ReadTimeout: readTimeout, WriteTimeout: c.MaxWait + writeTimeout,
		IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeaderBytes, ConnContext: withPass, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
}

// answering answers /healthz and /readyz, and has h answer the rest.
func answering(issuing []*service.Service, h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/healthz":
			_, _ = io.WriteString(w, "ok\n") // an error means that the client has disconnected
		case "/readyz":
			tellReadiness(r.Context(), w, issuing)
		default:
			h.ServeHTTP(w, r)
		}
	})
}

// tellReadiness reports whether each of the services can issue.
func tellReadiness(ctx context.Context, w http.ResponseWriter, issuing []*service.Service) {
	all := service.Readiness{Ready: true, State: string(witness.Serving), Store: "ok"}
	for _, svc := range issuing {
		all = all.And(svc.Readiness(ctx))
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	if !all.Ready {
		w.Header().Set("Retry-After", "1")
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	_ = json.NewEncoder(w).Encode(all) // an error means that the client has disconnected
}

func (f *foreignHTTP) routes() map[string]http.Handler { return f.main }

func (f *foreignHTTP) serve(failed chan<- error) {
	if f.web != nil {
		f.serving.Go(func() { failed <- serveWeb(f.web, f.listener) })
	}
}

func (f *foreignHTTP) stop(drain context.Context) error {
	if f.web == nil {
		return nil
	}
	err := f.web.Shutdown(drain)
	if err != nil {
		_ = f.web.Close() // its connections have nothing to report
	}
	f.serving.Wait()
	return err
}

// close closes a listener that is not served.
func (f *foreignHTTP) close() error {
	if f.listener == nil || f.web != nil {
		return nil
	}
	return f.listener.Close()
}
