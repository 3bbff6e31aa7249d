package testservers

import (
	"bytes"
	"context"
	"net"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// A Proxy forwards TCP connections on loopback to a server, and breaks them
// when told to. It is safe for concurrent use; the test's end ends it.
type Proxy struct {
	Addr string // where it listens

	listener net.Listener
	cancel   context.CancelFunc
	wg       sync.WaitGroup
	carried  [2]atomic.Int64 // bytes, by direction
	turns    atomic.Int64    // see RoundTrips

	mu      sync.Mutex // guards everything below
	target  string
	mode    proxyMode
	delay   [2]time.Duration // by direction
	match   func(request []byte) bool
	onReply bool          // cut when the reply comes, not before the request goes on
	fired   int           // how often match has cut a connection
	changed chan struct{} // closed and replaced at every change
	conns   map[*link]struct{}
}

type proxyMode int

const (
	modePass proxyMode = iota
	modeCut
	modeBlackhole
)

type direction int

const (
	toServer direction = iota
	toClient
)

const (
	quiet       = 300 * time.Millisecond // no more of an answer comes after that
	maxDiscards = 100                    // pieces of an answer
	maxHeld     = 64                     // chunks on the way in one direction of a connection
)

// A link is one proxied connection.
type link struct {
	ends    [2]net.Conn // by the direction that writes to it: server, client
	matched bool        // the next reply cuts it; guarded by Proxy.mu

	turn  sync.Mutex // guards what follows
	due   time.Time  // the earliest at which the client can have an answer to what was counted last, see Proxy.RoundTrips; zero: nothing was yet
	heard bool       // the server has sent something since
}

// A chunk is what was read at once.
type chunk struct {
	bytes []byte
	at    time.Time
}

func (l *link) close() {
	for _, c := range l.ends {
		if c != nil {
			_ = c.Close()
		}
	}
}

// NewProxy starts a proxy in front of the server at target (host:port).
func NewProxy(t testing.TB, target string) *Proxy {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	p := &Proxy{
		Addr: listener.Addr().String(), target: target, listener: listener, cancel: cancel,
		changed: make(chan struct{}), conns: map[*link]struct{}{},
	}
	p.wg.Go(func() { p.accept(ctx) })
	t.Cleanup(p.close)
	return p
}

// URL returns a server's URL with the proxy's address in it.
func (p *Proxy) URL(server string) string {
	u, err := url.Parse(server)
	if err != nil {
		return server
	}
	u.Host = p.Addr
	return u.String()
}

// Silence returns a way to the store behind a server's URL, and a switch that silences it; nil for a server
// that existed before, which is not to be disturbed.
func Silence[H any](server *Server, url string, open func(ctx context.Context, url string, timeout time.Duration) (H, error)) func(testing.TB, time.Duration) (func(context.Context) (H, error), func()) {
	if server.Addr == "" {
		return nil
	}
	return func(t testing.TB, timeout time.Duration) (func(context.Context) (H, error), func()) {
		proxy := NewProxy(t, server.Addr)
		return func(ctx context.Context) (H, error) { return open(ctx, proxy.URL(url), timeout) }, proxy.Blackhole
	}
}

// Pass forwards everything, at once.
func (p *Proxy) Pass() {
	p.set(func() {
		p.mode, p.delay, p.match = modePass, [2]time.Duration{}, nil
		for l := range p.conns {
			l.matched = false
		}
	})
}

// Lead closes all connections, and has new ones go to another server, as an address
// does that follows the primary.
func (p *Proxy) Lead(target string) {
	p.set(func() {
		p.target = target
		for l := range p.conns {
			l.close()
		}
	})
}

// Cut closes all connections, and every new one, until Pass.
func (p *Proxy) Cut() {
	p.set(func() {
		p.mode = modeCut
		for l := range p.conns {
			l.close()
		}
	})
}

// Blackhole keeps connections open and lets nothing through until Pass; what
// was sent meanwhile arrives then, as after a broken network is mended.
func (p *Proxy) Blackhole() { p.set(func() { p.mode = modeBlackhole }) }

// Delay holds every chunk for the given time in each direction, as a distance does: what
// follows is not held up. A new connection takes both times.
func (p *Proxy) Delay(request, reply time.Duration) {
	p.set(func() { p.mode, p.delay = modePass, [2]time.Duration{toServer: request, toClient: reply} })
}

// CutReply forwards the next request for which match returns true, waits until
// the server has answered, and then closes the connection without the answer: the
// server has done it and the client cannot know. It works once. What counts as
// a request is one chunk as read from the network; match is called with the
// proxy's lock held.
func (p *Proxy) CutReply(match func(request []byte) bool) {
	p.set(func() { p.mode, p.match, p.onReply = modePass, match, true })
}

// CutRequest closes the connection instead of forwarding the next request for
// which match returns true, once.
func (p *Proxy) CutRequest(match func(request []byte) bool) {
	p.set(func() { p.mode, p.match, p.onReply = modePass, match, false })
}

// Fired tells how often CutReply and CutRequest have cut a connection.
func (p *Proxy) Fired() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.fired
}

// Carried returns how many bytes have gone on in each direction.
func (p *Proxy) Carried() (sent, received int64) {
	return p.carried[toServer].Load(), p.carried[toClient].Load()
}

// RoundTrips returns for how many answers the clients have waited: a connection counts as one,
// and so does each time that something is sent on it after an answer, at the earliest when one to
// what was counted before can have come.
func (p *Proxy) RoundTrips() int { return int(p.turns.Load()) }

// Contains matches requests that hold the text.
func Contains(text string) func([]byte) bool {
	return func(b []byte) bool { return bytes.Contains(b, []byte(text)) }
}

// Nth matches the nth request from now on, counted from 1 over all connections.
func Nth(n int) func([]byte) bool {
	return func([]byte) bool { n--; return n == 0 }
}

func (p *Proxy) set(change func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change()
	close(p.changed)
	p.changed = make(chan struct{})
}

func (p *Proxy) close() {
	p.cancel()
	_ = p.listener.Close()
	p.Cut()
	p.wg.Wait()
}

func (p *Proxy) accept(ctx context.Context) {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return // the listener is closed
		}
		p.wg.Go(func() { p.serve(ctx, client) })
	}
}

func (p *Proxy) serve(ctx context.Context, client net.Conn) {
	l := &link{}
	l.ends[toClient] = client
	defer client.Close()
	p.turns.Add(1)
	began := time.Now()
	if !p.pass(ctx, began, toServer, toClient) {
		return
	}
	p.mu.Lock()
	target := p.target
	p.mu.Unlock()
	var d net.Dialer
	server, err := d.DialContext(ctx, "tcp", target)
	if err != nil {
		return
	}
	defer server.Close()
	l.ends[toServer] = server
	p.mu.Lock()
	cut := p.mode == modeCut || p.target != target
	p.conns[l] = struct{}{}
	p.mu.Unlock()
	if cut {
		l.close()
	}
	var wg sync.WaitGroup
	for _, dir := range []direction{toServer, toClient} {
		held := make(chan chunk, maxHeld)
		wg.Go(func() { p.take(l, dir, held) })
		wg.Go(func() { p.hand(ctx, l, dir, held) })
	}
	wg.Wait()
	p.mu.Lock()
	delete(p.conns, l)
	p.mu.Unlock()
}

// take reads one direction until that ends.
func (p *Proxy) take(l *link, dir direction, held chan<- chunk) {
	defer close(held)
	buf := make([]byte, 64<<10)
	for {
		n, err := l.ends[1-dir].Read(buf)
		if err != nil {
			return
		}
		at := time.Now()
		p.count(l, dir, at)
		held <- chunk{bytes.Clone(buf[:n]), at}
	}
}

// count counts what the client sends after an answer. What it sends earlier than an answer can have
// come is none: servers send frames of their own accord, and answers in pieces.
func (p *Proxy) count(l *link, dir direction, at time.Time) {
	p.mu.Lock()
	trip := p.delay[toServer] + p.delay[toClient]
	p.mu.Unlock()
	l.turn.Lock()
	defer l.turn.Unlock()
	switch {
	case dir == toClient:
		l.heard = true
	case l.due.IsZero() || l.heard && !at.Before(l.due):
		l.due, l.heard = at.Add(trip), false
		p.turns.Add(1)
	}
}

// hand writes what was taken when it is due, until either end closes; then it closes both.
func (p *Proxy) hand(ctx context.Context, l *link, dir direction, held <-chan chunk) {
	defer func() {
		l.close()
		for range held { // the reader may wait for room
		}
	}()
	for c := range held {
		if !p.pass(ctx, c.at, dir) {
			return
		}
		if p.cuts(l, dir, c.bytes) {
			if dir == toClient {
				discard(held)
			}
			return
		}
		if _, err := l.ends[dir].Write(c.bytes); err != nil {
			return
		}
		p.carried[dir].Add(int64(len(c.bytes)))
	}
}

// discard takes what the server sends until it is quiet: the first bytes after a
// request may be of the transport, and a server that loses the connection before
// it has answered may not do what it was asked.
func discard(held <-chan chunk) {
	for range maxDiscards {
		select {
		case _, open := <-held:
			if !open {
				return
			}
		case <-time.After(quiet):
			return
		}
	}
}

// pass waits for as long as the mode and the delays of these directions say, and reports
// whether what came at such a time may go on.
func (p *Proxy) pass(ctx context.Context, at time.Time, over ...direction) bool {
	for {
		p.mu.Lock()
		mode, changed := p.mode, p.changed
		due := at
		for _, dir := range over {
			due = due.Add(p.delay[dir])
		}
		p.mu.Unlock()
		var late <-chan time.Time
		switch left := time.Until(due); {
		case mode == modeCut:
			return false
		case mode == modeBlackhole:
		case left <= 0:
			return true
		default:
			late = time.After(left)
		}
		select {
		case <-late:
		case <-changed:
		case <-ctx.Done():
			return false
		}
	}
}

// cuts reports whether a one-shot cut strikes this chunk.
func (p *Proxy) cuts(l *link, dir direction, chunk []byte) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	strike := false
	switch {
	case dir == toClient:
		strike = l.matched
	case p.match != nil && p.match(chunk):
		p.match = nil
		l.matched = p.onReply
		strike = !p.onReply
	}
	if strike {
		p.fired++
	}
	return strike
}
