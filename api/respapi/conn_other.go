//go:build !unix

package respapi

// read answers what the connection receives, until its end.
func (c *conn) read() { c.readPlain() }
