package service

import (
	"math"
	"slices"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hapax-id/hapax/api"
	"github.com/hapax-id/hapax/internal/signals"
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

// describe adds a metric to the catalog.
func describe(kind, name, help string, labels ...string) *prometheus.Desc {
	catalog = append(catalog, Metric{name, kind, help, labels})
	return prometheus.NewDesc(name, help, labels, nil)
}

// Describe adds a metric of the server's beside those of the service. It is for
// initializers of variables.
func Describe(kind, name, help string, labels ...string) *prometheus.Desc {
	return describe(kind, name, help, labels...)
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

// A Route counts the requests of one route of a protocol.
type Route struct {
	requests, failed prometheus.Counter
	took             func() prometheus.Observer // made at the first use: most routes never have any
}

// reports are what protocols tell of themselves.
type reports struct{ *core }

// Route returns the counts of a route. Protocols ask once for each.
func (rs *reports) Route(api, route string) *Route {
	m := rs.metrics
	return &Route{
		m.requests.WithLabelValues(api, route), m.failed.WithLabelValues(api, route),
		sync.OnceValue(func() prometheus.Observer { return m.seconds.WithLabelValues(api, route) }),
	}
}

// Served counts n requests, of which so many were answered with an error.
func (r *Route) Served(n, failed int) {
	r.requests.Add(float64(n))
	if failed > 0 {
		r.failed.Add(float64(failed))
	}
}

// Took notes how long one request took, in seconds.
func (r *Route) Took(seconds float64) { r.took().Observe(seconds) }

// Every is of how many of the plainest requests one is measured; it is a power of two.
const Every = 16

// ends tells for how long there will be numbers, and which alarms are up.
func (c collector) ends(ch chan<- prometheus.Metric) {
	least, others := math.Inf(1), forever
	label := func(kind, name string) (tag, pool string) {
		if kind == api.KindTag {
			return name, ""
		}
		return "", name
	}
	for b := range c.s.budgets() {
		least = min(least, inSeconds(b.lasts))
		if !b.labelled {
			others = min(others, b.lasts)
			continue
		}
		tag, pool := label(b.Kind, b.Name)
		ch <- prometheus.MustNewConstMetric(descBudget, prometheus.GaugeValue, inSeconds(b.lasts), tag, pool)
	}
	if others < forever {
		ch <- prometheus.MustNewConstMetric(descBudget, prometheus.GaugeValue, inSeconds(others), otherTags, "")
	}
	ch <- prometheus.MustNewConstMetric(descNodeBudget, prometheus.GaugeValue, least)
	rest := map[string]float64{}
	c.s.forecasts(func(f forecast) {
		tag, pool := label(f.Kind, f.Name)
		if !f.labelled {
			if first, ok := rest[f.What]; !ok || inSeconds(f.in) < first {
				rest[f.What] = inSeconds(f.in)
			}
			return
		}
		ch <- prometheus.MustNewConstMetric(descForecast, prometheus.GaugeValue, inSeconds(f.in), f.What, tag, pool)
	})
	for what, in := range rest {
		ch <- prometheus.MustNewConstMetric(descForecast, prometheus.GaugeValue, in, what, otherTags, "")
	}
	if c.s.opts.OneShot { // the server's own service has the alarms
		return
	}
	times, up := c.s.alarms.counts()
	for _, name := range signals.Alarms() {
		ch <- prometheus.MustNewConstMetric(descAlarm, prometheus.GaugeValue, float64(up[name]), name)
		ch <- prometheus.MustNewConstMetric(descAlarms, prometheus.CounterValue, float64(times[name]), name)
	}
}
