package client_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/client"
	"github.com/hapax-id/hapax/internal/api/rpcapi"
	"github.com/hapax-id/hapax/internal/patience"
	"github.com/hapax-id/hapax/internal/service"
	"github.com/hapax-id/hapax/internal/testservers"
	"github.com/hapax-id/hapax/internal/wire"
	"github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/store/memstore"
	"github.com/hapax-id/hapax/store/storetest"
)

// A node is a server in this process.
type node struct {
	*httptest.Server

	svc *service.Service
}

// serve starts a server over a store. wrap, if given, comes before its handlers.
func serve(t testing.TB, store driver.Store, opts rpcapi.Options, wrap ...func(http.Handler) http.Handler) *node {
	t.Helper()
	svc, err := service.New(t.Context(), store, service.Options{MaxWait: 500 * time.Millisecond, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	var h http.Handler = muxOf(rpcapi.New(svc, opts))
	for _, w := range wrap {
		h = w(h)
	}
	n := &node{httptest.NewServer(h), svc}
	t.Cleanup(func() {
		n.kill()
		_ = svc.Close(context.Background())
	})
	return n
}

// kill makes the server unreachable.
func (n *node) kill() {
	n.CloseClientConnections()
	n.Close()
}

// ledger notes numbers, and reports those that come twice.
type ledger struct {
	t testing.TB

	mu   sync.Mutex // guards seen
	seen map[hapax.ID]bool
}

func newLedger(t testing.TB) *ledger { return &ledger{t: t, seen: map[hapax.ID]bool{}} }

func (l *ledger) note(ids ...hapax.ID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, id := range ids {
		if l.seen[id] {
			l.t.Errorf("%d was issued twice", id)
		}
		l.seen[id] = true
	}
}

// within returns a context that ends with the test's patience.
func within(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), patience.Long)
	t.Cleanup(cancel)
	return ctx
}

// TestEveryWayOfIssuing takes numbers of the same tags from leases, one call at
// a time, and from the server itself.
func TestEveryWayOfIssuing(t *testing.T) {
	ctx := within(t)
	n := serve(t, memstore.New(), rpcapi.Options{})
	c := dial(t, client.Options{}, n.URL)
	segment, err := c.Segment(ctx, "orders", hapax.SegmentOptions{})
	if err != nil {
		t.Fatal(err)
	}
	flake, err := c.Snowflake(ctx, hapax.SnowflakeOptions{})
	if err != nil {
		t.Fatal(err)
	}
	orders, flakes := newLedger(t), newLedger(t)
	var wg sync.WaitGroup
	for _, way := range []struct {
		to    *ledger
		count int
		next  func() (hapax.ID, error)
	}{
		{orders, 5000, func() (hapax.ID, error) { return segment.Next(ctx) }},
		{orders, 100, func() (hapax.ID, error) { return c.Next(ctx, "orders") }},
		{orders, 5000, func() (hapax.ID, error) { return n.svc.Next(ctx, "orders") }},
		{flakes, 5000, func() (hapax.ID, error) { return flake.Next(ctx) }},
		{flakes, 100, func() (hapax.ID, error) { return c.Next(ctx, service.SnowflakeTag) }},
		{flakes, 5000, func() (hapax.ID, error) { return n.svc.Next(ctx, service.SnowflakeTag) }},
	} {
		wg.Go(func() {
			for range way.count {
				id, err := way.next()
				if err != nil {
					t.Error(err)
					return
				}
				way.to.note(id)
			}
		})
	}
	batch := make([]hapax.ID, 1000)
	if got, err := c.NextN(ctx, "orders", batch); err != nil || got != len(batch) || !slices.IsSorted(batch) {
		t.Errorf("NextN: %d, %v", got, err)
	}
	orders.note(batch...)
	wg.Wait()
	st := c.Stats()
	if st.Leases < 2 || st.Calls < 202 || st.Failures != 0 || st.Failovers != 0 {
		t.Errorf("stats are %+v", st)
	}
}

// TestSnowflakeLearnsItsLayout: the pool's layout comes from the server.
func TestSnowflakeLearnsItsLayout(t *testing.T) {
	ctx := within(t)
	svc, err := service.New(ctx, memstore.New(), service.Options{Logger: slog.New(slog.DiscardHandler), Pools: map[string]service.PoolConfig{"js": {Layout: "js-safe-53"}}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = svc.Close(context.Background()) }()
	srv := httptest.NewServer(muxOf(rpcapi.New(svc, rpcapi.Options{})))
	defer srv.Close()
	c := dial(t, client.Options{}, srv.URL)
	flake, err := c.Snowflake(ctx, hapax.SnowflakeOptions{Pool: "js"})
	if err != nil {
		t.Fatal(err)
	}
	id, err := flake.Next(ctx)
	if err != nil || id >= 1<<53 {
		t.Errorf("%d, %v; want a number below 2^53", id, err)
	}
	pools, err := c.Pools(ctx)
	if err != nil || len(pools) != 1 || pools[0].Name != "js" {
		t.Errorf("%+v, %v", pools, err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	workers, err := svc.Workers(ctx, "js")
	if err != nil || len(workers) != 1 || workers[0].Expires.After(time.Now()) {
		t.Errorf("Close left %+v, %v; want a sealed worker", workers, err)
	}
}

// proxied puts a proxy before each server.
func proxied(t testing.TB, nodes ...*node) (proxies []*testservers.Proxy, urls []string) {
	t.Helper()
	for _, n := range nodes {
		p := testservers.NewProxy(t, strings.TrimPrefix(n.URL, "http://"))
		proxies = append(proxies, p)
		urls = append(urls, p.URL(n.URL))
	}
	return proxies, urls
}

// TestFailover cuts the servers off in turn; while one can be reached, no call
// fails.
func TestFailover(t *testing.T) {
	ctx := within(t)
	store := memstore.New()
	proxies, urls := proxied(t, serve(t, store, rpcapi.Options{}), serve(t, store, rpcapi.Options{}))
	c := dial(t, client.Options{}, urls...)
	segment, err := c.Segment(ctx, "orders", hapax.SegmentOptions{Step: 10, MaxStep: 10})
	if err != nil {
		t.Fatal(err)
	}
	l := newLedger(t)
	for round := range 6 {
		proxies[round%2].Cut()
		for range 200 {
			id, err := segment.Next(ctx)
			if err != nil {
				t.Fatal(err)
			}
			one, err := c.Next(ctx, "orders")
			if err != nil {
				t.Fatal(err)
			}
			l.note(id, one)
		}
		proxies[round%2].Pass()
	}
	if n := c.Stats().Failovers; n < 5 {
		t.Errorf("calls went on to another server %d times; want 5 at least", n)
	}
}

// TestLostReplies loses the replies of leases and of single calls; what they
// issued is never used, and what comes next is new.
func TestLostReplies(t *testing.T) {
	ctx := within(t)
	store := memstore.New()
	n := serve(t, store, rpcapi.Options{})
	proxy := testservers.NewProxy(t, strings.TrimPrefix(n.URL, "http://"))
	c := dial(t, client.Options{}, proxy.URL(n.URL))
	segment, err := c.Segment(ctx, "orders", hapax.SegmentOptions{Step: 10, MaxStep: 10})
	if err != nil {
		t.Fatal(err)
	}
	l := newLedger(t)
	for i := range 4 {
		path := []string{"LeaseService/Allocate", "IssueService/Next"}[i%2]
		proxy.CutReply(testservers.Contains(path))
		for range 100 {
			id, err := segment.Next(ctx)
			if err != nil {
				t.Fatal(err)
			}
			one, err := c.Next(ctx, "orders")
			if err != nil {
				t.Fatal(err)
			}
			l.note(id, one)
		}
		if fired := proxy.Fired(); fired != i+1 {
			t.Fatalf("%d replies were lost, want %d", fired, i+1)
		}
	}
	if c.Stats().Failures == 0 {
		t.Error("no call failed")
	}
	tag, err := n.svc.Tag(ctx, "orders")
	if err != nil || tag.Mark-1 <= int64(len(l.seen)) {
		t.Errorf("the mark is %d, error %v; lost leases should have left gaps in %d numbers", tag.Mark, err, len(l.seen))
	}

	// A creation is not repeated, not even by another server: the second would
	// fail, and mislead.
	n2 := serve(t, store, rpcapi.Options{})
	proxy2 := testservers.NewProxy(t, strings.TrimPrefix(n2.URL, "http://"))
	two := dial(t, client.Options{}, proxy.URL(n.URL), proxy2.URL(n2.URL))
	before := proxy.Fired()
	for _, p := range []*testservers.Proxy{proxy, proxy2} {
		p.CutReply(testservers.Contains("AdminService/CreateTag"))
	}
	_, err = two.CreateTag(ctx, hapax.Tag{Name: "new"}, hapax.CreateExplicit)
	if asked := proxy.Fired() - before + proxy2.Fired(); asked != 1 || !errors.Is(err, hapax.ErrStoreUnavailable) {
		t.Errorf("a creation whose reply was lost was sent %d times: %v; want once, and ErrStoreUnavailable", asked, err)
	}
	if _, err := c.Tag(ctx, "new"); err != nil {
		t.Errorf("the tag: %v", err)
	}
}

// TestLostExtension loses the reply of an extension of a worker's time.
func TestLostExtension(t *testing.T) {
	ctx := within(t)
	n := serve(t, memstore.New(), rpcapi.Options{})
	proxy := testservers.NewProxy(t, strings.TrimPrefix(n.URL, "http://"))
	c := dial(t, client.Options{}, proxy.URL(n.URL))
	lease, err := c.AcquireWorker(ctx, hapax.AcquireRequest{
		Pool: hapax.DefaultPool, Workers: hapax.WorkerRange{Lo: 0, Hi: 4}, Holder: "h", Term: hapax.Term{Length: 10 * time.Second},
	})
	if err != nil {
		t.Fatal(err)
	}
	proxy.CutReply(testservers.Contains("LeaseService/ExtendWorker"))
	term := hapax.Term{Length: time.Minute}
	if _, err := c.ExtendWorker(ctx, lease, hapax.Layout{}, term); !errors.Is(err, hapax.ErrStoreUnavailable) {
		t.Fatalf("a lost extension: %v; want ErrStoreUnavailable", err)
	}
	term.Length = 10 * time.Second
	again, err := c.ExtendWorker(ctx, lease, hapax.Layout{}, term)
	if err != nil || again.Grant.Lo != lease.Grant.Hi || again.Grant.Len() < 40_000 {
		t.Errorf("after a lost extension: %v, %v; want what was lost, behind %v", again.Grant, err, lease.Grant)
	}
}

// TestHungServer: a server that takes connections and says nothing is passed by.
func TestHungServer(t *testing.T) {
	ctx := within(t)
	store := memstore.New()
	proxies, urls := proxied(t, serve(t, store, rpcapi.Options{}), serve(t, store, rpcapi.Options{}))
	c := dial(t, client.Options{Timeout: 200 * time.Millisecond}, urls...)
	l := newLedger(t)
	for i := range 6 {
		proxies[i%2].Blackhole()
		id, err := c.Next(ctx, "orders")
		if err != nil {
			t.Fatal(err)
		}
		l.note(id)
		proxies[i%2].Pass()
	}
	if c.Stats().Failovers == 0 {
		t.Error("no call went on to another server")
	}
}

// TestErrorsCrossTheWire has a store fail with every sentinel.
func TestErrorsCrossTheWire(t *testing.T) {
	store := storetest.NewFaults(memstore.New())
	c := serveStore(t, store)
	for _, code := range hapax.Codes() {
		t.Run(string(code), func(t *testing.T) {
			sentinel := hapax.ErrorOf(code)
			store.Inject(func(op storetest.Op) storetest.Fault {
				if op.Method != "UpdateTag" {
					return storetest.Fault{}
				}
				return storetest.Fault{Fail: fmt.Errorf("%w: details", sentinel)}
			})
			_, err := c.UpdateTag(t.Context(), "t", driver.TagUpdate{})
			if !errors.Is(err, sentinel) || hapax.CodeOf(err) != code {
				t.Errorf("error is %v; want %v", err, sentinel)
			}
		})
	}
	for name, want := range map[string]*hapax.ValueError{
		"number": {Field: "n", Value: int64(-1), Allowed: "1 to 2", Err: hapax.ErrInvalidArgument},
		"text":   {Field: "layout", Value: "x\xff", Allowed: "a layout", Err: hapax.ErrInvalidLayout},
	} {
		t.Run(name, func(t *testing.T) {
			store.Inject(func(storetest.Op) storetest.Fault { return storetest.Fault{Fail: want} })
			_, err := c.UpdateTag(t.Context(), "t", driver.TagUpdate{})
			got, ok := errors.AsType[*hapax.ValueError](err)
			if !ok || got.Field != want.Field || got.Allowed != want.Allowed || !errors.Is(err, want.Err) {
				t.Fatalf("error is %#v; want %#v", err, want)
			}
			if name == "number" && got.Value != want.Value {
				t.Errorf("the value is %#v; want %#v", got.Value, want.Value)
			}
		})
	}
}

// TestCallsOutlastTheServersWait: a server waits only so long for the clock; the
// client goes on until its own deadline.
func TestCallsOutlastTheServersWait(t *testing.T) {
	var refusals atomic.Int64
	n := serve(t, memstore.New(), rpcapi.Options{}, func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if strings.HasSuffix(r.URL.Path, "IssueService/Next") && refusals.Add(1) <= 3 {
				_ = connect.NewErrorWriter().Write(w, r, wire.Error(hapax.ErrTickExhausted))
				return
			}
			h.ServeHTTP(w, r)
		})
	})
	if id, err := dial(t, client.Options{}, n.URL).Next(within(t), "orders"); err != nil || id != 1 {
		t.Errorf("%d, %v", id, err)
	}
	if refusals.Load() != 4 {
		t.Errorf("%d calls; want 4", refusals.Load())
	}
}

// TestServersMustShareAStore: a server with another store is refused.
func TestServersMustShareAStore(t *testing.T) {
	ctx := within(t)
	proxies, urls := proxied(t, serve(t, memstore.New(), rpcapi.Options{}), serve(t, memstore.New(), rpcapi.Options{}))
	proxies[1].Cut()
	c := dial(t, client.Options{}, urls...)
	if _, err := c.Segment(ctx, "orders", hapax.SegmentOptions{}); err != nil {
		t.Fatal(err)
	}
	proxies[0].Cut()
	proxies[1].Pass()
	if _, err := c.Segment(ctx, "orders", hapax.SegmentOptions{}); !errors.Is(err, hapax.ErrStoreReplaced) {
		t.Errorf("error is %v; want ErrStoreReplaced", err)
	}
}

func TestBadOptions(t *testing.T) {
	for name, c := range map[string]struct {
		opts  client.Options
		urls  []string
		field string
	}{
		"no server":    {client.Options{}, nil, "urls"},
		"scheme":       {client.Options{}, []string{"tcp://127.0.0.1:1"}, "server"},
		"no host":      {client.Options{}, []string{"http://"}, "server"},
		"password":     {client.Options{}, []string{"http://u:hunter2@127.0.0.1:1"}, "server"},
		"query":        {client.Options{}, []string{"http://127.0.0.1:1?x=hunter2"}, "server"},
		"token":        {client.Options{Token: "hunter2\r\nX: y"}, []string{"http://127.0.0.1:1"}, "token"},
		"timeout":      {client.Options{Timeout: -1}, []string{"http://127.0.0.1:1"}, "timeout"},
		"not a url":    {client.Options{}, []string{"http://a b%hunter2"}, "server"},
		"many servers": {client.Options{}, make([]string, 101), "urls"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := client.Dial(t.Context(), c.opts, c.urls...)
			v, ok := errors.AsType[*hapax.ValueError](err)
			if !ok || v.Field != c.field {
				t.Fatalf("error is %v; want one that names %s", err, c.field)
			}
			if name != "query" && strings.Contains(err.Error(), "hunter2") {
				t.Errorf("the error tells a secret: %v", err)
			}
		})
	}
}

func TestDialNobody(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err := client.Dial(ctx, client.Options{}, "http://127.0.0.1:1")
	if !errors.Is(err, hapax.ErrStoreUnavailable) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error is %v; want ErrStoreUnavailable and the context's", err)
	}
}

// TestClosed: after Close nothing works, and nothing is left running.
func TestClosed(t *testing.T) {
	ctx := within(t)
	n := serve(t, memstore.New(), rpcapi.Options{})
	c := dial(t, client.Options{}, n.URL)
	segment, err := c.Segment(ctx, "orders", hapax.SegmentOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
	}
	for name, do := range map[string]func() error{
		"a segment":     func() error { _, err := segment.Next(ctx); return err },
		"a call":        func() error { _, err := c.Next(ctx, "orders"); return err },
		"a lease":       func() error { _, err := c.Allocate(ctx, "orders", 1, ""); return err },
		"a new segment": func() error { _, err := c.Segment(ctx, "other", hapax.SegmentOptions{}); return err },
	} {
		if err := do(); !errors.Is(err, hapax.ErrClosed) {
			t.Errorf("%s after Close: %v; want ErrClosed", name, err)
		}
	}
}
