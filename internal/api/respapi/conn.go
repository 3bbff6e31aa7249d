package respapi

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/gate"
	"github.com/hapax-id/hapax/internal/hangup"
	"github.com/hapax-id/hapax/internal/service/auth"
	"github.com/hapax-id/hapax/internal/service/health"
)

// What a connection is doing, as watch sees it.
const (
	phaseWaiting = iota // for a command
	phaseHalf           // for the rest of one
	phaseBusy
	phaseWriting
)

// phaseBits is how many bits of a connection's state are its phase.
const phaseBits = 2

// scratch is the working memory of a connection that has something to answer. Connections
// share them, so that few are in use and those stay in the processor's caches.
type scratch struct {
	in   []byte
	out  []byte
	args [][]byte
	ids  [maxRun]hapax.ID
}

// scratchBytes is the size of a scratch's buffers, which grow if need be.
const scratchBytes = 16 << 10

var scratches = sync.Pool{New: func() any {
	return &scratch{in: make([]byte, scratchBytes), out: make([]byte, 0, scratchBytes), args: make([][]byte, 0, 8)}
}}

// release gives a scratch back, unless it has grown.
func (b *scratch) release() {
	if len(b.in) > scratchBytes || cap(b.out) > 2*maxUnsent || cap(b.args) > 64 {
		return
	}
	b.out = b.out[:0]
	scratches.Put(b)
}

// A conn is one connection. But for the state, its fields are its goroutine's.
type conn struct {
	srv   *Server
	net   net.Conn
	id    int64
	since time.Time

	state atomic.Int64 // the tick in which it was set, and the phase; written here, read by watch
	known atomic.Bool  // it has shown what it was asked for; written here, read by watch

	pass   *gate.Pass
	born   int64           // the tick in which it came; does not change
	client *hangup.Context // of its commands: ends when the client leaves

	b       *scratch // while busy
	fd      int      // the socket while it is read here; 0: it is read by net
	rest    []byte   // the beginning of a command, while waiting for its end
	begun   int64    // the tick in which that began; 0: a command ended since
	kept    int      // how many bytes of rest are counted in the server's halves
	active  int64    // the tick of the last command
	guesses int      // wrong tokens so far
	over    bool     // to be closed when the replies are written
	linger  bool     // so that an error arrives before the end
	resp3   bool
	trusted bool            // may use commands
	caller  *auth.Caller    // who they come from; nil: anybody
	origin  context.Context // made by context for the caller; nil before its first use
	link    auth.Conn       // what the connection counts for

	name, library, version string     // as the client calls itself
	form                   numberForm // for a client of that library

	route *health.Route // of the command that was run last; nil: it only was put in a queue
	runs  uint          // of commands
	errs  int           // replies that were errors

	tx       *transaction // between MULTI and EXEC
	stopping bool         // every command is answered with an error

	tag  string        // the last one used
	last *atomic.Int64 // where its last number is kept; nil before the first
}

func newConn(s *Server, nc net.Conn) *conn {
	c := &conn{srv: s, net: nc, id: s.ids.Add(1), since: time.Now(), born: s.now.Load()}
	c.active = c.born
	c.client = hangup.NewContext(auth.NewContext(s.life, nil, nc.RemoteAddr().String()), gate.Bare(nc))
	if isSecure(nc) {
		c.trusted = false // before the handshake
	} else {
		c.distrust()
	}
	c.known.Store(c.trusted && !isSecure(nc))
	c.enter(phaseWaiting)
	return c
}

func (c *conn) enter(phase int64) { c.state.Store(c.srv.now.Load()<<phaseBits | phase) }

// isOverdue reports whether the connection has stood still for too long.
func (c *conn) isOverdue(now int64) bool {
	if !c.known.Load() && now-c.born > c.srv.pace.join {
		return true
	}
	state := c.state.Load()
	stood := now - state>>phaseBits
	switch state & (1<<phaseBits - 1) {
	case phaseWaiting:
		return c.srv.pace.idle > 0 && stood > c.srv.pace.idle
	case phaseHalf:
		return stood > c.srv.pace.half
	case phaseWriting:
		return stood > c.srv.pace.write
	}
	return false // the service bounds what a command waits for
}

// giveUp ends the connection. One that waits for the rest of a command says why
// first.
func (c *conn) giveUp() {
	if c.known.Load() && c.state.Load()&(1<<phaseBits-1) == phaseHalf {
		_ = c.net.SetReadDeadline(past)
		return
	}
	gate.Cut(c.net)
}

// vouch notes that the client is no stranger, if it need show nothing more.
func (c *conn) vouch() {
	if c.trusted && !c.known.Load() {
		c.known.Store(true)
		c.pass.Vouch()
	}
}

// serve answers commands until the connection ends.
func (c *conn) serve() {
	defer c.link.Close()
	defer c.net.Close()
	defer func() {
		if p := recover(); p != nil {
			c.srv.opts.Logger.Error("panic while serving a connection", "api", "resp", "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
		}
	}()
	defer c.endTx()
	defer c.keep(0)
	defer c.client.Rest()
	if c.shakeHands() != nil {
		return
	}
	if isSecure(c.net) {
		c.distrust() // now it is known who it is
	}
	c.vouch()
	err := c.read()
	if c.isDraining() && !c.over {
		c.drain()
	}
	if errors.Is(err, os.ErrDeadlineExceeded) && c.begun != 0 && !c.isDraining() {
		c.b = scratches.Get().(*scratch)
		c.refuse(errTooSlow)
		c.flush()
	}
	if c.linger {
		c.lingerOn()
	}
}

// shakeHands begins TLS, where that is spoken.
func (c *conn) shakeHands() error {
	secure, ok := c.net.(*tls.Conn)
	if !ok {
		return nil
	}
	ctx, cancel := context.WithTimeout(c.srv.life, handshakeTimeout)
	defer cancel()
	return secure.HandshakeContext(ctx)
}

// drain answers what the client has sent by the time that the server stops, and what
// follows upon it, with an error that says so. A client that sends nothing is owed
// nothing.
func (c *conn) drain() {
	c.stopping, c.linger = true, true
	now := time.Now()
	last, quiet := now.Add(c.srv.pace.close), now.Add(c.srv.pace.quiet)
	for now.Before(last) && c.net.SetReadDeadline(quiet) == nil {
		have := c.lend()
		n, err := c.net.Read(c.b.in[have:])
		now = time.Now()
		if n > 0 {
			have, quiet = c.received(have+n), now.Add(c.srv.pace.quiet)
		}
		if c.over {
			return
		}
		if c.pause(have); c.over {
			return
		}
		// Shutdown, too, sets a deadline, once.
		if err != nil && !(errors.Is(err, os.ErrDeadlineExceeded) && now.Before(quiet)) {
			break
		}
	}
	if len(c.rest) > 0 {
		c.b = scratches.Get().(*scratch)
		c.failAs(hapax.ErrClosed.Code(), errStopping)
		c.flush()
	}
}

// lingerOn ends the connection's way out and drops what still comes in: closing
// at once would reset the connection, and with it an error on its way.
func (c *conn) lingerOn() {
	if w, ok := c.net.(interface{ CloseWrite() error }); !ok || w.CloseWrite() != nil {
		return
	}
	if c.net.SetReadDeadline(time.Now().Add(c.srv.pace.close)) != nil {
		return
	}
	_, _ = io.CopyN(io.Discard, c.net, maxDiscard)
}

// lend gets a scratch with the rest of last time at the front of its buffer, and
// room behind, and returns how much that rest is.
func (c *conn) lend() int {
	c.b = scratches.Get().(*scratch)
	if len(c.rest) >= len(c.b.in) {
		c.b.in = make([]byte, min(2*len(c.rest), MaxFrame))
	}
	n := copy(c.b.in, c.rest)
	return n
}

// received answers all whole commands among the first n bytes of the buffer, and
// returns how many bytes of it are left, moved to the front.
func (c *conn) received(n int) int {
	c.enter(phaseBusy)
	buf := c.b.in[:n]
	for len(buf) > 0 && !c.over {
		args, size, err := parse(buf, c.b.args[:0])
		if err != nil {
			c.refuse(err)
			break
		}
		if size == 0 {
			break
		}
		// parse may have made a longer one, which is kept for the next command.
		c.b.args = args[:0]
		switch {
		case len(args) == 0:
		case c.stopping:
			c.failAs(hapax.ErrClosed.Code(), errStopping)
		default:
			// A run answers as many of the same frames as lie behind each other.
			size *= c.execute(args, buf[:size], buf[size:])
			c.active = c.srv.now.Load()
		}
		buf = buf[size:]
		c.begun = 0
		if c.client.HasLeft() { // nobody waits for the rest
			c.over, c.linger, c.b.out = true, false, c.b.out[:0]
			return 0
		}
		if len(c.b.out) >= maxUnsent {
			c.flush()
		}
	}
	if !c.trusted && !c.over && len(buf) > maxStranger {
		c.refuse(errTooBigYet)
	}
	c.flush()
	left := copy(c.b.in, buf)
	// One command fills it: the buffer grows with bytes that have come, and not with those announced.
	if left == len(c.b.in) && !c.over {
		c.b.in = append(c.b.in, make([]byte, min(left, MaxFrame-left))...)
	}
	return left
}

// refuse ends the connection for its bytes.
func (c *conn) refuse(err error) {
	c.over = true
	if errors.Is(err, errHTTP) || errors.Is(err, errTLS) {
		return
	}
	c.linger = true
	c.failAs(codeProtocol, "ERR "+err.Error())
}

// flush writes the replies. A client that takes none is closed by watch.
func (c *conn) flush() {
	if len(c.b.out) == 0 {
		return
	}
	c.enter(phaseWriting)
	if n := c.writeNow(c.b.out); n < len(c.b.out) {
		if _, err := c.net.Write(c.b.out[n:]); err != nil {
			c.over, c.linger = true, false
		}
	}
	c.b.out = c.b.out[:0]
	c.enter(phaseBusy)
}

// pause gives the scratch back and keeps what is left of its buffer, if all
// connections together do not keep too much.
func (c *conn) pause(left int) {
	if !c.keep(left) {
		c.refuse(errHalves)
		c.flush()
		left = 0
	}
	if left == 0 {
		c.rest = nil
		c.state.Store(c.active<<phaseBits + phaseWaiting) // empty lines are no commands
	} else {
		// A long rest of once must not be kept for as long as the connection lasts.
		if cap(c.rest) > 4*left {
			c.rest = nil
		}
		c.rest = append(c.rest[:0], c.b.in[:left]...)
		if c.begun == 0 {
			c.begun = c.srv.now.Load()
		}
		c.state.Store(c.begun<<phaseBits | phaseHalf)
	}
	c.b.release()
	c.b = nil
}

// keep counts the bytes that a connection keeps of a command. It returns false if
// there are too many of all connections.
func (c *conn) keep(n int) bool {
	more := int64(n - c.kept)
	// Fewer bytes than before are never refused: it may be others that keep too many.
	if all := c.srv.halves.Add(more); more > 0 && all > maxHalvesByAll {
		c.srv.halves.Add(-more)
		return false
	}
	c.kept = n
	return true
}

// readPlain answers what the connection receives, until its end. It returns why
// nothing more can be read, if that is the reason.
func (c *conn) readPlain() error {
	for {
		have := c.lend()
		n, err := c.net.Read(c.b.in[have:])
		if n > 0 {
			have = c.received(have + n)
		}
		if c.over || err != nil {
			return err
		}
		if c.pause(have); c.over {
			return nil
		}
	}
}

// isDraining reports whether no command is to be begun.
func (c *conn) isDraining() bool {
	select {
	case <-c.srv.done:
		return true
	default:
		return false
	}
}
