package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/compat/leaf"
	"github.com/hapax-id/hapax/compat/leaf/routes"
	"github.com/hapax-id/hapax/internal/mount"
	"github.com/hapax-id/hapax/internal/service"
	"github.com/hapax-id/hapax/store/witness"
)

// LeafPool is the pool, and the tag that stands for it, of Leaf's snowflake route
// where that issues native numbers.
const LeafPool = "leaf-snowflake"

// The names of Leaf's parts, in metrics, readiness and messages.
const (
	leafName  = "leaf"
	leafTable = "leaf table"
	leafTree  = "leaf tree"
)

const (
	leafWorkerFile = "leaf-worker" // in the data directory: worker ID and mark
	leafGrant      = 3 * time.Second
	leafSequence   = "100"               // Leaf begins a millisecond at a random number below
	foreignTimeout = 3 * time.Second     // of the first contact at the start
	maxLeafRows    = 10_000              // on a page
	leafRoot       = "/api/segment/get/" // and the others of leafPatterns
)

var leafPatterns = []string{leafRoot, "/api/snowflake/get/", "/decodeSnowflakeId", "/decodeSnowflakeId/", "/cache", "/cache/", "/db", "/db/"}

// A LeafConfig is what stands in for Leaf.
type LeafConfig struct {
	Table        string   `yaml:"table"`
	PasswordFile string   `yaml:"password_file"`
	Tree         string   `yaml:"tree"`
	Name         string   `yaml:"name"`
	IP           string   `yaml:"ip"`
	Port         int      `yaml:"port"`
	HTTP         string   `yaml:"http"`
	Allow        []string `yaml:"allow"`
	AllowAnyone  bool     `yaml:"allow_anyone"`
	CutAtDot     bool     `yaml:"cut_at_dot"`
	ZeroWhenOff  bool     `yaml:"zero_when_off"`
	Zone         string   `yaml:"zone"`

	password string // of the table's account, given beside the URL
}

var leafKeys = []Key{
	mount.NewKey("table", "string", "none", "mysql:// URL of the database with leaf_alloc, whose rows the segment route continues. Without table and tree the routes issue from the server's own tags"),
	mount.NewKey("password_file", "string", "none", "File with the password of the table's account, where the URL has none; instead, the variable "+LeafPasswordEnv+" may hold it"),
	mount.NewKey("tree", "string", "none", "zk:// URL of the ZooKeeper where Leaf's nodes are registered, for the snowflake route. With table alone that route is switched off, as the other one is with tree alone; native instead of a URL has the server's own tags or pool "+LeafPool),
	mount.NewKey("name", "string", "none", "leaf.name: the service's part of the tree"),
	mount.NewKey("ip", "string", "the address from which this machine reaches the tree", "IP address of this node in the tree"),
	mount.NewKey("port", "int", "none", "leaf.snowflake.port: together with ip it identifies this node in the tree and decides its worker ID; no other process may have the same"),
	mount.NewKey("http", "string", "none", "Address of Leaf's routes; none is the main listener, unless clients need a token there"),
	mount.NewKey("allow", "list", "none", "Networks whose clients are answered, such as 10.0.0.0/8, beside those of this machine; Leaf's clients show no token, so an address beyond loopback needs it"),
	mount.NewKey("allow_anyone", "bool", "false", "Answer every client, as Leaf does"),
	mount.NewKey("cut_at_dot", "bool", "false", "Look up a key that is not found once more without its last dot and what follows, which Leaf's framework cuts off"),
	mount.NewKey("zero_when_off", "bool", "false", "Answer 200 and 0 where a mode is switched off, as Leaf does: every caller gets the same number"),
	mount.NewKey("zone", "string", "Local", "Time zone of the dates that /decodeSnowflakeId writes"),
}

// native stands for a URL where the server's own tags are meant.
const native = "native"

// segments and snowflakes tell where the numbers of the two routes come from: a URL,
// native, or nowhere.
func (l *LeafConfig) segments() string {
	if l.Table == "" && l.Tree == "" {
		return native
	}
	return l.Table
}

func (l *LeafConfig) snowflakes() string {
	if l.Table == "" && l.Tree == "" {
		return native
	}
	return l.Tree
}

// endpoints are the addresses of their own.
func (l *LeafConfig) endpoints() []endpoint {
	if l == nil {
		return nil
	}
	return []endpoint{{"compat.leaf.http", l.HTTP, "127.0.0.1:8088", true, &foreignEndpoint{len(l.Allow) > 0 || l.AllowAnyone}}}
}

func (l *LeafConfig) networks() ([]netip.Prefix, error) { return parseNetworks("leaf.allow", l.Allow) }

// parseNetworks reads a list of networks.
func parseNetworks(field string, list []string) ([]netip.Prefix, error) {
	var all []netip.Prefix
	for _, text := range list {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, compatError(field, text, "a network such as 10.0.0.0/8")
		}
		all = append(all, p)
	}
	return all, nil
}

func (l *LeafConfig) check(c Config) error {
	networks, err := l.networks()
	if err != nil {
		return err
	}
	if len(networks) > 0 && l.AllowAnyone {
		return compatError("leaf.allow_anyone", true, "false beside allow, which names who may call")
	}
	if _, err := l.zone(); err != nil {
		return err
	}
	if l.HTTP == "" && len(c.Tokens) > 0 {
		return compatError("leaf.http", l.HTTP, "an address of its own, such as 127.0.0.1:8088, since Leaf's clients show no token, which clients of the main listener must")
	}
	if l.Table != native {
		if _, err := l.tableURL(); err != nil {
			return err
		}
		if err := leaf.CheckTable(l.Table); l.Table != "" && err != nil {
			return mount.Errorf(err, "compat.leaf.table")
		}
	}
	if l.Tree == "" || l.Tree == native {
		return nil
	}
	if l.Name == "" {
		return compatError("leaf.name", "", "leaf.name, the service's part of the tree")
	}
	if l.Port < 1 || l.Port > 65535 {
		return compatError("leaf.port", l.Port, "leaf.snowflake.port, 1 to 65535: with the IP address it stands for this node in the tree")
	}
	if l.IP != "" {
		if ip, err := netip.ParseAddr(l.IP); err != nil || !ip.Is4() {
			return compatError("leaf.ip", l.IP, "an IPv4 address, such as 10.0.0.9")
		}
	}
	if err := leaf.CheckTree(l.Tree, leaf.TreeOptions{Name: l.Name, Address: net.JoinHostPort(cmp.Or(l.IP, "127.0.0.1"), strconv.Itoa(l.Port))}); err != nil {
		return mount.Errorf(err, "compat.leaf.tree")
	}
	return nil
}

func (l *LeafConfig) zone() (*time.Location, error) {
	zone, err := time.LoadLocation(cmp.Or(l.Zone, "Local"))
	if err != nil {
		return nil, compatError("leaf.zone", l.Zone, "a time zone, such as Asia/Shanghai")
	}
	return zone, nil
}

func (l *LeafConfig) tableURL() (string, error) {
	return withCompatPassword("leaf.table", l.Table, l.password)
}

// address returns the node's ip:port in the tree.
func (l *LeafConfig) address(ctx context.Context) (string, error) {
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

// openTable opens the table, with its witness.
func (l *LeafConfig) openTable(ctx context.Context, c Config, w *witness.Witness, warn func(code, message string)) (*leaf.Table, error) {
	tableURL, err := l.tableURL()
	if err != nil {
		return nil, err
	}
	return leaf.OpenTable(ctx, tableURL, leaf.TableOptions{Timeout: c.StoreTimeout, Witness: w, Warn: warn})
}

// A treeStore is Leaf's tree as a service sees it: one pool, and the tag that stands
// for it.
type treeStore struct {
	noStore
	*lazy[*leaf.Tree]
}

func (s treeStore) Tag(_ context.Context, name string) (hapax.Tag, error) {
	if name != service.SnowflakeTag {
		return hapax.Tag{}, fmt.Errorf("%w: %q", hapax.ErrTagNotFound, name)
	}
	return hapax.Tag{Name: name, Kind: hapax.KindSnowflake, Pool: hapax.DefaultPool}, nil
}

func (s treeStore) Tags(ctx context.Context, after string, _ int) ([]hapax.Tag, error) {
	if after >= service.SnowflakeTag {
		return nil, nil
	}
	t, err := s.Tag(ctx, service.SnowflakeTag)
	return []hapax.Tag{t}, err
}

func (s treeStore) Ping(ctx context.Context) error {
	tree, err := s.get(ctx)
	if err != nil {
		return err
	}
	return tree.Ping(ctx)
}

func (s treeStore) AcquireWorker(ctx context.Context, req hapax.AcquireRequest) (hapax.Lease, error) {
	tree, err := s.get(ctx)
	if err != nil {
		return hapax.Lease{}, err
	}
	return tree.AcquireWorker(ctx, req)
}

func (s treeStore) ExtendWorker(ctx context.Context, l hapax.Lease, req hapax.ExtendRequest) (hapax.Lease, error) {
	tree, err := s.get(ctx)
	if err != nil {
		return l, err
	}
	return tree.ExtendWorker(ctx, l, req)
}

func (s treeStore) SealWorker(ctx context.Context, l hapax.Lease, last int64) error {
	tree, err := s.get(ctx)
	if err != nil {
		return err
	}
	return tree.SealWorker(ctx, l, last)
}

// leafServer is Leaf's part of a server.
type leafServer struct {
	foreignHTTP

	config  *LeafConfig
	board   board
	witness *witness.Witness
	rows    *tableStore[*leaf.Table]
	tree    *treeStore
	table   *service.Service // nil: native tags, or no segments
	flakes  *service.Service // nil: the native pool, or no snowflakes
}

func (s *leafServer) listen(ctx context.Context, c Config) error {
	networks, err := s.config.networks()
	if err != nil {
		return err
	}
	s.name = leafName
	return s.foreignHTTP.open(ctx, c, s.config.endpoints()[0], networks)
}

func (s *leafServer) open(ctx context.Context, c Config, n *Node, log *slog.Logger) error {
	if at := s.config.segments(); at != "" && at != native {
		if err := s.openTable(ctx, c, n, log); err != nil {
			return fmt.Errorf("compat.leaf.table: %w", err)
		}
	}
	if at := s.config.snowflakes(); at != "" && at != native {
		if err := s.openTree(ctx, c, n, log); err != nil {
			return fmt.Errorf("compat.leaf.tree: %w", err)
		}
	}
	return nil
}

func (s *leafServer) openTable(ctx context.Context, c Config, n *Node, log *slog.Logger) error {
	var err error
	if s.witness, err = c.foreignWitness(leafName); err != nil {
		return err
	}
	warn := foreignWarn(n, log, leafTable)
	s.rows = newTableStore(func(ctx context.Context) (*leaf.Table, error) { return s.config.openTable(ctx, c, s.witness, warn) })
	if err := firstContact(ctx, log, leafTable, s.rows.Ping); err != nil {
		return err
	}
	opts, err := foreignOptions(c, n, log, leafTable)
	if err != nil {
		return err
	}
	opts.Adopt = adoptForeign(leafName)
	opts.Observer = s.board.note
	s.table, err = service.New(ctx, s.rows, opts)
	return err
}

func (s *leafServer) openTree(ctx context.Context, c Config, n *Node, log *slog.Logger) error {
	s.tree = &treeStore{lazy: newLazy(func(ctx context.Context) (*leaf.Tree, error) {
		address, err := s.config.address(ctx)
		if err != nil {
			return nil, err
		}
		return leaf.OpenTree(ctx, s.config.Tree, leaf.TreeOptions{
			Name: s.config.Name, Address: address, File: filepath.Join(n.dir, leafWorkerFile), Timeout: c.StoreTimeout,
		})
	})}
	if err := firstContact(ctx, log, leafTree, s.tree.Ping); err != nil {
		return err
	}
	opts, err := foreignOptions(c, n, log, leafTree)
	if err != nil {
		return err
	}
	pool := leafPoolConfig()
	pool.Grant, pool.MaxGrant = leafGrant, leafGrant // a crash costs the next start no more
	opts.Pools = map[string]service.PoolConfig{hapax.DefaultPool: pool}
	opts.Holder = n.Instance
	s.flakes, err = service.New(ctx, s.tree, opts)
	return err
}

// leafPoolConfig is a pool whose numbers are Leaf's.
func leafPoolConfig() service.PoolConfig {
	return service.PoolConfig{Layout: hapax.LayoutLeaf, SequenceStart: leafSequence}
}

func (s *leafServer) besides() map[string]*service.Service {
	all := map[string]*service.Service{}
	if s.table != nil {
		all[leafTable] = s.table
	}
	if s.flakes != nil {
		all[leafTree] = s.flakes
	}
	return all
}

func (s *leafServer) build(c Config, own *service.Service, log *slog.Logger) error {
	networks, err := s.config.networks()
	if err != nil {
		return err
	}
	zone, err := s.config.zone()
	if err != nil {
		return err
	}
	o := routes.Options{
		Allow: networks, AllowAnyone: s.config.AllowAnyone || c.AllowUnauthenticated && len(networks) == 0,
		MaxWait: min(c.MaxWait, time.Minute), CutAtDot: s.config.CutAtDot, ZeroWhenOff: s.config.ZeroWhenOff, Location: zone,
		Failed: func(err error) { own.Failed(leafName, err) },
	}
	var issuing []*service.Service
	switch {
	case s.table != nil:
		o.Segment, o.Monitor = serviceTags{s.table}, leafMonitor{s.table, &s.board, s.tableRows}
		issuing = append(issuing, s.table)
	case s.config.segments() == native:
		native := newNativeTags(own, c)
		o.Segment, o.TrySegment, o.Monitor = native, native.TryNext, leafMonitor{own, &s.board, nativeRows(own)}
		issuing = append(issuing, own)
	}
	switch {
	case s.flakes != nil:
		o.Snowflake = oneTag{s.flakes, service.SnowflakeTag}
		issuing = append(issuing, s.flakes)
	case s.config.snowflakes() == native:
		o.Snowflake = oneTag{own, LeafPool}
		issuing = append(issuing, own)
	}
	h, err := routes.New(o)
	if err != nil {
		return err
	}
	own.Counting(leafName)
	s.handle(c, own, slices.Compact(issuing), h, leafPatterns, log)
	return nil
}

func (s *leafServer) stop(drain context.Context) error { return s.foreignHTTP.stop(drain) }

func (s *leafServer) close(ctx context.Context) error {
	errs := []error{s.foreignHTTP.close()}
	for _, svc := range []*service.Service{s.table, s.flakes} {
		if svc != nil {
			errs = append(errs, svc.Close(ctx))
		}
	}
	if s.rows != nil {
		errs = append(errs, s.rows.Close())
	}
	if s.tree != nil {
		errs = append(errs, s.tree.Close())
	}
	if s.witness != nil {
		errs = append(errs, s.witness.Close())
	}
	return errors.Join(errs...)
}

// serviceTags issue with a service whose tags are a foreign table's rows.
type serviceTags struct{ *service.Service }

// oneTag issues the numbers of one tag, whatever the key.
type oneTag struct {
	svc *service.Service
	tag string
}

func (o oneTag) Next(ctx context.Context, _ string) (hapax.ID, error) { return o.svc.Next(ctx, o.tag) }

// A leafMonitor feeds the pages /cache and /db.
type leafMonitor struct {
	svc   *service.Service
	board *board
	rows  func(context.Context) ([]routes.DatabaseRow, error)
}

func (m leafMonitor) Database(ctx context.Context) ([]routes.DatabaseRow, error) { return m.rows(ctx) }

// Cache implements routes.Monitor. What is in hand is shown in Leaf's first place.
func (m leafMonitor) Cache(context.Context) ([]routes.CacheRow, error) {
	var all []routes.CacheRow
	for tag, g := range m.board.all() {
		r := routes.CacheRow{Name: tag, Init: g.current.Len() > 0, Next: g.next.Len() > 0, Value0: g.current.Lo, Max0: g.current.Hi, Step0: g.current.Len()}
		if last, ok := m.svc.Last(tag); ok && int64(last) >= g.current.Lo && int64(last) < g.current.Hi {
			r.Value0 = int64(last) + 1
		}
		if r.Next {
			r.Value1, r.Max1, r.Step1 = g.next.Lo, g.next.Hi, g.next.Len()
		}
		all = append(all, r)
	}
	slices.SortFunc(all, func(a, b routes.CacheRow) int { return cmp.Compare(a.Name, b.Name) })
	return all, nil
}

// tableRows returns the rows of leaf_alloc.
func (s *leafServer) tableRows(ctx context.Context) ([]routes.DatabaseRow, error) {
	table, err := s.rows.get(ctx)
	if err != nil {
		return nil, err
	}
	rows, err := table.Rows(ctx, maxLeafRows)
	var all []routes.DatabaseRow
	for _, r := range rows {
		all = append(all, routes.DatabaseRow(r))
	}
	return all, err
}

// nativeRows returns the server's own segment tags as rows.
func nativeRows(own *service.Service) func(context.Context) ([]routes.DatabaseRow, error) {
	return func(ctx context.Context) ([]routes.DatabaseRow, error) {
		var all []routes.DatabaseRow
		for after := ""; len(all) < maxLeafRows; {
			page, err := own.Tags(ctx, after, service.MaxPage)
			if err != nil {
				return nil, err
			}
			for _, t := range page {
				if after = t.Name; t.Kind == hapax.KindSegment && !t.Deleted {
					all = append(all, routes.DatabaseRow{Tag: t.Name, MaxID: t.Mark, Step: t.Step})
				}
			}
			if len(page) < service.MaxPage {
				break
			}
		}
		return all, nil
	}
}
