package httpapi

import (
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/hapax-id/hapax/internal/ledger"
	"github.com/hapax-id/hapax/internal/patience"
	"github.com/hapax-id/hapax/internal/service"
	"github.com/hapax-id/hapax/internal/testservers"
	"github.com/hapax-id/hapax/store/memstore"
)

// A client that openapi-typescript makes of the document compiles, calls every route,
// and has the values that its types say. Redocly has nothing to say of the document.
func TestGeneratedClientInterop(t *testing.T) {
	patience.Interop(t, "the TypeScript compiler")
	node := testservers.Require(t, []string{"node"})
	tools, err := filepath.Abs("testdata/openapi-fetch")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(tools, "node_modules", "openapi-typescript")); err != nil {
		testservers.Missing(t, "openapi-typescript is not installed: run npm ci in internal/api/httpapi/testdata/openapi-fetch")
	}
	if found := runNode(t, node, tools, "lint.mjs", "../../openapi.json"); found != "" {
		t.Errorf("redocly says:\n%s", found)
	}

	l, err := ledger.Open(t.TempDir(), ledger.Options{Node: "a"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	h := newHandler(t, memstore.New(), service.Options{Ledger: l})
	var mu sync.Mutex // guards called
	var called []string
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		called = append(called, r.Method+" "+r.URL.EscapedPath())
		mu.Unlock()
		h.ServeHTTP(w, r)
	}))
	t.Cleanup(srv.Close)

	dir := t.TempDir()
	files := map[string][]byte{"package.json": []byte(`{"type":"module"}`), "openapi.json": call(t, h, "GET", "/v1/openapi.json", "").Body.Bytes()}
	for _, name := range []string{"client.ts", "tsconfig.json"} {
		if files[name], err = os.ReadFile(filepath.Join(tools, name)); err != nil {
			t.Fatal(err)
		}
	}
	for name, data := range files {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(filepath.Join(tools, "node_modules"), filepath.Join(dir, "node_modules")); err != nil {
		t.Fatal(err)
	}
	runNode(t, node, dir, "node_modules/openapi-typescript/bin/cli.js", "openapi.json", "-o", "schema.d.ts")
	runNode(t, node, dir, "node_modules/typescript/bin/tsc")
	runNode(t, node, dir, "client.js", srv.URL)

	_, operations := readDocument(t)
	for pattern := range operations {
		like := regexp.MustCompile("^" + regexp.MustCompile(`\\\{\w+\\\}`).ReplaceAllString(regexp.QuoteMeta(pattern), "[^/]+") + "$")
		if !slices.ContainsFunc(called, like.MatchString) {
			t.Errorf("%s was not called", pattern)
		}
	}
}

// runNode runs a program of Node.js to its end and returns what it printed.
func runNode(t *testing.T, node, dir string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), node, args...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("node %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}
