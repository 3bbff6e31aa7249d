package sqlstore_test

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/patience"
	"github.com/hapax-id/hapax/internal/testservers"
	"github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/store/sqlstore"
	"github.com/hapax-id/hapax/store/storetest"
)

// warnings collects what Options.Warn receives.
type warnings struct {
	mu   sync.Mutex // guards said
	said []string
}

func (w *warnings) warn(code, message string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.said = append(w.said, code+": "+message)
}

// about returns the warnings that hold the text.
func (w *warnings) about(text string) []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(w.said), func(s string) bool { return !strings.Contains(s, text) })
}

func TestReadOnlyServer(t *testing.T) {
	for name, c := range map[string]struct {
		kind    string
		on, off string
	}{
		"mariadb":  {"mariadb", "SET GLOBAL read_only = 1", "SET GLOBAL read_only = 0"},
		"postgres": {"postgres", "ALTER ROLE postgres SET default_transaction_read_only = on", "SET default_transaction_read_only = off; ALTER ROLE postgres RESET default_transaction_read_only"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := kinds[c.kind].start(t)
			server.MustControl()
			proxy := testservers.NewProxy(t, server.Addr)
			url := fresh(server.URL)
			s := open(t, proxy.URL(url), sqlstore.Options{})
			create(t, s, "orders")
			db := admin(t, s)
			db.SetMaxOpenConns(1)
			if _, err := db.ExecContext(t.Context(), c.on); err != nil {
				t.Fatal(err)
			}
			proxy.Cut() // the role's setting counts for new connections
			proxy.Pass()
			_, err := Open(t.Context(), url, sqlstore.Options{})
			wantErr(t, "open", err, hapax.ErrStoreUnsafe)
			wantErr(t, "ping", s.Ping(t.Context()), hapax.ErrStoreUnsafe)
			_, err = s.Allocate(t.Context(), "orders", 1, "")
			wantErr(t, "allocate", err, hapax.ErrStoreUnsafe)

			proxy.Cut() // the session itself is read-only
			proxy.Pass()
			db = admin(t, s)
			db.SetMaxOpenConns(1)
			for statement := range strings.SplitSeq(c.off, "; ") {
				if _, err := db.ExecContext(t.Context(), statement); err != nil {
					t.Fatal(err)
				}
			}
			allocate(t, s, "orders", 1)
		})
	}
}

// A demotion under an open connection is noticed by the write itself.
func TestDemotedServer(t *testing.T) {
	server := testservers.MariaDB(t)
	server.MustControl()
	s := open(t, fresh(server.URL), sqlstore.Options{})
	// The statement that the server refuses must not be one that root may do.
	run(t, s, "CREATE USER clerk IDENTIFIED BY 'secret'", "GRANT ALL ON hapax.* TO clerk")
	url := strings.Replace(fresh(server.URL), "root@", "clerk:secret@", 1)
	clerk := open(t, url, sqlstore.Options{MaxConns: 1})
	create(t, clerk, "orders")
	before := allocate(t, clerk, "orders", 1)
	connection := connectionID(t, clerk)
	run(t, s, "SET GLOBAL read_only = 1")
	_, err := clerk.Allocate(t.Context(), "orders", 1, "")
	wantErr(t, "allocate", err, hapax.ErrStoreUnsafe)
	run(t, s, "SET GLOBAL read_only = 0")
	if after := allocate(t, clerk, "orders", 1); after.Lo != before.Hi {
		t.Errorf("the grant after %v is %v", before, after)
	}
	if connectionID(t, clerk) == connection {
		t.Error("the connection to the demoted server is still in use")
	}
}

func connectionID(t testing.TB, s *sqlstore.Store) (id int64) {
	t.Helper()
	id, err := sqlstore.Value[int64](s, "SELECT CONNECTION_ID()")
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// A column that is too narrow refuses a name instead of cutting it, also where
// the server's default is to cut.
func TestNothingIsCut(t *testing.T) {
	server := testservers.MariaDB(t, "--sql-mode=")
	url := fresh(server.URL)
	s := open(t, url, sqlstore.Options{})
	run(t, s, "ALTER TABLE "+prefixOf(url)+"rows MODIFY name VARBINARY(4) NOT NULL")
	_, err := s.CreateTag(t.Context(), must(hapax.Tag{Name: "orders"}.WithDefaults()), hapax.CreateFirstUse)
	wantErr(t, "a name that does not fit", err, hapax.ErrStoreUnavailable)
}

// primaryOf returns who answers a guarded call.
func primaryOf(t testing.TB, s *sqlstore.Store) string {
	t.Helper()
	c, err := s.Beat(t.Context(), driver.Pulse{Row: "n", Was: driver.Beat{Count: 1}, Now: driver.Beat{Count: 2}})
	if err != nil || c.Primary == "" {
		t.Fatalf("the contact is %+v, error %v; want a primary", c, err)
	}
	return c.Primary
}

// Settings of the server do not change who answers, and stop nothing.
func TestPrimaryKeepsItsIdentity(t *testing.T) {
	for kind, change := range map[string][]string{
		"mariadb":  {"SET GLOBAL server_id = 4711"},
		"postgres": {"ALTER SYSTEM SET synchronous_commit = remote_write", "SELECT pg_reload_conf()"},
	} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			server := kinds[kind].start(t)
			server.MustControl()
			proxy := testservers.NewProxy(t, server.Addr)
			url := fresh(server.URL)
			s := open(t, proxy.URL(url), sqlstore.Options{})
			create(t, s, "orders")
			before, last := primaryOf(t, s), allocate(t, s, "orders", 10)
			run(t, s, change...)
			proxy.Cut()
			proxy.Pass()
			for _, s := range []*sqlstore.Store{s, open(t, url, sqlstore.Options{})} {
				if err := s.Ping(t.Context()); err != nil {
					t.Error(err)
				}
				if now := primaryOf(t, s); now != before {
					t.Errorf("%q answers after %q", now, before)
				}
				g := allocate(t, s, "orders", 10)
				if g.Lo != last.Hi {
					t.Errorf("the grant after %v is %v", last, g)
				}
				last = g
			}
		})
	}
}

// A server that was started anew is another primary: it may stand on a copy.
func TestRestartedServerIsAnother(t *testing.T) {
	for kind := range kinds {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			server := kinds[kind].start(t)
			server.MustControl()
			s := open(t, server.URL, sqlstore.Options{})
			create(t, s, "orders")
			told := map[string]bool{}
			for name, end := range map[string]func(){"killed": server.Kill, "stopped": server.Stop} {
				before := primaryOf(t, s)
				if told[before] = true; primaryOf(t, open(t, server.URL, sqlstore.Options{})) != before {
					t.Errorf("two handles tell different primaries, one %q", before)
				}
				end()
				if kind == "mariadb" { // it tells the second of its start
					began := time.Now().Unix()
					patience.Until(t, "another second", func() bool { return time.Now().Unix() > began })
				}
				server.Start()
				patience.Until(t, "the store answers", func() bool { return s.Ping(t.Context()) == nil })
				if now := primaryOf(t, s); told[now] {
					t.Errorf("%s and started anew, %q answers after %q", name, now, before)
				}
			}
		})
	}
}

// A replica is refused until it is promoted, and then tells that it is another one.
func TestPromotedReplica(t *testing.T) {
	t.Parallel()
	primary := testservers.Postgres(t)
	primary.MustControl()
	url := fresh(primary.URL)
	s := open(t, url, sqlstore.Options{})
	create(t, s, "orders")
	replica := testservers.PostgresReplica(t, primary)
	replicaURL := strings.Replace(url, primary.Addr, replica.Addr, 1)
	before, last := primaryOf(t, s), allocate(t, s, "orders", 10)
	_, err := Open(t.Context(), replicaURL, sqlstore.Options{})
	wantErr(t, "open on the replica", err, hapax.ErrStoreUnsafe)
	awaitReplay(t, s)
	primary.Kill()
	promote(t, replicaURL)
	next := open(t, replicaURL, sqlstore.Options{})
	now := strings.Split(primaryOf(t, next), "/")
	if !strings.HasPrefix(before, now[0]+"/") || len(now) != 3 || now[1] != "timeline 00000002" {
		t.Errorf("%q answers after %s", now, before)
	}
	if g := allocate(t, next, "orders", 10); g.Lo != last.Hi {
		t.Errorf("the grant after %v is %v", last, g)
	}
}

// eventually waits until the query's result on the store's server is true.
func eventually(t testing.TB, s *sqlstore.Store, query string) {
	t.Helper()
	becomes(t, admin(t, s), query)
}

func becomes(t testing.TB, db *sql.DB, query string) {
	t.Helper()
	patience.Await(t, query, func() (ok bool, err error) {
		err = db.QueryRowContext(t.Context(), query).Scan(&ok)
		return ok, err
	}, func(ok bool) bool { return ok })
}

func awaitSync(t testing.TB, s *sqlstore.Store) {
	eventually(t, s, "SELECT count(*) = 1 FROM pg_stat_replication WHERE sync_state IN ('sync', 'quorum')")
}

func awaitReplay(t testing.TB, s *sqlstore.Store) {
	eventually(t, s, "SELECT count(*) = 1 FROM pg_stat_replication WHERE replay_lsn >= pg_current_wal_lsn()")
}

func promote(t testing.TB, url string) {
	t.Helper()
	db := plain(t, url)
	becomes(t, db, "SELECT pg_promote()")
	becomes(t, db, "SELECT NOT pg_is_in_recovery()")
}

// Every write of an open store refuses another store behind the same address,
// also on a connection that was checked before, and whatever that one holds.
func TestReplacedStore(t *testing.T) {
	onServers(t, func(t *testing.T, server *testservers.Server, url string) {
		for what, replace := range map[string]func(t *testing.T, s *sqlstore.Store, url, prefix string){
			"another store": func(t *testing.T, s *sqlstore.Store, url, prefix string) {
				for _, table := range []string{"meta", "rows"} {
					run(t, s, "DROP TABLE "+prefix+table)
				}
				other := open(t, url, sqlstore.Options{})
				create(t, other, "orders")
				if _, err := other.SwapRow(t.Context(), "t", "r", nil, []byte("1")); err != nil {
					t.Fatal(err)
				}
			},
			"its ID is gone": func(t *testing.T, s *sqlstore.Store, _, prefix string) { run(t, s, "DELETE FROM "+prefix+"meta") },
			"its tables are gone": func(t *testing.T, s *sqlstore.Store, _, prefix string) {
				for _, table := range []string{"meta", "rows"} {
					run(t, s, "DROP TABLE "+prefix+table)
				}
			},
		} {
			t.Run(what, func(t *testing.T) {
				url := fresh(url)
				s := open(t, url, sqlstore.Options{MaxConns: 1})
				create(t, s, "orders")
				allocate(t, s, "orders", 10)
				held, err := s.Row(t.Context(), "t", "r")
				if err != nil {
					t.Fatal(err)
				}
				next := append(bytes.Clone(held), '1')
				if ok, err := s.SwapRow(t.Context(), "t", "r", held, next); !ok || err != nil {
					t.Fatal(ok, err)
				}
				a, err := s.Allocate(t.Context(), "orders", 10, "")
				if err != nil {
					t.Fatal(err)
				}
				replace(t, s, url, prefixOf(url))
				step, pulse := int64(20), driver.Pulse{Row: "n", Was: driver.Beat{Count: 1}, Now: driver.Beat{Count: 2}}
				for call, err := range map[string]error{
					"Allocate":     second(s.Allocate(t.Context(), "orders", 10, "")),
					"CreateTag":    second(s.CreateTag(t.Context(), must(hapax.Tag{Name: "new"}.WithDefaults()), hapax.CreateFirstUse)),
					"UpdateTag":    second(s.UpdateTag(t.Context(), "orders", driver.TagUpdate{Step: &step})),
					"HandBack":     s.HandBack(t.Context(), a, a.Grant.Lo),
					"SwapRow":      second(s.SwapRow(t.Context(), "t", "r", next, []byte("x"))),
					"SwapRow new":  second(s.SwapRow(t.Context(), "t", "new", nil, []byte("x"))),
					"SwapRow end":  second(s.SwapRow(t.Context(), "t", "r", next, nil)),
					"Beat":         second(s.Beat(t.Context(), pulse)),
					"AllocateWith": third(storetest.AllocateWith(t.Context(), s, pulse, "orders", 10, "")),
					"HandBackWith": second(storetest.HandBackWith(t.Context(), s, pulse, a, a.Grant.Lo)),
					"SwapRowWith":  third(s.SwapRowWith(t.Context(), pulse, "t", "r", next, []byte("x"))),
					"HealTag":      second(s.HealTag(t.Context(), hapax.Tag{Name: "orders"})),
					"DeleteTag":    second(s.DeleteTag(t.Context(), "orders")),
					"Ping":         s.Ping(t.Context()),
				} {
					wantErr(t, call, err, hapax.ErrStoreReplaced)
				}
				if what != "another store" {
					return
				}
				// One of the rows is there as the old handle knows it, and yet it is another store's.
				other := open(t, url, sqlstore.Options{})
				for name, want := range map[string]string{"r": "1", "new": ""} {
					if value, err := other.Row(t.Context(), "t", name); err != nil || string(value) != want {
						t.Errorf("row %q of the other store is %q, %v; want %q", name, value, err, want)
					}
				}
				if _, err := other.Tag(t.Context(), "new"); !errors.Is(err, hapax.ErrTagNotFound) {
					t.Errorf("the other store has a new tag: %v", err)
				}
			})
		}
	})
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func second[T any](_ T, err error) error { return err }

func third[T, U any](_ T, _ U, err error) error { return err }

func prefixOf(url string) string {
	_, p, _ := strings.Cut(url, "prefix=")
	p, _, _ = strings.Cut(p, "&")
	return p
}

func TestLossySettings(t *testing.T) {
	for _, c := range []struct {
		kind string
		args []string
		want []string
	}{
		{"mariadb", nil, nil},
		{"mariadb", []string{"--innodb-flush-log-at-trx-commit=2", "--log-bin=b", "--server-id=3", "--sync-binlog=0"}, []string{"innodb_flush_log_at_trx_commit is 2", "sync_binlog is 0"}},
		{"postgres", []string{"-c", "synchronous_commit=off"}, nil},
		{"postgres", []string{"-c", "fsync=off", "-c", "full_page_writes=off"}, []string{"fsync is off", "full_page_writes is off"}},
	} {
		t.Run(c.kind+strings.Join(c.args, " "), func(t *testing.T) {
			t.Parallel()
			server := kinds[c.kind].start(t, c.args...)
			server.MustControl()
			var w warnings
			s := open(t, fresh(server.URL), sqlstore.Options{Warn: w.warn})
			if len(w.said) != len(c.want) {
				t.Errorf("warnings are %q, want %q", w.said, c.want)
			}
			for _, text := range c.want {
				if len(w.about(sqlstore.WarnNotDurable)) == 0 || len(w.about(text)) != 1 {
					t.Errorf("warnings are %q, want one that has %q", w.said, text)
				}
			}
			if c.kind == "postgres" { // what the session can make durable, it does
				if commit, err := sqlstore.Value[string](s, "SHOW synchronous_commit"); err != nil || commit != "on" {
					t.Errorf("synchronous_commit is %q, %v, want on", commit, err)
				}
			}
		})
	}
}

// The server's defaults, however odd, change nothing.
func TestOddServerDefaults(t *testing.T) {
	for _, c := range []struct {
		kind string
		args []string
	}{
		{"mariadb", []string{"--transaction-isolation=READ-UNCOMMITTED", "--autocommit=0", "--sql-mode=ANSI_QUOTES,PAD_CHAR_TO_FULL_LENGTH", "--character-set-server=latin1", "--log-bin=b", "--binlog-format=STATEMENT"}},
		{"mariadb", []string{"--transaction-isolation=SERIALIZABLE", "--sql-mode=NO_BACKSLASH_ESCAPES,SIMULTANEOUS_ASSIGNMENT", "--completion-type=CHAIN", "--sql-safe-updates", "--max-join-size=1"}},
		{"postgres", []string{"-c", "default_transaction_isolation=serializable", "-c", "standard_conforming_strings=off", "-c", "TimeZone=Asia/Kathmandu"}},
	} {
		t.Run(c.kind+strings.Join(c.args, " "), func(t *testing.T) {
			t.Parallel()
			server := kinds[c.kind].start(t, c.args...)
			server.MustControl()
			url := fresh(server.URL)
			if c.kind == "mariadb" { // no option of the command sets it
				if _, err := plain(t, url).ExecContext(t.Context(), "SET GLOBAL sql_select_limit = 1"); err != nil {
					t.Fatal(err)
				}
			}
			stores := []*sqlstore.Store{open(t, url, sqlstore.Options{}), open(t, url, sqlstore.Options{})}
			name := `o'r\d"ers `
			create(t, stores[0], name)
			pulse := driver.Pulse{Row: "n", Was: driver.Beat{Count: 1}, Now: driver.Beat{Count: 2}}
			if ok, err := stores[1].SwapRow(t.Context(), driver.TableBeats, pulse.Row, nil, pulse.Was.Encode()); !ok || err != nil {
				t.Fatal(ok, err)
			}
			if ok, c, err := stores[0].SwapRowWith(t.Context(), pulse, "t", "r", nil, []byte("x")); !ok || !c.Met || err != nil {
				t.Fatal(ok, c, err)
			}
			var mu sync.Mutex // guards granted
			var granted []hapax.Grant
			var wg sync.WaitGroup
			for i := range 8 {
				wg.Go(func() {
					for range 20 {
						a, c, err := storetest.AllocateWith(context.Background(), stores[i%2], pulse, name, 0, "")
						if err != nil || !c.Met {
							t.Error(c, err)
							return
						}
						mu.Lock()
						granted = append(granted, a.Grant)
						mu.Unlock()
					}
				})
			}
			wg.Wait()
			disjoint(t, granted)
			tag, err := stores[1].Tag(t.Context(), name)
			if err != nil || tag.Mark != 1+8*20*10 || tag.Name != name {
				t.Errorf("the tag is %+v, %v; want 160 steps of 10 without a gap", tag, err)
			}
			now, err := stores[0].StoreTime(t.Context())
			if d := time.Since(now); err != nil || d > time.Minute || d < -time.Minute {
				t.Errorf("the server's clock is off by %v, %v", d, err)
			}
		})
	}
}
