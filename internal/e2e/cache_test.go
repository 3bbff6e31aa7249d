package e2e

import (
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/testservers"
)

// A node with a cache that crashes while the shared store is away starts again
// and goes on; one without fails until the store is back. No number comes twice.
func TestCacheStartsWithoutTheStore(t *testing.T) {
	t.Parallel()
	redis := testservers.Redis(t, "--appendonly", "yes", "--appendfsync", "always")
	dir := t.TempDir()
	start := func(cache string) *serving {
		return serve(t, dir, nil, "--store", redis.URL, "--max-wait", "10s",
			"--pools", "{default: {grant: 2m, max_grant: 2m, cache: "+cache+"}}")
	}
	var ids []hapax.ID
	s := start("true")
	ids = append(ids, mustTake(t, s, "snowflake", 100)...)
	redis.Stop()
	for range 2 {
		s.kill()
		s = start("true")
		began := time.Now()
		ids = append(ids, mustTake(t, s, "snowflake", 100)...)
		t.Logf("the first numbers came after %v", time.Since(began))
	}
	if code := s.stop(); code != 0 {
		t.Errorf("the exit code of a stop without the store is %d: %s", code, s.logged())
	}
	s = start("false")
	if _, err := take(http.DefaultClient, s.url, "snowflake", 1); err == nil || !strings.Contains(err.Error(), "store_unavailable") {
		t.Errorf("without a cache the error is %v", err)
	}
	redis.Start()
	ids = append(ids, mustTake(t, s, "snowflake", 100)...)
	s.stop()
	s = start("true")
	ids = append(ids, mustTake(t, s, "snowflake", 100)...)
	if code := s.stop(); code != 0 {
		t.Errorf("the exit code is %d: %s", code, s.logged())
	}
	slices.Sort(ids)
	if n := len(ids) - len(slices.Compact(slices.Clone(ids))); n > 0 {
		t.Errorf("%d numbers of %d came twice", n, len(ids))
	}
}
