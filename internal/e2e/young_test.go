package e2e

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/patience"
	"github.com/hapax-id/hapax/internal/testservers"
	"github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/store/etcdstore"
	"github.com/hapax-id/hapax/store/mongostore"
	"github.com/hapax-id/hapax/store/redisstore"
	"github.com/hapax-id/hapax/store/sqlstore"
	"github.com/hapax-id/hapax/store/sqlstore/mysqlstore"
	"github.com/hapax-id/hapax/store/sqlstore/postgresstore"
	"github.com/hapax-id/hapax/store/witness"
	"github.com/hapax-id/hapax/store/zkstore"
)

// youngStores are those whose server is copied while it runs. MongoDB is the stand-in.
var youngStores = []struct {
	name  string
	start func(testing.TB) *testservers.Server
	open  func(ctx context.Context, url string, existing func() bool) (driver.Store, error)
}{
	{"postgres", func(t testing.TB) *testservers.Server { return testservers.Postgres(t) }, func(ctx context.Context, url string, existing func() bool) (driver.Store, error) {
		return postgresstore.Open(ctx, url, sqlstore.Options{Existing: existing})
	}},
	{"mariadb", func(t testing.TB) *testservers.Server { return testservers.MariaDB(t) }, func(ctx context.Context, url string, existing func() bool) (driver.Store, error) {
		return mysqlstore.Open(ctx, url, sqlstore.Options{Existing: existing})
	}},
	{"redis", func(t testing.TB) *testservers.Server { return testservers.Redis(t) }, func(ctx context.Context, url string, existing func() bool) (driver.Store, error) {
		return redisstore.Open(ctx, url, redisstore.Options{Existing: existing})
	}},
	{"etcd", func(t testing.TB) *testservers.Server { return testservers.Etcd(t) }, func(ctx context.Context, url string, existing func() bool) (driver.Store, error) {
		return etcdstore.Open(ctx, url, etcdstore.Options{Existing: existing})
	}},
	{"zookeeper", func(t testing.TB) *testservers.Server { return testservers.ZooKeeper(t) }, func(ctx context.Context, url string, existing func() bool) (driver.Store, error) {
		return zkstore.Open(ctx, url, zkstore.Options{Existing: existing})
	}},
	{"mongodb", testservers.MongoDB, func(ctx context.Context, url string, existing func() bool) (driver.Store, error) {
		return mongostore.Open(ctx, url, mongostore.Options{Existing: existing})
	}},
}

// TestYoungCopies: a copy of a store that runs, younger than the last heartbeat of an idle node,
// is put back under a server that is started anew, after another node was granted numbers; the
// idle one is asked at once. And a restart alone, killed or in good order, raises no fence.
func TestYoungCopies(t *testing.T) {
	t.Parallel()
	for _, store := range youngStores {
		t.Run(store.name, func(t *testing.T) {
			t.Parallel()
			f := newYoungFleet(t, store.start(t), store.open)
			f.restart("stopped", f.server.Stop)
			f.restart("killed", f.server.Kill)
			for range 2 {
				f.round(rand.N(time.Second))
			}
			f.check()
		})
	}
}

// TestYoungCopiesSoak does that a hundred times.
func TestYoungCopiesSoak(t *testing.T) {
	patience.Soak(t, "chance")
	for _, store := range youngStores {
		t.Run(store.name, func(t *testing.T) {
			t.Parallel() // most of it is waiting
			f := newYoungFleet(t, store.start(t), store.open)
			for i := range 100 {
				if i%10 == 0 {
					f.restart("stopped", f.server.Stop)
					f.restart("killed", f.server.Kill)
				}
				f.round(time.Duration(i) * time.Second / 99)
			}
			f.check()
		})
	}
}

// A youngFleet is three nodes on a server, and all that they were granted.
type youngFleet struct {
	t      *testing.T
	server *testservers.Server
	nodes  []*witness.Guarded // the first is idle
	used   map[int64]string   // by which node
	ticks  int64              // up to which the time of worker 0 was granted

	mu     sync.Mutex // guards fences
	fences int        // nodes that were fenced, or refused
}

func newYoungFleet(t *testing.T, server *testservers.Server, open func(context.Context, string, func() bool) (driver.Store, error)) *youngFleet {
	server.MustControl()
	for range 2 { // nothing is left behind by the first
		patience.Await(t, "that there is no store, and a handle may make none", func() (error, error) {
			s, err := open(t.Context(), server.URL, func() bool { return true })
			if err == nil {
				t.Fatalf("a handle that may make no store is %v", s)
			}
			return err, nil
		}, func(err error) bool {
			would, ok := errors.AsType[*driver.WouldChangeError](err)
			return ok && would.What == driver.NewStore
		})
	}
	f := &youngFleet{t: t, server: server, used: map[int64]string{}}
	dir := t.TempDir()
	for i := range 3 {
		w, err := witness.OpenFile(filepath.Join(dir, fmt.Sprint(i)))
		if err != nil {
			t.Fatal(err)
		}
		var node atomic.Pointer[witness.Guarded]
		existing := func() bool {
			if w.KnowsStore() {
				return true
			}
			if g := node.Load(); w.StoreID() != "" && (g == nil || g.Status().State != witness.Refusing) {
				t.Errorf("node %d may make a store, and does not refuse", i)
			}
			return false
		}
		g, err := witness.GuardOpened(func(ctx context.Context) (driver.Store, error) { return open(ctx, server.URL, existing) }, w, witness.Options{
			Name: fmt.Sprint("node ", i),
			Changed: func(st witness.Status) {
				if st.State == witness.Fenced || st.State == witness.Refusing {
					f.mu.Lock()
					defer f.mu.Unlock()
					f.fences++
				}
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		node.Store(g)
		t.Cleanup(func() {
			g.Kill()
			_ = w.Close()
		})
		f.nodes = append(f.nodes, g)
	}
	tag, err := hapax.Tag{Name: "orders"}.WithDefaults()
	if err != nil {
		t.Fatal(err)
	}
	f.serve()
	if _, err := f.nodes[0].CreateTag(t.Context(), tag, hapax.CreateExplicit); err != nil {
		t.Fatal(err)
	}
	for i := range f.nodes {
		f.await(i)
	}
	f.know(open)
	return f
}

// know waits until all nodes have seen each other join: before that they wait for those that
// may not live.
func (f *youngFleet) know(open func(context.Context, string, func() bool) (driver.Store, error)) {
	f.t.Helper()
	s, err := open(f.t.Context(), f.server.URL, nil)
	if err != nil {
		f.t.Fatal(err)
	}
	defer s.Close()
	patience.Until(f.t, "all have seen all join", func() bool {
		rows, err := s.(driver.Guarding).ListRows(f.t.Context(), driver.TableBeats, "", 100)
		seen := 0
		for _, r := range rows {
			if b, how, err := driver.DecodeBeat(r.Name, r.Value); err == nil && how == "" && b.Seen >= int64(len(f.nodes)) {
				seen++
			}
		}
		return err == nil && seen == len(f.nodes)
	})
}

// serve waits until every node serves.
func (f *youngFleet) serve() {
	f.t.Helper()
	for i, g := range f.nodes {
		patience.Until(f.t, fmt.Sprintf("node %d serves", i), func() bool { return g.Status().Ready() })
	}
}

// take asks a node for ten numbers.
func (f *youngFleet) take(node int) error {
	ctx, cancel := context.WithTimeout(f.t.Context(), 3*time.Second)
	defer cancel()
	a, err := f.nodes[node].Allocate(ctx, "orders", 10, "")
	if err != nil {
		return err
	}
	by := fmt.Sprint("node ", node)
	for n := a.Grant.Lo; n < a.Grant.Hi; n++ {
		if other, twice := f.used[n]; twice {
			f.t.Errorf("%d is granted to %s and to %s", n, other, by)
		}
		f.used[n] = by
	}
	return nil
}

// await asks a node until it is granted numbers.
func (f *youngFleet) await(node int) {
	f.t.Helper()
	patience.Until(f.t, fmt.Sprintf("node %d is granted numbers", node), func() bool { return f.take(node) == nil })
}

func (f *youngFleet) fenced() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.fences
}

// restart starts the server anew: nodes go on, and nothing is raised.
func (f *youngFleet) restart(how string, end func()) {
	f.t.Helper()
	before := f.fenced()
	end()
	f.server.Start()
	up := time.Now()
	for i := range f.nodes {
		f.await(i)
	}
	f.t.Logf("%s and started: all are granted numbers %.1f s after it answers", how, time.Since(up).Seconds())
	if now := f.fenced(); now != before {
		f.t.Errorf("%s and started: %d nodes were fenced", how, now-before)
	}
}

// round makes a copy, and puts it back at such an age.
func (f *youngFleet) round(age time.Duration) {
	f.t.Helper()
	f.serve()
	f.server.Pause()
	copied := filepath.Join(f.t.TempDir(), "copy")
	copyData(f.t, f.server.Dir, copied)
	f.server.Resume()
	made, granted := time.Now(), 0
	for granted < 10 || time.Since(made) < age {
		if err := f.take(1); err == nil {
			granted++
		} else if granted == 0 && time.Since(made) > patience.Long {
			f.t.Fatal(err)
		}
	}
	f.server.Kill()
	copyData(f.t, copied, f.server.Dir)
	f.server.Start()
	up := time.Now()
	f.await(0)
	idle := time.Since(up)
	f.await(1)
	f.await(2)
	f.t.Logf("a copy of %v, and %d grants since: the idle node is granted numbers after %.1f s, all after %.1f s", age.Round(time.Millisecond), granted, idle.Seconds(), time.Since(up).Seconds())
}

// check tells which nodes were stopped: each round must have been noticed by one.
func (f *youngFleet) check() {
	f.t.Logf("%d numbers, none twice; nodes were fenced %d times", len(f.used), f.fenced())
	if f.fenced() == 0 {
		f.t.Error("no copy was noticed")
	}
	if st := f.nodes[0].Status(); strings.Contains(st.Why, "missing") {
		f.t.Errorf("somebody is missing: %+v", st)
	}
}
