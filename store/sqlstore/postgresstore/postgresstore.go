// Package postgresstore opens a SQL store in PostgreSQL by its URL. What the
// store does is told by package sqlstore.
package postgresstore

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/store/sqlstore"
	"github.com/hapax-id/hapax/store/sqlstore/internal/handle"
)

// Open connects to the database that the URL names, creates what is missing,
// and checks that it is the store it was. Close must be called.
//
//	postgres://user:password@host:5432/database?sslmode=verify-full
//
// The URL may have prefix=, which begins the names of the tables (default
// "hapax_"), the parameters that pgx knows, and settings of the session.
//
// Errors are ErrInvalidArgument for the URL, and those of sqlstore.New.
func Open(ctx context.Context, storeURL string, opts sqlstore.Options) (*sqlstore.Store, error) {
	cfg, prefix, err := config(storeURL, opts)
	if err != nil {
		return nil, err
	}
	cfg.OnNotice = keepWarning
	opts.Doubt = takeWarning
	opts.Prefix, opts.CloseDB = cmp.Or(prefix, opts.Prefix), true
	db := handle.New(connector{stdlib.GetConnector(*cfg, stdlib.OptionShouldPing(isInDoubt))}, cmp.Or(opts.MaxConns, sqlstore.DefaultMaxConns), cmp.Or(opts.Timeout, sqlstore.DefaultTimeout))
	return sqlstore.New(ctx, db, sqlstore.PostgreSQL, opts)
}

// CheckURL returns what is wrong with a URL for Open, without connecting: ErrInvalidArgument.
func CheckURL(url string) error {
	_, _, err := config(url, sqlstore.Options{})
	return err
}

func config(storeURL string, opts sqlstore.Options) (*pgx.ConnConfig, string, error) {
	u, query, prefix, err := handle.Parse(storeURL, "postgres", "postgresql")
	if err != nil {
		return nil, "", err
	}
	if err := checkParams(query); err != nil {
		return nil, "", err
	}
	if u.Host == "" && u.Path == "" && u.RawQuery == "" {
		return nil, "", &hapax.ValueError{Field: "store URL", Value: storeURL, Allowed: "a server and a database, as in postgres://USER:PASSWORD@HOST:5432/DATABASE", Err: hapax.ErrInvalidArgument} //nolint:gosec // a form, not a password
	}
	cfg, err := pgx.ParseConfig(u.String())
	if err != nil {
		return nil, "", fmt.Errorf("%w: store URL: %w", hapax.ErrInvalidArgument, err) // pgx leaves the password out
	}
	if opts.TLS != nil {
		cfg.TLSConfig = tlsFor(opts.TLS, cfg.Host)
		// Of several hosts each has its own name to verify.
		for _, f := range cfg.Fallbacks {
			f.TLSConfig = tlsFor(opts.TLS, f.Host)
		}
	}
	return cfg, prefix, nil
}

// The parameters of a connection: pgx's; of the settings of a session, which the server knows,
// those that URLs have; and libpq's own, which pgx would take for settings of the session.
var (
	ofPgx = []string{
		"host", "port", "dbname", "database", "user", "password", "passfile", "connect_timeout", "target_session_attrs", "service", "servicefile",
		"sslmode", "sslkey", "sslcert", "sslcertmode", "sslrootcert", "sslnegotiation", "sslpassword", "sslsni",
		"krbspn", "krbsrvname", "channel_binding", "require_auth", "min_protocol_version", "max_protocol_version",
		"default_query_exec_mode", "statement_cache_capacity", "description_cache_capacity",
	}
	ofSessions = []string{"options", "replication", "application_name", "search_path", "client_encoding", "timezone", "datestyle", "statement_timeout", "lock_timeout"}
	ofLibpq    = []string{
		"hostaddr", "fallback_application_name", "keepalives", "keepalives_idle", "keepalives_interval", "keepalives_count",
		"gssencmode", "gsslib", "gssdelegation", "sslcompression", "sslcrl", "sslcrldir", "sslkeylogfile", "requirepeer", "requiressl", "load_balance_hosts",
	}
)

// checkParams refuses a parameter that is almost one of a connection, such as sslmod, or that
// libpq alone has. The server refuses what else is no setting of a session, and names it.
func checkParams(query url.Values) error {
	known := slices.Concat(ofPgx, ofSessions, []string{"prefix"})
	for _, name := range slices.Sorted(maps.Keys(query)) {
		given := strings.ToLower(name) // settings of a session count in any case
		if slices.Contains(ofPgx, name) || slices.Contains(ofSessions, given) {
			continue
		}
		if slices.Contains(ofLibpq, given) || driver.Distance(given, driver.Nearest(given, known)) <= min(2, len(given)/3) {
			return driver.WrongParameter(name, known, "or a setting of the session that the server knows")
		}
	}
	if mode := query.Get("sslmode"); query.Has("sslmode") && !slices.Contains(sslModes, mode) {
		return &hapax.ValueError{Field: "store URL parameter sslmode", Value: mode, Allowed: "one of " + strings.Join(sslModes, ", "), Err: hapax.ErrInvalidArgument}
	}
	return nil
}

var sslModes = []string{"disable", "allow", "prefer", "require", "verify-ca", "verify-full"}

func tlsFor(cfg *tls.Config, host string) *tls.Config {
	cfg = cfg.Clone()
	if cfg.ServerName == "" {
		cfg.ServerName = host
	}
	return cfg
}

// isInDoubt reports whether a connection is to be pinged before it is used, which takes a round
// trip: one that was idle, and that the server has closed meanwhile, which shows without.
func isInDoubt(_ context.Context, p stdlib.ShouldPingParams) bool {
	//lint:ignore SA1019 a ping is what it spares
	return p.IdleDuration > time.Second/2 && p.Conn.PgConn().CheckConn() != nil //nolint:staticcheck // as above
}

// warning is where a connection keeps the last warning of its server.
const warning = "hapax: last warning"

func keepWarning(c *pgconn.PgConn, n *pgconn.Notice) {
	if n.SeverityUnlocalized == "WARNING" || n.SeverityUnlocalized == "" { // empty: before PostgreSQL 9.6
		c.CustomData()[warning] = n.Message
	}
}

// takeWarning returns the last warning of the server on a connection, and
// forgets it.
func takeWarning(conn any) error {
	c, ok := conn.(*session)
	if !ok {
		return fmt.Errorf("a %T does not tell the server's warnings", conn)
	}
	data := c.Conn.Conn().PgConn().CustomData()
	message, warned := data[warning].(string)
	if !warned {
		return nil
	}
	delete(data, warning)
	return errors.New("the server warned: " + message)
}
