package service

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/service/health"
	"github.com/hapax-id/hapax/internal/signals"
	"github.com/hapax-id/hapax/store/storetest"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"
)

// gather collects the service's metrics by "name{label=value,…}".
func gather(t *testing.T, s *Service) (map[string]float64, []*dto.MetricFamily) {
	t.Helper()
	r := prometheus.NewPedanticRegistry()
	r.MustRegister(s.Collector())
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	values := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				if l.GetValue() != "" {
					labels = append(labels, l.GetName()+"="+l.GetValue())
				}
			}
			v := m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
			values[f.GetName()+"{"+strings.Join(labels, ",")+"}"] = v
		}
	}
	return values, families
}

func TestMetrics(t *testing.T) {
	warned := func() map[string]int { return map[string]int{"not_durable": 2} }
	bubble(t, Options{StoreWarnings: warned}, func(t *testing.T, s *Service, store *storetest.Faults) {
		for range 250 {
			mustNext(t, s, "orders")
		}
		if _, err := s.Reserve(t.Context(), "orders", 800); err != nil { // burns what is left of a grant
			t.Fatal(err)
		}
		mustNext(t, s, SnowflakeTag)
		s.Failed("http", fmt.Errorf("%w: x", hapax.ErrTagNotFound))
		s.Failed("http", errors.New("x"))
		s.observe(hapax.Event{Kind: hapax.EventRollback, Pool: "default"})
		synctest.Wait()
		values, families := gather(t, s)
		for name, want := range map[string]float64{
			"hapax_issued_total{tag=orders}":                  1050,
			"hapax_issued_total{pool=default}":                1,
			"hapax_burnt_total{tag=orders}":                   750,
			"hapax_refills_total{pool=default}":               1,
			"hapax_worker_id{pool=default}":                   0,
			"hapax_grant_remaining_seconds{pool=default}":     10.01,
			"hapax_clock_offset_seconds{pool=default}":        0,
			"hapax_clock_rollback_seconds{pool=default}":      0,
			"hapax_rollbacks_total{pool=default}":             1,
			"hapax_events_total{kind=tag_created}":            2,
			"hapax_errors_total{api=http,code=tag_not_found}": 1,
			"hapax_errors_total{api=http,code=internal}":      1,
			"hapax_waits_total{for=tick}":                     0,
			"hapax_store_warnings_total{code=not_durable}":    2,
			"hapax_tags{}":           2,
			"hapax_ready{}":          1,
			"hapax_refill_seconds{}": values["hapax_refills_total{tag=orders}"] + 1,
		} {
			if got, ok := values[name]; !ok || got != want {
				t.Errorf("%s is %v, want %v", name, got, want)
			}
		}
		for name, least := range map[string]float64{
			"hapax_time_remaining_seconds{pool=default}": 1e9,
			"hapax_waits_total{for=store}":               2, // the first use of each tag
			"hapax_remaining{tag=orders}":                200,
			"hapax_refills_total{tag=orders}":            2,
		} {
			if values[name] < least {
				t.Errorf("%s is %v, want at least %v", name, values[name], least)
			}
		}
		problems, err := promlint.NewWithMetricFamilies(families).Lint()
		if err != nil || len(problems) > 0 {
			t.Errorf("lint: %v, %v", problems, err)
		}
		waits := values["hapax_waits_total{for=store}"]
		store.Down()
		for range 5000 {
			_, _ = s.NextN(t.Context(), "orders", make([]hapax.ID, 1000))
			if values, _ = gather(t, s); values["hapax_ready{}"] == 0 {
				break
			}
		}
		if _, err := s.Next(t.Context(), "orders"); err == nil {
			t.Error("a number without a store")
		}
		values, _ = gather(t, s)
		if values["hapax_ready{}"] != 0 || values["hapax_waits_total{for=store}"] <= waits {
			t.Errorf("used up without a store: ready %v, waits %v after %v", values["hapax_ready{}"], values["hapax_waits_total{for=store}"], waits)
		}
	})
}

// Whatever can be known before it happens is 0 from the start.
func TestSeriesFromTheStart(t *testing.T) {
	options := Options{
		Tags:  map[string]TagConfig{"orders": {}, "events": {Kind: hapax.KindSnowflake}},
		Pools: map[string]PoolConfig{"fast": {}},
	}
	bubble(t, options, func(t *testing.T, s *Service, store *storetest.Faults) {
		s.Counting("http", "route_not_found")
		values, _ := gather(t, s)
		for _, name := range []string{
			"hapax_issued_total{tag=orders}", "hapax_issued_total{pool=fast}", "hapax_issued_total{pool=default}", "hapax_refills_total{pool=fast}",
			"hapax_burnt_total{tag=orders}", "hapax_remaining{tag=orders}", "hapax_rollbacks_total{pool=fast}", "hapax_events_total{kind=rollback}",
			"hapax_errors_total{api=http,code=internal}", "hapax_errors_total{api=http,code=route_not_found}", "hapax_waits_total{for=store}", "hapax_refill_seconds{}",
		} {
			if got, ok := values[name]; !ok || got != 0 {
				t.Errorf("%s is %v, and there: %t", name, got, ok)
			}
		}
		if _, ok := values["hapax_issued_total{tag=events}"]; ok {
			t.Error("a snowflake tag has a series of its own")
		}
		s.Refused("http", "route_not_found")
		mustNext(t, s, "orders")
		values, _ = gather(t, s)
		if values["hapax_errors_total{api=http,code=route_not_found}"] != 1 || values["hapax_issued_total{tag=orders}"] != 1 {
			t.Errorf("after one of each: %v", values)
		}
	})
}

func TestTagLabelsAreCapped(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, s *Service, store *storetest.Faults) {
		mustNext(t, s, health.Others) // must not collide with the label
		for i := range health.MaxLabelled + 20 {
			mustNext(t, s, fmt.Sprintf("tag-%d", i))
		}
		values, families := gather(t, s)
		for _, f := range families {
			if f.GetName() == "hapax_issued_total" && len(f.GetMetric()) != health.MaxLabelled+2 {
				t.Errorf("%d series, want those of %d tags, the others and a pool", len(f.GetMetric()), health.MaxLabelled)
			}
		}
		const others = "hapax_issued_total{tag=" + health.Others + "}"
		if values[others] != 21 {
			t.Errorf("%s is %v, want 21", others, values[others])
		}
		if _, err := s.DeleteTag(t.Context(), fmt.Sprintf("tag-%d", health.MaxLabelled)); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if values, _ = gather(t, s); values[others] != 21 {
			t.Errorf("after a deletion %s is %v, want 21 still", others, values[others])
		}
	})
}

func TestEventsAreLoggedAndThrottled(t *testing.T) {
	var log bytes.Buffer
	opts := Options{Logger: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelInfo}))}
	bubble(t, opts, func(t *testing.T, s *Service, store *storetest.Faults) {
		synctest.Wait()
		log.Reset()
		for range 100 {
			s.observe(hapax.Event{Kind: hapax.EventStoreLost, Tag: "orders", Err: hapax.ErrStoreUnavailable})
		}
		s.observe(hapax.Event{Kind: hapax.EventGrant, Tag: "orders"}) // for debugging only
		if n := strings.Count(log.String(), "\n"); n != throttleLines {
			t.Errorf("%d lines, want %d:\n%s", n, throttleLines, log.String())
		}
		for _, part := range []string{"level=WARN", "event=store_lost", "tag=orders", "err=", "cannot be reached"} {
			if !strings.Contains(log.String(), part) {
				t.Errorf("%q is missing in %s", part, log.String())
			}
		}
		log.Reset()
		time.Sleep(throttleWindow)
		s.observe(hapax.Event{Kind: hapax.EventStoreLost, Tag: "orders"})
		if !strings.Contains(log.String(), "suppressed=90") {
			t.Errorf("what was suppressed is not told: %s", log.String())
		}
		log.Reset()
		s.Failed("http", hapax.ErrTagNotFound)
		s.Failed("http", errors.New("out of cheese"))
		if n := strings.Count(log.String(), "\n"); n != 1 || !strings.Contains(log.String(), "out of cheese") {
			t.Errorf("logged: %s", log.String())
		}
	})
}

func TestAnotherDefinitionInTheStoreIsTold(t *testing.T) {
	var log bytes.Buffer
	opts := Options{
		Logger: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn})),
		Tags:   map[string]TagConfig{"same": {Step: 10}, "other": {Step: 10}},
	}
	bubble(t, opts, func(t *testing.T, s *Service, store *storetest.Faults) {
		if _, err := s.CreateTag(t.Context(), hapax.Tag{Name: "other", Step: 20}, hapax.CreateExplicit); err != nil {
			t.Fatal(err)
		}
		mustNext(t, s, "same")
		mustNext(t, s, SnowflakeTag)
		if log.Len() > 0 {
			t.Errorf("warned in vain: %s", log.String())
		}
		mustNext(t, s, "other")
		if strings.Count(log.String(), "level=WARN") != 1 || !strings.Contains(log.String(), "tag=other") {
			t.Errorf("logged: %s", log.String())
		}
	})
}

// TestLoudEventsAreWorded fails when an event that operators see has no words, or
// one that they have to see is not logged.
func TestLoudEventsAreWorded(t *testing.T) {
	if levels[hapax.EventSuspended] < slog.LevelWarn {
		t.Error("nobody is told that the machine was asleep")
	}
	for kind := range levels {
		if message(kind) == "issuer event" {
			t.Errorf("%s has no message", kind)
		}
	}
}

// Every event's message has an entry in the runbook.
func TestMessagesAreInTheRunbook(t *testing.T) {
	for kind, message := range messages {
		if signals.SeeMessage(message) == "" {
			t.Errorf("the event %s, %q, has no entry", kind, message)
		}
	}
}
