package sequences

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/hapax-id/hapax"
)

// FloorTimeout bounds the look at one column.
const FloorTimeout = 3 * time.Second

// Highest returns the highest number in a column, 0 for none, by its index and within
// FloorTimeout. It refuses a column without one, with the statement that makes it, and
// asks the database to refuse changes. Errors do not show the URL.
func Highest(ctx context.Context, reference, table, column string) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, FloorTimeout)
	defer cancel()
	db, err := Open(ctx, reference, Options{Timeout: FloorTimeout})
	if err != nil {
		return 0, err
	}
	defer db.Close()
	reader, ok := db.(interface {
		column(ctx context.Context, table, column string) (Column, error)
		highest(ctx context.Context, c Column) (int64, error)
	})
	if !ok {
		return 0, &hapax.ValueError{Field: "floor_from", Value: Shown(reference), Allowed: "a database with tables: postgres:// or mysql://", Err: hapax.ErrInvalidArgument}
	}
	c, err := reader.column(ctx, table, column)
	switch {
	case err != nil:
		return 0, err
	case c.Last == 0:
		return 0, &hapax.ValueError{Field: "column", Value: c.String() + ", " + c.Type, Allowed: "a column of whole numbers", Err: hapax.ErrInvalidArgument}
	case !c.Index:
		return 0, fmt.Errorf("%w: %s has no index that begins with it, so that its highest number would take a scan: %s", hapax.ErrInvalidArgument, c, c.Create)
	}
	return reader.highest(ctx, c)
}

// noColumn is the error for a column that is not there, or may not be read.
func noColumn(table, column string) error {
	return &hapax.ValueError{Field: "column", Value: table + "." + column, Allowed: "a column of that database which the account may read", Err: hapax.ErrInvalidArgument}
}

const pgColumn = `
SELECT n.nspname, c.relname, a.attname, format_type(a.atttypid, a.atttypmod),
  EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indkey[0] = a.attnum AND i.indisvalid AND i.indpred IS NULL
          AND (SELECT amname FROM pg_class ic JOIN pg_am am ON am.oid = ic.relam WHERE ic.oid = i.indexrelid) = 'btree')
FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE a.attrelid = to_regclass($1) AND a.attname = $2 AND NOT a.attisdropped AND a.attnum > 0`

func (p *postgres) column(ctx context.Context, table, column string) (c Column, err error) {
	err = p.db.QueryRowContext(ctx, pgColumn, table, column).Scan(&c.schema, &c.table, &c.Name, &c.Type, &c.Index)
	if errors.Is(err, sql.ErrNoRows) {
		return c, noColumn(table, column)
	}
	base, _, _ := strings.Cut(c.Type, "(")
	c.Table, c.Qualified, c.Last = pgName(c.schema, c.table), pgQualified(c.schema, c.table), pgLast[base]
	c.Create = fmt.Sprintf("CREATE INDEX CONCURRENTLY ON %s (%s)", pgQualified(c.schema, c.table), pgColumnName(c.Name))
	c.Widen = pgWiden(c, c.schema, c.table)
	return c, dbError(err)
}

func (p *postgres) highest(ctx context.Context, c Column) (int64, error) {
	var most sql.Null[int64]
	err := p.db.QueryRowContext(ctx, fmt.Sprintf("SELECT max(%s)::bigint FROM %s", quoteDouble(c.Name), pgQuoted(c.schema, c.table))).Scan(&most)
	return most.V, dbError(err)
}

func (m *mySQL) column(ctx context.Context, table, column string) (c Column, err error) {
	err = m.rows(ctx, `SELECT c.TABLE_NAME, c.COLUMN_NAME, c.COLUMN_TYPE,
		EXISTS (SELECT 1 FROM information_schema.STATISTICS s WHERE s.TABLE_SCHEMA = c.TABLE_SCHEMA AND s.TABLE_NAME = c.TABLE_NAME
			AND s.COLUMN_NAME = c.COLUMN_NAME AND s.SEQ_IN_INDEX = 1 AND s.INDEX_TYPE = 'BTREE')
		FROM information_schema.COLUMNS c WHERE c.TABLE_SCHEMA = ? AND c.TABLE_NAME = ? AND c.COLUMN_NAME = ?`, func(scan func(...any) error) error {
		return scan(&c.table, &c.Name, &c.Type, &c.Index)
	}, m.schema, table, column)
	if err == nil && c.Name == "" {
		err = noColumn(table, column)
	}
	return m.named(c, ""), err
}

func (m *mySQL) highest(ctx context.Context, c Column) (int64, error) {
	most, err := m.max(ctx, c)
	if err != nil {
		return 0, err
	}
	n, err := positionOf(most, 0)
	if err != nil {
		return math.MaxInt64, fmt.Errorf("%w; %s holds it", err, c)
	}
	return n, nil
}
