package httpapi

import (
	"net/http"
	"testing"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/service"
	"github.com/hapax-id/hapax/store/storetest"
)

// What was refused, and what would not have been, can be read by programs.
func TestProblemsCarryFields(t *testing.T) {
	for _, c := range []struct {
		method, path, body    string
		field, value, allowed string
	}{
		{"GET", "/v1/tags/orders/next?count=0", "", "count", "0", "1 to 10000"},
		{"GET", "/v1/tags/orders/next?n=5", "", "query", "n", "count"},
		{"POST", "/v1/tags/orders/ids", `{"count":0}`, "count", "0", "1 to 10000"},
		{"PUT", "/v1/tags/x", `{"step":"many"}`, "step", "a JSON string", "a JSON integer of 64 bits"},
		{"GET", "/v1/pools/default/workers/1024", "", "worker", "1024", "0 to 1023"},
		{"GET", "/v1/tags//next", "", "path", "/v1/tags//next", "one without empty parts, such as that of a tag without a name, and with . and .. percent-encoded"},
		{"GET", "/v1/ids/1?layout=nope", "", "layout", "nope", ""},
	} {
		bubble(t, service.Options{}, func(t *testing.T, h http.Handler, store *storetest.Faults) {
			p := asProblem(t, call(t, h, c.method, c.path, c.body))
			if p.Field != c.field || p.Value != c.value || p.Allowed != c.allowed && c.allowed != "" {
				t.Errorf("%s %s: %+v", c.method, c.path, p)
			}
		})
	}
}

// TestEveryCodeHasAStatus fails when a code is added and not placed here.
func TestEveryCodeHasAStatus(t *testing.T) {
	for _, code := range hapax.Codes() {
		if statuses[code] == 0 {
			t.Errorf("%s has no status", code)
		}
		if title(code) == string(code) {
			t.Errorf("%s has no title", code)
		}
	}
	if len(statuses) != len(hapax.Codes()) {
		t.Errorf("%d statuses for %d codes", len(statuses), len(hapax.Codes()))
	}
}
