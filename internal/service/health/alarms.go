package health

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/api"
	"github.com/hapax-id/hapax/internal/signals"
	"github.com/hapax-id/hapax/store/witness"
)

// The alarms. Each has an entry in the runbook; a test holds that.
const (
	AlarmStoreLost      = "store_lost"
	AlarmWentBack       = "store_went_back"
	AlarmNotJoined      = "not_joined"
	AlarmDiskFull       = "disk_full"
	AlarmBudget         = "budget_low"
	AlarmForecast       = "forecast_near"
	AlarmCannot         = "cannot_issue"
	AlarmRollback       = "clock_rollback"
	AlarmSkew           = "clock_skew"
	AlarmWorkers        = "workers_short"
	AlarmPoisoned       = "worker_poisoned"
	AlarmRecords        = "records_waiting"
	AlarmPlugin         = "plugin_failing"
	AlarmBeside         = "beside_down"
	AlarmWrongTokens    = "wrong_tokens"
	AlarmConnections    = "connections_refused"
	AlarmCertificate    = "certificate_near"
	AlarmCertificateBad = "certificate_bad"
	AlarmConfig         = "config_bad"
	AlarmFloor          = "mark_behind_data"
	AlarmUnreadable     = "tag_unreadable"
)

// EventAlarm is the kind of the event that an alarm was raised, and EventAlarmCleared
// that it was cleared; Tag or Pool is what it is about, where that is one of them, and
// Err says what is wrong.
const (
	EventAlarm        hapax.EventKind = "alarm_raised"
	EventAlarmCleared hapax.EventKind = "alarm_cleared"
)

// AlarmRaised is the message of the log for an alarm.
const AlarmRaised = "alarm raised"

// A Condition is that an alarm holds, as of a look.
type Condition struct {
	Alarm, About, Detail string
	// Code is that of the error that is the cause, which says where the runbook tells of
	// it; empty: the alarm does.
	Code hapax.Code
	// After is at how many looks in a row it must hold before the alarm is raised; 0
	// stands for 1.
	After int
}

func (c Condition) see() string { return signals.SeeCause(c.Alarm, string(c.Code)) }

// LookEvery is the time between two looks for alarms, and MaxAlarms how many may be up at the same time.
const (
	LookEvery  = 2 * time.Second
	lookRest   = 20          // times as long as a look took, no other one is made
	soon       = 2           // looks, for troubles that pass within seconds by themselves
	lasting    = 30          // looks: a minute
	remembered = time.Minute // how long an incident keeps its alarm

	MaxAlarms = 100
)

// alarms are those that are up.
type alarms struct {
	mu    sync.Mutex // guards the fields below
	up    map[[2]string]api.Alarm
	seen  map[[2]string]int // at how many looks in a row a condition held
	times map[string]int64  // how often each was raised

	incidents map[string]incident // what happened, by the alarm
}

// An incident is something that happened and is over.
type incident struct {
	at     time.Time
	detail string
}

// happened notes what raises an alarm for a minute.
func (a *alarms) happened(alarm, detail string, at time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.incidents == nil {
		a.incidents = map[string]incident{}
	}
	a.incidents[alarm] = incident{at, detail}
}

// recent returns the condition of a recent event.
func (a *alarms) recent(now time.Time) (all []Condition) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for alarm, m := range a.incidents {
		if now.Sub(m.at) < remembered {
			all = append(all, Condition{Alarm: alarm, Detail: m.detail})
		} else {
			delete(a.incidents, alarm)
		}
	}
	return all
}

// look takes the conditions that hold, and returns which alarms they raise and clear.
func (a *alarms) look(hold []Condition, now time.Time) (raised, cleared []api.Alarm) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.up == nil {
		a.up, a.times = map[[2]string]api.Alarm{}, map[string]int64{}
	}
	seen := map[[2]string]int{}
	for _, c := range hold {
		key := [2]string{c.Alarm, c.About}
		// Two sources may tell of the same: a look counts once.
		if seen[key] > 0 {
			continue
		}
		seen[key] = a.seen[key] + 1
		old, isUp := a.up[key]
		switch {
		case isUp:
			old.Detail, old.See = c.Detail, c.see()
			a.up[key] = old
		// Beyond the bound a condition is counted on, and raised at the first look with room for it.
		case seen[key] >= c.After && len(a.up) < MaxAlarms:
			up := api.Alarm{Name: c.Alarm, About: c.About, Detail: c.Detail, Since: now.UTC(), See: c.see()}
			a.up[key] = up
			a.times[c.Alarm]++
			raised = append(raised, up)
		}
	}
	for key, up := range a.up {
		if seen[key] == 0 {
			delete(a.up, key)
			cleared = append(cleared, up)
		}
	}
	// The counts of this look alone: a condition that did not hold now begins anew.
	a.seen = seen
	slices.SortFunc(raised, compareAlarms)
	slices.SortFunc(cleared, compareAlarms)
	return raised, cleared
}

// list returns the alarms that are up.
func (a *alarms) list() []api.Alarm {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.SortedFunc(maps.Values(a.up), compareAlarms)
}

// counts returns how often each alarm was raised, and how many of it are up.
func (a *alarms) counts() (times map[string]int64, up map[string]int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	up = map[string]int{}
	for key := range a.up {
		up[key[0]]++
	}
	return maps.Clone(a.times), up
}

func compareAlarms(a, b api.Alarm) int {
	return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.About, b.About))
}

// Alarms returns those that are up.
func (m *Monitor) Alarms() []api.Alarm { return m.alarms.list() }

// Happened raises an alarm for a minute, for a server's findings beside its service.
func (m *Monitor) Happened(alarm, detail string) { m.alarms.happened(alarm, detail, m.opts.Now()) }

// lookOut keeps the rates of lines and the alarms, until the service closes.
func (m *Monitor) lookOut() {
	for took := time.Duration(0); ; {
		select {
		case <-m.opts.Life.Done():
			return
		// However many lines there are, looking takes no more than a twentieth of a core.
		case <-time.After(max(cmp.Or(m.opts.Looks, LookEvery), lookRest*took)):
		}
		began := time.Now()
		m.lookAround(m.opts.Life)
		took = time.Since(began)
	}
}

// lookAround takes the rates, and raises and clears alarms.
func (m *Monitor) lookAround(ctx context.Context) {
	now := m.opts.Now()
	m.takeRates(now)
	raised, cleared := m.alarms.look(m.conditions(ctx, now), now)
	for _, a := range raised {
		m.tellAlarm(EventAlarm, a)
	}
	for _, a := range cleared {
		m.tellAlarm(EventAlarmCleared, a)
	}
}

// takeRates notes how fast numbers are taken.
func (m *Monitor) takeRates(now time.Time) {
	for t := range m.opts.Source.Tags() {
		if t.IsSegment {
			t.Rate.look(t.Stats.Issued, now)
		}
	}
	// These are one-shot services, which do not look out by themselves.
	for _, other := range m.opts.Beside {
		other.takeRates(now)
	}
}

// tellAlarm logs an alarm, and tells the observer and who else wants to know.
func (m *Monitor) tellAlarm(kind hapax.EventKind, a api.Alarm) {
	m.opts.Counters.events.WithLabelValues(string(kind)).Inc()
	about := []any{"alarm", a.Name, "about", a.About, "detail", a.Detail, "see", a.See}
	if kind == EventAlarm {
		m.opts.Log.Warn(AlarmRaised, about...)
	} else {
		m.opts.Log.Info("alarm cleared", append(about, "after", m.opts.Now().Sub(a.Since))...)
	}
	if m.opts.Observer != nil {
		m.opts.Observer(hapax.Event{Kind: kind, Tag: a.About, Err: fmt.Errorf("%s: %s", a.Name, a.Detail)})
	}
	if m.opts.Notify != nil {
		m.opts.Notify(a, kind == EventAlarm)
	}
}

// conditions returns what an operator should look at now.
func (m *Monitor) conditions(ctx context.Context, now time.Time) []Condition {
	all := m.alarms.recent(now)
	all = append(all, m.opts.Source.Findings(now)...)
	if m.opts.Conditions != nil {
		all = append(all, m.opts.Conditions(now)...)
	}
	// The heartbeats of a guarded store tell how it is; others are asked.
	var store error
	if GuardOf(m.opts.Store) == nil || Trouble(m.opts.Store) != nil {
		_, store = m.asked(ctx) // a slow one is the alerts' business: it passes with its load
	}
	st, refused := m.stand(store)
	all = append(all, storeConditions(st)...)
	all = append(all, m.lineConditions(m.issuing(st, refused).Cannot, st.Code)...)
	all = append(all, m.poolConditions()...)
	if waiting := m.waitingRecords(); waiting > 0 {
		all = append(all, Condition{Alarm: AlarmRecords, Detail: fmt.Sprintf("%d records are kept in memory", waiting), After: soon})
	}
	if !m.opts.OneShot { // plugins are the server's
		all = append(all, m.pluginConditions(now)...)
	}
	return append(all, m.besideConditions(ctx, now)...)
}

// storeConditions tells how the node stands with its store.
func storeConditions(st witness.Status) []Condition {
	switch {
	case st.Disk != nil: // its code is that of any store that cannot be used
		return []Condition{{Alarm: AlarmDiskFull, Detail: st.Why}}
	case st.State == witness.Fenced || st.State == witness.Refusing:
		return []Condition{{Alarm: AlarmWentBack, Detail: st.Why, Code: st.Code}}
	case st.State == witness.Joining && st.Waits: // likewise
		return []Condition{{Alarm: AlarmNotJoined, Detail: st.Why, After: 8}} // five heartbeats, and more
	case st.State == witness.Joining || st.Code != "":
		return []Condition{{Alarm: AlarmStoreLost, Detail: st.Why, Code: st.Code, After: soon}}
	}
	return nil
}

// Advise returns where the runbook tells of how a node stands with its store, and what an
// operator may do: what the guard knows to be needed, or else the command that looks into
// it. Alarms, readiness, the log and commands all say this.
func Advise(st witness.Status) (see, command string) {
	for _, c := range storeConditions(st) {
		see = c.see()
	}
	if command = st.Command; command == "" && (st.State != witness.Joining || st.Trouble) { // each start joins
		command = signals.CheckOf(see)
	}
	return see, command
}

// lineConditions tells of tags and pools that cannot issue, or not for long, where the
// store's trouble has this code.
func (m *Monitor) lineConditions(cannot []api.Lack, store hapax.Code) (all []Condition) {
	for _, lack := range cannot {
		if lack.Code != store { // the store's trouble has an alarm of its own
			all = append(all, Condition{Alarm: AlarmCannot, About: lack.Name, Detail: string(lack.Code) + ": " + lack.Detail, Code: lack.Code, After: soon})
		}
	}
	if b := least(m.budgets()); b != nil && b.lasts < m.opts.AlarmBudget {
		after := lasting
		// With the store away, it does not pass by itself.
		if store != "" {
			after = soon
		}
		all = append(all, Condition{Alarm: AlarmBudget, About: b.Name, Detail: fmt.Sprintf("the %s can issue for %.1f s without the store", b.Kind, b.Seconds), After: after})
	}
	for _, f := range m.near(m.opts.AlarmForecast, MaxAlarms) {
		all = append(all, Condition{
			Alarm: AlarmForecast, About: f.Name,
			Detail: fmt.Sprintf("%s of the %s will be used up at %s", Ending(f.What), f.Kind, f.Ends.UTC().Format(time.RFC3339)), After: soon,
		})
	}
	return all
}

// besideConditions returns those of a foreign system in the same server.
func (m *Monitor) besideConditions(ctx context.Context, now time.Time) (all []Condition) {
	for name, other := range m.opts.Beside {
		for _, c := range other.conditions(ctx, now) {
			switch c.Alarm {
			case AlarmStoreLost, AlarmWentBack, AlarmNotJoined:
				c.Alarm, c.About, c.Detail = AlarmBeside, name, cmp.Or(c.Detail, "some of its tags went back")
			default:
				c.About = strings.TrimSuffix(name+"/"+c.About, "/")
			}
			all = append(all, c)
		}
	}
	return all
}

// maxSkewAlarm is by how much two clocks may differ before that is an alarm.
const maxSkewAlarm = time.Second

// poolConditions tells of clocks and worker IDs.
func (m *Monitor) poolConditions() (all []Condition) {
	for _, p := range m.opts.Source.Pools() {
		st := p.Stats
		if st.Rollback > 0 {
			all = append(all, Condition{Alarm: AlarmRollback, About: p.Name, Detail: fmt.Sprintf("the wall clock is %v behind", st.Rollback.Round(time.Millisecond))})
		}
		if st.Skew.Abs() > maxSkewAlarm {
			all = append(all, Condition{Alarm: AlarmSkew, About: p.Name, Detail: "the local clock is " + apart(st.Skew) + " the store's", After: soon})
		}
		if p.Census == nil {
			continue
		}
		var size int64
		for _, n := range p.Census {
			size += n
		}
		if free := p.Census[api.WorkerFree]; free*10 < size {
			all = append(all, Condition{Alarm: AlarmWorkers, About: p.Name, Detail: fmt.Sprintf("%d of %d worker IDs are free", free, size)})
		}
		if n := p.Census[api.WorkerPoisoned]; n > 0 {
			all = append(all, Condition{Alarm: AlarmPoisoned, About: p.Name, Detail: fmt.Sprintf("%d worker IDs have time granted far ahead; see hapax workers fix", n)})
		}
	}
	return all
}

// apart says how far one clock is from another, as far as people care.
func apart(ahead time.Duration) string {
	if ahead < 0 {
		return fmt.Sprintf("%v behind", -ahead.Round(100*time.Millisecond))
	}
	return fmt.Sprintf("%v ahead of", ahead.Round(100*time.Millisecond))
}

// waitingRecords returns how many records cannot be written.
func (m *Monitor) waitingRecords() (n int64) {
	if l := m.opts.Ledger; l != nil {
		n += l.Stats().Waiting
	}
	if h := m.opts.Strategies.History(); h != nil {
		n += h.Stats().Waiting
	}
	return n
}

// pluginConditions tells of plugins that failed since the last look.
func (m *Monitor) pluginConditions(now time.Time) (all []Condition) {
	failures := map[string]int64{}
	for _, p := range m.opts.Strategies.Plugins() {
		n := p.Failures()
		failures[p.Name] = n
		if n > m.failures[p.Name].n {
			m.failures[p.Name] = failing{n, now}
		}
		if f := m.failures[p.Name]; f.n > 0 && now.Sub(f.last) < remembered {
			all = append(all, Condition{Alarm: AlarmPlugin, About: p.Name, Detail: fmt.Sprintf("its hooks have failed %d times", n)})
		}
	}
	maps.DeleteFunc(m.failures, func(name string, _ failing) bool { _, ok := failures[name]; return !ok })
	return all
}

// failing is how often a plugin had failed when that was last seen to grow.
type failing struct {
	n    int64
	last time.Time
}
