// Package database reads the foreign tables that give worker IDs, at the start of a server.
package database

import (
	"context"
	"database/sql"
	"strings"
	"time"

	"github.com/hapax-id/hapax/internal/mount"
	"github.com/hapax-id/hapax/store/sqlstore/mysqlstore"
)

// timeout bounds what is read.
const timeout = 10 * time.Second

// Check judges a database's URL without connecting to it; empty is good. The field is
// below compat.
func Check(field, databaseURL string) error {
	if databaseURL == "" {
		return nil
	}
	if !strings.HasPrefix(databaseURL, "mysql://") {
		return mount.Invalid(field, "(not a mysql:// URL)", "mysql://USER:PASSWORD@HOST:3306/DATABASE")
	}
	db, err := mysqlstore.OpenDB(databaseURL)
	if err != nil {
		return mount.Errorf(err, "compat.%s", field)
	}
	return db.Close()
}

// With calls f with the database, for a while.
func With(ctx context.Context, databaseURL string, f func(context.Context, *sql.DB) error) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	db, err := mysqlstore.OpenDB(databaseURL)
	if err != nil {
		return err
	}
	defer db.Close()
	return f(ctx, db)
}
