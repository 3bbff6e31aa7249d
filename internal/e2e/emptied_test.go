package e2e

import (
	"context"
	"strings"
	"testing"

	"github.com/hapax-id/hapax/internal/patience"
	"github.com/hapax-id/hapax/internal/testservers"
	"github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/store/redisstore"
	"github.com/hapax-id/hapax/store/witness"
)

// TestEmptiedStore: a Redis is emptied while nodes run that know it. None makes a store there
// but one that refuses, and has waited; then the fleet heals it, and nothing is granted twice.
func TestEmptiedStore(t *testing.T) {
	t.Parallel()
	server := testservers.Redis(t)
	f := newYoungFleet(t, server, func(ctx context.Context, url string, existing func() bool) (driver.Store, error) {
		return redisstore.Open(ctx, url, redisstore.Options{Existing: existing})
	})
	known, err := f.nodes[0].StoreID(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for range 5 {
		f.await(1)
	}
	before := f.fenced()
	if _, err := testservers.RedisCommand(t.Context(), server.Addr, "FLUSHALL"); err != nil {
		t.Fatal(err)
	}
	for i, g := range f.nodes {
		patience.Until(t, "every node refuses", func() bool { return g.Status().State == witness.Refusing })
		if g.Witness().StoreID() != known {
			t.Errorf("node %d knows another store before it refuses", i)
		}
	}
	if f.fenced() == before {
		t.Error("nobody was told")
	}
	for i := range f.nodes {
		f.await(i)
	}
}

// TestEvictedStore: a Redis that runs out of memory removes keys, one here, whatever is in it.
// Nobody is granted anything on what is left; once all keys of the store are removed, as the error
// says, the fleet heals it as one that was emptied, and nothing is granted twice.
func TestEvictedStore(t *testing.T) {
	t.Parallel()
	server := testservers.Redis(t)
	f := newYoungFleet(t, server, func(ctx context.Context, url string, existing func() bool) (driver.Store, error) {
		return redisstore.Open(ctx, url, redisstore.Options{Existing: existing})
	})
	for i := range f.nodes {
		f.await(i)
	}
	if _, err := testservers.RedisCommand(t.Context(), server.Addr, "DEL hapax:{hapax}:names"); err != nil {
		t.Fatal(err)
	}
	for _, g := range f.nodes {
		patience.Until(t, "every node says what to do", func() bool {
			st := g.Status()
			return st.State != witness.Serving && strings.Contains(st.Why, "remove all keys that begin with")
		})
	}
	if _, err := testservers.RedisCommand(t.Context(), server.Addr, "FLUSHALL"); err != nil {
		t.Fatal(err)
	}
	for i := range f.nodes {
		f.await(i)
	}
}
