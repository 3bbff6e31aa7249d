package sqlstore_test

import (
	"context"
	"fmt"
	"log"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/sqlstore"
	"github.com/hapax-id/hapax/store/sqlstore/mysqlstore"
)

// Tables are made at first; postgres:// opens a PostgreSQL database. An @ in the password is %40.
func Example() {
	ctx := context.Background()
	store, err := mysqlstore.Open(ctx, "mysql://app:p%40ss@db.example:3306/ids", sqlstore.Options{})
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
