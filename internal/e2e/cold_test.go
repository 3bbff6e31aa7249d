package e2e

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/patience"
	"github.com/hapax-id/hapax/internal/server"
	"github.com/hapax-id/hapax/internal/service"
	"github.com/hapax-id/hapax/store/boltstore"
)

// coldService returns a service on the embedded store of a new data directory, as a server
// has it, and closes it with the test.
func coldService(t testing.TB) *service.Service {
	t.Helper()
	config := server.DefaultConfig()
	config.Data = t.TempDir()
	node, err := server.OpenNode(t.Context(), config, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = node.Close() })
	patience.Until(t, "the node has joined", func() bool { return node.Store.Ping(t.Context()) == nil })
	s, err := service.New(t.Context(), node.Store, service.Options{Logger: slog.New(slog.DiscardHandler), MaxTags: 1_000_000, MaxWait: patience.Call})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close(context.Background()) })
	return s
}

// crowds are how many callers use tags for the first time at once.
var crowds = []int{32, 256}

// firstUses has callers use tags for the first time, each of which is made, granted its
// first segment, and recorded by the witness: all on disk before its first number is issued.
func firstUses(t testing.TB, s *service.Service, tags, callers int) {
	t.Helper()
	var made atomic.Int64
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			for i := made.Add(1); i <= int64(tags); i = made.Add(1) {
				if _, err := s.Next(t.Context(), fmt.Sprint("order-", i)); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
}

// BenchmarkFirstUse is run with -benchtime 100000x.
func BenchmarkFirstUse(b *testing.B) {
	for _, callers := range crowds {
		b.Run(fmt.Sprintf("callers=%d", callers), func(b *testing.B) {
			s := coldService(b)
			b.ResetTimer()
			firstUses(b, s, b.N, callers)
			b.StopTimer()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "tags/s")
		})
	}
}

// TestFirstUseSoak tells how many tags clients of the Redis protocol can use for the first
// time in a second.
func TestFirstUseSoak(t *testing.T) {
	patience.Soak(t, "it measures")
	for _, clients := range crowds {
		t.Run(fmt.Sprintf("clients=%d", clients), func(t *testing.T) { firstUsesOver(t, clients) })
	}
}

// firstUsesOver has clients of the Redis protocol use tags for the first time.
func firstUsesOver(t *testing.T, clients int) {
	const tags = 100_000
	s := serve(t, t.TempDir(), nil, "--max-tags", "1000000")
	var made atomic.Int64
	var wg sync.WaitGroup
	began := time.Now()
	for range clients {
		c, replies := dialRESP(t, s.respAddress())
		wg.Go(func() {
			for i := made.Add(1); i <= tags; i = made.Add(1) {
				_, err := fmt.Fprintf(c, "INCR order-%d\r\n", i)
				if err == nil {
					var reply string
					if reply, err = replies.ReadString('\n'); reply != ":1\r\n" {
						t.Errorf("the first number of order-%d: %q, %v", i, reply, err)
					}
				}
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	t.Logf("%d tags used for the first time over %d connections: %.0f tags/s", tags, clients, tags/time.Since(began).Seconds())
}

// A server keeps 1,500 bytes at most of a tag that it was asked for once, the memory of its
// witness and its store included.
func TestIdleTagsAreSmall(t *testing.T) { idleTagsAreSmall(t, 10_000) }

func TestIdleTagsAreSmallSoak(t *testing.T) {
	patience.Soak(t, "a hundred thousand tags")
	idleTagsAreSmall(t, 100_000)
}

func idleTagsAreSmall(t *testing.T, tags int) {
	t.Helper()
	const most = 1500
	s := coldService(t)
	before := heapInUse()
	firstUses(t, s, tags, crowds[0])
	each := float64(heapInUse()-before) / float64(tags)
	t.Logf("%.0f bytes for each of %d idle tags", each, tags)
	if each > most {
		t.Errorf("an idle tag takes %.0f bytes, want %d at most", each, most)
	}
}

// heapInUse returns the bytes of all objects that can be reached.
func heapInUse() uint64 {
	runtime.GC()
	runtime.GC() // what the first one has only moved out of pools is gone then
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// TestMillionTagsSoak tells what a store with a million tags costs a server: how long it
// takes to start, and the memory with a thousand of them in use. Those that are let go of
// go on where they stopped.
func TestMillionTagsSoak(t *testing.T) {
	patience.Soak(t, "it measures")
	const all, busy = 1_000_000, 1000
	name := func(i int) string { return fmt.Sprintf("order-%07d", i) }
	dir := t.TempDir()
	data := filepath.Join(dir, "data")
	if err := os.Mkdir(data, 0o700); err != nil {
		t.Fatal(err)
	}
	store, err := boltstore.Open(t.Context(), filepath.Join(data, "hapax.db"), boltstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	var made atomic.Int64
	var wg sync.WaitGroup
	for range 1024 { // as many as share a transaction
		wg.Go(func() {
			for i := made.Add(1); i <= all; i = made.Add(1) {
				tag, err := hapax.Tag{Name: name(int(i))}.WithDefaults()
				if err == nil {
					_, err = store.CreateTag(t.Context(), tag, hapax.CreateExplicit)
				}
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d tags made in %.1f s", all, time.Since(began).Seconds())

	for round := range 2 { // the first start reads all tags into the witness
		began = time.Now()
		s := serve(t, dir, nil, "--data", "data", "--tag-idle", "2s", "--refresh", "1s", "--max-tags", "1000000")
		started := time.Since(began)
		first := takeSoon(t, s, name(1), 1)
		t.Logf("start %d: serving after %.2f s, the first number after %.2f s, %.0f MiB resident", round+1, started.Seconds(), time.Since(began).Seconds(), float64(s.resident())/(1<<20))
		next := first[0]
		for range 2 {
			for i := range busy - 1 {
				takeSoon(t, s, name(i+2), 1)
			}
			next++
			if got := takeSoon(t, s, name(1), 1); got[0] != next {
				t.Errorf("%s goes on with %d, want %d", name(1), got[0], next)
			}
			t.Logf("%d tags in use: %.0f MiB resident", busy, float64(s.resident())/(1<<20))
			patience.Until(t, "idle tags are let go of", func() bool { return s.metric("hapax_tags") < busy/2 })
		}
		if code := s.stop(); code != 0 {
			t.Errorf("the server ended with %d", code)
		}
	}
}
