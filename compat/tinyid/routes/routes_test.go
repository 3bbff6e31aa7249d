package routes

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/hapax-id/hapax"
)

// source issues from a counter, and grants one segment.
type source struct{ next int64 }

func (s *source) NextN(_ context.Context, tag string, dst []hapax.ID) (int, error) {
	if err := known(tag); err != nil {
		return 0, err
	}
	for i := range dst {
		s.next++
		dst[i] = hapax.ID(s.next)
	}
	return len(dst), nil
}

func (s *source) Allocate(_ context.Context, tag string, _ int64, _ hapax.GrantKey) (hapax.Allocation, error) {
	if tag == "odd" {
		return hapax.Allocation{Grant: hapax.Grant{Lo: 11, Hi: 21}, Tag: hapax.Tag{Delta: 2, Remainder: 1}}, nil
	}
	return hapax.Allocation{Grant: hapax.Grant{Lo: 2, Hi: 100002}, Tag: hapax.Tag{Delta: 1}}, known(tag)
}

func known(tag string) error {
	switch tag {
	case "x":
		return fmt.Errorf("%w: %q", hapax.ErrTagNotFound, tag)
	case "busy":
		return fmt.Errorf("%w: 200 times", lostRaceError{})
	case "down":
		return fmt.Errorf("%w: mysql at 10.0.0.1 says no", hapax.ErrStoreUnavailable)
	}
	return nil
}

// lostRaceError is an error of a store that others are faster with.
type lostRaceError struct{}

func (lostRaceError) Error() string  { return "lost races" }
func (lostRaceError) Conflict() bool { return true }

type pairs map[[2]string]bool

func (p pairs) Allows(token, bizType string) bool { return p[[2]string{token, bizType}] }

var tokens = pairs{{"0f673adf80504e2eaa552f5d791b644c", "test"}: true, {"t", "x"}: true, {"t", "down"}: true, {"t", "busy"}: true, {"t", "odd"}: true, {"t", "a b+ü"}: true}

func newHandler(t testing.TB) http.Handler {
	t.Helper()
	s := &source{next: 1}
	h, err := New(Options{Issuer: s, Granter: s, Tokens: tokens, now: func() time.Time { return time.UnixMilli(1567733700834) }})
	if err != nil {
		t.Fatal(err)
	}
	return h
}

const (
	plain    = "text/plain;charset=UTF-8"
	asJSON   = "application/json;charset=UTF-8"
	good     = "token=0f673adf80504e2eaa552f5d791b644c&bizType=test"
	prefixed = "/tinyid/id/"

	badRequest = `<!doctype html><html lang="en"><head><title>HTTP Status 400 – Bad Request</title></head><body><h1>HTTP Status 400 – Bad Request</h1><hr class="line" /><p><b>Type</b> Status Report</p>` +
		`<p><b>Description</b> The server cannot or will not process the request due to something that is perceived to be a client error (e.g., malformed request syntax, invalid request message framing, or deceptive request routing).</p></body></html>`

	// What the Java client sends.
	client = "text/html, image/gif, image/jpeg, *; q=.2, */*; q=.2"
)

func TestGolden(t *testing.T) {
	h := newHandler(t)
	for _, c := range []struct {
		method, target, accept, form string
		status                       int
		kind, body                   string
	}{
		{"GET", "nextId?" + good, "", "", 200, asJSON, `{"data":[2],"code":200,"message":""}`},
		{"GET", "nextIdSimple?" + good, "", "", 200, plain, "3"},
		{"GET", "nextIdSimple?" + good + "&batchSize=3", "", "", 200, plain, "4,5,6"},
		{"GET", "nextId?batchSize=2&" + good, "text/html, */*; q=.2", "", 200, asJSON, `{"data":[7,8],"code":200,"message":""}`},
		{"POST", "nextId", "", good, 200, asJSON, `{"data":[9],"code":200,"message":""}`},
		{"POST", "nextIdSimple/?bizType=test", "application/json", "token=0f673adf80504e2eaa552f5d791b644c&batchSize=", 200, asJSON, "10"},
		{"GET", "nextSegmentId?" + good, "", "", 200, asJSON, `{"data":{"maxId":100001,"loadingId":20001,"currentId":1,"delta":1,"remainder":0},"code":200,"message":""}`},
		{"GET", "nextSegmentIdSimple?" + good, "", "", 200, plain, "1,20001,100001,1,0"},
		{"POST", "nextSegmentIdSimple?" + good, client, "", 200, "text/html;charset=UTF-8", "1,20001,100001,1,0"},
		{"GET", "nextSegmentIdSimple?token=t&bizType=odd", "", "", 200, plain, "10,12,20,2,1"},
		{"GET", "nextId?token=t&bizType=a%20b%2Bü", "", "", 200, asJSON, `{"data":[11],"code":200,"message":""}`},

		{"PUT", "nextIdSimple?" + good, "", "", 200, plain, "12"},
		{"DELETE", "nextIdSimple?" + good, "", "", 200, plain, "13"},
		{"GET", "nextIdSimple;a=1?" + good, "", "", 200, plain, "14"},
		{"GET", "nextIdSimple.json?" + good, "text/html", "", 200, asJSON, "15"},
		{"GET", "nextIdSimple?batchSize=2&batchSize=9&" + good, "", "", 200, plain, "16,17"},
		{"OPTIONS", "nextId", "", "", 200, "", ""},

		{"GET", "nextId?bizType=x&" + good, "", "", 200, asJSON, `{"data":null,"code":5,"message":"token is error"}`},
		{"GET", "nextId?token=no&bizType=test", "", "", 200, asJSON, `{"data":null,"code":5,"message":"token is error"}`},
		{"GET", "nextId", "", "", 200, asJSON, `{"data":null,"code":5,"message":"token is error"}`},
		{"GET", "nextSegmentId?token=t&bizType=test", "", "", 200, asJSON, `{"data":null,"code":5,"message":"token is error"}`},
		{"GET", "nextIdSimple?token=no&bizType=test", "", "", 200, plain, ""},
		{"GET", "nextSegmentIdSimple?token=no&bizType=test", "", "", 200, plain, ""},
		{"GET", "nextId?token=t&bizType=x", "", "", 200, asJSON, `{"data":null,"code":6,"message":"error query segmentId: can not find biztype:x"}`},
		{"GET", "nextSegmentId?token=t&bizType=x", "", "", 200, asJSON, `{"data":null,"code":6,"message":"can not find biztype:x"}`},
		{"GET", "nextSegmentId?token=t&bizType=busy", "", "", 200, asJSON, `{"data":null,"code":6,"message":"get next segmentId conflict"}`},
		{"GET", "nextId?token=t&bizType=busy", "", "", 200, asJSON, `{"data":null,"code":6,"message":"error query segmentId: get next segmentId conflict"}`},
		{"GET", "nextIdSimple?token=t&bizType=x", "", "", 200, plain, ""},
		{"GET", "nextId?token=t&bizType=down", "", "", 200, asJSON, `{"data":null,"code":6,"message":"error query segmentId: store_unavailable"}`},
		{"GET", "nextId?batchSize=0&" + good, "", "", 200, asJSON, `{"data":[],"code":200,"message":""}`},
		{"GET", "nextId?batchSize=-4&" + good, "", "", 200, asJSON, `{"data":[],"code":200,"message":""}`},
		{"GET", "nextIdSimple?batchSize=-4&" + good, "", "", 200, plain, ""},
		{"GET", "nextId?batchSize=x&" + good, "", "", 400, "text/html;charset=utf-8", badRequest},
		{"GET", "nextId?batchSize=2147483648&" + good, "", "", 400, "text/html;charset=utf-8", badRequest},
		{"GET", "nextSegmentId?batchSize=x&token=t&bizType=x", "", "", 200, asJSON, `{"data":null,"code":6,"message":"can not find biztype:x"}`}, // it is not read
		{"GET", "nextSegmentIdSimple?batchSize=2147483648&token=no&bizType=test", "", "", 200, plain, ""},
		{"GET", "nextId%2fx?" + good, "", "", 400, "text/html;charset=utf-8", badRequest},
		{"GET", "other?" + good, "", "", 404, asJSON, `{"timestamp":1567733700834,"status":404,"error":"Not Found","message":"No message available","path":"/tinyid/id/other"}`},
		{"TRACE", "nextId?" + good, "", "", 405, asJSON, `{"timestamp":1567733700834,"status":405,"error":"Method Not Allowed","message":"Request method 'TRACE' not supported","path":"/tinyid/id/nextId"}`},
	} {
		r := httptest.NewRequest(c.method, prefixed+c.target, strings.NewReader(c.form))
		r.Header.Set("Accept", c.accept)
		if c.method == "POST" {
			r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != c.status || w.Header().Get("Content-Type") != c.kind || w.Body.String() != c.body || w.Header().Get("Cache-Control") != "no-store" {
			t.Errorf("%s %s %s:\n got %d %s %s\nwant %d %s %s", c.method, c.target, c.form, w.Code, w.Header().Get("Content-Type"), w.Body, c.status, c.kind, c.body)
		}
	}
}

// A number in hand is the answer to a caller that may have it and asks for one; several come
// from the issuer.
func TestOneInHand(t *testing.T) {
	s, tries := &source{}, 0
	inHand := func(string) (hapax.ID, bool) { tries++; return 7777, tries == 1 }
	h, err := New(Options{Issuer: s, TryNext: inHand, Granter: s, Tokens: tokens})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ query, want string }{
		{"token=wrong&bizType=test", ""}, {"batchSize=3&" + good, "1,2,3"}, {good, "7777"}, {good, "4"}, {"batchSize=0&" + good, ""},
	} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest("GET", prefixed+"nextIdSimple?"+c.query, nil))
		if got := w.Body.String(); got != c.want {
			t.Errorf("%s is answered %q, want %q", c.query, got, c.want)
		}
	}
	if tries != 2 {
		t.Errorf("it was tried %d times to take one, want 2", tries)
	}
}

// TestContextPath: the routes are below the context path alone.
func TestContextPath(t *testing.T) {
	for path, prefix := range map[string]string{"": "/tinyid/id/", "/tinyid": "/tinyid/id/", "/": "/id/", "/ids/v2": "/ids/v2/id/"} {
		s := &source{next: 1}
		h, err := New(Options{Issuer: s, Granter: s, Tokens: tokens, ContextPath: path})
		if err != nil {
			t.Fatal(err)
		}
		for _, at := range []string{"/tinyid/id/", "/id/", "/ids/v2/id/", "/ids/id/"} {
			w := httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequest("GET", at+"nextIdSimple?"+good, nil))
			if want := map[bool]int{true: 200, false: 404}[at == prefix]; w.Code != want {
				t.Errorf("context path %q: %s answers with status %d; want %d", path, at, w.Code, want)
			}
		}
		if got := Paths(path); got[0] != prefix+"nextId" {
			t.Errorf("context path %q: %q", path, got)
		}
	}
	for _, path := range []string{"tinyid", "/tinyid/", "//", "/a b", "/..", "/a/./b", "/{x}", "/" + strings.Repeat("a", 65)} {
		s := &source{}
		if _, err := New(Options{Issuer: s, Granter: s, Tokens: tokens, ContextPath: path}); !errors.Is(err, hapax.ErrInvalidArgument) {
			t.Errorf("context path %q: %v; want ErrInvalidArgument", path, err)
		}
	}
}

// TestBatchCap: a batch above 100,000 counts as that.
func TestBatchCap(t *testing.T) {
	h := newHandler(t)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest("GET", prefixed+"nextIdSimple?batchSize=2147483647&"+good, nil))
	if n := strings.Count(w.Body.String(), ",") + 1; n != MaxBatch {
		t.Errorf("%d numbers; want %d", n, MaxBatch)
	}
}

func TestOptions(t *testing.T) {
	s := &source{}
	for _, o := range []Options{{}, {Issuer: s, Granter: s}, {Issuer: s, Granter: s, Tokens: tokens, MaxWait: time.Hour}} {
		if _, err := New(o); !errors.Is(err, hapax.ErrInvalidArgument) {
			t.Errorf("%+v: %v; want ErrInvalidArgument", o, err)
		}
	}
}
