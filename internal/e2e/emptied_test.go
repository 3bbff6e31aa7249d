package e2e

import (
	"context"
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
