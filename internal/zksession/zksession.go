// Package zksession is a session with ZooKeeper for everything in hapax that has one: calls that
// end with their context, and an end that leaves nothing running.
//
//	connecting -> up -> ended
//	    +-------------> ended
//
// A session renews itself: the client library connects again, and where the server has forgotten
// the session, begins another. A session with Options.Once ends with its connection instead: the
// library would take it up on another one, and send there what was queued meanwhile.
package zksession

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"
)

const (
	dialWithin = 3 * time.Second // for one server to take a connection; the library allows less where it goes on to others
	maxRequest = 256 << 10       // bytes
)

// errLost is why a session with Options.Once has ended.
var errLost = errors.New("the connection was lost")

// Options tell what a session is like. All but TLS, Once and Wrap are needed.
type Options struct {
	Timeout  time.Duration // for how long the server keeps the session without hearing from it
	MaxReply int           // bytes
	MaxCalls int           // under way at a time; more wait
	TLS      *tls.Config   // nil: none
	Once     bool          // the session ends with its connection

	// Wrap, if set, gets each connection before the library does.
	Wrap func(net.Conn) net.Conn
}

// A Session is a session with an ensemble. Its methods are safe for concurrent use.
type Session struct {
	Conn *zk.Conn

	opts    Options
	given   bool            // Conn is the caller's
	ended   <-chan zk.Event // closed when the library's goroutines have ended
	up      chan struct{}   // closed once there is a session
	upOnce  sync.Once
	slots   chan struct{} // one element for each call under way
	life    context.Context
	end     context.CancelCauseFunc
	running sync.WaitGroup // every goroutine of the session

	mu    sync.Mutex // guards what follows, and starts of calls
	dials int        // how often a connection was asked for
	raw   net.Conn   // the latest connection; nil: none yet
}

// Open begins a session with one of the servers, each named with its port, and connects in the
// background. It ends with ctx, or by End or Close.
func Open(ctx context.Context, servers []string, opts Options) (*Session, error) {
	s := newSession(ctx, opts)
	var provider zk.HostProvider = zk.NewDNSHostProvider()
	if opts.Once {
		provider = &oneHost{}
	}
	var err error
	s.Conn, s.ended, err = zk.Connect(servers, opts.Timeout,
		zk.WithDialer(s.dial), zk.WithHostProvider(provider), zk.WithEventCallback(s.event),
		zk.WithLogger(silence{}), zk.WithLogInfo(false), // errors are returned
		zk.WithMaxBufferSize(opts.MaxReply), zk.WithMaxConnBufferSize(maxRequest))
	if err != nil {
		s.end(err)
		return nil, err
	}
	s.running.Go(s.tearDown)
	return s, nil
}

// Given returns a session over a connection that the caller has made, and closes after it. It
// ends with ctx, by End or Close, and after the first call that the connection fails.
func Given(ctx context.Context, conn *zk.Conn, opts Options) *Session {
	s := newSession(ctx, opts)
	s.Conn, s.given = conn, true
	close(s.up)
	s.running.Go(s.tearDown)
	return s
}

func newSession(ctx context.Context, opts Options) *Session {
	s := &Session{opts: opts, up: make(chan struct{}), slots: make(chan struct{}, opts.MaxCalls)}
	s.life, s.end = context.WithCancelCause(ctx)
	return s
}

// Up is closed once the server has taken the session.
func (s *Session) Up() <-chan struct{} { return s.up }

// Done is closed when the session ends.
func (s *Session) Done() <-chan struct{} { return s.life.Done() }

// Cause returns why the session has ended; nil: it has not.
func (s *Session) Cause() error { return context.Cause(s.life) }

// End ends the session, unless it has, and does not wait for that.
func (s *Session) End(why error) { s.end(why) }

// Wait waits until the session has ended and nothing that it has started goes on.
func (s *Session) Wait() { s.running.Wait() }

// Close is End and Wait. That takes a second where the server does not answer.
func (s *Session) Close(why error) {
	s.End(why)
	s.Wait()
}

// tearDown gives up what a session has, once it ends.
func (s *Session) tearDown() {
	<-s.life.Done()
	if !s.given {
		select {
		case <-s.up:
			s.Conn.Close() // the server forgets the session at once, or says nothing for a second
		default:
			// There is no session to end. Close waits a second for that all the same, and alone:
			// whoever waits for the session is told sooner what is the matter.
			go s.Conn.Close()
		}
	}
	s.mu.Lock() // from here on no call begins, and no connection comes
	if s.raw != nil {
		_ = s.raw.Close() // it may be closed already; the library may still read from it
	}
	s.mu.Unlock()
	if !s.given {
		for range s.ended {
		}
	}
}

// event is called by the library's goroutine and does not block.
func (s *Session) event(e zk.Event) {
	switch {
	case e.Type != zk.EventSession:
	case e.State == zk.StateHasSession:
		s.upOnce.Do(func() { close(s.up) })
	case s.opts.Once && (e.State == zk.StateDisconnected || e.State == zk.StateExpired || e.State == zk.StateAuthFailed):
		s.end(errLost)
	}
}

// A Result is what a call has returned.
type Result[T any] struct {
	Value T
	Err   error
}

// Call runs f, which blocks until the server answers or the connection is lost, and stops waiting
// when the context ends: f then goes on alone, for as long as the session does, and what it did is
// unknown. The error is f's, or the cause of the context's end or of the session's.
func Call[T any](ctx context.Context, s *Session, f func(*zk.Conn) (T, error)) (T, error) {
	var none T
	out, err := Start(ctx, s, f)
	if err != nil {
		return none, err
	}
	select {
	case r := <-out:
		return r.Value, r.Err
	case <-ctx.Done():
		return none, context.Cause(ctx)
	}
}

// Start is [Call] that does not wait: out receives what f returns, at the latest when the session has
// ended. With an error f is not run.
func Start[T any](ctx context.Context, s *Session, f func(*zk.Conn) (T, error)) (out <-chan Result[T], err error) {
	select {
	case s.slots <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case <-s.life.Done():
		return nil, s.Cause()
	}
	result := make(chan Result[T], 1)
	if !s.spawn(func() {
		defer func() { <-s.slots }()
		value, err := f(s.Conn)
		if s.given && IsLost(err) {
			s.end(err)
		}
		result <- Result[T]{value, err}
	}) {
		<-s.slots
		return nil, s.Cause()
	}
	return result, nil
}

// spawn runs f in a goroutine that Close waits for, unless the session has ended.
func (s *Session) spawn(f func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.life.Err() != nil {
		return false
	}
	s.running.Go(f)
	return true
}

// LogIn gives the session the rights of an account, user:password of the digest scheme, on this
// connection and on those that follow it.
func (s *Session) LogIn(ctx context.Context, account string) error {
	_, err := Call(ctx, s, func(conn *zk.Conn) (struct{}, error) {
		return struct{}{}, conn.AddAuth("digest", []byte(account))
	})
	return err
}

// IsLost reports whether an error says that the connection or its session is not what it was.
func IsLost(err error) bool {
	return errors.Is(err, zk.ErrConnectionClosed) || errors.Is(err, zk.ErrSessionExpired) || errors.Is(err, zk.ErrSessionMoved) ||
		errors.Is(err, zk.ErrClosing) || errors.Is(err, zk.ErrNoServer) || errors.Is(err, zk.ErrAuthFailed)
}
