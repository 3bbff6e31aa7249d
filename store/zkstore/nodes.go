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

// A made node is one that is to be made.
type madeNode struct {
	path string
	raw  []byte
}

// above returns the nodes above one, from the top.
func above(node string) (all []madeNode) {
	for node = path.Dir(node); node != "/"; node = path.Dir(node) {
		all = append(all, madeNode{node, []byte{}})
	}
	slices.Reverse(all)
	return all
}

// create makes nodes, in their order and in one round trip with what is asked after it, and tells
// of each whether it is there by then.
func (s *space) create(ctx context.Context, l *link, nodes ...madeNode) (made func() []error) {
	waits := make([]func() (string, error), len(nodes))
	for i, n := range nodes {
		waits[i] = send(ctx, l, opCreate, func(conn *zk.Conn) (string, error) { return conn.Create(n.path, n.raw, 0, s.acl) })
	}
	return func() []error {
		errs := make([]error, len(nodes))
		for i, wait := range waits {
			if _, err := wait(); !errors.Is(err, zk.ErrNodeExists) {
				errs[i] = err
			}
		}
		return errs
	}
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
	nodes := make([]string, len(keys))
	for i, key := range keys {
		nodes[i] = s.node(key)
	}
	if from != driver.Current || !l.stale.Swap(false) {
		return s.cells(ctx, l, from, nodes...)
	}
	// A write was refused, perhaps by another store, or because the generation is another: that is
	// found out beside the reading, which counts if neither is so.
	generation, verified := l.generation.Load(), make(chan error, 1)
	go func() { verified <- s.verify(ctx, l) }()
	cells, err := s.cells(ctx, l, from, nodes...)
	switch failed := <-verified; {
	case failed != nil:
		l.stale.Store(true)
		return nil, failed
	case err != nil || l.generation.Load() == generation:
		return cells, err
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
	names, guessed, err := s.names(ctx, l, parent, after)
	if err != nil {
		return nil, err
	}
	names = following(names, after)
	for len(names) > 0 && len(rows) < limit {
		page := names[:min(limit-len(rows), len(names))]
		names = names[len(page):]
		var left []string
		for _, name := range page {
			if guessed[name] == nil { // not asked for, or not there yet
				left = append(left, name)
			}
		}
		raws, err := s.contents(ctx, l, parent, left)
		if err != nil {
			return nil, err
		}
		for _, name := range page {
			raw := guessed[name]
			if raw == nil {
				raw, raws = raws[0], raws[1:]
			}
			if raw != nil { // else it was removed meanwhile
				rows = append(rows, driver.Row{Name: name, Value: raw})
			}
		}
	}
	return rows, nil
}

// following returns the names that come after the given one.
func following(names []string, after string) []string {
	from, found := slices.BinarySearch(names, after)
	if found {
		from++
	}
	return names[from:]
}

// names returns the names of the rows below a node, in byte order. In the same round trip it reads
// those after the given one that were there the last time, where these are few, and returns what
// they hold.
func (s *space) names(ctx context.Context, l *link, parent, after string) (names []string, guessed map[string][]byte, err error) {
	kept := s.kept.Load()
	if kept != nil && (kept.link != l || kept.parent != parent) {
		kept = nil
	}
	synced := s.sync(ctx, l, parent)
	var last []string
	if few, ok := l.listed.Load(parent); ok {
		last = following(few.([]string), after)
	}
	guess := make(chan map[string][]byte, 1)
	go func() { guess <- s.guess(ctx, l, parent, last) }()
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
	guessed = <-guess
	if failed := synced(); failed != nil {
		err = failed
	}
	switch {
	case errors.Is(err, zk.ErrNoNode):
		return nil, nil, nil
	case err != nil:
		return nil, nil, s.unavailable(ctx, err)
	case fresh == kept:
		return kept.names, nil, nil
	}
	for i, node := range fresh.names {
		if fresh.names[i], err = unescape(node); err != nil {
			return nil, nil, err
		}
	}
	slices.Sort(fresh.names)
	if len(fresh.names) >= minKept {
		s.kept.Store(fresh)
	}
	l.listed.Delete(parent)
	if n := len(fresh.names); n > 0 && n <= listBranch {
		l.listed.Store(parent, fresh.names)
	}
	return fresh.names, guessed, nil
}

// guess returns what the named rows hold, as far as they are there; nothing where that fails.
func (s *space) guess(ctx context.Context, l *link, parent string, names []string) map[string][]byte {
	nodes := make([]string, len(names))
	for i, name := range names {
		nodes[i] = parent + "/" + escape(name)
	}
	cells, _ := s.cells(ctx, l, driver.Lagging, nodes...) // else they are read after their names
	guessed := make(map[string][]byte, len(names))
	for i, cell := range cells {
		guessed[names[i]] = cell.Value
	}
	return guessed
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
		made := s.create(ctx, l, s.founded(l)...)
		raw, generation, err = s.get(ctx, l, node)
		for _, failed := range made() {
			if raw == nil && err == nil { // those that are there already need no rights
				err = failed
			}
		}
		if err != nil {
			return s.unavailable(ctx, err)
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

// founded returns the nodes of a new store: those above the one that names it, that one, and those
// above the rows that the first process writes.
func (s *space) founded(l *link) []madeNode {
	node := s.storeNode()
	all := append(above(node), madeNode{node, driver.EncodeRow(identity{s.made, format, s.founding.Closed})})
	if l.blind { // each takes a round trip, and some are perhaps not needed
		return all
	}
	all = append(all, madeNode{s.dir(""), []byte{}}, madeNode{path.Dir(s.dir(driver.TableGuard)), []byte{}})
	for _, table := range []string{driver.TableGuard, driver.TableBeats, driver.TableNodes, driver.TableFence} {
		all = append(all, madeNode{s.dir(table), []byte{}})
	}
	return all
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
	if _, _, err = p.commit(ctx); err != nil {
		s.mu.Lock()
		s.shut = was
		s.mu.Unlock()
		return s.unavailable(ctx, err)
	}
	return nil
}
