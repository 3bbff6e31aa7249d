package vesta

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"strconv"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/compat/vesta"
	"github.com/hapax-id/hapax/compat/vesta/dubbo"
	"github.com/hapax-id/hapax/compat/vesta/dubbo/registry"
	"github.com/hapax-id/hapax/internal/compat/database"
	"github.com/hapax-id/hapax/internal/gate"
	"github.com/hapax-id/hapax/internal/mount"
	"github.com/hapax-id/hapax/internal/service"
	"github.com/hapax-id/hapax/internal/service/health"
)

// machineFile, in the data directory, remembers the row of DB_MACHINE_ID_PROVIDER.
const machineFile = "vesta-machine"

// patterns are the routes of Vesta's REST server.
var patterns = []string{"/genid", "/expid", "/transtime", "/makeid"}

// source issues with the service's pool.
type source struct{ svc *service.Service }

// Next implements vesta.Source.
func (s source) Next(ctx context.Context) (hapax.ID, error) { return s.svc.Next(ctx, name) }

// Machine implements vesta.Source. Before the first number it takes a machine ID, and
// is -1, which no number is made of, where that cannot be had.
func (s source) Machine() int64 {
	if worker, ok := s.svc.Worker(context.Background(), name); ok {
		return worker
	}
	return -1
}

// A part is Vesta's part of a server.
type part struct {
	settings *Settings
	host     *mount.Host
	rpc      *dubbo.Server

	life context.Context // ends when the provider is to be taken off the registry
	end  context.CancelFunc
}

// Open implements mount.Mount.
func (p *part) Open(ctx context.Context, h *mount.Host) error {
	if p.host = h; p.settings.Table == "" {
		return nil
	}
	err := database.With(ctx, p.settings.Table, func(ctx context.Context, db *sql.DB) error {
		id, release, err := vesta.Table{DB: db, Memory: filepath.Join(h.Data, machineFile)}.Machine(ctx)
		if err != nil {
			return err
		}
		h.Defer(func() error { release(); return nil })
		pool := h.Use[name]
		pool.Workers = strconv.FormatInt(id, 10)
		h.Use[name] = pool.Lending(hapax.WorkerRange{}, "DB_MACHINE_ID_PROVIDER")
		return nil
	})
	if err != nil {
		return fmt.Errorf("compat.vesta.table: %w", err)
	}
	return nil
}

// Answer implements mount.Mount.
func (p *part) Answer(own *service.Service) ([]mount.Answer, error) {
	pool := p.host.Use[name]
	p.host.Log.Info("Vesta's numbers", "populator", cmp.Or(pool.Populator, "atomic"), "layout", pool.Layout,
		"on_rollback", cmp.Or(pool.OnRollback, string(hapax.RollbackContinue)))
	var trace func(hapax.ID, vesta.Parts)
	if p.settings.Trace {
		trace = p.trace
	}
	ids, err := p.settings.service(source{own}, trace)
	if err != nil {
		return nil, err
	}
	handler, err := p.settings.rest(ids)
	if err != nil {
		return nil, err
	}
	answers := []mount.Answer{{Handler: handler, Patterns: patterns, Routes: patterns}}
	if p.settings.Dubbo == "" {
		return answers, nil
	}
	p.rpc, err = dubbo.NewServer(ids, dubbo.Options{
		Interfaces: p.settings.Interfaces, Wait: p.host.MaxWait, Known: func(nc net.Conn) { gate.PassOf(nc).Vouch() },
		Answered: answered(own),
	})
	p.life, p.end = context.WithCancel(context.Background())
	return append(answers, mount.Answer{Serve: p.serve, Stop: p.stop}), err
}

// answered returns what counts the calls over Dubbo, by their methods.
func answered(own *service.Service) func(method string, failed bool, took time.Duration) {
	routes := map[string]*health.Route{}
	for _, method := range append([]string{dubbo.Other}, dubbo.Methods...) {
		routes[method] = own.Route("dubbo", method)
	}
	return func(method string, failed bool, took time.Duration) {
		n := 0
		if failed {
			n = 1
		}
		routes[method].Served(1, n)
		routes[method].Took(took.Seconds())
	}
}

// trace logs a number.
func (p *part) trace(id hapax.ID, f vesta.Parts) {
	// The fields are a group of their own: the line has a time already.
	p.host.Log.Info("number issued", "id", id.String(),
		slog.Group("fields", "machine", f.Machine, "seq", f.Seq, "time", f.Time, "gen_method", f.GenMethod, "type", f.Type, "version", f.Version))
}

// serve answers over Dubbo, and has the central server registered meanwhile.
func (p *part) serve(l net.Listener) error {
	served, registered := make(chan error, 1), make(chan error, 1)
	go func() { served <- p.rpc.Serve(l) }()
	go func() { registered <- p.register(l.Addr().String()) }()
	var wrong error
	select {
	case err := <-served:
		// Consumers must not be sent to a server that serves no more.
		if p.end(); !errors.Is(err, dubbo.ErrServerClosed) {
			wrong = fmt.Errorf("the central server of Vesta: %w", err)
		}
		<-registered //nolint:errcheck // nothing is registered any more
	case err := <-registered:
		if err != nil && p.life.Err() == nil {
			wrong = fmt.Errorf("compat.vesta.registry: %w", err)
			_ = p.rpc.Close(p.life) // the first error says what is wrong
		}
		if err := <-served; wrong == nil && !errors.Is(err, dubbo.ErrServerClosed) {
			wrong = fmt.Errorf("the central server of Vesta: %w", err)
		}
	}
	return wrong
}

// register keeps the central server registered, if it is to be, until the life ends. It
// waits for a registry that is away.
func (p *part) register(listens string) error {
	if p.settings.Registry == "" {
		<-p.life.Done()
		return nil
	}
	interfaces := p.settings.Interfaces
	if len(interfaces) == 0 {
		interfaces = []string{dubbo.DefaultInterface}
	}
	address := p.settings.advertised(listens)
	reg, err := registry.Register(p.life, p.settings.Registry, interfaces, address, registry.Options{Group: p.settings.Group, Version: p.settings.ServiceVersion})
	if err != nil {
		return err
	}
	p.host.Log.Info("registered", "registry", p.settings.Registry, "address", address)
	<-p.life.Done()
	reg.Close()
	return nil
}

// stop takes the central server off the registry, and answers what was asked.
func (p *part) stop(drain context.Context) error {
	p.end()
	return p.rpc.Close(drain)
}
