package httpapi

import (
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/service/auth"
	"github.com/hapax-id/hapax/strategy"
)

// public are the routes that ask for no credentials: they tell nothing.
var public = map[string]bool{"GET /healthz": true, "GET /readyz": true, "GET /v1/openapi.json": true, "/": true}

// permissionOf returns what a route asks for.
func permissionOf(pattern string) auth.Permission {
	method, path, _ := strings.Cut(pattern, " ")
	switch {
	case path == "/v1/tags/{tag}/handback":
		return auth.LeaseTag
	case strings.HasPrefix(path, "/v1/tags/{tag}/"):
		return auth.Issue
	case path == "/v1/tags/{tag}" && method == http.MethodGet:
		return auth.Show
	case path == "/v1/tags/{tag}":
		return auth.Define
	case path == "/v1/tags":
		return auth.List
	case strings.HasPrefix(path, "/v1/ids/"), path == "/v1/layouts":
		return auth.Nothing
	case strings.HasPrefix(path, "/v1/pools/{pool}/") && method == http.MethodGet:
		return auth.SeeWorkers
	case strings.HasPrefix(path, "/v1/pools/{pool}/"):
		return auth.Workers
	case strings.HasPrefix(path, "/v1/trace/"):
		return auth.Trace
	case path == "/metrics":
		return auth.Metrics
	}
	return auth.ListPools // and whatever is forgotten here: for administrators of everything
}

// guarded returns a handler that answers only callers that may use the route.
func (a *restAPI) guarded(pattern string, h http.HandlerFunc) http.HandlerFunc {
	if a.opts.Policy == nil || public[pattern] {
		return h
	}
	permission := permissionOf(pattern)
	return func(w http.ResponseWriter, r *http.Request) {
		name := r.PathValue("tag")
		if permission == auth.Workers || permission == auth.SeeWorkers {
			name = r.PathValue("pool")
		}
		if caller := a.admit(w, r, permission, name); caller != nil {
			defer caller.End()
			h(w, from(r, caller))
		}
	}
}

// from returns the request with its caller's name and address.
func from(r *http.Request, caller *auth.Caller) *http.Request {
	return r.WithContext(auth.NewContext(r.Context(), caller, r.RemoteAddr))
}

// admit returns the caller of a request, if it is permitted, and counts it until End; nil
// if it was answered with an error.
func (a *restAPI) admit(w http.ResponseWriter, r *http.Request, permission auth.Permission, name string) *auth.Caller {
	caller, err := a.opts.Policy.Enter(r.Context(), r.RemoteAddr, r.Header["Authorization"])
	if err == nil {
		err = caller.Allow(permission, name)
	}
	if err == nil {
		err = auth.ConnFromContext(r.Context()).Use(caller)
	}
	// Last, so that a forbidden request does not count against a rate.
	if err == nil {
		err = caller.Begin()
	}
	if err != nil {
		a.svc.Attempted(auth.NewContext(r.Context(), caller, r.RemoteAddr), r.Method+" request", err)
		a.fail(w, r, err)
		return nil
	}
	return caller
}

// setHints tells the client how to do better, in the headers of an error.
func setHints(header http.Header, status int, err error) {
	_, limited := errors.AsType[*auth.LimitError](err)
	if e, ok := errors.AsType[*strategy.VetoError](err); ok && !e.At.IsZero() {
		// Rounded up: a client that comes a moment early is refused once more.
		header.Set("Retry-After", strconv.FormatInt(int64(max(time.Until(e.At)+time.Second-1, time.Second)/time.Second), 10))
		return
	}
	switch {
	case status == http.StatusUnauthorized:
		header.Set("WWW-Authenticate", `Bearer realm="hapax"`)
	case status == http.StatusServiceUnavailable || limited:
		header.Set("Retry-After", retryAfter(err))
	}
}

// retryAfter returns in whole seconds when another try is worthwhile.
func retryAfter(err error) string {
	wait := time.Second
	if e, ok := errors.AsType[*hapax.NoWorkerError](err); ok && !e.NextFree.IsZero() {
		wait = time.Until(e.NextFree)
	}
	if e, ok := errors.AsType[*auth.LimitError](err); ok {
		wait = e.After
	}
	return strconv.Itoa(int(min(max(wait+time.Second-1, time.Second), time.Minute) / time.Second))
}
