package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/patience"
	"github.com/hapax-id/hapax/internal/testservers"
)

// freeAddress returns an address on loopback that nobody listens on now, and that no
// connection to elsewhere takes while its server is down.
func freeAddress(t *testing.T) string {
	t.Helper()
	return "127.0.0.1:" + strconv.Itoa(testservers.FreePort(t))
}

// A refusal is an answer that is no success.
type refusal struct {
	Status int
	Code   hapax.Code
	text   string
}

func (r *refusal) Error() string { return fmt.Sprintf("%d: %s", r.Status, r.text) }

// take asks a server for numbers of a tag. What the server refuses is a *refusal.
func take(client *http.Client, url, tag string, count int) ([]hapax.ID, error) {
	resp, err := client.Post(fmt.Sprintf("%s/v1/tags/%s/ids?count=%d", url, tag, count), "", nil)
	if err != nil {
		return nil, err
	}
	body, err := answer(resp)
	if err != nil {
		return nil, err
	}
	var numbers struct{ IDs []hapax.ID }
	return numbers.IDs, json.Unmarshal(body, &numbers)
}

// answer returns the body of a success, or a *refusal.
func answer(resp *http.Response) ([]byte, error) {
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode == http.StatusOK {
		return body, err
	}
	r := &refusal{text: string(body)}
	_ = json.Unmarshal(body, r) // another body tells no code
	r.Status = resp.StatusCode
	return nil, r
}

// mustTake is take for a server that runs.
func mustTake(t *testing.T, s *serving, tag string, count int) []hapax.ID {
	t.Helper()
	ids, err := take(http.DefaultClient, s.url, tag, count)
	if err != nil {
		t.Fatal(err)
	}
	return ids
}

// A server is killed while clients ask, again and again: no number comes twice.
func TestNoDuplicateThroughCrashes(t *testing.T) {
	t.Parallel()
	throughCrashes(t, 60_000, 3)
}

// A million numbers, through ten crashes, of which some cut requests off.
func TestNoDuplicateThroughCrashesSoak(t *testing.T) {
	patience.Soak(t, "crashes at any moment of a server in full work")
	if lost := throughCrashes(t, 1_000_000, 10); lost == 0 {
		t.Error("no request was cut off: the crashes came between the requests")
	}
}

// throughCrashes has clients take so many numbers, and kills the server each time when
// its part of them has come. It returns how many requests had no answer.
func throughCrashes(t *testing.T, total, kills int64) int64 {
	t.Helper()
	const clients, batch = 4, 1000
	dir, address := t.TempDir(), freeAddress(t)
	start := func() *serving { return serve(t, dir, nil, "--http", address) }
	s := start()

	var taken, lost atomic.Int64
	ids := make([][]hapax.ID, clients)
	var wg sync.WaitGroup
	client := &http.Client{Timeout: patience.Long}
	ctx, cancel := context.WithCancel(t.Context())
	defer wg.Wait()
	defer cancel()
	for c := range clients {
		tag := []string{"orders", "snowflake"}[c%2]
		wg.Go(func() {
			for taken.Load() < total && ctx.Err() == nil {
				got, err := take(client, "http://"+address, tag, batch)
				if err != nil {
					lost.Add(1)
					patience.Again()
					continue
				}
				ids[c] = append(ids[c], got...)
				taken.Add(int64(len(got)))
			}
		})
	}
	for k := range kills {
		part := (k + 1) * total / (kills + 1)
		patience.Until(t, fmt.Sprintf("%d numbers", part), func() bool { return taken.Load() >= part }, s)
		s.kill()
		s = start()
	}
	patience.Until(t, "all numbers", func() bool { return taken.Load() >= total }, s)
	wg.Wait()
	for c := range clients {
		if !slices.IsSorted(ids[c]) && c%2 == 0 {
			t.Errorf("client %d saw orders go back", c)
		}
	}
	distinct(t, "orders", slices.Concat(ids[0], ids[2]))
	distinct(t, "snowflakes", slices.Concat(ids[1], ids[3]))
	if code := s.stop(); code != 0 {
		t.Errorf("the exit code is %d: %s", code, s.logged())
	}
	return lost.Load()
}

// After a crash the next number is higher than any that was seen.
func TestHigherAfterCrash(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, tag := range []string{"orders", "snowflake"} {
		var last hapax.ID
		for range 4 {
			s := serve(t, dir, nil)
			for _, id := range mustTake(t, s, tag, 500) {
				if id <= last {
					t.Fatalf("%s: after %d came %d", tag, last, id)
				}
				last = id
			}
			s.kill()
		}
	}
}

// workerNow returns the only worker of the default pool, as the store has it.
func workerNow(t *testing.T, dir string) (w struct {
	Until  time.Time
	Holder string
},
) {
	t.Helper()
	text := ok(t, dir, "workers", "list", "--json", "--data", "hapax-data")
	if err := json.Unmarshal([]byte(text), &w); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	return w
}

// A server that is told to stop gives its worker and its time back, so that the
// next one need not wait for them; one that crashes does not.
func TestStopSeals(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	leaf, err := hapax.ParseLayout(hapax.LayoutLeaf)
	if err != nil {
		t.Fatal(err)
	}
	one := []string{"--pools", "{default: {workers: 5, grant: 1h, max_grant: 1h}}", "--max-wait", "3s"}
	var last hapax.ID
	for range 3 {
		s := serve(t, dir, nil, one...)
		id := mustTake(t, s, "snowflake", 1)[0] // would wait an hour if nothing was given back
		if id <= last {
			t.Errorf("after %d came %d", last, id)
		}
		last = id
		if code := s.stop(); code != 0 {
			t.Fatalf("the exit code is %d: %s", code, s.logged())
		}
		at, err := leaf.Time(id)
		if err != nil {
			t.Fatal(err)
		}
		if w := workerNow(t, dir); w.Until.After(at.Add(10 * time.Millisecond)) { // by the number's own time, whenever the stop came
			t.Errorf("after the stop the worker is %+v, the last number was issued at %v", w, at)
		}
	}
	s := serve(t, dir, nil, one...)
	mustTake(t, s, "snowflake", 1)
	s.kill()
	if w := workerNow(t, dir); time.Until(w.Until) < 30*time.Minute {
		t.Errorf("after the crash the worker is %+v", w)
	}
	s = serve(t, dir, nil, one...)
	if _, err := take(http.DefaultClient, s.url, "snowflake", 1); err == nil || !strings.Contains(err.Error(), `"no_worker"`) {
		t.Errorf("with all time granted to a server that crashed, the error is %v", err)
	}
}

// A request in flight is answered before the server stops.
func TestDrain(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := serve(t, dir, nil)
	conn, answer := halfRequest(t, s, `{"fields":{"time":1}}`)
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	s.await("stopping")
	if _, err := take(http.DefaultClient, s.url, "orders", 1); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("a server that stops takes requests: %v", err)
	}
	if _, err := io.WriteString(conn, `{"fields":{"time":1}}`); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(answer, nil)
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(resp.Body)
	if err != nil || string(body) != `{"id":"4194304","layout":"leaf"}`+"\n" {
		t.Errorf("the answer is %s, %v", body, err)
	}
	s.logs.Wait()
	_ = s.cmd.Wait() // the exit code is in ProcessState
	if code := s.cmd.ProcessState.ExitCode(); code != 0 {
		t.Errorf("the exit code is %d", code)
	}
}

// halfRequest sends a request but for its body, and returns when the server
// waits for that.
func halfRequest(t *testing.T, s *serving, body string) (net.Conn, *bufio.Reader) {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	fmt.Fprintf(conn, "POST /v1/ids/compose HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\nExpect: 100-continue\r\n\r\n", len(body))
	answer := bufio.NewReader(conn)
	for _, want := range []string{"HTTP/1.1 100 Continue\r\n", "\r\n"} {
		if line, err := answer.ReadString('\n'); line != want {
			t.Fatalf("the answer begins with %q, %v", line, err)
		}
	}
	return conn, answer
}

// After SIGTERM a server reports for a while that it is not ready, and serves on; another
// signal cuts that short.
func TestLameDuck(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name  string
		first syscall.Signal
		skip  bool // another signal comes
		duck  string
	}{
		{"the time passes", syscall.SIGTERM, false, "300ms"},
		{"another signal", syscall.SIGTERM, true, "1h"},
		{"an interrupt", syscall.SIGINT, false, "1h"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			s := serve(t, t.TempDir(), []string{"HAPAX_LAME_DUCK=" + tc.duck})
			halfRequest(t, s, "{}") // without it nothing would be drained
			if err := s.cmd.Process.Signal(tc.first); err != nil {
				t.Fatal(err)
			}
			if tc.first == syscall.SIGTERM {
				s.await("about to stop")
			}
			if tc.skip {
				mustTake(t, s, "orders", 1)
				if resp, err := http.Get(s.url + "/readyz"); err != nil || resp.StatusCode != http.StatusServiceUnavailable {
					t.Errorf("a server that is about to stop is ready: %v, %v", resp, err)
				} else {
					_ = resp.Body.Close()
				}
				s.insist(syscall.SIGTERM, func() bool { return strings.Contains(s.logged(), "stopping") })
			}
			s.await("stopping")
			s.kill()
		})
	}
}

// insist sends a signal again and again, each time as another one, until so.
func (s *serving) insist(sig syscall.Signal, so func() bool) {
	s.t.Helper()
	patience.Until(s.t, fmt.Sprint("what another ", sig, " does"), func() bool {
		patience.Slow(300 * time.Millisecond) // one that comes at once counts as the same
		if !so() {
			_ = s.cmd.Process.Signal(sig) // it may have ended
		}
		return so()
	}, s)
}

// Another signal ends a server that stops at once.
func TestSecondSignal(t *testing.T) {
	t.Parallel()
	s := serve(t, t.TempDir(), nil)
	halfRequest(t, s, "{}")
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	s.await("stopping")
	s.insist(syscall.SIGINT, s.hasEnded)
	s.logs.Wait()
	_ = s.cmd.Wait() // the exit code is in ProcessState
	if code := s.cmd.ProcessState.ExitCode(); code != 1 {
		t.Errorf("the exit code is %d", code)
	}
	if log := s.logged(); !strings.Contains(log, "stopped at once by another signal") {
		t.Errorf("the log is %s", log)
	}
}

// Numbers go on rising while the clock is an hour behind, and a server that
// starts then does not issue times that were issued.
func TestClockGoesBack(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "offset")
	env := []string{"HAPAX_TEST_CLOCK_OFFSET=@" + file}
	args := []string{"--pools", "{default: {workers: 5}}", "--max-wait", "3s"}
	s := serve(t, dir, env, args...)
	last := mustTake(t, s, "snowflake", 100)[99]
	if err := os.WriteFile(file, []byte("-1h\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 10 {
		for _, id := range mustTake(t, s, "snowflake", 100) {
			if id <= last {
				t.Fatalf("after %d came %d", last, id)
			}
			last = id
		}
	}
	s.await(`"rollback"`)
	if code := s.stop(); code != 0 {
		t.Errorf("the exit code is %d: %s", code, s.logged())
	}
	s = serve(t, dir, env, args...)
	if ids, err := take(http.DefaultClient, s.url, "snowflake", 1); err == nil || !strings.Contains(err.Error(), `"no_worker"`) {
		t.Errorf("a server that starts an hour early issued %v, %v", ids, err)
	}
}

// Two servers do not share a data directory.
func TestDirectoryInUse(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	serve(t, dir, nil)
	r := run(t, dir, "serve", "--http", "127.0.0.1:0")
	want := "hapax: another process has the store open: the data directory ./hapax-data is in use; stop that process, or use another --data\n"
	if r.code != 1 || r.err != want {
		t.Errorf("another server: exit code %d, %s", r.code, r.err)
	}
	if r := run(t, dir, "adopt", "--yes"); r.code != 0 || !strings.Contains(r.err, "nothing is wrong") {
		t.Errorf("adopt, which asks the server: exit code %d, %s", r.code, r.err)
	}
	r = run(t, dir, "next", "orders", "--store", "bolt:hapax-data/hapax.db")
	if r.code != 1 || !strings.HasPrefix(r.err, "hapax: another process has the store open: ") {
		t.Errorf("the open store: exit code %d, %s", r.code, r.err)
	}
}

// A server starts although its shared store is away, and says so.
func TestStoreAway(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := serve(t, dir, nil, "--store", "redis://"+freeAddress(t), "--max-wait", "50ms", "--store-timeout", "1s")
	for path, want := range map[string]int{"/healthz": 200, "/readyz": 503, "/v1/tags/orders/next": 503} {
		resp, err := http.Get(s.url + path)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("%s answers %d, want %d", path, resp.StatusCode, want)
		}
	}
	if code := s.stop(); code != 0 {
		t.Errorf("the exit code is %d: %s", code, s.logged())
	}
	r := run(t, dir, "next", "orders", "--store", "redis://"+freeAddress(t))
	if r.code != 1 || !strings.HasPrefix(r.err, "hapax: the store cannot be reached or did not answer in time: ") {
		t.Errorf("next: exit code %d, %s", r.code, r.err)
	}
}
