// Package etcdstore keeps tags and workers in etcd 3.4 or later.
//
// # Keys
//
// Every key begins with the URL's prefix, "hapax" unless another is given. The
// values are JSON, so that etcdctl shows them; integers are exact.
//
//	hapax/store                     {"id":"…","cluster":"…"}
//	hapax/tags/<name>               {"kind":"segment","step":1000,…,"mark":4001}
//	hapax/pools/<name>              {"layout":"…"}
//	hapax/workers/<pool>/<19 digits> {"mark":…,"epoch":3,"holder":"…","expires_ms":…}
//
// In the part <pool>, "/" is written %2F and "%" is written %25.
//
// # Safety
//
// A change is one transaction: if the store's identity and the key's whole old
// value are still what this handle knows, put the new value; else return both.
// The value holds everything that a decision rests on, and its mark or epoch
// only grows, so that equal values mean equal states. In the steady state that
// is one round trip. After a lost race the transaction has brought the current
// value along, and the next attempt starts from it. Reads are linearizable. No
// etcd lease is used: safety rests on marks alone.
//
// etcd acknowledges a write once a quorum has it on disk. A member that runs
// with --unsafe-no-fsync gives that up, and cannot be told from outside.
//
// A handle refuses what is not the store that it opened: another store ID or
// cluster ID is ErrStoreReplaced, a revision that went back ErrStoreRolledBack.
// As the cluster ID is stored too, Open notices that the data has come to
// another cluster, as it does when a snapshot is restored, and refuses until
// Adopt. A snapshot restored under the same cluster token and peer URLs while no
// handle is open cannot be noticed here; that is what a witness is for.
//
// # Operation
//
// Every change leaves an old revision behind. Run etcd with
// --auto-compaction-retention, or its database fills up.
package etcdstore

import (
	"context"
	"crypto/rand"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"

	"github.com/hapax-id/hapax"
)

var (
	_ hapax.Store       = (*Store)(nil)
	_ hapax.WorkerTable = (*Store)(nil)
)

// Options change how a store is used. The zero value is useful.
type Options struct {
	// Timeout bounds a call whose context has no deadline; default 5 s.
	Timeout time.Duration

	// Warn receives what an operator should know about the cluster's setup, with
	// a stable code: "single_member" (the cluster has fewer than three voting
	// members: a lost disk loses the store). It is called by Open only.
	Warn func(code, message string)
}

const (
	defaultTimeout   = 5 * time.Second
	keepAlive        = 10 * time.Second // a silent connection is probed after this,
	keepAliveTimeout = 3 * time.Second  // and given up after this much more
	maxReply         = 16 << 20         // bytes
	maxSlots         = 1 << 16
)

// A Store is a handle on a store in etcd. Its methods are safe for concurrent
// use. It connects again by itself.
type Store struct {
	client  *clientv3.Client
	cancel  context.CancelFunc // ends the client's background work
	prefix  string             // begins every key; ends in a slash
	hosts   string             // for messages
	timeout time.Duration

	identity string // the value of the key "store", as found by Open
	id       string // the store ID in it
	cluster  uint64 // the cluster that Open spoke to

	revision atomic.Int64 // the highest revision seen in an answer
	closed   atomic.Bool

	mu    sync.Mutex // guards slots
	slots map[string]*slot
}

// Open connects to the etcd cluster that the URL names and creates the store if
// there is none under the prefix:
//
//	etcd://[user:password@]host[:port][,host…][/prefix][?tls=true&ca=FILE&cert=FILE&key=FILE]
//
// The port defaults to 2379. User, password and prefix are percent-encoded.
// etcds:// and tls=true ask for TLS; ca names the file with the authorities to
// trust instead of the system's, cert and key the client's own certificate, all
// in PEM form. ErrInvalidArgument, ErrStoreUnavailable, ErrStoreReplaced,
// ErrStoreCorrupt.
func Open(ctx context.Context, url string, opts Options) (*Store, error) {
	s, found, err := connect(ctx, url, opts)
	if err != nil {
		return nil, err
	}
	if found.Cluster != clusterName(s.cluster) {
		s.Close()
		return nil, fmt.Errorf("%w: store %s was made in etcd cluster %s and is now in cluster %s, as after a restored snapshot; "+
			"see that no node runs on the old cluster, adopt the store and raise its tags' floors",
			hapax.ErrStoreReplaced, found.ID, found.Cluster, clusterName(s.cluster))
	}
	if opts.Warn != nil {
		s.probe(ctx, opts.Warn)
	}
	return s, nil
}

// Adopt accepts that the store's data has come to another cluster, so that Open
// does too, and returns the store ID. Whatever the old cluster acknowledged
// after the data was copied is missing: before nodes use the store again, the
// old cluster must be dead, and every tag's floor raised above all that was
// issued (TagUpdate.Floor). Workers need no more than that the time granted
// from the old cluster, minutes at most, has passed.
func Adopt(ctx context.Context, url string, opts Options) (string, error) {
	s, found, err := connect(ctx, url, opts)
	if err != nil {
		return "", err
	}
	defer s.Close()
	ctx, cancel, err := s.begin(ctx)
	if err != nil {
		return "", err
	}
	defer cancel()
	next := string(encode(identity{found.ID, clusterName(s.cluster)}))
	reply, err := s.client.Txn(ctx).
		If(clientv3.Compare(clientv3.Value(s.identityKey()), "=", s.identity)).
		Then(clientv3.OpPut(s.identityKey(), next)).Commit()
	if err != nil {
		return "", s.unavailable(ctx, err)
	}
	if !reply.Succeeded {
		return "", fmt.Errorf("%w: the identity changed meanwhile", hapax.ErrStoreReplaced)
	}
	return found.ID, nil
}

// connect opens a handle whose cluster is not judged yet.
func connect(ctx context.Context, url string, opts Options) (*Store, identity, error) {
	t, err := parseURL(url)
	if err != nil {
		return nil, identity{}, err
	}
	s := &Store{
		prefix: t.prefix, hosts: strings.Join(t.endpoints, ","), slots: map[string]*slot{},
		timeout: opts.Timeout,
	}
	if s.timeout <= 0 {
		s.timeout = defaultTimeout
	}
	ctx, cancel, err := s.begin(ctx)
	if err != nil {
		return nil, identity{}, err
	}
	defer cancel()

	// The client outlives ctx, but as it may log in at once ctx can end that.
	life, end := context.WithCancel(context.Background())
	s.cancel = end
	stop := context.AfterFunc(ctx, end)
	s.client, err = clientv3.New(clientv3.Config{
		Context:              life,
		Endpoints:            t.endpoints,
		Username:             t.user,
		Password:             t.password,
		TLS:                  t.tls,
		DialTimeout:          s.timeout,
		DialKeepAliveTime:    keepAlive,
		DialKeepAliveTimeout: keepAliveTimeout,
		MaxCallSendMsgSize:   1 << 20,
		MaxCallRecvMsgSize:   maxReply,
		Logger:               zap.NewNop(), // errors are returned
		DialOptions: []grpc.DialOption{grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second},
			MinConnectTimeout: 3 * time.Second,
		})},
	})
	if !stop() && err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		s.Close()
		return nil, identity{}, s.unavailable(ctx, err)
	}
	found, err := s.identify(ctx)
	if err != nil {
		s.Close()
		return nil, identity{}, err
	}
	return s, found, nil
}

// identify reads the store's identity, or creates it. Of several handles that
// do so at once, one creates it and the others find that one's.
func (s *Store) identify(ctx context.Context) (identity, error) {
	reply, err := s.client.Get(ctx, s.identityKey())
	if err != nil {
		return identity{}, s.unavailable(ctx, err)
	}
	s.cluster = reply.Header.ClusterId
	s.revision.Store(reply.Header.Revision)
	if len(reply.Kvs) > 0 {
		s.identity = string(reply.Kvs[0].Value)
	} else {
		fresh := string(encode(identity{rand.Text(), clusterName(s.cluster)}))
		done, err := s.client.Txn(ctx).
			If(clientv3.Compare(clientv3.CreateRevision(s.identityKey()), "=", 0)).
			Then(clientv3.OpPut(s.identityKey(), fresh)).
			Else(clientv3.OpGet(s.identityKey())).Commit()
		if err != nil {
			return identity{}, s.unavailable(ctx, err)
		}
		if err := s.observe(done.Header, reply.Header.Revision); err != nil {
			return identity{}, err
		}
		if s.identity = fresh; !done.Succeeded {
			s.identity = string(done.Responses[0].GetResponseRange().Kvs[0].Value)
		}
	}
	found, err := decode[identity](s.identityKey(), []byte(s.identity))
	if err == nil && (found.ID == "" || found.Cluster == "") {
		err = fmt.Errorf("%w: etcd key %q: id or cluster is missing", hapax.ErrStoreCorrupt, s.identityKey())
	}
	s.id = found.ID
	return found, err
}

func (s *Store) identityKey() string { return s.prefix + "store" }

// clusterName writes a cluster ID as etcdctl does.
func clusterName(id uint64) string { return fmt.Sprintf("%x", id) }

// probe warns of a setup that can lose the store. That the question is not
// answered, perhaps not even permitted, is no reason to warn.
func (s *Store) probe(ctx context.Context, warn func(code, message string)) {
	ctx, cancel, err := s.begin(ctx)
	if err != nil {
		return
	}
	defer cancel()
	members, err := s.client.MemberList(ctx)
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
		warn("single_member", fmt.Sprintf("the etcd cluster has %d voting members: with fewer than three, one lost disk loses the store or its quorum", voters))
	}
}

// StoreID implements hapax.SegmentStore.
func (s *Store) StoreID(ctx context.Context) (string, error) {
	if err := s.Ping(ctx); err != nil {
		return "", err
	}
	return s.id, nil
}

// Ping implements hapax.Store. It asks a quorum for the store's identity.
func (s *Store) Ping(ctx context.Context) error {
	raw, err := s.get(ctx, s.identityKey())
	if err != nil {
		return err
	}
	return s.same(raw)
}

// Close implements hapax.Store. Calls in flight fail.
func (s *Store) Close() error {
	if s.closed.Swap(true) {
		return nil
	}
	defer s.cancel()
	if s.client == nil {
		return nil
	}
	if err := s.client.Close(); err != nil {
		return fmt.Errorf("etcd: close: %w", err)
	}
	return nil
}
