package sqlstore

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"time"

	"github.com/hapax-id/hapax/store/driver"
)

func (s *Store) Name() Dialect            { return s.dialect.name }
func (s *Store) DB() *sql.DB              { return s.db }
func (s *Store) Bind(query string) string { return s.dialect.bind(query) }

func (s *Store) SetTimeout(d time.Duration) { s.opts.Timeout, s.calls.Timeout = d, d }

func Value[T any](s *Store, query string) (v T, err error) {
	err = s.do(context.Background(), "query", func(ctx context.Context, c *sql.Conn) error {
		return s.queryRow(ctx, c, query, nil, &v)
	})
	return v, err
}

// Statements returns all queries of a store by name.
func (s *Store) Statements() map[string]string {
	q := s.sql
	all := map[string]string{"whole": q.whole, "meta": q.meta, "metaInsert": q.metaInsert, "clock": q.clock, "scan": q.scan, "get": q.get, "anyRow": q.anyRow}
	for i, step := range q.steps {
		all[fmt.Sprint("step", i)] = step
	}
	return all
}

// ReadStale has the store read rows as they were when its statements began.
func (s *Store) ReadStale() {
	const lock = " FOR UPDATE"
	for i, step := range s.sql.steps {
		s.sql.steps[i] = strings.ReplaceAll(step, lock, "")
	}
	s.sql.names = strings.NewReplacer(lock, "", "{meta}", s.opts.Prefix+"meta", "{rows}", s.opts.Prefix+"rows", "{value}", bounded)
}

// Session calls f with a connection that is set up as the store's are.
func (s *Store) Session(ctx context.Context, f func(context.Context, *sql.Conn) error) error {
	return s.do(ctx, "test", f)
}

// SyncOf makes a step in a transaction, and returns whether it was met, and the setting with which
// the server would commit it.
func (s *Store) SyncOf(step driver.Step) (met bool, sync string, err error) {
	items, err := itemsOf(s.dialect, step)
	if err != nil {
		return false, "", err
	}
	err = s.do(context.Background(), "test", func(ctx context.Context, c *sql.Conn) error {
		tx, err := c.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback() }()
		r, err := s.dialect.stepRows(ctx, c, s, step, items, lockedRows{})
		if err != nil {
			return err
		}
		met = r.Met
		return s.queryRow(ctx, c, "SELECT current_setting('synchronous_commit')", nil, &sync)
	})
	return met, sync, err
}

// NeverSync has a store in PostgreSQL acknowledge what a crash of the server may undo.
func (s *Store) NeverSync() {
	for i, step := range s.sql.steps {
		s.sql.steps[i] = strings.ReplaceAll(step, "WHEN NOT met THEN set_config", "WHEN here THEN set_config")
	}
}
