// Command store issues numbers from a store of its own make, an SQLite file, in its own
// process. Run it again: it goes on above what the last run issued.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/examples/store/sqlitestore"
	"github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/store/witness"
)

func main() {
	path := flag.String("store", "hapax.sqlite", "file of the store, which other processes may share; made when missing")
	data := flag.String("data", "store-data", "a directory of this process's own that stays")
	n := flag.Int("n", 3, "how many numbers to issue")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Stdout, *path, *data, *n); err != nil {
		fmt.Fprintln(os.Stderr, "store:", err)
		os.Exit(1)
	}
}

// run issues n numbers. The store stands behind a guard: its witness, in the directory data,
// notices where the file goes back, as with a restored backup.
func run(ctx context.Context, w io.Writer, path, data string, n int) (err error) {
	if err := os.MkdirAll(data, 0o700); err != nil {
		return err
	}
	store, err := witness.Open(ctx, func(ctx context.Context) (driver.Store, error) {
		return sqlitestore.Open(ctx, path, sqlitestore.Options{})
	}, data, witness.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()

	orders, err := hapax.NewSegment(ctx, store, "orders", hapax.SegmentOptions{})
	if err != nil {
		return err
	}
	// Close hands back what was not issued.
	defer func() { err = errors.Join(err, orders.Close(context.WithoutCancel(ctx))) }()
	for range n {
		id, err := orders.Next(ctx)
		if err != nil {
			return err
		}
		fmt.Fprintln(w, "order", id)
	}
	return nil
}
