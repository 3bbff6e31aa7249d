package console

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// TestBrowser has Chromium look at every page, behind a proxy with a path of its own:
// nothing is loaded from elsewhere, no error is on the console of the browser, nothing
// keeps people out who need assistance, and what a person does there works, also without
// JavaScript.
func TestBrowser(t *testing.T) {
	if testing.Short() {
		t.Skip("it needs Chromium")
	}
	if _, err := os.Stat("testdata/browser/node_modules"); err != nil || !exists("/usr/bin/chromium") {
		if os.Getenv("CI") == "true" {
			t.Fatal("Chromium, or what drives it, is missing; .ci/deps installs both")
		}
		t.Skip("Chromium, or what drives it, is missing; .ci/deps installs both")
	}
	s := newStand(t, nil, nil)
	for _, tag := range []string{"orders", "snowflake"} {
		if _, err := s.svc.Next(t.Context(), tag); err != nil {
			t.Fatal(err)
		}
	}
	mux := http.NewServeMux()
	mux.Handle("/", s.Console)
	mux.HandleFunc("POST /v1/tags/{tag}/ids", func(w http.ResponseWriter, r *http.Request) {
		id, err := s.svc.Next(r.Context(), r.PathValue("tag"))
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"ids": []string{id.String()}})
	})
	web := httptest.NewServer(mux)
	t.Cleanup(web.Close)
	to, err := url.Parse(web.URL)
	if err != nil {
		t.Fatal(err)
	}
	proxy := httptest.NewServer(http.StripPrefix("/ids/of", &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(to)
		r.Out.Host = r.In.Host
	}}))
	t.Cleanup(proxy.Close)
	cmd := exec.CommandContext(t.Context(), "node", "look.mjs", proxy.URL+"/ids/of/")
	cmd.Dir = "testdata/browser"
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, strings.TrimSpace(string(out)))
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
