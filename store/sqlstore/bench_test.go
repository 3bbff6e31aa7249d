package sqlstore_test

import (
	"strconv"
	"testing"

	"github.com/hapax-id/hapax/internal/testservers"
	"github.com/hapax-id/hapax/store/sqlstore"
)

// BenchmarkAllocate shows what a grant costs, beside a read of one row and, as
// the limit, a bare UPDATE of one.
func BenchmarkAllocate(b *testing.B) {
	for name, kind := range kinds {
		b.Run(name, func(b *testing.B) {
			benchmarkAllocate(b, kind.start(b))
		})
	}
}

func benchmarkAllocate(b *testing.B, server *testservers.Server) {
	url := fresh(server.URL)
	s := open(b, url, sqlstore.Options{})
	create(b, s, "orders")
	b.Run("read", func(b *testing.B) {
		for b.Loop() {
			if _, err := s.StoreID(b.Context()); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("update", func(b *testing.B) {
		if _, err := s.SwapRow(b.Context(), "t", "r", nil, []byte("0")); err != nil {
			b.Fatal(err)
		}
		db, n := s.DB(), 0
		query := s.Bind("UPDATE " + prefixOf(url) + "rows SET value = ? WHERE tbl = 't' AND name = 'r'")
		for b.Loop() {
			n++
			if _, err := db.ExecContext(b.Context(), query, strconv.Itoa(n)); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("allocate", func(b *testing.B) {
		for b.Loop() {
			allocate(b, s, "orders", 0)
		}
	})
	b.Run("allocate from 8", func(b *testing.B) {
		b.SetParallelism(4)
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				if _, err := s.Allocate(b.Context(), "orders", 0, ""); err != nil {
					b.Error(err)
					return
				}
			}
		})
	})
}
