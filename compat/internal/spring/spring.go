// Package spring answers HTTP requests as the web framework below Leaf and TinyID
// does: content types, parameters and error bodies.
package spring

import (
	"bytes"
	"encoding/json"
	"fmt"
	"html"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// JSON is the content type of objects.
const JSON = "application/json;charset=UTF-8"

const (
	maxFormBytes   = 64 << 10
	maxParameters  = 100
	maxAcceptBytes = 4 << 10
)

// TextType returns the content type in which a plain text is sent to a client
// that accepts what the header says.
func TextType(accept string) string {
	switch first(accept, "text/html", "application/json", "text/plain") {
	case "text/html":
		return "text/html"
	case "application/json":
		return JSON
	}
	return "text/plain;charset=UTF-8"
}

// WantsHTML reports whether the client is a browser.
func WantsHTML(accept string) bool {
	return first(accept, "text/html", "application/json", "text/plain") == "text/html"
}

// first returns which of the given types the header prefers: the one of highest
// quality, and of these the one that it names first. It is empty where the header
// names none of them.
func first(accept string, types ...string) string {
	if accept == "" || accept == "*/*" || len(accept) > maxAcceptBytes {
		return ""
	}
	best, quality := "", 0.0
	for part := range strings.SplitSeq(accept, ",") {
		name, params, err := mime.ParseMediaType(part)
		if err != nil {
			continue
		}
		q := 1.0
		if v, ok := params["q"]; ok {
			if q, err = strconv.ParseFloat(v, 64); err != nil || !(q >= 0 && q <= 1) {
				continue
			}
		}
		for _, t := range types {
			if name == t && q > quality {
				best, quality = t, q
			}
		}
	}
	return best
}

// Text answers with a plain text, in the content type that the client accepts.
func Text(w http.ResponseWriter, r *http.Request, body string) {
	send(w, http.StatusOK, TextType(r.Header.Get("Accept")), []byte(body))
}

// Object answers with an object in JSON.
func Object(w http.ResponseWriter, v any) {
	send(w, http.StatusOK, JSON, Encode(v))
}

// Page answers with a page of HTML.
func Page(w http.ResponseWriter, body string) {
	send(w, http.StatusOK, "text/html;charset=UTF-8", []byte(body))
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

// Fail answers with an error: an object, or a page for a browser.
func Fail(w http.ResponseWriter, r *http.Request, now time.Time, status int, exception, message string) {
	f := Fault{now.UnixMilli(), status, http.StatusText(status), exception, message, r.URL.EscapedPath()}
	if !WantsHTML(r.Header.Get("Accept")) {
		send(w, status, JSON, Encode(f))
		return
	}
	send(w, status, "text/html;charset=UTF-8", fmt.Appendf(nil,
		"<html><head><title>%d %s</title></head><body><h1>%d %s</h1><p>%s</p><p>%s</p></body></html>\n",
		status, f.Error, status, f.Error, html.EscapeString(message), now.UTC().Format(time.RFC3339)))
}

func send(w http.ResponseWriter, status int, contentType string, body []byte) {
	h := w.Header()
	h["Content-Type"] = []string{contentType}
	h["Cache-Control"] = []string{"no-store"}
	h["Content-Length"] = []string{strconv.Itoa(len(body))}
	w.WriteHeader(status)
	_, _ = w.Write(body) // a client that has gone does not matter
}

// A Form holds the parameters of a request.
type Form map[string]string

// Parameters reads a request's parameters, of the URL and of a form in the body;
// the first value of a name counts. What is not encoded as it should be counts as
// it is: TinyID's client does not encode bizType.
func Parameters(w http.ResponseWriter, r *http.Request) (Form, error) {
	f := Form{}
	if err := f.add(r.URL.RawQuery); err != nil {
		return nil, err
	}
	kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if r.Method == http.MethodPost && kind == "application/x-www-form-urlencoded" {
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxFormBytes))
		if err != nil {
			return nil, fmt.Errorf("the form is longer than %d bytes or was cut off", maxFormBytes)
		}
		if err := f.add(string(body)); err != nil {
			return nil, err
		}
	}
	return f, nil
}

func (f Form) add(encoded string) error {
	if len(encoded) > maxFormBytes || strings.Count(encoded, "&") >= maxParameters {
		return fmt.Errorf("there are more than %d parameters, or more than %d bytes of them", maxParameters, maxFormBytes)
	}
	for pair := range strings.SplitSeq(encoded, "&") {
		name, value, _ := strings.Cut(pair, "=")
		name, value = decode(name), decode(value)
		if _, ok := f[name]; !ok && name != "" {
			f[name] = value
		}
	}
	return nil
}

func decode(s string) string {
	if d, err := url.QueryUnescape(s); err == nil {
		return d
	}
	return s
}
