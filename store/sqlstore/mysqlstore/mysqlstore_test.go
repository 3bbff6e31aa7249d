package mysqlstore

import (
	"errors"
	"net/url"
	"strings"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/sqlstore"
	"github.com/hapax-id/hapax/store/sqlstore/internal/handle"
)

// parse reads a URL as Open does.
func parse(raw string) (*mysql.Config, error) {
	u, query, _, err := handle.Parse(raw, "mysql")
	if err != nil {
		return nil, err
	}
	return config(u, query, sqlstore.Options{})
}

func TestURL(t *testing.T) {
	for _, c := range []struct {
		url   string
		field string // of the ValueError; "-": another error; empty: none
	}{
		{"mysql://u:p@h:1/db", ""},
		{"mysql://h/db", ""},
		{"mysql:///db", ""},
		{"mysql:///db?socket=/s&timeout=3s&tls=preferred", ""},
		{"mysql://[::1]:3306/db?prefix=a_1", ""},
		{"mysql://h", "store URL path"},
		{"mysql://h/db?socket=/s", "store URL host"},
		{"mysql://h/db?prefx=x", "store URL parameter"},
		{"mysql://h/db?multiStatements=true", "store URL parameter"},
		{"mysql://h/db?timeout=soon", "-"},
		{"mysql://h/db?tls=custom", "store URL parameter tls"},
		{"mysql://h/db?tls_ca=no-such-file", "-"},
		{"mysql://h/db?tls_cert=no-such-file", "-"},
		{"mysql://h/db?prefix=", "prefix"},
		{"mysql://h/db?prefix=1a", "prefix"},
		{"mysql://h/db?prefix=a;drop", "-"},
		{"mysql://h/db?prefix=a%3Bdrop", "prefix"},
		{"redis://h", "scheme"},
		{"postgres://h/db", "scheme"},
		{"", "scheme"},
		{"mysql://u:s3cret%zz@h/db", "-"},
		{"mysql://u:s3cret@h:port/db", "-"},
	} {
		_, err := parse(c.url)
		if c.field == "" && err == nil {
			continue
		}
		if c.field == "" || !errors.Is(err, hapax.ErrInvalidArgument) {
			t.Errorf("%s: error is %v", c.url, err)
			continue
		}
		if v, ok := errors.AsType[*hapax.ValueError](err); ok != (c.field != "-") || ok && v.Field != c.field {
			t.Errorf("%s: error is %v, want one about %q", c.url, err, c.field)
		}
		if strings.Contains(err.Error(), "s3cret") {
			t.Errorf("the error %q holds the password", err)
		}
	}
}

func TestConfig(t *testing.T) {
	for _, c := range []struct{ url, user, password, net, addr, db, tls string }{
		{"mysql://u:p%40%2F@h:1/db", "u", "p@/", "tcp", "h:1", "db", ""},
		{"mysql://u@h/db?tls=skip-verify", "u", "", "tcp", "h:3306", "db", "skip-verify"},
		{"mysql:///db", "", "", "tcp", "127.0.0.1:3306", "db", ""},
		{"mysql://[::1]/db?tls=true", "", "", "tcp", "[::1]:3306", "db", "true"},
		{"mysql://u:p@/a%20b?socket=/run/s&timeout=3s", "u", "p", "unix", "/run/s", "a b", ""},
	} {
		u, err := url.Parse(c.url)
		if err != nil {
			t.Fatal(err)
		}
		cfg, err := config(u, u.Query(), sqlstore.Options{})
		if err != nil {
			t.Errorf("%s: %v", c.url, err)
			continue
		}
		got := c
		got.user, got.password, got.net, got.addr, got.db, got.tls = cfg.User, cfg.Passwd, cfg.Net, cfg.Addr, cfg.DBName, cfg.TLSConfig
		if got != c {
			t.Errorf("got %+v, want %+v", got, c)
		}
	}
}

func TestOptions(t *testing.T) {
	for _, opts := range []sqlstore.Options{{MaxConns: -1}, {MaxConns: sqlstore.MaxMaxConns + 1}, {Timeout: -1}, {Prefix: "a b"}} {
		_, err := Open(t.Context(), "mysql://127.0.0.1:1/db", opts)
		if _, ok := errors.AsType[*hapax.ValueError](err); !ok || !errors.Is(err, hapax.ErrInvalidArgument) {
			t.Errorf("%+v: %v", opts, err)
		}
	}
}
