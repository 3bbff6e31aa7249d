package zksession

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"time"
)

// Dial connects to a server, with TLS where conf is not nil.
func Dial(ctx context.Context, server string, conf *tls.Config) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialWithin)
	defer cancel()
	var d net.Dialer
	raw, err := d.DialContext(ctx, "tcp", server)
	if err != nil || conf == nil {
		return raw, err
	}
	conf = conf.Clone()
	if conf.ServerName, _, err = net.SplitHostPort(server); err != nil {
		return nil, errors.Join(err, raw.Close())
	}
	secure := tls.Client(raw, conf)
	if err := secure.HandshakeContext(ctx); err != nil {
		return nil, errors.Join(err, raw.Close())
	}
	return secure, nil
}

// dial is the library's way to a connection.
func (s *Session) dial(_, server string, within time.Duration) (net.Conn, error) {
	s.mu.Lock()
	s.dials++
	again := s.dials > 1
	s.mu.Unlock()
	ctx := s.life
	switch {
	case !s.opts.Once: // another server may be there
		limited, cancel := context.WithTimeout(ctx, within)
		defer cancel()
		ctx = limited
	case again:
		return nil, errors.New("the session connects once")
	}
	raw, err := Dial(ctx, server, s.opts.TLS)
	if err != nil {
		if s.opts.Once {
			s.end(err)
		}
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.life.Err() != nil { // whoever tears down has not seen this connection
		return nil, errors.Join(s.Cause(), raw.Close())
	}
	s.raw = raw
	if s.opts.Wrap != nil {
		raw = s.opts.Wrap(raw)
	}
	return &socket{Conn: raw, within: 2 * s.opts.Timeout / 3}, nil
}

// A socket is a connection that is given up if the server does not accept the session in time. The
// library would wait for that ten times as long as for any other answer and, once the answer has
// begun, for ever. Its first two read deadlines are those of that answer.
type socket struct {
	net.Conn
	within time.Duration
	set    int // how many deadlines were set; only the library's goroutine that reads does
}

// SetReadDeadline implements net.Conn.
func (c *socket) SetReadDeadline(t time.Time) error {
	if c.set++; c.set <= 2 {
		t = time.Now().Add(c.within)
	}
	return c.Conn.SetReadDeadline(t)
}

// oneHost is the library's list of servers: the session's own, by the name that it was given. The
// library pauses for a second before it asks for it again.
type oneHost struct {
	servers []string
	asked   bool // only the library's one goroutine asks
}

func (h *oneHost) Init(servers []string) error { h.servers = servers; return nil }
func (h *oneHost) Len() int                    { return len(h.servers) }
func (h *oneHost) Connected()                  {}
func (h *oneHost) Next() (string, bool) {
	again := h.asked
	h.asked = true
	return h.servers[0], again
}

type silence struct{}

func (silence) Printf(string, ...any) {}
