// Package sqlstore keeps tags and workers in MySQL (5.7 or later), MariaDB or
// PostgreSQL (10 or later), over database/sql.
//
// # Writing
//
// Every change is one statement that commits by itself: an UPDATE which names
// the definition or the fencing numbers that it expects, or an INSERT. There
// are no transactions of several statements, so that there is no COMMIT of its
// own whose outcome could be unknown, nothing is locked between round trips,
// and the server's default isolation level does not matter. In the steady state
// Allocate is one round trip: the store remembers a tag's definition, and the
// UPDATE applies only if the stored one is the same. The marks themselves are
// never remembered.
//
// A statement whose answer did not arrive may have been carried out. It is
// reported as hapax.ErrStoreUnavailable and never repeated here. What certainly
// was not carried out (no connection, a deadlock's victim) is tried again with
// a growing, random delay until the call's deadline.
//
// # Which server
//
// A table holds the store's random ID and the identity of the primary that
// serves it. Every new connection must find the ID that Open found, a server
// that accepts writes, and the recorded primary; and every write names the ID.
// So a replica, another database behind the same address, and a failover are
// noticed.
//
//	primary is the recorded one ............................ use it
//	another, and the recorded one committed by quorum ....... adopt it
//	another, and Options.Adopt .............................. adopt it
//	another ................................................. ErrStoreReplaced
//
// A replica that is promoted after asynchronous replication may lack what the
// old primary acknowledged, which is why it is refused until an operator has
// raised the marks or made sure that nothing is missing, and opens the store
// with Adopt once. Stores that are open already follow. The identity is
//
//   - in a Galera cluster or a group replication group, the cluster's: every
//     member is the same primary;
//   - of MySQL, its server_uuid;
//   - of MariaDB, which has none, its server_id: servers that replicate from
//     each other must have different ones;
//   - of PostgreSQL, the system identifier and the timeline, which a promotion
//     and a point-in-time recovery change. Commits count as made by quorum while
//     synchronous_standby_names is set and synchronous_commit is on or
//     remote_apply; then another timeline of the same system is adopted, and a
//     point-in-time recovery is left for a node's witness to notice.
//
// A proxy that hands an open connection over to another server hides the change
// until the connection is replaced, after half an hour at the latest. Poolers
// must keep a session on one connection.
//
// # Durability
//
// What a grant relies on is that a commit which the server acknowledged is still
// there after a crash. Open warns (WarnNotDurable) where the settings do not
// promise it: innodb_flush_log_at_trx_commit other than 1, sync_binlog other
// than 1 with a binlog, fsync or full_page_writes off. synchronous_commit is
// switched on for the store's own sessions where it is off. A server that lost
// marks in a crash keeps its identity; only a node's witness can notice.
package sqlstore

import (
	"context"
	"crypto/tls"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/hapax-id/hapax"
)

var (
	_ hapax.Store       = (*Store)(nil)
	_ hapax.WorkerTable = (*Store)(nil)
	_ hapax.StoreClock  = (*Store)(nil)
)

// Defaults and limits of Options.
const (
	DefaultMaxConns = 8
	MaxMaxConns     = 1000
	DefaultTimeout  = 5 * time.Second
)

const (
	connMaxLifetime = 30 * time.Minute
	connMaxIdleTime = 5 * time.Minute
)

// Codes of Options.Warn.
const (
	// WarnNotDurable: a setting lets the server lose what it acknowledged.
	WarnNotDurable = "not_durable"
	// WarnNoIdentity: the server does not tell its identity, so that a failover
	// goes unnoticed.
	WarnNoIdentity = "no_identity"
	// WarnPrimaryChanged: another primary was found and adopted.
	WarnPrimaryChanged = "primary_changed"
)

// Options of a store. The zero value is ready to use.
type Options struct {
	// MaxConns bounds the connections to the server: 1 to MaxMaxConns, default
	// DefaultMaxConns.
	MaxConns int

	// Timeout bounds each call, also when its context allows more. Default
	// DefaultTimeout.
	Timeout time.Duration

	// TLS replaces the TLS settings of the URL.
	TLS *tls.Config

	// Adopt records another primary than the last one as the right one.
	Adopt bool

	// Warn receives what an operator should know, with one of the Warn codes.
	// It is called during Open and while connections are made, by several
	// goroutines at once, and must not call the store.
	Warn func(code, message string)
}

func (o Options) withDefaults() (Options, error) {
	if o.MaxConns == 0 {
		o.MaxConns = DefaultMaxConns
	}
	if o.Timeout == 0 {
		o.Timeout = DefaultTimeout
	}
	if o.Warn == nil {
		o.Warn = func(string, string) {}
	}
	switch {
	case o.MaxConns < 1 || o.MaxConns > MaxMaxConns:
		return o, &hapax.ValueError{Field: "max_conns", Value: o.MaxConns, Allowed: fmt.Sprintf("1 to %d", MaxMaxConns), Err: hapax.ErrInvalidArgument}
	case o.Timeout < 0:
		return o, &hapax.ValueError{Field: "timeout", Value: o.Timeout, Allowed: "a positive duration", Err: hapax.ErrInvalidArgument}
	}
	return o, nil
}

// A Store is a store in a SQL database. Its methods are safe for concurrent
// use.
type Store struct {
	db        *sql.DB
	connector *connector // makes the connections of db
	dialect   dialect
	opts      Options
	sql       statements
	id        string // the store's ID as Open found it

	mu   sync.Mutex // guards defs
	defs map[string]hapax.Tag
}

// Open connects to the database that the URL names, creates what is missing,
// and checks that it is the store it was. Close must be called.
//
//	mysql://user:password@host:3306/database?tls=true
//	postgres://user:password@host:5432/database?sslmode=verify-full
//
// Both know prefix=, which begins the names of the tables (default "hapax_").
// A postgres URL may have every parameter that libpq and pgx know. A mysql URL
// may have:
//
//	tls                     false (default), true, skip-verify or preferred
//	tls_ca                  file with the certificates to trust, PEM
//	tls_cert, tls_key       files with the client's certificate and key, PEM
//	socket                  path of a unix socket, instead of host and port
//	timeout, readTimeout, writeTimeout, serverPubKey, connectionAttributes,
//	allowCleartextPasswords, allowFallbackToPlaintext
//	                        as the Go driver has them
//
// The account needs SELECT, INSERT and UPDATE on tables that exist, see Schema,
// or also the right to create them.
//
// Errors: ErrInvalidArgument for the URL or an option, ErrStoreUnavailable,
// ErrStoreUnsafe for a server that is read-only, ErrStoreReplaced for another
// primary.
func Open(ctx context.Context, url string, opts Options) (*Store, error) {
	opts, err := opts.withDefaults()
	if err != nil {
		return nil, err
	}
	d, prefix, err := parseURL(url, opts)
	if err != nil {
		return nil, err
	}
	s := &Store{dialect: d, opts: opts, sql: newStatements(d, prefix), defs: map[string]hapax.Tag{}}
	err = s.do(ctx, "open", func(ctx context.Context) error {
		conn, err := connect(ctx, d)
		if err != nil {
			return err
		}
		defer conn.Close()
		s.id, err = s.bootstrap(ctx, session{conn})
		return err
	})
	if err != nil {
		return nil, err
	}
	s.connector = &connector{d, opts.Timeout, func(ctx context.Context, conn driver.Conn) error {
		return s.verify(ctx, session{conn})
	}}
	s.db = sql.OpenDB(s.connector)
	s.db.SetMaxOpenConns(opts.MaxConns)
	s.db.SetMaxIdleConns(opts.MaxConns)
	s.db.SetConnMaxLifetime(connMaxLifetime)
	s.db.SetConnMaxIdleTime(connMaxIdleTime)
	return s, nil
}

// Close implements hapax.Store. Later calls fail with ErrStoreUnavailable.
func (s *Store) Close() error { return s.db.Close() }

// Ping implements hapax.Store: it checks on one connection what is checked on
// every new one.
func (s *Store) Ping(ctx context.Context) error {
	return s.once(ctx, "ping", func(ctx context.Context) error {
		conn, err := s.db.Conn(ctx)
		if err != nil {
			return err
		}
		defer conn.Close()
		return conn.Raw(func(c any) error { return s.verify(ctx, session{c.(driver.Conn)}) })
	})
}

// StoreID implements hapax.SegmentStore and hapax.WorkerStore.
func (s *Store) StoreID(ctx context.Context) (id string, err error) {
	err = s.do(ctx, "read the store ID", func(ctx context.Context) error {
		id, err = s.storeID(ctx)
		return err
	})
	return id, err
}

func (s *Store) storeID(ctx context.Context) (id string, err error) {
	err = s.queryRow(ctx, s.sql.meta, []any{metaStoreID}, &id)
	if errors.Is(err, sql.ErrNoRows) {
		return "", fmt.Errorf("%w: its ID is gone, it was %s", hapax.ErrStoreReplaced, s.id)
	}
	return id, err
}

// checkID explains a write that found nothing to change: it fails if that is
// because the store is another one.
func (s *Store) checkID(ctx context.Context) error {
	id, err := s.storeID(ctx)
	if err == nil && id != s.id {
		err = replacedError(id, s.id)
	}
	return err
}

func replacedError(found, known string) error {
	return fmt.Errorf("%w: its ID is %s, it was %s", hapax.ErrStoreReplaced, found, known)
}

// StoreTime implements hapax.StoreClock with the server's clock, to the
// microsecond.
func (s *Store) StoreTime(ctx context.Context) (t time.Time, err error) {
	var micros int64
	err = s.do(ctx, "read the clock", func(ctx context.Context) error {
		return s.queryRow(ctx, s.sql.clock, nil, &micros)
	})
	return time.UnixMicro(micros), err
}

// queryRow reads one row to the end of its statement, so that what a server
// reports after the row, such as a failed commit, is an error too.
func (s *Store) queryRow(ctx context.Context, query string, args []any, dest ...any) error {
	return s.db.QueryRowContext(ctx, query, s.dialect.args(args)...).Scan(dest...)
}

// exec runs a statement and returns how many rows it matched.
func (s *Store) exec(ctx context.Context, query string, args []any) (int64, error) {
	res, err := s.db.ExecContext(ctx, query, s.dialect.args(args)...)
	if err != nil {
		return 0, err
	}
	return res.RowsAffected()
}

// insert adds a row unless there is one with its key, or the store is not the
// one it was, and tells whether it did.
func (s *Store) insert(ctx context.Context, query string, args []any) (bool, error) {
	n, err := s.exec(ctx, query, args)
	if err != nil && s.dialect.classify(err) == exists {
		return false, nil
	}
	return n == 1, err
}
