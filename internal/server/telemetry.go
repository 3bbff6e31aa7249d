package server

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	bridge "go.opentelemetry.io/contrib/bridges/prometheus"
	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetrichttp"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/propagation"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/hapax-id/hapax/internal/build"
	"github.com/hapax-id/hapax/internal/mount"
)

// telemetry sends traces of HTTP and RPC requests, and the metrics, to an OpenTelemetry
// collector, as OpenTelemetry's own environment variables say. Without them there is none.
// Requests of the Redis protocol carry no trace.
type telemetry struct {
	traces  *sdktrace.TracerProvider // nil: none are sent
	metrics *sdkmetric.MeterProvider // likewise
}

// failureEvery is how often the log tells that nothing can be sent.
const failureEvery = time.Minute

// wantsTelemetry reports whether the environment asks for a signal, "traces" or "metrics".
func wantsTelemetry(signal string) (bool, error) {
	name := strings.ToUpper(signal)
	if strings.EqualFold(os.Getenv("OTEL_SDK_DISABLED"), "true") {
		return false, nil
	}
	endpoint := os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT") + os.Getenv("OTEL_EXPORTER_OTLP_"+name+"_ENDPOINT")
	switch exporter := os.Getenv("OTEL_" + name + "_EXPORTER"); exporter {
	case "none":
		return false, nil
	case "":
		if endpoint == "" {
			return false, nil
		}
	case "otlp":
	default:
		return false, mount.Errorf(nil, "OTEL_%s_EXPORTER is %q; it must be otlp or none", name, exporter)
	}
	for _, variable := range []string{"OTEL_EXPORTER_OTLP_" + name + "_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"} {
		if protocol := os.Getenv(variable); protocol != "" && protocol != "http/protobuf" {
			return false, mount.Errorf(nil, "%s is %q; it must be http/protobuf", variable, protocol)
		}
	}
	return true, nil
}

// checkTelemetry refuses what the environment asks for and there is not.
func checkTelemetry() error {
	_, traces := wantsTelemetry("traces")
	_, metrics := wantsTelemetry("metrics")
	return errors.Join(traces, metrics)
}

// newTelemetry returns what the environment asks for; nil for nothing.
func newTelemetry(ctx context.Context, gatherer prometheus.Gatherer, node string, log *slog.Logger) (*telemetry, error) {
	traces, err := wantsTelemetry("traces")
	metrics, metricsErr := wantsTelemetry("metrics")
	if err := errors.Join(err, metricsErr); err != nil || !traces && !metrics {
		return nil, err
	}
	tellFailures(log)
	about, err := resource.New(ctx,
		resource.WithAttributes(attribute.String("service.name", "hapax"), attribute.String("service.version", build.Read().Version), attribute.String("service.instance.id", node)),
		resource.WithTelemetrySDK(), resource.WithFromEnv())
	if err != nil {
		return nil, mount.Errorf(err, "OTEL_RESOURCE_ATTRIBUTES")
	}
	t := &telemetry{}
	if traces {
		exporter, err := otlptracehttp.New(ctx)
		if err != nil {
			return nil, mount.Errorf(err, "OpenTelemetry")
		}
		t.traces = sdktrace.NewTracerProvider(sdktrace.WithBatcher(exporter), sdktrace.WithResource(about))
	}
	if metrics {
		exporter, err := otlpmetrichttp.New(ctx)
		if err != nil {
			return nil, errors.Join(mount.Errorf(err, "OpenTelemetry"), t.stop(ctx))
		}
		reader := sdkmetric.NewPeriodicReader(exporter, sdkmetric.WithProducer(bridge.NewMetricProducer(bridge.WithGatherer(gatherer))))
		t.metrics = sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader), sdkmetric.WithResource(about))
	}
	return t, nil
}

// tellFailures logs what cannot be sent, once in a while.
func tellFailures(log *slog.Logger) {
	var (
		mu   sync.Mutex // guards told
		told time.Time
	)
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) {
		mu.Lock()
		defer mu.Unlock()
		if time.Since(told) >= failureEvery {
			told = time.Now()
			log.Warn("traces or metrics could not be sent", "err", err)
		}
	}))
}

// tracing reports whether requests are traced.
func (t *telemetry) tracing() bool { return t != nil && t.traces != nil }

// traced returns a handler whose requests are traced, where they are to be. Probes and
// metrics are not: nobody asks for them but monitoring.
func (t *telemetry) traced(h http.Handler) http.Handler {
	if !t.tracing() {
		return h
	}
	return otelhttp.NewHandler(h, "hapax",
		otelhttp.WithTracerProvider(t.traces), otelhttp.WithPropagators(propagation.NewCompositeTextMapPropagator(propagation.TraceContext{}, propagation.Baggage{})),
		otelhttp.WithFilter(func(r *http.Request) bool {
			return r.URL.Path != "/healthz" && r.URL.Path != "/readyz" && r.URL.Path != "/metrics"
		}),
		otelhttp.WithSpanNameFormatter(func(_ string, r *http.Request) string { return r.Method + " " + shape(r.URL.Path) }))
}

// shape returns a path without the names in it, of which there may be any number.
func shape(path string) string {
	parts := strings.Split(path, "/")
	for i := range parts {
		if i > 0 && (parts[i-1] == "tags" || parts[i-1] == "codes" || parts[i-1] == "pools" || parts[i-1] == "workers" || parts[i-1] == "trace" || parts[i-1] == "ids" && parts[i] != "compose") {
			parts[i] = "*"
		}
	}
	return strings.Join(parts, "/")
}

// telemetryStop bounds how long a stop waits for the collector.
const telemetryStop = 3 * time.Second

// stop sends what is left.
func (t *telemetry) stop(ctx context.Context) error {
	if t == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, telemetryStop)
	defer cancel()
	var errs []error
	if t.traces != nil {
		errs = append(errs, t.traces.Shutdown(ctx))
	}
	if t.metrics != nil {
		errs = append(errs, t.metrics.Shutdown(ctx))
	}
	return errors.Join(errs...)
}
