package redismongo_test

import (
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/anishathalye/porcupine"
	"github.com/redis/go-redis/v9"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/compat/redismongo"
	"github.com/hapax-id/hapax/internal/patience"
	"github.com/hapax-id/hapax/internal/testservers"
	"github.com/hapax-id/hapax/store/memstore"
)

// The tests of the order of numbers across all processes.

// An op is one call, with counters of when it began and ended.
type op struct {
	began, ended int64
	ids          []hapax.ID
}

// hammer calls the issuers from many goroutines.
func hammer(t testing.TB, is []*redismongo.Issuer, calls int) []op {
	t.Helper()
	var clock atomic.Int64
	all := make([][]op, 3*len(is))
	var wg sync.WaitGroup
	for k := range all {
		wg.Go(func() {
			for c := range calls {
				dst := make([]hapax.ID, 1+c%3)
				o := op{began: clock.Add(1)}
				n, err := is[k%len(is)].NextN(t.Context(), dst)
				o.ended, o.ids = clock.Add(1), dst[:n]
				if err != nil {
					t.Error(err)
				}
				all[k] = append(all[k], o)
			}
		})
	}
	wg.Wait()
	return slices.Concat(all...)
}

// linear fails unless a call that began after another one had ended got higher
// numbers only, and all numbers are different.
func linear(t testing.TB, ops []op) {
	t.Helper()
	b := &book{t: t}
	type number struct {
		id           hapax.ID
		began, ended int64
	}
	var numbers []number
	for _, o := range ops {
		if !slices.IsSorted(o.ids) {
			t.Fatalf("a call got %v", o.ids)
		}
		for _, id := range o.ids {
			numbers = append(numbers, number{id, o.began, o.ended})
			b.all = append(b.all, id)
		}
	}
	slices.SortFunc(numbers, func(a, b number) int { return int(a.id - b.id) })
	latest := int64(math.MinInt64) // when the latest of the calls with lower numbers began
	for _, n := range numbers {
		if n.ended < latest {
			t.Fatalf("a call that ended before another began got %d, which is higher", n.id)
		}
		latest = max(latest, n.began)
	}
	b.unique()
}

// rises asks porcupine whether one cursor that only rises explains the calls for one
// number. Others are no single operation: their numbers may come from two segments.
func rises(ops []op) porcupine.CheckResult {
	var history []porcupine.Operation
	for _, o := range ops {
		if len(o.ids) == 1 {
			history = append(history, porcupine.Operation{ClientId: len(history), Call: o.began, Return: o.ended, Output: o.ids[0]})
		}
	}
	return porcupine.CheckOperationsTimeout(porcupine.Model{
		Init: func() any { return hapax.ID(0) },
		Step: func(cursor, _, id any) (bool, any) { return id.(hapax.ID) > cursor.(hapax.ID), id },
	}, history, patience.Long)
}

func TestLinear(t *testing.T) {
	ops := []op{{1, 2, []hapax.ID{5}}, {3, 4, []hapax.ID{4}}}
	probe := &recorder{TB: t}
	func() {
		defer func() { _ = recover() }()
		linear(probe, ops)
	}()
	if !probe.failed {
		t.Error("a lower number after a higher one passes")
	}
	if got := rises(ops); got != porcupine.Illegal {
		t.Errorf("porcupine finds a lower number after a higher one %s", got)
	}
}

type recorder struct {
	testing.TB
	failed bool
}

func (r *recorder) Helper()               {}
func (r *recorder) Fatalf(string, ...any) { r.failed = true; panic("failed") }

func TestNumbersRiseAcrossNodes(t *testing.T) {
	server := testservers.Redis(t, forgets...)
	store := memstore.New()
	var is []*redismongo.Issuer
	for range 4 {
		is = append(is, issuer(t, connect(t, server), store, fixed(40)))
	}
	ops := hammer(t, is, 150)
	linear(t, ops)
	if got := rises(ops); got != porcupine.Ok {
		t.Errorf("porcupine finds the order %s", got)
	}
	for _, i := range is {
		if s := i.Stats(); s.Away || s.Local.Issued != 0 {
			t.Errorf("a node went without Redis: %+v", s)
		}
	}
}

func TestCluster(t *testing.T) {
	servers := testservers.RedisCluster(t, forgets...)
	var addrs []string
	for _, s := range servers {
		addrs = append(addrs, s.Addr)
	}
	var is []*redismongo.Issuer
	store := memstore.New()
	for k := range 3 {
		c := redis.NewClusterClient(&redis.ClusterOptions{Addrs: addrs})
		t.Cleanup(func() { c.Close() })
		opts := fixed(30)
		opts.WithoutEval = k == 2
		is = append(is, issuer(t, c, store, opts))
	}
	linear(t, hammer(t, is, 60))
	for k, i := range is {
		if s := i.Stats(); s.Away || s.FromRedis == 0 {
			t.Errorf("node %d of a Cluster: %+v", k, s)
		}
	}
}

func TestSentinelFailover(t *testing.T) {
	master := testservers.Redis(t, forgets...)
	testservers.RedisReplica(t, master, forgets...)
	var addrs []string
	for _, s := range testservers.RedisSentinels(t, master, 3, 2) {
		addrs = append(addrs, s.Addr)
	}
	c := redis.NewFailoverClient(&redis.FailoverOptions{MasterName: "hapax", SentinelAddrs: addrs})
	t.Cleanup(func() { c.Close() })
	store := memstore.New()
	a, z := issuer(t, c, store, fixed(1000)), issuer(t, c, store, fixed(1000))
	b := &book{t: t}
	b.rising(50, a, z)
	master.Kill()
	patience.Until(t, "the new master", func() bool {
		b.next(a)
		b.next(z)
		s, y := a.Stats(), z.Stats()
		return s.Local.Issued > 0 && !s.Away && !y.Away
	})
	b.rising(50, a, z)
	b.unique()
}
