// Package respapi serves a service over the Redis protocol, RESP2 and RESP3, to
// any Redis client:
//
//	INCR tag                           issues the next number
//	INCRBY tag n                       issues n numbers in a row and returns the last
//	GET tag                            the last number issued here; issues none
//	HAPAX.NEXT tag [COUNT n] [TEXT|INT]
//	                                   one number, or an array of n
//	HAPAX.PARSE id [layout]            what an ID says: layout, time and fields
//	HAPAX.TAGS [AFTER name] [COUNT n]  the names of the live tags, in byte order
//
// any of them between MULTI and EXEC, and what clients send by themselves: PING,
// ECHO, HELLO, AUTH, SELECT, CLIENT, COMMAND, CONFIG GET, INFO, RESET and QUIT.
// Numbers are RESP integers; HAPAX.NEXT and HAPAX.PARSE have those above 2^53 as
// text, because a client whose numbers are floating point rounds them. A client that
// says who it is, and is known to round, gets them as text from INCR and INCRBY, too.
//
// A connection has one goroutine. Whatever has arrived is answered in order, with
// one write; buffers are lent to a connection only while it has something to say:
//
//	           data                   all answered
//	waiting --------> busy, writing ---------------> waiting
//	   |                    |
//	   +-- end, idle, ------+--> closed
//	       half a frame,    error in the protocol, QUIT, HTTP,
//	       shutdown         slow reader, shutdown
//
// What a client may make the server keep is bounded: see the constants.
package respapi

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/api"
	"github.com/hapax-id/hapax/internal/gate"
	"github.com/hapax-id/hapax/internal/service"
	"github.com/hapax-id/hapax/internal/service/auth"
	"github.com/hapax-id/hapax/internal/service/health"
)

// Limits that have no setting.
const (
	// MaxFrame is how many bytes one command may have.
	MaxFrame = 64 << 10
	// MaxArgs is how many arguments one command may have, its name included.
	MaxArgs = 1024

	maxRun           = 256              // numbers of one tag taken at once for a pipeline
	maxUnsent        = 32 << 10         // bytes of replies after which a pipeline's are written
	maxDiscard       = 1 << 20          // bytes read and dropped after an error, so that it arrives
	handshakeTimeout = 10 * time.Second // for TLS to begin
	maxQueued        = 1 << 20          // bytes of commands between MULTI and EXEC, of a connection
	maxQueuedByAll   = 64 << 20         // the same, of all connections
	maxHalvesByAll   = 64 << 20         // bytes of commands whose end has not come, of all connections
	maxStranger      = 4 << 10          // bytes of a command before AUTH
	maxGuesses       = 10               // wrong tokens on one connection
	refuseWrite      = time.Second      // for telling a client that it is one too many
)

// DefaultMaxConnections is the default of Options.MaxConnections.
const DefaultMaxConnections = 20_000

// Options tune a Server. The zero value suits most uses.
type Options struct {
	// MaxConnections is how many clients may be connected; default 20,000. One
	// more is told so, where that takes no handshake, and closed. Those that have
	// shown no certificate or token yet are an eighth of them at most: the one that
	// has shown none for longest makes room for the next.
	MaxConnections int

	// IdleTimeout closes a connection on which no command came for so long, give
	// or take five seconds; 0 is never. Half-open ones end by TCP keep-alive,
	// which is the listener's.
	IdleTimeout time.Duration

	// LargeAsText has INCR and INCRBY reply numbers above 2^53 - 1 as text to clients
	// that do not say who they are with CLIENT SETINFO, or are not known. Those that are
	// known to round integers always get text, those that do not get integers.
	LargeAsText bool

	// Policy asks clients for tokens, as the password of AUTH or HELLO, and knows
	// what each is good for; nil asks for none. The user is "default" or the
	// token's name.
	Policy *auth.Policy

	// Version is what HELLO, INFO and CLIENT INFO tell of the program; default
	// that of the module it was built from.
	Version string

	// Logger receives panics and trouble with accepting; default slog.Default().
	Logger *slog.Logger

	// TurnedAway is called for each connection that is closed because there are too
	// many; nil: nobody is told.
	TurnedAway func()
}

// past is a deadline that ends a read at once.
var past = time.Unix(1, 0)

// pace is how often and after how long connections are given up, in ticks.
type pace struct {
	tick  time.Duration // how often connections are looked at
	half  int64         // a frame that has begun and does not end
	write int64         // a client that does not take its replies
	idle  int64         // a connection without a command; 0: never
	join  int64         // a client that has shown no certificate or token
	close time.Duration // for a client to take the error before the end
	quiet time.Duration // without a command, after which a connection may be closed when the server stops
}

// A Server serves connections. Its methods are safe for concurrent use.
type Server struct {
	svc     *service.Service
	opts    Options
	pace    pace
	started time.Time
	last    lastIssued

	life context.Context // ends when Shutdown gives up waiting
	stop context.CancelFunc
	done chan struct{} // closed when Shutdown begins
	wg   sync.WaitGroup

	now     atomic.Int64 // ticks so far, from 1; written by watch, read by connections
	ids     atomic.Int64 // connections so far
	refused atomic.Int64
	warned  atomic.Bool  // that a large number went as an integer to an unknown client
	queued  atomic.Int64 // bytes of commands between MULTI and EXEC
	halves  atomic.Int64 // bytes of commands whose end has not come

	gate *gate.Gate

	incr   *health.Route
	routes map[*command]*health.Route // of all commands; under nil, of unknown ones

	mu        sync.Mutex // guards the fields below; nothing waits under it
	draining  bool
	listeners map[net.Listener]struct{}
	conns     map[*conn]struct{}
}

// New returns a server of svc's numbers. Shutdown must be called.
func New(svc *service.Service, opts Options) *Server {
	if opts.MaxConnections <= 0 {
		opts.MaxConnections = DefaultMaxConnections
	}
	if opts.Logger == nil {
		opts.Logger = slog.Default()
	}
	if opts.Version == "" {
		opts.Version = hapax.Version()
	}
	if opts.TurnedAway == nil {
		opts.TurnedAway = func() {}
	}
	s := &Server{
		svc: svc, opts: opts, started: time.Now(),
		pace: pace{tick: 5 * time.Second, half: 6, write: 2, join: 2, close: time.Second, quiet: 100 * time.Millisecond},
		gate: gate.New(opts.MaxConnections),
		done: make(chan struct{}), listeners: map[net.Listener]struct{}{}, conns: map[*conn]struct{}{},
	}
	if opts.IdleTimeout > 0 {
		s.pace.idle = max(1, int64(opts.IdleTimeout/s.pace.tick))
	}
	svc.Counting(API, Codes()...)
	s.countRoutes()
	s.now.Store(1)
	s.life, s.stop = context.WithCancel(context.Background())
	return s
}

// countRoutes makes the counts of every command.
func (s *Server) countRoutes() {
	s.routes = map[*command]*health.Route{nil: s.svc.Route(API, "other")}
	for _, cmd := range commands {
		s.routes[cmd] = s.svc.Route(API, cmd.name)
		for _, sub := range cmd.sub {
			s.routes[sub] = s.svc.Route(API, sub.name)
		}
	}
	s.incr = s.routes[commands["INCR"]]
}

// Serve accepts connections until Shutdown, and then returns nil. It closes the
// listener.
func (s *Server) Serve(l net.Listener) error {
	defer l.Close()
	if !s.enlist(l) {
		return nil
	}
	failures := 0
	for {
		nc, err := l.Accept()
		switch {
		case err == nil:
			failures = 0
			s.admit(nc)
			continue
		case s.isDraining():
			return nil
		case !isTemporary(err):
			return err
		}
		failures++
		wait := hapax.Backoff(failures)
		s.opts.Logger.Warn("a connection could not be accepted", "api", "resp", "err", err, "again_in", wait)
		select {
		case <-s.done:
			return nil
		case <-time.After(wait):
		}
	}
}

// isTemporary reports whether accepting may work again when connections have ended.
func isTemporary(err error) bool {
	for _, e := range []syscall.Errno{syscall.EMFILE, syscall.ENFILE, syscall.ECONNABORTED, syscall.ENOBUFS, syscall.ENOMEM} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// enlist notes a listener, so that Shutdown closes it, and has connections
// watched. It returns false if it came too late.
func (s *Server) enlist(l net.Listener) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.draining {
		return false
	}
	// Once: listeners that have ended stay in the map.
	if len(s.listeners) == 0 {
		s.wg.Go(s.watch)
	}
	s.listeners[l] = struct{}{}
	return true
}

func (s *Server) isDraining() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.draining
}

// admit starts to serve a connection, or tells it that there are too many.
func (s *Server) admit(nc net.Conn) {
	c := newConn(s, nc)
	c.pass = s.gate.Enter(func() {
		s.turnedAway()
		gate.Cut(nc)
	})
	switch {
	case c.pass == nil:
		s.turnedAway()
		turnAway(nc, "ERR max number of clients reached")
	case !s.begin(c):
		c.pass.Leave()
		turnAway(nc, errStopping)
	}
}

// begin serves a connection, unless the server is about to stop.
func (s *Server) begin(c *conn) bool {
	if c.known.Load() {
		c.pass.Vouch()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	// Under the lock with which Shutdown sets it, so that it waits for each that has begun.
	if s.draining {
		return false
	}
	s.conns[c] = struct{}{}
	s.wg.Go(func() {
		defer c.pass.Leave()
		c.serve()
		s.mu.Lock()
		delete(s.conns, c)
		s.mu.Unlock()
	})
	return true
}

// turnedAway counts a connection that was closed because there are too many.
func (s *Server) turnedAway() {
	s.refused.Add(1)
	s.svc.Refused(API, api.ErrLimitExceeded.Code())
	s.opts.TurnedAway()
}

// turnAway tells a new connection why it is not served, and closes it. Its buffer
// takes so little without a wait. Where TLS is spoken nothing can be told before a
// handshake, which would be at the client's pace.
func turnAway(nc net.Conn, why string) {
	if !isSecure(nc) {
		_ = nc.SetWriteDeadline(time.Now().Add(refuseWrite))
		_, _ = nc.Write(appendError(nil, why))
	}
	gate.Cut(nc)
}

func isSecure(nc net.Conn) bool {
	_, ok := nc.(*tls.Conn)
	return ok
}

// watch ends connections that have stood still for too long, until Shutdown.
func (s *Server) watch() {
	ticker := time.NewTicker(s.pace.tick)
	defer ticker.Stop()
	for {
		select {
		case <-s.done:
			return
		case <-ticker.C:
		}
		s.look()
	}
}

// look begins a tick.
func (s *Server) look() {
	now := s.now.Add(1)
	for _, c := range s.connections() {
		if c.isOverdue(now) {
			c.giveUp()
		}
	}
}

func (s *Server) connections() []*conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	// A copy: to end a connection may take a while, and nothing waits under the lock.
	all := make([]*conn, 0, len(s.conns))
	for c := range s.conns {
		all = append(all, c)
	}
	return all
}

// Shutdown accepts nothing more, lets the commands in flight finish, answers what
// else was sent with an error, closes all connections and waits for their
// goroutines. When the context ends it cuts off what is still running, which is
// answered with an error too, and returns the context's error.
func (s *Server) Shutdown(ctx context.Context) error {
	s.mu.Lock()
	if !s.draining {
		s.draining = true
		close(s.done)
	}
	for l := range s.listeners {
		_ = l.Close() // Serve may have closed it
	}
	s.mu.Unlock()
	for _, c := range s.connections() {
		_ = c.net.SetReadDeadline(past) // wakes those that wait for commands
	}
	ended := make(chan struct{})
	go func() { s.wg.Wait(); close(ended) }()
	var err error
	select {
	case <-ended:
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	s.stop()
	if err != nil { // what waited for the store tells its client so
		select {
		case <-ended:
		case <-time.After(2 * s.pace.close):
		}
	}
	for _, c := range s.connections() {
		gate.Cut(c.net)
	}
	<-ended
	return err
}

// lastIssued remembers the last number of each tag that was issued through this
// server, for tags of which the service does not know it.
type lastIssued struct {
	byTag sync.Map // string to *atomic.Int64; an entry is made with its tag's first number
}

// cell returns where the last number of a tag is kept.
func (l *lastIssued) cell(tag string) *atomic.Int64 {
	if v, ok := l.byTag.Load(tag); ok {
		return v.(*atomic.Int64)
	}
	v, _ := l.byTag.LoadOrStore(tag, new(atomic.Int64))
	return v.(*atomic.Int64)
}

func (l *lastIssued) get(tag string) (hapax.ID, bool) {
	v, ok := l.byTag.Load(tag)
	if !ok {
		return 0, false
	}
	return hapax.ID(v.(*atomic.Int64).Load()), true
}
