//go:build !linux

package respapi

// read answers what the connection receives, until its end. It returns why
// nothing more can be read, if that is the reason.
func (c *conn) read() error { return c.readPlain() }

// writeNow writes as much as goes without a wait, as far as that is known.
func (*conn) writeNow([]byte) int { return 0 }
