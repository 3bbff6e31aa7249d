package service

import (
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/api"
	"github.com/hapax-id/hapax/internal/service/health"
	"github.com/hapax-id/hapax/store/storetest"
)

func TestWorkerStates(t *testing.T) {
	opts := Options{looks: time.Hour, Pools: map[string]PoolConfig{"default": {Workers: "5", Split: "service:8:1,rack:2:1"}}}
	bubble(t, opts, func(t *testing.T, s *Service, store *storetest.Faults) {
		status := func() api.WorkerStatus {
			t.Helper()
			st, err := s.WorkerStatus(t.Context(), "default", 5)
			if err != nil {
				t.Fatal(err)
			}
			all, err := s.WorkerStatuses(t.Context(), "default")
			if err != nil || len(all) > 1 || len(all) == 1 && (all[0].State != st.State || !all[0].Free.Equal(st.Free)) {
				t.Errorf("listed are %+v, error %v; the one is %+v", all, err, st)
			}
			return st
		}
		if st := status(); st.State != api.WorkerFree || st.Token != 0 || !st.Free.IsZero() {
			t.Errorf("never used: %+v", st)
		}
		// Somebody else takes the worker and dies.
		clock := s.opts.Clock
		leaf, err := hapax.ParseLayout(hapax.LayoutLeaf)
		if err != nil {
			t.Fatal(err)
		}
		now, _ := clock.Now()
		tick, err := leaf.TickOf(now)
		if err != nil {
			t.Fatal(err)
		}
		req := hapax.AcquireRequest{
			Pool: "default", Layout: leaf, Workers: hapax.WorkerRange{Lo: 5, Hi: 6}, Holder: "other",
			Term: hapax.Term{Now: now, Length: time.Minute, TTL: 10 * time.Second},
		}
		lease, err := store.AcquireWorker(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		until := leaf.TimeOf(tick + 60_000)
		if st := status(); st.State != api.WorkerHeld || !st.Until.Equal(until) || !st.Free.Equal(until) || len(st.Parts) != 2 || st.Parts[0].Value != 1 || st.Parts[1].Value != 1 {
			t.Errorf("held: %+v", st)
		}
		time.Sleep(11 * time.Second)
		if st := status(); st.State != api.WorkerWaiting || !st.Free.Equal(until) {
			t.Errorf("after the lease: %+v", st)
		}
		time.Sleep(time.Minute)
		if st := status(); st.State != api.WorkerFree || !st.Free.IsZero() {
			t.Errorf("after the granted time: %+v", st)
		}
		// And once more, with a clock that is years ahead.
		term := hapax.Term{Now: now.Add(48 * time.Hour), Length: time.Minute, TTL: time.Second}
		lease, err = store.ExtendWorker(t.Context(), lease, leaf, term)
		if err != nil {
			t.Fatal(err)
		}
		if st := status(); st.State != api.WorkerPoisoned {
			t.Errorf("far ahead: %+v", st)
		}
		if _, err := s.Next(t.Context(), SnowflakeTag); !errors.Is(err, hapax.ErrWorkerPoisoned) {
			t.Errorf("with a poisoned worker the error is %v", err)
		}
		if _, err := s.RetireWorker(t.Context(), "default", 5); err != nil {
			t.Fatal(err)
		}
		if st := status(); st.State != api.WorkerRetired || !st.Free.Equal(leaf.TimeOf(lease.Grant.Hi)) || st.Mark != lease.Grant.Hi {
			t.Errorf("retired: %+v", st)
		}
		time.Sleep(2 * time.Second) // a refusal answers for the store that long
		_, err = s.Next(t.Context(), SnowflakeTag)
		if no, ok := errors.AsType[*hapax.NoWorkerError](err); !ok || !no.NextFree.Round(time.Millisecond).After(leaf.TimeOf(lease.Grant.Hi).Add(-time.Second)) {
			t.Errorf("with a retired worker the error is %v", err)
		}
		time.Sleep(48 * time.Hour)
		if st := status(); st.State != api.WorkerFree {
			t.Errorf("when the clock has passed the mark: %+v", st)
		}
		mustNext(t, s, SnowflakeTag)
		if st := status(); st.State != api.WorkerHeld {
			t.Errorf("taken again: %+v", st)
		}
	})
}

func TestWorkerStatusIsChecked(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, s *Service, store *storetest.Faults) {
		for _, id := range []int64{-1, 1024} {
			if _, err := s.WorkerStatus(t.Context(), "default", id); !errors.Is(err, hapax.ErrInvalidArgument) {
				t.Errorf("worker %d: error is %v", id, err)
			}
		}
		if _, err := s.WorkerStatus(t.Context(), "\n", 1); !errors.Is(err, hapax.ErrInvalidTag) {
			t.Errorf("a bad pool: error is %v", err)
		}
		if _, err := s.RetireWorker(t.Context(), "default", 1); !errors.Is(err, hapax.ErrInvalidArgument) {
			t.Errorf("retiring an unused worker: error is %v", err)
		}
	})
}

// The worker IDs in use and free, and the starts that are left, are metrics.
func TestWorkerMetrics(t *testing.T) {
	opts := Options{Pools: map[string]PoolConfig{"default": {Identity: "disposable", Workers: "0-99"}}}
	bubble(t, opts, func(t *testing.T, s *Service, store *storetest.Faults) {
		for range 3 {
			mustNext(t, open(t, store, opts), SnowflakeTag)
		}
		mustNext(t, s, SnowflakeTag)
		synctest.Wait()
		values, _ := gather(t, s)
		for name, want := range map[string]float64{
			"hapax_workers{pool=default,state=held}":     4,
			"hapax_workers{pool=default,state=free}":     1020,
			"hapax_workers{pool=default,state=waiting}":  0,
			"hapax_workers{pool=default,state=retired}":  0,
			"hapax_workers{pool=default,state=poisoned}": 0,
			"hapax_worker_starts_left{pool=default}":     96,
		} {
			if got, ok := values[name]; !ok || got != want {
				t.Errorf("%s is %v, want %v", name, got, want)
			}
		}
		pools, err := s.PoolStatuses(t.Context())
		if err != nil || len(pools) != 1 || pools[0].StartsLeft == nil || *pools[0].StartsLeft != 96 {
			t.Errorf("pools are %+v, error %v", pools, err)
		}
	})
}

// Who holds the worker IDs that were granted to others is a metric, which follows what
// becomes of each lease and is bounded.
func TestHolderMetrics(t *testing.T) {
	opts := Options{Pools: map[string]PoolConfig{"default": {}, "wide": {Layout: "time:41,worker:12,sequence:10,unit=1ms,epoch=2025-01-01T00:00:00Z"}}}
	bubble(t, opts, func(t *testing.T, s *Service, store *storetest.Faults) {
		term := hapax.Term{Length: 20 * time.Second}
		acquire := func(pool string, worker int64, holder string) hapax.Lease {
			t.Helper()
			l, err := s.AcquireWorker(t.Context(), hapax.AcquireRequest{Pool: pool, Workers: hapax.WorkerRange{Lo: worker, Hi: worker + 1}, Holder: holder, Term: term})
			if err != nil {
				t.Fatal(err)
			}
			return l
		}
		const orders = "exec name=orders host=a pid=17 cmd=java run=x7"
		held := func(want map[string]float64) {
			t.Helper()
			got := map[string]float64{}
			values, _ := gather(t, s)
			for name, v := range values {
				if strings.HasPrefix(name, "hapax_worker_held") {
					got[name] = v
				}
			}
			if !maps.Equal(got, want) {
				t.Errorf("holders are %v, want %v", got, want)
			}
		}
		name := func(pool string, worker int64, holder string) string {
			return fmt.Sprintf("hapax_worker_held{holder=%s,pool=%s,worker=%d}", holder, pool, worker)
		}
		held(map[string]float64{})
		mustNext(t, s, SnowflakeTag) // the node's own is no other's
		held(map[string]float64{})
		five, six := acquire("default", 5, orders), acquire("default", 6, "hold host=b pid=1 run=y8")
		held(map[string]float64{name("default", 5, orders): 1, name("default", 6, six.Holder): 1})
		if err := s.SealWorker(t.Context(), six, six.Grant.Lo); err != nil {
			t.Fatal(err)
		}
		time.Sleep(15 * time.Second)
		five, err := s.ExtendWorker(t.Context(), five, hapax.Layout{}, term)
		if err != nil {
			t.Fatal(err)
		}
		expires := five.Expires
		time.Sleep(expires.Sub(s.now()) - time.Second)
		held(map[string]float64{name("default", 5, orders): 1})
		five.Holder = strings.Repeat("\xff", 200)
		if _, err := s.ExtendWorker(t.Context(), five, hapax.Layout{}, term); err == nil {
			held(map[string]float64{name("default", 5, orders): 1})
		}
		time.Sleep(expires.Sub(s.now()))
		held(map[string]float64{})
		want := map[string]float64{"hapax_worker_held{pool=_other}": 20}
		for i := range int64(health.MaxLabelled + 20) {
			acquire("wide", i, "many")
			if i < health.MaxLabelled {
				want[name("wide", i, "many")] = 1
			}
		}
		held(want)
	})
}
