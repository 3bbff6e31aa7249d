package httpapi

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"runtime/debug"
	"strconv"
	"sync"
	"time"

	"github.com/hapax-id/hapax/internal/build"
	"github.com/hapax-id/hapax/internal/gate"
	"github.com/hapax-id/hapax/internal/peer"
	"github.com/hapax-id/hapax/internal/service/auth"
)

// A Front is a listener before an http.Server that answers by itself what asks for
// one number and no more:
//
//	GET /v1/tags/{plain name}/next HTTP/1.1, with a few harmless headers
//
// It issues as the route does, at half the cost. It understands nothing else: a
// connection that says anything else goes to the http.Server, with every byte that
// is not answered, and does not come back. So does one that sends half a request.
type Front struct {
	net.Listener // accepts the connections

	api    *restAPI
	idle   time.Duration
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
	frontBuffer  = 4 << 10          // bytes of requests at a time
	frontFirst   = 5 * time.Second  // for the first byte
	frontPatient = 5 * time.Second  // how late a deadline may be moved on
	frontWrite   = 30 * time.Second // for a client to take its answers
)

// NewFront returns a front for a handler that New has made, to be served in place of
// the listener. Shutdown must be called. A connection is closed after idle without a
// request. Where callers are asked for tokens or requests are logged there is none: it
// returns the listener.
func NewFront(l net.Listener, handler http.Handler, idle time.Duration) (net.Listener, *Front) {
	a, ok := handler.(*restAPI)
	if !ok || a.opts.Policy != nil || a.opts.Logger.Enabled(context.Background(), slog.LevelDebug) {
		return l, nil
	}
	f := &Front{
		Listener: l, api: a, idle: idle, handed: make(chan net.Conn), failed: make(chan error),
		done: make(chan struct{}), conns: map[net.Conn]struct{}{},
	}
	f.life, f.stop = context.WithCancel(context.Background())
	f.wg.Go(f.accept)
	return f, f
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
	f.stop()
	f.each(func(nc net.Conn) { _ = nc.Close() })
	<-ended
	return err
}

// serve answers requests until the connection ends or says something else.
func (f *Front) serve(nc net.Conn) {
	handed := false
	defer func() {
		if p := recover(); p != nil {
			f.api.opts.Logger.Error("panic while serving a request", "api", API, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
		}
		if !handed {
			_ = nc.Close()
		}
	}()
	c := frontConn{api: f.api, client: peer.NewContext(auth.NewContext(f.life, nil, nc.RemoteAddr().String()), gate.Bare(nc))}
	defer c.client.Rest()
	buf := make([]byte, frontBuffer)
	if nc.SetDeadline(time.Now().Add(frontFirst)) != nil || f.isClosed() { // Close sets a deadline, too
		return
	}
	var moved time.Time
	for {
		n, err := nc.Read(buf)
		if err != nil {
			return
		}
		rest := c.answer(buf[:n])
		if c.client.HasLeft() {
			return
		}
		if now := time.Now(); now.Sub(moved) > frontPatient {
			if nc.SetReadDeadline(now.Add(f.idle)) != nil || nc.SetWriteDeadline(now.Add(frontWrite)) != nil {
				return
			}
			moved = now
		}
		if len(c.out) > 0 {
			if _, err := nc.Write(c.out); err != nil {
				return
			}
		}
		switch {
		case len(rest) > 0:
			handed = f.hand(nc, rest)
			return
		case f.isClosed():
			return
		}
	}
}

// hand gives a connection to the http.Server.
func (f *Front) hand(nc net.Conn, rest []byte) bool {
	if nc.SetDeadline(time.Time{}) != nil {
		return false
	}
	select {
	case f.handed <- &replayed{nc, bytes.Clone(rest)}:
		return true
	case <-f.done:
		return false
	}
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

// A frontConn is what a connection of a front keeps.
type frontConn struct {
	api    *restAPI
	client *peer.Context // ends when the client leaves
	host   []byte        // the Host that was found to be good
	out    []byte
	now    time.Time
	date   []byte // as a header, of the second
	sec    int64
}

// answer puts the answers to requests into out, and returns what comes after them.
func (c *frontConn) answer(in []byte) (rest []byte) {
	c.out, c.now = c.out[:0], time.Now()
	if sec := c.now.Unix(); sec != c.sec {
		c.sec = sec
		c.date = c.now.UTC().AppendFormat(append(c.date[:0], "Date: "...), http.TimeFormat)
		c.date = append(c.date, '\r', '\n')
	}
	for len(in) > 0 {
		tag, size := c.match(in)
		if size == 0 {
			break
		}
		c.next(tag)
		in = in[size:]
		if c.client.Rest(); c.client.HasLeft() {
			return nil
		}
	}
	return in
}

var numberHead = "HTTP/1.1 200 OK\r\nCache-Control: no-store\r\nContent-Type: text/plain; charset=utf-8\r\nServer: " + build.Product() + "\r\n"

// next answers with one number, or with why there is none.
func (c *frontConn) next(tag []byte) {
	id, err := c.api.svc.NextBytes(c.client, tag)
	if err != nil {
		c.fail(err)
		return
	}
	var digits [20]byte
	number := id.Append(digits[:0])
	c.out = append(append(c.out, numberHead...), c.date...)
	c.out = strconv.AppendInt(append(c.out, "Content-Length: "...), int64(len(number)), 10)
	c.out = append(append(c.out, "\r\n\r\n"...), number...)
}

// fail answers as the route does.
func (c *frontConn) fail(err error) {
	if c.client.HasLeft() {
		return // nobody is told
	}
	w := recorded{header: http.Header{"Cache-Control": noStore, "Server": product}}
	c.api.fail(&w, (&http.Request{}).WithContext(context.WithoutCancel(c.client)), err)
	b := bytes.NewBuffer(c.out)
	fmt.Fprintf(b, "HTTP/1.1 %d %s\r\n", w.status, http.StatusText(w.status))
	b.Write(c.date)
	w.header.Set("Content-Length", strconv.Itoa(len(w.body)))
	_ = w.header.Write(b) // to memory
	b.WriteString("\r\n")
	b.Write(w.body)
	c.out = b.Bytes()
}

// recorded is a response in memory.
type recorded struct {
	header http.Header
	status int
	body   []byte
}

func (w *recorded) Header() http.Header    { return w.header }
func (w *recorded) WriteHeader(status int) { w.status = status }

func (w *recorded) Write(p []byte) (int, error) {
	w.body = append(w.body, p...)
	return len(p), nil
}

var (
	frontPrefix = []byte("GET /v1/tags/")
	frontSuffix = []byte("/next HTTP/1.1\r\n")
)

// match returns the tag that the request at the front of a buffer asks a number of,
// and the request's length: 0 if it is not all there, or not one for the front. A
// request with a body is none, because no header of a body is harmless.
func (c *frontConn) match(in []byte) (tag []byte, size int) {
	if !bytes.HasPrefix(in, frontPrefix) {
		return nil, 0
	}
	at := len(frontPrefix)
	for at < len(in) && isPlain(in[at]) {
		at++
	}
	tag = in[len(frontPrefix):at]
	if !bytes.HasPrefix(in[at:], frontSuffix) || len(tag) == 0 || len(tag) > 128 || tag[0] == '.' {
		return nil, 0
	}
	at += len(frontSuffix)
	for hosts := 0; ; {
		end := bytes.IndexByte(in[at:], '\n')
		if end < 1 || in[at+end-1] != '\r' {
			return nil, 0
		}
		line := in[at : at+end-1]
		at += end + 1
		if len(line) == 0 {
			if hosts != 1 {
				return nil, 0
			}
			return tag, at
		}
		colon := bytes.IndexByte(line, ':')
		if colon < 1 {
			return nil, 0
		}
		for _, b := range line { // a control byte could end a line elsewhere, and others fold to letters
			if (b < ' ' || b > '~') && b != '\t' {
				return nil, 0
			}
		}
		name, value := line[:colon], bytes.Trim(line[colon+1:], " \t")
		switch {
		case bytes.EqualFold(name, []byte("Host")):
			if hosts++; !c.isGood(value) {
				return nil, 0
			}
		case bytes.EqualFold(name, []byte("Accept")):
			if string(value) != "*/*" {
				return nil, 0
			}
		case bytes.EqualFold(name, []byte("Connection")):
			if !bytes.EqualFold(value, []byte("keep-alive")) {
				return nil, 0
			}
		case bytes.EqualFold(name, []byte("User-Agent")), bytes.EqualFold(name, []byte("Accept-Encoding")), bytes.EqualFold(name, []byte("Accept-Language")):
		default:
			return nil, 0
		}
	}
}

// isPlain reports whether a byte of a path stands for itself.
func isPlain(b byte) bool {
	return 'a' <= b && b <= 'z' || 'A' <= b && b <= 'Z' || '0' <= b && b <= '9' || b == '-' || b == '_' || b == '.' || b == '~'
}

// isGood reports whether a Host is one that the listener takes as it is.
func (c *frontConn) isGood(host []byte) bool {
	if len(host) > 0 && bytes.Equal(host, c.host) {
		return true
	}
	if len(host) == 0 {
		return false
	}
	for _, b := range host {
		if !isPlain(b) && b != ':' && b != '[' && b != ']' {
			return false
		}
	}
	if c.api.hosts != nil && !c.api.hosts(string(host)) {
		return false
	}
	c.host = bytes.Clone(host)
	return true
}
