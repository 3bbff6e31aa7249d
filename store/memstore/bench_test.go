package memstore_test

import (
	"fmt"
	"testing"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/store/memstore"
	"github.com/hapax-id/hapax/store/storetest"
)

// BenchmarkGrant measures what a grant costs beside the engine: alone, and with a heartbeat.
func BenchmarkGrant(b *testing.B) {
	s := memstore.New()
	for i := range 64 {
		if _, err := s.CreateTag(b.Context(), hapax.Tag{Name: fmt.Sprint(i)}, hapax.CreateExplicit); err != nil {
			b.Fatal(err)
		}
	}
	was := driver.Beat{Count: 1}
	if _, err := s.SwapRow(b.Context(), driver.TableBeats, "n", nil, was.Encode()); err != nil {
		b.Fatal(err)
	}
	b.Run("alone", func(b *testing.B) {
		for i := 0; b.Loop(); i++ {
			if _, err := s.Allocate(b.Context(), fmt.Sprint(i%64), 0, ""); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("with a beat", func(b *testing.B) {
		for i := 0; b.Loop(); i++ {
			now := driver.Beat{Count: was.Count + 1}
			if _, c, err := storetest.AllocateWith(b.Context(), s, driver.Pulse{Row: "n", Was: was, Now: now}, fmt.Sprint(i%64), 0, ""); err != nil || !c.Met {
				b.Fatal(c, err)
			}
			was = now
		}
	})
}
