package hapax_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/store/memstore"
	"github.com/hapax-id/hapax/store/witness"
)

// A store that processes share is opened with a guard, whose witness lies in a directory
// of this process's own that stays. Here a store in memory stands for the shared one.
func ExampleIssuer() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "shop")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	shared := memstore.New()
	open := func(context.Context) (driver.Store, error) { return shared, nil }
	store, err := witness.Open(ctx, open, dir, witness.Options{Heartbeat: 100 * time.Millisecond}) // default 1 s
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()

	orders, err := hapax.NewSegment(ctx, store, "orders", hapax.SegmentOptions{})
	if err != nil {
		log.Fatal(err)
	}
	events, err := hapax.NewSnowflake(ctx, store, hapax.SnowflakeOptions{})
	if err != nil {
		log.Fatal(err)
	}
	for _, issuer := range []hapax.Issuer{orders, events} {
		first, err := issuer.Next(ctx)
		if err != nil {
			log.Fatal(err)
		}
		second, err := issuer.Next(ctx)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(first < second)
		if err := issuer.Close(ctx); err != nil { // hands back what was not issued
			log.Fatal(err)
		}
	}
	// Output:
	// true
	// true
}

func ExampleNewSegment() {
	ctx := context.Background()
	orders, err := hapax.NewSegment(ctx, memstore.New(), "orders", hapax.SegmentOptions{})
	if err != nil {
		log.Fatal(err)
	}
	defer orders.Close(ctx)

	for range 3 {
		id, err := orders.Next(ctx)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(id)
	}
	// Output:
	// 1
	// 2
	// 3
}

// A store outlives its issuers: what one hands back when it is closed is what the
// next one begins with.
func ExampleNewSegment_restart() {
	ctx := context.Background()
	store := memstore.New()
	for range 2 {
		orders, err := hapax.NewSegment(ctx, store, "orders", hapax.SegmentOptions{Start: 5000, Step: 100})
		if err != nil {
			log.Fatal(err)
		}
		id, err := orders.Next(ctx)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(id)
		if err := orders.Close(ctx); err != nil {
			log.Fatal(err)
		}
	}
	// Output:
	// 5000
	// 5001
}

// Numbers in a row, for a caller who counts them out itself.
func ExampleSegment_Reserve() {
	ctx := context.Background()
	seats, err := hapax.NewSegment(ctx, memstore.New(), "seats", hapax.SegmentOptions{})
	if err != nil {
		log.Fatal(err)
	}
	defer seats.Close(ctx)

	row, err := seats.Reserve(ctx, 40)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%d to %d\n", row.Lo, row.Hi-1)
	// Output: 1 to 40
}

// A lane is for one goroutine. Several of them take numbers without waiting for each
// other.
func ExampleSegment_Lane() {
	ctx := context.Background()
	orders, err := hapax.NewSegment(ctx, memstore.New(), "orders", hapax.SegmentOptions{})
	if err != nil {
		log.Fatal(err)
	}
	defer orders.Close(ctx)

	lane := orders.Lane()
	defer lane.Close()
	for id, err := range lane.All(ctx) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(id)
		if id == 3 {
			break
		}
	}
	// Output:
	// 1
	// 2
	// 3
}

func ExampleNewSnowflake() {
	ctx := context.Background()
	layout, err := hapax.ParseLayout("leaf")
	if err != nil {
		log.Fatal(err)
	}
	events, err := hapax.NewSnowflake(ctx, memstore.New(), hapax.SnowflakeOptions{Layout: layout})
	if err != nil {
		log.Fatal(err)
	}
	defer events.Close(ctx)

	id, err := events.Next(ctx)
	if err != nil {
		log.Fatal(err)
	}
	at, err := layout.Time(id)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(time.Since(at).Abs() < time.Minute)
	// Output: true
}

func ExampleSnowflake_NextN() {
	ctx := context.Background()
	events, err := hapax.NewSnowflake(ctx, memstore.New(), hapax.SnowflakeOptions{})
	if err != nil {
		log.Fatal(err)
	}
	defer events.Close(ctx)

	ids := make([]hapax.ID, 1000)
	n, err := events.NextN(ctx, ids)
	fmt.Println(n, err, ids[0] < ids[999])
	// Output: 1000 <nil> true
}

// A call waits up to its context's deadline. The error then tells both why it
// waited and why it stopped.
func ExampleWaitError() {
	var err error = &hapax.WaitError{Cause: hapax.ErrStoreUnavailable, Context: context.DeadlineExceeded}
	fmt.Println(errors.Is(err, hapax.ErrStoreUnavailable), errors.Is(err, context.DeadlineExceeded))
	fmt.Println(hapax.CodeOf(err))
	// Output:
	// true true
	// store_unavailable
}

func ExampleParseLayout() {
	layout, err := hapax.ParseLayout("time:41,worker:6,sequence:16,unit=1ms,epoch=2024-01-01T00:00:00Z")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(layout.Workers(), "workers,", layout.PerTick(), "IDs a millisecond each, until", layout.Ends().Year())
	// Output: 64 workers, 65536 IDs a millisecond each, until 2093
}

func ExampleLayout_Compose() {
	layout, err := hapax.ParseLayout("leaf")
	if err != nil {
		log.Fatal(err)
	}
	tick, err := layout.TickOf(time.Date(2025, 1, 1, 0, 0, 0, 0, time.UTC))
	if err != nil {
		log.Fatal(err)
	}
	id, err := layout.Compose(hapax.Fields{{"time", tick}, {"worker", 7}, {"sequence", 0}})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(id)

	_, err = layout.Compose(hapax.Fields{{"time", tick}, {"worker", 1024}, {"sequence", 0}})
	fmt.Println(err)
	// Output:
	// 1874244142494674944
	// hapax: invalid worker 1024: want 0 to 1023
}

func ExampleLayout_Parse() {
	layout, err := hapax.ParseLayout("leaf")
	if err != nil {
		log.Fatal(err)
	}
	fields, err := layout.Parse(1874244142494674944)
	if err != nil {
		log.Fatal(err)
	}
	at, err := layout.Time(1874244142494674944)
	if err != nil {
		log.Fatal(err)
	}
	worker, _ := fields.Get("worker")
	fmt.Println(at.Format(time.RFC3339), "worker", worker)
	// Output: 2025-01-01T00:00:00Z worker 7
}
