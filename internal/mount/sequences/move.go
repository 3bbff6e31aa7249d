package sequences

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/compat/sequences"
	"github.com/hapax-id/hapax/internal/mount"
	"github.com/hapax-id/hapax/internal/moves"
)

// A moving is one source on its way.
type moving struct {
	*sequences.Source

	in   *database
	anew bool // the native tag is made again, since the source has gone past it
	shut bool // a command that was killed has shut the source, and not opened its tag
}

// Move implements mount.Movable.
func (m *imported) Move(ctx context.Context, to moves.Target, o mount.MoveOptions) (all mount.Moves, err error) {
	for _, d := range m.all {
		all.Notes = append(all.Notes, d.others...)
	}
	if m.store, err = to.StoreID(ctx); err != nil {
		return all, err
	}
	if o.Undo {
		return m.undo(ctx, to, o, all)
	}
	// The other ways let the writers go on.
	if m.switchOf() == sequences.Stop && !o.IgnoreLiving {
		if err := m.watch(ctx, o.Watch); err != nil {
			return all, err
		}
	}
	by := map[string]*moving{}
	var closed []*moving
	var defs []hapax.Tag
	var others []moves.Move
	for _, d := range m.all {
		for _, s := range d.sources {
			v := &moving{Source: s, in: d}
			var def hapax.Tag
			err := m.notOurs(s)
			switch {
			case err != nil:
			case s.Closed != nil && (s.Closed.How == sequences.Stop || s.Closed.How == m.switchOf()) && len(s.Wrong) == 0:
				if def, v.shut, err = m.unopened(ctx, to, v); err != nil || v.shut {
					break
				}
				done, err := moves.PlanClosed(ctx, to, s.Tag, closes(s, s.Closed.How))
				if err != nil {
					return all, err
				}
				others = append(others, done)
				if done.Reason == nil {
					closed = append(closed, v)
				}
				continue
			default:
				if def, v.anew, err = m.planned(ctx, to, d, s, o.Margin); err == nil {
					_, err = d.speaks.Steps(s, m.switchOf(), def.Start)
				}
			}
			switch {
			case err == nil:
				by[s.Tag] = v
				defs = append(defs, def)
			case moves.IsRefusal(err):
				others = append(others, moves.Move{Tag: hapax.Tag{Name: s.Tag}, Reason: err})
			default:
				return all, err
			}
		}
	}
	if len(defs)+len(others) == 0 {
		return all, mount.Errorf(nil, "no source was found: nothing is to be moved; is this the database, and does --like match?")
	}
	progress, end := o.Bar("comparing")
	all.Tags, err = moves.Plan(ctx, to, defs, progress)
	end()
	for k := range all.Tags {
		all.Tags[k].Closes = closes(by[all.Tags[k].Tag.Name].Source, m.switchOf())
	}
	if err == nil && o.Apply {
		progress, end := o.Bar("moving")
		err = moves.Apply(ctx, all.Tags, func(ctx context.Context, t *moves.Move) error { return m.moveOne(ctx, to, by[t.Tag.Name], t, o) }, progress)
		end()
		for _, t := range all.Tags {
			if t.Reason == nil {
				closed = append(closed, by[t.Tag.Name])
			}
		}
		// Of sources that were shut before, too: an attempt that was cut off may not have come here.
		for _, v := range closed {
			note, err2 := "", err
			if err == nil {
				note, err2 = v.in.keepFloors(ctx, to, v.Source)
			}
			if err = err2; note != "" {
				all.Notes = append(all.Notes, note)
			}
		}
	}
	all.Tags = append(all.Tags, others...)
	return all, err
}

// closes tells what becomes of a source.
func closes(s *sequences.Source, how sequences.Switch) string {
	switch how {
	case sequences.Gap:
		return fmt.Sprintf("%s %s ends below the tag's first number", s.Kind, s.Names[0])
	case sequences.Parity:
		return fmt.Sprintf("%s %s goes on with every other number", s.Kind, s.Names[0])
	}
	return fmt.Sprintf("%s %s gives no more numbers", s.Kind, s.Names[0])
}

// tries bounds how often a tag is made again because its source went past it meanwhile.
const tries = 8

// moveOne shuts a source in front of its tag's first number, and then opens the tag. A source
// that is past that number by now gets another tag, as long as nothing was issued from that. The tag
// is opened only with the token that the source was shut for: an --undo that comes in between raises
// it, and opens the source only while that is shut as it was read.
func (m *imported) moveOne(ctx context.Context, to moves.Target, v *moving, t *moves.Move, o mount.MoveOptions) error {
	if v.shut {
		if v.Unfinished {
			if err := m.shut(ctx, v, v.Closed.How, v.Closed.First, v.Closed.Token); err != nil {
				return err
			}
		}
		return moves.Open(ctx, to, t, v.Closed.Token)
	}
	for left := tries; ; left-- {
		token, held, err := hold(ctx, to, v, t)
		if err != nil {
			return err
		}
		err = m.shut(ctx, v, m.switchOf(), t.Tag.Start, token)
		if err == nil && held {
			return moves.Open(ctx, to, t, token)
		}
		passed, isPassed := errors.AsType[*sequences.PassedError](err)
		by, isTaken := errors.AsType[*sequences.TakenError](err)
		switch isTaken = isTaken && by.By != nil && by.By.Store != m.store; {
		case isTaken && !held:
			return errors.Join(err, withdraw(ctx, to, t.Tag.Name))
		case !isPassed || left == 0:
			return err
		}
		again, _, err := m.define(v.Source, passed.At, o.Margin)
		if err != nil {
			return err
		}
		t.Tag.Start, t.Tag.Mark = again.Start, again.Mark
		v.anew = !held
	}
}

// shut shuts a source for a tag that is held with a token; 0 for one that is not.
func (m *imported) shut(ctx context.Context, v *moving, how sequences.Switch, first, token int64) error {
	o := m.opts
	o.Write, o.Store, o.Token = true, m.store, token
	return m.open(ctx, v.in, o, func(db sequences.Database) error { return db.Shut(ctx, v.Source, how, first) })
}

// never is no tag's token.
const never = -1

// hold sees to it that a new tag issues nothing before its source is shut, and returns its token. A tag
// that is there already goes on, and is not held.
func hold(ctx context.Context, to moves.Target, v *moving, t *moves.Move) (token int64, held bool, err error) {
	have, err := to.Tag(ctx, t.Tag.Name)
	if err == nil && v.anew && !have.Deleted {
		err = withdraw(ctx, to, t.Tag.Name)
		have.Deleted = true
	}
	switch {
	case err == nil && moves.IsHeld(have):
		return have.Token, true, nil
	case err == nil && have.Deleted, errors.Is(err, hapax.ErrTagNotFound):
		token, err := moves.Hold(ctx, to, t.Tag)
		if !errors.Is(err, hapax.ErrTagExists) {
			return token, err == nil, err
		}
	case err != nil:
		return 0, false, err
	}
	// It is raised, and not revived: whoever deletes it now gives its source back.
	if err := moves.Open(ctx, to, t, never); err != nil {
		return 0, false, err
	}
	// A command that was killed may have created the tag since the plan, with another first
	// number, and numbers may have been issued from there.
	if have, err = to.Tag(ctx, t.Tag.Name); err == nil && t.Before == 0 && have.Start < t.Tag.Start {
		t.Tag.Start = have.Start
	}
	return 0, false, err
}

// withdraw deletes a tag whose numbers others may issue. It fails for one that has issued some.
func withdraw(ctx context.Context, to moves.Target, name string) error {
	was, err := to.DeleteTag(ctx, name)
	if errors.Is(err, hapax.ErrTagDeleted) { // by an attempt that was cut off
		was, err = to.Tag(ctx, name)
	}
	if err == nil && was.Mark > was.Start {
		err = issuedTwice(name, was.Start)
	}
	return err
}

func issuedTwice(name string, from int64) error {
	return fmt.Errorf("%w: the tag %q, which is deleted now, had issued numbers from %d on, and others may have issued them, too: compare with hapax audit --column",
		hapax.ErrStoreUnsafe, name, from)
}

// unopened reports whether a command that was killed has shut a source, and not opened its tag,
// or not shut it to the end, and returns that tag. One that is deleted and not held with the token that
// the source was shut for was withdrawn by --undo.
func (m *imported) unopened(ctx context.Context, to moves.Target, v *moving) (def hapax.Tag, yes bool, err error) {
	have, err := to.Tag(ctx, v.Tag)
	if err == nil && v.Unfinished && !have.Deleted {
		return hapax.Tag{Name: v.Tag, Kind: have.Kind, Start: have.Start, Mark: have.Mark, Delta: have.Delta, Remainder: have.Remainder}, true, nil
	}
	if errors.Is(err, hapax.ErrTagNotFound) || err == nil && (!moves.IsHeld(have) || have.Token != v.Closed.Token) {
		return def, false, nil
	}
	if err != nil {
		return def, false, err
	}
	def = hapax.Tag{Name: v.Tag, Kind: hapax.KindSegment, Start: v.Closed.First, Mark: v.Closed.First, Delta: have.Delta, Remainder: have.Remainder}
	if v.Closed.How == sequences.Parity {
		return def, true, nil
	}
	err = m.with(ctx, v.in, false, func(db sequences.Database) error { // a plan that failed may have shut it late
		at, err := db.Position(ctx, v.Source)
		def.Mark = max(def.Mark, v.Highest+1, at+1+m.opts.AllocationSize)
		return err
	})
	return def, true, err
}

// notOurs refuses a source that was shut for another store: two of them would issue the same
// numbers. A store has its ID for good, also where it is copied or put back.
func (m *imported) notOurs(s *sequences.Source) error {
	switch {
	case s.Closed == nil || s.Closed.Store == m.store:
		return nil
	case s.Closed.Store == "":
		return &wrongError{"a build that noted no store has shut the source: open it with --undo of that build, and repeat"}
	}
	return &wrongError{fmt.Sprintf("the source was shut for the tag %q of store %s, and this is store %s: give that one; if it is lost, put it back from a backup, under its own ID", s.Closed.Tag, s.Closed.Store, m.store)}
}

// watch looks at all sources for a while, and fails if they are used meanwhile.
func (m *imported) watch(ctx context.Context, long time.Duration) error {
	type position struct {
		*sequences.Source

		at int64
	}
	var before []position
	each := func(do func(s *sequences.Source, at int64)) error {
		for _, d := range m.all {
			err := m.with(ctx, d, false, func(db sequences.Database) error {
				for _, s := range d.sources {
					if len(s.Wrong) > 0 {
						continue
					}
					at, err := db.Position(ctx, s)
					if err != nil {
						return err
					}
					do(s, at)
				}
				return nil
			})
			if err != nil {
				return err
			}
		}
		return nil
	}
	if err := each(func(s *sequences.Source, at int64) { before = append(before, position{s, at}) }); err != nil {
		return err
	}
	select {
	case <-time.After(long):
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	var signs []string
	k := 0
	err := each(func(s *sequences.Source, at int64) {
		if at != before[k].at {
			signs = append(signs, fmt.Sprintf("%s %s went from %d to %d", s.Kind, s.Names[0], before[k].at, at))
		}
		k++
	})
	return errors.Join(err, moves.Alive(signs))
}

// undo is the way back.
func (m *imported) undo(ctx context.Context, to moves.Target, o mount.MoveOptions, all mount.Moves) (mount.Moves, error) {
	by, others, err := m.toUndo(ctx, to)
	if err != nil {
		return all, err
	}
	if all.Tags, err = moves.PlanReopen(ctx, to, slices.Sorted(maps.Keys(by)), "for its tag"); err != nil {
		return all, err
	}
	for k := range all.Tags {
		if t, v := &all.Tags[k], by[all.Tags[k].Tag.Name]; t.Reason == nil {
			// Before a tag is deleted: that of a source that cannot be opened goes on.
			if _, err := v.in.speaks.BackSteps(v.Source, max(t.Before, v.Highest+1)); err != nil {
				t.Reason = err
			}
		}
	}
	if o.Apply {
		progress, end := o.Bar("opening")
		defer end()
		err = moves.Apply(ctx, all.Tags, func(ctx context.Context, t *moves.Move) error {
			return m.back(ctx, to, by[t.Tag.Name], t)
		}, progress)
	}
	all.Tags = append(all.Tags, others...)
	return all, err
}

// back gives a tag's numbers back to its source. Where the database refuses that, as it does an
// account that may only read, the source is still shut, and the tag goes on.
func (m *imported) back(ctx context.Context, to moves.Target, v *moving, t *moves.Move) error {
	was, alone, err := moves.Withdraw(ctx, to, t.Tag.Name)
	if err != nil {
		return err
	}
	t.After = was.Mark
	err = m.with(ctx, v.in, true, func(db sequences.Database) error { return db.Reopen(ctx, v.Source, max(was.Mark, v.Highest+1)) })
	// Unless it is certain that the source is still shut, the tag stays deleted: else both would issue.
	if _, open := errors.AsType[*sequences.TakenError](err); open || !moves.IsRefusal(err) || !alone {
		return err
	}
	again := moves.Move{Tag: hapax.Tag{
		Name: was.Name, Kind: was.Kind, Start: was.Start, Mark: was.Mark, Delta: was.Delta, Remainder: was.Remainder,
		Step: was.Step, MinStep: was.MinStep, MaxStep: was.MaxStep,
	}}
	if err2 := moves.Open(ctx, to, &again, was.Token); err2 != nil {
		return fmt.Errorf("%w; and the tag, which was deleted for that, could not be made again: %w", err, err2)
	}
	_, err2 := v.in.keepFloors(ctx, to, v.Source) // the next --apply tells what is in their way
	return errors.Join(err, err2)
}

// toUndo returns the sources that are shut, by their tags, and what is in the way of others.
func (m *imported) toUndo(ctx context.Context, to moves.Target) (by map[string]*moving, others []moves.Move, err error) {
	by = map[string]*moving{}
	for _, d := range m.all {
		for _, s := range d.sources {
			tag, open, err := d.live(ctx, to, s)
			if err == nil && s.Closed != nil {
				if err = m.notOurs(s); err == nil {
					err = d.notOurs(tag)
				}
			} else if err == nil && open != "" {
				err = &wrongError{open}
			}
			switch {
			case err == nil && s.Closed != nil:
				by[s.Tag] = &moving{Source: s, in: d}
			case err == nil:
			case moves.IsRefusal(err):
				others = append(others, moves.Move{Tag: hapax.Tag{Name: s.Tag}, Before: tag.Mark, Reason: err})
			default:
				return nil, nil, err
			}
		}
	}
	return by, others, nil
}

// live returns a source's tag, and what is wrong where the source issues beside it: what shut
// it is gone, as with a table that was made anew.
func (d *database) live(ctx context.Context, to moves.Target, s *sequences.Source) (tag hapax.Tag, wrong string, err error) {
	tag, err = to.Tag(ctx, s.Tag)
	if errors.Is(err, hapax.ErrTagNotFound) {
		return hapax.Tag{}, "", nil
	}
	if err == nil && s.Closed == nil && !tag.Deleted && d.feeds(s, tag) {
		wrong = "the source is open, and its tag is there, so that both may issue the same numbers: stop its writers, compare with hapax audit --column, and give --apply again"
	}
	return tag, wrong, err
}

// Verify implements mount.Verifiable.
func (m *imported) Verify(ctx context.Context, to moves.Target) (all []mount.Verdict, err error) {
	if m.store, err = to.StoreID(ctx); err != nil {
		return nil, err
	}
	for _, d := range m.all {
		for _, s := range d.sources {
			tag, open, err := d.live(ctx, to, s)
			if err != nil {
				return nil, err
			}
			if s.Closed == nil {
				if open != "" {
					all = append(all, mount.Verdict{Tag: s.Tag, Says: s.Kind + " " + s.Names[0] + " issues", Wrong: []string{open}})
				}
				continue
			}
			v := mount.Verdict{Tag: s.Tag, Says: closes(s, s.Closed.How)}
			if err := m.notOurs(s); err != nil {
				v.Wrong = append(v.Wrong, err.Error())
			} else if tag.Name == "" {
				v.Wrong = append(v.Wrong, "there is no such tag in this store")
			} else {
				if v.Wrong, err = m.differences(ctx, d, s, tag); err != nil {
					return nil, err
				}
			}
			all = append(all, v)
		}
	}
	if len(all) == 0 {
		return nil, mount.Errorf(nil, "no source was shut: nothing is to be verified; give --apply first")
	}
	return all, nil
}

// differences compares a source that was shut with its tag.
func (m *imported) differences(ctx context.Context, d *database, s *sequences.Source, tag hapax.Tag) (wrong []string, err error) {
	say := func(format string, args ...any) { wrong = append(wrong, fmt.Sprintf(format, args...)) }
	switch s.Closed.How {
	case sequences.Stop:
		// A counter of AUTO_INCREMENT moves above every row, also those with numbers of the tag.
		ofTag := s.Kind == "auto_increment" && s.Position >= tag.Start && s.Position < tag.Mark
		if s.Position > s.Closed.At && !ofTag {
			say("the source was shut at %d and is at %d", s.Closed.At, s.Position)
		}
	case sequences.Gap:
		if s.Position >= tag.Start {
			say("the source is at %d, and the tag began at %d", s.Position, tag.Start)
		}
	case sequences.Parity:
		if tag.Delta > 1 && s.Position%tag.Delta == tag.Remainder {
			say("the source was set to %d, which is a number of the tag, as setval(…, max(id)) does: set it to a number of its own, above all of the column", s.Position)
		}
	}
	if tag.Deleted {
		say("the tag is deleted")
	}
	if s.Unfinished {
		say("a command was killed that shut the source, which issues up to its end alone: give --apply again")
	}
	if slices.ContainsFunc(s.Feeds, func(c sequences.Column) bool { return c.Max >= tag.Mark }) { // by the index, one that the tag issues
		found := ""
		err := m.with(ctx, d, false, func(db sequences.Database) (err error) { found, err = sequences.Issued(ctx, db, s, tag); return err })
		if err != nil {
			return nil, err
		}
		if found != "" {
			say("%s, at or above the tag's mark %d", found, tag.Mark)
		}
	}
	return append(wrong, s.Wrong...), nil
}
