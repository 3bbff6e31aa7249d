package server

import (
	"crypto/ed25519"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"
)

// Files that cannot be used stay bad as long as they are as they are, however often they are looked at.
func TestBadCertificatesStayBad(t *testing.T) {
	srv := httptest.NewTLSServer(nil)
	srv.Close()
	pair := srv.TLS.Certificates[0]
	key, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	config := Config{TLSCert: filepath.Join(dir, "cert"), TLSKey: filepath.Join(dir, "key")}
	put := func(path, kind string, der []byte) {
		t.Helper()
		if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	put(config.TLSCert, "CERTIFICATE", pair.Certificate[0])
	put(config.TLSKey, "PRIVATE KEY", key)
	certs, err := newCertificates(config, quiet)
	if err != nil {
		t.Fatal(err)
	}
	look := func(when string, bad bool) {
		t.Helper()
		for _, asked := range []bool{false, false, true, false} {
			if certs.check(asked); (certs.bad.Load() != nil) != bad {
				t.Errorf("%s: asked %v, it is bad: %v; want %v", when, asked, !bad, bad)
			}
		}
	}
	look("as it began", false)
	put(config.TLSCert, "NOTHING", nil)
	look("without a certificate", true)
	put(config.TLSCert, "CERTIFICATE", pair.Certificate[0])
	look("mended", false)
	if err := os.Remove(config.TLSCert); err != nil {
		t.Fatal(err)
	}
	look("without a file", true)
	put(config.TLSCert, "CERTIFICATE", pair.Certificate[0])
	look("put back", false)
}

// A certificate in use that is valid is not exchanged for one that is not: callers would be refused.
// What is not valid yet is used as soon as it is.
func TestCertificatesOfAnotherTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		public, private, err := ed25519.GenerateKey(nil)
		if err != nil {
			t.Fatal(err)
		}
		key, err := x509.MarshalPKCS8PrivateKey(private)
		if err != nil {
			t.Fatal(err)
		}
		dir, began := t.TempDir(), time.Now()
		config := Config{TLSCert: filepath.Join(dir, "cert"), TLSKey: filepath.Join(dir, "key")}
		put := func(begins, expires time.Duration) {
			t.Helper()
			template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: began.Add(begins), NotAfter: began.Add(expires)}
			der, err := x509.CreateCertificate(nil, template, template, public, private)
			if err != nil {
				t.Fatal(err)
			}
			for path, block := range map[string]*pem.Block{config.TLSCert: {Type: "CERTIFICATE", Bytes: der}, config.TLSKey: {Type: "PRIVATE KEY", Bytes: key}} {
				if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
					t.Fatal(err)
				}
			}
		}
		put(-2*time.Hour, -time.Hour)
		certs, err := newCertificates(config, quiet)
		if err != nil {
			t.Fatalf("a start with what is there: %v", err)
		}
		look := func(when string, expires time.Duration, bad bool) {
			t.Helper()
			for _, asked := range []bool{false, true, false} {
				certs.check(asked)
				if got := certs.current.Load().expires.Sub(began); got != expires || (certs.bad.Load() != nil) != bad {
					t.Errorf("%s: asked %v, the one that expires after %v is in use, and something is bad: %v; want %v, %v", when, asked, got, !bad, expires, bad)
				}
			}
		}
		put(-3*time.Hour, -time.Minute)
		look("one that has expired, after another", -time.Minute, false)
		put(-time.Hour, 10*time.Hour)
		look("a valid one", 10*time.Hour, false)
		put(-2*time.Hour, -time.Hour)
		look("one that has expired", 10*time.Hour, true)
		put(time.Hour, 20*time.Hour)
		look("one that is not valid yet", 10*time.Hour, true)
		time.Sleep(2 * time.Hour)
		look("when it is", 20*time.Hour, false)
		put(-2*time.Hour, -time.Hour)
		look("one that has expired, once more", 20*time.Hour, true)
		time.Sleep(20 * time.Hour)
		look("when both have", -time.Hour, false)
	})
}
