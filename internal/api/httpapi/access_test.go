package httpapi

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hapax-id/hapax/internal/service"
	"github.com/hapax-id/hapax/internal/service/auth"
	"github.com/hapax-id/hapax/store/memstore"
)

// guardedHandler returns the routes under a policy, and the tokens by name.
func guardedHandler(t testing.TB, configs map[string]auth.TokenConfig) (http.Handler, map[string]string, *auth.Policy) {
	t.Helper()
	tokens := map[string]string{}
	for name, c := range configs {
		tokens[name] = auth.NewToken()
		c.Hash = auth.HashToken(tokens[name])
		configs[name] = c
	}
	policy, err := auth.NewPolicy(configs)
	if err != nil {
		t.Fatal(err)
	}
	logger := slog.New(slog.DiscardHandler)
	svc, err := service.New(context.Background(), memstore.New(), service.Options{Logger: logger, Clock: laterClock{time.Now()}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = svc.Close(context.Background()) })
	return New(svc, Options{Logger: logger, LoopbackOnly: true, Policy: policy}), tokens, policy
}

// TestPermissions asks for every route with every kind of token.
func TestPermissions(t *testing.T) {
	routes := map[string]struct {
		method, path, body string
		who                []string // "": without a token
	}{
		"GET /v1/tags":                                  {"GET", "/v1/tags", "", []string{"issuer", "admin", "reader"}},
		"GET /v1/tags/{tag}":                            {"GET", "/v1/tags/orders", "", []string{"issuer", "orders", "admin", "reader"}},
		"PUT /v1/tags/{tag}":                            {"PUT", "/v1/tags/orders", "{}", []string{"admin"}},
		"DELETE /v1/tags/{tag}":                         {"DELETE", "/v1/tags/orders", "", []string{"admin"}},
		"POST /v1/tags/{tag}/ids":                       {"POST", "/v1/tags/orders/ids", "", []string{"issuer", "orders"}},
		"GET /v1/tags/{tag}/next":                       {"GET", "/v1/tags/orders/next", "", []string{"issuer", "orders"}},
		"GET /v1/tags/{tag}/codes/{code}":               {"GET", "/v1/tags/orders/codes/1", "", []string{"issuer", "orders"}},
		"POST /v1/tags/{tag}/take":                      {"POST", "/v1/tags/orders/take", "{}", []string{"issuer", "orders"}},
		"POST /v1/tags/{tag}/handback":                  {"POST", "/v1/tags/orders/handback", "{}", []string{"lessee"}},
		"HEAD /v1/tags/{tag}/next":                      {"GET", "/v1/tags/orders/next?count=2", "", []string{"issuer", "orders"}},
		"GET /v1/ids/{id}":                              {"GET", "/v1/ids/1", "", []string{"issuer", "orders", "admin", "monitor", "reader", "lessee"}},
		"POST /v1/ids/compose":                          {"POST", "/v1/ids/compose", `{"fields":{"time":1}}`, []string{"issuer", "orders", "admin", "monitor", "reader", "lessee"}},
		"GET /v1/layouts":                               {"GET", "/v1/layouts", "", []string{"issuer", "orders", "admin", "monitor", "reader", "lessee"}},
		"GET /v1/pools":                                 {"GET", "/v1/pools", "", []string{"admin", "reader"}},
		"GET /v1/pools/{pool}/workers":                  {"GET", "/v1/pools/default/workers", "", []string{"admin", "reader"}},
		"GET /v1/pools/{pool}/workers/{worker}":         {"GET", "/v1/pools/default/workers/1", "", []string{"admin", "reader"}},
		"POST /v1/pools/{pool}/workers/{worker}/retire": {"POST", "/v1/pools/default/workers/1/retire", "", []string{"admin"}},
		"GET /v1/trace/{number}":                        {"GET", "/v1/trace/1?tag=orders", "", []string{"admin", "reader"}},
		"GET /v1/openapi.json":                          {"GET", "/v1/openapi.json", "", []string{"", "issuer", "orders", "admin", "monitor", "reader", "lessee"}},
		"GET /healthz":                                  {"GET", "/healthz", "", []string{"", "issuer", "orders", "admin", "monitor", "reader", "lessee"}},
		"GET /readyz":                                   {"GET", "/readyz", "", []string{"", "issuer", "orders", "admin", "monitor", "reader", "lessee"}},
		"GET /metrics":                                  {"GET", "/metrics", "", []string{"admin", "monitor", "reader"}},
		"/":                                             {"GET", "/nothing", "", []string{"", "issuer", "orders", "admin", "monitor", "reader", "lessee"}},
	}
	served := (&restAPI{opts: Options{Gatherer: nopGatherer}}).routes()
	for pattern := range served {
		if _, ok := routes[pattern]; !ok {
			t.Errorf("%s is not in this test", pattern)
		}
	}
	h, tokens, _ := guardedHandler(t, map[string]auth.TokenConfig{
		"issuer":  {},
		"orders":  {Tags: []string{"ord*"}},
		"other":   {Tags: []string{"other"}},
		"admin":   {Scopes: []string{"admin"}},
		"reader":  {Scopes: []string{"read"}},
		"lessee":  {Scopes: []string{"lease"}},
		"monitor": {Scopes: []string{"metrics"}},
	})
	for pattern := range served {
		route := routes[pattern]
		for _, who := range []string{"", "wrong", "issuer", "orders", "admin", "monitor", "reader", "lessee"} {
			var headers []string
			switch who {
			case "":
			case "wrong":
				headers = []string{"Authorization: Bearer " + auth.NewToken()}
			default:
				headers = []string{"Authorization: Bearer " + tokens[who]}
			}
			w := call(t, h, route.method, route.path, route.body, headers...)
			allowed := slices.Contains(route.who, who) || who == "wrong" && slices.Contains(route.who, "")
			refused := w.Code == http.StatusUnauthorized || w.Code == http.StatusForbidden
			if allowed == refused {
				t.Errorf("%s as %q: %d", pattern, who, w.Code)
			}
			if !refused {
				continue
			}
			want, code := http.StatusForbidden, "permission_denied"
			if who == "" || who == "wrong" {
				want, code = http.StatusUnauthorized, "unauthenticated"
				if got := w.Header().Get("WWW-Authenticate"); !strings.HasPrefix(got, "Bearer") {
					t.Errorf("WWW-Authenticate is %q", got)
				}
			}
			if p := asProblem(t, w); w.Code != want || p.Code != code || strings.Contains(p.Detail, "hapax_") {
				t.Errorf("%s as %q: %+v", pattern, who, p)
			}
		}
	}
	for _, path := range []string{"/v1/tags/orders/next", "/v1/tags/other%2Forders/next"} {
		if w := call(t, h, "GET", path, "", "Authorization: Bearer "+tokens["other"]); w.Code != http.StatusForbidden {
			t.Errorf("%s with a token for another tag: %d", path, w.Code)
		}
	}
}

func TestRateLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, tokens, _ := guardedHandler(t, map[string]auth.TokenConfig{"slow": {Rate: 1, Burst: 2}, "fast": {}})
		next := func(name string) *httptest.ResponseRecorder {
			return call(t, h, "GET", "/v1/tags/orders/next", "", "Authorization: Bearer "+tokens[name])
		}
		for range 2 {
			if w := next("slow"); w.Code != http.StatusOK {
				t.Fatalf("%d %s", w.Code, w.Body)
			}
		}
		w := next("slow")
		if p := asProblem(t, w); w.Code != http.StatusTooManyRequests || p.Code != "limit_exceeded" || w.Header().Get("Retry-After") != "1" ||
			!strings.Contains(p.Detail, "1 requests a second") {
			t.Errorf("%+v, Retry-After %q", p, w.Header().Get("Retry-After"))
		}
		if w := next("fast"); w.Code != http.StatusOK {
			t.Errorf("another token suffers: %d", w.Code)
		}
		time.Sleep(time.Second)
		if w := next("slow"); w.Code != http.StatusOK {
			t.Errorf("after a second: %d", w.Code)
		}
	})
}

// A connection counts for the tokens that come over it, until it ends.
func TestConnectionLimit(t *testing.T) {
	h, tokens, policy := guardedHandler(t, map[string]auth.TokenConfig{"app": {Connections: 1, Requests: 2}})
	caller, err := policy.Caller(tokens["app"])
	if err != nil {
		t.Fatal(err)
	}
	next := func(conn *auth.Conn) int {
		r := httptest.NewRequest(http.MethodGet, "http://localhost/v1/tags/orders/next", nil)
		r.Header.Set("Authorization", "Bearer "+tokens["app"])
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r.WithContext(auth.NewConnContext(r.Context(), conn)))
		return w.Code
	}
	var one, two auth.Conn
	if got := []int{next(&one), next(&one), next(&two)}; !slices.Equal(got, []int{200, 200, 429}) {
		t.Errorf("statuses are %v", got)
	}
	one.Close()
	if got := next(&two); got != http.StatusOK {
		t.Errorf("after the first connection ended: %d", got)
	}
	if err := errors.Join(caller.Begin(), caller.Begin()); err != nil {
		t.Errorf("requests were not ended: %v", err)
	}
}
