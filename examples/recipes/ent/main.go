// Command ent has ent insert rows with numbers from hapax, which the client leases from a
// server and issues in this process. "go generate" makes the package shop.
package main

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"strconv"

	"entgo.io/ent"
	"entgo.io/ent/dialect"
	entsql "entgo.io/ent/dialect/sql"
	_ "github.com/jackc/pgx/v5/stdlib" // registers the driver

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/client"
	"github.com/hapax-id/hapax/examples/recipes/ent/shop"
)

//go:generate go tool ent generate --target shop ./schema

func main() {
	if err := run(context.Background(), os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// numbered is a hook that gives each new row a number, also each of a batch.
func numbered(ids hapax.Issuer) ent.Hook {
	return func(next ent.Mutator) ent.Mutator {
		return ent.MutateFunc(func(ctx context.Context, m ent.Mutation) (ent.Value, error) {
			if row, ok := m.(interface{ SetID(int64) }); ok && m.Op().Is(ent.OpCreate) {
				id, err := ids.Next(ctx)
				if err != nil {
					return nil, err
				}
				row.SetID(int64(id))
			}
			return next.Mutate(ctx, m)
		})
	}
}

func run(ctx context.Context, what string) error {
	pool, err := sql.Open("pgx", os.Getenv("DATABASE_URL"))
	if err != nil {
		return err
	}
	db := shop.NewClient(shop.Driver(entsql.OpenDB(dialect.Postgres, pool)))
	defer db.Close()
	if what == "create" {
		return db.Schema.Create(ctx)
	}
	n, err := strconv.Atoi(what)
	if err != nil {
		return err
	}
	c, err := client.Dial(ctx, client.Options{}, os.Getenv("HAPAX_SERVER"))
	if err != nil {
		return err
	}
	defer c.Close()
	orders, err := c.Segment(ctx, "ent-orders", hapax.SegmentOptions{})
	if err != nil {
		return err
	}
	defer orders.Close(ctx)
	db.Order.Use(numbered(orders))

	batch := make([]*shop.OrderCreate, n)
	for i := range n {
		if err := db.Order.Create().SetWhat(fmt.Sprint("order ", i)).Exec(ctx); err != nil {
			return err
		}
		batch[i] = db.Order.Create().SetWhat(fmt.Sprint("bulk ", i))
	}
	return db.Order.CreateBulk(batch...).Exec(ctx)
}
