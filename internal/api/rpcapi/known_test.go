package rpcapi

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/hapax-id/hapax/api"
	"github.com/hapax-id/hapax/internal/service/auth"
)

// A body that must not be read.
type untouched struct{ t *testing.T }

func (u untouched) Read([]byte) (int, error) {
	u.t.Error("the body of a stranger is read")
	return 0, errors.New("read")
}

func (untouched) Close() error { return nil }

// Who shows no good token has nothing of the body read, in any protocol.
func TestStrangersBodiesAreNotRead(t *testing.T) {
	policy, err := auth.NewPolicy(map[string]auth.TokenConfig{"app": {Hash: auth.HashToken(auth.NewToken())}})
	if err != nil {
		t.Fatal(err)
	}
	reached := 0
	var told counted
	h := Options{Policy: policy}.withDefaults().known(&told, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached++ }))
	for _, contentType := range []string{"application/grpc", "application/grpc-web+proto", "application/proto", "application/json", "application/connect+proto", "text/plain"} {
		for _, header := range []string{"", "Bearer " + auth.NewToken(), "Basic x"} {
			r := httptest.NewRequest(http.MethodPost, "/hapax.v1.IssueService/Next", untouched{t})
			r.Header.Set("Content-Type", contentType)
			r.Header.Set("Content-Encoding", "gzip")
			if header != "" {
				r.Header.Set("Authorization", header)
			}
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			refused := w.Code == http.StatusUnauthorized || w.Header().Get("Grpc-Status") == "16" ||
				w.Result().Trailer.Get("Grpc-Status") == "16" || strings.Contains(strings.ToLower(w.Body.String()), "grpc-status: 16") || strings.Contains(w.Body.String(), "unauthenticated")
			if !refused {
				t.Errorf("%s, %q: %d %v %q", contentType, header, w.Code, w.Header(), w.Body)
			}
		}
	}
	if reached > 0 {
		t.Errorf("%d of them went through", reached)
	}
	if len(told) != 18 || told[0] != api.ErrUnauthenticated.Code() {
		t.Errorf("counted were %v", told)
	}
	r := httptest.NewRequest(http.MethodPost, "/grpc.health.v1.Health/Check", nil)
	if h.ServeHTTP(httptest.NewRecorder(), r); reached != 1 {
		t.Error("health asks for a token")
	}
}
