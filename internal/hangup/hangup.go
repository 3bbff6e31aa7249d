// Package hangup tells when the client at the other end of a connection has left, while
// nothing is read from it: what it asked for need not be waited for any more.
package hangup

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// lookEvery is how often a client is looked for while it is waited for.
const lookEvery = 100 * time.Millisecond

// A Context is the context of one connection's requests. It ends with
// its parent, and when the client closes the connection while somebody waits on Done.
// Until then it costs nothing: the look-out begins with the first call of Done, and
// goes on until Rest.
type Context struct {
	context.Context // the parent

	raw     syscall.RawConn // nil: it cannot be known
	gone    atomic.Bool
	looking atomic.Bool // waiting is set; written under mu

	mu      sync.Mutex // guards the fields below
	waiting chan struct{}
	ended   bool        // waiting is closed
	unhook  func() bool // has the parent's end no longer close it
	timer   *time.Timer
}

// NewContext returns the context of a connection, which should be the one below TLS.
func NewContext(parent context.Context, nc net.Conn) *Context {
	c := &Context{Context: parent}
	if socket, ok := nc.(syscall.Conn); ok {
		c.raw, _ = socket.SyscallConn() // an error says that it is closed
	}
	return c
}

// Done implements context.Context.
func (c *Context) Done() <-chan struct{} {
	if c.raw == nil {
		return c.Context.Done()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.waiting == nil {
		done := make(chan struct{})
		c.waiting, c.ended = done, false
		c.unhook = context.AfterFunc(c.Context, func() {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.endLocked(done)
		})
		c.timer = time.AfterFunc(lookEvery, c.look)
		c.looking.Store(true)
	}
	return c.waiting
}

// endLocked closes what Done returned, unless Rest came first. Err tells why by then.
func (c *Context) endLocked(done chan struct{}) {
	if c.waiting == done && !c.ended {
		c.ended = true
		close(done)
	}
}

// Err implements context.Context.
func (c *Context) Err() error {
	if c.gone.Load() {
		return context.Canceled
	}
	return c.Context.Err()
}

// look ends the context if the client has left.
func (c *Context) look() {
	gone := hasLeft(c.raw)
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.waiting == nil: // Rest came first
	case gone:
		c.gone.Store(true)
		c.endLocked(c.waiting)
	default:
		c.timer.Reset(lookEvery)
	}
}

// Rest ends the look-out, if there is one. It is to be called when a request is answered,
// by the goroutine that answers: nobody waits for Done's channel any more, which
// stays open, for the context has not ended. It reports whether anybody waited.
func (c *Context) Rest() bool {
	if !c.looking.Load() {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.waiting == nil {
		return false
	}
	c.timer.Stop()
	// The parent's end may be on its way already: it finds another channel then, and closes none.
	c.unhook()
	c.waiting, c.unhook, c.timer = nil, nil, nil
	c.looking.Store(false)
	return true
}

// HasLeft reports whether a look-out has seen the client leave.
func (c *Context) HasLeft() bool { return c.gone.Load() }
