package sqlstore

import (
	"context"
	"database/sql"
	"encoding/json"
	"strings"

	"github.com/hapax-id/hapax/store/driver"
)

var _ driver.Together = (*Store)(nil)

// HandsBackTogether implements driver.Together.
func (s *Store) HandsBackTogether() bool { return true }

// A meet makes one guarded query.
type meet = func(guardedCall, ...any) (meeting, error)

// HandBackAllWith implements driver.Together. It is one statement in PostgreSQL, and one
// transaction in MySQL.
func (s *Store) HandBackAllWith(ctx context.Context, p driver.Pulse, all []driver.HandBackOf) (given []bool, contact driver.Contact, err error) {
	for _, h := range all {
		if err := driver.CheckHandBack(h.Allocation, h.Next); err != nil {
			return nil, contact, err
		}
	}
	contact, err = s.guarded(ctx, "hand numbers back", p, func(ctx context.Context, c *sql.Conn, meet meet) error {
		given = make([]bool, len(all))
		return s.dialect.handBackAll(ctx, c, s, all, given, meet)
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

func postgresHandBackAll(_ context.Context, _ *sql.Conn, _ *Store, all []driver.HandBackOf, given []bool, meet meet) error {
	list := make([]handedBack, len(all))
	for i, h := range all {
		list[i] = handedBack{i, h.Tag.Name, h.Grant.Hi, h.Tag.Token, driver.HashKey(h.Key), h.Next}
	}
	text, err := json.Marshal(list)
	if err != nil {
		return err
	}
	m, err := meet(guardedHandBackAll, string(text))
	if err != nil || !m.met {
		return err
	}
	for _, i := range m.all {
		given[i] = true
	}
	return nil
}

// mysqlHandBackAll makes the beat first, which keeps the fence out until the end of the
// transaction, then judges the tags' rows, which it has locked, and changes those that are
// held by one statement.
func mysqlHandBackAll(ctx context.Context, c *sql.Conn, s *Store, all []driver.HandBackOf, given []bool, meet meet) error {
	if len(all) == 0 {
		_, err := meet(guardedBeat)
		return err
	}
	tx, err := c.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // does nothing after a commit
	m, err := meet(guardedBeat)
	if err != nil || !m.met {
		return err
	}
	found, err := s.lockTags(ctx, c, all)
	if err != nil {
		return err
	}
	var args []any
	for i, h := range all {
		t, err := driver.HandBack(found[h.Tag.Name], h.Allocation, h.Next)
		if err == nil {
			given[i] = true
			args = append(args, t.Name, t.Mark)
		}
	}
	if len(args) > 0 {
		returns := "SELECT ? AS name, ? AS mark" + strings.Repeat(" UNION ALL SELECT ?, ?", len(args)/2-1)
		if _, err := s.exec(ctx, c, strings.Replace(s.sql.tagEndAll, "{returns}", returns, 1), args...); err != nil {
			return err
		}
	}
	return tx.Commit()
}

// lockTags reads and locks what a hand-back is judged by. A tag that is not there has no name.
func (s *Store) lockTags(ctx context.Context, c *sql.Conn, all []driver.HandBackOf) (map[string]driver.Tag, error) {
	names := make([]any, len(all))
	for i, h := range all {
		names[i] = h.Tag.Name
	}
	query := strings.Replace(s.sql.tagLockAll, "{names}", "?"+strings.Repeat(", ?", len(names)-1), 1)
	rows, err := c.QueryContext(ctx, query, s.dialect.args(names)...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	found := make(map[string]driver.Tag, len(all))
	for rows.Next() {
		var t driver.Tag
		if err := rows.Scan(&t.Name, &t.Mark, &t.Token, &t.KeyHash, &t.Run, &t.Deleted); err != nil {
			return nil, err
		}
		found[t.Name] = t
	}
	return found, rows.Err()
}
