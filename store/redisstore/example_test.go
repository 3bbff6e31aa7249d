package redisstore_test

import (
	"context"
	"fmt"
	"log"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/redisstore"
)

// The server has to keep what it acknowledges: appendonly yes, appendfsync always.
func ExampleOpen() {
	ctx := context.Background()
	store, err := redisstore.Open(ctx, "redis://:p%40ss@redis.example:6379/0", redisstore.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close() // behind the issuers, which need it to give back what they hold
	orders, err := hapax.NewSegment(ctx, store, "orders", hapax.SegmentOptions{})
	if err != nil {
		log.Fatal(err)
	}
	defer orders.Close(ctx)

	id, err := orders.Next(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(id)
}
