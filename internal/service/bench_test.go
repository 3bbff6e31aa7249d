package service

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/service/auth"
	"github.com/hapax-id/hapax/store/memstore"
	"github.com/hapax-id/hapax/strategy"
)

// BenchmarkNext holds the service's Next against the issuer that it calls, also from all cores
// on one tag. What they lose by sharing its cursor is what lanes could win for a server: a few
// nanoseconds of a request's microseconds, so that it uses none.
func BenchmarkNext(b *testing.B) {
	s, err := New(b.Context(), memstore.New(), Options{
		Logger: slog.New(slog.DiscardHandler),
		Tags:   map[string]TagConfig{"orders": {Step: 1 << 30, MaxStep: 1 << 30}},
	})
	if err != nil {
		b.Fatal(err)
	}
	for i := range 1000 {
		if _, err := s.Next(b.Context(), fmt.Sprintf("tag-%d", i)); err != nil {
			b.Fatal(err)
		}
	}
	if _, err := s.Next(b.Context(), "orders"); err != nil {
		b.Fatal(err)
	}
	issuer := s.tags.find("orders").issuer
	name := []byte("orders")
	for _, c := range []struct {
		name string
		next func() (hapax.ID, error)
	}{
		{"issuer", func() (hapax.ID, error) { return issuer.Next(b.Context()) }},
		{"string", func() (hapax.ID, error) { return s.Next(b.Context(), "orders") }},
		{"bytes", func() (hapax.ID, error) { return s.NextBytes(b.Context(), name) }},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := c.next(); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(c.name+"/parallel", func(b *testing.B) {
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					if _, err := c.next(); err != nil {
						b.Error(err)
						return
					}
				}
			})
		})
	}
}

// TestPluginsAllocateNothing has a call cost no allocation through plugins that do not
// ask who makes it.
func TestPluginsAllocateNothing(t *testing.T) {
	nothing := strategy.Plugin{
		Name:   "nothing",
		Before: func(context.Context, strategy.Call) error { return nil },
		After:  func(context.Context, strategy.Call, strategy.Numbers) error { return nil },
	}
	s, err := New(t.Context(), memstore.New(), Options{
		Logger:     slog.New(slog.DiscardHandler),
		Strategies: newStrategies(t, nothing),
		Tags:       map[string]TagConfig{"orders": {Step: 1 << 20, MaxStep: 1 << 20}},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx := auth.NewContext(t.Context(), nil, "192.0.2.1:42")
	if n := testing.AllocsPerRun(100, func() { _, _ = s.Next(ctx, "orders") }); n != 0 {
		t.Errorf("a call allocates %v times", n)
	}
}

// TestNextAllocatesNothing: a number in hand costs no allocation, in whatever form the tag's name
// comes, and nothing is kept of a buffer with it.
func TestNextAllocatesNothing(t *testing.T) {
	store := memstore.New()
	s, err := New(t.Context(), store, Options{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	name := strings.Repeat("x", hapax.MaxTagBytes) // a copy of a short one would fit onto the stack
	buf := []byte(name)
	if _, err := s.NextBytes(t.Context(), buf); err != nil {
		t.Fatal(err)
	}
	clear(buf)
	if _, err := store.Tag(t.Context(), name); err != nil || s.tags.find(name) == nil || s.tags.find(name).name != name {
		t.Fatalf("the tag's name changes with the buffer: %v", err)
	}
	copy(buf, name)
	for form, next := range map[string]func() (hapax.ID, error){
		"string": func() (hapax.ID, error) { return s.Next(t.Context(), name) },
		"bytes":  func() (hapax.ID, error) { return s.NextBytes(t.Context(), buf) },
	} {
		for range 100 { // the first segment is small
			if _, err := next(); err != nil {
				t.Fatal(err)
			}
		}
		if n := testing.AllocsPerRun(100, func() { _, _ = next() }); n != 0 {
			t.Errorf("%s: a number allocates %v times", form, n)
		}
	}
}
