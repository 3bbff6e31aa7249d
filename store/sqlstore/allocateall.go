package sqlstore

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
)

var _ driver.TogetherAllocating = (*Store)(nil)

// AllocateAllWith implements driver.TogetherAllocating. It is one transaction: the beat,
// then the tags' rows, which are read and locked in the order of their names, and one
// statement that changes them.
func (s *Store) AllocateAllWith(ctx context.Context, p driver.Pulse, all []driver.AllocateOf) (made []driver.Allocated, contact driver.Contact, err error) {
	if len(all) == 1 {
		a, contact, err := s.AllocateWith(ctx, p, all[0].Tag, all[0].N, all[0].Last)
		if contact.Met && driver.IsOfTag(err) {
			return []driver.Allocated{{Err: err}}, contact, nil
		}
		return []driver.Allocated{{Allocation: a}}, contact, err
	}
	for _, of := range all {
		if err := hapax.ValidateName("tag", of.Tag); err != nil {
			return nil, contact, err
		}
	}
	var tags map[string]driver.Tag
	contact, err = s.guarded(ctx, "allocate", p, func(ctx context.Context, c *sql.Conn, meet meet) error {
		tx, err := c.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback() }() // does nothing after a commit
		m, err := meet(guardedBeat)
		if err != nil || !m.met {
			return err
		}
		if tags, err = s.lockAll(ctx, c, all); err != nil {
			return err
		}
		if made, err = advanceAll(tags, all); err != nil {
			return err
		}
		if err := s.setMarks(ctx, c, tags); err != nil {
			return err
		}
		return tx.Commit()
	})
	for name, t := range tags {
		if s.forget(name); err == nil && contact.Met {
			t.Mark = 0
			s.remember(known{t.Tag, t.KeyHash, t.Run})
		}
	}
	return made, contact, err
}

// lockAll reads and locks the tags that there are.
func (s *Store) lockAll(ctx context.Context, c *sql.Conn, all []driver.AllocateOf) (map[string]driver.Tag, error) {
	var names []any
	for _, of := range all {
		if !slices.Contains(names, any(of.Tag)) {
			names = append(names, of.Tag)
		}
	}
	query := s.sql.tagsLocked + s.dialect.bind(" WHERE name IN (?"+strings.Repeat(", ?", len(names)-1)+") ORDER BY name FOR UPDATE")
	rows, err := c.QueryContext(ctx, query, s.dialect.args(names)...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	tags := make(map[string]driver.Tag, len(names))
	for rows.Next() {
		var t driver.Tag
		if t.Tag, err = scanTag(withKey{rows, &t}); err != nil {
			return nil, err
		}
		tags[t.Name] = t
	}
	return tags, rows.Err()
}

// withKey scans what tells who may hand back besides.
type withKey struct {
	rows *sql.Rows
	tag  *driver.Tag
}

func (w withKey) Scan(dest ...any) error {
	return w.rows.Scan(append(dest, &w.tag.KeyHash, &w.tag.Run)...)
}

// advanceAll makes the allocations, and leaves in tags those that changed.
func advanceAll(tags map[string]driver.Tag, all []driver.AllocateOf) ([]driver.Allocated, error) {
	made := make([]driver.Allocated, len(all))
	changed := map[string]bool{}
	for i, of := range all {
		t, ok := tags[of.Tag]
		if !ok {
			made[i].Err = fmt.Errorf("%w: %q", hapax.ErrTagNotFound, of.Tag)
			continue
		}
		a, next, err := driver.Advance(t, of.N, of.Last)
		switch {
		case driver.IsOfTag(err):
			made[i].Err = err
			continue
		case err != nil:
			return nil, err
		}
		made[i].Allocation, tags[of.Tag], changed[of.Tag] = a, next, true
	}
	for name := range tags {
		if !changed[name] {
			delete(tags, name)
		}
	}
	return made, nil
}

// setMarks writes how far tags are granted, and to whom last.
func (s *Store) setMarks(ctx context.Context, c *sql.Conn, tags map[string]driver.Tag) error {
	var args []any
	for name, t := range tags {
		args = append(args, name, t.Mark, t.KeyHash, t.Run)
	}
	if len(tags) == 0 {
		return nil
	}
	marks := s.dialect.bind(s.dialect.mark + strings.Repeat(" UNION ALL "+s.dialect.mark, len(tags)-1))
	n, err := s.exec(ctx, c, strings.Replace(s.sql.tagSetMarks, "{marks}", marks, 1), args...)
	if err == nil && n != int64(len(tags)) {
		err = fmt.Errorf("%w: %d of %d tags were there when their marks were raised", hapax.ErrStoreCorrupt, n, len(tags))
	}
	return err
}
