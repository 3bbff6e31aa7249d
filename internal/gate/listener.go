package gate

import (
	"net"
	"runtime"
	"time"
)

// Listen returns a listener whose connections pass the gate. One that finds no place
// is closed, without a word. Where strangers is false nobody has to show anything, and
// every connection is a known one. Refused, if not nil, is told of each that is closed.
func Listen(l net.Listener, g *Gate, strangers bool, refused func()) net.Listener {
	if refused == nil {
		refused = func() {}
	}
	return &listener{l, g, strangers, refused}
}

type listener struct {
	net.Listener
	gate      *Gate
	strangers bool
	refused   func()
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	for {
		nc, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		c := &conn{Conn: nc}
		c.pass = l.gate.Enter(func() { l.refuse(nc) })
		if c.pass == nil {
			l.refuse(nc)
			continue
		}
		c.pass.said.Store(busy) // until it is first read
		if !l.strangers {
			c.pass.Vouch()
		}
		return c, nil
	}
}

func (l *listener) refuse(nc net.Conn) {
	Cut(nc)
	l.refused()
}

// A conn is a connection that passed a gate.
type conn struct {
	net.Conn
	pass *Pass
}

// Read implements net.Conn. A stranger's pace is that of the gate: the wait comes before
// the next read, lest what has come is late.
func (c *conn) Read(b []byte) (int, error) {
	if c.pass.isKnown() {
		return c.Conn.Read(b)
	}
	runtime.Gosched() // so that requests that were read have begun before there are more
	for wait := c.pass.wait(); wait > 0 && !c.pass.isKnown(); wait = c.pass.wait() {
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-c.pass.known:
			timer.Stop()
		}
	}
	if !c.pass.isKnown() {
		b = b[:min(len(b), strangersRead)]
	}
	c.pass.said.Store(int64(time.Since(c.pass.came)))
	n, err := c.Conn.Read(b)
	c.pass.said.Store(busy)
	c.pass.note(n)
	return n, err
}

// NetConn returns the connection below.
func (c *conn) NetConn() net.Conn { return c.Conn }

// Close implements net.Conn.
func (c *conn) Close() error {
	c.pass.Leave()
	return c.Conn.Close()
}

// PassOf returns the pass of a connection that Listen's listener has accepted, however
// it is wrapped since; nil if there is none.
func PassOf(nc net.Conn) *Pass {
	for nc != nil {
		if c, ok := nc.(*conn); ok {
			return c.pass
		}
		wrapped, ok := nc.(interface{ NetConn() net.Conn })
		if !ok {
			return nil
		}
		nc = wrapped.NetConn()
	}
	return nil
}

// Bare returns the connection below TLS and all other wrapping, which can be closed
// and looked at without a wait.
func Bare(nc net.Conn) net.Conn {
	for {
		wrapped, ok := nc.(interface{ NetConn() net.Conn })
		if !ok {
			return nc
		}
		nc = wrapped.NetConn()
	}
}

// Cut closes a connection at once: TLS would say goodbye first, and wait for a client
// that does not listen.
func Cut(nc net.Conn) { _ = Bare(nc).Close() }
