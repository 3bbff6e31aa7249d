package strategy_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/memstore"
	"github.com/hapax-id/hapax/strategy"
)

// officeHours is a plugin that keeps a tag closed at night.
func officeHours(tag string, now func() time.Time) strategy.Plugin {
	return strategy.Plugin{
		Name: "office-hours",
		Tags: []string{tag},
		Before: func(_ context.Context, c strategy.Call) error {
			if hour := now().Hour(); hour < 8 || hour >= 18 {
				return fmt.Errorf("no %s before 8 and after 18 o'clock", c.Tag())
			}
			return nil
		},
	}
}

func Example() {
	ctx := context.Background()
	strategies := strategy.NewRegistry(strategy.Options{})
	check(strategies.Register("segment", strategy.Segment(memstore.New(), hapax.SegmentOptions{})))
	check(strategies.OnReject("segment", func(_ context.Context, r strategy.Refusal) {
		fmt.Println("told:", r.Err)
	}))
	midnight := func() time.Time { return time.Date(2026, 11, 21, 0, 0, 0, 0, time.UTC) }
	check(strategies.Use(officeHours("invoices", midnight)))

	invoices, err := strategies.Open(ctx, "segment", hapax.Tag{Name: "invoices"})
	check(err)
	defer invoices.Close(ctx)
	_, err = invoices.Next(ctx)
	fmt.Println(errors.Is(err, strategy.ErrRejected))

	check(strategies.Switch("office-hours", false))
	id, err := invoices.Next(ctx)
	check(err)
	fmt.Println(id)
	// Output:
	// told: hapax: plugin "office-hours" refused: no invoices before 8 and after 18 o'clock
	// true
	// 1
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}
