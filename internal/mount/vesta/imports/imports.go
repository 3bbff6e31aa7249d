// Package imports reads Vesta's configuration: the properties and the Spring XML of its
// services, and of the Dubbo provider and registry around them.
package imports

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/compat/springxml"
	"github.com/hapax-id/hapax/internal/moves"
)

// A Config is what Vesta was told.
type Config struct {
	Layout    string // the name of a layout, or a spec
	Machine   string // as identity providers are written; empty: not told
	Table     string // the database of DB_MACHINE_ID_PROVIDER as a URL without the password
	Password  moves.Secret
	Version   int64
	GenMethod string // empty: as requests come in
	Populator string // "atomic", or "mutex"
	Registry  string
	Port      string // of Dubbo
	Interface string
	Group     string // of the service in the registry
	Revision  string // of the service in the registry

	account *moves.Account
}

// A Source is where Vesta's configuration is.
type Source struct {
	Open       springxml.Open
	Path       string // of Spring's XML or a properties file
	Properties string // of the file that the placeholders of XML stand for; may be empty
	Legacy     bool   // the older generation of Vesta's layouts, which its files do not tell
	Bean       string // id of the service where XML has several; empty: there is one
	NoRegistry bool   // the provider's registry is left out, whatever its kind
}

// Read reads Spring's XML, with the files that it imports, or a properties file. Each
// setting is carried over, or named in the comments of AppendYAML, or refused. Errors match
// hapax.ErrInvalidArgument.
func Read(src Source) (Config, error) {
	r := reader{account: new(moves.Account), values: map[string]string{}, from: map[string]string{}, legacy: src.Legacy, bean: src.Bean, noRegistry: src.NoRegistry}
	d, err := springxml.Read(src.Open, src.Path, src.Properties, r.account)
	if err != nil {
		return Config{}, err
	}
	if d.Properties != nil {
		r.properties(d.Properties)
		if err := springxml.OnlyXML(src.Bean); err != nil {
			return Config{}, err
		}
		if err := d.Properties.Finish("vesta.", strings.Join(slices.Sorted(maps.Keys(names)), ", ")); err != nil {
			return Config{}, err
		}
	} else if err := r.beans(d); err != nil {
		return Config{}, err
	}
	c, err := r.config()
	if err == nil {
		err = r.account.Err()
	}
	return c, err
}

// The settings, by the names of which a reader knows them.
const (
	machine   = "machine"
	machines  = "machines"
	addresses = "addresses"
	provider  = "provider"
	kind      = "type"
	version   = "version"
	genMethod = "genMethod"
	lock      = "lock"
	atomic    = "atomic"
	populator = "populator"
	epoch     = "epoch"
	dbURL     = "dbUrl"
	dbName    = "dbName"
	dbUser    = "dbUser"
	dbSecret  = "dbPassword"
	registry  = "registry"
	port      = "port"
	iface     = "interface"
	group     = "group"
	revision  = "service version"
)

// A reader collects values.
type reader struct {
	account *moves.Account
	legacy  bool
	bean    string            // as in Source
	known   int               // settings of Vesta's
	values  map[string]string // by name
	from    map[string]string // where each was said
	bits    map[string]int    // of an IdMeta
	table   *moves.Database   // of a DbMachineIdProvider

	noRegistry bool // as in Source
}

// set takes a value down. Of two that differ none is right.
func (r *reader) set(name, where, value string) {
	if value == "" {
		r.account.Note(moves.Idle, where)
		return
	}
	r.known++
	if have, ok := r.values[name]; ok && have != value {
		r.account.Refusef(where, "%s says something else: give one of them", r.from[name])
		return
	}
	r.values[name], r.from[name] = value, where
}

// names are the settings of property files, in lower case.
var names = map[string]string{
	"vesta.machine": machine, "vesta.machines": machines, "vesta.ips": addresses, "vesta.provider.type": provider,
	"vesta.type": kind, "vesta.version": version, "vesta.genmethod": genMethod,
	"vesta.sync.lock.impl.key": lock, "vesta.atomic.impl.key": atomic,
	"vesta.db.url": dbURL, "vesta.db.dbname": dbName, "vesta.db.name": dbName, "vesta.db.user": dbUser, "vesta.db.username": dbUser, "vesta.db.password": dbSecret,
	"vesta.registry": registry, "vesta.registry.address": registry, "vesta.port": port,
	"vesta.service.register.center": registry, "vesta.service.port": port,
}

func (r *reader) properties(s *moves.Settings) {
	for _, key := range s.Left("") {
		if name, ok := names[strings.ToLower(key)]; ok {
			_, value := s.Take(key)
			if name == registry {
				r.registered(key, value)
				continue
			}
			r.set(name, key, value)
			if name == dbSecret {
				r.account.Note(moves.Hidden, key)
			}
		}
	}
}

// types are how the type is written, in lower case.
var types = map[string]int{
	"": 0, "-1": 0, "0": 0, "max-peak": 0, "max_peak": 0, "seconds": 0, "second": 0,
	"1": 1, "min-granularity": 1, "min_granularity": 1, "milliseconds": 1, "millisecond": 1,
}

// providers are the kinds of machine ID providers, with the settings that each uses.
var providers = map[string][]string{
	"PROPERTY": {machine}, "IP_CONFIGURABLE": {addresses}, "DB": {dbURL, dbName, dbUser, dbSecret},
}

func (r *reader) config() (Config, error) {
	v := r.values
	c := Config{Registry: v[registry], Interface: v[iface], Group: v[group], Revision: v[revision], Populator: r.populator(), account: r.account}
	if r.known == 0 {
		return c, fmt.Errorf("%w: there is no setting of Vesta's, such as vesta.machine or a bean of the class IdServiceFactoryBean", hapax.ErrInvalidArgument)
	}
	typ, ok := types[strings.ToLower(v[kind])]
	if !ok {
		r.account.Refusef(r.from[kind], "it is %q; want 0, max-peak or seconds, 1, min-granularity or milliseconds", v[kind])
	}
	r.number(version, 0, 1, func(n int64) { c.Version = n })
	r.number(genMethod, 0, 3, func(n int64) { c.GenMethod = strconv.FormatInt(n, 10) })
	r.number(port, 1, 65535, func(n int64) { c.Port = strconv.FormatInt(n, 10) })
	r.provider(&c)
	// A refused value would make another layout: it is told first, and alone.
	if err := r.account.Err(); err != nil {
		return c, err
	}
	layout, err := r.layout(typ)
	if err != nil {
		return c, err
	}
	c.Layout = cmp.Or(layout.Name(), layout.String())
	return c, nil
}

// number checks a number. −1 is Vesta's word for one that is not given.
func (r *reader) number(name string, least, most int64, set func(int64)) {
	if r.values[name] == "" {
		return
	}
	n, err := strconv.ParseInt(r.values[name], 10, 64)
	switch {
	case err == nil && n == -1:
		r.account.Note("Not set", r.from[name])
	case err != nil || n < least || n > most:
		r.account.Refusef(r.from[name], "it is %q; want %d to %d", r.values[name], least, most)
	case set != nil:
		set(n)
	}
}

// populator returns which populator Vesta has: the one that it was given, or the one that a
// property switches on, or else the one with a lock.
func (r *reader) populator() string {
	on := func(name string) bool {
		switch value := strings.ToLower(r.values[name]); value {
		case "on", "true":
			return true
		case "", "off", "false":
		default:
			r.account.Refusef(r.from[name], "it is %q; want true or false", value)
		}
		return false
	}
	isAtomic, isLock := on(atomic), on(lock)
	if p := r.values[populator]; p != "" {
		return p
	}
	if isAtomic && !isLock {
		return "atomic"
	}
	if isAtomic {
		r.account.Note("Without effect beside the other populator, which Vesta asks first", r.from[atomic])
	} else if r.values[atomic] != "" {
		r.account.Note("Not switched on", r.from[atomic])
	}
	if r.values[lock] != "" {
		r.account.Note("Leads to the populator with a lock, mutex, which is Vesta's default", r.from[lock])
	}
	return "mutex"
}

// provider finds out where the machine ID comes from.
func (r *reader) provider(c *Config) {
	v := r.values
	var uses []string
	if v[provider] != "" {
		var ok bool
		if uses, ok = providers[strings.ToUpper(v[provider])]; !ok {
			r.account.Refusef(r.from[provider], "it is %q; want PROPERTY, IP_CONFIGURABLE or DB", v[provider])
			return
		}
		r.account.Note("Chooses among the machine ID's settings", r.from[provider]+" "+v[provider])
	}
	for _, name := range []string{machine, machines, addresses, dbURL, dbName, dbUser, dbSecret} {
		if uses != nil && v[name] != "" && !slices.Contains(uses, name) {
			r.account.Note("Without effect with this provider of machine IDs", r.from[name])
			// It would otherwise count below as a second source of the machine ID.
			delete(v, name)
		}
	}
	r.number(machine, 0, 1<<20, nil)
	var found []string
	if v[machine] != "" && v[machine] != "-1" {
		found, c.Machine = append(found, r.from[machine]), "fixed:"+v[machine]
	}
	if v[machines] != "" {
		found, c.Machine = append(found, r.from[machines]), "list:"+strings.ReplaceAll(v[machines], " ", "")
	}
	if v[addresses] != "" {
		found, c.Machine = append(found, r.from[addresses]), "address:"+strings.ReplaceAll(v[addresses], " ", "")
	}
	if r.table != nil {
		found, c.Table, c.Password = append(found, "the data source"), r.table.URL, r.table.Password
	}
	if url := v[dbURL]; url != "" {
		if !strings.HasPrefix(url, "jdbc:") { // the host and port alone, as IdServiceFactoryBean has it
			url = "jdbc:mysql://" + url + "/" + v[dbName]
		}
		db, err := moves.ReadDatabase(r.account, r.from[dbURL], url, v[dbUser], moves.Secret(v[dbSecret]))
		if err != nil {
			r.account.Refusef(r.from[dbURL], "%v", err)
		}
		found, c.Table, c.Password = append(found, r.from[dbURL]), db.URL, db.Password
	}
	if len(found) > 1 {
		r.account.Refusef(found[1], "%s says, too, where the machine ID comes from: give one of them", found[0])
	}
	if len(found) == 0 {
		r.account.Refusef("machine ID", "nothing says where it comes from, and any that is free could be one that a Vesta has: give vesta.machine, vesta.ips, or a bean of a MachineIdProvider")
	}
}

// Vesta's epoch, in milliseconds, and the fields of its layouts with their bits.
const defaultEpoch = 1420041600000

var (
	newer = []string{"version", "type", "genMethod", "time", "seq", "machine"}
	older = []string{"version", "type", "genMethod", "machine", "time", "seq"}

	defaultBits = [2]map[string]int{
		{"version": 1, "type": 1, "genMethod": 2, "time": 30, "seq": 20, "machine": 10},
		{"version": 1, "type": 1, "genMethod": 2, "time": 40, "seq": 10, "machine": 10},
	}
)

// layout returns the layout of a type, with the bits of an IdMeta and the epoch of a timer,
// where there are such.
func (r *reader) layout(typ int) (hapax.Layout, error) {
	order, bits := newer, r.bits
	if r.legacy {
		order = older
	}
	if bits == nil {
		bits = defaultBits[typ]
	}
	begins := int64(defaultEpoch)
	if text := r.values[epoch]; text != "" {
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return hapax.Layout{}, &hapax.ValueError{Field: r.from[epoch], Value: text, Allowed: "milliseconds since 1970", Err: hapax.ErrInvalidArgument}
		}
		begins = n
	}
	var spec strings.Builder
	for _, name := range order {
		if name == "seq" {
			fmt.Fprintf(&spec, "sequence:%d,", bits[name])
		} else {
			fmt.Fprintf(&spec, "%s:%d,", name, bits[name])
		}
	}
	fmt.Fprintf(&spec, "unit=%s,epoch=%s", [2]string{"1s", "1ms"}[typ], time.UnixMilli(begins).UTC().Format(time.RFC3339Nano))
	l, err := hapax.ParseLayout(spec.String())
	if err != nil {
		err = fmt.Errorf("%w: the bits of IdMeta: %w", hapax.ErrInvalidArgument, err)
	}
	return l, err
}

// AppendYAML appends the configuration's block, with notes on it in comments.
func (c Config) AppendYAML(dst []byte) []byte {
	dst = append(dst, c.account.Comments()...)
	dst = append(dst, `# While Vesta runs as well, give hapax machine IDs that no Vesta has; take one over a minute
# after its Vesta has stopped. Nothing here keeps a Vesta from starting again: one with the
# machine ID below issues the same numbers.
`...)
	if c.Machine != "" {
		dst = append(dst, `# Machine IDs are leased from the store. Several servers need one that they share (setting store):
# with an embedded store each, two that have the same machine ID issue the same numbers.
`...)
	}
	dst = append(dst, "compat:\n  vesta:\n"...)
	line := func(format string, args ...any) { dst = fmt.Appendf(dst, "    "+format+"\n", args...) }
	if strings.Contains(c.Layout, ":") {
		line("layout: %q", c.Layout)
	} else {
		line("layout: %s", c.Layout)
	}
	if c.Machine != "" {
		line("machine: %q", c.Machine)
	} else {
		line("table: %s", moves.Quote(c.Table))
		if c.Password != "" {
			line("# The password is not shown: write it into the URL, after the user and a colon.")
		}
	}
	if c.Version != 0 {
		line("version: %d", c.Version)
	}
	if c.GenMethod != "" {
		line("gen_method: %q  # fixes it; leave it out to have it set by how a number is asked for", c.GenMethod)
	}
	line("populator: %s", c.Populator)
	line("http: 127.0.0.1:8099")
	if c.Port != "" || c.Registry != "" || c.Interface != "" {
		line("dubbo: 127.0.0.1:%s  # the address that consumers reach", cmp.Or(c.Port, "20880"))
	}
	if c.Interface != "" {
		line("interfaces: [%s]", moves.Quote(c.Interface))
	}
	for _, s := range []struct{ key, value string }{{"registry", c.Registry}, {"group", c.Group}, {"service_version", c.Revision}} {
		if s.value != "" {
			line("%s: %s", s.key, moves.Quote(s.value))
		}
	}
	return dst
}
