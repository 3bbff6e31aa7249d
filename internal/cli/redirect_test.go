package cli

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/hapax-id/hapax"
)

// A server cannot send a command on to another one, which would be shown the token.
func TestTokenStaysWithItsServer(t *testing.T) {
	t.Setenv(tokenEnv, "hapax_secret")
	var shown []string
	elsewhere := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		shown = append(shown, r.Header.Get("Authorization"))
		_, _ = io.WriteString(w, `{"ids":["42"]}`)
	}))
	defer elsewhere.Close()
	asked := 0
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked++
		to := elsewhere.URL + r.URL.Path
		switch {
		case strings.Contains(r.URL.Path, "/moved/"):
			to = strings.Replace(r.URL.Path, "moved", "here", 1)
		case strings.Contains(r.URL.Path, "/here/"):
			_, _ = io.WriteString(w, `{"ids":["7"]}`)
			return
		}
		http.Redirect(w, r, to, http.StatusTemporaryRedirect)
	}))
	defer srv.Close()
	r, err := newRemote(srv.URL, &credentials{})
	if err != nil {
		t.Fatal(err)
	}
	if ids, err := r.Next(t.Context(), "orders", 1); err == nil || !strings.Contains(err.Error(), elsewhere.URL) {
		t.Errorf("%v, %v", ids, err)
	}
	if len(shown) > 0 || asked != 1 {
		t.Errorf("the other server was asked: %q", shown)
	}
	if ids, err := r.Next(t.Context(), "moved", 1); err != nil || ids[0] != 7 {
		t.Errorf("on the same server: %v, %v", ids, err)
	}
}

// A server that nobody has named sees no token, and the error tells why.
func TestUnnamedServerSeesNoToken(t *testing.T) {
	t.Setenv(tokenEnv, "hapax_secret")
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if got := r.Header.Get("Authorization"); got != "" {
			t.Errorf("it was shown %q", got)
		}
		w.WriteHeader(http.StatusUnauthorized)
		_, _ = io.WriteString(w, `{"code":"`+string(hapax.ErrUnauthenticated.Code())+`","detail":"a token is needed"}`)
	}))
	defer srv.Close()
	r, err := newUnnamed(srv.URL, &credentials{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Next(t.Context(), "orders", 1); err == nil || !strings.Contains(err.Error(), "--server "+srv.URL) {
		t.Error(err)
	}
}
