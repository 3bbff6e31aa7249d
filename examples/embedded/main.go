// Command embedded issues numbers in its own process, with its store in one
// local file, or in a Redis that it shares with others. Run it again: it goes on
// above what the last run issued.
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
	"github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/store/redisstore"
	"github.com/hapax-id/hapax/store/witness"
)

func main() {
	var where place
	flag.StringVar(&where.path, "store", "embedded.db", "file of the store; made when missing")
	flag.StringVar(&where.redis, "redis", "", "URL of a Redis that this program shares with others, in place of the file")
	flag.StringVar(&where.data, "data", "embedded-data", "with -redis, a directory of this process's own that stays")
	n := flag.Int("n", 3, "how many numbers of each kind to issue")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Stdout, where, *n); err != nil {
		fmt.Fprintln(os.Stderr, "embedded:", err)
		os.Exit(1)
	}
}

// A place is where the store is.
type place struct{ path, redis, data string }

// open opens the store. One that is shared stands behind a guard: its witness, in the
// directory, notices where the store goes back, as with a restored backup.
func (p place) open(ctx context.Context) (driver.Store, error) {
	if p.redis == "" {
		return boltstore.Open(ctx, p.path, boltstore.Options{})
	}
	if err := os.MkdirAll(p.data, 0o700); err != nil {
		return nil, err
	}
	return witness.Open(ctx, func(ctx context.Context) (driver.Store, error) {
		return redisstore.Open(ctx, p.redis, redisstore.Options{})
	}, p.data, witness.Options{})
}

func run(ctx context.Context, w io.Writer, where place, n int) (err error) {
	store, err := where.open(ctx)
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
