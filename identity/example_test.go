package identity_test

import (
	"context"
	"fmt"
	"log"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/identity"
	"github.com/hapax-id/hapax/store/memstore"
)

// A provider chooses the worker ID, and the choice goes into the issuer's options.
func ExampleChoice_Apply() {
	ctx := context.Background()
	provider, err := identity.Parse("fixed:42") // or statefulset, env:WORKER_ID, …
	if err != nil {
		log.Fatal(err)
	}
	opts := hapax.SnowflakeOptions{Pool: "events"}
	choice, err := provider.Choose(ctx, identity.Request{Pool: opts.Pool, IDs: hapax.WorkerRange{Lo: 0, Hi: 1024}})
	if err != nil {
		log.Fatal(err)
	}
	choice.Apply(&opts)

	events, err := hapax.NewSnowflake(ctx, memstore.New(), opts)
	if err != nil {
		log.Fatal(err)
	}
	defer events.Close(ctx)
	fmt.Println(events.Stats().Worker)
	// Output: 42
}

// The high bits of the worker ID are the service, the low bits the rack.
func ExampleParseSplit() {
	split, err := identity.ParseSplit("service:8,rack:2")
	if err != nil {
		log.Fatal(err)
	}
	for _, part := range split.Parts(42<<2 | 3) {
		fmt.Println(part.Name, part.Value)
	}
	// Output:
	// service 42
	// rack 3
}
