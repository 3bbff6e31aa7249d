package redismongo_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/compat/redismongo"
	"github.com/hapax-id/hapax/internal/testservers"
	"github.com/hapax-id/hapax/store/memstore"
)

// A reach is a store that one node reaches or does not.
type reach struct {
	hapax.SegmentStore

	all *atomic.Bool // away for every node
	own atomic.Bool  // away for this one
}

func (r *reach) away() bool { return r.all.Load() || r.own.Load() }

func (r *reach) Allocate(ctx context.Context, tag string, n int64, last hapax.GrantKey) (hapax.Allocation, error) {
	if r.away() {
		return hapax.Allocation{}, hapax.ErrStoreUnavailable
	}
	a, err := r.SegmentStore.Allocate(ctx, tag, n, last)
	if r.away() { // the answer is lost
		return hapax.Allocation{}, hapax.ErrStoreUnavailable
	}
	return a, err
}

func (r *reach) HandBack(ctx context.Context, a hapax.Allocation, next int64) error {
	if r.away() {
		return hapax.ErrStoreUnavailable
	}
	return r.SegmentStore.HandBack(ctx, a, next)
}

func (r *reach) CreateTag(ctx context.Context, tag hapax.Tag, mode hapax.CreateMode) (hapax.Tag, error) {
	if r.away() {
		return tag, hapax.ErrStoreUnavailable
	}
	return r.SegmentStore.CreateTag(ctx, tag, mode)
}

// A world is nodes that share a Redis and a store, and what can happen to them.
type world struct {
	t     testing.TB
	opts  redismongo.Options
	redis *testservers.Server
	admin *redis.Client
	store hapax.SegmentStore
	lost  atomic.Bool // the store
	down  bool        // Redis
	nodes []*node
	log   []string

	issued  map[hapax.ID]string // by which issuer and when
	repeats []string
}

type node struct {
	proxy  *testservers.Proxy // between it and Redis
	client *redis.Client
	reach  *reach
	issuer *redismongo.Issuer // nil: it could not start yet
	cut    bool
}

func newWorld(t testing.TB, nodes int, opts redismongo.Options) *world {
	opts.Timeout = time.Second
	w := &world{
		t: t, opts: opts, redis: testservers.Redis(t, forgets...),
		store: memstore.New(), issued: map[hapax.ID]string{},
	}
	w.admin = connect(t, w.redis)
	for range nodes {
		n := &node{proxy: testservers.NewProxy(t, w.redis.Addr)}
		o, err := redis.ParseURL(n.proxy.URL(w.redis.URL))
		must(t, err)
		o.ContextTimeoutEnabled, o.MaxRetries, o.DialerRetries = true, -1, 1 // what is down refuses at once
		n.client = redis.NewClient(o)
		t.Cleanup(func() { n.client.Close() })
		w.nodes = append(w.nodes, n)
		w.open(n)
		t.Cleanup(func() { w.crash(n) })
	}
	return w
}

// open starts a node, if it can start now.
func (w *world) open(n *node) {
	n.reach = &reach{SegmentStore: w.store, all: &w.lost}
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	opts := w.opts
	if w.lost.Load() {
		opts.Timeout = 20 * time.Millisecond // how long it waits for the store
	}
	n.issuer, _ = redismongo.New(ctx, n.client, n.reach, "orders", opts)
}

// crash ends a node: what it holds is not handed back.
func (w *world) crash(n *node) {
	if n.issuer == nil {
		return
	}
	n.reach.own.Store(true)
	_ = n.issuer.Close(context.Background()) // it could not hand back
	n.issuer = nil
}

// do lets one thing happen.
func (w *world) do(what string, n *node) {
	w.log = append(w.log, what)
	switch what {
	case "redis killed":
		if !w.down {
			w.redis.Kill()
			w.down = true
		}
	case "redis started":
		if w.down {
			w.redis.Start()
			w.down = false
		}
	case "redis saved":
		if !w.down {
			must(w.t, w.admin.Save(context.Background()).Err())
		}
	case "redis emptied":
		if !w.down {
			must(w.t, w.admin.FlushAll(context.Background()).Err())
		}
	case "store lost":
		w.lost.Store(true)
	case "store back":
		w.lost.Store(false)
	case "node cut off from redis":
		n.proxy.Cut()
		n.cut = true
	case "node cut off from store":
		n.reach.own.Store(true)
	case "node reaches all":
		if n.cut {
			n.proxy.Pass()
		}
		n.cut = false
		n.reach.own.Store(false)
	case "node killed and started":
		w.crash(n)
		w.open(n)
	default:
		w.t.Fatalf("there is no %q", what)
	}
	w.issue(70)
}

// issue has every node issue up to so many numbers.
func (w *world) issue(numbers int) {
	for k, n := range w.nodes {
		if n.issuer == nil {
			if w.open(n); n.issuer == nil {
				continue
			}
		}
		for range numbers / 7 {
			ctx, cancel := context.WithTimeout(context.Background(), 30*time.Millisecond)
			ids := make([]hapax.ID, 7)
			got, err := n.issuer.NextN(ctx, ids)
			cancel()
			by := fmt.Sprintf("node %d after %d events", k, len(w.log))
			for _, id := range ids[:got] {
				if before, ok := w.issued[id]; ok {
					w.repeats = append(w.repeats, fmt.Sprintf("%d: %s and %s", id, before, by))
				}
				w.issued[id] = by
			}
			if err != nil {
				break
			}
		}
	}
}

// events are what can happen to all, and to one node.
var events = []string{
	"redis killed", "redis started", "redis saved", "redis emptied", "store lost", "store back",
	"node cut off from redis", "node cut off from store", "node reaches all", "node killed and started",
}

// orders plays faults in orders that follow from seeds, and then the orders by which
// numbers repeat where a rule is missing. It returns the numbers that came twice, and
// how many came in all.
func orders(t testing.TB, seeds uint64, opts redismongo.Options) (repeats []string, issued int) {
	t.Helper()
	end := func(w *world) {
		for _, n := range w.nodes {
			w.do("node reaches all", n)
		}
		w.do("redis started", nil)
		w.do("store back", nil)
		for range 3 {
			w.issue(70)
		}
		if len(w.repeats) > 0 {
			repeats = append(repeats, fmt.Sprintf("%v, after %v", w.repeats[0], w.log))
		}
		issued += len(w.issued)
		for _, n := range w.nodes {
			w.crash(n)
		}
	}
	for seed := range seeds {
		random := rand.New(rand.NewPCG(seed, 14))
		w := newWorld(t, 3, opts)
		for range 14 {
			w.do(events[random.IntN(len(events))], w.nodes[random.IntN(len(w.nodes))])
		}
		end(w)
	}
	// One node goes on in Redis while no store grants; another one has the store later.
	w := newWorld(t, 2, opts)
	for _, what := range []string{"store lost", "node cut off from redis", "store back"} {
		w.do(what, w.nodes[1])
		w.issue(140)
	}
	end(w)
	// Redis comes back with an old cursor to a node that has seen nothing.
	w = newWorld(t, 1, opts)
	for _, what := range []string{"redis saved", "redis killed", "redis started", "node killed and started"} {
		if what == "redis started" {
			w.crash(w.nodes[0])
		}
		w.do(what, w.nodes[0])
	}
	end(w)
	return repeats, issued
}

var (
	refusing  = redismongo.Options{Step: 50, MinStep: 50, MaxStep: 50}
	extending = redismongo.Options{Step: 50, MinStep: 50, MaxStep: 50, OnStoreLoss: redismongo.Extend, Reserve: 200}
)

func TestFaultsInAnyOrder(t *testing.T) {
	for name, opts := range map[string]redismongo.Options{"refuse": refusing, "extend": extending} {
		t.Run(name, func(t *testing.T) {
			repeats, issued := orders(t, 2, opts)
			if len(repeats) > 0 {
				t.Errorf("numbers came twice: %s", repeats[0])
			}
			if issued < 1000 {
				t.Errorf("only %d numbers came", issued)
			}
		})
	}
}

// TestTwins breaks a rule each, and the orders of faults show it.
func TestTwins(t *testing.T) {
	for name, rule := range map[string]struct{ text, broken string }{
		"Redis extends a segment that no store has granted": {
			"if left <= 0 then ncur = false end",
			`if held and left <= 0 then
  left = tonumber(step)
  max = string.format('%.0f', tonumber(cur) + left)
  redis.call('HSET', key, 'cur', cur, 'max', max)
end
if left <= 0 then ncur = false end`,
		},
		"a cursor that came back with Redis serves on": {
			"local server = word('server', 'run_id') .. ' ' .. word('replication', 'master_replid')",
			"local server = 'any'",
		},
	} {
		t.Run(name, func(t *testing.T) {
			mend, found := redismongo.Break(rule.text, rule.broken)
			defer mend()
			if !found {
				t.Fatal("the rule is not in the script")
			}
			if repeats, _ := orders(t, 0, refusing); len(repeats) == 0 {
				t.Error("no number came twice")
			}
		})
	}
}
