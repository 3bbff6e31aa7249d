package testservers

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

// A TLSFront speaks TLS in front of a server that does not, and wants a client
// certificate.
type TLSFront struct {
	Addr string // where it listens

	// Files in PEM form: a certificate that is authority, server's and client's
	// in one, and its key.
	Cert, Key string
}

// NewTLSFront starts a front for the server at target (host:port); the test's
// end ends it.
func NewTLSFront(t testing.TB, target string) *TLSFront {
	t.Helper()
	f := &TLSFront{Cert: filepath.Join(t.TempDir(), "cert.pem")}
	f.Key = f.Cert + ".key"
	if err := f.certify(); err != nil {
		t.Fatal(err)
	}
	pair, err := tls.LoadX509KeyPair(f.Cert, f.Key)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(pair.Leaf)
	listener, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{
		Certificates: []tls.Certificate{pair},
		ClientCAs:    pool,
		ClientAuth:   tls.RequireAndVerifyClientCert,
		NextProtos:   []string{"h2"},
	})
	if err != nil {
		t.Fatal(err)
	}
	f.Addr = listener.Addr().String()
	var wg sync.WaitGroup
	var mu sync.Mutex // guards conns and ended
	var conns []net.Conn
	ended := false
	keep := func(c net.Conn) {
		mu.Lock()
		defer mu.Unlock()
		if conns = append(conns, c); ended {
			_ = c.Close()
		}
	}
	wg.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return // the listener is closed
			}
			keep(client)
			wg.Go(func() {
				defer client.Close()
				server, err := net.Dial("tcp", target)
				if err != nil {
					return
				}
				keep(server)
				wg.Go(func() {
					defer client.Close()
					_, _ = io.Copy(client, server) // either side may end it
				})
				defer server.Close()
				_, _ = io.Copy(server, client)
			})
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		mu.Lock()
		ended = true
		for _, c := range conns {
			_ = c.Close()
		}
		mu.Unlock()
		wg.Wait()
	})
	return f
}

func (f *TLSFront) certify() error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber:          big.NewInt(1),
		NotBefore:             now.Add(-time.Hour),
		NotAfter:              now.Add(24 * time.Hour),
		IPAddresses:           []net.IP{net.IPv4(127, 0, 0, 1)},
		IsCA:                  true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return err
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	for path, block := range map[string]*pem.Block{
		f.Cert: {Type: "CERTIFICATE", Bytes: cert},
		f.Key:  {Type: "PRIVATE KEY", Bytes: secret},
	} {
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			return err
		}
	}
	return nil
}
