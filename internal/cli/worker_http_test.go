package cli

import (
	"hash/fnv"
	"net/http"
	"net/http/httptest"
	"testing"
)

func TestWorkerAnswers(t *testing.T) {
	held, ok := answeredWorker{17, "2026-11-22T11:22:33.444Z", 1795346553444}, true
	now := func() (answeredWorker, bool) { return held, ok }
	plain, zitadel := workerHandler(now, nil), workerHandler(now, zitadelText)
	for _, c := range []struct {
		name    string
		handler http.Handler
		method  string
		url     string
		held    bool
		status  int
		body    string
	}{
		{"JSON", plain, "GET", "http://127.0.0.1:8090/", true, 200, `{"worker":17,"until":"2026-11-22T11:22:33.444Z","until_ms":1795346553444}` + "\n"},
		{"bare", plain, "GET", "http://localhost:8090/worker", true, 200, "17"},
		{"a preset", zitadel, "GET", "http://[::1]:8090/", true, 200, zitadelText(17)},
		{"over", plain, "GET", "http://127.0.0.1:8090/worker", false, 503, "hapax: the worker ID must not be used any more\n"},
		{"over, by a preset", zitadel, "GET", "http://127.0.0.1:8090/", false, 503, "hapax: the worker ID must not be used any more\n"},
		{"a web page", plain, "GET", "http://evil.example:8090/worker", true, 403, "hapax: this is for programs of this host\n"},
		{"no such path", plain, "GET", "http://127.0.0.1:8090/x", true, 404, "404 page not found\n"},
		{"another method", plain, "POST", "http://127.0.0.1:8090/", true, 405, "Method Not Allowed\n"},
	} {
		ok = c.held
		w := httptest.NewRecorder()
		c.handler.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), c.method, c.url, nil))
		if w.Code != c.status || w.Body.String() != c.body {
			t.Errorf("%s: %d %q, want %d %q", c.name, w.Code, w.Body, c.status, c.body)
		}
	}
	for _, address := range []string{"0.0.0.0:80", ":80", "10.0.0.1:80", "example.com:80", "127.0.0.1"} {
		if stop, err := answerWorker(t.Context(), nil, address, nil); err == nil {
			stop()
			t.Errorf("it listens at %q", address)
		}
	}
}

// No two worker IDs become one machine ID, however few there are.
func TestZitadelMachineIDs(t *testing.T) {
	for _, id := range []int64{0, 1, 2, 3, 255, 256, 40_000, 65_534, 65_535} {
		h := fnv.New32()
		_, _ = h.Write([]byte(zitadelText(id)))
		if got := int64(uint16(h.Sum32())); got != id {
			t.Errorf("of %d ZITADEL makes %d", id, got)
		}
	}
}
