package codec

import (
	"testing"

	"github.com/hapax-id/hapax"
)

func BenchmarkFeistel(b *testing.B) {
	for _, bm := range []struct {
		name string
		n    uint64
	}{{"10^5", 1e5}, {"10^6", 1e6}, {"32^8", 1 << 40}, {"10^15", 1e15}, {"2^63", 1 << 63}} {
		f := newFeistel(make([]byte, 32), "orders", "k1", bm.n)
		b.Run(bm.name, func(b *testing.B) {
			var x uint64
			for b.Loop() {
				x = f.mix(x, 0)
			}
		})
	}
}

func BenchmarkCodec(b *testing.B) {
	for _, spec := range []string{
		"{id:19}", "{id:8:crockford32}{check}", "{id:8:crockford32:multiply}",
		"{id:8:crockford32:feistel:group=4}{check}", "{uuid}", "INV-{yyyy}{MM}{dd}-{seq:6}{check}",
	} {
		c, err := Parse(spec, Options{Tag: "orders", Keys: map[string][]byte{"k1": make([]byte, 32)}, Zone: "UTC"})
		if err != nil {
			b.Fatal(err)
		}
		p, err := c.Period(epoch)
		if err != nil {
			b.Fatal(err)
		}
		var text []byte
		b.Run("append/"+spec, func(b *testing.B) {
			b.ReportAllocs()
			id := hapax.ID(0)
			for b.Loop() {
				text, _ = c.AppendPeriod(text[:0], p, id)
				id = (id + 1) % 1e6
			}
		})
		b.Run("decode/"+spec, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, _, err := c.DecodePeriod(string(text)); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
