package sqlstore

import (
	"context"
	"crypto/tls"
	"database/sql/driver"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/hapax-id/hapax"
)

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
		{"postgres://u:p@h:1/db?sslmode=disable&prefix=x", ""},
		{"postgresql://h/db", ""},
		{"postgres://a:1,b:2/db?target_session_attrs=read-write", ""},
		{"mysql://h", "store URL path"},
		{"mysql://h/db?socket=/s", "store URL host"},
		{"mysql://h/db?prefx=x", "store URL parameter"},
		{"mysql://h/db?multiStatements=true", "store URL parameter"},
		{"mysql://h/db?timeout=soon", "-"},
		{"mysql://h/db?tls=custom", "-"},
		{"mysql://h/db?tls_ca=no-such-file", "-"},
		{"mysql://h/db?tls_cert=no-such-file", "-"},
		{"mysql://h/db?prefix=", "prefix"},
		{"mysql://h/db?prefix=1a", "prefix"},
		{"mysql://h/db?prefix=a;drop", "-"},
		{"mysql://h/db?prefix=a%3Bdrop", "prefix"},
		{"postgres://h/db?prefix=" + strings.Repeat("a", 33), "prefix"},
		{"postgres://h/db?sslmode=perhaps", "-"},
		{"redis://h", "scheme"},
		{"", "scheme"},
		{"mysql://u:s3cret%zz@h/db", "-"},
		{"mysql://u:s3cret@h:port/db", "-"},
		{"postgres://u:s3cret@h:1/db?sslmode=perhaps", "-"},
		{"postgres://u:s3cret@h:1/db?connect_timeout=x&sslpassword=s3cret", "-"},
	} {
		_, _, err := parseURL(c.url, Options{})
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

func TestMySQLConfig(t *testing.T) {
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
		cfg, err := mysqlConfig(u, u.Query(), Options{})
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

func TestSchemaArguments(t *testing.T) {
	if _, err := Schema("oracle", ""); !errors.Is(err, hapax.ErrInvalidArgument) {
		t.Errorf("another dialect: %v", err)
	}
	if _, err := Schema(MySQL, "a b"); !errors.Is(err, hapax.ErrInvalidArgument) {
		t.Errorf("a bad prefix: %v", err)
	}
	script, err := Schema(PostgreSQL, "")
	if err != nil || !strings.Contains(script, " "+DefaultPrefix+"tags (") {
		t.Errorf("the script has no default prefix: %v\n%s", err, script)
	}
}

// The scripts that operators can read and run are those of Schema, but for the
// prefix.
func TestSchemaFiles(t *testing.T) {
	for _, d := range []Dialect{MySQL, PostgreSQL} {
		file, err := os.ReadFile(string(d) + ".sql")
		if err != nil {
			t.Fatal(err)
		}
		plain, err := Schema(d, "")
		other, err2 := Schema(d, "my_")
		if err != nil || err2 != nil || plain != string(file) {
			t.Errorf("%s.sql is not what Schema returns: %v, %v", d, err, err2)
		}
		if strings.Count(other, "CREATE TABLE IF NOT EXISTS my_") != 4 || strings.Contains(other, DefaultPrefix) {
			t.Errorf("the tables of another prefix are %s", other)
		}
	}
}

func TestOptions(t *testing.T) {
	for _, opts := range []Options{{MaxConns: -1}, {MaxConns: MaxMaxConns + 1}, {Timeout: -1}} {
		_, err := Open(t.Context(), "mysql://127.0.0.1:1/db", opts)
		if _, ok := errors.AsType[*hapax.ValueError](err); !ok || !errors.Is(err, hapax.ErrInvalidArgument) {
			t.Errorf("%+v: %v", opts, err)
		}
	}
}

func TestClasses(t *testing.T) {
	my, pg := &mysqlDialect{}, &postgresDialect{}
	refused := &net.OpError{Op: "dial", Err: errors.New("refused")}
	for _, c := range []struct {
		d    dialect
		err  error
		want class
	}{
		{my, driver.ErrBadConn, undone},
		{pg, driver.ErrBadConn, undone},
		{my, mysql.ErrInvalidConn, unknown},
		{my, refused, unknown},
		{my, &connectError{refused}, undone},
		{pg, &connectError{refused}, undone},
		{pg, &connectError{fmt.Errorf("connect: %w", &pgconn.PgError{Code: "57P03"})}, undone},
		{pg, &connectError{&pgconn.PgError{Code: "3D000"}}, unknown}, // no such database
		{my, &connectError{&mysql.MySQLError{Number: 1045}}, forbidden},
		{my, &connectError{hapax.ErrStoreReplaced}, unknown},
		{my, &connectError{&tls.CertificateVerificationError{Err: errors.New("who is it")}}, unknown},
		{my, &mysql.MySQLError{Number: 1213}, undone},
		{my, &mysql.MySQLError{Number: 1053}, unknown}, // shutdown: the commit may have happened
		{my, &mysql.MySQLError{Number: 1317}, unknown}, // interrupted
		{my, &mysql.MySQLError{Number: 1290}, readOnly},
		{pg, &pgconn.PgError{Code: "40001"}, undone},
		{pg, &pgconn.PgError{Code: "40003"}, unknown}, // completion unknown
		{pg, &pgconn.PgError{Code: "57P01"}, unknown}, // shutdown
		{pg, &pgconn.PgError{Code: "08006"}, unknown},
		{pg, &pgconn.PgError{Code: "25006"}, readOnly},
		{pg, context.DeadlineExceeded, unknown},
	} {
		if got := (&Store{dialect: c.d}).class(c.err); got != c.want {
			t.Errorf("%s: %v is of class %d, want %d", c.d.name(), c.err, got, c.want)
		}
	}
}

// What had no effect is tried again at growing, random intervals until the time
// limit; what may have had one, never.
func TestAttempts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &Store{dialect: &mysqlDialect{}, opts: Options{Timeout: 5 * time.Second}}
		var at []time.Duration
		start := time.Now()
		attempt := func(err error) func(context.Context) error {
			return func(context.Context) error {
				at = append(at, time.Since(start))
				return err
			}
		}
		refused := &connectError{errors.New("refused")}
		err := s.do(t.Context(), "test", attempt(refused))
		if !errors.Is(err, hapax.ErrStoreUnavailable) || !errors.Is(err, refused) || errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("error is %v", err)
		}
		if d := time.Since(start); d != 5*time.Second {
			t.Errorf("gave up after %v, want 5s", d)
		}
		want, irregular := firstDelay, false
		for i := 1; i < len(at); i++ {
			d := at[i] - at[i-1]
			if d <= want/2-1 || d > want {
				t.Errorf("delay %d is %v, want %v to %v", i, d, want/2, want)
			}
			irregular = irregular || d != want
			want = min(2*want, lastDelay)
		}
		if len(at) < 12 || !irregular {
			t.Errorf("attempts at %v, want at least 12 at random intervals", at)
		}

		at = nil
		err = s.do(t.Context(), "test", func(ctx context.Context) error {
			if at = append(at, 0); len(at) == 1 {
				return refused
			}
			<-ctx.Done()
			return &connectError{ctx.Err()}
		})
		if len(at) != 2 || !errors.Is(err, refused) {
			t.Errorf("%d attempts, the last of which took too long: %v, want the reason before", len(at), err)
		}

		at = nil
		err = s.do(t.Context(), "test", attempt(errors.New("connection lost")))
		if len(at) != 1 || !errors.Is(err, hapax.ErrStoreUnavailable) {
			t.Errorf("%d attempts, %v, want one", len(at), err)
		}

		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		at, start = nil, time.Now()
		err = s.do(ctx, "test", attempt(refused))
		if d := time.Since(start); d != time.Second || !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, hapax.ErrStoreUnavailable) {
			t.Errorf("gave up after %v: %v", d, err)
		}
		cause := errors.New("enough")
		ended, end := context.WithCancelCause(t.Context())
		end(cause)
		at = nil
		if err := s.do(ended, "test", attempt(nil)); len(at) != 0 || !errors.Is(err, cause) {
			t.Errorf("with an ended context: %d attempts, %v", len(at), err)
		}
	})
}

func TestDefinitionsAreBounded(t *testing.T) {
	s := &Store{defs: map[string]hapax.Tag{}}
	for i := range maxDefs + 10 {
		s.remember(hapax.Tag{Name: fmt.Sprint(i)})
	}
	if len(s.defs) > maxDefs {
		t.Errorf("%d definitions are remembered, want %d at most", len(s.defs), maxDefs)
	}
}
