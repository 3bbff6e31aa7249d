package service

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/api"
	"github.com/hapax-id/hapax/internal/service/auth"
	"github.com/hapax-id/hapax/internal/service/define"
	"github.com/hapax-id/hapax/store/driver"
)

// definitions are the tags, as they stand in the store.
type definitions struct {
	*core
	*floors
	*hooks

	bounds   bounds
	recoding chan struct{} // held by the one who changes a tag's code

	// changed is called when a tag is another than it was, before the change is told of: what
	// is open of it is to be opened anew.
	changed func(tag string)

	mu   sync.Mutex // guards live; never held while waiting
	live int        // live tags in the store, as far as is known; -1 before the first count
}

func newDefinitions(c *core, f *floors, h *hooks, changed func(string)) *definitions {
	return &definitions{core: c, floors: f, hooks: h, recoding: make(chan struct{}, 1), changed: changed, live: -1}
}

// counted notes how many live tags there are.
func (ds *definitions) counted(live int) {
	ds.mu.Lock()
	defer ds.mu.Unlock()
	ds.live = live
}

// added notes a tag more or fewer, if they were counted.
func (ds *definitions) added(n int) {
	ds.mu.Lock()
	defer ds.mu.Unlock()
	if ds.live >= 0 {
		ds.live = max(ds.live+n, 0)
	}
}

// each calls see with every tag of the store, by name, and counts those alive.
func (ds *definitions) each(ctx context.Context, see func(hapax.Tag)) (live int, err error) {
	for after := ""; ; {
		page, err := ds.store.Tags(ctx, after, MaxPage)
		if err != nil {
			return 0, err
		}
		for _, t := range page {
			// Lines of periods come by themselves, and must not use up what first use may create.
			if !t.Deleted && !define.IsPeriodLine(t.Name) {
				live++
			}
			see(t)
		}
		if len(page) < MaxPage {
			break
		}
		after = page[len(page)-1].Name
	}
	ds.counted(live)
	return live, nil
}

// Tag returns one tag, also when it is a tombstone. ErrTagNotFound.
func (ds *definitions) Tag(ctx context.Context, name string) (hapax.Tag, error) {
	t, err := ds.definition(ctx, name)
	return t.Tag, err
}

// definition is Tag with its Extra read.
func (ds *definitions) definition(ctx context.Context, name string) (define.Tag, error) {
	if err := hapax.ValidateName("tag", name); err != nil {
		return define.Tag{}, err
	}
	return admin(ctx, ds.core, func(ctx context.Context) (define.Tag, error) { return ds.store.Definition(ctx, name) })
}

// Tags returns up to limit tags, 1 to MaxPage, tombstones among them, whose
// names come after the given one, in the byte order of their names.
func (ds *definitions) Tags(ctx context.Context, after string, limit int) ([]hapax.Tag, error) {
	if limit < 1 || limit > MaxPage {
		return nil, outOfRange("limit", limit, fmt.Sprintf("1 to %d", MaxPage))
	}
	return admin(ctx, ds.core, func(ctx context.Context) ([]hapax.Tag, error) { return ds.store.Tags(ctx, after, limit) })
}

// CreateTag creates a tag and returns it as stored. CreateExplicit revives a
// tombstone above its mark, and CreateTombstone and CreateFromToken are for moves.
// CreateFirstUse is what a client does that leases from a tag that does not exist yet: a
// definition in the options replaces the client's, and without one the options' NoAutoCreate
// and MaxTags apply.
// ErrTagExists, ErrTagDeleted, ErrKindMismatch, ErrLimitExceeded.
func (ds *definitions) CreateTag(ctx context.Context, tag hapax.Tag, mode hapax.CreateMode) (hapax.Tag, error) {
	if err := define.CheckForm("tag", tag.Name); err != nil {
		return hapax.Tag{}, err
	}
	if define.IsPeriodLine(tag.Name) && mode == hapax.CreateFirstUse { // a client leases from it
		return admin(ctx, ds.core, func(ctx context.Context) (hapax.Tag, error) {
			line, _, err := ds.lineTag(ctx, tag.Name)
			return line.Tag, err
		})
	}
	undo := func() {}
	if mode == hapax.CreateFirstUse {
		if def, ok := ds.declared(tag.Name); ok {
			tag = def.Tag
		} else {
			var err error
			if undo, err = ds.mayCreate(ctx, tag); err != nil {
				return hapax.Tag{}, err
			}
		}
	}
	def, err := ds.settle(ctx, tag, mode)
	if err != nil {
		undo()
		return hapax.Tag{}, err
	}
	t, err := admin(ctx, ds.core, func(ctx context.Context) (hapax.Tag, error) { return ds.create(ctx, def, mode) })
	if mode != hapax.CreateFirstUse {
		ds.Attempted(ctx, "create tag", err, "tag", tag.Name)
	}
	if err != nil {
		undo()
		return t, err
	}
	if t.Deleted {
		return t, nil
	}
	ds.added(1)
	ds.observe(hapax.Event{Kind: hapax.EventTagCreated, Tag: t.Name})
	return t, nil
}

// settle returns the definition of a tag to be created as it is stored.
func (ds *definitions) settle(ctx context.Context, tag hapax.Tag, mode hapax.CreateMode) (define.Tag, error) {
	tag, err := tag.WithDefaults()
	def := define.Read(tag)
	if err == nil {
		def, err = ds.settleCode(ctx, def, mode)
	}
	if err == nil && def.Kind == hapax.KindSnowflake {
		err = ds.admitPool(ctx, def.Pool)
	}
	return def, err
}

// WouldCreate returns the tag that CreateTag would store with CreateExplicit, and the
// tombstone that it would revive; nil if there is none. It changes nothing.
func (ds *definitions) WouldCreate(ctx context.Context, tag hapax.Tag) (would hapax.Tag, tombstone *hapax.Tag, err error) {
	if err := define.CheckForm("tag", tag.Name); err != nil {
		return would, nil, err
	}
	def, err := ds.settle(ctx, tag, hapax.CreateExplicit)
	if would = def.Tag; err != nil {
		return would, nil, err
	}
	was, err := ds.Tag(ctx, tag.Name)
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
func (ds *definitions) mayCreate(ctx context.Context, tag hapax.Tag) (undo func(), err error) {
	name := tag.Name
	if ds.opts.NoAutoCreate {
		return nil, fmt.Errorf("%w: %q; create it first", hapax.ErrTagNotFound, name)
	}
	caller := auth.FromContext(ctx)
	// A definition is for good: whoever may only take numbers must not freeze a kind or a delta.
	if !caller.MayDefine(name) && !isPlain(tag) {
		return nil, fmt.Errorf("%w: %q may not define the tag %q by its first use; have an administrator create it", api.ErrPermissionDenied, caller.Name(), name)
	}
	ds.mu.Lock()
	live := ds.live
	ds.mu.Unlock()
	if live < 0 {
		n, err := ds.each(ctx, func(hapax.Tag) {})
		if err != nil {
			return nil, err
		}
		live = n
	}
	// A bound against floods and no exact one: first uses on several nodes may pass it together.
	if live >= ds.opts.MaxTags {
		return nil, fmt.Errorf("%w: there are %d tags, and first use creates no more than %d; create %q explicitly, or raise max_tags",
			api.ErrLimitExceeded, live, ds.opts.MaxTags, name)
	}
	return caller.TakeNewTag()
}

// create creates a tag. The columns of one that is created explicitly are read at once,
// those of another before its first grant.
func (ds *definitions) create(ctx context.Context, def define.Tag, mode hapax.CreateMode) (hapax.Tag, error) {
	tag := def.Tag
	if mode == hapax.CreateFirstUse || len(def.Says.Floors) == 0 {
		return ds.store.CreateTag(ctx, tag, mode)
	}
	least, note, err := ds.readFloors(ctx, tag, def.Says)
	if err != nil {
		return tag, err
	}
	if tag.Kind == hapax.KindSegment {
		tag.Mark = max(tag.Mark, least)
	}
	if tag, err = ds.store.CreateTag(ctx, tag, mode); err != nil {
		return tag, err
	}
	if tag.Kind == hapax.KindSegment && least > 0 && !tag.Deleted { // of a tombstone a grant from below may be open
		if tag, err = ds.store.UpdateTag(ctx, tag.Name, floorUpdate(least)); err != nil {
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

// UpdateTag changes a segment tag. An issuer that still asks for the tag's own step follows with its
// next grant, one that has adapted its step with the grant after that. ErrTagNotFound, ErrTagDeleted,
// ErrKindMismatch.
func (ds *definitions) UpdateTag(ctx context.Context, name string, u driver.TagUpdate) (hapax.Tag, error) {
	if err := hapax.ValidateName("tag", name); err != nil {
		return hapax.Tag{}, err
	}
	t, err := admin(ctx, ds.core, func(ctx context.Context) (hapax.Tag, error) {
		if u.Extra != nil {
			return ds.updateCode(ctx, name, u)
		}
		return ds.store.UpdateTag(ctx, name, u)
	})
	ds.Attempted(ctx, "change tag", err, "tag", name)
	if err == nil {
		ds.bounds.note(t)
	}
	if err == nil && (u.Floor != nil || u.Extra != nil) {
		ds.changed(name) // what is granted here may lie below the floor
	}
	return t, err
}

// DeleteTag leaves a tombstone, which keeps the mark, and returns it. This node
// stops issuing at once, others within Options.Refresh. ErrTagNotFound,
// ErrTagDeleted.
func (ds *definitions) DeleteTag(ctx context.Context, name string) (hapax.Tag, error) {
	if err := hapax.ValidateName("tag", name); err != nil {
		return hapax.Tag{}, err
	}
	t, err := admin(ctx, ds.core, func(ctx context.Context) (hapax.Tag, error) { return ds.store.DeleteTag(ctx, name) })
	ds.Attempted(ctx, "delete tag", err, "tag", name)
	if err != nil {
		return t, err
	}
	if !define.IsPeriodLine(name) {
		ds.added(-1)
	}
	ds.changed(name)
	// After the tag itself is a tombstone, lest the next caller makes a line anew that was dropped.
	b, _ := ds.bounds.of(name)
	if c, err := ds.opts.keys().Code(b.def.Now(t)); err == nil && c.HasPeriod() {
		_, err = admin(ctx, ds.core, func(ctx context.Context) (struct{}, error) { return struct{}{}, ds.dropLines(ctx, name) })
		if err != nil {
			ds.log.Warn("the lines of a deleted tag are still there; nothing is issued from them", "tag", name, "err", err)
		}
	}
	ds.observe(hapax.Event{Kind: hapax.EventTagDeleted, Tag: name})
	return t, nil
}

// settleCode returns the definition of a tag to be created as it is stored.
func (ds *definitions) settleCode(ctx context.Context, t define.Tag, mode hapax.CreateMode) (define.Tag, error) {
	if define.IsPeriodLine(t.Name) {
		return t, &hapax.ValueError{Field: "tag", Value: t.Name, Allowed: "another name: those of this form are the lines of tags whose numbers restart with each period", Err: hapax.ErrInvalidTag}
	}
	d, err := ds.opts.keys().Canonical(t)
	if err == nil {
		d, err = ds.freeze(d)
	}
	if err != nil || mode == hapax.CreateFirstUse {
		return d, err
	}
	was, err := admin(ctx, ds.core, func(ctx context.Context) (define.Tag, error) { return ds.store.Definition(ctx, t.Name) })
	switch {
	case errors.Is(err, hapax.ErrTagNotFound):
		return d, nil
	case err != nil || !was.Deleted:
		return d, err // CreateTag says that it exists
	}
	return ds.opts.keys().Revive(was, d, t.Says)
}

// extraTries is how often an Extra is made anew because another node has changed the tag meanwhile.
const extraTries = 10

// supersede returns a tag as it stands in the store, and the Extra that it is to have so that it says
// what is given.
func (ds *definitions) supersede(ctx context.Context, name string, given define.Tag) (was define.Tag, next string, err error) {
	if was, err = ds.store.Definition(ctx, name); err != nil {
		return was, "", err
	}
	t, err := ds.opts.keys().Supersede(was, given)
	return was, t.Extra, err
}

// updateCode is UpdateTag where the Extra changes.
func (ds *definitions) updateCode(ctx context.Context, name string, u driver.TagUpdate) (hapax.Tag, error) {
	select {
	case ds.recoding <- struct{}{}: // one at a time, so that only other nodes get in between
		defer func() { <-ds.recoding }()
	case <-ctx.Done():
		return hapax.Tag{}, &hapax.WaitError{Cause: hapax.ErrRefillPending, Context: context.Cause(ctx)}
	}
	given := define.Read(hapax.Tag{Extra: *u.Extra})
	was, next, err := ds.supersede(ctx, name, given)
	if err != nil {
		return was.Tag, err
	}
	least, note, err := ds.readFloors(ctx, was.Tag, given.Says)
	if err != nil {
		return was.Tag, err
	}
	if least > 0 && (u.Floor == nil || *u.Floor < least) {
		u.Floor = &least
	}
	var t hapax.Tag
	for range extraTries {
		u.Extra, u.ExtraWas = &next, &was.Extra
		if t, err = ds.store.UpdateTag(ctx, name, u); !errors.Is(err, driver.ErrExtraChanged) {
			break
		}
		// Another node was faster, and what it wrote is to be kept, too.
		if was, next, err = ds.supersede(ctx, name, given); err != nil {
			return was.Tag, err
		}
	}
	if errors.Is(err, driver.ErrExtraChanged) {
		err = fmt.Errorf("%w: other nodes keep changing tag %q: try again", hapax.ErrStoreUnavailable, name)
	}
	if err != nil {
		return t, err
	}
	if least > was.Mark {
		ds.wasBehind("tag "+name, name, was.Mark, least)
	}
	return t, note(ctx)
}
