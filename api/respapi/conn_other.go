//go:build !linux

package respapi

// read answers what the connection receives, until its end.
func (c *conn) read() { c.readPlain() }

// writeNow writes as much as goes without a wait, as far as that is known.
func (*conn) writeNow([]byte) int { return 0 }
