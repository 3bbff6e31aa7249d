package httpapi

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/hapax-id/hapax/internal/patience"
	"github.com/hapax-id/hapax/internal/service"
	"github.com/hapax-id/hapax/internal/service/auth"
)

// A page of elsewhere cannot use what a browser shows by itself: a certificate, or
// nothing.
func TestForeignPages(t *testing.T) {
	h := New(newService(t), Options{Hosts: func(host string) bool { return host == "ids.internal:8080" }})
	for _, tt := range []struct {
		name, host string
		headers    []string
		status     int
	}{
		{"a program", "ids.internal:8080", nil, http.StatusOK},
		{"a page of its own", "ids.internal:8080", []string{"Origin", "https://ids.internal:8080", "Sec-Fetch-Site", "same-origin"}, http.StatusOK},
		{"typed by the user", "ids.internal:8080", []string{"Sec-Fetch-Site", "none"}, http.StatusOK},
		{"another page", "ids.internal:8080", []string{"Origin", "https://evil.example"}, http.StatusForbidden},
		{"another page's image", "ids.internal:8080", []string{"Sec-Fetch-Site", "cross-site"}, http.StatusForbidden},
		{"a page of a sister", "ids.internal:8080", []string{"Sec-Fetch-Site", "same-site"}, http.StatusForbidden},
		{"a sandbox", "ids.internal:8080", []string{"Origin", "null"}, http.StatusForbidden},
		{"a name that was made to point here", "evil.example", []string{"Origin", "http://evil.example", "Sec-Fetch-Site", "same-origin"}, http.StatusForbidden},
		{"another port", "ids.internal:8080", []string{"Origin", "https://ids.internal:9999"}, http.StatusForbidden},
	} {
		r := httptest.NewRequest(http.MethodPost, "/v1/pools/default/workers/0/retire", nil)
		r.Host = tt.host
		for i := 0; i < len(tt.headers); i += 2 {
			r.Header.Add(tt.headers[i], tt.headers[i+1])
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if (w.Code == http.StatusForbidden) != (tt.status == http.StatusForbidden) {
			t.Errorf("%s: %d %s", tt.name, w.Code, w.Body)
		}
	}
}

// Bodies in memory are bounded by their bytes, and what they count for comes back when
// the answer begins, or when it is known how long they are.
func TestBodiesAreBounded(t *testing.T) {
	h := New(newService(t), Options{}).(*restAPI)
	const body = `{"count":1}`
	post := func(length int64, header string, value string) *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		r := httptest.NewRequest(http.MethodPost, "/v1/tags/orders/ids", strings.NewReader(body))
		r.ContentLength = length
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set(header, value)
		h.ServeHTTP(w, r)
		return w
	}
	for _, tt := range []struct {
		length        int64
		header, value string
		claim         int64
	}{
		{int64(len(body)), "Accept", "*/*", int64(len(body))},
		{-1, "Accept", "*/*", maxBody},
		{int64(len(body)), "Connect-Content-Encoding", "gzip", int64(len(body)) + maxBody},
		{-1, "Grpc-Encoding", "gzip", 2 * maxBody},
	} {
		if w := post(tt.length, tt.header, tt.value); w.Code != http.StatusOK || h.bodies.used.Load() != 0 {
			t.Fatalf("%+v: %d %s, and %d bytes are held", tt, w.Code, w.Body, h.bodies.used.Load())
		}
		h.bodies.used.Store(maxBodies - tt.claim + 1)
		if w := post(tt.length, tt.header, tt.value); w.Code != http.StatusTooManyRequests {
			t.Errorf("%+v: %d %s", tt, w.Code, w.Body)
		}
		h.bodies.used.Store(maxBodies - tt.claim)
		if w := post(tt.length, tt.header, tt.value); w.Code != http.StatusOK || h.bodies.used.Load() != maxBodies-tt.claim {
			t.Errorf("%+v: %d %s, %d bytes", tt, w.Code, w.Body, h.bodies.used.Load())
		}
		h.bodies.used.Store(0)
	}
	r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(body))
	r.ContentLength = -1
	held := h.bodies.hold(httptest.NewRecorder(), r)
	if got := h.bodies.used.Load(); got != maxBody {
		t.Errorf("a body of unknown length counts for %d", got)
	}
	if _, err := io.Copy(io.Discard, r.Body); err != nil || h.bodies.used.Load() != int64(len(body)) {
		t.Errorf("one that was read counts for %d, error %v", h.bodies.used.Load(), err)
	}
	if held.release(); h.bodies.used.Load() != 0 {
		t.Errorf("at the end, %d bytes are held", h.bodies.used.Load())
	}
}

// What strangers send takes no room from those with a token, and little at all.
func TestStrangersBodies(t *testing.T) {
	guarded, tokens, _ := guardedHandler(t, map[string]auth.TokenConfig{"app": {}})
	h := guarded.(*restAPI)
	var read int64
	h.mux.HandleFunc("POST /public", func(_ http.ResponseWriter, r *http.Request) {
		read, _ = io.Copy(io.Discard, r.Body)
		if used := h.bodies.used.Load(); used != 0 {
			t.Errorf("a stranger has %d bytes of the others' room", used)
		}
	})
	const long = 60 << 10
	post := func(path, token string) int {
		r := httptest.NewRequest(http.MethodPost, path, io.MultiReader(strings.NewReader(`{"count":1}`), strings.NewReader(strings.Repeat(" ", long))))
		r.Host = "localhost"
		r.Header.Set("Content-Type", "application/json")
		if token != "" {
			r.Header.Set("Authorization", "Bearer "+token)
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w.Code
	}
	if post("/public", ""); read != maxBodyUnseen {
		t.Errorf("%d bytes of a stranger's body were read", read)
	}
	h.unseen.used.Store(maxBodiesUnseen)
	for _, token := range []string{"", auth.NewToken()} {
		if got := post("/v1/tags/orders/ids", token); got != http.StatusTooManyRequests {
			t.Errorf("a stranger too many: %d", got)
		}
	}
	if got := post("/v1/tags/orders/ids", tokens["app"]); got != http.StatusOK {
		t.Errorf("a token, while strangers are too many: %d", got)
	}
	h.unseen.used.Store(0)
	h.bodies.used.Store(maxBodies)
	if got := post("/v1/tags/orders/ids", ""); got != http.StatusUnauthorized {
		t.Errorf("a stranger: %d", got)
	}
}

// A stranger is answered before his body has come, which nobody waits for.
func TestStrangersBodiesAreNotAwaited(t *testing.T) {
	h, _, _ := guardedHandler(t, map[string]auth.TokenConfig{"app": {}})
	srv := httptest.NewServer(h)
	defer srv.Close()
	for _, length := range []string{"Content-Length: 5000", "Transfer-Encoding: chunked"} {
		nc, err := net.Dial("tcp", srv.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer nc.Close()
		_ = nc.SetDeadline(time.Now().Add(patience.Long))
		_, _ = io.WriteString(nc, "POST /v1/tags/orders/ids HTTP/1.1\r\nHost: localhost\r\n"+length+"\r\n\r\n")
		resp, err := http.ReadResponse(bufio.NewReader(nc), nil)
		if err != nil {
			t.Fatalf("%s: %v", length, err)
		}
		if _ = resp.Body.Close(); resp.StatusCode != http.StatusUnauthorized || !resp.Close {
			t.Errorf("%s: %+v", length, resp)
		}
	}
}

// A front gives up the request of a client that has left.
func TestFrontGivesUpGoneClients(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux tells")
	}
	s := newFronted(t, service.Options{MaxWait: time.Hour})
	s.store.Down()
	defer s.store.Up()
	c, _ := s.dial(t)
	_, _ = io.WriteString(c, strings.Repeat(hot, 20))
	patience.Until(t, "it waits for the store", func() bool { return s.store.Calls("Tag") > 0 })
	_ = c.Close()
	open := func() (n int) {
		s.front.each(func(net.Conn) { n++ })
		return n
	}
	patience.Await(t, "no connection, as the client is gone", func() (int, error) { return open(), nil }, func(n int) bool { return n == 0 })
}
