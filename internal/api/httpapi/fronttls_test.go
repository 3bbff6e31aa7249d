package httpapi

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/hapax-id/hapax/internal/gate"
	"github.com/hapax-id/hapax/internal/patience"
	"github.com/hapax-id/hapax/internal/service"
	"github.com/hapax-id/hapax/internal/service/auth"
)

// transports are the ways to a front: nil for plain TCP.
func transports(t *testing.T) map[string]*tls.Config {
	t.Helper()
	return map[string]*tls.Config{"plain": nil, "TLS": secured(t)}
}

// secured returns what a server shows.
func secured(t *testing.T) *tls.Config {
	t.Helper()
	s := httptest.NewTLSServer(nil) // for its certificate
	defer s.Close()
	return &tls.Config{Certificates: s.TLS.Certificates, NextProtos: []string{"h2", "http/1.1"}, MinVersion: tls.VersionTLS12}
}

// trusting returns the configuration of clients of a server.
func trusting(t *testing.T, server *tls.Config) *tls.Config {
	t.Helper()
	leaf, err := x509.ParseCertificate(server.Certificates[0].Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(leaf)
	return &tls.Config{RootCAs: pool, ServerName: "example.com", MinVersion: tls.VersionTLS12}
}

// Over TLS the front answers HTTP/1.1; what it hands over, net/http knows to have come
// over TLS, before it was answered from and after.
func TestFrontOverTLS(t *testing.T) {
	s := newFrontedBy(t, service.Options{}, nil, secured(t))
	body := "POST /v1/tags/orders/ids HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 11\r\n\r\n{\"count\":1}"
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		s.trust.MaxVersion = version
		for _, tt := range []struct {
			requests string
			past     int64
		}{{hot, 0}, {hot + post + hot, 0}, {cold + hot, 2}, {hot + hot + cold + hot, 2}, {hot + body + post, 2}} {
			c, r := s.dial(t)
			past, known := s.past.Load(), s.known.Load()
			_, _ = io.WriteString(c, tt.requests)
			for range strings.Count(tt.requests, "HTTP/1.1") {
				if res, body := read(t, r); res.StatusCode != http.StatusOK {
					t.Errorf("%q: %d %q", tt.requests, res.StatusCode, body)
				}
			}
			if vouched := s.known.Load() > known; vouched != strings.HasPrefix(tt.requests, hot) { // by the http.Server otherwise
				t.Errorf("%q: its client is known: %t", tt.requests, vouched)
			}
			if got := s.past.Load() - past; got != tt.past {
				t.Errorf("%q: %d were handed over, want %d", tt.requests, got, tt.past)
			}
		}
	}
	if n := s.bare.Load(); n > 0 {
		t.Errorf("%d requests were handed over as if they had come without TLS", n)
	}
}

// HTTP/2 is net/http's, and so is whoever does not speak TLS.
func TestFrontLeavesOthersOverTLS(t *testing.T) {
	s := newFrontedBy(t, service.Options{}, nil, secured(t))
	transport := &http.Transport{TLSClientConfig: s.trust, ForceAttemptHTTP2: true}
	defer transport.CloseIdleConnections()
	for i := range 3 {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+s.addr+"/v1/tags/orders/next", nil)
		if err != nil {
			t.Fatal(err)
		}
		res, err := transport.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		number, err := io.ReadAll(res.Body)
		_ = res.Body.Close()
		if want := string(rune('1' + i)); err != nil || res.ProtoMajor != 2 || string(number) != want {
			t.Errorf("%s %q, %v; want %q", res.Proto, number, err, want)
		}
	}
	if past, bare := s.past.Load(), s.bare.Load(); past != 3 || bare != 0 {
		t.Errorf("%d requests were handed over, %d of them as if without TLS; want 3 and 0", past, bare)
	}
	c, err := net.Dial("tcp", s.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(patience.Long))
	_, _ = io.WriteString(c, hot)
	if got, err := io.ReadAll(c); err != nil || !strings.HasPrefix(string(got), "HTTP/1.0 400") {
		t.Errorf("without TLS: %q, %v", got, err)
	}
}

// A stop does not wait for a client that does not shake hands.
func TestFrontShutdownDuringHandshake(t *testing.T) {
	s := newFrontedBy(t, service.Options{}, nil, secured(t))
	silent, err := net.Dial("tcp", s.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	c, r := s.dial(t) // it is accepted later
	_, _ = io.WriteString(c, hot)
	read(t, r)
	s.shutdown(t)
	_ = silent.SetDeadline(time.Now().Add(patience.Long))
	if got, err := io.ReadAll(silent); len(got) > 0 || err != nil {
		t.Errorf("the silent connection: %q, %v", got, err)
	}
}

// A certificate stands for a token, in the front as behind it, until it is none.
func TestFrontTakesCertificates(t *testing.T) {
	server := secured(t)
	key := server.Certificates[0].PrivateKey
	authority := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
	certificate := func(name string) tls.Certificate {
		public, err := x509.CreateCertificate(nil, &x509.Certificate{SerialNumber: big.NewInt(2), NotAfter: authority.NotAfter, Subject: pkix.Name{CommonName: name}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}, authority, server.Certificates[0].Leaf.PublicKey, key)
		if err != nil {
			t.Fatal(err)
		}
		return tls.Certificate{Certificate: [][]byte{public}, PrivateKey: key}
	}
	public, err := x509.CreateCertificate(nil, authority, authority, server.Certificates[0].Leaf.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	root, err := x509.ParseCertificate(public)
	if err != nil {
		t.Fatal(err)
	}
	server.ClientAuth, server.ClientCAs = tls.RequireAndVerifyClientCert, x509.NewCertPool()
	server.ClientCAs.AddCert(root)
	token := auth.NewToken()
	configs := map[string]auth.TokenConfig{
		"app":     {Certificate: "app", Tags: []string{"orders"}},
		"expired": {Certificate: "expired", Expires: "2020-01-01T00:00:00Z"},
		"users":   {Hash: auth.HashToken(token), Tags: []string{"users"}},
	}
	policy, err := auth.NewPolicy(configs)
	if err != nil {
		t.Fatal(err)
	}
	s := newFrontedBy(t, service.Options{}, policy, server)
	ask := func(c net.Conn, r *bufio.Reader, request string, status int, past int64) {
		t.Helper()
		before := s.past.Load()
		_, _ = io.WriteString(c, request)
		if res, body := read(t, r); res.StatusCode != status || s.past.Load()-before != past {
			t.Errorf("%q: %d %q, %d handed over; want %d, %d", request, res.StatusCode, body, s.past.Load()-before, status, past)
		}
	}
	dial := func(name string) (net.Conn, *bufio.Reader) {
		s.trust.Certificates = []tls.Certificate{certificate(name)}
		return s.dial(t)
	}
	users := with(strings.Replace(hot, "orders", "users", 1), "Authorization: Bearer "+token)

	c, r := dial("app")
	ask(c, r, hot, 200, 0)
	ask(c, r, users, 200, 0) // a token counts before the certificate
	ask(c, r, hot, 200, 0)
	ask(c, r, cold, 200, 1)
	c, r = dial("app")
	ask(c, r, strings.Replace(hot, "orders", "users", 1), 403, 1)
	c, r = dial("expired")
	ask(c, r, hot, 401, 1)
	c, r = dial("nobody")
	ask(c, r, hot, 401, 1)

	c, r = dial("app")
	ask(c, r, hot, 200, 0)
	delete(configs, "app")
	if err := policy.Replace(configs); err != nil {
		t.Fatal(err)
	}
	ask(c, r, hot, 401, 1)
}

// What a connection is to its gate, it is when it is handed over.
func TestFrontKeepsThePass(t *testing.T) {
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := gate.Listen(inner, gate.New(1), true, nil)
	defer l.Close()
	client, err := net.Dial("tcp", inner.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	nc, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	for name, nc := range map[string]net.Conn{"plain": nc, "TLS": tls.Server(nc, &tls.Config{})} {
		if again := replay(nc, nil); gate.PassOf(again) == nil || gate.PassOf(again) != gate.PassOf(nc) || gate.Bare(again) != gate.Bare(nc) {
			t.Errorf("%s: it has the pass %p, and had %p", name, gate.PassOf(again), gate.PassOf(nc))
		}
	}
}
