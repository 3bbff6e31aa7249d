package e2e

import (
	"strings"
	"testing"
)

// TestTraceOfTagsNotRecorded asks about numbers that were issued, of tags that the history
// does not serve, or not any more: trace must not say that they were not issued. Only of a
// tag that it serves may it say so.
func TestTraceOfTagsNotRecorded(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, dir, "hapax.yaml", "plugins:\n  who: {kind: history, tags: [orders]}\ntags:\n  events: {kind: snowflake}\n")
	s := serve(t, dir, nil, "--resp", "", "--config", "hapax.yaml")
	const denied, unknown = "it was not issued", "whether it was issued is not known"
	next := func(tag string) string {
		t.Helper()
		return strings.TrimSpace(ok(t, dir, "next", tag, "--server", s.url))
	}
	trace := func(tag, number, want string, where ...string) {
		t.Helper()
		out := ok(t, dir, append([]string{"trace", number, "--tag", tag}, where...)...)
		if !strings.Contains(out, want) || want != denied && strings.Contains(out, denied) {
			t.Errorf("of %s of %s trace says\n%s", number, tag, out)
		}
	}
	next("orders") // the history begins
	visit, event := next("visits"), next("events")
	order := next("orders")
	online := []string{"--server", s.url}
	trace("orders", order, "as the history of node", online...)
	trace("orders", "900", denied, online...)
	trace("visits", visit, unknown, online...)
	trace("visits", "900", unknown, online...)
	trace("events", event, unknown, online...)
	ok(t, dir, "plugins", "off", "who", "--server", s.url)
	later := next("orders")
	trace("orders", later, unknown, online...)
	if code := s.stop(); code != 0 {
		t.Fatalf("exit code %d", code)
	}
	// Nobody knows then which tags were served.
	offline := []string{"--data", "hapax-data"}
	trace("orders", order, "as the history of node", offline...)
	trace("visits", visit, unknown, offline...)
	trace("orders", later, unknown, offline...)
}
