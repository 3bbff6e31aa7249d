package e2e

import (
	"cmp"
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

// TestDistantStores: on a store at 300 ms a process has its row after a dozen seconds' round
// trips, and is granted numbers. At 600 ms those that serve go on, and beat less often.
func TestDistantStores(t *testing.T) {
	t.Parallel()
	for _, store := range youngStores {
		t.Run(store.name, func(t *testing.T) {
			t.Parallel()
			f := newFarFleet(t, store.start(t), store.open)
			f.far(distance)
			before := f.proxy.RoundTrips()
			first := f.start(0)
			patience.Until(t, "it has a row", func() bool { return f.rows() == 1 })
			most := cmp.Or(map[string]int{"zookeeper": 100, "mongodb": 80}[store.name], 60) // with a busy machine's second tries
			if made := f.proxy.RoundTrips() - before; made > most {
				t.Errorf("a process registers after %d round trips; want %d at most", made, most)
			}
			f.await(first)
			second := f.start(1)
			f.await(second)
			f.serveAt(2*distance, 3, first, second)
			for i, g := range []*witness.Guarded{first, second} {
				patience.Until(t, fmt.Sprintf("node %d says what a heartbeat takes", i), func() bool { return g.Status().Slow != "" })
				f.await(g)
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
			for i := range f.left {
				if n := f.left[i].Load(); n > 0 {
					t.Errorf("node %d went back to joining %d times", i, n)
				}
			}
		})
	}
}

// A nearStore is the same store, without the distance.
type nearStore interface {
	driver.Store
	driver.Guarding
}

// A farFleet is nodes on a server that is as far away as the proxy before it says.
type farFleet struct {
	t     *testing.T
	proxy *testservers.Proxy
	open  func(context.Context) (driver.Store, error)
	dir   string
	near  nearStore
	left  [4]atomic.Int32 // how often a node that served went back to joining

	mu   sync.Mutex // guards what follows
	tags map[*witness.Guarded]string
	used map[string]int64 // up to which each tag was granted; a node asks for its own one by one
}

func newFarFleet(t *testing.T, server *testservers.Server, open func(context.Context, string, func() bool) (driver.Store, error)) *farFleet {
	server.MustProxy()
	proxy := testservers.NewProxy(t, server.Addr)
	f := &farFleet{t: t, proxy: proxy, dir: t.TempDir(), tags: map[*witness.Guarded]string{}, used: map[string]int64{}}
	f.open = func(ctx context.Context) (driver.Store, error) { return open(ctx, proxy.URL(server.URL), nil) }
	s, err := open(t.Context(), server.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	f.near = s.(nearStore)
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
	def, err := hapax.Tag{Name: fmt.Sprint("tag ", i)}.WithDefaults()
	if err == nil {
		_, err = f.near.CreateTag(f.t.Context(), def, hapax.CreateExplicit)
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

// rows returns how many processes have a row, as the server says that is near.
func (f *farFleet) rows() int {
	rows, err := f.near.ListRows(f.t.Context(), driver.TableBeats, "", 10)
	if err != nil {
		f.t.Fatal(err)
	}
	return len(rows)
}
