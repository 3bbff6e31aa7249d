package etcdstore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/internal/coord"
)

// pageSize is how many rows one reply of a listing has. For each reply the server counts all
// rows that are left, so small ones cost more together.
const pageSize = 5000

// A space is the store's keys; it implements coord.Space.
type space struct {
	calls  coord.Calls
	client *clientv3.Client
	prefix string // begins every key; ends in a slash
	look   bool   // Options.Look

	existing func() bool // Options.Existing

	identity atomic.Pointer[string] // the value of the key "store", as found last
	id       string                 // the store ID in it
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

// same checks an answer that holds the key "store".
func (s *space) same(reply *pb.ResponseOp) error {
	switch raw := first(reply.GetResponseRange().Kvs); {
	case raw == nil:
		return fmt.Errorf("%w: etcd key %q, which names the store, is gone; it was %s", hapax.ErrStoreReplaced, s.identityKey(), s.id)
	case string(raw) != *s.identity.Load():
		if found, err := s.decodeIdentity(string(raw)); err == nil && found.ID == s.id {
			s.identity.Store(new(string(raw))) // it has another format now
			return fmt.Errorf("%w: etcd key %q was written anew; the next call knows it", hapax.ErrStoreUnavailable, s.identityKey())
		}
		return fmt.Errorf("%w: etcd key %q does not name store %s any more", hapax.ErrStoreReplaced, s.identityKey(), s.id)
	}
	return nil
}

// read does op, a get, in one transaction with a look at the store's identity.
func (s *space) read(ctx context.Context, op clientv3.Op) (*pb.RangeResponse, error) {
	reply, err := s.client.Txn(ctx).Then(clientv3.OpGet(s.identityKey()), op).Commit()
	if err != nil {
		return nil, s.calls.Unavailable(ctx, err)
	}
	if err := s.same(reply.Responses[0]); err != nil {
		return nil, err
	}
	return reply.Responses[1].GetResponseRange(), nil
}

// Read implements coord.Space.
func (s *space) Read(ctx context.Context, key coord.Key) (coord.Cell, error) {
	reply, err := s.read(ctx, clientv3.OpGet(s.path(key)))
	if err != nil {
		return coord.Cell{}, err
	}
	return coord.Cell{Raw: first(reply.Kvs), Known: true}, nil
}

// ReadEach implements coord.Space.
func (s *space) ReadEach(ctx context.Context, table string, names []string) ([][]byte, error) {
	ops := []clientv3.Op{clientv3.OpGet(s.identityKey())}
	for _, name := range names {
		ops = append(ops, clientv3.OpGet(s.dir(table)+name))
	}
	reply, err := s.client.Txn(ctx).Then(ops...).Commit()
	if err != nil {
		return nil, s.calls.Unavailable(ctx, err)
	}
	if err := s.same(reply.Responses[0]); err != nil {
		return nil, err
	}
	raws := make([][]byte, len(names))
	for i := range names {
		raws[i] = found(reply, i+1)
	}
	return raws, nil
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

// swap returns what a swap asks for and writes. It compares whole values, see the
// package comment.
func (s *space) swap(key coord.Key, old coord.Cell, next []byte) (unchanged clientv3.Cmp, write clientv3.Op) {
	path := s.path(key)
	unchanged = clientv3.Compare(clientv3.Value(path), "=", string(old.Raw))
	if old.Raw == nil {
		unchanged = clientv3.Compare(clientv3.CreateRevision(path), "=", 0)
	}
	if next == nil {
		return unchanged, clientv3.OpDelete(path)
	}
	return unchanged, clientv3.OpPut(path, string(next))
}

// Swap implements coord.Space.
func (s *space) Swap(ctx context.Context, key coord.Key, old coord.Cell, next []byte) (bool, coord.Cell, error) {
	unchanged, write := s.swap(key, old, next)
	reply, err := s.commit(ctx, []clientv3.Cmp{unchanged}, []clientv3.Op{write}, []clientv3.Op{clientv3.OpGet(s.path(key))})
	if err != nil {
		return false, coord.Cell{}, err
	}
	if reply.Succeeded {
		return true, coord.Cell{Raw: next, Known: true}, nil
	}
	return false, coord.Cell{Raw: found(reply, 1), Known: true}, nil
}

// Beat implements coord.Space. It is one transaction, in one round trip, and the
// member that answers has it from the cluster's majority.
func (s *space) Beat(ctx context.Context, m coord.Heartbeat, changes ...coord.Change) (coord.BeatAnswer, error) {
	own, fence, joins := s.path(m.Own), s.path(coord.FenceKey), clientv3.OpGet(s.path(coord.JoinsKey))
	conditions := []clientv3.Cmp{
		clientv3.Compare(clientv3.Value(own), ">", before(m.Was)),
		clientv3.Compare(clientv3.CreateRevision(fence), "=", 0),
	}
	further := clientv3.OpTxn([]clientv3.Cmp{clientv3.Compare(clientv3.Value(own), "<", string(m.Now))}, []clientv3.Op{clientv3.OpPut(own, string(m.Now))}, nil)
	then := []clientv3.Op{joins, further}
	orElse := []clientv3.Op{joins, clientv3.OpGet(own), clientv3.OpGet(fence)}
	for _, key := range beside(m, changes) {
		then, orElse = append(then, clientv3.OpGet(s.path(key))), append(orElse, clientv3.OpGet(s.path(key)))
	}
	for _, c := range changes {
		unchanged, write := s.swap(c.Key, c.Old, c.Next)
		conditions, then, orElse = append(conditions, unchanged), append(then, write), append(orElse, clientv3.OpGet(s.path(c.Key)))
	}
	reply, err := s.commit(ctx, conditions, then, orElse)
	if errors.Is(err, rpctypes.ErrTooManyOps) || errors.Is(err, rpctypes.ErrRequestTooLarge) {
		return coord.BeatAnswer{}, fmt.Errorf("%w: %w", coord.ErrTooMany, err)
	}
	if err != nil {
		return coord.BeatAnswer{}, err
	}
	met := coord.BeatAnswer{Done: reply.Succeeded, Primary: primaryOf(reply.Header), Cells: make([]coord.Cell, len(changes))}
	if met.Done {
		met.Joins = found(reply, 0)
	} else {
		met.Joins, met.Own, met.Fence = found(reply, 1), found(reply, 2), found(reply, 3)
	}
	at := 2 // of what a beat alone looks at besides
	if !met.Done {
		at = 4
	}
	for i, key := range beside(m, changes) {
		if key == coord.ChangesKey {
			met.Changes = found(reply, at+i)
		} else {
			met.Watches, met.Watched = true, found(reply, at+i)
		}
	}
	for i, c := range changes {
		met.Cells[i] = coord.Cell{Raw: c.Next, Known: true}
		if !met.Done {
			met.Cells[i].Raw = found(reply, 4+i)
		}
	}
	return met, nil
}

// primaryOf is the cluster and the term of its leader. Who starts a member anew that stands on a
// copy, alone or with a majority, makes for an election, and the term, which is durable before
// anybody leads in it, grows with each. The member that has answered is not part of it: any one
// answers for the majority, and the client asks them in turn. It takes the term from the last
// change that it has carried out, at the latest the first of the leader that has this one.
func primaryOf(h *pb.ResponseHeader) string {
	return fmt.Sprintf("cluster %s/term %d", clusterName(h.ClusterId), h.RaftTerm)
}

// beside returns the rows that a beat alone looks at besides its own, the fence and the joins.
func beside(m coord.Heartbeat, changes []coord.Change) []coord.Key {
	switch {
	case len(changes) > 0:
		return nil
	case m.Watch.Name == "":
		return []coord.Key{coord.ChangesKey}
	}
	return []coord.Key{coord.ChangesKey, m.Watch}
}

// before returns a text that lies below v and above every other one below v of the
// same length.
func before(v []byte) string {
	last := len(v) - 1
	return string(v[:last]) + string(v[last]-1) + "\xff"
}

// commit does one transaction on condition that the store is the one that was
// opened. Where a condition does not hold, the store's identity comes first in the
// reply.
func (s *space) commit(ctx context.Context, conditions []clientv3.Cmp, then, orElse []clientv3.Op) (*clientv3.TxnResponse, error) {
	reply, err := s.client.Txn(ctx).
		If(append(conditions, clientv3.Compare(clientv3.Value(s.identityKey()), "=", *s.identity.Load()))...).
		Then(then...).
		Else(append([]clientv3.Op{clientv3.OpGet(s.identityKey())}, orElse...)...).
		Commit()
	if err != nil {
		return nil, s.calls.Unavailable(ctx, err)
	}
	if !reply.Succeeded {
		if err := s.same(reply.Responses[0]); err != nil {
			return nil, err
		}
	}
	return reply, nil
}

// found returns the value that one get of a transaction has found.
func found(reply *clientv3.TxnResponse, i int) []byte {
	return first(reply.Responses[i].GetResponseRange().Kvs)
}

// first returns the only value in a reply: nil if there is none, and not nil if
// it is empty.
func first(kvs []*mvccpb.KeyValue) []byte {
	if len(kvs) == 0 {
		return nil
	}
	return append([]byte{}, kvs[0].Value...)
}
