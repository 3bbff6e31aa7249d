package service

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/api"
	"github.com/hapax-id/hapax/identity"
	"github.com/hapax-id/hapax/internal/service/health"
	"github.com/hapax-id/hapax/store/memstore"
	"github.com/hapax-id/hapax/store/storetest"
)

// A store that does not answer is told at once, and what is granted still counts.
func TestReadinessIsToldAtOnce(t *testing.T) {
	opts := Options{Tags: map[string]TagConfig{"orders": {}}, Pools: map[string]PoolConfig{"default": {Workers: "5", Grant: 3 * time.Second}}}
	bubble(t, opts, func(t *testing.T, s *Service, store *storetest.Faults) {
		mustNext(t, s, "orders")
		mustNext(t, s, SnowflakeTag)
		store.Inject(func(storetest.Op) storetest.Fault { return storetest.Fault{Before: time.Hour} })
		time.Sleep(10 * time.Second)
		began := time.Now()
		r := s.Readiness(t.Context())
		if waited := time.Since(began); waited > health.AskFor {
			t.Errorf("it waited %v", waited)
		}
		if !r.Ready || !r.Degraded || r.Store != "store_unavailable" || len(r.Cannot) != 1 || r.Cannot[0].Kind != api.KindPool || r.Cannot[0].Name != "default" {
			t.Errorf("got %+v", r)
		}
		store.Inject(nil)
		time.Sleep(10 * time.Second)
		if r := s.Readiness(t.Context()); !r.Ready || r.Degraded || r.Store != "ok" {
			t.Errorf("when the store is back: %+v", r)
		}
	})
}

// slowStore is what is said of a store that is slow.
const slowStore = "the store is slow: it did not answer within 250ms"

// A store that is slow is told as that, and a node that issues stays ready.
func TestSlowStoreIsNotLost(t *testing.T) {
	opts := Options{Tags: map[string]TagConfig{"orders": {Step: 1, MaxStep: 1}}}
	bubble(t, opts, func(t *testing.T, s *Service, store *storetest.Faults) {
		mustNext(t, s, "orders")
		store.Inject(func(storetest.Op) storetest.Fault { return storetest.Fault{Before: 2 * health.AskFor} })
		for range 5 {
			mustNext(t, s, "orders")
			r, st := s.Readiness(t.Context()), s.Standing(t.Context())
			if !r.Ready || !r.Degraded || r.Store != "ok" || r.StoreDetail != slowStore || len(r.Cannot) != 0 || !strings.HasSuffix(r.See, "#store-slow") {
				t.Errorf("got %+v", r)
			}
			if st.Code != "" || st.Why != slowStore {
				t.Errorf("the status is %+v", st)
			}
			time.Sleep(10 * time.Second)
		}
		if alarms := s.Alarms(); len(alarms) != 0 {
			t.Errorf("alarms: %+v", alarms)
		}
		store.Inject(nil)
		time.Sleep(10 * time.Second)
		if r := s.Readiness(t.Context()); !r.Ready || r.Degraded || r.StoreDetail != "" || r.See != "" {
			t.Errorf("when it is fast again: %+v", r)
		}
	})
}

// A tag that the store refuses is told, while others issue.
func TestReadinessTellsRefusals(t *testing.T) {
	opts := Options{Tags: map[string]TagConfig{"orders": {Step: 1, MaxStep: 1}, "users": {}}}
	bubble(t, opts, func(t *testing.T, s *Service, store *storetest.Faults) {
		mustNext(t, s, "users")
		store.Inject(func(op storetest.Op) storetest.Fault {
			if op.Method == "Allocate" {
				return storetest.Fault{Fail: hapax.ErrStoreRolledBack}
			}
			return storetest.Fault{}
		})
		for _, tag := range []string{"orders", "unlisted"} {
			if _, err := s.Next(t.Context(), tag); !errors.Is(err, hapax.ErrStoreRolledBack) {
				t.Fatalf("Next: %v", err)
			}
		}
		r := s.Readiness(t.Context())
		if !r.Ready || !r.Degraded || len(r.Cannot) != 2 || r.Cannot[0].Name != "orders" || r.Cannot[0].Code != "store_rolled_back" || r.Cannot[1].Name != "unlisted" {
			t.Errorf("got %+v", r)
		}
		if values, _ := gather(t, s); values["hapax_degraded{kind=tag}"] != 2 {
			t.Errorf("hapax_degraded is %v", values)
		}
		store.Inject(nil)
		time.Sleep(2 * refusalLife)
		mustNext(t, s, "orders")
		mustNext(t, s, "unlisted")
		if r := s.Readiness(t.Context()); r.Degraded {
			t.Errorf("after a grant: %+v", r)
		}
	})
}

// A caller whose store does not answer is told so, and not that a grant is under way.
func TestSilentStoreIsNamed(t *testing.T) {
	for _, tag := range []string{"orders", SnowflakeTag} {
		for _, warm := range []bool{false, true} {
			opts := Options{Tags: map[string]TagConfig{"orders": {Step: 1, MaxStep: 1}}, Pools: map[string]PoolConfig{"default": {Workers: "5"}}}
			bubble(t, opts, func(t *testing.T, s *Service, store *storetest.Faults) {
				if warm {
					mustNext(t, s, tag)
				}
				store.Inject(func(storetest.Op) storetest.Fault { return storetest.Fault{Before: time.Hour} })
				if warm {
					time.Sleep(10 * time.Minute) // until the grant is over
				}
				var err error
				for range 3 { // the first may still take what was granted
					if _, err = s.Next(t.Context(), tag); err != nil {
						break
					}
				}
				if !errors.Is(err, hapax.ErrStoreUnavailable) || !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("%s, warm %v: %v", tag, warm, err)
				}
			})
		}
	}
}

// A pool is made only as it is configured.
func TestPoolsAreMadeAsConfigured(t *testing.T) {
	misspelt := Options{Tags: map[string]TagConfig{"u": {Kind: hapax.KindSnowflake, Pool: "nopool"}}, Pools: map[string]PoolConfig{"nopol": {}}}
	if err := misspelt.Validate(); !errors.Is(err, hapax.ErrInvalidArgument) ||
		!strings.Contains(err.Error(), `invalid tags.u.pool "nopool": want a pool that is configured under pools (default, nopol)`) {
		t.Errorf("a tag of a pool that is not configured: %v", err)
	}
	opts := Options{Pools: map[string]PoolConfig{"wide": {Layout: hapax.LayoutCosIDSecond}}}
	store := memstore.New()
	s := open(t, store, opts)
	pools := func() (names []string) {
		stored, err := store.Pools(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range stored {
			names = append(names, p.Name)
		}
		return names
	}
	_, err := s.CreateTag(t.Context(), hapax.Tag{Name: "u", Kind: hapax.KindSnowflake, Pool: "wid"}, hapax.CreateExplicit)
	if !errors.Is(err, hapax.ErrInvalidArgument) {
		t.Errorf("a tag of an unknown pool: %v", err)
	}
	acquire := func(pool, layout string) error {
		l, err := hapax.ParseLayout(layout)
		if err != nil {
			t.Fatal(err)
		}
		_, err = s.AcquireWorker(t.Context(), hapax.AcquireRequest{
			Pool: pool, Layout: l, Workers: hapax.WorkerRange{Hi: 4}, Holder: "client", Term: hapax.Term{Length: time.Second},
		})
		return err
	}
	if err := acquire("wid", hapax.LayoutLeaf); !errors.Is(err, hapax.ErrInvalidArgument) {
		t.Errorf("a lease of an unknown pool: %v", err)
	}
	if err := acquire("wide", hapax.LayoutLeaf); !errors.Is(err, hapax.ErrLayoutMismatch) {
		t.Errorf("a lease with another layout than is configured: %v", err)
	}
	if err := acquire(hapax.DefaultPool, hapax.LayoutCosIDSecond); !errors.Is(err, hapax.ErrLayoutMismatch) {
		t.Errorf("a lease of the default pool with another layout: %v", err)
	}
	if got := pools(); len(got) != 0 {
		t.Errorf("pools %v were made", got)
	}
	if err := acquire("wide", hapax.LayoutCosIDSecond); err != nil || !slices.Equal(pools(), []string{"wide"}) {
		t.Errorf("a lease as configured: %v, pools %v", err, pools())
	}
	stored, err := store.Pools(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for layout, want := range map[string]error{"": nil, hapax.LayoutCosIDSecond: nil, hapax.LayoutLeaf: hapax.ErrLayoutMismatch} {
		o := Options{Pools: map[string]PoolConfig{"wide": {Layout: layout}}}
		if err := o.CheckPools(stored); !errors.Is(err, want) {
			t.Errorf("configured as %q: %v", layout, err)
		}
	}
}

// A node with one worker ID issues through an outage of a quarter of its grant, whenever
// that begins, and after a crash waits for a grant at most.
func TestOneWorkerRidesOutAnOutage(t *testing.T) {
	for _, test := range []struct {
		pool  PoolConfig
		grant time.Duration
	}{
		{PoolConfig{Identity: "fixed:5"}, identity.FixedGrant},
		{PoolConfig{Workers: "5"}, identity.FixedGrant},
		{PoolConfig{Identity: "fixed:5", Grant: time.Minute}, time.Minute},
	} {
		opts := Options{Pools: map[string]PoolConfig{"default": test.pool}, Holder: "me"}
		bubble(t, opts, func(t *testing.T, s *Service, store *storetest.Faults) {
			ended, end := context.WithCancel(t.Context())
			end()
			mustNext(t, s, SnowflakeTag)
			for range 20 {
				time.Sleep(test.grant/20*21 + time.Millisecond)
				store.Down()
				over := time.Now().Add(test.grant/identity.OutageShare - 20*time.Millisecond)
				for time.Now().Before(over) {
					if _, err := s.Next(ended, SnowflakeTag); errors.Is(err, hapax.ErrStoreUnavailable) {
						t.Fatalf("%+v: %v", test.pool, err)
					}
					time.Sleep(test.grant / 50)
				}
				store.Up()
			}
			began := time.Now()
			other := open(t, store, opts) // the first one never says goodbye, and asks for no more
			store.Inject(func(op storetest.Op) storetest.Fault {
				if op.Method == "ExtendWorker" {
					return storetest.Fault{Fail: hapax.ErrStoreUnavailable}
				}
				return storetest.Fault{}
			})
			for {
				_, err := other.Next(t.Context(), SnowflakeTag)
				if err == nil {
					break
				}
				if !errors.Is(err, hapax.ErrNoWorker) || time.Since(began) > test.grant+2*DefaultMaxWait {
					t.Fatalf("%+v: after %v: %v", test.pool, time.Since(began), err)
				}
			}
		})
	}
}
