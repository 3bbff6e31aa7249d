package sequences

import (
	"database/sql"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	_ "github.com/go-sql-driver/mysql" // the driver

	"github.com/hapax-id/hapax/compat/sequences"
	"github.com/hapax-id/hapax/internal/mount"
	"github.com/hapax-id/hapax/internal/patience"
	"github.com/hapax-id/hapax/internal/testservers"
	"github.com/hapax-id/hapax/store/memstore"
)

// newMariaDB returns the URL of an empty database, and a handle on it.
func newMariaDB(t *testing.T, server *testservers.Server) (string, *sql.DB) {
	t.Helper()
	u, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	password, _ := u.User.Password()
	dsn := fmt.Sprintf("%s:%s@tcp(%s)/", u.User.Username(), password, u.Host)
	name := fmt.Sprintf("seq_%d_%d", time.Now().UnixNano(), databases.Add(1))
	do(t, openSQL(t, "mysql", dsn), "CREATE DATABASE "+name)
	u.Path = "/" + name
	return u.String(), openSQL(t, "mysql", dsn+name)
}

var mariaShop = []string{
	"CREATE TABLE customers (id BIGINT AUTO_INCREMENT PRIMARY KEY, name TEXT)",
	"CREATE TABLE small (id TINYINT UNSIGNED AUTO_INCREMENT PRIMARY KEY)",
	"CREATE TABLE items (id INT UNSIGNED AUTO_INCREMENT PRIMARY KEY)",
	"CREATE TABLE huge (id BIGINT UNSIGNED AUTO_INCREMENT PRIMARY KEY)",
	"CREATE SEQUENCE tickets_seq CACHE 100",
	"CREATE TABLE tickets (id BIGINT PRIMARY KEY DEFAULT NEXTVAL(tickets_seq), b INT)",
	"CREATE SEQUENCE down INCREMENT -1 MINVALUE -100 MAXVALUE -1", "CREATE SEQUENCE round_ MAXVALUE 9 CYCLE",
	"CREATE TABLE unfed (id BIGINT PRIMARY KEY)", "CREATE TABLE zeros (id SMALLINT PRIMARY KEY DEFAULT 0)",
	"CREATE TABLE grouped (g INT, id BIGINT AUTO_INCREMENT, PRIMARY KEY (g, id)) ENGINE = MyISAM",
	"INSERT INTO grouped (g) VALUES (1), (1), (2)",
	"INSERT INTO customers (name) VALUES ('a'), ('b'), ('c')", "DELETE FROM customers",
	"INSERT INTO huge VALUES (18446744073709551000)",
	"INSERT INTO items VALUES (4000)",
}

func TestReadMariaDB(t *testing.T) {
	address, db := newMariaDB(t, testservers.SharedMariaDB(t))
	do(t, db, mariaShop...)
	for range 8 {
		do(t, db, "INSERT INTO tickets (b) VALUES (1)")
	}
	m := read(t, importing{}, address)
	for _, tt := range []struct {
		tag, kind string
		highest   int64
		wrong     string
		note      string
	}{
		{"customers", "auto_increment", 3, "", ""},
		{"items", "auto_increment", 4000, "", ""},
		{"small", "auto_increment", 0, "", ""},
		{"huge", "auto_increment", 0, "beyond 2^63-1", "unsigned"},
		{"tickets", "serial", 200, "", ""},
		{"grouped", "auto_increment", 0, "counts anew for each value", ""},
		{"down", "sequence", 0, "descends", ""},
		{"round_", "sequence", 0, "cycles", ""},
	} {
		s := m.source(t, tt.tag)
		if s.Kind != tt.kind && s.Kind != "sequence" || tt.wrong == "" && s.Highest != tt.highest {
			t.Errorf("%s: a %s at %d; want %s at %d", tt.tag, s.Kind, s.Highest, tt.kind, tt.highest)
		}
		if got := strings.Join(s.Wrong, "; "); (got == "") != (tt.wrong == "") || !strings.Contains(got, tt.wrong) {
			t.Errorf("%s: in its way is %q, want %q", tt.tag, got, tt.wrong)
		}
		if got := strings.Join(s.Notes, "; "); !strings.Contains(got, tt.note) {
			t.Errorf("%s: noted is %q, want %q", tt.tag, got, tt.note)
		}
	}
	if got := strings.Join(m.all[0].others, "; "); !strings.Contains(got, "unfed.id") || !strings.Contains(got, "zeros.id: its default is 0") {
		t.Errorf("others: %s", got)
	}
	plan := m.YAML("")
	for _, want := range []string{"small", "takes numbers up to 255", "hapax tags create customers --start 1004"} {
		if !strings.Contains(plan, want) {
			t.Errorf("the plan lacks %q:\n%s", want, plan)
		}
	}
}

func TestMoveMariaDB(t *testing.T) {
	for _, how := range []sequences.Switch{sequences.Stop, sequences.Gap, sequences.Parity} {
		t.Run(string(how), func(t *testing.T) {
			address, db := newMariaDB(t, testservers.SharedMariaDB(t))
			do(t, db, mariaShop...)
			store, i := memstore.New(), importing{how: string(how)}
			planned := apply(t, read(t, i, address), store, mount.MoveOptions{})
			done := planned
			for range 2 {
				done = apply(t, read(t, i, address), store, mount.MoveOptions{Apply: true})
			}
			if r := done["customers"].Reason; (r == nil) != (how == sequences.Stop) {
				t.Errorf("AUTO_INCREMENT: %v", r)
			}
			if _, err := db.ExecContext(t.Context(), "INSERT INTO customers (name) VALUES ('d')"); (err == nil) == (how == sequences.Stop) {
				t.Errorf("AUTO_INCREMENT goes on: %v", err)
			}
			if how == sequences.Stop {
				do(t, db, fmt.Sprintf("INSERT INTO customers (id) VALUES (%d)", planned["customers"].After))
			}
			first := done["tickets"].After
			var id, id2 int64
			next := func() (id int64, err error) {
				err = db.QueryRowContext(t.Context(), "SELECT NEXTVAL(tickets_seq)").Scan(&id)
				return id, err
			}
			id, err := next()
			switch how {
			case sequences.Stop:
				if err == nil {
					t.Errorf("the sequence goes on with %d", id)
				}
			case sequences.Gap:
				if err != nil || id >= first {
					t.Errorf("the sequence goes on with %d, %v", id, err)
				}
			default:
				if id2, err = next(); err != nil || id%2 != 1 || id2 != id+2 {
					t.Errorf("the sequence goes on with %d, %d, %v", id, id2, err)
				}
			}
			stop := importing{how: string(sequences.Stop)}
			for range 2 {
				apply(t, read(t, stop, address), store, mount.MoveOptions{Apply: true, IgnoreLiving: true})
			}
			if id, err := next(); err == nil {
				t.Errorf("the sequence that is shut goes on with %d", id)
			}
			m := read(t, stop, address)
			verdicts, err := m.Verify(t.Context(), store)
			if err != nil || len(verdicts) == 0 {
				t.Error(verdicts, err)
			}
			for _, v := range verdicts {
				if wrong := len(v.Wrong) > 0; wrong != (v.Tag == "customers" && how == sequences.Stop) { // a row was written at its mark
					t.Errorf("verified: %+v", v)
				}
			}
			a, err := store.Allocate(t.Context(), "tickets", 100, "")
			if err != nil {
				t.Fatal(err)
			}
			back := apply(t, m, store, mount.MoveOptions{Undo: true, Apply: true})
			if id, err := next(); err != nil || id < a.Grant.Hi {
				t.Errorf("the sequence goes on with %d, %v after %d: %+v", id, err, a.Grant.Hi, back["tickets"])
			}
			do(t, db, "INSERT INTO customers (name) VALUES ('e')")
			if n := number(t, db, "SELECT MAX(id) FROM customers"); how == sequences.Stop && n <= planned["customers"].After {
				t.Errorf("the table goes on with %d", n)
			}
		})
	}
}

// Rows whose table and name together read alike are shut each by a trigger of its own, and so are
// tables whose long names begin alike.
func TestNamesThatReadAlike(t *testing.T) {
	long := strings.Repeat("t", 60)
	for name, c := range map[string]struct {
		start func(*testing.T) (string, *sql.DB)
		also  []string // tables
	}{
		"postgres": {newPostgres, nil},
		"mariadb":  {func(t *testing.T) (string, *sql.DB) { return newMariaDB(t, testservers.SharedMariaDB(t)) }, []string{long + "_a", long + "_b"}},
	} {
		t.Run(name, func(t *testing.T) {
			address, db := c.start(t)
			do(t, db,
				"CREATE TABLE ids (sequence_name VARCHAR(100) PRIMARY KEY, next_val BIGINT)", "INSERT INTO ids VALUES ('of_b', 1)",
				"CREATE TABLE ids_of (sequence_name VARCHAR(100) PRIMARY KEY, next_val BIGINT)", "INSERT INTO ids_of VALUES ('b', 1)",
				"CREATE TABLE orders (id BIGINT PRIMARY KEY)", "CREATE TABLE items (id BIGINT PRIMARY KEY)")
			uses := []string{"UPDATE ids SET next_val = 51", "UPDATE ids_of SET next_val = 51"}
			for _, table := range c.also {
				do(t, db, "CREATE TABLE "+table+" (id BIGINT AUTO_INCREMENT PRIMARY KEY)")
				uses = append(uses, "INSERT INTO "+table+" VALUES ()")
			}
			done := apply(t, read(t, importing{feeds: []string{"of_b=orders.id", "b=items.id"}}, address), memstore.New(), mount.MoveOptions{Apply: true})
			for name, move := range done {
				if move.Reason != nil {
					t.Errorf("%s: %v", name, move.Reason)
				}
			}
			for _, use := range uses {
				if _, err := db.ExecContext(t.Context(), use); err == nil {
					t.Errorf("%s goes on", use)
				}
			}
			if len(done) != len(uses) {
				t.Errorf("%d sources were moved; want %d", len(done), len(uses))
			}
		})
	}
}

// A generator goes on above the tag's numbers before the trigger leaves it: no program comes between.
func TestGeneratorIsRaisedBeforeItIsOpen(t *testing.T) {
	address, db := newMariaDB(t, testservers.SharedMariaDB(t))
	do(t, db, "CREATE TABLE ids (sequence_name VARCHAR(100) PRIMARY KEY, next_val BIGINT)", "INSERT INTO ids VALUES ('orders', 1)", "CREATE TABLE orders (id BIGINT PRIMARY KEY)")
	store := memstore.New()
	apply(t, read(t, importing{}, address), store, mount.MoveOptions{Apply: true})
	a, err := store.Allocate(t.Context(), "orders", 10, "")
	if err != nil {
		t.Fatal(err)
	}
	back := read(t, importing{}, address)
	reader, err := db.BeginTx(t.Context(), &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = reader.Rollback() }() // does nothing after a commit
	value := func() (n int64) {
		if err := reader.QueryRowContext(t.Context(), "SELECT next_val FROM ids").Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	value() // from here on no trigger of the table can be dropped
	ended := make(chan error, 1)
	go func() {
		_, err := back.Move(t.Context(), store, mount.MoveOptions{Undo: true, Apply: true, Bar: quietly, Watch: time.Millisecond})
		ended <- err
	}()
	patience.Until(t, "the trigger is about to be dropped", func() bool {
		return number(t, db, "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE INFO LIKE 'DROP TRIGGER%' AND DB = DATABASE()") == 1
	})
	if n := value(); n < a.Grant.Hi {
		t.Errorf("the generator is at %d when it is opened; want at least %d", n, a.Grant.Hi)
	}
	if err := reader.Commit(); err != nil {
		t.Fatal(err)
	}
	if err := patience.Receive(t, "the way back", ended); err != nil {
		t.Error(err)
	}
}
