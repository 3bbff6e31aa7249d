package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hapax-id/hapax/internal/patience"
	"github.com/hapax-id/hapax/internal/testservers"
)

// browserDir has what drives Chromium.
const browserDir = "../console/testdata/browser"

// TestConsoleInBrowserInterop has Chromium use the console of three nodes over one store, behind
// a proxy with a path of its own, as a person would; see look.mjs.
func TestConsoleInBrowserInterop(t *testing.T) {
	patience.Interop(t, "a browser")
	t.Parallel()
	lookAtConsole(t, false)
}

// TestConsoleInBrowserSoak also sets a clock back, restores the store, and settles a node
// that is missing.
func TestConsoleInBrowserSoak(t *testing.T) {
	patience.Soak(t, "pages of a fleet under load")
	t.Parallel()
	lookAtConsole(t, true)
}

func lookAtConsole(t *testing.T, long bool) {
	t.Helper()
	testservers.Require(t, []string{"chromium"})
	testservers.Require(t, []string{"node"})
	if _, err := os.Stat(filepath.Join(browserDir, "node_modules")); err != nil {
		testservers.Missing(t, "what drives Chromium is not installed")
	}
	f := newConsoleFleet(t, "1s", "a", "b", "c") // as it is by default
	f.store.MustControl()
	for name, n := range f.nodes {
		f.take(name, "orders", 300)
		f.take(name, "snowflake", 1)
		n.await("serving")
	}
	f.awaitSeen("a", "b", "c")
	control := httptest.NewServer(http.HandlerFunc(f.control))
	t.Cleanup(control.Close)
	to, err := url.Parse(f.nodes["a"].url)
	if err != nil {
		t.Fatal(err)
	}
	proxy := httptest.NewServer(http.StripPrefix("/ids/of", &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(to)
		r.Out.Host = r.In.Host
	}}))
	t.Cleanup(proxy.Close)
	plan, err := json.Marshal(map[string]any{
		"url": proxy.URL + "/ids/of/", "control": control.URL, "admin": f.admin, "reader": f.reader, "long": long, "pictures": os.Getenv("HAPAX_TEST_PICTURES"),
		"scale": patience.Scale(time.Second).Seconds(), "nodes": []string{f.called("a"), f.called("b"), f.called("c")},
	})
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "node", "look.mjs", string(plan))
	cmd.Dir = browserDir
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("%v: %s", err, out)
	}
	for line := range strings.Lines(string(out)) {
		t.Log(strings.TrimSpace(line))
	}
}

// control does to the fleet what a path says, and answers what comes of it.
func (f *consoleFleet) control(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(io.LimitReader(r.Body, 100))
	answer := ""
	backup := filepath.Join(f.dir, "backup")
	switch what := strings.Trim(r.URL.Path, "/"); what {
	case "create":
		f.take("b", string(body), 1)
	case "stop-store":
		f.store.Stop()
	case "start-store":
		f.store.Start()
	case "kill":
		f.nodes["c"].kill()
	case "clock":
		if err := os.WriteFile(f.clock("b"), body, 0o600); err != nil {
			f.t.Error(err)
		}
	case "backup":
		f.store.Stop()
		copyData(f.t, f.store.Dir, backup)
		f.store.Start()
	case "use":
		for name := range f.nodes {
			for range 5 {
				f.take(name, "orders", 1000)
			}
		}
	case "restore", "restore-without":
		f.store.Kill()
		if what == "restore-without" {
			f.nodes["c"].kill() // before anybody sees it silent
		}
		copyData(f.t, backup, f.store.Dir)
		f.store.Start()
	case "witness":
		answer, _ = filepath.Abs(filepath.Join(f.dir, "c", "witness"))
	default:
		http.Error(w, "no such thing: "+what, http.StatusNotFound)
		return
	}
	_, _ = fmt.Fprint(w, answer) // whoever asked waits for it
}
