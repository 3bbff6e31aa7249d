package e2e

import (
	"database/sql"
	"strings"
	"testing"

	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/testservers"
)

// The primary of a SQL store fails over to a server that lacks its last grants: a
// standby that lagged behind and was promoted, or a server on a copy. Nobody is granted
// anything there until an operator has adopted it; no number comes twice.
func TestMovedPrimaries(t *testing.T) {
	t.Parallel()
	for name, servers := range map[string]func(t *testing.T) (first *testservers.Server, second func() *testservers.Server, promoted func()){
		"postgres": func(t *testing.T) (*testservers.Server, func() *testservers.Server, func()) {
			primary := testservers.Postgres(t)
			primary.MustControl()
			var standby *testservers.Server
			return primary, func() *testservers.Server {
					standby = testservers.PostgresReplica(t, primary)
					standby.Stop() // what comes now it lacks
					return standby
				}, func() {
					standby.Start()
					promote(t, standby)
				}
		},
		"mariadb": func(t *testing.T) (*testservers.Server, func() *testservers.Server, func()) {
			primary := testservers.MariaDB(t)
			primary.MustControl()
			other := testservers.MariaDB(t, "--server-id=2")
			other.Stop()
			return primary, func() *testservers.Server {
				primary.Stop()
				copyData(t, primary.Dir, other.Dir)
				primary.Start()
				return other
			}, other.Start
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // most of it is waiting
			primary, follow, promote := servers(t)
			testMovedPrimary(t, primary, follow, promote)
		})
	}
}

// promote makes a primary of a PostgreSQL standby.
func promote(t *testing.T, standby *testservers.Server) {
	t.Helper()
	db, err := sql.Open("pgx", standby.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	var promoted bool
	if err := db.QueryRowContext(t.Context(), "SELECT pg_promote()").Scan(&promoted); err != nil || !promoted {
		t.Fatalf("promoted: %v, %v", promoted, err)
	}
}

func testMovedPrimary(t *testing.T, primary *testservers.Server, follow func() *testservers.Server, promote func()) {
	dir := t.TempDir()
	proxy := testservers.NewProxy(t, primary.Addr)
	url := proxy.URL(primary.URL)
	nodes := map[string]*serving{}
	var ids []hapax.ID
	for _, name := range []string{"a", "b"} {
		nodes[name] = serve(t, dir, nil, "--store", url, "--data", name, "--max-wait", "10s",
			"--tags", "{orders: {step: 1000, max_step: 1000}}")
		ids = append(ids, takeSoon(t, nodes[name], "orders", 100)...)
	}
	second := follow()
	for range 5 {
		ids = append(ids, takeSoon(t, nodes["a"], "orders", 3000)...)
	}
	primary.Kill()
	promote()
	proxy.Lead(second.Addr)

	for name, n := range nodes {
		eventually(t, name+" refuses", func() bool {
			got, _ := take(patient, n.url, "orders", 1000) // what is left of a grant is good
			ids = append(ids, got...)
			return n.metric("hapax_fenced") == 1
		})
		if got, err := take(patient, n.url, "orders", 2000); err == nil || refused(err) == "" {
			t.Errorf("%s on another primary: %d numbers, %v", name, len(got), err)
		}
		if status := run(t, dir, "status", "--server", n.url); status.code == 0 || !strings.Contains(status.out, "hapax adopt") {
			t.Errorf("%s: hapax status: exit code %d, %s%s", name, status.code, status.out, status.err)
		}
	}
	if r := run(t, dir, "serve", "--http", "127.0.0.1:0", "--store", url, "--data", "c"); r.code == 0 || !strings.Contains(r.err, "the primary is") {
		t.Errorf("a new node on another primary: exit code %d, %s", r.code, r.err)
	}
	if r := run(t, dir, "adopt", "--server", nodes["b"].url, "--dry-run"); !strings.Contains(r.out+r.err, "the primary is") {
		t.Errorf("the dry run does not tell why: exit code %d, %s%s", r.code, r.out, r.err)
	}
	// The node that knows the least says it.
	if r := run(t, dir, "adopt", "--server", nodes["b"].url, "--yes"); r.code != 0 || !strings.Contains(r.err, "is adopted") {
		t.Fatalf("adopt: exit code %d, %s%s", r.code, r.out, r.err)
	}
	nodes["c"] = serve(t, dir, nil, "--store", url, "--data", "c", "--max-wait", "10s")
	for name, n := range nodes {
		eventually(t, name+" issues again", func() bool {
			got, err := take(patient, n.url, "orders", 1000)
			ids = append(ids, got...)
			return err == nil
		})
	}
	distinct(t, "over a failover", ids)
	for name, n := range nodes {
		if code := n.stop(); code != 0 {
			t.Errorf("the exit code of %s is %d: %s", name, code, n.logged())
		}
	}
}
