package respapi

import (
	"encoding/binary"
	"strings"
	"testing"
)

// TestCommandsInHello sends what a browser sends to https on this port when a page chose
// the session ticket: a hello of TLS with lines in it that are commands. None is carried
// out, whatever pieces the hello comes in.
func TestCommandsInHello(t *testing.T) {
	srv, _ := newClientServer(t)
	ticket := "abc\r\n" + strings.Repeat("INCRBY victim 1000\r\n", 100) + "\r\nINCR victim\r\n"
	hello := binary.BigEndian.AppendUint16([]byte{0x16, 3, 1}, uint16(len(ticket)+4))
	hello = append(append(hello, 1, 0, byte(len(ticket)>>8), byte(len(ticket))), ticket...)
	for _, first := range []int{1, 5, len(hello)} {
		c := srv.dial(t)
		c.send(string(hello[:first]))
		_, _ = c.Write(hello[first:]) // it may be closed by now
		if rest := c.expectEndOrReset(); rest != "" {
			t.Errorf("it answers %q", rest)
		}
	}
	c := srv.dial(t)
	c.do("GET victim", "$-1\r\n")
	c.do("INCR victim", ":1\r\n")
}

// expectEndOrReset reads to the end of a connection that the server closes with bytes
// unread.
func (c *testClient) expectEndOrReset() string {
	c.t.Helper()
	var all strings.Builder
	for {
		b, err := c.r.ReadByte()
		if isNetTimeout(err) {
			c.t.Fatal("the connection is still open")
		}
		if err != nil {
			return all.String()
		}
		all.WriteByte(b)
	}
}
