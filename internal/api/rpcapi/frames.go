package rpcapi

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"connectrpc.com/connect"

	"github.com/hapax-id/hapax/api/hapaxv1/hapaxv1connect"
)

// framed returns a handler to which a broken frame of gRPC is the client's error. To
// connect it is an internal one, and a call of one message is read before any
// interceptor could say otherwise; streams have theirs.
func framed(counter counter, h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.Header.Get("Content-Type"), "application/grpc") && r.URL.Path != hapaxv1connect.IssueServiceNextStreamProcedure {
			encoding := r.Header.Get("Grpc-Encoding")
			r.Body = &frames{ReadCloser: r.Body, counter: counter, plain: encoding == "" || encoding == "identity"}
			// Not for reflection and health, whose streams have to be flushed.
			if _, isCall := permissions[r.URL.Path]; isCall {
				w = atOnce{w}
			}
		}
		h.ServeHTTP(w, r)
	})
}

// frames reads a body of frames: a byte of flags, the length in four bytes, and so
// many bytes. What ends within one, or has other flags than that it is compressed, is
// broken.
type frames struct {
	io.ReadCloser
	counter counter
	plain   bool // nothing may be compressed

	head [5]byte
	have int   // bytes of head
	rest int64 // bytes of the frame that are to come
	err  error
}

// Read implements io.Reader.
func (f *frames) Read(p []byte) (int, error) {
	if f.err != nil {
		return 0, f.err
	}
	n, err := f.ReadCloser.Read(p)
	if broken := f.follow(p[:n]); broken != "" {
		return 0, f.fail(broken)
	}
	if errors.Is(err, io.EOF) && (f.have > 0 || f.rest > 0) {
		return n, f.fail("it ends within a frame")
	}
	return n, err
}

func (f *frames) fail(why string) error {
	f.counter.Refused(API, codeProtocol)
	f.err = connect.NewError(connect.CodeInvalidArgument, fmt.Errorf("the request's body is no sequence of frames: %s", why))
	return f.err
}

// follow goes through what was read, and tells what is wrong with it; empty if
// nothing is.
func (f *frames) follow(b []byte) string {
	for len(b) > 0 {
		if f.rest > 0 {
			n := min(f.rest, int64(len(b)))
			f.rest -= n
			b = b[n:]
			continue
		}
		n := copy(f.head[f.have:], b)
		f.have += n
		b = b[n:]
		// By the first byte: a head that is wrong need not come whole.
		switch flags := f.head[0]; {
		case flags > 1:
			return fmt.Sprintf("one has the flags %d, allowed are 0 and 1", flags)
		case flags == 1 && f.plain:
			return "one is compressed, and grpc-encoding does not say how"
		}
		if f.have == len(f.head) {
			f.have, f.rest = 0, int64(binary.BigEndian.Uint32(f.head[1:]))
		}
	}
	return ""
}

// An atOnce writes the one message of a reply with its end: connect would flush it by
// itself.
type atOnce struct{ http.ResponseWriter }
