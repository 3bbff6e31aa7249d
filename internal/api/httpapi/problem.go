package httpapi

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"reflect"
	"strings"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/api"
	"github.com/hapax-id/hapax/internal/durable"
	"github.com/hapax-id/hapax/internal/service"
	"github.com/hapax-id/hapax/internal/signals"
	"github.com/hapax-id/hapax/strategy"
)

// A problem is an error in the form of RFC 9457, with the stable code and the fields of
// an ErrorDetail of the RPC API.
type problem struct {
	Type   string `json:"type"`
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail,omitempty"`
	Code   string `json:"code"`

	Field   string `json:"field,omitempty"`   // the argument that was refused
	Value   string `json:"value,omitempty"`   // what was given
	Allowed string `json:"allowed,omitempty"` // what would have been accepted

	Pool     string     `json:"pool,omitempty"`      // which has no worker ID to give
	Size     int64      `json:"size,omitempty"`      // how many it has
	NextFree *time.Time `json:"next_free,omitempty"` // when the next one frees up

	Plugin  string     `json:"plugin,omitempty"`   // which refused or failed
	Hook    string     `json:"hook,omitempty"`     // in which it failed
	Reason  string     `json:"reason,omitempty"`   // why it refused, in its own words
	RetryAt *time.Time `json:"retry_at,omitempty"` // when to ask again

	See string `json:"see,omitempty"` // where the runbook tells of the code
}

// API is the protocol's name in metrics and logs.
const API = "http"

// Codes of errors that only this protocol has.
const (
	codeNoRoute   hapax.Code = "route_not_found"
	codeNoMethod  hapax.Code = "method_not_allowed"
	codeMediaType hapax.Code = "unsupported_media_type"
)

// Codes returns the codes of errors that only this protocol has.
func Codes() []hapax.Code { return []hapax.Code{codeNoRoute, codeNoMethod, codeMediaType} }

// statuses gives every code its HTTP status.
var statuses = map[hapax.Code]int{
	hapax.ErrInvalidArgument.Code(): http.StatusBadRequest,
	hapax.ErrInvalidTag.Code():      http.StatusBadRequest,
	hapax.ErrInvalidLayout.Code():   http.StatusBadRequest,
	hapax.ErrInvalidID.Code():       http.StatusBadRequest,
	hapax.ErrFieldRange.Code():      http.StatusBadRequest,

	hapax.ErrTagNotFound.Code():    http.StatusNotFound,
	hapax.ErrTagDeleted.Code():     http.StatusGone,
	hapax.ErrTagExists.Code():      http.StatusConflict,
	hapax.ErrPoolNotFound.Code():   http.StatusNotFound,
	hapax.ErrPoolDeleted.Code():    http.StatusGone,
	hapax.ErrKindMismatch.Code():   http.StatusConflict,
	hapax.ErrLayoutMismatch.Code(): http.StatusConflict,
	hapax.ErrLineExhausted.Code():  http.StatusInsufficientStorage,
	hapax.ErrTimeExhausted.Code():  http.StatusInsufficientStorage,

	hapax.ErrTickExhausted.Code(): http.StatusServiceUnavailable,
	hapax.ErrRefillPending.Code(): http.StatusServiceUnavailable,
	hapax.ErrNoWorker.Code():      http.StatusServiceUnavailable,

	hapax.ErrLeaseLost.Code():      http.StatusConflict,
	hapax.ErrWorkerPoisoned.Code(): http.StatusInternalServerError,
	hapax.ErrClockRollback.Code():  http.StatusServiceUnavailable,
	hapax.ErrClockSkew.Code():      http.StatusServiceUnavailable,

	hapax.ErrStoreUnavailable.Code(): http.StatusServiceUnavailable,
	hapax.ErrStoreLocked.Code():      http.StatusServiceUnavailable,
	hapax.ErrStoreCopied.Code():      http.StatusServiceUnavailable,
	hapax.ErrStoreCorrupt.Code():     http.StatusInternalServerError,
	hapax.ErrStoreReplaced.Code():    http.StatusServiceUnavailable,
	hapax.ErrStoreRetired.Code():     http.StatusServiceUnavailable,
	hapax.ErrStoreRolledBack.Code():  http.StatusServiceUnavailable,
	hapax.ErrStoreUnsafe.Code():      http.StatusServiceUnavailable,
	hapax.ErrFenced.Code():           http.StatusServiceUnavailable,
	hapax.ErrWitnessFailed.Code():    http.StatusServiceUnavailable,
	hapax.ErrNotSupported.Code():     http.StatusNotImplemented,

	hapax.ErrClosed.Code():             http.StatusServiceUnavailable,
	strategy.ErrRejected.Code():        http.StatusForbidden,
	api.ErrLimitExceeded.Code():        http.StatusTooManyRequests,
	api.ErrFloorUnread.Code():          http.StatusServiceUnavailable,
	api.ErrUnauthenticated.Code():      http.StatusUnauthorized,
	api.ErrPermissionDenied.Code():     http.StatusForbidden,
	strategy.ErrPluginFailed.Code():    http.StatusInternalServerError,
	strategy.ErrPluginMismatch.Code():  http.StatusConflict,
	strategy.ErrUnknownStrategy.Code(): http.StatusConflict,
	hapax.ErrInternal.Code():           http.StatusInternalServerError,
}

// statusOf returns the HTTP status of a code.
func statusOf(code hapax.Code) int {
	if status, ok := statuses[code]; ok {
		return status
	}
	return http.StatusInternalServerError
}

// fail answers with an error of the service.
func (a *restAPI) fail(w http.ResponseWriter, r *http.Request, err error) {
	if r.Context().Err() == nil { // else the client has disconnected
		a.svc.Failed(API, err)
	}
	code := hapax.CodeOf(err)
	status := statusOf(code)
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		status = http.StatusRequestEntityTooLarge
	}
	veto, vetoed := errors.AsType[*strategy.VetoError](err)
	if vetoed && !veto.At.IsZero() {
		status = http.StatusTooManyRequests
	}
	setHints(w.Header(), status, err)
	p := problem{Code: string(code), Title: title(code), Detail: detail(err, status)}
	// No more than the detail tells: of a fault inside, the value is the server's, not the client's.
	if e, ok := errors.AsType[*hapax.ValueError](err); ok && p.Detail != "" {
		p.Field, p.Value, p.Allowed = e.Field, shown(e.Value), e.Allowed
	}
	if e, ok := errors.AsType[*hapax.NoWorkerError](err); ok {
		p.Pool, p.Size = e.Pool, e.Size
		if !e.NextFree.IsZero() {
			p.NextFree = new(e.NextFree.UTC())
		}
	}
	if vetoed {
		p.Plugin, p.Reason = veto.Plugin, shown(veto.Err)
		if !veto.At.IsZero() {
			p.RetryAt = new(veto.At.UTC())
		}
	}
	if e, ok := errors.AsType[*strategy.PluginError](err); ok {
		p.Plugin, p.Hook = e.Plugin, e.Hook
	}
	a.problem(w, status, p)
}

// shown returns a refused value as text, which is bounded.
func shown(value any) string {
	text := fmt.Sprint(value)
	// Cut, it may end within a character.
	return strings.ToValidUTF8(text[:min(len(text), maxShown)], "")
}

// maxShown is how many bytes of a refused value an answer repeats.
const maxShown = 512

// title returns what a code means, in words.
func title(code hapax.Code) string {
	if e := hapax.ErrorOf(code); e != nil {
		return hapax.Message(e)
	}
	return string(code)
}

// detail returns the part of an error that the client may know. Faults inside may name
// hosts and files; they are in the log.
func detail(err error, status int) string {
	if durable.IsFull(err) {
		return durable.FullText
	}
	if e, ok := errors.AsType[*hapax.NoWorkerError](err); ok {
		return e.Error()
	}
	if e, ok := errors.AsType[*strategy.PluginError](err); ok {
		return e.Where()
	}
	if status < http.StatusInternalServerError || status == http.StatusInsufficientStorage {
		return err.Error()
	}
	return ""
}

// refuse answers with an error of this protocol's own.
func (a *restAPI) refuse(w http.ResponseWriter, status int, p problem) {
	a.svc.Refused(API, hapax.Code(p.Code))
	a.problem(w, status, p)
}

func (a *restAPI) problem(w http.ResponseWriter, status int, p problem) {
	p.Type, p.Status, p.See = "urn:hapax:error:"+p.Code, status, signals.SeeCode(p.Code)
	body, err := json.Marshal(p)
	if err != nil {
		panic(err) // strings and a number
	}
	w.Header()["Content-Type"] = typeProblemJSON
	w.WriteHeader(status)
	_, _ = w.Write(append(body, '\n'))
}

// unrouted answers where no route takes the path, or none the method.
func (a *restAPI) unrouted(w http.ResponseWriter, r *http.Request) {
	var allow []string
	for _, method := range []string{http.MethodDelete, http.MethodGet, http.MethodPost, http.MethodPut} {
		if _, pattern := a.mux.Handler(&http.Request{Method: method, URL: r.URL, Host: r.Host}); pattern != "/" {
			allow = append(allow, method)
		}
	}
	if allow == nil {
		a.refuse(w, http.StatusNotFound, problem{
			Code: string(codeNoRoute), Title: "there is nothing at this address", Detail: fmt.Sprintf("%.200q is not a route; GET /v1/openapi.json lists them", r.URL.EscapedPath()),
		})
		return
	}
	w.Header()["Allow"] = []string{strings.Join(allow, ", ")}
	a.refuse(w, http.StatusMethodNotAllowed, problem{
		Code: string(codeNoMethod), Title: "the method cannot be used here",
		Detail: fmt.Sprintf("%.40q is not allowed; allowed is %s", r.Method, strings.Join(allow, ", ")),
	})
}

// maxBody bounds a request's body, in bytes.
const maxBody = 64 << 10

// decode reads a JSON body into v. It answers and returns false if that fails.
func (a *restAPI) decode(w http.ResponseWriter, r *http.Request, v any) bool {
	if mediaType(r) != jsonMedia {
		a.refuseMedia(w, r, jsonMedia)
		return false
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	if err == nil {
		err = d.Decode(v)
	}
	if err == nil {
		// Only of a body that the decoder takes: its own errors name the field.
		err = takenApart(body)
	}
	if err == nil {
		_, err = d.Token()
		if errors.Is(err, io.EOF) {
			return true
		}
		if err == nil {
			err = errors.New("there is more after the JSON value")
		}
	}
	if e, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		err = wrongType(e)
	} else if e, ok := errors.AsType[*hapax.ValueError](err); ok {
		if keys := idKeys(v, body); len(keys) > 0 { // else it has a name
			e.Field = strings.Join(keys, " or ")
		}
	}
	if name, ok := strings.CutPrefix(err.Error(), "json: unknown field "); ok {
		err = &hapax.ValueError{Field: "body field", Value: strings.Trim(name, `"`), Allowed: oneOf(keys(v)), Err: hapax.ErrInvalidArgument}
	}
	// An error without a code is the decoder's own, about the client's text.
	if hapax.CodeOf(err) == hapax.ErrInternal.Code() {
		err = badBody("a JSON object", err)
	}
	a.fail(w, r, err)
	return false
}

// takenApart refuses what the decoder takes in silence: a null in place of the object, and a
// field that is given twice, of which it keeps the last.
func takenApart(body []byte) error {
	d := json.NewDecoder(bytes.NewReader(body))
	if open, err := d.Token(); err != nil || open != json.Delim('{') {
		return cmp.Or(err, error(&hapax.ValueError{Field: "body", Value: "(a JSON null)", Allowed: "a JSON object", Err: hapax.ErrInvalidArgument}))
	}
	given := map[string]bool{}
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return err
		}
		name, _ := key.(string)
		name = strings.ToLower(name) // the decoder does not tell capitals apart
		if given[name] {
			return &hapax.ValueError{Field: "body field", Value: name, Allowed: "each field once", Err: hapax.ErrInvalidArgument}
		}
		given[name] = true
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			return err
		}
	}
	return nil
}

// badBody returns the error of a body that cannot be read.
func badBody(want string, err error) error {
	if errors.Is(err, io.EOF) {
		return &hapax.ValueError{Field: "body", Value: "", Allowed: want, Err: hapax.ErrInvalidArgument}
	}
	return fmt.Errorf("%w: invalid body (%w): want %s of up to %d bytes", hapax.ErrInvalidArgument, err, want, maxBody)
}

const (
	jsonMedia = "application/json"
	formMedia = "application/x-www-form-urlencoded"
)

// mediaType returns what a body is said to be; "" if that cannot be told.
func mediaType(r *http.Request) string {
	t, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil {
		return ""
	}
	return t
}

func (a *restAPI) refuseMedia(w http.ResponseWriter, r *http.Request, allowed string) {
	a.refuse(w, http.StatusUnsupportedMediaType, problem{
		Code: string(codeMediaType), Title: "the route takes no body of this type", Detail: "Content-Type must be " + allowed,
		Field: "Content-Type", Value: shown(r.Header.Get("Content-Type")), Allowed: allowed,
	})
}

// keys returns the names that a struct has in JSON.
func keys(v any) (names []string) {
	for _, f := range reflect.VisibleFields(reflect.TypeOf(v).Elem()) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		names = append(names, name)
	}
	return names
}

// idKeys returns the names that a struct's IDs have in JSON, of those in a body that are
// none: the decoder does not tell in which field the ID stands.
func idKeys(v any, body []byte) (names []string) {
	all := keys(v)
	given := map[string]json.RawMessage{}
	_ = json.Unmarshal(body, &given) // what is wrong with it as a whole is told already
	for i, f := range reflect.VisibleFields(reflect.TypeOf(v).Elem()) {
		if raw, ok := given[all[i]]; ok && f.Type == reflect.TypeFor[*hapax.ID]() && json.Unmarshal(raw, new(hapax.ID)) != nil {
			names = append(names, all[i])
		}
	}
	return names
}

// oneOf returns in words that one of some names is wanted.
func oneOf(names []string) string {
	if len(names) == 1 {
		return names[0]
	}
	return "one of " + strings.Join(names, ", ")
}

// wrongType says in JSON's words what the decoder says in Go's.
func wrongType(e *json.UnmarshalTypeError) error {
	allowed := "a JSON object"
	switch e.Type.Kind() {
	case reflect.String:
		allowed = "a JSON string"
	case reflect.Int64:
		allowed = "a JSON integer of 64 bits"
	}
	var value any = "(a JSON " + e.Value + ")"
	if n, ok := strings.CutPrefix(e.Value, "number "); ok {
		value = json.Number(n)
	}
	return &hapax.ValueError{Field: cmp.Or(e.Field, "body"), Value: value, Allowed: allowed, Err: hapax.ErrInvalidArgument}
}

// writeJSON answers with a value.
func writeJSON(w http.ResponseWriter, status int, v any) {
	body := encode(v)
	w.Header()["Content-Type"] = typeJSON
	w.WriteHeader(status)
	_, _ = w.Write(body) //nolint:gosec // no page: its content type says so. An error means that the client has disconnected
}

// encode returns a line of JSON.
func encode(v any) []byte {
	body, err := json.Marshal(v)
	if err != nil {
		panic(err) // our own types
	}
	return append(body, '\n')
}

// Failing returns a handler that answers every request with an error, as the routes do.
func Failing(svc *service.Service, err error) http.Handler {
	a := &restAPI{svc: svc}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header()["Cache-Control"], w.Header()["Server"] = noStore, product
		a.fail(w, r, err)
	})
}
