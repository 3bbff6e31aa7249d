package server

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/patience"
	"github.com/hapax-id/hapax/internal/testservers"
	"github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/store/witness"
)

// BenchmarkGuardedGrant shows what a grant costs a node, with its witness and its
// heartbeat, on every engine: asked for by one caller, and by 64 of one tag, or each of
// another one. Where the store makes many allocations in one step, it is also measured
// with every grant made by itself.
func BenchmarkGuardedGrant(b *testing.B) {
	for _, engine := range []struct {
		name string
		url  func(b *testing.B) string
	}{
		{"bolt", func(b *testing.B) string { return "bolt:" + filepath.Join(b.TempDir(), "hapax.db") }},
		{"mariadb", func(b *testing.B) string { return testservers.MariaDB(b).URL }},
		{"postgres", func(b *testing.B) string { return testservers.Postgres(b).URL }},
		{"redis", func(b *testing.B) string { return testservers.Redis(b).URL }},
		{"mongodb", func(b *testing.B) string { return testservers.MongoDB(b).URL }},
		{"etcd", func(b *testing.B) string { return testservers.Etcd(b).URL }},
		{"zookeeper", func(b *testing.B) string { return testservers.ZooKeeper(b).URL }},
	} {
		b.Run(engine.name, func(b *testing.B) {
			config := DefaultConfig()
			config.Store = engine.url(b)
			dial := newOpener(config, slog.New(slog.DiscardHandler)).open
			groups := false
			open := func(ctx context.Context) (driver.Store, error) {
				s, err := dial(ctx)
				if err == nil {
					_, groups = s.(driver.TogetherAllocating)
				}
				return s, err
			}
			benchmarkGrants(b, "", open)
			if groups {
				benchmarkGrants(b, ", each by itself", func(ctx context.Context) (driver.Store, error) {
					s, err := dial(ctx)
					if err != nil {
						return nil, err
					}
					return ungrouped{s.(guardable)}, nil
				})
			}
		})
	}
}

// ungrouped is a store without its steps for many tags.
type ungrouped struct{ guardable }

type guardable interface {
	driver.Store
	driver.Guarding
	driver.Healing
}

func benchmarkGrants(b *testing.B, how string, open func(context.Context) (driver.Store, error)) {
	node, err := witness.Open(b.Context(), open, b.TempDir(), witness.Options{})
	if err != nil {
		b.Fatal(err)
	}
	defer node.Close()
	patience.Until(b, "the node has joined", func() bool { return node.Ping(b.Context()) == nil })
	made := 0
	for _, crowd := range []struct{ callers, tags int }{{1, 1}, {64, 1}, {64, 64}} {
		b.Run(fmt.Sprintf("%d callers of %d%s", crowd.callers, crowd.tags, how), func(b *testing.B) {
			var names []string
			for range crowd.tags {
				made++
				tag, err := hapax.Tag{Name: fmt.Sprint("orders", made, how)}.WithDefaults()
				if err == nil {
					_, err = node.CreateTag(b.Context(), tag, hapax.CreateExplicit)
				}
				if err != nil {
					b.Fatal(err)
				}
				names = append(names, tag.Name)
			}
			var left atomic.Int64
			left.Store(int64(b.N))
			var wg sync.WaitGroup
			b.ResetTimer()
			for i := range crowd.callers {
				wg.Go(func() {
					for left.Add(-1) >= 0 {
						if _, err := node.Allocate(b.Context(), names[i%crowd.tags], 0, ""); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			wg.Wait()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "grants/s")
		})
	}
}
