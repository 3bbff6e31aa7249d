// Command embedded issues numbers in its own process, with its store in one
// local file. Run it again: it goes on above what the last run issued.
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
	"github.com/hapax-id/hapax/store/boltstore"
)

func main() {
	path := flag.String("store", "embedded.db", "file of the store; made when missing")
	n := flag.Int("n", 3, "how many numbers of each kind to issue")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Stdout, *path, *n); err != nil {
		fmt.Fprintln(os.Stderr, "embedded:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, w io.Writer, path string, n int) (err error) {
	store, err := boltstore.Open(ctx, path, boltstore.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()

	// Orders are counted: 1, 2, 3, …
	orders, err := hapax.NewSegment(ctx, store, "orders", hapax.SegmentOptions{})
	if err != nil {
		return err
	}
	if err := issue(ctx, w, "order", orders, n); err != nil {
		return err
	}

	// Events carry their time. The worker ID comes from the store, too.
	events, err := hapax.NewSnowflake(ctx, store, hapax.SnowflakeOptions{})
	if err != nil {
		return err
	}
	return issue(ctx, w, "event", events, n)
}

// issue writes n numbers and closes the issuer, which hands back what the store
// can take back.
func issue(ctx context.Context, w io.Writer, name string, issuer hapax.Issuer, n int) (err error) {
	defer func() { err = errors.Join(err, issuer.Close(context.WithoutCancel(ctx))) }()
	for range n {
		id, err := issuer.Next(ctx)
		if err != nil {
			return err
		}
		fmt.Fprintln(w, name, id)
	}
	return nil
}
