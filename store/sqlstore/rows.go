package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"math"

	"github.com/hapax-id/hapax/store/driver"
)

// Row implements driver.Rows.
func (s *Store) Row(ctx context.Context, table, name string) (value []byte, err error) {
	err = s.do(ctx, "read a row", func(ctx context.Context, c *sql.Conn) error {
		err := s.queryRow(ctx, c, s.sql.row, []any{table, name}, &value)
		if errors.Is(err, sql.ErrNoRows) {
			value, err = nil, nil
		}
		return err
	})
	return value, err
}

// ListRows implements driver.Rows.
func (s *Store) ListRows(ctx context.Context, table, after string, limit int) (page []driver.Row, err error) {
	limit = min(max(limit, 0), math.MaxInt32)
	err = s.do(ctx, "list rows", func(ctx context.Context, c *sql.Conn) error {
		page = nil
		rows, err := c.QueryContext(ctx, s.sql.rowPage, s.dialect.args([]any{table, after, int64(limit)})...)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			var row driver.Row
			if err := rows.Scan(&row.Name, &row.Value); err != nil {
				return err
			}
			page = append(page, row)
		}
		return rows.Err()
	})
	return page, err
}

// SwapRow implements driver.Rows.
func (s *Store) SwapRow(ctx context.Context, table, name string, old, next []byte) (swapped bool, err error) {
	if err := driver.CheckSwap(table, name, old, next); err != nil {
		return false, err
	}
	err = s.do(ctx, "write a row", func(ctx context.Context, c *sql.Conn) error {
		var err error
		if old == nil {
			swapped, err = s.insert(ctx, c, s.sql.rowInsert, table, name, next, s.id)
		} else {
			var n int64
			if next == nil {
				n, err = s.exec(ctx, c, s.sql.rowDelete, table, name, old, s.id)
			} else {
				n, err = s.exec(ctx, c, s.sql.rowUpdate, next, table, name, old, s.id)
			}
			swapped = n == 1
		}
		if err == nil && !swapped {
			err = s.missed(ctx, c)
		}
		return err
	})
	return swapped && err == nil, err
}

// Shared implements driver.Rows.
func (s *Store) Shared() bool { return true }
