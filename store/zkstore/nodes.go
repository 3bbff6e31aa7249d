package zkstore

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"path"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/go-zookeeper/zk"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/zksession"
	"github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/store/internal/coord"
)

const (
	format     = 3  // of the nodes
	listBranch = 64 // requests under way for one listing
)

// renewVersion is the version at which a node is made anew, with version zero:
// versions have 32 bits, and -1 would stand for any version.
const renewVersion = 1 << 30

// A space is the store's nodes; it implements driver.KV.
type space struct {
	calls driver.Calls
	hosts []string
	tls   *tls.Config
	auth  string // user:password of the digest scheme; empty: none
	acl   []zk.ACL
	base  string // the node above all others
	looks bool   // Options.Look

	existing func() bool // Options.Existing
	made     string      // the ID of a store that the handle makes; links are made without the context of Open

	renewAt int32

	kept   atomic.Pointer[listing]
	life   context.Context // ends with the handle
	end    context.CancelCauseFunc
	convoy coord.Convoy // see Step

	running sync.WaitGroup // every goroutine of the handle

	mu       sync.Mutex      // guards everything below, and end
	link     *link           // the latest one
	attempt  *attempt        // to replace it; nil: none
	failures int             // attempts that failed in a row
	id       string          // the store ID; empty until it was read once
	shut     string          // why nobody may use the store yet
	founding driver.Founding // of the call that opened the handle
	given    *zk.Conn        // the caller's connection; nil: the handle makes its own
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
func (s *space) node(key driver.Key) string { return s.dir(key.Table) + "/" + escape(key.Name) }

// unavailable wraps what the library reports, unless it has a cause already.
func (s *space) unavailable(ctx context.Context, err error) error {
	if _, ok := errors.AsType[*hapax.Error](err); ok {
		return err
	}
	return s.calls.Unavailable(ctx, err)
}

// cells reads nodes, many at the same time; current ones, where a sync comes before: it makes the
// server, which may lag behind its leader, catch up.
func (s *space) cells(ctx context.Context, l *link, from driver.Freshness, nodes ...string) ([]driver.Cell, error) {
	reading, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	cells := make([]driver.Cell, len(nodes))
	generation := l.generation.Load() // before the nodes, so that one made anew meanwhile is not taken for the old one
	var next atomic.Int64
	var wg sync.WaitGroup
	read := func(conn *zk.Conn) (struct{}, error) { //nolint:unparam // a call returns something
		for i := next.Add(1) - 1; i < int64(len(nodes)) && reading.Err() == nil; i = next.Add(1) - 1 {
			raw, stat, err := conn.Get(nodes[i])
			switch {
			case err == nil:
				cells[i] = driver.Cell{Value: append([]byte{}, raw...), Known: true, Version: version{l, generation, stat.Version}}
			case errors.Is(err, zk.ErrNoNode):
				cells[i] = driver.Cell{Known: true, Version: version{l, generation, 0}}
			default:
				return struct{}{}, err
			}
		}
		return struct{}{}, nil
	}
	synced := func() error { return nil }
	if from == driver.Current && len(nodes) > 0 {
		synced = s.sync(ctx, l, nodes[0])
	}
	for range min(listBranch, len(nodes)) {
		wg.Go(func() {
			if _, err := zksession.Call(reading, l.Session, read); err != nil {
				stop(err)
			}
		})
	}
	wg.Wait()
	err := cmp.Or(synced(), context.Cause(reading))
	if err != nil {
		return nil, s.unavailable(ctx, err) // and cells may still be written to
	}
	return cells, nil
}

// get returns a node's content, nil if there is no node, and its version.
func (s *space) get(ctx context.Context, l *link, node string) ([]byte, int32, error) {
	cells, err := s.cells(ctx, l, driver.Current, node)
	if err != nil {
		return nil, 0, err
	}
	return cells[0].Value, cells[0].Version.(version).of, nil
}

// create makes a node, and those above it where they are missing.
func (s *space) create(ctx context.Context, l *link, node string, raw []byte) error {
	try := func() error {
		_, err := zksession.Call(ctx, l.Session, func(conn *zk.Conn) (string, error) { return conn.Create(node, raw, 0, s.acl) })
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

// Get implements driver.KV.
func (s *space) Get(ctx context.Context, from driver.Freshness, keys ...driver.Key) ([]driver.Cell, error) {
	l, err := s.current(ctx)
	if err != nil {
		return nil, err
	}
	// A write was refused, perhaps by another store, or because the generation is another: first that is found
	// out.
	if from == driver.Current && l.stale.Swap(false) {
		if err := s.verify(ctx, l); err != nil {
			l.stale.Store(true)
			return nil, err
		}
	}
	nodes := make([]string, len(keys))
	for i, key := range keys {
		nodes[i] = s.node(key)
	}
	return s.cells(ctx, l, from, nodes...)
}

// Scan implements driver.KV.
func (s *space) Scan(ctx context.Context, table, after string, limit int) (rows []driver.Row, err error) {
	l, err := s.current(ctx)
	if err != nil {
		return nil, err
	}
	parent := s.dir(table)
	names, err := s.names(ctx, l, parent)
	if err != nil {
		return nil, err
	}
	from, found := slices.BinarySearch(names, after)
	if found {
		from++
	}
	names = names[from:]
	for len(names) > 0 && len(rows) < limit {
		page := names[:min(limit-len(rows), len(names))]
		names = names[len(page):]
		raws, err := s.contents(ctx, l, parent, page)
		if err != nil {
			return nil, err
		}
		for i, raw := range raws {
			if raw != nil { // else it was removed meanwhile
				rows = append(rows, driver.Row{Name: page[i], Value: raw})
			}
		}
	}
	return rows, nil
}

// names returns the names of the rows below a node, in byte order.
func (s *space) names(ctx context.Context, l *link, parent string) ([]string, error) {
	kept := s.kept.Load()
	if kept != nil && (kept.link != l || kept.parent != parent) {
		kept = nil
	}
	synced := s.sync(ctx, l, parent)
	fresh, err := zksession.Call(ctx, l.Session, func(conn *zk.Conn) (*listing, error) {
		if kept != nil {
			// None came and none went: that is one small answer in the place of all names.
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
	if failed := synced(); failed != nil {
		err = failed
	}
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
	if len(names) >= bulkFrom && s.given == nil && !l.oneByOne.Load() {
		raws, err := s.readMany(ctx, l, parent, names)
		switch {
		case err == nil:
			return raws, nil
		case ctx.Err() != nil:
			return nil, s.unavailable(ctx, err)
		}
		l.oneByOne.Store(true)
	}
	nodes := make([]string, len(names))
	for i, name := range names {
		nodes[i] = parent + "/" + escape(name)
	}
	cells, err := s.cells(ctx, l, driver.Lagging, nodes...)
	raws := make([][]byte, len(cells))
	for i, cell := range cells {
		raws[i] = cell.Value
	}
	return raws, err
}

// identity is the content of the node "store".
type identity struct {
	ID     string `json:"id"` // the store ID
	Format int64  `json:"format"`
	Closed string `json:"closed,omitempty"` // why nobody may use it yet: see driver.Founding
}

func (s *space) identity() []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	return driver.EncodeRow(identity{s.id, format, s.shut})
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
		err := s.create(ctx, l, node, driver.EncodeRow(identity{s.made, format, s.founding.Closed}))
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
	id, err := driver.DecodeIdentity("node "+node, node, raw, format, &found)
	switch {
	case err != nil:
		return err
	case want != "" && id != want:
		return fmt.Errorf("%w: node %s names store %s, the handle was opened on %s", hapax.ErrStoreReplaced, node, id, want)
	case want == "":
		if err := driver.CheckClosed(ctx, found.Closed); err != nil {
			return err
		}
	}
	l.generation.Store(generation)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.id, s.shut = id, found.Closed
	return nil
}

// openToAll writes the node that names the store anew, as long as nobody else has.
func (s *space) openToAll(ctx context.Context) error {
	l, err := s.current(ctx)
	if err != nil {
		return err
	}
	if err := s.verify(ctx, l); err != nil {
		return err
	}
	s.mu.Lock()
	was := s.shut
	// Before the commit, which writes the identity with it.
	s.shut = ""
	s.mu.Unlock()
	if was == "" {
		return nil
	}
	p := plan{space: s, link: l, generation: l.generation.Load(), renews: true}
	if _, err = p.commit(ctx); err != nil {
		s.mu.Lock()
		s.shut = was
		s.mu.Unlock()
		return s.unavailable(ctx, err)
	}
	return nil
}
