package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/patience"
	"github.com/hapax-id/hapax/internal/testservers"
)

// A rising book notes numbers that have to rise from one call to the next, whatever the
// node and the protocol.
type risingBook struct {
	t    *testing.T
	last hapax.ID
	all  map[hapax.ID]bool
}

// note takes what was issued; inOrder tells that it has to lie above all before.
func (b *risingBook) note(ids []hapax.ID, inOrder bool) {
	b.t.Helper()
	for _, id := range ids {
		if b.all[id] {
			b.t.Fatalf("%d was issued twice", id)
		}
		b.all[id] = true
	}
	if inOrder && (!slices.IsSorted(ids) || ids[0] <= b.last) {
		b.t.Fatalf("got %v after %d", ids, b.last)
	}
	b.last = max(b.last, slices.Max(ids))
}

// round takes numbers of every server over HTTP, gRPC and the Redis protocol.
func (b *risingBook) round(dir string, servers ...*serving) {
	b.t.Helper()
	for _, s := range servers {
		b.note(mustTake(b.t, s, "orders", 7), true)
		for _, answer := range []string{
			ok(b.t, dir, "next", "orders", "-n", "3", "--server", s.url), // gRPC's routes
			respOnce(b.t, s, "INCR orders"),
		} {
			var ids []hapax.ID
			for text := range strings.FieldsSeq(answer) {
				id, err := strconv.ParseInt(strings.TrimPrefix(text, ":"), 10, 64)
				if err != nil {
					b.t.Fatalf("the answer is %q", answer)
				}
				ids = append(ids, hapax.ID(id))
			}
			b.note(ids, true)
		}
	}
}

// respOnce sends one command over the Redis protocol.
func respOnce(t *testing.T, s *serving, command string) string {
	t.Helper()
	reply, err := testservers.RedisCommand(t.Context(), s.respAddress(), command)
	if err != nil {
		t.Fatal(err)
	}
	return reply
}

func writeConfig(t *testing.T, dir, format string, args ...any) string {
	t.Helper()
	path := filepath.Join(dir, "hapax.yaml")
	if err := os.WriteFile(path, fmt.Appendf(nil, format, args...), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// eventuallyTake takes a number while a server may still be finding out.
func eventuallyTake(t *testing.T, s *serving, tag string, n int) []hapax.ID {
	t.Helper()
	return patience.Await(t, "a number of "+tag, func() ([]hapax.ID, error) { return take(http.DefaultClient, s.url, tag, n) },
		func([]hapax.ID) bool { return true }, s)
}

// Two servers issue the numbers of one tag in one order, through the loss of a server, of
// Redis and of the store; with MongoDB's stand-in as the servers' store, and with etcd
// for the segments alone.
func TestRedisMongo(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		start func(testing.TB) *testservers.Server
		yaml  string // of the store's URL
	}{
		"mongodb": {testservers.MongoDB, "store: %q\ncompat:\n  redismongo: {redis: %q, on_store_loss: extend, reserve: 3000}\n"},
		"etcd": {
			func(t testing.TB) *testservers.Server { return testservers.Etcd(t) },
			"compat:\n  redismongo: {store: %q, redis: %q, on_store_loss: extend, reserve: 3000}\n",
		},
	} {
		t.Run(name, func(t *testing.T) {
			store := c.start(t)
			store.MustControl()
			counter := testservers.Redis(t, "--appendonly", "no")
			var dirs [2]string
			open := func(k int) *serving {
				if dirs[k] == "" {
					dirs[k] = t.TempDir()
				}
				config := writeConfig(t, dirs[k], "tags:\n  orders: {strategy: redis-mongo, start: 100, step: 50}\nmax_wait: 30s\n"+c.yaml, store.URL, counter.URL)
				s := serve(t, dirs[k], nil, "--config", config)
				t.Cleanup(func() {
					if t.Failed() {
						t.Logf("server %d: %s", k, s.logged())
					}
				})
				return s
			}
			a, z := open(0), open(1)
			b := &risingBook{t: t, all: map[hapax.ID]bool{}}
			b.note(eventuallyTake(t, a, "orders", 1), true)
			first := b.last
			if first < 100 || first%50 != 0 { // what waited for the node to join got the first ones: its reserve, or Redis
				t.Errorf("the first number is %d", first)
			}
			b.note(eventuallyTake(t, z, "orders", 1), true)
			for range 10 {
				b.round(dirs[0], a, z)
			}
			for number, verdict := range map[string]string{first.String(): "granted", b.last.String(): "granted", "1000000": "never_granted"} {
				trace := ok(t, dirs[0], "trace", number, "--tag", "orders", "--server", a.url, "--server", z.url)
				if !strings.Contains(trace, "\nverdict\t"+verdict+"\n") {
					t.Errorf("the trace of %s, which should be %s:\n%s", number, verdict, trace)
				}
			}
			if shown := ok(t, dirs[0], "tags", "show", "orders", "--server", a.url); !strings.HasPrefix(shown, "orders\t") {
				t.Errorf("tags show: %s", shown)
			}

			a.kill()
			a = open(0)
			b.note(eventuallyTake(t, a, "orders", 1), true)
			b.round(dirs[0], a, z)

			store.Kill()
			for range 3 { // there is a reserve
				b.round(dirs[0], z, a)
			}
			for _, s := range []*serving{a, z} {
				if ready := get(t, s, "/readyz"); !strings.Contains(ready, `"ready":true`) {
					t.Errorf("without the store: %s", ready)
				}
			}
			store.Start()
			b.round(dirs[0], z, a)

			counter.Kill()
			for range 30 {
				for _, s := range []*serving{a, z} {
					b.note(eventuallyTake(t, s, "orders", 5), false)
				}
			}
			if metrics := get(t, a, "/metrics"); !strings.Contains(metrics, `hapax_strategy{name="redis_away",tag="orders"} 1`) {
				t.Error("the metrics do not tell that Redis is away")
			}
			counter.Start()
			for _, s := range []*serving{a, z} {
				patience.Until(t, "Redis, which is back, is in use", func() bool {
					return !strings.Contains(get(t, s, "/metrics"), `"redis_away",tag="orders"} 1`)
				}, s)
			}
			b.round(dirs[0], a, z)
			if a.stop() != 0 || z.stop() != 0 {
				t.Error("a server did not stop well")
			}
		})
	}
}

func get(t *testing.T, s *serving, path string) string {
	t.Helper()
	resp, err := http.Get(s.url + path)
	if err != nil {
		t.Fatal(err)
	}
	body, err := answer(resp)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

// The documented example: worker 1 in rack 1 is machine 5. Another application is worker
// 2, a registry that was emptied gives worker 1 away again, and then nobody issues with
// it until its holder has ended.
func TestStickyWorker(t *testing.T) {
	t.Parallel()
	store := testservers.Redis(t)
	registry := testservers.Redis(t, "--appendonly", "no")
	open := func(application string, env ...string) (*serving, string) {
		dir := t.TempDir()
		config := writeConfig(t, dir, `store: %q
max_wait: 300ms
pools:
  default: {split: "service:8:1,rack:2:1", parts: {rack: 1}}
compat:
  redismongo: {redis: %q, worker_pool: default, worker_name: %s, worker_port: 8112, worker_ip: 192.168.0.222}
`, store.URL, registry.URL, application)
		return serve(t, dir, env, "--config", config), dir
	}
	issued := map[hapax.ID]bool{}
	machine := func(s *serving, want int) {
		t.Helper()
		for _, id := range eventuallyTake(t, s, "snowflake", 100) {
			if issued[id] {
				t.Fatalf("%d was issued twice", id)
			}
			issued[id] = true
			var parsed struct{ Fields map[string]int64 }
			text := get(t, s, "/v1/ids/"+strconv.FormatInt(int64(id), 10))
			if err := json.Unmarshal([]byte(text), &parsed); err != nil || parsed.Fields["worker"] != int64(want) {
				t.Fatalf("%s; want worker %d", text, want)
			}
		}
	}
	waits := func(s *serving) {
		t.Helper()
		for over := time.Now().Add(patience.Long); ; {
			_, err := take(http.DefaultClient, s.url, "snowflake", 1)
			switch {
			case err == nil:
				t.Fatal("a second holder of worker 5 issues")
			case strings.Contains(err.Error(), `"no_worker"`):
				return
			case time.Now().After(over):
				t.Fatal(err)
			}
		}
	}
	first, dir := open("sequence-client")
	machine(first, 5)
	if raw, err := os.ReadFile(filepath.Join(dir, "hapax-data", "sequence-client:8112:3232235742.properties")); err != nil || string(raw) != "workerId=1\n" {
		t.Errorf("the local file has %q, error %v", raw, err)
	}
	options, err := redis.ParseURL(registry.URL)
	if err != nil {
		t.Fatal(err)
	}
	rdb := redis.NewClient(options)
	defer rdb.Close()
	if id, err := rdb.HGet(t.Context(), "hapax:workers", "sequence-client.8112.3232235742").Result(); id != "1" {
		t.Errorf("the hash has %q, error %v", id, err)
	}
	second, _ := open("another")
	machine(second, 2<<2|1)

	if err := rdb.FlushAll(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	third, _ := open("third")
	waits(third)
	machine(first, 5)
	if code := first.stop(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	machine(third, 5)

	// The first one comes again while the registry is away: its file tells, and it waits.
	registry.Kill()
	config := filepath.Join(dir, "hapax.yaml")
	first = serve(t, dir, nil, "--config", config)
	waits(first)
	machine(third, 5)
	fresh := t.TempDir()
	raw, err := os.ReadFile(config)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(fresh, "hapax.yaml"), raw, 0o600); err != nil {
		t.Fatal(err)
	}
	if r := run(t, fresh, "serve", "--http", "127.0.0.1:0", "--config", "hapax.yaml"); r.code == 0 || !strings.Contains(r.err, "compat.redismongo.worker_pool") {
		t.Errorf("neither registry nor file: %+v", r)
	}
}

// The page's configurations are taken, and its commands print what it says.
func TestRedisAndMongoDBPage(t *testing.T) {
	t.Parallel()
	const page = "docs/redis-and-mongodb.md"
	configs, commands := blocks(t, page, "yaml"), blocks(t, page, "sh")
	if len(configs) != 3 || len(commands) != 2 {
		t.Fatalf("there are %d configurations and %d blocks of commands; this test knows 3 and 2", len(configs), len(commands))
	}
	testservers.Require(t, []string{"curl"})
	testservers.Require(t, []string{"redis-cli"})
	counter := testservers.Redis(t, "--appendonly", "no")
	store := testservers.Redis(t)
	for k, script := range map[int]string{0: commands[0], 2: commands[1]} {
		dir := t.TempDir()
		config := strings.NewReplacer("mongodb://127.0.0.1/hapax", store.URL, "redis://127.0.0.1:6379/0", counter.URL).Replace(configs[k])
		s := serve(t, dir, []string{"HAPAX_MAX_WAIT=1m"}, "--config", writeConfig(t, dir, "%s", config)) // the machine may be busy
		if k == 2 {
			eventuallyTake(t, s, "snowflake", 1)
		}
		_, counterPort, _ := strings.Cut(counter.Addr, ":")
		local := strings.NewReplacer("http://127.0.0.1:8080", s.url, "6380", port(t, s.respAddress()), "6379", counterPort)
		path := "PATH=" + filepath.Dir(binary) + ":" + os.Getenv("PATH")
		printsInOrder(t, shellSession(t, dir, []string{path}, local.Replace(script)), promised(script))
		s.kill()
	}
	dir := t.TempDir()
	ok(t, dir, "serve", "--print-config", "--config", writeConfig(t, dir, "%s", "tags:\n  orders: {strategy: redis-mongo}\n"+configs[1]))
}
