package client_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/client"
	"github.com/hapax-id/hapax/internal/api/rpcapi"
	"github.com/hapax-id/hapax/internal/patience"
	"github.com/hapax-id/hapax/internal/wire"
	"github.com/hapax-id/hapax/store/memstore"
)

// An address is where servers come one after the other, between two calls and
// without an error.
type address struct {
	*httptest.Server

	now  atomic.Pointer[node]
	mute atomic.Pointer[func(http.Header)] // changes what requests and replies say of the store
}

func newAddress(t *testing.T, first *node) *address {
	a := &address{}
	a.now.Store(first)
	a.Server = httptest.NewServer(a)
	t.Cleanup(a.Close)
	return a
}

// forget leaves the store's name out of requests, or of replies too, as a proxy does that
// passes on only what it knows.
func (a *address) forget(replies bool) {
	f := func(h http.Header) {
		if replies {
			h.Del(wire.StoreHeader)
		}
	}
	a.mute.Store(&f)
}

func (a *address) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if mute := a.mute.Load(); mute != nil {
		r.Header.Del(wire.StoreHeader)
		w = &muted{w, *mute}
	}
	a.now.Load().Config.Handler.ServeHTTP(w, r)
}

type muted struct {
	http.ResponseWriter
	mute func(http.Header)
}

func (m *muted) WriteHeader(code int) {
	m.mute(m.Header())
	m.ResponseWriter.WriteHeader(code)
}

func (m *muted) Write(data []byte) (int, error) {
	m.mute(m.Header())
	return m.ResponseWriter.Write(data)
}

// wantReplaced takes numbers until an error comes, which must be the one of a
// store that was replaced.
func wantReplaced(t *testing.T, l *ledger, what string, take func() (hapax.ID, error)) {
	t.Helper()
	for range 100_000 {
		id, err := take()
		if err == nil {
			l.note(id)
			continue
		}
		if !errors.Is(err, hapax.ErrStoreReplaced) {
			t.Errorf("%s: error is %v; want ErrStoreReplaced", what, err)
		}
		return
	}
	t.Errorf("%s: the other store's numbers are taken", what)
}

// Calls for single numbers do not go on with another server's other store.
func TestSingleCallsAfterFailover(t *testing.T) {
	ctx := within(t)
	proxies, urls := proxied(t, serve(t, memstore.New(), rpcapi.Options{}), serve(t, memstore.New(), rpcapi.Options{}))
	proxies[1].Cut()
	c := dial(t, client.Options{Once: true}, urls...)
	l := newLedger(t)
	for range 3 {
		id, err := c.Next(ctx, "orders")
		if err != nil {
			t.Fatal(err)
		}
		l.note(id)
	}
	proxies[0].Cut()
	proxies[1].Pass()
	wantReplaced(t, l, "a single call", func() (hapax.ID, error) { return c.Next(ctx, "orders") })
}

// The server is wiped, and comes back between two calls: neither single numbers
// nor leases are taken from what is another store.
func TestServerWipedBetweenCalls(t *testing.T) {
	for name, mute := range map[string]func(*address){
		"the server is told":                 func(*address) {},
		"only the reply tells":               func(a *address) { a.forget(false) },
		"nothing tells until there is a cut": func(a *address) { a.forget(true) },
	} {
		t.Run(name, func(t *testing.T) {
			ctx := within(t)
			a := newAddress(t, serve(t, memstore.New(), rpcapi.Options{}))
			mute(a)
			c := dial(t, client.Options{Once: true}, a.URL)
			l := newLedger(t)
			segment, err := c.Segment(ctx, "orders", hapax.SegmentOptions{Step: 10, MaxStep: 10})
			if err != nil {
				t.Fatal(err)
			}
			take := func() (hapax.ID, error) {
				ctx, cancel := context.WithTimeout(ctx, patience.Call)
				defer cancel()
				return segment.Next(ctx)
			}
			id, err := take()
			if err != nil {
				t.Fatal(err)
			}
			l.note(id)
			next := serve(t, memstore.New(), rpcapi.Options{})
			if name == "nothing tells until there is a cut" {
				dead := serve(t, memstore.New(), rpcapi.Options{}, func(http.Handler) http.Handler {
					return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadGateway) })
				})
				a.now.Store(dead)
				if _, err := c.Next(ctx, "orders"); !errors.Is(err, hapax.ErrStoreUnavailable) {
					t.Errorf("while the server is away: %v", err)
				}
			}
			a.now.Store(next)
			if name != "nothing tells until there is a cut" {
				wantReplaced(t, l, "a single call", func() (hapax.ID, error) { return c.Next(ctx, "orders") })
			}
			wantReplaced(t, l, "a lease", take)
		})
	}
}
