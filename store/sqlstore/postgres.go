package sqlstore

import (
	"context"
	"database/sql"
	"database/sql/driver"
	_ "embed"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/hapax-id/hapax"
)

// Names are compared and ordered byte by byte under the collation "C".
//
//go:embed postgres.sql
var postgresScript string

var postgresDialect = dialect{
	name:    PostgreSQL,
	script:  postgresScript,
	quiet:   "LOCK TABLE {rows} IN SHARE MODE",
	texts:   true,
	enter:   postgresEnter,
	inspect: postgresInspect,
	bind:    postgresBind,
	args:    func(args []any) []any { return args },

	get:      postgresGet,
	steps:    postgresSteps(),
	findRows: postgresFind,
	stepRows: postgresStepRows,

	clock:    "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint",
	classify: postgresClassify,
	answered: func(err error) bool { return postgresState(err) != "" },
}

// Commits are durable even if that is not the server's default. The isolation
// level is the one under which an UPDATE waits for the row and then sees it as
// it is. The server has to tell its warnings. Rows are found by
// their keys: a planner that takes a small table for one page reads all of it each time. A
// query without a key would count as so dear then that the server compiles it, for a tenth
// of a second on each connection.
const postgresSession = `SELECT
	COALESCE(current_setting('hapax.session', true), ''),
	set_config('hapax.session', $1, false),
	set_config('synchronous_commit', CASE current_setting('synchronous_commit')
			WHEN 'off' THEN 'on' ELSE current_setting('synchronous_commit') END, false),
	set_config('default_transaction_isolation', 'read committed', false),
	set_config('enable_seqscan', 'off', false),
	set_config('enable_hashjoin', 'off', false),
	set_config('enable_mergejoin', 'off', false),
	(SELECT set_config(name, 'force_generic_plan', false) FROM pg_settings WHERE name = 'plan_cache_mode'),
	set_config('client_min_messages', 'warning', false)`

const postgresServer = `
	pg_is_in_recovery()::text,
	current_setting('transaction_read_only'),
	current_setting('server_encoding'),
	current_setting('fsync'),
	current_setting('full_page_writes')`

// What identifies a server is apart, because forks of PostgreSQL may lack either; all of it
// together takes one round trip. The name of a log file begins with the timeline in eight
// hexadecimal digits, and a replica writes none. The start is told in microseconds, whatever
// the session's time zone and style.
const (
	postgresSystem = `(SELECT system_identifier::text FROM pg_control_system()),
	CASE WHEN pg_is_in_recovery() THEN '' ELSE left(pg_walfile_name(pg_current_wal_lsn()), 8) END`
	postgresStart = `(extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint::text`
)

// postgresEnter reads the mark that the session had before: one of another connection was handed
// to this one by a pooler, as between any two statements.
func postgresEnter(ctx context.Context, c *sql.Conn, mark string) (server, error) {
	return postgresAsk(ctx, c, postgresSession, mark)
}

func postgresInspect(ctx context.Context, c *sql.Conn) (server, error) {
	return postgresAsk(ctx, c, "SELECT ''")
}

// postgresAsk has a query, whose first column is the mark of the session, tell what the server is, too.
func postgresAsk(ctx context.Context, c *sql.Conn, query string, mark ...any) (server, error) {
	query += ", " + postgresServer
	rows, err := texts(ctx, c, query+", "+postgresSystem+", "+postgresStart, mark...)
	parts := 3                                  // those of its identity
	if err != nil && postgresState(err) != "" { // it may be a fork
		parts = 0
		rows, err = texts(ctx, c, query, mark...)
	}
	switch {
	case err != nil:
		return server{}, err
	case len(rows) != 1:
		return server{}, fmt.Errorf("the server describes itself in %d rows", len(rows))
	}
	before, row := rows[0][0], rows[0][len(rows[0])-5-parts:]
	if before != "" && before != mark[0] {
		return server{}, errSwitched
	}
	if parts > 0 {
		return postgresDescribe(row, row[5:7], row[7:])
	}
	system, err := postgresPart(ctx, c, postgresSystem)
	if err != nil {
		return server{}, err
	}
	start, err := postgresPart(ctx, c, postgresStart)
	if err != nil {
		return server{}, err
	}
	return postgresDescribe(row, system, start)
}

// postgresDescribe returns what a server says of itself. The parts of its identity are empty
// where it lacks them.
func postgresDescribe(row, system, start []string) (srv server, err error) {
	recovering, txReadOnly, encoding, fsync, fullPages := row[0], row[1], row[2], row[3], row[4]
	switch {
	case recovering == "true":
		srv.readOnly = "the server is a replica or in recovery"
		return srv, nil
	case txReadOnly == "on":
		srv.readOnly = "default_transaction_read_only is on"
		return srv, nil
	case encoding != "UTF8":
		return srv, fmt.Errorf("%w: the database has encoding %s; create it with UTF8", hapax.ErrNotSupported, encoding)
	}
	if fsync != "on" {
		srv.lossy = append(srv.lossy, "fsync is "+fsync+", on is safe")
	}
	if fullPages != "on" {
		srv.lossy = append(srv.lossy, "full_page_writes is "+fullPages+", on is safe")
	}
	var parts []string
	if len(system) > 0 && system[0] != "" {
		parts = append(parts, "system "+system[0]+"/timeline "+system[1])
	}
	if len(start) > 0 && start[0] != "" {
		parts = append(parts, "start "+start[0])
	}
	srv.identity = strings.Join(parts, "/")
	return srv, nil
}

// postgresPart returns a part of the server's identity, none where the server lacks it.
func postgresPart(ctx context.Context, c *sql.Conn, part string) ([]string, error) {
	rows, err := texts(ctx, c, "SELECT "+part)
	switch {
	case err != nil && postgresState(err) == "":
		return nil, err
	case err != nil || len(rows) != 1:
		return nil, nil //nolint:nilerr // the server has no such part
	}
	return rows[0], nil
}

func postgresBind(query string) string {
	var b strings.Builder
	n := 0
	for part := range strings.SplitSeq(query, "?") {
		if n > 0 {
			b.WriteString("$" + strconv.Itoa(n))
		}
		b.WriteString(part)
		n++
	}
	return b.String()
}

// postgresState returns the code of a server's error, empty for any other.
func postgresState(err error) string {
	if e, ok := errors.AsType[interface {
		error
		SQLState() string
	}](err); ok {
		return e.SQLState()
	}
	return ""
}

func postgresClassify(err error) class {
	switch {
	case errors.Is(err, driver.ErrBadConn): // the driver says so only if nothing was sent
		return undone
	case errors.Is(err, errSwitched):
		return switched
	}
	switch postgresState(err) {
	case "40001", "40P01", "55P03", // serialization failure, deadlock, lock not available: rolled back
		"53300", "57P03": // too many connections, starting up or shutting down: no session was begun
		return undone
	case "23505", "42P07", "42710", "42701": // key, table, its type, column
		return exists
	case "42703":
		return noColumn
	case "42P01":
		return noTable
	case "25006":
		return readOnly
	case "42501", "28000", "28P01":
		return forbidden
	case "42P05", "26000": // a prepared statement of another session, or none of this one
		return switched
	}
	return unknown
}
