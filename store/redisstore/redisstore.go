// Package redisstore keeps tags and workers in Redis (6.2 or later): one server,
// Sentinel or Cluster.
//
// Redis acknowledges before its replicas have a write, and by default before
// its disk has it. A plain Redis is therefore a best-effort authority: it is
// allowed, Open warns about what it may lose, and the store refuses to go on
// once it may have been lost.
//
//   - With "appendonly yes" and "appendfsync always" a server that crashes
//     keeps what it acknowledged; its restart is accepted.
//   - Any other restart, and a failover, may have lost grants: the store answers
//     ErrStoreUnsafe, and Open too, until somebody has opened it with
//     Options.Adopt. If Options.Wait makes each grant wait for all replicas, and
//     they keep everything too, a failover is accepted.
//   - A server that comes back empty, or with other data, is ErrStoreReplaced; a
//     single tag or pool that vanished is ErrStoreRolledBack.
//   - A replica is refused with ErrStoreUnsafe.
//
// A store looks at the server's process and role whenever it makes a
// connection, because neither a crash nor a failover leaves one open, and
// records the process that it uses in the store. All programs that share a store
// use the same settings. A proxy that hides failovers from clients takes the
// protection away, and so does a replica that was promoted and then restarted
// before it is seen: it looks like a restart. In a Cluster each node counts for
// itself, and stores that are open follow an adoption only when they are opened
// anew. The witness that nodes keep outside the store is the second line.
//
// # Keys
//
// With the default prefix; every script works on one slot, so that Cluster runs
// it too.
//
//	hapax:{hapax}:store    hash: id, format, server:NODE → the last server process
//	hapax:{hapax}:tags     sorted set, all scores 0: the names of all tags
//	hapax:{hapax}:pools    hash: pool → layout
//	hapax:{hapax}:pending  set: tag/NAME or pool/NAME while its own key is made
//	hapax:tag:NAME         hash: store, rev, kind, deleted, mark, start, step, …
//	hapax:workers:POOL     hash: store, and per worker "epoch mark expires holder"
//
// A name enters the index and the pending set first, then its key is made, then
// it leaves the pending set. So the index misses no tag, and a name that is
// indexed, not pending and without a key is a lost line. Who has chosen a floor
// for it removes it from the index (ZREM, or HDEL for a pool) and creates it
// again.
//
// Numbers go through scripts as decimal strings; Lua's own lose integers above
// 2^53. A script is sent by its hash, whole only where the server does not know
// it. All are short; one that blocks the server nevertheless (BUSY) can be ended
// with SCRIPT KILL.
package redisstore

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hapax-id/hapax"
)

var (
	_ hapax.Store       = (*Store)(nil)
	_ hapax.WorkerTable = (*Store)(nil)
	_ hapax.StoreClock  = (*Store)(nil)
)

// Defaults of Options.
const (
	DefaultPrefix  = "hapax:"
	DefaultTimeout = 5 * time.Second
)

const (
	format         = "1"         // of the keys; another one is refused
	maxPrefixBytes = 64          // of Options.Prefix
	maxWait        = 100         // replicas
	waitFor        = time.Second // how long a grant waits for its replicas
)

// Options are the settings of a store; the zero value is useful.
type Options struct {
	Prefix  string        // of all keys; up to 64 bytes without braces; default DefaultPrefix; in the URL: prefix
	Timeout time.Duration // of a call whose context has no deadline; default DefaultTimeout
	Wait    int           // replicas that must have a write before it counts; 0 to 100, default 0; in the URL: wait
	Adopt   bool          // accept a server that may have lost something; default false; in the URL: adopt=true
	TLS     *tls.Config   // for rediss URLs instead of the system's roots; default nil

	// Warn is told what an operator should know: by Open, and when another
	// server is adopted. It may be called from any goroutine and must not call
	// the store. Default: nobody is told.
	Warn func(code, message string)
}

// Codes of Options.Warn.
const (
	WarnNotDurable     = "not_durable"       // a crash may lose acknowledged writes
	WarnReplication    = "async_replication" // a failover may lose acknowledged writes
	WarnEviction       = "eviction"          // the server may evict tags when memory runs out
	WarnNoIdentity     = "no_identity"       // the account may not read what the checks need
	WarnPrimaryChanged = "primary_changed"   // another server process was adopted
)

// A Store is a store in Redis. Its methods are safe for concurrent use. It
// connects as needed, with at most ten connections a CPU (pool_size in the URL),
// and reconnects by itself. A write that may have reached the server is never
// sent again.
type Store struct {
	rdb   redis.UniversalClient
	opts  Options
	keys  keys
	id    string
	guard *guard

	mu     sync.Mutex // guards closed, and calls.Add against calls.Wait
	closed bool
	calls  sync.WaitGroup // requests in flight, see request
}

// Open connects to the server that the URL names and, at first use, makes it a
// store.
//
//	redis://[user:password@]host[:port][/db][?…]
//	redis+sentinel://[user:password@]host[:port],…/master[/db][?…]
//	redis+cluster://[user:password@]host[:port],…[?…]
//	unix://[user:password@]/path/to.sock[?db=…]
//
// rediss instead of redis asks for TLS. After the question mark may stand
// prefix, wait, adopt, and for Sentinels with their own accounts
// sentinel_username and sentinel_password; what else go-redis knows in URLs is
// passed to it.
//
// ErrStoreUnavailable, ErrStoreUnsafe (a replica, or a server that may have lost
// something), ErrStoreCorrupt, and *hapax.ValueError for a URL or option that
// cannot be used.
func Open(ctx context.Context, url string, opts Options) (*Store, error) {
	t, err := parseURL(url, opts)
	if err != nil {
		return nil, err
	}
	s := &Store{opts: t.opts, keys: keys(t.opts.Prefix)}
	s.guard = newGuard(t.opts, s.keys.store())
	s.rdb = t.connect(s.guard.connected)
	if err := s.open(ctx); err != nil {
		_ = s.Close() // the first error tells more
		return nil, err
	}
	return s, nil
}

func (s *Store) open(ctx context.Context) error {
	_, err := request(ctx, s, "open", func(ctx context.Context) (string, error) {
		if c, ok := s.rdb.(*redis.ClusterClient); ok {
			err := c.ForEachMaster(ctx, func(ctx context.Context, m *redis.Client) error { return m.Ping(ctx).Err() })
			if err != nil {
				return "", err
			}
		}
		reply, err := s.eval(ctx, openScript, []string{s.keys.store()}, rand.Text(), format)
		if err != nil {
			return "", err
		}
		m := reply.fields(0)
		if m["format"] != format {
			return "", fmt.Errorf("%w: redis: the keys have format %.20q, this version understands %q", hapax.ErrStoreCorrupt, m["format"], format)
		}
		servers := map[string]accepted{}
		for field, value := range m {
			if node, ok := strings.CutPrefix(field, serverField); ok {
				servers[node] = decodeAccepted(value)
			}
		}
		s.id = m["id"]
		if err := s.guard.opened(s.id, servers); err != nil {
			return "", err
		}
		return "", s.recordServers(ctx)
	})
	return err
}

// recordServers writes down which servers are in use, if that changed.
func (s *Store) recordServers(ctx context.Context) error {
	servers := s.guard.save()
	if servers == nil {
		return nil
	}
	args := []any{s.id}
	for node, a := range servers {
		args = append(args, serverField+node, a.encode())
	}
	_, err := s.eval(ctx, recordScript, []string{s.keys.store()}, args...)
	if err != nil {
		s.guard.unsave()
	}
	return err
}

// StoreID implements hapax.SegmentStore. It fails with ErrStoreReplaced once
// the server holds another store than the one that was opened.
func (s *Store) StoreID(ctx context.Context) (string, error) {
	return request(ctx, s, "read the store ID", func(ctx context.Context) (string, error) {
		id, err := s.rdb.HGet(ctx, s.keys.store(), "id").Result()
		if err != nil && !errors.Is(err, redis.Nil) {
			return "", err
		}
		return id, s.same(id)
	})
}

// Ping implements hapax.Store. It sends a write that changes nothing, which
// fails on a replica, on a full disk and on memory that has run out.
func (s *Store) Ping(ctx context.Context) error {
	_, err := request(ctx, s, "ping", func(ctx context.Context) (string, error) {
		reply, err := s.eval(ctx, pingScript, []string{s.keys.store()}, s.id)
		if err != nil {
			return "", err
		}
		return "", s.same(reply.text(0))
	})
	return err
}

// StoreTime implements hapax.StoreClock.
func (s *Store) StoreTime(ctx context.Context) (time.Time, error) {
	return request(ctx, s, "read the clock", func(ctx context.Context) (time.Time, error) {
		return s.rdb.Time(ctx).Result()
	})
}

// Close implements hapax.Store. It breaks calls in flight off; they and later
// ones fail with ErrStoreUnavailable.
func (s *Store) Close() error {
	s.mu.Lock()
	closed := s.closed
	s.closed = true
	s.mu.Unlock()
	if closed {
		return nil
	}
	err := s.rdb.Close()
	s.calls.Wait()
	return err
}

// request runs f, which talks to the server, under a deadline, and translates
// its error. It returns when ctx ends although the client library sees only
// deadlines, not cancellations; f then ends by itself, at the latest when its
// time is over or the store is closed.
func request[T any](ctx context.Context, s *Store, doing string, f func(context.Context) (T, error)) (T, error) {
	var none T
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, s.opts.Timeout)
		defer cancel()
	}
	if err := ctx.Err(); err != nil {
		return none, failed(ctx, doing, err)
	}
	type result struct {
		v   T
		err error
	}
	done := make(chan result, 1)
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return none, fmt.Errorf("%w: redis: the store is closed", hapax.ErrStoreUnavailable)
	}
	s.calls.Go(func() {
		v, err := f(ctx)
		if err == nil {
			err = s.recordServers(ctx)
		}
		done <- result{v, err}
	})
	s.mu.Unlock()
	var r result
	select {
	case r = <-done:
	case <-ctx.Done():
		r.err = ctx.Err()
	}
	if r.err != nil {
		return none, failed(ctx, doing, r.err)
	}
	return r.v, nil
}

// keys makes the names of keys; it is their prefix.
type keys string

func (k keys) store() string              { return string(k) + "{hapax}:store" }
func (k keys) tags() string               { return string(k) + "{hapax}:tags" }
func (k keys) pools() string              { return string(k) + "{hapax}:pools" }
func (k keys) pending() string            { return string(k) + "{hapax}:pending" }
func (k keys) tag(name string) string     { return string(k) + "tag:" + name }
func (k keys) workers(pool string) string { return string(k) + "workers:" + pool }

// same checks a store ID that the server gave.
func (s *Store) same(id string) error {
	if id == s.id {
		return nil
	}
	return replaced(id, s.id)
}

// replaced is the error for a server that holds another store ID, or none.
func replaced(found, want string) error {
	if found == "" {
		return fmt.Errorf("%w: redis: the server came back without its data, or the data was deleted", hapax.ErrStoreReplaced)
	}
	return fmt.Errorf("%w: redis: the server now holds store %.40q, not %q", hapax.ErrStoreReplaced, found, want)
}

// lost is the error for a key that is known to have existed.
func lost(what, name string) error {
	return fmt.Errorf("%w: redis: %s %q exists by the index and its key is gone", hapax.ErrStoreRolledBack, what, name)
}

func corrupt(key, field, value string) error {
	return fmt.Errorf("%w: redis: key %q, field %q: %.80q", hapax.ErrStoreCorrupt, key, field, value)
}

// failed translates an error of a request; hapax's own pass.
func failed(ctx context.Context, doing string, err error) error {
	if _, ok := errors.AsType[*hapax.Error](err); ok {
		return err
	}
	cause, hint := hapax.ErrStoreUnavailable, ""
	switch {
	case redis.HasErrorPrefix(err, "READONLY"):
		cause, hint = hapax.ErrStoreUnsafe, " (a replica)"
	case redis.HasErrorPrefix(err, "WRONGTYPE"):
		cause, hint = hapax.ErrStoreCorrupt, " (another program uses these keys; choose another prefix)"
	case redis.HasErrorPrefix(err, "BUSY"):
		hint = " (SCRIPT KILL ends the script that blocks the server)"
	}
	// The connection's deadline is the context's, and may be noticed first.
	ended := ctx.Err()
	if at, ok := ctx.Deadline(); ok && ended == nil && !time.Now().Before(at) {
		ended = context.DeadlineExceeded
	}
	if ended != nil && !errors.Is(err, ended) {
		return fmt.Errorf("%w: redis: %s: %w%s (%w)", cause, doing, err, hint, ended)
	}
	return fmt.Errorf("%w: redis: %s: %w%s", cause, doing, err, hint)
}
