package server

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"reflect"
	"strings"
	"sync"

	"github.com/hapax-id/hapax"
	tinyid "github.com/hapax-id/hapax/compat/tinyid/serve"
	"github.com/hapax-id/hapax/internal/mount"
	"github.com/hapax-id/hapax/internal/service"
	"github.com/hapax-id/hapax/strategy"
)

// systems are the foreign systems that the server can stand in for, in the order of the
// documentation: the one place that names them.
var systems = []mount.System{
	tinyid.System,
}

// mounts are the foreign systems of a server that starts.
type mounts struct {
	plan *mount.Plan
	all  []*mounted
	host *mount.Host // nil: nothing was opened
}

// mounted is one of them.
type mounted struct {
	mount.Mount
	doors []*door
}

// each calls f for the settings of all systems that are on.
func (c Config) eachMount(f func(mount.Settings) error) error {
	for _, s := range systems {
		if settings := c.Mounts[s.Name]; settings != nil {
			if err := f(settings); err != nil {
				return err
			}
		}
	}
	return nil
}

// planMounts judges the settings of all systems that are on.
func (c Config) planMounts() (*mounts, error) {
	m := &mounts{plan: &mount.Plan{
		Data: c.Data, Store: c.Store, Tokens: len(c.Tokens) > 0, Tags: c.Tags, Pools: c.Pools, CheckStore: checkStore,
		Defined: map[string]service.PoolConfig{}, Strategies: map[string]strategy.Strategy{},
	}}
	return m, c.eachMount(func(s mount.Settings) error {
		made, err := s.Mount(m.plan)
		if err != nil {
			return err
		}
		one := &mounted{Mount: made}
		for _, d := range s.Doors() {
			if _, err := mount.Networks(allowOf(d), d.Allow); err != nil {
				return err
			}
			one.doors = append(one.doors, &door{Door: d})
		}
		m.all = append(m.all, one)
		return nil
	})
}

// allowOf names the setting with the networks of a door, below compat.
func allowOf(d mount.Door) string {
	system, _, _ := strings.Cut(strings.TrimPrefix(d.Setting, compatKey+"."), ".")
	return system + ".allow"
}

// define adds what the mounts define to the options of the server's own service.
func (m *mounts) define(opts *service.Options) {
	opts.Tags, opts.Pools = clone(opts.Tags), clone(opts.Pools)
	for name, pool := range m.plan.Defined {
		opts.Tags[name], opts.Pools[name] = service.TagConfig{Kind: hapax.KindSnowflake, Pool: name}, pool
	}
}

func clone[T any](m map[string]T) map[string]T {
	if m == nil {
		return map[string]T{}
	}
	return maps.Clone(m)
}

// doors are those of all mounts.
func (m *mounts) doors() (all []*door) {
	for _, one := range m.all {
		all = append(all, one.doors...)
	}
	return all
}

// listen opens the addresses of their own.
func (m *mounts) listen(ctx context.Context, c Config) error {
	for _, d := range m.doors() {
		if err := d.listen(ctx, c); err != nil {
			return err
		}
	}
	return nil
}

// open opens the mounts, over a node that is open.
func (m *mounts) open(ctx context.Context, c Config, n *Node, opts *service.Options, log *slog.Logger) error {
	m.host = &mount.Host{
		Plan: m.plan, Log: log, Instance: n.Instance, MaxWait: c.MaxWait, StoreTimeout: c.StoreTimeout, Unauthenticated: c.AllowUnauthenticated,
		OpenWitness: c.foreignWitness, Warned: n.warned.add, Explain: opener{}.explain,
		Beside: func(name string) (service.Options, error) { return foreignOptions(c, n, log, name) },
		Use:    opts.Pools, Services: map[string]*service.Service{},
	}
	for _, one := range m.all {
		if err := one.Open(ctx, m.host); err != nil {
			return err
		}
	}
	opts.Observer = m.host.Observer
	return nil
}

// answer makes what answers at the doors.
func (m *mounts) answer(c Config, own *service.Service, log *slog.Logger) error {
	for _, one := range m.all {
		answers, err := one.Answer(own)
		if err != nil {
			return err
		}
		for i, a := range answers {
			one.doors[i].build(c, own, a, log)
		}
	}
	return nil
}

// routes are those of the main listener.
func (m *mounts) routes() map[string]http.Handler {
	all := map[string]http.Handler{}
	for _, d := range m.doors() {
		if d.listener == nil {
			for _, p := range d.answer.Patterns {
				all[p] = d.answer.Handler
			}
		}
	}
	return all
}

// serve starts to answer. An error that ends a door goes to failed.
func (m *mounts) serve(failed chan<- error) {
	for _, d := range m.doors() {
		d.serve(failed)
	}
}

// stop answers what was asked, and waits.
func (m *mounts) stop(drain context.Context) error {
	doors := m.doors()
	errs := make([]error, len(doors))
	var draining sync.WaitGroup
	for i, d := range doors {
		draining.Go(func() { errs[i] = d.stop(drain) })
	}
	draining.Wait()
	return errors.Join(errs...)
}

// seal closes the services of the mounts.
func (m *mounts) seal(ctx context.Context) error {
	if m.host == nil {
		return nil
	}
	var errs []error
	for _, svc := range m.host.Services {
		errs = append(errs, svc.Close(ctx))
	}
	return errors.Join(errs...)
}

// close closes what else is open, once no service is left.
func (m *mounts) close() error {
	var errs []error
	for _, d := range m.doors() {
		errs = append(errs, d.close())
	}
	if m.host != nil {
		errs = append(errs, m.host.Close())
	}
	return errors.Join(errs...)
}

// A door is where clients of a foreign system come in.
type door struct {
	mount.Door

	answer   mount.Answer
	listener net.Listener // nil: the main listener, or none
	web      *http.Server // nil: another protocol, or not yet
	served   bool
	serving  sync.WaitGroup
}

func (d *door) listen(ctx context.Context, c Config) error {
	if d.Address == "" {
		return nil
	}
	networks, err := mount.Networks(allowOf(d.Door), d.Allow)
	if err != nil {
		return err
	}
	l, err := listen(ctx, c, endpointOf(d.Door))
	if err == nil {
		d.listener = &allowing{l, networks}
	}
	return err
}

// build makes the server, and bounds its connections as those of the others.
func (d *door) build(c Config, own *service.Service, a mount.Answer, log *slog.Logger) {
	if d.answer = a; d.listener == nil {
		return
	}
	places := c.HTTPConnections
	if d.Places > 0 {
		places = min(places, d.Places)
	}
	d.listener = gated(d.listener, places, c, own, d.Name)
	if h := a.Handler; h != nil {
		if len(a.Issuing) > 0 {
			h = answering(a.Issuing, h)
		}
		d.web = newForeignWeb(c, guardLoopback(d.listener, h), log)
	}
}

func (d *door) serve(failed chan<- error) {
	switch {
	case d.listener == nil:
		return
	case d.web != nil:
		d.serving.Go(func() { failed <- serveWeb(d.web, d.listener) })
	default:
		d.serving.Go(func() { failed <- d.answer.Serve(d.listener) })
	}
	d.served = true
}

func (d *door) stop(drain context.Context) error {
	if !d.served {
		return nil
	}
	var err error
	if d.web == nil {
		err = d.answer.Stop(drain)
	} else if err = d.web.Shutdown(drain); err != nil {
		_ = d.web.Close() // its connections have nothing to report
	}
	d.serving.Wait()
	return err
}

// close closes a listener that is not served.
func (d *door) close() error {
	if d.listener == nil || d.served {
		return nil
	}
	return d.listener.Close()
}

// readMounts decodes the settings of foreign systems.
func (l *loader) readMounts(c *Config, env func(string) (string, bool)) error {
	c.Mounts = map[string]mount.Settings{}
	given, _ := l.merged[compatKey].(map[string]any) // checkKeys refuses anything else
	for _, s := range systems {
		if given[s.Name] == nil {
			continue
		}
		settings := s.New()
		if err := decode(compatKey+"."+s.Name, given[s.Name], settings); err != nil {
			return err
		}
		if secret, ok := settings.(mount.Secret); ok {
			if err := secret.ReadSecrets(env); err != nil {
				return err
			}
		}
		c.Mounts[s.Name] = settings
	}
	return nil
}

// shownMounts returns the settings of foreign systems as YAML shows them, without
// passwords.
func (c Config) shownMounts() map[string]map[string]any {
	all := map[string]map[string]any{}
	for name, settings := range c.Mounts {
		all[name] = setFields(reflect.ValueOf(settings).Elem())
	}
	return all
}

// withoutMounts returns the entries of the section that are no mounts.
func withoutMounts(section any) any {
	given, ok := section.(map[string]any)
	if !ok {
		return section
	}
	rest := maps.Clone(given)
	for _, s := range systems {
		delete(rest, s.Name)
	}
	return rest
}

// mountEndpoints are the addresses of their own of the systems that are on.
func (c Config) mountEndpoints() (all []endpoint) {
	for _, s := range systems {
		if settings := c.Mounts[s.Name]; settings != nil {
			for _, d := range settings.Doors() {
				all = append(all, endpointOf(d))
			}
		}
	}
	return all
}

// endpointOf is the address of a door, as it is configured.
func endpointOf(d mount.Door) endpoint {
	return endpoint{d.Setting, d.Address, d.Example, true, &foreignEndpoint{d.Open}}
}
