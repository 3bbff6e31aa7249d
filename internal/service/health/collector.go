package health

import (
	"context"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/api"
	"github.com/hapax-id/hapax/internal/build"
	"github.com/hapax-id/hapax/internal/signals"
	"github.com/hapax-id/hapax/store/witness"
	"github.com/hapax-id/hapax/strategy"
	"github.com/prometheus/client_golang/prometheus"
)

var (
	lineLabels = []string{"tag", "pool"}
	poolLabels = []string{"pool"}
	ofLabels   = []string{"of"}

	usageLabels = []string{"plugin", "tag", "caller", "window"}

	descIssued     = Describe(Counter, "hapax_issued_total", "Numbers issued, by segment tag or worker pool. The first 100 tags have labels of their own.", lineLabels...)
	descRefills    = Describe(Counter, "hapax_refills_total", "Grants taken from the store, by segment tag or worker pool.", lineLabels...)
	descBurnt      = Describe(Counter, "hapax_burnt_total", "Numbers granted that will never be issued, by segment tag.", "tag")
	descRemaining  = Describe(Gauge, "hapax_remaining", "Numbers granted and not issued yet, by segment tag.", "tag")
	descWorker     = Describe(Gauge, "hapax_worker_id", "The worker ID in use, by pool.", poolLabels...)
	descGrant      = Describe(Gauge, "hapax_grant_remaining_seconds", "How far the pool's grant reaches beyond now.", poolLabels...)
	descTime       = Describe(Gauge, "hapax_time_remaining_seconds", "How long the time bits of the pool's layout last.", poolLabels...)
	descOffset     = Describe(Gauge, "hapax_clock_offset_seconds", "Local clock less the store's, where the store has one.", poolLabels...)
	descRollback   = Describe(Gauge, "hapax_clock_rollback_seconds", "How far the wall clock is behind what it was.", poolLabels...)
	descWorkers    = Describe(Gauge, "hapax_workers", "Worker IDs of the pool by state, as counted in the store once in a while.", "pool", "state")
	descStarts     = Describe(Gauge, "hapax_worker_starts_left", "How many more starts the pool's worker IDs last, where each start uses one up.", poolLabels...)
	descHeld       = Describe(Gauge, "hapax_worker_held", "1 for each worker ID that this node granted to others, with what the holder says of itself. The first 100 have labels of their own.", "pool", "worker", "holder")
	descTags       = Describe(Gauge, "hapax_tags", "Tags in use on this node.")
	descWarnings   = Describe(Counter, "hapax_store_warnings_total", "Warnings about the store, at the start and when another primary was found, by code.", "code")
	descDegraded   = Describe(Gauge, "hapax_degraded", "Tags or pools, configured or in use, that cannot issue now; /readyz names them.", "kind")
	descFenced     = Describe(Gauge, "hapax_fenced", "1 if nothing is granted, because the store went back or is not the right one, else 0; /readyz and hapax status tell what to do.")
	descStore      = Describe(Gauge, "hapax_store_ok", "1 if the store can grant numbers, else 0.")
	descState      = Describe(Gauge, "hapax_state", "1 for the state in which this node stands with its store, 0 for the others.", "state")
	descRecords    = Describe(Counter, "hapax_ledger_records_total", "Records written, of grants and of the history.", ofLabels...)
	descWaiting    = Describe(Gauge, "hapax_ledger_waiting", "Records kept in memory because they cannot be written.", ofLabels...)
	descLost       = Describe(Counter, "hapax_ledger_lost_total", "Records lost because there were too many to keep in memory.", ofLabels...)
	descStrategy   = Describe(Gauge, "hapax_strategy", "What a tag's strategy tells of itself, by its name for it.", "tag", "name")
	descVetoes     = Describe(Counter, "hapax_plugin_vetoes_total", "Calls that a plugin has refused.", "plugin")
	descFailures   = Describe(Counter, "hapax_plugin_failures_total", "Hooks of a plugin that have failed.", "plugin")
	descUsage      = Describe(Gauge, "hapax_plugin_numbers", "Numbers that a plugin has counted in the current window: the 200 largest counts, if there are more.", usageLabels...)
	descPrevious   = Describe(Gauge, "hapax_plugin_numbers_previous", "The same in the window before, where that is counted.", usageLabels...)
	descQuota      = Describe(Gauge, "hapax_plugin_limit", "What a window of a quota may hold.", "plugin", "window")
	descBuild      = Describe(Gauge, "hapax_build_info", "1, with what the server was built from as labels.", "version", "revision", "goversion")
	descStep       = Describe(Gauge, "hapax_step", "How many numbers the next grant is asked for, by segment tag; 0 is the tag's own step.", "tag")
	descBurntShare = Describe(Gauge, "hapax_burnt_ratio", "Share of the numbers granted so far that will never be issued, 0 to 1, by segment tag.", "tag")
	descBudget     = Describe(Gauge, "hapax_outage_budget_seconds", "How long a tag or pool could be issued from at the present rate if the store answered nothing any more; +Inf where nothing is taken.", lineLabels...)
	descNodeBudget = Describe(Gauge, "hapax_node_outage_budget_seconds", "The least of hapax_outage_budget_seconds, over all tags and pools in use; +Inf where nothing is taken.")
	descForecast   = Describe(Gauge, "hapax_forecast_seconds", "When something that cannot be refilled ends at the present rate: the numbers of a tag (line) or those that its narrowest reader keeps (reader), the time of a pool's layout (layout), its worker IDs (workers), or those where each start uses one up (starts); +Inf for never.", "what", "tag", "pool")
	descAlarm      = Describe(Gauge, "hapax_alarm", "How many alarms of a kind are up; /readyz tells them.", "alarm")
	descAlarms     = Describe(Counter, "hapax_alarms_total", "Alarms that were raised.", "alarm")

	descReady = Describe(Gauge, "hapax_ready", "1 if the service can issue, else 0.")
)

// Collector returns the service's metrics, which are read from the issuers when
// they are collected. The number of tag labels is bounded.
func (m *Monitor) Collector() prometheus.Collector { return collector{m} }

type collector struct{ m *Monitor }

func (c collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		descIssued, descRefills, descBurnt, descRemaining, descWorker, descGrant,
		descTime, descOffset, descRollback, descWorkers, descStarts, descHeld, descTags, descWarnings, descReady, descBuild, descDegraded, descFenced, descStore, descState,
		descRecords, descWaiting, descLost, descStep, descBurntShare, descBudget, descNodeBudget, descForecast, descAlarm, descAlarms,
		descStrategy, descVetoes, descFailures, descUsage, descPrevious, descQuota,
	} {
		ch <- d
	}
	m := c.m.opts.Counters
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
	// A scrape is not to hang with the store.
	ctx, cancel := context.WithTimeout(c.m.opts.Life, time.Second)
	defer cancel()
	state := c.m.Readiness(ctx)
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
	if warnings := c.m.opts.StoreWarnings; warnings != nil {
		for code, n := range warnings() {
			ch <- prometheus.MustNewConstMetric(descWarnings, prometheus.CounterValue, float64(n), code)
		}
	}
	if l := c.m.opts.Ledger; l != nil {
		st := l.Stats()
		emitRecords(ch, "grants", st.Written, st.Waiting, st.Lost)
	}
	if h := c.m.opts.Strategies.History(); h != nil {
		st := h.Stats()
		emitRecords(ch, "history", st.Written, st.Waiting, st.Lost)
	}
	m := c.m.opts.Counters
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
	m := c.m.opts.Counters
	m.mu.Lock()
	others := m.retired
	m.mu.Unlock()
	unused := map[string]bool{} // of the configuration
	for name, t := range c.m.opts.Tags {
		if len(c.m.opts.Tags) <= MaxLabelled && t.IsSegment {
			unused[name] = true
		}
	}
	tags, anyOthers := 0, others.Refills > 0
	for t := range c.m.opts.Source.Tags() {
		tags++
		delete(unused, t.Name)
		switch {
		case t.Own != nil && t.Labelled:
			ch <- prometheus.MustNewConstMetric(descIssued, prometheus.CounterValue, float64(t.Issued), t.Name, "")
			emitMeasures(ch, t.Name, t.Own)
		case !t.IsSegment:
		case t.Labelled:
			emitSegment(ch, t.Name, t.Stats)
		default:
			others, anyOthers = addStats(others, t.Stats), true
		}
	}
	for name := range unused {
		emitSegment(ch, name, hapax.SegmentStats{})
	}
	if anyOthers {
		emitSegment(ch, Others, others)
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

func emitMeasures(ch chan<- prometheus.Metric, tag string, issuer hapax.Issuer) {
	own, ok := issuer.(strategy.Measured)
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
	open := c.m.opts.Source.Pools()
	var others hapax.SnowflakeStats
	for i, name := range c.m.opts.PoolNames {
		if i == MaxLabelled {
			break
		}
		if !isOpen(open, name) {
			ch <- prometheus.MustNewConstMetric(descIssued, prometheus.CounterValue, 0, "", name)
			ch <- prometheus.MustNewConstMetric(descRefills, prometheus.CounterValue, 0, "", name)
		}
	}
	defer func() {
		if others.Grants > 0 {
			ch <- prometheus.MustNewConstMetric(descIssued, prometheus.CounterValue, float64(others.Issued), "", Others)
			ch <- prometheus.MustNewConstMetric(descRefills, prometheus.CounterValue, float64(others.Grants), "", Others)
		}
	}()
	for _, p := range open {
		st := p.Stats
		if !p.Labelled {
			others.Issued += st.Issued
			others.Grants += st.Grants
			continue
		}
		ch <- prometheus.MustNewConstMetric(descIssued, prometheus.CounterValue, float64(st.Issued), "", p.Name)
		ch <- prometheus.MustNewConstMetric(descRefills, prometheus.CounterValue, float64(st.Grants), "", p.Name)
		ch <- prometheus.MustNewConstMetric(descWorker, prometheus.GaugeValue, float64(st.Worker), p.Name)
		ch <- prometheus.MustNewConstMetric(descGrant, prometheus.GaugeValue, st.Remaining.Seconds(), p.Name)
		ch <- prometheus.MustNewConstMetric(descTime, prometheus.GaugeValue, time.Until(st.Ends).Seconds(), p.Name)
		ch <- prometheus.MustNewConstMetric(descOffset, prometheus.GaugeValue, st.Skew.Seconds(), p.Name)
		ch <- prometheus.MustNewConstMetric(descRollback, prometheus.GaugeValue, st.Rollback.Seconds(), p.Name)
		if p.Starts != nil {
			ch <- prometheus.MustNewConstMetric(descStarts, prometheus.GaugeValue, float64(*p.Starts), p.Name)
		}
		if p.Census != nil {
			for _, state := range api.WorkerStates() {
				ch <- prometheus.MustNewConstMetric(descWorkers, prometheus.GaugeValue, float64(p.Census[state]), p.Name, string(state))
			}
		}
	}
}

// maxUsageSeries bounds how many counts of plugins have series of their own.
const maxUsageSeries = 200

func (c collector) plugins(ch chan<- prometheus.Metric) {
	if c.m.opts.OneShot { // of a service beside another, which shows the same
		return
	}
	for _, p := range c.m.opts.Strategies.Plugins() {
		ch <- prometheus.MustNewConstMetric(descVetoes, prometheus.CounterValue, float64(p.Vetoes()), p.Name)
		ch <- prometheus.MustNewConstMetric(descFailures, prometheus.CounterValue, float64(p.Failures()), p.Name)
	}
	type window struct {
		plugin string
		length api.Window
	}
	limited, told := map[window]bool{}, map[[4]string]bool{}
	for _, u := range c.m.opts.Source.Usage(maxUsageSeries) {
		// A label that is not UTF-8 would panic: names may come from a program's own plugins.
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

func (c collector) holders(ch chan<- prometheus.Metric) {
	running := c.m.opts.Source.Holders()
	own := running[:min(len(running), MaxLabelled)]
	for _, l := range own {
		ch <- prometheus.MustNewConstMetric(descHeld, prometheus.GaugeValue, 1, l.Pool, strconv.FormatInt(l.Worker, 10), l.Holder)
	}
	if others := len(running) - len(own); others > 0 {
		ch <- prometheus.MustNewConstMetric(descHeld, prometheus.GaugeValue, float64(others), Others, "", "")
	}
}

// ends tells for how long there will be numbers, and which alarms are up.
func (c collector) ends(ch chan<- prometheus.Metric) {
	least, others := math.Inf(1), forever
	label := func(kind, name string) (tag, pool string) {
		if kind == api.KindTag {
			return name, ""
		}
		return "", name
	}
	for b := range c.m.budgets() {
		least = min(least, inSeconds(b.lasts))
		if !b.labelled {
			others = min(others, b.lasts)
			continue
		}
		tag, pool := label(b.Kind, b.Name)
		ch <- prometheus.MustNewConstMetric(descBudget, prometheus.GaugeValue, inSeconds(b.lasts), tag, pool)
	}
	if others < forever {
		ch <- prometheus.MustNewConstMetric(descBudget, prometheus.GaugeValue, inSeconds(others), Others, "")
	}
	ch <- prometheus.MustNewConstMetric(descNodeBudget, prometheus.GaugeValue, least)
	rest := map[string]float64{}
	c.m.forecasts(func(f forecast) {
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
		ch <- prometheus.MustNewConstMetric(descForecast, prometheus.GaugeValue, in, what, Others, "")
	}
	if c.m.opts.OneShot { // the server's own service has the alarms
		return
	}
	times, up := c.m.alarms.counts()
	for _, name := range signals.Alarms() {
		ch <- prometheus.MustNewConstMetric(descAlarm, prometheus.GaugeValue, float64(up[name]), name)
		ch <- prometheus.MustNewConstMetric(descAlarms, prometheus.CounterValue, float64(times[name]), name)
	}
}
