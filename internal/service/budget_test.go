package service

import (
	"cmp"
	"context"
	"errors"
	"math"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/api"
	"github.com/hapax-id/hapax/internal/signals"
	"github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/store/storetest"
	"github.com/hapax-id/hapax/strategy"
)

// keeping is a cache in front of the store that has an hour in hand.
type keeping struct{ hapax.WorkerStore }

func (keeping) Spare() time.Duration { return time.Hour }

// What stands between the store and the issuer has time in hand, too.
func TestBudgetOfAKeptGrant(t *testing.T) {
	opts := Options{
		Pools: map[string]PoolConfig{"default": {Grant: time.Minute, MaxGrant: time.Minute, Cache: true}},
		Cache: func(_ context.Context, _ string, store driver.Store) (hapax.WorkerStore, error) {
			return keeping{store}, nil
		},
	}
	bubble(t, opts, func(t *testing.T, s *Service, _ *storetest.Faults) {
		mustNext(t, s, SnowflakeTag)
		for b := range s.budgets() {
			if b.Kind == api.KindPool && (b.lasts <= time.Hour || b.lasts > time.Hour+2*time.Minute) {
				t.Errorf("it lasts %v; want an hour, and what the issuer has", b.lasts)
			}
		}
	})
}

// The budget of a tag is what it has in hand over the present rate, that of a pool its
// granted time; the node's is the least of them, and what nobody uses lasts forever.
func TestOutageBudget(t *testing.T) {
	opts := Options{
		Tags:  map[string]TagConfig{"orders": {Step: 6000, MaxStep: 6000}, "idle": {}},
		Pools: map[string]PoolConfig{"default": {Grant: 5 * time.Minute, MaxGrant: 5 * time.Minute}},
	}
	bubble(t, opts, func(t *testing.T, s *Service, store *storetest.Faults) {
		mustNext(t, s, "idle")
		for range 600 { // ten a second for a minute
			mustNext(t, s, "orders")
			time.Sleep(100 * time.Millisecond)
		}
		store.Inject(func(storetest.Op) storetest.Fault { return storetest.Fault{Fail: hapax.ErrStoreUnavailable} })
		all := slices.SortedFunc(s.budgets(), func(a, b budget) int { return cmp.Compare(a.lasts, b.lasts) })
		if len(all) != 2 || all[0].Name != "orders" || all[1].Name != "idle" || all[1].lasts != forever && all[1].lasts < time.Hour {
			t.Fatalf("got %+v", all)
		}
		inHand := float64(s.tags.find("orders").segment.Stats().Remaining)
		if got := all[0].Seconds; math.Abs(got-inHand/10) > inHand/100 {
			t.Errorf("%v numbers last for %v s at ten a second", inHand, got)
		}
		values, _ := gather(t, s)
		if values["hapax_node_outage_budget_seconds{}"] != values["hapax_outage_budget_seconds{tag=orders}"] || values["hapax_outage_budget_seconds{tag=orders}"] <= 0 {
			t.Errorf("the node's budget is %v, that of orders %v", values["hapax_node_outage_budget_seconds{}"], values["hapax_outage_budget_seconds{tag=orders}"])
		}
		if b := s.Readiness(t.Context()).Budget; b == nil || b.Name != "orders" || b.Kind != api.KindTag {
			t.Errorf("readiness has %+v", b)
		}
		// What it says comes true.
		began := time.Now()
		for {
			if _, err := s.Next(t.Context(), "orders"); err != nil {
				break
			}
			time.Sleep(100 * time.Millisecond)
		}
		if lasted := time.Since(began).Seconds(); math.Abs(lasted-all[0].Seconds) > 0.05*all[0].Seconds+3 {
			t.Errorf("it said %v s, and numbers were over after %v s", all[0].Seconds, lasted)
		}
		if b := least(s.budgets()); b == nil || b.Seconds != 0 {
			t.Errorf("with nothing left the budget is %+v", b)
		}
	})
}

// The first look at a line may come right after it was opened.
func TestFirstRate(t *testing.T) {
	opened := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	r := rate{looked: opened}
	r.look(6, opened.Add(10*time.Millisecond))
	if got := r.now(); got != 3 {
		t.Errorf("six numbers in the first moments are a rate of %v a second; want 3", got)
	}
	r.look(9, opened.Add(1010*time.Millisecond))
	if got := r.now(); math.Abs(got-3) > 1e-9 {
		t.Errorf("three numbers in the next second make it %v; want 3", got)
	}
}

func TestForecasts(t *testing.T) {
	opts := Options{Tags: map[string]TagConfig{
		"orders": {Start: hapax.MaxMark - 1_000_000}, "small": {Start: 1<<31 - 100_000, ReaderBits: 31}, "wide": {},
		"odd": {Start: hapax.MaxMark - 2_000_001, Delta: 2, Remainder: 1},
	}}
	bubble(t, opts, func(t *testing.T, s *Service, _ *storetest.Faults) {
		for range 60 {
			for _, tag := range []string{"orders", "small", "wide", "odd"} {
				mustNext(t, s, tag)
			}
			time.Sleep(time.Second)
		}
		find := func(what, name string) forecast {
			var all []forecast
			s.forecasts(func(f forecast) { all = append(all, f) })
			i := slices.IndexFunc(all, func(f forecast) bool { return f.What == what && f.Name == name })
			if i < 0 {
				t.Fatalf("no forecast of %s for %s: %+v", what, name, all)
			}
			return all[i]
		}
		for _, c := range []struct {
			what, name string
			days       float64
		}{{endsLine, "orders", 1_000_000. / 86400}, {endsReader, "small", 100_000. / 86400}, {endsLine, "odd", 1_000_000. / 86400}} {
			if got := find(c.what, c.name).in.Hours() / 24; math.Abs(got-c.days) > c.days/8 {
				t.Errorf("%s of %s ends in %v days; want %v", c.what, c.name, got, c.days)
			}
		}
		if got := find(endsLine, "wide").in; got < 100*365*24*time.Hour {
			t.Errorf("a line of 2^63 numbers ends in %v", got)
		}
		near := s.Readiness(t.Context()).Forecasts
		if len(near) != 3 || near[0].Name != "small" || near[1].Ends.After(near[2].Ends) {
			t.Errorf("readiness has %+v", near)
		}
		if two := s.near(shownAhead, 2); len(two) != 2 || two[0].Name != "small" {
			t.Errorf("the first two are %+v", two)
		}
		alarms := s.Readiness(t.Context()).Alarms
		if len(alarms) != 3 || alarms[0].Name != AlarmForecast || alarms[0].See == "" {
			t.Errorf("the alarms are %+v", alarms)
		}
	})
}

// Whoever reaches the server may ask whether it is ready, as often as they like. That looks
// at the tags in use, and keeps nothing for each of them; how long numbers last is looked at
// once a second, and told in between.
func TestReadinessOfManyTags(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, s *Service, _ *storetest.Faults) {
		use := func(n int) float64 {
			for i := range n {
				mustNext(t, s, "tag-"+strconv.Itoa(i))
			}
			return testing.AllocsPerRun(10, func() { s.Readiness(t.Context()) })
		}
		one := use(1)
		if many := use(3000); many > one+5 {
			t.Errorf("readiness allocates %v times with one tag, and %v with 3,000", one, many)
		}
		time.Sleep(2 * outlookAge)
		if now := s.outlook(); now != s.outlook() || time.Since(now.at) > 0 {
			t.Errorf("an outlook is made %v before it is asked for, or with each question", time.Since(now.at))
		}
		time.Sleep(2 * outlookAge)
		if age := time.Since(s.outlook().at); age > 0 {
			t.Errorf("an outlook of %v ago is told", age)
		}
	})
}

// A layout's numbers outgrow a reader when their time does.
func TestOutgrows(t *testing.T) {
	for _, c := range []struct {
		spec      string
		constants map[string]int64
		bits      int
		tick      int64 // -1: never
	}{
		{"time:41,worker:10,sequence:12", nil, 53, 1 << 31},
		{"time:31,worker:10,sequence:12", nil, 53, -1},
		{"type:2,time:31,worker:10,sequence:12", map[string]int64{"type": 0}, 53, -1},
		{"type:2,time:31,worker:8,sequence:12", map[string]int64{"type": 1}, 52, 1 << 31},
		{"type:2,time:31,worker:10,sequence:12", map[string]int64{"type": 2}, 53, 0},
	} {
		layout, err := hapax.ParseLayout(c.spec + ",unit=1ms,epoch=2020-01-01T00:00:00Z")
		if err != nil {
			t.Fatal(err)
		}
		at, ok := outgrows(layout, c.constants, c.bits)
		want := layout.TimeOf(c.tick)
		if ok != (c.tick >= 0 && c.tick < layout.EndTick()) || ok && !at.Equal(want) {
			t.Errorf("%s %v with %d bits: %v, %v; want tick %d, %v", c.spec, c.constants, c.bits, at, ok, c.tick, want)
		}
	}
}

// Worker IDs that get fewer end, and so do those that each start uses up.
func TestWorkersEnd(t *testing.T) {
	p, now := &pool{}, time.Date(2026, 1, 8, 0, 0, 0, 0, time.UTC)
	statuses := make([]api.WorkerStatus, 14)
	for i := range statuses {
		statuses[i] = api.WorkerStatus{ID: int64(i), Until: now.Add(-7 * 24 * time.Hour).Add(time.Duration(i+1) * 12 * time.Hour)}
	}
	free, elapsed, started := int64(100), time.Duration(0), 0.0
	count := func(after time.Duration, fewer int64) time.Duration {
		free, elapsed = free-fewer, elapsed+after
		p.used(statuses, free, now.Add(elapsed), elapsed)
		use := p.use.Load()
		return lasts(float64(use.free), use.taken).Round(time.Minute)
	}
	for _, step := range []struct {
		what  string
		after time.Duration
		fewer int64
		want  time.Duration
	}{
		{"the first count", 0, 0, forever},
		{"a fleet that has started", 10 * time.Minute, 20, forever},
		{"the next count", 10 * time.Minute, 0, forever},
		{"a node more", 10 * time.Minute, 1, forever},
		{"a third time", 10 * time.Minute, 1, 78 * 40 / 22 * time.Minute},
		{"within a count", 5 * time.Minute, 3, 75 * 45 / 25 * time.Minute},
		{"some are free again", 5 * time.Minute, -25, forever},
		{"a day without", 25 * time.Hour, 0, forever},
	} {
		got := count(step.after, step.fewer)
		if started == 0 {
			started = p.use.Load().started
		}
		if apart := (got - step.want).Abs(); apart > 3*time.Minute {
			t.Errorf("%s: they last %v, want %v", step.what, got, step.want)
		}
	}
	for range 200 {
		count(10*time.Minute, 0)
	}
	if n := len(p.counts); n > 145 {
		t.Errorf("%d counts are kept", n)
	}
	big := &pool{}
	for i := range int64(10) { // a node an hour, of a thousand
		big.used(nil, 1000-i, now, time.Duration(i)*time.Hour)
	}
	if use := big.use.Load(); use.taken != 0 {
		t.Errorf("few of many are a rate: %+v", use)
	}
	if got := lasts(90, started).Hours() / 24; got < 40 || got > 50 { // two a day
		t.Errorf("90 starts last %v days", got)
	}
}

// An alarm is raised when it has held for long enough, told once, and cleared.
func TestAlarms(t *testing.T) {
	type notice struct {
		name   string
		raised bool
	}
	var (
		mu   sync.Mutex // guards told
		told []notice
		hold atomic.Bool
	)
	opts := Options{
		Notify: func(a api.Alarm, raised bool) {
			mu.Lock()
			defer mu.Unlock()
			told = append(told, notice{a.Name, raised})
		},
		Conditions: func(time.Time) []Condition {
			if hold.Load() {
				return []Condition{{Alarm: AlarmConfig, Detail: "at once"}, {Alarm: AlarmCertificate, Detail: "later", After: 3}}
			}
			return nil
		},
	}
	bubble(t, opts, func(t *testing.T, s *Service, _ *storetest.Faults) {
		pass := func(looks int) { time.Sleep(time.Duration(looks) * lookEvery); synctest.Wait() }
		expect := func(when string, want ...notice) {
			t.Helper()
			mu.Lock()
			defer mu.Unlock()
			if !slices.Equal(told, want) {
				t.Errorf("%s: %v; want %v", when, told, want)
			}
		}
		pass(3)
		expect("at first")
		hold.Store(true)
		pass(2)
		expect("after two looks", notice{AlarmConfig, true})
		pass(3)
		expect("after five looks", notice{AlarmConfig, true}, notice{AlarmCertificate, true})
		if values, _ := gather(t, s); values["hapax_alarm{alarm=config_bad}"] != 1 || values["hapax_alarms_total{alarm=certificate_near}"] != 1 || values["hapax_alarm{alarm=store_lost}"] != 0 {
			t.Errorf("the metrics are %v", values)
		}
		hold.Store(false)
		pass(1)
		expect("when it is over", notice{AlarmConfig, true}, notice{AlarmCertificate, true}, notice{AlarmCertificate, false}, notice{AlarmConfig, false})
		s.Happened(AlarmWrongTokens, "some")
		pass(2)
		if up := s.Readiness(t.Context()).Alarms; len(up) != 1 || up[0].Name != AlarmWrongTokens {
			t.Errorf("after it happened: %v", up)
		}
		pass(40)
		if up := s.Readiness(t.Context()).Alarms; len(up) != 0 {
			t.Errorf("a minute after it happened: %v", up)
		}
	})
}

// A store that is lost is an alarm, and a budget that is nearly used up at once, too.
func TestAlarmsOfAStoreThatIsLost(t *testing.T) {
	opts := Options{Tags: map[string]TagConfig{"orders": {Step: 100, MaxStep: 100}}}
	bubble(t, opts, func(t *testing.T, s *Service, store *storetest.Faults) {
		use := func(n int) {
			for range n {
				_, _ = s.Next(t.Context(), "orders")
				time.Sleep(100 * time.Millisecond)
			}
		}
		use(100)
		if up := s.alarms.list(); len(up) != 0 {
			t.Errorf("at first: %v", up)
		}
		store.Inject(func(storetest.Op) storetest.Fault { return storetest.Fault{Fail: hapax.ErrStoreUnavailable} })
		use(150)
		var names []string
		for _, a := range s.alarms.list() {
			names = append(names, a.Name)
		}
		if !slices.Equal(names, []string{AlarmBudget, AlarmStoreLost}) {
			t.Errorf("without the store: %v", names)
		}
		store.Inject(nil)
		use(100)
		if up := s.alarms.list(); len(up) != 0 {
			t.Errorf("when the store is back: %v", up)
		}
	})
}

// A plugin that fails is an alarm for a minute.
func TestAlarmOfAPluginThatFails(t *testing.T) {
	fails := true
	r := newStrategies(t, strategy.Plugin{Name: "late", Before: func(context.Context, strategy.Call) error {
		if fails {
			panic("it is broken")
		}
		return nil
	}})
	bubble(t, Options{Strategies: r}, func(t *testing.T, s *Service, _ *storetest.Faults) {
		if _, err := s.Next(t.Context(), "orders"); !errors.Is(err, strategy.ErrPluginFailed) {
			t.Errorf("the hook's failure is %v", err)
		}
		time.Sleep(2 * lookEvery)
		if up := s.alarms.list(); len(up) != 1 || up[0].Name != AlarmPlugin || up[0].About != "late" {
			t.Errorf("the alarms are %v", up)
		}
		fails = false
		mustNext(t, s, "orders")
		time.Sleep(2 * time.Minute)
		if up := s.alarms.list(); len(up) != 0 {
			t.Errorf("when it fails no more: %v", up)
		}
	})
}

// Every alarm, and every event's message, has an entry in the runbook.
func TestAlarmsAreInTheRunbook(t *testing.T) {
	known := []string{
		AlarmStoreLost, AlarmWentBack, AlarmNotJoined, AlarmDiskFull, AlarmBudget, AlarmForecast, AlarmCannot, AlarmRollback, AlarmSkew, AlarmWorkers,
		AlarmPoisoned, AlarmRecords, AlarmPlugin, AlarmBeside, AlarmWrongTokens, AlarmConnections, AlarmCertificate, AlarmCertificateBad, AlarmConfig, AlarmFloor, AlarmUnreadable,
	}
	slices.Sort(known)
	if all := signals.Alarms(); !slices.Equal(all, known) {
		t.Errorf("the runbook has the alarms %q, the service %q", all, known)
	}
	for kind, message := range messages {
		if signals.SeeMessage(message) == "" {
			t.Errorf("the event %s, %q, has no entry", kind, message)
		}
	}
}

// The time of a configured pool passes before anybody uses it, and is told once, also when
// somebody does.
func TestForecastOfAnUnusedPool(t *testing.T) {
	opts := Options{
		Tags:  map[string]TagConfig{"events": {Kind: hapax.KindSnowflake, Pool: "short"}},
		Pools: map[string]PoolConfig{"short": {Layout: "time:20,worker:10,sequence:12,unit=1s,epoch=2026-01-01T00:00:00Z"}},
	}
	bubble(t, opts, func(t *testing.T, s *Service, _ *storetest.Faults) {
		for _, when := range []string{"unused", "used"} {
			var found []forecast
			for _, f := range s.near(15*24*time.Hour, maxShown) {
				if f.What == endsLayout && f.Name == "short" {
					found = append(found, f)
				}
			}
			if len(found) != 1 || found[0].Kind != api.KindPool || math.Abs(found[0].in.Hours()/24-12.1) > 1 {
				t.Errorf("%s: the forecasts are %+v; want one in 12 days", when, found)
			}
			mustNext(t, s, "events")
		}
	})
}
