// Package dubbo is Vesta's central server: it answers consumers of its IdService
// over the Dubbo protocol with Hessian 2, as Java's Dubbo speaks it by default.
//
// The server reads a bounded subset of Hessian 2 of its own. Whatever arrives is
// answered with a result or with a status and a text, or ends the connection; it
// does not end the process. Every connection has two goroutines, one that reads and
// answers and one that writes; a call that has to wait goes on in a third, so that
// the calls behind it need not.
package dubbo

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/compat/vesta"
)

// DefaultInterface is the Java interface that consumers call.
const DefaultInterface = "com.robert.vesta.service.intf.IdService"

// WandaInterface is that interface in an older Vesta. Its makeId takes the machine before
// time and sequence.
const WandaInterface = "com.wanda.vesta.service.intf.IdService"

// Defaults of Options.
const (
	DefaultMaxConns = 1024
	DefaultWait     = 2 * time.Second
	DefaultIdle     = 3 * time.Minute
)

const (
	firstWithin = 5 * time.Second  // for the first frame of a connection to begin
	bodyWithin  = 10 * time.Second // for the rest of a frame to arrive
	writeWithin = 10 * time.Second // for a reply to leave

	maxWaiting = 128 // calls of one connection that wait for a number
	maxReplies = 16  // replies of one connection that wait for the writer

	maxUnsent = 4 << 20 // bytes of replies that wait for the writers of all connections
)

// Options tune a Server. The zero value suits most uses.
type Options struct {
	// Interfaces are the names under which the service is called; default
	// DefaultInterface. The class of expId's result follows from the name.
	Interfaces []string

	// MaxConns bounds the open connections; default 1,024. One more is closed at once.
	MaxConns int

	// Wait bounds how long a call waits for a number; default 2 s.
	Wait time.Duration

	// Known, if not nil, is told of a connection when a whole frame has come over it.
	Known func(net.Conn)

	// Answered, if not nil, is told of each call: one of Methods, or Other, whether it
	// failed, and how long that took.
	Answered func(method string, failed bool, took time.Duration)

	// Idle is how long a connection stays open without a request or a heartbeat;
	// default 3 min, which is three heartbeats of a consumer.
	Idle time.Duration
}

// Methods are what can be called. Other stands for everything else, in Options.Answered.
var Methods = []string{"genId", "expId", "makeId", "transTime", echo}

// Other is no method.
const Other = "other"

// answered tells of a call.
func (s *Server) answered(c call, began time.Time, err error) {
	if s.opts.Answered == nil {
		return
	}
	method := Other
	if slices.Contains(Methods, c.method) {
		method = c.method
	}
	s.opts.Answered(method, err != nil, time.Since(began))
}

// A Server answers consumers of an IDService.
type Server struct {
	ids     *vesta.IDService
	opts    Options
	classes map[string]string // of expId's result, by interface
	now     context.Context   // has ended: a call with it does not wait

	life context.Context // ends when connections must not be waited for any more
	kill context.CancelFunc

	unsent atomic.Int64 // bytes of replies that wait for the writers

	mu      sync.Mutex // guards everything below
	closing bool
	lns     map[net.Listener]struct{}
	conns   map[*conn]struct{}
	wg      sync.WaitGroup // one for each connection
}

// NewServer returns a server that publishes the numbers of a service as those of a
// central server.
func NewServer(ids *vesta.IDService, opts Options) (*Server, error) {
	if len(opts.Interfaces) == 0 {
		opts.Interfaces = []string{DefaultInterface}
	}
	s := &Server{ids: ids.Via(vesta.CentralServer), classes: map[string]string{}, lns: map[net.Listener]struct{}{}, conns: map[*conn]struct{}{}}
	for _, name := range opts.Interfaces {
		if !isClassName(name) {
			return nil, &hapax.ValueError{Field: "interface", Value: name, Allowed: "the full name of a Java interface, such as " + DefaultInterface, Err: hapax.ErrInvalidArgument}
		}
		s.classes[name] = classOf(name)
	}
	if opts.MaxConns == 0 {
		opts.MaxConns = DefaultMaxConns
	}
	if opts.Wait == 0 {
		opts.Wait = DefaultWait
	}
	if opts.Idle == 0 {
		opts.Idle = DefaultIdle
	}
	if opts.MaxConns < 0 || opts.Wait < 0 || opts.Idle < 0 {
		return nil, &hapax.ValueError{Field: "max_conns, wait or idle", Value: fmt.Sprint(opts.MaxConns, ", ", opts.Wait, ", ", opts.Idle), Allowed: "more than zero", Err: hapax.ErrInvalidArgument}
	}
	s.opts = opts
	s.life, s.kill = context.WithCancel(context.Background())
	now, end := context.WithCancel(s.life)
	end()
	s.now = now
	return s, nil
}

// isClassName reports whether a name can be a Java class in a package.
func isClassName(name string) bool {
	dots := 0
	for i, r := range name {
		switch {
		case r == '.' && i > 0 && name[i-1] != '.':
			dots++
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '_', r == '$':
		default:
			return false
		}
	}
	return dots > 0 && len(name) <= maxName && name[len(name)-1] != '.'
}

// ErrServerClosed is what Serve returns after Close.
var ErrServerClosed = errors.New("dubbo: the server is closed")

// Serve answers the connections of a listener, which it closes, until the listener
// fails or Close is called.
func (s *Server) Serve(ln net.Listener) error {
	if !s.addListener(ln) {
		_ = ln.Close()
		return ErrServerClosed
	}
	defer func() {
		_ = ln.Close() // Close may have done so
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.lns, ln)
	}()
	for pause := time.Duration(0); ; {
		raw, err := ln.Accept()
		switch {
		case err == nil:
			pause = 0
			s.open(raw)
		case s.isClosing():
			return ErrServerClosed
		case isTemporary(err): // such as too many open files
			pause = min(max(2*pause, 5*time.Millisecond), time.Second)
			select {
			case <-time.After(pause):
			case <-s.life.Done():
			}
		default:
			return err
		}
	}
}

func isTemporary(err error) bool {
	t, ok := errors.AsType[interface {
		error
		Temporary() bool
	}](err)
	return ok && t.Temporary()
}

func (s *Server) isClosing() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closing
}

func (s *Server) addListener(ln net.Listener) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closing {
		s.lns[ln] = struct{}{}
	}
	return !s.closing
}

// open starts to answer a connection, or closes it if there are too many.
func (s *Server) open(raw net.Conn) {
	c := &conn{Conn: raw, server: s, out: make(chan []byte, maxReplies), slots: make(chan struct{}, maxWaiting)}
	s.mu.Lock()
	// With the lock held: Close either finds the connection, or has kept it from beginning.
	admitted := !s.closing && len(s.conns) < s.opts.MaxConns
	if admitted {
		s.conns[c] = struct{}{}
		s.wg.Go(c.serve)
	}
	s.mu.Unlock()
	if !admitted {
		_ = raw.Close() // there is nobody to tell
	}
}

// Close stops the server: it reads no more requests, answers those that were read and
// closes the connections. When the context ends first, it closes them at
// once and returns the context's error. No goroutine is left in either case.
func (s *Server) Close(ctx context.Context) error {
	s.mu.Lock()
	s.closing = true
	for ln := range s.lns {
		_ = ln.Close() // Serve returns
	}
	for c := range s.conns {
		c.stop()
	}
	s.mu.Unlock()

	done := make(chan struct{})
	go func() {
		s.wg.Wait()
		close(done)
	}()
	var err error
	select {
	case <-done:
	case <-ctx.Done():
		err = ctx.Err()
	}
	// Not before: calls that were read are answered as long as the context allows.
	s.kill()
	s.mu.Lock()
	for c := range s.conns {
		_ = c.Close() // its goroutines end
	}
	s.mu.Unlock()
	<-done
	return err
}
