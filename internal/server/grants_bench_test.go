package server

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/patience"
	"github.com/hapax-id/hapax/internal/testservers"
	"github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/store/memstore"
	"github.com/hapax-id/hapax/store/witness"
)

// BenchmarkGuardedGrant shows what a grant costs nodes with their witnesses and heartbeats, on
// every engine: asked for by one caller, by 64 of one tag or of one each, through one node or
// three, and by 30 nodes that all want the same 100 tags at once.
func BenchmarkGuardedGrant(b *testing.B) {
	for _, engine := range []struct {
		name string
		url  func(b *testing.B) string
		solo bool // one process at a time may use it
	}{
		{"memory", nil, false},
		{"bolt", func(b *testing.B) string { return "bolt:" + filepath.Join(b.TempDir(), "hapax.db") }, true},
		{"mariadb", func(b *testing.B) string { return testservers.MariaDB(b).URL }, false},
		{"postgres", func(b *testing.B) string { return testservers.Postgres(b).URL }, false},
		{"redis", func(b *testing.B) string { return testservers.Redis(b).URL }, false},
		{"mongodb", func(b *testing.B) string { return testservers.MongoDB(b).URL }, false},
		{"etcd", func(b *testing.B) string { return testservers.Etcd(b).URL }, false},
		{"zookeeper", func(b *testing.B) string { return testservers.ZooKeeper(b).URL }, false},
	} {
		b.Run(engine.name, func(b *testing.B) {
			n := &nodes{open: sharedMemory(), dir: b.TempDir}
			if engine.url != nil {
				config := DefaultConfig()
				config.Store = engine.url(b)
				n.open = newOpener(config, slog.New(slog.DiscardHandler)).open
			}
			defer n.close(b)
			one := func(_, _ int) string { return "one" }
			n.benchmark(b, "1 caller", 1, 1, one)
			n.benchmark(b, "64 callers of 1", 1, 64, one)
			n.benchmark(b, "64 callers of 64", 1, 64, func(_, caller int) string { return fmt.Sprint(caller) })
			if engine.solo {
				return
			}
			n.benchmark(b, "64 callers of 1, 3 nodes", 3, 64, one)
			n.benchmark(b, "63 callers of 61, 3 nodes", 3, 63, func(node, caller int) string {
				if caller < 3 {
					return "one"
				}
				return fmt.Sprint(node, " ", caller)
			})
			n.crowd(b, "the same 100 tags at once, 30 nodes", 30, 100)
		})
	}
}

// sharedMemory opens one store in memory again and again.
func sharedMemory() func(context.Context) (driver.Store, error) {
	s := memstore.New()
	return func(context.Context) (driver.Store, error) { return shared{s}, nil }
}

type shared struct{ *memstore.Store }

func (shared) Close() error { return nil }

// nodes are those that use one store.
type nodes struct {
	open func(context.Context) (driver.Store, error)
	dir  func() string // makes a directory that lasts as long as the nodes
	all  []*witness.Guarded
	made map[string]bool // tags
}

func (n *nodes) close(b *testing.B) {
	var wg sync.WaitGroup
	for _, node := range n.all {
		wg.Go(func() {
			if err := node.Close(); err != nil {
				b.Error(err)
			}
		})
	}
	wg.Wait()
}

// start sees to it that so many nodes serve, and that the tag is there.
func (n *nodes) start(b *testing.B, count int) {
	b.Helper()
	for len(n.all) < count {
		node, err := witness.Open(context.Background(), n.open, n.dir(), witness.Options{})
		if err != nil {
			b.Fatal(err)
		}
		n.all = append(n.all, node)
	}
	for _, node := range n.all {
		patience.Until(b, "the node has joined", func() bool { return node.Ping(b.Context()) == nil })
	}
}

func (n *nodes) create(b *testing.B, tag string) {
	b.Helper()
	if n.made[tag] {
		return
	}
	def, err := hapax.Tag{Name: tag}.WithDefaults()
	if err == nil {
		_, err = n.all[0].CreateTag(b.Context(), def, hapax.CreateExplicit)
	}
	if err != nil {
		b.Fatal(err)
	}
	if n.made == nil {
		n.made = map[string]bool{}
	}
	n.made[tag] = true
}

// benchmark measures grants that callers ask for one after the other.
func (n *nodes) benchmark(b *testing.B, name string, count, callers int, tagOf func(node, caller int) string) {
	b.Run(name, func(b *testing.B) {
		n.start(b, count)
		tags := make([]string, callers)
		for i := range tags {
			tags[i] = name + " " + tagOf(i%count, i)
			n.create(b, tags[i])
		}
		var left atomic.Int64
		left.Store(int64(b.N))
		took := make([][]time.Duration, callers)
		var wg sync.WaitGroup
		b.ResetTimer()
		for i, tag := range tags {
			node := n.all[i%count]
			wg.Go(func() {
				for left.Add(-1) >= 0 {
					began := time.Now()
					if _, err := node.Allocate(b.Context(), tag, 0, ""); err != nil {
						b.Error(err)
						return
					}
					took[i] = append(took[i], time.Since(began))
				}
			})
		}
		wg.Wait()
		report(b, took)
	})
}

// crowd measures grants of the same tags that all nodes ask for at the same moment.
func (n *nodes) crowd(b *testing.B, name string, count, tags int) {
	b.Run(name, func(b *testing.B) {
		n.start(b, count)
		names := make([]string, tags)
		for i := range names {
			names[i] = fmt.Sprint(name, " ", i)
			n.create(b, names[i])
		}
		took := make([][]time.Duration, count*tags)
		b.ResetTimer()
		for range b.N {
			var wg sync.WaitGroup
			began := time.Now()
			for i := range took {
				wg.Go(func() {
					if _, err := n.all[i/tags].Allocate(b.Context(), names[i%tags], 0, ""); err != nil {
						b.Error(err)
					}
					took[i] = append(took[i], time.Since(began))
				})
			}
			wg.Wait()
			if b.Failed() {
				return
			}
		}
		report(b, took)
	})
}

// report reports how many grants there were, and how long they took.
func report(b *testing.B, took [][]time.Duration) {
	all := slices.Concat(took...)
	slices.Sort(all)
	if len(all) == 0 {
		return
	}
	b.ReportMetric(float64(len(all))/b.Elapsed().Seconds(), "grants/s")
	for _, m := range []struct {
		unit string
		at   time.Duration
	}{{"p50-ms", all[len(all)/2]}, {"p99-ms", all[len(all)*99/100]}, {"slowest-ms", all[len(all)-1]}} {
		b.ReportMetric(float64(m.at.Microseconds())/1000, m.unit)
	}
}
