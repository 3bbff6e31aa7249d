package server

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hapax-id/hapax"
	tinyid "github.com/hapax-id/hapax/compat/tinyid/serve"
	"github.com/hapax-id/hapax/compat/uidgen"
	"github.com/hapax-id/hapax/compat/vesta"
	"github.com/hapax-id/hapax/internal/mount"
	"github.com/hapax-id/hapax/internal/service"
	"github.com/hapax-id/hapax/store/sqlstore/mysqlstore"
)

// The pools, and the tags that stand for them, of foreign systems.
const (
	vestaPool  = "vesta"
	uidgenPool = uidgen.DefaultPool
)

// tableTimeout bounds what is read from a foreign table at the start.
const tableTimeout = 10 * time.Second

// A CompatConfig switches on the foreign systems that the server stands in for. Those
// that are nil are off.
type CompatConfig struct {
	Leaf   *LeafConfig   `yaml:"leaf"`
	Vesta  *VestaConfig  `yaml:"vesta"`
	UIDGen *UIDGenConfig `yaml:"uidgen"`

	RedisMongo *RedisMongoConfig `yaml:"redismongo"`
}

// A VestaConfig is what stands in for Vesta.
type VestaConfig struct {
	Layout         string   `yaml:"layout"`
	Machine        string   `yaml:"machine"`
	Table          string   `yaml:"table"`
	Version        int64    `yaml:"version"`
	GenMethod      string   `yaml:"gen_method"`
	Populator      string   `yaml:"populator"`
	HTTP           string   `yaml:"http"`
	Shape          string   `yaml:"shape"`
	Zone           string   `yaml:"zone"`
	Dubbo          string   `yaml:"dubbo"`
	Interfaces     []string `yaml:"interfaces"`
	Registry       string   `yaml:"registry"`
	Advertise      string   `yaml:"advertise"`
	Group          string   `yaml:"group"`
	ServiceVersion string   `yaml:"service_version"`
	Allow          []string `yaml:"allow"`
}

// A UIDGenConfig is what stands in for uid-generator.
type UIDGenConfig struct {
	Table            string        `yaml:"table"`
	Layout           string        `yaml:"layout"`
	BoostPower       int           `yaml:"boost_power"`
	PaddingFactor    int           `yaml:"padding_factor"`
	ScheduleInterval time.Duration `yaml:"schedule_interval"`
}

// compatEntries describe the foreign systems, in the order of the documentation.
var compatEntries = []mount.System{
	{Name: "leaf", Doc: "Meituan Leaf's routes, over its table and tree beside its own nodes, or over the server's own tags", Keys: leafKeys},
	tinyid.System,
	{Name: "vesta", Doc: "Vesta's REST server and, over Dubbo, its central server. The numbers are those of the tag and pool vesta", Keys: []Key{
		mount.NewKey("layout", "string", "vesta-max-peak", "One of "+strings.Join(vesta.Layouts(), ", ")),
		mount.NewKey("machine", "string", "pool", "Where the machine ID comes from, written like the identity of a pool: fixed:7, address:IP,IP, list:ID,ID, env:VARIABLE, or pool for any that is free"),
		mount.NewKey("table", "string", "none", "mysql:// URL of the database with DB_MACHINE_ID_PROVIDER, which assigns the machine ID instead"),
		mount.NewKey("version", "int", "0", "The field version of every number; 1 makes numbers negative"),
		mount.NewKey("gen_method", "string", "none", "Fixes the field genMethod, which otherwise tells how a number was asked for: 1 over Dubbo, 2 over REST"),
		mount.NewKey("populator", "string", "atomic", "What produces time and sequence: atomic or mutex"),
		mount.NewKey("http", "string", "none", "Address of Vesta's REST server; none is the main listener, unless clients need a token there"),
		mount.NewKey("shape", "string", "spring", "Which of Vesta's REST servers the answers look like: spring or netty"),
		mount.NewKey("zone", "string", "Local", "Time zone of the dates that REST writes, such as Asia/Shanghai"),
		mount.NewKey("dubbo", "string", "none", "Address of the central server, such as 127.0.0.1:20880; without it there is no central server"),
		mount.NewKey("interfaces", "list", "[com.robert.vesta.service.intf.IdService]", "Names by which Dubbo's consumers call the service"),
		mount.NewKey("registry", "string", "none", "zk:// URL of the ZooKeeper where the central server is registered"),
		mount.NewKey("advertise", "string", "dubbo", "IP address and port to register, at which consumers reach the server"),
		mount.NewKey("group", "string", "none", "Group of the service in the registry"),
		mount.NewKey("service_version", "string", "none", "Version of the service in the registry"),
		mount.NewKey("allow", "list", "none", "Networks whose clients are answered at http and dubbo, such as 10.0.0.0/8, beside those of this machine; Vesta's clients show no token, so addresses beyond loopback need it"),
	}},
	{Name: "uidgen", Doc: "Numbers of uid-generator's layouts, as the tag and pool uidgen", Keys: []Key{
		mount.NewKey("table", "string", "none", "mysql:// URL of the database with WORKER_NODE, where each start takes a worker ID; without it one is leased from the server's store"),
		mount.NewKey("layout", "string", "uidgenerator-28-22-13", "Name or spec of the layout; the default's time ran out on 2024-11-20"),
		mount.NewKey("boost_power", "int", "3", "A burst may run 2^boost_power ticks ahead of the clock, 1 to 15"),
		mount.NewKey("padding_factor", "int", "50", "Checked, 1 to 99, but without effect: numbers are made when they are taken"),
		mount.NewKey("schedule_interval", "duration", "0s", "Checked, but without effect, for the same reason"),
	}},
	redisMongoEntry,
}

// foreign is what sections may not define where a foreign system does.
func (c Config) foreign(name string) error { return c.foreignNamed(name, name) }

func (c Config) foreignNamed(system, name string) error {
	_, tag := c.Tags[name]
	_, pool := c.Pools[name]
	if tag || pool {
		return mount.Errorf(nil, "compat.%s makes the tag and the pool %q itself; take them out of tags and pools", system, name)
	}
	return nil
}

// addCompat adds the tags and pools of the foreign systems to the options.
func (c Config) addCompat(opts *service.Options) error {
	add := func(name string, pool service.PoolConfig) {
		if opts.Tags = maps.Clone(opts.Tags); opts.Tags == nil {
			opts.Tags = map[string]service.TagConfig{}
		}
		if opts.Pools = maps.Clone(opts.Pools); opts.Pools == nil {
			opts.Pools = map[string]service.PoolConfig{}
		}
		opts.Tags[name], opts.Pools[name] = service.TagConfig{Kind: hapax.KindSnowflake, Pool: name}, pool
	}
	if l := c.Compat.Leaf; l != nil {
		if err := l.check(c); err != nil {
			return err
		}
		if l.snowflakes() == native {
			if err := c.foreignNamed("leaf", LeafPool); err != nil {
				return err
			}
			add(LeafPool, leafPoolConfig())
		}
	}
	if v := c.Compat.Vesta; v != nil {
		if err := cmp.Or(c.foreign(vestaPool), v.check(c)); err != nil {
			return err
		}
		add(vestaPool, v.pool())
	}
	if r := c.Compat.RedisMongo; r != nil {
		if err := r.check(c); err != nil {
			return err
		}
	}
	if u := c.Compat.UIDGen; u != nil {
		if err := cmp.Or(c.foreign(uidgenPool), u.check()); err != nil {
			return err
		}
		layout, err := hapax.ParseLayout(u.layout())
		if err != nil {
			return err
		}
		add(uidgenPool, service.PoolConfig{
			Layout: u.layout(), MaxAhead: uidgen.Ahead(layout, cmp.Or(u.BoostPower, uidgen.DefaultBoostPower)),
		})
	}
	return nil
}

func (u *UIDGenConfig) layout() string { return cmp.Or(u.Layout, hapax.LayoutUIDGenerator28) }

func (u *UIDGenConfig) check() error {
	for _, f := range []struct {
		name       string
		value, max int
	}{{"boost_power", u.BoostPower, 15}, {"padding_factor", u.PaddingFactor, 99}} {
		if f.value < 0 || f.value > f.max {
			return compatError("uidgen."+f.name, f.value, fmt.Sprintf("1 to %d", f.max))
		}
	}
	layout, err := hapax.ParseLayout(u.layout())
	if err == nil && !time.Now().Before(layout.Ends()) {
		err = fmt.Errorf("%w: compat.uidgen.layout: the time of %s ran out at %s; hapax import uid-generator finds a layout to go on with", hapax.ErrTimeExhausted, u.layout(), layout.Ends().Format(time.RFC3339))
	}
	return cmp.Or(err, checkTable("uidgen.table", u.Table))
}

func (v *VestaConfig) check(c Config) error {
	if v.Table != "" && v.Machine != "" {
		return compatError("vesta.machine", v.Machine, "none beside table, which gives the machine ID")
	}
	if err := checkTable("vesta.table", v.Table); err != nil {
		return err
	}
	if _, err := v.service(nil); err != nil {
		return err
	}
	if _, err := v.rest(nil); err != nil {
		return err
	}
	if _, err := v.networks(); err != nil {
		return err
	}
	if v.HTTP == "" && len(c.Tokens) > 0 {
		return compatError("vesta.http", v.HTTP, "an address of its own, such as 127.0.0.1:8099, since Vesta's clients show no token, which clients of the main listener must")
	}
	if v.Dubbo == "" && v.Registry != "" {
		return compatError("vesta.dubbo", v.Dubbo, "the address of the central server, such as 127.0.0.1:20880, to be registered")
	}
	if v.Registry == "" {
		return nil
	}
	if at, err := netip.ParseAddrPort(v.advertised(v.Dubbo)); err != nil || at.Addr().IsUnspecified() {
		return compatError("vesta.advertise", v.Advertise, "the IP address and port that consumers reach, such as 10.0.0.5:20880")
	}
	return nil
}

// pool returns the pool, whose constant fields are those of the numbers that are not
// asked for in Vesta's ways.
func (v *VestaConfig) pool() service.PoolConfig {
	p := service.PoolConfig{Layout: cmp.Or(v.Layout, hapax.LayoutVestaMaxPeak), Identity: v.Machine, Populator: v.Populator}
	p.Fields = map[string]int64{vesta.FieldVersion: v.Version, vesta.FieldType: 0}
	if strings.HasSuffix(p.Layout, "min-granularity") {
		p.Fields[vesta.FieldType] = 1
	}
	return p
}

// advertised returns the address to register for a server that listens at one.
func (v *VestaConfig) advertised(listens string) string { return cmp.Or(v.Advertise, listens) }

func (v *VestaConfig) networks() ([]netip.Prefix, error) {
	return parseNetworks("vesta.allow", v.Allow)
}

func (v *VestaConfig) service(source vesta.Source) (*vesta.IDService, error) {
	opts := vesta.Options{Layout: v.Layout, Version: v.Version}
	if v.GenMethod != "" {
		n, err := strconv.ParseInt(v.GenMethod, 10, 8)
		if err != nil {
			return nil, compatError("vesta.gen_method", v.GenMethod, "0 to 3")
		}
		opts.GenMethod = new(vesta.Method(n))
	}
	ids, err := vesta.New(source, opts)
	if e, ok := errors.AsType[*hapax.ValueError](err); ok {
		e.Field = "compat.vesta." + strings.ReplaceAll(e.Field, vesta.FieldGenMethod, "gen_method")
	}
	return ids, err
}

func compatError(field string, value any, allowed string) error {
	return &hapax.ValueError{Field: "compat." + field, Value: value, Allowed: allowed, Err: hapax.ErrInvalidArgument}
}

// checkTable judges a database's URL without connecting to it.
func checkTable(field, tableURL string) error {
	if tableURL == "" {
		return nil
	}
	if !strings.HasPrefix(tableURL, "mysql://") {
		return compatError(field, "(not a mysql:// URL)", "mysql://USER:PASSWORD@HOST:3306/DATABASE")
	}
	db, err := mysqlstore.OpenDB(tableURL)
	if err != nil {
		return mount.Errorf(err, "compat.%s", field)
	}
	return db.Close()
}

// shown returns the configuration as YAML shows it, without passwords.
func (c CompatConfig) shown() map[string]map[string]any {
	all := map[string]map[string]any{}
	for _, e := range []struct {
		name  string
		entry any
	}{{"leaf", c.Leaf}, {"vesta", c.Vesta}, {"uidgen", c.UIDGen}, {"redismongo", c.RedisMongo}} {
		if v := reflect.ValueOf(e.entry); !v.IsNil() {
			all[e.name] = setFields(v.Elem())
		}
		for _, key := range []string{"table", "tree", "registry", "redis", "store", "worker_registry"} {
			if at, ok := all[e.name][key].(string); ok && at != native {
				all[e.name][key] = redact(at)
			}
		}
	}
	return all
}

// foreignIDs takes the worker IDs that foreign tables give, and puts them into the
// options. What it returns lets go of them, once the service is closed.
func (c Config) foreignIDs(ctx context.Context, opts *service.Options) (release func(), err error) {
	release = func() {}
	ctx, cancel := context.WithTimeout(ctx, tableTimeout)
	defer cancel()
	fix := func(pool string, id int64) {
		p := opts.Pools[pool]
		p.Workers = strconv.FormatInt(id, 10)
		opts.Pools[pool] = p
	}
	if u := c.Compat.UIDGen; u != nil && u.Table != "" {
		err := withTable(u.Table, func(db *sql.DB) error {
			layout, err := hapax.ParseLayout(u.layout())
			if err != nil {
				return err
			}
			id, err := uidgen.Table{DB: db}.Worker(ctx, layout)
			fix(uidgenPool, id)
			return err
		})
		if err != nil {
			return release, fmt.Errorf("compat.uidgen.table: %w", err)
		}
		p := opts.Pools[uidgenPool] // no other start waits for what a crash leaves
		p.Grant, p.MaxGrant = hapax.DefaultGrant, hapax.DefaultMaxGrant
		opts.Pools[uidgenPool] = p
	}
	if r := c.Compat.RedisMongo; r != nil && r.WorkerPool != "" {
		p, err := r.register(ctx, c, opts.Pools[r.WorkerPool])
		if err != nil {
			return release, fmt.Errorf("compat.redismongo.worker_pool: %w", err)
		}
		opts.Pools = maps.Clone(opts.Pools)
		if opts.Pools == nil {
			opts.Pools = map[string]service.PoolConfig{}
		}
		opts.Pools[r.WorkerPool] = p
	}
	if v := c.Compat.Vesta; v != nil && v.Table != "" {
		err := withTable(v.Table, func(db *sql.DB) error {
			id, let, err := vesta.Table{DB: db}.Machine(ctx)
			if err == nil {
				release = let
			}
			fix(vestaPool, id)
			return err
		})
		if err != nil {
			return release, fmt.Errorf("compat.vesta.table: %w", err)
		}
	}
	return release, nil
}

func withTable(tableURL string, f func(*sql.DB) error) error {
	db, err := mysqlstore.OpenDB(tableURL)
	if err != nil {
		return err
	}
	defer db.Close()
	return f(db)
}

var columnName = regexp.MustCompile(`^[A-Za-z_$][A-Za-z0-9_$]{0,63}\.[A-Za-z_$][A-Za-z0-9_$]{0,63}$`)

// ColumnRange reads the smallest and the largest number in TABLE.COLUMN of a MySQL
// database.
func ColumnRange(ctx context.Context, databaseURL, column string) (lo, hi hapax.ID, err error) {
	if !columnName.MatchString(column) {
		return 0, 0, &hapax.ValueError{Field: "column", Value: column, Allowed: "TABLE.COLUMN", Err: hapax.ErrInvalidArgument}
	}
	table, field, _ := strings.Cut(column, ".")
	err = withTable(databaseURL, func(db *sql.DB) error {
		var least, most sql.NullInt64
		query := fmt.Sprintf("SELECT MIN(`%[1]s`), MAX(`%[1]s`) FROM `%[2]s`", field, table) //nolint:gosec // names of a plain form
		if err := db.QueryRowContext(ctx, query).Scan(&least, &most); err != nil {
			return fmt.Errorf("%w: %s: %w", hapax.ErrStoreUnavailable, column, err)
		}
		if !least.Valid {
			return fmt.Errorf("%w: %s has no numbers; want the column with the numbers in use", hapax.ErrInvalidArgument, column)
		}
		lo, hi = hapax.ID(least.Int64), hapax.ID(most.Int64)
		return nil
	})
	return lo, hi, err
}

// allowing lets in the clients of some networks, and those on this machine.
type allowing struct {
	net.Listener
	networks []netip.Prefix
}

func (l *allowing) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil || l.allows(conn.RemoteAddr()) {
			return conn, err
		}
		_ = conn.Close() // there is nobody to tell
	}
}

func (l *allowing) allows(at net.Addr) bool {
	addr, err := netip.ParseAddrPort(at.String())
	ip := addr.Addr().Unmap()
	return err == nil && (ip.IsLoopback() || len(l.networks) == 0 || slices.ContainsFunc(l.networks, func(p netip.Prefix) bool { return p.Contains(ip) }))
}
