package httpapi

import (
	"encoding/json"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/api"
	"github.com/hapax-id/hapax/internal/ledger"
	"github.com/hapax-id/hapax/internal/service"
	"github.com/hapax-id/hapax/internal/service/auth"
	"github.com/hapax-id/hapax/internal/service/health"
	"github.com/hapax-id/hapax/store/storetest"
)

// schema is what these tests look at of a JSON schema.
type schema struct {
	Ref                  string             `json:"$ref"`
	Type                 any                `json:"type"`
	Required             []string           `json:"required"`
	Properties           map[string]*schema `json:"properties"`
	Items                *schema            `json:"items"`
	Enum                 []string           `json:"enum"`
	AdditionalProperties any                `json:"additionalProperties"`
}

type parameter struct {
	Ref, Name, In string
}

func (p *parameter) UnmarshalJSON(data []byte) error {
	var raw struct {
		Ref      string `json:"$ref"`
		Name, In string
	}
	err := json.Unmarshal(data, &raw)
	*p = parameter{raw.Ref, raw.Name, raw.In}
	return err
}

type content map[string]struct{ Schema *schema }

type operation struct {
	OperationID string
	Security    *[]any
	Parameters  []parameter
	RequestBody struct{ Content content }
	Responses   map[string]struct {
		Ref     string `json:"$ref"`
		Content content
	}
}

type openAPI struct {
	OpenAPI    string
	Paths      map[string]map[string]json.RawMessage
	Components struct {
		Parameters map[string]parameter
		Responses  map[string]json.RawMessage
		Schemas    map[string]*schema
	}
}

func readDocument(t *testing.T) (doc openAPI, operations map[string]operation) {
	t.Helper()
	if err := json.Unmarshal(document, &doc); err != nil {
		t.Fatal(err)
	}
	operations = map[string]operation{}
	for path, item := range doc.Paths {
		var shared []parameter
		for key, raw := range item {
			var op operation
			into := any(&op)
			if key == "parameters" {
				into = &shared
			}
			if err := json.Unmarshal(raw, into); err != nil {
				t.Fatalf("%s %s: %v", key, path, err)
			}
			if key != "parameters" {
				operations[strings.ToUpper(key)+" "+path] = op
			}
		}
		for pattern, op := range operations {
			if _, at, _ := strings.Cut(pattern, " "); at == path {
				op.Parameters = append(op.Parameters, shared...)
				operations[pattern] = op
			}
		}
	}
	return doc, operations
}

// The document tells of the routes that there are, and of no other; of their
// parameters, and of those without a token.
func TestDocumentHasTheRoutes(t *testing.T) {
	doc, operations := readDocument(t)
	if doc.OpenAPI != "3.1.0" {
		t.Errorf("it is OpenAPI %q", doc.OpenAPI)
	}
	served := (&restAPI{opts: Options{Gatherer: nopGatherer}}).routes()
	delete(served, "/")
	delete(served, "HEAD /v1/tags/{tag}/next") // refused
	if got, want := slices.Sorted(maps.Keys(operations)), slices.Sorted(maps.Keys(served)); !slices.Equal(got, want) {
		t.Fatalf("it has %q, served are %q", got, want)
	}
	ids := map[string]bool{}
	for pattern, op := range operations {
		if op.OperationID == "" || ids[op.OperationID] {
			t.Errorf("%s: the operation ID %q is not its own", pattern, op.OperationID)
		}
		ids[op.OperationID] = true
		in := map[string][]string{}
		for _, p := range op.Parameters {
			if name, ok := strings.CutPrefix(p.Ref, "#/components/parameters/"); p.Name == "" {
				if p, ok = doc.Components.Parameters[name], ok && doc.Components.Parameters[name].Name == name; !ok {
					t.Fatalf("%s: no parameter %q", pattern, name)
				}
			}
			in[p.In] = append(in[p.In], p.Name)
		}
		slices.Sort(in["query"])
		if want := queries[pattern]; !slices.Equal(in["query"], want) {
			t.Errorf("%s takes %q in the query, it has %q", pattern, want, in["query"])
		}
		for _, name := range in["path"] {
			if !strings.Contains(pattern, "{"+name+"}") {
				t.Errorf("%s has no %q", pattern, name)
			}
		}
		if got := len(in["path"]); got != strings.Count(pattern, "{") {
			t.Errorf("%s: %d parameters of the path", pattern, got)
		}
		if open := op.Security != nil && len(*op.Security) == 0; open != public[pattern] {
			t.Errorf("%s asks for a token: %t", pattern, !open)
		}
		if permissionOf(pattern) != auth.Nothing && !public[pattern] && op.Responses["403"].Ref == "" {
			t.Errorf("%s has no 403", pattern)
		}
	}
}

// documented are the structs behind the document's objects.
var documented = map[string]any{
	"Tag": api.Tag{}, "PutTag": putBody{}, "Layout": layoutJSON{}, "BitField": bitFieldJSON{}, "Pool": api.PoolStatus{}, "Issuer": api.PoolIssuer{},
	"Worker": api.WorkerStatus{}, "Readiness": health.Readiness{}, "Lack": api.Lack{}, "Budget": api.Budget{}, "Forecast": api.Forecast{}, "Alarm": api.Alarm{}, "Problem": problem{}, "Taken": takenJSON{}, "Returned": returnedJSON{}, "Parsed": service.Parsed{}, "ParsedCode": service.ParsedCode{},
	"Trace": api.Trace{}, "TraceLine": api.TraceLine{}, "TraceGrant": api.TraceGrant{}, "Handout": api.TraceHandout{}, "Coverage": api.TraceCoverage{},
}

// The document's objects have the keys of the structs behind them.
func TestDocumentHasTheFields(t *testing.T) {
	doc, _ := readDocument(t)
	for name, v := range documented {
		var all, required []string
		for _, f := range reflect.VisibleFields(reflect.TypeOf(v)) {
			if !f.IsExported() {
				continue
			}
			key, rest, _ := strings.Cut(f.Tag.Get("json"), ",")
			if all = append(all, key); !strings.Contains(rest, "omit") && name != "PutTag" {
				required = append(required, key)
			}
		}
		s := doc.Components.Schemas[name]
		slices.Sort(all)
		if got := slices.Sorted(maps.Keys(s.Properties)); !slices.Equal(got, all) {
			t.Errorf("%s has %q, it should have %q", name, got, all)
		}
		if !slices.Equal(slices.Sorted(slices.Values(s.Required)), slices.Sorted(slices.Values(required))) {
			t.Errorf("%s requires %q, it should require %q", name, s.Required, required)
		}
	}
	codes := slices.Sorted(slices.Values(append(hapax.Codes(), Codes()...)))
	var enum []hapax.Code
	for _, code := range doc.Components.Schemas["Problem"].Properties["code"].Enum {
		enum = append(enum, hapax.Code(code))
	}
	if slices.Sort(enum); !slices.Equal(enum, codes) {
		t.Errorf("the codes are %q, it has %q", codes, enum)
	}
	var states []api.WorkerState
	for _, state := range doc.Components.Schemas["Worker"].Properties["state"].Enum {
		states = append(states, api.WorkerState(state))
	}
	if !slices.Equal(states, api.WorkerStates()) {
		t.Errorf("the states are %q, it has %q", api.WorkerStates(), states)
	}
}

// misfit tells what of a value is not as a schema says; "" if nothing.
func (doc openAPI) misfit(s *schema, v any, at string) string {
	if name, ok := strings.CutPrefix(s.Ref, "#/components/schemas/"); ok {
		if s = doc.Components.Schemas[name]; s == nil {
			return at + ": no schema " + name
		}
	}
	switch v := v.(type) {
	case map[string]any:
		for _, key := range s.Required {
			if _, ok := v[key]; !ok {
				return at + ": " + key + " is missing"
			}
		}
		for key, value := range v {
			sub := s.Properties[key]
			if sub == nil && s.AdditionalProperties == false {
				return at + ": " + key + " is not known"
			}
			if sub != nil {
				if m := doc.misfit(sub, value, at+"."+key); m != "" {
					return m
				}
			}
		}
		return is("object", s, at)
	case []any:
		for _, value := range v {
			if m := doc.misfit(s.Items, value, at+"[]"); m != "" {
				return m
			}
		}
		return is("array", s, at)
	case string:
		return is("string", s, at)
	case bool:
		return is("boolean", s, at)
	case float64:
		if s.Type == "number" {
			return ""
		}
		return is("integer", s, at)
	}
	return at + " is null"
}

func is(want string, s *schema, at string) string {
	if s.Type == want {
		return ""
	}
	return at + " is of type " + want
}

// What the routes answer is as the document says, with no status that it does not
// have.
func TestAnswersAreAsDocumented(t *testing.T) {
	doc, operations := readDocument(t)
	bubble(t, service.Options{}, func(t *testing.T, _ http.Handler, store *storetest.Faults) {
		l, err := ledger.Open(t.TempDir(), ledger.Options{Node: "a"})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() })
		h := newHandler(t, store, service.Options{Ledger: l})
		synctest.Wait()
		call(t, h, "GET", "/v1/tags/snowflake/next", "")
		call(t, h, "GET", "/v1/tags/orders/next", "")
		seen := map[string]bool{}
		for _, c := range []struct{ pattern, path, body string }{
			{"GET /v1/tags/{tag}/next", "/v1/tags/orders/next?count=0", ""},
			{"POST /v1/tags/{tag}/ids", "/v1/tags/orders/ids?count=2", ""},
			{"POST /v1/tags/{tag}/ids", "/v1/tags/orders/ids", "[]"},
			{"PUT /v1/tags/{tag}", "/v1/tags/invoices", `{"code":"{yyyy}-{seq:6}{check}","zone":"UTC"}`},
			{"POST /v1/tags/{tag}/ids", "/v1/tags/invoices/ids?format=code", ""},
			{"GET /v1/tags/{tag}/codes/{code}", "/v1/tags/invoices/codes/2026-0000016", ""},
			{"GET /v1/tags/{tag}/codes/{code}", "/v1/tags/invoices/codes/2026-0000021", ""},
			{"POST /v1/tags/{tag}/take", "/v1/tags/lent/take", `{"count":2}`},
			{"POST /v1/tags/{tag}/take", "/v1/tags/invoices/take", `{"count":2,"codes":true}`},
			{"POST /v1/tags/{tag}/take", "/v1/tags/snowflake/take", `{"count":2}`},
			{"POST /v1/tags/{tag}/take", "/v1/tags/lent/take", `{"count":0}`},
			{"POST /v1/tags/{tag}/handback", "/v1/tags/lent/handback", `{"receipt":"1.1.3.1.0.1.x","unused":1}`},
			{"POST /v1/tags/{tag}/handback", "/v1/tags/lent/handback", `{}`},
			{"GET /v1/ids/{id}", "/v1/ids/2006515713442840575", ""},
			{"GET /v1/ids/{id}", "/v1/ids/x", ""},
			{"POST /v1/ids/compose", "/v1/ids/compose", `{"fields":{"time":1}}`},
			{"GET /v1/layouts", "/v1/layouts", ""},
			{"PUT /v1/tags/{tag}", "/v1/tags/new", `{"step":10}`},
			{"PUT /v1/tags/{tag}", "/v1/tags/new", `{"step":20}`},
			{"GET /v1/tags/{tag}", "/v1/tags/new", ""},
			{"GET /v1/tags/{tag}", "/v1/tags/nope", ""},
			{"DELETE /v1/tags/{tag}", "/v1/tags/new", ""},
			{"GET /v1/tags/{tag}/next", "/v1/tags/new/next", ""},
			{"GET /v1/tags", "/v1/tags?limit=1", ""},
			{"GET /v1/pools", "/v1/pools", ""},
			{"GET /v1/pools/{pool}/workers", "/v1/pools/default/workers", ""},
			{"GET /v1/pools/{pool}/workers", "/v1/pools/nope/workers", ""},
			{"GET /v1/pools/{pool}/workers/{worker}", "/v1/pools/default/workers/0", ""},
			{"POST /v1/pools/{pool}/workers/{worker}/retire", "/v1/pools/default/workers/0/retire", ""},
			{"GET /v1/trace/{number}", "/v1/trace/1", ""},
			{"GET /v1/trace/{number}", "/v1/trace/1?tag=orders", ""},
			{"GET /v1/trace/{number}", "/v1/trace/2026-0000016?tag=invoices&format=code", ""},
			{"GET /v1/trace/{number}", "/v1/trace/2006515713442840575?layout=leaf", ""},
			{"GET /v1/trace/{number}", "/v1/trace/1?tag=orders&layout=leaf", ""},
			{"GET /v1/trace/{number}", "/v1/trace/x", ""},
			{"GET /v1/openapi.json", "/v1/openapi.json", ""},
			{"GET /healthz", "/healthz", ""},
			{"GET /readyz", "/readyz", ""},
			{"GET /metrics", "/metrics", ""},
		} {
			seen[c.pattern] = true
			method, _, _ := strings.Cut(c.pattern, " ")
			w := call(t, h, method, c.path, c.body)
			response, ok := operations[c.pattern].Responses[strconv.Itoa(w.Code)]
			if !ok {
				t.Errorf("%s: %d is not in the document", c.path, w.Code)
				continue
			}
			var v any
			if !strings.Contains(w.Header().Get("Content-Type"), "json") {
				continue
			}
			if err := json.Unmarshal(w.Body.Bytes(), &v); err != nil {
				t.Fatalf("%s: %v", c.path, err)
			}
			s := &schema{Ref: "#/components/schemas/Problem"}
			if w.Code < 400 {
				s = response.Content["application/json"].Schema
			}
			if m := doc.misfit(s, v, "body"); m != "" {
				t.Errorf("%s: %s\n%s", c.path, m, w.Body)
			}
		}
		for pattern := range operations {
			if !seen[pattern] {
				t.Errorf("%s is not in this test", pattern)
			}
		}
	})
}
