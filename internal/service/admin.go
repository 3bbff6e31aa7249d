package service

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/api"
	"github.com/hapax-id/hapax/internal/service/auth"
	"github.com/hapax-id/hapax/internal/service/define"
	"github.com/hapax-id/hapax/store/driver"
)

// Tag returns one tag, also when it is a tombstone. ErrTagNotFound.
func (s *Service) Tag(ctx context.Context, name string) (hapax.Tag, error) {
	if err := hapax.ValidateName("tag", name); err != nil {
		return hapax.Tag{}, err
	}
	return admin(ctx, s, func(ctx context.Context) (hapax.Tag, error) { return s.store.Tag(ctx, name) })
}

// Tags returns up to limit tags, 1 to MaxPage, tombstones among them, whose
// names come after the given one, in the byte order of their names.
func (s *Service) Tags(ctx context.Context, after string, limit int) ([]hapax.Tag, error) {
	if limit < 1 || limit > MaxPage {
		return nil, outOfRange("limit", limit, fmt.Sprintf("1 to %d", MaxPage))
	}
	return admin(ctx, s, func(ctx context.Context) ([]hapax.Tag, error) { return s.store.Tags(ctx, after, limit) })
}

// CreateTag creates a tag and returns it as stored. CreateExplicit revives a
// tombstone above its mark. CreateFirstUse is what a client does that leases
// from a tag that does not exist yet: a definition in the options replaces the
// client's, and without one the options' NoAutoCreate and MaxTags apply.
// ErrTagExists, ErrTagDeleted, ErrKindMismatch, ErrLimitExceeded.
func (s *Service) CreateTag(ctx context.Context, tag hapax.Tag, mode hapax.CreateMode) (hapax.Tag, error) {
	if err := define.CheckForm("tag", tag.Name); err != nil {
		return hapax.Tag{}, err
	}
	if define.IsPeriodLine(tag.Name) && mode == hapax.CreateFirstUse { // a client leases from it
		return admin(ctx, s, func(ctx context.Context) (hapax.Tag, error) {
			line, _, err := s.lineTag(ctx, tag.Name)
			return line, err
		})
	}
	undo := func() {}
	if mode == hapax.CreateFirstUse {
		if def, ok := s.declared(tag.Name); ok {
			tag = def
		} else {
			var err error
			if undo, err = s.mayCreate(ctx, tag); err != nil {
				return hapax.Tag{}, err
			}
		}
	}
	tag, err := s.settle(ctx, tag, mode)
	if err != nil {
		undo()
		return hapax.Tag{}, err
	}
	t, err := admin(ctx, s, func(ctx context.Context) (hapax.Tag, error) { return s.create(ctx, tag, mode) })
	if mode == hapax.CreateExplicit {
		s.Attempted(ctx, "create tag", err, "tag", tag.Name)
	}
	if err != nil {
		undo()
		return t, err
	}
	s.mu.Lock()
	delete(s.refused, t.Name)
	delete(s.absent, t.Name)
	if s.live >= 0 {
		s.live++
	}
	s.mu.Unlock()
	s.observe(hapax.Event{Kind: hapax.EventTagCreated, Tag: t.Name})
	return t, nil
}

// settle returns the definition of a tag to be created as it is stored.
func (s *Service) settle(ctx context.Context, tag hapax.Tag, mode hapax.CreateMode) (hapax.Tag, error) {
	tag, err := tag.WithDefaults()
	if err == nil {
		tag, err = s.settleCode(ctx, tag, mode)
	}
	if err == nil && tag.Kind == hapax.KindSnowflake {
		err = s.admitPool(ctx, tag.Pool)
	}
	return tag, err
}

// WouldCreate returns the tag that CreateTag would store with CreateExplicit, and the
// tombstone that it would revive; nil if there is none. It changes nothing.
func (s *Service) WouldCreate(ctx context.Context, tag hapax.Tag) (would hapax.Tag, tombstone *hapax.Tag, err error) {
	if err := define.CheckForm("tag", tag.Name); err != nil {
		return would, nil, err
	}
	if would, err = s.settle(ctx, tag, hapax.CreateExplicit); err != nil {
		return would, nil, err
	}
	was, err := s.Tag(ctx, tag.Name)
	switch {
	case errors.Is(err, hapax.ErrTagNotFound):
		return would, nil, nil
	case err == nil && !was.Deleted:
		return would, nil, fmt.Errorf("%w: %q", hapax.ErrTagExists, tag.Name)
	}
	return would, &was, err
}

// mayCreate reports whether first use may create an undeclared tag, and counts it
// for the caller; undo takes that back. Only an administrator's definition counts.
func (s *Service) mayCreate(ctx context.Context, tag hapax.Tag) (undo func(), err error) {
	name := tag.Name
	if s.opts.NoAutoCreate {
		return nil, fmt.Errorf("%w: %q; create it first", hapax.ErrTagNotFound, name)
	}
	caller := auth.FromContext(ctx)
	if !caller.MayDefine(name) && !isPlain(tag) {
		return nil, fmt.Errorf("%w: %q may not define the tag %q by its first use; have an administrator create it", api.ErrPermissionDenied, caller.Name(), name)
	}
	s.mu.Lock()
	live := s.live
	s.mu.Unlock()
	if live < 0 {
		n, err := s.review(ctx)
		if err != nil {
			return nil, err
		}
		live = n
	}
	if live >= s.opts.MaxTags {
		return nil, fmt.Errorf("%w: there are %d tags, and first use creates no more than %d; create %q explicitly, or raise max_tags",
			api.ErrLimitExceeded, live, s.opts.MaxTags, name)
	}
	return caller.TakeNewTag()
}

// create creates a tag. The columns of one that is created explicitly are read at once,
// those of another before its first grant.
func (s *Service) create(ctx context.Context, tag hapax.Tag, mode hapax.CreateMode) (hapax.Tag, error) {
	if mode != hapax.CreateExplicit || len(define.FloorsOf(tag)) == 0 {
		return s.store.CreateTag(ctx, tag, mode)
	}
	least, note, err := s.readFloors(ctx, tag, tag.Extra)
	if err != nil {
		return tag, err
	}
	if tag.Kind == hapax.KindSegment {
		tag.Mark = max(tag.Mark, least)
	}
	if tag, err = s.store.CreateTag(ctx, tag, mode); err != nil {
		return tag, err
	}
	if tag.Kind == hapax.KindSegment && least > 0 { // of a tombstone a grant from below may be open
		if tag, err = s.store.UpdateTag(ctx, tag.Name, floorUpdate(least)); err != nil {
			return tag, err
		}
	}
	return tag, note(ctx)
}

// isPlain reports whether a definition says no more than that there is a segment
// tag of that name.
func isPlain(tag hapax.Tag) bool {
	plain, err := hapax.Tag{Name: tag.Name}.WithDefaults()
	if err != nil {
		return true // the name is refused later on
	}
	full, err := tag.WithDefaults()
	return err == nil && full == plain
}

// UpdateTag changes a segment tag; issuers adopt the change with their next
// grant. ErrTagNotFound, ErrTagDeleted, ErrKindMismatch.
func (s *Service) UpdateTag(ctx context.Context, name string, u driver.TagUpdate) (hapax.Tag, error) {
	if err := hapax.ValidateName("tag", name); err != nil {
		return hapax.Tag{}, err
	}
	t, err := admin(ctx, s, func(ctx context.Context) (hapax.Tag, error) {
		if u.Extra != nil {
			return s.updateCode(ctx, name, u)
		}
		return s.store.UpdateTag(ctx, name, u)
	})
	s.Attempted(ctx, "change tag", err, "tag", name)
	if err == nil {
		s.bounds.note(t)
	}
	if err == nil && (u.Floor != nil || u.Extra != nil) {
		s.reopen(name) // what is granted here may lie below the floor
	}
	return t, err
}

// DeleteTag leaves a tombstone, which keeps the mark, and returns it. This node
// stops issuing at once, others within Options.Refresh. ErrTagNotFound,
// ErrTagDeleted.
func (s *Service) DeleteTag(ctx context.Context, name string) (hapax.Tag, error) {
	if err := hapax.ValidateName("tag", name); err != nil {
		return hapax.Tag{}, err
	}
	t, err := admin(ctx, s, func(ctx context.Context) (hapax.Tag, error) { return s.store.DeleteTag(ctx, name) })
	s.Attempted(ctx, "delete tag", err, "tag", name)
	if err != nil {
		return t, err
	}
	if !define.IsPeriodLine(name) {
		s.mu.Lock()
		s.live = max(s.live-1, -1)
		s.mu.Unlock()
	}
	s.reopen(name)
	if c, err := s.opts.code(t); err == nil && c.HasPeriod() {
		_, err = admin(ctx, s, func(ctx context.Context) (struct{}, error) { return struct{}{}, s.dropLines(ctx, name) })
		if err != nil {
			s.log.Warn("the lines of a deleted tag are still there; nothing is issued from them", "tag", name, "err", err)
		}
	}
	s.observe(hapax.Event{Kind: hapax.EventTagDeleted, Tag: name})
	return t, nil
}

// reopen closes the tag's line, so that the next use learns what the tag is now.
func (s *Service) reopen(name string) {
	s.mu.Lock()
	if a := s.opening[name]; a != nil {
		a.stale = true
	}
	s.mu.Unlock()
	if l := s.tags.find(name); l != nil {
		s.drop(l)
	}
}

// Workers returns the workers of a pool that were ever used, by worker ID.
func (s *Service) Workers(ctx context.Context, pool string) ([]driver.Worker, error) {
	if err := hapax.ValidateName("pool", pool); err != nil {
		return nil, err
	}
	return admin(ctx, s, func(ctx context.Context) ([]driver.Worker, error) { return s.store.Workers(ctx, pool) })
}

// CreatePool freezes a pool's layout. A configured pool has the layout that the
// configuration says. ErrLayoutMismatch.
func (s *Service) CreatePool(ctx context.Context, pool, layout string) (driver.Pool, error) {
	l, err := hapax.ParseLayout(layout)
	if err == nil {
		err = define.CheckForm("pool", pool)
	}
	if err != nil {
		return driver.Pool{}, err
	}
	if c, err := s.opts.Pools[pool].layout(); err != nil || !c.IsZero() && c != l {
		return driver.Pool{}, errors.Join(err, fmt.Errorf("%w: the configuration says %s for pool %q", hapax.ErrLayoutMismatch, c, pool))
	}
	created, err := admin(ctx, s, func(ctx context.Context) (driver.Pool, error) { return s.store.CreatePool(ctx, pool, l.String()) })
	s.Attempted(ctx, "create pool", err, "pool", pool, "layout", l.String())
	return created, err
}

// DeletePool removes a pool of which no worker ID was used, and leaves a
// tombstone of any other. ErrPoolNotFound, ErrInvalidArgument for a pool that is in
// use on this node.
func (s *Service) DeletePool(ctx context.Context, pool string) (driver.Pool, error) {
	s.mu.Lock()
	p := s.pools[pool]
	s.mu.Unlock()
	if p != nil && p.issuer.Load() != nil {
		return driver.Pool{}, outOfRange("pool", pool, "a pool that this node does not issue from")
	}
	deleted, err := admin(ctx, s, func(ctx context.Context) (driver.Pool, error) { return s.store.DeletePool(ctx, pool) })
	s.Attempted(ctx, "delete pool", err, "pool", pool)
	if err == nil {
		s.mu.Lock()
		delete(s.layouts, pool)
		s.mu.Unlock()
	}
	return deleted, err
}

// Pools returns the pools that exist, tombstones among them, by name.
func (s *Service) Pools(ctx context.Context) ([]driver.Pool, error) {
	return admin(ctx, s, func(ctx context.Context) ([]driver.Pool, error) { return s.store.Pools(ctx) })
}

// PoolStatuses returns the pools that are configured or were ever used, by name.
func (s *Service) PoolStatuses(ctx context.Context) ([]api.PoolStatus, error) {
	stored, err := s.Pools(ctx)
	if err != nil {
		return nil, err
	}
	byName := map[string]*api.PoolStatus{}
	for _, p := range stored {
		byName[p.Name] = poolStatus(p)
		byName[p.Name].Frozen = true
	}
	for _, name := range append(slices.Collect(maps.Keys(s.opts.Pools)), hapax.DefaultPool) {
		p := byName[name]
		if p == nil {
			layout, err := s.opts.layoutOf(name)
			if err != nil {
				return nil, err
			}
			p = poolStatus(driver.Pool{Name: name, Layout: layout.String()})
			byName[name] = p
		}
		_, p.Configured = s.opts.Pools[name]
	}
	for _, p := range s.openPools() {
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

// PoolLayout returns the layout that a pool is frozen with, or will be when it is
// first used.
func (s *Service) PoolLayout(ctx context.Context, pool string) (hapax.Layout, error) {
	if err := hapax.ValidateName("pool", pool); err != nil {
		return hapax.Layout{}, err
	}
	layout, err := admin(ctx, s, func(ctx context.Context) (hapax.Layout, error) { return s.frozenLayout(ctx, pool) })
	if errors.Is(err, hapax.ErrPoolNotFound) {
		return s.opts.layoutOf(pool)
	}
	return layout, err
}

// admin makes one call on the store, bounded like every other wait, and has its
// error match ErrStoreUnavailable and the context's when that ended it.
func admin[T any](ctx context.Context, s *Service, f func(context.Context) (T, error)) (T, error) {
	s.mu.Lock()
	closed := s.closed
	s.mu.Unlock()
	if closed {
		var zero T
		return zero, hapax.ErrClosed
	}
	ctx, cancel := s.capped(ctx)
	defer cancel()
	v, err := f(ctx)
	if err != nil && ctx.Err() != nil && !errors.Is(err, context.Cause(ctx)) {
		err = &hapax.WaitError{Cause: err, Context: context.Cause(ctx)}
	}
	return v, err
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
func (s *Service) Parse(id hapax.ID, layout string) (Parsed, error) {
	l, err := s.Layout(layout)
	if err != nil {
		return Parsed{}, err
	}
	fields, err := l.Parse(id)
	if err != nil {
		return Parsed{}, err
	}
	at, err := l.Time(id)
	if err != nil {
		return Parsed{}, err
	}
	return Parsed{ID: id, Layout: LayoutName(l), Time: at, Fields: fields}, nil
}

// Compose returns the ID with the given fields in a layout, by name or spec; ""
// stands for the layout of the default pool. Fields other than the time may be
// missing and are 0 then. ErrInvalidLayout, ErrFieldRange, ErrInvalidArgument.
func (s *Service) Compose(layout string, fields hapax.Fields) (hapax.ID, error) {
	l, err := s.Layout(layout)
	if err != nil {
		return 0, err
	}
	fields = slices.Clone(fields)
	for f := range l.Fields() {
		if _, ok := fields.Get(f.Name); !ok && f.Name != hapax.FieldTime {
			fields = append(fields, hapax.Field{Name: f.Name})
		}
	}
	return l.Compose(fields)
}

// Layout returns the layout with that name or spec; "" stands for the layout of
// the default pool.
func (s *Service) Layout(nameOrSpec string) (hapax.Layout, error) {
	if nameOrSpec != "" {
		return hapax.ParseLayout(nameOrSpec)
	}
	s.mu.Lock()
	frozen := s.layouts[hapax.DefaultPool]
	s.mu.Unlock()
	if !frozen.IsZero() {
		return frozen, nil
	}
	return s.opts.layoutOf(hapax.DefaultPool)
}

// Layouts returns the built-in layouts and those of the configured pools that
// are not among them.
func (s *Service) Layouts() []hapax.Layout {
	var layouts []hapax.Layout
	add := func(nameOrSpec string) {
		if l, err := hapax.ParseLayout(nameOrSpec); err == nil && !slices.Contains(layouts, l) {
			layouts = append(layouts, l)
		}
	}
	for _, name := range hapax.Layouts() {
		add(name)
	}
	for _, name := range slices.Sorted(maps.Keys(s.opts.Pools)) {
		add(s.opts.Pools[name].Layout)
	}
	return layouts
}

// LayoutName returns the name of a built-in layout, and the spec of any other.
func LayoutName(l hapax.Layout) string {
	if name := l.Name(); name != "" {
		return name
	}
	return l.String()
}
