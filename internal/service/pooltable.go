package service

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/api"
	"github.com/hapax-id/hapax/identity"
	"github.com/hapax-id/hapax/internal/service/health"
	"github.com/hapax-id/hapax/internal/service/watch"
	"github.com/hapax-id/hapax/store/driver"
)

// A pool is a worker pool in use on this node.
type pool struct {
	name     string
	labelled bool              // has metrics under its own name; does not change
	slot     chan struct{}     // held by the one who opens the issuer
	workers  hapax.WorkerStore // where its workers come from; set while slot is held
	issuer   atomic.Pointer[hapax.Snowflake]
	reason   watch.Reason                              // why its issuer is not open yet
	choice   atomic.Pointer[identity.Choice]           // which worker IDs may be used, once it is known
	census   atomic.Pointer[map[api.WorkerState]int64] // how many worker IDs are in each state; set by refresh
	use      atomic.Pointer[health.Use]                // how these change; likewise

	counts health.Counts // of free worker IDs; refresh's alone
}

// poolTable holds the pools in use on this node. An issuer is opened by one goroutine at a
// time, which holds the pool's slot.
type poolTable struct {
	*core
	*workers

	opened chan struct{} // a pool was opened, whose workers are to be counted

	mu sync.Mutex // guards of; never held while waiting
	of map[string]*pool
}

func newPoolTable(c *core, w *workers) *poolTable {
	return &poolTable{core: c, workers: w, opened: make(chan struct{}, 1), of: map[string]*pool{}}
}

// pool returns the pool of that name, whose issuer may not be open yet.
func (ps *poolTable) pool(name string) *pool {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	p, ok := ps.of[name]
	if !ok {
		p = &pool{name: name, labelled: name != health.Others && len(ps.of) < health.MaxLabelled, slot: make(chan struct{}, 1)}
		ps.of[name] = p
	}
	return p
}

// poolLabel returns what a pool is called in metrics, whose number is bounded.
func (ps *poolTable) poolLabel(name string) string {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if p := ps.of[name]; p != nil && !p.labelled {
		return health.Others
	}
	return name
}

// openPools returns the pools whose issuer is open.
func (ps *poolTable) openPools() []*pool {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	var open []*pool
	for _, p := range ps.of {
		if p.issuer.Load() != nil {
			open = append(open, p)
		}
	}
	return open
}

// openPool returns the pool's issuer, which all its tags share.
func (ps *poolTable) openPool(ctx context.Context, p *pool) (*hapax.Snowflake, error) {
	select {
	case p.slot <- struct{}{}:
		defer func() { <-p.slot }()
	case <-ctx.Done():
		return nil, &hapax.WaitError{Cause: p.reason.Err(), Context: context.Cause(ctx)}
	}
	// Whoever had the slot before may have opened it.
	if issuer := p.issuer.Load(); issuer != nil {
		return issuer, nil
	}
	workers, err := ps.workersOf(ctx, p)
	if err != nil {
		return nil, err
	}
	var layout hapax.Layout
	err = ps.retry(ctx, &p.reason, func(ctx context.Context) (err error) {
		if err = ps.admitPool(ctx, p.name); err == nil {
			layout, err = ps.poolLayout(ctx, p.name, workers)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	opts, err := ps.opts.poolOptions(p.name, layout)
	if err != nil {
		return nil, err
	}
	choice, err := ps.choose(ctx, p, opts.Layout)
	if err != nil {
		return nil, err
	}
	choice.Apply(&opts)
	opts.Pool = p.name
	opts.Holder = ps.opts.Holder
	opts.KeepWarm = true
	opts.StoreTimeout = ps.opts.StoreTimeout
	opts.Observer = ps.observe
	opts.Clock = ps.opts.Clock
	issuer, err := hapax.NewSnowflake(ctx, workers, opts)
	if err != nil {
		return nil, err
	}
	if choice.IsFixed() {
		grant := max(opts.Grant, opts.MaxGrant)
		ps.log.Info("this node has one worker ID in the pool", "pool", p.name, "worker", choice.IDs.Lo, "grant", grant,
			"rides_out_an_outage_of", grant/identity.OutageShare, "waits_after_a_crash_up_to", grant,
			"or_without_its_data_directory_up_to", grant+cmp.Or(opts.Lease, hapax.DefaultLease))
	}
	p.issuer.Store(issuer)
	ps.metrics.Pool(ps.poolLabel(p.name)) // so that the series begins at 0
	// One word is enough, however many pools were opened: all are counted then.
	select {
	case ps.opened <- struct{}{}:
	default:
	}
	return issuer, nil
}

// workersOf returns where an opening pool gets its workers from: the store, or
// the pool's cache in front of it, which is opened once.
func (ps *poolTable) workersOf(ctx context.Context, p *pool) (hapax.WorkerStore, error) {
	if p.workers == nil {
		store := ps.store.Telling(&p.reason)
		var workers hapax.WorkerStore = store
		if ps.opts.Cache != nil && ps.opts.Pools[p.name].Cache {
			var err error
			if workers, err = ps.opts.Cache(ctx, p.name, store.Impatient()); err != nil {
				return nil, err
			}
		}
		p.workers = workers
	}
	return p.workers, nil
}

// poolLayout returns the layout that the pool is configured or frozen with, or
// the zero Layout if that is open.
func (ps *poolTable) poolLayout(ctx context.Context, name string, workers hapax.WorkerStore) (hapax.Layout, error) {
	if l, err := ps.opts.Pools[name].layout(); err != nil || !l.IsZero() {
		return l, err
	}
	pools, err := ps.store.Pools(ctx)
	// A lease in the data directory goes on without the store, and knows of which layout it is.
	if keeper, ok := workers.(layoutKeeper); ok && err != nil && watch.IsAway(err) {
		if l, kept := keeper.Layout(ctx); kept == nil && !l.IsZero() {
			return l, nil
		}
	}
	if err != nil {
		return hapax.Layout{}, err
	}
	for _, p := range pools {
		if p.Name == name {
			l, err := hapax.ParseLayout(p.Layout)
			if err == nil {
				ps.keep(name, l)
			}
			return l, err
		}
	}
	return hapax.Layout{}, nil
}

// A layoutKeeper knows a pool's layout while the store is away.
type layoutKeeper interface {
	Layout(ctx context.Context) (hapax.Layout, error)
}

// DeletePool removes a pool of which no worker ID was used, and leaves a
// tombstone of any other. ErrPoolNotFound, ErrInvalidArgument for a pool that is in
// use on this node.
func (ps *poolTable) DeletePool(ctx context.Context, pool string) (driver.Pool, error) {
	ps.mu.Lock()
	p := ps.of[pool]
	ps.mu.Unlock()
	if p != nil && p.issuer.Load() != nil {
		return driver.Pool{}, outOfRange("pool", pool, "a pool that this node does not issue from")
	}
	deleted, err := admin(ctx, ps.core, func(ctx context.Context) (driver.Pool, error) { return ps.store.DeletePool(ctx, pool) })
	ps.Attempted(ctx, "delete pool", err, "pool", pool)
	if err == nil {
		ps.forget(pool)
	}
	return deleted, err
}

// PoolStatuses returns the pools that are configured or were ever used, by name.
func (ps *poolTable) PoolStatuses(ctx context.Context) ([]api.PoolStatus, error) {
	stored, err := ps.Pools(ctx)
	if err != nil {
		return nil, err
	}
	byName := map[string]*api.PoolStatus{}
	for _, p := range stored {
		byName[p.Name] = poolStatus(p)
		byName[p.Name].Frozen = true
	}
	for _, name := range append(slices.Collect(maps.Keys(ps.opts.Pools)), hapax.DefaultPool) {
		p := byName[name]
		if p == nil {
			layout, err := ps.opts.layoutOf(name)
			if err != nil {
				return nil, err
			}
			p = poolStatus(driver.Pool{Name: name, Layout: layout.String()})
			byName[name] = p
		}
		_, p.Configured = ps.opts.Pools[name]
	}
	for _, p := range ps.openPools() {
		stats := p.issuer.Load().Stats()
		if status := byName[p.name]; status != nil {
			status.Issuer = &api.PoolIssuer{Worker: stats.Worker, Issued: stats.Issued, Remaining: stats.Remaining.Seconds()}
			if c := p.choice.Load(); c != nil && c.Counted {
				status.StartsLeft = new(c.Left)
			}
		}
	}
	var statuses []api.PoolStatus
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		statuses = append(statuses, *byName[name])
	}
	return statuses, nil
}

func poolStatus(p driver.Pool) *api.PoolStatus {
	status := &api.PoolStatus{Name: p.Name, Layout: p.Layout, Deleted: p.Deleted}
	if l, err := hapax.ParseLayout(p.Layout); err == nil {
		status.Layout, status.Workers = LayoutName(l), l.Workers()
	}
	return status
}

// census counts the worker IDs of the pools in use on this node, for the metrics.
func (ps *poolTable) census(ctx context.Context) error {
	for _, p := range ps.openPools() {
		statuses, err := ps.WorkerStatuses(ctx, p.name)
		if err != nil {
			return err
		}
		layout, err := ps.PoolLayout(ctx, p.name)
		if err != nil {
			return err
		}
		count := map[api.WorkerState]int64{api.WorkerFree: layout.Workers() - int64(len(statuses))}
		for _, st := range statuses {
			count[st.State]++
		}
		p.census.Store(&count)
		if p.issuer.Load().Stats().Rollback > 0 {
			continue // by a clock that is behind, worker IDs that are free seem to be held
		}
		now, elapsed := ps.clocks()
		p.use.Store(p.counts.Used(statuses, count[api.WorkerFree], now, elapsed))
	}
	return nil
}

// choose returns which worker IDs of an opening pool this node may use. It asks
// the pool's identity once: a worker ID that a start has used up is not to be
// used up again because the store was slow.
func (ps *poolTable) choose(ctx context.Context, p *pool, layout hapax.Layout) (identity.Choice, error) {
	if c := p.choice.Load(); c != nil {
		return *c, nil
	}
	if layout.IsZero() {
		var err error
		if layout, err = ps.opts.layoutOf(p.name); err != nil {
			return identity.Choice{}, err
		}
	}
	var choice identity.Choice
	err := ps.retry(ctx, &p.reason, func(ctx context.Context) (err error) {
		choice, err = ps.opts.Pools[p.name].choose(ctx, p.name, layout, ps.store)
		return err
	})
	if err != nil {
		return choice, inSetting("pools."+p.name, err)
	}
	if choice.Counted {
		ps.log.Info("this start has used up a worker ID", "pool", p.name, "worker", choice.IDs.Lo, "left", choice.Left)
	}
	p.choice.Store(&choice)
	return choice, nil
}

// Snowflakes returns what this node has issued of each pool that it issues from, by the
// pool's name. It asks no store.
func (ps *poolTable) Snowflakes() []hapax.SnowflakeStats {
	var all []hapax.SnowflakeStats
	for _, p := range ps.openPools() {
		all = append(all, p.issuer.Load().Stats())
	}
	slices.SortFunc(all, func(a, b hapax.SnowflakeStats) int { return cmp.Compare(a.Pool, b.Pool) })
	return all
}
