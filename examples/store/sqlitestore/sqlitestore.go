// Package sqlitestore keeps a store in an SQLite file: a model for a driver of your own.
//
// Several processes of one machine may use the file at once. It lies on a local disk: the
// write-ahead log of SQLite needs memory that all of them share.
//
//	hapax_store   one row: the store's ID and the format of the rows
//	hapax_rows    the rows, by table and name
//
// A step is one transaction that takes the lock for writing first (BEGIN IMMEDIATE), so that
// nothing comes between what it reads and what it writes. COMMIT returns when the log is on disk
// (synchronous=FULL). Values are compared in this process, whole.
//
// An older copy that was put in place of the file while no handle was open is not recognised
// here: that is what store/witness is for.
package sqlitestore

import (
	"context"
	"crypto/rand"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
)

var (
	_ driver.Store = (*Store)(nil)
	_ driver.KV    = (*rows)(nil)
)

const format = 1 // of the tables

// The engine itself refuses values that no driver may hand up. Names are compared byte by
// byte, which is SQLite's BINARY, the default, in a database of UTF-8.
const schema = `
CREATE TABLE hapax_store (id TEXT NOT NULL CHECK (id <> ''), format INTEGER NOT NULL) STRICT;
CREATE TABLE hapax_rows (
	tbl TEXT NOT NULL, name TEXT NOT NULL,
	value BLOB NOT NULL CHECK (length(value) BETWEEN 1 AND %d),
	PRIMARY KEY (tbl, name)
) STRICT, WITHOUT ROWID;
INSERT INTO hapax_store VALUES ('%s', %d)`

// settings are what each connection asks for, and what SQLite must then say.
var settings = []struct{ name, value, says string }{
	{"busy_timeout", "50", "50"}, // begin tries again until the context ends
	{"journal_mode", "WAL", "wal"},
	{"synchronous", "FULL", "2"},
	{"fullfsync", "1", "1"}, // on macOS fsync alone leaves it to the disk when to write
	{"encoding", "'UTF-8'", "UTF-8"},
}

// Options change how a store is used. The zero value is useful.
type Options struct {
	// Timeout bounds each call, also when its context allows more; default 5 s.
	Timeout time.Duration
}

// base gives a Store its methods without a field that outsiders see.
type base = driver.Base

// A Store is a handle on a store in a file. Its methods are safe for concurrent use.
type Store struct {
	*base
	rows rows
}

// rows are the store's rows; they implement driver.KV.
type rows struct {
	calls driver.Calls
	db    *sql.DB
	path  string
	file  os.FileInfo // of the file that was opened
	id    string
}

// Open opens the store in the file, and makes it if there is none. ErrInvalidArgument,
// ErrStoreUnavailable, ErrStoreCorrupt, ErrStoreUnsafe.
func Open(ctx context.Context, path string, opts Options) (*Store, error) {
	abs, err := filepath.Abs(path)
	if err != nil || path == "" {
		return nil, &hapax.ValueError{Field: "path", Value: path, Allowed: "the name of a file", Err: hapax.ErrInvalidArgument}
	}
	query := url.Values{}
	for _, s := range settings {
		query.Add("_pragma", s.name+"("+s.value+")")
	}
	dsn := url.URL{Scheme: "file", Path: "/" + strings.TrimPrefix(filepath.ToSlash(abs), "/"), RawQuery: query.Encode()}
	s := &Store{rows: rows{path: abs, calls: driver.Calls{Service: "SQLite file " + abs, Timeout: opts.Timeout}}}
	r := &s.rows
	if r.db, err = sql.Open("sqlite", dsn.String()); err != nil {
		return nil, r.calls.Unavailable(ctx, err)
	}
	r.db.SetMaxOpenConns(1) // the calls of one process queue here, where a context ends the wait
	s.base = driver.NewBase(&r.calls, r, driver.BaseOptions{MaxBytes: 1 << 20, ByValue: true})

	ctx, cancel, err := r.calls.Begin(ctx)
	if err == nil {
		defer cancel()
		err = r.transact(ctx, "BEGIN IMMEDIATE", func(c *sql.Conn) error { return r.identify(ctx, c) })
	}
	if err != nil {
		_ = r.db.Close()
		return nil, err
	}
	return s, nil
}

// identify checks the engine's settings and reads the store's identity, or creates the store.
func (r *rows) identify(ctx context.Context, c *sql.Conn) (err error) {
	for _, s := range settings {
		var says string
		if err := c.QueryRowContext(ctx, "PRAGMA "+s.name).Scan(&says); err != nil {
			return err
		}
		if says != s.says {
			return fmt.Errorf("%w: %s: %s is %q, and must be %q", hapax.ErrStoreUnsafe, r.calls.Service, s.name, says, s.says)
		}
	}
	var made bool
	if err := c.QueryRowContext(ctx, "SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE name = 'hapax_store')").Scan(&made); err != nil {
		return err
	}
	if !made {
		if _, err := c.ExecContext(ctx, fmt.Sprintf(schema, driver.MaxValueBytes, rand.Text(), format)); err != nil {
			return err
		}
	}
	var found int64
	if err := c.QueryRowContext(ctx, "SELECT id, format FROM hapax_store").Scan(&r.id, &found); err != nil {
		return fmt.Errorf("%w: %s: table hapax_store: %w", hapax.ErrStoreCorrupt, r.calls.Service, err)
	}
	if err := driver.CheckFormat(r.calls.Service, found, format); err != nil {
		return err
	}
	r.file, err = os.Stat(r.path)
	return err
}

// here fails where the file is not the one that was opened. Without it a handle goes on in a
// file that was deleted, while others have a new one under its name.
func (r *rows) here() error {
	now, err := os.Stat(r.path)
	switch {
	case r.file == nil, err == nil && os.SameFile(now, r.file): // nil while it is being opened
		return nil
	case err == nil, errors.Is(err, os.ErrNotExist):
		return r.replaced()
	}
	return err
}

// same fails where the store in the file is not the one that was opened.
func (r *rows) same(ctx context.Context, c *sql.Conn) error {
	var id string
	err := c.QueryRowContext(ctx, "SELECT id FROM hapax_store").Scan(&id)
	switch {
	case err != nil && !errors.Is(err, sql.ErrNoRows):
		return err
	case id != r.id:
		return r.replaced()
	}
	return r.here() // a connection may just have been made anew, to another file
}

func (r *rows) replaced() error {
	return fmt.Errorf("%w: %s is not store %s any more", hapax.ErrStoreReplaced, r.calls.Service, r.id)
}

// transact runs f in a transaction on the store that was opened. After an error the connection
// is thrown away, so that no later step carries on, and commits, what this one has begun.
func (r *rows) transact(ctx context.Context, begin string, f func(*sql.Conn) error) error {
	if err := r.here(); err != nil {
		return r.failed(ctx, err) // before a connection makes a file where there is none
	}
	c, err := r.db.Conn(ctx)
	if err != nil {
		return r.failed(ctx, err)
	}
	defer c.Close()
	for {
		_, err = c.ExecContext(ctx, begin)
		if code(err) != sqlite3.SQLITE_BUSY || ctx.Err() != nil {
			break
		}
	}
	if err == nil && r.file != nil {
		err = r.same(ctx, c)
	}
	if err == nil {
		err = f(c)
	}
	if err == nil {
		_, err = c.ExecContext(context.WithoutCancel(ctx), "COMMIT")
	}
	if err != nil {
		_ = c.Raw(func(any) error { return sqldriver.ErrBadConn })
		return r.failed(ctx, err)
	}
	return nil
}

// failed gives an error of the engine a sentinel. One of hapax has its own.
func (r *rows) failed(ctx context.Context, err error) error {
	if _, ok := errors.AsType[*hapax.Error](err); ok {
		return err
	}
	if c := code(err); c == sqlite3.SQLITE_CORRUPT || c == sqlite3.SQLITE_NOTADB {
		return fmt.Errorf("%w: %s: %w", hapax.ErrStoreCorrupt, r.calls.Service, err)
	}
	return r.calls.Unavailable(ctx, err)
}

// code returns SQLite's primary result code; 0 for other errors, and none.
func code(err error) int {
	if e, ok := errors.AsType[*sqlite.Error](err); ok {
		return e.Code() & 0xff
	}
	return 0
}

// Get implements driver.KV.
func (r *rows) Get(ctx context.Context, _ driver.Freshness, keys ...driver.Key) (cells []driver.Cell, err error) {
	err = r.transact(ctx, "BEGIN", func(c *sql.Conn) (err error) {
		cells, err = driver.CellsOf(keys, tx{ctx, c}.Value)
		return err
	})
	return cells, err
}

// Scan implements driver.KV.
func (r *rows) Scan(ctx context.Context, table, after string, limit int) (page []driver.Row, err error) {
	err = r.transact(ctx, "BEGIN", func(c *sql.Conn) error {
		found, err := c.QueryContext(ctx, "SELECT name, value FROM hapax_rows WHERE tbl = ? AND name > ? ORDER BY name LIMIT ?", table, after, limit)
		if err != nil {
			return err
		}
		defer found.Close()
		for found.Next() {
			var row driver.Row
			if err := found.Scan(&row.Name, &row.Value); err != nil {
				return err
			}
			page = append(page, row)
		}
		return found.Err()
	})
	return page, err
}

// Step implements driver.KV.
func (r *rows) Step(ctx context.Context, step driver.Step) (result driver.Result, err error) {
	err = r.transact(ctx, "BEGIN IMMEDIATE", func(c *sql.Conn) (err error) {
		result, err = driver.Apply(tx{ctx, c}, step)
		return err
	})
	if err != nil {
		return driver.Result{}, err
	}
	return result, nil
}

// A tx is a transaction; it implements driver.Tx.
type tx struct {
	ctx context.Context
	c   *sql.Conn
}

// Value implements driver.Tx.
func (t tx) Value(key driver.Key) (value []byte, err error) {
	err = t.c.QueryRowContext(t.ctx, "SELECT value FROM hapax_rows WHERE tbl = ? AND name = ?", key.Table, key.Name).Scan(&value)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil
	}
	return value, err
}

// Write implements driver.Tx.
func (t tx) Write(key driver.Key, next []byte) (err error) {
	if next == nil {
		_, err = t.c.ExecContext(t.ctx, "DELETE FROM hapax_rows WHERE tbl = ? AND name = ?", key.Table, key.Name)
	} else {
		_, err = t.c.ExecContext(t.ctx, "INSERT INTO hapax_rows VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET value = excluded.value", key.Table, key.Name, next)
	}
	return err
}

// StoreID implements driver.Store.
func (s *Store) StoreID(ctx context.Context) (string, error) { return s.rows.id, s.Ping(ctx) }

// Ping implements driver.Store.
func (s *Store) Ping(ctx context.Context) error {
	ctx, cancel, err := s.rows.calls.Begin(ctx)
	if err != nil {
		return err
	}
	defer cancel()
	_, err = s.rows.Get(ctx, driver.Current)
	return err
}

// Close implements driver.Store.
func (s *Store) Close() error {
	if !s.rows.calls.End() {
		return nil
	}
	return s.rows.db.Close()
}
