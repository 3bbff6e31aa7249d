package httpapi

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
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
}

func newFronted(t *testing.T, opts service.Options) fronted {
	t.Helper()
	store := storetest.NewFaults(memstore.New())
	opts.Logger = slog.New(slog.DiscardHandler)
	svc, err := service.New(context.Background(), store, opts)
	if err != nil {
		t.Fatal(err)
	}
	handler := New(svc, Options{Logger: opts.Logger, LoopbackOnly: true})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := fronted{addr: l.Addr().String(), store: store}
	l, s.front = NewFront(l, handler, patience.Long)
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	s.web = &http.Server{Handler: handler, Protocols: protocols}
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
)

// The front answers as the route does, number, headers and errors.
func TestFrontAnswersAsTheRoute(t *testing.T) {
	s := newFronted(t, service.Options{NoAutoCreate: true, MaxWait: patience.Long, Tags: map[string]service.TagConfig{"orders": {}}})
	for _, tag := range []string{"orders", "nope", "snowflake"} {
		hot, cold := strings.Replace(hot, "orders", tag, 1), strings.Replace(cold, "orders", tag, 1)
		c, r := s.dial(t)
		_, _ = io.WriteString(c, hot)
		ours, number := read(t, r)
		_, _ = io.WriteString(c, cold) // through net/http from here on
		theirs, next := read(t, r)
		if ours.StatusCode != theirs.StatusCode || tag == "orders" && (number != "1" || next != "2") || tag == "nope" && number != next {
			t.Errorf("%s: %d %q, and by the route %d %q", tag, ours.StatusCode, number, theirs.StatusCode, next)
		}
		for name := range theirs.Header {
			if got, want := ours.Header[name], theirs.Header[name]; !slices.Equal(got, want) && name != "Date" {
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
	post := "POST /v1/tags/orders/ids HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 11\r\n\r\n{\"count\":1}"
	for _, tt := range []struct {
		name     string
		requests []string
	}{
		{"hot", slices.Repeat([]string{hot}, 200)},
		{"one that is not", []string{hot, hot, cold, hot, hot}},
		{"a body that looks like a request", []string{hot, "POST /v1/tags/orders/ids HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\nContent-Length: " + strconv.Itoa(len(hot)) + "\r\n\r\n" + hot, hot}},
		{"a body", []string{hot, post, hot, post}},
		{"nothing hot", []string{cold, post}},
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
				if strings.Contains(request, "text/plain") {
					want = http.StatusUnsupportedMediaType
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

// Where tokens are asked for, or requests logged, everything goes through the route.
func TestNoFront(t *testing.T) {
	policy, err := auth.NewPolicy(map[string]auth.TokenConfig{"app": {Hash: auth.HashToken(auth.NewToken())}})
	if err != nil {
		t.Fatal(err)
	}
	for name, opts := range map[string]Options{
		"tokens":  {Policy: policy, Logger: slog.New(slog.DiscardHandler)},
		"logging": {Logger: slog.New(slog.NewTextHandler(new(strings.Builder), &slog.HandlerOptions{Level: slog.LevelDebug}))},
	} {
		if _, front := NewFront(nil, New(newService(t), opts), time.Minute); front != nil {
			t.Errorf("%s: there is a front", name)
		}
	}
}

// FuzzFront holds what the front understands to what net/http understands: every
// request that it takes is that one, up to the same byte.
func FuzzFront(f *testing.F) {
	for _, seed := range []string{
		hot, cold, hot + hot, strings.Replace(hot, "orders", "a%2fb", 1), strings.Replace(hot, "orders", "..", 1), strings.ReplaceAll(hot, "\r\n", "\n"),
		strings.Replace(hot, "Host: localhost", "Host: localhost\r\nHost: localhost", 1), strings.Replace(hot, "Host: localhost", "Host : localhost", 1),
		strings.Replace(hot, "Host: localhost", "Host: localhost\r\n folded", 1), strings.Replace(hot, "Host: localhost", "hOST:\tlocalhost \r\nAccept: */*\r\nConnection: Keep-Alive\r\nUser-Agent: x", 1),
		strings.Replace(hot, "\r\n\r\n", "\r\nContent-Length: 5\r\n\r\n", 1), strings.Replace(hot, "\r\n\r\n", "\r\nTransfer-Encoding: chunked\r\n\r\n", 1),
		strings.Replace(hot, "Host", "Ho\u017ft", 1), strings.Replace(hot, "Host: localhost", "Host: localhost\v", 1), strings.Replace(hot, "Host: localhost", "Host: localhost\r", 1),
		strings.Replace(hot, "HTTP/1.1", "HTTP/1.0", 1), strings.Replace(hot, "/next", "/next?count=2", 1), "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
	} {
		f.Add([]byte(seed))
	}
	a := &restAPI{hosts: isLoopbackHost}
	f.Fuzz(func(t *testing.T, in []byte) {
		c := frontConn{api: a}
		tag, size := c.match(in)
		if size == 0 {
			return
		}
		r, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(in[:size])))
		if err != nil {
			t.Fatalf("%q: %v", in, err)
		}
		if got, ok := plainNext(r); !ok || got != string(tag) || !isOwn(r, isLoopbackHost) || r.Host != string(c.host) || r.ContentLength != 0 || r.Body != http.NoBody || r.Close || r.ProtoMinor != 1 {
			t.Fatalf("%q is %+v to net/http", in, r)
		}
		if !bytes.HasSuffix(in[:size], []byte("\r\n\r\n")) || bytes.Count(in[:size], []byte("\r\n\r\n")) != 1 {
			t.Fatalf("%q ends elsewhere", in[:size])
		}
	})
}
