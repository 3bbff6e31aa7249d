package client_test

import (
	"testing"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/client"
	"github.com/hapax-id/hapax/internal/api/rpcapi"
	"github.com/hapax-id/hapax/store/memstore"
)

// TestSegmentHandsBack: what a client did not issue goes back through the server
// when its segment closes, and the next one goes on there.
func TestSegmentHandsBack(t *testing.T) {
	ctx := within(t)
	n := serve(t, memstore.New(), rpcapi.Options{})
	c := dial(t, client.Options{}, n.URL)
	for want := hapax.ID(1); want < 30; want += 10 {
		s, err := c.Segment(ctx, "orders", hapax.SegmentOptions{})
		if err != nil {
			t.Fatal(err)
		}
		ids := make([]hapax.ID, 10)
		if _, err := s.NextN(ctx, ids); err != nil || ids[0] != want {
			t.Fatalf("the first number is %d, want %d; %v", ids[0], want, err)
		}
		if err := s.Close(ctx); err != nil {
			t.Fatal(err)
		}
	}
}
