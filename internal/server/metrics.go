package server

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/hapax-id/hapax/internal/service/health"
)

// maxTokenSeries bounds how many tokens have counts of their own.
const maxTokenSeries = 100

var (
	descExpiry   = health.Describe(health.Gauge, "hapax_certificate_expiry_timestamp_seconds", "When the certificate that the listeners show ends, in Unix time; there without TLS not.")
	descRequests = health.Describe(health.Counter, "hapax_token_requests_total", "Requests made with a token. The first 100 have labels of their own.", "token")
	descRefused  = health.Describe(health.Counter, "hapax_token_refused_total", "Requests refused for a limit of their token.", "token")
	descNumbers  = health.Describe(health.Counter, "hapax_token_numbers_total", "Numbers asked for with a token.", "token")
)

// otherTokens is the label of the tokens that have none of their own.
const otherTokens = "_other"

// ownMetrics are the server's metrics besides those of its services.
type ownMetrics struct{ s *server }

// Describe implements prometheus.Collector.
func (ownMetrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descExpiry, descRequests, descRefused, descNumbers} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (m ownMetrics) Collect(ch chan<- prometheus.Metric) {
	if certs := m.s.certs; certs != nil {
		ch <- prometheus.MustNewConstMetric(descExpiry, prometheus.GaugeValue, float64(certs.current.Load().expires.Unix()))
	}
	uses := m.s.policy.Uses()
	if len(uses) > maxTokenSeries {
		rest := &uses[maxTokenSeries]
		rest.Token = otherTokens
		for _, u := range uses[maxTokenSeries+1:] {
			rest.Requests, rest.Refused, rest.Numbers = rest.Requests+u.Requests, rest.Refused+u.Refused, rest.Numbers+u.Numbers
		}
		uses = uses[:maxTokenSeries+1]
	}
	for _, u := range uses {
		ch <- prometheus.MustNewConstMetric(descRequests, prometheus.CounterValue, float64(u.Requests), u.Token)
		ch <- prometheus.MustNewConstMetric(descRefused, prometheus.CounterValue, float64(u.Refused), u.Token)
		ch <- prometheus.MustNewConstMetric(descNumbers, prometheus.CounterValue, float64(u.Numbers), u.Token)
	}
}

// gatherer returns everything that /metrics shows.
func (s *server) gatherer() prometheus.Gatherer {
	own := prometheus.NewRegistry()
	own.MustRegister(ownMetrics{s})
	return prometheus.Gatherers{gatherer(s.service, s.mounts.host.Services), own}
}
