package httpapi

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/hapax-id/hapax/internal/service"
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

// Bodies in memory are bounded, and what they count for comes back when the answer
// begins.
func TestBodiesAreBounded(t *testing.T) {
	h := New(newService(t), Options{}).(*api)
	post := func() *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		r := httptest.NewRequest(http.MethodPost, "/v1/tags/orders/ids", strings.NewReader(`{"count":1}`))
		r.Header.Set("Content-Type", "application/json")
		h.ServeHTTP(w, r)
		return w
	}
	for range 3 {
		if w := post(); w.Code != http.StatusOK || len(h.bodies) != 0 {
			t.Fatalf("%d %s, and %d bodies are held", w.Code, w.Body, len(h.bodies))
		}
	}
	for range maxBodies {
		h.bodies <- struct{}{}
	}
	if w := post(); w.Code != http.StatusTooManyRequests {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	<-h.bodies
	if w := post(); w.Code != http.StatusOK {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

// A front gives up what a client asked for who has left.
func TestFrontGivesUpGoneClients(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux tells")
	}
	s := newFronted(t, service.Options{MaxWait: time.Hour})
	s.store.Down()
	defer s.store.Up()
	c, _ := s.dial(t)
	_, _ = io.WriteString(c, strings.Repeat(hot, 20))
	for over := time.Now().Add(patience); s.store.Calls("Tag") == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(over) {
			t.Fatal("it does not wait for the store")
		}
	}
	_ = c.Close()
	open := func() (n int) {
		s.front.each(func(net.Conn) { n++ })
		return n
	}
	for over := time.Now().Add(patience); open() > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(over) {
			t.Fatal("the client is gone, and it goes on")
		}
	}
}
