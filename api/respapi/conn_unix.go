//go:build unix

package respapi

import (
	"errors"
	"syscall"
)

// read answers what the connection receives, until its end. It reads the socket
// itself, so that it needs no buffer before something is there to be read.
func (c *conn) read() {
	socket, ok := c.net.(syscall.Conn)
	if !ok {
		c.readPlain()
		return
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return // it was closed already
	}
	_ = raw.Read(func(fd uintptr) bool { return c.ready(int(fd)) }) // an error says that it was closed, or Shutdown
}

// ready answers what can be read without a wait. It returns false to be called
// again when there is more.
func (c *conn) ready(fd int) (over bool) {
	have := c.lend()
	for {
		n, err := syscall.Read(fd, c.b.in[have:])
		switch {
		case errors.Is(err, syscall.EAGAIN):
			c.pause(have)
			return false
		case errors.Is(err, syscall.EINTR):
			continue
		case err != nil || n <= 0:
			return true
		}
		have = c.received(have + n)
		if c.over || c.isDraining() {
			return true
		}
	}
}
