package redisstore

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/hapax-id/hapax"
)

// A guard looks at the server behind every new connection, and accepts it, once
// the store is open, only if nothing can have been lost. It knows servers by
// their run ID, which names one process from its start to its end.
//
//	new connection -> replica? ------------------------> ErrStoreUnsafe
//	               -> known process? ------------------> accepted
//	               -> the store is being opened? ------> noted, accepted
//	               -> no or another store ID? ---------> ErrStoreReplaced
//	               -> restart that keeps everything? --> noted, accepted
//	               -> adoption allowed? ---------------> noted, accepted, Warn
//	               -> otherwise -----------------------> ErrStoreUnsafe
type guard struct {
	warn     func(code, message string)
	wait     int
	failover Failover
	storeKey string

	mu       sync.Mutex // guards everything below
	id       string     // the store's; empty until it is open
	known    map[string]bool
	durable  bool // every server seen so far keeps what it acknowledges
	adopt    bool // a failover loses nothing, or may
	warnings [][2]string
}

func newGuard(opts Options, storeKey string) *guard {
	g := &guard{warn: opts.Warn, wait: opts.Wait, failover: opts.Failover, storeKey: storeKey, known: map[string]bool{}, durable: true}
	if g.warn == nil {
		g.warn = func(string, string) {}
	}
	g.adopt = g.failover == FailoverAdopt || g.failover == FailoverAuto && g.wait > 0
	return g
}

// opened tells that the store is open: from now on an unknown server is judged.
// What was found meanwhile is reported.
func (g *guard) opened(id string) {
	g.mu.Lock()
	g.id = id
	warnings := g.warnings
	g.warnings = nil
	g.mu.Unlock()
	for _, w := range warnings {
		g.warn(w[0], w[1])
	}
}

// A server is what a server tells about itself.
type server struct {
	sentinel bool // and nothing else is known
	runID    string
	role     string
	promoted bool // it continues another server's history
	replicas int
}

// connected is called for every new connection before it is used.
func (g *guard) connected(ctx context.Context, cn *redis.Conn) error {
	if err := g.check(ctx, cn); err != nil {
		return fmt.Errorf("new connection: %w", err) // go-redis takes the outer error off
	}
	return nil
}

func (g *guard) check(ctx context.Context, cn *redis.Conn) error {
	srv, err := identify(ctx, cn)
	if err != nil {
		if redis.HasErrorPrefix(err, "NOPERM") {
			g.note(WarnUnverified, "the user may not run INFO, so that restarts and failovers go unnoticed: "+err.Error())
			return nil
		}
		return err
	}
	if srv.sentinel {
		return nil // it only tells where the master is
	}
	if srv.role != "master" {
		return fmt.Errorf("%w: redis: the server is a replica", hapax.ErrStoreUnsafe)
	}
	g.mu.Lock()
	known, id := g.known[srv.runID], g.id
	g.mu.Unlock()
	if known {
		return nil
	}
	risk, err := persistence(ctx, cn)
	if err != nil {
		return err
	}
	if id == "" {
		g.firstSeen(ctx, cn, srv, risk)
		return nil
	}
	return g.judge(ctx, cn, srv, risk, id)
}

// firstSeen notes a server while the store is being opened.
func (g *guard) firstSeen(ctx context.Context, cn *redis.Conn, srv server, risk string) {
	eviction := evicts(ctx, cn)
	g.mu.Lock()
	g.known[srv.runID] = true
	g.durable = g.durable && risk == ""
	if g.failover == FailoverAuto && srv.replicas > g.wait {
		g.adopt = false
	}
	g.mu.Unlock()
	if risk != "" {
		g.note(WarnPersistence, "a crash may lose numbers that were acknowledged: "+risk+`; set "appendonly yes" and "appendfsync always"`)
	}
	if srv.replicas > g.wait {
		g.note(WarnReplication, fmt.Sprintf("a failover may lose numbers that were acknowledged: the server has %d replicas, and a grant waits for %d (wait)", srv.replicas, g.wait))
	}
	if eviction != "" {
		g.note(WarnEviction, "memory that runs out may remove tags: maxmemory-policy is "+eviction+"; set it to noeviction")
	}
}

// judge decides on a server that was not there when the store was opened.
func (g *guard) judge(ctx context.Context, cn *redis.Conn, srv server, risk, id string) error {
	found, err := cn.HGet(ctx, g.storeKey, "id").Result()
	switch {
	case redis.HasErrorPrefix(err, "MOVED"): // another node of a Cluster has it
	case err != nil && !errors.Is(err, redis.Nil):
		return err
	case found != id:
		return fmt.Errorf("%w: redis: the server is another process than before and holds store %.40q, not %q", hapax.ErrStoreReplaced, found, id)
	}
	g.mu.Lock()
	kept := g.durable && risk == "" && !srv.promoted
	if kept || g.adopt {
		g.known[srv.runID] = true
	}
	adopt := g.adopt
	g.mu.Unlock()
	switch {
	case kept:
		return nil
	case adopt:
		g.warn(WarnAdopted, "another server process was adopted, with run ID "+srv.runID)
		return nil
	case srv.promoted:
		return fmt.Errorf("%w: redis: a replica was promoted and may lack numbers that were acknowledged; check, then open the store anew, or set failover=adopt", hapax.ErrStoreUnsafe)
	case risk == "":
		risk = "it did not keep everything when the store was opened"
	}
	return fmt.Errorf("%w: redis: the server was restarted and may lack numbers that were acknowledged (%s); check, then open the store anew, or set failover=adopt", hapax.ErrStoreUnsafe, risk)
}

// note keeps a warning until the store is open, once each.
func (g *guard) note(code, message string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, w := range g.warnings {
		if w == [2]string{code, message} {
			return
		}
	}
	if g.id == "" {
		g.warnings = append(g.warnings, [2]string{code, message})
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
	former := strings.Trim(r["master_replid2"], "0")
	return server{runID: p["run_id"], role: r["role"], promoted: former != "", replicas: int(replicas)}, nil
}

// persistence tells what of acknowledged writes a crash may lose; empty: nothing.
func persistence(ctx context.Context, cn *redis.Conn) (string, error) {
	info, err := cn.Info(ctx, "persistence").Result()
	if err != nil {
		return "", err
	}
	if infoFields(info)["aof_enabled"] != "1" {
		return "appendonly is no", nil
	}
	conf, err := cn.ConfigGet(ctx, "*append*").Result() // the pattern serves versions that take one name
	if err != nil {
		if _, ok := errors.AsType[redis.Error](err); ok {
			return "appendfsync is unknown, because the server does not let it be read", nil
		}
		return "", err
	}
	switch {
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
