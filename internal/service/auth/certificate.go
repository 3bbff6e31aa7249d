package auth

import (
	"crypto/sha256"
	"crypto/tls"
	"fmt"
	"time"

	"github.com/hapax-id/hapax/api"
)

// keys returns what a caller is found by: the digest of its token, and that of its
// certificate's name, which no token has.
func (c *Caller) keys(config TokenConfig) []digestKey {
	var keys []digestKey
	if config.Hash != "" {
		keys = append(keys, digestKey(c.digest[:]))
	}
	if config.Certificate != "" {
		keys = append(keys, keyOfCertificate(config.Certificate))
	}
	return keys
}

func keyOfCertificate(name string) digestKey {
	d := sha256.Sum256([]byte("certificate " + name))
	return digestKey(d[:])
}

// Certified returns who shows a certificate that was verified; nil if nobody that is
// known.
func (p *Policy) Certified(state *tls.ConnectionState) *Caller {
	// Certificates alone prove nothing: TLS tells of those, too, that nobody has verified.
	if !p.HasTokens() || state == nil || len(state.VerifiedChains) == 0 || len(state.PeerCertificates) == 0 {
		return nil
	}
	leaf := state.PeerCertificates[0]
	var names []string
	for _, u := range leaf.URIs {
		names = append(names, u.String())
	}
	names = append(append(names, leaf.DNSNames...), leaf.EmailAddresses...)
	names = append(names, leaf.Subject.CommonName)
	for _, name := range names {
		if c := (*p.callers.Load())[keyOfCertificate(name)]; c != nil && name != "" {
			return c
		}
	}
	return nil
}

// Secure tells the connection what TLS knows of its client; nil for no TLS.
func (n *Conn) Secure(state *tls.ConnectionState) {
	if n != nil && state != nil && n.secure.Load() == nil {
		n.secure.Store(state)
	}
}

func (n *Conn) state() *tls.ConnectionState {
	if n == nil {
		return nil
	}
	return n.secure.Load()
}

// expired returns an error if the caller's time is over.
func (c *Caller) expired() error {
	if c != nil && !c.expires.IsZero() && !time.Now().Before(c.expires) {
		return fmt.Errorf("%w: the token has expired", api.ErrUnauthenticated)
	}
	return nil
}
