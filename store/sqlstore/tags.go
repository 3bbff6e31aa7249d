package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"

	"github.com/hapax-id/hapax"
)

const (
	// swapAttempts bounds how often a call begins anew because a definition
	// changed under it.
	swapAttempts = 100
	// maxDefs bounds the definitions that are remembered.
	maxDefs = 10_000
)

// Allocate implements hapax.SegmentStore.
func (s *Store) Allocate(ctx context.Context, tag string, n int64) (a hapax.Allocation, err error) {
	if err := hapax.ValidateName("tag", tag); err != nil {
		return a, err
	}
	err = s.do(ctx, "allocate", func(ctx context.Context) error {
		a, err = s.allocate(ctx, tag, n)
		return err
	})
	if err != nil {
		return hapax.Allocation{}, err
	}
	return a, nil
}

func (s *Store) allocate(ctx context.Context, name string, n int64) (hapax.Allocation, error) {
	def, known := s.definition(name)
	for range swapAttempts {
		if !known {
			tag, err := s.readTag(ctx, name)
			if err != nil {
				return hapax.Allocation{}, err
			}
			def = tag
		}
		// Whether n fits above the mark is up to the statement, unless the mark
		// was just read. In a remembered definition it is zero.
		g, next, err := def.Advance(n)
		if err != nil {
			return hapax.Allocation{}, err
		}
		hi, ok, err := s.swapTag(ctx, def, next, g.Len(), 0)
		if err != nil {
			return hapax.Allocation{}, err
		}
		if ok {
			s.remember(def)
			g = hapax.Grant{Lo: hi - g.Len(), Hi: hi}
			if g.Lo < def.Start || g.Hi > hapax.MaxMark {
				return hapax.Allocation{}, fmt.Errorf("%w: tag %q: the mark was %d, the line is %d to %d", hapax.ErrStoreCorrupt, name, g.Lo, def.Start, int64(hapax.MaxMark))
			}
			next.Mark = hi
			return hapax.Allocation{Grant: g, Tag: next}, nil
		}
		s.forget(name)
		known = false
		if err := s.checkID(ctx); err != nil {
			return hapax.Allocation{}, err
		}
	}
	return hapax.Allocation{}, lostRaces("tag", name)
}

// definition returns what is remembered of a tag, without its mark.
func (s *Store) definition(name string) (hapax.Tag, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	def, ok := s.defs[name]
	return def, ok
}

func (s *Store) remember(def hapax.Tag) {
	def.Mark = 0
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.defs) >= maxDefs {
		clear(s.defs)
	}
	s.defs[def.Name] = def
}

func (s *Store) forget(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.defs, name)
}

// swapTag is the one statement that changes a tag. If the stored definition is
// old's, it becomes next's, and the mark becomes mark + add, but at least
// floor. It returns the new mark. Marks are compared only with the line's end.
func (s *Store) swapTag(ctx context.Context, old, next hapax.Tag, add, floor int64) (int64, bool, error) {
	return s.dialect.swap(ctx, s.db, s.sql.tagSwap, s.dialect.args([]any{
		string(next.Kind), next.Start, next.Step, next.MinStep, next.MaxStep, next.Pool, next.Deleted, add, floor,
		old.Name, string(old.Kind), old.Start, old.Step, old.MinStep, old.MaxStep, old.Pool, old.Deleted, hapax.MaxMark - add,
		s.id,
	}))
}

// changeTag reads a tag, and swaps its definition for what f makes of it, with
// the mark at least f's floor.
func (s *Store) changeTag(ctx context.Context, name string, f func(hapax.Tag) (next hapax.Tag, floor int64, err error)) (hapax.Tag, error) {
	defer s.forget(name)
	for range swapAttempts {
		old, err := s.readTag(ctx, name)
		if err != nil {
			return hapax.Tag{}, err
		}
		next, floor, err := f(old)
		if err != nil {
			return hapax.Tag{}, err
		}
		mark, ok, err := s.swapTag(ctx, old, next, 0, floor)
		if err != nil {
			return hapax.Tag{}, err
		}
		if ok {
			next.Mark = mark
			return next, nil
		}
		if err := s.checkID(ctx); err != nil {
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
	def.Deleted = false
	err = s.do(ctx, "create a tag", func(ctx context.Context) error {
		added, err := s.insert(ctx, s.sql.tagInsert, []any{
			def.Name, string(def.Kind), def.Start, def.Step, def.MinStep, def.MaxStep, def.Mark, def.Pool, s.id,
		})
		if added || err != nil {
			tag = def
			return err
		}
		if err := s.checkID(ctx); err != nil {
			return err
		}
		tag, err = s.changeTag(ctx, def.Name, func(old hapax.Tag) (hapax.Tag, int64, error) {
			next, err := old.Revive(def, mode)
			return next, def.Mark, err
		})
		return err
	})
	if err != nil {
		return hapax.Tag{}, err
	}
	return tag, nil
}

// UpdateTag implements hapax.TagStore.
func (s *Store) UpdateTag(ctx context.Context, name string, u hapax.TagUpdate) (tag hapax.Tag, err error) {
	return s.editTag(ctx, "update a tag", name, func(old hapax.Tag) (hapax.Tag, int64, error) {
		next, err := u.Apply(old)
		if err != nil || u.Floor == nil {
			return next, 0, err
		}
		return next, *u.Floor, nil
	})
}

// DeleteTag implements hapax.TagStore.
func (s *Store) DeleteTag(ctx context.Context, name string) (tag hapax.Tag, err error) {
	return s.editTag(ctx, "delete a tag", name, func(old hapax.Tag) (hapax.Tag, int64, error) {
		if old.Deleted {
			return old, 0, fmt.Errorf("%w: %q", hapax.ErrTagDeleted, name)
		}
		old.Deleted = true
		return old, 0, nil
	})
}

func (s *Store) editTag(ctx context.Context, op, name string, f func(hapax.Tag) (hapax.Tag, int64, error)) (tag hapax.Tag, err error) {
	if err := hapax.ValidateName("tag", name); err != nil {
		return hapax.Tag{}, err
	}
	err = s.do(ctx, op, func(ctx context.Context) error {
		tag, err = s.changeTag(ctx, name, f)
		return err
	})
	return tag, err
}

// Tag implements hapax.TagStore.
func (s *Store) Tag(ctx context.Context, name string) (tag hapax.Tag, err error) {
	if err := hapax.ValidateName("tag", name); err != nil {
		return hapax.Tag{}, err
	}
	err = s.do(ctx, "read a tag", func(ctx context.Context) error {
		tag, err = s.readTag(ctx, name)
		return err
	})
	return tag, err
}

func (s *Store) readTag(ctx context.Context, name string) (hapax.Tag, error) {
	tag, err := scanTag(s.db.QueryRowContext(ctx, s.sql.tag, s.dialect.args([]any{name})...))
	if errors.Is(err, sql.ErrNoRows) {
		return hapax.Tag{}, fmt.Errorf("%w: %q", hapax.ErrTagNotFound, name)
	}
	return tag, err
}

// Tags implements hapax.TagStore.
func (s *Store) Tags(ctx context.Context, after string, limit int) (tags []hapax.Tag, err error) {
	if after != "" {
		if err := hapax.ValidateName("after", after); err != nil {
			return nil, err
		}
	}
	limit = min(max(limit, 0), math.MaxInt32)
	err = s.do(ctx, "list the tags", func(ctx context.Context) error {
		tags = nil
		rows, err := s.db.QueryContext(ctx, s.sql.tagPage, s.dialect.args([]any{after, int64(limit)})...)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			tag, err := scanTag(rows)
			if err != nil {
				return err
			}
			tags = append(tags, tag)
		}
		return rows.Err()
	})
	return tags, err
}

func scanTag(row interface{ Scan(dest ...any) error }) (hapax.Tag, error) {
	var t hapax.Tag
	err := row.Scan(&t.Name, &t.Kind, &t.Start, &t.Step, &t.MinStep, &t.MaxStep, &t.Mark, &t.Pool, &t.Deleted)
	switch {
	case err != nil:
		return hapax.Tag{}, err
	case t.Kind != hapax.KindSegment && t.Kind != hapax.KindSnowflake:
		return hapax.Tag{}, fmt.Errorf("%w: tag %q is of kind %.40q", hapax.ErrStoreCorrupt, t.Name, t.Kind)
	case t.Mark < 0 || t.Mark > hapax.MaxMark:
		return hapax.Tag{}, fmt.Errorf("%w: tag %q has mark %d", hapax.ErrStoreCorrupt, t.Name, t.Mark)
	}
	return t, nil
}

func lostRaces(what, name string) error {
	return fmt.Errorf("%w: %s %q changed %d times meanwhile", hapax.ErrStoreUnavailable, what, name, swapAttempts)
}
