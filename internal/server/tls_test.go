package server

import (
	"crypto/x509"
	"encoding/pem"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
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
