package auth

import (
	"encoding/hex"
	"fmt"

	"github.com/hapax-id/hapax/api"
)

// Badge returns a text by which Wearer finds a caller again that came with a token. It is
// neither secret nor a credential: whoever takes one must know where it comes from.
func (c *Caller) Badge() string {
	if c == nil {
		return ""
	}
	return hex.EncodeToString(c.digest[:])
}

// Wearer returns the caller with a badge, as the token is configured now.
// ErrUnauthenticated if it is not any more, or has expired.
func (p *Policy) Wearer(badge string) (*Caller, error) {
	var d digest
	// Cut first: a badge comes from a client, and a longer one would not fit into the digest.
	if n, err := hex.Decode(d[:], []byte(badge[:min(len(badge), 2*len(d))])); err == nil && n == len(d) && p.HasTokens() {
		if c := (*p.callers.Load())[digestKey(d[:])]; c != nil && c.digest == d {
			return c, c.expired()
		}
	}
	return nil, fmt.Errorf("%w: the token is not known any more", api.ErrUnauthenticated)
}
