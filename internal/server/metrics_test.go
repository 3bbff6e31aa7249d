package server

import (
	"io"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/hapax-id/hapax/internal/service"
	"github.com/hapax-id/hapax/internal/service/auth"
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
	page := ask("/metrics")
	known := map[string]string{}
	for _, m := range service.Metrics() {
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
