package auth

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hapax-id/hapax/api"
)

func policyFor(t *testing.T, tokens map[string]TokenConfig) *Policy {
	t.Helper()
	p, err := NewPolicy(tokens)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// What people make up is no token, even with its hash in the configuration.
func TestMadeUpTokens(t *testing.T) {
	for _, word := range []string{
		"admin", "hapax", "hapax_", "hapax_admin", "hapax_" + strings.Repeat("A", 26), "hapax_" + strings.Repeat("ABC2", 7)[:26],
		"hapax_abcdefghijklmnopqrstuvwxyz", "hapax_ABCDEFGHIJKLMNOPQRSTUVWXY1", "hapax_ABCDEFGHIJKLMNOPQRSTUVWXYZ2", NewToken() + " ", " " + NewToken(),
	} {
		p := policyFor(t, map[string]TokenConfig{"app": {Hash: HashToken(word)}})
		if _, err := p.Caller(word); !errors.Is(err, api.ErrUnauthenticated) {
			t.Errorf("%q: %v", word, err)
		}
	}
	for range 10_000 {
		if token := NewToken(); !isToken(token) || len(token) != 32 {
			t.Fatalf("%q is no token", token)
		}
	}
}

// Whoever shows wrong tokens is slowed down and reported, a little; others from the
// same address are not held up.
func TestWrongTokensAreSlowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		token := NewToken()
		p := policyFor(t, map[string]TokenConfig{"app": {Hash: HashToken(token)}})
		var news []WrongToken
		p.ReportWrong(func(w WrongToken) { news = append(news, w) })
		began := time.Now()
		guess := func(from string) { _, _ = p.From(t.Context(), from, NewToken()) }
		for i := range attemptsAllowed {
			guess(fmt.Sprintf("10.0.0.1:%d", 1000+i))
		}
		if time.Since(began) != 0 || len(news) != 1 {
			t.Fatalf("after %v: %v", time.Since(began), news)
		}
		for range 10 {
			guess("10.0.0.1:999")
		}
		if took := time.Since(began); took != 10*attemptsDelay {
			t.Errorf("10 more took %v", took)
		}
		began = time.Now()
		if _, err := p.From(t.Context(), "10.0.0.1:5", token); err != nil || time.Since(began) != 0 {
			t.Errorf("the right one: %v after %v", err, time.Since(began))
		}
		guess("10.0.0.2:1")
		if _, err := p.From(t.Context(), "10.0.0.1:5", ""); err == nil || time.Since(began) != 0 {
			t.Errorf("others took %v", time.Since(began))
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, _ = p.From(ctx, "10.0.0.1:5", NewToken()); time.Since(began) != 0 {
			t.Error("it waits for one who has left")
		}
		for i := range 3 * attemptsAllowed { // an address of a network of IPv6 each
			guess(fmt.Sprintf("[2001:db8::%x]:1", i+1))
		}
		if took := time.Since(began); took < attemptsWindow {
			t.Errorf("a network's took %v", took)
		}
		if total := len(news); total > 400 || news[1].Suppressed != attemptsAllowed {
			t.Errorf("%d pieces of news, the second is %+v", total, news[1])
		}
		time.Sleep(attemptsWindow)
		began = time.Now()
		if guess("10.0.0.1:5"); time.Since(began) != 0 {
			t.Error("it does not wear off")
		}
	})
}

// However many addresses there are, few are remembered.
func TestManyAddresses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // all in one window, however long counting takes
		a := newAttempts()
		for i := range 2 * maxAddresses {
			a.count(fmt.Sprintf("10.%d.%d.1:1", i>>8, i&255))
		}
		if len(a.addresses) > maxAddresses+1 {
			t.Errorf("%d are remembered", len(a.addresses))
		}
		if !a.count("99.99.99.99:1") {
			t.Error("those that are not remembered do not count together")
		}
	})
}

func TestExpiry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		token := NewToken()
		p := policyFor(t, map[string]TokenConfig{"app": {Hash: HashToken(token), Expires: time.Now().Add(time.Hour).Format(time.RFC3339)}})
		c, err := p.Caller(token)
		if err != nil || c.Begin() != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Hour)
		if _, err := p.Caller(token); !errors.Is(err, api.ErrUnauthenticated) {
			t.Errorf("a new connection: %v", err)
		}
		if err := c.Begin(); !errors.Is(err, api.ErrUnauthenticated) {
			t.Errorf("an old connection: %v", err)
		}
	})
	if _, err := NewPolicy(map[string]TokenConfig{"app": {Hash: HashToken(NewToken()), Expires: "tomorrow"}}); err == nil || !strings.Contains(err.Error(), "RFC 3339") {
		t.Error(err)
	}
}

// A certificate's name stands for a token, if the certificate was verified.
func TestCertificateNames(t *testing.T) {
	token := NewToken()
	p := policyFor(t, map[string]TokenConfig{
		"billing": {Certificate: "spiffe://example/billing"}, "ops": {Certificate: "ops.example", Hash: HashToken(token), Scopes: []string{"admin"}},
	})
	uri, err := url.Parse("spiffe://example/billing")
	if err != nil {
		t.Fatal(err)
	}
	show := func(leaf *x509.Certificate, verified bool) *tls.ConnectionState {
		state := &tls.ConnectionState{PeerCertificates: []*x509.Certificate{leaf}}
		if verified {
			state.VerifiedChains = [][]*x509.Certificate{{leaf}}
		}
		return state
	}
	for _, tt := range []struct {
		leaf     *x509.Certificate
		verified bool
		want     string
	}{
		{&x509.Certificate{URIs: []*url.URL{uri}}, true, "billing"},
		{&x509.Certificate{URIs: []*url.URL{uri}}, false, ""},
		{&x509.Certificate{DNSNames: []string{"x", "ops.example"}}, true, "ops"},
		{&x509.Certificate{Subject: pkix.Name{CommonName: "ops.example"}}, true, "ops"},
		{&x509.Certificate{Subject: pkix.Name{CommonName: "ops"}}, true, ""},
		{&x509.Certificate{}, true, ""},
	} {
		n := new(Conn)
		n.Secure(show(tt.leaf, tt.verified))
		c, err := p.Enter(NewConnContext(t.Context(), n), "10.0.0.1:1", nil)
		if (err == nil) != (tt.want != "") || err == nil && c.Name() != tt.want {
			t.Errorf("%+v: %v, %v", tt.leaf.Subject, c, err)
		}
	}
	if c, err := p.Caller(token); err != nil || c.Name() != "ops" {
		t.Errorf("by token: %v", err)
	}
	if err := p.Replace(map[string]TokenConfig{"ops": {Hash: HashToken(token)}}); err != nil {
		t.Fatal(err)
	}
	n := new(Conn)
	n.Secure(show(&x509.Certificate{DNSNames: []string{"ops.example"}}, true))
	if _, err := p.Enter(NewConnContext(t.Context(), n), "10.0.0.1:1", nil); err == nil {
		t.Error("a name that was taken away is good for something")
	}
}
