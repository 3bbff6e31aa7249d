package httpapi

import (
	"bytes"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"testing"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/service"
	"github.com/hapax-id/hapax/store/storetest"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// What was refused, and what would not have been, can be read by programs.
func TestProblemsCarryFields(t *testing.T) {
	for _, c := range []struct {
		method, path, body    string
		field, value, allowed string
	}{
		{"GET", "/v1/tags/orders/next?count=0", "", "count", "0", "1 to 10000"},
		{"GET", "/v1/tags/orders/next?n=5", "", "query parameter", "n", "one of count, format"},
		{"POST", "/v1/tags/orders/ids", `{"count":0}`, "count", "0", "1 to 10000"},
		{"PUT", "/v1/tags/x", `{"step":"many"}`, "step", "(a JSON string)", "a JSON integer of 64 bits"},
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

func TestPanicsStayInside(t *testing.T) {
	var log bytes.Buffer
	h := New(newService(t), Options{
		Logger:   slog.New(slog.NewTextHandler(&log, nil)),
		Gatherer: prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) { panic(errors.New("nil")) }),
	})
	w := call(t, h, "GET", "/metrics", "")
	p := asProblem(t, w)
	if w.Code != 500 || p.Code != "internal" || strings.Contains(w.Body.String(), "nil") {
		t.Errorf("%+v", p)
	}
	if !strings.Contains(log.String(), "stack=") {
		t.Errorf("the log does not tell where: %s", log.String())
	}
}
