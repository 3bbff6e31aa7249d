package client_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/api"
	"github.com/hapax-id/hapax/client"
	"github.com/hapax-id/hapax/internal/api/rpcapi"
	"github.com/hapax-id/hapax/internal/patience"
	"github.com/hapax-id/hapax/internal/testservers"
	"github.com/hapax-id/hapax/store/memstore"
	"github.com/hapax-id/hapax/store/storetest"
)

// TestOutage: while no server can be reached, what is leased is issued, and
// callers who find nothing left wait until a server is back.
func TestOutage(t *testing.T) {
	ctx := within(t)
	n := serve(t, memstore.New(), rpcapi.Options{})
	proxy := testservers.NewProxy(t, strings.TrimPrefix(n.URL, "http://"))
	c := dial(t, client.Options{}, proxy.URL(n.URL))
	segment, err := c.Segment(ctx, "orders", hapax.SegmentOptions{Step: 100, MaxStep: 100})
	if err != nil {
		t.Fatal(err)
	}
	proxy.Cut()
	l := newLedger(t)
	for segment.Stats().Remaining > 0 {
		id, err := segment.Next(ctx)
		if err != nil {
			t.Fatalf("with %d numbers left: %v", segment.Stats().Remaining, err)
		}
		l.note(id)
	}
	if len(l.seen) < 100 {
		t.Errorf("%d numbers outlasted the outage; want 100 at least", len(l.seen))
	}
	for name, next := range map[string]func(context.Context) (hapax.ID, error){
		"leased": segment.Next,
		"called": func(ctx context.Context) (hapax.ID, error) { return c.Next(ctx, "orders") },
	} {
		short, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
		_, err := next(short)
		cancel()
		if !errors.Is(err, hapax.ErrStoreUnavailable) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: %v; want ErrStoreUnavailable and the context's error", name, err)
		}
	}
	proxy.Pass()
	for range 300 {
		id, err := segment.Next(ctx)
		if err != nil {
			t.Fatal(err)
		}
		l.note(id)
	}
}

// nextError returns the first error of an issuer.
func nextError(t *testing.T, next func(context.Context) (hapax.ID, error)) error {
	t.Helper()
	return patience.Await(t, "an error", func() (error, error) {
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		_, err := next(ctx)
		return err, nil
	}, func(err error) bool { return err != nil })
}

// TestValidity: leased numbers are given up when the server takes their tag or
// the client's rights away, and when no server was heard of for too long.
func TestValidity(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for a quarter of a minute")
	}
	t.Parallel()
	const long = time.Minute
	for name, c := range map[string]struct {
		validity time.Duration
		renewals int64 // to see first
		end      func(t *testing.T, n *node, p *testservers.Proxy, denied *atomic.Bool)
		want     *hapax.Error
		back     func(p *testservers.Proxy, denied *atomic.Bool) // nil: it is over
	}{
		"tag deleted": {
			validity: long, renewals: 1,
			end: func(t *testing.T, n *node, _ *testservers.Proxy, _ *atomic.Bool) {
				if _, err := n.svc.DeleteTag(t.Context(), "orders"); err != nil {
					t.Fatal(err)
				}
			},
			want: hapax.ErrTagDeleted,
		},
		"token revoked": {
			validity: long, renewals: 1,
			end:  func(_ *testing.T, _ *node, _ *testservers.Proxy, denied *atomic.Bool) { denied.Store(true) },
			want: api.ErrUnauthenticated,
			back: func(_ *testservers.Proxy, denied *atomic.Bool) { denied.Store(false) },
		},
		"cut off": {
			validity: 6 * time.Second, renewals: 7, // longer than the validity
			end:  func(_ *testing.T, _ *node, p *testservers.Proxy, _ *atomic.Bool) { p.Cut() },
			want: hapax.ErrStoreUnavailable,
			back: func(p *testservers.Proxy, _ *atomic.Bool) { p.Pass() },
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx := within(t)
			var denied atomic.Bool
			var asked atomic.Int64 // renewals that were asked for
			n := serve(t, memstore.New(), rpcapi.Options{Validity: c.validity}, func(h http.Handler) http.Handler {
				return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if strings.HasSuffix(r.URL.Path, "LeaseService/Renew") {
						asked.Add(1)
					}
					if denied.Load() || r.Header.Get("Authorization") != "Bearer open-sesame" {
						w.WriteHeader(http.StatusUnauthorized)
						return
					}
					h.ServeHTTP(w, r)
				})
			})
			p := testservers.NewProxy(t, strings.TrimPrefix(n.URL, "http://"))
			cl := dial(t, client.Options{Token: "open-sesame"}, p.URL(n.URL))
			segment, err := cl.Segment(ctx, "orders", hapax.SegmentOptions{Step: 1_000_000})
			if err != nil {
				t.Fatal(err)
			}
			first, err := segment.Next(ctx)
			if err != nil {
				t.Fatal(err)
			}
			patience.Await(t, "renewed leases", func() (int64, error) { return cl.Stats().Renewals, nil }, func(n int64) bool { return n >= c.renewals })
			if id, err := segment.Next(ctx); err != nil || id != first+1 {
				t.Fatalf("%d, %v; a renewed lease should go on after %d", id, err, first)
			}
			c.end(t, n, p, &denied)
			asked.Store(0)
			if err := nextError(t, segment.Next); !errors.Is(err, c.want) {
				t.Fatalf("error is %v; want %v", err, c.want)
			}
			if n := asked.Load(); c.validity == long && n > 3 {
				t.Errorf("given up after %d renewals; want at the next one, long before the validity of %v ends", n, long)
			}
			if cl.Stats().Dropped != 1 {
				t.Errorf("leases were given up %d times; want once", cl.Stats().Dropped)
			}
			if c.back == nil {
				return
			}
			c.back(p, &denied)
			patience.Await(t, "a number", func() (hapax.ID, error) { return segment.Next(ctx) }, func(id hapax.ID) bool {
				if id <= first+1_000_000-1 {
					t.Fatalf("%d; want a number of a new lease", id)
				}
				return true
			})
		})
	}
}

// TestTroubleOfOneServer: the server that has leased so far refuses to, for a reason that is its own,
// and the other one is asked. Where both refuse, the error is theirs.
func TestTroubleOfOneServer(t *testing.T) {
	for _, trouble := range []*hapax.Error{
		hapax.ErrWitnessFailed, hapax.ErrClockSkew, hapax.ErrClockRollback, hapax.ErrStoreLocked, hapax.ErrStoreUnsafe,
		hapax.ErrStoreRetired, hapax.ErrStoreReplaced, hapax.ErrFenced,
	} {
		t.Run(string(trouble.Code()), func(t *testing.T) {
			ctx := within(t)
			store := memstore.New()
			views := []*storetest.Faults{storetest.NewFaults(store), storetest.NewFaults(store)}
			c := dial(t, client.Options{Once: true}, serve(t, views[0], rpcapi.Options{}).URL, serve(t, views[1], rpcapi.Options{}).URL)
			segment, err := c.Segment(ctx, "orders", hapax.SegmentOptions{Step: 10, MaxStep: 10})
			if err != nil {
				t.Fatal(err)
			}
			l := newLedger(t)
			refuse := func(view *storetest.Faults) {
				view.Inject(func(op storetest.Op) storetest.Fault {
					if op.Method == "Allocate" {
						return storetest.Fault{Fail: trouble}
					}
					return storetest.Fault{}
				})
			}
			asked := views[0]
			if asked.Calls("Allocate") == 0 {
				asked = views[1]
			}
			refuse(asked)
			for range 100 {
				id, err := segment.Next(ctx)
				if err != nil {
					t.Fatal(err)
				}
				l.note(id)
			}
			for _, view := range views {
				refuse(view)
			}
			err = patience.Await(t, "the error of both", func() (error, error) { return nextError(t, segment.Next), nil },
				func(err error) bool { return errors.Is(err, trouble) })
			if !hapax.IsTransient(trouble) && hapax.IsTransient(err) {
				t.Errorf("both refuse: %v is waited for", err)
			}
		})
	}
}
