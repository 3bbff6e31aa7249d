// Package mysqlstore opens a SQL store in MySQL or MariaDB by its URL. What the
// store does is told by package sqlstore.
package mysqlstore

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"database/sql"
	"fmt"
	"net"
	"net/url"
	"os"
	"slices"
	"strings"

	"github.com/go-sql-driver/mysql"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/store/sqlstore"
	"github.com/hapax-id/hapax/store/sqlstore/internal/handle"
)

// driverParams are the parameters of a URL that go to the Go driver as they are.
// The driver would turn any other into a session variable.
var driverParams = []string{
	"tls", "timeout", "readTimeout", "writeTimeout", "serverPubKey", "connectionAttributes",
	"allowCleartextPasswords", "allowFallbackToPlaintext",
}

// Open connects to the database that the URL names, creates what is missing,
// and checks that it is the store it was. Close must be called.
//
//	mysql://user:password@host:3306/database?tls=true
//
// The URL may have:
//
//	prefix                  begins the names of the tables; default "hapax_"
//	tls                     false (default), true, skip-verify or preferred
//	tls_ca                  file with the certificates to trust, PEM
//	tls_cert, tls_key       files with the client's certificate and key, PEM
//	socket                  path of a unix socket, instead of host and port
//	timeout, readTimeout, writeTimeout, serverPubKey, connectionAttributes,
//	allowCleartextPasswords, allowFallbackToPlaintext
//	                        as the Go driver has them
//
// Errors are ErrInvalidArgument for the URL, and those of sqlstore.New.
func Open(ctx context.Context, storeURL string, opts sqlstore.Options) (*sqlstore.Store, error) {
	db, prefix, err := openDB(storeURL, opts)
	if err != nil {
		return nil, err
	}
	opts.Prefix, opts.CloseDB = cmp.Or(prefix, opts.Prefix), true
	return sqlstore.New(ctx, db, sqlstore.MySQL, opts)
}

// OpenDB returns a handle on the database that a URL names, for tables that are no
// store's. It does not connect yet. The handle must be closed.
func OpenDB(databaseURL string) (*sql.DB, error) {
	db, _, err := openDB(databaseURL, sqlstore.Options{})
	return db, err
}

// CheckURL returns what is wrong with a URL for Open, without connecting: ErrInvalidArgument.
func CheckURL(url string) error {
	u, query, _, err := handle.Parse(url, "mysql")
	if err != nil {
		return err
	}
	_, err = config(u, query, sqlstore.Options{})
	return err
}

func openDB(storeURL string, opts sqlstore.Options) (db *sql.DB, prefix string, err error) {
	u, query, prefix, err := handle.Parse(storeURL, "mysql")
	if err != nil {
		return nil, "", err
	}
	cfg, err := config(u, query, opts)
	if err != nil {
		return nil, "", err
	}
	connector, err := mysql.NewConnector(cfg)
	if err != nil {
		return nil, "", fmt.Errorf("%w: store URL: %w", hapax.ErrInvalidArgument, err)
	}
	return handle.New(connector, cmp.Or(opts.MaxConns, sqlstore.DefaultMaxConns), cmp.Or(opts.Timeout, sqlstore.DefaultTimeout)), prefix, nil
}

func config(u *url.URL, query url.Values, opts sqlstore.Options) (*mysql.Config, error) {
	var ca, cert, key string
	for param, dst := range map[string]*string{"tls_ca": &ca, "tls_cert": &cert, "tls_key": &key} {
		*dst = query.Get(param)
		query.Del(param)
	}
	socket := query.Get("socket")
	query.Del("socket")
	for param := range query {
		if !slices.Contains(driverParams, param) {
			return nil, driver.WrongParameter(param, append([]string{"prefix", "socket", "tls_ca", "tls_cert", "tls_key"}, driverParams...), "")
		}
	}
	if mode := query.Get("tls"); !slices.Contains([]string{"", "true", "false", "skip-verify", "preferred"}, mode) {
		return nil, &hapax.ValueError{Field: "store URL parameter tls", Value: mode, Allowed: "true, false, skip-verify or preferred", Err: hapax.ErrInvalidArgument}
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
		// A configuration takes the place of the parameter tls, and has to say this again.
		cfg.TLS.InsecureSkipVerify = query.Get("tls") == "skip-verify"
	}
	cfg.Logger = &mysql.NopLogger{} // errors are returned
	cfg.InterpolateParams = true    // one round trip instead of three
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
