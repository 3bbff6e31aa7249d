package filestore_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/filestore"
)

// One worker ID on one machine needs no database: the file keeps how far its time
// was granted.
func ExampleOpen() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "ids-")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	store, err := filestore.Open(ctx, filepath.Join(dir, "worker"), filestore.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close() // behind the issuer
	events, err := hapax.NewSnowflake(ctx, store, hapax.SnowflakeOptions{Workers: hapax.WorkerRange{Lo: 7, Hi: 8}})
	if err != nil {
		log.Fatal(err)
	}
	defer events.Close(ctx)

	if _, err := events.Next(ctx); err != nil {
		log.Fatal(err)
	}
	fmt.Println(events.Stats().Worker)
	// Output: 7
}
