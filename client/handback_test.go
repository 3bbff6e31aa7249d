package client_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/client"
	"github.com/hapax-id/hapax/internal/api/rpcapi"
	"github.com/hapax-id/hapax/internal/patience"
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

// TestGivenBackTwice: the server that takes numbers or a worker ID back loses its answer, and the client asks the
// other server over the same store to take them back once more, after somebody was granted what the first took
// back. Nothing comes twice, and Close succeeds.
func TestGivenBackTwice(t *testing.T) {
	for name, open := range map[string]func(ctx context.Context, c *client.Client) (hapax.Issuer, error){
		"numbers": func(ctx context.Context, c *client.Client) (hapax.Issuer, error) {
			return c.Segment(ctx, "orders", hapax.SegmentOptions{Step: 1000, MaxStep: 1000})
		},
		"a worker ID": func(ctx context.Context, c *client.Client) (hapax.Issuer, error) {
			return c.Snowflake(ctx, hapax.SnowflakeOptions{Workers: hapax.WorkerRange{Lo: 7, Hi: 8}})
		},
	} {
		t.Run(name, func(t *testing.T) {
			ctx := within(t)
			store, l := memstore.New(), newLedger(t)
			var asked atomic.Int64
			again := make(chan struct{}) // closed when the second server is asked
			granted := make(chan struct{})
			wrap := func(h http.Handler) http.Handler {
				return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if strings.HasSuffix(r.URL.Path, "/HandBack") || strings.HasSuffix(r.URL.Path, "/SealWorker") {
						switch asked.Add(1) {
						case 1:
							h.ServeHTTP(httptest.NewRecorder(), r)
							panic(http.ErrAbortHandler)
						case 2:
							close(again)
							<-granted
						}
					}
					h.ServeHTTP(w, r)
				})
			}
			c := dial(t, client.Options{Timeout: patience.Call}, serve(t, store, rpcapi.Options{}, wrap).URL, serve(t, store, rpcapi.Options{}, wrap).URL)
			issuer, err := open(ctx, c)
			if err != nil {
				t.Fatal(err)
			}
			ids := make([]hapax.ID, 10)
			if _, err := issuer.NextN(ctx, ids); err != nil {
				t.Fatal(err)
			}
			l.note(ids...)
			closed := make(chan error, 1)
			go func() { closed <- issuer.Close(ctx) }()
			patience.Closed(t, "the second server is asked", again)
			next, err := open(ctx, dial(t, client.Options{}, serve(t, store, rpcapi.Options{}).URL))
			if err != nil {
				t.Fatal(err)
			}
			take := func(count int) {
				t.Helper()
				for range count {
					id, err := next.Next(ctx)
					if err != nil {
						t.Fatal(err)
					}
					l.note(id)
				}
			}
			take(10)
			if name == "numbers" && !l.seen[20] {
				t.Error("the first server took back nothing: this test sees nothing")
			}
			close(granted)
			if err := patience.Receive(t, "the end of Close", closed); err != nil {
				t.Errorf("Close: %v", err)
			}
			take(10)
			if name == "numbers" { // the worker ID is taken
				if next, err = open(ctx, c); err != nil {
					t.Fatal(err)
				}
				take(2000)
			}
		})
	}
}
