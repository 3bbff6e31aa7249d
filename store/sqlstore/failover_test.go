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
// is unknown then: after a failover, which is adopted by itself, the same numbers
// are granted again.
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

// When synchronous replication is switched off, a standby still says that it may
// be adopted. So nothing more is granted until somebody decides.
func TestSynchronousSwitchedOff(t *testing.T) {
	t.Parallel()
	_, replica, url, _, s := standby(t)
	last := allocate(t, s, "orders", 10)
	replica.Kill()
	run(t, s, "ALTER SYSTEM RESET synchronous_standby_names", "SELECT pg_reload_conf()")
	eventually(t, s, "SELECT current_setting('synchronous_standby_names') = ''")
	for name, err := range map[string]error{
		"Allocate":    second(s.Allocate(t.Context(), "orders", 10, "")),
		"CreateTag":   second(s.CreateTag(t.Context(), must(hapax.Tag{Name: "new"}.WithDefaults()), hapax.CreateFirstUse)),
		"SwapRow new": second(s.SwapRow(t.Context(), "t", "r", nil, []byte("x"))),
		"SwapRow":     second(s.SwapRow(t.Context(), "t", "r", []byte("a"), []byte("x"))),
		"Ping":        s.Ping(t.Context()),
		"Open":        second(Open(t.Context(), url, sqlstore.Options{})),
	} {
		wantErr(t, name, err, hapax.ErrStoreUnsafe)
	}
	run(t, s, "ALTER SYSTEM SET synchronous_standby_names = '*'", "SELECT pg_reload_conf()")
	replica.Start()
	awaitSync(t, s)
	if g := allocate(t, s, "orders", 10); g.Lo != last.Hi {
		t.Errorf("with the setting back the grant after %v is %v", last, g)
	} else {
		last = g
	}
	for _, level := range []string{"local", "remote_write"} { // commits that no standby may have on disk
		run(t, s, "ALTER SYSTEM SET synchronous_commit = "+level, "SELECT pg_reload_conf()")
		eventually(t, s, "SELECT current_setting('synchronous_commit') = '"+level+"'")
		wantErr(t, "Open with synchronous_commit at "+level, second(Open(t.Context(), url, sqlstore.Options{})), hapax.ErrStoreUnsafe)
	}
	run(t, s, "ALTER SYSTEM RESET synchronous_commit", "SELECT pg_reload_conf()")
	eventually(t, s, "SELECT current_setting('synchronous_commit') = 'on'")
	run(t, s, "ALTER SYSTEM RESET synchronous_standby_names", "SELECT pg_reload_conf()")
	eventually(t, s, "SELECT current_setting('synchronous_standby_names') = ''")
	wantErr(t, "Ping", s.Ping(t.Context()), hapax.ErrStoreUnsafe)
	adopted := open(t, url, sqlstore.Options{Adopt: true})
	for _, s := range []*sqlstore.Store{adopted, s} {
		g := allocate(t, s, "orders", 10)
		if g.Lo != last.Hi {
			t.Errorf("after the decision the grant after %v is %v", last, g)
		}
		last = g
	}
	if meta := readMeta(t, s); meta[metaFailover] != failoverRefuse {
		t.Errorf("recorded is %q", meta)
	}
}

// A handle that does not tell the server's warnings cannot tell whether a commit
// was confirmed, and does not write where a failover relies on it.
func TestHandleWithoutWarnings(t *testing.T) {
	t.Parallel()
	primary, _, url, _, s := standby(t)
	db := plain(t, url)
	_, err := sqlstore.New(t.Context(), db, sqlstore.PostgreSQL, sqlstore.Options{Prefix: prefixOf(url)})
	wantErr(t, "a handle that tells no warnings", err, hapax.ErrStoreUnsafe)
	if meta := readMeta(t, s); meta[metaFailover] != failoverAdopt {
		t.Errorf("recorded is %q", meta)
	}
	other, err := sqlstore.New(t.Context(), db, sqlstore.PostgreSQL, sqlstore.Options{Prefix: prefixOf(fresh(primary.URL))})
	if err != nil {
		t.Fatal(err)
	}
	create(t, other, "orders")
	allocate(t, other, "orders", 10)
}
