package server

import (
	"fmt"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/hapax-id/hapax/internal/patience"
	"github.com/hapax-id/hapax/internal/service/auth"
	"github.com/hapax-id/hapax/internal/service/health"
)

// Every metric of a scrape is one that the documentation lists, with its type; and those
// that need nothing special are there.
func TestScrapeIsDocumented(t *testing.T) {
	token := auth.NewToken()
	s, _ := serveCompat(t, "  {}\ntokens: {ops: {hash: %q, scopes: [admin, issue, metrics]}}\n", auth.HashToken(token))
	ask := func(path string) string {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+s.listeners.http.Addr().String()+path, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+token)
		return body(t, req)
	}
	for range 40 {
		ask("/v1/tags/orders/next")
	}
	ask("/v1/tags/snowflake/next")
	ask("/v1/tags/missing/nothing")
	page := ""
	patience.Until(t, "the worker IDs are counted", func() bool {
		page = ask("/metrics")
		return strings.Contains(page, "\nhapax_workers{")
	})
	known := map[string]string{}
	for _, m := range health.Metrics() {
		known[m.Name] = m.Type
	}
	seen := map[string]bool{}
	for _, found := range regexp.MustCompile(`(?m)^# TYPE (hapax_\w+) (\w+)$`).FindAllStringSubmatch(page, -1) {
		seen[found[1]] = true
		if known[found[1]] != found[2] {
			t.Errorf("%s is a %s, and the catalog has it as %q", found[1], found[2], known[found[1]])
		}
	}
	// Those need a strategy, a plugin, TLS, a lease, a ledger that is off or a store with a clock.
	special := []string{
		"hapax_strategy", "hapax_plugin_limit", "hapax_plugin_numbers", "hapax_plugin_numbers_previous", "hapax_plugin_vetoes_total", "hapax_plugin_failures_total",
		"hapax_certificate_expiry_timestamp_seconds", "hapax_worker_held", "hapax_worker_starts_left", "hapax_store_warnings_total",
	}
	for name := range known {
		if !seen[name] && !slices.Contains(special, name) {
			t.Errorf("the scrape lacks %s", name)
		}
	}
	for _, want := range []string{
		`hapax_requests_total{api="http",route="GET /v1/tags/{tag}/next"} 41`,
		`hapax_failed_requests_total{api="http",route="other"} 1`,
		`hapax_request_seconds_count{api="http",route="GET /v1/tags/{tag}/next"} `,
		`hapax_token_numbers_total{token="ops"} 41`,
		`hapax_step{tag="orders"} `, `hapax_burnt_ratio{tag="orders"} 0`,
	} {
		if !strings.Contains(page, want) {
			t.Errorf("the scrape lacks %s", want)
		}
	}
}

// Requests to foreign systems are counted by route, whatever paths clients think of, and
// errors as such, also where the system tells them with status 200.
func TestForeignRequestsAreCounted(t *testing.T) {
	const hash = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08" // of test
	s, _ := serveCompat(t, `  leaf: {http: 127.0.0.1:0}
  tinyid: {tokens: {orders: ["sha256:%s"]}}
  vesta: {machine: "fixed:7", http: 127.0.0.1:0}
tags: {orders: {}}
`, hash)
	leaf, vesta, main := doorAt(t, s, "compat.leaf.http"), doorAt(t, s, "compat.vesta.http"), s.listeners.http
	for range 3 {
		get(t, leaf, "/api/segment/get/orders")
		get(t, main, "/tinyid/id/nextId?bizType=orders&token=test")
		get(t, vesta, "/genid")
	}
	for i := range 50 {
		get(t, leaf, fmt.Sprintf("/api/segment/get/never-%d", i))
		get(t, leaf, fmt.Sprintf("/of-%d", i))
		get(t, vesta, fmt.Sprintf("/of-%d", i))
		get(t, main, fmt.Sprintf("/tinyid/id/of-%d", i))
	}
	get(t, leaf, "/cache/")
	get(t, leaf, "/readyz")
	get(t, main, "/tinyid/id/nextId?bizType=orders&token=wrong")
	get(t, main, "/tinyid/id/nextIdSimple.json?bizType=orders&token=wrong")
	once := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}                    // on another connection it would ask again
	if resp, err := once.Get("http://" + vesta.Addr().String() + "/makeid?time=x"); err == nil { // Vesta closes the connection
		resp.Body.Close()
		t.Errorf("a time that is no number: %s", resp.Status)
	}
	_, page := get(t, main, "/metrics")
	for _, want := range []string{
		`hapax_requests_total{api="leaf",route="/api/segment/get/"} 53`,
		`hapax_failed_requests_total{api="leaf",route="/api/segment/get/"} 50`,
		`hapax_requests_total{api="leaf",route="/cache"} 1`,
		`hapax_requests_total{api="leaf",route="/readyz"} 1`,
		`hapax_requests_total{api="leaf",route="other"} 50`,
		`hapax_requests_total{api="tinyid",route="/tinyid/id/nextId"} 4`,
		`hapax_failed_requests_total{api="tinyid",route="/tinyid/id/nextId"} 1`,
		`hapax_failed_requests_total{api="tinyid",route="/tinyid/id/nextIdSimple"} 1`,
		`hapax_requests_total{api="tinyid",route="/tinyid/id/nextSegmentId"} 0`,
		`hapax_requests_total{api="tinyid",route="other"} 50`,
		`hapax_requests_total{api="vesta",route="/genid"} 3`,
		`hapax_failed_requests_total{api="vesta",route="/makeid"} 1`,
		`hapax_requests_total{api="vesta",route="other"} 50`,
		`hapax_request_seconds_count{api="vesta",route="/genid"} 3`,
	} {
		if !strings.Contains(page, want+"\n") {
			t.Errorf("the scrape lacks %s", want)
		}
	}
	if strings.Contains(page, "of-1") || strings.Contains(page, "never-1") {
		t.Error("what clients think of has series of its own")
	}
}

func body(t *testing.T, req *http.Request) string {
	t.Helper()
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
