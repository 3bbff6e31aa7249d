package sequences

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	_ "github.com/go-sql-driver/mysql" // the driver

	"github.com/hapax-id/hapax/internal/testservers"
)

var databases atomic.Int64

// newMaria returns the URL of a database of its own, and a handle on it.
func newMaria(t *testing.T, statements ...string) (address string, db *sql.DB) {
	t.Helper()
	return newDatabase(t, testservers.SharedMariaDB(t), statements...)
}

func newDatabase(t *testing.T, server *testservers.Server, statements ...string) (address string, db *sql.DB) {
	t.Helper()
	u, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	password, _ := u.User.Password()
	dsn := fmt.Sprintf("%s:%s@tcp(%s)/", u.User.Username(), password, u.Host)
	name := fmt.Sprintf("shut_%d_%d", time.Now().UnixNano(), databases.Add(1))
	for _, s := range append([]string{"CREATE DATABASE " + name}, statements...) {
		if db, err = sql.Open("mysql", dsn); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = db.Close() })
		if _, err := db.ExecContext(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		dsn = fmt.Sprintf("%s:%s@tcp(%s)/%s", u.User.Username(), password, u.Host, name)
	}
	u.Path = "/" + name
	return u.String(), db
}

// only opens a database for a store, and reads its one source.
func only(t *testing.T, address, store string) (*mySQL, *Source) {
	t.Helper()
	m, err := openMySQL(t.Context(), address, Options{Timeout: 10 * time.Second, AllocationSize: 50, Store: store, Write: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Close() })
	all, _, err := m.Sources(t.Context(), "")
	if err != nil || len(all) != 1 {
		t.Fatalf("%d sources, %v", len(all), err)
	}
	return m, all[0]
}

// A command that is killed before any of its statements can be repeated, and the sequence
// issues no number of the tag, neither in between nor afterwards.
func TestShutIsRepeated(t *testing.T) {
	const tagFirst = 1000
	killed := errors.New("killed")
	for _, how := range []Switch{Stop, Gap, Parity} {
		for at, done := 0, false; !done; at++ {
			t.Run(fmt.Sprintf("%s/%d", how, at), func(t *testing.T) {
				done = true // of one that is left out, or fails, there is no end otherwise
				address, db := newMaria(t, "CREATE SEQUENCE s NOCACHE", "SELECT NEXTVAL(s)")
				first := int64(tagFirst)
				issue := func() (n int64, ended bool) {
					t.Helper()
					if err := db.QueryRowContext(t.Context(), "SELECT NEXTVAL(s)").Scan(&n); err != nil {
						return 0, true
					}
					if n >= first && (how != Parity || n%2 == 0) {
						t.Errorf("the sequence issues %d, and the tag from %d on", n, first)
					}
					return n, false
				}
				m, s := only(t, address, "a")
				left := at
				m.before = func(string) error {
					if left--; left < 0 {
						return killed
					}
					return nil
				}
				err := m.Shut(t.Context(), s, how, first)
				if done = err == nil; !done && !errors.Is(err, killed) {
					t.Fatal(err)
				}
				issue()
				m, s = only(t, address, "a")
				if s.Closed == nil || s.Unfinished {
					err = m.Shut(t.Context(), s, how, first)
					if passed, ok := errors.AsType[*PassedError](err); ok {
						first = passed.At + tagFirst
						err = m.Shut(t.Context(), s, how, first)
					}
					if err != nil {
						t.Fatalf("once more: %v", err)
					}
					m, s = only(t, address, "a")
				}
				if s.Closed == nil || s.Closed.How != how || s.Closed.First != first || s.Unfinished {
					t.Fatalf("it is shut as %+v, unfinished %v; want from %d on", s.Closed, s.Unfinished, first)
				}
				for range 3 {
					if n, ended := issue(); how == Parity && (ended || n < first) {
						t.Errorf("a halved sequence issues %d, ended %v; want it above %d", n, ended, first)
					}
				}
				if err := m.Reopen(t.Context(), s, first+1000); err != nil {
					t.Fatal(err)
				}
				var n int64
				if err := db.QueryRowContext(t.Context(), "SELECT NEXTVAL(s)").Scan(&n); err != nil || n < first+1000 {
					t.Errorf("open again it issues %d, %v", n, err)
				}
			})
		}
	}
}

// On a cluster no lock is shared: another command, for another store, that comes in before any
// statement of the first one takes all of the source, or nothing.
func TestShutInACluster(t *testing.T) {
	for name, statements := range map[string][]string{
		"sequence":       {"CREATE SEQUENCE orders"},
		"auto_increment": {"CREATE TABLE orders (id BIGINT AUTO_INCREMENT PRIMARY KEY)"},
		"generator":      {"CREATE TABLE hibernate_sequences (sequence_name VARCHAR(99) PRIMARY KEY, next_val BIGINT)", "INSERT INTO hibernate_sequences VALUES ('orders', 1)", "CREATE TABLE orders (id BIGINT PRIMARY KEY)"},
	} {
		for at, done := 0, false; !done; at++ {
			t.Run(fmt.Sprintf("%s/%d", name, at), func(t *testing.T) {
				done = true
				address, _ := newMaria(t, statements...)
				a, ofA := only(t, address, "a")
				b, ofB := only(t, address, "b")
				a.cluster, b.cluster = true, true
				left, errB := at, errors.New("it did not run")
				a.before = func(string) error {
					if left--; left == -1 {
						errB = b.Shut(t.Context(), ofB, Stop, 2000)
					}
					return nil
				}
				errA := a.Shut(t.Context(), ofA, Stop, 1000)
				if done = left >= 0; done {
					errB = b.Shut(t.Context(), ofB, Stop, 2000)
				}
				if (errA == nil) == (errB == nil) {
					t.Fatalf("the first one: %v; the second one: %v; want one winner", errA, errB)
				}
				won := "a"
				if errA != nil {
					won = "b"
				}
				if _, s := only(t, address, "c"); s.Closed == nil || s.Closed.Store != won {
					t.Errorf("%s has the source, and its mark is %+v", won, s.Closed)
				}
				if err := a.db.SQL.QueryRowContext(context.Background(), "SELECT at_work FROM "+claimTable).Scan(new(string)); !errors.Is(err, sql.ErrNoRows) {
					t.Errorf("the row of a command that has ended: %v", err)
				}
			})
		}
	}
}

// The steps of a plan shut a row of a generators' table, and can be repeated, also by servers that
// make no trigger a second time.
func TestGeneratorStepsAreRepeated(t *testing.T) {
	for name, server := range map[string]*testservers.Server{"mariadb": testservers.SharedMariaDB(t), "mysql 8": testservers.MySQL8(t)} {
		t.Run(name, func(t *testing.T) {
			address, db := newDatabase(t, server, "CREATE TABLE hibernate_sequences (sequence_name VARCHAR(99) PRIMARY KEY, next_val BIGINT)", "INSERT INTO hibernate_sequences VALUES ('orders', 1)")
			m, s := only(t, address, "a")
			steps, err := m.Steps(s, Stop, 1000)
			if err != nil {
				t.Fatal(err)
			}
			for range 2 {
				conn, err := db.Conn(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				for _, step := range steps {
					for line := range strings.SplitSeq(step, "//\n") {
						if _, err := conn.ExecContext(t.Context(), line); err != nil {
							t.Fatalf("%s: %v", line, err)
						}
					}
				}
				if err := conn.Raw(func(any) error { return driver.ErrBadConn }); !errors.Is(err, driver.ErrBadConn) { // its lock ends with it
					t.Fatal(err)
				}
			}
			for _, counts := range []string{"UPDATE hibernate_sequences SET next_val = 51", "DELETE FROM hibernate_sequences", "INSERT INTO hibernate_sequences VALUES ('orders', 51)"} {
				if _, err := db.ExecContext(t.Context(), counts); err == nil || !strings.Contains(err.Error(), "these numbers come from hapax") {
					t.Errorf("%s: %v; want it refused", counts, err)
				}
			}
			if m, s = only(t, address, "a"); s.Closed == nil || s.Closed.First != 1000 {
				t.Fatalf("it is shut as %+v", s.Closed)
			}
			if err := m.Reopen(t.Context(), s, 2000); err != nil {
				t.Fatal(err)
			}
			var left int
			if err := db.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM information_schema.TRIGGERS WHERE TRIGGER_SCHEMA = DATABASE()").Scan(&left); err != nil || left > 0 {
				t.Errorf("%d triggers are left, %v", left, err)
			}
		})
	}
}

// A row of a generators' table that is shut cannot be taken away and put back by a program that counts
// like that, nor by one that empties the table, and the table's other rows go on.
func TestShutGeneratorStaysShut(t *testing.T) {
	servers := map[string]*testservers.Server{"mariadb": testservers.SharedMariaDB(t), "mysql 8": testservers.MySQL8(t)}
	for name, c := range map[string]struct{ create, insert, where string }{
		"rows with names": {"CREATE TABLE hibernate_sequences (sequence_name VARCHAR(99) PRIMARY KEY, next_val BIGINT)", "hibernate_sequences VALUES ('orders', %d)", " WHERE sequence_name = 'orders'"},
		"one row":         {"CREATE TABLE orders_seq (next_val BIGINT)", "orders_seq VALUES (%d)", ""},
	} {
		each := func(t *testing.T, server *testservers.Server) {
			insert := fmt.Sprintf("INSERT INTO "+c.insert, 1)
			address, db := newDatabase(t, server, c.create, insert)
			run := func(statements ...string) (err error) {
				for _, s := range statements {
					if _, err = db.ExecContext(t.Context(), s); err != nil {
						return err
					}
				}
				return nil
			}
			table, _, _ := strings.Cut(c.insert, " ")
			m, s := only(t, address, "a")
			m.before = func(step string) error { // it is killed before the mark stands
				if strings.Contains(step, remembers+" TEXT") {
					return errors.New("killed")
				}
				return nil
			}
			if err := m.Shut(t.Context(), s, Stop, 1000); err == nil {
				t.Fatal("it was not killed")
			}
			m.before = nil
			if err := m.Shut(t.Context(), s, Stop, 1000); err != nil {
				t.Fatal(err)
			}
			for what, statements := range map[string][]string{
				"changed":       {"UPDATE " + table + " SET next_val = next_val + 50" + c.where},
				"deleted":       {"DELETE FROM " + table + c.where, fmt.Sprintf("INSERT INTO "+c.insert, 51)},
				"replaced":      {fmt.Sprintf("REPLACE INTO "+c.insert, 51)},
				"added":         {fmt.Sprintf("INSERT INTO "+c.insert+" ON DUPLICATE KEY UPDATE next_val = next_val + 50", 51)},
				"deleted alone": {"DELETE FROM " + table},
			} {
				if err := run(statements...); err == nil || !strings.Contains(err.Error(), "these numbers come from hapax") {
					t.Errorf("%s: %v; want it refused", what, err)
				}
			}
			if c.where != "" {
				if err := run("INSERT INTO hibernate_sequences VALUES ('users', 1)", "UPDATE hibernate_sequences SET next_val = 51 WHERE sequence_name = 'users'", "DELETE FROM hibernate_sequences WHERE sequence_name = 'users'"); err != nil {
					t.Errorf("another row: %v", err)
				}
			}
			if m, s = only(t, address, "a"); s.Closed == nil {
				t.Fatal("it is open")
			}
			if err := m.Reopen(t.Context(), s, 2000); err != nil {
				t.Fatal(err)
			}
			if err := run("DELETE FROM "+table+c.where, fmt.Sprintf("INSERT INTO "+c.insert, 3000), "UPDATE "+table+" SET next_val = next_val + 50"+c.where); err != nil {
				t.Errorf("open again: %v", err)
			}
			m, s = only(t, address, "a")
			if err := m.Shut(t.Context(), s, Stop, 5000); err != nil { // as often as it is wanted
				t.Fatal(err)
			}
			if err := run("TRUNCATE "+table, insert); err == nil {
				t.Error("emptied, the table takes the row anew")
			}
		}
		for on, server := range servers {
			t.Run(name+" on "+on, func(t *testing.T) { each(t, server) })
		}
	}
}
