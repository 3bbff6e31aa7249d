package sqlstore

import (
	"context"
	"database/sql"
)

// rights are statements that change nothing, each of which needs a right that a store
// needs: servers judge that before they look for rows. The last one, for tables that are to
// be made, fails in any case, since what it copies does not exist.
var (
	rights = []string{
		"INSERT INTO {meta} SELECT * FROM {meta} WHERE name = '' AND name <> ''",
		"INSERT INTO {rows} SELECT * FROM {rows} WHERE tbl = '' AND tbl <> ''",
		"UPDATE {rows} SET value = value WHERE tbl = '' AND tbl <> ''",
		"DELETE FROM {rows} WHERE tbl = '' AND tbl <> ''",
	}
	rightToCreate = "CREATE TABLE {meta}_probe (LIKE {meta}_there_is_none)"
)

// mayAll returns the error with which the server refuses the account a right that a store needs.
// A command that only looks shows it before a server is started.
func (s *Store) mayAll(ctx context.Context, c *sql.Conn) error {
	creates := false
	for _, statement := range rights {
		if _, err := c.ExecContext(ctx, s.sql.names.Replace(statement)); err != nil {
			if s.dialect.classify(err) != noTable {
				return err
			}
			creates = true
		}
	}
	if !creates {
		return nil
	}
	if _, err := c.ExecContext(ctx, s.sql.names.Replace(rightToCreate)); s.dialect.classify(err) != noTable {
		return err
	}
	return nil
}
