package e2e

import (
	"strings"
	"testing"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/testservers"
)

// Behind a pooler that keeps a session on its connection two nodes issue; one that does
// not is refused, and the log says why and what to do.
func TestPoolers(t *testing.T) {
	t.Parallel()
	server := testservers.SharedPostgres(t)
	t.Run("session", func(t *testing.T) {
		t.Parallel()
		pooler := testservers.PgBouncer(t, server, "session")
		pool := unusedName("pooled")
		var ids []hapax.ID
		for range 2 {
			s := serve(t, t.TempDir(), nil, short(pooler.URL, pool, "0-7")...)
			ids = append(ids, takeSoon(t, s, pool+"-orders", 10)...)
			ids = append(ids, takeSoon(t, s, pool+"-events", 10)...)
		}
		distinct(t, "behind the pooler", ids)
	})
	t.Run("transaction", func(t *testing.T) {
		t.Parallel()
		pooler := testservers.PgBouncer(t, server, "transaction")
		r := run(t, t.TempDir(), "serve", "--http", "127.0.0.1:0", "--store", pooler.URL)
		if want := "use pool_mode = session, or connect to the server itself"; r.code != 1 || !strings.Contains(r.err, want) {
			t.Errorf("exit code %d: %s", r.code, r.err)
		}
	})
}
