package gate

import (
	"crypto/tls"
	"net"
)

// Listen returns a listener whose connections pass the gate. One that finds no place
// is closed, without a word. Refused, if not nil, is told of each.
func Listen(l net.Listener, g *Gate, refused func()) net.Listener {
	return &listener{l, g, refused}
}

type listener struct {
	net.Listener
	gate    *Gate
	refused func()
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	for {
		nc, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		c := &conn{Conn: nc}
		if c.pass = l.gate.Enter(func() { Cut(nc) }); c.pass != nil {
			return c, nil
		}
		Cut(nc)
		if l.refused != nil {
			l.refused()
		}
	}
}

// A conn is a connection that passed a gate.
type conn struct {
	net.Conn
	pass *Pass
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

var _ interface{ NetConn() net.Conn } = (*tls.Conn)(nil)
