package etcdstore

import (
	"context"
	"errors"
	"fmt"
	"strings"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
)

// pageSize is how many rows one reply of a listing has. For each reply the server counts all
// rows that are left, so small ones cost more together.
const pageSize = 5000

// A space is the store's keys; it implements driver.KV.
type space struct {
	calls  driver.Calls
	client *clientv3.Client
	prefix string // begins every key; ends in a slash
	look   bool   // Options.Look

	existing func() bool // Options.Existing

	identity string // the value of the key "store"
	id       string // the store ID in it
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
func (s *space) path(key driver.Key) string { return s.dir(key.Table) + key.Name }

// slashes makes a table's name one part of a path, so that no table's rows lie
// among another's.
var slashes = strings.NewReplacer("/", "%2F", "%", "%25")

func (s *space) identityKey() string { return s.prefix + "store" }

// same checks an answer that holds the key "store".
func (s *space) same(reply *pb.ResponseOp) error {
	switch raw := first(reply.GetResponseRange().Kvs); {
	case raw == nil:
		return fmt.Errorf("%w: etcd key %q, which names the store, is gone; it was %s", hapax.ErrStoreReplaced, s.identityKey(), s.id)
	case string(raw) != s.identity:
		return fmt.Errorf("%w: etcd key %q does not name store %s any more", hapax.ErrStoreReplaced, s.identityKey(), s.id)
	}
	return nil
}

// Get implements driver.KV. It is one transaction with a look at the store's identity.
func (s *space) Get(ctx context.Context, _ driver.Freshness, keys ...driver.Key) ([]driver.Cell, error) {
	ops := make([]clientv3.Op, 1, len(keys)+1)
	ops[0] = clientv3.OpGet(s.identityKey())
	for _, key := range keys {
		ops = append(ops, clientv3.OpGet(s.path(key)))
	}
	reply, err := s.client.Txn(ctx).Then(ops...).Commit()
	if err != nil {
		return nil, s.calls.Unavailable(ctx, err)
	}
	if err := s.same(reply.Responses[0]); err != nil {
		return nil, err
	}
	cells := make([]driver.Cell, len(keys))
	for i := range keys {
		cells[i] = cell(reply.Responses[i+1])
	}
	return cells, nil
}

// Scan implements driver.KV.
func (s *space) Scan(ctx context.Context, table, after string, limit int) (rows []driver.Row, err error) {
	base := s.dir(table)
	// The next possible key, since a range includes its beginning.
	from, end := base+after+"\x00", clientv3.GetPrefixRangeEnd(base)
	for more := true; more && len(rows) < limit; {
		page := clientv3.OpGet(from, clientv3.WithRange(end), clientv3.WithLimit(int64(min(limit-len(rows), pageSize))))
		reply, err := s.client.Txn(ctx).Then(clientv3.OpGet(s.identityKey()), page).Commit()
		if err != nil {
			return nil, s.calls.Unavailable(ctx, err)
		}
		if err := s.same(reply.Responses[0]); err != nil {
			return nil, err
		}
		found := reply.Responses[1].GetResponseRange()
		for _, kv := range found.Kvs {
			from = string(kv.Key) + "\x00"
			rows = append(rows, driver.Row{Name: string(kv.Key[len(base):]), Value: kv.Value})
		}
		// Without rows there is no key to go on from.
		more = found.More && len(found.Kvs) > 0
	}
	return rows, nil
}

// cell is the row that one get of a transaction has found.
func cell(reply *pb.ResponseOp) driver.Cell {
	return driver.Cell{Value: first(reply.GetResponseRange().Kvs), Known: true}
}

// still is the condition that a row is as it was. It compares the whole value, see the package
// comment.
func (s *space) still(key driver.Key, value []byte) clientv3.Cmp {
	if value == nil {
		return clientv3.Compare(clientv3.CreateRevision(s.path(key)), "=", 0)
	}
	return clientv3.Compare(clientv3.Value(s.path(key)), "=", string(value))
}

// write is a change without its condition.
func (s *space) write(c driver.Change) clientv3.Op {
	if c.Next == nil {
		return clientv3.OpDelete(s.path(c.Key))
	}
	return clientv3.OpPut(s.path(c.Key), string(c.Next))
}

// raise writes a row where it is lower, and where it is missing. No value is compared with that
// of a key that is not there.
func (s *space) raise(p driver.Put) clientv3.Op {
	put := []clientv3.Op{clientv3.OpPut(s.path(p.Key), string(p.Value))}
	missing := clientv3.OpTxn([]clientv3.Cmp{s.still(p.Key, nil)}, put, nil)
	return clientv3.OpTxn([]clientv3.Cmp{clientv3.Compare(clientv3.Value(s.path(p.Key)), "<", string(p.Value))}, put, []clientv3.Op{missing})
}

// Step implements driver.KV. It is one transaction, in one round trip, and the
// member that answers has it from the cluster's majority.
func (s *space) Step(ctx context.Context, step driver.Step) (driver.Result, error) {
	var conditions []clientv3.Cmp
	var then, orElse []clientv3.Op
	for _, key := range step.Look {
		get := clientv3.OpGet(s.path(key))
		then, orElse = append(then, get), append(orElse, get)
	}
	for _, c := range step.Each {
		get := []clientv3.Op{clientv3.OpGet(s.path(c.Key))}
		then = append(then, clientv3.OpTxn([]clientv3.Cmp{s.still(c.Key, c.Old.Value)}, []clientv3.Op{s.write(c)}, get))
		orElse = append(orElse, get...)
	}
	for _, c := range step.If {
		orElse = append(orElse, clientv3.OpGet(s.path(c.Key)))
		// etcd has no comparison for at or above: above the text just below is the same.
		if c.Least != nil {
			conditions = append(conditions, clientv3.Compare(clientv3.Value(s.path(c.Key)), ">", before(c.Least)))
		} else {
			conditions = append(conditions, s.still(c.Key, c.Same.Value))
		}
	}
	for _, p := range step.Raise {
		then = append(then, s.raise(p))
	}
	for _, c := range step.Then {
		conditions, then = append(conditions, s.still(c.Key, c.Old.Value)), append(then, s.write(c))
		orElse = append(orElse, clientv3.OpGet(s.path(c.Key)))
	}
	reply, err := s.commit(ctx, conditions, then, orElse)
	if errors.Is(err, rpctypes.ErrTooManyOps) || errors.Is(err, rpctypes.ErrRequestTooLarge) {
		return driver.Result{}, fmt.Errorf("%w: %w", driver.ErrTooMany, err)
	}
	if err != nil {
		return driver.Result{}, err
	}
	return resultOf(step, reply), nil
}

// resultOf takes the answer to a step apart.
func resultOf(step driver.Step, reply *clientv3.TxnResponse) driver.Result {
	r := driver.Result{Met: reply.Succeeded, Primary: primaryOf(reply.Header)}
	answers := reply.Responses
	if !r.Met {
		answers = answers[1:] // the store's identity
	}
	next := func() (answer *pb.ResponseOp) {
		answer, answers = answers[0], answers[1:]
		return answer
	}
	for range step.Look {
		r.Look = append(r.Look, cell(next()))
	}
	for _, c := range step.Each {
		answer := next()
		switch own := answer.GetResponseTxn(); {
		case !r.Met:
			r.Each = append(r.Each, driver.Outcome{Now: cell(answer)})
		case own.Succeeded:
			r.Each = append(r.Each, driver.Outcome{Done: true, Now: driver.Cell{Value: c.Next, Known: true}})
		default:
			r.Each = append(r.Each, driver.Outcome{Now: cell(own.Responses[0])})
		}
	}
	for range step.If {
		if r.Met {
			break
		}
		r.If = append(r.If, cell(next()))
	}
	for _, c := range step.Then {
		if r.Met {
			r.Then = append(r.Then, driver.Outcome{Done: true, Now: driver.Cell{Value: c.Next, Known: true}})
		} else {
			r.Then = append(r.Then, driver.Outcome{Now: cell(next())})
		}
	}
	return r
}

// primaryOf returns the cluster and the term of its leader. A member that is started anew on a
// copy, alone or with a majority, causes an election, and the term, which is durable before a
// member leads in it, grows with each. The member that has answered is not part of it: any one
// answers for the majority, and the client asks them in turn. It takes the term from the last
// change that it has carried out, at the latest the first of the leader that has this one.
func primaryOf(h *pb.ResponseHeader) string {
	return fmt.Sprintf("cluster %s/term %d", clusterName(h.ClusterId), h.RaftTerm)
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
		If(append(conditions, clientv3.Compare(clientv3.Value(s.identityKey()), "=", s.identity))...).
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

// first returns the only value in a reply: nil if there is none, and not nil if
// it is empty.
func first(kvs []*mvccpb.KeyValue) []byte {
	if len(kvs) == 0 {
		return nil
	}
	return append([]byte{}, kvs[0].Value...)
}
