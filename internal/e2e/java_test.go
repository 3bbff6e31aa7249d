package e2e

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hapax-id/hapax/internal/patience"
	"github.com/hapax-id/hapax/internal/testservers"
	"github.com/hapax-id/hapax/internal/wire"
)

// javaClasses compiles the client for Java as its page says, once, and without a warning;
// and then the program of its tests. It returns where the classes are.
func javaClasses(t *testing.T) string {
	t.Helper()
	for _, tool := range []string{"javac", "java", "jar"} {
		testservers.Require(t, []string{tool})
	}
	script := blocks(t, javaPage, "sh")[0]
	javaOnce.Do(func() {
		dir := filepath.Join(filepath.Dir(binary), "java")
		home, err := filepath.Abs(filepath.Join("..", "..", "clients", "java"))
		if err == nil {
			err = os.Mkdir(dir, 0o700)
		}
		if err != nil {
			java.failed = err.Error()
			return
		}
		local := strings.NewReplacer("clients/java", home, "javac ", "javac -Werror -Xlint:all -Xlint:-options -Xdoclint:all/protected '-Xdoclint/package:id.*' ")
		script = local.Replace(script + "javac --release 17 -cp classes -d classes clients/java/test/Take.java\n")
		cmd := exec.Command("sh", "-ec", script)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			java.failed = fmt.Sprintf("%v\n%s", err, out)
		}
		java.classes = filepath.Join(dir, "classes")
	})
	if java.failed != "" {
		t.Fatal(java.failed)
	}
	return java.classes
}

const javaPage = "docs/java.md"

var (
	javaOnce sync.Once // guards java
	java     struct{ classes, failed string }
)

// A taker is the program of the tests, which runs until the test ends.
type taker struct {
	t     *testing.T
	in    *bufio.Writer
	lines *bufio.Scanner
}

func startTaker(t *testing.T) *taker {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*patience.Long)
	cmd := exec.CommandContext(ctx, "java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", javaClasses(t), "Take")
	var errs strings.Builder
	cmd.Stderr = &errs
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = in.Close()
		if t.Failed() {
			cancel() // nobody reads what it still has to say
		}
		if err := cmd.Wait(); err != nil && !t.Failed() || errs.Len() > 0 {
			t.Errorf("%v: %s", err, errs.String())
		}
		cancel()
	})
	return &taker{t, bufio.NewWriter(in), bufio.NewScanner(out)}
}

// take has numbers taken, and returns them with the errors. each is called with every
// number as it comes.
func (k *taker) take(each func(id int64), format string, args ...any) (ids []int64, wrong []string) {
	k.t.Helper()
	fmt.Fprintf(k.in, format+"\n", args...)
	if err := k.in.Flush(); err != nil {
		k.t.Fatal(err)
	}
	for k.lines.Scan() {
		line := k.lines.Text()
		if line == "." {
			return ids, wrong
		}
		id, err := strconv.ParseInt(line, 10, 64)
		if err != nil {
			wrong = append(wrong, line)
			continue
		}
		ids = append(ids, id)
		if each != nil {
			each(id)
		}
	}
	k.t.Fatalf("the program ended; it said %q; %v", wrong, k.lines.Err())
	return nil, nil
}

// javaThroughCrashes takes numbers from eight threads while each of two servers over one
// store is killed and comes again.
func javaThroughCrashes(t *testing.T, count, batch int) {
	t.Helper()
	store := testservers.Redis(t)
	type node struct {
		dir, at string
		*serving
	}
	start := func(n *node) {
		n.serving = serve(t, n.dir, []string{"HAPAX_MAX_WAIT=1m"}, "--store", store.URL, "--http", n.at)
	}
	var nodes []*node
	for range 2 {
		n := &node{dir: t.TempDir(), at: freeAddress(t)}
		start(n)
		nodes = append(nodes, n)
	}
	eventuallyTake(t, nodes[1].serving, "orders", 1)
	k := startTaker(t)
	taken, fallen := 0, 0
	crash := func(int64) {
		if taken++; taken%(count/4) != 0 || fallen == 3 {
			return
		}
		victim := nodes[fallen%2]
		if fallen > 0 { // the other one first, so that one always lives
			start(nodes[1-fallen%2])
			eventuallyTake(t, nodes[1-fallen%2].serving, "orders", 1)
		}
		victim.kill()
		fallen++
	}
	ids, wrong := k.take(crash, "at=%s,%s tag=orders threads=8 count=%d batch=%d timeout=%d", nodes[0].url, nodes[1].url, count, batch, patience.Long.Milliseconds())
	if len(wrong) > 0 {
		t.Errorf("it went wrong: %q", wrong[:min(5, len(wrong))])
	}
	slices.Sort(ids)
	if unique := len(slices.Compact(slices.Clone(ids))); len(ids) != count || unique != count || fallen != 3 {
		t.Errorf("%d numbers, of which %d are different, through %d crashes; want %d", len(ids), unique, fallen, count)
	}
}

func TestJavaClientInterop(t *testing.T) {
	patience.Interop(t, "a JVM")
	t.Parallel()
	javaThroughCrashes(t, 40_000, 500)
}

// A million numbers.
func TestJavaClientSoak(t *testing.T) {
	patience.Soak(t, "a million numbers through crashes")
	t.Parallel()
	javaThroughCrashes(t, 1_000_000, 1000)
}

// What the client shows to servers, and what it makes of their refusals.
func TestJavaClientRefusedInterop(t *testing.T) {
	patience.Interop(t, "a JVM")
	t.Parallel()
	ca, stranger := newAuthority(t), newAuthority(t)
	ca.sign("server", false)
	dir := t.TempDir()
	var token, hash string
	for line := range strings.Lines(ok(t, dir, "token", "new")) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
		switch name {
		case "token":
			token = value
		case "hash":
			hash = value
		}
	}
	config := writeConfig(t, dir, "auto_create: false\ntags: {orders: {}, other: {}}\ntokens: {app: {hash: %q, tags: [orders, unknown]}}\n", hash)
	s := serve(t, dir, nil, "--config", config, "--tls-cert", ca.file("server.pem"), "--tls-key", ca.file("server.key"))
	k := startTaker(t)
	long, short := fmt.Sprint("timeout=", patience.Call.Milliseconds()), fmt.Sprint("timeout=", patience.Scale(3*time.Second).Milliseconds())
	for name, c := range map[string]struct{ how, wrong string }{
		"all is well":       {"tag=orders " + long + " token=" + token + " ca=" + ca.file("ca.pem"), ""},
		"no token":          {"tag=orders " + long + " ca=" + ca.file("ca.pem"), "! -4 REFUSED unauthenticated"},
		"another's tag":     {"tag=other " + long + " token=" + token + " ca=" + ca.file("ca.pem"), "! -4 REFUSED permission_denied"},
		"no such tag":       {"tag=unknown " + long + " token=" + token + " ca=" + ca.file("ca.pem"), "! -2 NO_SUCH_TAG tag_not_found"},
		"not to be trusted": {"tag=orders down= " + short + " token=" + token + " ca=" + stranger.file("ca.pem"), "! -3 UNAVAILABLE unavailable"},
		"the largest batch": {"tag=orders batch=10000 " + long + " token=" + token + " ca=" + ca.file("ca.pem"), ""},
	} {
		ids, wrong := k.take(nil, "at=%s threads=1 count=20 %s", s.url, c.how)
		if c.wrong == "" && (len(ids) != 20 || len(wrong) > 0) || c.wrong != "" && (len(ids) > 0 || len(wrong) == 0 || wrong[0] != c.wrong) {
			t.Errorf("%s: %d numbers, %q; want %q", name, len(ids), wrong, c.wrong)
		}
		if strings.Contains(strings.Join(wrong, ""), token) {
			t.Errorf("%s: it shows the token: %q", name, wrong)
		}
	}
}

// Servers that answer wrongly or not at all are passed over, and so is one with another
// store, whose numbers others have.
func TestJavaClientAmongBadServersInterop(t *testing.T) {
	patience.Interop(t, "a JVM")
	t.Parallel()
	serveAs := func(answer func(w http.ResponseWriter, first bool)) string {
		var mu sync.Mutex
		first := true
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodGet {
				return
			}
			mu.Lock()
			was := first
			first = false
			mu.Unlock()
			answer(w, was)
		}))
		t.Cleanup(s.Close)
		return s.URL
	}
	good := func(w http.ResponseWriter, store, ids string) {
		w.Header().Set(wire.StoreHeader, store)
		fmt.Fprintf(w, `{"count": %d, "valid_for": 60.0, "ids": [%s] }`, 2, ids)
	}
	failing := func(w http.ResponseWriter) {
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(http.StatusServiceUnavailable)
		fmt.Fprint(w, `{"code":"store_unavailable","detail":"away"}`)
	}
	stop := make(chan struct{})
	defer close(stop) // before the servers are closed, which wait for requests
	once := func(w http.ResponseWriter, first bool) {
		if first {
			good(w, "a", `"1","2"`)
			return
		}
		failing(w)
	}
	k := startTaker(t)
	for name, c := range map[string]struct {
		first, second func(w http.ResponseWriter, first bool)
		count         int
		ids           []int64
		wrong         string
	}{
		"hangs": {func(http.ResponseWriter, bool) { <-stop }, once, 2, []int64{1, 2}, ""},
		"hangs after the head": {func(w http.ResponseWriter, _ bool) {
			w.WriteHeader(http.StatusOK)
			_ = http.NewResponseController(w).Flush()
			<-stop
		}, once, 2, []int64{1, 2}, ""},
		"no hapax":          {func(w http.ResponseWriter, _ bool) { fmt.Fprint(w, "<html>") }, once, 2, []int64{1, 2}, ""},
		"redirects":         {func(w http.ResponseWriter, _ bool) { w.Header().Set("Location", "/"); w.WriteHeader(http.StatusFound) }, once, 2, []int64{1, 2}, ""},
		"too few":           {func(w http.ResponseWriter, _ bool) { good(w, "a", `"9"`) }, once, 2, []int64{1, 2}, ""},
		"no numbers":        {func(w http.ResponseWriter, _ bool) { good(w, "a", `"9","x"`) }, once, 2, []int64{1, 2}, ""},
		"too many":          {func(w http.ResponseWriter, _ bool) { good(w, "a", `"9","10","11"`) }, once, 2, []int64{1, 2}, ""},
		"a negative number": {func(w http.ResponseWriter, _ bool) { good(w, "a", `"9","-10"`) }, once, 2, []int64{1, 2}, ""},
		"names no store":    {func(w http.ResponseWriter, _ bool) { fmt.Fprint(w, `{"count":2,"valid_for":60,"ids":["9","10"]}`) }, once, 2, []int64{1, 2}, ""},
		"a float":           {func(w http.ResponseWriter, _ bool) { good(w, "a", `9.5,10`) }, once, 2, []int64{1, 2}, ""},
		"breaks off": {func(w http.ResponseWriter, _ bool) {
			w.Header().Set("Content-Length", "99")
			fmt.Fprint(w, `{"count":2,"valid_for":60,"ids":["9"`)
		}, once, 2, []int64{1, 2}, ""},
		"the same store": {once, func(w http.ResponseWriter, _ bool) { good(w, "a", `"3","4"`) }, 4, []int64{1, 2, 3, 4}, ""},
		// Which of two errors is said depends on where time runs out.
		"another store beside one away": {once, func(w http.ResponseWriter, _ bool) { good(w, "b", `"1","2"`) }, 4, []int64{1, 2}, "! -3 UNAVAILABLE store_"},
		"another store": {func(w http.ResponseWriter, first bool) {
			good(w, map[bool]string{true: "a", false: "b"}[first], `"1","2"`)
		}, func(w http.ResponseWriter, _ bool) { good(w, "b", `"1","2"`) }, 4, []int64{1, 2}, "! -3 UNAVAILABLE store_replaced"},
	} {
		call := patience.Scale(2 * time.Second)
		timeout := 2 * call
		if c.wrong == "" {
			timeout = patience.Call
		}
		ids, wrong := k.take(nil, "at=%s,%s tag=orders threads=1 count=%d batch=2 timeout=%d call=%d", serveAs(c.first), serveAs(c.second), c.count, timeout.Milliseconds(), call.Milliseconds())
		if !slices.Equal(ids, c.ids) || c.wrong == "" && len(wrong) > 0 || c.wrong != "" && (len(wrong) == 0 || !strings.HasPrefix(wrong[0], c.wrong)) {
			t.Errorf("%s: %v, %q; want %v, %q", name, ids, wrong, c.ids, c.wrong)
		}
	}
}

// The snippets of the pages are programs that print a number, and configurations that a
// server takes.
func TestJavaPagesInterop(t *testing.T) {
	patience.Interop(t, "a JVM")
	t.Parallel()
	classes := javaClasses(t)
	s := serve(t, t.TempDir(), nil)
	for _, page := range []string{javaPage, "clients/java/README.md"} {
		snippets := blocks(t, page, "java")
		if len(snippets) == 0 {
			t.Errorf("%s has no snippet", page)
		}
		if how := blocks(t, page, "sh")[0]; !strings.HasPrefix(blocks(t, javaPage, "sh")[0], how) {
			t.Errorf("%s compiles by %s", page, how)
		}
		for _, config := range blocks(t, page, "yaml") {
			dir := t.TempDir()
			ok(t, dir, "serve", "--print-config", "--config", write(t, dir, "hapax.yaml", config))
		}
		for _, snippet := range snippets {
			dir := t.TempDir()
			file := filepath.Join(dir, "Example.java")
			local := strings.NewReplacer("http://127.0.0.1:8080", s.url, "http://10.0.0.9:8080", s.url, "http://10.0.0.10:8080", s.url)
			if err := os.WriteFile(file, []byte(local.Replace(snippet)), 0o600); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), patience.Long)
			out, err := exec.CommandContext(ctx, "java", "-cp", classes, file).CombinedOutput()
			cancel()
			if n, convErr := strconv.ParseInt(strings.TrimSpace(string(out)), 10, 64); err != nil || convErr != nil || n < 1 {
				t.Errorf("%s: %v: %s\n%s", page, err, out, snippet)
			}
		}
	}
}
