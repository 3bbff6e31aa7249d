package sqlstore

import (
	"context"
	"database/sql"
	"time"
)

func (s *Store) Name() Dialect              { return s.dialect.name }
func (s *Store) DB() *sql.DB                { return s.db }
func (s *Store) Forget(tag string)          { s.forget(tag) }
func (s *Store) Bind(query string) string   { return s.dialect.bind(query) }
func (s *Store) SetTimeout(d time.Duration) { s.opts.Timeout = d }

func Value[T any](s *Store, query string) (v T, err error) {
	err = s.do(context.Background(), "query", func(ctx context.Context, c *sql.Conn) error {
		return s.queryRow(ctx, c, query, nil, &v)
	})
	return v, err
}
