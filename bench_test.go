package hapax_test

import (
	"sync/atomic"
	"testing"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/memstore"
)

// padded keeps the baseline's word on a cache line of its own, as ours is.
type padded struct {
	_ [64]byte
	v atomic.Int64
	_ [64]byte
}

func BenchmarkBareAdd(b *testing.B) {
	var p padded
	for b.Loop() {
		p.v.Add(1)
	}
}

func BenchmarkBareAddParallel(b *testing.B) {
	var p padded
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			p.v.Add(1)
		}
	})
}

func issuers(b *testing.B) map[string]func() hapax.Issuer {
	snowflake := func(layout string, mutex bool) func() hapax.Issuer {
		return func() hapax.Issuer {
			l, err := hapax.ParseLayout(layout)
			if err != nil {
				b.Fatal(err)
			}
			s, err := hapax.NewSnowflake(b.Context(), memstore.New(), hapax.SnowflakeOptions{Layout: l, Mutex: mutex})
			if err != nil {
				b.Fatal(err)
			}
			return s
		}
	}
	return map[string]func() hapax.Issuer{
		"segment": func() hapax.Issuer {
			s, err := hapax.NewSegment(b.Context(), memstore.New(), "orders", hapax.SegmentOptions{})
			if err != nil {
				b.Fatal(err)
			}
			return s
		},
		"snowflake-22bit":       snowflake("time:40,worker:1,sequence:22,unit=1ms,epoch=2020-01-01T00:00:00Z", false),
		"snowflake-22bit-mutex": snowflake("time:40,worker:1,sequence:22,unit=1ms,epoch=2020-01-01T00:00:00Z", true),
		"snowflake-leaf":        snowflake(hapax.LayoutLeaf, false),
	}
}

func BenchmarkNext(b *testing.B) {
	for name, open := range issuers(b) {
		b.Run(name, func(b *testing.B) {
			s := open()
			defer s.Close(b.Context())
			ctx := b.Context()
			b.ReportAllocs()
			for b.Loop() {
				if _, err := s.Next(ctx); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(name+"/parallel", func(b *testing.B) {
			s := open()
			defer s.Close(b.Context())
			ctx := b.Context()
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					if _, err := s.Next(ctx); err != nil {
						b.Error(err)
						return
					}
				}
			})
		})
		b.Run(name+"/lane", func(b *testing.B) {
			s := open().(laned)
			defer s.Close(b.Context())
			ctx, l := b.Context(), s.Lane()
			b.ReportAllocs()
			for b.Loop() {
				if _, err := l.Next(ctx); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(name+"/lane/parallel", func(b *testing.B) {
			s := open().(laned)
			defer s.Close(b.Context())
			ctx := b.Context()
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				l := s.Lane()
				defer l.Close()
				for pb.Next() {
					if _, err := l.Next(ctx); err != nil {
						b.Error(err)
						return
					}
				}
			})
		})
		b.Run(name+"/1024", func(b *testing.B) {
			s := open()
			defer s.Close(b.Context())
			ctx, dst := b.Context(), make([]hapax.ID, 1024)
			b.ReportAllocs()
			for b.Loop() {
				if _, err := s.NextN(ctx, dst); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/1024, "ns/ID")
		})
	}
}
