package cli

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/hapax-id/hapax/api"
)

// A server cannot send a command on to another address, which would be shown the
// token, and asked for numbers of its own.
func TestTokenStaysWithItsServer(t *testing.T) {
	t.Setenv(tokenEnv, "hapax_secret")
	var shown []string
	elsewhere := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		shown = append(shown, r.Header.Get("Authorization"))
	}))
	defer elsewhere.Close()
	for name, to := range map[string]string{"another server": elsewhere.URL, "another path": ""} {
		asked := 0
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			asked++
			if got := r.Header.Get("Authorization"); got != "Bearer hapax_secret" {
				t.Errorf("%s: the named server was shown %q", name, got)
			}
			http.Redirect(w, r, to+"/there"+r.URL.Path, http.StatusTemporaryRedirect)
		}))
		defer srv.Close()
		r, err := dial(t.Context(), srv.URL, &credentials{}, true)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		if to == "" {
			to = srv.URL
		}
		ids, err := remoteTarget{r}.Next(t.Context(), "orders", 1)
		if err == nil || !strings.Contains(err.Error(), "it redirects to "+to) {
			t.Errorf("%s: %v, %v", name, ids, err)
		}
		if len(shown) > 0 || asked != 1 {
			t.Errorf("%s: asked %d times, and the other server was shown %q", name, asked, shown)
		}
	}
}

// A server that nobody has named sees no token, and the error tells why.
func TestUnnamedServerSeesNoToken(t *testing.T) {
	t.Setenv(tokenEnv, "hapax_secret")
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if got := r.Header.Get("Authorization"); got != "" {
			t.Errorf("it was shown %q", got)
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusUnauthorized)
		_, _ = io.WriteString(w, `{"code":"`+string(api.ErrUnauthenticated.Code())+`","message":"a token is needed"}`)
	}))
	defer srv.Close()
	r, err := dial(t.Context(), srv.URL, &credentials{}, false)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	_, err = remoteTarget{r}.Next(t.Context(), "orders", 1)
	if err = r.explain(err); err == nil || !strings.Contains(err.Error(), "--server "+srv.URL) {
		t.Error(err)
	}
}
