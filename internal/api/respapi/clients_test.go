package respapi

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/hapax-id/hapax/internal/patience"
	"github.com/hapax-id/hapax/internal/service"
	"github.com/hapax-id/hapax/internal/testservers"
)

// newClientServer starts a server for real clients. Its calls wait long, because
// the machine may be busy.
func newClientServer(t *testing.T) (srv testServer, port string) {
	t.Helper()
	srv = newTestServer(t, testConfig{service: service.Options{MaxWait: patience.Long}})
	_, port, err := net.SplitHostPort(srv.addr)
	if err != nil {
		t.Fatal(err)
	}
	return srv, port
}

// runTool runs a program to its end and returns what it printed.
func runTool(t *testing.T, dir, stdin, bin string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience.Long)
	defer cancel()
	cmd := exec.CommandContext(ctx, bin, args...)
	cmd.Dir, cmd.Stdin = dir, strings.NewReader(stdin)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %v\n%s%s", cmd, err, out, errs.String())
	}
	return string(out)
}

func TestRedisCLI(t *testing.T) {
	cli := testservers.Require(t, []string{"redis-cli"})
	_, port := newClientServer(t)
	for _, tt := range []struct {
		args string
		want string
	}{
		{"INCR orders", "1\n"},
		{"-3 INCR orders", "2\n"},
		{"INCRBY orders 10", "12\n"},
		{"GET orders", "12\n"},
		{"HAPAX.NEXT orders COUNT 2", "13\n14\n"},
		{"-n 0 PING", "PONG\n"},
		{"-r 3 INCR orders", "15\n16\n17\n"},
		{"GET nobody", "\n"},
		{"HAPAX.PARSE 250551203758067712 leaf", "id\n250551203758067712\nlayout\nleaf\ntime\n2012-09-25T11:03:56.649Z\nfields\ntime\n59736061992\nworker\n189\nsequence\n0\n"},
	} {
		if got := runTool(t, "", "", cli, append([]string{"-p", port}, strings.Fields(tt.args)...)...); got != tt.want {
			t.Errorf("%s: %q, want %q", tt.args, got, tt.want)
		}
	}
	piped := runTool(t, "", strings.Repeat("INCR piped\r\n", 1000), cli, "-p", port, "--pipe")
	if !strings.Contains(piped, "errors: 0, replies: 1000") {
		t.Errorf("--pipe: %s", piped)
	}
	if got := runTool(t, "", "", cli, "-p", port, "INCR", "piped"); got != "1001\n" {
		t.Errorf("after --pipe: %s", got)
	}
}

func TestRedisBenchmark(t *testing.T) {
	bin := testservers.Require(t, []string{"redis-benchmark"})
	srv, port := newClientServer(t)
	const requests = 20_000
	for _, pipeline := range []string{"1", "16", "64"} {
		out := runTool(t, "", "", bin, "-p", port, "-c", "50", "-n", strconv.Itoa(requests), "-P", pipeline, "-t", "incr,ping", "--csv")
		if !strings.Contains(out, `"INCR","`) || !strings.Contains(out, `"PING_MBULK","`) {
			t.Errorf("pipeline %s: %s", pipeline, out)
		}
	}
	id, err := srv.svc.Next(t.Context(), "counter:__rand_int__")
	if err != nil || id <= 3*requests {
		t.Errorf("after %d numbers comes %d, %v", 3*requests, id, err)
	}
}

func TestPythonInterop(t *testing.T) {
	patience.Interop(t, "Python")
	python := requirePython(t)
	_, port := newClientServer(t)
	out := runTool(t, "", `
import redis, sys
r = redis.Redis(port=int(sys.argv[1]), client_name="test")
assert [r.incr("orders") for _ in range(3)] == [1, 2, 3]
assert r.incrby("orders", 10) == 13
assert r.get("orders") == b"13"
assert r.get("nobody") is None
ids = r.execute_command("HAPAX.NEXT", "snowflake", "COUNT", 5)
assert len(set(ids)) == 5 and ids == sorted(ids) and int(ids[0]) > 2**53
ids = r.execute_command("HAPAX.NEXT", "snowflake", "COUNT", 5, "INT")
assert len(set(ids)) == 5 and ids[0] > 2**53
pipe = r.pipeline(transaction=False)
for _ in range(100):
    pipe.incr("orders")
assert pipe.execute() == list(range(14, 114))
pipe = r.pipeline()
for _ in range(100):
    pipe.incr("orders")
pipe.execute_command("HAPAX.NEXT", "orders", "COUNT", 2)
assert pipe.execute() == list(range(114, 214)) + [[214, 215]]
pipe.incr("orders").set("a", "b")
try:
    pipe.execute()
    assert False
except redis.ResponseError as e:
    assert "unknown command 'SET': hapax issues numbers" in str(e), e
assert r.incr("orders") == 216
assert r.client_getname() == "test" and r.client_id() > 0
assert r.info()["redis_mode"] == "standalone" and r.info()["hapax_version"]
assert r.client_info()["server"] == "hapax"
assert r.config_get("save") == {"save": ""}
assert r.command()["incr"]["arity"] == 2
assert b"orders" in r.execute_command("HAPAX.TAGS")
try:
    r.set("a", "b")
    assert False
except redis.ResponseError as e:
    assert str(e).startswith("unknown command 'SET': hapax issues numbers and keeps no values"), e
print("passed")
`, python, "-", port)
	if out != "passed\n" {
		t.Error(out)
	}
}

// requirePython returns a Python that has the client: Debian's own, which is not
// the first one everywhere.
func requirePython(t *testing.T) string {
	t.Helper()
	for _, python := range []string{"/usr/bin/python3", "python3"} {
		if exec.Command(python, "-c", "import redis").Run() == nil {
			return python
		}
	}
	testservers.Missing(t, "Python's redis is not installed")
	return ""
}

func TestIoredisInterop(t *testing.T) {
	patience.Interop(t, "Node.js")
	node, dir := requireIoredis(t)
	_, port := newClientServer(t)
	out := runTool(t, dir, fmt.Sprintf(`
const assert = require("assert");
const { Redis } = require("ioredis");
async function main() {
  const redis = new Redis({ port: %s, stringNumbers: true, connectionName: "test" });
  assert.deepStrictEqual([await redis.incr("orders"), await redis.incr("orders")], ["1", "2"]);
  assert.strictEqual(await redis.incrby("orders", 10), "12");
  assert.strictEqual(await redis.get("orders"), "12");
  const ids = await redis.call("HAPAX.NEXT", "snowflake", "COUNT", 5);
  assert.strictEqual(new Set(ids).size, 5);
  for (const id of ids) assert(BigInt(id) > 2n ** 53n && String(BigInt(id)) === id);
  assert.deepStrictEqual(await redis.multi().incr("orders").incr("orders").exec(), [[null, "13"], [null, "14"]]);
  const pipeline = redis.pipeline();
  for (let i = 0; i < 100; i++) pipeline.incr("orders");
  const replies = await pipeline.exec();
  assert.deepStrictEqual(replies.map(([err, id]) => id), Array.from({ length: 100 }, (_, i) => String(15 + i)));
  assert.strictEqual(await redis.client("GETNAME"), "test");
  await assert.rejects(redis.set("a", "b"), /unknown command/i);
  await redis.quit();
  console.log("passed");
}
main();
`, port), node, "-")
	if out != "passed\n" {
		t.Error(out)
	}
}

// Node's official client has doubles for integers, and gets the numbers whole.
func TestNodeRedisInterop(t *testing.T) {
	patience.Interop(t, "Node.js")
	node, dir := requireIoredis(t)
	_, port := newClientServer(t)
	out := runTool(t, dir, fmt.Sprintf(`
const assert = require("assert");
const { createClient, RESP_TYPES } = require("redis");
async function main() {
  for (const RESP of [2, 3]) {
    const client = await createClient({ url: "redis://127.0.0.1:%s", RESP }).connect();
    const ids = await client.sendCommand(["HAPAX.NEXT", "snowflake", "COUNT", "3"]);
    for (const id of ids) assert(BigInt(id) > 2n ** 53n && String(BigInt(id)) === id);
    assert.strictEqual(new Set(ids).size, 3);
    const parsed = await client.sendCommand(["HAPAX.PARSE", ids[0]]);
    assert(JSON.stringify(parsed).includes('"' + ids[0] + '"'), JSON.stringify(parsed));
    const exact = client.withTypeMapping({ [RESP_TYPES.NUMBER]: String });
    assert(BigInt(await exact.incr("snowflake")) > BigInt(ids[2]));
    assert.deepStrictEqual(await client.multi().incr("orders" + RESP).incrBy("orders" + RESP, 10).exec(), [1, 11]);
    await client.close();
  }
  console.log("passed");
}
main();
`, port), node, "-")
	if out != "passed\n" {
		t.Error(out)
	}
}

// requireIoredis returns Node.js and the directory that has the client.
func requireIoredis(t *testing.T) (node, dir string) {
	t.Helper()
	node = testservers.Require(t, []string{"node"})
	dir = filepath.Join("testdata", "ioredis")
	for _, module := range []string{"ioredis", "redis"} {
		if _, err := os.Stat(filepath.Join(dir, "node_modules", module)); err != nil {
			testservers.Missing(t, module+" is not installed: run npm ci in internal/api/respapi/testdata/ioredis")
		}
	}
	return node, dir
}

// The snippets of the documentation do what it says.
func TestSnippets(t *testing.T) {
	doc, err := os.ReadFile("../../../docs/api-redis.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := map[string]string{}
	for _, m := range regexp.MustCompile("(?s)```(sh|python|js|go)\n(.*?)```").FindAllStringSubmatch(string(doc), -1) {
		if _, ok := blocks[m[1]]; !ok {
			blocks[m[1]] = m[2]
		}
	}
	for _, tt := range []struct {
		lang  string
		run   func(t *testing.T, snippet string) string
		words int // in its output
	}{
		{"sh", func(t *testing.T, s string) string {
			testservers.Require(t, []string{"redis-cli"})
			return runTool(t, "", s, "sh", "-e")
		}, 6},
		{"python", func(t *testing.T, s string) string { return runTool(t, "", s, requirePython(t), "-") }, 1 + 2 + 3 + 10},
		{"js", func(t *testing.T, s string) string {
			node, dir := requireIoredis(t)
			return runTool(t, dir, s, node, "-")
		}, 4},
		{"go", func(t *testing.T, s string) string {
			file := filepath.Join(t.TempDir(), "main.go")
			if err := os.WriteFile(file, []byte(s), 0o600); err != nil {
				t.Fatal(err)
			}
			return runTool(t, "", "", "go", "run", file)
		}, 4},
	} {
		t.Run(tt.lang, func(t *testing.T) {
			_, port := newClientServer(t)
			snippet := strings.ReplaceAll(blocks[tt.lang], "6380", port)
			if !strings.Contains(snippet, port) {
				t.Fatalf("no snippet with the port: %q", snippet)
			}
			out := tt.run(t, snippet)
			numbers := regexp.MustCompile(`[0-9]+`).FindAllString(out, -1)
			if len(numbers) != tt.words {
				t.Fatalf("%d numbers in %q, want %d", len(numbers), out, tt.words)
			}
			if tt.lang == "sh" || tt.lang == "python" {
				return // ranges, besides single numbers
			}
			slices.Sort(numbers)
			if len(slices.Compact(numbers)) != tt.words {
				t.Errorf("repeated numbers: %q", out)
			}
		})
	}
}
