package httpapi

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hapax-id/hapax/internal/patience"
	"github.com/hapax-id/hapax/internal/service/auth"
)

const foreign = "GET /api/segment/get/orders HTTP/1.1\r\nHost: localhost\r\n\r\n"

// A foreignFront is a front before a handler of a foreign system.
type foreignFront struct {
	addr  string
	past  atomic.Int64 // requests that were handed over
	known atomic.Int64 // connections that were vouched for
	log   bytes.Buffer // to be read when it is shut down
	stop  func()
}

func newForeignFront(t *testing.T, opts FrontOptions, h http.HandlerFunc) *foreignFront {
	t.Helper()
	f := new(foreignFront)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f.addr = l.Addr().String()
	opts.Conn = func(net.Conn) *auth.Conn { return &auth.Conn{Known: func() { f.known.Add(1) }} }
	opts.Logger, opts.Idle = slog.New(slog.NewTextHandler(&f.log, nil)), patience.Long
	opts.Paths = []string{"/api/segment/get/", "/cache"}
	front := NewForeignFront(l, h, opts)
	web := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { f.past.Add(1); h(w, r) }), ErrorLog: slog.NewLogLogger(slog.DiscardHandler, 0)}
	served := make(chan error, 1)
	go func() { served <- web.Serve(front) }()
	stopped := false
	f.stop = func() {
		if stopped {
			return
		}
		stopped = true
		ctx, cancel := context.WithTimeout(context.Background(), patience.Long)
		defer cancel()
		ended := make(chan error, 1)
		go func() { ended <- front.Shutdown(ctx) }()
		if err := web.Shutdown(ctx); err != nil {
			t.Error(err)
		}
		if err := <-ended; err != nil {
			t.Error(err)
		}
		<-served
	}
	t.Cleanup(f.stop)
	return f
}

func (f *foreignFront) dial(t *testing.T) (net.Conn, *bufio.Reader) {
	t.Helper()
	return fronted{addr: f.addr}.dial(t)
}

// A request for a path is nobody's: the holder of a token shown with the request before on its
// connection is not taken for the caller of this one.
func TestForeignFrontForgetsTheCaller(t *testing.T) {
	nc, _ := net.Pipe()
	c := newFrontConn(t.Context(), nil, nc, &auth.Conn{})
	c.routes = frontRoutes{paths: []string{"/api/segment/get/"}, handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if caller := auth.FromContext(r.Context()); caller != nil {
			t.Errorf("the request is made by %v, want nobody", caller)
		}
	})}
	c.calledBy(new(auth.Caller))
	if n := c.routed([]byte(foreign)); n != len(foreign) || len(c.out) == 0 {
		t.Errorf("%d bytes were answered with %q, want %d with an answer", n, c.out, len(foreign))
	}
}

// FuzzFrontRoutes holds the front's understanding of a request for a path to that of
// net/http, up to the same byte, whatever was asked for before.
func FuzzFrontRoutes(f *testing.F) {
	for _, seed := range []string{
		foreign, foreign + foreign, strings.Replace(foreign, "orders", "a%2Fb;x=1.json?a=b&c", 1), strings.Replace(foreign, "orders", "a b", 1), strings.Replace(foreign, "orders", "a\nb", 1),
		strings.Replace(foreign, "orders", "%zz", 1), strings.Replace(foreign, "orders", "\u00fc#x", 1), strings.ReplaceAll(foreign, "\r\n", "\n"), foreign + strings.Replace(foreign, "orders", "users", 1),
		with(foreign, "Accept: text/html"), with(foreign, "accept: */*\r\nX-Request-ID: a\r\nx-request-id:  b\t"), with(foreign, "Content-Length: 0"), with(foreign, "Content-Length: 1"), with(foreign, "Host: other"),
		with(foreign, " folded"), with(foreign, "Pragma: no-cache"), with(foreign, "Authorization: Basic YQ=="), with(foreign, "Connection: close"), with(foreign, "Connection: keep-alive"),
		foreign + with(foreign, "Accept: application/json") + foreign, strings.Replace(foreign, "HTTP/1.1", "HTTP/1.0", 1), strings.Replace(foreign, "GET", "POST", 1), "GET /cache HTTP/1.1\r\nHost: [::1]:80\r\n\r\n",
	} {
		f.Add([]byte(seed))
	}
	nc, _ := net.Pipe()
	f.Fuzz(func(t *testing.T, in []byte) {
		var got *http.Request
		c := newFrontConn(context.Background(), nil, nc, &auth.Conn{})
		c.routes = frontRoutes{paths: []string{"/api/segment/get/", "/cache"}, handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got = r })}
		for {
			size := c.one(in)
			if size == 0 {
				return
			}
			rest := bufio.NewReader(bytes.NewReader(in))
			want, err := http.ReadRequest(rest)
			if err != nil {
				t.Fatalf("%q: %v", in, err)
			}
			if left, _ := io.ReadAll(rest); len(left) != len(in)-size {
				t.Fatalf("%q ends %d bytes before its end, and to net/http %d", in, len(in)-size, len(left))
			}
			delete(want.Header, "Cache-Control") // what net/http makes of Pragma
			header := got.Header.Clone()
			delete(header, "Cache-Control")
			if want.Method != got.Method || want.Host != got.Host || want.RequestURI != got.RequestURI || !reflect.DeepEqual(want.URL, got.URL) || !reflect.DeepEqual(want.Header, header) ||
				want.Proto != got.Proto || want.ContentLength != 0 || want.Body != http.NoBody || want.Close || want.Header["Expect"] != nil {
				t.Fatalf("%q is %+v, and to net/http %+v", in, got, want)
			}
			in = in[size:]
		}
	})
}

// The handler's answers come as through net/http: status, headers and body.
func TestForeignFrontAnswersAsTheHandler(t *testing.T) {
	f := newForeignFront(t, FrontOptions{Write: patience.Long}, func(w http.ResponseWriter, r *http.Request) {
		auth.ConnFromContext(r.Context()).Vouch() // by either way
		switch r.URL.Query().Get("as") {
		case "error":
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(http.StatusServiceUnavailable)
			w.WriteHeader(http.StatusOK) // too late
			_, _ = io.WriteString(w, `{"a":1}`)
		case "nothing":
		case "page":
			_, _ = io.WriteString(w, "<html>")
		case "breaks":
			w.Header().Set("X-Text", "a\r\nb")
			_, _ = io.WriteString(w, strings.Repeat("x", 1<<20))
		default:
			w.Header()["Content-Type"] = []string{"text/plain;charset=UTF-8"}
			_, _ = fmt.Fprint(w, r.URL.Path, r.Host != "", r.Header["Accept"], r.TLS == nil, strings.HasPrefix(r.RemoteAddr, "127.0.0.1:"))
		}
	})
	for _, as := range []string{"", "error", "nothing", "page", "breaks"} {
		request := with(strings.Replace(foreign, "orders", "orders?as="+as, 1), "Accept: */*")
		c, r := f.dial(t)
		past := f.past.Load()
		_, _ = io.WriteString(c, request)
		ours, body := read(t, r)
		if f.past.Load() != past {
			t.Errorf("%q was handed over", request)
		}
		_, _ = io.WriteString(c, with(request, "X-Other: 1"))
		theirs, next := read(t, r)
		if f.past.Load() == past {
			t.Errorf("%q was not handed over", with(request, "X-Other: 1"))
		}
		ours.Header.Del("Date")
		theirs.Header.Del("Date")
		if ours.StatusCode != theirs.StatusCode || body != next || ours.ContentLength != theirs.ContentLength && theirs.ContentLength >= 0 {
			t.Errorf("%s: %d %.40q, and by net/http %d %.40q", as, ours.StatusCode, body, theirs.StatusCode, next)
		}
		theirs.Header.Set("Content-Length", ours.Header.Get("Content-Length")) // or chunks
		if !reflect.DeepEqual(ours.Header, theirs.Header) {
			t.Errorf("%s: %v, and by net/http %v", as, ours.Header, theirs.Header)
		}
	}
	if f.known.Load() != 5 {
		t.Errorf("%d connections were vouched for, want 5: the handler vouched for each", f.known.Load())
	}
}

// What is not for one of the paths, or no plain GET, goes to the http.Server.
func TestForeignFrontHandsOver(t *testing.T) {
	f := newForeignFront(t, FrontOptions{Write: patience.Long}, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "x") })
	for i, request := range []string{
		strings.Replace(foreign, "/api/segment/get/orders", "/readyz", 1), strings.Replace(foreign, "GET", "POST", 1), strings.Replace(foreign, "GET", "HEAD", 1),
		with(foreign, "Cookie: a=b"), with(foreign, "Origin: http://example.org"), hot,
	} {
		c, r := f.dial(t)
		_, _ = io.WriteString(c, request)
		if _, err := http.ReadResponse(r, nil); err != nil || f.past.Load() != int64(i+1) {
			t.Errorf("%q: %v, %d handed over", request, err, f.past.Load())
		}
	}
}

// A handler that panics costs its connection, and is told of.
func TestForeignFrontPanics(t *testing.T) {
	f := newForeignFront(t, FrontOptions{Write: patience.Long}, func(_ http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "quietly") {
			panic(http.ErrAbortHandler)
		}
		panic("oh")
	})
	for _, name := range []string{"loudly", "quietly"} {
		c, r := f.dial(t)
		_, _ = io.WriteString(c, strings.Replace(foreign, "orders", name, 1))
		if _, err := r.ReadByte(); err != io.EOF {
			t.Errorf("%s: %v, want EOF", name, err)
		}
	}
	f.stop()
	if got := f.log.String(); strings.Count(got, "panic=oh") != 1 || strings.Contains(got, "abort") {
		t.Errorf("the log is %q", got)
	}
}

// An answer that was waited for longer than a client may take for one still reaches it:
// what it may take is counted from when it is there, and not cut by the wait before it.
func TestForeignFrontWaits(t *testing.T) {
	const write = 50 * time.Millisecond
	f := newForeignFront(t, FrontOptions{Write: write}, func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-r.Context().Done():
		case <-time.After(3 * write):
		}
		_, _ = io.WriteString(w, "x")
	})
	c, r := f.dial(t)
	_, _ = io.WriteString(c, foreign+foreign)
	for range 2 {
		if res, body := read(t, r); res.StatusCode != http.StatusOK || body != "x" {
			t.Errorf("%d %q", res.StatusCode, body)
		}
	}
}
