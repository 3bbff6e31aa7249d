package leaf

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/compat/keeper"
	"github.com/hapax-id/hapax/store/driver"
)

var _ hapax.WorkerStore = (*Tree)(nil)

const (
	reportEvery = 3 * time.Second // as Leaf does
	workerIDs   = 1024            // what Leaf's layout holds

	// silence after a node's timestamp that shows that its Leaf has ended: it
	// reports every 3 s, and may be late.
	leafSilence = reportEvery + 2*time.Second
)

// TreeOptions say which process of which service this is.
type TreeOptions struct {
	// Name is leaf.name: the service's part of the tree.
	Name string

	// Address is this process's ip:port, under which no other process may run.
	// Who takes over from a Leaf node takes over its ip:port, and with it its
	// worker ID. Without one the process takes no part: it can look at the nodes
	// and retire them, and is granted nothing.
	Address string

	// File, if set, is where the worker ID and the high-water mark are kept
	// beside the tree: what the tree may not fall behind.
	File string

	// Timeout bounds one answer of ZooKeeper; default 5 s.
	Timeout time.Duration
}

// A Tree grants the time of this process's worker ID in Leaf's ZooKeeper tree.
//
//	/snowflake/NAME/forever/IP:PORT-0000000007   {"ip":"…","port":"…","timestamp":…}
//	/snowflake/NAME/hapax/…                      the grants, which Leaf does not see
//
// The process has a node under forever, as every Leaf node has; what follows the
// dash is its worker ID. Under the node are exactly Leaf's three fields, written
// every 3 s, and after each grant before that is used. The timestamp is the end of
// what was granted, or the clock where that is later: so a Leaf that starts on
// this node too early finds its clock behind and does not start by the tree.
//
// A node that was written by somebody else is taken over once its timestamp is 5 s
// past: until then its Leaf may be alive, and the acquisition waits, as it does
// while the clock is behind the timestamp. Somebody else who writes to the node
// while the lease is held ends it (ErrStoreUnsafe).
//
// # Long grants
//
// A process issues on from what it was granted while ZooKeeper is away, as Leaf does by
// its clock alone. However long that is, nobody else can issue the same numbers meanwhile:
//
//   - Leaf's own nodes recycle nothing. A node under forever is persistent, its number
//     comes from a counter of ZooKeeper's that never goes back, and Leaf never removes one:
//     so no other Leaf is ever given this worker ID.
//   - A Leaf that is started as the same ip:port finds this node, whose timestamp is the
//     end of the granted time: it is ahead of its clock until then, and Leaf does not start
//     by a node that is. (It may start by a local file that a Leaf left there before;
//     remove that file.)
//   - Other processes of hapax are granted only what lies above the mark of the worker's
//     row, which was raised before the grant was used.
//   - Retire refuses a node whose timestamp is not a day past, and raises the mark above
//     it; so do claims of numbers that were retired.
//
// What a long grant costs is the wait of the next start after a crash, unless
// store/leasecache stands between the issuer and the tree: then it is 3 s.
type Tree struct {
	driver.Leases // pools and workers, for tools; this process uses Worker alone

	session *keeper.Session
	rows    rows
	opts    TreeOptions
	forever string
	node    string // this process's node
	worker  int64
	layout  hapax.Layout

	busy chan struct{} // holds a token while somebody writes to the node; guards the fields below
	ours [][]byte      // what this process wrote there, or tried to; the last is certain
	at   int32         // the version that it left
	held bool
	mark time.Time // the end of the granted time
	now  time.Time // the issuer's clock at the last grant
	then time.Time // when that was, for the time that has passed since

	disturbed atomic.Pointer[error] // see Disturbed

	stop  context.CancelFunc
	tasks sync.WaitGroup
}

// OpenTree connects to zk://[user:password@]host:port[,host:port…][/chroot], and
// finds or makes this process's node. Errors: ErrInvalidArgument,
// ErrStoreUnavailable, ErrStoreReplaced where TreeOptions.File knows another worker
// ID than the tree, ErrLineExhausted where CloseTree has closed it, ErrNoWorker where all 1,024 are used up.
func OpenTree(ctx context.Context, rawURL string, opts TreeOptions) (*Tree, error) {
	ensemble, err := parseTreeURL(rawURL)
	if err != nil {
		return nil, err
	}
	if err := opts.check(); err != nil {
		return nil, err
	}
	if opts.Timeout <= 0 {
		opts.Timeout = hapax.DefaultStoreTimeout
	}
	s, err := keeper.Open(ensemble, opts.Timeout)
	if err != nil {
		return nil, err
	}
	layout, err := hapax.ParseLayout(hapax.LayoutLeaf)
	if err != nil {
		return nil, err
	}
	base := ensemble.Path + "/snowflake/" + opts.Name
	t := &Tree{
		session: s, rows: rows{s, base + "/hapax"}, opts: opts, forever: base + "/forever", layout: layout,
		busy: make(chan struct{}, 1),
	}
	t.Leases = driver.LeasesIn(t.rows)
	var life context.Context
	life, t.stop = context.WithCancel(context.Background())
	if opts.Address == "" {
		_, err = s.Children(ctx, t.forever)
	} else {
		err = t.join(ctx)
	}
	if err != nil {
		t.stop()
		s.Close()
		return nil, err
	}
	if opts.Address != "" {
		t.tasks.Go(func() { t.reportOften(life) })
	}
	return t, nil
}

// CheckTree judges a tree's URL and options without connecting to it.
func CheckTree(rawURL string, opts TreeOptions) error {
	if _, err := parseTreeURL(rawURL); err != nil {
		return err
	}
	return opts.check()
}

// parseTreeURL reads a tree's URL. An error shows nothing of it: it may hold a password.
func parseTreeURL(rawURL string) (keeper.Ensemble, error) {
	e, ok := keeper.Parse(rawURL)
	if !ok {
		return e, &hapax.ValueError{Field: "tree URL", Value: "(not shown)", Allowed: "zk://[user:password@]host:port[,host:port…][/chroot]", Err: hapax.ErrInvalidArgument}
	}
	return e, nil
}

// check refuses what Leaf could not read in the names of nodes: it takes what
// follows the first dash for the number.
func (o TreeOptions) check() error {
	if err := hapax.ValidateName("leaf.name", o.Name); err != nil || strings.Contains(o.Name, "/") || strings.Trim(o.Name, ".") == "" {
		return &hapax.ValueError{Field: "name", Value: o.Name, Allowed: "leaf.name, without a slash", Err: hapax.ErrInvalidArgument}
	}
	if o.Address == "" {
		return nil
	}
	host, port, err := net.SplitHostPort(o.Address)
	if n, e := strconv.ParseUint(port, 10, 16); err != nil || e != nil || n == 0 || host == "" || strings.ContainsAny(host, "-/[] ") {
		return &hapax.ValueError{Field: "address", Value: o.Address, Allowed: "ip:port, without a dash", Err: hapax.ErrInvalidArgument}
	}
	return nil
}

// An endpoint is what a node holds: exactly these fields, in this order.
type endpoint struct {
	IP        string `json:"ip"`
	Port      string `json:"port"`
	Timestamp int64  `json:"timestamp"` // Unix milliseconds
}

func (t *Tree) encode(at time.Time) []byte {
	host, port, _ := net.SplitHostPort(t.opts.Address) // was checked
	raw, err := json.Marshal(endpoint{host, port, at.UnixMilli()})
	if err != nil {
		panic(err) // it holds strings and a number
	}
	return raw
}

// maxTimestamp is the latest timestamp that is taken for one: the year 9999.
const maxTimestamp = 253402300799999

func decodeEndpoint(node string, raw []byte) (time.Time, error) {
	var e endpoint
	if err := json.Unmarshal(raw, &e); err != nil || e.Timestamp < 0 || e.Timestamp > maxTimestamp {
		return time.Time{}, fmt.Errorf("%w: node %s holds %.200q; want ip, port and timestamp in JSON", hapax.ErrStoreCorrupt, node, raw)
	}
	return time.UnixMilli(e.Timestamp), nil
}

// split returns the address and the number in a node's name.
func split(name string) (address string, worker int64, ok bool) {
	i := strings.LastIndexByte(name, '-')
	if i < 0 {
		return "", 0, false
	}
	n, err := strconv.ParseInt(name[i+1:], 10, 64)
	return name[:i], n, err == nil && n >= 0
}

// join finds this process's node, or makes one.
func (t *Tree) join(ctx context.Context) error {
	saved, err := t.readFile()
	if err != nil {
		return err
	}
	names, err := t.session.Children(ctx, t.forever)
	if err != nil {
		return err
	}
	// The tree was moved away for good; a node made now would be one that no Leaf may start beside.
	if slices.Contains(names, closedName) {
		return t.errClosedTree()
	}
	for _, name := range names {
		if address, worker, ok := split(name); ok && address == t.opts.Address && worker < workerIDs {
			if other := holderOf(names, worker, address); other != "" {
				return fmt.Errorf("%w: worker ID %d is that of node %s and of node %s: remove the one whose process has ended", hapax.ErrStoreUnsafe, worker, name, other)
			}
			t.node, t.worker = t.forever+"/"+name, worker
			break
		}
	}
	if t.node == "" && saved.worker >= 0 {
		return fmt.Errorf("%w: the tree has no node of %s, which had worker ID %d by file %s: the tree was replaced, or the node retired; remove the file if nothing runs under that ID any more",
			hapax.ErrStoreReplaced, t.opts.Address, saved.worker, t.opts.File)
	}
	if t.node == "" {
		return t.makeNode(ctx)
	}
	if saved.worker >= 0 && saved.worker != t.worker {
		return fmt.Errorf("%w: the tree gives %s worker ID %d, file %s says %d: remove the file if nothing runs under that ID any more",
			hapax.ErrStoreReplaced, t.opts.Address, t.worker, t.opts.File, saved.worker)
	}
	return nil
}

// holderOf returns the node of another address that has a worker ID.
func holderOf(names []string, worker int64, address string) string {
	for _, name := range names {
		if a, w, ok := split(name); ok && w == worker && a != address {
			return name
		}
	}
	return ""
}

// makeNode makes this process's node: a sequential one, as Leaf does, and where
// the numbers of those are used up, one with a number that was retired.
func (t *Tree) makeNode(ctx context.Context) error {
	for range workerIDs {
		// Two nodes that start at once get two numbers only because ZooKeeper counts, as Leaf's own do.
		data := t.encode(time.Now())
		made, err := t.session.Create(ctx, t.forever+"/"+t.opts.Address+"-", data, zk.FlagSequence)
		if err != nil {
			return err
		}
		_, worker, ok := split(made)
		if !ok {
			return fmt.Errorf("%w: ZooKeeper named the new node %q", hapax.ErrStoreCorrupt, made)
		}
		// Only after the node is made: a retired number may have been given away meanwhile, or the tree been
		// closed. CloseTree looks for new nodes after it has closed the tree, so that one of the two sees the
		// other.
		names, err := t.session.Children(ctx, t.forever)
		if err != nil {
			return err
		}
		if slices.Contains(names, closedName) {
			return errors.Join(t.errClosedTree(), t.remove(ctx, made))
		}
		if worker < workerIDs && holderOf(names, worker, t.opts.Address) == "" {
			t.node, t.worker, t.ours, t.at = made, worker, [][]byte{data}, 0
			return nil
		}
		if err := t.remove(ctx, made); err != nil {
			return err
		}
		// ZooKeeper's counter never goes back: every later number would be too high, too.
		if worker >= workerIDs {
			return t.reuse(ctx, names)
		}
	}
	return fmt.Errorf("%w: every new node below %s had the number of another one", hapax.ErrNoWorker, t.forever)
}

func (t *Tree) remove(ctx context.Context, node string) error {
	_, err := keeper.Call(ctx, t.session, func(conn *zk.Conn) (struct{}, error) { return struct{}{}, conn.Delete(node, -1) })
	if errors.Is(err, zk.ErrNoNode) {
		return nil
	}
	return t.session.Fail(ctx, err)
}

// claim returns the node that makes sure that a retired number has one new owner.
func (t *Tree) claim(worker int64) string { return fmt.Sprintf("%s/claims/%010d", t.rows.base, worker) }

// reuse makes a node with a number that no node has.
func (t *Tree) reuse(ctx context.Context, names []string) error {
	used := map[int64]bool{}
	for _, name := range names {
		if _, w, ok := split(name); ok {
			used[w] = true
		}
	}
	if _, err := t.session.Create(ctx, t.rows.base+"/claims", []byte{}, 0); err != nil && !errors.Is(err, zk.ErrNodeExists) {
		return err
	}
	for worker := range int64(workerIDs) {
		if used[worker] {
			continue
		}
		// Nodes of two addresses have two names, so it is the claim, of one name, that only one can make.
		node, data := fmt.Sprintf("%s/%s-%010d", t.forever, t.opts.Address, worker), t.encode(time.Now())
		_, err := keeper.Call(ctx, t.session, func(conn *zk.Conn) ([]zk.MultiResponse, error) {
			acl := zk.WorldACL(zk.PermAll)
			return conn.Multi(&zk.CreateRequest{Path: t.claim(worker), Data: []byte(t.opts.Address), Acl: acl}, &zk.CreateRequest{Path: node, Data: data, Acl: acl})
		})
		if errors.Is(err, zk.ErrNodeExists) {
			continue
		}
		if err != nil {
			return t.session.Fail(ctx, err)
		}
		// As in makeNode: once more, now that the node is there.
		if names, err = t.session.Children(ctx, t.forever); err != nil {
			return err
		}
		if slices.Contains(names, closedName) {
			return errors.Join(t.errClosedTree(), t.remove(ctx, node), t.remove(ctx, t.claim(worker)))
		}
		t.node, t.worker, t.ours, t.at = node, worker, [][]byte{data}, 0
		return nil
	}
	return t.usedUp(ctx)
}

// usedUp tells that all worker IDs are taken, and which holder has been longest without a sign
// of life.
func (t *Tree) usedUp(ctx context.Context) error {
	nodes, err := t.Nodes(ctx)
	if err != nil {
		return err
	}
	oldest, silent := Node{}, 0
	for _, n := range nodes {
		if time.Since(n.Reported) > RetireAfter {
			silent++
		}
		if oldest.Name == "" || n.Reported.Before(oldest.Reported) {
			oldest = n
		}
	}
	return fmt.Errorf("%w: all %d worker IDs below %s are used up, %d of them by nodes that have not reported for %v, longest %s (since %s): make sure that a node's process has ended, and retire the node with hapax leaf retire, or Tree.Retire",
		hapax.ErrNoWorker, workerIDs, t.forever, silent, RetireAfter, oldest.Name, oldest.Reported.UTC().Format(time.RFC3339))
}

// Disturbed returns why nothing more may be issued with the worker ID, although time is
// left of the granted time: somebody else has written to this process's node, or it is
// gone, which is found within 3 s. It is nil again when the worker ID has been acquired
// anew.
func (t *Tree) Disturbed() error {
	if reason := t.disturbed.Load(); reason != nil {
		return *reason
	}
	return nil
}

// StoreID identifies the tree by this process's node: another one has another transaction
// in which it was made.
func (t *Tree) StoreID(ctx context.Context) (string, error) {
	stat, err := keeper.Call(ctx, t.session, func(conn *zk.Conn) (*zk.Stat, error) {
		there, stat, err := conn.Exists(t.node)
		if err == nil && !there {
			err = zk.ErrNoNode
		}
		return stat, err
	})
	if errors.Is(err, zk.ErrNoNode) {
		return "", t.gone()
	}
	if err != nil {
		return "", t.session.Fail(ctx, err)
	}
	return fmt.Sprintf("%s@%x", t.node, stat.Czxid), nil
}

func (t *Tree) gone() error {
	return fmt.Errorf("%w: node %s is gone: it was retired, or the tree replaced; start anew", hapax.ErrStoreReplaced, t.node)
}

// Ping reports whether the tree answers, and has this process's node.
func (t *Tree) Ping(ctx context.Context) error {
	if t.node == "" {
		_, err := t.session.Children(ctx, t.forever)
		return err
	}
	c, err := t.session.Get(ctx, t.node)
	if err == nil && c.Raw == nil {
		err = t.gone()
	}
	return err
}

// Worker returns this process's worker ID.
func (t *Tree) Worker() int64 { return t.worker }

// Snowflake fills in the options of a Snowflake on this tree: Leaf's layout, and this
// process's worker ID as the only one. With one ID to choose from, grants are 3 s long,
// and a crash costs the next start no more. A longer Grant rides out longer outages.
func (t *Tree) Snowflake(o hapax.SnowflakeOptions) hapax.SnowflakeOptions {
	o.Layout, o.Workers, o.Among = t.layout, hapax.WorkerRange{Lo: t.worker, Hi: t.worker + 1}, nil
	o.Holder = t.opts.Address
	return o
}

// Close ends the reporting and the session. Close the issuer first.
func (t *Tree) Close() error {
	t.stop()
	// Before the wait: a report that hangs ends with the session.
	t.session.Close()
	t.tasks.Wait()
	return nil
}

// A Node is one process in the tree, ours or Leaf's.
type Node struct {
	Name     string // below forever
	Address  string
	Worker   int64
	Reported time.Time // its timestamp: when it was last heard of, or the end of its granted time
	Own      bool      // this process's
}

// Nodes returns the nodes below forever by worker ID. Those that Leaf could not
// read are left out.
func (t *Tree) Nodes(ctx context.Context) ([]Node, error) {
	names, err := t.session.Children(ctx, t.forever)
	if err != nil {
		return nil, err
	}
	var nodes []Node
	for _, name := range names {
		address, worker, ok := split(name)
		if !ok {
			continue
		}
		c, err := t.session.Get(ctx, t.forever+"/"+name)
		if err != nil {
			return nil, err
		}
		reported, err := decodeEndpoint(name, c.Raw)
		if c.Raw == nil || err != nil {
			continue
		}
		nodes = append(nodes, Node{name, address, worker, reported, t.forever+"/"+name == t.node})
	}
	slices.SortFunc(nodes, func(a, b Node) int { return int(min(max(a.Worker-b.Worker, -1), 1)) })
	return nodes, nil
}

// RetireAfter is how long a node must not have reported before it can be retired.
const RetireAfter = 24 * time.Hour

// Retire removes the node of a process that has ended, so that its worker ID can
// be used again, above all that it was used for. A Leaf that is cut off from
// ZooKeeper goes on issuing: make sure that the process has ended. A node that has
// reported within a day is refused.
func (t *Tree) Retire(ctx context.Context, name string) error {
	address, worker, ok := split(name)
	node := t.forever + "/" + name
	if !ok || strings.Contains(name, "/") || node == t.node {
		return &hapax.ValueError{Field: "node", Value: name, Allowed: "the name of another process's node below forever", Err: hapax.ErrInvalidArgument}
	}
	c, err := t.session.Get(ctx, node)
	if err != nil {
		return err
	}
	if c.Raw == nil {
		return &hapax.ValueError{Field: "node", Value: name, Allowed: "a node below " + t.forever, Err: hapax.ErrInvalidArgument}
	}
	reported, err := decodeEndpoint(name, c.Raw)
	if err != nil {
		return err
	}
	if quiet := time.Since(reported); quiet < RetireAfter {
		return fmt.Errorf("%w: node %s of %s reported %v ago; allowed is a node that has not reported for %v", hapax.ErrInvalidArgument, name, address, max(0, quiet.Round(time.Second)), RetireAfter)
	}
	if worker < workerIDs {
		tick, err := t.layout.TickOf(reported.Add(leafSilence))
		if err != nil {
			return err
		}
		if _, err := t.RaiseWorker(ctx, hapax.DefaultPool, worker, tick); err != nil { // first, so that the mark is never missing
			return err
		}
	}
	// At the version that was read: a process that reports meanwhile keeps its node.
	_, err = keeper.Call(ctx, t.session, func(conn *zk.Conn) (struct{}, error) { return struct{}{}, conn.Delete(node, c.Version) })
	if errors.Is(err, zk.ErrBadVersion) {
		return fmt.Errorf("%w: node %s has just reported: its process is alive", hapax.ErrStoreUnsafe, name)
	}
	if err != nil {
		return t.session.Fail(ctx, err)
	}
	return t.remove(ctx, t.claim(worker))
}
