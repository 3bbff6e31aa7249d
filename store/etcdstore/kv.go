package etcdstore

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/internal/coord"
)

const pageSize = 1000 // rows in one reply of a listing

// A space is the store's keys; it implements coord.Space.
type space struct {
	calls  coord.Calls
	client *clientv3.Client
	prefix string // begins every key; ends in a slash

	identity string // the value of the key "store", as found by Open
	id       string // the store ID in it
	cluster  uint64 // the cluster that Open spoke to

	revision atomic.Int64 // the highest revision seen in an answer
}

// dir returns what the keys of a table's rows begin with; the names follow as
// they are, since keys are bytes to etcd and nothing follows them.
func (s *space) dir(table string) string {
	if table == "" {
		return s.prefix + "tags/"
	}
	return s.prefix + "rows/" + slashes.Replace(table) + "/"
}

// path returns a row's key.
func (s *space) path(key coord.Key) string { return s.dir(key.Table) + key.Name }

// slashes makes a table's name one part of a path, so that no table's rows lie
// among another's.
var slashes = strings.NewReplacer("/", "%2F", "%", "%25")

func (s *space) identityKey() string { return s.prefix + "store" }

// observe judges an answer to a request that was sent when before was the
// highest revision seen.
func (s *space) observe(h *pb.ResponseHeader, before int64) error {
	if h.ClusterId != s.cluster {
		return fmt.Errorf("%w: the answer comes from etcd cluster %s, the store was opened in cluster %s",
			hapax.ErrStoreReplaced, clusterName(h.ClusterId), clusterName(s.cluster))
	}
	if h.Revision < before {
		return s.calls.RolledBack("revision", h.Revision, before)
	}
	for {
		seen := s.revision.Load()
		if h.Revision <= seen || s.revision.CompareAndSwap(seen, h.Revision) {
			return nil
		}
	}
}

// same checks an answer that holds the key "store".
func (s *space) same(reply *pb.ResponseOp) error {
	switch raw := first(reply.GetResponseRange().Kvs); {
	case raw == nil:
		return fmt.Errorf("%w: etcd key %q, which names the store, is gone; it was %s", hapax.ErrStoreReplaced, s.identityKey(), s.id)
	case string(raw) != s.identity:
		return fmt.Errorf("%w: etcd key %q does not name store %s in cluster %s any more", hapax.ErrStoreReplaced, s.identityKey(), s.id, clusterName(s.cluster))
	}
	return nil
}

// read does op, a get, in one transaction with a look at the store's identity.
func (s *space) read(ctx context.Context, op clientv3.Op) (*pb.RangeResponse, error) {
	before := s.revision.Load()
	reply, err := s.client.Txn(ctx).Then(clientv3.OpGet(s.identityKey()), op).Commit()
	if err != nil {
		return nil, s.calls.Unavailable(ctx, err)
	}
	if err := s.same(reply.Responses[0]); err != nil {
		return nil, err
	}
	return reply.Responses[1].GetResponseRange(), s.observe(reply.Header, before)
}

// Read implements coord.Space.
func (s *space) Read(ctx context.Context, key coord.Key) (coord.Cell, error) {
	reply, err := s.read(ctx, clientv3.OpGet(s.path(key)))
	if err != nil {
		return coord.Cell{}, err
	}
	return coord.Cell{Raw: first(reply.Kvs), Known: true}, nil
}

// List implements coord.Space.
func (s *space) List(ctx context.Context, table, after string, limit int, f func(name string, raw []byte) error) error {
	base := s.dir(table)
	from, end := base+after+"\x00", clientv3.GetPrefixRangeEnd(base)
	for more := true; more && limit > 0; {
		reply, err := s.read(ctx, clientv3.OpGet(from, clientv3.WithRange(end), clientv3.WithLimit(int64(min(limit, pageSize)))))
		if err != nil {
			return err
		}
		for _, kv := range reply.Kvs {
			from = string(kv.Key) + "\x00"
			if err := f(string(kv.Key[len(base):]), kv.Value); err != nil {
				return err
			}
		}
		more = reply.More && len(reply.Kvs) > 0
		limit -= len(reply.Kvs)
	}
	return nil
}

// Swap implements coord.Space. It compares whole values, see the package
// comment.
func (s *space) Swap(ctx context.Context, key coord.Key, old coord.Cell, next []byte) (bool, coord.Cell, error) {
	path := s.path(key)
	unchanged := clientv3.Compare(clientv3.Value(path), "=", string(old.Raw))
	if old.Raw == nil {
		unchanged = clientv3.Compare(clientv3.CreateRevision(path), "=", 0)
	}
	write := clientv3.OpPut(path, string(next))
	if next == nil {
		write = clientv3.OpDelete(path)
	}
	before := s.revision.Load()
	reply, err := s.client.Txn(ctx).
		If(clientv3.Compare(clientv3.Value(s.identityKey()), "=", s.identity), unchanged).
		Then(write).
		Else(clientv3.OpGet(s.identityKey()), clientv3.OpGet(path)).
		Commit()
	if err != nil {
		return false, coord.Cell{}, s.calls.Unavailable(ctx, err)
	}
	if !reply.Succeeded {
		if err := s.same(reply.Responses[0]); err != nil {
			return false, coord.Cell{}, err
		}
	}
	if err := s.observe(reply.Header, before); err != nil {
		return false, coord.Cell{}, err
	}
	if reply.Succeeded {
		return true, coord.Cell{Raw: next, Known: true}, nil
	}
	return false, coord.Cell{Raw: first(reply.Responses[1].GetResponseRange().Kvs), Known: true}, nil
}

// first returns the only value in a reply: nil if there is none, and not nil if
// it is empty.
func first(kvs []*mvccpb.KeyValue) []byte {
	if len(kvs) == 0 {
		return nil
	}
	return append([]byte{}, kvs[0].Value...)
}
