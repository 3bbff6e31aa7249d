package redisstore

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/hapax-id/hapax"
)

// A guard looks at the server behind every new connection, and accepts another
// one than the last only if nothing can have been lost. It knows servers by
// their run ID, which names one process from its start to its end, and by the
// history that the process took over when it was promoted. The last one that was
// accepted is recorded in the store, so that a restart of the client does not
// make it forget.
//
//	new connection -> replica? ---------------------------> ErrStoreUnsafe
//	               -> the recorded process? --------------> accepted
//	               -> no or another store ID? ------------> ErrStoreReplaced
//	               -> restart that kept everything? ------> accepted, recorded
//	               -> promoted, and had every grant? -----> accepted, recorded, Warn
//	               -> Options.Adopt? ---------------------> accepted, recorded, Warn
//	               -> otherwise --------------------------> ErrStoreUnsafe
type guard struct {
	warn     func(code, message string)
	wait     int
	adopt    bool
	storeKey string

	mu       sync.Mutex          // guards everything below
	id       string              // the store's; empty until it is open
	found    map[string]server   // by node: what was met while the store was being opened
	accepted map[string]accepted // by node: the servers that are in use
	unsaved  bool                // accepted has what is not recorded yet
	synced   bool                // a grant waits for all replicas
	warnings [][2]string         // until the store is open
}

// accepted is a server that is in use, as it is recorded.
type accepted struct {
	runID   string
	former  string // as in server
	durable bool   // it keeps what it acknowledged
}

// is tells whether srv is the server that was accepted. Only a promotion brings
// another history; servers forget an old one by themselves.
func (a accepted) is(srv server) bool {
	return a.runID == srv.runID && (srv.former == "" || srv.former == a.former)
}

// serverField begins the fields of the store's key that record servers. The
// node's ID follows: Cluster's own, empty elsewhere.
const serverField = "server:"

// encode writes "durable" or "lossy", the run ID, and the history if there is one.
func (a accepted) encode() string {
	kind := "lossy"
	if a.durable {
		kind = "durable"
	}
	return strings.TrimSpace(kind + " " + a.runID + " " + a.former)
}

func decodeAccepted(text string) accepted {
	words := append(strings.Split(text, " "), "", "", "")
	return accepted{runID: words[1], former: words[2], durable: words[0] == "durable"}
}

func newGuard(opts Options, storeKey string) *guard {
	g := &guard{
		warn: opts.Warn, wait: opts.Wait, adopt: opts.Adopt, storeKey: storeKey,
		found: map[string]server{}, accepted: map[string]accepted{}, synced: opts.Wait > 0,
	}
	if g.warn == nil {
		g.warn = func(string, string) {}
	}
	return g
}

// A server is what a server tells about itself.
type server struct {
	sentinel bool // and nothing else is known
	runID    string
	node     string // Cluster's ID of it
	role     string
	former   string // the history that it continues since it was promoted, or ""
	replicas int
	risk     string // what of acknowledged writes a crash may lose
}

func (s server) same(other server) bool { return s.runID == other.runID && s.former == other.former }

// connected is called for every new connection before it is used.
func (g *guard) connected(ctx context.Context, cn *redis.Conn) error {
	if err := g.check(ctx, cn); err != nil {
		return fmt.Errorf("new connection: %w", err) // go-redis takes the outer error off
	}
	return nil
}

func (g *guard) check(ctx context.Context, cn *redis.Conn) error {
	srv, err := identify(ctx, cn)
	if redis.HasErrorPrefix(err, "NOPERM") {
		g.note(WarnNoIdentity, "the account may not run INFO, so that restarts and failovers go unnoticed: "+err.Error())
		return nil
	}
	if err != nil || srv.sentinel { // a Sentinel only tells where the master is
		return err
	}
	if srv.role != "master" {
		return fmt.Errorf("%w: redis: the server is a replica", hapax.ErrStoreUnsafe)
	}
	g.mu.Lock()
	known, id := g.accepted[srv.node].is(srv) || g.found[srv.node].same(srv), g.id
	g.mu.Unlock()
	if known {
		return nil
	}
	if srv.risk, err = persistence(ctx, cn); err != nil {
		return err
	}
	if id == "" {
		g.meet(ctx, cn, srv)
		return nil
	}
	recorded, err := g.recorded(ctx, cn, srv.node)
	if err != nil {
		return err
	}
	return g.judge(srv, recorded)
}

// meet notes a server while the store is being opened.
func (g *guard) meet(ctx context.Context, cn *redis.Conn, srv server) {
	eviction := evicts(ctx, cn)
	g.mu.Lock()
	g.found[srv.node] = srv
	g.synced = g.synced && srv.replicas <= g.wait
	g.mu.Unlock()
	if srv.risk != "" {
		g.note(WarnNotDurable, "a crash may lose numbers that were acknowledged: "+srv.risk+`; set "appendonly yes" and "appendfsync always"`)
	}
	if srv.replicas > g.wait {
		g.note(WarnReplication, fmt.Sprintf("a failover may lose numbers that were acknowledged: the server has %d replicas, and a grant waits for %d (wait)", srv.replicas, g.wait))
	}
	if eviction != "" {
		g.note(WarnEviction, "memory that runs out may remove tags: maxmemory-policy is "+eviction+"; set it to noeviction")
	}
}

// recorded reads which server of this node the store was last used on, and
// whether this is the store at all.
func (g *guard) recorded(ctx context.Context, cn *redis.Conn, node string) (accepted, error) {
	found, err := cn.HMGet(ctx, g.storeKey, "id", serverField+node).Result()
	switch {
	case redis.HasErrorPrefix(err, "MOVED"): // another node of a Cluster has it
		return accepted{}, nil
	case err != nil:
		return accepted{}, err
	}
	g.mu.Lock()
	id := g.id
	g.mu.Unlock()
	if got := reply(found).text(0); got != id {
		return accepted{}, replaced(got, id)
	}
	return decodeAccepted(reply(found).text(1)), nil
}

// opened tells that the store is open, and what is recorded about its servers.
// It judges the servers that were met meanwhile and reports the warnings.
func (g *guard) opened(id string, recorded map[string]accepted) error {
	g.mu.Lock()
	g.id = id
	found, warnings := g.found, g.warnings
	g.found, g.warnings = map[string]server{}, nil
	maps.Copy(g.accepted, recorded)
	g.mu.Unlock()
	for _, w := range warnings {
		g.warn(w[0], w[1])
	}
	for _, node := range slices.Sorted(maps.Keys(found)) {
		if len(recorded) == 0 { // the first use
			g.accept(found[node])
		} else if err := g.judge(found[node], recorded[node]); err != nil {
			return err
		}
	}
	return nil
}

// judge decides on a server; recorded is what the store says about its node.
func (g *guard) judge(srv server, recorded accepted) error {
	g.mu.Lock()
	last, known := g.accepted[srv.node]
	if !known { // a node that is new to the Cluster counts as the worst of the others
		last.durable = !slices.ContainsFunc(slices.Collect(maps.Values(g.accepted)), func(a accepted) bool { return !a.durable })
	}
	synced, promoted := g.synced, srv.former != ""
	g.mu.Unlock()
	switch {
	case recorded.is(srv): // somebody else accepted it, or nothing happened
	case !promoted && last.durable && srv.risk == "": // a restart that kept everything
	// A master that reloaded a snapshot looks promoted too; one with a log does not.
	case promoted && synced && srv.risk == "", g.adopt:
		g.warn(WarnPrimaryChanged, "another server process was adopted, with run ID "+srv.runID)
	case promoted:
		return fmt.Errorf("%w: redis: a replica was promoted and may lack numbers that were acknowledged; raise the marks or make sure that nothing is missing, then open the store with adopt=true once", hapax.ErrStoreUnsafe)
	default:
		return fmt.Errorf("%w: redis: the server was restarted and may lack numbers that were acknowledged, because it does or did not keep everything; raise the marks or make sure that nothing is missing, then open the store with adopt=true once", hapax.ErrStoreUnsafe)
	}
	g.accept(srv)
	return nil
}

func (g *guard) accept(srv server) {
	now := accepted{runID: srv.runID, former: srv.former, durable: srv.risk == ""}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.unsaved = g.unsaved || g.accepted[srv.node] != now
	g.accepted[srv.node] = now
}

// save returns what is to be recorded, or nothing. Whoever asked records it, and
// calls unsave if that fails.
func (g *guard) save() map[string]accepted {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.unsaved {
		return nil
	}
	g.unsaved = false
	return maps.Clone(g.accepted)
}

func (g *guard) unsave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.unsaved = true
}

// note keeps a warning until the store is open, once each.
func (g *guard) note(code, message string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if w := [2]string{code, message}; g.id == "" && !slices.Contains(g.warnings, w) {
		g.warnings = append(g.warnings, w)
	}
}

// identify asks who the server is. It fails with NOPERM where that is a secret.
func identify(ctx context.Context, cn *redis.Conn) (server, error) {
	pipe := cn.Pipeline()
	process, replication := pipe.Info(ctx, "server"), pipe.Info(ctx, "replication")
	if _, err := pipe.Exec(ctx); err != nil {
		return server{}, err
	}
	p, r := infoFields(process.Val()), infoFields(replication.Val())
	if p["redis_mode"] == "sentinel" {
		return server{sentinel: true}, nil
	}
	replicas, _, err := number(r["connected_slaves"])
	if err != nil || p["run_id"] == "" {
		return server{}, fmt.Errorf("%w: redis: INFO lacks run_id or connected_slaves", hapax.ErrStoreUnsafe)
	}
	// A server that started with its own data has no second replication ID.
	former := r["master_replid2"]
	if strings.Trim(former, "0") == "" {
		former = ""
	}
	srv := server{runID: p["run_id"], former: former, role: r["role"], replicas: int(replicas)}
	if p["redis_mode"] == "cluster" {
		srv.node, err = cn.Do(ctx, "cluster", "myid").Text()
	}
	return srv, err
}

// persistence tells what of acknowledged writes a crash may lose; empty: nothing.
// It goes by the settings: INFO says that there is no log while one is loaded.
func persistence(ctx context.Context, cn *redis.Conn) (string, error) {
	conf, err := cn.ConfigGet(ctx, "*append*").Result() // the pattern serves versions that take one name
	if err != nil {
		if _, ok := errors.AsType[redis.Error](err); ok {
			return "appendonly and appendfsync are unknown, because the server does not let them be read", nil
		}
		return "", err
	}
	switch {
	case conf["appendonly"] != "yes":
		return "appendonly is " + conf["appendonly"], nil
	case conf["appendfsync"] != "always":
		return "appendfsync is " + conf["appendfsync"], nil
	case conf["no-appendfsync-on-rewrite"] == "yes":
		return "no-appendfsync-on-rewrite is yes", nil
	}
	return "", nil
}

// evicts returns the policy by which the server may remove keys without an
// expiry, or "".
func evicts(ctx context.Context, cn *redis.Conn) string {
	info, err := cn.Info(ctx, "memory").Result()
	if err != nil {
		return "" // a later command will tell
	}
	m := infoFields(info)
	if m["maxmemory"] != "0" && strings.HasPrefix(m["maxmemory_policy"], "allkeys") {
		return m["maxmemory_policy"]
	}
	return ""
}

// infoFields reads the lines of INFO.
func infoFields(info string) map[string]string {
	m := map[string]string{}
	lines := bufio.NewScanner(strings.NewReader(info))
	for lines.Scan() {
		if name, value, ok := strings.Cut(lines.Text(), ":"); ok {
			m[name] = value
		}
	}
	return m
}
