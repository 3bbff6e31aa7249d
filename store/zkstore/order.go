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
	type result struct {
		value T
		err   error
	}
	answer := make(chan result, 1)
	ask := func() {
		value, err := zksession.Call(ctx, l.Session, f)
		answer <- result{value, err}
	}
	wait = func() (T, error) {
		r := <-answer
		return r.value, r.err
	}
	if l.blind.Load() {
		ask()
		return wait
	}
	// One at a time, so that the next one of the kind is this one.
	select {
	case l.sending <- struct{}{}:
		defer func() { <-l.sending }()
	case <-ctx.Done(): // of which the call tells
		ask()
		return wait
	}
	// In this order: one that was sent before would not be told of.
	sent := l.sends.after(kind)
	go ask()
	select {
	case <-sent:
	case r := <-answer:
		answer <- r
		select {
		case <-sent:
		default: // it may be sent yet, and would pass for the next one
			l.blind.Store(true)
		}
	}
	return wait
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
