// Package mysqldb connects to the MySQL databases of foreign systems, whose
// tables have no room for an identity of their own. Each new connection is
// checked instead: the server takes writes, and is the one that the handle met
// first.
package mysqldb

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/hapax-id/hapax"
)

// DefaultTimeout bounds a call whose context has no deadline of its own.
const DefaultTimeout = 5 * time.Second

const (
	maxConns    = 16
	maxLifetime = 30 * time.Minute // so that a change of the primary behind a proxy shows
)

// Options tune a handle.
type Options struct {
	// Timeout bounds one call; default DefaultTimeout.
	Timeout time.Duration

	// AcceptFailover lets the handle go on when another server answers than the
	// one it met first. It is safe only where the new primary has every commit
	// that the old one acknowledged.
	AcceptFailover bool

	// Warn receives what an operator should know, with a stable code:
	// "not_durable" (the server may lose what it acknowledged). It is called
	// once.
	Warn func(code, message string)
}

// A DB is a checked handle on one database.
type DB struct {
	SQL     *sql.DB
	Address string // host and port, for messages
	timeout time.Duration
	closed  atomic.Bool
}

// Open returns a handle on mysql://user:password@host:port/database, which
// connects when it is first used. The parameters tls,
// timeout, readTimeout and writeTimeout are those of the Go driver; tls_ca is a file with
// the certificates of the authorities to trust, PEM.
func Open(rawURL string, opts Options) (*DB, error) {
	cfg, err := config(rawURL)
	if err != nil {
		return nil, err
	}
	plain, err := mysql.NewConnector(cfg)
	if err != nil {
		return nil, fmt.Errorf("%w: database URL: %w", hapax.ErrInvalidArgument, err)
	}
	if opts.Timeout <= 0 {
		opts.Timeout = DefaultTimeout
	}
	c := &connector{plain: plain, opts: opts}
	db := &DB{SQL: sql.OpenDB(c), Address: cfg.Addr, timeout: opts.Timeout}
	db.SQL.SetMaxOpenConns(maxConns)
	db.SQL.SetMaxIdleConns(maxConns)
	db.SQL.SetConnMaxLifetime(maxLifetime)
	return db, nil
}

// Close closes the handle that Open made.
func (d *DB) Close() error {
	d.closed.Store(true)
	return d.SQL.Close()
}

// Limit returns a context that ends with ctx, and after the handle's time limit.
func (d *DB) Limit(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, d.timeout)
}

// config reads a database URL. Errors do not show the URL, which may hold a
// password.
func config(rawURL string) (*mysql.Config, error) {
	u, err := url.Parse(rawURL)
	if err != nil || u.Scheme != "mysql" || u.Hostname() == "" || strings.Trim(u.Path, "/") == "" || u.Fragment != "" {
		return nil, &hapax.ValueError{Field: "database URL", Value: "(not shown)", Allowed: "mysql://user:password@host:port/database", Err: hapax.ErrInvalidArgument}
	}
	query := u.Query()
	for param := range query {
		switch param {
		case "tls", "tls_ca", "timeout", "readTimeout", "writeTimeout":
		default:
			return nil, &hapax.ValueError{Field: "database URL parameter", Value: param, Allowed: "tls, tls_ca, timeout, readTimeout, writeTimeout", Err: hapax.ErrInvalidArgument}
		}
	}
	ca := query.Get("tls_ca")
	query.Del("tls_ca")
	// Parameters alone: in a name or a password, nothing can be read as another part of the DSN.
	cfg, err := mysql.ParseDSN("/?" + query.Encode())
	if err != nil {
		return nil, fmt.Errorf("%w: database URL: %w", hapax.ErrInvalidArgument, err)
	}
	if ca != "" {
		if cfg.TLS, err = trusting(ca, query.Get("tls")); err != nil {
			return nil, err
		}
	}
	port := u.Port()
	if port == "" {
		port = "3306"
	}
	cfg.User = u.User.Username()
	cfg.Passwd, _ = u.User.Password()
	cfg.DBName = strings.Trim(u.Path, "/")
	cfg.Net, cfg.Addr = "tcp", net.JoinHostPort(u.Hostname(), port)
	cfg.Params = map[string]string{
		"autocommit": "1",
		"sql_mode":   "'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION'", // refuse what a column cannot hold
	}
	cfg.Logger = &mysql.NopLogger{} // errors are returned
	cfg.InterpolateParams = true    // one round trip instead of three
	cfg.ClientFoundRows = true      // a row that is as wanted already counts as matched
	cfg.RejectReadOnly = true       // after a demotion, look for the primary on a new connection
	return cfg, nil
}

// trusting returns TLS that trusts the authorities in a file.
func trusting(file, mode string) (*tls.Config, error) {
	if mode != "" && mode != "true" {
		return nil, &hapax.ValueError{Field: "database URL parameter tls", Value: mode, Allowed: "true beside tls_ca", Err: hapax.ErrInvalidArgument}
	}
	pem, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("%w: tls_ca: %w", hapax.ErrInvalidArgument, err)
	}
	cfg := &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: x509.NewCertPool()}
	if !cfg.RootCAs.AppendCertsFromPEM(pem) {
		return nil, &hapax.ValueError{Field: "tls_ca", Value: file, Allowed: "a file with certificates in PEM", Err: hapax.ErrInvalidArgument}
	}
	return cfg, nil
}

// A connector makes connections and lets none into the pool that does not pass
// the check.
type connector struct {
	plain driver.Connector
	opts  Options

	mu       sync.Mutex // guards the fields below
	identity string     // of the server met first
	warned   bool
}

// Driver implements driver.Connector.
func (c *connector) Driver() driver.Driver { return c.plain.Driver() }

// Connect implements driver.Connector.
func (c *connector) Connect(ctx context.Context) (driver.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, c.opts.Timeout)
	defer cancel()
	conn, err := c.plain.Connect(ctx)
	if err != nil {
		return nil, err
	}
	if err := c.check(ctx, conn); err != nil {
		_ = conn.Close()
		return nil, err
	}
	return conn, nil
}

// check judges the server at the other end.
func (c *connector) check(ctx context.Context, conn driver.Conn) error {
	vars, err := variables(ctx, conn)
	if err != nil {
		return err
	}
	for _, name := range []string{"read_only", "super_read_only", "innodb_read_only"} {
		if v := vars[name]; v != "" && v != "OFF" && v != "0" {
			return fmt.Errorf("%w: the server has %s = %s; use the primary", hapax.ErrStoreUnsafe, name, v)
		}
	}
	// Of a cluster any member may answer, and a crash of one loses nothing that it acknowledged.
	cluster := vars["wsrep_on"] == "ON" || vars["group_replication_group_name"] != ""
	identity := vars["server_uuid"] + "/" + vars["server_id"]
	var lossy []string
	if v := vars["innodb_flush_log_at_trx_commit"]; v != "1" && !cluster {
		lossy = append(lossy, "innodb_flush_log_at_trx_commit is "+v+", 1 is safe")
	}
	if v := vars["sync_binlog"]; vars["log_bin"] == "ON" && v != "1" && !cluster {
		lossy = append(lossy, "sync_binlog is "+v+", 1 is safe")
	}
	c.mu.Lock()
	if c.identity == "" {
		c.identity = identity
	}
	first, warn := c.identity, len(lossy) > 0 && !c.warned && c.opts.Warn != nil
	c.warned = c.warned || warn
	c.mu.Unlock()
	if first != identity && !cluster && !c.opts.AcceptFailover {
		return fmt.Errorf("%w: server %s answers, it was %s; see that it has every commit of the old one, and start anew", hapax.ErrStoreReplaced, identity, first)
	}
	if warn {
		c.opts.Warn("not_durable", "the server may lose in a crash what it acknowledged: "+strings.Join(lossy, "; "))
	}
	return nil
}

// variables reads what the server has of the variables that matter.
func variables(ctx context.Context, conn driver.Conn) (map[string]string, error) {
	q, ok := conn.(driver.QueryerContext)
	if !ok {
		return nil, fmt.Errorf("%T cannot run queries", conn)
	}
	rows, err := q.QueryContext(ctx, `SHOW GLOBAL VARIABLES WHERE Variable_name IN ('server_uuid', 'server_id', 'wsrep_on',
		'group_replication_group_name', 'read_only', 'super_read_only', 'innodb_read_only',
		'innodb_flush_log_at_trx_commit', 'sync_binlog', 'log_bin')`, nil)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	vars := map[string]string{}
	for row := make([]driver.Value, 2); ; {
		if err := rows.Next(row); errors.Is(err, io.EOF) {
			return vars, nil
		} else if err != nil {
			return nil, err
		}
		vars[text(row[0])] = text(row[1])
	}
}

func text(v driver.Value) string {
	if b, ok := v.([]byte); ok {
		return string(b)
	}
	return fmt.Sprint(v)
}

// Signalled reports whether a trigger refused a change.
func Signalled(err error) bool {
	e, ok := errors.AsType[*mysql.MySQLError](err)
	return ok && e.Number == 1644
}

// Denied reports whether the account lacks a privilege, or the name is too long or taken.
func Denied(err error) bool {
	e, ok := errors.AsType[*mysql.MySQLError](err)
	return ok && slices.Contains([]uint16{1044, 1142, 1143, 1227, 1235, 1406, 1062, 1419}, e.Number)
}

// OutOfRange reports whether the server refused a sum that is too large for its
// column.
func OutOfRange(err error) bool {
	e, ok := errors.AsType[*mysql.MySQLError](err)
	return ok && (e.Number == 1690 || e.Number == 1264)
}

// Fail gives an error of a call its sentinel. ctx is the caller's context, without
// the handle's time limit.
func (d *DB) Fail(ctx context.Context, op string, err error) error {
	if err == nil {
		return nil
	}
	if d.closed.Load() {
		return fmt.Errorf("%w: %s", hapax.ErrClosed, op)
	}
	op += " (database at " + d.Address + ")"
	if _, ok := errors.AsType[*hapax.Error](err); ok {
		return fmt.Errorf("%s: %w", op, err)
	}
	if cause := context.Cause(ctx); cause != nil {
		return fmt.Errorf("%w: %s: %w", hapax.ErrStoreUnavailable, op, cause)
	}
	if e, ok := errors.AsType[*mysql.MySQLError](err); ok {
		switch e.Number {
		case 1146, 1054: // no such table, no such column
			return fmt.Errorf("%w: %s: %w", hapax.ErrStoreCorrupt, op, err)
		case 1290, 1792, 1836:
			return fmt.Errorf("%w: %s: the server is read-only; use the primary: %w", hapax.ErrStoreUnsafe, op, err)
		case 1044, 1045, 1142, 1143, 1227, 1698:
			return fmt.Errorf("%w: %s: the account needs SELECT and UPDATE on the table: %w", hapax.ErrStoreUnavailable, op, err)
		}
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("%w: %s: no answer within %v", hapax.ErrStoreUnavailable, op, d.timeout)
	}
	return fmt.Errorf("%w: %s: %w", hapax.ErrStoreUnavailable, op, err)
}

// Probe reports whether a query is answered; what it answers does not matter. what
// names its table in the error.
func (d *DB) Probe(ctx context.Context, what, query string) error {
	limited, cancel := d.Limit(ctx)
	defer cancel()
	rows, err := d.SQL.QueryContext(limited, query)
	if err != nil {
		return d.Fail(ctx, what, err)
	}
	defer rows.Close()
	for rows.Next() {
	}
	return d.Fail(ctx, what, rows.Err())
}

// Others returns how many sessions other clients have in the database, as far as
// the account may see: its own at least. Where it may not see those of other accounts,
// unseen says so.
func (d *DB) Others(ctx context.Context) (n int, unseen string, err error) {
	limited, cancel := d.Limit(ctx)
	defer cancel()
	// The bound is read here and not at the end: the next line changes it.
	defer d.SQL.SetMaxOpenConns(d.SQL.Stats().MaxOpenConnections)
	d.SQL.SetMaxOpenConns(1) // closes the idle ones, which would count
	const privileged = `SELECT CURRENT_USER(), COUNT(*) FROM information_schema.USER_PRIVILEGES WHERE PRIVILEGE_TYPE = 'PROCESS'
		AND GRANTEE = CONCAT(QUOTE(SUBSTRING_INDEX(CURRENT_USER(), '@', 1)), '@', QUOTE(SUBSTRING_INDEX(CURRENT_USER(), '@', -1)))`
	var account string
	sees := 0
	if err := d.SQL.QueryRowContext(limited, privileged).Scan(&account, &sees); err != nil {
		return 0, "", d.Fail(ctx, "the privileges", err)
	}
	if sees == 0 {
		unseen = fmt.Sprintf("the account %s may see its own sessions alone in the database at %s, and not those of old nodes with other accounts: see that they have ended, or give an account with the privilege PROCESS", account, d.Address)
	}
	const query = "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE DB = DATABASE() AND ID <> CONNECTION_ID()"
	for range 10 { // a session that was just closed may still be listed
		if err := d.SQL.QueryRowContext(limited, query).Scan(&n); err != nil || n == 0 {
			return n, unseen, d.Fail(ctx, "the sessions", err)
		}
		select {
		case <-limited.Done():
			return n, unseen, d.Fail(ctx, "the sessions", limited.Err())
		case <-time.After(50 * time.Millisecond):
		}
	}
	return n, unseen, nil
}

// Quote returns a text as SQL writes it.
func Quote(s string) string {
	b := []byte{'\''}
	for i := range len(s) {
		// The sql_mode that config sets leaves the backslash an escape.
		if s[i] == '\'' || s[i] == '\\' {
			b = append(b, s[i])
		}
		b = append(b, s[i])
	}
	return string(append(b, '\''))
}

// Met reports whether a row could not be inserted because another one has its key, or because
// a cluster has taken another change first.
func Met(err error) bool {
	e, ok := errors.AsType[*mysql.MySQLError](err)
	return ok && slices.Contains([]uint16{1062, 1213, 3101}, e.Number)
}
