package client_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/client"
)

// A program takes numbers of two kinds, in its own process.
func Example() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	c, err := client.Dial(ctx, client.Options{}, "http://127.0.0.1:8080")
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = c.Close() }() // gives the worker ID back

	orders, err := c.Segment(ctx, "orders", hapax.SegmentOptions{})
	if err != nil {
		log.Print(err)
		return
	}
	events, err := c.Snowflake(ctx, hapax.SnowflakeOptions{})
	if err != nil {
		log.Print(err)
		return
	}
	order, err := orders.Next(ctx) // from memory, mostly
	if err != nil {
		log.Print(err)
		return
	}
	event, err := events.Next(ctx)
	if err != nil {
		log.Print(err)
		return
	}
	fmt.Println(order, event)
}
