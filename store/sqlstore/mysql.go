package sqlstore

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"database/sql"
	"database/sql/driver"
	_ "embed"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"slices"
	"strings"

	"github.com/go-sql-driver/mysql"

	"github.com/hapax-id/hapax"
)

// mysqlDriverParams are the parameters of a URL that go to the Go driver as
// they are. The driver would turn any other into a session variable.
var mysqlDriverParams = []string{
	"tls", "timeout", "readTimeout", "writeTimeout", "serverPubKey", "connectionAttributes",
	"allowCleartextPasswords", "allowFallbackToPlaintext",
}

// mysqlSession makes the session independent of the server's defaults. The
// strict mode refuses values that a column cannot hold instead of cutting them.
var mysqlSession = map[string]string{
	"autocommit": "1",
	"sql_mode":   "'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION'",
	"time_zone":  "'+00:00'",
}

// mysqlIsolation is the level that every binlog format allows. It is a
// statement of its own, as the variable's name depends on the version.
const mysqlIsolation = "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ"

type mysqlDialect struct{ plain driver.Connector }

func newMySQL(u *url.URL, query url.Values, opts Options) (*mysqlDialect, error) {
	cfg, err := mysqlConfig(u, query, opts)
	if err != nil {
		return nil, err
	}
	plain, err := mysql.NewConnector(cfg)
	if err != nil {
		return nil, fmt.Errorf("%w: store URL: %w", hapax.ErrInvalidArgument, err)
	}
	return &mysqlDialect{plain}, nil
}

func mysqlConfig(u *url.URL, query url.Values, opts Options) (*mysql.Config, error) {
	var ca, cert, key string
	for param, dst := range map[string]*string{"tls_ca": &ca, "tls_cert": &cert, "tls_key": &key} {
		*dst = query.Get(param)
		query.Del(param)
	}
	socket := query.Get("socket")
	query.Del("socket")
	for param := range query {
		if !slices.Contains(mysqlDriverParams, param) {
			return nil, &hapax.ValueError{
				Field: "store URL parameter", Value: param, Err: hapax.ErrInvalidArgument,
				Allowed: "prefix, socket, tls_ca, tls_cert, tls_key, " + strings.Join(mysqlDriverParams, ", "),
			}
		}
	}
	cfg, err := mysql.ParseDSN("/?" + query.Encode())
	if err != nil {
		return nil, fmt.Errorf("%w: store URL: %w", hapax.ErrInvalidArgument, err)
	}
	cfg.User = u.User.Username()
	cfg.Passwd, _ = u.User.Password()
	cfg.DBName = strings.TrimPrefix(u.Path, "/")
	if cfg.DBName == "" {
		return nil, &hapax.ValueError{Field: "store URL path", Value: u.Path, Allowed: "the name of a database", Err: hapax.ErrInvalidArgument}
	}
	cfg.Net, cfg.Addr = "tcp", net.JoinHostPort(cmp.Or(u.Hostname(), "127.0.0.1"), cmp.Or(u.Port(), "3306"))
	if socket != "" {
		if u.Host != "" {
			return nil, &hapax.ValueError{Field: "store URL host", Value: u.Host, Allowed: "none together with socket", Err: hapax.ErrInvalidArgument}
		}
		cfg.Net, cfg.Addr = "unix", socket
	}
	switch {
	case opts.TLS != nil:
		cfg.TLS = opts.TLS.Clone()
	case ca != "" || cert != "" || key != "":
		if cfg.TLS, err = tlsFromFiles(ca, cert, key); err != nil {
			return nil, err
		}
		cfg.TLS.InsecureSkipVerify = query.Get("tls") == "skip-verify"
	}
	cfg.Params = mysqlSession
	cfg.Logger = &mysql.NopLogger{} // errors are returned
	cfg.InterpolateParams = true    // one round trip instead of three
	cfg.ClientFoundRows = true      // a row that already is as wanted counts as matched
	cfg.RejectReadOnly = true       // after a demotion, look for the primary on a new connection
	return cfg, nil
}

func tlsFromFiles(ca, cert, key string) (*tls.Config, error) {
	cfg := &tls.Config{MinVersion: tls.VersionTLS12}
	if ca != "" {
		pem, err := os.ReadFile(ca)
		if err != nil {
			return nil, fmt.Errorf("%w: tls_ca: %w", hapax.ErrInvalidArgument, err)
		}
		cfg.RootCAs = x509.NewCertPool()
		if !cfg.RootCAs.AppendCertsFromPEM(pem) {
			return nil, &hapax.ValueError{Field: "tls_ca", Value: ca, Allowed: "a file with certificates in PEM", Err: hapax.ErrInvalidArgument}
		}
	}
	if cert != "" || key != "" {
		pair, err := tls.LoadX509KeyPair(cert, key)
		if err != nil {
			return nil, fmt.Errorf("%w: tls_cert and tls_key: %w", hapax.ErrInvalidArgument, err)
		}
		cfg.Certificates = []tls.Certificate{pair}
	}
	return cfg, nil
}

func (d *mysqlDialect) name() Dialect { return MySQL }

func (d *mysqlDialect) connector() driver.Connector { return d }

// Connect implements driver.Connector.
func (d *mysqlDialect) Connect(ctx context.Context) (driver.Conn, error) {
	conn, err := d.plain.Connect(ctx)
	if err != nil {
		return nil, err
	}
	if err := (session{conn}).exec(ctx, mysqlIsolation); err != nil {
		_ = conn.Close()
		return nil, err
	}
	return conn, nil
}

// Driver implements driver.Connector.
func (d *mysqlDialect) Driver() driver.Driver { return d.plain.Driver() }

// inspect reads the variables that the server has of those that matter; which
// exist depends on its kind and version.
func (d *mysqlDialect) inspect(ctx context.Context, s session) (server, error) {
	rows, err := s.query(ctx, `SHOW GLOBAL VARIABLES WHERE Variable_name IN (
		'server_uuid', 'server_id', 'wsrep_on', 'group_replication_group_name',
		'read_only', 'super_read_only', 'innodb_read_only',
		'innodb_flush_log_at_trx_commit', 'sync_binlog', 'log_bin')`)
	if err != nil {
		return server{}, err
	}
	vars := make(map[string]string, len(rows))
	for _, row := range rows {
		vars[row[0]] = row[1]
	}
	var srv server
	for _, name := range []string{"read_only", "super_read_only", "innodb_read_only"} {
		if v := vars[name]; v != "" && v != "OFF" && v != "0" {
			srv.readOnly = "the server has " + name + " = " + v
		}
	}
	if v := vars["innodb_flush_log_at_trx_commit"]; v != "1" {
		srv.lossy = append(srv.lossy, "innodb_flush_log_at_trx_commit is "+v+", 1 is safe")
	}
	if v := vars["sync_binlog"]; vars["log_bin"] == "ON" && v != "1" {
		srv.lossy = append(srv.lossy, "sync_binlog is "+v+", 1 is safe")
	}
	switch {
	case vars["group_replication_group_name"] != "":
		srv.identity = "group " + vars["group_replication_group_name"]
		srv.quorum = true
	case vars["server_uuid"] != "":
		srv.identity = "server_uuid " + vars["server_uuid"]
	default:
		srv.identity = "server_id " + vars["server_id"]
	}
	if vars["wsrep_on"] == "ON" {
		rows, err := s.query(ctx, "SHOW GLOBAL STATUS LIKE 'wsrep_cluster_state_uuid'")
		if err != nil {
			return server{}, err
		}
		if len(rows) == 1 && rows[0][1] != "" {
			srv.identity, srv.quorum = "cluster "+rows[0][1], true
		}
	}
	return srv, nil
}

// Names and layouts are VARBINARY, so that they are compared byte by byte,
// trailing spaces included.
//
//go:embed mysql.sql
var mysqlScript string

func (d *mysqlDialect) schema(prefix string) []string { return tables(mysqlScript, prefix) }

func (d *mysqlDialect) bind(query string) string { return query }

// args makes bytes of texts: a text literal would have a character set, and a
// holder need not be valid in it.
func (d *mysqlDialect) args(args []any) []any {
	for i, arg := range args {
		if s, ok := arg.(string); ok {
			args[i] = []byte(s)
		}
	}
	return args
}

// raise has the server remember the new mark; it comes back with the answer to
// the UPDATE.
func (d *mysqlDialect) raise(expression string) (assignment, suffix string) {
	return "mark = LAST_INSERT_ID(" + expression + ")", ""
}

func (d *mysqlDialect) swap(ctx context.Context, db *sql.DB, query string, args []any) (int64, bool, error) {
	res, err := db.ExecContext(ctx, query, args...)
	if err != nil {
		return 0, false, err
	}
	n, err := res.RowsAffected()
	if n != 1 || err != nil {
		return 0, false, err
	}
	mark, err := res.LastInsertId()
	return mark, err == nil, err
}

func (d *mysqlDialect) clock() string { return "CAST(UNIX_TIMESTAMP(NOW(6)) * 1000000 AS SIGNED)" }

func (d *mysqlDialect) classify(err error) class {
	if errors.Is(err, driver.ErrBadConn) { // the driver says so only if nothing was sent
		return undone
	}
	e, ok := errors.AsType[*mysql.MySQLError](err)
	if !ok {
		return unknown
	}
	switch e.Number {
	case 1040, 1203, // too many connections, of all or of the account
		1205, 1213, 3101, // lock wait timeout, deadlock, conflict in a group: rolled back
		1047: // the node of a cluster is not ready
		return undone
	case 1050, 1062: // table, key
		return exists
	case 1146:
		return noTable
	case 1290, 1792, 1836:
		return readOnly
	case 1044, 1045, 1142, 1143, 1227, 1698:
		return forbidden
	}
	return unknown
}

func (d *mysqlDialect) answered(err error) bool {
	_, ok := errors.AsType[*mysql.MySQLError](err)
	return ok
}
