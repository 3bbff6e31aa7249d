package service

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/api"
	"github.com/hapax-id/hapax/internal/build"
	"github.com/hapax-id/hapax/store/witness"
	"github.com/hapax-id/hapax/strategy"
	"github.com/prometheus/client_golang/prometheus"
)

// otherTags is the label of the tags that have none of their own.
const otherTags = "_other"

// metrics counts what cannot be derived from the issuers when it is read.
type metrics struct {
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

// newMetrics returns metrics whose series, as far as they are known, are there from
// the start: a rate cannot be told of a series that begins with its first event.
func newMetrics(pools []string) *metrics {
	m := &metrics{
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
	m.storeWaits = m.waits.WithLabelValues("store")
	m.tickWaits = m.waits.WithLabelValues("tick")
	for kind := range messages {
		m.events.WithLabelValues(string(kind))
	}
	m.events.WithLabelValues(string(EventAlarm))
	m.events.WithLabelValues(string(EventAlarmCleared))
	for _, pool := range pools {
		m.rollbacks.WithLabelValues(pool)
	}
	return m
}

// own are the collectors that count by themselves.
func (m *metrics) own() []prometheus.Collector {
	return []prometheus.Collector{m.refills, m.events, m.rollbacks, m.errors, m.waits, m.requests, m.failed, m.seconds}
}

// waited counts a call on a line that could not be served without a wait.
func (m *metrics) waited(l *line) {
	if l.periods != nil {
		return // the period's line counts
	}
	if s, ok := l.issuer.(*hapax.Snowflake); ok && s.Stats().Remaining > 0 {
		m.tickWaits.Inc()
	} else {
		m.storeWaits.Inc()
	}
}

// event counts what happened in an issuer, under its pool's label.
func (m *metrics) event(e hapax.Event, pool string) {
	m.events.WithLabelValues(string(e.Kind)).Inc()
	switch e.Kind {
	case hapax.EventGrant:
		m.refills.Observe(e.Took.Seconds())
	case hapax.EventRollback:
		m.rollbacks.WithLabelValues(pool).Inc()
	}
}

// retire keeps the counts of a closed line that was counted among the others,
// so that their sums do not fall.
func (m *metrics) retire(l *line) {
	if l.labelled || l.segment == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.retired = addStats(m.retired, l.segment.Stats())
}

func addStats(a, b hapax.SegmentStats) hapax.SegmentStats {
	a.Issued += b.Issued
	a.Burnt += b.Burnt
	a.Remaining += b.Remaining
	a.Refills += b.Refills
	return a
}

var (
	lineLabels = []string{"tag", "pool"}
	poolLabels = []string{"pool"}
	ofLabels   = []string{"of"}

	usageLabels = []string{"plugin", "tag", "caller", "window"}

	descIssued     = describe(Counter, "hapax_issued_total", "Numbers issued, by segment tag or worker pool. The first 100 tags have labels of their own.", lineLabels...)
	descRefills    = describe(Counter, "hapax_refills_total", "Grants taken from the store, by segment tag or worker pool.", lineLabels...)
	descBurnt      = describe(Counter, "hapax_burnt_total", "Numbers granted that will never be issued, by segment tag.", "tag")
	descRemaining  = describe(Gauge, "hapax_remaining", "Numbers granted and not issued yet, by segment tag.", "tag")
	descWorker     = describe(Gauge, "hapax_worker_id", "The worker ID in use, by pool.", poolLabels...)
	descGrant      = describe(Gauge, "hapax_grant_remaining_seconds", "How far the pool's grant reaches beyond now.", poolLabels...)
	descTime       = describe(Gauge, "hapax_time_remaining_seconds", "How long the time bits of the pool's layout last.", poolLabels...)
	descOffset     = describe(Gauge, "hapax_clock_offset_seconds", "Local clock less the store's, where the store has one.", poolLabels...)
	descRollback   = describe(Gauge, "hapax_clock_rollback_seconds", "How far the wall clock is behind what it was.", poolLabels...)
	descWorkers    = describe(Gauge, "hapax_workers", "Worker IDs of the pool by state, as counted in the store once in a while.", "pool", "state")
	descStarts     = describe(Gauge, "hapax_worker_starts_left", "How many more starts the pool's worker IDs last, where each start uses one up.", poolLabels...)
	descHeld       = describe(Gauge, "hapax_worker_held", "1 for each worker ID that this node granted to others, with what the holder says of itself. The first 100 have labels of their own.", "pool", "worker", "holder")
	descTags       = describe(Gauge, "hapax_tags", "Tags in use on this node.")
	descWarnings   = describe(Counter, "hapax_store_warnings_total", "Warnings about the store, at the start and when another primary was found, by code.", "code")
	descDegraded   = describe(Gauge, "hapax_degraded", "Tags or pools, configured or in use, that cannot issue now; /readyz names them.", "kind")
	descFenced     = describe(Gauge, "hapax_fenced", "1 if nothing is granted, because the store went back or is not the right one, else 0; /readyz and hapax status tell what to do.")
	descStore      = describe(Gauge, "hapax_store_ok", "1 if the store can grant numbers, else 0.")
	descState      = describe(Gauge, "hapax_state", "1 for the state in which this node stands with its store, 0 for the others.", "state")
	descRecords    = describe(Counter, "hapax_ledger_records_total", "Records written, of grants and of the history.", ofLabels...)
	descWaiting    = describe(Gauge, "hapax_ledger_waiting", "Records kept in memory because they cannot be written.", ofLabels...)
	descLost       = describe(Counter, "hapax_ledger_lost_total", "Records lost because there were too many to keep in memory.", ofLabels...)
	descStrategy   = describe(Gauge, "hapax_strategy", "What a tag's strategy tells of itself, by its name for it.", "tag", "name")
	descVetoes     = describe(Counter, "hapax_plugin_vetoes_total", "Calls that a plugin has refused.", "plugin")
	descFailures   = describe(Counter, "hapax_plugin_failures_total", "Hooks of a plugin that have failed.", "plugin")
	descUsage      = describe(Gauge, "hapax_plugin_numbers", "Numbers that a plugin has counted in the current window: the 200 largest counts, if there are more.", usageLabels...)
	descPrevious   = describe(Gauge, "hapax_plugin_numbers_previous", "The same in the window before, where that is counted.", usageLabels...)
	descQuota      = describe(Gauge, "hapax_plugin_limit", "What a window of a quota may hold.", "plugin", "window")
	descBuild      = describe(Gauge, "hapax_build_info", "1, with what the server was built from as labels.", "version", "revision", "goversion")
	descStep       = describe(Gauge, "hapax_step", "How many numbers the next grant is asked for, by segment tag; 0 is the tag's own step.", "tag")
	descBurntShare = describe(Gauge, "hapax_burnt_ratio", "Share of the numbers granted so far that will never be issued, 0 to 1, by segment tag.", "tag")
	descBudget     = describe(Gauge, "hapax_outage_budget_seconds", "How long a tag or pool could be issued from at the present rate if the store answered nothing any more; +Inf where nothing is taken.", lineLabels...)
	descNodeBudget = describe(Gauge, "hapax_node_outage_budget_seconds", "The least of hapax_outage_budget_seconds, over all tags and pools in use; +Inf where nothing is taken.")
	descForecast   = describe(Gauge, "hapax_forecast_seconds", "When something that cannot be refilled ends at the present rate: the numbers of a tag (line) or those that its narrowest reader keeps (reader), the time of a pool's layout (layout), its worker IDs (workers), or those where each start uses one up (starts); +Inf for never.", "what", "tag", "pool")
	descAlarm      = describe(Gauge, "hapax_alarm", "How many alarms of a kind are up; /readyz tells them.", "alarm")
	descAlarms     = describe(Counter, "hapax_alarms_total", "Alarms that were raised.", "alarm")

	descReady = describe(Gauge, "hapax_ready", "1 if the service can issue, else 0.")
)

// Collector returns the service's metrics, which are read from the issuers when
// they are collected. The number of tag labels is bounded.
func (hl *health) Collector() prometheus.Collector { return collector{hl} }

type collector struct{ s *health }

func (c collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		descIssued, descRefills, descBurnt, descRemaining, descWorker, descGrant,
		descTime, descOffset, descRollback, descWorkers, descStarts, descHeld, descTags, descWarnings, descReady, descBuild, descDegraded, descFenced, descStore, descState,
		descRecords, descWaiting, descLost, descStep, descBurntShare, descBudget, descNodeBudget, descForecast, descAlarm, descAlarms,
		descStrategy, descVetoes, descFailures, descUsage, descPrevious, descQuota,
	} {
		ch <- d
	}
	m := c.s.metrics
	for _, own := range m.own() {
		own.Describe(ch)
	}
}

func (c collector) Collect(ch chan<- prometheus.Metric) {
	c.segments(ch)
	c.pools(ch)
	c.holders(ch)
	c.plugins(ch)
	c.ends(ch)
	ctx, cancel := context.WithTimeout(c.s.life, time.Second)
	defer cancel()
	state := c.s.Readiness(ctx)
	tell := func(desc *prometheus.Desc, is bool, labels ...string) {
		value := 0.0
		if is {
			value = 1
		}
		ch <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, labels...)
	}
	tell(descReady, state.Ready)
	tell(descFenced, state.Fenced)
	tell(descStore, state.Store == "ok")
	for _, name := range witness.States() {
		tell(descState, state.State == string(name), string(name))
	}
	lacks := map[string]int{api.KindTag: 0, api.KindPool: 0}
	for _, lack := range state.Cannot {
		lacks[lack.Kind]++
	}
	for kind, n := range lacks {
		ch <- prometheus.MustNewConstMetric(descDegraded, prometheus.GaugeValue, float64(n), kind)
	}
	built := build.Read()
	ch <- prometheus.MustNewConstMetric(descBuild, prometheus.GaugeValue, 1, built.Version, built.Revision, built.Go)
	if warnings := c.s.opts.StoreWarnings; warnings != nil {
		for code, n := range warnings() {
			ch <- prometheus.MustNewConstMetric(descWarnings, prometheus.CounterValue, float64(n), code)
		}
	}
	if l := c.s.opts.Ledger; l != nil {
		st := l.Stats()
		emitRecords(ch, "grants", st.Written, st.Waiting, st.Lost)
	}
	if h := c.s.strategies.History(); h != nil {
		st := h.Stats()
		emitRecords(ch, "history", st.Written, st.Waiting, st.Lost)
	}
	m := c.s.metrics
	for _, own := range m.own() {
		own.Collect(ch)
	}
}

func emitRecords(ch chan<- prometheus.Metric, of string, written, waiting, lost int64) {
	ch <- prometheus.MustNewConstMetric(descRecords, prometheus.CounterValue, float64(written), of)
	ch <- prometheus.MustNewConstMetric(descWaiting, prometheus.GaugeValue, float64(waiting), of)
	ch <- prometheus.MustNewConstMetric(descLost, prometheus.CounterValue, float64(lost), of)
}

func (c collector) segments(ch chan<- prometheus.Metric) {
	m := c.s.metrics
	m.mu.Lock()
	others := m.retired
	m.mu.Unlock()
	for name, t := range c.s.opts.Tags { // those that were not used yet
		if len(c.s.opts.Tags) <= maxLabelled && t.Kind != hapax.KindSnowflake && c.s.tags.find(name) == nil {
			emitSegment(ch, name, hapax.SegmentStats{})
		}
	}
	tags, anyOthers := 0, others.Refills > 0
	for l := range c.s.tags.all() {
		tags++
		f, foreign := l.issuer.(*foreignIssuer)
		switch {
		case foreign && l.labelled:
			ch <- prometheus.MustNewConstMetric(descIssued, prometheus.CounterValue, float64(f.issued.Load()), l.name, "")
			emitMeasures(ch, l.name, f)
		case l.segment == nil:
		case l.labelled:
			emitSegment(ch, l.name, l.segment.Stats())
		default:
			others, anyOthers = addStats(others, l.segment.Stats()), true
		}
	}
	if anyOthers {
		emitSegment(ch, otherTags, others)
	}
	ch <- prometheus.MustNewConstMetric(descTags, prometheus.GaugeValue, float64(tags))
}

func emitSegment(ch chan<- prometheus.Metric, tag string, st hapax.SegmentStats) {
	ch <- prometheus.MustNewConstMetric(descIssued, prometheus.CounterValue, float64(st.Issued), tag, "")
	ch <- prometheus.MustNewConstMetric(descRefills, prometheus.CounterValue, float64(st.Refills), tag, "")
	ch <- prometheus.MustNewConstMetric(descBurnt, prometheus.CounterValue, float64(st.Burnt), tag)
	ch <- prometheus.MustNewConstMetric(descRemaining, prometheus.GaugeValue, float64(st.Remaining), tag)
	ch <- prometheus.MustNewConstMetric(descStep, prometheus.GaugeValue, float64(st.Step), tag)
	share := 0.0
	if gone := st.Issued + st.Burnt; gone > 0 {
		share = float64(st.Burnt) / float64(gone)
	}
	ch <- prometheus.MustNewConstMetric(descBurntShare, prometheus.GaugeValue, share, tag)
}

// maxMeasures bounds what a strategy may tell of a tag.
const maxMeasures = 16

func emitMeasures(ch chan<- prometheus.Metric, tag string, f *foreignIssuer) {
	own, ok := f.Issuer.(strategy.Measured)
	if !ok {
		return
	}
	values := own.Measure()
	for i, name := range slices.Sorted(maps.Keys(values)) {
		if i == maxMeasures {
			return
		}
		ch <- prometheus.MustNewConstMetric(descStrategy, prometheus.GaugeValue, values[name], tag, name)
	}
}

func (c collector) pools(ch chan<- prometheus.Metric) {
	open := c.s.openPools()
	var others hapax.SnowflakeStats
	for i, name := range c.s.opts.poolNames() {
		if i == maxLabelled {
			break
		}
		if !slices.ContainsFunc(open, func(p *pool) bool { return p.name == name }) {
			ch <- prometheus.MustNewConstMetric(descIssued, prometheus.CounterValue, 0, "", name)
			ch <- prometheus.MustNewConstMetric(descRefills, prometheus.CounterValue, 0, "", name)
		}
	}
	defer func() {
		if others.Grants > 0 {
			ch <- prometheus.MustNewConstMetric(descIssued, prometheus.CounterValue, float64(others.Issued), "", otherTags)
			ch <- prometheus.MustNewConstMetric(descRefills, prometheus.CounterValue, float64(others.Grants), "", otherTags)
		}
	}()
	for _, p := range open {
		st := p.issuer.Load().Stats()
		if !p.labelled {
			others.Issued += st.Issued
			others.Grants += st.Grants
			continue
		}
		ch <- prometheus.MustNewConstMetric(descIssued, prometheus.CounterValue, float64(st.Issued), "", p.name)
		ch <- prometheus.MustNewConstMetric(descRefills, prometheus.CounterValue, float64(st.Grants), "", p.name)
		ch <- prometheus.MustNewConstMetric(descWorker, prometheus.GaugeValue, float64(st.Worker), p.name)
		ch <- prometheus.MustNewConstMetric(descGrant, prometheus.GaugeValue, st.Remaining.Seconds(), p.name)
		ch <- prometheus.MustNewConstMetric(descTime, prometheus.GaugeValue, time.Until(st.Ends).Seconds(), p.name)
		ch <- prometheus.MustNewConstMetric(descOffset, prometheus.GaugeValue, st.Skew.Seconds(), p.name)
		ch <- prometheus.MustNewConstMetric(descRollback, prometheus.GaugeValue, st.Rollback.Seconds(), p.name)
		if choice := p.choice.Load(); choice != nil && choice.Counted {
			ch <- prometheus.MustNewConstMetric(descStarts, prometheus.GaugeValue, float64(choice.Left), p.name)
		}
		if census := p.census.Load(); census != nil {
			for _, state := range api.WorkerStates() {
				ch <- prometheus.MustNewConstMetric(descWorkers, prometheus.GaugeValue, float64((*census)[state]), p.name, string(state))
			}
		}
	}
}

// maxUsageSeries bounds how many counts of plugins have series of their own.
const maxUsageSeries = 200

func (c collector) plugins(ch chan<- prometheus.Metric) {
	if c.s.opts.OneShot { // of a service beside another, which shows the same
		return
	}
	for _, p := range c.s.Plugins() {
		ch <- prometheus.MustNewConstMetric(descVetoes, prometheus.CounterValue, float64(p.Vetoes), p.Name)
		ch <- prometheus.MustNewConstMetric(descFailures, prometheus.CounterValue, float64(p.Failures), p.Name)
	}
	type window struct {
		plugin string
		length api.Window
	}
	limited, told := map[window]bool{}, map[[4]string]bool{}
	for _, u := range c.s.usage("", maxUsageSeries) {
		key := [4]string{u.Plugin, strings.ToValidUTF8(u.Tag, "?"), strings.ToValidUTF8(u.Caller, "?"), u.Window.String()}
		if told[key] {
			continue // a plugin of the program's may repeat itself
		}
		told[key] = true
		labels := key[:]
		ch <- prometheus.MustNewConstMetric(descUsage, prometheus.GaugeValue, float64(u.Current), labels...)
		if u.Limit == 0 {
			ch <- prometheus.MustNewConstMetric(descPrevious, prometheus.GaugeValue, float64(u.Previous), labels...)
		} else if w := (window{u.Plugin, u.Window}); !limited[w] {
			limited[w] = true
			ch <- prometheus.MustNewConstMetric(descQuota, prometheus.GaugeValue, float64(u.Limit), u.Plugin, key[3])
		}
	}
}
