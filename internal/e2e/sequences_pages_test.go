package e2e

import (
	"database/sql"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hapax-id/hapax/internal/testservers"
)

const (
	sequencesPage = "docs/coming-from-sequences.md"
	uuidsPage     = "docs/coming-from-uuids.md"
)

// newStore makes a database, and a server that has its URL as SHOP_DB.
func newStore(t *testing.T, statements ...string) (db *sql.DB, address string, s *serving) {
	t.Helper()
	testservers.Require(t, []string{"psql"})
	pg := testservers.SharedPostgres(t)
	name := fmt.Sprintf("page_%d_%d", os.Getpid(), markets.Add(1))
	execAll(t, openSQL(t, pg.URL), "CREATE DATABASE "+name)
	u, err := url.Parse(pg.URL)
	if err != nil {
		t.Fatal(err)
	}
	u.Path = "/" + name
	db = openSQL(t, u.String())
	execAll(t, db, statements...)
	return db, u.String(), serve(t, t.TempDir(), []string{"SHOP_DB=" + u.String()})
}

// typed types the blocks of a page into one shell.
func typed(t *testing.T, dir, address string, s *serving, blocks ...string) string {
	t.Helper()
	script := strings.Join(blocks, "\n")
	env := []string{"PATH=" + filepath.Dir(binary) + ":" + os.Getenv("PATH"), "HAPAX_SERVER=" + s.url, "SHOP_DB=" + address}
	out := shellSession(t, dir, env, script)
	printsInOrder(t, out, promised(script))
	return out
}

// blocksToRun returns the blocks of a page that are run, as a reader sees them: without the
// indent of the list that they are in.
func blocksToRun(t *testing.T, page string) (all []string) {
	t.Helper()
	for _, b := range commands(t, page) {
		if b.why == "" {
			indent := b.text[:len(b.text)-len(strings.TrimLeft(b.text, " "))]
			all = append(all, strings.ReplaceAll("\n"+b.text, "\n"+indent, "\n"))
		}
	}
	return all
}

func count(t *testing.T, db *sql.DB, query string) (n int64) {
	t.Helper()
	if err := db.QueryRowContext(t.Context(), query).Scan(&n); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return n
}

// The commands of the page take a shop over and back, and so does its plan as a script.
func TestSequencesPage(t *testing.T) {
	t.Parallel()
	db, address, s := newStore(t,
		"CREATE TABLE orders (id serial PRIMARY KEY, what text)", "INSERT INTO orders (what) SELECT 'tea' FROM generate_series(1, 41)",
		"CREATE TABLE lines (order_id integer REFERENCES orders, n int, PRIMARY KEY (order_id, n))", "INSERT INTO lines SELECT id, 1 FROM orders",
		"CREATE TABLE tickets (no bigint)", "INSERT INTO tickets VALUES (7000)")
	dir, run := t.TempDir(), blocksToRun(t, sequencesPage)
	back := run[len(run)-2]
	if !strings.Contains(back, "--undo") {
		t.Fatalf("the way back is %q", back)
	}
	typed(t, dir, address, s, run[0])
	plan, err := os.ReadFile(filepath.Join(dir, "plan.sh"))
	if err != nil || !strings.Contains(string(plan), "orders: serial orders_id_seq, feeds orders.id (integer)") {
		t.Errorf("the plan is %s, %v", plan, err)
	}
	typed(t, dir, address, s, run[1:len(run)-2]...)
	if _, err := db.ExecContext(t.Context(), "INSERT INTO orders (what) VALUES ('coffee')"); err == nil {
		t.Error("the sequence goes on")
	}
	execAll(t, db, "INSERT INTO orders VALUES (3000000000, 'cake')", "INSERT INTO lines VALUES (3000000000, 1)", "DELETE FROM lines WHERE order_id > 41", "DELETE FROM orders WHERE id > 41")
	typed(t, dir, address, s, back)
	execAll(t, db, "INSERT INTO orders (what) VALUES ('coffee')")
	if n := count(t, db, "SELECT max(id) FROM orders"); n <= 1042 {
		t.Errorf("the sequence goes on with %d", n)
	}

	// The same by the owner's own hand.
	typed(t, dir, address, s, "hapax import sequences env:SHOP_DB > plan.sh\nsh plan.sh\nsh plan.sh\n"+`hapax import sequences env:SHOP_DB --verify`)
	if _, err := db.ExecContext(t.Context(), "INSERT INTO orders (what) VALUES ('coffee')"); err == nil {
		t.Error("the sequence goes on after the script")
	}
	if out := typed(t, dir, address, s, "hapax next orders\nhapax tags show orders"); !strings.Contains(out, "orders") {
		t.Errorf("the tag is %s", out)
	}
	typed(t, dir, address, s, back)
	execAll(t, db, "INSERT INTO orders (what) VALUES ('coffee')")

	typed(t, dir, address, s, run[len(run)-1])
	if out := typed(t, dir, address, s, "hapax next tickets"); strings.TrimSpace(out) != "7001" {
		t.Errorf("the first number above the column is %s", out)
	}
}

// The commands of the page number the rows of a table that has UUIDs, and take that back.
func TestUUIDsPage(t *testing.T) {
	t.Parallel()
	db, address, s := newStore(t, "CREATE TABLE orders (id uuid PRIMARY KEY DEFAULT gen_random_uuid(), created timestamptz NOT NULL)",
		"INSERT INTO orders (created) SELECT now() - n * interval '1 minute' FROM generate_series(1, 1500) AS n")
	dir, run := t.TempDir(), blocksToRun(t, uuidsPage)
	fill := 1
	if !strings.Contains(run[fill], "UPDATE orders") {
		t.Fatalf("the second block is %q", run[fill])
	}
	typed(t, dir, address, s, run[0])
	writer := strings.TrimSpace(typed(t, dir, address, s, "hapax next orders")) // a writer fills both
	execAll(t, db, "INSERT INTO orders (created, number) VALUES (now(), "+writer+")")
	for n := int64(1500); n > 0; {
		typed(t, dir, address, s, run[fill])
		left := count(t, db, "SELECT count(*) FROM orders WHERE number IS NULL")
		if left >= n {
			t.Fatalf("%d rows are left of %d", left, n)
		}
		n = left
	}
	if n := count(t, db, "SELECT count(*) FROM (SELECT number < lag(number) OVER (ORDER BY created) AS back FROM orders WHERE number <> "+writer+") AS o WHERE back"); n > 0 {
		t.Errorf("%d numbers are not in the order of the rows", n)
	}
	out := typed(t, dir, address, s, run[fill+1:len(run)-1]...)
	if !strings.Contains(out, "duplicates") {
		t.Errorf("the proof is %s", out)
	}
	if shown := typed(t, dir, address, s, "hapax tags show orders --json"); !strings.Contains(shown, `"column":"number"`) {
		t.Errorf("the tag is %s", shown)
	}
	typed(t, dir, address, s, run[len(run)-1])
}

// The plan is a script, which shuts what it was made for, can be run again, and fails where
// the source has gone past the tag's first number since.
func TestPlansOfOtherDatabases(t *testing.T) {
	t.Parallel()
	testservers.Require(t, []string{"mysql"})
	ofMySQL := func(server *testservers.Server) (address string, do func(statement string) error) {
		u, err := url.Parse(server.URL)
		if err != nil {
			t.Fatal(err)
		}
		admin, err := sql.Open("mysql", "root@tcp("+u.Host+")/")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = admin.Close() })
		name := fmt.Sprintf("plan_%d_%d", os.Getpid(), markets.Add(1))
		execAll(t, admin, "CREATE DATABASE "+name, "CREATE TABLE "+name+".orders (id INT AUTO_INCREMENT PRIMARY KEY, what TEXT)", "INSERT INTO "+name+".orders (what) VALUES ('tea')")
		return fmt.Sprintf("mysql://root@%s/%s", u.Host, name), func(statement string) error {
			_, err := admin.ExecContext(t.Context(), fmt.Sprintf(statement, name))
			return err
		}
	}
	for _, tt := range []struct {
		name   string
		server func(testing.TB) *testservers.Server
	}{{"mariadb", testservers.SharedMariaDB}, {"mysql 8", func(t testing.TB) *testservers.Server { return testservers.MySQL8(t) }}} {
		t.Run(tt.name, func(t *testing.T) {
			server := tt.server(t)
			address, do := ofMySQL(server)
			s := serve(t, t.TempDir(), []string{"SHOP_DB=" + address})
			dir := t.TempDir()
			typed(t, dir, address, s, "hapax import sequences env:SHOP_DB > plan.sh")
			if err := do("INSERT INTO %s.orders VALUES (5000, 'past it')"); err != nil {
				t.Fatal(err)
			}
			if out := typed(t, dir, address, s, "if sh plan.sh 2>&1; then exit 1; fi"); !strings.Contains(out, "make the plan anew") {
				t.Errorf("the plan says %s", out)
			}
			typed(t, dir, address, s, "hapax import sequences env:SHOP_DB --undo", "hapax import sequences env:SHOP_DB > plan.sh", "sh plan.sh", "sh plan.sh")
			if err := do("INSERT INTO %s.orders (what) VALUES ('coffee')"); err == nil || !strings.Contains(err.Error(), "come from hapax") {
				t.Errorf("the table goes on: %v", err)
			}
			typed(t, dir, address, s, "hapax import sequences env:SHOP_DB --verify")
		})
	}
	t.Run("redis", func(t *testing.T) {
		server := testservers.Redis(t)
		s := serve(t, t.TempDir(), nil)
		dir, plan := t.TempDir(), "hapax import sequences env:SHOP_DB --like 'plan:*' > plan.sh"
		do := func(command string) (string, error) {
			return testservers.RedisCommand(t.Context(), server.Addr, command)
		}
		if _, err := do("SET plan:orders 41"); err != nil {
			t.Fatal(err)
		}
		typed(t, dir, server.URL, s, plan)
		if _, err := do("SET plan:orders 5000"); err != nil {
			t.Fatal(err)
		}
		typed(t, dir, server.URL, s, "if sh plan.sh; then exit 1; fi", plan, "sh plan.sh", "sh plan.sh")
		if n, err := do("INCR plan:orders"); err == nil {
			t.Errorf("the counter goes on with %s", n)
		}
		typed(t, dir, server.URL, s, "hapax import sequences env:SHOP_DB --like 'plan:*' --verify", "hapax import sequences env:SHOP_DB --like 'plan:*' --undo")
		if n, err := do("INCR plan:orders"); err != nil || n != ":6001" {
			t.Errorf("the counter goes on with %s, %v", n, err)
		}
	})
}

// TestPlanOfHostileNames: the names of sequences are whatever somebody put there, and an operator
// runs the plan as it is.
func TestPlanOfHostileNames(t *testing.T) {
	names := []string{`x$hapax$\! touch pwned #`, "a%b", "l\nHAPAX\ntouch pwned\n:", "it's", `"q"`, "$(touch pwned)`touch pwned`"}
	for _, way := range []string{"plan", "apply"} {
		t.Run(way, func(t *testing.T) {
			var statements []string
			for i, name := range names {
				statements = append(statements, fmt.Sprintf("CREATE TABLE t%d (id bigserial PRIMARY KEY)", i),
					fmt.Sprintf(`ALTER SEQUENCE t%d_id_seq RENAME TO "%s"`, i, strings.ReplaceAll(name, `"`, `""`)))
			}
			db, address, s := newStore(t, statements...)
			dir := t.TempDir()
			const command = "hapax import sequences env:SHOP_DB"
			if way == "plan" {
				execAll(t, db, "CREATE TABLE \"two\nlines\" (id bigserial PRIMARY KEY)")
				typed(t, dir, address, s, command+" > plan.sh", "sh plan.sh", "sh plan.sh")
				if plan, err := os.ReadFile(filepath.Join(dir, "plan.sh")); err != nil || !strings.Contains(string(plan), `# Not moved:`+"\n"+`#   two\nlines (`) {
					t.Errorf("the plan does not name what it leaves: %s, %v", plan, err)
				}
				execAll(t, db, "DROP TABLE \"two\nlines\"")
			} else {
				typed(t, dir, address, s, command+" --apply", command+" --apply")
			}
			for i := range names {
				if _, err := db.ExecContext(t.Context(), fmt.Sprintf("INSERT INTO t%d DEFAULT VALUES", i)); err == nil {
					t.Errorf("the sequence of t%d goes on", i)
				}
			}
			typed(t, dir, address, s, command+" --verify", command+" --undo")
			for i := range names {
				execAll(t, db, fmt.Sprintf("INSERT INTO t%d DEFAULT VALUES", i))
			}
			if files, err := filepath.Glob(filepath.Join(dir, "pwned*")); err != nil || len(files) > 0 {
				t.Errorf("a name ran a command: %v, %v", files, err)
			}
		})
	}
}

// TestParityPlan: a plan is made without the store, which may have the tag otherwise.
func TestParityPlan(t *testing.T) {
	for _, there := range []string{"--delta 2 --remainder 0", "--delta 2 --remainder 1", "--delta 1"} {
		db, address, s := newStore(t, "CREATE TABLE orders (id bigserial PRIMARY KEY)", "INSERT INTO orders DEFAULT VALUES")
		dir := t.TempDir()
		typed(t, dir, address, s, "hapax import sequences env:SHOP_DB --switch parity > plan.sh", "hapax tags create orders "+there)
		fits := there == "--delta 2 --remainder 0"
		if fits {
			typed(t, dir, address, s, "sh plan.sh")
		} else {
			typed(t, dir, address, s, "if sh plan.sh; then exit 1; fi")
		}
		if by := count(t, db, "SELECT seqincrement FROM pg_sequence"); fits != (by == 2) {
			t.Errorf("beside a tag with %q the sequence counts by %d", there, by)
		}
	}
}

// One plan, run for two stores: the source is the first one's, and the second one has no tag that
// issues.
func TestPlanForTwoStores(t *testing.T) {
	t.Parallel()
	testservers.Require(t, []string{"psql", "mysql"})
	for name, made := range map[string]func(t *testing.T) (address string){
		"postgres": func(t *testing.T) string {
			_, address, _ := newStore(t, "CREATE TABLE orders (id bigserial PRIMARY KEY)")
			return address
		},
		"postgres, generator": func(t *testing.T) string {
			_, address, _ := newStore(t, "CREATE TABLE orders (id bigint PRIMARY KEY)", "CREATE TABLE hibernate_sequences (sequence_name text PRIMARY KEY, next_val bigint)", "INSERT INTO hibernate_sequences VALUES ('orders', 1)")
			return address
		},
		"mariadb": func(t *testing.T) string {
			return contestedMySQL(t, "CREATE TABLE orders (id BIGINT AUTO_INCREMENT PRIMARY KEY)")
		},
		"sequence": func(t *testing.T) string { return contestedMySQL(t, "CREATE SEQUENCE orders") },
		"generator": func(t *testing.T) string {
			return contestedMySQL(t, "CREATE TABLE orders (id BIGINT PRIMARY KEY)", "CREATE TABLE hibernate_sequences (sequence_name VARCHAR(99) PRIMARY KEY, next_val BIGINT)", "INSERT INTO hibernate_sequences VALUES ('orders', 1)")
		},
		"redis": func(t *testing.T) string {
			server := testservers.Redis(t)
			if _, err := testservers.RedisCommand(t.Context(), server.Addr, "SET orders 41"); err != nil {
				t.Fatal(err)
			}
			return server.URL
		},
	} {
		t.Run(name, func(t *testing.T) {
			address, dir := made(t), t.TempDir()
			a, b := serve(t, t.TempDir(), []string{"SHOP_DB=" + address}), serve(t, t.TempDir(), []string{"SHOP_DB=" + address})
			typed(t, dir, address, a, "hapax import sequences env:SHOP_DB --like orders > plan.sh", "sh plan.sh")
			typed(t, dir, address, b, "if sh plan.sh; then exit 1; fi", "if hapax next orders; then exit 1; fi", "if hapax tags create orders; then exit 1; fi", "if hapax import sequences env:SHOP_DB --like orders --verify; then exit 1; fi")
			typed(t, dir, address, a, "sh plan.sh", "hapax next orders", "hapax import sequences env:SHOP_DB --like orders --verify")
		})
	}
}

// contestedMySQL makes a database, and returns its URL.
func contestedMySQL(t *testing.T, statements ...string) string {
	t.Helper()
	u, err := url.Parse(testservers.SharedMariaDB(t).URL)
	if err != nil {
		t.Fatal(err)
	}
	admin, err := sql.Open("mysql", "root@tcp("+u.Host+")/")
	if err != nil {
		t.Fatal(err)
	}
	defer admin.Close()
	name := fmt.Sprintf("plan_%d_%d", os.Getpid(), markets.Add(1))
	execAll(t, admin, "CREATE DATABASE "+name)
	u.Path, u.User = "/"+name, url.User("root")
	db, err := sql.Open("mysql", "root@tcp("+u.Host+")/"+name)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	execAll(t, db, statements...)
	return u.String()
}
