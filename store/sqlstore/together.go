package sqlstore

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
)

var (
	_ driver.Together           = (*Store)(nil)
	_ driver.TogetherAllocating = (*Store)(nil)
)

// HandsBackTogether implements driver.Together.
func (s *Store) HandsBackTogether() bool { return true }

// withTags makes the beat, which keeps the fence out until the end of the transaction, and
// in it what f does with those of the tags that there are, which are read and locked in the
// order of their names. Where the beat is not made it does nothing more.
func (s *Store) withTags(ctx context.Context, c *sql.Conn, query query, names []any, f func(tags map[string]driver.Tag) error) error {
	tx, err := c.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // does nothing after a commit
	m, err := query(guardedBeat)
	if err != nil || !m.met {
		return err
	}
	tags, err := s.lockTags(ctx, c, names)
	if err != nil {
		return err
	}
	if err := f(tags); err != nil {
		return err
	}
	return tx.Commit()
}

// lockTags reads and locks the tags that there are.
func (s *Store) lockTags(ctx context.Context, c *sql.Conn, names []any) (map[string]driver.Tag, error) {
	query := s.sql.tagsLocked + s.dialect.bind(" WHERE name IN (?"+strings.Repeat(", ?", len(names)-1)+") ORDER BY name FOR UPDATE") //nolint:gosec // question marks alone are added
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

// AllocateAllWith implements driver.TogetherAllocating. It is one transaction with one
// statement that changes the tags' rows.
func (s *Store) AllocateAllWith(ctx context.Context, p driver.Pulse, all []driver.AllocateOf) (made []driver.Allocated, contact driver.Contact, err error) {
	if len(all) == 1 {
		a, contact, err := s.AllocateWith(ctx, p, all[0].Tag, all[0].N, all[0].Last)
		if contact.Met && driver.IsOfTag(err) {
			return []driver.Allocated{{Err: err}}, contact, nil
		}
		return []driver.Allocated{{Allocation: a}}, contact, err
	}
	var names []any
	for _, of := range all {
		if err := hapax.ValidateName("tag", of.Tag); err != nil {
			return nil, contact, err
		}
		if !slices.Contains(names, any(of.Tag)) {
			names = append(names, of.Tag)
		}
	}
	var tags map[string]driver.Tag
	contact, err = s.guarded(ctx, "allocate", p, func(ctx context.Context, c *sql.Conn, query query) error {
		return s.withTags(ctx, c, query, names, func(locked map[string]driver.Tag) error {
			tags = locked
			if made, err = advanceAll(tags, all); err != nil {
				return err
			}
			return s.setMarks(ctx, c, tags)
		})
	})
	for name, t := range tags {
		if s.forget(name); err == nil && contact.Met {
			t.Mark = 0
			s.remember(known{t.Tag, t.KeyHash, t.Run})
		}
	}
	return made, contact, err
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

// setMarks writes how far tags are granted, and the last grantee.
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

// A query makes one guarded query.
type query = func(guardedCall, ...any) (guardedAnswer, error)

// HandBackAllWith implements driver.Together. It is one statement in PostgreSQL, and one
// transaction in MySQL.
func (s *Store) HandBackAllWith(ctx context.Context, p driver.Pulse, all []driver.HandBackOf) (given []bool, contact driver.Contact, err error) {
	for _, h := range all {
		if err := driver.CheckHandBack(h.Allocation, h.Next); err != nil {
			return nil, contact, err
		}
	}
	contact, err = s.guarded(ctx, "hand numbers back", p, func(ctx context.Context, c *sql.Conn, query query) error {
		given = make([]bool, len(all))
		return s.dialect.handBackAll(ctx, c, s, all, given, query)
	})
	for i, h := range all {
		if err == nil && given[i] {
			s.ended(h.Allocation)
		}
	}
	return given, contact, err
}

// A handedBack is a hand-back as PostgreSQL reads it.
type handedBack struct {
	I     int    `json:"i"` // which one it is
	Name  string `json:"name"`
	Mark  int64  `json:"mark"`
	Token int64  `json:"token"`
	Hash  string `json:"hash"`
	Next  int64  `json:"next"`
}

func postgresHandBackAll(_ context.Context, _ *sql.Conn, _ *Store, all []driver.HandBackOf, given []bool, query query) error {
	list := make([]handedBack, len(all))
	for i, h := range all {
		list[i] = handedBack{i, h.Tag.Name, h.Grant.Hi, h.Tag.Token, driver.HashKey(h.Key), h.Next}
	}
	text, err := json.Marshal(list)
	if err != nil {
		return err
	}
	m, err := query(guardedHandBackAll, string(text))
	if err != nil || !m.met {
		return err
	}
	for _, i := range m.all {
		given[i] = true
	}
	return nil
}

// mysqlHandBackAll judges the tags' rows, and changes those that are held by one statement.
func mysqlHandBackAll(ctx context.Context, c *sql.Conn, s *Store, all []driver.HandBackOf, given []bool, query query) error {
	if len(all) == 0 {
		_, err := query(guardedBeat)
		return err
	}
	names := make([]any, len(all))
	for i, h := range all {
		names[i] = h.Tag.Name
	}
	return s.withTags(ctx, c, query, names, func(tags map[string]driver.Tag) error {
		var args []any
		for i, h := range all {
			t, err := driver.HandBack(tags[h.Tag.Name], h.Allocation, h.Next)
			if err == nil {
				given[i] = true
				args = append(args, t.Name, t.Mark)
			}
		}
		if len(args) == 0 {
			return nil
		}
		returns := "SELECT ? AS name, ? AS mark" + strings.Repeat(" UNION ALL SELECT ?, ?", len(args)/2-1)
		_, err := s.exec(ctx, c, strings.Replace(s.sql.tagEndAll, "{returns}", returns, 1), args...)
		return err
	})
}
