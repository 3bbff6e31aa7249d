package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/compat/vesta"
	"github.com/hapax-id/hapax/compat/vesta/dubbo"
	"github.com/hapax-id/hapax/compat/vesta/dubbo/registry"
	"github.com/hapax-id/hapax/compat/vesta/rest"
	"github.com/hapax-id/hapax/internal/api/httpapi"
	"github.com/hapax-id/hapax/internal/gate"
	"github.com/hapax-id/hapax/internal/service"
)

// vestaPaths are the routes of Vesta's REST server.
var vestaPaths = []string{"/genid", "/expid", "/transtime", "/makeid"}

// vestaParts are how many parts can fail: REST, Dubbo and the registration.
const vestaParts = 3

// vestaSource issues with the service's pool.
type vestaSource struct{ svc *service.Service }

// Next implements vesta.Source.
func (s vestaSource) Next(ctx context.Context) (hapax.ID, error) { return s.svc.Next(ctx, vestaPool) }

// Machine implements vesta.Source. Before the first number it takes a machine ID, and
// is -1, which no number is made of, where that cannot be had.
func (s vestaSource) Machine() int64 {
	if worker, ok := s.svc.Worker(context.Background(), vestaPool); ok {
		return worker
	}
	return -1
}

// A vestaServer is Vesta's part of a server. The zero value is none.
type vestaServer struct {
	config *VestaConfig
	log    *slog.Logger
	http   net.Listener // nil: none of its own
	dubbo  net.Listener // nil: no central server
	routes map[string]http.Handler
	web    *http.Server
	rpc    *dubbo.Server

	life    context.Context // ends when the provider is to be taken off the registry
	end     context.CancelFunc
	serving sync.WaitGroup
}

// endpoints are the addresses of their own.
func (v *VestaConfig) endpoints() []endpoint {
	if v == nil {
		return nil
	}
	return []endpoint{
		{"compat.vesta.http", v.HTTP, "127.0.0.1:8099", true, &foreignEndpoint{len(v.Allow) > 0}},
		{"compat.vesta.dubbo", v.Dubbo, "127.0.0.1:20880", true, &foreignEndpoint{len(v.Allow) > 0}},
	}
}

// rest returns the handler of REST.
func (v *VestaConfig) rest(ids *vesta.IDService) (http.Handler, error) {
	zone, err := time.LoadLocation(cmp.Or(v.Zone, "Local"))
	if err != nil {
		return nil, compatError("vesta.zone", v.Zone, "a time zone, such as Asia/Shanghai")
	}
	if ids == nil {
		ids = new(vesta.IDService) // to check the settings alone
	}
	h, err := rest.NewHandler(ids, rest.Options{Shape: rest.Shape(v.Shape), Zone: zone})
	if value, ok := errors.AsType[*hapax.ValueError](err); ok {
		return nil, compatError("vesta."+value.Field, value.Value, value.Allowed)
	}
	return h, err
}

// listen opens the listeners.
func (s *vestaServer) listen(ctx context.Context, c Config) error {
	if s.config = c.Compat.Vesta; s.config == nil {
		return nil
	}
	networks, err := s.config.networks()
	if err != nil {
		return err
	}
	to := []*net.Listener{&s.http, &s.dubbo}
	for i, e := range s.config.endpoints() {
		if e.address == "" {
			continue
		}
		l, err := listen(ctx, c, e)
		if err != nil {
			return errors.Join(err, s.close())
		}
		*to[i] = &allowing{l, networks}
	}
	return nil
}

// close closes listeners that are not served.
func (s *vestaServer) close() error {
	var errs []error
	for _, l := range []net.Listener{s.http, s.dubbo} {
		if l != nil {
			errs = append(errs, l.Close())
		}
	}
	return errors.Join(errs...)
}

// build makes the servers, over the service.
func (s *vestaServer) build(c Config, svc *service.Service, log *slog.Logger) error {
	if s.config == nil {
		return nil
	}
	s.log = log
	s.life, s.end = context.WithCancel(context.Background())
	ids, err := s.config.service(vestaSource{svc})
	if err != nil {
		return err
	}
	handler, err := s.config.rest(ids)
	if err != nil {
		return err
	}
	if s.http == nil {
		s.routes = map[string]http.Handler{}
		for _, path := range vestaPaths {
			s.routes[path] = handler
		}
	} else {
		s.http = gated(s.http, c.HTTPConnections, c, svc, vestaPool)
		s.web = newForeignWeb(c, guardLoopback(s.http, handler), log)
	}
	if s.dubbo != nil {
		s.dubbo = gated(s.dubbo, min(c.HTTPConnections, dubbo.DefaultMaxConns), c, svc, vestaPool)
		s.rpc, err = dubbo.NewServer(ids, dubbo.Options{Interfaces: s.config.Interfaces, Wait: c.MaxWait, Known: func(nc net.Conn) { gate.PassOf(nc).Vouch() }})
	}
	return err
}

// guardLoopback refuses, on loopback, what a web page made a browser send.
func guardLoopback(l net.Listener, h http.Handler) http.Handler {
	if !isLoopback(l) {
		return h
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !httpapi.IsLocal(r) {
			http.Error(w, "this address answers programs on this machine alone", http.StatusForbidden)
			return
		}
		h.ServeHTTP(w, r)
	})
}

// serve starts to answer, and registers the central server. An error that ends a part
// goes to failed, which has room for vestaParts.
func (s *vestaServer) serve(failed chan<- error) {
	if s.web != nil {
		s.serving.Go(func() { failed <- serveWeb(s.web, s.http) })
	}
	if s.rpc == nil {
		return
	}
	s.serving.Go(func() {
		if err := s.rpc.Serve(s.dubbo); !errors.Is(err, dubbo.ErrServerClosed) {
			failed <- fmt.Errorf("the central server of Vesta: %w", err)
		}
	})
	if s.config.Registry != "" {
		s.serving.Go(func() {
			if err := s.register(); err != nil && s.life.Err() == nil {
				failed <- fmt.Errorf("compat.vesta.registry: %w", err)
			}
		})
	}
}

// register keeps the central server registered until the life ends. It waits for a
// registry that is away.
func (s *vestaServer) register() error {
	interfaces := s.config.Interfaces
	if len(interfaces) == 0 {
		interfaces = []string{dubbo.DefaultInterface}
	}
	reg, err := registry.Register(s.life, s.config.Registry, interfaces, s.config.advertised(s.dubbo.Addr().String()),
		registry.Options{Group: s.config.Group, Version: s.config.ServiceVersion})
	if err != nil {
		return err
	}
	s.log.Info("registered", "registry", s.config.Registry, "address", s.config.advertised(s.dubbo.Addr().String()))
	<-s.life.Done()
	reg.Close()
	return nil
}

// stop takes the central server off the registry, answers what was asked, and waits for
// everything.
func (s *vestaServer) stop(drain context.Context) error {
	if s.end == nil {
		return nil
	}
	s.end()
	var errs []error
	if s.rpc != nil {
		errs = append(errs, s.rpc.Close(drain))
	}
	if s.web != nil {
		err := s.web.Shutdown(drain)
		if err != nil {
			_ = s.web.Close() // its connections have nothing to report
		}
		errs = append(errs, err)
	}
	s.serving.Wait()
	return errors.Join(errs...)
}
