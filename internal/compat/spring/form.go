package spring

import (
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strings"
)

const (
	maxFormBytes  = 64 << 10
	maxParameters = 100
)

// A Form holds the parameters of a request, each with all its values in order.
type Form map[string][]string

// Has reports whether there is a parameter.
func (f Form) Has(name string) bool { return len(f[name]) > 0 }

// Text returns a parameter as a text: its values with commas between them.
func (f Form) Text(name string) string { return strings.Join(f[name], ",") }

// First returns the first value of a parameter, which is the one that counts where a
// number is wanted.
func (f Form) First(name string) string {
	if f.Has(name) {
		return f[name][0]
	}
	return ""
}

// Parameters reads a request's parameters, of the URL and of a form in the body. What is
// not encoded as it should be counts as it is: TinyID's client does not encode bizType.
func Parameters(w http.ResponseWriter, r *http.Request) (Form, error) {
	f := Form{}
	if err := f.add(r.URL.RawQuery); err != nil {
		return nil, err
	}
	kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
	switch r.Method {
	case http.MethodPost, http.MethodPut, http.MethodPatch:
	default:
		return f, nil
	}
	if kind == "application/x-www-form-urlencoded" {
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
		if name = decode(name); name != "" {
			f[name] = append(f[name], decode(value))
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
