package sqlstore_test

import (
	"strings"
	"testing"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/patience"
	"github.com/hapax-id/hapax/internal/testservers"
	"github.com/hapax-id/hapax/store/sqlstore"
)

// standby starts a primary that waits for a synchronous standby, with a store on
// it that knows.
func standby(t *testing.T) (primary, replica *testservers.Server, url, replicaURL string, s *sqlstore.Store) {
	t.Helper()
	primary = testservers.Postgres(t)
	primary.MustControl()
	url = fresh(primary.URL)
	s = open(t, url, sqlstore.Options{})
	create(t, s, "orders")
	replica = testservers.PostgresReplica(t, primary)
	replicaURL = strings.Replace(url, primary.Addr, replica.Addr, 1)
	run(t, s, "ALTER SYSTEM SET synchronous_standby_names = '*'", "SELECT pg_reload_conf()")
	awaitSync(t, s)
	if err := s.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	allocate(t, s, "orders", 10)
	awaitReplay(t, s)
	return primary, replica, url, replicaURL, s
}

// PostgreSQL answers with success and a warning when somebody cancels the wait
// for the standby, for example a watchdog that ends what takes long. The outcome
// is unknown then: after a failover the same numbers are granted again.
func TestCancelledWaitForStandby(t *testing.T) {
	t.Parallel()
	primary, replica, url, replicaURL, _ := standby(t)
	s := open(t, url, sqlstore.Options{Timeout: patience.Long})
	a := allocate(t, s, "orders", 10)
	awaitReplay(t, s)
	replica.Kill()
	db := admin(t, s)
	for name, write := range map[string]func() error{
		"Allocate": func() error { return second(s.Allocate(t.Context(), "orders", 10, "")) },
		"SwapRow":  func() error { return second(s.SwapRow(t.Context(), "t", "r", nil, []byte("1"))) },
	} {
		done := make(chan error)
		go func() { done <- write() }()
		becomes(t, db, "SELECT coalesce(bool_or(pg_cancel_backend(pid)), false) FROM pg_stat_activity WHERE wait_event = 'SyncRep'")
		wantErr(t, name+" that no standby confirmed", <-done, hapax.ErrStoreUnavailable)
	}
	primary.Kill()
	replica.Start()
	promote(t, replicaURL)
	if g := allocate(t, open(t, replicaURL, sqlstore.Options{}), "orders", 10); g.Lo != a.Hi {
		t.Errorf("the grant after %v and one that was not acknowledged is %v", a, g)
	}
}

// Synchronous replication that is switched off, and on again, stops nobody.
func TestSynchronousSwitchedOff(t *testing.T) {
	t.Parallel()
	_, replica, url, _, s := standby(t)
	before, last := primaryOf(t, s), allocate(t, s, "orders", 10)
	replica.Kill()
	for _, setting := range []string{"synchronous_standby_names = ''", "synchronous_commit = local", "synchronous_commit = on"} {
		run(t, s, "ALTER SYSTEM SET "+setting, "SELECT pg_reload_conf()")
		name, value, _ := strings.Cut(setting, " = ")
		eventually(t, s, "SELECT current_setting('"+name+"') = '"+strings.Trim(value, "'")+"'")
		for _, s := range []*sqlstore.Store{s, open(t, url, sqlstore.Options{})} {
			g := allocate(t, s, "orders", 10)
			if now := primaryOf(t, s); g.Lo != last.Hi || now != before {
				t.Errorf("with %s the grant after %v is %v, and %q answers after %q", setting, last, g, now, before)
			}
			last = g
		}
	}
}
