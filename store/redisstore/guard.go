package redisstore

import (
	"bufio"
	"cmp"
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

// A guard decides which servers may grant. It knows servers by their run ID,
// which names one process from its start to its end, and by the history that the
// process took over when it was promoted.
//
// Every script is told which servers, in which state, the guard trusts, and does
// nothing on another one. Then the guard looks at the server:
//
//	a replica? -----------------------------------------> ErrStoreUnsafe
//	the recorded process? --- it keeps less than before? > ErrStoreUnsafe
//	                      --- otherwise -----------------> trusted
//	no or another store ID? ----------------------------> ErrStoreReplaced
//	another process, and nothing can be lost? ----------> recorded, trusted
//	Options.Adopt? -------------------------------------> recorded, trusted, Warn
//	otherwise ------------------------------------------> ErrStoreUnsafe
//
// Nothing can be lost if the recorded process kept everything on its disk, every
// write waited for all the replicas it had, and the new process keeps everything
// too. A restart cannot be told from a promotion: Redis forgets a promotion by
// itself, after repl-backlog-ttl or when the promoted server gets a replica. So
// one replica that may lack a write makes every later restart a case for an
// operator, and that is recorded, and known to the replicas, before the next
// write.
//
// What servers do not tell: a replica that took its copy and left longer than
// repl-backlog-ttl ago, or that loses its master before it hears that it may lack
// writes; a server that was demoted and promoted again without a write between
// them; settings that were changed and changed back between two writes. There the
// heartbeat of other nodes and the fence of store/witness have to notice.
type guard struct {
	warn  func(code, message string)
	wait  int
	adopt bool

	mu       sync.Mutex          // guards everything below
	accepted map[string]accepted // by node: the servers that are in use
	trusted  map[string]string   // by node: their states, see server.state
	states   string              // all of trusted, for scripts
	blind    bool                // the account may not read what the checks need
	unsaved  bool                // accepted has what is not recorded yet
	told     map[string]bool     // the warnings that were given
}

// accepted is a server that is in use, as it is recorded.
type accepted struct {
	runID   string
	former  string // as in server
	durable bool   // it keeps on its disk what it acknowledged
	synced  bool   // no replica can lack what it acknowledged
}

// is reports whether srv is the server that was accepted. Only a promotion brings
// another history; servers forget an old one by themselves.
func (a accepted) is(srv server) bool {
	return a.runID == srv.runID && (srv.former == "" || srv.former == a.former)
}

// serverField begins the fields of the store's key that record servers. The
// node's ID follows: Cluster's own, empty elsewhere.
const serverField = "server:"

// encode writes two words for what the server keeps, the run ID, and the history
// if there is one.
func (a accepted) encode() string {
	durable, synced := "lossy", "behind"
	if a.durable {
		durable = "durable"
	}
	if a.synced {
		synced = "synced"
	}
	return strings.TrimSpace(strings.Join([]string{durable, synced, a.runID, a.former}, " "))
}

func decodeAccepted(text string) accepted {
	words := append(strings.Split(text, " "), "", "", "", "")
	return accepted{runID: words[2], former: words[3], durable: words[0] == "durable", synced: words[1] == "synced"}
}

func newGuard(opts Options) *guard {
	g := &guard{
		warn: opts.Warn, wait: opts.Wait, adopt: opts.Adopt,
		accepted: map[string]accepted{}, trusted: map[string]string{}, told: map[string]bool{},
	}
	if g.warn == nil {
		g.warn = func(string, string) {}
	}
	return g
}

// known returns the states that scripts may find, "" for any, and whether some
// server is in use that has to keep everything.
func (g *guard) known() (states string, durable bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.blind {
		return "", false
	}
	for _, a := range g.accepted {
		durable = durable || a.durable
	}
	return cmp.Or(g.states, "|"), durable
}

// trust lets scripts run on a node in the state that it was seen in, "" for none.
func (g *guard) trust(node, state string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.trusted[node] = state; state == "" {
		delete(g.trusted, node)
	}
	g.states = ""
	for _, t := range g.trusted {
		g.states += "|" + t + "|"
	}
}

// open judges the servers that the store is opened on; recorded is what the store
// says about them. It gives the warnings first.
func (g *guard) open(servers []server, recorded map[string]accepted) error {
	g.mu.Lock()
	maps.Copy(g.accepted, recorded)
	g.mu.Unlock()
	for _, srv := range servers {
		g.warnOf(srv)
	}
	for _, srv := range servers {
		if len(recorded) == 0 { // the first use
			g.accept(srv.node, g.fresh(srv))
		} else if err := g.judge(srv, recorded[srv.node]); err != nil {
			return err
		}
	}
	return nil
}

// warnOf tells an operator what should be known about a server.
func (g *guard) warnOf(srv server) {
	if srv.risk != "" {
		g.tell(WarnNotDurable, "a crash may lose numbers that were acknowledged: "+srv.risk+`; set "appendonly yes" and "appendfsync always"`)
	}
	if srv.replicas() > g.wait {
		g.tell(WarnReplication, fmt.Sprintf("a failover may lose numbers that were acknowledged: the server has or had %d replicas, and a grant waits for %d (wait)", srv.replicas(), g.wait))
	}
	if srv.eviction != "" {
		g.tell(WarnEviction, "memory that runs out may remove tags: maxmemory-policy is "+srv.eviction+"; set it to noeviction")
	}
}

// tell gives a warning, once.
func (g *guard) tell(code, message string) {
	g.mu.Lock()
	was := g.told[message]
	g.told[message] = true
	g.mu.Unlock()
	if !was {
		g.warn(code, message)
	}
}

// fresh is what is recorded about a server that begins to be used.
func (g *guard) fresh(srv server) accepted {
	return accepted{runID: srv.runID, former: srv.former, durable: srv.risk == "", synced: srv.replicas() <= g.wait}
}

func unsafe(format string, args ...any) error {
	return fmt.Errorf("%w: redis: %s", hapax.ErrStoreUnsafe, fmt.Sprintf(format, args...))
}

const wayOut = "raise the marks or make sure that nothing is missing, then open the store with adopt=true once"

// judge decides on a server; recorded is what the store says about its node, the
// zero value if nothing.
func (g *guard) judge(srv server, recorded accepted) error {
	if err := srv.isMaster(); err != nil {
		return err
	}
	prior := g.prior(srv, recorded)
	same := prior.is(srv)
	next := g.fresh(srv)
	switch {
	case g.adopt:
		if !same {
			g.tell(WarnPrimaryChanged, "another server process was adopted, with run ID "+srv.runID)
		}
	case same && prior.durable && srv.risk != "" && !srv.secret:
		return unsafe("the server no longer keeps what it acknowledges: %s; set it back, or open the store with adopt=true once", srv.risk)
	case same: // nothing happened, or somebody else accepted it
		next = prior
		next.durable = next.durable && srv.risk == ""
		next.synced = next.synced && srv.replicas() <= g.wait
		g.warnOf(srv)
	case prior.durable && prior.synced && srv.risk == "" && (srv.former == "" || g.wait > 0):
		if srv.former != "" {
			g.tell(WarnPrimaryChanged, "another server process was adopted, with run ID "+srv.runID)
		}
	case srv.former != "":
		return unsafe("a replica was promoted and may lack numbers that were acknowledged; %s", wayOut)
	case prior.durable && srv.risk == "":
		return unsafe("the server was restarted, or a replica was promoted that may lack numbers that were acknowledged, because not every grant waited for all replicas; %s", wayOut)
	default:
		return unsafe("the server was restarted and may lack numbers that were acknowledged, because it does or did not keep everything; %s", wayOut)
	}
	g.accept(srv.node, next)
	return nil
}

// prior is what is known of the process that was in use where srv is now: of srv
// itself, if it was. What this process knows and what is recorded count both, by
// the worse. A node that is new to the Cluster counts as the worst of the others.
func (g *guard) prior(srv server, recorded accepted) accepted {
	g.mu.Lock()
	defer g.mu.Unlock()
	last, known := g.accepted[srv.node]
	switch {
	case recorded.runID == "" && known:
		return last
	case recorded.is(srv) && !last.is(srv): // somebody else accepted it
		return recorded
	case known:
		recorded.durable, recorded.synced = recorded.durable && last.durable, recorded.synced && last.synced
		return recorded
	case recorded.runID == "":
		recorded.durable, recorded.synced = true, true
	}
	for _, a := range g.accepted {
		recorded.durable, recorded.synced = recorded.durable && a.durable, recorded.synced && a.synced
	}
	return recorded
}

func (g *guard) accept(node string, now accepted) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.unsaved = g.unsaved || g.accepted[node] != now
	g.accepted[node] = now
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

// goBlind ends all checks of servers: the account may not ask them.
func (g *guard) goBlind(err error) {
	g.mu.Lock()
	g.blind = true
	g.mu.Unlock()
	g.tell(WarnNoIdentity, "the account may not run INFO, so that restarts and failovers go unnoticed: "+err.Error())
}

// A server is what a server tells about itself.
type server struct {
	runID     string
	node      string // Cluster's ID of it
	role      string
	former    string // the history that it continues since it was promoted, or ""
	connected string // replicas, in decimal
	online    int    // of them, those that follow
	backlog   string // "1": there is or was a replica
	log       string // "1": it has an append-only file
	risk      string // what of acknowledged writes a crash may lose
	secret    bool   // the settings cannot be read
	eviction  string // the policy by which it may remove keys without an expiry
}

// state is what a script compares; see the prelude of scripts.
func (s server) state() string {
	return strings.Join([]string{s.runID, s.role, s.former, s.connected, s.backlog, s.log}, " ")
}

// isMaster returns an error for a replica. One that lets itself be written forgets
// that when it next follows its master.
func (s server) isMaster() error {
	if s.role != "master" {
		return unsafe("the server is a replica")
	}
	return nil
}

// replicas returns how many replicas may lack a write. A backlog without replicas
// says that there was one within repl-backlog-ttl.
func (s server) replicas() int {
	n, _, _ := number(s.connected)
	if s.backlog == "1" {
		n = max(n, 1)
	}
	return int(n)
}

// observe asks a server about itself. It fails with NOPERM where that is a secret.
func observe(ctx context.Context, c redis.Cmdable) (server, error) {
	pipe := c.Pipeline()
	var infos []*redis.StringCmd
	for _, section := range []string{"server", "replication", "persistence", "memory"} {
		infos = append(infos, pipe.Info(ctx, section))
	}
	settings := pipe.ConfigGet(ctx, settingsPattern)
	_, failure := pipe.Exec(ctx)
	m := map[string]string{}
	for _, info := range infos {
		if err := info.Err(); err != nil {
			return server{}, err
		}
		readInfo(m, info.Val())
	}
	if failure != nil && len(m) == 0 { // nothing was sent
		return server{}, failure
	}
	if m["run_id"] == "" || m["connected_slaves"] == "" {
		return server{}, unsafe("INFO lacks run_id or connected_slaves")
	}
	srv := server{
		runID: m["run_id"], role: m["role"], former: former(m["master_replid2"]), connected: m["connected_slaves"],
		backlog: m["repl_backlog_active"], log: m["aof_enabled"],
	}
	for name, value := range m {
		if strings.HasPrefix(name, "slave") && strings.Contains(value, "state=online") {
			srv.online++
		}
	}
	if m["maxmemory"] != "0" && strings.HasPrefix(m["maxmemory_policy"], "allkeys") {
		srv.eviction = m["maxmemory_policy"]
	}
	var err error
	if srv.risk, srv.secret, err = risk(settings); err == nil && m["redis_mode"] == "cluster" {
		srv.node, err = c.(*redis.Client).Do(ctx, "cluster", "myid").Text()
	}
	return srv, err
}

// former returns the history before a promotion: a server that started with its
// own data has no second replication ID.
func former(replid2 string) string {
	if strings.Trim(replid2, "0") == "" {
		return ""
	}
	return replid2
}

// settingsPattern names what risk reads; it serves versions that take one name.
const settingsPattern = "*append*"

// risk tells what of acknowledged writes a crash may lose, "" for nothing, and
// whether that is a secret.
func risk(cmd *redis.MapStringStringCmd) (what string, secret bool, err error) {
	conf, err := cmd.Result()
	if err != nil {
		if _, ok := errors.AsType[redis.Error](err); ok {
			return "appendonly and appendfsync are unknown, because the server does not let them be read", true, nil
		}
		return "", false, err
	}
	for _, f := range [][2]string{{"appendonly", "yes"}, {"appendfsync", "always"}, {"no-appendfsync-on-rewrite", "no"}} {
		if conf[f[0]] != f[1] {
			return f[0] + " is " + conf[f[0]], false, nil
		}
	}
	return "", false, nil
}

// readInfo adds the lines of INFO to m.
func readInfo(m map[string]string, info string) {
	lines := bufio.NewScanner(strings.NewReader(info))
	for lines.Scan() {
		if name, value, ok := strings.Cut(lines.Text(), ":"); ok {
			m[name] = value
		}
	}
}

// nodeOf returns the server that a key is on.
func (s *Store) nodeOf(ctx context.Context, key string) (*redis.Client, error) {
	if c, ok := s.rdb.(*redis.ClusterClient); ok {
		return c.MasterForKey(ctx, key)
	}
	return s.rdb.(*redis.Client), nil
}

// masters returns the servers that the store is on, one after the other; an error if
// one is a replica.
func (s *Store) masters(ctx context.Context) ([]server, error) {
	c, ok := s.rdb.(*redis.ClusterClient)
	if !ok {
		srv, err := observe(ctx, s.rdb)
		if err == nil {
			err = srv.isMaster()
		}
		return []server{srv}, err
	}
	var mu sync.Mutex // guards all
	var all []server
	err := c.ForEachMaster(ctx, func(ctx context.Context, m *redis.Client) error {
		srv, err := observe(ctx, m)
		mu.Lock()
		defer mu.Unlock()
		all = append(all, srv)
		return err
	})
	slices.SortFunc(all, func(a, b server) int { return strings.Compare(a.node, b.node) })
	return all, err
}

// recheck judges the server that a key is on, and trusts it if it is accepted.
func (s *Store) recheck(ctx context.Context, key string) error {
	select {
	case s.checking <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-s.checking }()
	node, err := s.nodeOf(ctx, key)
	if err != nil {
		return err
	}
	srv, err := observe(ctx, node)
	if redis.HasErrorPrefix(err, "NOPERM") {
		s.guard.goBlind(err)
		return nil
	}
	if err != nil {
		return err
	}
	found, err := s.rdb.HMGet(ctx, s.keys.store(), "id", serverField+srv.node).Result()
	if err != nil {
		return err
	}
	if err := s.same(reply(found).text(0)); err != nil {
		return err
	}
	s.guard.trust(srv.node, "")
	if err := s.guard.judge(srv, decodeAccepted(reply(found).text(1))); err != nil {
		return err
	}
	if err := s.recordServers(ctx); err != nil {
		return err
	}
	s.guard.trust(srv.node, srv.state())
	return nil
}

// recordServers writes down which servers are in use, if that changed. All
// replicas that follow must have it: one that is promoted later tells by it
// whether it may lack something.
func (s *Store) recordServers(ctx context.Context) error {
	servers := s.guard.save()
	if servers == nil {
		return nil
	}
	err := s.writeServers(ctx, servers)
	if err != nil {
		s.guard.unsave()
	}
	return err
}

func (s *Store) writeServers(ctx context.Context, servers map[string]accepted) error {
	node, err := s.nodeOf(ctx, s.keys.store())
	if err != nil {
		return err
	}
	holder, err := observe(ctx, node)
	if err != nil {
		return err
	}
	args := []any{"", s.id}
	for name, a := range servers {
		args = append(args, serverField+name, a.encode())
	}
	r, err := s.evalWaiting(ctx, recordScript, []string{s.keys.store()}, args, max(s.opts.Wait, holder.online))
	if err == nil && r.text(0) == saidReplaced {
		err = s.same(r.text(1))
	}
	return err
}
