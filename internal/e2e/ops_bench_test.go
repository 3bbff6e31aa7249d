package e2e

import (
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/server"
	"github.com/hapax-id/hapax/internal/testservers"
	"github.com/hapax-id/hapax/store/driver"
)

// BenchmarkSurvey reads every line of a store with 20,000 tags as a
// node does that sees another one join or leave, and tells what goes over the network for
// that.
func BenchmarkSurvey(b *testing.B) {
	const page, lines = 5000, 20_000
	for _, store := range sharedStores {
		if store.name == "mongodb" {
			continue // what stands in for it here reads all of a collection to find a page
		}
		b.Run(store.name, func(b *testing.B) {
			s := store.start(b)
			proxy := testservers.NewProxy(b, s.Addr)
			config := server.DefaultConfig()
			config.Store = s.URL
			node, err := server.OpenStore(b.Context(), config, true, slog.New(slog.DiscardHandler))
			if err != nil {
				b.Fatal(err)
			}
			defer node.Close()
			var made atomic.Int64
			var wg sync.WaitGroup
			for range 64 {
				wg.Go(func() {
					for i := made.Add(1); i <= int64(lines); i = made.Add(1) {
						tag, err := hapax.Tag{Name: fmt.Sprintf("tag-%06d", i)}.WithDefaults()
						if err == nil {
							_, err = node.Store.CreateTag(b.Context(), tag, hapax.CreateExplicit)
						}
						if err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			wg.Wait()
			for b.Loop() {
				readTags(b, node.Store, page, lines)
			}
			b.ReportMetric(b.Elapsed().Seconds()/float64(b.N)/float64(lines)*100_000, "s/100k-lines")
			config.Store = proxy.URL(s.URL)
			reader, err := server.OpenStore(b.Context(), config, true, slog.New(slog.DiscardHandler))
			if err != nil {
				b.Fatal(err)
			}
			defer reader.Close()
			sent, received := proxy.Carried()
			readTags(b, reader.Store, page, lines)
			nowSent, nowReceived := proxy.Carried()
			b.ReportMetric(float64(nowSent-sent)/float64(lines), "B-sent/line")
			b.ReportMetric(float64(nowReceived-received)/float64(lines), "B-received/line")
		})
	}
}

// readTags reads all tags, of which there are so many, page by page.
func readTags(b *testing.B, store driver.Store, page, want int) {
	got := 0
	for after := ""; ; {
		tags, err := store.Tags(b.Context(), after, page)
		if err != nil {
			b.Fatal(err)
		}
		if got += len(tags); len(tags) < page {
			break
		}
		after = tags[len(tags)-1].Name
	}
	if got < want {
		b.Fatalf("%d tags, want %d", got, want)
	}
}
