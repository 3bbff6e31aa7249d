package fleet

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/compat/leaf"
	"github.com/hapax-id/hapax/compat/leaf/routes"
	"github.com/hapax-id/hapax/internal/compat/testdb"
	"github.com/hapax-id/hapax/internal/testservers"
)

// tellLoad has wrk print, as its last line, the rate, the latencies in microseconds
// below which so many calls were answered, and how many were not answered with 200.
const tellLoad = `done = function(summary, latency, requests)
	local e = summary.errors
	io.write(string.format("load %f %d %d %d %d\n", summary.requests / (summary.duration / 1e6),
		latency:percentile(50), latency:percentile(99), latency:percentile(99.9), e.connect + e.read + e.write + e.status + e.timeout))
end
`

// BenchmarkLeafRoutes has wrk ask for numbers over Leaf's own table, and a bare
// handler that writes a counter, one after the other, over a few and over many
// connections. It reports the rate, and the latencies of half, 99 % and 99.9 % of the
// calls.
func BenchmarkLeafRoutes(b *testing.B) {
	wrk, err := exec.LookPath("wrk")
	if err != nil {
		b.Skip("wrk is not installed")
	}
	script := filepath.Join(b.TempDir(), "load.lua")
	if err := os.WriteFile(script, []byte(tellLoad), 0o600); err != nil {
		b.Fatal(err)
	}
	db := testdb.New(b, testservers.SharedMariaDB(b), testdb.Leaf, "INSERT INTO leaf_alloc (biz_tag, max_id, step) VALUES ('test', 1, 2000)")
	table, err := leaf.OpenTable(b.Context(), db.URL, leaf.TableOptions{})
	if err != nil {
		b.Fatal(err)
	}
	defer table.Close()
	keys := testdb.NewIssuers(b, table)
	h, err := routes.New(routes.Options{Segment: keys})
	if err != nil {
		b.Fatal(err)
	}
	var counter atomic.Int64
	bare := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, hapax.ID(counter.Add(1)).String()) // a client that has gone does not matter
	})
	for _, connections := range []int{8, 50} {
		for _, c := range []struct {
			name string
			http.Handler
		}{{"leaf", h}, {"bare", bare}} {
			b.Run(fmt.Sprintf("%s/connections=%d", c.name, connections), func(b *testing.B) {
				server := httptest.NewServer(c.Handler)
				defer server.Close()
				for b.Loop() {
					load(b, wrk, script, server.URL+"/api/segment/get/test", connections)
				}
			})
		}
	}
}

// load runs wrk for a moment and reports what it tells.
func load(b *testing.B, wrk, script, url string, connections int) {
	b.Helper()
	out, err := exec.CommandContext(b.Context(), wrk, "-t2", fmt.Sprintf("-c%d", connections), "-d5s", "-s", script, url).Output()
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	var rate, half, most, almost, failed float64
	if err == nil {
		_, err = fmt.Sscanf(lines[len(lines)-1], "load %f %f %f %f %f", &rate, &half, &most, &almost, &failed)
	}
	if err != nil || failed > 0 {
		b.Fatalf("%v: %s", err, out)
	}
	b.ReportMetric(rate, "QPS")
	b.ReportMetric(half, "TP50-µs")
	b.ReportMetric(most, "TP99-µs")
	b.ReportMetric(almost, "TP999-µs")
	b.ReportMetric(0, "ns/op")
}
