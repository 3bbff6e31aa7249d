package e2e

import (
	"database/sql"
	"strings"
	"testing"

	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/hapax-id/hapax/internal/patience"
	"github.com/hapax-id/hapax/internal/testservers"
)

// The primary of a SQL store fails over to a server that lacks its last grants: a
// standby that lagged behind and was promoted, or a server on a copy. The nodes find
// that out, raise the marks there and go on, without anybody's help; a node that is
// started meanwhile joins them. No number comes twice.
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
	proxy := testservers.NewProxy(t, primary.Addr)
	f := newCrew(t, proxy.URL(primary.URL), "a", "b")
	second := follow()
	for range 5 {
		f.ids = append(f.ids, takeSoon(t, f.nodes["a"], "orders", 3000)...)
	}
	primary.Kill()
	promote()
	proxy.Lead(second.Addr)
	f.start("c")
	f.awaitFence()
	f.awaitHealed("over a failover")
	f.stop()
}

// A planned switch loses nothing: the nodes find their heartbeats on the new primary,
// and go on. Nobody raises a fence, and nobody asks a person.
func TestPlannedSwitch(t *testing.T) {
	t.Parallel()
	primary := testservers.Postgres(t)
	primary.MustControl()
	standby := testservers.PostgresReplica(t, primary)
	proxy := testservers.NewProxy(t, primary.Addr)
	f := newCrew(t, proxy.URL(primary.URL), "a", "b")
	for name, n := range f.nodes {
		f.ids = append(f.ids, takeSoon(t, n, "orders", 3000)...)
		if n.metric("hapax_fenced") != 0 {
			t.Fatalf("%s is fenced before the switch", name)
		}
	}
	proxy.Cut() // what is acknowledged by now must be there
	awaitReplayed(t, primary, standby)
	primary.Kill()
	promote(t, standby)
	proxy.Lead(standby.Addr)
	proxy.Pass()
	for _, n := range f.nodes { // more than is in hand, so that the new primary grants it
		f.ids = append(f.ids, takeSoon(t, n, "orders", 5000)...)
	}
	f.start("c")
	f.awaitHealed("over a planned switch")
	for name, n := range f.nodes {
		if log := n.logged(); strings.Contains(log, `"state":"fenced"`) || strings.Contains(log, `"state":"refusing"`) {
			t.Errorf("%s was fenced by a planned switch: %s", name, log)
		}
	}
	f.stop()
}

// awaitReplayed waits until a standby has all that its primary has.
func awaitReplayed(t *testing.T, primary, standby *testservers.Server) {
	t.Helper()
	position := func(server *testservers.Server, query string) (at string) {
		db, err := sql.Open("pgx", server.URL)
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		if err := db.QueryRowContext(t.Context(), query).Scan(&at); err != nil {
			t.Fatal(err)
		}
		return at
	}
	patience.Until(t, "the standby has caught up", func() bool {
		return position(primary, "SELECT pg_current_wal_lsn()::text") == position(standby, "SELECT pg_last_wal_replay_lsn()::text")
	})
}
