// Package moves carries tags of a foreign table over to native ones, and back: it reads the
// foreign system's settings and accounts for each of them, and raises native marks above
// every number that the foreign system can have issued when its row is closed.
package moves

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/service/define"
	"github.com/hapax-id/hapax/store/driver"
)

// A Target is the native store that tags are carried over to.
type Target interface {
	StoreID(ctx context.Context) (string, error)
	Tag(ctx context.Context, name string) (hapax.Tag, error)
	CreateTag(ctx context.Context, tag hapax.Tag, mode hapax.CreateMode) (hapax.Tag, error)
	UpdateTag(ctx context.Context, name string, u driver.TagUpdate) (hapax.Tag, error)
	DeleteTag(ctx context.Context, name string) (hapax.Tag, error)
}

// A Move is the work to be done for one tag.
type Move struct {
	Tag    hapax.Tag // the definition; Mark is the first number that may be issued natively
	Before int64     // the native mark now; 0: there is no such tag
	After  int64     // the native mark afterwards
	Closed bool      // the foreign row is closed already: its system can issue nothing from it
	Closes string    // how it will be closed, or was; empty where its system has no room for that
	Reason error     // why the tag cannot be moved; nil if it can
}

// Changes reports whether the move changes anything.
func (m Move) Changes() bool { return m.Reason == nil && (m.After != m.Before || !m.Closed) }

// Plan compares definitions with the native tags, and calls progress, if set, after
// each. Nothing is written.
func Plan(ctx context.Context, target Target, defs []hapax.Tag, progress func(done, total int)) ([]Move, error) {
	var all []Move
	for i, def := range defs {
		if progress != nil {
			progress(i, len(defs))
		}
		m := Move{Tag: def}
		def, err := def.WithDefaults()
		if err == nil {
			m.Tag = def
			m.Before, m.After, err = compare(ctx, target, def)
		}
		switch {
		case err == nil:
		// One tag's alone: an operator is to see what becomes of all the others before any is moved.
		case IsRefusal(err):
			m.Reason = err
		default:
			return nil, err
		}
		all = append(all, m)
	}
	return all, nil
}

// IsRefusal reports whether an error is about one tag alone.
func IsRefusal(err error) bool {
	return errors.Is(err, hapax.ErrKindMismatch) || errors.Is(err, hapax.ErrInvalidArgument) || errors.Is(err, hapax.ErrInvalidTag) || errors.Is(err, hapax.ErrNotSupported)
}

// compare returns a tag's native mark, and what it will be.
func compare(ctx context.Context, target Target, def hapax.Tag) (before, after int64, err error) {
	have, err := target.Tag(ctx, def.Name)
	if errors.Is(err, hapax.ErrTagNotFound) { // a name that cannot be made is to be known before a row is closed
		return 0, def.Mark, define.CheckForm("tag", def.Name)
	}
	if err != nil {
		return 0, 0, err
	}
	if have.Kind != hapax.KindSegment || have.Delta != def.Delta || have.Remainder != def.Remainder {
		return have.Mark, 0, fmt.Errorf("%w: the native tag %q is a %s with delta %d and remainder %d, and delta %d and remainder %d are wanted: delete it, or move to another name",
			hapax.ErrKindMismatch, def.Name, have.Kind, have.Delta, have.Remainder, def.Delta, def.Remainder)
	}
	return have.Mark, max(have.Mark, def.Mark), nil
}

// Apply carries out the moves that have no Reason by calling do, and calls progress, if
// set, after each. One that turns out to be impossible gets a Reason. It can be repeated:
// marks only grow.
func Apply(ctx context.Context, all []Move, do func(ctx context.Context, m *Move) error, progress func(done, total int)) error {
	for i := range all {
		if m := &all[i]; m.Reason == nil {
			switch err := do(ctx, m); {
			case err == nil:
			// The next tags can be moved all the same. After any other error nothing is known of the store.
			case IsRefusal(err):
				m.Reason = err
			default:
				return fmt.Errorf("tag %q: %w", m.Tag.Name, err)
			}
		}
		if progress != nil {
			progress(i+1, len(all))
		}
	}
	return nil
}

// Create creates the native tag of a move, or raises its mark, and fills in After. The tag says
// that a source went over to it, lest somebody else has it issue beside that, once it is deleted.
func Create(ctx context.Context, target Target, m *Move) error {
	return create(ctx, target, m, hapax.CreateExplicit)
}

func create(ctx context.Context, target Target, m *Move, mode hapax.CreateMode) error {
	def := m.Tag
	var err error
	if def.Extra, err = define.WithSource(def.Extra); err != nil {
		return err
	}
	made, err := target.CreateTag(ctx, def, mode)
	if err == nil && made.Mark > m.Tag.Mark { // it was a tombstone, and a grant from below the mark may be open
		_, err = target.UpdateTag(ctx, m.Tag.Name, driver.TagUpdate{Floor: &m.Tag.Mark})
	}
	// Of an earlier run that was cut off, too: its mark is only raised.
	if errors.Is(err, hapax.ErrTagExists) {
		err = raise(ctx, target, m.Tag)
	}
	if err != nil {
		return err
	}
	tag, err := target.Tag(ctx, m.Tag.Name)
	if err == nil && tag.Mark < m.Tag.Mark { // what was granted before, and above, was handed back meanwhile
		if _, err = target.UpdateTag(ctx, m.Tag.Name, driver.TagUpdate{Floor: &m.Tag.Mark}); err == nil {
			tag, err = target.Tag(ctx, m.Tag.Name)
		}
	}
	if err == nil && tag.Mark < m.Tag.Mark {
		err = fmt.Errorf("%w: the mark is %d after it was raised to %d", hapax.ErrStoreRolledBack, tag.Mark, m.Tag.Mark)
	}
	m.After = tag.Mark
	return err
}

// raise raises the mark of a tag that is there, and has it say what a new one says.
func raise(ctx context.Context, target Target, def hapax.Tag) error {
	if _, _, err := compare(ctx, target, def); err != nil { // it may have been created since the plan
		return err
	}
	have, err := target.Tag(ctx, def.Name)
	if err != nil {
		return err
	}
	u, is := driver.TagUpdate{Floor: &def.Mark}, define.Read(have)
	if is.Unread != nil {
		return is.Unread
	}
	if is.IsOur && !is.Says.Source {
		// That alone, beside which UpdateTag keeps the rest: a code given once more asks for its key, and columns
		// are read again.
		extra, err := define.WithSource("")
		if err != nil {
			return err
		}
		u.Extra = &extra
	}
	_, err = target.UpdateTag(ctx, def.Name, u)
	return err
}

// heldStep is the step of a tag that is held, which tells it from others that are deleted.
const heldStep = 1

// IsHeld reports whether a tag is held by Hold.
func IsHeld(tag hapax.Tag) bool {
	return tag.Deleted && tag.MaxStep == heldStep && define.Read(tag).Says.Source
}

// The flags of hapax tags create for a tag that takes over from a source, and besides for one that
// is to be held.
const (
	OpenFlag = "--of-source"
	HeldFlag = "--step 1 --max-step 1"
)

// Hold makes a tag that issues nothing before its source is shut: a tombstone, which keeps everybody
// from its name. Open opens it while it has the token that Hold returns. ErrTagExists.
func Hold(ctx context.Context, target Target, def hapax.Tag) (token int64, err error) {
	if def.Extra, err = define.WithSource(def.Extra); err != nil {
		return 0, err
	}
	def.Step, def.MinStep, def.MaxStep = heldStep, heldStep, heldStep
	made, err := target.CreateTag(ctx, def, hapax.CreateTombstone)
	return made.Token, err
}

// Open is Create for a tag that is held: unless somebody withdrew it since, who may have opened its source.
func Open(ctx context.Context, target Target, m *Move, token int64) error {
	m.Tag.Token = token
	err := create(ctx, target, m, hapax.CreateFromToken)
	if errors.Is(err, hapax.ErrLeaseLost) || errors.Is(err, hapax.ErrTagDeleted) {
		err = fmt.Errorf("%w: another command, such as --undo, came in between and has withdrawn the tag %q: repeat this if it is still to be moved", hapax.ErrInvalidArgument, m.Tag.Name)
	}
	return err
}

// PlanClosed returns the move of a tag whose foreign row is closed: there must be a native tag.
func PlanClosed(ctx context.Context, target Target, name, closes string) (Move, error) {
	m := Move{Tag: hapax.Tag{Name: name}, Closed: true, Closes: closes}
	have, err := target.Tag(ctx, name)
	switch {
	case err == nil && have.Deleted:
		m.Reason = fmt.Errorf("%w: the row is closed (%s), and the native tag is deleted: --undo opens the row again above the mark %d", hapax.ErrInvalidArgument, closes, have.Mark)
	case err == nil:
		m.Before, m.After = have.Mark, have.Mark
	case errors.Is(err, hapax.ErrTagNotFound):
		m.Reason = noNative(name, closes)
	default:
		return m, err
	}
	return m, nil
}

// NotOurs refuses what was closed for another store than the one that a command is for: two of them
// would issue the same numbers. A store has its ID for good, also where it is copied or put back.
func NotOurs(what, of, store string) error {
	if of == store {
		return nil
	}
	return fmt.Errorf("%w: %s was closed for another store, %s, and this is store %s: give the command that one; if it is lost, put it back from a backup, under its own ID",
		hapax.ErrInvalidArgument, what, of, store)
}

func noNative(name, closes string) error {
	return fmt.Errorf("%w: the row is closed (%s), and there is no native tag %q: look for it in the store that the row was moved to", hapax.ErrInvalidArgument, closes, name)
}

// PlanReopen returns the native marks from which tags with closed foreign rows go on, and writes
// nothing.
func PlanReopen(ctx context.Context, target Target, names []string, closes string) ([]Move, error) {
	var all []Move
	for _, name := range names {
		m := Move{Tag: hapax.Tag{Name: name}, Closed: true, Closes: closes}
		have, err := target.Tag(ctx, name)
		switch {
		case err == nil:
			m.Before, m.After = have.Mark, have.Mark
		case errors.Is(err, hapax.ErrTagNotFound):
			m.Reason = noNative(name, closes)
		default:
			return nil, err
		}
		all = append(all, m)
	}
	return all, nil
}

// withdrawals bounds how often a tag is deleted that others make again meanwhile.
const withdrawals = 8

// Withdraw deletes a native tag whose foreign row is to be opened again, and returns its
// tombstone: nothing that was issued natively is at or above its mark, and nothing will be. Who
// held the tag, and would open it now, is late. It reports whether the tag was there until then, and
// nobody else has withdrawn it meanwhile.
func Withdraw(ctx context.Context, target Target, name string) (tombstone hapax.Tag, alone bool, err error) {
	for left := withdrawals; ; left-- {
		tag, err := target.DeleteTag(ctx, name)
		alone := err == nil
		if errors.Is(err, hapax.ErrTagDeleted) { // by a withdrawal that was cut off, or it is held
			tag, err = target.Tag(ctx, name)
		}
		if err != nil {
			return tag, false, err
		}
		def, err := withdrawn(tag)
		if err == nil {
			def, err = target.CreateTag(ctx, def, hapax.CreateTombstone)
		}
		if left == 0 || !errors.Is(err, hapax.ErrTagExists) {
			return def, alone && def.Token == tag.Token+1, err
		}
	}
}

// withdrawn returns the definition by which a tombstone is renewed. A server keeps its code, and would ask
// for the key of one that is given once more.
func withdrawn(tag hapax.Tag) (def hapax.Tag, err error) {
	def = hapax.Tag{
		Name: tag.Name, Kind: tag.Kind, Pool: tag.Pool, Start: tag.Start, Mark: tag.Mark, Delta: tag.Delta, Remainder: tag.Remainder,
		Step: tag.Step, MinStep: tag.MinStep, MaxStep: tag.MaxStep,
	}
	if IsHeld(tag) {
		def.Step, def.MinStep, def.MaxStep = 0, 0, 0
	}
	is := define.Read(tag)
	if !is.IsOur {
		def.Extra = tag.Extra
	} else if def, err = define.WithStrategy(def, is.Says.Strategy); err != nil {
		return def, err
	}
	if def.Extra, err = define.WithSource(def.Extra); err != nil {
		return def, err
	}
	return def.WithDefaults()
}

// defaultMargin is how many of a tag's steps above the foreign mark the native one
// begins.
const defaultMargin = 10

// Above returns the native mark for a foreign one: a margin above it (0: ten of
// the tag's steps).
func Above(mark, step, margin int64) (int64, error) {
	if margin == 0 {
		// A foreign step may be any number, of which ten could overflow.
		margin = defaultMargin * min(step, hapax.MaxStep)
	}
	// By a difference, since the sum could overflow.
	if margin < 0 || mark >= hapax.MaxMark-margin {
		return 0, &hapax.ValueError{Field: "margin", Value: margin, Allowed: fmt.Sprintf("0 to what is left above mark %d", mark), Err: hapax.ErrInvalidArgument}
	}
	return max(1, mark+margin), nil
}

// Alive is the error for a move while the foreign system was seen issuing.
func Alive(signs []string) error {
	if len(signs) == 0 {
		return nil
	}
	const show = 5
	more := ""
	if len(signs) > show {
		more = fmt.Sprintf(", and %d more", len(signs)-show)
	}
	return &aliveError{fmt.Sprintf("the old system is still issuing: %s%s: stop what takes numbers from it first, or give --ignore-living with a --margin above all that it can issue meanwhile",
		strings.Join(signs[:min(show, len(signs))], "; "), more)}
}

// An aliveError is a hapax.ErrStoreUnsafe whose words are of the old system alone.
type aliveError struct{ text string }

func (e *aliveError) Error() string { return e.text }
func (e *aliveError) Unwrap() error { return hapax.ErrStoreUnsafe }
