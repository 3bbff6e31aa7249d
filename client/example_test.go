package client_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http/httptest"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/client"
	"github.com/hapax-id/hapax/internal/api/rpcapi"
	"github.com/hapax-id/hapax/internal/service"
	"github.com/hapax-id/hapax/store/memstore"
)

// A program takes numbers of two kinds, in its own process.
func Example() {
	url, stop := exampleServer()
	defer stop()

	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	c, err := client.Dial(ctx, client.Options{}, url)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = c.Close() }() // gives the worker ID back

	orders, err := c.Segment(ctx, "orders", hapax.SegmentOptions{})
	if err != nil {
		fmt.Println(err)
		return
	}
	events, err := c.Snowflake(ctx, hapax.SnowflakeOptions{})
	if err != nil {
		fmt.Println(err)
		return
	}
	order, err := orders.Next(ctx) // from memory, mostly
	if err != nil {
		fmt.Println(err)
		return
	}
	event, err := events.Next(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(order, event > 1<<40)
	// Output: 1 true
}

// exampleServer stands for a server that runs elsewhere.
func exampleServer() (url string, stop func()) {
	svc, err := service.New(context.Background(), memstore.New(), service.Options{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		panic(err) // the options are empty
	}
	srv := httptest.NewServer(muxOf(rpcapi.New(svc, rpcapi.Options{})))
	return srv.URL, func() {
		srv.Close()
		_ = svc.Close(context.Background())
	}
}
