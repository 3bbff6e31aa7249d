package server

import (
	"context"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/hapax-id/hapax/internal/patience"
	"github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/strategy"
)

// A server stops, and gives back what it holds, although a call never ends.
func TestStopsWithoutAStuckCall(t *testing.T) {
	c := DefaultConfig()
	c.HTTP, c.RESP, c.Data, c.Drain = "127.0.0.1:0", "", t.TempDir(), time.Millisecond
	entered, never := make(chan struct{}), make(chan struct{})
	c.Setup = func(r *strategy.Registry, _ driver.Store) error {
		return r.Use(strategy.Plugin{Name: "stuck", Before: func(context.Context, strategy.Call) error {
			close(entered)
			<-never
			return nil
		}})
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- Run(ctx, nil, c, nil, io.Discard) }()
	var address string
	for ; address == ""; patience.Again() {
		select {
		case err := <-ended:
			t.Fatal(err)
		default:
			address, _ = Announced(c.Data)
		}
	}
	left := make(chan struct{})
	go func() {
		defer close(left)
		if resp, err := http.Get(address + "/v1/tags/orders/next"); err == nil { // it is cut off
			_ = resp.Body.Close()
		}
	}()
	<-entered
	stop()
	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(patience.Long):
		t.Error("the server waits for a call that never ends")
	}
	close(never)
	<-left
}
