package client_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/client"
	"github.com/hapax-id/hapax/internal/api/rpcapi"
	"github.com/hapax-id/hapax/internal/patience"
	"github.com/hapax-id/hapax/internal/service"
	"github.com/hapax-id/hapax/internal/wire"
	"github.com/hapax-id/hapax/store/memstore"
)

// What an operator sees of pools and worker IDs is what the server's service says.
func TestStatusesOfPoolsAndWorkers(t *testing.T) {
	ctx := within(t)
	n := serve(t, memstore.New(), rpcapi.Options{})
	c := dial(t, client.Options{}, n.URL)
	if _, err := n.svc.Next(ctx, service.SnowflakeTag); err != nil {
		t.Fatal(err)
	}
	pools, err := c.PoolStatuses(ctx)
	if err != nil || len(pools) != 1 || pools[0].Name != hapax.DefaultPool || !pools[0].Frozen || pools[0].Configured {
		t.Errorf("%+v, %v", pools, err)
	}
	want, err := n.svc.WorkerStatuses(ctx, hapax.DefaultPool)
	if err != nil || len(want) != 1 {
		t.Fatalf("%+v, %v", want, err)
	}
	same := func(got, want client.WorkerStatus) bool {
		return got.Pool == want.Pool && got.ID == want.ID && got.Mark == want.Mark && got.Token == want.Token && got.Holder == want.Holder &&
			got.State == want.State && got.Until.Equal(want.Until) && got.Free.Equal(want.Free) && slices.Equal(got.Parts, want.Parts)
	}
	workers, err := c.WorkerStatuses(ctx, hapax.DefaultPool)
	if err != nil || len(workers) != 1 || !same(workers[0], want[0]) {
		t.Errorf("%+v, %v; want %+v", workers, err, want)
	}
	if w, err := c.WorkerStatus(ctx, hapax.DefaultPool, want[0].ID); err != nil || !same(w, want[0]) {
		t.Errorf("%+v, %v; want %+v", w, err, want[0])
	}
	if w, err := c.WorkerStatus(ctx, hapax.DefaultPool, 1000); err != nil || w.State != "free" || !w.Free.IsZero() || w.Token != 0 {
		t.Errorf("one that was never used: %+v, %v", w, err)
	}
	if _, err := c.WorkerStatuses(ctx, "misspelt"); !errors.Is(err, hapax.ErrPoolNotFound) {
		t.Errorf("a pool that nobody knows: %v", err)
	}
	if _, err := c.WorkerStatus(ctx, hapax.DefaultPool, 1024); !errors.Is(err, hapax.ErrInvalidArgument) {
		t.Errorf("a worker ID that the pool cannot have: %v", err)
	}
}

// A client that asks once neither waits for a server nor asks twice, and says what
// the matter is.
func TestOnce(t *testing.T) {
	asked := 0
	busy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked++
		http.Error(w, "later", http.StatusServiceUnavailable)
	}))
	defer busy.Close()
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	for name, test := range map[string]struct{ url, want string }{
		"gone": {gone.URL, "hapax: the server at " + gone.URL + " cannot be reached: dial tcp "},
		"busy": {busy.URL, "hapax: no answer from a hapax server at " + busy.URL + ": 503 Service Unavailable"},
	} {
		c, err := client.Dial(within(t), client.Options{Once: true}, test.url)
		if err != nil {
			t.Fatalf("%s: Dial asked: %v", name, err)
		}
		_, err = c.Next(within(t), "orders")
		if !errors.Is(err, hapax.ErrStoreUnavailable) || !strings.HasPrefix(err.Error(), test.want) {
			t.Errorf("%s: %v, want %s", name, err, test.want)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
	if asked != 1 {
		t.Errorf("the busy server was asked %d times", asked)
	}
}

// No redirect is followed: what it leads to would be shown the token, and would
// count as the server.
func TestRedirectsAreRefused(t *testing.T) {
	n := serve(t, memstore.New(), rpcapi.Options{}, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			t.Errorf("the other server was asked, with %q", r.Header.Get("Authorization"))
			next.ServeHTTP(w, r)
		})
	})
	for _, status := range []int{http.StatusMovedPermanently, http.StatusFound, http.StatusTemporaryRedirect, http.StatusPermanentRedirect} {
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set(wire.StoreHeader, "of the other")
			http.Redirect(w, r, n.URL+r.URL.Path, status)
		}))
		c, err := client.Dial(within(t), client.Options{Once: true, Token: "secret", Timeout: patience.Call}, srv.URL)
		if err != nil {
			t.Fatal(err)
		}
		if id, err := c.Next(within(t), "orders"); err == nil || !strings.Contains(err.Error(), "it redirects to "+n.URL) {
			t.Errorf("%d: %d, %v", status, id, err)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		srv.Close()
	}
}
