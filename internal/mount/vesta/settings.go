// Package vesta mounts Vesta in a server: its REST server and, over Dubbo, its central
// server. The numbers are those of the tag and pool vesta.
package vesta

import (
	"cmp"
	"errors"
	"net/http"
	"net/netip"
	"strconv"
	"strings"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/compat/vesta"
	"github.com/hapax-id/hapax/compat/vesta/dubbo"
	"github.com/hapax-id/hapax/compat/vesta/rest"
	"github.com/hapax-id/hapax/internal/compat/database"
	"github.com/hapax-id/hapax/internal/mount"
	"github.com/hapax-id/hapax/internal/service"
)

// name is Vesta in metrics and messages, and its tag and pool.
const name = "vesta"

// System is Vesta.
var System = mount.System{
	Name:   name,
	Doc:    "Vesta's REST server and, over Dubbo, its central server. The numbers are those of the tag and pool vesta",
	New:    func() mount.Settings { return new(Settings) },
	Import: importCommand,
	Keys: []mount.Key{
		mount.NewKey("layout", "string", "vesta-max-peak", "One of "+strings.Join(vesta.Layouts(), ", ")+"; or any other, by its name or as a spec, for a Vesta with an IdMeta of its own. Fields that it lacks count as 0"),
		mount.NewKey("machine", "string", "pool", "Where the machine ID comes from, written like the identity of a pool: fixed:7, address:IP,IP, list:ID,ID, env:VARIABLE, or pool for any that is free"),
		mount.NewKey("table", "string", "none", "mysql:// URL of the database with DB_MACHINE_ID_PROVIDER, which assigns the machine ID instead"),
		mount.NewKey("version", "int", "0", "The field version of every number; 1 makes numbers negative"),
		mount.NewKey("gen_method", "string", "none", "Fixes the field genMethod, which otherwise tells how a number was asked for: 1 over Dubbo, 2 over REST"),
		mount.NewKey("populator", "string", "atomic", "What produces time and sequence: atomic; mutex, which is Vesta's default and what hapax import vesta writes; or the name of one that a program registers, which runs the server. The log names it at the start"),
		mount.NewKey("on_rollback", "string", "continue", "What to do while the clock is behind what it was: continue, which is safe, or refuse, as Vesta does"),
		mount.NewKey("trace", "bool", "false", "Log a line for each number that is asked for over REST or Dubbo, with its fields"),
		mount.NewKey("http", "string", "none", "Address of Vesta's REST server; none is the main listener, unless clients need a token there"),
		mount.NewKey("shape", "string", "netty", "Which of Vesta's REST servers the answers look like: netty or spring"),
		mount.NewKey("zone", "string", "Local", "Time zone of the dates that REST writes, such as Asia/Shanghai"),
		mount.NewKey("dubbo", "string", "none", "Address of the central server, such as 127.0.0.1:20880; without it there is no central server"),
		mount.NewKey("interfaces", "list", "[com.robert.vesta.service.intf.IdService]", "Names by which Dubbo's consumers call the service"),
		mount.NewKey("registry", "string", "none", "zk:// URL of the ZooKeeper where the central server is registered"),
		mount.NewKey("advertise", "string", "dubbo", "IP address and port to register, at which consumers reach the server"),
		mount.NewKey("group", "string", "none", "Group of the service in the registry"),
		mount.NewKey("service_version", "string", "none", "Version of the service in the registry"),
		mount.NewKey("allow", "list", "none", "Networks whose clients are answered at http and dubbo, such as 10.0.0.0/8, beside those of this machine; Vesta's clients show no token, so addresses beyond loopback need it"),
	},
}

// Settings are those of compat.vesta.
type Settings struct {
	Layout         string   `yaml:"layout"`
	Machine        string   `yaml:"machine"`
	Table          string   `yaml:"table" url:"true"`
	Version        int64    `yaml:"version"`
	GenMethod      string   `yaml:"gen_method"`
	Populator      string   `yaml:"populator"`
	OnRollback     string   `yaml:"on_rollback"`
	Trace          bool     `yaml:"trace"`
	HTTP           string   `yaml:"http"`
	Shape          string   `yaml:"shape"`
	Zone           string   `yaml:"zone"`
	Dubbo          string   `yaml:"dubbo"`
	Interfaces     []string `yaml:"interfaces"`
	Registry       string   `yaml:"registry" url:"true"`
	Advertise      string   `yaml:"advertise"`
	Group          string   `yaml:"group"`
	ServiceVersion string   `yaml:"service_version"`
	Allow          []string `yaml:"allow"`
}

// Doors implements mount.Settings.
func (v *Settings) Doors() []mount.Door {
	web := mount.Door{
		Name: name, Setting: "compat.vesta.http", Address: v.HTTP, Example: "127.0.0.1:8099",
		Allow: v.Allow, Open: len(v.Allow) > 0,
	}
	central := web
	central.Setting, central.Address, central.Example, central.Places = "compat.vesta.dubbo", v.Dubbo, "127.0.0.1:20880", dubbo.DefaultMaxConns
	return []mount.Door{web, central}
}

// Mount implements mount.Settings.
func (v *Settings) Mount(p *mount.Plan) (mount.Mount, error) {
	ids, err := v.service(nil, nil)
	if err != nil {
		return nil, err
	}
	if r := hapax.RollbackPolicy(v.OnRollback); r != "" && r != hapax.RollbackContinue && r != hapax.RollbackRefuse {
		return nil, mount.Invalid("vesta.on_rollback", v.OnRollback, "continue or refuse")
	}
	if err := p.Define(name, name, v.pool(ids)); err != nil {
		return nil, err
	}
	if v.Table != "" && v.Machine != "" {
		return nil, mount.Invalid("vesta.machine", v.Machine, "none beside table, which gives the machine ID")
	}
	if err := database.Check("vesta.table", v.Table); err != nil {
		return nil, err
	}
	if _, err := v.rest(ids); err != nil {
		return nil, err
	}
	if _, err := mount.Networks("vesta.allow", v.Allow); err != nil {
		return nil, err
	}
	if v.HTTP == "" && p.Tokens {
		return nil, mount.Invalid("vesta.http", v.HTTP, "an address of its own, such as 127.0.0.1:8099, since Vesta's clients show no token, which clients of the main listener must")
	}
	if v.Dubbo == "" && v.Registry != "" {
		return nil, mount.Invalid("vesta.dubbo", v.Dubbo, "the address of the central server, such as 127.0.0.1:20880, to be registered")
	}
	if v.Registry != "" {
		// At 0.0.0.0 it listens, and no consumer reaches it.
		if at, err := netip.ParseAddrPort(v.advertised(v.Dubbo)); err != nil || at.Addr().IsUnspecified() {
			return nil, mount.Invalid("vesta.advertise", v.Advertise, "the IP address and port that consumers reach, such as 10.0.0.5:20880")
		}
	}
	return &part{settings: v}, nil
}

// pool returns the pool, whose constant fields are those of the numbers that are not
// asked for in Vesta's ways.
func (v *Settings) pool(ids *vesta.IDService) service.PoolConfig {
	return service.PoolConfig{
		Layout: cmp.Or(v.Layout, hapax.LayoutVestaMaxPeak), Identity: v.Machine, Populator: v.Populator, OnRollback: v.OnRollback,
		Fields: ids.Constants(),
	}
}

// advertised returns the address to register for a server that listens at one.
func (v *Settings) advertised(listens string) string { return cmp.Or(v.Advertise, listens) }

func (v *Settings) service(source vesta.Source, trace func(hapax.ID, vesta.Parts)) (*vesta.IDService, error) {
	opts := vesta.Options{Layout: v.Layout, Version: v.Version, Trace: trace}
	if v.GenMethod != "" {
		n, err := strconv.ParseInt(v.GenMethod, 10, 8)
		if err != nil {
			return nil, mount.Invalid("vesta.gen_method", v.GenMethod, "0 to 3")
		}
		opts.GenMethod = new(vesta.Method(n))
	}
	ids, err := vesta.New(source, opts)
	if e, ok := errors.AsType[*hapax.ValueError](err); ok {
		e.Field = "compat.vesta." + strings.ReplaceAll(e.Field, vesta.FieldGenMethod, "gen_method")
	}
	return ids, err
}

// rest returns the handler of REST.
func (v *Settings) rest(ids *vesta.IDService) (http.Handler, error) {
	zone, err := mount.Zone("vesta.zone", v.Zone)
	if err != nil {
		return nil, err
	}
	h, err := rest.NewHandler(ids, rest.Options{Shape: rest.Shape(v.Shape), Zone: zone})
	if value, ok := errors.AsType[*hapax.ValueError](err); ok {
		return nil, mount.Invalid("vesta."+value.Field, value.Value, value.Allowed)
	}
	return h, err
}
