package httpapi

import (
	"bufio"
	"context"
	"crypto/tls"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hapax-id/hapax/internal/patience"
	"github.com/hapax-id/hapax/internal/service"
	"github.com/hapax-id/hapax/internal/service/auth"
	"github.com/hapax-id/hapax/store/memstore"
	"github.com/hapax-id/hapax/store/storetest"
)

// fronted is a server with a front.
type fronted struct {
	addr  string
	front *Front
	web   *http.Server
	store *storetest.Faults
	past  *atomic.Int64 // requests that were handed over
	bare  *atomic.Int64 // those of them of which net/http did not know that they came over TLS
	known *atomic.Int64 // connections of the front that were vouched for
	trust *tls.Config   // of clients; nil: the server speaks no TLS
}

func newFronted(t *testing.T, opts service.Options) fronted {
	t.Helper()
	return newFrontedFor(t, opts, nil)
}

func newFrontedFor(t *testing.T, opts service.Options, policy *auth.Policy) fronted {
	t.Helper()
	return newFrontedBy(t, opts, policy, nil)
}

// newFrontedBy serves over TLS if secure is not nil.
func newFrontedBy(t *testing.T, opts service.Options, policy *auth.Policy, secure *tls.Config) fronted {
	t.Helper()
	store := storetest.NewFaults(memstore.New())
	opts.Logger = slog.New(slog.DiscardHandler)
	svc, err := service.New(context.Background(), store, opts)
	if err != nil {
		t.Fatal(err)
	}
	handler := New(svc, Options{Logger: opts.Logger, LoopbackOnly: true, Policy: policy})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := fronted{addr: l.Addr().String(), store: store, past: new(atomic.Int64), bare: new(atomic.Int64), known: new(atomic.Int64)}
	if secure != nil {
		l, s.trust = tls.NewListener(l, secure), trusting(t, secure)
	}
	var conns sync.Map
	l, s.front = NewFront(l, handler, FrontOptions{
		Idle: patience.Long, Write: patience.Long, Logger: opts.Logger,
		Conn: func(net.Conn) *auth.Conn { return &auth.Conn{Known: func() { s.known.Add(1) }} },
	})
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(true)
	protocols.SetUnencryptedHTTP2(true)
	s.web = &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if s.past.Add(1); r.TLS == nil {
			s.bare.Add(1)
		}
		handler.ServeHTTP(w, r)
	}), Protocols: protocols}
	s.web.ConnContext = func(ctx context.Context, c net.Conn) context.Context {
		conn := &auth.Conn{}
		conns.Store(c, conn)
		return auth.NewConnContext(ctx, conn)
	}
	s.web.ConnState = func(c net.Conn, state http.ConnState) {
		if conn, ok := conns.Load(c); ok && state == http.StateClosed {
			conn.(*auth.Conn).Close()
		}
	}
	served := make(chan error, 1)
	go func() { served <- s.web.Serve(l) }()
	t.Cleanup(func() {
		s.shutdown(t)
		if err := <-served; err != http.ErrServerClosed {
			t.Errorf("serve: %v", err)
		}
		if err := svc.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return s
}

// shutdown stops the server as the command does.
func (s fronted) shutdown(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), patience.Long)
	defer cancel()
	var wg sync.WaitGroup
	for _, stop := range []func(context.Context) error{s.front.Shutdown, s.web.Shutdown} {
		wg.Go(func() {
			if err := stop(ctx); err != nil {
				t.Errorf("shutdown: %v", err)
			}
		})
	}
	wg.Wait()
}

func (s fronted) dial(t *testing.T) (net.Conn, *bufio.Reader) {
	t.Helper()
	c, err := net.Dial("tcp", s.addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	if err := c.SetDeadline(time.Now().Add(patience.Long)); err != nil {
		t.Fatal(err)
	}
	if s.trust != nil {
		c = tls.Client(c, s.trust)
	}
	return c, bufio.NewReader(c)
}

// read returns the next response.
func read(t *testing.T, r *bufio.Reader) (*http.Response, string) {
	t.Helper()
	res, err := http.ReadResponse(r, nil)
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res, string(body)
}

const (
	hot  = "GET /v1/tags/orders/next HTTP/1.1\r\nHost: localhost\r\n\r\n"
	cold = "GET /v1/tags/orders/next HTTP/1.1\r\nHost: localhost\r\nX-Other: 1\r\n\r\n"
	post = "POST /v1/tags/orders/ids?count=3 HTTP/1.1\r\nHost: localhost\r\nAccept: */*\r\nContent-Length: 0\r\n\r\n"
)

// with returns a request with one more header.
func with(request, header string) string {
	return strings.Replace(request, "Host: localhost\r\n", "Host: localhost\r\n"+header+"\r\n", 1)
}

// The front answers as the route does, number, headers and errors.
func TestFrontAnswersAsTheRoute(t *testing.T) {
	s := newFronted(t, service.Options{NoAutoCreate: true, MaxWait: patience.Long, Tags: map[string]service.TagConfig{
		"orders": {}, "users": {}, "invoices": {Code: "INV-{id:4}"},
	}})
	get, ids := func(query string) string { return strings.Replace(hot, "/next", "/next"+query, 1) }, func(query string) string { return strings.Replace(post, "?count=3", query, 1) }
	accepting := func(request, accept string) string {
		return with(strings.Replace(request, "Accept: */*\r\n", "", 1), "Accept: "+accept)
	}
	for _, tt := range []struct{ tag, hot, ours, theirs string }{
		{"orders", hot, "1", "2"},
		{"nope", hot, "", ""},
		{"snowflake", hot, "", ""},
		{"orders", post, `{"ids":["3","4","5"]}` + "\n", `{"ids":["6","7","8"]}` + "\n"},
		{"users", ids(""), `{"ids":["1"]}` + "\n", `{"ids":["2"]}` + "\n"},
		{"nope", post, "", ""},
		{"users", get("?count=2"), "3\n4\n", "5\n6\n"},
		{"users", get("?format=id"), "7\n", "8\n"},
		{"users", accepting(hot, jsonMedia), `{"ids":["9"]}` + "\n", `{"ids":["10"]}` + "\n"},
		{"users", accepting(hot, "application/json, text/plain, */*"), `{"ids":["11"]}` + "\n", `{"ids":["12"]}` + "\n"},
		{"users", accepting(post, "application/json, text/plain, */*"), `{"ids":["13","14","15"]}` + "\n", `{"ids":["16","17","18"]}` + "\n"},
		{"users", accepting(ids(""), "text/plain"), "19\n", "20\n"},
		{"users", accepting(hot, "text/html, */*; q=.2"), "21", "22"},
		{"invoices", get("?format=code"), "INV-0001\n", "INV-0002\n"},
		{"invoices", get("?count=2&format=code"), "INV-0003\nINV-0004\n", "INV-0005\nINV-0006\n"},
		{"invoices", ids("?format=code&count=2"), `{"ids":["7","8"],"codes":["INV-0007","INV-0008"]}` + "\n", `{"ids":["9","10"],"codes":["INV-0009","INV-0010"]}` + "\n"},
		{"invoices", accepting(ids("?format=code"), "text/plain"), "INV-0011\n", "INV-0012\n"},
		{"users", get("?format=code"), "", ""},
	} {
		tag, hot := tt.tag, strings.Replace(tt.hot, "orders", tt.tag, 1)
		c, r := s.dial(t)
		past := s.past.Load()
		_, _ = io.WriteString(c, hot)
		ours, number := read(t, r)
		if s.past.Load() != past {
			t.Errorf("%q was handed over", hot)
		}
		_, _ = io.WriteString(c, with(hot, "X-Other: 1")) // through net/http from here on
		theirs, next := read(t, r)
		if ours.StatusCode != theirs.StatusCode || tt.ours != "" && (number != tt.ours || next != tt.theirs) || tt.ours == "" && ours.StatusCode == http.StatusOK && tag != "snowflake" {
			t.Errorf("%s: %d %q, and by the route %d %q; want %q and %q", hot, ours.StatusCode, number, theirs.StatusCode, next, tt.ours, tt.theirs)
		}
		if ours.StatusCode != http.StatusOK && number != next {
			t.Errorf("%s: %q, and by the route %q", hot, number, next)
		}
		for name := range theirs.Header {
			if got, want := ours.Header[name], theirs.Header[name]; !slices.Equal(got, want) && name != "Date" && (name != "Content-Length" || ours.StatusCode != http.StatusOK) {
				t.Errorf("%s: %s is %q, and by the route %q", tag, name, got, want)
			}
		}
		if len(ours.Header) != len(theirs.Header) {
			t.Errorf("%s: headers are %v, and by the route %v", tag, ours.Header, theirs.Header)
		}
	}
}

// However requests are mixed and cut, every one is answered once and in order.
func TestFrontHandsOver(t *testing.T) {
	s := newFronted(t, service.Options{MaxWait: patience.Long, Tags: map[string]service.TagConfig{"orders": {Step: 1_000_000, MaxStep: 1_000_000}}})
	body := "POST /v1/tags/orders/ids HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 11\r\n\r\n{\"count\":1}"
	for _, tt := range []struct {
		name     string
		requests []string
	}{
		{"hot", slices.Repeat([]string{hot}, 200)},
		{"one that is not", []string{hot, hot, cold, hot, hot}},
		{"a body that looks like a request", []string{hot, "POST /v1/tags/orders/ids HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\nContent-Length: " + strconv.Itoa(len(hot)) + "\r\n\r\n" + hot, hot}},
		{"a body", []string{hot, post, hot, body, hot, body}},
		{"nothing hot", []string{cold, body}},
		{"several numbers", slices.Repeat([]string{post, hot}, 50)},
		{"too many numbers", []string{post, strings.Replace(post, "count=3", "count=100000", 1), hot}},
		{"long answers", slices.Repeat([]string{strings.Replace(post, "count=3", "count=10000", 1)}, 40)},
	} {
		for _, piece := range []int{1, 7, 64, 1 << 20} {
			c, r := s.dial(t)
			all := []byte(strings.Join(tt.requests, ""))
			go func() {
				for part := range slices.Chunk(all, piece) {
					if _, err := c.Write(part); err != nil {
						return
					}
				}
			}()
			for i, request := range tt.requests {
				res, body := read(t, r)
				want := http.StatusOK
				switch {
				case strings.Contains(request, "text/plain"):
					want = http.StatusUnsupportedMediaType
				case strings.Contains(request, "count=100000 "):
					want = http.StatusBadRequest
				}
				if res.StatusCode != want {
					t.Fatalf("%s, cut into %d: answer %d is %d %q", tt.name, piece, i, res.StatusCode, body)
				}
			}
		}
	}
}

// What a page of elsewhere has a browser send is refused as by the route.
func TestFrontRefusesOtherHosts(t *testing.T) {
	s := newFronted(t, service.Options{})
	for _, headers := range []string{"Host: evil.example", "Host: localhost\r\nOrigin: http://evil.example", "Host: localhost\r\nSec-Fetch-Site: cross-site"} {
		c, r := s.dial(t)
		_, _ = io.WriteString(c, strings.Replace(hot, "Host: localhost", headers, 1))
		if res, body := read(t, r); res.StatusCode != http.StatusForbidden {
			t.Errorf("%q: %d %q", headers, res.StatusCode, body)
		}
	}
}

// A stop lets a request finish that waits for the store, and ends idle connections.
func TestFrontShutdown(t *testing.T) {
	s := newFronted(t, service.Options{MaxWait: patience.Long})
	reached, end := make(chan struct{}), make(chan struct{})
	var once sync.Once
	s.store.Inject(func(op storetest.Op) storetest.Fault {
		if op.Line == "slow" {
			once.Do(func() { close(reached) })
			<-end
		}
		return storetest.Fault{}
	})
	idle, idleReader := s.dial(t)
	_, _ = io.WriteString(idle, hot)
	read(t, idleReader)
	busy, busyReader := s.dial(t)
	_, _ = io.WriteString(busy, strings.Replace(hot, "orders", "slow", 1))
	<-reached
	done := make(chan struct{})
	go func() { defer close(done); s.shutdown(t) }()
	if _, err := idleReader.ReadByte(); err != io.EOF {
		t.Errorf("the idle connection: %v", err)
	}
	select {
	case <-done:
		t.Fatal("it did not wait")
	default:
	}
	close(end)
	if res, body := read(t, busyReader); res.StatusCode != http.StatusOK || body != "1" {
		t.Errorf("the request in flight: %d %q", res.StatusCode, body)
	}
	<-done
	if _, err := net.Dial("tcp", s.addr); err == nil {
		t.Error("it still accepts")
	}
}

// Where requests are logged, everything goes through the route.
func TestNoFront(t *testing.T) {
	opts := Options{Logger: slog.New(slog.NewTextHandler(new(strings.Builder), &slog.HandlerOptions{Level: slog.LevelDebug}))}
	if _, front := NewFront(nil, New(newService(t), opts), FrontOptions{}); front != nil {
		t.Error("there is a front")
	}
}

// The front takes the tokens that the route takes, for the route's own calls, and leaves
// all others to it: on one connection, tokens change with each request.
func TestFrontAsksForTokens(t *testing.T) {
	for name, secure := range transports(t) {
		t.Run(name, func(t *testing.T) { frontAsksForTokens(t, secure) })
	}
}

func frontAsksForTokens(t *testing.T, secure *tls.Config) {
	tokens := map[string]string{}
	configs := map[string]auth.TokenConfig{}
	for name, config := range map[string]auth.TokenConfig{
		"app":     {Tags: []string{"orders", "users"}},
		"other":   {Tags: []string{"users"}},
		"reader":  {Scopes: []string{"metrics"}},
		"slow":    {Rate: 1, Burst: 1},
		"expired": {Expires: "2020-01-01T00:00:00Z"},
		"few":     {NumbersPerDay: 4},
	} {
		tokens[name] = auth.NewToken()
		config.Hash = auth.HashToken(tokens[name])
		configs[name] = config
	}
	policy, err := auth.NewPolicy(configs)
	if err != nil {
		t.Fatal(err)
	}
	s := newFrontedBy(t, service.Options{}, policy, secure)
	bearer := func(request, name string) string { return with(request, "Authorization: Bearer "+tokens[name]) }
	type step struct {
		request string
		status  int
		past    int64 // requests that were handed over
	}
	for name, steps := range map[string][]step{
		"good":                        {{bearer(hot, "app"), 200, 0}, {bearer(post, "app"), 200, 0}, {bearer(strings.Replace(hot, "orders", "users", 1), "app"), 200, 0}},
		"two that are good":           {{bearer(hot, "app"), 200, 0}, {bearer(strings.Replace(hot, "orders", "users", 1), "other"), 200, 0}, {bearer(hot, "app"), 200, 0}},
		"another spelling":            {{with(hot, "authorization:  bearer "+tokens["app"]+" "), 200, 0}},
		"none":                        {{hot, 401, 1}},
		"none after a good one":       {{bearer(hot, "app"), 200, 0}, {hot, 401, 1}},
		"unknown":                     {{with(hot, "Authorization: Bearer "+auth.NewToken()), 401, 1}},
		"unknown after a good one":    {{bearer(hot, "app"), 200, 0}, {with(hot, "Authorization: Bearer "+auth.NewToken()), 401, 1}},
		"two headers":                 {{bearer(bearer(hot, "app"), "app"), 401, 1}},
		"another scheme":              {{with(hot, "Authorization: Basic "+tokens["app"]), 401, 1}},
		"empty, then good":            {{with(bearer(hot, "app"), "Authorization:"), 401, 1}},
		"another's tag":               {{bearer(hot, "other"), 403, 1}},
		"a tag after one that is its": {{bearer(strings.Replace(hot, "orders", "users", 1), "other"), 200, 0}, {bearer(hot, "other"), 403, 1}},
		"another's after one's own":   {{bearer(hot, "app"), 200, 0}, {bearer(hot, "other"), 403, 1}},
		"another scope":               {{bearer(hot, "reader"), 403, 1}},
		"expired":                     {{bearer(hot, "expired"), 401, 1}},
		"a rate that is spent":        {{bearer(hot, "slow"), 200, 0}, {bearer(hot, "slow"), 429, 1}},
		"numbers that are spent":      {{bearer(post, "few"), 200, 0}, {bearer(hot, "few"), 200, 0}, {bearer(hot, "few"), 429, 0}, {bearer(post, "few"), 429, 0}},
		"a period that has not begun": {{bearer(strings.Replace(hot, "orders", "orders@@2999", 1), "app"), 403, 1}},
	} {
		t.Run(name, func(t *testing.T) {
			c, r := s.dial(t)
			before := s.past.Load()
			for i, step := range steps {
				_, _ = io.WriteString(c, step.request)
				if res, body := read(t, r); res.StatusCode != step.status || s.past.Load()-before != step.past {
					t.Errorf("request %d: %d %q, %d handed over; want %d, %d", i, res.StatusCode, body, s.past.Load()-before, step.status, step.past)
				}
			}
		})
	}
}

// A token that is revoked, or changed, is what it is now with the next request, also on
// a connection that showed it before.
func TestFrontForgetsTokens(t *testing.T) {
	for name, secure := range transports(t) {
		t.Run(name, func(t *testing.T) { frontForgetsTokens(t, secure) })
	}
}

func frontForgetsTokens(t *testing.T, secure *tls.Config) {
	gone, stays, changes := auth.NewToken(), auth.NewToken(), auth.NewToken()
	config := func(token string, tags ...string) auth.TokenConfig {
		return auth.TokenConfig{Hash: auth.HashToken(token), Tags: tags}
	}
	policy, err := auth.NewPolicy(map[string]auth.TokenConfig{"gone": config(gone), "stays": config(stays), "changes": config(changes, "orders")})
	if err != nil {
		t.Fatal(err)
	}
	s := newFrontedBy(t, service.Options{}, policy, secure)
	ask := map[string]func(status int){}
	for name, token := range map[string]string{"gone": gone, "stays": stays, "changes": changes} {
		c, r := s.dial(t)
		ask[name] = func(status int) {
			t.Helper()
			_, _ = io.WriteString(c, with(hot, "Authorization: Bearer "+token))
			if res, body := read(t, r); res.StatusCode != status {
				t.Errorf("%s: %d %q, want %d", name, res.StatusCode, body, status)
			}
		}
		ask[name](200)
	}
	if err := policy.Replace(map[string]auth.TokenConfig{"stays": config(stays), "changes": config(changes, "users")}); err != nil {
		t.Fatal(err)
	}
	ask["gone"](401)
	ask["stays"](200)
	ask["changes"](403)
	if n := s.past.Load(); n != 2 {
		t.Errorf("%d requests were handed over, want 2", n)
	}
}

// A connection counts once for a token, before it is handed over and after, until it ends.
func TestFrontCountsConnections(t *testing.T) {
	token := auth.NewToken()
	policy, err := auth.NewPolicy(map[string]auth.TokenConfig{"app": {Hash: auth.HashToken(token), Connections: 2}})
	if err != nil {
		t.Fatal(err)
	}
	s := newFrontedFor(t, service.Options{}, policy)
	hot := with(hot, "Authorization: Bearer "+token)
	ask := func(c net.Conn, r *bufio.Reader, request string) int {
		t.Helper()
		_, _ = io.WriteString(c, request)
		res, _ := read(t, r)
		return res.StatusCode
	}
	first, firstReader := s.dial(t)
	second, secondReader := s.dial(t)
	for _, request := range []string{hot, hot, with(hot, "X-Other: 1"), hot} {
		if got := ask(first, firstReader, request); got != 200 {
			t.Errorf("the first connection: %d", got)
		}
	}
	if got := ask(second, secondReader, hot); got != 200 {
		t.Errorf("the second connection: %d", got)
	}
	third, thirdReader := s.dial(t)
	if got := ask(third, thirdReader, hot); got != 429 {
		t.Errorf("a third connection: %d, want 429", got)
	}
	_ = second.Close()
	patience.Await(t, "a place, as one connection has ended", func() (int, error) { return ask(third, thirdReader, hot), nil }, func(got int) bool { return got == 200 })
}
