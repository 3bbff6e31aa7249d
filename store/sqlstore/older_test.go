package sqlstore_test

import (
	"database/sql"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/patience"
	"github.com/hapax-id/hapax/internal/testservers"
	"github.com/hapax-id/hapax/store/sqlstore"
)

// load puts the tables of an older version, as its server left them that was stopped after
// 300 numbers of the tag "orders" and two of the pool "default", under a URL's prefix.
func load(t *testing.T, url, version string) *sql.DB {
	t.Helper()
	dialect, table := "mysql", "`hapax_"
	if strings.HasPrefix(url, "postgres") {
		dialect, table = "postgres", "public.hapax_"
	}
	script, err := os.ReadFile("testdata/" + version + "." + dialect + ".sql")
	if err != nil {
		t.Fatal(err)
	}
	db := plain(t, url)
	text := strings.ReplaceAll(string(script), table, strings.TrimSuffix(table, "hapax_")+prefixOf(url))
	for statement := range strings.SplitSeq(strings.ReplaceAll(text, "CONSTRAINT hapax_", "CONSTRAINT "+prefixOf(url)), ";\n") {
		if strings.TrimSpace(statement) == "" {
			continue
		}
		if _, err := db.ExecContext(t.Context(), statement); err != nil {
			t.Fatalf("%s: %v", statement, err)
		}
	}
	return db
}

// Tables of older versions go on where those ended, whoever opens them first, and however
// often they are opened.
func TestTablesOfOlderVersions(t *testing.T) {
	for version, next := range map[string]int64{"9fd0ef2": 2001, "04c10f7": 301} {
		t.Run(version, func(t *testing.T) {
			onServers(t, func(t *testing.T, _ *testservers.Server, url string) {
				db := load(t, url, version)
				var wg sync.WaitGroup
				for range 4 {
					wg.Go(func() {
						if s, err := Open(t.Context(), url, sqlstore.Options{Timeout: patience.Call}); err != nil {
							t.Error(err)
						} else if err := s.Close(); err != nil {
							t.Error(err)
						}
					})
				}
				wg.Wait()
				for start := range int64(3) {
					s := open(t, url, sqlstore.Options{})
					if err := s.ExcludeOlder(t.Context()); err != nil {
						t.Fatal(err)
					}
					a, err := s.Allocate(t.Context(), "orders", 10, "")
					if want := (hapax.Grant{Lo: next + 10*start, Hi: next + 10*start + 10}); err != nil || a.Grant != want || a.Tag.Delta != 1 {
						t.Errorf("start %d: granted %v of %+v, %v; want %v", start, a.Grant, a.Tag, err, want)
					}
					workers, err := s.Workers(t.Context(), "default")
					if err != nil || len(workers) != 1 || workers[0].ID != 0 || workers[0].Mark < 500_000_000_000 || workers[0].Token < 2 || workers[0].Holder == "" {
						t.Errorf("start %d: the workers are %+v, %v", start, workers, err)
					}
					pools, err := s.Pools(t.Context())
					if err != nil || len(pools) != 1 || pools[0].Layout == "" {
						t.Errorf("start %d: the pools are %+v, %v", start, pools, err)
					}
					flake, err := s.Tag(t.Context(), "snowflake")
					if err != nil || flake.Kind != hapax.KindSnowflake || flake.Delta != 0 {
						t.Errorf("start %d: %+v, %v", start, flake, err)
					}
					if gone, err := s.Tag(t.Context(), "gone"); err != nil || !gone.Deleted || gone.Mark != 1001 {
						t.Errorf("start %d: %+v, %v", start, gone, err)
					}
				}
				// What a program of either version does first: it looks for the ID, and makes one.
				meta, id := prefixOf(url)+"meta", ""
				if err := db.QueryRowContext(t.Context(), "SELECT value FROM "+meta+" WHERE name = 'store_id'").Scan(&id); err != sql.ErrNoRows {
					t.Errorf("an older version finds the ID %q, %v", id, err)
				}
				strict(t, db, url)
				if _, err := db.ExecContext(t.Context(), "INSERT INTO "+meta+" (name, value) VALUES ('store_id', 'x')"); err == nil {
					t.Error("an older version can make an ID of its own")
				}
			})
		})
	}
}

// strict has one connection refuse what the store's own do.
func strict(t *testing.T, db *sql.DB, url string) {
	t.Helper()
	db.SetMaxOpenConns(1)
	if strings.HasPrefix(url, "mysql") {
		if _, err := db.ExecContext(t.Context(), "SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION'"); err != nil {
			t.Fatal(err)
		}
	}
}

// A node of the first version that holds a worker ID is waited for, by name.
func TestLivingNodeOfTheFirstVersion(t *testing.T) {
	onServers(t, func(t *testing.T, _ *testservers.Server, url string) {
		db := load(t, url, "9fd0ef2")
		set := func(expires time.Time) {
			t.Helper()
			statement := fmt.Sprintf("UPDATE %sworkers SET expires = %d, holder = 'node-7'", prefixOf(url), expires.UnixMilli())
			if _, err := db.ExecContext(t.Context(), statement); err != nil {
				t.Fatal(err)
			}
		}
		set(time.Now().Add(time.Hour))
		_, err := Open(t.Context(), url, sqlstore.Options{})
		wantErr(t, "beside a living node", err, hapax.ErrStoreUnavailable)
		if !strings.Contains(err.Error(), `node "node-7" of an older version, which holds worker 0 of pool "default" until`) {
			t.Errorf("the error is %v", err)
		}
		set(time.Now().Add(-time.Minute))
		s := open(t, url, sqlstore.Options{})
		if what := s.Migrated(); !strings.Contains(what, "tables of format 1 became tables of format 3, with 2 pools and workers") {
			t.Errorf("the store says that it changed %q", what)
		}
	})
}

// A migration that was cut short is taken up again; one that has ended is not done again.
func TestMigrationIsTakenUpAgain(t *testing.T) {
	onServers(t, func(t *testing.T, _ *testservers.Server, url string) {
		db := load(t, url, "9fd0ef2")
		open(t, url, sqlstore.Options{})
		for _, statement := range []string{
			"UPDATE {}meta SET format = 1", "DELETE FROM {}rows WHERE tbl = 'workers/default'", "ALTER TABLE {}tags DROP COLUMN extra", "ALTER TABLE {}tags DROP COLUMN run",
		} {
			if _, err := db.ExecContext(t.Context(), strings.ReplaceAll(statement, "{}", prefixOf(url))); err != nil {
				t.Fatal(err)
			}
		}
		s := open(t, url, sqlstore.Options{})
		if workers, err := s.Workers(t.Context(), "default"); err != nil || len(workers) != 1 {
			t.Errorf("the workers are %+v, %v", workers, err)
		}
		allocate(t, s, "orders", 10)
		raw, err := s.Row(t.Context(), "workers/default", "0000000000000000000")
		if err != nil {
			t.Fatal(err)
		}
		if ok, err := s.SwapRow(t.Context(), "workers/default", "0000000000000000000", raw, nil); err != nil || !ok {
			t.Fatal(ok, err)
		}
		again := open(t, url, sqlstore.Options{})
		if workers, err := again.Workers(t.Context(), "default"); err != nil || len(workers) != 0 || again.Migrated() != "" {
			t.Errorf("after the end of the migration the workers are %+v, %v, and it says %q", workers, err, again.Migrated())
		}
	})
}

// Tables of a newer version are refused, with both formats, and left as they are.
func TestTablesOfANewerVersion(t *testing.T) {
	onServers(t, func(t *testing.T, _ *testservers.Server, url string) {
		s := open(t, url, sqlstore.Options{})
		id, err := s.StoreID(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		run(t, s, "UPDATE "+prefixOf(url)+"meta SET format = 4")
		_, err = Open(t.Context(), url, sqlstore.Options{})
		wantErr(t, "a newer format", err, hapax.ErrStoreCorrupt)
		if want := fmt.Sprintf("the tables have format 4, and this version, hapax %s, knows formats 1 to 3", hapax.Version()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the error is %v; want %q", err, want)
		}
		var format int
		var value string
		if err := admin(t, s).QueryRowContext(t.Context(), "SELECT format, value FROM "+prefixOf(url)+"meta").Scan(&format, &value); err != nil || format != 4 || value != id {
			t.Errorf("it has format %d and ID %s, %v", format, value, err)
		}
	})
}
