// Package rest answers the HTTP requests of Vesta's clients: /genid, /expid,
// /transtime and /makeid, with any HTTP method, byte for byte as one of Vesta's two
// servers does.
//
// Where Vesta answers with a number that is none, hapax answers with a status and a text:
// 400 for a field of /makeid that is given and out of its range, 503 when no number could
// be had in time.
package rest

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/compat/vesta"
)

// A Shape is the server of Vesta's whose answers are given.
type Shape string

// The shapes. They differ in the order of the keys that /expid returns, in content types,
// and in the answers to malformed requests.
const (
	// Netty, the default, answers 200 to nearly everything, all of it plain text, with
	// keys in alphabetical order. Other paths get a help text. The last of repeated
	// parameters counts; one that is no number ends the connection.
	Netty Shape = "netty"

	// Spring answers errors as Spring Boot does, and the first of repeated parameters
	// counts.
	Spring Shape = "spring"
)

// DefaultWait is how long /genid waits for a number.
const DefaultWait = 2 * time.Second

// maxQuery bounds a request's query.
const maxQuery = 4096

// Options tune a handler. The zero value suits most uses.
type Options struct {
	// Shape is whose answers are given; default Netty.
	Shape Shape

	// Zone is the time zone in which /transtime writes dates; default time.Local.
	Zone *time.Location

	// Wait bounds how long /genid waits for a number; default 2 s.
	Wait time.Duration

	now func() time.Time // for tests
}

type handler struct {
	ids  *vesta.IDService
	opts Options
}

// NewHandler returns a handler that publishes the numbers of a service as those of a
// REST server. Errors are a *hapax.ValueError.
func NewHandler(ids *vesta.IDService, opts Options) (http.Handler, error) {
	if opts.Zone == nil {
		opts.Zone = time.Local
	}
	if opts.Wait == 0 {
		opts.Wait = DefaultWait
	}
	if opts.Wait < 0 {
		return nil, &hapax.ValueError{Field: "wait", Value: opts.Wait, Allowed: "more than 0", Err: hapax.ErrInvalidArgument}
	}
	if opts.now == nil {
		opts.now = time.Now
	}
	h := handler{ids: ids.Via(vesta.REST), opts: opts}
	switch opts.Shape {
	case "", Netty:
		return netty{h}, nil
	case Spring:
		return springShape{h}, nil
	}
	return nil, &hapax.ValueError{Field: "shape", Value: string(opts.Shape), Allowed: `"netty" or "spring"`, Err: hapax.ErrInvalidArgument}
}

// send writes a body with a content type.
func send(w http.ResponseWriter, kind, body string) {
	// A cache that repeats an answer repeats its number.
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("Content-Type", kind)
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	_, _ = w.Write([]byte(body)) //nolint:gosec // numbers, dates and a fixed text; an error means that whoever asked has gone
}

// refuse writes an error that Vesta's server does not have.
func refuse(w http.ResponseWriter, err error) {
	w.Header().Set("Cache-Control", "no-store")
	status := http.StatusServiceUnavailable
	if _, ok := errors.AsType[*hapax.ValueError](err); ok {
		status = http.StatusBadRequest
	} else {
		w.Header().Set("Retry-After", "1")
	}
	http.Error(w, err.Error(), status)
}

func (h handler) genID(ctx context.Context) (hapax.ID, error) {
	ctx, cancel := context.WithTimeout(ctx, h.opts.Wait)
	defer cancel()
	id, err := h.ids.GenID(ctx)
	if v, ok := errors.AsType[*hapax.ValueError](err); ok {
		err = fmt.Errorf("no number: %s", v) // the fault is not in the request
	}
	return id, err
}

// given are the parameters of a request; one that is missing is -1.
type given struct {
	version, typ, genMethod, machine, time, seq int64
}

// makeID composes a number as the widest overload of makeId does that version, type,
// genMethod and machine allow, in this order. A field of that overload that was not given
// is -1 there, which sets its bits and those of all fields above it, in this service's own
// layout where that is the type.
func (h handler) makeID(g given) (hapax.ID, error) {
	all := []struct {
		name  string
		value int64
	}{
		{vesta.FieldVersion, g.version},
		{vesta.FieldType, g.typ},
		{vesta.FieldGenMethod, g.genMethod},
		{vesta.FieldMachine, g.machine},
	}
	fields := hapax.Fields{{Name: vesta.FieldTime, Value: g.time}, {Name: vesta.FieldSeq, Value: g.seq}}
	var raw hapax.ID
	wide := false
	for _, f := range all {
		wide = wide || f.value != -1
		bits, there := h.ids.Raw(f.name)
		switch {
		case f.value != -1:
			fields = append(fields, hapax.Field{Name: f.name, Value: f.value})
		case wide && there:
			raw |= bits
			if f.name != vesta.FieldType { // which chooses the layout
				fields = append(fields, hapax.Field{Name: f.name})
			}
		}
	}
	id, err := h.ids.MakeFields(fields)
	return id | raw, err
}
