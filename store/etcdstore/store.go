// Package etcdstore keeps a store in etcd 3.4 or later.
//
// # Keys
//
// Every key begins with the URL's prefix, "hapax" unless another is given. The
// values are JSON, so that etcdctl shows them; integers are exact.
//
//	hapax/store                     {"id":"…","cluster":"…","format":3}
//	hapax/tags/<name>               {"kind":"segment","step":1000,…,"mark":4001}
//	hapax/rows/pools/<name>         {"layout":"…"}
//	hapax/rows/workers%2F<pool>/<19 digits> {"mark":…,"from":…,"token":3,…}
//
// In the name of a table, after rows/, "/" is written %2F and "%" is written %25.
//
// # Safety
//
// A change is one transaction: if the store's identity and the key's whole old
// value are still what this handle knows, put the new value; else return both.
// The value holds everything that a decision rests on, so that equal values mean
// equal states, whatever came between. In the steady state that is one round
// trip. After a lost race the transaction has brought the current
// value along, and the next attempt starts from it. Reads are linearizable. No
// etcd lease is used: safety rests on marks alone.
//
// etcd acknowledges a write once a quorum has it on disk. A member that runs
// with --unsafe-no-fsync gives that up, and cannot be told from outside.
//
// A handle refuses what is not the store that it opened: another store ID is
// ErrStoreReplaced. That the data has come to another cluster, or went back, as by a
// restored snapshot, is not judged here: guarded calls tell the cluster's ID and the
// leader's term (driver.Contact.Primary), and whoever beats (store/witness) finds out whether what
// was acknowledged to it is there. The cluster ID that is stored is that of the
// cluster that the store was made in, for people.
//
// # Operation
//
// Every change leaves an old revision behind. Run etcd with
// --auto-compaction-retention, or its database fills up.
package etcdstore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"

	"github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/store/internal/coord"
)

var (
	_ driver.Store = (*Store)(nil)
	_ driver.KV    = (*space)(nil)
)

// Options change how a store is used. The zero value is useful.
type Options struct {
	// Timeout bounds each call, also when its context allows more; default 5 s.
	Timeout time.Duration

	// Look has Open change nothing: where it would have to, it fails with a
	// *driver.WouldChangeError. Nothing may be written to the store then.
	Look bool

	// Existing, if set, is asked before a store would be made: where it returns true, New
	// makes none, and fails with a *driver.WouldChangeError. See witness.Witness.KnowsStore.
	Existing func() bool

	// Warn receives what an operator should know about the cluster's setup, with
	// a stable code: "few_members" (the cluster has fewer than three voting
	// members: a lost disk loses the store). It is called by Open only.
	Warn func(code, message string)
}

const (
	format = 3 // of the keys

	keepAlive        = 10 * time.Second // a silent connection is probed after this,
	keepAliveTimeout = 3 * time.Second  // and given up after this much more
	maxRequest       = 1 << 20          // bytes
	maxReply         = 16 << 20         // bytes
)

var urlForm = coord.Form{Scheme: "etcd", Port: "2379"}

// identity is the value of the key "store".
type identity struct {
	ID      string `json:"id"`      // the store ID
	Cluster string `json:"cluster"` // the cluster that the store was made in, in hex
	Format  int64  `json:"format"`
	Closed  string `json:"closed,omitempty"` // why nobody may use it yet: see driver.Founding
}

// base gives a Store its methods without a field that outsiders see.
type base = driver.Base

// A Store is a handle on a store in etcd. Its methods are safe for concurrent
// use. It connects again by itself.
type Store struct {
	*base  // tags and rows
	space  *space
	cancel context.CancelFunc // ends the client's background work; nil if the client is the caller's
}

// Open connects to the etcd cluster that the URL names and creates the store if
// there is none under the prefix:
//
//	etcd://[user:password@]host[:port][,host…][/prefix][?tls=true&ca=FILE&cert=FILE&key=FILE]
//
// The port defaults to 2379. User, password and prefix are percent-encoded.
// etcds:// and tls=true ask for TLS; ca names the file with the authorities to
// trust instead of the system's, cert and key the client's own certificate, all
// in PEM form. ErrInvalidArgument, ErrStoreUnavailable, ErrStoreCorrupt.
func Open(ctx context.Context, url string, opts Options) (*Store, error) {
	s, err := connect(ctx, url, opts)
	if err != nil {
		return nil, err
	}
	s.probe(ctx, opts.Warn)
	return s, nil
}

// CheckURL returns what is wrong with a URL for Open, without connecting: ErrInvalidArgument.
func CheckURL(url string) error {
	_, err := urlForm.Parse(url)
	return err
}

// New is Open with a client that the caller has made and closes after the store.
// The prefix begins every key; empty stands for "hapax".
func New(ctx context.Context, client *clientv3.Client, prefix string, opts Options) (*Store, error) {
	if prefix = strings.Trim(prefix, "/"); prefix == "" {
		prefix = coord.DefaultPrefix
	}
	s := newStore(prefix, client.Endpoints(), opts)
	s.space.client = client
	ctx, cancel, err := s.space.calls.Begin(ctx)
	if err != nil {
		return nil, err
	}
	defer cancel()
	if err := s.space.identify(ctx); err != nil {
		return nil, err
	}
	s.probe(ctx, opts.Warn)
	return s, nil
}

func newStore(prefix string, hosts []string, opts Options) *Store {
	k := &space{
		prefix: prefix + "/",
		look:   opts.Look, existing: opts.Existing,
		calls: driver.Calls{Service: "etcd at " + strings.Join(hosts, ","), Timeout: opts.Timeout},
	}
	return &Store{base: driver.NewBase(&k.calls, k, driver.BaseOptions{ByValue: true}), space: k}
}

// connect opens a handle, and creates the store if there is none.
func connect(ctx context.Context, url string, opts Options) (*Store, error) {
	u, err := urlForm.Parse(url)
	if err != nil {
		return nil, err
	}
	s := newStore(u.Prefix, u.Hosts, opts)
	k := s.space
	ctx, cancel, err := k.calls.Begin(ctx)
	if err != nil {
		return nil, err
	}
	defer cancel()

	// The client outlives ctx, but as it may log in at once ctx can end that.
	life, end := context.WithCancel(context.Background())
	s.cancel = end
	stop := context.AfterFunc(ctx, end)
	k.client, err = clientv3.New(clientv3.Config{
		Context:              life,
		Endpoints:            endpoints(u),
		Username:             u.User,
		Password:             u.Password,
		TLS:                  u.TLS,
		DialKeepAliveTime:    keepAlive,
		DialKeepAliveTimeout: keepAliveTimeout,
		MaxCallSendMsgSize:   maxRequest,
		MaxCallRecvMsgSize:   maxReply,
		Logger:               zap.NewNop(), // errors are returned
		DialOptions: []grpc.DialOption{grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second},
			MinConnectTimeout: 3 * time.Second,
		})},
	})
	// The call's context may end just then, and with it the client that was made.
	if !stop() && err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		s.Close()
		return nil, k.calls.Unavailable(ctx, err)
	}
	if err := k.identify(ctx); err != nil {
		s.Close()
		// The client keeps to itself why it has no connection.
		if ctx.Err() != nil {
			err = fmt.Errorf("%w: %w", err, driver.Unreached(u.Hosts, u.TLS))
		}
		return nil, err
	}
	return s, nil
}

// endpoints are the hosts with the scheme that turns TLS on or off.
func endpoints(u coord.URL) []string {
	scheme := "http://"
	if u.TLS != nil {
		scheme = "https://"
	}
	var all []string
	for _, host := range u.Hosts {
		all = append(all, scheme+host)
	}
	return all
}

// identify reads the store's identity, or creates it. Of several handles that do so
// at once, one creates it and the others find that one's.
func (s *space) identify(ctx context.Context) error {
	reply, err := s.client.Get(ctx, s.identityKey())
	if err != nil {
		return s.calls.Unavailable(ctx, err)
	}
	var value string
	switch {
	case len(reply.Kvs) > 0:
		value = string(reply.Kvs[0].Value)
	case s.look || s.existing != nil && s.existing():
		return &driver.WouldChangeError{What: driver.NewStore}
	default:
		value = string(driver.EncodeRow(identity{driver.NewStoreID(ctx), clusterName(reply.Header.ClusterId), format, driver.NewClosed(ctx)}))
		done, err := s.client.Txn(ctx).
			If(clientv3.Compare(clientv3.CreateRevision(s.identityKey()), "=", 0)).
			Then(clientv3.OpPut(s.identityKey(), value)).
			Else(clientv3.OpGet(s.identityKey())).Commit()
		if err != nil {
			return s.calls.Unavailable(ctx, err)
		}
		if !done.Succeeded {
			value = string(done.Responses[0].GetResponseRange().Kvs[0].Value)
		}
	}
	found, err := s.decodeIdentity(value)
	if err == nil {
		err = driver.CheckClosed(ctx, found.Closed)
	}
	if err != nil {
		return err
	}
	s.identity = value
	s.id = found.ID
	return nil
}

func (s *space) decodeIdentity(value string) (identity, error) {
	var found identity
	_, err := driver.DecodeIdentity(fmt.Sprintf("etcd key %q", s.identityKey()), s.identityKey(), []byte(value), format, &found)
	return found, err
}

// clusterName writes a cluster ID as etcdctl does.
func clusterName(id uint64) string { return fmt.Sprintf("%x", id) }

// probe warns of a setup that can lose the store. That the question is not
// answered, perhaps not even permitted, is no reason to warn.
func (s *Store) probe(ctx context.Context, warn func(code, message string)) {
	if warn == nil {
		return
	}
	ctx, cancel, err := s.space.calls.Begin(ctx)
	if err != nil {
		return
	}
	defer cancel()
	members, err := s.space.client.MemberList(ctx)
	if err != nil {
		return
	}
	voters := 0
	for _, m := range members.Members {
		if !m.IsLearner {
			voters++
		}
	}
	if voters < 3 {
		warn("few_members", fmt.Sprintf("the etcd cluster has %d voting members: with fewer than three, one lost disk loses the store or its quorum", voters))
	}
}

// StoreID implements driver.Store.
func (s *Store) StoreID(ctx context.Context) (string, error) {
	if err := s.Ping(ctx); err != nil {
		return "", err
	}
	return s.space.id, nil
}

// OpenToAll implements driver.Founded. Other handles that were opened before do not know the
// store any more.
func (s *Store) OpenToAll(ctx context.Context) error {
	ctx, cancel, err := s.space.calls.Begin(ctx)
	if err != nil {
		return err
	}
	defer cancel()
	return s.space.openToAll(ctx)
}

func (s *space) openToAll(ctx context.Context) error {
	found, err := s.decodeIdentity(s.identity)
	if err != nil || found.Closed == "" {
		return err
	}
	found.Closed = ""
	open := string(driver.EncodeRow(found))
	if _, err := s.commit(ctx, nil, []clientv3.Op{clientv3.OpPut(s.identityKey(), open)}, nil); err != nil {
		return err
	}
	s.identity = open
	return nil
}

// OpenedID implements driver.Opened.
func (s *Store) OpenedID() string { return s.space.id }

// Ping implements driver.Store. It asks a quorum for the store's identity.
func (s *Store) Ping(ctx context.Context) error {
	ctx, cancel, err := s.space.calls.Begin(ctx)
	if err != nil {
		return err
	}
	defer cancel()
	_, err = s.space.Get(ctx, driver.Current)
	return err
}

// Close implements driver.Store. Calls in flight fail, unless the client is the
// caller's.
func (s *Store) Close() error {
	if !s.space.calls.End() {
		return nil
	}
	if s.cancel == nil {
		return nil
	}
	s.cancel()
	if s.space.client == nil {
		return nil
	}
	if err := s.space.client.Close(); err != nil && !errors.Is(err, context.Canceled) {
		return fmt.Errorf("etcd: close: %w", err)
	}
	return nil
}
