package service

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/service/define"
	"github.com/hapax-id/hapax/internal/service/watch"
	"github.com/hapax-id/hapax/store/driver"
)

// layouts are the layouts of pools: those that the store has frozen, as far as they were
// read, and before that those of the options.
type layouts struct {
	*core

	mu      sync.Mutex              // guards the fields below; never held while waiting
	frozen  map[string]hapax.Layout // by pool
	settled map[string]hapax.Layout // those of pools of which a worker ID was used, which never change again
}

func newLayouts(c *core) *layouts {
	return &layouts{core: c, frozen: map[string]hapax.Layout{}, settled: map[string]hapax.Layout{}}
}

// seen returns a pool's frozen layout, if it was read.
func (l *layouts) seen(pool string) (hapax.Layout, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	layout, ok := l.frozen[pool]
	return layout, ok
}

func (l *layouts) keep(pool string, layout hapax.Layout) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.frozen[pool] = layout
}

func (l *layouts) forget(pool string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.frozen, pool)
	delete(l.settled, pool)
}

// settleLayout notes the layout of a pool of which a worker ID is in use.
func (l *layouts) settleLayout(pool string, layout hapax.Layout) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.settled[pool], l.frozen[pool] = layout, layout
}

// forgetGone forgets what was known before the pools were read, and is not among them. A pool that is gone
// was never used.
func (l *layouts) forgetGone(before map[string]hapax.Layout, pools []driver.Pool) {
	for _, p := range pools {
		if !p.Deleted {
			delete(before, p.Name)
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for name, layout := range before {
		if _, used := l.settled[name]; !used && l.frozen[name] == layout {
			delete(l.frozen, name)
		}
	}
}

// layoutKnown returns a pool's layout, and the zero Layout for no pool.
func (l *layouts) layoutKnown(pool string) hapax.Layout {
	if pool == "" {
		return hapax.Layout{}
	}
	layout, ok := l.seen(pool)
	if !ok {
		layout, _ = l.opts.layoutOf(pool) // as it will be frozen
	}
	return layout
}

// frozenLayout returns the layout that the store has frozen the pool with.
func (l *layouts) frozenLayout(ctx context.Context, pool string) (hapax.Layout, error) {
	if layout, ok := l.seen(pool); ok {
		return layout, nil
	}
	if err := l.learnPools(ctx); err != nil {
		return hapax.Layout{}, err
	}
	layout, ok := l.seen(pool)
	if !ok {
		return layout, fmt.Errorf("%w: %q", hapax.ErrPoolNotFound, pool)
	}
	return layout, nil
}

// layoutNow is frozenLayout for callers that count ticks by it: a pool of which no worker ID was used may have
// been deleted, and made anew with another layout, since this node has read it.
func (l *layouts) layoutNow(ctx context.Context, pool string) (hapax.Layout, error) {
	l.mu.Lock()
	layout, ok := l.settled[pool]
	l.mu.Unlock()
	if ok {
		return layout, nil
	}
	if err := l.learnPools(ctx); err != nil {
		return hapax.Layout{}, err
	}
	if layout, ok = l.seen(pool); !ok {
		return layout, fmt.Errorf("%w: %q", hapax.ErrPoolNotFound, pool)
	}
	return layout, nil
}

// learnPools reads the frozen layouts.
func (l *layouts) learnPools(ctx context.Context) error {
	l.mu.Lock()
	before := maps.Clone(l.frozen)
	l.mu.Unlock()
	pools, err := l.store.Pools(ctx)
	if err != nil {
		return err
	}
	l.forgetGone(before, pools)
	for _, p := range pools {
		if err := l.opts.checkPool(p); err != nil {
			l.store.Note(watch.Pool(p.Name), err)
			if pass, dropped := l.throttle.pass("layout"); pass {
				l.log.Error("a pool cannot be used", "pool", p.Name, "code", string(hapax.CodeOf(err)), "err", err, "suppressed", dropped)
			}
		}
	}
	for _, p := range pools {
		// Also where the configuration says otherwise: the frozen layout is how its numbers are read.
		if layout, err := hapax.ParseLayout(p.Layout); err == nil && !p.Deleted {
			l.keep(p.Name, layout)
		}
	}
	return nil
}

// admitPool refuses a pool that is neither configured nor in the store: a misspelt
// name must not be frozen.
func (l *layouts) admitPool(ctx context.Context, name string) error {
	if l.opts.hasPool(name) {
		return nil
	}
	_, err := admin(ctx, l.core, func(ctx context.Context) (hapax.Layout, error) { return l.frozenLayout(ctx, name) })
	if errors.Is(err, hapax.ErrPoolNotFound) {
		return outOfRange("pool", name, l.opts.poolNamesInWords()+" or that the store knows")
	}
	return err
}

// knownPool returns the layout of a pool that is configured or was ever used.
func (l *layouts) knownPool(ctx context.Context, pool string) (hapax.Layout, error) {
	layout, err := l.PoolLayout(ctx, pool)
	if err != nil || slices.Contains(l.opts.poolNames(), pool) {
		return layout, err
	}
	// It was used, or its layout is the one that it would have.
	_, err = admin(ctx, l.core, func(ctx context.Context) (hapax.Layout, error) { return l.frozenLayout(ctx, pool) })
	if errors.Is(err, hapax.ErrPoolNotFound) {
		err = fmt.Errorf("%w: %q is not configured and was never used", hapax.ErrPoolNotFound, pool)
	}
	return layout, err
}

// Pools returns the pools that exist, tombstones among them, by name.
func (l *layouts) Pools(ctx context.Context) ([]driver.Pool, error) {
	return admin(ctx, l.core, func(ctx context.Context) ([]driver.Pool, error) { return l.store.Pools(ctx) })
}

// CreatePool freezes a pool's layout. A configured pool has the layout that the
// configuration says. ErrLayoutMismatch.
func (l *layouts) CreatePool(ctx context.Context, pool, spec string) (driver.Pool, error) {
	layout, err := hapax.ParseLayout(spec)
	if err == nil {
		err = define.CheckForm("pool", pool)
	}
	if err != nil {
		return driver.Pool{}, err
	}
	if c, err := l.opts.Pools[pool].layout(); err != nil || !c.IsZero() && c != layout {
		return driver.Pool{}, errors.Join(err, fmt.Errorf("%w: the configuration says %s for pool %q", hapax.ErrLayoutMismatch, c, pool))
	}
	created, err := admin(ctx, l.core, func(ctx context.Context) (driver.Pool, error) { return l.store.CreatePool(ctx, pool, layout.String()) })
	l.Attempted(ctx, "create pool", err, "pool", pool, "layout", layout.String())
	return created, err
}

// PoolLayout returns the layout that a pool is frozen with, or will be when it is
// first used.
func (l *layouts) PoolLayout(ctx context.Context, pool string) (hapax.Layout, error) {
	if err := hapax.ValidateName("pool", pool); err != nil {
		return hapax.Layout{}, err
	}
	layout, err := admin(ctx, l.core, func(ctx context.Context) (hapax.Layout, error) { return l.frozenLayout(ctx, pool) })
	if errors.Is(err, hapax.ErrPoolNotFound) {
		return l.opts.layoutOf(pool)
	}
	return layout, err
}

// Parsed is what an ID says.
type Parsed struct {
	ID     hapax.ID     `json:"id"`
	Layout string       `json:"layout"` // the name, or else the spec
	Time   time.Time    `json:"time"`
	Fields hapax.Fields `json:"fields"`
}

// Parse takes an ID apart by a layout's name or spec; "" stands for the layout
// of the default pool. ErrInvalidLayout, ErrInvalidID.
func (l *layouts) Parse(id hapax.ID, nameOrSpec string) (Parsed, error) {
	layout, err := l.Layout(nameOrSpec)
	if err != nil {
		return Parsed{}, err
	}
	fields, err := layout.Parse(id)
	if err != nil {
		return Parsed{}, err
	}
	at, err := layout.Time(id)
	if err != nil {
		return Parsed{}, err
	}
	return Parsed{ID: id, Layout: LayoutName(layout), Time: at, Fields: fields}, nil
}

// Compose returns the ID with the given fields in a layout, by name or spec; ""
// stands for the layout of the default pool. Fields other than the time may be
// missing and are 0 then. ErrInvalidLayout, ErrFieldRange, ErrInvalidArgument.
func (l *layouts) Compose(nameOrSpec string, fields hapax.Fields) (hapax.ID, error) {
	layout, err := l.Layout(nameOrSpec)
	if err != nil {
		return 0, err
	}
	fields = slices.Clone(fields)
	for f := range layout.Fields() {
		if _, ok := fields.Get(f.Name); !ok && f.Name != hapax.FieldTime {
			fields = append(fields, hapax.Field{Name: f.Name})
		}
	}
	return layout.Compose(fields)
}

// Layout returns the layout with that name or spec; "" stands for the layout of
// the default pool.
func (l *layouts) Layout(nameOrSpec string) (hapax.Layout, error) {
	if nameOrSpec != "" {
		return hapax.ParseLayout(nameOrSpec)
	}
	if frozen, ok := l.seen(hapax.DefaultPool); ok {
		return frozen, nil
	}
	return l.opts.layoutOf(hapax.DefaultPool)
}

// Layouts returns the built-in layouts and those of the configured pools that
// are not among them.
func (l *layouts) Layouts() []hapax.Layout {
	var all []hapax.Layout
	add := func(nameOrSpec string) {
		if layout, err := hapax.ParseLayout(nameOrSpec); err == nil && !slices.Contains(all, layout) {
			all = append(all, layout)
		}
	}
	for _, name := range hapax.Layouts() {
		add(name)
	}
	for _, name := range slices.Sorted(maps.Keys(l.opts.Pools)) {
		add(l.opts.Pools[name].Layout)
	}
	return all
}

// LayoutName returns the name of a built-in layout, and the spec of any other.
func LayoutName(l hapax.Layout) string {
	if name := l.Name(); name != "" {
		return name
	}
	return l.String()
}
