package mongostore_test

import (
	"context"
	"fmt"
	"log"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/mongostore"
)

// Collections are made at first.
func ExampleOpen() {
	ctx := context.Background()
	store, err := mongostore.Open(ctx, "mongodb://app:p%40ss@mongo.example:27017/ids?replicaSet=rs0", mongostore.Options{})
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
