package leaf

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/compat/leaf"
	"github.com/hapax-id/hapax/compat/leaf/routes"
	"github.com/hapax-id/hapax/internal/compat/spring"
	"github.com/hapax-id/hapax/internal/mount"
	"github.com/hapax-id/hapax/internal/ondemand"
	"github.com/hapax-id/hapax/internal/service"
	"github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/store/leasecache"
)

const (
	workerFile = "leaf-worker" // in the data directory: worker ID and mark
	leaseName  = "leaf-lease"  // in the data directory: the lease of the worker ID, and what of it was used

	// extendAfter is the part of a grant after which more is asked for: 30 s of five
	// minutes.
	extendAfter = 10

	// hopeless is how long a call waits where the one before it waited in vain, because
	// the tree has been away for longer than was granted.
	hopeless = 100 * time.Millisecond
)

// patterns are the routes at the main listener, where a suffix of the last three can only be
// one that chooses a content type.
func patterns() []string {
	all := []string{"/api/segment/get/", "/api/snowflake/get/"}
	for _, page := range []string{"/decodeSnowflakeId", "/cache", "/db"} {
		all = append(all, page, page+"/")
		for _, suffix := range spring.Suffixes() {
			all = append(all, page+suffix)
		}
	}
	return all
}

// paths are the same routes, each once.
var paths = []string{"/api/segment/get/", "/api/snowflake/get/", "/decodeSnowflakeId", "/cache", "/db"}

// A part is Leaf's part of a server.
type part struct {
	settings *Settings
	networks []netip.Prefix
	zone     *time.Location
	host     *mount.Host
	board    board
	rows     *mount.Rows[*leaf.Table]
	table    *service.Service // nil: native tags, or no segments
	flakes   *service.Service // nil: the native pool, or no snowflakes
	lease    leaseFile
}

// Open implements mount.Mount.
func (p *part) Open(ctx context.Context, h *mount.Host) (err error) {
	p.host = h
	switch l := p.settings; l.source(l.Table) {
	case own:
		// Before the server's own service is made, which takes it along.
		h.Observer = p.board.note
	case theirs:
		if p.rows, p.table, err = mount.OpenRows(ctx, h, name, tableName, l.open, p.board.note); err != nil {
			return fmt.Errorf("compat.leaf.table: %w", err)
		}
	}
	if l := p.settings; l.source(l.Tree) == theirs {
		if err := p.openTree(ctx); err != nil {
			return fmt.Errorf("compat.leaf.tree: %w", err)
		}
	}
	return nil
}

func (p *part) openTree(ctx context.Context) (err error) {
	l, h := p.settings, p.host
	tree := treeStore{mount.NewNoStore(), mount.NewLazy(func(ctx context.Context) (*leaf.Tree, error) {
		address, err := l.address(ctx)
		if err != nil {
			return nil, err
		}
		return leaf.OpenTree(ctx, l.Tree, leaf.TreeOptions{
			Name: l.Name, Address: address, File: filepath.Join(h.Data, workerFile), Timeout: h.StoreTimeout,
		})
	})}
	h.Defer(tree.Close)
	h.Defer(p.lease.close)
	if err := h.Contact(ctx, treeName, tree.Ping); err != nil {
		return err
	}
	grant := cmp.Or(l.Grant, DefaultGrant)
	h.Log.Info("the worker ID of this node in Leaf's tree is granted for a time, within which ZooKeeper is not needed",
		"grant", grant, "rides_out_an_outage_of", grant-grant/extendAfter, "waits_after_a_crash_up_to", min(grant, leasecache.DefaultPart))
	p.flakes, err = h.Serve(ctx, treeName, tree, func(o *service.Options) {
		pool := nativePool()
		pool.Grant, pool.MaxGrant, pool.Cache = grant, grant, true
		o.Pools = map[string]service.PoolConfig{hapax.DefaultPool: pool}
		o.Holder = h.Instance
		o.Cache = func(ctx context.Context, _ string, store driver.Store) (hapax.WorkerStore, error) {
			return p.lease.open(ctx, h, tree, store, grant)
		}
	})
	return err
}

// A leaseFile keeps the lease of the worker ID.
type leaseFile struct {
	mu    sync.Mutex // guards cache
	cache *leasecache.Cache
}

// open opens the file. Where there can be none, a crash costs as much as is granted.
func (f *leaseFile) open(ctx context.Context, h *mount.Host, tree treeStore, store driver.Store, grant time.Duration) (hapax.WorkerStore, error) {
	warn := func(code, message string) {
		h.Log.Warn("the lease in the data directory is not used", "beside", treeName, "why", code, "detail", message)
	}
	c, err := leasecache.Open(ctx, filepath.Join(h.Data, leaseName), store, leasecache.Options{Reserve: grant - grant/extendAfter, Warn: warn})
	if err != nil {
		warn(string(hapax.CodeOf(err)), err.Error())
		return store, nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.cache = c
	return watched{c, tree}, nil
}

func (f *leaseFile) close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.cache == nil {
		return nil
	}
	return f.cache.Close()
}

// watched hands out what the cache of a lease has, while nobody else writes to the node of
// the tree that it is for.
type watched struct {
	*leasecache.Cache
	tree treeStore
}

// ExtendWorker implements hapax.WorkerStore.
func (w watched) ExtendWorker(ctx context.Context, l hapax.Lease, layout hapax.Layout, term hapax.Term) (hapax.Lease, error) {
	// Not opened for this: ZooKeeper may be away, and what was granted goes on without it.
	if tree, open := w.tree.Peek(); open {
		if why := tree.Disturbed(); why != nil {
			return l, fmt.Errorf("%w: %w", hapax.ErrLeaseLost, why)
		}
	}
	return w.Cache.ExtendWorker(ctx, l, layout, term)
}

// Answer implements mount.Mount.
func (p *part) Answer(svc *service.Service) ([]mount.Answer, error) {
	l := p.settings
	o := routes.Options{
		Allow: p.networks, AllowAnyone: l.AllowAnyone || p.host.Unauthenticated && len(p.networks) == 0,
		MaxWait: min(p.host.MaxWait, time.Minute), KeepDots: l.CutAtDot != nil && !*l.CutAtDot, ZeroWhenOff: l.ZeroWhenOff, Location: p.zone,
		Failed: func(err error) { svc.Failed(name, err) },
	}
	modes := map[string]*service.Service{}
	switch l.source(l.Table) {
	case own:
		native := mount.NewNativeTags(svc)
		o.Segment, o.TrySegment, o.Monitor = native, native.TryNext, monitor{svc, &p.board, nativeRows(svc)}
		modes[segmentMode] = svc
	case theirs:
		o.Segment, o.TrySegment, o.Monitor = p.table, p.table.TryNext, monitor{p.table, &p.board, p.tableRows}
		modes[segmentMode] = p.table
	}
	switch l.source(l.Tree) {
	case own:
		o.Snowflake = oneTag{svc: svc, tag: Pool}
		modes[snowflakeMode] = svc
	case theirs:
		o.Snowflake = oneTag{p.flakes, service.SnowflakeTag, new(atomic.Bool)}
		modes[snowflakeMode] = p.flakes
	}
	h, err := routes.New(o)
	svc.Counting(name)
	// Where both modes are on, the address is ready while segments can be issued: a tree
	// that is away must not take the segment route from those who balance load.
	issuing := cmp.Or(modes[segmentMode], modes[snowflakeMode])
	return []mount.Answer{{Handler: h, Patterns: patterns(), Routes: paths, Issuing: []*service.Service{issuing}, Modes: modes}}, err
}

// oneTag issues the numbers of one tag, whatever the key.
type oneTag struct {
	svc interface { // a service.Service
		Next(ctx context.Context, tag string) (hapax.ID, error)
	}
	tag string

	// away, if not nil, is set while the last call waited in vain for a store that does
	// not answer: then the next ones do not wait.
	away *atomic.Bool
}

// Next implements routes.Issuer.
func (o oneTag) Next(ctx context.Context, _ string) (hapax.ID, error) {
	if o.away == nil {
		return o.svc.Next(ctx, o.tag)
	}
	if o.away.Load() {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, hopeless)
		defer cancel()
	}
	id, err := o.svc.Next(ctx, o.tag)
	// Written only when it changes: calls at the same time would contend for it.
	if away := errors.Is(err, hapax.ErrStoreUnavailable); away != o.away.Load() {
		o.away.Store(away)
	}
	return id, err
}

// A treeStore is Leaf's tree as a service sees it: one pool, and the tag that stands
// for it.
type treeStore struct {
	mount.NoStore
	*ondemand.Handle[*leaf.Tree]
}

func (s treeStore) Tag(_ context.Context, name string) (hapax.Tag, error) {
	if name != service.SnowflakeTag {
		return hapax.Tag{}, fmt.Errorf("%w: %q", hapax.ErrTagNotFound, name)
	}
	return hapax.Tag{Name: name, Kind: hapax.KindSnowflake, Pool: hapax.DefaultPool}, nil
}

func (s treeStore) Tags(ctx context.Context, after string, _ int) ([]hapax.Tag, error) {
	if after >= service.SnowflakeTag {
		return nil, nil
	}
	t, err := s.Tag(ctx, service.SnowflakeTag)
	return []hapax.Tag{t}, err
}

func (s treeStore) StoreID(ctx context.Context) (string, error) {
	tree, err := s.Get(ctx)
	if err != nil {
		return "", err
	}
	return tree.StoreID(ctx)
}

func (s treeStore) Ping(ctx context.Context) error {
	tree, err := s.Get(ctx)
	if err != nil {
		return err
	}
	return tree.Ping(ctx)
}

func (s treeStore) AcquireWorker(ctx context.Context, req hapax.AcquireRequest) (hapax.Lease, error) {
	tree, err := s.Get(ctx)
	if err != nil {
		return hapax.Lease{}, err
	}
	return tree.AcquireWorker(ctx, req)
}

func (s treeStore) ExtendWorker(ctx context.Context, l hapax.Lease, layout hapax.Layout, term hapax.Term) (hapax.Lease, error) {
	tree, err := s.Get(ctx)
	if err != nil {
		return l, err
	}
	return tree.ExtendWorker(ctx, l, layout, term)
}

func (s treeStore) SealWorker(ctx context.Context, l hapax.Lease, last int64) error {
	tree, err := s.Get(ctx)
	if err != nil {
		return err
	}
	return tree.SealWorker(ctx, l, last)
}
