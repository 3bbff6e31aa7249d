package service

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/storetest"
)

// workerOf returns the worker ID in a number of the default layout.
func workerOf(t *testing.T, s *Service, id hapax.ID) int64 {
	t.Helper()
	p, err := s.Parse(id, "leaf")
	if err != nil {
		t.Fatal(err)
	}
	v, _ := p.Fields.Get("worker")
	return v
}

// The identity, the range and the parts of a pool settle the worker ID.
func TestIdentity(t *testing.T) {
	t.Setenv("HAPAX_TEST_WORKER", "12")
	t.Setenv("HAPAX_TEST_RACK", "3")
	for name, c := range map[string]struct {
		pool PoolConfig
		want int64
	}{
		"default":              {PoolConfig{}, 0},
		"pool, its part":       {PoolConfig{Identity: "pool", Workers: "924-1023"}, 924},
		"fixed":                {PoolConfig{Identity: "fixed:7"}, 7},
		"env":                  {PoolConfig{Identity: "env:HAPAX_TEST_WORKER"}, 12},
		"list":                 {PoolConfig{Identity: "list:9,5"}, 5},
		"disposable, its part": {PoolConfig{Identity: "disposable", Workers: "100-199"}, 100},
		"split":                {PoolConfig{Split: "service:8:1,rack:2:1"}, 5},
		"split, rack fixed":    {PoolConfig{Split: "service:8:1,rack:2:1", Parts: map[string]string{"rack": "env:HAPAX_TEST_RACK"}}, 1<<2 | 3},
		"split, all fixed":     {PoolConfig{Split: "service:8:1,rack:2:1", Parts: map[string]string{"rack": "2", "service": "env:HAPAX_TEST_WORKER"}}, 12<<2 | 2},
		"split in a range":     {PoolConfig{Split: "service:8:1,rack:2:1", Workers: "924-1023", Parts: map[string]string{"rack": "1"}}, 925},
	} {
		t.Run(name, func(t *testing.T) {
			opts := Options{Pools: map[string]PoolConfig{"default": c.pool}}
			if err := opts.CheckIdentities(t.Context()); err != nil {
				t.Error(err)
			}
			bubble(t, opts, func(t *testing.T, s *Service, store *storetest.Faults) {
				if got := workerOf(t, s, mustNext(t, s, SnowflakeTag)); got != c.want {
					t.Errorf("the worker is %d, want %d", got, c.want)
				}
			})
		})
	}
}

// What leads to no worker ID is an error that names the setting, at the start
// and where a number is asked for; it is never worker 0.
func TestIdentityFails(t *testing.T) {
	t.Setenv("HAPAX_TEST_WORKER", "0x5")
	for name, c := range map[string]struct {
		pool  PoolConfig
		field string
		text  string
	}{
		"unset":              {PoolConfig{Identity: "env:HAPAX_TEST_NO_SUCH"}, "pools.default.identity", "HAPAX_TEST_NO_SUCH is not set"},
		"no number":          {PoolConfig{Identity: "env:HAPAX_TEST_WORKER"}, "pools.default.identity", `"0x5"`},
		"no ordinal":         {PoolConfig{Identity: "statefulset:5000"}, "pools.default.identity", ""},
		"not here":           {PoolConfig{Identity: "address:203.0.113.9"}, "pools.default.identity", "no address of this host"},
		"part unset":         {PoolConfig{Split: "a:5,b:5", Parts: map[string]string{"a": "env:HAPAX_TEST_NO_SUCH"}}, "pools.default.parts.a", "HAPAX_TEST_NO_SUCH is not set"},
		"nothing left":       {PoolConfig{Split: "a:5,b:5", Workers: "0-31", Parts: map[string]string{"a": "1"}}, "pools.default.parts", ""},
		"part against fixed": {PoolConfig{Split: "a:5,b:5", Identity: "fixed:0", Parts: map[string]string{"a": "1"}}, "pools.default.parts", ""},
	} {
		t.Run(name, func(t *testing.T) {
			opts := Options{Pools: map[string]PoolConfig{"default": c.pool}}
			check := func(err error) {
				t.Helper()
				v, ok := errors.AsType[*hapax.ValueError](err)
				if !ok || v.Field != c.field || !strings.Contains(err.Error(), c.text) {
					t.Errorf("error is %v; want one for %s that tells %s", err, c.field, c.text)
				}
			}
			check(opts.CheckIdentities(t.Context()))
			bubble(t, opts, func(t *testing.T, s *Service, store *storetest.Faults) {
				id, err := s.Next(t.Context(), SnowflakeTag)
				if err == nil {
					t.Fatalf("issued %d of worker %d", id, workerOf(t, s, id))
				}
				check(err)
			})
		})
	}
}

// A start uses up one worker ID, however often the store has to be asked.
func TestDisposableIsAskedOnce(t *testing.T) {
	opts := Options{Pools: map[string]PoolConfig{"default": {Identity: "disposable"}}}
	bubble(t, opts, func(t *testing.T, s *Service, store *storetest.Faults) {
		store.Inject(func(op storetest.Op) storetest.Fault {
			if op.Method == "AcquireWorker" {
				return storetest.Fault{Fail: hapax.ErrStoreUnavailable}
			}
			return storetest.Fault{}
		})
		for range 5 {
			if _, err := s.Next(t.Context(), SnowflakeTag); !errors.Is(err, hapax.ErrStoreUnavailable) {
				t.Fatalf("error is %v", err)
			}
			time.Sleep(20 * time.Second)
		}
		store.Inject(nil)
		if got := workerOf(t, s, mustNext(t, s, SnowflakeTag)); got != 0 {
			t.Errorf("the worker is %d after one start", got)
		}
		next := open(t, store, opts)
		if got := workerOf(t, next, mustNext(t, next, SnowflakeTag)); got != 1 {
			t.Errorf("the worker is %d after two starts", got)
		}
	})
}

// When every worker ID is used up, the error tells by how many starts.
func TestDisposableUsedUp(t *testing.T) {
	opts := Options{Pools: map[string]PoolConfig{"default": {Identity: "disposable", Workers: "0-1"}}}
	bubble(t, opts, func(t *testing.T, s *Service, store *storetest.Faults) {
		mustNext(t, s, SnowflakeTag)
		second := open(t, store, opts)
		mustNext(t, second, SnowflakeTag)
		third := open(t, store, opts)
		_, err := third.Next(t.Context(), SnowflakeTag)
		if !errors.Is(err, hapax.ErrLineExhausted) || !strings.Contains(err.Error(), "this was start 3") || !strings.Contains(err.Error(), "pools.default") {
			t.Errorf("error is %v", err)
		}
	})
}

// Nodes with a list roll along it: each has one of its worker IDs.
func TestListIsShared(t *testing.T) {
	opts := Options{Pools: map[string]PoolConfig{"default": {Identity: "list:3,9"}}}
	bubble(t, opts, func(t *testing.T, s *Service, store *storetest.Faults) {
		got := []int64{workerOf(t, s, mustNext(t, s, SnowflakeTag))}
		second := open(t, store, opts)
		got = append(got, workerOf(t, second, mustNext(t, second, SnowflakeTag)))
		slices.Sort(got)
		if !slices.Equal(got, []int64{3, 9}) {
			t.Errorf("the workers are %v", got)
		}
		third := open(t, store, opts)
		_, err := third.Next(t.Context(), SnowflakeTag)
		if no, ok := errors.AsType[*hapax.NoWorkerError](err); !ok || no.Size != 2 {
			t.Errorf("error is %v", err)
		}
	})
}
