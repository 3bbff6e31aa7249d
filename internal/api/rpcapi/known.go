package rpcapi

import (
	"net/http"

	"connectrpc.com/connect"
)

// known returns a handler that refuses a call without a good token before anything
// of its body is read or decompressed. What the token is good for is judged when
// the call is known.
func (o Options) known(counter counter, h http.Handler) http.Handler {
	if !o.Policy.HasTokens() {
		return h
	}
	b := boundary{policy: o.Policy, counter: counter}
	errors := connect.NewErrorWriter(o.handlerOptions(nil, counter)...)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if isPublic(r.URL.Path) {
			h.ServeHTTP(w, r)
			return
		}
		_, err := o.Policy.Enter(r.Context(), r.RemoteAddr, r.Header["Authorization"])
		if err == nil {
			h.ServeHTTP(w, r)
			return
		}
		err = b.translate(r.Context(), err)
		if !errors.IsSupported(r) {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		_ = errors.Write(w, r, err) // an error means that the client has disconnected
	})
}
