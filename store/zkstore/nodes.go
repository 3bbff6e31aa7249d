package zkstore

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"path"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/go-zookeeper/zk"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/internal/coord"
)

const (
	maxCalls   = 128 // requests under way on one handle
	listBranch = 16  // requests under way for one listing
)

// renewVersion is the version at which a node is made anew, with version zero:
// versions have 32 bits, and -1 would stand for any version.
const renewVersion = 1 << 30

// A space is the store's nodes; it implements coord.Space.
type space struct {
	calls   coord.Calls
	hosts   []string
	tls     *tls.Config
	auth    string // user:password of the digest scheme; empty: none
	acl     []zk.ACL
	base    string // the node above all others
	renewAt int32

	slots chan struct{}      // one token for each request under way
	life  context.Context    // ends with the handle
	end   context.CancelFunc // ends life
	zxid  atomic.Int64       // of the latest change that this handle made

	running sync.WaitGroup // every goroutine of the handle; started under mu

	mu       sync.Mutex // guards everything below
	closed   bool
	link     *link    // the latest one
	attempt  *attempt // to replace it; nil: none
	failures int      // attempts that failed in a row
	id       string   // the store ID; empty until it was read once
}

// A version recognises a node's content. It counts only on the link that it was
// seen on.
type version struct {
	link *link
	of   int32
}

// node returns the path of a row's node.
func (s *space) node(key coord.Key) string {
	dir := s.base + "/" + key.Table
	if key.Pool != "" {
		dir += "/" + escape(key.Pool)
	}
	if key.Name == "" {
		return dir
	}
	return dir + "/" + escape(key.Name)
}

// unavailable wraps what the library reports, unless it has a cause already.
func (s *space) unavailable(ctx context.Context, err error) error {
	if _, ok := errors.AsType[*hapax.Error](err); ok {
		return err
	}
	return s.calls.Unavailable(ctx, err)
}

// get returns a node's content and version, nil if there is no node. The sync
// before makes the server, which may lag behind its leader, catch up.
func (s *space) get(ctx context.Context, l *link, node string) ([]byte, int32, error) {
	type content struct {
		raw     []byte
		version int32
	}
	c, err := call(ctx, s, l, func(conn *zk.Conn) (content, error) {
		if _, err := conn.Sync(node); err != nil {
			return content{}, err
		}
		raw, stat, err := conn.Get(node)
		if err != nil {
			return content{}, err
		}
		return content{append([]byte{}, raw...), stat.Version}, nil
	})
	if errors.Is(err, zk.ErrNoNode) {
		return nil, 0, nil
	}
	if err != nil {
		return nil, 0, s.unavailable(ctx, err)
	}
	return c.raw, c.version, nil
}

// Read implements coord.Space.
func (s *space) Read(ctx context.Context, key coord.Key) (coord.Cell, error) {
	l, err := s.current(ctx)
	if err != nil {
		return coord.Cell{}, err
	}
	raw, v, err := s.get(ctx, l, s.node(key))
	return coord.Cell{Raw: raw, Known: err == nil, Token: version{l, v}}, err
}

// Swap implements coord.Space.
func (s *space) Swap(ctx context.Context, key coord.Key, old coord.Cell, next []byte) (bool, coord.Cell, error) {
	l, err := s.current(ctx)
	if err != nil {
		return false, coord.Cell{}, err
	}
	seen := old.Token.(version)
	if seen.link != l {
		return false, coord.Cell{}, nil
	}
	node := s.node(key)
	var now int32
	switch {
	case old.Raw == nil:
		err = s.create(ctx, l, node, next)
	case seen.of >= s.renewAt || seen.of < 0:
		err = s.renew(ctx, l, node, seen.of, next)
	default:
		now, err = s.set(ctx, l, node, seen.of, next)
	}
	switch {
	case err == nil:
		return true, coord.Cell{Raw: next, Known: true, Token: version{l, now}}, nil
	case errors.Is(err, zk.ErrBadVersion), errors.Is(err, zk.ErrNoNode), errors.Is(err, zk.ErrNodeExists):
		return false, coord.Cell{}, nil
	}
	return false, coord.Cell{}, s.unavailable(ctx, err)
}

// set replaces a node's content and returns its version.
func (s *space) set(ctx context.Context, l *link, node string, v int32, next []byte) (int32, error) {
	before := s.zxid.Load()
	stat, err := call(ctx, s, l, func(conn *zk.Conn) (*zk.Stat, error) { return conn.Set(node, next, v) })
	if err != nil {
		return 0, err
	}
	if stat.Mzxid <= before {
		return 0, s.calls.RolledBack("zxid", stat.Mzxid, before)
	}
	for {
		seen := s.zxid.Load()
		if stat.Mzxid <= seen || s.zxid.CompareAndSwap(seen, stat.Mzxid) {
			return stat.Version, nil
		}
	}
}

// renew replaces a node by a new one in one atomic step.
func (s *space) renew(ctx context.Context, l *link, node string, v int32, next []byte) error {
	replies, err := call(ctx, s, l, func(conn *zk.Conn) ([]zk.MultiResponse, error) {
		return conn.Multi(
			&zk.DeleteRequest{Path: node, Version: v},
			&zk.CreateRequest{Path: node, Data: next, Acl: s.acl})
	})
	for _, reply := range replies {
		err = cmp.Or(err, reply.Error)
	}
	return err
}

// create makes a node, and those above it where they are missing.
func (s *space) create(ctx context.Context, l *link, node string, raw []byte) error {
	try := func() error {
		_, err := call(ctx, s, l, func(conn *zk.Conn) (string, error) { return conn.Create(node, raw, 0, s.acl) })
		return err
	}
	err := try()
	if !errors.Is(err, zk.ErrNoNode) || path.Dir(node) == "/" {
		return err
	}
	if err := s.create(ctx, l, path.Dir(node), []byte{}); err != nil && !errors.Is(err, zk.ErrNodeExists) {
		return err
	}
	return try()
}

// List implements coord.Space. The service tells all names at once, in no order.
func (s *space) List(ctx context.Context, dir coord.Key, after string, limit int, f func(name string, raw []byte) error) error {
	if limit <= 0 {
		return nil
	}
	l, err := s.current(ctx)
	if err != nil {
		return err
	}
	parent := s.node(dir)
	nodes, err := call(ctx, s, l, func(conn *zk.Conn) ([]string, error) {
		if _, err := conn.Sync(parent); err != nil {
			return nil, err
		}
		nodes, _, err := conn.Children(parent)
		return nodes, err
	})
	if errors.Is(err, zk.ErrNoNode) {
		return nil
	}
	if err != nil {
		return s.unavailable(ctx, err)
	}
	var names []string
	for _, node := range nodes {
		name, err := unescape(node)
		if err != nil {
			return err
		}
		if name > after {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	names = names[:min(limit, len(names))]
	raws, err := s.contents(ctx, l, parent, names)
	if err != nil {
		return s.unavailable(ctx, err)
	}
	for i, raw := range raws {
		if raw == nil { // removed meanwhile, which hapax does not do
			continue
		}
		if err := f(names[i], raw); err != nil {
			return err
		}
	}
	return nil
}

// contents returns what the named nodes hold, several at a time.
func (s *space) contents(ctx context.Context, l *link, parent string, names []string) ([][]byte, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	raws := make([][]byte, len(names))
	var next atomic.Int64
	var wg sync.WaitGroup
	for range min(listBranch, len(names)) {
		wg.Go(func() {
			for i := next.Add(1) - 1; i < int64(len(names)) && ctx.Err() == nil; i = next.Add(1) - 1 {
				raw, err := call(ctx, s, l, func(conn *zk.Conn) ([]byte, error) {
					raw, _, err := conn.Get(parent + "/" + escape(names[i]))
					return append([]byte{}, raw...), err
				})
				switch {
				case err == nil:
					raws[i] = raw
				case !errors.Is(err, zk.ErrNoNode):
					cancel(err)
				}
			}
		})
	}
	wg.Wait()
	return raws, context.Cause(ctx)
}

// identity is the content of the node "store".
type identity struct {
	ID string `json:"id"` // the store ID
}

// verify checks that the store behind a link is the one that the handle was
// opened on. The handle's first link says which one that is, and creates it if
// need be; of several handles that do so at once, one creates it and the others
// find that one's.
func (s *space) verify(ctx context.Context, l *link) error {
	s.mu.Lock()
	want := s.id
	s.mu.Unlock()
	node := s.node(coord.Key{Table: "store"})
	raw, _, err := s.get(ctx, l, node)
	if err != nil {
		return err
	}
	if raw == nil && want == "" {
		err := s.create(ctx, l, node, coord.Encode(identity{rand.Text()}))
		if err != nil && !errors.Is(err, zk.ErrNodeExists) {
			return err
		}
		if raw, _, err = s.get(ctx, l, node); err != nil {
			return err
		}
	}
	if raw == nil {
		return fmt.Errorf("%w: node %s, which names the store, is gone; it was %s", hapax.ErrStoreReplaced, node, want)
	}
	found, err := coord.Decode[identity](coord.Key{Table: "store"}, raw)
	switch {
	case err != nil:
		return err
	case found.ID == "":
		return fmt.Errorf("%w: node %s: id is missing", hapax.ErrStoreCorrupt, node)
	case want != "" && found.ID != want:
		return fmt.Errorf("%w: node %s names store %s, the handle was opened on %s", hapax.ErrStoreReplaced, node, found.ID, want)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.id = found.ID
	return nil
}
