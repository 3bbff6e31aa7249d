package etcdstore

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/hapax-id/hapax"
)

const (
	pageSize = 1000                  // keys in one reply of a listing
	maxPause = 50 * time.Millisecond // unit of the pause after lost races
)

// A slot is what a handle keeps about one key. Calls for the same key take
// turns, so that one handle never races against itself.
type slot struct {
	turn chan struct{} // has room for one: the call that put it there owns raw
	raw  []byte        // the value as last seen; nil: not known
}

// begin refuses a call that cannot be served and gives it a deadline.
func (s *Store) begin(ctx context.Context) (context.Context, context.CancelFunc, error) {
	if s.closed.Load() {
		return nil, nil, fmt.Errorf("%w: the etcd store", hapax.ErrClosed)
	}
	if ctx.Err() != nil {
		return nil, nil, s.unavailable(ctx, context.Cause(ctx))
	}
	if _, ok := ctx.Deadline(); ok {
		ctx, cancel := context.WithCancel(ctx)
		return ctx, cancel, nil
	}
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	return ctx, cancel, nil
}

// unavailable wraps what the client reports; a context that ended stays visible.
func (s *Store) unavailable(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil && !errors.Is(err, cause) {
		err = fmt.Errorf("%w: %w", cause, err)
	}
	return fmt.Errorf("%w: etcd at %s: %w", hapax.ErrStoreUnavailable, s.hosts, err)
}

// observe judges an answer to a request that was sent when before was the
// highest revision seen.
func (s *Store) observe(h *pb.ResponseHeader, before int64) error {
	if h.ClusterId != s.cluster {
		return fmt.Errorf("%w: the answer comes from etcd cluster %s, the store was opened in cluster %s",
			hapax.ErrStoreReplaced, clusterName(h.ClusterId), clusterName(s.cluster))
	}
	if h.Revision < before {
		return fmt.Errorf("%w: etcd is at revision %d and was at %d", hapax.ErrStoreRolledBack, h.Revision, before)
	}
	for {
		seen := s.revision.Load()
		if h.Revision <= seen || s.revision.CompareAndSwap(seen, h.Revision) {
			return nil
		}
	}
}

// same checks the value of the key "store".
func (s *Store) same(raw []byte) error {
	switch {
	case string(raw) == s.identity:
		return nil
	case raw == nil:
		return fmt.Errorf("%w: etcd key %q, which names the store, is gone; it was %s", hapax.ErrStoreReplaced, s.identityKey(), s.id)
	}
	return fmt.Errorf("%w: etcd key %q names another store than %s", hapax.ErrStoreReplaced, s.identityKey(), s.id)
}

// get returns a key's current value, nil if there is none.
func (s *Store) get(ctx context.Context, key string) ([]byte, error) {
	ctx, cancel, err := s.begin(ctx)
	if err != nil {
		return nil, err
	}
	defer cancel()
	before := s.revision.Load()
	reply, err := s.client.Get(ctx, key)
	if err != nil {
		return nil, s.unavailable(ctx, err)
	}
	return first(reply.Kvs), s.observe(reply.Header, before)
}

// list calls f for up to limit keys below dir that come after the key after, in
// byte order. The name is what follows dir.
func (s *Store) list(ctx context.Context, dir, after string, limit int, f func(name, key string, raw []byte) error) error {
	ctx, cancel, err := s.begin(ctx)
	if err != nil {
		return err
	}
	defer cancel()
	for more := true; more && limit > 0; {
		before := s.revision.Load()
		page := min(limit, pageSize)
		reply, err := s.client.Get(ctx, after+"\x00", clientv3.WithRange(clientv3.GetPrefixRangeEnd(dir)), clientv3.WithLimit(int64(page)))
		if err != nil {
			return s.unavailable(ctx, err)
		}
		if err := s.observe(reply.Header, before); err != nil {
			return err
		}
		for _, kv := range reply.Kvs {
			after = string(kv.Key)
			if err := f(after[len(dir):], after, kv.Value); err != nil {
				return err
			}
		}
		more = reply.More && len(reply.Kvs) > 0
		limit -= len(reply.Kvs)
	}
	return nil
}

// update replaces a key's value by what change makes of it; nil stands for a
// key that does not exist. An error of change ends it, unless the value was not
// the current one. change may be called several times; the last call counts.
func (s *Store) update(ctx context.Context, key string, change func(raw []byte) ([]byte, error)) error {
	ctx, cancel, err := s.begin(ctx)
	if err != nil {
		return err
	}
	defer cancel()
	slot := s.slot(key)
	select {
	case slot.turn <- struct{}{}:
		defer func() { <-slot.turn }()
	case <-ctx.Done():
		return s.unavailable(ctx, context.Cause(ctx))
	}

	cur := slot.raw
	slot.raw = nil // until the outcome is known
	fresh := false
	for lost := 0; ; lost++ {
		if cur == nil && !fresh {
			if cur, err = s.get(ctx, key); err != nil {
				return err
			}
			fresh = true
		}
		next, err := change(cur)
		if err != nil && !fresh { // perhaps only because it is old
			cur = nil
			continue
		}
		if err != nil {
			slot.raw = cur
			return err
		}
		sent := time.Now()
		ok, now, err := s.swap(ctx, key, cur, next)
		if err != nil {
			return err
		}
		if ok {
			slot.raw = next
			return nil
		}
		cur, fresh = now, true
		if err := pause(ctx, lost, time.Since(sent)); err != nil {
			return s.unavailable(ctx, err)
		}
	}
}

// pause spreads out those who race for one key. The value that came with a
// defeat is worth one attempt at once; after every second defeat in a row a
// random time of up to as many round trips as were lost makes room for others.
func pause(ctx context.Context, lost int, roundTrip time.Duration) error {
	if lost%2 == 0 {
		return nil
	}
	timer := time.NewTimer(rand.N(time.Duration(min(lost+1, 16)) * min(roundTrip, maxPause)))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// slot returns the key's slot. When there are too many, all are forgotten: that
// costs a read each, and calls that hold an old one race against new ones, which
// the transactions decide.
func (s *Store) slot(key string) *slot {
	s.mu.Lock()
	defer s.mu.Unlock()
	sl := s.slots[key]
	if sl == nil {
		if len(s.slots) >= maxSlots {
			clear(s.slots)
		}
		sl = &slot{turn: make(chan struct{}, 1)}
		s.slots[key] = sl
	}
	return sl
}

// swap puts next in place of old, nil if there was nothing, in one transaction.
// If the key has another value, that one is returned. An error leaves the
// outcome unknown.
func (s *Store) swap(ctx context.Context, key string, old, next []byte) (ok bool, now []byte, err error) {
	unchanged := clientv3.Compare(clientv3.Value(key), "=", string(old))
	if old == nil {
		unchanged = clientv3.Compare(clientv3.CreateRevision(key), "=", 0)
	}
	before := s.revision.Load()
	reply, err := s.client.Txn(ctx).
		If(clientv3.Compare(clientv3.Value(s.identityKey()), "=", s.identity), unchanged).
		Then(clientv3.OpPut(key, string(next))).
		Else(clientv3.OpGet(s.identityKey()), clientv3.OpGet(key)).
		Commit()
	if err != nil {
		return false, nil, s.unavailable(ctx, err)
	}
	if err := s.observe(reply.Header, before); err != nil {
		return false, nil, err
	}
	if reply.Succeeded {
		return true, nil, nil
	}
	if err := s.same(first(reply.Responses[0].GetResponseRange().Kvs)); err != nil {
		return false, nil, err
	}
	return false, first(reply.Responses[1].GetResponseRange().Kvs), nil
}

// first returns the only value in a reply: nil if there is none, and not nil if
// it is empty.
func first(kvs []*mvccpb.KeyValue) []byte {
	if len(kvs) == 0 {
		return nil
	}
	return append([]byte{}, kvs[0].Value...)
}
