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
//   - A replica is refused with ErrStoreUnsafe, in the same atomic step.
//
// # Keys
//
// With the default prefix. All lie in one slot: a store is one shard of a Cluster. The values
// are JSON, so that redis-cli shows them, or text; integers are exact.
//
//	hapax:{hapax}:store     hash: id, format, rows
//	hapax:{hapax}:tag:NAME  {"kind":"segment","step":1000,…,"mark":4001}
//	hapax:{hapax}:tags      sorted set, all scores 0: the names of all tags, and the empty name
//	hapax:{hapax}:rows      hash: TABLE, a zero byte, NAME → a row's value
//	hapax:{hapax}:names     sorted set, all scores 0: the fields of rows
//
// A change is one script: if the store is the one that was opened and rows are, whole, what this handle
// knows, they are replaced; else it answers what they are. The value holds
// everything that a decision rests on, so that equal values mean equal states, whatever
// came between. A script is sent by its hash, whole only where the server does not know
// it. All are short; one that blocks the server nevertheless (BUSY) can be ended
// with SCRIPT KILL.
//
// # What is gone
//
// Redis may lose single keys, by eviction or by hand. A tag that is in the index and has no key is a lost line.
// An operator who has chosen a floor for it removes it from the index (ZREM) and creates it again;
// healing makes it anew. An index that lacks the empty name was lost itself.
//
// The store's field rows counts the rows; when the hash or the sorted set has
// another number of them, rows were lost. Nothing goes on then, nor without the index, until an operator
// has put them back or has set all of them right.
package redisstore

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
)

var (
	_ driver.Store = (*Store)(nil)
	_ driver.Clock = (*Store)(nil)
)

// Defaults of Options.
const (
	DefaultPrefix  = "hapax:"
	DefaultTimeout = 5 * time.Second
)

const (
	format         = 4           // of the keys
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

// limits are how much one step may change: as much as a node that stops hands back together.
var limits = driver.BaseOptions{MaxChanges: 500, MaxBytes: 256 << 10, ByValue: true}

// base gives a Store its methods without a field that outsiders see.
type base = driver.Base

// A Store is a store in Redis. Its methods are safe for concurrent use. It
// connects as needed, with at most ten connections a CPU (pool_size in the URL),
// and reconnects by itself. A write that may have reached the server is never
// sent again.
type Store struct {
	*base  // tags and rows
	mended *driver.Base
	space  *space
	own    bool // Close closes the client
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
	k := &space{calls: driver.Calls{Service: "redis", Timeout: opts.Timeout}, rdb: client, opts: opts}
	k.life, k.end = context.WithCancel(context.Background())
	s := &Store{base: driver.NewBase(&k.calls, view{k, ""}, limits), mended: driver.NewBase(&k.calls, view{k, mend}, limits), space: k, own: own}
	if _, err := asked(ctx, k, "open", k.begin); err != nil {
		_ = s.Close() // the first error tells more
		return nil, err
	}
	return s, nil
}

// begin makes the store unless it exists, and looks at the servers that it is on.
func (s *space) begin(ctx context.Context) (none struct{}, err error) {
	if err := s.inspect(ctx); err != nil {
		return none, err
	}
	id, closed, find := driver.NewStoreID(ctx), driver.NewClosed(ctx), openScript
	if s.opts.Look || s.opts.Existing != nil && s.opts.Existing() {
		id, find.writes = "", false
	}
	r, err := s.eval(ctx, find, nil, id, format, closed)
	if err != nil {
		return none, err
	}
	if s.id = r.text(1); s.id+r.text(2)+id == "" {
		return none, &driver.WouldChangeError{What: driver.NewStore}
	}
	if err := s.checkFormat(r.text(2)); err != nil {
		return none, err
	}
	if s.id == "" {
		return none, fmt.Errorf("%w: redis: key %q has no field id", hapax.ErrStoreCorrupt, s.key("store"))
	}
	return none, driver.CheckClosed(ctx, r.text(3))
}

// checkFormat refuses keys of another format than this version's.
func (s *space) checkFormat(found string) error {
	n, err := strconv.ParseInt(found, 10, 64)
	if err != nil || strconv.FormatInt(n, 10) != found {
		return fmt.Errorf("%w: redis: key %q, field format: %.40q is no number", hapax.ErrStoreCorrupt, s.key("store"), found)
	}
	if err := driver.CheckFormat(fmt.Sprintf("redis: key %q", s.key("store")), n, format); err != nil {
		return fmt.Errorf("%w (another database, or another prefix in the URL)", err)
	}
	return nil
}

// HealTag implements driver.Healing. A tag that was lost is made anew.
func (s *Store) HealTag(ctx context.Context, def hapax.Tag) (hapax.Tag, error) {
	return s.mended.HealTag(ctx, def)
}

// StoreID implements hapax.SegmentStore. It fails with ErrStoreReplaced once
// the server holds another store than the one that was opened.
func (s *Store) StoreID(ctx context.Context) (string, error) {
	_, err := asked(ctx, s.space, "read the store ID", func(ctx context.Context) ([]driver.Cell, error) { return s.space.get(ctx, "") })
	if err != nil {
		return "", err
	}
	return s.space.id, nil
}

// OpenToAll implements driver.Founded.
func (s *Store) OpenToAll(ctx context.Context) error {
	_, err := asked(ctx, s.space, "open to all", func(ctx context.Context) (reply, error) {
		return s.space.eval(ctx, openedScript, nil, s.space.id, format)
	})
	return err
}

// OpenedID implements driver.Opened.
func (s *Store) OpenedID() string { return s.space.id }

// Ping implements driver.Store. It sends a write that changes nothing, which
// fails on a replica, on a full disk and on memory that has run out.
func (s *Store) Ping(ctx context.Context) error {
	_, err := asked(ctx, s.space, "ping", func(ctx context.Context) (reply, error) {
		return s.space.eval(ctx, pingScript, nil, s.space.id, format)
	})
	return err
}

// StoreTime implements driver.Clock.
func (s *Store) StoreTime(ctx context.Context) (time.Time, error) {
	return asked(ctx, s.space, "read the clock", func(ctx context.Context) (time.Time, error) { return s.space.rdb.Time(ctx).Result() })
}

// Close implements driver.Store. It breaks calls in flight off; they and later
// ones fail with ErrClosed.
func (s *Store) Close() error {
	k := s.space
	if !k.calls.End() {
		return nil
	}
	k.mu.Lock()
	k.end()
	k.mu.Unlock()
	var err error
	// Before the wait: closing the client breaks off what is running.
	if s.own {
		err = k.rdb.Close()
	}
	k.running.Wait()
	return err
}

// asked is answered under the store's time-out.
func asked[T any](ctx context.Context, s *space, doing string, f func(context.Context) (T, error)) (T, error) {
	ctx, cancel, err := s.calls.Begin(ctx)
	if err != nil {
		var none T
		return none, err
	}
	defer cancel()
	return answered(ctx, s, doing, f)
}

// answered runs f, which talks to the server, and translates
// its error. It returns when ctx ends although the client library sees only
// deadlines, not cancellations; f then ends by itself, at the latest when its
// time is over or the store is closed.
func answered[T any](ctx context.Context, s *space, doing string, f func(context.Context) (T, error)) (T, error) {
	var none T
	if ctx.Err() != nil {
		return none, failed(ctx, doing, context.Cause(ctx))
	}
	type result struct {
		v   T
		err error
	}
	// Room for one, so that a call which nobody waits for any more can end.
	answer := make(chan result, 1)
	s.mu.Lock()
	if s.life.Err() != nil {
		s.mu.Unlock()
		return none, errClosed()
	}
	s.running.Go(func() {
		v, err := f(ctx)
		answer <- result{v, err}
	})
	s.mu.Unlock()
	var r result
	select {
	case r = <-answer:
	case <-ctx.Done():
		r.err = ctx.Err()
	case <-s.life.Done():
		return none, errClosed()
	}
	if r.err != nil {
		return none, failed(ctx, doing, r.err)
	}
	return r.v, nil
}

func errClosed() error { return fmt.Errorf("%w: the Redis store", hapax.ErrClosed) }

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
	err = fmt.Errorf("%w%s", err, hint)
	ended := ctx.Err()
	if at, ok := ctx.Deadline(); ok && ended == nil && !time.Now().Before(at) {
		ended = context.DeadlineExceeded // the connection has the same deadline, and may notice first
	}
	for _, ended := range []error{ended, context.Cause(ctx)} {
		if ended != nil && !errors.Is(err, ended) {
			err = fmt.Errorf("%w (%w)", err, ended)
		}
	}
	return fmt.Errorf("%w: redis: %s: %w", cause, doing, err)
}
