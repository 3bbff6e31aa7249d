package zkstore

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/go-zookeeper/zk"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/store/internal/coord"
)

const (
	maxCalls   = 128 // requests under way on one handle
	listBranch = 64  // requests under way for one listing
)

// renewVersion is the version at which a node is made anew, with version zero:
// versions have 32 bits, and -1 would stand for any version.
const renewVersion = 1 << 30

// A space is the store's nodes; it implements coord.Space.
type space struct {
	calls coord.Calls
	hosts []string
	tls   *tls.Config
	auth  string // user:password of the digest scheme; empty: none
	acl   []zk.ACL
	base  string // the node above all others
	looks bool   // Options.Look

	existing func() bool // Options.Existing

	renewAt int32

	slots chan struct{} // one token for each request under way
	kept  atomic.Pointer[listing]
	life  context.Context    // ends with the handle
	end   context.CancelFunc // ends life
	own   own

	running sync.WaitGroup // every goroutine of the handle; started under mu

	mu       sync.Mutex // guards everything below
	closed   bool
	link     *link    // the latest one
	attempt  *attempt // to replace it; nil: none
	failures int      // attempts that failed in a row
	id       string   // the store ID; empty until it was read once
	format   int64    // that stands with it
	given    *zk.Conn // the caller's connection; nil: the handle makes its own
}

// A version recognises a node's content. It counts only on the link that it was
// seen on, and in the generation in which it was seen: a node that was removed
// or made anew begins at version zero again, and whoever does that raises the
// generation in the same step.
type version struct {
	link       *link
	generation int32 // the version of the node "store", read before the node
	of         int32
}

// storeNode is the node that names the store.
func (s *space) storeNode() string { return s.base + "/store" }

// dir returns the node above a table's rows.
func (s *space) dir(table string) string {
	if table == "" {
		return s.base + "/tags"
	}
	return s.base + "/rows/" + escape(table)
}

// node returns the path of a row's node.
func (s *space) node(key coord.Key) string { return s.dir(key.Table) + "/" + escape(key.Name) }

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
	return s.look(ctx, l, node, true)
}

// peek is get without the sync, for a server that has just done something for this
// handle.
func (s *space) peek(ctx context.Context, l *link, node string) ([]byte, int32, error) {
	return s.look(ctx, l, node, false)
}

func (s *space) look(ctx context.Context, l *link, node string, sync bool) ([]byte, int32, error) {
	type content struct {
		raw     []byte
		version int32
	}
	c, err := call(ctx, s, l, func(conn *zk.Conn) (content, error) {
		if sync {
			if _, err := conn.Sync(node); err != nil {
				return content{}, err
			}
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
	if l.stale.Swap(false) {
		if err := s.verify(ctx, l); err != nil {
			l.stale.Store(true)
			return coord.Cell{}, err
		}
	}
	generation := l.generation.Load()
	raw, v, err := s.get(ctx, l, s.node(key))
	return coord.Cell{Raw: raw, Known: err == nil, Token: version{l, generation, v}}, err
}

// Swap implements coord.Space. Every write is on condition that the node that
// names the store is the one that was seen.
func (s *space) Swap(ctx context.Context, key coord.Key, old coord.Cell, next []byte) (bool, coord.Cell, error) {
	l, err := s.current(ctx)
	if err != nil {
		return false, coord.Cell{}, err
	}
	seen := old.Token.(version)
	if seen.link != l {
		return false, coord.Cell{}, nil
	}
	ops, renews := s.change(key, old, next)
	replies, err := s.step(ctx, l, seen.generation, renews, ops)
	if errors.Is(err, zk.ErrNoNode) && old.Raw == nil {
		if err = s.create(ctx, l, path.Dir(s.node(key)), []byte{}); err == nil || errors.Is(err, zk.ErrNodeExists) {
			replies, err = s.step(ctx, l, seen.generation, renews, ops)
		}
	}
	switch {
	case isRefused(err):
		l.stale.Store(true)
		return false, coord.Cell{}, nil
	case err != nil:
		return false, coord.Cell{}, s.unavailable(ctx, err)
	case renews:
		return true, coord.Cell{}, nil
	}
	return true, coord.Cell{Raw: next, Known: true, Token: written(l, seen.generation, replies, 0)}, nil
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

// A listing is the names of all rows of a table, sorted. It is kept for those who list
// a large table page by page, since the service tells all names at once.
type listing struct {
	link    *link
	parent  string
	version int32 // of the parent's children; it changes with each that comes or goes
	names   []string
}

// minKept is the length from which on a listing is worth being kept.
const minKept = 500

// ReadEach implements coord.Space.
func (s *space) ReadEach(ctx context.Context, table string, names []string) ([][]byte, error) {
	l, err := s.current(ctx)
	if err != nil {
		return nil, err
	}
	raws, err := s.readEach(ctx, l, s.dir(table), names)
	if err != nil {
		return nil, s.unavailable(ctx, err)
	}
	return raws, nil
}

// List implements coord.Space.
func (s *space) List(ctx context.Context, table, after string, limit int, f func(name string, raw []byte) error) error {
	if limit <= 0 {
		return nil
	}
	l, err := s.current(ctx)
	if err != nil {
		return err
	}
	parent := s.dir(table)
	names, err := s.names(ctx, l, parent)
	if err != nil {
		return err
	}
	from, found := slices.BinarySearch(names, after)
	if found {
		from++
	}
	names = names[from:]
	for len(names) > 0 && limit > 0 {
		page := names[:min(limit, len(names))]
		names = names[len(page):]
		raws, err := s.contents(ctx, l, parent, page)
		if err != nil {
			return s.unavailable(ctx, err)
		}
		for i, raw := range raws {
			if raw == nil { // removed meanwhile
				continue
			}
			limit--
			if err := f(page[i], raw); err != nil {
				return err
			}
		}
	}
	return nil
}

// names returns the names of the rows below a node, in byte order.
func (s *space) names(ctx context.Context, l *link, parent string) ([]string, error) {
	kept := s.kept.Load()
	if kept != nil && (kept.link != l || kept.parent != parent) {
		kept = nil
	}
	fresh, err := call(ctx, s, l, func(conn *zk.Conn) (*listing, error) {
		if _, err := conn.Sync(parent); err != nil {
			return nil, err
		}
		if kept != nil {
			if _, stat, err := conn.Exists(parent); err != nil || stat.Cversion == kept.version {
				return kept, err
			}
		}
		nodes, stat, err := conn.Children(parent)
		if err != nil {
			return nil, err
		}
		return &listing{l, parent, stat.Cversion, nodes}, nil
	})
	switch {
	case errors.Is(err, zk.ErrNoNode):
		return nil, nil
	case err != nil:
		return nil, s.unavailable(ctx, err)
	case fresh == kept:
		return kept.names, nil
	}
	for i, node := range fresh.names {
		if fresh.names[i], err = unescape(node); err != nil {
			return nil, err
		}
	}
	slices.Sort(fresh.names)
	if len(fresh.names) >= minKept {
		s.kept.Store(fresh)
	}
	return fresh.names, nil
}

// contents returns what the named nodes hold, nil for those that there are not.
func (s *space) contents(ctx context.Context, l *link, parent string, names []string) ([][]byte, error) {
	if len(names) >= bulkFrom && !l.given && !l.oneByOne.Load() {
		raws, err := s.readMany(ctx, l, parent, names)
		if err == nil || ctx.Err() != nil {
			return raws, err
		}
		l.oneByOne.Store(true)
	}
	return s.readEach(ctx, l, parent, names)
}

// readEach reads nodes one by one. Each of the requests under way is made by a goroutine
// that goes on with the next name.
func (s *space) readEach(ctx context.Context, l *link, parent string, names []string) ([][]byte, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	raws := make([][]byte, len(names))
	var next atomic.Int64
	var wg sync.WaitGroup
	for range min(listBranch, len(names)) {
		wg.Go(func() {
			_, err := call(ctx, s, l, func(conn *zk.Conn) (struct{}, error) {
				for i := next.Add(1) - 1; i < int64(len(names)) && ctx.Err() == nil; i = next.Add(1) - 1 {
					raw, _, err := conn.Get(parent + "/" + escape(names[i]))
					switch {
					case err == nil:
						raws[i] = append([]byte{}, raw...)
					case !errors.Is(err, zk.ErrNoNode):
						return struct{}{}, err
					}
				}
				return struct{}{}, nil
			})
			if err != nil {
				cancel(err)
			}
		})
	}
	wg.Wait()
	if err := context.Cause(ctx); err != nil {
		return nil, err // and raws may still be written to
	}
	return raws, nil
}

// identity is the content of the node "store".
type identity struct {
	ID     string `json:"id"` // the store ID
	Format int64  `json:"format,omitempty"`
}

func (s *space) identity() []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	return coord.Encode(identity{s.id, s.format})
}

// verify checks that the store behind a link is the one that the handle was
// opened on, and learns its generation. The handle's first link says which store
// that is, and creates it if need be; of several handles that do so at once, one
// creates it and the others find that one's.
func (s *space) verify(ctx context.Context, l *link) error {
	s.mu.Lock()
	want := s.id
	s.mu.Unlock()
	node := s.storeNode()
	raw, generation, err := s.get(ctx, l, node)
	if err != nil {
		return err
	}
	if raw == nil && want == "" && (s.looks || s.existing != nil && s.existing()) {
		return &driver.WouldChangeError{What: driver.NewStore}
	}
	if raw == nil && want == "" {
		err := s.create(ctx, l, node, coord.Encode(identity{rand.Text(), coord.FormatNow}))
		if err != nil && !errors.Is(err, zk.ErrNodeExists) {
			return s.unavailable(ctx, err)
		}
		if raw, generation, err = s.get(ctx, l, node); err != nil {
			return err
		}
	}
	if raw == nil {
		return fmt.Errorf("%w: node %s, which names the store, is gone; it was %s", hapax.ErrStoreReplaced, node, want)
	}
	var found identity
	var format struct{ Format int64 } // a newer one may come with more
	if json.Unmarshal(raw, &format) == nil && format.Format > coord.FormatNow {
		return coord.CheckFormat("node "+node, format.Format)
	}
	err = driver.DecodeRow("store", node, raw, &found)
	if err == nil && found.Format == 0 && want == "" {
		err = s.refuseFirst(ctx, l)
	}
	switch {
	case err != nil:
		return err
	case found.ID == "":
		return fmt.Errorf("%w: node %s: id is missing", hapax.ErrStoreCorrupt, node)
	case want != "" && found.ID != want:
		return fmt.Errorf("%w: node %s names store %s, the handle was opened on %s", hapax.ErrStoreReplaced, node, found.ID, want)
	}
	l.generation.Store(generation)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.id, s.format = found.ID, found.Format
	return nil
}

// refuseFirst refuses a store of the first version, which kept workers apart from rows, and
// tags without a delta.
func (s *space) refuseFirst(ctx context.Context, l *link) error {
	place := s.base + "/workers"
	raw, _, err := s.get(ctx, l, place)
	if err != nil {
		return err
	}
	if raw != nil {
		return coord.FirstFormat("node " + place)
	}
	first, err := call(ctx, s, l, func(conn *zk.Conn) (string, error) {
		nodes, _, err := conn.Children(s.dir(""))
		if errors.Is(err, zk.ErrNoNode) {
			return "", nil
		}
		for _, node := range nodes {
			node = s.dir("") + "/" + node
			raw, _, err := conn.Get(node)
			if err != nil && !errors.Is(err, zk.ErrNoNode) {
				return "", err
			}
			if first, tells := coord.IsFirstTag(raw); first {
				return node, nil
			} else if tells {
				return "", nil
			}
		}
		return "", err
	})
	if err != nil {
		return s.unavailable(ctx, err)
	}
	if first != "" {
		return coord.FirstFormat("node " + first)
	}
	return nil
}

// ExcludeOlder implements driver.Exclusive: older versions refuse an identity with a format.
func (s *Store) ExcludeOlder(ctx context.Context) error {
	k := s.space
	ctx, cancel, err := k.calls.Begin(ctx)
	if err != nil {
		return err
	}
	defer cancel()
	k.mu.Lock()
	done := k.format == coord.FormatNow
	k.mu.Unlock()
	if done {
		return nil
	}
	l, err := k.current(ctx)
	if err != nil {
		return err
	}
	if err := k.verify(ctx, l); err != nil {
		return err
	}
	k.mu.Lock()
	found := identity{k.id, coord.FormatNow}
	k.mu.Unlock()
	_, err = call(ctx, k, l, func(conn *zk.Conn) (*zk.Stat, error) {
		return conn.Set(k.storeNode(), coord.Encode(found), l.generation.Load())
	})
	if err != nil {
		return k.unavailable(ctx, err)
	}
	return k.verify(ctx, l)
}
