package server

import (
	"compress/gzip"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"

	colmetrics "go.opentelemetry.io/proto/otlp/collector/metrics/v1"
	coltrace "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/hapax-id/hapax/internal/patience"
)

// A collectorServer is a collector of OpenTelemetry in this process.
type collectorServer struct {
	*httptest.Server

	mu      sync.Mutex // guards the fields below
	spans   []string
	metrics map[string]bool
	service string
}

func newCollector(t *testing.T) *collectorServer {
	t.Helper()
	c := &collectorServer{metrics: map[string]bool{}}
	receive := func(r *http.Request, into proto.Message) bool {
		var from io.Reader = r.Body
		if r.Header.Get("Content-Encoding") == "gzip" {
			zipped, err := gzip.NewReader(r.Body)
			if err != nil {
				t.Error(err)
				return false
			}
			from = zipped
		}
		body, err := io.ReadAll(from)
		if err == nil {
			err = proto.Unmarshal(body, into)
		}
		if err != nil {
			t.Errorf("%s: %v", r.URL.Path, err)
		}
		return err == nil
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/traces", func(_ http.ResponseWriter, r *http.Request) {
		var got coltrace.ExportTraceServiceRequest
		if !receive(r, &got) {
			return
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, rs := range got.GetResourceSpans() {
			for _, a := range rs.GetResource().GetAttributes() {
				if a.GetKey() == "service.name" {
					c.service = a.GetValue().GetStringValue()
				}
			}
			for _, ss := range rs.GetScopeSpans() {
				for _, span := range ss.GetSpans() {
					c.spans = append(c.spans, span.GetName())
				}
			}
		}
	})
	mux.HandleFunc("POST /v1/metrics", func(_ http.ResponseWriter, r *http.Request) {
		var got colmetrics.ExportMetricsServiceRequest
		if !receive(r, &got) {
			return
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, rm := range got.GetResourceMetrics() {
			for _, sm := range rm.GetScopeMetrics() {
				for _, m := range sm.GetMetrics() {
					c.metrics[m.GetName()] = true
				}
			}
		}
	})
	c.Server = httptest.NewServer(mux)
	t.Cleanup(c.Close)
	return c
}

// Traces and metrics go to the collector that the environment names, and none without.
func TestTelemetry(t *testing.T) {
	c := newCollector(t)
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", c.URL)
	t.Setenv("OTEL_RESOURCE_ATTRIBUTES", "service.name=numbers")
	s, stop := serveCompat(t, "  {}\n")
	if status, _ := get(t, s.listeners.http, "/v1/tags/orders/next"); status != http.StatusOK {
		t.Fatalf("the answer is %d", status)
	}
	get(t, s.listeners.http, "/readyz")
	stop() // sends what is left
	patience.Until(t, "the collector has it", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return slices.Contains(c.spans, "GET /v1/tags/*/next") && c.metrics["hapax_issued_total"] && c.metrics["hapax_node_outage_budget_seconds"] && c.service == "numbers"
	})
	if slices.Contains(c.spans, "GET /readyz") {
		t.Errorf("probes are traced: %v", c.spans)
	}
}

func TestTelemetryIsOff(t *testing.T) {
	for name, c := range map[string]struct {
		env  map[string]string
		on   bool
		fail bool
	}{
		"without variables":  {},
		"with an endpoint":   {env: map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}, on: true},
		"disabled":           {env: map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_SDK_DISABLED": "true"}},
		"no exporters":       {env: map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_TRACES_EXPORTER": "none", "OTEL_METRICS_EXPORTER": "none"}},
		"another exporter":   {env: map[string]string{"OTEL_TRACES_EXPORTER": "zipkin"}, fail: true},
		"another protocol":   {env: map[string]string{"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, fail: true},
		"by the exporter":    {env: map[string]string{"OTEL_METRICS_EXPORTER": "otlp"}, on: true},
		"by its own address": {env: map[string]string{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:1"}, on: true},
	} {
		t.Run(name, func(t *testing.T) {
			for key, value := range c.env {
				t.Setenv(key, value)
			}
			got, err := newTelemetry(t.Context(), nil, "here", slog.New(slog.DiscardHandler))
			if (err != nil) != c.fail || (got != nil) != c.on {
				t.Errorf("got %v, %v", got, err)
			}
		})
	}
}
