package zkstore

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
)

const (
	// sessionTimeout is how long the server keeps a session without hearing from
	// it. The client pings every third of it and gives a connection up after two
	// thirds without an answer.
	sessionTimeout = 6 * time.Second

	connectWithin = 3 * time.Second        // for one server to take a connection and a session
	answersWithin = 250 * time.Millisecond // after that the next one is tried, too
	verifyWithin  = 3 * time.Second        // for it to log in and show the store's identity
	maxReply      = 32 << 20               // bytes; a listing of some hundred thousand names
	maxRequest    = 256 << 10              // bytes
)

// A link is one connection with one session. Once it is lost it is not mended
// but replaced: the client library would take the session up again on another
// connection and send what was queued meanwhile, perhaps to a store that was
// restored in between.
//
//	dialing -> up -> down
//	   +------------> down
type link struct {
	conn   *zk.Conn
	given  bool            // conn is the caller's
	events <-chan zk.Event // closed when the library's goroutines have ended
	up     chan struct{}   // closed once there is a session
	down   chan struct{}   // closed once the link is of no use; why tells the reason
	why    error           // written before down is closed

	answers    answers
	run        string       // of a server that stands alone; empty: of an ensemble, or it does not tell
	generation atomic.Int32 // the version of the node "store", as seen last
	stale      atomic.Bool  // a write was refused; the generation may be another
	oneByOne   atomic.Bool  // the server does not answer requests of a bulk

	upOnce, downOnce sync.Once

	mu     sync.Mutex // guards everything below
	dialed bool       // a connection was asked for
	shut   bool       // none is wanted any more
	raw    net.Conn   // nil until there is one
}

func (l *link) isDown() bool {
	select {
	case <-l.down:
		return true
	default:
		return false
	}
}

func (l *link) fail(why error) {
	l.downOnce.Do(func() {
		l.why = why
		close(l.down)
	})
}

// event is called by the library's goroutine and does not block.
func (l *link) event(e zk.Event) {
	switch {
	case e.Type != zk.EventSession:
	case e.State == zk.StateHasSession:
		l.upOnce.Do(func() { close(l.up) })
	case e.State == zk.StateDisconnected, e.State == zk.StateExpired, e.State == zk.StateAuthFailed:
		l.fail(errors.New("the connection was lost"))
	}
}

// close ends the session and waits for the library's goroutines.
func (l *link) close() {
	l.fail(errors.New("the connection was closed"))
	if l.given {
		return
	}
	select {
	case <-l.up:
		l.conn.Close() // takes a second if the server does not answer
	default:
		// There is no session to end. Close waits a second for that all the same, and alone:
		// whoever opens the store is told sooner what is the matter.
		go l.conn.Close()
	}
	l.mu.Lock()
	if l.raw != nil {
		_ = l.raw.Close() // it may be closed already
	}
	l.shut = true
	l.mu.Unlock()
	for range l.events {
	}
}

// givenLink returns a link over a connection that the caller has made. It counts
// as lost after the first call that the connection fails.
func givenLink(conn *zk.Conn) *link {
	l := &link{conn: conn, given: true, up: make(chan struct{}), down: make(chan struct{})}
	close(l.up)
	return l
}

// newLink starts a link to one server.
func newLink(life context.Context, host string, conf *tls.Config) (*link, error) {
	l := &link{up: make(chan struct{}), down: make(chan struct{})}
	dial := func(_, _ string, _ time.Duration) (net.Conn, error) {
		l.mu.Lock()
		again := l.dialed || l.shut
		l.dialed = true
		l.mu.Unlock()
		if again {
			return nil, errors.New("a link connects once")
		}
		raw, err := l.dial(life, host, conf)
		if err != nil {
			l.fail(err)
		}
		return raw, err
	}
	var err error
	l.conn, l.events, err = zk.Connect([]string{host}, sessionTimeout,
		zk.WithDialer(dial), zk.WithHostProvider(&oneHost{}), zk.WithEventCallback(l.event),
		zk.WithLogger(silence{}), zk.WithLogInfo(false), // errors are returned
		zk.WithMaxBufferSize(maxReply), zk.WithMaxConnBufferSize(maxRequest))
	return l, err
}

// dialServer connects to a server, with TLS where that is wanted.
func dialServer(ctx context.Context, host string, conf *tls.Config) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, connectWithin)
	defer cancel()
	var d net.Dialer
	raw, err := d.DialContext(ctx, "tcp", host)
	if err != nil || conf == nil {
		return raw, err
	}
	conf = conf.Clone()
	if conf.ServerName, _, err = net.SplitHostPort(host); err != nil {
		return nil, errors.Join(err, raw.Close())
	}
	secure := tls.Client(raw, conf)
	if err := secure.HandshakeContext(ctx); err != nil {
		return nil, errors.Join(err, raw.Close())
	}
	return secure, nil
}

func (l *link) dial(ctx context.Context, host string, conf *tls.Config) (net.Conn, error) {
	raw, err := dialServer(ctx, host, conf)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.shut {
		_ = raw.Close()
		return nil, errors.New("the link was closed meanwhile")
	}
	l.raw = raw
	return watched{raw, &l.answers}, nil
}

// oneHost is the library's list of servers: the link's own, by the name that it
// was given. The library pauses for a second before it asks for it again.
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

// An attempt is one try to get a link, which all calls wait for that need one.
type attempt struct {
	done chan struct{} // closed when link and err are set
	link *link
	err  error
}

// current returns a link that is up. If there is none it makes one, and tries
// until the context ends.
func (s *space) current(ctx context.Context) (*link, error) {
	why := errors.New("no connection yet")
	for {
		s.mu.Lock()
		if s.closed {
			s.mu.Unlock()
			return nil, fmt.Errorf("%w: the store in %s", hapax.ErrClosed, s.calls.Service)
		}
		if l := s.link; l != nil && !l.isDown() {
			s.mu.Unlock()
			return l, nil
		}
		a := s.attempt
		if a == nil {
			a = &attempt{done: make(chan struct{})}
			s.attempt = a
			wait := hapax.Backoff(s.failures)
			s.running.Go(func() { s.reconnect(a, wait) })
		}
		s.mu.Unlock()
		select {
		case <-a.done:
			if a.link != nil || isFinal(a.err) {
				return a.link, a.err
			}
			why = a.err
		case <-ctx.Done():
			return nil, s.calls.Unavailable(ctx, why)
		}
	}
}

// isFinal reports whether trying again is of no use.
func isFinal(err error) bool {
	if _, ok := errors.AsType[*driver.WouldChangeError](err); ok {
		return true
	}
	return errors.Is(err, hapax.ErrStoreReplaced) || errors.Is(err, hapax.ErrStoreCorrupt)
}

// reconnect tries every server once, in random order, and the next one where one does not
// answer soon. The first link that is up is taken.
func (s *space) reconnect(a *attempt, wait time.Duration) {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-s.life.Done():
	}
	type result struct {
		host string
		link *link
		err  error
	}
	results := make(chan result)
	order, trying, over := rand.Perm(len(s.hosts)), 0, false
	for !over && len(order)+trying > 0 {
		if len(order) > 0 {
			host := s.hosts[order[0]]
			order = order[1:]
			trying++
			go func() {
				l, err := s.connect(host)
				results <- result{host, l, err}
			}()
		}
		var late <-chan time.Time
		if len(order) > 0 {
			late = time.After(answersWithin)
		}
		select {
		case r := <-results:
			trying--
			if r.err == nil {
				a.link, a.err = r.link, nil
			} else {
				a.err = errors.Join(a.err, fmt.Errorf("%s: %w", r.host, r.err))
			}
			over = r.err == nil || isFinal(r.err) || s.life.Err() != nil
		case <-late:
		}
	}
	s.mu.Lock()
	s.attempt, s.link = nil, a.link
	if s.failures++; a.link != nil {
		s.failures = 0
	}
	s.mu.Unlock()
	close(a.done)
	for range trying {
		if r := <-results; r.err == nil {
			r.link.fail(errors.New("another server has answered sooner"))
		}
	}
}

// connect makes a link to one server and checks the store behind it.
func (s *space) connect(host string) (*link, error) {
	var l *link
	var err error
	if s.given != nil {
		l = givenLink(s.given)
	} else if l, err = newLink(s.life, host, s.tls); err != nil {
		return nil, err
	}
	timer := time.NewTimer(connectWithin)
	defer timer.Stop()
	select {
	case <-l.up:
		err = s.logIn(l)
	case <-l.down:
		err = l.why
	case <-timer.C:
		err = fmt.Errorf("no session within %v", connectWithin)
	case <-s.life.Done():
		err = context.Cause(s.life)
	}
	if err != nil {
		l.fail(err)
	}
	if !s.spawn(func() {
		select {
		case <-l.down:
		case <-s.life.Done():
		}
		l.close()
	}) {
		l.close()
	}
	return l, err
}

// logIn logs in on a new link and checks the store behind it.
func (s *space) logIn(l *link) error {
	ctx, cancel := context.WithTimeout(s.life, verifyWithin)
	defer cancel()
	if s.auth != "" {
		if _, err := call(ctx, s, l, func(conn *zk.Conn) (struct{}, error) {
			return struct{}{}, conn.AddAuth("digest", []byte(s.auth))
		}); err != nil {
			return err
		}
	}
	if err := s.identifyRun(ctx, l); err != nil {
		return err
	}
	return s.verify(ctx, l)
}

// spawn runs f in a goroutine that Close waits for, unless the store is closed.
func (s *space) spawn(f func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.running.Go(f)
	}
	return !s.closed
}

// call runs f, which blocks until the server answers or the link is closed, and
// stops waiting when the context ends. f then goes on alone for as long as the
// link does: its outcome is unknown. How many do is bounded, and Close waits for
// them after it has closed the link.
func call[T any](ctx context.Context, s *space, l *link, f func(*zk.Conn) (T, error)) (T, error) {
	var none T
	select {
	case s.slots <- struct{}{}:
	case <-ctx.Done():
		return none, context.Cause(ctx)
	}
	type result struct {
		value T
		err   error
	}
	out := make(chan result, 1)
	if !s.spawn(func() {
		defer func() { <-s.slots }()
		value, err := f(l.conn)
		out <- result{value, err}
	}) {
		<-s.slots
		return none, fmt.Errorf("%w: the store in %s", hapax.ErrClosed, s.calls.Service)
	}
	select {
	case r := <-out:
		if l.given && isLost(r.err) {
			l.fail(r.err)
		}
		return r.value, r.err
	case <-ctx.Done():
		return none, context.Cause(ctx)
	}
}

// isLost reports whether an error says that the connection or its session is
// not what it was.
func isLost(err error) bool {
	return errors.Is(err, zk.ErrConnectionClosed) || errors.Is(err, zk.ErrSessionExpired) || errors.Is(err, zk.ErrSessionMoved) ||
		errors.Is(err, zk.ErrClosing) || errors.Is(err, zk.ErrNoServer) || errors.Is(err, zk.ErrAuthFailed)
}
