package e2e

import (
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/patience"
	"github.com/hapax-id/hapax/internal/server"
)

// BenchmarkGuardedGrant shows what a grant costs a node, with its witness and its
// heartbeat: asked for by one caller, and by 64 of one tag, or each of another one.
func BenchmarkGuardedGrant(b *testing.B) {
	for _, store := range sharedStores {
		b.Run(store.name, func(b *testing.B) {
			config := server.DefaultConfig()
			config.Store, config.Data = store.start(b).URL, b.TempDir()
			node, err := server.OpenNode(b.Context(), config, slog.New(slog.DiscardHandler))
			if err != nil {
				b.Fatal(err)
			}
			defer node.Close()
			patience.Until(b, "the node has joined", func() bool { return node.Store.Ping(b.Context()) == nil })
			for _, crowd := range []struct{ callers, tags int }{{1, 1}, {64, 1}, {64, 64}} {
				b.Run(fmt.Sprintf("%d callers of %d", crowd.callers, crowd.tags), func(b *testing.B) {
					benchmarkCrowd(b, node.Store, crowd.callers, crowd.tags)
				})
			}
		})
	}
}

func benchmarkCrowd(b *testing.B, store hapax.Store, callers, tags int) {
	var names []string
	for range tags {
		tag, err := hapax.Tag{Name: unusedName("orders")}.WithDefaults()
		if err == nil {
			_, err = store.CreateTag(b.Context(), tag, hapax.CreateExplicit)
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
	for i := range callers {
		wg.Go(func() {
			for left.Add(-1) >= 0 {
				if _, err := store.Allocate(b.Context(), names[i%tags], 0, ""); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "grants/s")
}
