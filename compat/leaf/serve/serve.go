package serve

import (
	"context"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/compat/leaf"
	"github.com/hapax-id/hapax/compat/leaf/routes"
	"github.com/hapax-id/hapax/internal/mount"
	"github.com/hapax-id/hapax/internal/service"
)

const (
	workerFile = "leaf-worker"   // in the data directory: worker ID and mark
	treeGrant  = 3 * time.Second // a crash costs the next start no more
)

var patterns = []string{"/api/segment/get/", "/api/snowflake/get/", "/decodeSnowflakeId", "/decodeSnowflakeId/", "/cache", "/cache/", "/db", "/db/"}

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
}

// Open implements mount.Mount.
func (p *part) Open(ctx context.Context, h *mount.Host) (err error) {
	p.host = h
	switch l := p.settings; l.source(l.Table) {
	case own:
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
	if err := h.Contact(ctx, treeName, tree.Ping); err != nil {
		return err
	}
	p.flakes, err = h.Serve(ctx, treeName, tree, func(o *service.Options) {
		pool := nativePool()
		pool.Grant, pool.MaxGrant = treeGrant, treeGrant
		o.Pools = map[string]service.PoolConfig{hapax.DefaultPool: pool}
		o.Holder = h.Instance
	})
	return err
}

// Answer implements mount.Mount.
func (p *part) Answer(svc *service.Service) ([]mount.Answer, error) {
	l := p.settings
	o := routes.Options{
		Allow: p.networks, AllowAnyone: l.AllowAnyone || p.host.Unauthenticated && len(p.networks) == 0,
		MaxWait: min(p.host.MaxWait, time.Minute), CutAtDot: l.CutAtDot, ZeroWhenOff: l.ZeroWhenOff, Location: p.zone,
		Failed: func(err error) { svc.Failed(name, err) },
	}
	var issuing []*service.Service
	switch l.source(l.Table) {
	case own:
		native := mount.NewNativeTags(svc)
		o.Segment, o.TrySegment, o.Monitor = native, native.TryNext, monitor{svc, &p.board, nativeRows(svc)}
		issuing = append(issuing, svc)
	case theirs:
		o.Segment, o.Monitor = p.table, monitor{p.table, &p.board, p.tableRows}
		issuing = append(issuing, p.table)
	}
	switch l.source(l.Tree) {
	case own:
		o.Snowflake = oneTag{svc, Pool}
		issuing = append(issuing, svc)
	case theirs:
		o.Snowflake = oneTag{p.flakes, service.SnowflakeTag}
		issuing = append(issuing, p.flakes)
	}
	h, err := routes.New(o)
	svc.Counting(name)
	return []mount.Answer{{Handler: h, Patterns: patterns, Issuing: slices.Compact(issuing)}}, err
}

// oneTag issues the numbers of one tag, whatever the key.
type oneTag struct {
	svc *service.Service
	tag string
}

// Next implements routes.Issuer.
func (o oneTag) Next(ctx context.Context, _ string) (hapax.ID, error) { return o.svc.Next(ctx, o.tag) }

// A treeStore is Leaf's tree as a service sees it: one pool, and the tag that stands
// for it.
type treeStore struct {
	mount.NoStore
	*mount.Lazy[*leaf.Tree]
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
