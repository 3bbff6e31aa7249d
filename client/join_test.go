package client_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/client"
	"github.com/hapax-id/hapax/internal/api/rpcapi"
	"github.com/hapax-id/hapax/internal/patience"
	"github.com/hapax-id/hapax/internal/service"
	"github.com/hapax-id/hapax/store/memstore"
)

// held is a handler that lets requests for numbers pass when it is told to, and counts
// them.
type held struct {
	http.Handler
	passes           chan struct{} // nil: all pass
	asked, abandoned atomic.Int64
}

func (h *held) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !strings.HasSuffix(r.URL.Path, "IssueService/Next") {
		h.Handler.ServeHTTP(w, r)
		return
	}
	body, err := io.ReadAll(r.Body) // else the server does not notice that a client goes
	if err != nil {
		return
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	h.asked.Add(1)
	if h.passes != nil {
		select {
		case <-h.passes:
		case <-r.Context().Done():
			h.abandoned.Add(1)
		}
	}
	h.Handler.ServeHTTP(w, r)
}

// awaitAsked waits until so many requests have come.
func (h *held) awaitAsked(t *testing.T, n int64) {
	t.Helper()
	patience.Await(t, fmt.Sprintf("%d requests", n), func() (int64, error) { return h.asked.Load(), nil }, func(got int64) bool { return got >= n })
}

// awaitWaiting waits until so many callers wait for the next request for orders.
func awaitWaiting(t *testing.T, c *client.Client, n int) {
	t.Helper()
	patience.Await(t, fmt.Sprintf("%d waiting callers", n), func() (int, error) { return client.Waiting(c, "orders"), nil }, func(got int) bool { return got >= n })
}

func (h *held) wrap(next http.Handler) http.Handler {
	h.Handler = next
	return h
}

// Callers that come while two requests are under way, or one for many, share the next. Each
// gets a number of its own; one that has gone gets none, and holds nobody up.
func TestCallersShareRequests(t *testing.T) {
	ctx := within(t)
	h := &held{}
	n := serve(t, memstore.New(), rpcapi.Options{}, h.wrap)
	c := dial(t, client.Options{Timeout: time.Hour}, n.URL)
	if _, err := c.Next(ctx, "orders"); err != nil {
		t.Fatal(err)
	}
	h.passes = make(chan struct{})
	h.asked.Store(0)
	orders := newLedger(t)
	var callers sync.WaitGroup
	ask := func(ctx context.Context, want error) {
		callers.Go(func() {
			id, err := c.Next(ctx, "orders")
			if !errors.Is(err, want) {
				t.Errorf("%v, want %v", err, want)
			}
			if err == nil {
				orders.note(id)
			}
		})
	}
	ask(ctx, nil)
	ask(ctx, nil)
	h.awaitAsked(t, 2)
	for range 50 {
		ask(ctx, nil)
	}
	going, gone := context.WithCancel(ctx)
	ask(going, context.Canceled)
	awaitWaiting(t, c, 51)
	gone()
	h.passes <- struct{}{}
	h.passes <- struct{}{}
	h.awaitAsked(t, 3)
	for range 3 { // one request is under way, for many
		ask(ctx, nil)
	}
	awaitWaiting(t, c, 3)
	if n := h.asked.Load(); n != 3 {
		t.Errorf("%d requests, want 3", n)
	}
	h.passes <- struct{}{}
	h.passes <- struct{}{}
	callers.Wait()
	if len(orders.seen) != 55 || h.asked.Load() != 4 {
		t.Errorf("%d numbers in %d requests, want 55 in 4", len(orders.seen), h.asked.Load())
	}
	if n := client.Waiting(c, "orders"); n != 0 {
		t.Errorf("%d are left waiting", n)
	}
	h.passes = nil
	for range 20 { // and again and again
		callers.Go(func() {
			for range 50 {
				id, err := c.Next(ctx, "orders")
				if err != nil {
					t.Error(err)
					return
				}
				orders.note(id)
			}
		})
	}
	callers.Wait()
	if len(orders.seen) != 1055 {
		t.Errorf("%d numbers, want 1055", len(orders.seen))
	}
}

// What is refused because it is for many is asked for one by one: a server's limit is
// not that of the client's callers together.
func TestSharedRequestIsRefused(t *testing.T) {
	ctx := within(t)
	svc, err := service.New(ctx, memstore.New(), service.Options{MaxCount: 3, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer svc.Close(context.Background())
	n := httptest.NewServer(muxOf(rpcapi.New(svc, rpcapi.Options{})))
	defer n.Close()
	c := dial(t, client.Options{}, n.URL)
	orders := newLedger(t)
	var callers sync.WaitGroup
	for range 60 {
		callers.Go(func() {
			for range 20 {
				id, err := c.Next(ctx, "orders")
				if err != nil {
					t.Error(err)
					return
				}
				orders.note(id)
			}
		})
	}
	callers.Wait()
	if len(orders.seen) != 1200 {
		t.Errorf("%d numbers, want 1200", len(orders.seen))
	}
}

// When all who shared a request have gone, it ends, and Close ends those who wait.
func TestSharedRequestEnds(t *testing.T) {
	ctx := within(t)
	h := &held{passes: make(chan struct{})}
	n := serve(t, memstore.New(), rpcapi.Options{}, h.wrap)
	c := dial(t, client.Options{Timeout: time.Hour}, n.URL)
	var callers sync.WaitGroup
	ask := func(ctx context.Context, want error) {
		callers.Go(func() {
			if _, err := c.Next(ctx, "orders"); !errors.Is(err, want) {
				t.Errorf("%v, want %v", err, want)
			}
		})
	}
	for i := range 2 {
		ask(ctx, nil)
		h.awaitAsked(t, int64(i+1))
	}
	going, gone := context.WithCancel(ctx)
	ask(going, context.Canceled)
	ask(going, context.Canceled)
	awaitWaiting(t, c, 2)
	h.passes <- struct{}{}
	h.awaitAsked(t, 3) // the request that the two share
	gone()
	patience.Until(t, "a request given up", func() bool { return h.abandoned.Load() >= 1 })
	h.passes <- struct{}{}
	callers.Wait()

	going, gone = context.WithCancel(ctx)
	defer gone()
	for asked := h.asked.Load() + 1; asked <= 5; asked++ {
		ask(going, hapax.ErrClosed)
		h.awaitAsked(t, asked)
	}
	ask(going, hapax.ErrClosed)
	awaitWaiting(t, c, 1)
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	callers.Wait()
}

// Fifty callers of Next, who share requests, beside fifty who do not.
func BenchmarkSharedCalls(b *testing.B) {
	n := serve(b, memstore.New(), rpcapi.Options{})
	c := dial(b, client.Options{}, n.URL)
	for name, next := range map[string]func() error{
		"shared": func() error { _, err := c.Next(b.Context(), "orders"); return err },
		"single": func() error { _, err := c.NextN(b.Context(), "orders", make([]hapax.ID, 1)); return err },
	} {
		b.Run(name, func(b *testing.B) {
			b.SetParallelism(25) // on two cores
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					if err := next(); err != nil {
						b.Error(err)
						return
					}
				}
			})
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "IDs/s")
		})
	}
}
