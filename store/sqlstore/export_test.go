package sqlstore

import (
	"context"
	"database/sql"
	"fmt"
	"reflect"
	"strings"
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

// Statements returns all queries of a store by name, those that it reads older tables with aside.
func (s *Store) Statements() map[string]string {
	all := map[string]string{}
	fields := reflect.ValueOf(s.sql)
	for i := range fields.NumField() {
		name, value := fields.Type().Field(i).Name, fields.Field(i)
		if strings.HasPrefix(name, "older") || value.Kind() != reflect.String || value.Len() == 0 {
			continue
		}
		all[name] = strings.Replace(value.String(), "{marks}", s.Bind(s.dialect.mark), 1)
	}
	for i, q := range s.sql.anyOf {
		all[fmt.Sprint("anyOf", i)] = q
	}
	for call, q := range s.sql.guarded {
		all[fmt.Sprint("guarded", call)] = q.text
	}
	return all
}

// Session calls f with a connection that is set up as the store's are.
func (s *Store) Session(ctx context.Context, f func(context.Context, *sql.Conn) error) error {
	return s.do(ctx, "test", f)
}
