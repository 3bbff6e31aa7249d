// Package spring answers HTTP requests as the web framework below Leaf, TinyID and one of
// Vesta's servers does: methods, paths, content types, parameters and error bodies.
package spring

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// The content types of objects, and of pages.
const (
	JSON = "application/json;charset=UTF-8"
	page = "text/html;charset=UTF-8"
)

// allowed is what OPTIONS tells of a route: every method that a controller without a
// list of methods answers.
const allowed = "GET,HEAD,POST,PUT,PATCH,DELETE,OPTIONS"

// Takes reports whether a route answers a method as it does GET.
func Takes(method string) bool {
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete:
		return true
	}
	return false
}

// Decline answers a request for a route with a method that it does not take: OPTIONS
// tells which those are.
func Decline(w http.ResponseWriter, r *http.Request, now time.Time) {
	w.Header().Set("Allow", allowed)
	if r.Method == http.MethodOptions {
		send(w, http.StatusOK, "", nil)
		return
	}
	Fail(w, r, now, http.StatusMethodNotAllowed, "", "Request method '"+r.Method+"' not supported")
}

// Barred reports whether a path has a slash or a backslash that is escaped, which Tomcat
// refuses with status 400 before any route is looked up.
func Barred(r *http.Request) bool {
	path := strings.ToUpper(r.URL.EscapedPath())
	return strings.Contains(path, "%2F") || strings.Contains(path, "%5C")
}

// Path returns the path of a request as routes are looked up by it: still escaped, and
// without parameters of its parts, such as ;a=1.
func Path(r *http.Request) string {
	path := r.URL.EscapedPath()
	if !strings.Contains(path, ";") {
		return path
	}
	parts := strings.Split(path, "/")
	for i, part := range parts {
		parts[i], _, _ = strings.Cut(part, ";")
	}
	return strings.Join(parts, "/")
}

// Is reports whether a path is a route's: the route itself, with a slash behind it, or
// with a suffix that begins with a dot.
func Is(path, route string) bool {
	rest, ok := strings.CutPrefix(path, route)
	return ok && (rest == "" || rest == "/" || rest[0] == '.' && !strings.Contains(rest, "/"))
}

// Failed has this answer counted as an error, whatever its status.
func Failed(w http.ResponseWriter) {
	if counts, ok := w.(interface{ Failed() }); ok {
		counts.Failed()
	}
}

// Text answers with a plain text, in the content type that the client accepts.
func Text(w http.ResponseWriter, r *http.Request, body string) {
	send(w, http.StatusOK, TextType(Path(r), r.Header.Get("Accept")), []byte(body))
}

// Object answers with an object in JSON, or refuses a client that does not accept that. Only
// a browser gets a page with the refusal: another client would not take the error object,
// either.
func Object(w http.ResponseWriter, r *http.Request, now time.Time, v any) {
	accept := r.Header.Get("Accept")
	switch {
	case takesObject(Path(r), accept):
		send(w, http.StatusOK, JSON, Encode(v))
	case WantsHTML(accept):
		Fail(w, r, now, http.StatusNotAcceptable, "", "Could not find acceptable representation")
	default:
		send(w, http.StatusNotAcceptable, "", nil)
	}
}

// Page answers with a page of HTML.
func Page(w http.ResponseWriter, body string) {
	send(w, http.StatusOK, page, []byte(body))
}

// Encode returns an object as JSON without the escapes that only HTML needs.
func Encode(v any) []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		panic(err) // it holds strings and numbers
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}

// A Fault is an error as the framework shows it, with its fields in order.
type Fault struct {
	Timestamp int64  `json:"timestamp"`
	Status    int    `json:"status"`
	Error     string `json:"error"`
	Exception string `json:"exception,omitempty"`
	Message   string `json:"message"`
	Path      string `json:"path"`
}

// Fail answers with an error: an object, or a page for a browser, with the date in the
// zone of now.
func Fail(w http.ResponseWriter, r *http.Request, now time.Time, status int, exception, message string) {
	f := Fault{now.UnixMilli(), status, http.StatusText(status), exception, message, r.URL.EscapedPath()}
	if !WantsHTML(r.Header.Get("Accept")) {
		send(w, status, JSON, Encode(f))
		return
	}
	send(w, status, page, fmt.Appendf(nil, "<html><body><h1>Whitelabel Error Page</h1>"+
		"<p>This application has no explicit mapping for /error, so you are seeing this as a fallback.</p>"+
		"<div id='created'>%s</div><div>There was an unexpected error (type=%s, status=%d).</div><div>%s</div></body></html>",
		AppendDate(nil, now), f.Error, status, Escape(message)))
}

// BadRequest answers with the page of the container below the framework, which answers
// where no controller is reached.
func BadRequest(w http.ResponseWriter) {
	const (
		title = "HTTP Status 400 – Bad Request"
		why   = "The server cannot or will not process the request due to something that is perceived to be a client error" +
			" (e.g., malformed request syntax, invalid request message framing, or deceptive request routing)."
	)
	w.Header().Set("Content-Language", "en")
	send(w, http.StatusBadRequest, "text/html;charset=utf-8", []byte(`<!doctype html><html lang="en"><head><title>`+title+`</title></head><body><h1>`+title+
		`</h1><hr class="line" /><p><b>Type</b> Status Report</p><p><b>Description</b> `+why+`</p></body></html>`))
}

// escapes are how the framework, and FreeMarker, write what HTML has a meaning for.
var escapes = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", `"`, "&quot;", "'", "&#39;")

// Escape returns a text as a page shows it.
func Escape(text string) string { return escapes.Replace(text) }

func send(w http.ResponseWriter, status int, contentType string, body []byte) {
	h := w.Header()
	if contentType != "" {
		h["Content-Type"] = []string{contentType}
	}
	h["Cache-Control"] = []string{"no-store"}
	h["Content-Length"] = []string{strconv.Itoa(len(body))}
	w.WriteHeader(status)
	_, _ = w.Write(body) //nolint:gosec // pages escape what comes from requests; a client that has gone does not matter
}

// AppendDate writes an instant as Java's Date.toString does. A zone without an
// abbreviation is written as its distance from Greenwich.
func AppendDate(dst []byte, t time.Time) []byte {
	zone, _ := t.Zone()
	if strings.Trim(zone, "+-0123456789") == "" {
		zone = "GMT" + t.Format("-07:00")
	}
	dst = t.AppendFormat(dst, "Mon Jan 02 15:04:05 ")
	dst = append(dst, zone...)
	return t.AppendFormat(dst, " 2006")
}
