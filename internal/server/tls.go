package server

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync/atomic"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/mount"
)

const (
	certificatesCheck = 5 * time.Second // how often the files are looked at
	maxCertificates   = 1 << 20         // bytes of one file
)

// certificates are what TLS shows and what it wants to see. They come from files
// and are read anew when these change, or on SIGHUP; connections that exist keep
// what they have. Files that cannot be used change nothing.
type certificates struct {
	files [3]string // with certificate, key, and authorities of clients (may be empty)
	log   *slog.Logger

	tried   [3][]byte // what the files held last; check's, as are unused and failed
	unused  error     // why that is not in use; nil: it is
	timely  bool      // what is unused may be used at another time
	failed  string    // what was wrong last
	current atomic.Pointer[tlsConfigs]
	bad     atomic.Pointer[string] // what is wrong with the files' contents; nil: nothing
}

// tlsConfigs are made from one state of the files.
type tlsConfigs struct {
	web, redis      *tls.Config
	begins, expires time.Time
}

// valid reports whether the certificate is valid at a time.
func (c *tlsConfigs) valid(at time.Time) bool { return !at.Before(c.begins) && !at.After(c.expires) }

// newCertificates reads the files that the configuration names; nil if it names
// none.
func newCertificates(c Config, log *slog.Logger) (*certificates, error) {
	settings := [...]struct{ name, file string }{{"tls_cert", c.TLSCert}, {"tls_key", c.TLSKey}, {"tls_client_ca", c.TLSClientCA}}
	given := 0
	certs := &certificates{log: log}
	for i, s := range settings {
		certs.files[i] = s.file
		if s.file != "" {
			given++
		}
	}
	switch {
	case given == 0:
		return nil, nil
	case c.TLSCert == "" || c.TLSKey == "":
		missing := "tls_cert and tls_key are"
		switch {
		case c.TLSCert != "":
			missing = "tls_key is"
		case c.TLSKey != "":
			missing = "tls_cert is"
		}
		return nil, mount.Errorf(nil, "%s missing: tls_cert and tls_key must both be given where one of the tls settings is", missing)
	}
	held, err := certs.read()
	if err != nil {
		return nil, err
	}
	if err := certs.use(held); err != nil {
		return nil, err
	}
	return certs, nil
}

// tlsSettings are the settings with the files.
var tlsSettings = [3]string{"tls_cert", "tls_key", "tls_client_ca"}

// read returns what the files hold.
func (c *certificates) read() (held [3][]byte, err error) {
	for i, file := range c.files {
		if file == "" {
			continue
		}
		if held[i], err = readUpTo(file, maxCertificates); err != nil {
			return held, mount.Unreadable(tlsSettings[i], file, "a file in PEM form that can be read", err)
		}
	}
	return held, nil
}

func readUpTo(path string, most int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, most+1))
	if err == nil && int64(len(data)) > most {
		err = fmt.Errorf("%s has more than %d bytes", path, most)
	}
	return data, err
}

// use puts what the files hold into effect.
func (c *certificates) use(held [3][]byte) error {
	// Also where they cannot be used: files that stay as they are need no further try.
	c.tried, c.timely = held, false
	pair, err := tls.X509KeyPair(held[0], held[1])
	if err != nil {
		return c.mismatch(held, err)
	}
	base := &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
	if c.files[2] != "" {
		base.ClientCAs, base.ClientAuth = x509.NewCertPool(), tls.RequireAndVerifyClientCert
		if !base.ClientCAs.AppendCertsFromPEM(held[2]) {
			return c.wrong(2, "a file that holds certificates in PEM form, of the authorities that sign those of clients")
		}
	}
	next := &tlsConfigs{web: base.Clone(), redis: base, begins: pair.Leaf.NotBefore, expires: pair.Leaf.NotAfter}
	next.web.NextProtos = []string{"h2", "http/1.1"}
	// At the start any is taken: without one nobody is served.
	if now, old := time.Now(), c.current.Load(); old != nil && old.valid(now) && !next.valid(now) {
		c.timely = true
		return c.wrong(0, fmt.Sprintf("a certificate that is valid now: it is from %s to %s, and the one in use is valid", next.begins.UTC().Format(time.RFC3339), next.expires.UTC().Format(time.RFC3339)))
	}
	c.current.Store(next)
	return nil
}

func (c *certificates) wrong(i int, allowed string) error {
	return &hapax.ValueError{Field: tlsSettings[i], Value: c.files[i], Allowed: allowed, Err: hapax.ErrInvalidArgument}
}

// mismatch says what is wrong with a certificate and its key.
func (c *certificates) mismatch(held [3][]byte, err error) error {
	has := func(i int, word string) bool { return bytes.Contains(held[i], []byte(word+"-----")) }
	switch {
	case !has(0, "CERTIFICATE") && has(0, "PRIVATE KEY") && has(1, "CERTIFICATE"):
		return c.wrong(0, "a file with a certificate: it has a key, and "+tlsSettings[1]+" a certificate: exchange the two")
	case !has(0, "CERTIFICATE"):
		return c.wrong(0, "a file with a certificate in PEM form, and those that it was signed with")
	case !has(1, "PRIVATE KEY"):
		return c.wrong(1, "a file with the certificate's key in PEM form, without a passphrase")
	}
	return fmt.Errorf("%w: tls_cert %s and tls_key %s do not go together: %w: give the key with which the certificate was made", hapax.ErrInvalidArgument, c.files[0], c.files[1], err)
}

// web returns the configuration of HTTP listeners.
func (c *certificates) web() *tls.Config {
	return dynamic(func() *tls.Config { return c.current.Load().web })
}

// redis returns the configuration of the listener of the Redis protocol.
func (c *certificates) redis() *tls.Config {
	return dynamic(func() *tls.Config { return c.current.Load().redis })
}

// names reports whether the certificate names a host.
func (c *certificates) names(host string) bool {
	leaf := c.current.Load().web.Certificates[0].Leaf
	return leaf != nil && leaf.VerifyHostname(host) == nil
}

func dynamic(current func() *tls.Config) *tls.Config {
	return &tls.Config{
		MinVersion:         tls.VersionTLS12,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return current(), nil },
	}
}

// check reads the files anew if they changed or if it was asked to, and logs what
// comes of it, once.
func (c *certificates) check(asked bool) {
	err := c.reload(asked)
	switch {
	case err == nil:
		c.failed = ""
		c.bad.Store(nil)
	case asked || err.Error() != c.failed:
		c.failed = err.Error()
		c.bad.Store(&c.failed)
		c.log.Warn("the certificates cannot be used; those in use stay", "err", err)
	}
}

// reload reads the files, and puts them into effect if they changed or if it was
// asked to.
func (c *certificates) reload(asked bool) error {
	held, err := c.read()
	if err != nil {
		return err
	}
	same := true
	for i := range held {
		same = same && bytes.Equal(held[i], c.tried[i])
	}
	if same && !asked && !c.timely {
		// What was wrong with the same files still is: the alarm must not be cleared by a second look.
		return c.unused
	}
	if c.unused = c.use(held); c.unused != nil {
		return c.unused
	}
	c.log.Info("certificates read", "expires", c.current.Load().expires)
	return nil
}
