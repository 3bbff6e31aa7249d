package health

import (
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
)

// The types of metrics.
const (
	Gauge     = "gauge"
	Counter   = "counter"
	Histogram = "histogram"
)

// A Metric describes one of the metrics that a server shows. The documentation is made
// from these.
type Metric struct {
	Name, Type, Help string
	Labels           []string
}

// Metrics returns every metric of hapax, by name.
func Metrics() []Metric {
	all := slices.Clone(catalog)
	slices.SortFunc(all, func(a, b Metric) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// The names of the metrics that count by themselves.
const (
	nameRefill    = "hapax_refill_seconds"
	nameEvents    = "hapax_events_total"
	nameRollbacks = "hapax_rollbacks_total"
	nameErrors    = "hapax_errors_total"
	nameWaits     = "hapax_waits_total"
	nameRequests  = "hapax_requests_total"
	nameFailed    = "hapax_failed_requests_total"
	nameSeconds   = "hapax_request_seconds"
)

var catalog = []Metric{
	{nameRefill, Histogram, "How long the store took for a grant.", nil},
	{nameEvents, Counter, "What happened in the issuers, by kind.", []string{"kind"}},
	{nameRollbacks, Counter, "Times the wall clock was seen to go back.", []string{"pool"}},
	{nameErrors, Counter, "Errors told to clients, by protocol and code.", []string{"api", "code"}},
	{nameWaits, Counter, "Calls that had to wait, by what for: the store, or the next tick.", []string{"for"}},
	{nameRequests, Counter, "Requests answered, by protocol and route.", []string{"api", "route"}},
	{nameFailed, Counter, "Requests answered with an error, by protocol and route.", []string{"api", "route"}},
	{nameSeconds, Histogram, "How long requests took, by protocol and route. Where numbers are asked for in the plainest way, one of sixteen requests is measured.", []string{"api", "route"}},
}

// Describe adds a metric to the catalog. It is for initializers of variables.
func Describe(kind, name, help string, labels ...string) *prometheus.Desc {
	catalog = append(catalog, Metric{name, kind, help, labels})
	return prometheus.NewDesc(name, help, labels, nil)
}

func metricOf(name string) Metric {
	i := slices.IndexFunc(catalog, func(m Metric) bool { return m.Name == name })
	return catalog[i]
}

func helpOf(name string) string { return metricOf(name).Help }

func labelsOf(name string) []string { return metricOf(name).Labels }

func newCounterVec(name string) *prometheus.CounterVec {
	m := metricOf(name)
	return prometheus.NewCounterVec(prometheus.CounterOpts{Name: m.Name, Help: m.Help}, m.Labels)
}
