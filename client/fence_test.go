package client_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/api"
	"github.com/hapax-id/hapax/client"
	"github.com/hapax-id/hapax/internal/api/httpapi"
	"github.com/hapax-id/hapax/internal/api/rpcapi"
	"github.com/hapax-id/hapax/internal/patience"
	"github.com/hapax-id/hapax/internal/service"
	"github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/store/memstore"
	"github.com/hapax-id/hapax/store/witness"
)

// pipes are a listener without a network, whose connections know virtual time.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
}

func newPipes() *pipes { return &pipes{make(chan net.Conn), make(chan struct{})} }

func (p *pipes) dial(ctx context.Context) (net.Conn, error) {
	ours, theirs := net.Pipe()
	select {
	case p.conns <- theirs:
		return ours, nil
	case <-p.closed:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// Accept implements net.Listener.
func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (p *pipes) Close() error { close(p.closed); return nil }

// Addr implements net.Listener.
func (p *pipes) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1} }

// A site is an address with a server whose node guards its store, and heals it when an operator
// says so.
type site struct {
	pipes *pipes
	store *memstore.Store
	guard *witness.Guarded
	now   atomic.Pointer[http.Handler]
	lax   bool // it answers each request as if it named the server's store
	fresh *witness.Witness
}

// guarded runs f in virtual time on a site and a client of it.
func guarded(t *testing.T, f func(t *testing.T, c *client.Client, s *site)) {
	t.Helper()
	var witnesses [2]*witness.Witness
	for i := range witnesses {
		w, err := witness.OpenFile(filepath.Join(t.TempDir(), "witness"))
		if err != nil {
			t.Fatal(err)
		}
		defer w.Close()
		witnesses[i] = w
	}
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(26 * 366 * 24 * time.Hour) // a bubble begins before the layouts' epochs
		s := &site{pipes: newPipes(), store: memstore.New(), fresh: witnesses[1]}
		s.guard = s.serve(t, s.store, witnesses[0])
		srv := &http.Server{Handler: s}
		ended := make(chan error, 1)
		go func() { ended <- srv.Serve(s.pipes) }()
		defer func() {
			_ = srv.Close()
			<-ended
		}()
		c, err := client.Over(client.Options{Once: true}, s.pipes.dial, "http://127.0.0.1:1")
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		f(t, c, s)
	})
}

// serve has a node answer at the address from now on, once it serves.
func (s *site) serve(t *testing.T, store *memstore.Store, w *witness.Witness) *witness.Guarded {
	t.Helper()
	g := s.answer(t, store, w)
	serving(t, g)
	return g
}

// answer has a node answer at the address from now on.
func (s *site) answer(t *testing.T, store *memstore.Store, w *witness.Witness) *witness.Guarded {
	t.Helper()
	g, err := witness.Guard(store, w, witness.Options{Manual: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = g.Close() })
	svc, err := service.New(t.Context(), g, service.Options{MaxWait: 500 * time.Millisecond, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = svc.Close(context.Background()) })
	mux := muxOf(rpcapi.New(svc, rpcapi.Options{}))
	mux.Handle("/v1/", httpapi.New(svc, httpapi.Options{Logger: slog.New(slog.DiscardHandler)}))
	s.now.Store(new(http.Handler(mux)))
	return g
}

// ServeHTTP implements http.Handler.
func (s *site) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if want := r.Header.Get(api.StoreHeader); s.lax && want != "" {
		r.Header.Del(api.StoreHeader)
		w = &muted{w, func(h http.Header) { h.Set(api.StoreHeader, want) }}
	}
	(*s.now.Load()).ServeHTTP(w, r)
}

func serving(t *testing.T, g *witness.Guarded) {
	t.Helper()
	patience.Await(t, "the node serves", func() (witness.Status, error) { return g.Status(), nil },
		func(st witness.Status) bool { return st.State == witness.Serving })
}

// TestIssuersOutliveALoss: the node finds that its store went back, and answers so until it is
// healed, which takes longer than a renewal and than the grants of a snowflake. Every issuer of
// the client goes on after that, without being made anew.
func TestIssuersOutliveALoss(t *testing.T) {
	guarded(t, func(t *testing.T, c *client.Client, s *site) {
		ctx := t.Context()
		orders, err := c.Segment(ctx, "orders", hapax.SegmentOptions{Step: 10, MaxStep: 10})
		if err != nil {
			t.Fatal(err)
		}
		full, err := c.Segment(ctx, "full", hapax.SegmentOptions{Step: 1000, MaxStep: 1000})
		if err != nil {
			t.Fatal(err)
		}
		events, err := c.Snowflake(ctx, hapax.SnowflakeOptions{})
		if err != nil {
			t.Fatal(err)
		}
		held, err := c.HoldWorker(ctx, hapax.HoldOptions{Grant: 5 * time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		defer held.Close(ctx)
		worker, until := held.ID(), held.Until()
		ledgers := map[string]*ledger{"orders": newLedger(t), "full": newLedger(t), "events": newLedger(t)}
		next := map[string]func(context.Context) (hapax.ID, error){"orders": orders.Next, "full": full.Next, "events": events.Next}
		// take takes a number of each issuer a second, and returns its last error.
		take := func(rounds int) map[string]error {
			last := map[string]error{}
			for range rounds {
				for name, next := range next {
					id, err := next(ctx)
					if last[name] = err; err == nil {
						ledgers[name].note(id)
					}
				}
				time.Sleep(time.Second)
			}
			return last
		}
		before := s.store.Snapshot()
		if errs := take(30); errors.Join(errs["orders"], errs["full"], errs["events"]) != nil {
			t.Fatal(errs)
		}
		s.store.Restore(before)
		errs := take(200)
		for _, name := range []string{"orders", "events"} {
			if !errors.Is(errs[name], hapax.ErrStoreRolledBack) || hapax.CodeOf(errs[name]) != hapax.ErrStoreRolledBack.Code() {
				t.Errorf("%s, while the store is behind: %v; want ErrStoreRolledBack", name, errs[name])
			}
		}
		if errs["full"] != nil || c.Stats().Dropped != 0 {
			t.Errorf("what was in hand was given up: %v, %+v", errs["full"], c.Stats())
		}
		if _, err := s.guard.Adopt(ctx, witness.Statement{}); err != nil {
			t.Fatal(err)
		}
		serving(t, s.guard)
		take(10)
		for name, err := range take(10) {
			if err != nil {
				t.Errorf("%s, once the store is healed: %v", name, err)
			}
		}
		if err := held.Err(); err != nil || held.ID() != worker || !held.Until().After(until) {
			t.Errorf("the worker ID: %v; %d until %v, and it was %d until %v", err, held.ID(), held.Until(), worker, until)
		}
	})
}

// A taker is a client of REST take, which names the store that it knows.
type taker struct {
	http  http.Client
	store string
}

func newTaker(p *pipes) *taker {
	return &taker{http: http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return p.dial(ctx) },
	}}}
}

// next takes one number. The error is the server's sentinel.
func (k *taker) next(ctx context.Context) (hapax.ID, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://127.0.0.1:1/v1/tags/orders/take", strings.NewReader(`{"count":1}`))
	if err != nil {
		return 0, err
	}
	req.Header.Set("Content-Type", "application/json")
	if k.store != "" {
		req.Header.Set(api.StoreHeader, k.store)
	}
	res, err := k.http.Do(req)
	if err != nil {
		return 0, err
	}
	defer res.Body.Close()
	var body struct {
		First hapax.ID
		Code  hapax.Code
	}
	if err := json.NewDecoder(res.Body).Decode(&body); err != nil {
		return 0, err
	}
	if res.StatusCode != http.StatusOK {
		return 0, hapax.ErrorOf(body.Code)
	}
	if named := res.Header.Get(api.StoreHeader); k.store == "" {
		k.store = named
	} else if named != k.store {
		return 0, fmt.Errorf("the answer is of the store %q, and this client knows %q", named, k.store)
	}
	return body.First, nil
}

// takeFrom has clients of a store take numbers, and again after a change. It returns their last errors
// by name, and how many numbers came twice.
func takeFrom(t *testing.T, lax bool, change func(t *testing.T, s *site, lost string, take func() map[string]error)) (last map[string]error, twice int) {
	t.Helper()
	guarded(t, func(t *testing.T, c *client.Client, s *site) {
		ctx := t.Context()
		s.lax = lax
		segment, err := c.Segment(ctx, "orders", hapax.SegmentOptions{Step: 10, MaxStep: 10})
		if err != nil {
			t.Fatal(err)
		}
		rest := newTaker(s.pipes)
		defer rest.http.CloseIdleConnections()
		seen := map[hapax.ID]bool{}
		take := func() map[string]error {
			last = map[string]error{}
			for name, next := range map[string]func() (hapax.ID, error){
				"a lease": func() (hapax.ID, error) { return segment.Next(ctx) },
				"a call":  func() (hapax.ID, error) { return c.Next(ctx, "orders") },
				"REST":    func() (hapax.ID, error) { return rest.next(ctx) },
			} {
				for range 30 {
					id, err := next()
					if last[name] = err; err != nil {
						break
					}
					if seen[id] {
						twice++
					}
					seen[id] = true
				}
			}
			time.Sleep(2 * time.Second) // longer than a refusal answers for the store
			return last
		}
		for name, err := range take() {
			if err != nil || twice > 0 {
				t.Fatal(name, err, twice)
			}
		}
		change(t, s, rest.store, take)
		take()
	})
	return last, twice
}

// wantRefused sees that all clients were told that the store is another one.
func wantRefused(t *testing.T, last map[string]error) {
	t.Helper()
	for name, err := range last {
		if !errors.Is(err, hapax.ErrStoreReplaced) {
			t.Errorf("%s: %v; want ErrStoreReplaced", name, err)
		}
	}
}

// TestClientsOutliveAWipe: once a store that was wiped is healed, its clients go on with what stands in
// its place, and are refused before that.
func TestClientsOutliveAWipe(t *testing.T) {
	last, twice := takeFrom(t, false, func(t *testing.T, s *site, _ string, take func() map[string]error) {
		s.store.Restore(memstore.New())
		for range 5 {
			take() // what is in hand
		}
		wantRefused(t, take())
		if _, err := s.guard.Adopt(t.Context(), witness.Statement{}); err != nil {
			t.Fatal(err)
		}
		serving(t, s.guard)
	})
	for name, err := range last {
		if err != nil {
			t.Errorf("%s, once the store is healed: %v", name, err)
		}
	}
	if twice > 0 {
		t.Errorf("%d numbers came twice", twice)
	}
}

// TestClientsOutliveARestart: a node that goes on in place of a wiped store, and is started again, asks the
// clients of that store to wait while it joins, as it asks all others. None is told that its store is another
// one, for which it would give up what it has in hand.
func TestClientsOutliveARestart(t *testing.T) {
	guarded(t, func(t *testing.T, c *client.Client, s *site) {
		ctx := t.Context()
		segment, err := c.Segment(ctx, "orders", hapax.SegmentOptions{Step: 1000, MaxStep: 1000})
		if err != nil {
			t.Fatal(err)
		}
		s.store.Restore(memstore.New())
		time.Sleep(10 * time.Second)
		if _, err := s.guard.Adopt(ctx, witness.Statement{}); err != nil {
			t.Fatal(err)
		}
		serving(t, s.guard)
		if _, err := segment.Next(ctx); err != nil {
			t.Fatal(err)
		}
		dropped, joined := c.Stats().Dropped, 0
		for range 8 { // longer, in all, than until the lease is renewed
			w := s.guard.Witness()
			s.guard.Kill()
			for s.guard = s.answer(t, s.store, w); s.guard.Status().State != witness.Serving; joined++ {
				if joined == 6000 {
					t.Fatalf("the node does not serve: %+v", s.guard.Status())
				}
				if _, err := c.Next(ctx, "orders"); err != nil && hapax.CodeOf(err) != hapax.ErrStoreUnavailable.Code() {
					t.Fatalf("while the node joins: %v; want ErrStoreUnavailable", err)
				}
				time.Sleep(100 * time.Millisecond)
			}
			if _, err := c.Next(ctx, "orders"); err != nil {
				t.Fatalf("once the node serves: %v", err)
			}
		}
		if joined == 0 {
			t.Error("the node has not joined: this test sees nothing")
		}
		if now := c.Stats().Dropped; now != dropped {
			t.Errorf("%d leases were given up", now-dropped)
		}
	})
}

// TestStrangersGiveClientsNothing: a node that has not used the store of its clients refuses them, also
// where its store begins to be healed in place of that one. One that answers has numbers come twice.
func TestStrangersGiveClientsNothing(t *testing.T) {
	for name, heals := range map[string]bool{"a stranger": false, "a healing that was not finished": true} {
		t.Run(name, func(t *testing.T) {
			change := func(t *testing.T, s *site, lost string, _ func() map[string]error) {
				other := memstore.New()
				if heals {
					if ok, err := other.SwapRow(t.Context(), driver.TableGuard, "replaces/"+lost, nil, []byte(`"F"`)); err != nil || !ok {
						t.Fatal(ok, err)
					}
				}
				s.serve(t, other, s.fresh)
			}
			last, twice := takeFrom(t, false, change)
			wantRefused(t, last)
			if twice > 0 {
				t.Errorf("%d numbers came twice", twice)
			}
			if _, twice := takeFrom(t, true, change); twice == 0 {
				t.Error("a server that answers for any store gives nothing twice: this test sees nothing")
			}
		})
	}
}
