package httpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/api"
	"github.com/hapax-id/hapax/internal/service"
	"github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/store/memstore"
	"github.com/hapax-id/hapax/store/storetest"
)

// laterClock moves virtual time, which begins in the year 2000, past the epochs
// of the layouts.
type laterClock struct{ start time.Time }

func (c laterClock) Now() (time.Time, time.Duration) {
	t := time.Now()
	if t.Year() < 2020 {
		return t.AddDate(26, 0, 0), t.Sub(c.start)
	}
	return t, t.Sub(c.start)
}

// bubble runs f in virtual time on the routes of a service over a faulty store.
func bubble(t *testing.T, opts service.Options, f func(t *testing.T, h http.Handler, store *storetest.Faults)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		store := storetest.NewFaults(memstore.New())
		f(t, newHandler(t, store, opts), store)
	})
}

func newService(t testing.TB) *service.Service {
	t.Helper()
	svc, err := service.New(context.Background(), memstore.New(), service.Options{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = svc.Close(context.Background()) })
	return svc
}

func newHandler(t testing.TB, store driver.Store, opts service.Options) http.Handler {
	t.Helper()
	opts.Logger = slog.New(slog.DiscardHandler)
	opts.Clock = laterClock{time.Now()}
	svc, err := service.New(context.Background(), store, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = svc.Close(context.Background()) })
	return New(svc, Options{Logger: opts.Logger, LoopbackOnly: true})
}

// call makes one request. The headers come as "Name: value".
func call(t testing.TB, h http.Handler, method, path, body string, headers ...string) *httptest.ResponseRecorder {
	t.Helper()
	r, err := http.NewRequestWithContext(context.Background(), method, "http://127.0.0.1:8080"+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	for _, header := range headers {
		name, value, _ := strings.Cut(header, ": ")
		switch {
		case name == "Host":
			r.Host = value
		case value == "":
			r.Header.Del(name)
		default:
			r.Header.Set(name, value)
		}
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// asProblem reads an error and checks what all of them have in common.
func asProblem(t testing.TB, w *httptest.ResponseRecorder) problem {
	t.Helper()
	var p problem
	d := json.NewDecoder(w.Body)
	d.DisallowUnknownFields()
	if err := d.Decode(&p); err != nil {
		t.Fatalf("not a problem: %v", err)
	}
	if p.Status != w.Code || p.Code == "" || p.Title == "" || p.Type != "urn:hapax:error:"+p.Code || !strings.HasPrefix(p.See, "docs/runbook.md#") {
		t.Errorf("status %d: %+v", w.Code, p)
	}
	if got := w.Header().Get("Content-Type"); got != "application/problem+json" {
		t.Errorf("Content-Type is %q", got)
	}
	if got := w.Header().Get("Cache-Control"); got != "no-store" {
		t.Errorf("Cache-Control is %q", got)
	}
	return p
}

// TestBodies makes requests one after the other on one service and compares
// what clients see, byte by byte.
func TestBodies(t *testing.T) {
	opts := service.Options{Pools: map[string]service.PoolConfig{"web": {Layout: "js-safe-53", Workers: "2"}}}
	bubble(t, opts, func(t *testing.T, h http.Handler, store *storetest.Faults) {
		synctest.Wait()
		for i, c := range []struct {
			method, path, body string
			headers            []string
			status             int
			contentType        string
			want               string
		}{
			{"GET", "/v1/tags/orders/next", "", nil, 200, "text/plain; charset=utf-8", "1"},
			{"GET", "/v1/tags/orders/next", "", nil, 200, "text/plain; charset=utf-8", "2"},
			{"GET", "/v1/tags/orders/next?count=3", "", nil, 200, "text/plain; charset=utf-8", "3\n4\n5\n"},
			{"GET", "/v1/tags/orders/next", "", []string{"Accept: application/json"}, 200, "application/json", `{"ids":["6"]}` + "\n"},
			{"GET", "/v1/tags/orders/next?count=2", "", []string{"Accept: application/json"}, 200, "application/json", `{"ids":["7","8"]}` + "\n"},
			{"GET", "/v1/tags/orders/next?count=2", "", []string{"Accept: */*"}, 200, "text/plain; charset=utf-8", "9\n10\n"},
			{"POST", "/v1/tags/orders/ids", "", nil, 200, "application/json", `{"ids":["11"]}` + "\n"},
			{"POST", "/v1/tags/orders/ids?count=2", "", nil, 200, "application/json", `{"ids":["12","13"]}` + "\n"},
			{"POST", "/v1/tags/orders/ids?count=2", "", []string{"Accept: text/plain"}, 200, "text/plain; charset=utf-8", "14\n15\n"},
			{"POST", "/v1/tags/both/ids", "", []string{"Accept: application/json, text/plain, */*"}, 200, "application/json", `{"ids":["1"]}` + "\n"},
			{"POST", "/v1/tags/both/ids", "", []string{"Accept: text/plain, application/json"}, 200, "text/plain; charset=utf-8", "2\n"},
			{"GET", "/v1/tags/both/next", "", []string{"Accept: text/plain, application/json"}, 200, "text/plain; charset=utf-8", "3"},
			{"GET", "/v1/tags/both/next", "", []string{"Accept: application/json, text/plain, */*"}, 200, "application/json", `{"ids":["4"]}` + "\n"},
			{"GET", "/v1/tags/both/next?count=1", "", nil, 200, "text/plain; charset=utf-8", "5\n"},
			{"POST", "/v1/tags/body/ids", `{"count":2}`, nil, 200, "application/json", `{"ids":["1","2"]}` + "\n"},
			{"POST", "/v1/tags/body/ids", `{}`, []string{"Content-Type: application/json; charset=utf-8"}, 200, "application/json", `{"ids":["3"]}` + "\n"},
			{"POST", "/v1/tags/body/ids", "count=2", []string{"Content-Type: application/x-www-form-urlencoded"}, 200, "application/json", `{"ids":["4","5"]}` + "\n"},
			{"POST", "/v1/tags/body/ids", "", []string{"Content-Type: application/json"}, 200, "application/json", `{"ids":["6"]}` + "\n"},
			{"GET", "/v1/tags/a%2Fb%20%C3%BC/next", "", nil, 200, "text/plain; charset=utf-8", "1"},
			{"GET", "/v1/tags/%2E%2E/next", "", nil, 200, "text/plain; charset=utf-8", "1"},
			{"GET", "/v1/tags/orders", "", nil, 200, "application/json", `{"name":"orders","kind":"segment","start":"1","step":1000,"min_step":1000,"max_step":1000000,"mark":"1001"}` + "\n"},
			{"GET", "/v1/tags/a%2Fb%20%C3%BC", "", nil, 200, "application/json", `{"name":"a/b ü","kind":"segment","start":"1","step":1000,"min_step":1000,"max_step":1000000,"mark":"1001"}` + "\n"},
			{"GET", "/v1/tags/snowflake", "", nil, 200, "application/json", `{"name":"snowflake","kind":"snowflake","pool":"default"}` + "\n"},
			{"PUT", "/v1/tags/invoices", `{"step":10,"start":"5000"}`, nil, 201, "application/json", `{"name":"invoices","kind":"segment","start":"5000","step":10,"min_step":10,"max_step":1000000,"mark":"5000"}` + "\n"},
			{"PUT", "/v1/tags/east", `{"delta":2,"remainder":1,"step":1000}`, nil, 201, "application/json", `{"name":"east","kind":"segment","start":"1","step":1000,"min_step":1000,"max_step":1000000,"mark":"1","delta":2,"remainder":1}` + "\n"},
			{"POST", "/v1/tags/east/ids?count=3", "", nil, 200, "application/json", `{"ids":["1","3","5"]}` + "\n"},
			{"DELETE", "/v1/tags/east", "", nil, 200, "application/json", `{"name":"east","kind":"segment","start":"1","step":1000,"min_step":1000,"max_step":1000000,"mark":"2001","delta":2,"remainder":1,"deleted":true}` + "\n"},
			{"PUT", "/v1/tags/invoices", `{"step":20,"min_step":20,"floor":6000}`, nil, 200, "application/json", `{"name":"invoices","kind":"segment","start":"5000","step":20,"min_step":20,"max_step":1000000,"mark":"6000"}` + "\n"},
			{"PUT", "/v1/tags/invoices", `{}`, []string{"If-Match: *"}, 200, "application/json", `{"name":"invoices","kind":"segment","start":"5000","step":20,"min_step":20,"max_step":1000000,"mark":"6000"}` + "\n"},
			{"GET", "/v1/tags/invoices/next", "", nil, 200, "text/plain; charset=utf-8", "6000"},
			{"PUT", "/v1/tags/pages", `{"kind":"snowflake","pool":"web"}`, []string{"If-None-Match: *"}, 201, "application/json", `{"name":"pages","kind":"snowflake","pool":"web"}` + "\n"},
			{"DELETE", "/v1/tags/invoices", "", nil, 200, "application/json", `{"name":"invoices","kind":"segment","start":"5000","step":20,"min_step":20,"max_step":1000000,"mark":"6020","deleted":true}` + "\n"},
			{"GET", "/v1/tags?limit=1", "", nil, 200, "application/json", `{"tags":[{"name":"..","kind":"segment","start":"1","step":1000,"min_step":1000,"max_step":1000000,"mark":"1001"}],"next":".."}` + "\n"},
			{"GET", "/v1/tags?after=orders&limit=5", "", nil, 200, "application/json", `{"tags":[{"name":"pages","kind":"snowflake","pool":"web"},{"name":"snowflake","kind":"snowflake","pool":"default"}]}` + "\n"},
			{"GET", "/v1/ids/2006515713442840575?layout=leaf", "", nil, 200, "application/json", `{"id":"2006515713442840575","layout":"leaf","time":"2026-01-01T00:00:00Z","fields":{"time":478390625343,"worker":1023,"sequence":4095}}` + "\n"},
			{"POST", "/v1/ids/compose", `{"layout":"leaf","fields":{"time":478390625343,"worker":1023,"sequence":4095}}`, nil, 200, "application/json", `{"id":"2006515713442840575","layout":"leaf"}` + "\n"},
			{"POST", "/v1/ids/compose", `{"fields":{"time":"2026-01-01T00:00:00Z","worker":"1023","sequence":"4095"}}`, nil, 200, "application/json", `{"id":"2006515713442840575","layout":"leaf"}` + "\n"},
			{"GET", "/v1/pools", "", nil, 200, "application/json", `{"pools":[{"name":"default","layout":"leaf","workers":1024,"configured":false,"frozen":false},{"name":"web","layout":"js-safe-53","workers":8,"configured":true,"frozen":false}]}` + "\n"},
			{"GET", "/v1/pools/web/workers", "", nil, 200, "application/json", `{"workers":[]}` + "\n"},
			{"GET", "/healthz", "", nil, 200, "text/plain; charset=utf-8", "ok\n"},
			{"GET", "/readyz", "", nil, 200, "application/json", `{"ready":true,"degraded":false,"fenced":false,"state":"serving","store":"ok"}` + "\n"},
		} {
			w := call(t, h, c.method, c.path, c.body, c.headers...)
			if w.Code != c.status || w.Body.String() != c.want || w.Header().Get("Content-Type") != c.contentType {
				t.Errorf("%d: %s %s %s\ngot  %d %s %q\nwant %d %s %q", i, c.method, c.path, c.body,
					w.Code, w.Header().Get("Content-Type"), w.Body, c.status, c.contentType, c.want)
			}
			if w.Header().Get("Cache-Control") != "no-store" {
				t.Errorf("%s %s may be cached", c.method, c.path)
			}
		}
	})
}

func TestSnowflakeOverHTTP(t *testing.T) {
	opts := service.Options{Pools: map[string]service.PoolConfig{"default": {Workers: "7"}}}
	bubble(t, opts, func(t *testing.T, h http.Handler, store *storetest.Faults) {
		id := call(t, h, "GET", "/v1/tags/snowflake/next", "").Body.String()
		var parsed struct {
			ID, Layout string
			Time       time.Time
			Fields     map[string]int64
		}
		w := call(t, h, "GET", "/v1/ids/"+id, "")
		if err := json.Unmarshal(w.Body.Bytes(), &parsed); err != nil {
			t.Fatalf("%v: %s", err, w.Body)
		}
		now := time.Now().AddDate(26, 0, 0)
		if parsed.ID != id || parsed.Layout != "leaf" || parsed.Fields["worker"] != 7 || now.Sub(parsed.Time).Abs() > time.Second {
			t.Errorf("%s is %+v; it is %v", id, parsed, now)
		}
		var pools struct{ Pools []api.PoolStatus }
		w = call(t, h, "GET", "/v1/pools", "")
		if err := json.Unmarshal(w.Body.Bytes(), &pools); err != nil || len(pools.Pools) != 1 || pools.Pools[0].Issuer == nil ||
			pools.Pools[0].Issuer.Worker != 7 || pools.Pools[0].Issuer.Issued != 1 {
			t.Errorf("pools: %v, %s", err, w.Body)
		}
		var workers struct{ Workers []api.WorkerStatus }
		w = call(t, h, "GET", "/v1/pools/default/workers", "")
		if err := json.Unmarshal(w.Body.Bytes(), &workers); err != nil || len(workers.Workers) != 1 ||
			workers.Workers[0].ID != 7 || workers.Workers[0].Holder == "" || workers.Workers[0].Expires.IsZero() {
			t.Errorf("workers: %v, %s", err, w.Body)
		}
		var one api.WorkerStatus
		w = call(t, h, "GET", "/v1/pools/default/workers/7", "")
		if err := json.Unmarshal(w.Body.Bytes(), &one); err != nil || one.State != api.WorkerHeld || one.Free.IsZero() || one.Mark != workers.Workers[0].Mark {
			t.Errorf("worker 7: %v, %s", err, w.Body)
		}
		w = call(t, h, "GET", "/v1/pools/default/workers/8", "")
		if want := `{"pool":"default","worker":8,"state":"free","mark":0,"until":"2010-11-04T01:42:54.657Z","token":0}` + "\n"; w.Body.String() != want {
			t.Errorf("worker 8, which was never used: %s", w.Body)
		}
		var retired api.WorkerStatus
		w = call(t, h, "POST", "/v1/pools/default/workers/7/retire", "")
		if err := json.Unmarshal(w.Body.Bytes(), &retired); err != nil || w.Code != 200 || !retired.Retired || retired.State != api.WorkerRetired || retired.Holder != "" ||
			!retired.Expires.IsZero() || retired.Mark != workers.Workers[0].Mark || retired.Token <= workers.Workers[0].Token {
			t.Errorf("retired: %v, %s", err, w.Body)
		}
	})
}

func TestLayouts(t *testing.T) {
	bubble(t, service.Options{}, func(t *testing.T, h http.Handler, store *storetest.Faults) {
		var list struct{ Layouts []layoutJSON }
		w := call(t, h, "GET", "/v1/layouts", "")
		if err := json.Unmarshal(w.Body.Bytes(), &list); err != nil {
			t.Fatal(err)
		}
		if len(list.Layouts) != len(hapax.Layouts()) {
			t.Errorf("%d layouts, want %d", len(list.Layouts), len(hapax.Layouts()))
		}
		leaf := list.Layouts[0]
		if leaf.Name != "leaf" || leaf.Workers != 1024 || leaf.PerSecond != 4096000 || leaf.Unit != "1ms" ||
			fmt.Sprint(leaf.Fields) != "[{time 41} {worker 10} {sequence 12}]" || leaf.Ends.Year() != 2080 {
			t.Errorf("leaf is %+v", leaf)
		}
	})
}

// JSON has no year 10000, where the time of some layouts ends.
func TestLayoutWithoutEnd(t *testing.T) {
	endless := "time:41,worker:10,sequence:12,unit=1h,epoch=2020-01-01T00:00:00Z"
	opts := service.Options{Pools: map[string]service.PoolConfig{"p": {Layout: endless}}}
	bubble(t, opts, func(t *testing.T, h http.Handler, store *storetest.Faults) {
		w := call(t, h, "GET", "/v1/layouts", "")
		if w.Code != 200 || !strings.Contains(w.Body.String(), `"spec":"`+endless+`"`) || !strings.Contains(w.Body.String(), `"ends":"9999-12-31T23:59:59`) {
			t.Errorf("%d: %s", w.Code, w.Body)
		}
	})
}

func TestErrors(t *testing.T) {
	opts := service.Options{
		NoAutoCreate: true, MaxCount: 50,
		Tags: map[string]service.TagConfig{"orders": {}},
	}
	big := `{"layout":"` + strings.Repeat("x", maxBody) + `"}`
	for _, c := range []struct {
		name               string
		method, path, body string
		headers            []string
		status             int
		code               string
		detail             string // a part of it
	}{
		{"unknown tag", "GET", "/v1/tags/nope/next", "", nil, 404, "tag_not_found", "nope"},
		{"unknown tag, ids", "POST", "/v1/tags/nope/ids", "", nil, 404, "tag_not_found", "nope"},
		{"unknown tag, shown", "GET", "/v1/tags/nope", "", nil, 404, "tag_not_found", ""},
		{"unknown tag, deleted", "DELETE", "/v1/tags/nope", "", nil, 404, "tag_not_found", ""},
		{"unknown tag, change only", "PUT", "/v1/tags/nope", `{}`, []string{"If-Match: *"}, 404, "tag_not_found", ""},
		{"deleted tag", "GET", "/v1/tags/gone/next", "", nil, 410, "tag_deleted", "gone"},
		{"deleted twice", "DELETE", "/v1/tags/gone", "", nil, 410, "tag_deleted", "gone"},
		{"tag name, control", "GET", "/v1/tags/a%00b/next", "", nil, 400, "invalid_tag", "128 bytes"},
		{"tag name, UTF-8", "GET", "/v1/tags/%FF/next", "", nil, 400, "invalid_tag", "UTF-8"},
		{"tag name, long", "GET", "/v1/tags/" + strings.Repeat("x", 129) + "/next", "", nil, 400, "invalid_tag", "128 bytes"},
		{"count, zero", "POST", "/v1/tags/orders/ids?count=0", "", nil, 400, "invalid_argument", "invalid count \"0\": want 1 to 50"},
		{"count, negative", "GET", "/v1/tags/orders/next?count=-1", "", nil, 400, "invalid_argument", "1 to 50"},
		{"count, over the limit", "POST", "/v1/tags/orders/ids?count=51", "", nil, 400, "invalid_argument", "1 to 50"},
		{"count, huge", "POST", "/v1/tags/orders/ids?count=99999999999999999999", "", nil, 400, "invalid_argument", "1 to 50"},
		{"count, text", "POST", "/v1/tags/orders/ids?count=many", "", nil, 400, "invalid_argument", "1 to 50"},
		{"count, empty", "POST", "/v1/tags/orders/ids?count=", "", nil, 400, "invalid_argument", "1 to 50"},
		{"count, twice", "POST", "/v1/tags/orders/ids?count=1&count=2", "", nil, 400, "invalid_argument", "one value"},
		{"count, misspelt", "POST", "/v1/tags/orders/ids?cuont=5", "", nil, 400, "invalid_argument", "invalid query parameter \"cuont\": want one of count"},
		{"count, by another name", "GET", "/v1/tags/orders/next?n=5", "", nil, 400, "invalid_argument", "invalid query parameter \"n\": want one of count"},
		{"count, misspelt in a body", "POST", "/v1/tags/orders/ids", `{"cuont":5}`, nil, 400, "invalid_argument", "invalid body field \"cuont\": want count"},
		{"count, misspelt in a form", "POST", "/v1/tags/orders/ids", "cuont=5", []string{"Content-Type: application/x-www-form-urlencoded"}, 400, "invalid_argument", "invalid form parameter \"cuont\": want count"},
		{"count, JSON said to be a form", "POST", "/v1/tags/orders/ids", `{"count":5}`, []string{"Content-Type: application/x-www-form-urlencoded"}, 400, "invalid_argument", "want application/json for a body of JSON"},
		{"count, said twice", "POST", "/v1/tags/orders/ids?count=2", `{"count":2}`, nil, 400, "invalid_argument", "invalid count (one in the query and one in the body): want one of them"},
		{"count, over the limit in a body", "POST", "/v1/tags/orders/ids", `{"count":51}`, nil, 400, "invalid_argument", "invalid count 51: want 1 to 50"},
		{"count, over the limit in a form", "POST", "/v1/tags/orders/ids", "count=51", []string{"Content-Type: application/x-www-form-urlencoded"}, 400, "invalid_argument", "1 to 50"},
		{"count, text in a body", "POST", "/v1/tags/orders/ids", `{"count":"2"}`, nil, 400, "invalid_argument", "invalid count (a JSON string): want a JSON integer"},
		{"count, a large form", "POST", "/v1/tags/orders/ids", "count=" + strings.Repeat("1", maxBody), []string{"Content-Type: application/x-www-form-urlencoded"}, 413, "invalid_argument", "65536"},
		{"count, another body", "POST", "/v1/tags/orders/ids", "5", []string{"Content-Type: text/plain"}, 415, "unsupported_media_type", "application/json or application/x-www-form-urlencoded"},
		{"parameter where there is none", "GET", "/v1/pools?limit=5", "", nil, 400, "invalid_argument", "invalid query parameter \"limit\": want none"},
		{"no tag, next", "GET", "/v1/tags//next", "", nil, 400, "invalid_argument", "invalid path \"/v1/tags//next\""},
		{"no tag, ids", "POST", "/v1/tags//ids", "", nil, 400, "invalid_argument", "a tag without a name"},
		{"dots", "GET", "/v1/tags/x/../next", "", nil, 400, "invalid_argument", "invalid path"},
		{"pool, unknown", "GET", "/v1/pools/nope/workers", "", nil, 404, "pool_not_found", "nope"},
		{"pool, unknown, worker", "GET", "/v1/pools/nope/workers/1", "", nil, 404, "pool_not_found", "nope"},
		{"pool, unknown, retire", "POST", "/v1/pools/nope/workers/1/retire", "", nil, 404, "pool_not_found", "nope"},
		{"query", "POST", "/v1/tags/orders/ids?count=%zz", "", nil, 400, "invalid_argument", "query"},
		{"limit", "GET", "/v1/tags?limit=1001", "", nil, 400, "invalid_argument", "invalid limit \"1001\": want 1 to 1000"},
		{"ID, text", "GET", "/v1/ids/abc", "", nil, 400, "invalid_id", "abc"},
		{"ID, range", "GET", "/v1/ids/9223372036854775808", "", nil, 400, "invalid_id", ""},
		{"ID, not of the layout", "GET", "/v1/ids/-1", "", nil, 400, "invalid_id", ""},
		{"layout", "GET", "/v1/ids/1?layout=nope", "", nil, 400, "invalid_layout", "nope"},
		{"compose, layout", "POST", "/v1/ids/compose", `{"layout":"nope"}`, nil, 400, "invalid_layout", "nope"},
		{"compose, field", "POST", "/v1/ids/compose", `{"fields":{"time":1,"worker":1024}}`, nil, 400, "field_range", "worker"},
		{"compose, no time", "POST", "/v1/ids/compose", `{"fields":{"worker":1}}`, nil, 400, "invalid_argument", "time"},
		{"compose, unknown field", "POST", "/v1/ids/compose", `{"fields":{"time":1,"colour":1}}`, nil, 400, "invalid_argument", "colour"},
		{"compose, fraction", "POST", "/v1/ids/compose", `{"fields":{"time":1.5}}`, nil, 400, "invalid_argument", "RFC 3339"},
		{"compose, early time", "POST", "/v1/ids/compose", `{"fields":{"time":"1999-01-01T00:00:00Z"}}`, nil, 400, "field_range", "epoch"},
		{"body, unknown key", "PUT", "/v1/tags/x", `{"stepp":1}`, nil, 400, "invalid_argument", "invalid body field \"stepp\": want one of kind, start, step, min_step, max_step, delta, remainder, pool, floor"},
		{"body, type", "PUT", "/v1/tags/x", `{"step":"many"}`, nil, 400, "invalid_argument", "invalid step (a JSON string): want a JSON integer of 64 bits"},
		{"body, fraction", "PUT", "/v1/tags/x", `{"step":1.5}`, nil, 400, "invalid_argument", "invalid step 1.5: want a JSON integer of 64 bits"},
		{"remainder", "PUT", "/v1/tags/x", `{"delta":2,"remainder":2}`, nil, 400, "invalid_argument", "invalid remainder 2: want 0 to delta - 1 (1)"},
		{"delta, zero", "PUT", "/v1/tags/x", `{"delta":0}`, nil, 400, "invalid_argument", "delta"},
		{"delta, another", "PUT", "/v1/tags/orders", `{"delta":2}`, nil, 400, "invalid_argument", "which cannot change"},
		{"body, kind", "PUT", "/v1/tags/x", `{"kind":5}`, nil, 400, "invalid_argument", "invalid kind (a JSON number): want a JSON string"},
		{"body, array", "POST", "/v1/ids/compose", `[]`, nil, 400, "invalid_argument", "invalid body (a JSON array): want a JSON object"},
		{"body, fields", "POST", "/v1/ids/compose", `{"fields":5}`, nil, 400, "invalid_argument", "invalid fields (a JSON number): want a JSON object"},
		{"body, not JSON", "PUT", "/v1/tags/x", `{`, nil, 400, "invalid_argument", "invalid body (unexpected EOF): want a JSON object of up to 65536 bytes"},
		{"body, twice", "PUT", "/v1/tags/x", `{}{}`, nil, 400, "invalid_argument", "body"},
		{"body, empty", "PUT", "/v1/tags/x", "", []string{"Content-Type: application/json"}, 400, "invalid_argument", "missing body: want a JSON object"},
		{"body, large", "POST", "/v1/ids/compose", big, nil, 413, "invalid_argument", "65536"},
		{"body, form", "PUT", "/v1/tags/x", "step=1", []string{"Content-Type: application/x-www-form-urlencoded"}, 415, "unsupported_media_type", "application/json"},
		{"body, no type", "PUT", "/v1/tags/x", "{}", []string{"Content-Type: "}, 415, "unsupported_media_type", "application/json"},
		{"create, kind", "PUT", "/v1/tags/x", `{"kind":"queue"}`, nil, 400, "invalid_argument", "kind"},
		{"create, step zero", "PUT", "/v1/tags/x", `{"step":0}`, nil, 400, "invalid_argument", "invalid step 0: want 1 to 1099511627776"},
		{"create, floor", "PUT", "/v1/tags/x", `{"floor":"-5"}`, nil, 400, "invalid_argument", "floor"},
		{"create, floor in words", "PUT", "/v1/tags/x", `{"floor":"high"}`, nil, 400, "invalid_id", "invalid floor \"high\": want a decimal integer"},
		{"create, start in words", "PUT", "/v1/tags/x", `{"floor":"5","start":"low"}`, nil, 400, "invalid_id", "invalid start \"low\": want a decimal integer"},
		{"body, null", "PUT", "/v1/tags/x", `null`, nil, 400, "invalid_argument", "invalid body (a JSON null): want a JSON object"},
		{"body, a field twice", "PUT", "/v1/tags/x", `{"step":5,"STEP":6}`, nil, 400, "invalid_argument", "invalid body field \"step\": want each field once"},
		{"create, name", "PUT", "/v1/tags/a%0Ab", `{}`, nil, 400, "invalid_tag", "128"},
		{"create only", "PUT", "/v1/tags/orders", `{}`, []string{"If-None-Match: *"}, 409, "tag_exists", "orders"},
		{"precondition", "PUT", "/v1/tags/orders", `{}`, []string{"If-None-Match: \"x\""}, 400, "invalid_argument", "If-None-Match"},
		{"change, kind", "PUT", "/v1/tags/orders", `{"kind":"snowflake"}`, []string{"If-Match: *"}, 409, "kind_mismatch", "segment"},
		{"change, start", "PUT", "/v1/tags/orders", `{"start":"7"}`, nil, 400, "invalid_argument", "floor"},
		{"change, pool", "PUT", "/v1/tags/snowflake", `{"kind":"snowflake","pool":"other"}`, nil, 400, "invalid_argument", "invalid pool \"other\""},
		{"change, step", "PUT", "/v1/tags/orders", `{"min_step":5000}`, nil, 400, "invalid_argument", "min_step"},
		{"change, snowflake", "PUT", "/v1/tags/snowflake", `{"step":5}`, []string{"If-Match: *"}, 409, "kind_mismatch", "snowflake"},
		{"pool name", "GET", "/v1/pools/%00/workers", "", nil, 400, "invalid_tag", "pool"},
		{"worker, beyond the layout", "GET", "/v1/pools/default/workers/1024", "", nil, 400, "invalid_argument", "0 to 1023"},
		{"worker, get, text", "GET", "/v1/pools/default/workers/x", "", nil, 400, "invalid_argument", "invalid worker \"x\""},
		{"worker, get, pool name", "GET", "/v1/pools/%00/workers/1", "", nil, 400, "invalid_tag", "pool"},
		{"worker, never used", "POST", "/v1/pools/default/workers/5/retire", "", nil, 400, "invalid_argument", "worker"},
		{"worker, text", "POST", "/v1/pools/default/workers/x/retire", "", nil, 400, "invalid_argument", "invalid worker \"x\""},
		{"worker, negative", "POST", "/v1/pools/default/workers/-1/retire", "", nil, 400, "invalid_argument", "invalid worker \"-1\""},
		{"worker, pool name", "POST", "/v1/pools/%00/workers/1/retire", "", nil, 400, "invalid_tag", "pool"},
		{"route", "GET", "/v2/tags", "", nil, 404, "route_not_found", "/v2/tags"},
		{"route, root", "GET", "/", "", nil, 404, "route_not_found", ""},
		{"route, slash in a tag", "GET", "/v1/tags/a/b/next", "", nil, 404, "route_not_found", ""},
		{"Host", "GET", "/v1/tags/orders/next", "", []string{"Host: evil.example"}, 403, "permission_denied", "Host"},
		{"Host, rebound", "GET", "/v1/tags/orders/next", "", []string{"Host: 127.0.0.1.evil.example:8080"}, 403, "permission_denied", "Host"},
		{"Origin", "POST", "/v1/tags/orders/ids", "", []string{"Origin: http://evil.example"}, 403, "permission_denied", "origin"},
		{"Origin, null", "POST", "/v1/tags/orders/ids", "", []string{"Origin: null"}, 403, "permission_denied", "origin"},
		{"Origin, other port", "POST", "/v1/tags/orders/ids", "", []string{"Origin: http://127.0.0.1:3000"}, 403, "permission_denied", "origin"},
		{"cross-site", "GET", "/v1/tags/orders/next", "", []string{"Sec-Fetch-Site: cross-site"}, 403, "permission_denied", "origin"},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, opts, func(t *testing.T, h http.Handler, store *storetest.Faults) {
				synctest.Wait()
				call(t, h, "PUT", "/v1/tags/gone", "{}")
				call(t, h, "DELETE", "/v1/tags/gone", "")
				if id := call(t, h, "GET", "/v1/tags/orders/next", "").Body.String(); id != "1" {
					t.Fatalf("got %q", id)
				}
				w := call(t, h, c.method, c.path, c.body, c.headers...)
				p := asProblem(t, w)
				if w.Code != c.status || p.Code != c.code || !strings.Contains(p.Detail, c.detail) {
					t.Errorf("got %+v", p)
				}
				if id := call(t, h, "GET", "/v1/tags/orders/next", "").Body.String(); id != "2" {
					t.Errorf("the bad request used up numbers: next is %q", id)
				}
			})
		})
	}
}

func TestMethodNotAllowed(t *testing.T) {
	bubble(t, service.Options{}, func(t *testing.T, h http.Handler, store *storetest.Faults) {
		for _, c := range []struct{ method, path, allow string }{
			{"POST", "/v1/tags", "GET"},
			{"POST", "/v1/tags/orders", "DELETE, GET, PUT"},
			{"GET", "/v1/tags/orders/ids", "POST"},
			{"POST", "/v1/tags/orders/next", "GET"},
			{"HEAD", "/v1/tags/orders/next", "GET"},
			{"PATCH", "/v1/ids/1", "GET"},
			{"DELETE", "/v1/ids/compose", "GET, POST"},
			{"DELETE", "/healthz", "GET"},
		} {
			w := call(t, h, c.method, c.path, "")
			if p := asProblem(t, w); w.Code != 405 || p.Code != "method_not_allowed" || w.Header().Get("Allow") != c.allow {
				t.Errorf("%s %s: %+v, Allow %q, want %q", c.method, c.path, p, w.Header().Get("Allow"), c.allow)
			}
		}
		if w := call(t, h, "HEAD", "/v1/layouts", ""); w.Code != 200 {
			t.Errorf("HEAD where nothing is used up: %d", w.Code)
		}
		if id := call(t, h, "GET", "/v1/tags/orders/next", "").Body.String(); id != "1" {
			t.Errorf("a refused method used up numbers: next is %q", id)
		}
	})
}

func TestDotSegmentsAreNoTags(t *testing.T) {
	bubble(t, service.Options{}, func(t *testing.T, h http.Handler, store *storetest.Faults) {
		for _, path := range []string{"/v1/tags/../next", "/v1/tags/./next", "/v1/tags//next"} {
			if w := call(t, h, "GET", path, ""); w.Code < 400 {
				t.Errorf("%s: %d %q", path, w.Code, w.Body)
			}
		}
	})
}

func TestLocalRequestsAreServed(t *testing.T) {
	bubble(t, service.Options{}, func(t *testing.T, h http.Handler, store *storetest.Faults) {
		for _, headers := range [][]string{
			{"Host: localhost:8080"},
			{"Host: LOCALHOST"},
			{"Host: [::1]:8080"},
			{"Host: [::1]"},
			{"Host: 127.0.0.2"},
			{"Host: localhost:8080", "Origin: http://localhost:8080", "Sec-Fetch-Site: same-origin"},
			{"Sec-Fetch-Site: none"},
		} {
			if w := call(t, h, "GET", "/healthz", "", headers...); w.Code != 200 {
				t.Errorf("%v: %d", headers, w.Code)
			}
		}
		open := New(newService(t), Options{Gatherer: nopGatherer})
		if w := call(t, open, "GET", "/healthz", "", "Host: id.example", "Origin: http://other.example"); w.Code != 200 {
			t.Errorf("without LoopbackOnly: %d", w.Code)
		}
	})
}

// What /readyz tells while the store is down: at once, and nothing of hosts inside.
func TestReadyz(t *testing.T) {
	bubble(t, service.Options{}, func(t *testing.T, h http.Handler, store *storetest.Faults) {
		store.Inject(func(storetest.Op) storetest.Fault {
			return storetest.Fault{Fail: fmt.Errorf("%w: dial db.internal:3306", hapax.ErrStoreUnavailable)}
		})
		const away = `{"ready":false,"degraded":true,"fenced":false,"state":"serving","store":"store_unavailable","store_detail":"the store cannot be reached or did not answer in time",` +
			`"cannot":[{"kind":"pool","name":"default","code":"store_unavailable","detail":"the store cannot be reached or did not answer in time"}],"see":"docs/runbook.md#store-lost"}` + "\n"
		if w := call(t, h, "GET", "/readyz", ""); w.Code != 503 || w.Body.String() != away || w.Header().Get("Retry-After") != "1" {
			t.Errorf("%d %s", w.Code, w.Body)
		}
		store.Inject(nil)
		if w := call(t, h, "GET", "/readyz", ""); w.Code != 200 {
			t.Errorf("the store is back, and still: %d %s", w.Code, w.Body)
		}
	})
}

func TestStoreDown(t *testing.T) {
	for _, path := range []string{"/v1/tags/orders/next", "/v1/tags/snowflake/next", "/v1/tags", "/v1/pools"} {
		t.Run(path, func(t *testing.T) {
			bubble(t, service.Options{MaxWait: time.Second}, func(t *testing.T, h http.Handler, store *storetest.Faults) {
				store.Inject(func(storetest.Op) storetest.Fault {
					return storetest.Fault{Fail: fmt.Errorf("%w: dial db.internal:3306", hapax.ErrStoreUnavailable)}
				})
				w := call(t, h, "GET", path, "")
				p := asProblem(t, w)
				if w.Code != 503 || p.Code != "store_unavailable" || w.Header().Get("Retry-After") != "1" {
					t.Errorf("%d %+v, Retry-After %q", w.Code, p, w.Header().Get("Retry-After"))
				}
				if strings.Contains(p.Detail, "db.internal") {
					t.Errorf("the client learns of hosts inside: %q", p.Detail)
				}
				store.Inject(nil)
				if w = call(t, h, "GET", path, ""); w.Code != 200 {
					t.Errorf("the store is back, and still: %d %s", w.Code, w.Body)
				}
			})
		})
	}
}

func TestNoWorkerTellsWhenToRetry(t *testing.T) {
	opts := service.Options{Pools: map[string]service.PoolConfig{"default": {Workers: "0"}}}
	bubble(t, opts, func(t *testing.T, h http.Handler, store *storetest.Faults) {
		other, err := hapax.NewSnowflake(t.Context(), store, hapax.SnowflakeOptions{
			Workers: hapax.WorkerRange{Lo: 0, Hi: 1}, Clock: laterClock{time.Now()},
		})
		if err != nil {
			t.Fatal(err)
		}
		defer other.Close(context.Background())
		w := call(t, h, "GET", "/v1/tags/snowflake/next", "")
		p := asProblem(t, w)
		seconds, _ := strconv.Atoi(w.Header().Get("Retry-After"))
		if w.Code != 503 || p.Code != "no_worker" || !strings.Contains(p.Detail, `"default"`) || seconds < 1 || seconds > 60 {
			t.Errorf("%+v, Retry-After %q", p, w.Header().Get("Retry-After"))
		}
	})
}

func TestRequestsAreLoggedForDebugging(t *testing.T) {
	var log bytes.Buffer
	h := New(newService(t), Options{Logger: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})), Gatherer: nopGatherer})
	call(t, h, "GET", "/nowhere", "")
	if !strings.Contains(log.String(), "path=/nowhere status=404") {
		t.Errorf("logged: %s", log.String())
	}
}

func TestMetricsPage(t *testing.T) {
	bubble(t, service.Options{}, func(t *testing.T, h http.Handler, store *storetest.Faults) {
		call(t, h, "GET", "/v1/tags/orders/next?count=5", "")
		call(t, h, "GET", "/v1/tags/orders/next?count=0", "")
		call(t, h, "GET", "/nowhere", "")
		w := call(t, h, "GET", "/metrics", "")
		for _, line := range []string{
			`hapax_issued_total{pool="",tag="orders"} 5`,
			`hapax_errors_total{api="http",code="invalid_argument"} 1`,
			`hapax_errors_total{api="http",code="route_not_found"} 1`, `hapax_errors_total{api="http",code="internal"} 0`,
			"hapax_ready 1", "go_goroutines ",
		} {
			if !strings.Contains(w.Body.String(), "\n"+line) {
				t.Errorf("%q is missing", line)
			}
		}
	})
}

// TestConcurrentClients runs real connections: every number comes once.
func TestConcurrentClients(t *testing.T) {
	srv := httptest.NewServer(newHandler(t, memstore.New(), service.Options{}))
	defer srv.Close()
	for _, tag := range []string{"orders", "snowflake", "a/b"} {
		t.Run(tag, func(t *testing.T) {
			var mu sync.Mutex // guards seen
			seen := map[string]bool{}
			var wg sync.WaitGroup
			for worker := range 8 {
				wg.Go(func() {
					for i := range 50 {
						ids, err := fetch(srv.URL, tag, worker%2 == 0, i%3*10+1)
						if err != nil {
							t.Error(err)
							return
						}
						mu.Lock()
						for _, id := range ids {
							if seen[id] {
								t.Errorf("%s issued twice", id)
							}
							seen[id] = true
						}
						mu.Unlock()
					}
				})
			}
			wg.Wait()
			if want := 8 * (17*1 + 17*11 + 16*21); len(seen) != want {
				t.Errorf("%d numbers, want %d", len(seen), want)
			}
		})
	}
}

// fetch takes count numbers by one of the two number routes.
func fetch(base, tag string, post bool, count int) ([]string, error) {
	path := fmt.Sprintf("%s/v1/tags/%s", base, url.PathEscape(tag))
	if !post {
		resp, err := http.Get(fmt.Sprintf("%s/next?count=%d", path, count))
		if err != nil {
			return nil, err
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		return strings.Fields(string(body)), err
	}
	resp, err := http.Post(fmt.Sprintf("%s/ids?count=%d", path, count), "", nil)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	var list struct{ IDs []string }
	err = json.NewDecoder(resp.Body).Decode(&list)
	if err == nil && len(list.IDs) != count {
		err = errors.New("wrong count")
	}
	return list.IDs, err
}
