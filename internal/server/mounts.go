package server

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"net/http"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/hapax-id/hapax"
	columns "github.com/hapax-id/hapax/compat/sequences"
	"github.com/hapax-id/hapax/internal/mount"
	"github.com/hapax-id/hapax/internal/mount/leaf"
	"github.com/hapax-id/hapax/internal/mount/redismongo"
	"github.com/hapax-id/hapax/internal/mount/sequences"
	"github.com/hapax-id/hapax/internal/mount/tinyid"
	"github.com/hapax-id/hapax/internal/mount/uidgen"
	"github.com/hapax-id/hapax/internal/mount/vesta"
	"github.com/hapax-id/hapax/internal/service"
	"github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/store/witness"
	"github.com/hapax-id/hapax/strategy"
)

// systems are the foreign systems that the server can stand in for, in the order of the
// documentation: the one place that names them.
var systems = []mount.System{
	leaf.System,
	tinyid.System,
	vesta.System,
	uidgen.System,
	redismongo.System,
}

// Systems returns the foreign systems.
func Systems() []mount.System { return slices.Clone(systems) }

// Imports returns the commands that read what a system was told, and that of sequences,
// which no server stands in for.
func Imports() (all []*mount.Import) {
	for _, s := range systems {
		if s.Import != nil {
			all = append(all, s.Import())
		}
	}
	return append(all, sequences.Import())
}

// Columns reads the columns of tags with floor_from.
var Columns service.FloorReader = columns.Highest

// ScanColumn reads a whole column.
var ScanColumn = columns.Scan

// Repeated is a number that a column holds more than once.
type Repeated = columns.Repeated

// ScanOptions tell how to read a column.
type ScanOptions = columns.ScanOptions

// systemNames lists the names of the foreign systems.
func systemNames() string {
	var names []string
	for _, s := range systems {
		names = append(names, s.Name)
	}
	return strings.Join(names, ", ")
}

// mounts are the foreign systems of a server that starts.
type mounts struct {
	plan *mount.Plan
	all  []*mounted
	host *mount.Host // nil: nothing was opened
}

// mounted is the mount of one system.
type mounted struct {
	mount.Mount
	doors []*door
}

// eachMount calls f for the settings of all systems that are on.
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
		Data: c.Data, Store: c.Store, Tokens: len(c.Tokens) > 0, Tags: c.Tags, Pools: c.Pools,
		Stores:  mount.Stores{Check: checkStore, Volatile: isVolatile, File: func(url string) string { return boltPath(url, c.Data) }},
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
	// Into copies: the maps are the configuration's, with which a reload compares.
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

// doors returns the doors of all mounts.
func (m *mounts) doors() (all []*door) {
	for _, one := range m.all {
		all = append(all, one.doors...)
	}
	return all
}

// listen opens the mounts' own addresses.
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
		Store:  n.Store, StoreURL: newOpener(c, log).url, Ledger: n.Ledger,
		Guard: func(url string, w *witness.Witness) (driver.Store, error) {
			o := newOpener(c, log)
			o.url, o.warned, o.existing = url, n.warned, w.KnowsStore
			return witness.GuardOpened(o.open, w, o.guardOptions(n.changed))
		},
		Use: opts.Pools, Marks: map[string]func(context.Context, string) (int64, error){}, Services: map[string]*service.Service{},
	}
	for _, one := range m.all {
		if err := one.Open(ctx, m.host); err != nil {
			return err
		}
	}
	opts.Beside, opts.Observer, opts.Marks = m.host.Services, m.host.Observer, m.host.Marks
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
			// Answers are in the order of the doors.
			one.doors[i].build(c, own, a, log)
		}
	}
	return nil
}

// routes returns the mounts' routes on the main listener.
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

// paths returns the paths of the mounts' routes on the main listener.
func (m *mounts) paths() (all []string) {
	for _, d := range m.doors() {
		if d.listener == nil {
			all = append(all, d.answer.Routes...)
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
		// At the same time, since the drain is one for all of them.
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

// readMounts decodes the settings of foreign systems.
func (l *loader) readMounts(c *Config, env func(string) (string, bool)) error {
	c.Mounts = map[string]mount.Settings{}
	given, _ := l.merged[compatKey].(map[string]any) // checkKeys refuses anything else
	for _, s := range systems {
		if given[s.Name] == nil {
			continue
		}
		settings := s.New()
		entry, _ := given[s.Name].(map[string]any) // the same
		for _, k := range s.Ignored {
			if _, there := entry[k.Name]; there {
				entry = maps.Clone(entry)
				delete(entry, k.Name)
				c.ignored = append(c.ignored, compatKey+"."+s.Name+"."+k.Name)
			}
		}
		if err := decode(compatKey+"."+s.Name, entry, settings); err != nil {
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

// mountEndpoints returns the own addresses of the systems that are on.
func (c Config) mountEndpoints() (all []endpoint) {
	_ = c.eachMount(func(s mount.Settings) error {
		for _, d := range s.Doors() {
			all = append(all, endpointOf(d))
		}
		return nil // always
	})
	return all
}

// foreignOptions are the options of a service over a foreign table or tree.
func foreignOptions(c Config, n *Node, log *slog.Logger, name string) (service.Options, error) {
	clock, err := testClock()
	return service.Options{
		NoAutoCreate: true, OneShot: true, // rows are made by whoever runs the table
		MaxCount: 1_000_000, MaxWait: c.MaxWait, Refresh: min(c.Refresh, time.Minute), StoreTimeout: c.StoreTimeout,
		AlarmBudget: c.AlarmBudget, AlarmForecast: c.AlarmForecast,
		TagIdle: 10_000 * time.Hour, // a foreign table takes nothing back
		Logger:  log.With("beside", name), Clock: clock, Strategies: c.strategies, Ledger: n.Ledger.In(name),
	}, err
}

// foreignWitness opens the witness of a foreign system's table, beside the node's own.
func (c Config) foreignWitness(system string) (*witness.Witness, error) {
	path := filepath.Join(c.Data, witnessFile)
	if c.Witness != "" {
		path = c.Witness
	}
	return witness.OpenFile(path + "-" + system)
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
