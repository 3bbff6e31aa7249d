package boltstore_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/boltstore"
)

// Numbers go on where they were when the program is started again.
func ExampleOpen() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "ids-")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	for range 2 {
		store, err := boltstore.Open(ctx, filepath.Join(dir, "ids.db"), boltstore.Options{})
		if err != nil {
			log.Fatal(err)
		}
		orders, err := hapax.NewSegment(ctx, store, "orders", hapax.SegmentOptions{Step: 100})
		if err != nil {
			log.Fatal(err)
		}
		id, err := orders.Next(ctx)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(id > 0)
		if err := orders.Close(ctx); err != nil {
			log.Fatal(err)
		}
		if err := store.Close(); err != nil { // behind the issuers
			log.Fatal(err)
		}
	}
	// Output:
	// true
	// true
}
