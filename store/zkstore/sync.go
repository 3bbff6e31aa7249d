package zkstore

import (
	"context"
	"encoding/binary"
	"net"
	"sync"

	"github.com/go-zookeeper/zk"

	"github.com/hapax-id/hapax/internal/zksession"
)

// syncs tell when a sync is sent on a connection. A server that lags behind its leader answers
// what follows one on the same connection when it has caught up, so that what follows need not
// wait for the answer: the two are one round trip.
type syncs struct {
	mu   sync.Mutex
	next chan struct{} // closed with the next one, by the connection; nil: nobody waits. Guarded by mu
}

// after returns a channel that is closed with the next sync that is sent.
func (s *syncs) after() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.next == nil {
		s.next = make(chan struct{})
	}
	return s.next
}

// wrote notes a request, as the library writes it: its length, number and kind, then the rest.
func (s *syncs) wrote(request []byte) {
	if len(request) < 12 || binary.BigEndian.Uint32(request[8:]) != opSync {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.next != nil {
		close(s.next)
		s.next = nil
	}
}

// sync has the server catch up before it answers what is asked from now on. What it answers counts
// if synced, which is to be called, returns no error.
func (s *space) sync(ctx context.Context, l *link, node string) (synced func() error) {
	ask := func() error {
		_, err := zksession.Call(ctx, l.Session, func(conn *zk.Conn) (string, error) { return conn.Sync(node) })
		return err
	}
	if s.given != nil { // nobody sees what is sent
		err := ask()
		return func() error { return err }
	}
	// In this order: a sync that was sent before would not be told of.
	sent, answer := l.syncs.after(), make(chan error, 1)
	go func() { answer <- ask() }()
	select {
	case <-sent: // this one, or another since
	case err := <-answer:
		answer <- err
	}
	return func() error { return <-answer }
}

// Write implements net.Conn.
func (w watched) Write(b []byte) (int, error) {
	w.syncs.wrote(b)
	return w.Conn.Write(b)
}

var _ net.Conn = watched{}
