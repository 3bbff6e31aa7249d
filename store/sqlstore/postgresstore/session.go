package postgresstore

import (
	"context"
	"database/sql/driver"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
)

// prepareAt is the use of a statement on a connection from which on it is prepared, as in the
// JDBC driver. To prepare it takes a round trip more, and a new connection to a distant server
// has a dozen statements to make, most of them once.
const prepareAt = 5

// maxCounted bounds the statements whose uses are counted.
const maxCounted = 200

// A connector makes sessions.
type connector struct{ driver.Connector }

// Connect implements driver.Connector.
func (c connector) Connect(ctx context.Context) (driver.Conn, error) {
	conn, err := c.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	std, ok := conn.(*stdlib.Conn)
	if !ok {
		_ = conn.Close()
		return nil, fmt.Errorf("the driver has made a %T", conn)
	}
	return &session{Conn: std, uses: map[string]int{}}, nil
}

// A session is a connection that makes a statement in one round trip before it prepares it.
// It is used by one goroutine at a time.
type session struct {
	*stdlib.Conn

	uses map[string]int // of statements
}

// with returns the arguments that have the driver make the statement in one round trip.
func (s *session) with(query string, args []driver.NamedValue) []driver.NamedValue {
	n := s.uses[query] + 1
	// What is not counted any more is left to the driver, which prepares it.
	if n >= prepareAt || n == 1 && len(s.uses) >= maxCounted {
		return args
	}
	s.uses[query] = n
	return slices.Concat([]driver.NamedValue{{Value: pgx.QueryExecModeExec}}, args)
}

// QueryContext implements driver.QueryerContext.
func (s *session) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	return s.Conn.QueryContext(ctx, query, s.with(query, args))
}

// ExecContext implements driver.ExecerContext.
func (s *session) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	return s.Conn.ExecContext(ctx, query, s.with(query, args))
}
