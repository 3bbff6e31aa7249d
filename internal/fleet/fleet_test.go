package fleet

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/hapax-id/hapax/api"
	"github.com/hapax-id/hapax/internal/service"
	"github.com/hapax-id/hapax/internal/service/auth"
	"github.com/hapax-id/hapax/store/memstore"
	"github.com/hapax-id/hapax/store/witness"
)

// A stand is a node that serves its fleet, where tokens are needed.
type stand struct {
	*Fleet
	web   *httptest.Server
	token string
	seen  []*http.Request // questions
	sent  [][]byte        // answers
}

func newStand(t *testing.T, key []byte, withTLS bool) *stand {
	t.Helper()
	token := auth.NewToken()
	policy, err := auth.NewPolicy(map[string]auth.TokenConfig{"ann": {Hash: auth.HashToken(token), Scopes: []string{"read"}}})
	if err != nil {
		t.Fatal(err)
	}
	svc, err := service.New(t.Context(), memstore.New(), service.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = svc.Close(context.Background()) })
	s := &stand{token: token}
	s.web = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		rec := httptest.NewRecorder()
		s.ServeHTTP(rec, r)
		s.seen, s.sent = append(s.seen, r), append(s.sent, rec.Body.Bytes())
		maps.Copy(w.Header(), rec.Header())
		w.WriteHeader(rec.Code)
		_, _ = w.Write(rec.Body.Bytes())
	}))
	s.Fleet = New(Options{Service: svc, Policy: policy, Key: key, Name: "alpha", Address: s.web.Listener.Addr().String()})
	if withTLS {
		s.web.StartTLS()
	} else {
		s.web.Start()
	}
	t.Cleanup(s.web.Close)
	return s
}

func (s *stand) address() string { return s.web.Listener.Addr().String() }

// asker is another node that trusts the stand's certificate, if that has one.
func (s *stand) asker(key []byte) *Fleet {
	o := Options{Key: key}
	if s.web.TLS != nil {
		roots := x509.NewCertPool()
		roots.AddCert(s.web.Certificate())
		o.TLS = func() *tls.Config { return &tls.Config{RootCAs: roots} }
	}
	return New(o)
}

func (s *stand) status(t *testing.T, asker *Fleet) Answer[api.Status] {
	t.Helper()
	return Ask[api.Status](t.Context(), asker, []witness.Node{{Address: s.address()}}, aboutStatus, nil)[0]
}

var theKey = []byte("a key of the whole fleet")

// Nodes see each other by the key, and nobody else sees anything by it. Over TLS the answer is
// not encrypted once more, and shows the key all the same.
func TestKey(t *testing.T) {
	for name, withTLS := range map[string]bool{"plain": false, "TLS": true} {
		t.Run(name, func(t *testing.T) {
			s := newStand(t, theKey, withTLS)
			if a := s.status(t, s.asker(theKey)); a.Err != nil || a.Said.State != "serving" {
				t.Fatalf("%+v", a)
			}
			if readable := json.Valid(s.sent[0]); readable != withTLS {
				t.Errorf("what was sent can be read: %v", readable)
			}
			for name, key := range map[string][]byte{"another key": []byte("another key of a fleet"), "no key": nil} {
				if a := s.status(t, s.asker(key)); a.Err == nil {
					t.Errorf("%s: %+v", name, a)
				}
			}
			s.opts.Address = "elsewhere:8080" // the question was passed on from there
			if a := s.status(t, s.asker(theKey)); a.Err == nil {
				t.Errorf("a question to another address: %+v", a)
			}
		})
	}
}

// A question that was recorded is answered once.
func TestReplay(t *testing.T) {
	s := newStand(t, theKey, false)
	if a := s.status(t, s.asker(theKey)); a.Err != nil {
		t.Fatal(a.Err)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.web.URL+s.seen[0].URL.String(), nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set(Header, s.seen[0].Header.Get(Header))
	res, err := s.web.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusConflict {
		t.Errorf("it was answered again: %d", res.StatusCode)
	}
}

// One without the key is told nothing that is of use, and is not believed.
func TestImpostor(t *testing.T) {
	for name, withTLS := range map[string]bool{"plain": false, "TLS": true} {
		t.Run(name, func(t *testing.T) {
			s := newStand(t, theKey, withTLS)
			var seen http.Header
			s.web.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				seen = r.Header.Clone()
				_, _ = io.WriteString(w, `{"state":"serving"}`)
			})
			if a := s.status(t, s.asker(theKey)); a.Err == nil || !strings.Contains(a.Err.Error(), "does not have the same fleet_key") {
				t.Errorf("it is believed: %+v", a)
			}
			if seen.Get("Authorization") != "" || seen.Get("Cookie") != "" || strings.Contains(fmt.Sprint(seen), string(theKey)) {
				t.Errorf("it was told %v", seen)
			}
		})
	}
}

// Without a key a token is needed, and a node on another machine is not asked.
func TestWithoutKey(t *testing.T) {
	s := newStand(t, nil, false)
	if a := s.status(t, s.asker(nil)); a.Err == nil || !strings.Contains(a.Err.Error(), "fleet_key") {
		t.Errorf("without a token: %+v", a)
	}
	for what, want := range map[string]int{"about=status": http.StatusOK, "about=console": http.StatusNotImplemented, "about=trace&number=1": http.StatusNotImplemented} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.web.URL+Path+"?"+what, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+s.token)
		res, err := s.web.Client().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != want {
			t.Errorf("%s with a token: %d", what, res.StatusCode)
		}
	}
	moved := httptest.NewServer(http.RedirectHandler(s.web.URL+Path, http.StatusFound))
	t.Cleanup(moved.Close)
	if _, err := s.asker(nil).ask(t.Context(), strings.TrimPrefix(moved.URL, "http://"), "about=status"); err == nil {
		t.Error("a redirection was followed")
	}
	for _, address := range []string{"", "x", "10.0.0.1:80", "db.example:80", "127.0.0.1:80/x?", "user@127.0.0.1:80", "127.0.0.1:80#x"} {
		if err := s.asker(nil).mayAsk(address); err == nil {
			t.Errorf("%q may be asked without a key", address)
		}
	}
}

// An answer that is too large is told as one, not as a node without the key.
func TestLargeAnswer(t *testing.T) {
	for name, key := range map[string][]byte{"with a key": theKey, "without": nil} {
		s := newStand(t, key, false)
		s.Tell(aboutTrace, func(context.Context, url.Values) (any, error) { return strings.Repeat("x", MaxAnswer), nil })
		s.opts.Policy = nil
		a := Ask[string](t.Context(), s.asker(key), []witness.Node{{Address: s.address()}}, aboutTrace, nil)[0]
		if a.Err == nil || !strings.Contains(a.Err.Error(), fmt.Sprintf("more than %d bytes", MaxAnswer)) {
			t.Errorf("%s: %v", name, a.Err)
		}
	}
}

// Where a question may go is judged by the address in the end, whatever the name was.
func TestMayDial(t *testing.T) {
	open, closed := New(Options{Key: theKey}), New(Options{})
	for _, tt := range []struct {
		address      string
		open, closed bool
	}{
		{"127.0.0.1:80", true, true},
		{"[::1]:80", true, true},
		{"10.0.0.1:80", true, false},
		{"[2001:db8::1]:80", true, false},
		{"169.254.169.254:80", false, false},
		{"[fe80::1]:80", false, false},
		{"[fd00:ec2::254]:80", false, false},
		{"224.0.0.1:80", false, false},
		{"0.0.0.0:80", false, false},
		{"[::]:80", false, false},
		{"255.255.255.255:80", false, false},
		{"[::ffff:169.254.169.254]:80", false, false},
	} {
		if err := open.mayDial("tcp", tt.address, nil); (err == nil) != tt.open {
			t.Errorf("%s with a key: %v", tt.address, err)
		}
		if err := closed.mayDial("tcp", tt.address, nil); (err == nil) != tt.closed {
			t.Errorf("%s without: %v", tt.address, err)
		}
	}
	if _, err := open.web.Transport.(*http.Transport).DialContext(t.Context(), "tcp", net.JoinHostPort("169.254.169.254", "80")); err == nil || !strings.Contains(err.Error(), "no node has the address") {
		t.Errorf("it was dialled: %v", err)
	}
}
