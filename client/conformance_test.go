package client_test

import (
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"testing"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/client"
	"github.com/hapax-id/hapax/internal/api/rpcapi"
	"github.com/hapax-id/hapax/store/boltstore"
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
func serveStore(t testing.TB, store hapax.Store) *client.Client {
	t.Helper()
	srv := httptest.NewServer(muxOf(rpcapi.NewStore(store, rpcapi.Options{})))
	t.Cleanup(srv.Close)
	return dial(t, client.Options{}, srv.URL)
}

// TestConformance holds a client to what every store must do, over the network.
func TestConformance(t *testing.T) {
	for name, open := range map[string]func(testing.TB) hapax.Store{
		"memory": func(testing.TB) hapax.Store { return memstore.New() },
		"bolt": func(t testing.TB) hapax.Store {
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
				Open:         func(t testing.TB) storetest.Handle { return serveStore(t, open(t)) },
				Capabilities: storetest.Capabilities{NoRows: true},
			})
		})
	}
}
