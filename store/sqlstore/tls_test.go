package sqlstore_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/testservers"
	"github.com/hapax-id/hapax/store/sqlstore"
)

// certificate writes a certificate for loopback, which signs itself, and its
// key, and returns their paths.
func certificate(t testing.TB) (cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	cert, key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	for path, block := range map[string]*pem.Block{cert: {Type: "CERTIFICATE", Bytes: der}, key: {Type: "PRIVATE KEY", Bytes: pkcs8}} {
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return cert, key
}

// wantTLS opens the store and reports whether its connections are encrypted.
func wantTLS(t *testing.T, query, url string, opts sqlstore.Options) {
	t.Helper()
	s := open(t, url, opts)
	var name, value string
	if err := s.DB().QueryRowContext(t.Context(), query).Scan(&name, &value); err != nil || value == "" || value == "false" {
		t.Errorf("%s is %q, %v; want it encrypted", name, value, err)
	}
}

func TestTLSMariaDB(t *testing.T) {
	cert, key := certificate(t)
	server := testservers.MariaDB(t, "--ssl-cert="+cert, "--ssl-key="+key)
	server.MustControl()
	url := fresh(server.URL)
	const query = "SHOW SESSION STATUS LIKE 'Ssl_cipher'"
	roots := x509.NewCertPool()
	if text, err := os.ReadFile(cert); err != nil || !roots.AppendCertsFromPEM(text) {
		t.Fatal(err)
	}
	wantTLS(t, query, with(with(url, "tls", "true"), "tls_ca", cert), sqlstore.Options{})
	wantTLS(t, query, with(url, "tls_ca", cert), sqlstore.Options{})
	wantTLS(t, query, with(url, "tls", "skip-verify"), sqlstore.Options{})
	wantTLS(t, query, url, sqlstore.Options{TLS: &tls.Config{RootCAs: roots}})
	_, err := Open(t.Context(), with(url, "tls", "true"), sqlstore.Options{})
	wantErr(t, "an unknown certificate", err, hapax.ErrStoreUnavailable)
	if err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("the error %v does not say why", err)
	}
}

func TestTLSPostgres(t *testing.T) {
	server := testservers.Postgres(t)
	server.MustControl()
	url := fresh(server.URL)
	s := open(t, url, sqlstore.Options{})
	cert, key := certificate(t)
	run(t, s, "CREATE TABLE pem (line text)") // the server itself writes the files, so that it owns them
	for path, name := range map[string]string{cert: "server.crt", key: "server.key"} {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			run(t, s, "INSERT INTO pem VALUES ('"+strings.TrimSpace(line)+"')")
		}
		run(t, s, "COPY pem TO PROGRAM 'umask 077; cat > "+name+"'", "TRUNCATE pem")
	}
	run(t, s, "ALTER SYSTEM SET ssl = on", "SELECT pg_reload_conf()")
	eventually(t, s, "SELECT setting = 'on' FROM pg_settings WHERE name = 'ssl'")
	const query = "SELECT 'ssl', ssl::text FROM pg_stat_ssl WHERE pid = pg_backend_pid()"
	wantTLS(t, query, with(with(url, "sslmode", "verify-full"), "sslrootcert", cert), sqlstore.Options{})
	roots := x509.NewCertPool()
	if text, err := os.ReadFile(cert); err != nil || !roots.AppendCertsFromPEM(text) {
		t.Fatal(err)
	}
	wantTLS(t, query, url, sqlstore.Options{TLS: &tls.Config{RootCAs: roots}})
	_, err := Open(t.Context(), url, sqlstore.Options{TLS: &tls.Config{}})
	wantErr(t, "an unknown certificate", err, hapax.ErrStoreUnavailable)
	if err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("the error %v does not say why", err)
	}
}
