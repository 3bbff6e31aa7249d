package client_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/hapax-id/hapax/client"
	"github.com/hapax-id/hapax/internal/patience"
)

// A wrong scheme, and a certificate that the server does not accept, are told as what they are.
func TestErrorsTellOfTLS(t *testing.T) {
	plain := httptest.NewServer(http.NotFoundHandler())
	defer plain.Close()
	secure := httptest.NewTLSServer(http.NotFoundHandler())
	defer secure.Close()
	strict := httptest.NewUnstartedServer(http.NotFoundHandler())
	strict.TLS = &tls.Config{ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: x509.NewCertPool()}
	strict.StartTLS()
	defer strict.Close()
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "The plain HTTP request was sent to HTTPS port", http.StatusBadRequest)
	}))
	defer proxy.Close()
	trusted := func(s *httptest.Server, certs ...tls.Certificate) *tls.Config {
		pool := x509.NewCertPool()
		pool.AddCert(s.Certificate())
		return &tls.Config{RootCAs: pool, Certificates: certs}
	}
	stranger := strict.TLS.Certificates[0]
	at := func(s *httptest.Server) string { return s.Listener.Addr().String() }
	for name, c := range map[string]struct {
		url   string
		tls   *tls.Config
		wants []string
	}{
		"http to TLS":             {"http://" + at(secure), nil, []string{"it speaks TLS: give https://" + at(secure)}},
		"http to TLS of a proxy":  {proxy.URL, nil, []string{"it speaks TLS: give https://" + at(proxy)}},
		"https to none":           {"https://" + at(plain), trusted(secure), []string{"it speaks no TLS: give http://" + at(plain)}},
		"no certificate":          {strict.URL, trusted(strict), []string{"shows no certificate", "tls_client_ca"}},
		"a stranger's":            {strict.URL, trusted(strict, stranger), []string{"refuse", "this client's certificate", "tls_client_ca"}},
		"a stranger's by TLS 1.2": {strict.URL, upTo12(trusted(strict, stranger)), []string{"refuse", "this client's certificate", "tls_client_ca"}},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), patience.Call)
			defer cancel()
			cl, err := client.Dial(ctx, client.Options{TLS: c.tls, Once: true}, c.url)
			if err != nil {
				t.Fatal(err)
			}
			defer cl.Close()
			_, err = cl.StoreID(ctx)
			if err == nil || strings.Contains(err.Error(), "version before") {
				t.Fatalf("the error is %v", err)
			}
			for _, want := range c.wants {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("the error is %v; want %q in it", err, want)
				}
			}
		})
	}
}

func upTo12(c *tls.Config) *tls.Config {
	c.MaxVersion = tls.VersionTLS12
	return c
}
