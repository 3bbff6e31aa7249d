// Package imports reads Vesta's configuration: the properties and the Spring XML of its
// services, and of the Dubbo provider and registry around them.
package imports

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/compat/springxml"
)

// A Config is what Vesta was told.
type Config struct {
	Layout    string // the name of a layout
	Machine   string // as identity providers are written; empty: not told
	Table     string // the database of DB_MACHINE_ID_PROVIDER as a URL without its user
	Version   int64
	GenMethod string // empty: as requests come in
	Populator string // "atomic", or "mutex"
	Registry  string
	Port      string // of Dubbo
	Interface string
}

// Read reads Spring's XML, with the properties that its placeholders stand for, or a
// properties file. The older generation of Vesta's layouts is asked for, as its files do
// not tell. Errors match hapax.ErrInvalidArgument.
func Read(data []byte, given map[string]string, legacy bool) (Config, error) {
	f, err := springxml.Parse(data, given)
	if err != nil {
		return Config{}, err
	}
	r := reader{values: map[string]string{}}
	r.take(f.Properties)
	r.take(given)
	for _, b := range f.Beans {
		r.bean(b)
	}
	return r.config(legacy)
}

// A reader collects values by the names that config knows.
type reader struct {
	values map[string]string
	known  int
}

// names are the settings of property files, in lower case.
var names = map[string]string{
	"vesta.machine": "machine", "vesta.ips": "ips", "vesta.type": "type", "vesta.version": "version", "vesta.genmethod": "genmethod",
	"vesta.sync.lock.impl.key": "lock", "vesta.atomic.impl.key": "atomic",
	"vesta.db.url": "url", "vesta.db.name": "dbname", "vesta.registry": "registry", "vesta.registry.address": "registry",
	"vesta.provider.type": "provider", "vesta.port": "port",
}

func (r *reader) set(name, value string) {
	if value != "" && !strings.HasPrefix(value, "${") {
		r.values[name] = value
		r.known++
	}
}

func (r *reader) take(properties map[string]string) {
	for key, value := range properties {
		key = strings.ToLower(key)
		if name, ok := names[key]; ok {
			r.set(name, value)
		} else if strings.HasPrefix(value, "jdbc:mysql://") && strings.HasPrefix(key, "vesta") {
			r.set("url", value)
		}
	}
}

// beanNames are the settings of beans.
var beanNames = map[string]string{
	"machineId": "machine", "ips": "ips", "type": "type", "idType": "type", "version": "version", "genMethod": "genmethod",
	"providerType": "provider", "dbUrl": "url", "dbName": "dbname",
}

func (r *reader) bean(b springxml.Bean) {
	switch class := b.Class[strings.LastIndexByte(b.Class, '.')+1:]; {
	case b.Element == "registry":
		r.set("registry", b.Properties["address"])
	case b.Element == "protocol":
		r.set("port", b.Properties["port"])
	case b.Element == "service" && strings.HasSuffix(b.Properties["interface"], ".IdService"):
		r.set("interface", b.Properties["interface"])
	case class == "IdServiceFactoryBean", class == "IdServiceImpl", strings.HasSuffix(class, "MachineIdProvider"), strings.HasSuffix(class, "MachineIdsIdServiceImpl"):
		r.known++
		for property, name := range beanNames {
			r.set(name, b.Properties[property])
		}
	}
}

// types are how the type is written, in lower case.
var types = map[string]int{
	"": 0, "0": 0, "max-peak": 0, "max_peak": 0, "seconds": 0,
	"1": 1, "min-granularity": 1, "min_granularity": 1, "milliseconds": 1,
}

func (r *reader) config(legacy bool) (Config, error) {
	v := r.values
	c := Config{Registry: v["registry"], Port: v["port"], Interface: v["interface"], GenMethod: v["genmethod"], Populator: "mutex"}
	if r.known == 0 {
		return c, fmt.Errorf("%w: there is no setting of Vesta's, such as vesta.machine or a bean of the class IdServiceFactoryBean", hapax.ErrInvalidArgument)
	}
	typ, ok := types[strings.ToLower(v["type"])]
	if !ok {
		return c, invalid("type", v["type"], "0 or max-peak, 1 or min-granularity")
	}
	c.Layout = [2]string{hapax.LayoutVestaMaxPeak, hapax.LayoutVestaMinGranularity}[typ]
	if legacy {
		c.Layout = [2]string{hapax.LayoutVestaLegacyMaxPeak, hapax.LayoutVestaLegacyMinGranularity}[typ]
	}
	if v["atomic"] != "" && v["atomic"] != "false" {
		c.Populator = "atomic"
	}
	for _, n := range []struct {
		name  string
		max   int64
		field *int64
	}{{"version", 1, &c.Version}, {"genmethod", 3, nil}, {"port", 65535, nil}, {"machine", 1023, nil}} {
		if v[n.name] == "" {
			continue
		}
		number, err := strconv.ParseInt(v[n.name], 10, 64)
		if err != nil || number < 0 || number > n.max {
			return c, invalid(n.name, v[n.name], fmt.Sprintf("0 to %d", n.max))
		}
		if n.field != nil {
			*n.field = number
		}
	}
	if url, ok := strings.CutPrefix(v["url"], "jdbc:mysql://"); ok {
		url, _, _ = strings.Cut(url, "?")
		c.Table = "mysql://" + url
	} else if v["url"] != "" {
		c.Table = "mysql://" + v["url"] + "/" + v["dbname"]
	}
	switch provider := strings.ToUpper(v["provider"]); {
	case v["machine"] != "" && (provider == "" || provider == "PROPERTY"):
		c.Machine = "fixed:" + v["machine"]
	case v["ips"] != "" && (provider == "" || strings.HasPrefix(provider, "IP")):
		c.Machine = "address:" + v["ips"]
	}
	if c.Machine != "" {
		c.Table = ""
	}
	return c, nil
}

func invalid(field string, value any, allowed string) error {
	return &hapax.ValueError{Field: field, Value: value, Allowed: allowed, Err: hapax.ErrInvalidArgument}
}

// AppendYAML appends the configuration's block, with what is to know about it in comments.
func (c Config) AppendYAML(dst []byte) []byte {
	dst = append(dst, "# While Vesta runs as well, give hapax machine IDs that no Vesta has.\ncompat:\n  vesta:\n"...)
	line := func(format string, args ...any) { dst = fmt.Appendf(dst, "    "+format+"\n", args...) }
	line("layout: %s", c.Layout)
	switch {
	case c.Machine != "":
		line("machine: %q", c.Machine)
	case c.Table != "":
		line("table: %q  # with USER:PASSWORD@ before the host", c.Table)
	default:
		line("# machine: no machine ID was found; a free one is leased from the server's store")
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
		port := c.Port
		if port == "" {
			port = "20880"
		}
		line("dubbo: 127.0.0.1:%s  # the address that consumers reach", port)
	}
	if c.Interface != "" {
		line("interfaces: [%s]", c.Interface)
	}
	if c.Registry != "" {
		line("registry: %q", c.Registry)
	}
	return dst
}
