package httpapi

import (
	"context"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/service"
	"github.com/hapax-id/hapax/store/memstore"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

var nopGatherer = prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) { return nil, nil })

// serve sends a request that may be nonsense; no answer may be a 5xx.
func serve(t *testing.T, h http.Handler, r *http.Request) *httptest.ResponseRecorder {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	if w.Code >= 500 && w.Code != http.StatusInsufficientStorage {
		t.Fatalf("%s %s: %d %s", r.Method, r.URL, w.Code, w.Body)
	}
	if w.Code >= 400 {
		asProblem(t, w)
	}
	return w
}

// FuzzNumberRoutes sends any tag and any query to the number routes.
func FuzzNumberRoutes(f *testing.F) {
	f.Add("orders", "count=3")
	f.Add("a/b", "count=-1")
	f.Add("..", "count=99999999999999999999999")
	f.Add("\x00", "count=%zz&count=2")
	f.Add("", ";")
	f.Add("snowflake", "count=1e3")
	h := newHandler(f, memstore.New(), service.Options{MaxCount: 100})
	f.Fuzz(func(t *testing.T, tag, query string) {
		for _, route := range []struct{ method, suffix string }{{"GET", "/next"}, {"POST", "/ids"}} {
			r := (&http.Request{
				Method: route.method, Host: "localhost", Header: http.Header{},
				URL: &url.URL{Path: "/v1/tags/" + tag + route.suffix, RawPath: "/v1/tags/" + url.PathEscape(tag) + route.suffix, RawQuery: query},
			}).WithContext(context.Background())
			w := serve(t, h, r)
			if w.Code == http.StatusOK && hapax.ValidateName("tag", tag) != nil {
				t.Errorf("numbers for the tag %q", tag)
			}
			if n := strings.Count(w.Body.String(), "\n"); n > 100 {
				t.Errorf("%d numbers, the limit is 100", n)
			}
		}
	})
}

// FuzzBodies sends any body to the routes that read one, and any ID and layout.
func FuzzBodies(f *testing.F) {
	f.Add(`{"fields":{"time":1}}`, "1", "leaf")
	f.Add(`{"step":10,"floor":"7"}`, "-1", "time:41,worker:10,sequence:12,unit=1ms,epoch=2010-11-04T01:42:54.657Z")
	f.Add(`{"kind":"snowflake","pool":"p"}`, "x", "")
	f.Add(`[[[[`, "", "\xff")
	h := newHandler(f, memstore.New(), service.Options{})
	f.Fuzz(func(t *testing.T, body, id, layout string) {
		for _, route := range []struct{ method, path string }{{"POST", "/v1/ids/compose"}, {"PUT", "/v1/tags/fuzzed"}} {
			r := httptest.NewRequest(route.method, route.path, strings.NewReader(body))
			r.Host = "localhost"
			r.Header.Set("Content-Type", "application/json")
			serve(t, h, r)
		}
		serve(t, h, (&http.Request{
			Method: http.MethodGet, Host: "localhost", Header: http.Header{},
			URL: &url.URL{Path: "/v1/ids/" + id, RawPath: "/v1/ids/" + url.PathEscape(id), RawQuery: url.Values{"layout": {layout}}.Encode()},
		}).WithContext(context.Background()))
	})
}
