package coordtest

import (
	"sync"
	"sync/atomic"
	"testing"

	"github.com/hapax-id/hapax/store/driver"
)

// Benchmark measures a grant: taken by one handle alone, and by 16 handles that
// race for the same tag.
func Benchmark(b *testing.B, d Driver) {
	url := d.Server(b).URL
	b.Run("alone", func(b *testing.B) { d.benchmark(b, url+"/alone", 1) })
	b.Run("16 handles", func(b *testing.B) { d.benchmark(b, url+"/raced", 16) })
}

func (d Driver) benchmark(b *testing.B, url string, handles int) {
	first := d.open(b, url)
	if _, err := first.Tag(b.Context(), "t"); err != nil {
		create(b, first, "t")
	}
	var left atomic.Int64
	left.Store(int64(b.N))
	all := make([]driver.Store, handles)
	for i := range all {
		all[i] = d.open(b, url)
		if _, err := all[i].Allocate(b.Context(), "t", 1, ""); err != nil {
			b.Fatal(err)
		}
	}
	b.ResetTimer()
	var wg sync.WaitGroup
	for _, s := range all {
		wg.Go(func() {
			for left.Add(-1) >= 0 {
				if _, err := s.Allocate(b.Context(), "t", 1, ""); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
}
