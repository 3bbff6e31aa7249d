package httpapi

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/service"
)

// scratch is the working memory of a number route.
type scratch struct {
	ids []hapax.ID
	buf []byte
}

// maxPooled bounds the batches whose scratch is kept.
const maxPooled = 1024

var scratches = sync.Pool{New: func() any { return &scratch{buf: make([]byte, 0, 64)} }}

func (s *scratch) release() {
	if cap(s.ids) <= maxPooled {
		scratches.Put(s)
	}
}

// plainNext recognises the commonest request by its looks: one number of a tag whose name needs no
// decoding. The front has it for HTTP/1; over HTTP/2 the router and its values would cost 1.2 µs and
// two allocations more, of 2.4 µs (BenchmarkNextHandler).
func plainNext(r *http.Request) (tag string, ok bool) {
	if r.Method != http.MethodGet || r.URL.RawPath != "" || r.URL.RawQuery != "" {
		return "", false
	}
	tag, ok = strings.CutPrefix(r.URL.Path, "/v1/tags/")
	if !ok {
		return "", false
	}
	tag, ok = strings.CutSuffix(tag, "/next")
	ok = ok && tag != "" && tag != "." && tag != ".." && strings.IndexByte(tag, '/') < 0
	return tag, ok && !asksFor(r.Header["Accept"], "application/json", "text/plain")
}

// getNext answers with bare numbers, one a line, or with JSON if asked to.
func (a *restAPI) getNext(w http.ResponseWriter, r *http.Request) {
	if asJSON := asksFor(r.Header["Accept"], "application/json", "text/plain"); asJSON || r.URL.RawQuery != "" {
		count, err := a.count(r.URL.RawQuery)
		code := false
		if err == nil {
			code, err = wantsCode(r.URL.RawQuery)
		}
		switch {
		case err != nil:
			a.fail(w, r, err)
		case code:
			a.issueCodes(w, r, count, asJSON)
		default:
			a.issue(w, r, count, asJSON)
		}
		return
	}
	a.writeNext(w, r, r.PathValue("tag"))
}

// writeNext answers with one bare number.
func (a *restAPI) writeNext(w http.ResponseWriter, r *http.Request, tag string) (ok bool) {
	id, err := a.svc.Next(r.Context(), tag)
	if err != nil {
		a.fail(w, r, err)
		return false
	}
	s := scratches.Get().(*scratch)
	defer s.release()
	s.buf = id.Append(s.buf[:0])
	w.Header()["Content-Type"] = typeText
	_, _ = w.Write(s.buf) // an error means that the client has disconnected
	return true
}

// postIDs answers with JSON, or with one number a line if asked to. The count comes
// in the query, as JSON or as a form.
func (a *restAPI) postIDs(w http.ResponseWriter, r *http.Request) {
	count, err := a.count(r.URL.RawQuery)
	code := false
	if err == nil {
		code, err = wantsCode(r.URL.RawQuery)
	}
	if err != nil {
		a.fail(w, r, err)
		return
	}
	if r.ContentLength != 0 { // -1: it is not known
		inBody, ok := a.countInBody(w, r)
		switch {
		case !ok:
			return
		// Which of two counts is meant nobody can tell, and numbers are not taken back.
		case inBody != 0 && strings.Contains(r.URL.RawQuery, "count"):
			a.fail(w, r, &hapax.ValueError{Field: "count", Value: "(one in the query and one in the body)", Allowed: "one of them", Err: hapax.ErrInvalidArgument})
			return
		case inBody != 0:
			count = inBody
		}
	}
	asJSON := !asksFor(r.Header["Accept"], "text/plain", jsonMedia)
	if code {
		a.issueCodes(w, r, count, asJSON)
		return
	}
	a.issue(w, r, count, asJSON)
}

// countInBody reads the count from a body; 0 if it has none. It answers and
// returns false if that fails.
func (a *restAPI) countInBody(w http.ResponseWriter, r *http.Request) (count int, ok bool) {
	switch mediaType(r) {
	case jsonMedia:
		var body struct {
			Count *int64 `json:"count"`
		}
		if !a.decode(w, r, &body) {
			return 0, false
		}
		if body.Count == nil {
			return 0, true
		}
		if most := int64(a.svc.MaxCount()); *body.Count < 1 || *body.Count > most {
			a.fail(w, r, &hapax.ValueError{Field: "count", Value: *body.Count, Allowed: fmt.Sprintf("1 to %d", most), Err: hapax.ErrInvalidArgument})
			return 0, false
		}
		return int(*body.Count), true
	case formMedia:
		form, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
		if err != nil {
			a.fail(w, r, badBody("a form", err))
			return 0, false
		}
		if len(form) == 0 {
			return 0, true
		}
		err = known("form", string(form), []string{"count"})
		if err != nil && bytes.HasPrefix(form, []byte("{")) {
			err = &hapax.ValueError{Field: "Content-Type", Value: formMedia, Allowed: jsonMedia + " for a body of JSON", Err: hapax.ErrInvalidArgument}
		}
		if err == nil {
			count, err = a.count(string(form))
		}
		if err != nil {
			a.fail(w, r, err)
			return 0, false
		}
		return count, true
	}
	// A body whose length is not known may be empty all the same.
	if n, err := r.Body.Read(make([]byte, 1)); n == 0 && errors.Is(err, io.EOF) {
		return 0, true
	}
	a.refuseMedia(w, r, jsonMedia+" or "+formMedia)
	return 0, false
}

// asksFor reports whether an Accept header names a media type, and not the other one
// before it: a browser's libraries often name both.
func asksFor(accept []string, mediaType, other string) bool {
	for _, v := range accept {
		at, otherAt := strings.Index(v, mediaType), strings.Index(v, other)
		if at >= 0 || otherAt >= 0 {
			return at >= 0 && (otherAt < 0 || at < otherAt)
		}
	}
	return false
}

// issue answers with that many numbers.
func (a *restAPI) issue(w http.ResponseWriter, r *http.Request, count int, asJSON bool) {
	s := scratches.Get().(*scratch)
	defer s.release()
	if cap(s.ids) < count {
		s.ids = make([]hapax.ID, count)
	}
	ids := s.ids[:count]
	// What was issued before an error is a gap: half an answer would look like a whole one.
	if _, err := a.svc.NextN(r.Context(), r.PathValue("tag"), ids); err != nil {
		a.fail(w, r, err)
		return
	}
	kind := typeText
	if asJSON {
		kind, s.buf = typeJSON, appendJSON(s.buf[:0], ids)
	} else {
		s.buf = appendLines(s.buf[:0], ids)
	}
	writeBody(w, kind, s.buf)
}

// writeBody answers with a body of any length at once.
func writeBody(w http.ResponseWriter, kind []string, body []byte) {
	header := w.Header()
	header["Content-Type"] = kind
	header.Set("Content-Length", strconv.Itoa(len(body)))
	_, _ = w.Write(body) //nolint:gosec // no page: its content type says so. An error means that the client has disconnected
}

func appendJSON(dst []byte, ids []hapax.ID) []byte {
	dst = append(dst, `{"ids":[`...)
	for i, id := range ids {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(dst, '"')
		dst = append(id.Append(dst), '"')
	}
	return append(dst, "]}\n"...)
}

func appendLines(dst []byte, ids []hapax.ID) []byte {
	for _, id := range ids {
		dst = append(id.Append(dst), '\n')
	}
	return dst
}

// count reads the count of a query or a form; 1 if there is none.
func (a *restAPI) count(query string) (int, error) {
	return queryInt(query, "count", 1, a.svc.MaxCount())
}

// queries are the parameters that the routes know. Those outside of /v1 take any:
// what asks for them may be told to add some.
var queries = map[string][]string{
	"GET /v1/tags":            {"after", "limit"},
	"GET /v1/tags/{tag}/next": {"count", "format"},
	"POST /v1/tags/{tag}/ids": {"count", "format"},
	"GET /v1/ids/{id}":        {"layout"},
	"GET /v1/trace/{number}":  {"format", "layout", "tag"},
}

// asked returns a handler that refuses parameters that the route does not know: a
// misspelt one must not pass for one that is missing.
func (a *restAPI) asked(pattern string, h http.HandlerFunc) http.HandlerFunc {
	if !strings.Contains(pattern, " /v1/") {
		return h
	}
	names := queries[pattern]
	return func(w http.ResponseWriter, r *http.Request) {
		if r.URL.RawQuery != "" {
			if err := known("query", r.URL.RawQuery, names); err != nil {
				a.fail(w, r, err)
				return
			}
		}
		h(w, r)
	}
}

// known refuses a query or form that has other parameters than these.
func known(what, query string, names []string) error {
	values, err := parseQuery(query)
	if err != nil {
		return err
	}
	allowed := "none"
	if len(names) > 0 {
		allowed = oneOf(names)
	}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		if !slices.Contains(names, name) {
			return &hapax.ValueError{Field: what + " parameter", Value: name, Allowed: allowed, Err: hapax.ErrInvalidArgument}
		}
	}
	return nil
}

func parseQuery(query string) (url.Values, error) {
	values, err := url.ParseQuery(query)
	if err != nil {
		return nil, &hapax.ValueError{Field: "query", Value: query, Allowed: "name=value, joined by & and percent-encoded", Err: hapax.ErrInvalidArgument}
	}
	return values, nil
}

// queryInt reads one number from 1 to most from the query.
func queryInt(query, name string, standard, most int) (int, error) {
	text, ok, err := queryValue(query, name)
	if err != nil || !ok {
		return standard, err
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > most {
		allowed := fmt.Sprintf("1 to %d", most)
		if err != nil && !errors.Is(err, strconv.ErrRange) {
			allowed = "an integer from " + allowed + ", without point or exponent"
		}
		return 0, &hapax.ValueError{Field: name, Value: text, Allowed: allowed, Err: hapax.ErrInvalidArgument}
	}
	return n, nil
}

// queryValue reads a parameter that may be given once.
func queryValue(query, name string) (value string, ok bool, err error) {
	if query == "" {
		return "", false, nil
	}
	values, err := parseQuery(query)
	if err != nil {
		return "", false, err
	}
	switch given := values[name]; len(given) {
	case 0:
		return "", false, nil
	case 1:
		return given[0], true, nil
	default:
		return "", false, &hapax.ValueError{Field: name, Value: strings.Join(given, ", "), Allowed: "one value", Err: hapax.ErrInvalidArgument}
	}
}

// getID takes an ID apart.
func (a *restAPI) getID(w http.ResponseWriter, r *http.Request) {
	layout, _, err := queryValue(r.URL.RawQuery, "layout")
	if err != nil {
		a.fail(w, r, err)
		return
	}
	id, err := hapax.ParseID(r.PathValue("id"))
	if err != nil {
		a.fail(w, r, err)
		return
	}
	parsed, err := a.svc.Parse(id, layout)
	if err != nil {
		a.fail(w, r, err)
		return
	}
	writeJSON(w, http.StatusOK, parsed)
}

// compose puts an ID together.
func (a *restAPI) compose(w http.ResponseWriter, r *http.Request) {
	var body struct {
		Layout string                     `json:"layout"`
		Fields map[string]json.RawMessage `json:"fields"`
	}
	if !a.decode(w, r, &body) {
		return
	}
	layout, err := a.svc.Layout(body.Layout)
	if err != nil {
		a.fail(w, r, err)
		return
	}
	var fields hapax.Fields
	for name, raw := range body.Fields {
		value, err := fieldValue(layout, name, raw)
		if err != nil {
			a.fail(w, r, err)
			return
		}
		fields = append(fields, hapax.Field{Name: name, Value: value})
	}
	id, err := a.svc.Compose(layout.String(), fields)
	if err != nil {
		a.fail(w, r, err)
		return
	}
	writeJSON(w, http.StatusOK, struct {
		ID     hapax.ID `json:"id"`
		Layout string   `json:"layout"`
	}{id, service.LayoutName(layout)})
}

// fieldValue reads the value of a field: a number, as JSON has it or in a
// string, or for the time also an RFC 3339 time.
func fieldValue(layout hapax.Layout, name string, raw json.RawMessage) (int64, error) {
	text := string(raw)
	// A JSON string loses its quotes; a number, which fails here, stays as it is written.
	if json.Unmarshal(raw, &text) == nil && name == hapax.FieldTime {
		if t, err := time.Parse(time.RFC3339Nano, text); err == nil {
			return layout.TickOf(t)
		}
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		allowed := "a whole number"
		if name == hapax.FieldTime {
			allowed = "a whole number of ticks, or a time as in RFC 3339"
		}
		return 0, &hapax.ValueError{Field: name, Value: text, Allowed: allowed, Err: hapax.ErrInvalidArgument}
	}
	return n, nil
}
