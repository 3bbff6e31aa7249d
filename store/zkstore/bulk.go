package zkstore

import (
	"bufio"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/hapax-id/hapax/internal/zksession"
)

// The client library reads each node by a request of its own. ZooKeeper 3.6 and later
// has one that reads many, multiRead, for which a bulk has a connection and a session of
// its own, for the time of one listing. A server without it closes the connection; then
// the nodes are read one by one.
type bulk struct {
	conn net.Conn
	in   *bufio.Reader
	out  []byte // the request that is being put together
	xid  int32
}

const (
	bulkFrom  = 500       // so many nodes are worth a connection
	bulkNodes = 500       // in one request
	bulkReply = 128 << 20 // bytes; the largest reply that is read

	opCreate    = 1
	opGetData   = 4
	opSync      = 9
	opMulti     = 14
	opMultiRead = 22
	opAuth      = 100
	opClose     = -11
	opNone      = -1 // in a multi: an error, or the end

	xidAuth     = -4
	statBytes   = 68
	passwdBytes = 16
)

var errReply = errors.New("the answer to multiRead is not understood")

// readMany returns what the named nodes hold, nil for those that there are not.
func (s *space) readMany(ctx context.Context, l *link, parent string, names []string) ([][]byte, error) {
	conn, err := zksession.Dial(ctx, l.Conn.Server(), s.tls)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Now()) })
	defer stop()
	b := &bulk{conn: conn, in: bufio.NewReaderSize(conn, 64<<10)}
	if err := b.begin(s.auth, parent); err != nil {
		return nil, err
	}
	raws := make([][]byte, len(names))
	sent := make(chan error, 1)
	// Beside the reading: each side could wait for the other one to take what it sends.
	go func() {
		var err error
		for from := 0; from < len(names) && err == nil; from += bulkNodes {
			err = b.ask(parent, names[from:min(from+bulkNodes, len(names))])
		}
		sent <- err
	}()
	for from := 0; from < len(names) && err == nil; from += bulkNodes {
		err = b.answer(raws[from:min(from+bulkNodes, len(names))])
	}
	if err != nil {
		_ = conn.Close() // nothing is sent any more
	}
	if err = cmp.Or(err, <-sent); err == nil {
		b.request(0, opClose)
		_ = b.send()
	}
	return raws, err
}

// begin makes a session, logs in, and has the server catch up with its leader.
func (b *bulk) begin(auth, node string) error {
	b.out = make([]byte, 4, 256<<10)
	b.int32(0) // version of the protocol
	b.int64(0) // last transaction seen
	b.int32(int32(sessionTimeout.Milliseconds()))
	b.int64(0) // session
	b.text(string(make([]byte, passwdBytes)))
	if err := b.send(); err != nil {
		return err
	}
	reply, err := b.receive()
	if err != nil {
		return err
	}
	// ZooKeeper refuses a session by a time-out of zero.
	if len(reply) < 8 || int32(binary.BigEndian.Uint32(reply[4:])) <= 0 {
		return fmt.Errorf("%w: the session was refused", errReply)
	}
	if auth != "" {
		b.request(xidAuth, opAuth)
		b.int32(0)
		b.text("digest")
		b.text(auth)
		if err := b.call(); err != nil {
			return err
		}
	}
	b.xid++
	b.request(b.xid, opSync)
	b.text(node)
	return b.call()
}

// ask sends a request for some nodes.
func (b *bulk) ask(parent string, names []string) error {
	b.xid++
	b.request(b.xid, opMultiRead)
	for _, name := range names {
		b.step(opGetData, false)
		b.text(parent + "/" + escape(name))
		b.out = append(b.out, 0) // no watch
	}
	b.step(opNone, true)
	return b.send()
}

// answer reads the answer to ask.
func (b *bulk) answer(raws [][]byte) error {
	reply, err := b.reply()
	if err != nil {
		return err
	}
	return parseBulk(reply, raws)
}

// parseBulk reads what the nodes of one request hold.
func parseBulk(reply []byte, raws [][]byte) error {
	r := parser{rest: reply}
	for i := range raws {
		kind, done := r.int32(), r.next(1)
		r.next(4) // the error comes again
		switch {
		case r.bad || done[0] != 0:
			return errReply
		case kind == opGetData:
			raws[i] = r.bytes()
			r.next(statBytes)
		case kind == opNone && r.int32() == errNoNode:
		default:
			return errReply
		}
	}
	if r.int32(); r.bad || r.next(1)[0] == 0 {
		return errReply
	}
	return nil
}

const errNoNode = -101

// request begins a request; its length comes first.
func (b *bulk) request(xid, op int32) {
	b.out = append(b.out[:0], 0, 0, 0, 0)
	b.int32(xid)
	b.int32(op)
}

// step begins a part of a multi.
func (b *bulk) step(op int32, done bool) {
	b.int32(op)
	b.out = append(b.out, 0)
	if done {
		b.out[len(b.out)-1] = 1
	}
	b.int32(-1)
}

func (b *bulk) int32(v int32) { b.out = binary.BigEndian.AppendUint32(b.out, uint32(v)) }
func (b *bulk) int64(v int64) { b.out = binary.BigEndian.AppendUint64(b.out, uint64(v)) }
func (b *bulk) text(v string) {
	b.int32(int32(len(v)))
	b.out = append(b.out, v...)
}

func (b *bulk) send() error {
	binary.BigEndian.PutUint32(b.out, uint32(len(b.out)-4))
	_, err := b.conn.Write(b.out)
	return err
}

// receive reads one packet.
func (b *bulk) receive() ([]byte, error) {
	var size [4]byte
	if _, err := io.ReadFull(b.in, size[:]); err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint32(size[:])
	if n > bulkReply {
		return nil, errReply
	}
	packet := make([]byte, n)
	_, err := io.ReadFull(b.in, packet)
	return packet, err
}

// call sends the request, and reports whether it was carried out.
func (b *bulk) call() error {
	if err := b.send(); err != nil {
		return err
	}
	_, err := b.reply()
	return err
}

// reply reads what follows the head of an answer: number, transaction and error.
func (b *bulk) reply() ([]byte, error) {
	reply, err := b.receive()
	switch {
	case err != nil:
		return nil, err
	case len(reply) < 16:
		return nil, errReply
	}
	if code := int32(binary.BigEndian.Uint32(reply[12:])); code != 0 {
		return nil, fmt.Errorf("%w: error %d", errReply, code)
	}
	return reply[16:], nil
}

// A parser takes an answer apart.
type parser struct {
	rest []byte
	bad  bool // it was shorter than it says
}

func (p *parser) next(n int) []byte {
	if n < 0 || n > len(p.rest) {
		p.bad, p.rest = true, nil
		// Zeros that the caller may index, and no more than any caller does, however long the answer says that
		// it is.
		return make([]byte, min(max(n, 0), statBytes))
	}
	part := p.rest[:n]
	p.rest = p.rest[n:]
	return part
}

func (p *parser) int32() int32 { return int32(binary.BigEndian.Uint32(p.next(4))) }

// bytes returns a part that has its length before it; it is not nil.
func (p *parser) bytes() []byte {
	n := int(p.int32())
	return append([]byte{}, p.next(max(n, 0))...)
}
