// Package rest answers the HTTP requests of Vesta's clients: /genid, /expid,
// /transtime and /makeid, with any HTTP method.
//
// The bytes of a result are those of Vesta's. An error is a status with a text: 400
// for a bad request, 503 when no number could be had in time.
package rest

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/compat/vesta"
)

// A Shape is the server of Vesta's whose answers are given. They differ in the order
// of the keys that /expid returns, and in content types.
type Shape string

// The shapes.
const (
	Spring Shape = "spring" // the default
	Netty  Shape = "netty"  // keys in alphabetical order, all of it plain text
)

// DefaultWait is how long /genid waits for a number.
const DefaultWait = 2 * time.Second

// maxQuery bounds a request's query.
const maxQuery = 1024

// Options tune a handler. The zero value suits most uses.
type Options struct {
	// Shape is whose answers are given; default Spring.
	Shape Shape

	// Zone is the time zone in which /transtime writes dates; default time.Local.
	Zone *time.Location

	// Wait bounds how long /genid waits for a number; default 2 s.
	Wait time.Duration
}

type handler struct {
	ids  *vesta.IDService
	opts Options
}

// NewHandler returns a handler that publishes the numbers of a service as those of a
// REST server. Errors are a *hapax.ValueError.
func NewHandler(ids *vesta.IDService, opts Options) (http.Handler, error) {
	if opts.Shape == "" {
		opts.Shape = Spring
	}
	if opts.Shape != Spring && opts.Shape != Netty {
		return nil, &hapax.ValueError{Field: "shape", Value: string(opts.Shape), Allowed: `"spring" or "netty"`, Err: hapax.ErrInvalidArgument}
	}
	if opts.Zone == nil {
		opts.Zone = time.Local
	}
	if opts.Wait == 0 {
		opts.Wait = DefaultWait
	}
	if opts.Wait < 0 {
		return nil, &hapax.ValueError{Field: "wait", Value: opts.Wait, Allowed: "more than 0", Err: hapax.ErrInvalidArgument}
	}
	h := &handler{ids: ids.Via(vesta.REST), opts: opts}
	mux := http.NewServeMux()
	mux.HandleFunc("/genid", h.handle(h.genID))
	mux.HandleFunc("/expid", h.handle(h.expID))
	mux.HandleFunc("/transtime", h.handle(h.transTime))
	mux.HandleFunc("/makeid", h.handle(h.makeID))
	return mux, nil
}

// plain is the content type of dates, and of everything in Netty's shape.
const plain = "text/plain"

// handle returns a handler that writes what a method appends.
func (h *handler) handle(answer func(ctx context.Context, dst []byte, q url.Values) ([]byte, string, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "no-store")
		body, kind, err := h.answer(r, answer)
		if err != nil {
			status := http.StatusServiceUnavailable
			if _, ok := errors.AsType[*hapax.ValueError](err); ok {
				status = http.StatusBadRequest
			} else {
				w.Header().Set("Retry-After", "1")
			}
			http.Error(w, err.Error(), status)
			return
		}
		switch {
		case h.opts.Shape == Netty:
			kind = plain
		case kind == "":
			kind = "application/json;charset=UTF-8"
		default:
			kind += ";charset=UTF-8"
		}
		w.Header().Set("Content-Type", kind)
		w.Header().Set("X-Content-Type-Options", "nosniff")
		w.Header().Set("Content-Length", strconv.Itoa(len(body)))
		_, _ = w.Write(body) //nolint:gosec // numbers and dates; an error means that whoever asked has gone
	}
}

func (h *handler) answer(r *http.Request, answer func(context.Context, []byte, url.Values) ([]byte, string, error)) ([]byte, string, error) {
	if len(r.URL.RawQuery) > maxQuery {
		return nil, "", &hapax.ValueError{Field: "query", Value: fmt.Sprintf("(%d bytes)", len(r.URL.RawQuery)), Allowed: fmt.Sprintf("up to %d", maxQuery), Err: hapax.ErrInvalidArgument}
	}
	q, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, "", &hapax.ValueError{Field: "query", Value: r.URL.RawQuery, Allowed: "NAME=NUMBER&NAME=NUMBER", Err: hapax.ErrInvalidArgument}
	}
	return answer(r.Context(), make([]byte, 0, 128), q)
}

func (h *handler) genID(ctx context.Context, dst []byte, _ url.Values) ([]byte, string, error) {
	ctx, cancel := context.WithTimeout(ctx, h.opts.Wait)
	defer cancel()
	id, err := h.ids.GenID(ctx)
	if v, ok := errors.AsType[*hapax.ValueError](err); ok {
		err = fmt.Errorf("no number: %s", v) // the fault is not in the request
	}
	return id.Append(dst), "", err
}

func (h *handler) expID(_ context.Context, dst []byte, q url.Values) ([]byte, string, error) {
	id, err := required(q, "id")
	if err != nil {
		return nil, "", err
	}
	p, err := h.ids.ExpID(hapax.ID(id))
	if err != nil {
		return nil, "", err
	}
	fields := hapax.Fields{
		{Name: "machine", Value: p.Machine},
		{Name: "seq", Value: p.Seq},
		{Name: "time", Value: p.Time},
		{Name: "genMethod", Value: p.GenMethod},
		{Name: "type", Value: p.Type},
		{Name: "version", Value: p.Version},
	}
	if h.opts.Shape == Netty {
		fields = hapax.Fields{fields[3], fields[0], fields[1], fields[2], fields[4], fields[5]}
	}
	text, err := fields.MarshalJSON()
	return append(dst, text...), "", err
}

func (h *handler) transTime(_ context.Context, dst []byte, q url.Values) ([]byte, string, error) {
	value, err := required(q, vesta.FieldTime)
	if err != nil {
		return nil, "", err
	}
	t, err := h.ids.TransTime(value)
	if err != nil {
		return nil, "", err
	}
	return appendDate(dst, t.In(h.opts.Zone)), plain, nil
}

// appendDate writes an instant as Java's Date.toString does. A zone without an
// abbreviation is written as its distance from Greenwich.
func appendDate(dst []byte, t time.Time) []byte {
	zone, _ := t.Zone()
	if strings.Trim(zone, "+-0123456789") == "" {
		zone = "GMT" + t.Format("-07:00")
	}
	dst = t.AppendFormat(dst, "Mon Jan 02 15:04:05 ")
	dst = append(dst, zone...)
	return t.AppendFormat(dst, " 2006")
}

func (h *handler) makeID(_ context.Context, dst []byte, q url.Values) ([]byte, string, error) {
	var fields hapax.Fields
	for _, name := range []string{vesta.FieldVersion, vesta.FieldType, vesta.FieldGenMethod, vesta.FieldMachine, vesta.FieldTime, vesta.FieldSeq} {
		if !q.Has(name) {
			continue
		}
		v, err := required(q, name)
		if err != nil {
			return nil, "", err
		}
		if v != -1 { // which Vesta takes for a field that is not given
			fields = append(fields, hapax.Field{Name: name, Value: v})
		}
	}
	id, err := h.ids.MakeFields(fields)
	return id.Append(dst), "", err
}

// required returns a parameter that is given once.
func required(q url.Values, name string) (int64, error) {
	texts := q[name]
	if len(texts) == 1 {
		if v, err := strconv.ParseInt(texts[0], 10, 64); err == nil {
			return v, nil
		}
	}
	return 0, &hapax.ValueError{Field: name, Value: strings.Join(texts, ", "), Allowed: "one decimal number", Err: hapax.ErrInvalidArgument}
}
