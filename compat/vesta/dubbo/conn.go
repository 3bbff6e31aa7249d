package dubbo

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hapax-id/hapax"
)

// A conn is the connection of one consumer.
//
//	serve --> read --> answer --> out --> write
//	                     |         ^
//	                     +- wait --+
type conn struct {
	net.Conn
	server *Server

	out    chan []byte   // frames for the writer, which reads until serve closes it
	unsent atomic.Int64  // bytes of frames that wait in out, or are being written
	slots  chan struct{} // holds one for each call that waits
	calls  sync.WaitGroup
}

// send gives a frame to the writer. Where all connections together have too much that
// was not sent, one that has something unsent already does not take its replies: it is
// closed.
func (c *conn) send(frame []byte) {
	n := int64(len(frame))
	before := c.unsent.Add(n) - n
	if all := c.server.unsent.Add(n); before > 0 && all > maxUnsent {
		c.unsent.Add(-n)
		c.server.unsent.Add(-n)
		_ = c.Close() // which ends reader and writer
		return
	}
	c.out <- frame
}

// stop has the reader end. It does not block.
func (c *conn) stop() {
	_ = c.SetReadDeadline(time.Unix(1, 0)) // fails if the connection has ended
}

// allow gives the reader time, and reports whether it may go on. A stop that comes
// later than the question takes the time away again.
func (c *conn) allow(d time.Duration) bool {
	return c.SetReadDeadline(time.Now().Add(d)) == nil && !c.server.isClosing()
}

// serve answers requests until the connection ends.
func (c *conn) serve() {
	var writer sync.WaitGroup
	writer.Go(c.write)
	c.read()
	c.calls.Wait()
	// Only when no call can send any more, since to send on a closed channel panics.
	close(c.out)
	writer.Wait()
	_ = c.Close() // whatever was wrong with it has ended the reader
	c.server.mu.Lock()
	defer c.server.mu.Unlock()
	delete(c.server.conns, c)
}

// read answers requests until the connection ends or stop is called.
func (c *conn) read() {
	in := bufio.NewReaderSize(c, 4<<10)
	buf := make([]byte, 0, 1<<10)
	for wait := min(firstWithin, c.server.opts.Idle); c.allow(wait); wait = c.server.opts.Idle {
		// A connection may rest between two frames, and for much less time within one.
		if _, err := in.Peek(1); err != nil || !c.allow(bodyWithin) {
			return
		}
		h, body, err := readFrame(in, buf)
		if err == nil && c.server.opts.Known != nil {
			c.server.opts.Known(c.Conn)
		}
		if bad, ok := errors.AsType[*requestError](err); ok {
			c.fail(h, bad) // and the connection ends: where the next frame begins is not known
		}
		if err != nil {
			return
		}
		c.answer(h, body)
		buf = body[:0]
	}
}

// answer answers one frame.
func (c *conn) answer(h head, body []byte) {
	twoWay := h.flags&flagTwoWay != 0
	switch serialization := h.flags & serializationMask; {
	case h.flags&flagRequest == 0: // a reply, such as to a heartbeat
	case !twoWay: // nothing to answer, and so nothing to do
	case serialization != hessian2:
		c.fail(h, badRequest(fmt.Errorf("invalid serialization %d: want %d, hessian2", serialization, hessian2)))
	case h.flags&flagEvent != 0:
		c.send(appendReply(nil, h, statusOK, func(dst []byte) []byte { return append(dst, 'N') }))
	default:
		began := time.Now()
		request, err := parseCall(body)
		if err != nil {
			c.server.answered(request, began, err)
			c.fail(h, err)
			return
		}
		// First without waiting, in this goroutine: as a rule a number is in hand.
		if err := c.reply(c.server.now, h, request, began); err != nil {
			c.wait(h, request, began)
		}
	}
}

// reply answers a call, unless the context ends before that can be done: then it
// returns the error.
func (c *conn) reply(ctx context.Context, h head, request call, began time.Time) (err error) {
	frame := appendReply(nil, h, statusOK, func(dst []byte) []byte {
		var result []byte
		result, err = c.server.run(ctx, dst, request)
		return result
	})
	switch {
	case err == nil:
		c.server.answered(request, began, nil)
		c.send(frame)
	case ctx.Err() != nil && errors.Is(err, ctx.Err()):
		return err
	default:
		c.server.answered(request, began, err)
		c.fail(h, err)
	}
	return nil
}

// wait answers a call that has to wait, within the server's time for that.
func (c *conn) wait(h head, request call, began time.Time) {
	c.slots <- struct{}{} // every holder gives its own back in time
	c.calls.Go(func() {
		defer func() { <-c.slots }()
		ctx, cancel := context.WithTimeout(c.server.life, c.server.opts.Wait)
		defer cancel()
		if err := c.reply(ctx, h, request, began); err != nil {
			c.server.answered(request, began, err)
			c.fail(h, err)
		}
	})
}

// fail answers with an error's text.
func (c *conn) fail(h head, err error) {
	if h.flags&flagRequest == 0 || h.flags&flagTwoWay == 0 {
		return
	}
	status := byte(statusServiceError)
	if r, ok := errors.AsType[*requestError](err); ok {
		status = r.status
	} else if _, ok := errors.AsType[*hapax.ValueError](err); ok {
		status = statusBadRequest
	}
	c.send(appendReply(nil, h, status, func(dst []byte) []byte { return appendText(dst, err.Error()) }))
}

// write sends what is in out, several frames at once where there are. After an error
// it closes the connection, which ends the reader, and throws the rest away.
func (c *conn) write() {
	w := bufio.NewWriterSize(c, 4<<10)
	for frame := range c.out {
		n := int64(len(frame))
		err := c.SetWriteDeadline(time.Now().Add(writeWithin))
		if err == nil {
			_, err = w.Write(frame)
		}
		if err == nil && len(c.out) == 0 {
			err = w.Flush()
		}
		if err != nil {
			_ = c.Close() // the error is the consumer's to notice
		}
		c.unsent.Add(-n)
		c.server.unsent.Add(-n)
	}
}
