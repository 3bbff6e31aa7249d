package sqlstore

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"
)

// A connector makes the pool's connections and lets none into it that does not
// pass the check.
type connector struct {
	dialect dialect
	timeout time.Duration // the pool also connects without a deadline
	check   func(ctx context.Context, conn driver.Conn) error
}

// Connect implements driver.Connector.
func (c *connector) Connect(ctx context.Context) (driver.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	conn, err := connect(ctx, c.dialect)
	if err != nil {
		return nil, err
	}
	if err := c.check(ctx, conn); err != nil {
		_ = conn.Close()
		return nil, &connectError{err}
	}
	return conn, nil
}

// Driver implements driver.Connector.
func (c *connector) Driver() driver.Driver { return c.dialect.connector().Driver() }

func connect(ctx context.Context, d dialect) (driver.Conn, error) {
	conn, err := d.connector().Connect(ctx)
	if err != nil {
		return nil, &connectError{err}
	}
	return conn, nil
}

// A session runs statements on one connection below the pool.
type session struct{ conn driver.Conn }

// query returns the rows as text, NULL as the empty string.
func (s session) query(ctx context.Context, query string, args ...any) ([][]string, error) {
	q, ok := s.conn.(driver.QueryerContext)
	if !ok {
		return nil, fmt.Errorf("%T cannot run queries", s.conn)
	}
	rows, err := q.QueryContext(ctx, query, named(args))
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	values := make([]driver.Value, len(rows.Columns()))
	var all [][]string
	for {
		err := rows.Next(values)
		if errors.Is(err, io.EOF) {
			return all, rows.Close()
		}
		if err != nil {
			return nil, err
		}
		row := make([]string, len(values))
		for i, v := range values {
			if row[i], err = text(v); err != nil {
				return nil, err
			}
		}
		all = append(all, row)
	}
}

func (s session) exec(ctx context.Context, query string, args ...any) error {
	e, ok := s.conn.(driver.ExecerContext)
	if !ok {
		return fmt.Errorf("%T cannot run statements", s.conn)
	}
	_, err := e.ExecContext(ctx, query, named(args))
	return err
}

func named(args []any) []driver.NamedValue {
	values := make([]driver.NamedValue, len(args))
	for i, arg := range args {
		values[i] = driver.NamedValue{Ordinal: i + 1, Value: arg}
	}
	return values
}

func text(v driver.Value) (string, error) {
	switch v := v.(type) {
	case nil:
		return "", nil
	case string:
		return v, nil
	case []byte:
		return string(v), nil
	case int64:
		return strconv.FormatInt(v, 10), nil
	case bool:
		return strconv.FormatBool(v), nil
	}
	return "", fmt.Errorf("a %T where text was expected", v)
}
