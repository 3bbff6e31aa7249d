package dubbo

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

const (
	headBytes = 16
	magic     = 0xdabb

	maxBody = 16 << 10 // of a request; a call of IdService takes some hundred bytes
)

// The bits of a frame's third byte; the five lowest are the serialization.
const (
	flagRequest = 0x80
	flagTwoWay  = 0x40
	flagEvent   = 0x20

	serializationMask = 0x1f
	hessian2          = 2
)

// The statuses of a reply. One that is not ok carries a text in place of a result.
const (
	statusOK           = 20
	statusBadRequest   = 40
	statusServiceError = 70
)

// What a result begins with.
const (
	resultValue = 0x91 // the int 1
	resultNull  = 0x92 // the int 2
)

// A head begins a frame:
//
//	 0      2       3        4            12       16
//	+------+-------+--------+------------+--------+------
//	| magic| flags | status | request ID | length | body
//	+------+-------+--------+------------+--------+------
type head struct {
	flags  byte
	status byte
	id     uint64
	length uint32
}

var errMagic = errors.New("not a frame of the Dubbo protocol")

func parseHead(b *[headBytes]byte) (head, error) {
	h := head{flags: b[2], status: b[3], id: binary.BigEndian.Uint64(b[4:]), length: binary.BigEndian.Uint32(b[12:])}
	if binary.BigEndian.Uint16(b[:]) != magic {
		return h, errMagic
	}
	return h, nil
}

// readFrame reads one frame, its body into buf if that is large enough. A body that
// is too long is not read: the error is a *requestError then.
func readFrame(r io.Reader, buf []byte) (head, []byte, error) {
	var b [headBytes]byte
	if _, err := io.ReadFull(r, b[:]); err != nil {
		return head{}, nil, err
	}
	h, err := parseHead(&b)
	if err != nil {
		return h, nil, err
	}
	if h.length > maxBody {
		return h, nil, badRequest(fmt.Errorf("a body of %d bytes; allowed are up to %d", h.length, maxBody))
	}
	if int(h.length) > cap(buf) {
		buf = make([]byte, h.length)
	}
	buf = buf[:h.length]
	_, err = io.ReadFull(r, buf)
	return h, buf, err
}

// appendReply writes the frame that answers a request, whose body is appended by
// the function.
func appendReply(dst []byte, request head, status byte, body func(dst []byte) []byte) []byte {
	start := len(dst)
	dst = binary.BigEndian.AppendUint16(dst, magic)
	dst = append(dst, hessian2|request.flags&flagEvent, status)
	dst = binary.BigEndian.AppendUint64(dst, request.id)
	dst = append(dst, 0, 0, 0, 0)
	dst = body(dst)
	binary.BigEndian.PutUint32(dst[start+12:], uint32(len(dst)-start-headBytes))
	return dst
}

// A requestError tells a consumer what was wrong, under a status.
type requestError struct {
	status byte
	err    error
}

func (e *requestError) Error() string { return e.err.Error() }
func (e *requestError) Unwrap() error { return e.err }

func badRequest(err error) error   { return &requestError{statusBadRequest, err} }
func serviceError(err error) error { return &requestError{statusServiceError, err} }
