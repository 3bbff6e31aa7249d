package redisstore

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/hapax-id/hapax"
)

// inspect refuses replicas, and warns of writes that a server may lose, of each that the store may
// be on. An account that may not ask is served without.
func (s *space) inspect(ctx context.Context) error {
	var mu sync.Mutex // guards told, and has one warning come after the other
	told := map[string]bool{}
	warn := func(code, message string) {
		mu.Lock()
		defer mu.Unlock()
		if s.opts.Warn != nil && !told[message] {
			s.opts.Warn(code, message)
		}
		told[message] = true
	}
	var err error
	if c, ok := s.rdb.(*redis.ClusterClient); ok {
		err = c.ForEachMaster(ctx, func(ctx context.Context, m *redis.Client) error { return s.judge(ctx, m, warn) })
	} else {
		err = s.judge(ctx, s.rdb, warn)
	}
	if redis.HasErrorPrefix(err, "NOPERM") {
		warn(WarnNoIdentity, "the account may not run INFO, so that replicas are not told from masters, and restarts and failovers are noticed by heartbeats alone: "+err.Error())
		return nil
	}
	return err
}

func errReplica() error {
	return fmt.Errorf("%w: redis: the server is a replica", hapax.ErrStoreUnsafe)
}

// judge asks a server about itself. It fails with NOPERM where that is a secret.
func (s *space) judge(ctx context.Context, c redis.Cmdable, warn func(code, message string)) error {
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
			return err
		}
		for line := range strings.Lines(info.Val()) {
			if name, value, ok := strings.Cut(strings.TrimRight(line, "\r\n"), ":"); ok {
				m[name] = value
			}
		}
	}
	if m["hapax_version"] != "" {
		return &hapax.ValueError{
			Field: "store", Value: "(the Redis port of a hapax server, which issues numbers)",
			Allowed: "a Redis server, which keeps what hapax servers share; programs that want numbers give the server's address as --server", Err: hapax.ErrInvalidArgument,
		}
	}
	if failure != nil && len(m) == 0 { // nothing was sent
		return failure
	}
	risk, err := risk(settings)
	if err != nil {
		return err
	}
	if m["role"] != "master" { // a replica that lets itself be written forgets that when it next follows its master
		return errReplica()
	}
	if risk != "" {
		warn(WarnNotDurable, "a crash may lose numbers that were acknowledged: "+risk+`; set "appendonly yes" and "appendfsync always"`)
	}
	replicas, _ := strconv.Atoi(m["connected_slaves"])
	if m["repl_backlog_active"] == "1" { // without replicas it says that there was one lately
		replicas = max(replicas, 1)
	}
	if replicas > s.opts.Wait {
		warn(WarnReplication, fmt.Sprintf("a failover may lose numbers that were acknowledged: the server has or had %d replicas, and a grant waits for %d (wait)", replicas, s.opts.Wait))
	}
	if policy := m["maxmemory_policy"]; m["maxmemory"] != "0" && strings.HasPrefix(policy, "allkeys") { // those remove keys without an expiry, too
		warn(WarnEviction, "memory that runs out may remove tags: maxmemory-policy is "+policy+"; set it to noeviction")
	}
	return nil
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

// nodeOf returns the server that a key is on.
func (s *space) nodeOf(ctx context.Context, key string) (*redis.Client, error) {
	if c, ok := s.rdb.(*redis.ClusterClient); ok {
		return c.MasterForKey(ctx, key)
	}
	return s.rdb.(*redis.Client), nil
}
