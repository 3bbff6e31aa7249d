package service

import (
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
	"github.com/hapax-id/hapax/internal/service/health"
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
		if b := s.Readiness(t.Context()).Budget; b == nil || b.Kind != api.KindPool || b.Seconds <= 3600 || b.Seconds > 3720 {
			t.Errorf("the budget is %+v; want an hour, and what the issuer has", b)
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
		values, _ := gather(t, s)
		budget := values["hapax_outage_budget_seconds{tag=orders}"]
		if idle := values["hapax_outage_budget_seconds{tag=idle}"]; idle < 3600 {
			t.Errorf("a tag that nobody uses lasts %v s", idle)
		}
		inHand := float64(s.tags.find("orders").segment.Stats().Remaining)
		if math.Abs(budget-inHand/10) > inHand/100 {
			t.Errorf("%v numbers last for %v s at ten a second", inHand, budget)
		}
		if node := values["hapax_node_outage_budget_seconds{}"]; node != budget || budget <= 0 {
			t.Errorf("the node's budget is %v, that of orders %v", node, budget)
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
		if lasted := time.Since(began).Seconds(); math.Abs(lasted-budget) > 0.05*budget+3 {
			t.Errorf("it said %v s, and numbers were over after %v s", budget, lasted)
		}
		time.Sleep(2 * time.Second) // what readiness says may be a second old
		if b := s.Readiness(t.Context()).Budget; b == nil || b.Seconds != 0 {
			t.Errorf("with nothing left the budget is %+v", b)
		}
	})
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
		values, _ := gather(t, s)
		days := func(what, tag string) float64 {
			seconds, ok := values["hapax_forecast_seconds{tag="+tag+",what="+what+"}"]
			if !ok {
				t.Fatalf("no forecast of %s for %s: %v", what, tag, values)
			}
			return seconds / 86400
		}
		for _, c := range []struct {
			what, name string
			days       float64
		}{{"line", "orders", 1_000_000. / 86400}, {"reader", "small", 100_000. / 86400}, {"line", "odd", 1_000_000. / 86400}} {
			if got := days(c.what, c.name); math.Abs(got-c.days) > c.days/8 {
				t.Errorf("%s of %s ends in %v days; want %v", c.what, c.name, got, c.days)
			}
		}
		if got := days("line", "wide"); got < 100*365 {
			t.Errorf("a line of 2^63 numbers ends in %v days", got)
		}
		near := s.Readiness(t.Context()).Forecasts
		if len(near) != 3 || near[0].Name != "small" || near[1].Ends.After(near[2].Ends) {
			t.Errorf("readiness has %+v", near)
		}
		alarms := s.Readiness(t.Context()).Alarms
		if len(alarms) != 3 || alarms[0].Name != health.AlarmForecast || alarms[0].See == "" {
			t.Errorf("the alarms are %+v", alarms)
		}
	})
}

// Whoever reaches the server may ask whether it is ready, as often as they like. That looks
// at the tags in use, and keeps nothing for each of them.
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
	})
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
		Conditions: func(time.Time) []health.Condition {
			if hold.Load() {
				return []health.Condition{{Alarm: health.AlarmConfig, Detail: "at once"}, {Alarm: health.AlarmCertificate, Detail: "later", After: 3}}
			}
			return nil
		},
	}
	bubble(t, opts, func(t *testing.T, s *Service, _ *storetest.Faults) {
		pass := func(looks int) { time.Sleep(time.Duration(looks) * health.LookEvery); synctest.Wait() }
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
		expect("after two looks", notice{health.AlarmConfig, true})
		pass(3)
		expect("after five looks", notice{health.AlarmConfig, true}, notice{health.AlarmCertificate, true})
		if values, _ := gather(t, s); values["hapax_alarm{alarm=config_bad}"] != 1 || values["hapax_alarms_total{alarm=certificate_near}"] != 1 || values["hapax_alarm{alarm=store_lost}"] != 0 {
			t.Errorf("the metrics are %v", values)
		}
		hold.Store(false)
		pass(1)
		expect("when it is over", notice{health.AlarmConfig, true}, notice{health.AlarmCertificate, true}, notice{health.AlarmCertificate, false}, notice{health.AlarmConfig, false})
		s.Happened(health.AlarmWrongTokens, "some")
		pass(2)
		if up := s.Readiness(t.Context()).Alarms; len(up) != 1 || up[0].Name != health.AlarmWrongTokens {
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
		if up := s.Alarms(); len(up) != 0 {
			t.Errorf("at first: %v", up)
		}
		store.Inject(func(storetest.Op) storetest.Fault { return storetest.Fault{Fail: hapax.ErrStoreUnavailable} })
		use(150)
		var names []string
		for _, a := range s.Alarms() {
			names = append(names, a.Name)
		}
		if !slices.Equal(names, []string{health.AlarmBudget, health.AlarmStoreLost}) {
			t.Errorf("without the store: %v", names)
		}
		store.Inject(nil)
		use(100)
		if up := s.Alarms(); len(up) != 0 {
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
		time.Sleep(2 * health.LookEvery)
		if up := s.Alarms(); len(up) != 1 || up[0].Name != health.AlarmPlugin || up[0].About != "late" {
			t.Errorf("the alarms are %v", up)
		}
		fails = false
		mustNext(t, s, "orders")
		time.Sleep(2 * time.Minute)
		if up := s.Alarms(); len(up) != 0 {
			t.Errorf("when it fails no more: %v", up)
		}
	})
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
			var found []api.Forecast
			for _, f := range s.Readiness(t.Context()).Forecasts {
				if f.What == "layout" && f.Name == "short" {
					found = append(found, f)
				}
			}
			if len(found) != 1 || found[0].Kind != api.KindPool || math.Abs(found[0].Ends.Sub(s.now()).Hours()/24-12.1) > 1 {
				t.Errorf("%s: the forecasts are %+v; want one in 12 days", when, found)
			}
			mustNext(t, s, "events")
			time.Sleep(2 * time.Second) // what readiness says may be a second old
		}
	})
}
