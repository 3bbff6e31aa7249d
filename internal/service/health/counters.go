package health

import (
	"iter"
	"sync"

	"github.com/hapax-id/hapax"
	"github.com/prometheus/client_golang/prometheus"
)

// Others is the label of the tags and pools that have none of their own; the first MaxLabelled have.
const (
	Others      = "_other"
	MaxLabelled = 100
)

// Counters count what cannot be derived from the issuers when it is read.
type Counters struct {
	refills    prometheus.Histogram
	events     *prometheus.CounterVec
	rollbacks  *prometheus.CounterVec
	errors     *prometheus.CounterVec
	waits      *prometheus.CounterVec
	storeWaits prometheus.Counter
	tickWaits  prometheus.Counter
	requests   *prometheus.CounterVec
	failed     *prometheus.CounterVec
	seconds    *prometheus.HistogramVec

	mu      sync.Mutex         // guards retired
	retired hapax.SegmentStats // of closed lines that had no label of their own
}

// NewCounters returns counters whose series, those of pools and of kinds of events, are there from
// the start: a rate cannot be told of a series that begins with its first event.
func NewCounters(pools []string, kinds iter.Seq[hapax.EventKind]) *Counters {
	c := &Counters{
		refills: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: nameRefill, Help: helpOf(nameRefill), Buckets: prometheus.ExponentialBuckets(0.0005, 2.5, 11),
		}),
		events:    newCounterVec(nameEvents),
		rollbacks: newCounterVec(nameRollbacks),
		errors:    newCounterVec(nameErrors),
		waits:     newCounterVec(nameWaits),
		requests:  newCounterVec(nameRequests),
		failed:    newCounterVec(nameFailed),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: nameSeconds, Help: helpOf(nameSeconds), Buckets: prometheus.ExponentialBuckets(0.00005, 4, 10),
		}, labelsOf(nameSeconds)),
	}
	c.storeWaits = c.waits.WithLabelValues("store")
	c.tickWaits = c.waits.WithLabelValues("tick")
	for kind := range kinds {
		c.events.WithLabelValues(string(kind))
	}
	c.events.WithLabelValues(string(EventAlarm))
	c.events.WithLabelValues(string(EventAlarmCleared))
	for _, pool := range pools {
		c.rollbacks.WithLabelValues(pool)
	}
	return c
}

// own are the collectors that count by themselves.
func (c *Counters) own() []prometheus.Collector {
	return []prometheus.Collector{c.refills, c.events, c.rollbacks, c.errors, c.waits, c.requests, c.failed, c.seconds}
}

// WaitedForStore counts a call that had to wait for a grant.
func (c *Counters) WaitedForStore() { c.storeWaits.Inc() }

// WaitedForTick counts a call that had to wait for the clock.
func (c *Counters) WaitedForTick() { c.tickWaits.Inc() }

// Pool has the series of a pool begin, at 0.
func (c *Counters) Pool(label string) { c.rollbacks.WithLabelValues(label) }

// Happened counts what happened in an issuer, under its pool's label.
func (c *Counters) Happened(e hapax.Event, pool string) {
	c.events.WithLabelValues(string(e.Kind)).Inc()
	switch e.Kind {
	case hapax.EventGrant:
		c.refills.Observe(e.Took.Seconds())
	case hapax.EventRollback:
		c.rollbacks.WithLabelValues(pool).Inc()
	}
}

// Retire keeps the counts of a closed line that was counted among the others, so that their
// sums do not fall.
func (c *Counters) Retire(st hapax.SegmentStats) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.retired = addStats(c.retired, st)
}

// Counting has the errors of a protocol counted from 0.
func (c *Counters) Counting(api string, codes []hapax.Code) {
	for _, code := range codes {
		c.errors.WithLabelValues(api, string(code))
	}
}

// Failed counts an error that a protocol has told its client.
func (c *Counters) Failed(api string, code hapax.Code) {
	c.errors.WithLabelValues(api, string(code)).Inc()
}

func addStats(a, b hapax.SegmentStats) hapax.SegmentStats {
	a.Issued += b.Issued
	a.Burnt += b.Burnt
	a.Remaining += b.Remaining
	a.Refills += b.Refills
	return a
}

// A Route counts the requests of one route of a protocol.
type Route struct {
	requests, failed prometheus.Counter
	took             func() prometheus.Observer // made at the first use: most routes never have any
}

// Route returns the counts of a route. Protocols ask once for each.
func (c *Counters) Route(api, route string) *Route {
	return &Route{
		c.requests.WithLabelValues(api, route), c.failed.WithLabelValues(api, route),
		sync.OnceValue(func() prometheus.Observer { return c.seconds.WithLabelValues(api, route) }),
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
