package memstore_test

import (
	"context"
	"fmt"
	"log"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/memstore"
)

// A store for tests: it forgets everything with the process.
func ExampleNew() {
	ctx := context.Background()
	orders, err := hapax.NewSegment(ctx, memstore.New(), "orders", hapax.SegmentOptions{Start: 1000})
	if err != nil {
		log.Fatal(err)
	}
	defer orders.Close(ctx)
	id, err := orders.Next(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(id)
	// Output: 1000
}
