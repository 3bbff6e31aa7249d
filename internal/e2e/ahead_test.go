package e2e

import (
	"testing"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/testservers"
)

// A node whose clock is two days ahead when it starts issues no number that holds a time
// until the clock is right: neither over a fresh store nor after a crash, from which it
// has a lease.
func TestStartedDaysAhead(t *testing.T) {
	t.Parallel()
	for name, store := range map[string]*testservers.Server{
		"redis": testservers.SharedRedis(t), "mariadb": testservers.SharedMariaDB(t), "postgres": testservers.SharedPostgres(t),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir, pool := t.TempDir(), unusedName("ahead")
			args := short(store.URL, pool, "0-7")
			ahead := []string{"HAPAX_TEST_CLOCK_OFFSET=48h"}
			for _, when := range []string{"at first", "after a crash"} {
				s := serve(t, dir, ahead, args...)
				ids, err := take(patient, s.url, pool+"-events", 1)
				if got := refused(err); got != hapax.ErrClockSkew.Code() || len(ids) > 0 {
					t.Errorf("%s, with the clock ahead: %v, %v", when, ids, err)
				}
				s.await(`"event":"clock_skew"`)
				s.kill()
				s = serve(t, dir, nil, args...)
				if ids, err = take(patient, s.url, pool+"-events", 1); err != nil || len(ids) != 1 {
					t.Errorf("%s, with the right clock: %v, %v", when, ids, err)
				}
				s.kill()
			}
		})
	}
}
