package zkstore

import (
	"context"
	"encoding/binary"
	"net"
	"sync"

	"github.com/go-zookeeper/zk"

	"github.com/hapax-id/hapax/internal/zksession"
)

// sends tell when requests are sent on a connection. A server answers those of one connection in
// their order, each from a state that has what came before it; one that lags behind its leader
// answers what follows a sync when it has caught up. So what follows a request need not wait for
// its answer: the two are one round trip.
type sends struct {
	mu   sync.Mutex
	next map[uint32]chan struct{} // closed with the next request of a kind, by the connection. Guarded by mu
}

// after returns a channel that is closed with the next request of a kind that is sent.
func (s *sends) after(kind uint32) <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.next == nil {
		s.next = map[uint32]chan struct{}{}
	}
	if s.next[kind] == nil {
		s.next[kind] = make(chan struct{})
	}
	return s.next[kind]
}

// wrote notes a request, as the library writes it: its length, number and kind, then the rest.
func (s *sends) wrote(request []byte) {
	if len(request) < 12 {
		return
	}
	kind := binary.BigEndian.Uint32(request[8:])
	s.mu.Lock()
	defer s.mu.Unlock()
	if next := s.next[kind]; next != nil {
		close(next)
		delete(s.next, kind)
	}
}

// send makes a call of one request of a kind, and returns once that is sent: what is asked from now
// on is answered after it. Its answer is that of wait, which is to be called.
func send[T any](ctx context.Context, l *link, kind uint32, f func(*zk.Conn) (T, error)) (wait func() (T, error)) {
	var none T
	failed := func(err error) func() (T, error) { return func() (T, error) { return none, err } }
	if l.blind {
		value, err := zksession.Call(ctx, l.Session, f)
		return func() (T, error) { return value, err }
	}
	// One at a time, so that the next one of the kind is this one.
	select {
	case l.sending <- struct{}{}:
	case <-ctx.Done():
		return failed(context.Cause(ctx))
	}
	// In this order: one that was sent before would not be told of.
	sent, over := l.sends.after(kind), make(chan struct{})
	out, err := zksession.Start(ctx, l.Session, func(conn *zk.Conn) (T, error) {
		defer close(over)
		return f(conn)
	})
	if err != nil {
		<-l.sending
		return failed(err)
	}
	select {
	case <-sent:
		<-l.sending
	case <-over:
		<-l.sending
	case <-ctx.Done(): // it may be sent yet, and would pass for the next one
		go func() { // ends with the link at the latest
			select {
			case <-sent:
			case <-over:
			}
			<-l.sending
		}()
	}
	return func() (T, error) {
		select {
		case r := <-out:
			return r.Value, r.Err
		case <-ctx.Done():
			return none, context.Cause(ctx)
		}
	}
}

// sync has the server catch up before it answers what is asked from now on. What it answers counts
// if synced, which is to be called, returns no error.
func (s *space) sync(ctx context.Context, l *link, node string) (synced func() error) {
	wait := send(ctx, l, opSync, func(conn *zk.Conn) (string, error) { return conn.Sync(node) })
	return func() error {
		_, err := wait()
		return err
	}
}

// Write implements net.Conn.
func (w watched) Write(b []byte) (int, error) {
	w.sends.wrote(b)
	return w.Conn.Write(b)
}

var _ net.Conn = watched{}
