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
}

// Move implements mount.Movable.
func (m *imported) Move(ctx context.Context, to moves.Target, o mount.MoveOptions) (all mount.Moves, err error) {
	for _, d := range m.all {
		all.Notes = append(all.Notes, d.others...)
	}
	if o.Undo {
		return m.undo(ctx, to, o, all)
	}
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
			if s.Closed != nil && (s.Closed.How == sequences.Stop || s.Closed.How == m.switchOf()) && len(s.Wrong) == 0 {
				done, err := moves.PlanClosed(ctx, to, s.Tag, closes(s, s.Closed.How))
				if err != nil {
					return all, err
				}
				others = append(others, done)
				if done.Reason == nil {
					closed = append(closed, v)
				}
				continue
			}
			var def hapax.Tag
			if def, v.anew, err = m.planned(ctx, to, d, s, o.Margin); err == nil {
				_, err = d.speaks.Steps(s, m.switchOf(), def.Start)
			}
			switch {
			case err == nil:
				by[s.Tag] = v
				defs = append(defs, def)
			case isRefusal(err):
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

func isRefusal(err error) bool {
	return errors.Is(err, hapax.ErrInvalidArgument) || errors.Is(err, hapax.ErrNotSupported) || errors.Is(err, hapax.ErrInvalidTag) || errors.Is(err, hapax.ErrKindMismatch)
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

// moveOne creates a tag, and then shuts its source in front of it. A source that is past
// the tag by now gets another tag, as long as nothing was issued from that.
func (m *imported) moveOne(ctx context.Context, to moves.Target, v *moving, t *moves.Move, o mount.MoveOptions) error {
	if v.anew {
		if err := raise(ctx, to, t); err != nil {
			return err
		}
	} else if err := moves.Create(ctx, to, t); err != nil {
		return err
	}
	// A command that was killed may have created the tag since the plan, with another first
	// number, and numbers may have been issued from there.
	have, err := to.Tag(ctx, t.Tag.Name)
	switch {
	case err != nil:
		return err
	case t.Before == 0 && have.Start < t.Tag.Start:
		t.Tag.Start = have.Start
	}
	for left := tries; ; left-- {
		err := m.with(ctx, v.in, true, func(db sequences.Database) error { return db.Shut(ctx, v.Source, m.switchOf(), t.Tag.Start) })
		passed, ok := errors.AsType[*sequences.PassedError](err)
		if t.Before == 0 && have.Mark == have.Start && isRefusal(err) { // no new tag is to issue beside a source that stays open
			_, err2 := moves.Withdraw(ctx, to, t.Tag.Name)
			return errors.Join(err, err2)
		}
		if !ok || left == 0 {
			return err
		}
		again, _, err := m.define(v.Source, passed.At, o.Margin)
		if err != nil {
			return err
		}
		again.Delta, again.Remainder = t.Tag.Delta, t.Tag.Remainder
		t.Tag.Start, t.Tag.Mark = again.Start, again.Mark
		if err := raise(ctx, to, t); err != nil {
			return err
		}
	}
}

// raise makes a tag anew, with a higher first number. It refuses one that has issued
// numbers, which the source may have issued, too.
func raise(ctx context.Context, to moves.Target, t *moves.Move) error {
	was, err := to.DeleteTag(ctx, t.Tag.Name)
	if errors.Is(err, hapax.ErrTagDeleted) { // by an attempt that was cut off
		was, err = to.Tag(ctx, t.Tag.Name)
	}
	if err != nil {
		return err
	}
	used := was.Mark > was.Start
	err = moves.Create(ctx, to, t)
	if err == nil && used {
		err = fmt.Errorf("%w: the source went past %d before it was shut, and the tag %q had issued numbers from there to %d: both may have issued them; compare with hapax audit --column",
			hapax.ErrStoreUnsafe, was.Start, t.Tag.Name, was.Mark)
	}
	return err
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
	was, err := to.Tag(ctx, t.Tag.Name)
	if err != nil {
		return err
	}
	mark, err := moves.Withdraw(ctx, to, t.Tag.Name)
	if err != nil {
		return err
	}
	t.After = mark
	err = m.with(ctx, v.in, true, func(db sequences.Database) error { return db.Reopen(ctx, v.Source, max(mark, v.Highest+1)) })
	if !isRefusal(err) || was.Deleted {
		return err
	}
	again := moves.Move{Tag: hapax.Tag{
		Name: was.Name, Kind: was.Kind, Start: was.Start, Mark: mark, Delta: was.Delta, Remainder: was.Remainder,
		Step: was.Step, MinStep: was.MinStep, MaxStep: was.MaxStep,
	}}
	if err2 := moves.Create(ctx, to, &again); err2 != nil {
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
				err = d.notOurs(tag)
			} else if err == nil && open != "" {
				err = &wrongError{open}
			}
			switch {
			case err == nil && s.Closed != nil:
				by[s.Tag] = &moving{Source: s, in: d}
			case err == nil:
			case isRefusal(err):
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
			if tag.Name == "" {
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
