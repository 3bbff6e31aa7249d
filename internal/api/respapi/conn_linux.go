package respapi

import (
	"syscall"
	"unsafe"
)

// read answers what the connection receives, until its end. It reads the socket
// itself, so that it needs no buffer before something is there to be read. It
// returns why nothing more can be read, if that is the reason.
func (c *conn) read() error {
	socket, ok := c.net.(syscall.Conn)
	if !ok {
		return c.readPlain()
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return err // it was closed already
	}
	// The socket stays open as long as this call; an error says that it was
	// closed, given up, or Shutdown.
	err = raw.Read(func(fd uintptr) bool {
		c.fd = int(fd)
		return c.ready()
	})
	c.fd = 0
	return err
}

// ready answers what can be read without a wait. It returns false to be called
// again when there is more.
func (c *conn) ready() (over bool) {
	have := c.lend()
	for {
		n, err := transfer(syscall.SYS_READ, c.fd, c.b.in[have:])
		switch {
		case err == syscall.EAGAIN:
			c.pause(have)
			return c.over
		case err == syscall.EINTR:
			continue
		case err != 0 || n == 0:
			return true
		}
		have = c.received(have + n)
		// A client that sends without a pause would keep a stop waiting.
		if c.over || c.isDraining() {
			return true
		}
	}
}

// writeNow writes as much as goes without a wait.
func (c *conn) writeNow(p []byte) int {
	if c.fd == 0 {
		return 0
	}
	n, err := transfer(syscall.SYS_WRITE, c.fd, p)
	if err != 0 {
		return 0 // what is wrong comes out again when the rest is written
	}
	return n
}

// transfer makes a call that never waits, because the socket is non-blocking. So
// the scheduler is not told of it, which would cost a third of the time that a
// command takes.
func transfer(call uintptr, fd int, p []byte) (int, syscall.Errno) {
	n, _, err := syscall.RawSyscall(call, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(p))), uintptr(len(p)))
	return int(n), err
}
