// Package sqlstore keeps tags, pools and workers in MySQL (5.7 or later), MariaDB or
// PostgreSQL (10 or later), over database/sql.
//
// # Tables
//
// All rows lie in one table, by the name of their table and their own; the tags have none. Their
// values are JSON or plain text, which people can read: in PostgreSQL as text, in MySQL as bytes
// (CONVERT(value USING utf8mb4) shows them). A second table holds the store's ID, and the format.
//
//	hapax_rows  tbl, name, value   '', 'orders', '{"kind":"segment","start":1,…,"mark":4001}'
//	hapax_meta  name, value, format
//
// # Writing
//
// The store is driver.Base above a driver.KV. A step of PostgreSQL is one statement: it locks the
// rows in one order, judges each as it is then, and changes them. In MySQL a single change, a
// beat and the grants of a node are one statement too, which names the rows as it
// expects them. Where it finds another one it has changed nothing: a single change is then
// refused with the row as it is, and any other step is made in a short transaction, as those
// are that have another form. Rows that were lost to other handles, one twice or two at once, are
// locked first, in a transaction of four round trips, for as long as others go on to change them.
//
// A statement that is alone commits by itself. What commits, with or without a COMMIT, and has
// no answer may have been carried out. It is reported as hapax.ErrStoreUnavailable and never
// repeated here. What certainly was not carried out (no connection, a deadlock's victim) is
// tried again with a growing, random delay until the call's deadline.
//
// # Which server
//
// A table holds the store's random ID. Every connection must lead to the ID that
// New found, on a server that accepts writes, when it is used first and again after
// half an hour; and every statement names the ID. So a replica, and another database
// behind the same address, are noticed.
//
// New refuses what an open store refuses, also a store of which a table or the ID
// is gone; only where nothing is there does it create a store.
//
// A replica that is promoted after asynchronous replication may lack what the
// old primary acknowledged. The store does not judge that: guarded calls tell which
// server has answered (driver.Contact.Primary), and whoever beats (store/witness)
// finds out whether what was acknowledged to it is there. The identity is
//
//   - in a Galera cluster or a group replication group that the server is a
//     working member of, the cluster's: every member is the same primary, and the
//     sessions wait for the commits that other members have acknowledged;
//   - of MySQL otherwise, its server_uuid, and when it was started, to the second;
//   - of MariaDB, which has none, its host's name, its port and, where it has one,
//     its server_uid: no setting changes them while it runs, unlike server_id, and
//     servers that replicate from each other differ in one of them; and its start;
//   - of PostgreSQL, the system identifier and the timeline, which a promotion
//     and a point-in-time recovery change, and when the server was started, to the
//     microsecond.
//
// So a server that was started anew, perhaps on a copy, is another one.
//
// Where PostgreSQL waits for a standby, a write whose wait was cancelled is an
// error with an unknown outcome, if Options.Doubt tells the server's warnings.
//
// A proxy that hands an open connection over to another server hides the change
// until the connection is checked again. Poolers must keep a session on one
// connection: PgBouncer with pool_mode = session. One that does not is refused as
// ErrStoreUnsafe when it shows, by a prepared statement of another session.
//
// # Durability
//
// What a grant relies on is that a commit which the server acknowledged is still
// there after a crash. New warns (WarnNotDurable) where the settings do not
// promise it: innodb_flush_log_at_trx_commit other than 1, sync_binlog other
// than 1 with a binlog, fsync or full_page_writes off. synchronous_commit is
// switched on for the store's own sessions where it is off. A server that lost
// marks in a crash keeps its identity; only a node's witness can notice.
//
// # Packages
//
// This package links no driver. Package mysqlstore opens a store by the URL of a
// MySQL or MariaDB database, package postgresstore by that of a PostgreSQL
// database.
package sqlstore

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"database/sql"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/store/sqlstore/internal/handle"
)

var (
	_ driver.Store    = (*Store)(nil)
	_ driver.Clock    = (*Store)(nil)
	_ driver.Guarding = (*Store)(nil)
	_ driver.Healing  = (*Store)(nil)
	_ driver.Dialling = (*Store)(nil)
)

// Defaults and limits of Options.
const (
	DefaultMaxConns = 8
	MaxMaxConns     = 1000
	DefaultTimeout  = 5 * time.Second
)

// Limits of one step.
const (
	maxChanges = 500
	maxBytes   = 512 << 10
)

// Codes of Options.Warn.
const (
	// WarnNotDurable: a setting lets the server lose what it acknowledged.
	WarnNotDurable = "not_durable"
	// WarnNoIdentity: the server does not tell its identity, so that a failover is
	// noticed by heartbeats alone.
	WarnNoIdentity = "no_identity"
)

// Options of a store. The zero value is ready to use.
type Options struct {
	// Prefix begins the names of the tables: 1 to 32 lower-case letters, digits
	// and underscores. Default DefaultPrefix.
	Prefix string

	// Timeout bounds each call, also when its context allows more. Default
	// DefaultTimeout.
	Timeout time.Duration

	// Adopt makes a table, or the ID, anew that a store has lost, which New refuses
	// otherwise.
	Adopt bool

	// Look has New change nothing: where it would have to, it fails with a
	// *driver.WouldChangeError. Nothing may be written to the store then.
	Look bool

	// Existing, if set, is asked before a store would be made: where it returns true, New
	// makes none, and fails with a *driver.WouldChangeError. See witness.Witness.KnowsStore.
	Existing func() bool

	// Warn receives what an operator should know, with one of the Warn codes.
	// It is called by New and when connections are checked, by several goroutines
	// at once, and must not call the store.
	Warn func(code, message string)

	// MaxConns bounds the connections of a store that is opened by its URL: 1 to
	// MaxMaxConns, default DefaultMaxConns.
	MaxConns int

	// TLS replaces the TLS settings of the URL by which a store is opened.
	TLS *tls.Config

	// Doubt is called with the Go driver's connection after each call that used
	// it, and returns, once, why the server may not have carried out what it
	// acknowledged: a warning of PostgreSQL, such as the one that the wait for a
	// standby was cancelled. Without it such a call counts as acknowledged. Opening
	// a store by its URL sets it.
	Doubt func(conn any) error

	// CloseDB has Close close the database handle, too, and New if it fails.
	// Opening a store by its URL sets it.
	CloseDB bool
}

func (o Options) withDefaults() (Options, error) {
	if o.Prefix == "" {
		o.Prefix = DefaultPrefix
	}
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
	return o, handle.CheckPrefix(o.Prefix)
}

// base gives a Store its methods without a field that outsiders see.
type base = driver.Base

// A Store is a store in a SQL database. Its methods are safe for concurrent
// use.
type Store struct {
	*base // tags and rows

	calls   driver.Calls
	db      *sql.DB
	dialect *dialect
	opts    Options
	sql     statements
	id      string // the store's ID as New found it
	run     string // random, of this handle
	closed  atomic.Bool

	mu      sync.Mutex      // guards what follows
	checked map[any]checked // by driver's connection
}

// New returns the store in the database that the handle leads to. It creates
// what is missing and checks that it is the store it was. Close does not close
// the handle.
//
// The store sets up the sessions of the connections that it uses: isolation
// level, autocommit and strict mode in MySQL; isolation level, synchronous_commit
// and client_min_messages in PostgreSQL. Give it a handle of its own if that is
// not what the rest of the program expects.
//
// The account needs SELECT and INSERT on tables that exist, see Schema, and UPDATE
// and DELETE on that of the rows, or also the right to create them. In MySQL's
// group replication it needs SELECT on
// performance_schema.replication_group_members.
//
// Errors: ErrInvalidArgument for an option, ErrStoreUnavailable, ErrStoreUnsafe
// for a server that is read-only, or a handle with MySQL's clientFoundRows; ErrStoreReplaced where a part of the store is gone.
func New(ctx context.Context, db *sql.DB, d Dialect, opts Options) (*Store, error) {
	s, err := open(ctx, db, d, opts)
	if err != nil && opts.CloseDB {
		_ = db.Close()
	}
	return s, err
}

func open(ctx context.Context, db *sql.DB, d Dialect, opts Options) (*Store, error) {
	opts, err := opts.withDefaults()
	if err != nil {
		return nil, err
	}
	impl, err := dialectOf(d)
	if err != nil {
		return nil, err
	}
	s := &Store{
		db: db, dialect: impl, opts: opts, sql: newStatements(impl, opts.Prefix),
		run: rand.Text(), checked: map[any]checked{},
		calls: driver.Calls{Service: string(d), Timeout: opts.Timeout},
	}
	s.base = driver.NewBase(&s.calls, space{s}, driver.BaseOptions{MaxChanges: maxChanges, MaxBytes: maxBytes, ByValue: true})
	err = s.retry(ctx, "open", func(ctx context.Context) error {
		var srv server
		enter := func(ctx context.Context, c *sql.Conn) (err error) {
			srv, err = s.enter(ctx, c)
			return err
		}
		// Not by ensure, which compares with the ID that bootstrap has yet to find.
		return s.attempt(ctx, enter, func(ctx context.Context, c *sql.Conn) error { return s.bootstrap(ctx, c, srv) })
	})
	if err != nil {
		return nil, err
	}
	return s, nil
}

// Close implements driver.Store. Later calls fail with ErrClosed.
func (s *Store) Close() error {
	s.closed.Store(true)
	if !s.calls.End() || !s.opts.CloseDB {
		return nil
	}
	return s.db.Close()
}

// OpenedID implements driver.Opened.
func (s *Store) OpenedID() string { return s.id }

// DialsForCalls implements driver.Dialling: a connection has one call at a time.
func (s *Store) DialsForCalls() bool { return true }

// Ping implements driver.Store: it checks on one connection what is checked on
// every new one. Connections that turn out broken do not count.
func (s *Store) Ping(ctx context.Context) error {
	return s.once(ctx, "ping", func(ctx context.Context) (err error) {
		// Each idle connection may have died with the server: the one after them all is new.
		for range s.opts.MaxConns + 1 {
			err = s.on(ctx, s.check)
			if err == nil || ctx.Err() != nil || s.class(err) != unknown || carriesSentinel(err) || s.dialect.answered(err) {
				break
			}
		}
		return err
	})
}

// StoreID implements driver.Store.
func (s *Store) StoreID(ctx context.Context) (id string, err error) {
	err = s.do(ctx, "read the store ID", func(ctx context.Context, c *sql.Conn) error {
		meta, err := s.readMeta(ctx, c)
		if id = meta[metaStoreID]; err == nil && id == "" {
			err = replacedError("", s.id)
		}
		return err
	})
	return id, err
}

// Quiet implements driver.Quieting. Who writes to a table of PostgreSQL has locked it before taking the
// snapshot in which a fence is looked for, and until the end; MySQL locks the place of the fence. The lock
// needs the right to update or to delete rows, which every node has.
func (s *Store) Quiet(ctx context.Context) error {
	if s.dialect.quiet == "" {
		return nil
	}
	return s.do(ctx, "wait for steps under way", func(ctx context.Context, c *sql.Conn) error {
		tx, err := c.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback() }() // does nothing after a commit
		if _, err := tx.ExecContext(ctx, s.sql.names.Replace(s.dialect.quiet)); err != nil {
			return err
		}
		return tx.Commit()
	})
}

// OpenToAll implements driver.Founded.
func (s *Store) OpenToAll(ctx context.Context) error {
	return s.do(ctx, "open to all", func(ctx context.Context, c *sql.Conn) error {
		meta, err := s.readMeta(ctx, c)
		switch {
		case err != nil:
			return err
		case meta[metaStoreID] != s.id:
			return replacedError(meta[metaStoreID], s.id)
		case meta[metaClosed] == "":
			return nil
		}
		_, err = c.ExecContext(ctx, s.sql.metaInsert, s.dialect.args([]any{metaOpened, s.id, int64(format)})...)
		if s.dialect.classify(err) == exists {
			return nil
		}
		return err
	})
}

// StoreTime implements driver.Clock with the server's clock, to the
// microsecond.
func (s *Store) StoreTime(ctx context.Context) (t time.Time, err error) {
	var micros int64
	err = s.do(ctx, "read the clock", func(ctx context.Context, c *sql.Conn) error {
		return s.queryRow(ctx, c, s.sql.clock, nil, &micros)
	})
	return time.UnixMicro(micros), err
}
