package redisstore

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/hapax-id/hapax"
)

// inspect refuses replicas, and warns of writes that a server may lose. An account that may
// not ask is served without.
func (s *space) inspect(ctx context.Context) error {
	told := map[string]bool{}
	warn := func(code, message string) {
		if s.opts.Warn != nil && !told[message] {
			s.opts.Warn(code, message)
		}
		told[message] = true
	}
	servers, err := s.masters(ctx)
	if redis.HasErrorPrefix(err, "NOPERM") {
		warn(WarnNoIdentity, "the account may not run INFO, so that replicas are not told from masters, and restarts and failovers are noticed by heartbeats alone: "+err.Error())
		return nil
	}
	if err != nil {
		return err
	}
	for _, srv := range servers {
		if srv.role != "master" { // a replica that lets itself be written forgets that when it next follows its master
			return errReplica()
		}
		if srv.risk != "" {
			warn(WarnNotDurable, "a crash may lose numbers that were acknowledged: "+srv.risk+`; set "appendonly yes" and "appendfsync always"`)
		}
		if srv.replicas > s.opts.Wait {
			warn(WarnReplication, fmt.Sprintf("a failover may lose numbers that were acknowledged: the server has or had %d replicas, and a grant waits for %d (wait)", srv.replicas, s.opts.Wait))
		}
		if srv.eviction != "" {
			warn(WarnEviction, "memory that runs out may remove tags: maxmemory-policy is "+srv.eviction+"; set it to noeviction")
		}
	}
	return nil
}

func errReplica() error {
	return fmt.Errorf("%w: redis: the server is a replica", hapax.ErrStoreUnsafe)
}

// A server is what a server tells about itself.
type server struct {
	role     string
	replicas int    // that may lack a write
	risk     string // what of acknowledged writes a crash may lose
	eviction string // the policy by which it may remove keys without an expiry
}

// observe asks a server about itself. It fails with NOPERM where that is a secret.
func observe(ctx context.Context, c redis.Cmdable) (server, error) {
	pipe := c.Pipeline()
	var infos []*redis.StringCmd
	for _, section := range []string{"server", "replication", "memory"} {
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
	if m["hapax_version"] != "" {
		return server{}, &hapax.ValueError{
			Field: "store", Value: "(the Redis port of a hapax server, which issues numbers)",
			Allowed: "a Redis server, which keeps what hapax servers share; programs that want numbers give the server's address as --server", Err: hapax.ErrInvalidArgument,
		}
	}
	if failure != nil && len(m) == 0 { // nothing was sent
		return server{}, failure
	}
	srv := server{role: m["role"]}
	srv.replicas, _ = strconv.Atoi(m["connected_slaves"])
	if m["repl_backlog_active"] == "1" { // without replicas it says that there was one lately
		srv.replicas = max(srv.replicas, 1)
	}
	if m["maxmemory"] != "0" && strings.HasPrefix(m["maxmemory_policy"], "allkeys") {
		srv.eviction = m["maxmemory_policy"]
	}
	var err error
	srv.risk, err = risk(settings)
	return srv, err
}

// settingsPattern names what risk reads; it serves versions that take one name.
const settingsPattern = "*append*"

// risk tells what of acknowledged writes a crash may lose, "" for nothing.
func risk(cmd *redis.MapStringStringCmd) (what string, err error) {
	conf, err := cmd.Result()
	if err != nil {
		if _, ok := errors.AsType[redis.Error](err); ok {
			return "appendonly and appendfsync are unknown, because the server does not let them be read", nil
		}
		return "", err
	}
	for _, f := range [][2]string{{"appendonly", "yes"}, {"appendfsync", "always"}, {"no-appendfsync-on-rewrite", "no"}} {
		if conf[f[0]] != f[1] {
			return f[0] + " is " + conf[f[0]], nil
		}
	}
	return "", nil
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
func (s *space) nodeOf(ctx context.Context, key string) (*redis.Client, error) {
	if c, ok := s.rdb.(*redis.ClusterClient); ok {
		return c.MasterForKey(ctx, key)
	}
	return s.rdb.(*redis.Client), nil
}

// masters returns what the servers tell of themselves that the store may be on.
func (s *space) masters(ctx context.Context) ([]server, error) {
	c, ok := s.rdb.(*redis.ClusterClient)
	if !ok {
		srv, err := observe(ctx, s.rdb)
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
	return all, err
}
