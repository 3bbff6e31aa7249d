package client_test

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/client"
	"github.com/hapax-id/hapax/internal/api/rpcapi"
	"github.com/hapax-id/hapax/internal/patience"
	"github.com/hapax-id/hapax/internal/service"
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

// guarded runs f in virtual time on a client of a server whose node guards its store, and heals it
// when an operator says so.
func guarded(t *testing.T, f func(t *testing.T, c *client.Client, store *memstore.Store, g *witness.Guarded)) {
	t.Helper()
	w, err := witness.OpenFile(filepath.Join(t.TempDir(), "witness"))
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(26 * 366 * 24 * time.Hour) // a bubble begins before the layouts' epochs
		store := memstore.New()
		g, err := witness.Guard(store, w, witness.Options{Manual: true})
		if err != nil {
			t.Fatal(err)
		}
		defer g.Close()
		serving(t, g)
		svc, err := service.New(t.Context(), g, service.Options{MaxWait: 500 * time.Millisecond, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		defer svc.Close(context.Background())
		srv, listener := &http.Server{Handler: muxOf(rpcapi.New(svc, rpcapi.Options{}))}, newPipes()
		ended := make(chan error, 1)
		go func() { ended <- srv.Serve(listener) }()
		defer func() {
			_ = srv.Close()
			<-ended
		}()
		c, err := client.Over(client.Options{}, listener.dial, "http://127.0.0.1:1")
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		f(t, c, store, g)
	})
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
	guarded(t, func(t *testing.T, c *client.Client, store *memstore.Store, g *witness.Guarded) {
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
		before := store.Snapshot()
		if errs := take(30); errors.Join(errs["orders"], errs["full"], errs["events"]) != nil {
			t.Fatal(errs)
		}
		store.Restore(before)
		errs := take(200)
		for _, name := range []string{"orders", "events"} {
			if !errors.Is(errs[name], hapax.ErrStoreRolledBack) || hapax.CodeOf(errs[name]) != hapax.ErrStoreRolledBack.Code() {
				t.Errorf("%s, while the store is behind: %v; want ErrStoreRolledBack", name, errs[name])
			}
		}
		if errs["full"] != nil || c.Stats().Dropped != 0 {
			t.Errorf("what was in hand was given up: %v, %+v", errs["full"], c.Stats())
		}
		if _, err := g.Adopt(ctx, witness.Statement{}); err != nil {
			t.Fatal(err)
		}
		serving(t, g)
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
