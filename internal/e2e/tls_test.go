package e2e

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/redis/go-redis/v9"

	"github.com/hapax-id/hapax/api/hapaxv1"
	"github.com/hapax-id/hapax/api/hapaxv1/hapaxv1connect"
	"github.com/hapax-id/hapax/internal/patience"
)

// An authority signs certificates for 127.0.0.1, whose files lie in dir.
type authority struct {
	t    *testing.T
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pool *x509.CertPool
	last int64 // serial number
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{t: t, dir: t.TempDir(), pool: x509.NewCertPool()}
	a.cert, a.key = a.sign("ca", true)
	a.pool.AddCert(a.cert)
	return a
}

// file returns the path of a file of the authority.
func (a *authority) file(name string) string { return filepath.Join(a.dir, name) }

// sign makes a certificate with the files NAME.pem and NAME.key, and perhaps more
// names.
func (a *authority) sign(name string, isCA bool, uris ...*url.URL) (*x509.Certificate, *ecdsa.PrivateKey) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	a.last++
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(a.last), Subject: pkix.Name{CommonName: name},
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(24 * time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, URIs: uris,
		IsCA: isCA, BasicConstraintsValid: true,
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	parent, signer := a.cert, a.key
	if isCA {
		parent, signer = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	if err != nil {
		a.t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		a.t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		a.t.Fatal(err)
	}
	a.write(name+".pem", "CERTIFICATE", der)
	a.write(name+".key", "PRIVATE KEY", secret)
	return cert, key
}

// write replaces a file in one step, as tools that renew certificates do.
func (a *authority) write(name, kind string, der []byte) {
	a.t.Helper()
	err := os.WriteFile(a.file(name+".new"), pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600)
	if err = errors.Join(err, os.Rename(a.file(name+".new"), a.file(name))); err != nil {
		a.t.Fatal(err)
	}
}

// client returns how a client speaks TLS; with the certificate of that name, if
// it is not empty.
func (a *authority) client(name string) *tls.Config {
	a.t.Helper()
	config := &tls.Config{RootCAs: a.pool}
	if name != "" {
		pair, err := tls.LoadX509KeyPair(a.file(name+".pem"), a.file(name+".key"))
		if err != nil {
			a.t.Fatal(err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config
}

// serial returns the serial number of the certificate at an address.
func serial(t *testing.T, address string, config *tls.Config) int64 {
	t.Helper()
	c, err := tls.Dial("tcp", strings.TrimPrefix(address, "https://"), config)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	return c.ConnectionState().PeerCertificates[0].SerialNumber.Int64()
}

// awaitSerial waits until the certificate at an address is that one.
func awaitSerial(t *testing.T, address string, config *tls.Config, want int64) {
	t.Helper()
	patience.Await(t, fmt.Sprintf("the certificate at %s is %d", address, want), func() (int64, error) { return serial(t, address, config), nil },
		func(got int64) bool { return got == want })
}

// TestTLS speaks every protocol over TLS, and renews the certificate meanwhile.
func TestTLS(t *testing.T) {
	t.Parallel()
	ca := newAuthority(t)
	ca.sign("server", false)
	dir := t.TempDir()
	s := serve(t, dir, nil, "--tls-cert", ca.file("server.pem"), "--tls-key", ca.file("server.key"))
	a := s.addresses()
	if !strings.HasPrefix(a.HTTP, "https://") {
		t.Fatalf("the address is %s", a.HTTP)
	}
	transport := &http.Transport{TLSClientConfig: ca.client(""), ForceAttemptHTTP2: true}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport}
	r := redis.NewClient(&redis.Options{Addr: a.RESP, TLSConfig: ca.client(""), MaxRetries: -1})
	defer r.Close()
	all := func() {
		t.Helper()
		resp, err := client.Get(a.HTTP + "/v1/tags/orders/next")
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusOK || resp.ProtoMajor != 2 {
			t.Errorf("HTTP: %s %s", resp.Proto, resp.Status)
		}
		if _, err := hapaxv1connect.NewIssueServiceClient(client, a.HTTP, connect.WithGRPC()).Next(t.Context(), &hapaxv1.NextRequest{Tag: "orders"}); err != nil {
			t.Errorf("gRPC: %v", err)
		}
		if err := r.Incr(t.Context(), "orders").Err(); err != nil {
			t.Errorf("Redis: %v", err)
		}
	}
	all()
	for name, args := range map[string][]string{
		"curl":      {"--silent", "--show-error", "--fail", "--cacert", ca.file("ca.pem"), a.HTTP + "/v1/tags/orders/next"},
		"redis-cli": {"-h", "127.0.0.1", "-p", a.RESP[strings.LastIndex(a.RESP, ":")+1:], "--tls", "--cacert", ca.file("ca.pem"), "INCR", "orders"},
	} {
		if out, err := exec.Command(name, args...).CombinedOutput(); err != nil || strings.Trim(string(out), "0123456789\n") != "" {
			t.Errorf("%s: %v, %s", name, err, out)
		}
	}
	ok(t, dir, "next", "orders", "--ca-file", ca.file("ca.pem"))

	old := ca.client("")
	old.MaxVersion = tls.VersionTLS11
	for _, address := range []string{strings.TrimPrefix(a.HTTP, "https://"), a.RESP} {
		if c, err := tls.Dial("tcp", address, old); err == nil {
			c.Close()
			t.Errorf("%s speaks TLS 1.1", address)
		}
		c, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if err := errors.Join(c.SetDeadline(time.Now().Add(patience.Long)), second(c.Write([]byte("INCR orders\r\n")))); err != nil {
			t.Fatal(err)
		}
		if got, _ := io.ReadAll(c); strings.Contains(string(got), ":") && !strings.HasPrefix(string(got), "HTTP/1.0 400") {
			t.Errorf("%s answers without TLS: %q", address, got)
		}
	}

	ca.sign("server", false) // the third certificate
	awaitSerial(t, a.HTTP, ca.client(""), 3)
	awaitSerial(t, a.RESP, ca.client(""), 3)
	ca.write("server.key", "PRIVATE KEY", []byte("nonsense"))
	s.await("the certificates cannot be used")
	if got := serial(t, a.HTTP, ca.client("")); got != 3 {
		t.Errorf("with a broken file the certificate is %d", got)
	}
	all() // also on the connections from before
	ca.sign("server", false)
	if err := s.cmd.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	awaitSerial(t, a.RESP, ca.client(""), 4)
	if code := s.stop(); code != 0 {
		t.Errorf("exit code %d: %s", code, s.logged())
	}
}

func TestClientCertificates(t *testing.T) {
	t.Parallel()
	ca := newAuthority(t)
	ca.sign("server", false)
	ca.sign("app", false)
	stranger := newAuthority(t)
	stranger.sign("app", false)
	dir := t.TempDir()
	s := serve(t, dir, nil, "--tls-cert", ca.file("server.pem"), "--tls-key", ca.file("server.key"), "--tls-client-ca", ca.file("ca.pem"),
		"--http", "0.0.0.0:0", "--resp", "0.0.0.0:0") // certificates allow that
	a := s.addresses()
	local := strings.NewReplacer("0.0.0.0", "127.0.0.1", "[::]", "127.0.0.1")
	web, resp := local.Replace(a.HTTP), local.Replace(a.RESP)
	wrong := ca.client("")
	wrong.Certificates = stranger.client("app").Certificates
	for name, config := range map[string]*tls.Config{"without": ca.client(""), "a stranger's": wrong, "its own": ca.client("app")} {
		t.Run(name, func(t *testing.T) {
			transport := &http.Transport{TLSClientConfig: config}
			defer transport.CloseIdleConnections()
			answer, webErr := (&http.Client{Transport: transport}).Get(web + "/healthz")
			if webErr == nil {
				_ = answer.Body.Close()
			}
			r := redis.NewClient(&redis.Options{Addr: resp, TLSConfig: config, MaxRetries: -1})
			defer r.Close()
			redisErr := r.Incr(t.Context(), "orders").Err()
			if allowed := name == "its own"; allowed != (webErr == nil) || allowed != (redisErr == nil) {
				t.Errorf("HTTP: %v; Redis: %v", webErr, redisErr)
			}
		})
	}
	both := ca.file("both.pem")
	var text []byte
	for _, name := range []string{"app.pem", "app.key"} {
		part, err := os.ReadFile(ca.file(name))
		if err != nil {
			t.Fatal(err)
		}
		text = append(text, part...)
	}
	if err := os.WriteFile(both, text, 0o600); err != nil {
		t.Fatal(err)
	}
	ok(t, dir, "next", "orders", "--server", web, "--ca-file", ca.file("ca.pem"), "--cert-file", both)
}

func TestBadTLS(t *testing.T) {
	t.Parallel()
	ca := newAuthority(t)
	ca.sign("server", false)
	ca.sign("other", false)
	cert, key := "--tls-cert="+ca.file("server.pem"), "--tls-key="+ca.file("server.key")
	for name, tt := range map[string]struct {
		args []string
		want string
	}{
		"no key":      {[]string{cert}, "tls_cert and tls_key must both be given"},
		"only CA":     {[]string{"--tls-client-ca=" + ca.file("ca.pem")}, "tls_cert and tls_key must both be given"},
		"other key":   {[]string{cert, "--tls-key=" + ca.file("other.key")}, "do not go together"},
		"no file":     {[]string{cert, "--tls-key=" + ca.file("none.key")}, "that can be read: no such file"},
		"CA is a key": {[]string{cert, key, "--tls-client-ca=" + ca.file("server.key")}, "tls_client_ca"},
	} {
		t.Run(name, func(t *testing.T) {
			r := run(t, t.TempDir(), append([]string{"serve", "--http=127.0.0.1:0"}, tt.args...)...)
			if r.code != 2 || !strings.Contains(r.err, tt.want) || strings.Count(r.err, "\n") != 1 || strings.Contains(r.err, "BEGIN") {
				t.Errorf("%+v, want it to tell %s", r, tt.want)
			}
		})
	}
}
