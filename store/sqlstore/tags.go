package sqlstore

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
)

const (
	// swapAttempts bounds how often a call begins anew because a definition
	// changed under it.
	swapAttempts = 100
	// maxTags bounds the tags that are remembered.
	maxTags = 10_000
	// noKey is the hash of no key.
	noKey = "-"
)

// known is what is remembered of a tag: its definition, and the last allocation
// that this store made.
type known struct {
	def     hapax.Tag // its mark is zero
	keyHash string
	run     int64
}

// Allocate implements hapax.SegmentStore.
func (s *Store) Allocate(ctx context.Context, tag string, n int64, last hapax.GrantKey) (a hapax.Allocation, err error) {
	if err := hapax.ValidateName("tag", tag); err != nil {
		return a, err
	}
	err = s.do(ctx, "allocate", func(ctx context.Context, c *sql.Conn) error {
		a, err = s.allocate(ctx, c, tag, n, last)
		return err
	})
	if err != nil {
		return hapax.Allocation{}, err
	}
	return a, nil
}

func (s *Store) allocate(ctx context.Context, c *sql.Conn, name string, n int64, last hapax.GrantKey) (hapax.Allocation, error) {
	return s.advance(ctx, c, name, n, last, func(args []any) (mark, run int64, ok bool, err error) {
		mark, run, ok, err = s.dialect.swap(ctx, c, s.sql.tagAllocate, s.dialect.args(append(args, s.id)))
		if err == nil && !ok {
			err = s.missed(ctx, c)
		}
		return mark, run, ok, err
	})
}

// errNoBeat ends an allocation whose beat was not made.
var errNoBeat = errors.New("the beat was not made")

// advance has swap raise a tag's mark, which is told the statement's arguments.
func (s *Store) advance(ctx context.Context, c *sql.Conn, name string, n int64, last hapax.GrantKey, swap func(args []any) (mark, run int64, ok bool, err error)) (hapax.Allocation, error) {
	lastHash := cmp.Or(driver.HashKey(last), noKey)
	tag, remembered := s.recall(name)
	for range swapAttempts {
		if !remembered {
			def, err := s.readTag(ctx, c, name)
			if err != nil {
				return hapax.Allocation{}, err
			}
			tag.def = def
		}
		// Whether the numbers fit above the mark is up to the statement, unless the
		// mark was just read.
		width, err := driver.Width(tag.def, n)
		if err == nil && tag.def.Mark > hapax.MaxMark-width {
			err = driver.Exhausted(tag.def, width)
		}
		if err != nil {
			return hapax.Allocation{}, err
		}
		key, hash := driver.NewKey()
		args := append(s.dialect.allocateArgs(lastHash, hash, width), name)
		hi, run, ok, err := swap(append(append(args, defined(tag.def)...), hapax.MaxMark-width))
		if err != nil {
			return hapax.Allocation{}, err
		}
		if ok {
			if run < 0 && tag.keyHash == lastHash {
				run = tag.run + width
			} else if run < 0 {
				run = s.readRun(ctx, c, name, hash)
			}
			return s.granted(tag.def, hapax.Grant{Lo: hi - width, Hi: hi}, max(run, width), key, hash)
		}
		s.forget(name)
		remembered = false
	}
	return hapax.Allocation{}, lostRaces("tag", name)
}

// readRun returns the run of an allocation that was just made, or 0 if it cannot
// be told any more; then less can be handed back.
func (s *Store) readRun(ctx context.Context, c *sql.Conn, name, hash string) (run int64) {
	if err := s.queryRow(ctx, c, s.sql.tagRun, []any{name, hash}, &run); err != nil {
		return 0
	}
	return run
}

// granted returns the allocation that a statement has made.
func (s *Store) granted(def hapax.Tag, g hapax.Grant, run int64, key hapax.GrantKey, hash string) (hapax.Allocation, error) {
	if g.Lo < def.Start || g.Hi > hapax.MaxMark || g.Hi-run < def.Start {
		return hapax.Allocation{}, fmt.Errorf("%w: tag %q: the mark was %d with a run of %d, the line is %d to %d",
			hapax.ErrStoreCorrupt, def.Name, g.Lo, run-g.Len(), def.Start, int64(hapax.MaxMark))
	}
	def.Mark = 0
	s.remember(known{def, hash, run})
	def.Mark = g.Hi
	return hapax.Allocation{Grant: g, Tag: def, Key: key, From: g.Hi - run}, nil
}

func (s *Store) recall(name string) (known, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k, ok := s.tags[name]
	return k, ok
}

func (s *Store) remember(k known) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.tags) >= maxTags {
		clear(s.tags)
	}
	s.tags[k.def.Name] = k
}

func (s *Store) forget(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.tags, name)
}

// HandBack implements hapax.SegmentStore.
func (s *Store) HandBack(ctx context.Context, a hapax.Allocation, next int64) error {
	if err := driver.CheckHandBack(a, next); err != nil {
		return err
	}
	return s.do(ctx, "hand numbers back", func(ctx context.Context, c *sql.Conn) error {
		n, err := s.exec(ctx, c, s.sql.tagEnd, append(endArgs(a, next), s.id)...)
		if err != nil {
			return err
		}
		if n == 1 {
			s.ended(a)
			return nil
		}
		if err := s.missed(ctx, c); err != nil {
			return err
		}
		return s.notHeld(ctx, c, a.Tag.Name)
	})
}

// endArgs are the arguments of ending, the name, and those of held.
func endArgs(a hapax.Allocation, next int64) []any {
	return []any{next, a.Tag.Name, a.Grant.Hi, a.Tag.Token, driver.HashKey(a.Key), next}
}

// ended brings what is remembered up to a hand-back that was carried out.
func (s *Store) ended(a hapax.Allocation) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if k, ok := s.tags[a.Tag.Name]; ok && k.def.Token == a.Tag.Token {
		k.def.Token++
		k.keyHash, k.run = "", 0
		s.tags[a.Tag.Name] = k
	}
}

// notHeld returns why a hand-back found nothing to change.
func (s *Store) notHeld(ctx context.Context, c *sql.Conn, name string) error {
	tag, err := s.readTag(ctx, c, name)
	switch {
	case err != nil:
		return err
	case tag.Deleted:
		return fmt.Errorf("%w: %q", hapax.ErrTagDeleted, tag.Name)
	}
	return driver.NotHeld(tag.Name)
}

// HealTag implements driver.Healing.
func (s *Store) HealTag(ctx context.Context, def hapax.Tag) (tag hapax.Tag, err error) {
	healed, err := driver.Heal(driver.Tag{}, def)
	if err != nil {
		return hapax.Tag{}, err
	}
	err = s.do(ctx, "heal a tag", func(ctx context.Context, c *sql.Conn) error {
		defer s.forget(def.Name)
		added, err := s.insert(ctx, c, s.sql.tagInsert, append(append([]any{def.Name, healed.Mark}, defined(healed.Tag)...), s.id)...)
		if err != nil {
			return err
		}
		n := int64(1)
		if !added {
			n, err = s.exec(ctx, c, s.sql.tagHeal, healed.Mark, healed.Token-1, def.Name, string(healed.Kind), healed.Pool, s.id)
			if err != nil {
				return err
			}
		}
		if n == 0 {
			err = s.missed(ctx, c)
		}
		if err == nil {
			tag, err = s.readTag(ctx, c, def.Name)
		}
		if err == nil && n == 0 {
			_, err = driver.Heal(driver.Tag{Tag: tag}, def)
		}
		return err
	})
	if err != nil {
		return hapax.Tag{}, err
	}
	return tag, nil
}

// change reads a tag, and swaps its definition for the one that f makes of it. The mark
// is raised to f's, if f raises it, and is never lowered; nothing brings it below the floor again.
func (s *Store) change(ctx context.Context, c *sql.Conn, name string, floor int64, f func(hapax.Tag) (hapax.Tag, error)) (hapax.Tag, error) {
	defer s.forget(name)
	for range swapAttempts {
		old, err := s.readTag(ctx, c, name)
		if err != nil {
			return hapax.Tag{}, err
		}
		next, err := f(old)
		if err != nil || next == old && floor == 0 {
			return next, err
		}
		to := floor
		if next.Mark > old.Mark {
			to = max(next.Mark, floor)
		}
		args := append(defined(next)[:len(definition)-1], to, to, to, to, to, name)
		args = append(append(args, defined(old)...), s.id)
		mark, _, ok, err := s.dialect.swap(ctx, c, s.sql.tagEdit, s.dialect.args(args))
		if err != nil {
			return hapax.Tag{}, err
		}
		if !ok && next == old { // MySQL says so, too, of an update that changes nothing
			var begin int64
			if err := c.QueryRowContext(ctx, s.sql.tagBegin, s.dialect.args([]any{name})...).Scan(&begin); err != nil {
				return hapax.Tag{}, err
			}
			ok = begin >= floor
		}
		if ok && floor > 0 {
			return s.readTag(ctx, c, name) // the token may have moved
		}
		if ok {
			next.Mark = mark
			return next, nil
		}
		if err := s.missed(ctx, c); err != nil {
			return hapax.Tag{}, err
		}
	}
	return hapax.Tag{}, lostRaces("tag", name)
}

// CreateTag implements hapax.SegmentStore.
func (s *Store) CreateTag(ctx context.Context, def hapax.Tag, mode hapax.CreateMode) (tag hapax.Tag, err error) {
	def, err = def.WithDefaults()
	if err != nil {
		return hapax.Tag{}, err
	}
	def.Deleted, def.Token = false, 0
	err = s.do(ctx, "create a tag", func(ctx context.Context, c *sql.Conn) error {
		added, err := s.insert(ctx, c, s.sql.tagInsert, append(append([]any{def.Name, def.Mark}, defined(def)...), s.id)...)
		if added || err != nil {
			tag = def
			return err
		}
		if err := s.missed(ctx, c); err != nil {
			return err
		}
		tag, err = s.change(ctx, c, def.Name, 0, func(old hapax.Tag) (hapax.Tag, error) {
			return driver.Revive(old, def, mode)
		})
		return err
	})
	if err != nil {
		return hapax.Tag{}, err
	}
	return tag, nil
}

// UpdateTag implements driver.TagStore.
func (s *Store) UpdateTag(ctx context.Context, name string, u driver.TagUpdate) (hapax.Tag, error) {
	floor := int64(0)
	if u.Floor != nil {
		floor = *u.Floor
	}
	return s.edit(ctx, "update a tag", name, floor, func(old hapax.Tag) (hapax.Tag, error) { return driver.Update(old, u) })
}

// DeleteTag implements driver.TagStore.
func (s *Store) DeleteTag(ctx context.Context, name string) (hapax.Tag, error) {
	return s.edit(ctx, "delete a tag", name, 0, driver.Delete)
}

func (s *Store) edit(ctx context.Context, op, name string, floor int64, f func(hapax.Tag) (hapax.Tag, error)) (tag hapax.Tag, err error) {
	if err := hapax.ValidateName("tag", name); err != nil {
		return hapax.Tag{}, err
	}
	err = s.do(ctx, op, func(ctx context.Context, c *sql.Conn) error {
		tag, err = s.change(ctx, c, name, floor, f)
		return err
	})
	if err != nil {
		return hapax.Tag{}, err
	}
	return tag, nil
}

// Tag implements driver.TagStore.
func (s *Store) Tag(ctx context.Context, name string) (tag hapax.Tag, err error) {
	if err := hapax.ValidateName("tag", name); err != nil {
		return hapax.Tag{}, err
	}
	err = s.do(ctx, "read a tag", func(ctx context.Context, c *sql.Conn) error {
		tag, err = s.readTag(ctx, c, name)
		return err
	})
	return tag, err
}

func (s *Store) readTag(ctx context.Context, c *sql.Conn, name string) (hapax.Tag, error) {
	tag, err := scanTag(c.QueryRowContext(ctx, s.sql.tag, s.dialect.args([]any{name})...))
	if errors.Is(err, sql.ErrNoRows) {
		return hapax.Tag{}, fmt.Errorf("%w: %q", hapax.ErrTagNotFound, name)
	}
	return tag, err
}

// Tags implements driver.TagStore.
func (s *Store) Tags(ctx context.Context, after string, limit int) (tags []hapax.Tag, err error) {
	if after != "" {
		if err := hapax.ValidateName("after", after); err != nil {
			return nil, err
		}
	}
	limit = min(max(limit, 0), math.MaxInt32)
	err = s.do(ctx, "list the tags", func(ctx context.Context, c *sql.Conn) error {
		tags, err = s.readTags(ctx, c, s.sql.tagPage, []any{after, int64(limit)})
		return err
	})
	return tags, err
}

func (s *Store) readTags(ctx context.Context, c *sql.Conn, query string, args []any) (tags []hapax.Tag, err error) {
	rows, err := c.QueryContext(ctx, query, s.dialect.args(args)...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		tag, err := scanTag(rows)
		if err != nil {
			return nil, err
		}
		tags = append(tags, tag)
	}
	return tags, rows.Err()
}

// defined returns the columns of a tag's definition.
func defined(t hapax.Tag) []any {
	return []any{string(t.Kind), t.Start, t.Step, t.MinStep, t.MaxStep, t.Delta, t.Remainder, t.Pool, []byte(t.Extra), t.Deleted, t.Token}
}

func scanTag(row interface{ Scan(dest ...any) error }) (hapax.Tag, error) {
	var t hapax.Tag
	err := row.Scan(&t.Name, &t.Mark, &t.Kind, &t.Start, &t.Step, &t.MinStep, &t.MaxStep, &t.Delta, &t.Remainder, &t.Pool, &t.Extra, &t.Deleted, &t.Token)
	if err != nil {
		return hapax.Tag{}, err
	}
	sound := t.Mark >= t.Start && t.Mark <= hapax.MaxMark && t.Token >= 0
	switch t.Kind {
	case hapax.KindSegment:
		sound = sound && t.Start > 0 && t.Step > 0 && t.Step <= hapax.MaxStep && t.Delta > 0 && t.Delta <= hapax.MaxDelta && t.Remainder >= 0 && t.Remainder < t.Delta
	case hapax.KindSnowflake:
	default:
		sound = false
	}
	if !sound {
		return hapax.Tag{}, fmt.Errorf("%w: tag %q is of kind %.40q, with start %d, step %d, delta %d, remainder %d, mark %d and token %d",
			hapax.ErrStoreCorrupt, t.Name, t.Kind, t.Start, t.Step, t.Delta, t.Remainder, t.Mark, t.Token)
	}
	return t, nil
}

func lostRaces(what, name string) error {
	return fmt.Errorf("%w: %s %q changed %d times meanwhile", hapax.ErrStoreUnavailable, what, name, swapAttempts)
}
