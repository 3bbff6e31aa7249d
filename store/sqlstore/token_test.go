package sqlstore_test

import (
	"strings"
	"sync"
	"testing"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/testservers"
	"github.com/hapax-id/hapax/store/sqlstore"
)

// A table of an earlier version gets the column for tokens by whoever opens the store
// first; all are at 0. An account that may not add it is told what to run.
func TestTokenColumnIsAdded(t *testing.T) {
	onOwnServers(t, func(t *testing.T, _ *testservers.Server, url string) {
		s := open(t, url, sqlstore.Options{})
		create(t, s, "orders")
		last := allocate(t, s, "orders", 10)
		clerk := strings.Replace(url, userOf(url)+"@", "keeper:s3cret-w0rd@", 1)
		if s.Name() == sqlstore.MySQL {
			run(t, s, "CREATE USER keeper IDENTIFIED BY 's3cret-w0rd'")
		} else {
			run(t, s, "CREATE ROLE keeper LOGIN PASSWORD 's3cret-w0rd'")
		}
		for _, table := range []string{"meta", "tags", "rows"} {
			run(t, s, "GRANT SELECT, INSERT, UPDATE, DELETE ON "+prefixOf(url)+table+" TO keeper")
		}
		drop := "ALTER TABLE " + prefixOf(url) + "tags DROP COLUMN token"
		run(t, s, drop)
		_, err := Open(t.Context(), clerk, sqlstore.Options{})
		wantErr(t, "open without the right to alter", err, hapax.ErrStoreUnavailable)
		if want := "ALTER TABLE " + prefixOf(url) + "tags ADD COLUMN token"; !strings.Contains(err.Error(), want) {
			t.Errorf("the error is %q; want one that names %q", err, want)
		}

		var wg sync.WaitGroup
		for range 6 {
			wg.Go(func() {
				s, err := Open(t.Context(), url, sqlstore.Options{})
				if err != nil {
					t.Error(err)
					return
				}
				s.Close()
			})
		}
		wg.Wait()
		again := open(t, clerk, sqlstore.Options{})
		a, err := again.Allocate(t.Context(), "orders", 10, "")
		if err != nil || a.Grant.Lo != last.Hi || a.Tag.Token != 0 {
			t.Fatalf("after %v: %+v, error %v; want the next grant, under token 0", last, a, err)
		}
		if err := again.HandBack(t.Context(), a, a.Grant.Lo); err != nil {
			t.Error(err)
		}
		if tag, err := again.Tag(t.Context(), "orders"); err != nil || tag.Token != 1 || tag.Mark != a.Grant.Lo {
			t.Errorf("after the hand-back the tag is %+v, error %v", tag, err)
		}
	})
}
