package routes

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hapax-id/hapax"
)

// keys issue one number a key, or fail.
type keys map[string]any

func (k keys) Next(_ context.Context, tag string) (hapax.ID, error) {
	switch v := k[tag].(type) {
	case int:
		return hapax.ID(v), nil
	case error:
		return 0, fmt.Errorf("%w: %q", v, tag)
	}
	return 0, fmt.Errorf("%w: %q", hapax.ErrTagNotFound, tag)
}

var at = time.UnixMilli(1567733700834)

func newHandler(t testing.TB, o Options) http.Handler {
	t.Helper()
	o.now = func() time.Time { return at }
	o.Location = time.FixedZone("CST", 8*3600)
	h, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// An answer is what a client sees.
type answer struct {
	status int
	kind   string
	body   string
}

func ask(h http.Handler, method, target, accept, form string) answer {
	var body io.Reader
	if form != "" {
		body = strings.NewReader(form)
	}
	r := httptest.NewRequest(method, target, body)
	r.RemoteAddr = "127.0.0.1:5"
	if accept != "" {
		r.Header.Set("Accept", accept)
	}
	if form != "" {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	if w.Header().Get("Cache-Control") != "no-store" {
		return answer{w.Code, "cacheable", ""}
	}
	return answer{w.Code, w.Header().Get("Content-Type"), w.Body.String()}
}

const (
	plain  = "text/plain;charset=UTF-8"
	asJSON = "application/json;charset=UTF-8"
	page   = "text/html;charset=UTF-8"
)

func fault(id int, path string) string {
	return fmt.Sprintf(`{"timestamp":1567733700834,"status":500,"error":"Internal Server Error","exception":"com.sankuai.inf.leaf.server.exception.LeafServerException","message":"Result{id=%d, status=EXCEPTION}","path":"%s"}`, id, path)
}

// badRequest is Tomcat's page.
const badRequest = `<!doctype html><html lang="en"><head><title>HTTP Status 400 – Bad Request</title></head><body><h1>HTTP Status 400 – Bad Request</h1><hr class="line" /><p><b>Type</b> Status Report</p>` +
	`<p><b>Description</b> The server cannot or will not process the request due to something that is perceived to be a client error (e.g., malformed request syntax, invalid request message framing, or deceptive request routing).</p></body></html>`

func TestGolden(t *testing.T) {
	down := &hapax.WaitError{Cause: hapax.ErrStoreUnavailable, Context: context.DeadlineExceeded}
	h := newHandler(t, Options{
		Segment: keys{
			"test": 42, "a.b": 7, "a b": 8, "gone": hapax.ErrTagDeleted, "down": error(down), "slow": hapax.ErrRefillPending,
			"end": hapax.ErrLineExhausted, "flake": hapax.ErrKindMismatch,
		},
		Snowflake: keys{
			"test": 1169850936466546688, "back": hapax.ErrClockRollback, "stop": context.Canceled, "wait": hapax.ErrTickExhausted, "none": hapax.ErrNoWorker,
		},
	})
	const segment, flake = "/api/segment/get/", "/api/snowflake/get/"
	for _, c := range []struct {
		method, target, accept string
		want                   answer
	}{
		{"GET", segment + "test", "", answer{200, plain, "42"}},
		{"GET", segment + "test", "*/*", answer{200, plain, "42"}},
		{"GET", segment + "test", "text/plain", answer{200, plain, "42"}},
		{"GET", segment + "test", "application/json", answer{200, asJSON, "42"}},
		{"GET", segment + "test", "application/json, text/plain, */*", answer{200, asJSON, "42"}},
		{"GET", segment + "test", "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", answer{200, page, "42"}},
		{"GET", segment + "test", "application/xml", answer{200, "application/xml;charset=UTF-8", "42"}},
		{"GET", segment + "test", "application/json;charset=UTF-8", answer{200, asJSON, "42"}},
		{"GET", segment + "test", "text/html, image/gif, image/jpeg, *; q=.2, */*; q=.2", answer{200, page, "42"}},
		{"GET", segment + "test", "application/*", answer{200, asJSON, "42"}},
		{"GET", segment + "test", "text/html;q=0.5, application/json", answer{200, asJSON, "42"}},
		{"GET", segment + "test", "garbage; ;;, /", answer{200, plain, "42"}},
		{"POST", segment + "test", "", answer{200, plain, "42"}},
		{"PUT", segment + "test", "", answer{200, plain, "42"}},
		{"DELETE", segment + "test", "", answer{200, plain, "42"}},
		{"PATCH", flake + "test", "", answer{200, plain, "1169850936466546688"}},
		{"OPTIONS", segment + "test", "", answer{200, "", ""}},
		{"OPTIONS", "/none", "", answer{404, asJSON, `{"timestamp":1567733700834,"status":404,"error":"Not Found","message":"No message available","path":"/none"}`}},
		{"GET", segment + "test;a=1", "", answer{200, plain, "42"}},
		{"GET", "/api;x/segment/get;y=2/test;a=1/", "", answer{200, plain, "42"}},
		{"GET", segment + "test.json", "", answer{200, asJSON, "42"}},
		{"GET", segment + "test.x", "", answer{200, plain, "42"}},
		{"GET", segment + "test.json;a=1", "text/html", answer{200, asJSON, "42"}},
		{"GET", segment + "a.b.xml", "", answer{200, "application/xml;charset=UTF-8", "7"}},
		{"GET", segment + "test/", "", answer{200, plain, "42"}},
		{"GET", segment + "a.b", "", answer{200, plain, "7"}},
		{"GET", segment + "a%20b", "", answer{200, plain, "8"}},
		{"GET", segment + "a%2Fb", "", answer{400, "text/html;charset=utf-8", badRequest}},
		{"GET", flake + "a%5cb", "", answer{400, "text/html;charset=utf-8", badRequest}},
		{"GET", segment + "test?x=1", "", answer{200, plain, "42"}},
		{"GET", flake + "test", "", answer{200, plain, "1169850936466546688"}},
		{"POST", flake + "test", "application/json", answer{200, asJSON, "1169850936466546688"}},

		{"GET", segment + "x", "", answer{500, asJSON, fault(-2, segment+"x")}},
		{"GET", segment + "x", "text/plain", answer{500, asJSON, fault(-2, segment+"x")}},
		{"GET", segment + "gone", "", answer{500, asJSON, fault(-2, segment+"gone")}},
		{"GET", segment + "flake", "", answer{500, asJSON, fault(-2, segment+"flake")}},
		{"GET", segment + "down", "", answer{500, asJSON, fault(-1, segment+"down")}},
		{"GET", segment + "slow", "", answer{500, asJSON, fault(-3, segment+"slow")}},
		{"GET", segment + "end", "", answer{500, asJSON, fault(-3, segment+"end")}},
		{"GET", segment + "none.x", "", answer{500, asJSON, fault(-2, segment+"none.x")}},
		{"GET", flake + "wait", "", answer{500, asJSON, fault(-1, flake+"wait")}},
		{"GET", flake + "none", "", answer{500, asJSON, fault(-1, flake+"none")}},
		{"GET", flake + "stop", "", answer{500, asJSON, fault(-2, flake+"stop")}},
		{"GET", flake + "back", "", answer{500, asJSON, fault(-3, flake+"back")}},
		{"GET", segment + "%3Cx", "text/html", answer{500, page, "<html><body><h1>Whitelabel Error Page</h1><p>This application has no explicit mapping for /error, so you are seeing this as a fallback.</p><div id='created'>Fri Sep 06 09:35:00 CST 2019</div><div>There was an unexpected error (type=Internal Server Error, status=500).</div><div>Result{id=-2, status=EXCEPTION}</div></body></html>"}},

		{"GET", segment, "", answer{404, asJSON, `{"timestamp":1567733700834,"status":404,"error":"Not Found","message":"No message available","path":"/api/segment/get/"}`}},
		{"GET", segment + "a/b", "", answer{404, asJSON, `{"timestamp":1567733700834,"status":404,"error":"Not Found","message":"No message available","path":"/api/segment/get/a/b"}`}},
		{"GET", "/cache", "", answer{500, asJSON, `{"timestamp":1567733700834,"status":500,"error":"Internal Server Error","exception":"java.lang.IllegalArgumentException","message":"You should config leaf.segment.enable=true first","path":"/cache"}`}},
		{"TRACE", segment + "test", "", answer{405, asJSON, `{"timestamp":1567733700834,"status":405,"error":"Method Not Allowed","message":"Request method 'TRACE' not supported","path":"/api/segment/get/test"}`}},

		{"GET", "/decodeSnowflakeId?snowflakeId=1169788574422536568", "", answer{200, asJSON, `{"workerId":"39","sequenceId":"3448","timestamp":"1567733700834(2019-09-06 09:35:00.834)"}`}},
		{"GET", "/decodeSnowflakeId/?snowflakeId=0", "", answer{200, asJSON, `{"workerId":"0","sequenceId":"0","timestamp":"1288834974657(2010-11-04 09:42:54.657)"}`}},
		{"GET", "/decodeSnowflakeId?snowflakeId=-1", "", answer{200, asJSON, `{"workerId":"1023","sequenceId":"4095","timestamp":"1288834974656(2010-11-04 09:42:54.656)"}`}},
		{"GET", "/decodeSnowflakeId?snowflakeId=x", "", answer{200, asJSON, `{"errorMsg":"snowflake Id反解析发生异常!"}`}},
		{"GET", "/decodeSnowflakeId?snowflakeId=", "", answer{200, asJSON, `{"errorMsg":"snowflake Id反解析发生异常!"}`}},
		{"GET", "/decodeSnowflakeId.json?snowflakeId=4096", "", answer{200, asJSON, `{"workerId":"1","sequenceId":"0","timestamp":"1288834974657(2010-11-04 09:42:54.657)"}`}},
		{"GET", "/decodeSnowflakeId", "", answer{400, asJSON, `{"timestamp":1567733700834,"status":400,"error":"Bad Request","exception":"org.springframework.web.bind.MissingServletRequestParameterException","message":"Required String parameter 'snowflakeId' is not present","path":"/decodeSnowflakeId"}`}},
	} {
		target := strings.Replace(c.target, "1169788574422536568", fmt.Sprint(int64(1567733700834-1288834974657)<<22|39<<12|3448), 1)
		if got := ask(h, c.method, target, c.accept, ""); got != c.want {
			t.Errorf("%s %s, Accept %q:\n got %+v\nwant %+v", c.method, target, c.accept, got, c.want)
		}
	}
	got := ask(h, "POST", "/decodeSnowflakeId", "", "snowflakeId=4096")
	if want := (answer{200, asJSON, `{"workerId":"1","sequenceId":"0","timestamp":"1288834974657(2010-11-04 09:42:54.657)"}`}); got != want {
		t.Errorf("a form: got %+v, want %+v", got, want)
	}
	if got := ask(h, "POST", "/decodeSnowflakeId", "", "snowflakeId="+strings.Repeat("1", 70_000)); got.status != 400 {
		t.Errorf("a form that is too long: %+v", got)
	}
}

// TestQuirks: what Leaf did and is a trap happens only where it is asked for.
func TestQuirks(t *testing.T) {
	h := newHandler(t, Options{Snowflake: keys{"k": 1}})
	if got := ask(h, "GET", "/api/segment/get/test", "", ""); got.status != 500 || strings.HasPrefix(got.body, "0") {
		t.Errorf("a mode that is off: %+v; want an error", got)
	}
	h = newHandler(t, Options{ZeroWhenOff: true})
	for _, mode := range []string{"segment", "snowflake"} {
		if got := ask(h, "GET", "/api/"+mode+"/get/test", "", ""); got != (answer{200, plain, "0"}) {
			t.Errorf("with ZeroWhenOff: %+v", got)
		}
	}
	for _, c := range []struct {
		key      string
		cut, not answer
	}{
		{"a.x", answer{200, plain, "1"}, answer{500, asJSON, fault(-2, "/api/segment/get/a.x")}},
		{"b.c", answer{200, plain, "2"}, answer{200, plain, "2"}},
		{"b.c.d", answer{200, plain, "2"}, answer{500, asJSON, fault(-2, "/api/segment/get/b.c.d")}},
		{".a", answer{500, asJSON, fault(-2, "/api/segment/get/.a")}, answer{500, asJSON, fault(-2, "/api/segment/get/.a")}},
		{"down.x", answer{500, asJSON, fault(-1, "/api/segment/get/down.x")}, answer{500, asJSON, fault(-2, "/api/segment/get/down.x")}},
	} {
		o := Options{Segment: keys{"a": 1, "b.c": 2, "down": hapax.ErrStoreUnavailable}}
		for _, want := range []answer{c.cut, c.not} {
			if got := ask(newHandler(t, o), "GET", "/api/segment/get/"+c.key, "", ""); got != want {
				t.Errorf("%s, KeepDots %v: got %+v, want %+v", c.key, o.KeepDots, got, want)
			}
			o.KeepDots = true
		}
	}
}

func TestAllow(t *testing.T) {
	nets := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::/8")}
	for _, c := range []struct {
		name   string
		o      Options
		remote string
		want   int
	}{
		{"loopback", Options{}, "127.0.0.1:1", 200},
		{"loopback, 6", Options{}, "[::1]:1", 200},
		{"elsewhere", Options{}, "10.0.0.1:1", 403},
		{"allowed", Options{Allow: nets}, "10.255.0.1:1", 200},
		{"allowed, mapped", Options{Allow: nets}, "[::ffff:10.1.1.1]:1", 200},
		{"allowed, 6", Options{Allow: nets}, "[fd00::5%eth0]:1", 200},
		{"not in the list", Options{Allow: nets}, "11.0.0.1:1", 403},
		{"nonsense", Options{Allow: nets}, "@", 403},
		{"anyone", Options{AllowAnyone: true}, "8.8.8.8:1", 200},
	} {
		c.o.Segment = keys{"test": 1}
		h := newHandler(t, c.o)
		for _, header := range []string{"", "X-Forwarded-For"} {
			r := httptest.NewRequest("GET", "/api/segment/get/test", nil)
			r.RemoteAddr = c.remote
			if header != "" {
				r.Header.Set(header, "127.0.0.1")
			}
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			if w.Code != c.want {
				t.Errorf("%s %s: status %d; want %d", c.name, header, w.Code, c.want)
			}
		}
	}
	if _, err := New(Options{Allow: []netip.Prefix{{}}}); !errors.Is(err, hapax.ErrInvalidArgument) {
		t.Errorf("an empty network: %v", err)
	}
}

type inHand struct{}

func (inHand) Cache(context.Context) ([]CacheRow, error) {
	return []CacheRow{
		{Name: "a", Init: true, Next: true, Value0: 96, Max0: 101, Step0: 100, Value1: 101, Max1: 301, Step1: 200},
		{Name: "b<", Init: true, Value0: 10001, Max0: 11001, Step0: 1000},
	}, nil
}

func (inHand) Database(context.Context) ([]DatabaseRow, error) {
	return []DatabaseRow{{Tag: "a", MaxID: 10301, Step: 100, Updated: "2019-09-06 09:35:00.0"}}, nil
}

// TestPages holds the pages to those of Leaf's templates for the same rows.
func TestPages(t *testing.T) {
	h := newHandler(t, Options{Monitor: inHand{}})
	for _, path := range []string{"/cache", "/cache/", "/cache.x"} {
		if got := ask(h, "PUT", path, "", ""); got != (answer{200, page, golden(t, "cache.html")}) {
			t.Errorf("%s: got %+v", path, got)
		}
	}
	if got := ask(h, "GET", "/db", "", ""); got != (answer{200, page, golden(t, "db.html")}) {
		t.Errorf("/db: got %+v", got)
	}
	for n, want := range map[int64]string{0: "0", 999: "999", 1000: "1,000", 10001: "10,001", -1000: "-1,000", -999: "-999", 1<<63 - 1: "9,223,372,036,854,775,807"} {
		if got := grouped(n); got != want {
			t.Errorf("%d is written %s; want %s", n, got, want)
		}
	}
}

func golden(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSuffix(string(text), "\n")
}

func FuzzRoutes(f *testing.F) {
	f.Add("/api/segment/get/a.b", "text/html;q=x,*/*", "a=b&%")
	f.Add("/decodeSnowflakeId", "", "snowflakeId=1")
	h, err := New(Options{Segment: keys{"a": 1}})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, path, accept, query string) {
		r := httptest.NewRequest("POST", "/", strings.NewReader(query))
		r.URL = &url.URL{Path: path, RawQuery: query}
		r.RemoteAddr = "127.0.0.1:1"
		r.Header.Set("Accept", accept)
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code < 200 || w.Code > 599 {
			t.Errorf("status %d", w.Code)
		}
	})
}
