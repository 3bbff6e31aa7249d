// Package redisstore keeps a store in Redis (6.2 or later): one server, Sentinel
// or Cluster.
//
// Redis acknowledges before its replicas have a write, and by default before
// its disk has it. A plain Redis is therefore a best-effort authority: it is
// allowed, and Open warns about what it may lose.
//
//   - With "appendonly yes" and "appendfsync always" a server that crashes keeps
//     what it acknowledged. With Options.Wait a grant also waits for replicas, so
//     that a failover to one of them keeps it.
//   - Whether a restart or a failover has lost something is not judged here:
//     guarded calls tell the server's process and history
//     (driver.Contact.Primary), and whoever beats (store/witness) finds out
//     whether what was acknowledged to it is there.
//   - A server that comes back empty, or with other data, is ErrStoreReplaced; a
//     tag or rows that vanished are ErrStoreRolledBack.
//   - A replica is refused with ErrStoreUnsafe, in the same atomic step; a listing of
//     tags asks before and after. One that lost its key is left out of it.
//
// # Keys
//
// With the default prefix; every script works on one slot, so that Cluster runs
// it too.
//
//	hapax:{hapax}:store    hash: id, format, rows
//	hapax:{hapax}:tags     sorted set, all scores 0: the names of all tags
//	hapax:{hapax}:pending  set: the names of tags while their own keys are made
//	hapax:{hapax}:rows     hash: TABLE, a zero byte, NAME → a row's value
//	hapax:{hapax}:names    sorted set, all scores 0: the fields of rows
//	hapax:tag:NAME         hash: store, rev, kind, deleted, mark, token, run, key_hash, start, step, …
//
// A tag's name enters the index and the pending set first, then its key is made,
// then it leaves the pending set. So the index misses no tag, and a name that is
// indexed, not pending and without a key is a lost line. Who has chosen a floor
// for it removes it from the index (ZREM) and creates it again; healing does both.
//
// The store's field rows counts the rows; when the hash or the sorted set has
// another number of them, rows were lost, and nothing goes on until an operator
// has put them back or has set all three right.
//
// Numbers go through scripts as decimal strings; Lua's own lose integers above
// 2^53. A script is sent by its hash, whole only where the server does not know
// it. All are short; one that blocks the server nevertheless (BUSY) can be ended
// with SCRIPT KILL.
package redisstore

import (
	"cmp"
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
	"github.com/hapax-id/hapax/store/driver"
)

var (
	_ driver.Store    = (*Store)(nil)
	_ driver.Clock    = (*Store)(nil)
	_ driver.Guarding = (*Store)(nil)
	_ driver.Healing  = (*Store)(nil)
)

// Defaults of Options.
const (
	DefaultPrefix  = "hapax:"
	DefaultTimeout = 5 * time.Second
)

const (
	format         = "3"         // of the keys
	maxPrefixBytes = 64          // of Options.Prefix
	maxWait        = 100         // replicas
	waitFor        = time.Second // how long a grant waits for its replicas
)

// Options are the settings of a store; the zero value is useful.
type Options struct {
	Prefix  string        // of all keys; up to 64 bytes without braces; default DefaultPrefix; in the URL: prefix
	Timeout time.Duration // of each call, also when its context allows more; default DefaultTimeout
	Wait    int           // replicas that must have a write before it counts; 0 to 100, default 0; in the URL: wait
	TLS     *tls.Config   // for rediss URLs instead of the system's roots; default nil

	// Look has Open change nothing: where it would have to, it fails with a
	// *driver.WouldChangeError. Nothing may be written to the store then.
	Look bool

	// Existing, if set, is asked before a store would be made: where it returns true, New
	// makes none, and fails with a *driver.WouldChangeError. See witness.Witness.KnowsStore.
	Existing func() bool

	// Warn is told by Open what an operator should know. It must not call the
	// store. Default: nobody is told.
	Warn func(code, message string)
}

// withDefaults fills in the settings that are not set, and checks the rest.
func (o Options) withDefaults() (Options, error) {
	o.Prefix = cmp.Or(o.Prefix, DefaultPrefix)
	if len(o.Prefix) > maxPrefixBytes || strings.ContainsAny(o.Prefix, "{}") || hapax.ValidateName("prefix", o.Prefix) != nil {
		return o, &hapax.ValueError{Field: "prefix", Value: o.Prefix, Allowed: "up to 64 bytes without braces and control characters", Err: hapax.ErrInvalidArgument}
	}
	if o.Wait < 0 || o.Wait > maxWait {
		return o, &hapax.ValueError{Field: "wait", Value: o.Wait, Allowed: fmt.Sprintf("0 to %d replicas", maxWait), Err: hapax.ErrInvalidArgument}
	}
	if o.Timeout <= 0 {
		o.Timeout = DefaultTimeout
	}
	return o, nil
}

// Codes of Options.Warn.
const (
	WarnNotDurable  = "not_durable"       // a crash may lose acknowledged writes
	WarnReplication = "async_replication" // a failover may lose acknowledged writes
	WarnEviction    = "eviction"          // the server may evict tags when memory runs out
	WarnNoIdentity  = "no_identity"       // the account may not read what the checks need
)

// A Store is a store in Redis. Its methods are safe for concurrent use. It
// connects as needed, with at most ten connections a CPU (pool_size in the URL),
// and reconnects by itself. A write that may have reached the server is never
// sent again.
type Store struct {
	driver.Leases

	rdb  redis.UniversalClient // a *redis.Client or a *redis.ClusterClient
	own  bool                  // Close closes rdb
	opts Options
	keys keys
	id   string

	migrated string // what Open changed of what an older version left

	mu    sync.Mutex     // guards closing done, and calls.Add against calls.Wait
	done  chan struct{}  // closed by Close
	calls sync.WaitGroup // requests in flight, see request
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
// prefix, wait, and for Sentinels with their own accounts
// sentinel_username and sentinel_password; what else go-redis knows in URLs is
// passed to it.
//
// ErrStoreUnavailable, ErrStoreUnsafe (a replica), ErrStoreCorrupt, and *hapax.ValueError for a URL or option that
// cannot be used.
func Open(ctx context.Context, url string, opts Options) (*Store, error) {
	t, err := parseURL(url, opts)
	if err != nil {
		return nil, err
	}
	return open(ctx, t.connect(), true, t.opts)
}

// CheckURL returns what is wrong with a URL for Open, without connecting: ErrInvalidArgument.
func CheckURL(url string) error {
	_, err := parseURL(url, Options{})
	return err
}

// New makes a store of an existing client, a *redis.Client or a
// *redis.ClusterClient that does not read from replicas, as Open does. Close
// leaves the client open. Options.TLS is not used.
func New(ctx context.Context, client redis.UniversalClient, opts Options) (*Store, error) {
	opts, err := opts.withDefaults()
	if err != nil {
		return nil, err
	}
	switch c := client.(type) {
	case *redis.Client:
	case *redis.ClusterClient:
		if o := c.Options(); o.ReadOnly || o.RouteByLatency || o.RouteRandomly {
			return nil, &hapax.ValueError{Field: "client", Value: "(one that reads from replicas)", Allowed: "a client without ReadOnly, RouteByLatency and RouteRandomly", Err: hapax.ErrInvalidArgument}
		}
	default:
		return nil, &hapax.ValueError{Field: "client", Value: fmt.Sprintf("%T", client), Allowed: "*redis.Client or *redis.ClusterClient", Err: hapax.ErrInvalidArgument}
	}
	return open(ctx, client, false, opts)
}

func open(ctx context.Context, client redis.UniversalClient, own bool, opts Options) (*Store, error) {
	s := &Store{
		rdb: client, own: own, opts: opts, keys: keys(opts.Prefix), done: make(chan struct{}),
	}
	s.Leases = driver.LeasesIn(s)
	if _, err := request(ctx, s, "open", s.begin); err != nil {
		_ = s.Close() // the first error tells more
		return nil, err
	}
	return s, nil
}

// begin makes the store unless it exists, and looks at the servers that it is on.
func (s *Store) begin(ctx context.Context) (struct{}, error) {
	none := struct{}{}
	if err := s.inspect(ctx); err != nil {
		return none, err
	}
	if s.opts.Look {
		if err := s.wouldChange(ctx); err != nil {
			return none, err
		}
	}
	m, err := s.find(ctx)
	if err != nil {
		return none, err
	}
	s.id = m["id"]
	switch m["format"] {
	case format, formatSecond:
		return none, nil
	case formatFirst, formatMoving:
		return none, s.migrate(ctx)
	}
	return none, fmt.Errorf("%w: redis: the keys have format %.20q, and this version, hapax %s, knows formats %s and %s: use a newer version",
		hapax.ErrStoreCorrupt, m["format"], hapax.Version(), formatFirst, format)
}

// find returns the store's fields, and makes it where there is none.
func (s *Store) find(ctx context.Context) (map[string]string, error) {
	if s.opts.Existing != nil && s.opts.Existing() {
		m, err := s.rdb.HGetAll(ctx, s.keys.store()).Result()
		if err == nil && m["id"] == "" {
			err = &driver.WouldChangeError{What: driver.NewStore}
		}
		return m, err
	}
	r, err := s.evalWaiting(ctx, openScript, []string{s.keys.store()}, []any{rand.Text(), format}, s.opts.Wait)
	return r.fields(), err
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

// Ping implements driver.Store. It sends a write that changes nothing, which
// fails on a replica, on a full disk and on memory that has run out.
func (s *Store) Ping(ctx context.Context) error {
	_, err := request(ctx, s, "ping", func(ctx context.Context) (reply, error) {
		return s.eval(ctx, pingScript, []string{s.keys.store()})
	})
	return err
}

// StoreTime implements driver.Clock.
func (s *Store) StoreTime(ctx context.Context) (time.Time, error) {
	return request(ctx, s, "read the clock", func(ctx context.Context) (time.Time, error) {
		return s.rdb.Time(ctx).Result()
	})
}

// Close implements driver.Store. It breaks calls in flight off; they and later
// ones fail with ErrClosed.
func (s *Store) Close() error {
	s.mu.Lock()
	select {
	case <-s.done:
		s.mu.Unlock()
		return nil
	default:
		close(s.done)
		s.mu.Unlock()
	}
	var err error
	if s.own {
		err = s.rdb.Close()
	}
	s.calls.Wait()
	return err
}

func errClosed() error { return fmt.Errorf("%w: the Redis store", hapax.ErrClosed) }

// request runs f, which talks to the server, under a deadline, and translates
// its error. It returns when ctx ends although the client library sees only
// deadlines, not cancellations; f then ends by itself, at the latest when its
// time is over or the store is closed.
func request[T any](ctx context.Context, s *Store, doing string, f func(context.Context) (T, error)) (T, error) {
	var none T
	ctx, cancel := context.WithTimeout(ctx, s.opts.Timeout)
	defer cancel()
	if ctx.Err() != nil {
		return none, failed(ctx, doing, context.Cause(ctx))
	}
	type result struct {
		v   T
		err error
	}
	answer := make(chan result, 1)
	s.mu.Lock()
	select {
	case <-s.done:
		s.mu.Unlock()
		return none, errClosed()
	default:
	}
	s.calls.Go(func() {
		v, err := f(ctx)
		answer <- result{v, err}
	})
	s.mu.Unlock()
	var r result
	select {
	case r = <-answer:
	case <-ctx.Done():
		r.err = context.Cause(ctx)
	case <-s.done:
		return none, errClosed()
	}
	if r.err != nil {
		return none, failed(ctx, doing, r.err)
	}
	return r.v, nil
}

// keys makes the names of keys; it is their prefix.
type keys string

func (k keys) store() string          { return string(k) + "{hapax}:store" }
func (k keys) tags() string           { return string(k) + "{hapax}:tags" }
func (k keys) pending() string        { return string(k) + "{hapax}:pending" }
func (k keys) rows() string           { return string(k) + "{hapax}:rows" }
func (k keys) names() string          { return string(k) + "{hapax}:names" }
func (k keys) tag(name string) string { return string(k) + "tag:" + name }

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

// lost is the error for a tag that is known to have existed.
func lost(name string) error {
	return fmt.Errorf("%w: redis: tag %q exists by the index and its key is gone", hapax.ErrStoreRolledBack, name)
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
	case redis.HasErrorPrefix(err, "MISCONF"):
		hint = " (the server cannot write to its disk, and takes nothing until it can)"
	}
	ended := context.Cause(ctx)
	if at, ok := ctx.Deadline(); ok && ended == nil && !time.Now().Before(at) {
		ended = context.DeadlineExceeded // the connection has the same deadline, and may notice first
	}
	if ended != nil && !errors.Is(err, ended) {
		return fmt.Errorf("%w: redis: %s: %w%s (%w)", cause, doing, err, hint, ended)
	}
	return fmt.Errorf("%w: redis: %s: %w%s", cause, doing, err, hint)
}
