package fleet

import (
	"encoding/json"
	"errors"
	"net/http"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/api"
	"github.com/hapax-id/hapax/internal/service/auth"
)

// ServeHTTP answers a node that proves that it has the key, or anybody who may see the status.
func (f *Fleet) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Cache-Control", "no-store")
	if r.Method != http.MethodGet {
		http.Error(w, "a question is a GET", http.StatusMethodNotAllowed)
		return
	}
	var asked *question
	if header := r.Header.Get(Header); header != "" && len(f.key) > 0 {
		// For this node's own address: a question that was recorded on its way to another proves nothing.
		q, ok := f.key.proves(header, f.opts.Address, r.URL.RawQuery)
		if !ok {
			http.Error(w, "another fleet key, or another address than this node's", http.StatusForbidden)
			return
		}
		if !f.heard.isNew(q.word) {
			http.Error(w, "this very question was answered before", http.StatusConflict)
			return
		}
		asked = &q
	} else {
		done, err := f.admit(r)
		if err != nil {
			http.Error(w, message(err), statusOf(err))
			return
		}
		defer done()
	}
	q := r.URL.Query()
	tell := f.tellers[q.Get("about")]
	if tell == nil {
		http.Error(w, "this node has nothing to say about that", http.StatusNotImplemented)
		return
	}
	said, err := tell(r.Context(), q)
	if err != nil {
		http.Error(w, message(err), statusOf(err))
		return
	}
	body, err := json.Marshal(said)
	switch {
	case err != nil || asked == nil:
	case r.TLS != nil:
		w.Header().Set(Header, f.key.show(*asked, body))
	default:
		body, err = f.key.seal(*asked, body)
	}
	if err != nil {
		http.Error(w, "an internal error", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(body) //nolint:gosec // JSON, or sealed; an error means that the client has disconnected
}

// admit lets in whoever may see the status, and counts the request until done is called.
func (f *Fleet) admit(r *http.Request) (done func(), err error) {
	caller, err := f.opts.Policy.Enter(r.Context(), r.RemoteAddr, r.Header["Authorization"])
	if err != nil {
		return nil, err
	}
	if err := auth.ConnFromContext(r.Context()).Use(caller); err != nil {
		return nil, err
	}
	if err := caller.Begin(); err != nil {
		return nil, err
	}
	if err := caller.Allow(auth.Watch, ""); err != nil {
		caller.End()
		return nil, err
	}
	return caller.End, nil
}

func statusOf(err error) int {
	switch _, limited := errors.AsType[*auth.LimitError](err); {
	case limited:
		return http.StatusTooManyRequests
	case errors.Is(err, api.ErrUnauthenticated):
		return http.StatusUnauthorized
	case errors.Is(err, api.ErrPermissionDenied):
		return http.StatusForbidden
	case errors.Is(err, hapax.ErrNotSupported):
		return http.StatusNotImplemented
	case errors.Is(err, hapax.ErrStoreUnavailable):
		return http.StatusServiceUnavailable
	case errors.Is(err, hapax.ErrInternal):
		return http.StatusInternalServerError
	}
	return http.StatusConflict
}
