package respapi

import (
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/hapax-id/hapax/internal/patience"
	"github.com/hapax-id/hapax/internal/service"
)

// TestClientsThatRound has clients of JavaScript, as they are by default, take snowflake
// numbers in every way that ends in an integer of Redis. Each must arrive as the text of
// a number of its own.
func TestClientsThatRound(t *testing.T) {
	node, dir := requireIoredis(t)
	srv := newTestServer(t, testConfig{service: service.Options{
		MaxWait: patience.Long, Tags: map[string]service.TagConfig{"large": {Start: 1 << 60}},
	}})
	_, port, err := net.SplitHostPort(srv.addr)
	if err != nil {
		t.Fatal(err)
	}
	out := runTool(t, dir, fmt.Sprintf(`
const assert = require("assert");
const port = %s;
const seen = new Set();
function note(ids, who) {
  for (const id of ids) {
    assert.strictEqual(typeof id, "string", who + " has " + typeof id + " " + id);
    assert(BigInt(id) > 2n ** 53n && String(BigInt(id)) === id, who + " has " + id);
    assert(!seen.has(id), who + " has " + id + " a second time");
    seen.add(id);
  }
}
async function take(who, incr, incrBy, multi, pipeline) {
  const ids = [];
  for (let i = 0; i < 20; i++) ids.push(await incr("snowflake"));
  ids.push(...(await Promise.all(Array.from({ length: 200 }, () => incr("snowflake")))));
  ids.push(await incrBy("snowflake", 1));
  ids.push(await incrBy("large", 1), await incrBy("large", 10));
  ids.push(...(await multi("snowflake")), ...(await pipeline("snowflake")));
  note(ids, who);
  assert.strictEqual(await incr("orders" + who), 1); // small ones stay numbers
}
async function main() {
  const { Redis } = require("ioredis");
  for (const protocol of [undefined, 2, 3]) {
    const r = protocol ? new Redis({ port, protocol }) : new Redis({ port });
    const all = async (chain) => (await chain.exec()).map(([err, id]) => { assert.ifError(err); return id; });
    await take("ioredis " + protocol, (t) => r.incr(t), (t, n) => r.incrby(t, n), (t) => all(r.multi().incr(t).incr(t)), (t) => all(r.pipeline().incr(t).incr(t)));
    await r.quit();
  }
  for (const module of ["redis", "redis6"]) {
    for (const RESP of [undefined, 2, 3]) {
      const { createClient } = require(module);
      const url = "redis://127.0.0.1:" + port;
      const c = await createClient(RESP ? { url, RESP } : { url }).connect();
      await take(module + " " + RESP, (t) => c.incr(t), (t, n) => c.incrBy(t, n), (t) => c.multi().incr(t).incr(t).exec(), (t) => c.multi().incr(t).incr(t).execAsPipeline());
      await c.close();
    }
  }
  console.log(seen.size);
}
main().catch((e) => { console.error(e); process.exit(1); });
`, port), node, "-")
	if want := fmt.Sprintln(9 * (20 + 200 + 1 + 2 + 4)); out != want {
		t.Errorf("%s numbers came, want %s", out, want)
	}
}

// A client that does not say who it is gets integers, and the log says so once; where the
// setting says text, it gets text.
func TestUnknownClients(t *testing.T) {
	for _, tt := range []struct {
		text  bool
		hello string // what the client says before
		want  string // how the reply begins
		warns int
	}{
		{false, "", ":", 1},
		{true, "", "$19", 0},
		{false, "CLIENT SETINFO lib-name nobody-knows", ":", 1},
		{true, "CLIENT SETINFO lib-name redis-py", ":", 0},
		{false, "CLIENT SETINFO lib-name redis-py(django_v5)", ":", 0},
		{false, "CLIENT SETINFO LIB-NAME ioredis(bullmq)", "$19", 0},
	} {
		t.Run(fmt.Sprint(tt.text, tt.hello), func(t *testing.T) {
			var log lines
			srv := newTestServer(t, testConfig{service: service.Options{MaxWait: patience.Long}, opts: Options{LargeAsText: tt.text, Logger: slog.New(slog.NewTextHandler(&log, nil))}})
			for range 2 {
				c := srv.dial(t)
				if tt.hello != "" {
					c.do(tt.hello, "+OK\r\n")
				}
				c.send("INCR snowflake\r\nINCR snowflake\r\n") // together, and alone
				c.send("INCRBY snowflake 1\r\n")
				for range 3 {
					got := c.line()
					if strings.HasPrefix(tt.want, "$") {
						got += c.line()
					}
					if !strings.HasPrefix(got, tt.want) {
						t.Errorf("the reply is %q, want %q", got, tt.want)
					}
				}
			}
			if got := strings.Count(log.String(), "resp_large_numbers"); got != tt.warns {
				t.Errorf("%d warnings, want %d: %s", got, tt.warns, log.String())
			}
		})
	}
}

// lines is a log.
type lines struct {
	mu   sync.Mutex // guards text
	text strings.Builder
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}
