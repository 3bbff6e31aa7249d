package e2e

import (
	"context"
	"fmt"
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

// startTrips is how many round trips a start may take until its first number, on the way there
// and in the seconds in which it waits for others. On ZooKeeper a row of a list is one.
var startTrips = map[string]int{"": 90, "zookeeper": 220}

// TestDistantStores: on a store at 300 ms a node starts in so many round trips as leave it the
// time, and is granted numbers. At 600 ms those that serve go on, and beat less often.
func TestDistantStores(t *testing.T) {
	t.Parallel()
	for _, store := range youngStores {
		t.Run(store.name, func(t *testing.T) {
			t.Parallel()
			f := newFarFleet(t, store.start(t), store.open)
			f.far(distance)
			began, before := time.Now(), f.proxy.RoundTrips()
			first := f.start(0)
			f.await(first)
			made, most := f.proxy.RoundTrips()-before, startTrips[""]
			if n := startTrips[store.name]; n > 0 {
				most = n
			}
			if t.Logf("the first number after %d round trips, %.1f s", made, time.Since(began).Seconds()); made > most {
				t.Errorf("a start takes %d round trips; want %d at most", made, most)
			}
			second := f.start(1)
			f.await(second)
			f.serveAt(2*distance, 3, first, second)
			for i, g := range []*witness.Guarded{first, second} {
				if st := g.Status(); st.Slow == "" {
					t.Errorf("node %d does not say what a heartbeat takes: %+v", i, st)
				}
			}
		})
	}
}

// TestDistantStoresSoak has them serve at twice the distance for ten seconds and more, after it
// was near, and start there.
func TestDistantStoresSoak(t *testing.T) {
	patience.Soak(t, "ten seconds at a distance, for each store")
	for _, store := range youngStores {
		t.Run(store.name, func(t *testing.T) {
			f := newFarFleet(t, store.start(t), store.open)
			nodes := []*witness.Guarded{f.start(0), f.start(1), f.start(2)}
			for _, g := range nodes {
				f.await(g)
			}
			f.serveAt(distance, 10, nodes...)
			f.serveAt(2*distance, 25, nodes...)
			f.await(f.start(3))
			f.serveAt(0, 5, nodes...)
		})
	}
}

// A farFleet is nodes on a server that is as far away as the proxy before it says.
type farFleet struct {
	t     *testing.T
	proxy *testservers.Proxy
	open  func(context.Context) (driver.Store, error)
	dir   string
	left  [4]atomic.Int32 // how often a node that served went back to joining

	mu   sync.Mutex // guards used
	used map[int64]bool
}

func newFarFleet(t *testing.T, server *testservers.Server, open func(context.Context, string, func() bool) (driver.Store, error)) *farFleet {
	server.MustProxy()
	proxy := testservers.NewProxy(t, server.Addr)
	f := &farFleet{t: t, proxy: proxy, dir: t.TempDir(), used: map[int64]bool{}}
	f.open = func(ctx context.Context) (driver.Store, error) { return open(ctx, proxy.URL(server.URL), nil) }
	s, err := f.open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	def, err := hapax.Tag{Name: "orders"}.WithDefaults()
	if err == nil {
		_, err = s.CreateTag(t.Context(), def, hapax.CreateExplicit)
	}
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// far has each round trip take so long from now on.
func (f *farFleet) far(d time.Duration) { f.proxy.Delay(d/2, d/2) }

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
	return g
}

// take asks a node for ten numbers, of which none was granted before.
func (f *farFleet) take(g *witness.Guarded) error {
	a, err := g.Allocate(f.t.Context(), "orders", 10, "")
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for n := a.Grant.Lo; n < a.Grant.Hi; n++ {
		if f.used[n] {
			f.t.Errorf("%d is granted twice", n)
		}
		f.used[n] = true
	}
	return nil
}

func (f *farFleet) await(g *witness.Guarded) {
	f.t.Helper()
	patience.Await(f.t, "a node is granted numbers", func() (struct{}, error) { return struct{}{}, f.take(g) }, func(struct{}) bool { return true })
}

// serveAt has the nodes granted numbers, each for so many heartbeats at least: nobody is
// refused, and none goes back to joining.
func (f *farFleet) serveAt(d time.Duration, beats int, nodes ...*witness.Guarded) {
	f.t.Helper()
	f.far(d)
	until := time.Now().Add(time.Duration(beats) * (witness.DefaultHeartbeat + 2*d))
	var all sync.WaitGroup
	for _, g := range nodes {
		all.Go(func() {
			for time.Now().Before(until) {
				if err := f.take(g); err != nil {
					f.t.Errorf("at %v a node is granted nothing: %v, %+v", d, err, g.Status())
					return
				}
			}
		})
	}
	all.Wait()
	for i := range f.left {
		if n := f.left[i].Load(); n > 0 {
			f.t.Errorf("at %v node %d went back to joining %d times", d, i, n)
		}
	}
}
