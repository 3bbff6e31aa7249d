// Command sqlc inserts rows by code that sqlc generated, with numbers from hapax, which the
// client leases from a server and issues in this process.
package main

import (
	"context"
	_ "embed"
	"fmt"
	"os"
	"strconv"

	"github.com/jackc/pgx/v5"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/client"
	"github.com/hapax-id/hapax/examples/recipes/sqlc/shop"
)

//go:generate sqlc generate

//go:embed schema.sql
var schema string

func main() {
	if err := run(context.Background(), os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, what string) error {
	db, err := pgx.Connect(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		return err
	}
	defer db.Close(ctx)
	if what == "create" {
		_, err := db.Exec(ctx, schema)
		return err
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
	orders, err := c.Segment(ctx, "sqlc-orders", hapax.SegmentOptions{})
	if err != nil {
		return err
	}
	defer orders.Close(ctx)

	queries := shop.New(db)
	for i := range n {
		id, err := orders.Next(ctx)
		if err != nil {
			return err
		}
		if err := queries.CreateOrder(ctx, shop.CreateOrderParams{ID: int64(id), What: fmt.Sprint("order ", i)}); err != nil {
			return err
		}
	}
	ids := make([]hapax.ID, n)
	if _, err := orders.NextN(ctx, ids); err != nil {
		return err
	}
	batch := make([]shop.CreateOrdersParams, n)
	for i, id := range ids {
		batch[i] = shop.CreateOrdersParams{ID: int64(id), What: fmt.Sprint("bulk ", i)}
	}
	_, err = queries.CreateOrders(ctx, batch)
	return err
}
