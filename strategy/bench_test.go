package strategy_test

import (
	"context"
	"testing"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/strategy"
)

// BenchmarkNext compares the strategy's own issuer, a line without plugins, and
// one whose plugin does nothing.
func BenchmarkNext(b *testing.B) {
	r := newRegistry(b)
	step := int64(hapax.MaxStep)
	l := open(b, r, "segment", hapax.Tag{Name: "t", Step: step, MaxStep: step})
	run := func(name string, issuer hapax.Issuer) {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			ctx := b.Context()
			for b.Loop() {
				if _, err := issuer.Next(ctx); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	run("issuer", l.Issuer())
	run("line", l)
	must(b, r.Use(nothing))
	run("plugin", l)
}

// nothing is a plugin that does nothing in each hook.
var nothing = strategy.Plugin{
	Name:   "nothing",
	Before: func(context.Context, strategy.Call) error { return nil },
	After:  func(context.Context, strategy.Call, strategy.Numbers) error { return nil },
}

func TestAllocations(t *testing.T) {
	r := newRegistry(t)
	must(t, r.Use(nothing))
	l := open(t, r, "segment", hapax.Tag{Name: "t", Step: 1 << 20, MaxStep: 1 << 20})
	ctx := t.Context()
	dst := make([]hapax.ID, 16)
	if n := testing.AllocsPerRun(100, func() { _, _ = l.Next(ctx); _, _ = l.NextN(ctx, dst) }); n != 0 {
		t.Errorf("a call with a plugin that does nothing allocates %v times", n)
	}
}
