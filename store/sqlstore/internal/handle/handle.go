// Package handle holds what the packages that open a SQL store by its URL have
// in common.
package handle

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"time"

	"github.com/hapax-id/hapax"
)

// Lifetimes of connections.
const (
	MaxLifetime = 30 * time.Minute
	maxIdleTime = 5 * time.Minute
)

var prefixPattern = regexp.MustCompile(`^[a-z_][a-z0-9_]{0,31}$`)

// CheckPrefix judges what begins the names of the tables.
func CheckPrefix(prefix string) error {
	if !prefixPattern.MatchString(prefix) {
		return &hapax.ValueError{Field: "prefix", Value: prefix, Allowed: "1 to 32 of a-z, 0-9 and _, no digit first", Err: hapax.ErrInvalidArgument}
	}
	return nil
}

// Parse reads a store's URL, and takes the prefix out of its parameters; it is
// empty if there is none. No error holds the URL, which may hold a password.
func Parse(raw string, schemes ...string) (u *url.URL, query url.Values, prefix string, err error) {
	if u, err = url.Parse(raw); err != nil {
		return nil, nil, "", fmt.Errorf("%w: the store URL is malformed; special characters in its user, password and parameters must be percent-encoded", hapax.ErrInvalidArgument)
	}
	if query, err = url.ParseQuery(u.RawQuery); err != nil {
		return nil, nil, "", fmt.Errorf("%w: the store URL's parameters are malformed", hapax.ErrInvalidArgument)
	}
	if query.Has("prefix") {
		prefix = query.Get("prefix")
		if err := CheckPrefix(prefix); err != nil {
			return nil, nil, "", err
		}
		// Not for the Go drivers, which would take it for a setting of the session.
		query.Del("prefix")
	}
	u.RawQuery = query.Encode()
	if slices.Contains(schemes, u.Scheme) {
		return u, query, prefix, nil
	}
	return nil, nil, "", &hapax.ValueError{Field: "scheme", Value: u.Scheme, Allowed: fmt.Sprintf("one of %q", schemes), Err: hapax.ErrInvalidArgument}
}

// New returns a pool of at most so many connections.
func New(c driver.Connector, conns int, timeout time.Duration) *sql.DB {
	db := sql.OpenDB(Connector{c, timeout})
	db.SetMaxOpenConns(conns)
	// All of them: database/sql keeps two by default, and each new connection is checked before its first use.
	db.SetMaxIdleConns(conns)
	db.SetConnMaxLifetime(MaxLifetime)
	db.SetConnMaxIdleTime(maxIdleTime)
	return db
}

// A Connector bounds how long it takes to connect, since a pool also does so
// without a deadline.
type Connector struct {
	driver.Connector

	Timeout time.Duration
}

// Connect implements driver.Connector.
func (c Connector) Connect(ctx context.Context) (driver.Conn, error) {
	if c.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, c.Timeout)
		defer cancel()
	}
	return c.Connector.Connect(ctx)
}
