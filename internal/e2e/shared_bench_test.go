package e2e

import (
	"log/slog"
	"testing"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/server"
	"github.com/hapax-id/hapax/internal/testservers"
	"github.com/hapax-id/hapax/store/driver"
)

// BenchmarkGrant shows what a grant costs in each store: of a segment, and of
// more time for a worker, as the store's caller sees it.
func BenchmarkGrant(b *testing.B) {
	embedded := sharedStore{"bolt", func(t testing.TB) *testservers.Server {
		return &testservers.Server{URL: "bolt:" + t.TempDir() + "/hapax.db"}
	}}
	for _, store := range append([]sharedStore{embedded}, sharedStores...) {
		b.Run(store.name, func(b *testing.B) {
			config := server.DefaultConfig()
			config.Store = store.start(b).URL
			node, err := server.OpenStore(b.Context(), config, true, slog.New(slog.DiscardHandler))
			if err != nil {
				b.Fatal(err)
			}
			defer node.Close()
			b.Run("segment", func(b *testing.B) { benchmarkSegment(b, node.Store) })
			b.Run("worker", func(b *testing.B) { benchmarkWorker(b, node.Store) })
		})
	}
}

func benchmarkSegment(b *testing.B, store driver.Store) {
	tag, err := hapax.Tag{Name: unusedName("orders")}.WithDefaults()
	if err == nil {
		_, err = store.CreateTag(b.Context(), tag, hapax.CreateExplicit)
	}
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, err := store.Allocate(b.Context(), tag.Name, 0, ""); err != nil {
			b.Fatal(err)
		}
	}
}

func benchmarkWorker(b *testing.B, store driver.Store) {
	layout, err := hapax.ParseLayout(hapax.LayoutLeaf)
	if err != nil {
		b.Fatal(err)
	}
	lease, err := store.AcquireWorker(b.Context(), hapax.AcquireRequest{
		Pool: unusedName("pool"), Layout: layout, Workers: hapax.WorkerRange{Lo: 0, Hi: 16}, Holder: "benchmark",
		Term: hapax.Term{Now: time.Now(), Length: layout.Unit(), TTL: time.Minute},
	})
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		lease, err = store.ExtendWorker(b.Context(), lease, layout, hapax.Term{Now: time.Now(), Length: time.Minute, TTL: time.Minute})
		if err != nil {
			b.Fatal(err)
		}
	}
}
