// Package leaf mounts Leaf in a server: its routes, over its table and tree beside its
// own nodes, or over the server's own tags.
package leaf

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/compat/leaf"
	"github.com/hapax-id/hapax/internal/mount"
	"github.com/hapax-id/hapax/internal/service"
)

// Pool is the pool, and the tag that stands for it, of Leaf's snowflake route where that
// issues native numbers.
const Pool = "leaf-snowflake"

// PasswordEnv is the variable that may hold the password of the table.
const PasswordEnv = "HAPAX_LEAF_PASSWORD" //nolint:gosec // no password

// The names of Leaf's parts, in metrics, readiness and messages.
const (
	name      = "leaf"
	tableName = "leaf table"
	treeName  = "leaf tree"
)

// The modes, in readiness.
const (
	segmentMode   = "segment"
	snowflakeMode = "snowflake"
)

// DefaultGrant is how much time this node is granted of its worker ID in the tree.
const DefaultGrant = 5 * time.Minute

// The bounds of compat.leaf.grant.
const (
	minGrant = 3 * time.Second
	maxGrant = hapax.PoisonMargin / 2
)

// System is Leaf.
var System = mount.System{
	Name:   name,
	Doc:    "Meituan Leaf's routes, over its table and tree beside its own nodes, or over the server's own tags",
	New:    func() mount.Settings { return new(Settings) },
	Import: importCommand,

	Maintains: "Maintain the ZooKeeper tree of Meituan Leaf",
	Commands:  func() []*mount.Command { return []*mount.Command{nodesCommand(), retireCommand()} },

	Env: []string{PasswordEnv},
	Keys: []mount.Key{
		mount.NewKey("table", "string", "none", "mysql:// URL of the database with leaf_alloc, whose rows the segment route continues. Without table and tree the routes issue from the server's own tags"),
		mount.NewKey("password_file", "string", "none", "File with the password of the table's account, where the URL has none; instead, the variable "+PasswordEnv+" may hold it"),
		mount.NewKey("tree", "string", "none", "zk:// URL of the ZooKeeper where Leaf's nodes are registered, for the snowflake route. With table alone that route is switched off, as the other one is with tree alone; native instead of a URL has the server's own tags or pool "+Pool),
		mount.NewKey("name", "string", "none", "leaf.name: the service's part of the tree"),
		mount.NewKey("ip", "string", "the address from which this machine reaches the tree", "IP address of this node in the tree"),
		mount.NewKey("port", "int", "none", "leaf.snowflake.port: together with ip it identifies this node in the tree and decides its worker ID; no other process may have the same"),
		mount.NewKey("workers", "string", "all of the layout", "Where the snowflake route issues native numbers, the worker IDs of the pool "+Pool+", such as 17-1023: after a move those that no Leaf has, as hapax import leaf --native prints them"),
		mount.NewKey("grant", "duration", "5m", "How much time this node is granted of its worker ID in the tree, extended after a tenth of it: nine tenths of it, at least, is how long the node issues on while all of ZooKeeper is away. After a crash the next start waits 3 s at most, or as long as this where the data directory is lost or the machine was started anew"),
		mount.NewKey("http", "string", "none", "Address of Leaf's routes; none is the main listener, unless clients need a token there"),
		mount.NewKey("allow", "list", "none", "Networks whose clients are answered, such as 10.0.0.0/8, beside those of this machine; Leaf's clients show no token, so an address beyond loopback needs it"),
		mount.NewKey("allow_anyone", "bool", "false", "Answer every client, as Leaf does"),
		mount.NewKey("cut_at_dot", "bool", "true", "Look up a key that is not found once more without its last dot and what follows, which Leaf's framework cuts off"),
		mount.NewKey("zero_when_off", "bool", "false", "Answer 200 and 0 where a mode is switched off, as Leaf does: every caller gets the same number"),
		mount.NewKey("zone", "string", "Local", "Time zone of the dates that /decodeSnowflakeId writes"),
	},
}

// Settings are those of compat.leaf.
type Settings struct {
	Table        string        `yaml:"table" url:"true"`
	PasswordFile string        `yaml:"password_file"`
	Tree         string        `yaml:"tree" url:"true"`
	Name         string        `yaml:"name"`
	IP           string        `yaml:"ip"`
	Port         int           `yaml:"port"`
	Workers      string        `yaml:"workers"`
	Grant        time.Duration `yaml:"grant"`
	HTTP         string        `yaml:"http"`
	Allow        []string      `yaml:"allow"`
	AllowAnyone  bool          `yaml:"allow_anyone"`
	CutAtDot     *bool         `yaml:"cut_at_dot"`
	ZeroWhenOff  bool          `yaml:"zero_when_off"`
	Zone         string        `yaml:"zone"`

	password string // of the table's account, given beside the URL
}

var (
	_ mount.Secret = (*Settings)(nil)
	_ mount.Owner  = (*Settings)(nil)
)

// native stands for a URL where the server's own tags are meant.
const native = "native"

// A source is where the numbers of a route come from.
type source int

const (
	off    source = iota
	own           // the server's tags
	theirs        // Leaf's table or tree
)

func (l *Settings) source(at string) source {
	switch {
	case at == native, l.Table == "" && l.Tree == "":
		return own
	case at == "":
		return off
	}
	return theirs
}

// ReadSecrets implements mount.Secret.
func (l *Settings) ReadSecrets(env func(string) (string, bool)) error {
	lines, err := mount.Passwords("compat.leaf.password_file", l.PasswordFile, PasswordEnv, env)
	if len(lines) > 1 {
		return mount.Invalid("leaf.password_file", "(more than one line)", "the password alone")
	}
	l.password = strings.Join(lines, "")
	return err
}

// Doors implements mount.Settings.
func (l *Settings) Doors() []mount.Door {
	return []mount.Door{{
		Name: name, Setting: "compat.leaf.http", Address: l.HTTP, Example: "127.0.0.1:8088",
		Allow: l.Allow, Open: len(l.Allow) > 0 || l.AllowAnyone,
	}}
}

// Mount implements mount.Settings.
func (l *Settings) Mount(p *mount.Plan) (mount.Mount, error) {
	m := &part{settings: l}
	var err error
	if m.networks, err = mount.Networks("leaf.allow", l.Allow); err != nil {
		return nil, err
	}
	if len(m.networks) > 0 && l.AllowAnyone {
		return nil, mount.Invalid("leaf.allow_anyone", true, "false beside allow, which names who may call")
	}
	if m.zone, err = mount.Zone("leaf.zone", l.Zone); err != nil {
		return nil, err
	}
	if l.HTTP == "" && p.Tokens {
		return nil, mount.Invalid("leaf.http", l.HTTP, "an address of its own, such as 127.0.0.1:8088, since Leaf's clients show no token, which clients of the main listener must")
	}
	if l.Table != native && l.Table != "" {
		if _, err := l.tableURL(); err != nil {
			return nil, err
		}
		if err := leaf.CheckTable(l.Table); err != nil {
			return nil, mount.Errorf(err, "compat.leaf.table")
		}
	}
	switch l.source(l.Tree) {
	case own:
		pool := nativePool()
		if l.Workers != "" {
			ids, err := service.ParseWorkers(l.Workers)
			if err != nil {
				return nil, mount.Errorf(err, "compat.leaf.workers")
			}
			pool.Workers = l.Workers
			pool = pool.Lending(ids, "Leaf")
		}
		return m, p.Define(name, Pool, pool)
	case theirs:
		if err := l.checkTree(); err != nil {
			return nil, err
		}
	}
	if l.Workers != "" {
		return nil, mount.Invalid("leaf.workers", l.Workers, "none where the snowflake route does not issue native numbers: the tree gives this node its own")
	}
	return m, nil
}

func (l *Settings) checkTree() error {
	if l.Name == "" {
		return mount.Invalid("leaf.name", "", "leaf.name, the service's part of the tree")
	}
	if l.Port < 1 || l.Port > 65535 {
		return mount.Invalid("leaf.port", l.Port, "leaf.snowflake.port, 1 to 65535: with the IP address it stands for this node in the tree")
	}
	if l.Grant != 0 && (l.Grant < minGrant || l.Grant > maxGrant) {
		return mount.Invalid("leaf.grant", l.Grant, fmt.Sprintf("%v to %v", minGrant, maxGrant))
	}
	if l.IP != "" {
		if ip, err := netip.ParseAddr(l.IP); err != nil || !ip.Is4() {
			return mount.Invalid("leaf.ip", l.IP, "an IPv4 address, such as 10.0.0.9")
		}
	}
	if err := leaf.CheckTree(l.Tree, leaf.TreeOptions{Name: l.Name, Address: net.JoinHostPort(cmp.Or(l.IP, "127.0.0.1"), strconv.Itoa(l.Port))}); err != nil {
		return mount.Errorf(err, "compat.leaf.tree")
	}
	return nil
}

func (l *Settings) tableURL() (string, error) {
	return mount.WithPassword("leaf.table", l.Table, l.password)
}

// address returns the node's ip:port in the tree.
func (l *Settings) address(ctx context.Context) (string, error) {
	ip := l.IP
	if ip == "" {
		hosts, _, _ := strings.Cut(strings.TrimPrefix(l.Tree, "zk://"), "/")
		host, _, _ := strings.Cut(hosts[strings.LastIndexByte(hosts, '@')+1:], ",")
		if _, _, err := net.SplitHostPort(host); err != nil {
			host = net.JoinHostPort(host, "2181")
		}
		conn, err := new(net.Dialer).DialContext(ctx, "udp4", host) // sends nothing
		if err != nil {
			return "", fmt.Errorf("%w: compat.leaf.ip: no address of this machine reaches the tree: %w", hapax.ErrStoreUnavailable, err)
		}
		defer conn.Close()
		ip, _, err = net.SplitHostPort(conn.LocalAddr().String())
		if err != nil {
			return "", fmt.Errorf("%w: compat.leaf.ip: %w", hapax.ErrStoreUnavailable, err)
		}
	}
	return net.JoinHostPort(ip, strconv.Itoa(l.Port)), nil
}

// HasTable implements mount.Owner.
func (l *Settings) HasTable() bool { return l.source(l.Table) == theirs }

// OpenTable implements mount.Owner.
func (l *Settings) OpenTable(ctx context.Context, o mount.TableOptions) (mount.Table, error) {
	return l.open(ctx, o)
}

func (l *Settings) open(ctx context.Context, o mount.TableOptions) (*leaf.Table, error) {
	tableURL, err := l.tableURL()
	if err != nil {
		return nil, err
	}
	return leaf.OpenTable(ctx, tableURL, leaf.TableOptions{Timeout: o.Timeout, Witness: o.Witness, Warn: o.Warn})
}

// nativePool is a pool whose numbers are Leaf's.
func nativePool() service.PoolConfig {
	return service.PoolConfig{Layout: hapax.LayoutLeaf, SequenceStart: "100"} // Leaf begins a millisecond at a random number below
}
