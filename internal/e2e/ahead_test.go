package e2e

import (
	"fmt"
	"testing"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/patience"
	"github.com/hapax-id/hapax/internal/testservers"
)

// A node whose clock is two days ahead when it starts issues nothing that holds a time
// until the clock is right, neither numbers nor codes that restart each day: neither over
// a fresh store nor after a crash, from which it has a lease.
func TestStartedDaysAhead(t *testing.T) {
	t.Parallel()
	for name, store := range map[string]*testservers.Server{
		"redis": testservers.Redis(t), "mariadb": testservers.SharedMariaDB(t), "postgres": testservers.SharedPostgres(t),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir, pool := t.TempDir(), unusedName("ahead")
			args := append(short(store.URL, pool, "0-7"),
				"--tags", fmt.Sprintf("{%[1]s-events: {kind: snowflake, pool: %[1]s}, %[1]s-invoices: {code: 'R{yyyy}{MM}{dd}-{seq:6}', zone: UTC}}", pool))
			ahead := []string{"HAPAX_TEST_CLOCK_OFFSET=48h"}
			for _, when := range []string{"at first", "after a crash"} {
				s := serve(t, dir, ahead, args...)
				// It answers store_unavailable until it has joined the others; each request waits.
				for _, tag := range []string{pool + "-events", pool + "-invoices"} {
					got := hapax.Code("none yet")
					for end := time.Now().Add(patience.Long); got != hapax.ErrClockSkew.Code(); {
						ids, err := take(patient, s.url, tag, 1)
						if got = refused(err); len(ids) > 0 || got == "" || time.Now().After(end) {
							t.Fatalf("%s, with the clock ahead, of %s: %v, %v", when, tag, ids, err)
						}
					}
				}
				s.await(`"event":"clock_skew"`)
				s.kill()
				s = serve(t, dir, nil, args...)
				takeSoon(t, s, pool+"-events", 1)
				takeSoon(t, s, pool+"-invoices", 1)
				s.kill()
			}
		})
	}
}
