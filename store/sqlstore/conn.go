package sqlstore

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/sqlstore/internal/handle"
)

const (
	// maxStale bounds how many connections in a row a call may find broken.
	maxStale = MaxMaxConns + 1
	// maxChecked bounds the connections that are remembered as checked.
	maxChecked = 2 * MaxMaxConns
)

// on runs f on a connection that has passed the checks, and on the next one
// where the driver finds a connection broken before it has sent anything. A
// connection that leads to the wrong server is closed.
func (s *Store) on(ctx context.Context, f func(ctx context.Context, c *sql.Conn) error) error {
	for stale := 0; ; stale++ {
		if s.closed.Load() {
			return fmt.Errorf("%w: the %s store", hapax.ErrClosed, s.dialect.name)
		}
		err := s.attempt(ctx, s.ensure, f)
		if !errors.Is(err, driver.ErrBadConn) || stale == maxStale || ctx.Err() != nil {
			return err
		}
	}
}

// attempt runs f on a connection that is made ready first.
func (s *Store) attempt(ctx context.Context, ready, f func(ctx context.Context, c *sql.Conn) error) error {
	c, err := s.db.Conn(ctx)
	if err != nil {
		return &connectError{err}
	}
	defer c.Close()
	if err = ready(ctx, c); err != nil {
		discard(c)
		return &connectError{err}
	}
	err = f(ctx, c)
	// Asked after a failure, too: what is told once would be taken for a doubt about the next call here.
	if doubt := s.doubt(c); err == nil {
		err = doubt
	}
	// The primary has become a replica: given back, the connection would lead the next call there.
	if err != nil && s.dialect.classify(err) == readOnly {
		discard(c)
	}
	return err
}

// checked is what is known of a connection.
type checked struct {
	at      time.Time // when it was looked at
	primary string    // the identity of the server that it leads to
}

// keyOf returns what a connection is remembered by, nil for none.
func keyOf(c *sql.Conn) (key any, err error) {
	err = c.Raw(func(dc any) error {
		// A key that cannot be compared would panic: the connection of such a driver is checked by each call.
		if reflect.TypeOf(dc).Comparable() {
			key = dc
		}
		return nil
	})
	return key, err
}

// ensure checks a connection that was not checked lately.
func (s *Store) ensure(ctx context.Context, c *sql.Conn) error {
	key, err := keyOf(c)
	if err != nil {
		return err
	}
	s.mu.Lock()
	last, known := s.checked[key]
	s.mu.Unlock()
	if known && time.Since(last.at) < handle.MaxLifetime {
		return nil
	}
	srv, err := s.enter(ctx, c)
	if err == nil {
		err = s.judge(ctx, c, srv)
	}
	if err == nil {
		s.noteChecked(key, srv.identity)
	}
	return err
}

// noteChecked notes that a connection was looked at now.
func (s *Store) noteChecked(key any, primary string) {
	if key == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.checked, func(_ any, k checked) bool { return time.Since(k.at) >= handle.MaxLifetime })
	if len(s.checked) >= maxChecked { // most are closed
		clear(s.checked)
	}
	s.checked[key] = checked{time.Now(), primary}
}

// primaryOf returns the identity of the server that a checked connection leads to.
func (s *Store) primaryOf(c *sql.Conn) string {
	key, err := keyOf(c)
	if err != nil {
		return ""
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.checked[key].primary
}

// enter makes the session independent of the server's defaults, and returns what the server is.
func (s *Store) enter(ctx context.Context, c *sql.Conn) (server, error) {
	key, err := keyOf(c)
	if err != nil {
		return server{}, err
	}
	srv, err := s.dialect.enter(ctx, c, fmt.Sprintf("%s/%p", s.run, key))
	_ = s.doubt(c) // what the server says when a session begins is of no interest
	return srv, err
}

// doubt returns why what was just committed on the connection may not be durable.
func (s *Store) doubt(c *sql.Conn) error {
	if s.opts.Doubt == nil {
		return nil
	}
	if err := c.Raw(func(dc any) error { return s.opts.Doubt(dc) }); err != nil {
		return fmt.Errorf("the outcome is in doubt: %v", err) // whatever it is, nothing is tried again
	}
	return nil
}

// discard closes a connection instead of giving it back to the pool.
func discard(c *sql.Conn) {
	_ = c.Raw(func(any) error { return driver.ErrBadConn })
}

// texts returns the rows of a query as text, NULL as the empty string.
func texts(ctx context.Context, c *sql.Conn, query string, args ...any) ([][]string, error) {
	rows, err := c.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	columns, err := rows.Columns()
	if err != nil {
		return nil, err
	}
	var all [][]string
	for rows.Next() {
		values := make([]sql.NullString, len(columns))
		dest := make([]any, len(columns))
		for i := range values {
			dest[i] = &values[i]
		}
		if err := rows.Scan(dest...); err != nil {
			return nil, err
		}
		row := make([]string, len(columns))
		for i, v := range values {
			row[i] = v.String
		}
		all = append(all, row)
	}
	return all, rows.Err()
}

// queryRow reads one row to the end of its statement, so that what a server
// reports after the row, such as a failed commit, is an error too.
func (s *Store) queryRow(ctx context.Context, c *sql.Conn, query string, args []any, dest ...any) error {
	return c.QueryRowContext(ctx, query, s.dialect.args(args)...).Scan(dest...)
}
