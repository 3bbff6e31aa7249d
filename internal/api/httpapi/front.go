package httpapi

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"runtime/debug"
	"sync"
	"time"

	"github.com/hapax-id/hapax/internal/gate"
	"github.com/hapax-id/hapax/internal/service/auth"
)

// A Front is a listener before an http.Server that answers by itself what asks for
// numbers and no more:
//
//	GET /v1/tags/{plain name}/next HTTP/1.1
//	POST /v1/tags/{plain name}/ids HTTP/1.1, without a body
//
// with a count and a format in the query, harmless headers and, where callers must show
// one, a token or a certificate that may take numbers of the tag. It issues as the routes
// do, at half the cost. A GET without a body for one of FrontOptions.Paths is answered by
// the handler, without what net/http does around it.
//
// It understands and refuses nothing else: a connection that says anything else, or shows
// a token that is not good for it, goes to the http.Server, with every byte that is not
// answered, and does not come back. So does one that sends half a request.
//
// Over TLS the front shakes hands, since what a client wants to speak shows only there.
// A connection on which that fails, or that is to speak HTTP/2, goes to the http.Server as
// it is, which finds the handshake done and does the rest.
type Front struct {
	net.Listener // accepts the connections

	api    *restAPI // nil: no numbers of tags are issued
	routes frontRoutes
	opts   FrontOptions
	handed chan net.Conn // to the http.Server
	failed chan error    // of accepting

	life context.Context // ends when Shutdown gives up waiting
	stop context.CancelFunc
	wg   sync.WaitGroup

	once  sync.Once
	done  chan struct{} // closed by Close
	mu    sync.Mutex    // guards conns
	conns map[net.Conn]struct{}
}

const (
	frontBuffer  = 4 << 10         // bytes of requests at a time
	frontFirst   = 5 * time.Second // for a handshake, and for the first byte
	frontPatient = 5 * time.Second // how late a deadline may be moved on
	frontAnswers = 64 << 10        // bytes of answers that are written at once, but for a longer one
)

// FrontOptions tune a front.
type FrontOptions struct {
	// Idle is how long a connection may be without a request, and Write how long a client
	// may take for an answer, beyond which it may have waited for numbers.
	Idle, Write time.Duration

	// Conn returns what a connection counts for: the tokens that are used on it.
	Conn func(net.Conn) *auth.Conn

	// Paths are the paths, and beginnings of paths, for which the front asks the handler, too.
	// Its answers there fit into memory, and it does not change requests.
	Paths []string

	// Logger receives panics.
	Logger *slog.Logger
}

// NewFront returns a front for a handler that New has made, to be served in place of the
// listener, which may be one of TLS. Shutdown must be called. Where requests are logged
// there is no front: it returns the listener.
func NewFront(l net.Listener, handler http.Handler, opts FrontOptions) (net.Listener, *Front) {
	a := handler.(*restAPI) // a handler around it would not be asked
	if a.opts.Logger.Enabled(context.Background(), slog.LevelDebug) {
		return l, nil
	}
	f := newFront(l, a, handler, opts)
	return f, f
}

// NewForeignFront returns a front that only answers for paths, of any handler.
func NewForeignFront(l net.Listener, handler http.Handler, opts FrontOptions) *Front {
	return newFront(l, nil, handler, opts)
}

func newFront(l net.Listener, a *restAPI, handler http.Handler, opts FrontOptions) *Front {
	f := &Front{
		Listener: l, api: a, routes: frontRoutes{handler: handler, paths: opts.Paths}, opts: opts, handed: make(chan net.Conn), failed: make(chan error),
		done: make(chan struct{}), conns: map[net.Conn]struct{}{},
	}
	f.life, f.stop = context.WithCancel(context.Background())
	f.wg.Go(f.accept)
	return f
}

// accept serves connections until Close.
func (f *Front) accept() {
	for {
		nc, err := f.Listener.Accept()
		if err != nil {
			select {
			case f.failed <- err: // the http.Server waits a little if it passes
				continue
			case <-f.done:
				return
			}
		}
		if !f.enlist(nc) {
			_ = nc.Close()
			return
		}
		f.wg.Go(func() {
			defer f.forget(nc)
			f.serve(nc)
		})
	}
}

func (f *Front) enlist(nc net.Conn) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.isClosed() {
		return false
	}
	f.conns[nc] = struct{}{}
	return true
}

func (f *Front) forget(nc net.Conn) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.conns, nc)
}

func (f *Front) isClosed() bool {
	select {
	case <-f.done:
		return true
	default:
		return false
	}
}

// Accept returns the next connection that is not the front's.
func (f *Front) Accept() (net.Conn, error) {
	select {
	case nc := <-f.handed:
		return nc, nil
	case err := <-f.failed:
		return nil, err
	case <-f.done:
		return nil, net.ErrClosed
	}
}

// Close accepts nothing more, and has connections end with the request in flight.
func (f *Front) Close() error {
	var err error
	f.once.Do(func() {
		// Under the lock: connections that are enlisted later are turned away, earlier ones are woken below.
		f.mu.Lock()
		close(f.done)
		f.mu.Unlock()
		err = f.Listener.Close()
		f.each(func(nc net.Conn) { _ = nc.SetReadDeadline(time.Unix(1, 0)) }) // wakes those that wait for requests
	})
	return err
}

func (f *Front) each(do func(net.Conn)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for nc := range f.conns {
		do(nc)
	}
}

// Shutdown waits for the http.Server to close the front, and for requests in flight,
// until the context ends, whose error it returns then.
func (f *Front) Shutdown(ctx context.Context) error {
	select {
	case <-f.done:
	case <-ctx.Done():
		_ = f.Close() // what it says is no news
	}
	ended := make(chan struct{})
	go func() { f.wg.Wait(); close(ended) }()
	var err error
	select {
	case <-ended:
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	// Calls that wait for numbers end with the context, and clients that do not read their answers
	// with the connection.
	f.stop()
	f.each(gate.Cut)
	<-ended
	return err
}

// serve answers requests until the connection ends or says something else.
func (f *Front) serve(nc net.Conn) {
	handed := false
	defer func() {
		if p := recover(); p != nil && p != http.ErrAbortHandler {
			f.opts.Logger.Error("panic while serving a request", "api", API, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
		}
		if !handed {
			_ = nc.Close()
		}
	}()
	if !f.await(nc) {
		return
	}
	conn := f.opts.Conn(nc)
	var secured *tls.ConnectionState
	if secure, ok := nc.(*tls.Conn); ok {
		err := secure.HandshakeContext(f.life)
		state := secure.ConnectionState()
		if err != nil || state.NegotiatedProtocol == "h2" {
			handed = f.hand(nc)
			return
		}
		conn.Secure(&state)
		secured = &state
		if !f.await(nc) {
			return
		}
	}
	c := newFrontConn(f.life, f.api, nc, conn)
	c.routes, c.secured = f.routes, secured
	defer c.close()
	buf := make([]byte, frontBuffer)
	for {
		n, err := nc.Read(buf)
		if err != nil {
			return
		}
		rest, err := f.answer(nc, c, buf[:n])
		switch {
		case err != nil || c.client.HasLeft():
			return
		case len(rest) > 0:
			c.close() // the http.Server counts it from here on
			// Cloned: the buffer would otherwise be kept for as long as the connection lasts.
			handed = f.hand(replay(nc, bytes.Clone(rest)))
			return
		// Only now: the requests that had come are answered.
		case f.isClosed():
			return
		}
	}
}

// await sets the deadline for the first thing that a client says; false if the front is
// closed, which sets one, too.
func (f *Front) await(nc net.Conn) bool {
	return nc.SetDeadline(time.Now().Add(frontFirst)) == nil && !f.isClosed()
}

// answer writes the answers to requests, and returns what comes after those that are
// the front's.
func (f *Front) answer(nc net.Conn, c *frontConn, in []byte) (rest []byte, err error) {
	for more := true; more; {
		in, more = c.answer(in)
		if c.client.HasLeft() {
			return nil, nil
		}
		if c.now.Sub(c.moved) > frontPatient {
			if err := errors.Join(nc.SetReadDeadline(c.now.Add(f.opts.Idle)), nc.SetWriteDeadline(c.now.Add(f.opts.Write))); err != nil {
				return nil, err
			}
			c.moved = c.now
		}
		if len(c.out) > 0 {
			if _, err := nc.Write(c.out); err != nil {
				return nil, err
			}
		}
		if cap(c.out) > 2*frontAnswers {
			c.out = nil // the connection may be idle from here on
		}
	}
	return in, nil
}

// hand gives a connection to the http.Server.
func (f *Front) hand(nc net.Conn) bool {
	// The http.Server sets its own.
	if nc.SetDeadline(time.Time{}) != nil {
		return false
	}
	select {
	case f.handed <- nc:
		return true
	case <-f.done:
		return false
	}
}

// replay returns a connection of which something was read, to be read once more.
func replay(nc net.Conn, rest []byte) net.Conn {
	if secure, ok := nc.(*tls.Conn); ok {
		return &replayedTLS{secure, replayed{secure, rest}}
	}
	return &replayed{nc, rest}
}

// replayed is a connection of which something was read.
type replayed struct {
	net.Conn
	rest []byte // to be read first
}

func (c *replayed) Read(p []byte) (int, error) {
	if len(c.rest) == 0 {
		return c.Conn.Read(p)
	}
	n := copy(p, c.rest)
	if c.rest = c.rest[n:]; len(c.rest) == 0 {
		c.rest = nil
	}
	return n, nil
}

// NetConn returns the connection below, whose gate.Pass it has.
func (c *replayed) NetConn() net.Conn { return c.Conn }

// replayedTLS is a replayed connection over TLS: its method ConnectionState tells net/http so.
type replayedTLS struct {
	*tls.Conn
	replayed replayed
}

func (c *replayedTLS) Read(p []byte) (int, error) { return c.replayed.Read(p) }
