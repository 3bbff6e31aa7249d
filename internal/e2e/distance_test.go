package e2e

import (
	"context"
	"fmt"
	"math"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/patience"
	"github.com/hapax-id/hapax/internal/testservers"
	"github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/store/witness"
)

// A distance is what a round trip takes to a store that is far away, and another that is twice
// as far.
const distance = 300 * time.Millisecond

// TestDistantStores: on a store at 300 ms a process that finds none makes it, and is granted
// numbers. At 600 ms those that serve go on, and beat less often.
func TestDistantStores(t *testing.T) {
	t.Parallel()
	for _, store := range youngStores {
		t.Run(store.name, func(t *testing.T) {
			t.Parallel()
			f := newFarFleet(t, store.start(t), store.open)
			f.far(distance)
			first := f.start(0)
			second := f.start(1)
			f.serveAt(2*distance, 3, first, second)
			for i, g := range []*witness.Guarded{first, second} {
				patience.Until(t, fmt.Sprintf("node %d says what a heartbeat takes", i), func() bool { return g.Status().Slow != "" })
				f.await(g)
			}
		})
	}
}

// startLimits are how long a start may take at 300 ms, one that makes the store and a later one.
var startLimits = map[string][2]time.Duration{
	"postgres":  {20 * time.Second, 15 * time.Second},
	"mariadb":   {25 * time.Second, 15 * time.Second},
	"redis":     {15 * time.Second, 15 * time.Second},
	"etcd":      {15 * time.Second, 15 * time.Second},
	"zookeeper": {15 * time.Second, 15 * time.Second},
	"mongodb":   {30 * time.Second, 15 * time.Second}, // a heartbeat is two round trips, and the wait for others is five intervals
}

// TestDistantStoresSoak has them start at 300 ms, serve at twice the distance for ten seconds and more, after
// it was near, and start there.
func TestDistantStoresSoak(t *testing.T) {
	patience.Soak(t, "ten seconds at a distance, for each store")
	for _, store := range youngStores {
		t.Run(store.name, func(t *testing.T) {
			f := newFarFleet(t, store.start(t), store.open)
			f.far(distance)
			var nodes []*witness.Guarded
			for i := range 3 {
				most := startLimits[store.name][min(i, 1)]
				began := time.Now()
				nodes = append(nodes, f.start(i))
				took := time.Since(began)
				t.Logf("node %d has started after %v", i, took)
				if took > most {
					t.Errorf("want %v at most", most)
				}
			}
			f.serveAt(0, 3, nodes...)
			f.serveAt(distance, 10, nodes...)
			f.serveAt(2*distance, 25, nodes...)
			f.start(3)
			f.serveAt(0, 5, nodes...)
			for i := range f.left {
				if n := f.left[i].Load(); n > 0 {
					t.Errorf("node %d went back to joining %d times", i, n)
				}
			}
		})
	}
}

// roundTrips is for how many answers a process waits at most until it has its row, in the start that
// makes the store and in a later one: for a handle of it, and for its registration, which is three
// calls. Each is one on PostgreSQL, MariaDB, etcd and ZooKeeper. Redis is asked for a script that it
// has not loaded. MongoDB has no step of several rows: it is asked for the rows that a step depends
// on, before it and after it, and for each kind of change; and once more for the store's identity,
// where it finds nothing.
var roundTrips = map[string][2]struct{ opens, registers int }{
	"postgres":  {{11, 3}, {4, 3}},
	"mariadb":   {{14, 3}, {7, 3}},
	"redis":     {{6, 4}, {5, 3}},
	"etcd":      {{4, 3}, {3, 3}},
	"zookeeper": {{4, 3}, {3, 3}},
	"mongodb":   {{8, 8 + 1}, {6, 6 + 1}}, // its client asks twice a second how the server is
}

// apart is how long an answer takes at first. What is sent together is sent before that is over, but on
// a machine that is busy: then others are counted, at twice the distance.
const apart = 30 * time.Millisecond

// TestRoundTripsOfAStart counts them.
func TestRoundTripsOfAStart(t *testing.T) {
	t.Parallel()
	for _, store := range youngStores {
		t.Run(store.name, func(t *testing.T) {
			t.Parallel()
			least := [2]struct{ opens, registers int }{{math.MaxInt, math.MaxInt}, {math.MaxInt, math.MaxInt}}
			within := func() bool {
				for i, most := range roundTrips[store.name] {
					if least[i].opens > most.opens || least[i].registers > most.registers {
						return false
					}
				}
				return true
			}
			for distance := apart; !within() && distance <= 16*apart; distance *= 2 {
				server, dir := store.start(t), t.TempDir()
				for i := range least {
					c := &countedStart{t: t, server: server, open: store.open, distance: distance}
					g, err := witness.Open(t.Context(), c.opened, filepath.Join(dir, fmt.Sprint(i)), witness.Options{})
					if err != nil {
						t.Fatal(err)
					}
					patience.Until(t, "it has registered", func() bool { return c.registers.Load() > 0 })
					g.Kill()
					opens, registers := int(c.opens.Load()), int(c.registers.Load())
					t.Logf("at %v start %d opens a handle in %d round trips, and registers in %d", distance, i, opens, registers)
					least[i].opens, least[i].registers = min(least[i].opens, opens), min(least[i].registers, registers)
				}
			}
			if !within() {
				t.Errorf("the least are %v; want %v at most", least, roundTrips[store.name])
			}
		})
	}
}

// A countedStart is the round trips of a process that starts.
type countedStart struct {
	t      *testing.T
	server *testservers.Server
	open   func(context.Context, string, func() bool) (driver.Store, error)

	distance  time.Duration
	opens     atomic.Int64 // the most that a handle has taken
	registers atomic.Int64 // 0: not yet
}

// opened opens a handle, which has a way of its own, however long that takes on a busy machine.
func (c *countedStart) opened(ctx context.Context) (driver.Store, error) {
	proxy := testservers.NewProxy(c.t, c.server.Addr)
	proxy.Delay(c.distance/2, c.distance/2)
	s, err := c.open(context.WithoutCancel(ctx), proxy.URL(c.server.URL), nil)
	if err != nil {
		return nil, err
	}
	c.opens.Store(max(c.opens.Load(), int64(proxy.RoundTrips())))
	return &countedHandle{openedStore: s.(openedStore), start: c, proxy: proxy}, nil
}

type openedStore interface {
	driver.Store
	driver.Guarding
	driver.Opened
}

// A countedHandle is a handle of which the calls of a registration are known.
type countedHandle struct {
	openedStore
	start *countedStart
	proxy *testservers.Proxy
	began atomic.Int64 // when it asked for the fence
}

func (h *countedHandle) RowsNamed(ctx context.Context, keys ...driver.Key) ([][]byte, error) {
	if keys[0].Table == driver.TableFence {
		h.began.Store(int64(h.proxy.RoundTrips()))
	}
	return h.openedStore.RowsNamed(ctx, keys...)
}

func (h *countedHandle) SwapRows(ctx context.Context, all ...driver.Swap) (bool, error) {
	ok, err := h.openedStore.SwapRows(ctx, all...)
	if ok && err == nil {
		h.start.registers.CompareAndSwap(0, int64(h.proxy.RoundTrips())-h.began.Load())
	}
	return ok, err
}

// A farFleet is nodes on a server that is as far away as the proxy before it says.
type farFleet struct {
	t     *testing.T
	proxy *testservers.Proxy
	open  func(context.Context) (driver.Store, error)
	dir   string
	near  func() driver.Store // the same store, without the distance
	left  [4]atomic.Int32     // how often a node that served went back to joining

	mu   sync.Mutex // guards what follows
	tags map[*witness.Guarded]string
	used map[string]int64 // up to which each tag was granted; a node asks for its own one by one
}

func newFarFleet(t *testing.T, server *testservers.Server, open func(context.Context, string, func() bool) (driver.Store, error)) *farFleet {
	server.MustProxy()
	proxy := testservers.NewProxy(t, server.Addr)
	f := &farFleet{t: t, proxy: proxy, dir: t.TempDir(), tags: map[*witness.Guarded]string{}, used: map[string]int64{}}
	f.open = func(ctx context.Context) (driver.Store, error) { return open(ctx, proxy.URL(server.URL), nil) }
	f.near = sync.OnceValue(func() driver.Store {
		s, err := open(t.Context(), server.URL, nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Close() })
		return s
	})
	return f
}

// far has each round trip take so long from now on.
func (f *farFleet) far(d time.Duration) { f.proxy.Delay(d/2, d/2) }

// start starts a node, and waits until it serves.
func (f *farFleet) start(i int) *witness.Guarded {
	f.t.Helper()
	serves := false
	g, err := witness.Open(f.t.Context(), f.open, filepath.Join(f.dir, fmt.Sprint(i)), witness.Options{
		Name: fmt.Sprint("node ", i),
		Changed: func(st witness.Status) {
			if serves = serves || st.State == witness.Serving; serves && st.State == witness.Joining {
				f.left[i].Add(1)
			}
		},
	})
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(g.Kill)
	patience.Until(f.t, fmt.Sprintf("node %d serves", i), func() bool { return g.Status().State == witness.Serving })
	def, err := hapax.Tag{Name: fmt.Sprint("tag ", i)}.WithDefaults()
	if err == nil {
		_, err = f.near().CreateTag(f.t.Context(), def, hapax.CreateExplicit)
	}
	if err != nil {
		f.t.Fatal(err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.tags[g] = def.Name
	return g
}

// take asks a node for ten numbers of its tag, of which none was granted before.
func (f *farFleet) take(g *witness.Guarded) error {
	f.mu.Lock()
	tag := f.tags[g]
	f.mu.Unlock()
	a, err := g.Allocate(f.t.Context(), tag, 10, "")
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if a.Grant.Lo < f.used[tag] {
		f.t.Errorf("%s from %d is granted twice", tag, a.Grant.Lo)
	}
	f.used[tag] = a.Grant.Hi
	return nil
}

func (f *farFleet) await(g *witness.Guarded) {
	f.t.Helper()
	patience.Await(f.t, "a node is granted numbers", func() (struct{}, error) { return struct{}{}, f.take(g) }, func(struct{}) bool { return true })
}

// serveAt has the nodes granted numbers for so many heartbeats. A call that takes too long is
// made again.
func (f *farFleet) serveAt(d time.Duration, beats int, nodes ...*witness.Guarded) {
	f.t.Helper()
	f.far(d)
	until := time.Now().Add(time.Duration(beats) * (witness.DefaultHeartbeat + 2*d))
	var all sync.WaitGroup
	for _, g := range nodes {
		all.Go(func() {
			for time.Now().Before(until) {
				if err := f.take(g); err != nil {
					f.t.Logf("at %v: %v, %+v", d, err, g.Status())
				}
			}
		})
	}
	all.Wait()
	for _, g := range nodes {
		f.await(g)
	}
}
