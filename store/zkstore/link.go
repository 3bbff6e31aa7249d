package zkstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/zksession"
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
	maxCalls      = 128                    // requests under way on one link
)

// A link is one connection with one session. Once it is lost it is not mended
// but replaced: the client library would take the session up again on another
// connection and send what was queued meanwhile, perhaps to a store that was
// restored in between.
type link struct {
	*zksession.Session

	answers    answers
	sends      sends
	sending    chan struct{} // holds an element while a call waits until its request is sent
	blind      bool          // nobody sees what is sent, and so each request waits for the answer to the one before
	run        string        // of a server that stands alone; empty: of an ensemble, or it does not tell
	voters     int           // members of the ensemble that it names, none where it stands alone; -1: it does not tell
	generation atomic.Int32  // the version of the node "store", as seen last
	stale      atomic.Bool   // a write was refused; the generation may be another
	oneByOne   atomic.Bool   // the server does not answer requests of a bulk

	// listed are the names of the rows below a node (string, []string), as they were listed last, where
	// they are few.
	listed sync.Map

	// last are rows (driver.Key, driver.Cell) as they were written or seen last: the one of the process
	// that beats on this handle, and the counters. A write of the process's row is on condition of the
	// version that the one before has left, and those who only look at it are on condition of that
	// version, too.
	last sync.Map
}

// linked runs f with a link that is up, as a call.
func (s *space) linked(ctx context.Context, f func(context.Context, *link) error) error {
	ctx, cancel, err := s.calls.Begin(ctx)
	if err != nil {
		return err
	}
	defer cancel()
	l, err := s.current(ctx)
	if err != nil {
		return err
	}
	return f(ctx, l)
}

// newLink starts a link: to one server, or over the caller's connection.
func (s *space) newLink(host string) (l *link, err error) {
	l = &link{}
	opts := zksession.Options{
		Timeout: sessionTimeout, MaxReply: maxReply, MaxCalls: maxCalls, TLS: s.tls, Once: true,
		Wrap: func(conn net.Conn) net.Conn { return watched{conn, &l.answers, &l.sends} },
	}
	if s.given != nil {
		l.blind = true
		l.Session = zksession.Given(s.life, s.given, opts)
		return l, nil
	}
	l.sending = make(chan struct{}, 1)
	l.Session, err = zksession.Open(s.life, []string{host}, opts)
	return l, err
}

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
		if closed := context.Cause(s.life); closed != nil {
			s.mu.Unlock()
			return nil, closed
		}
		if l := s.link; l != nil && l.Cause() == nil {
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
	if _, ok := errors.AsType[*driver.ClosedError](err); ok {
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
	// After the callers were let go: a server that hangs takes its whole time to fail.
	for range trying {
		if r := <-results; r.err == nil {
			r.link.End(errors.New("another server has answered sooner"))
		}
	}
}

// connect makes a link to one server and checks the store behind it.
func (s *space) connect(host string) (*link, error) {
	l, err := s.newLink(host)
	if err != nil {
		return nil, err
	}
	s.running.Go(l.Wait)
	timer := time.NewTimer(connectWithin)
	defer timer.Stop()
	select {
	case <-l.Up():
		err = s.logIn(l)
	case <-l.Done():
		err = l.Cause()
	case <-timer.C:
		err = fmt.Errorf("no session within %v", connectWithin)
	}
	if err != nil {
		l.End(err)
	}
	return l, err
}

// logIn logs in on a new link and checks the store behind it.
func (s *space) logIn(l *link) error {
	ctx, cancel := context.WithTimeout(driver.WithFounding(s.life, s.founding), verifyWithin)
	defer cancel()
	loggedIn := func() (struct{}, error) { return struct{}{}, nil }
	if s.auth != "" { // what is asked after it has its rights
		loggedIn = send(ctx, l, opAuth, func(conn *zk.Conn) (struct{}, error) {
			return struct{}{}, conn.AddAuth("digest", []byte(s.auth))
		})
	}
	server := make(chan error, 1) // beside the other look, which takes as long
	go func() { server <- s.identifyServer(ctx, l) }()
	err := s.verify(ctx, l)
	_, refused := loggedIn()
	return cmp.Or(refused, err, <-server)
}
