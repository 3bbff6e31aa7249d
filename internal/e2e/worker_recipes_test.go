package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/testservers"
)

// Two processes with nodejs-snowflake side by side make numbers that differ, each with
// its own worker ID in it.
func TestWorkerRecipeNode(t *testing.T) {
	t.Parallel()
	node := testservers.Require(t, []string{"node"})
	installed, err := filepath.Abs(filepath.Join("testdata", "nodejs-snowflake", "node_modules", "nodejs-snowflake"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(installed); err != nil {
		testservers.Missing(t, "nodejs-snowflake is not installed: run npm ci in internal/e2e/testdata/nodejs-snowflake")
	}
	const program = `
const { Snowflake } = require(process.argv[1]);
const s = new Snowflake({custom_epoch: 1735689600000, instance_id: Number(process.env.HAPAX_WORKER_ID)});
let out = "";
for (let i = 0; i < 5000; i++) {
  const id = s.getUniqueID();
  out += process.env.HAPAX_WORKER_ID + " " + Snowflake.instanceIDFromID(id) + " " + id + "\n";
}
const fs = require("fs");
fs.writeFileSync(process.argv[2] + ".new", out);
fs.renameSync(process.argv[2] + ".new", process.argv[2]);
setInterval(() => {}, 1000); // keeps the worker ID until it is told to end
`
	s := workerServer(t)
	dir := t.TempDir()
	seen, workers := map[int64]bool{}, map[int64]bool{}
	var running []*wrapper
	for _, name := range []string{"a", "b"} {
		running = append(running, wrap(t, s.url, dir, nil, "exec", "--for", "nodejs-snowflake", "--workers", "70-90", "--", node, "-e", program, installed, name))
	}
	for _, name := range []string{"a", "b"} {
		for line := range strings.Lines(readWithin(t, filepath.Join(dir, name))) {
			var given, inside, id int64
			if _, err := fmt.Sscan(line, &given, &inside, &id); err != nil || given != inside {
				t.Fatalf("%q: %v", line, err)
			}
			if seen[id] {
				t.Fatalf("%d came twice", id)
			}
			seen[id], workers[given] = true, true
		}
	}
	if len(seen) != 10_000 || len(workers) != 2 {
		t.Errorf("%d numbers of %d worker IDs, want 10000 of 2", len(seen), len(workers))
	}
	for _, w := range running {
		select {
		case <-w.ended:
			t.Errorf("it ended: %s", w.said())
		default:
		}
	}
}

// The calls that docs/worker-ids.md has for other languages, over plain HTTP, in their
// order. A lease that was sealed is over.
func TestWorkerOverHTTP(t *testing.T) {
	t.Parallel()
	s := workerServer(t)
	type lease struct {
		Grant struct{ Lo, Hi string }
	}
	call := func(method, body string, status int) (raw json.RawMessage, l lease) {
		t.Helper()
		resp, err := http.Post(s.url+"/hapax.v1.LeaseService/"+method, "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode/100 != status {
			t.Fatalf("%s %s: %d %s, error %v", method, body, resp.StatusCode, text, err)
		}
		if status != 2 {
			return text, l
		}
		var reply struct{ Lease json.RawMessage }
		if err := json.Unmarshal(text, &reply); err != nil {
			t.Fatal(err)
		}
		if reply.Lease != nil {
			if err := json.Unmarshal(reply.Lease, &l); err != nil {
				t.Fatal(err)
			}
		}
		return reply.Lease, l
	}
	call("GetPool", `{"pool":"default"}`, 2)
	call("GetStoreTime", `{}`, 2)
	const term = `{"length":"5s"}`
	raw, first := call("AcquireWorker", `{"pool":"default","workers":{"lo":0,"hi":32},"holder":"orders host=a pid=1 run=x7","term":`+term+`}`, 2)
	extend := func(raw json.RawMessage, status int) (json.RawMessage, lease) {
		t.Helper()
		return call("ExtendWorker", fmt.Sprintf(`{"lease":%s,"term":%s}`, raw, term), status)
	}
	raw, second := extend(raw, 2)
	if second.Grant.Lo != first.Grant.Hi {
		t.Errorf("granted %v, then %v", first.Grant, second.Grant)
	}
	call("SealWorker", fmt.Sprintf(`{"lease":%s,"last":%q}`, raw, second.Grant.Hi), 2)
	refused, _ := extend(raw, 4)
	if !strings.Contains(string(refused), "lease_lost") {
		t.Errorf("after the seal: %s", refused)
	}
}

// The ledger and trace tell of a number made under a worker ID of another generator's
// what its holder says of itself.
func TestWorkerTrace(t *testing.T) {
	t.Parallel()
	s := workerServer(t)
	dir := t.TempDir()
	wrap(t, s.url, dir, nil, "exec", "--workers", "21", "--name", "nightly", "--", "sh", "-c", "date +%s%3N > started; exec sleep 1000")
	now, err := strconv.ParseInt(readWithin(t, filepath.Join(dir, "started")), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	layout, err := hapax.ParseLayout(hapax.LayoutLeaf)
	if err != nil {
		t.Fatal(err)
	}
	tick, err := layout.TickOf(time.UnixMilli(now))
	if err != nil {
		t.Fatal(err)
	}
	id, err := layout.Compose(hapax.Fields{{Name: hapax.FieldTime, Value: tick}, {Name: hapax.FieldWorker, Value: 21}, {Name: hapax.FieldSequence, Value: 7}})
	if err != nil {
		t.Fatal(err)
	}
	found := ok(t, dir, "trace", id.String(), "--layout", hapax.LayoutLeaf, "--json", "--server", s.url)
	for _, want := range []string{`"granted"`, "exec name=nightly host=", "cmd=sh"} {
		if !strings.Contains(found, want) {
			t.Errorf("the trace does not tell of %q: %s", want, found)
		}
	}
}
