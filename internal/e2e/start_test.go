package e2e

import (
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/testservers"
)

// silentStore takes connections and never answers.
func silentStore(t *testing.T) (url string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			t.Cleanup(func() { _ = conn.Close() })
		}
	}()
	return "redis://" + l.Addr().String()
}

// A server whose store says nothing answers, long before it gives the store up, and
// a stop is a clean one.
func TestStartWhileTheStoreIsSilent(t *testing.T) {
	t.Parallel()
	s := serve(t, t.TempDir(), nil, "--store", silentStore(t), "--store-timeout", "1h", "--max-wait", "50ms")
	for path, want := range map[string]int{"/healthz": 200, "/readyz": 503, "/v1/tags/orders/next": 503} {
		resp, err := http.Get(s.url + path)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		if resp.Body.Close(); err != nil || resp.StatusCode != want {
			t.Errorf("%s: %d %s, %v", path, resp.StatusCode, body, err)
		}
	}
	s.await("the store has not answered yet")
	if code := s.stop(); code != 0 {
		t.Errorf("the exit code is %d: %s", code, s.logged())
	}
}

// A stop whose seal cannot reach the store is a clean stop, and says what it costs.
func TestStopWhileTheStoreIsAway(t *testing.T) {
	t.Parallel()
	store := testservers.Redis(t)
	proxy := testservers.NewProxy(t, store.Addr)
	s := serve(t, t.TempDir(), nil, short(proxy.URL(store.URL), "stop", "5")...)
	takeSoon(t, s, "stop-events", 1, hapax.ErrNoWorker.Code()) // its only worker may still be its own of a second ago
	takeSoon(t, s, "stop-orders", 1)
	proxy.Cut()
	if code := s.stop(); code != 0 {
		t.Errorf("the exit code is %d: %s", code, s.logged())
	}
	if log := s.logged(); !strings.Contains(log, "could not be given back") {
		t.Errorf("nothing tells what it cost: %s", log)
	}
}

// A pool that is frozen otherwise than configured keeps a server from starting,
// whether the store answers at once or later.
func TestFrozenOtherwise(t *testing.T) {
	t.Parallel()
	store := testservers.Redis(t)
	proxy := testservers.NewProxy(t, store.Addr)
	pools := func(layout string) []string {
		return []string{"--store", proxy.URL(store.URL), "--tags", "{e: {kind: snowflake, pool: p}}", "--pools", "{p: {layout: " + layout + "}}"}
	}
	s := serve(t, t.TempDir(), nil, pools("leaf")...)
	takeSoon(t, s, "e", 1)
	if code := s.stop(); code != 0 {
		t.Fatalf("the exit code is %d: %s", code, s.logged())
	}
	for name, delay := range map[string]time.Duration{"at once": 0, "later": 200 * time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			proxy.Delay(delay, 0)
			r := run(t, t.TempDir(), append([]string{"serve", "--http", "127.0.0.1:0"}, pools("cosid-second")...)...)
			if r.code != 2 || !strings.Contains(r.err, "hapax: the pool is frozen with another layout, unit or epoch: pools.p.layout is cosid-second, and the store has frozen the pool with leaf") {
				t.Errorf("exit code %d, %s", r.code, r.err)
			}
		})
	}
}

// On a store of servers a command does not define by itself what their
// configuration defines.
func TestNextReadsTheConfiguration(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	config := "tags: {t: {kind: snowflake, pool: p}}\npools: {p: {layout: js-safe-53}}\n"
	if err := os.WriteFile(filepath.Join(dir, "hapax.yaml"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	ok(t, dir, "tags", "create", "other", "--store", "bolt:x.db") // makes the store
	for _, tag := range []string{"t", "snowflake"} {
		r := run(t, dir, "next", tag, "--store", "bolt:x.db")
		if r.code != 1 || !strings.Contains(r.err, "give their configuration with --config or $HAPAX_CONFIG, or create the tag with hapax tags create") {
			t.Errorf("hapax next %s: exit code %d, %s%s", tag, r.code, r.out, r.err)
		}
	}
	if got := ok(t, dir, "tags", "list", "--store", "bolt:x.db"); !strings.HasPrefix(got, "other\t") || strings.Count(got, "\n") != 1 {
		t.Errorf("there are other tags: %s", got)
	}
	ok(t, dir, "next", "t", "--store", "bolt:x.db", "--config", "hapax.yaml")
	if got := ok(t, dir, "tags", "show", "t", "--store", "bolt:x.db"); got != "t\tsnowflake\t-\t-\t-\t-\tp\t-\tlive\n" {
		t.Errorf("the tag is %s", got)
	}
	if got := ok(t, dir, "pools", "show", "p", "--store", "bolt:x.db"); got != "p\tjs-safe-53\t8\tno\tyes\n" {
		t.Errorf("the pool is %s", got)
	}
	ok(t, dir, "next", "t", "--store", "bolt:x.db") // it is known now
	r := run(t, dir, "tags", "create", "u", "--kind", "snowflake", "--pool", "q", "--store", "bolt:x.db")
	if r.code != 2 || !strings.Contains(r.err, `invalid pool "q": want a pool that is configured`) {
		t.Errorf("a tag of an unknown pool: exit code %d, %s", r.code, r.err)
	}
}

// The numbers of bad lines are told, and the lines behind them are read.
func TestParseGoesOn(t *testing.T) {
	t.Parallel()
	r := runWith(t, t.TempDir(), "1\nabc\n\n99\n-5\n", nil, "parse", "-")
	out, errs := strings.Split(strings.TrimSpace(r.out), "\n"), strings.Split(strings.TrimSpace(r.err), "\n")
	if r.code != 2 || len(out) != 2 || !strings.HasPrefix(out[1], "99\t") || len(errs) != 3 ||
		!strings.HasPrefix(errs[0], `hapax: line 2: invalid id "abc"`) || !strings.HasPrefix(errs[1], "hapax: line 5: invalid id -5") {
		t.Errorf("exit code %d\n%s%s", r.code, r.out, r.err)
	}
}
