package sqlstore

import (
	"context"
	"crypto/tls"
	"database/sql"
	"database/sql/driver"
	_ "embed"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/hapax-id/hapax"
)

type postgresDialect struct{ plain driver.Connector }

func newPostgres(u *url.URL, opts Options) (*postgresDialect, error) {
	cfg, err := pgx.ParseConfig(u.String())
	if err != nil {
		return nil, fmt.Errorf("%w: store URL: %w", hapax.ErrInvalidArgument, err) // pgx leaves the password out
	}
	if opts.TLS != nil {
		cfg.TLSConfig = tlsFor(opts.TLS, cfg.Host)
		for _, f := range cfg.Fallbacks {
			f.TLSConfig = tlsFor(opts.TLS, f.Host)
		}
	}
	return &postgresDialect{stdlib.GetConnector(*cfg)}, nil
}

func tlsFor(cfg *tls.Config, host string) *tls.Config {
	cfg = cfg.Clone()
	if cfg.ServerName == "" {
		cfg.ServerName = host
	}
	return cfg
}

func (d *postgresDialect) name() Dialect { return PostgreSQL }

func (d *postgresDialect) connector() driver.Connector { return d.plain }

// postgresInspect sets up the session on the way: commits are durable even if
// that is not the server's default, and the isolation level is the one under
// which an UPDATE waits for the row and then sees it as it is.
const postgresInspect = `SELECT
	pg_is_in_recovery()::text,
	current_setting('transaction_read_only'),
	current_setting('server_encoding'),
	current_setting('fsync'),
	current_setting('full_page_writes'),
	current_setting('synchronous_standby_names'),
	set_config('synchronous_commit', CASE current_setting('synchronous_commit')
		WHEN 'off' THEN 'on' ELSE current_setting('synchronous_commit') END, false),
	set_config('default_transaction_isolation', 'read committed', false)`

// postgresIdentity is apart, because forks of PostgreSQL may lack it. The name
// of a log file begins with the timeline in eight hexadecimal digits.
const postgresIdentity = `SELECT
	(SELECT system_identifier::text FROM pg_control_system()),
	left(pg_walfile_name(pg_current_wal_lsn()), 8)`

func (d *postgresDialect) inspect(ctx context.Context, s session) (server, error) {
	rows, err := s.query(ctx, postgresInspect)
	if err != nil {
		return server{}, err
	}
	if len(rows) != 1 {
		return server{}, fmt.Errorf("the server describes itself in %d rows", len(rows))
	}
	row := rows[0]
	recovering, txReadOnly, encoding, fsync, fullPages, standbys, commit := row[0], row[1], row[2], row[3], row[4], row[5], row[6]
	srv := server{quorum: standbys != "" && (commit == "on" || commit == "remote_apply")}
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
	rows, err = s.query(ctx, postgresIdentity)
	switch {
	case err != nil && !d.answered(err):
		return srv, err
	case err == nil && len(rows) == 1 && rows[0][0] != "":
		srv.identity = "system " + rows[0][0] + "/timeline " + rows[0][1]
	}
	return srv, nil
}

// Names are compared and ordered byte by byte under the collation "C". A holder
// need not be valid text.
//
//go:embed postgres.sql
var postgresScript string

func (d *postgresDialect) schema(prefix string) []string { return tables(postgresScript, prefix) }

func (d *postgresDialect) bind(query string) string {
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

func (d *postgresDialect) args(args []any) []any { return args }

func (d *postgresDialect) raise(expression string) (assignment, suffix string) {
	return "mark = " + expression, " RETURNING mark"
}

// swap scans through QueryRow, which reads the statement to its end: the row
// comes before the commit.
func (d *postgresDialect) swap(ctx context.Context, db *sql.DB, query string, args []any) (mark int64, ok bool, err error) {
	err = db.QueryRowContext(ctx, query, args...).Scan(&mark)
	if errors.Is(err, sql.ErrNoRows) {
		return 0, false, nil
	}
	return mark, err == nil, err
}

func (d *postgresDialect) clock() string {
	return "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
}

func (d *postgresDialect) classify(err error) class {
	if errors.Is(err, driver.ErrBadConn) { // the driver says so only if nothing was sent
		return undone
	}
	e, ok := errors.AsType[*pgconn.PgError](err)
	if !ok {
		return unknown
	}
	switch e.Code {
	case "40001", "40P01", "55P03", // serialization failure, deadlock, lock not available: rolled back
		"53300", "57P03": // too many connections, starting up or shutting down: no session was begun
		return undone
	case "23505", "42P07", "42710": // key, table, its type
		return exists
	case "42P01":
		return noTable
	case "25006":
		return readOnly
	case "42501", "28000", "28P01":
		return forbidden
	}
	return unknown
}

func (d *postgresDialect) answered(err error) bool {
	_, ok := errors.AsType[*pgconn.PgError](err)
	return ok
}
