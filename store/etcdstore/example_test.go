package etcdstore_test

import (
	"context"
	"fmt"
	"log"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/etcdstore"
)

// What is stored lies below the prefix /ids.
func ExampleOpen() {
	ctx := context.Background()
	store, err := etcdstore.Open(ctx, "etcds://etcd-1.example:2379,etcd-2.example:2379/ids", etcdstore.Options{})
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
