package sqlstore

import (
	"bytes"
	"context"
	"crypto/tls"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/hapax-id/hapax"
	hapaxdriver "github.com/hapax-id/hapax/store/driver"
)

func TestSchemaArguments(t *testing.T) {
	if _, err := Schema("oracle", ""); !errors.Is(err, hapax.ErrInvalidArgument) {
		t.Errorf("another dialect: %v", err)
	}
	if _, err := Schema(MySQL, "a b"); !errors.Is(err, hapax.ErrInvalidArgument) {
		t.Errorf("a bad prefix: %v", err)
	}
	script, err := Schema(PostgreSQL, "")
	if err != nil || !strings.Contains(script, " "+DefaultPrefix+"rows (") {
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
		if strings.Count(other, "CREATE TABLE IF NOT EXISTS my_") != 2 || strings.Contains(other, DefaultPrefix) {
			t.Errorf("the tables of another prefix are %s", other)
		}
	}
}

func TestClasses(t *testing.T) {
	my, pg := &mysqlDialect, &postgresDialect
	refused := &net.OpError{Op: "dial", Err: errors.New("refused")}
	for _, c := range []struct {
		d    *dialect
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
			t.Errorf("%s: %v is of class %d, want %d", c.d.name, c.err, got, c.want)
		}
	}
}

// What had no effect is tried again at growing, random intervals until the time
// limit; what may have had one, never.
func TestAttempts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &Store{dialect: &mysqlDialect, opts: Options{Timeout: 5 * time.Second}}
		var at []time.Duration
		start := time.Now()
		attempt := func(err error) func(context.Context) error {
			return func(context.Context) error {
				at = append(at, time.Since(start))
				return err
			}
		}
		refused := &connectError{errors.New("refused")}
		err := s.retry(t.Context(), "test", attempt(refused))
		if !errors.Is(err, hapax.ErrStoreUnavailable) || !errors.Is(err, refused) || errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("error is %v", err)
		}
		if d := time.Since(start); d != 5*time.Second {
			t.Errorf("gave up after %v, want 5s", d)
		}
		if len(at) < 8 || len(at) > 20 {
			t.Errorf("attempts at %v, want 8 to 20 of them", at)
		}

		at = nil
		err = s.retry(t.Context(), "test", func(ctx context.Context) error {
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
		err = s.retry(t.Context(), "test", attempt(errors.New("connection lost")))
		if len(at) != 1 || !errors.Is(err, hapax.ErrStoreUnavailable) {
			t.Errorf("%d attempts, %v, want one", len(at), err)
		}

		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		at, start = nil, time.Now()
		err = s.retry(ctx, "test", attempt(refused))
		if d := time.Since(start); d != time.Second || !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, hapax.ErrStoreUnavailable) {
			t.Errorf("gave up after %v: %v", d, err)
		}
		cause := errors.New("enough")
		ended, end := context.WithCancelCause(t.Context())
		end(cause)
		at = nil
		if err := s.retry(ended, "test", attempt(nil)); len(at) != 0 || !errors.Is(err, cause) {
			t.Errorf("with an ended context: %d attempts, %v", len(at), err)
		}
	})
}

// A group's name is the server's identity only while the server is a working
// member of that group.
func TestGroupIdentity(t *testing.T) {
	for _, c := range []struct {
		name    string
		vars    map[string]string
		state   string // of the member; empty: the plugin does not run
		cluster string // status of the Galera cluster
		want    string
		settles bool
	}{
		{"member", map[string]string{"group_replication_group_name": "g"}, "ONLINE", "", "group g", true},
		{"not started", map[string]string{"group_replication_group_name": "g"}, "", "", "server_uuid u/start 1795503003", false},
		{"offline", map[string]string{"group_replication_group_name": "g"}, "OFFLINE", "", "server_uuid u/start 1795503003", false},
		{"cluster", map[string]string{"wsrep_on": "ON"}, "", "Primary", "cluster c", true},
		{"left the cluster", map[string]string{"wsrep_on": "ON"}, "", "Disconnected", "server_uuid u/start 1795503003", false},
		{"alone", nil, "", "", "server_uuid u/start 1795503003", false},
		{"MariaDB", map[string]string{"version": "10.11.19-MariaDB", "server_uuid": "", "hostname": "h", "port": "1", "server_uid": "x"}, "", "", "h:1 x/start 1795503002", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			db := sql.OpenDB(answers{func(query string) [][2]string {
				switch {
				case strings.HasPrefix(query, "SHOW GLOBAL VARIABLES"):
					rows := [][2]string{{"server_uuid", "u"}, {"innodb_flush_log_at_trx_commit", "1"}}
					for name, value := range c.vars {
						rows = append(rows, [2]string{name, value})
					}
					return rows
				case strings.HasPrefix(query, "SHOW GLOBAL STATUS"):
					return [][2]string{{"wsrep_cluster_state_uuid", "c"}, {"wsrep_cluster_status", c.cluster}}
				case strings.Contains(query, "performance_schema.global_status"):
					return [][2]string{{"1795503003"}}
				case strings.Contains(query, "information_schema.global_status"):
					return [][2]string{{"1795503002"}}
				case c.state != "":
					return [][2]string{{c.state}}
				}
				return nil
			}})
			defer db.Close()
			conn, err := db.Conn(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			srv, err := mysqlInspect(t.Context(), conn)
			if err != nil || srv.identity != c.want || (len(srv.settle) > 0) != c.settles {
				t.Errorf("the server is %+v, %v; want %q, settled %v", srv, err, c.want, c.settles)
			}
		})
	}
}

// A session is not used where what it needs in a cluster cannot be set, unless the server
// does not know the variable.
func TestSettledSessions(t *testing.T) {
	for name, c := range map[string]struct {
		err  error
		want error
	}{
		"set":     {nil, nil},
		"unknown": {&mysql.MySQLError{Number: 1193}, nil},
		"denied":  {&mysql.MySQLError{Number: 1227, Message: "Access denied"}, &mysql.MySQLError{Number: 1227}},
	} {
		d := mysqlDialect
		d.inspect = func(context.Context, *sql.Conn) (server, error) {
			return server{identity: "group g", settle: []string{"SET SESSION a = 1", "SET SESSION b = 1"}}, nil
		}
		s := &Store{dialect: &d, sql: newStatements(&d, DefaultPrefix), id: "x"}
		db := sql.OpenDB(settling{answers{func(string) [][2]string { return [][2]string{{metaStoreID, "x"}} }}, c.err})
		conn, err := db.Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := s.check(t.Context(), conn); !errors.Is(err, c.want) {
			t.Errorf("%s: %v; want %v", name, err, c.want)
		}
		_ = conn.Close()
		_ = db.Close()
	}
}

// settling is a driver whose statements all end with one error.
type settling struct {
	answers
	err error
}

func (s settling) Connect(context.Context) (driver.Conn, error) {
	return executing{answering{s.answers}, s.err}, nil
}

type executing struct {
	answering
	err error
}

func (e executing) ExecContext(context.Context, string, []driver.NamedValue) (driver.Result, error) {
	return driver.ResultNoRows, e.err
}

// answers is a driver of which every query is answered by a function, with rows
// of two texts.
type answers struct {
	to func(query string) [][2]string
}

func (a answers) Connect(context.Context) (driver.Conn, error) { return answering{a}, nil }
func (a answers) Driver() driver.Driver                        { return nil }

type answering struct{ answers }

func (answering) Prepare(string) (driver.Stmt, error) { return nil, errors.ErrUnsupported }
func (answering) Close() error                        { return nil }
func (answering) Begin() (driver.Tx, error)           { return nil, errors.ErrUnsupported }
func (a answering) QueryContext(_ context.Context, query string, _ []driver.NamedValue) (driver.Rows, error) {
	return &answer{a.to(query)}, nil
}

type answer struct{ rows [][2]string }

func (*answer) Columns() []string { return []string{"name", "value", "format"} }
func (*answer) Close() error      { return nil }
func (a *answer) Next(dest []driver.Value) error {
	if len(a.rows) == 0 {
		return io.EOF
	}
	dest[0], dest[1], dest[2] = a.rows[0][0], a.rows[0][1], int64(format)
	a.rows = a.rows[1:]
	return nil
}

// A step is refused that names too many rows, or has a value that is too long, or no text where
// PostgreSQL compares it.
func TestItemsAreBounded(t *testing.T) {
	key, long := hapaxdriver.Key{Table: "t", Name: "r"}, bytes.Repeat([]byte("x"), hapaxdriver.MaxValueBytes+1)
	raise := func(value []byte) hapaxdriver.Step {
		return hapaxdriver.Step{Raise: []hapaxdriver.Put{{Key: key, Value: value}}}
	}
	for name, c := range map[string]struct {
		step hapaxdriver.Step
		want error
	}{
		"the longest value": {raise(long[1:]), nil},
		"a longer one":      {raise(long), hapax.ErrInvalidArgument},
		"a longer old one":  {hapaxdriver.Step{Each: []hapaxdriver.Change{{Key: key, Old: hapaxdriver.Cell{Value: long, Known: true}}}}, hapax.ErrInvalidArgument},
		"no text":           {raise([]byte("\xff")), hapax.ErrInvalidArgument},
		"no text, swapped":  {hapaxdriver.Step{Each: []hapaxdriver.Change{{Key: key, Next: []byte("\xff")}}}, nil},
		"as many rows":      {hapaxdriver.Step{Look: make([]hapaxdriver.Key, maxItems)}, nil},
		"more rows":         {hapaxdriver.Step{Look: make([]hapaxdriver.Key, maxItems+1)}, hapaxdriver.ErrTooMany},
	} {
		if _, err := itemsOf(&postgresDialect, c.step); !errors.Is(err, c.want) {
			t.Errorf("%s: error %v; want %v", name, err, c.want)
		}
	}
}
