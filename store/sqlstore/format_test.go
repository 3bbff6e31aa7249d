package sqlstore_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/testservers"
	"github.com/hapax-id/hapax/store/sqlstore"
)

// Tables of another format, also of those that had no number, are refused with both formats,
// whoever opens them, and left as they are.
func TestTablesOfAnotherFormat(t *testing.T) {
	for found, change := range map[string][]string{
		"5": {"UPDATE {}meta SET format = 5"},
		"3": {"UPDATE {}meta SET format = 3", "CREATE TABLE {}tags (name INT PRIMARY KEY)"},
		"0": {"ALTER TABLE {}meta DROP COLUMN format"},
	} {
		t.Run("format "+found, func(t *testing.T) {
			onServers(t, func(t *testing.T, _ *testservers.Server, url string) {
				s := open(t, url, sqlstore.Options{MaxConns: 1})
				create(t, s, "orders")
				id, err := s.StoreID(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				for _, statement := range change {
					run(t, s, strings.ReplaceAll(statement, "{}", prefixOf(url)))
				}
				state := func() string {
					t.Helper()
					var rows int
					var value string
					db := admin(t, s)
					if err := db.QueryRowContext(t.Context(), "SELECT value FROM "+prefixOf(url)+"meta").Scan(&value); err != nil {
						t.Fatal(err)
					}
					if err := db.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM "+prefixOf(url)+"rows").Scan(&rows); err != nil {
						t.Fatal(err)
					}
					return fmt.Sprint(value, rows)
				}
				before := state()
				for _, opts := range []sqlstore.Options{{}, {Adopt: true}, {Look: true}, {Existing: func() bool { return true }}} {
					_, err = Open(t.Context(), url, opts)
					wantErr(t, "open", err, hapax.ErrStoreCorrupt)
					want := fmt.Sprintf("the table %smeta says format %s, and this version, hapax %s, knows format 4: use the version that has made the store, or a new place for a new one", prefixOf(url), found, hapax.Version())
					if err == nil || !strings.Contains(err.Error(), want) {
						t.Errorf("the error is %v; want %q", err, want)
					}
				}
				wantErr(t, "ping", s.Ping(t.Context()), hapax.ErrStoreCorrupt)
				if after := state(); after != before || !strings.HasPrefix(after, id) {
					t.Errorf("the tables hold %s; want %s", after, before)
				}
			})
		})
	}
}
