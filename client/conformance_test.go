package client_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"sync"
	"testing"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/client"
	"github.com/hapax-id/hapax/internal/api/rpcapi"
	"github.com/hapax-id/hapax/store/boltstore"
	"github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/store/memstore"
	"github.com/hapax-id/hapax/store/storetest"
)

// muxOf puts routes on one address.
func muxOf(routes map[string]http.Handler) *http.ServeMux {
	mux := http.NewServeMux()
	for pattern, h := range routes {
		mux.Handle(pattern, h)
	}
	return mux
}

// dial connects to servers, until the end of the test.
func dial(t testing.TB, opts client.Options, urls ...string) *client.Client {
	t.Helper()
	c, err := client.Dial(t.Context(), opts, urls...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// serveStore returns a client of a server that has nothing but a store.
func serveStore(t testing.TB, store driver.Store) *client.Client {
	t.Helper()
	srv := httptest.NewServer(muxOf(rpcapi.NewStore(store, rpcapi.Options{})))
	t.Cleanup(srv.Close)
	return dial(t, client.Options{}, srv.URL)
}

// TestConformance holds a client to a store's duties, over the network.
func TestConformance(t *testing.T) {
	for name, open := range map[string]func(testing.TB) driver.Store{
		"memory": func(testing.TB) driver.Store { return memstore.New() },
		"bolt": func(t testing.TB) driver.Store {
			store, err := boltstore.Open(t.Context(), filepath.Join(t.TempDir(), "db"), boltstore.Options{})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = store.Close() })
			return store
		},
	} {
		t.Run(name, func(t *testing.T) {
			storetest.Run(t, storetest.Harness{
				Open: func(t testing.TB) storetest.Handle {
					clock := &clock{}
					return clocked{serveStore(t, clockedStore{open(t), clock}), clock}
				},
				Capabilities: storetest.Capabilities{NoRows: true},
			})
		})
	}
}

// A clock carries the suite's time and terms past the protocol, in which a
// server's own clock and settings decide: by holders and keys.
type clock struct{ terms sync.Map }

func (c *clock) tell(by string, t hapax.Term) { c.terms.Store(by, t) }

func (c *clock) set(by string, t *hapax.Term) {
	if v, ok := c.terms.Load(by); ok {
		t.Now, t.TTL = v.(hapax.Term).Now, v.(hapax.Term).TTL
	}
}

// clocked is the client's end.
type clocked struct {
	*client.Client

	*clock
}

func (c clocked) AcquireWorker(ctx context.Context, req hapax.AcquireRequest) (hapax.Lease, error) {
	c.tell("of "+req.Holder, req.Term)
	return c.Client.AcquireWorker(ctx, req)
}

func (c clocked) ExtendWorker(ctx context.Context, l hapax.Lease, layout hapax.Layout, term hapax.Term) (hapax.Lease, error) {
	c.tell("under "+string(l.Key), term)
	return c.Client.ExtendWorker(ctx, l, layout, term)
}

// clockedStore is the server's end.
type clockedStore struct {
	driver.Store

	*clock
}

func (s clockedStore) AcquireWorker(ctx context.Context, req hapax.AcquireRequest) (hapax.Lease, error) {
	s.set("of "+req.Holder, &req.Term)
	return s.Store.AcquireWorker(ctx, req)
}

func (s clockedStore) ExtendWorker(ctx context.Context, l hapax.Lease, layout hapax.Layout, term hapax.Term) (hapax.Lease, error) {
	s.set("under "+string(l.Key), &term)
	if pools, err := s.Pools(ctx); err == nil {
		for _, p := range pools {
			if p.Name == l.Pool || layout.IsZero() {
				layout, _ = hapax.ParseLayout(p.Layout)
			}
		}
	}
	return s.Store.ExtendWorker(ctx, l, layout, term)
}
