package fleet

import (
	"io"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/compat/internal/testdb"
	"github.com/hapax-id/hapax/compat/leaf"
	"github.com/hapax-id/hapax/compat/leaf/routes"
	"github.com/hapax-id/hapax/internal/testservers"
)

// BenchmarkLeafRoutes has wrk ask for numbers over Leaf's own table, and a bare
// handler that writes a counter, one after the other. It logs what wrk tells.
func BenchmarkLeafRoutes(b *testing.B) {
	wrk, err := exec.LookPath("wrk")
	if err != nil {
		b.Skip("wrk is not installed")
	}
	db := testdb.New(b, testservers.MariaDB(b), testdb.Leaf, "INSERT INTO leaf_alloc (biz_tag, max_id, step) VALUES ('test', 1, 2000)")
	table, err := leaf.OpenTable(b.Context(), db.URL, leaf.TableOptions{})
	if err != nil {
		b.Fatal(err)
	}
	defer table.Close()
	keys := leaf.NewIssuers(table, leaf.IssuersOptions{})
	defer keys.Close()
	h, err := routes.New(routes.Options{Segment: keys})
	if err != nil {
		b.Fatal(err)
	}
	var counter atomic.Int64
	for name, handler := range map[string]http.Handler{
		"leaf": h,
		"bare": http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, hapax.ID(counter.Add(1)).String()) // a client that has gone does not matter
		}),
	} {
		b.Run(name, func(b *testing.B) {
			server := httptest.NewServer(handler)
			defer server.Close()
			for b.Loop() {
				out, err := exec.CommandContext(b.Context(), wrk, "-t2", "-c50", "-d5s", "--latency", server.URL+"/api/segment/get/test").Output()
				if err != nil || strings.Contains(string(out), "Non-2xx") {
					b.Fatalf("%v: %s", err, out)
				}
				b.Logf("%s", out)
			}
		})
	}
}
