package client_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/client"
)

// Where a server of another version does not understand a call, or is not understood, the
// error names both versions.
func TestErrorsNameBothVersions(t *testing.T) {
	for name, answer := range map[string]http.HandlerFunc{
		"no such call": http.NotFound,
		"an answer that is none": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/proto")
			_, _ = w.Write([]byte{0x0a, 0xff})
		},
	} {
		t.Run(name, func(t *testing.T) {
			asked := ""
			srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				asked = r.Header.Get("User-Agent")
				w.Header().Set("Server", "hapax/7.7.7")
				answer(w, r)
			}))
			defer srv.Close()
			ctx, cancel := context.WithTimeout(t.Context(), time.Second) // it tries again and again
			defer cancel()
			_, err := client.Dial(ctx, client.Options{}, srv.URL)
			if err == nil || !strings.Contains(err.Error(), "is hapax/7.7.7 and this client hapax/"+hapax.Version()) {
				t.Errorf("the error is %v", err)
			}
			if !strings.HasPrefix(asked, "hapax/"+hapax.Version()) {
				t.Errorf("the client says that it is %q", asked)
			}
		})
	}
}
