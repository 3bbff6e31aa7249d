package httpapi

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/hapax-id/hapax/api"
)

// How many bytes of requests' bodies may be in memory at the same time: of clients
// with a good token, where tokens are asked for, and of strangers, who may ask no more
// than whether the server is well.
const (
	maxBodies       = 128 << 20
	maxBodiesUnseen = 1 << 20
	maxBodyUnseen   = 4 << 10 // of one
)

// unseenTime is how long a stranger's body may take.
const unseenTime = 5 * time.Second

// errBusy refuses a request for whose body there is no memory.
var errBusy = fmt.Errorf("%w: too many bytes of requests' bodies are in flight; try again", api.ErrLimitExceeded)

// A budget counts bytes of bodies.
type budget struct {
	most, each int64 // of all, and what one has at most; do not change
	used       atomic.Int64
}

func (b *budget) take(n int64) bool {
	if b.used.Add(n) > b.most {
		b.used.Add(-n)
		return false
	}
	return true
}

// claim returns how much memory a request's body may take: as much as it says, or
// all that is read of one, and as much again where it is to be decompressed.
func (b *budget) claim(r *http.Request) int64 {
	n := r.ContentLength
	if n < 0 || n > b.each {
		n = b.each
	}
	if isCompressed(r.Header) {
		n += b.each
	}
	return n
}

// isCompressed reports whether any of the protocols' headers says that a body is.
func isCompressed(header http.Header) bool {
	for _, name := range []string{"Content-Encoding", "Connect-Content-Encoding", "Grpc-Encoding"} {
		if values := header[name]; len(values) > 0 && values[0] != "identity" {
			return true
		}
	}
	return false
}

// A bodyWriter gives back what a request's body counts for when the answer begins:
// the body has been read then.
type bodyWriter struct {
	http.ResponseWriter
	budget *budget
	held   atomic.Int64 // of the budget
}

// hold counts a request's body. It returns nil if there is no room.
func (b *budget) hold(w http.ResponseWriter, r *http.Request) *bodyWriter {
	n := b.claim(r)
	if !b.take(n) {
		return nil
	}
	held := &bodyWriter{ResponseWriter: w, budget: b}
	held.held.Store(n)
	// Routes read no more than maxBody by themselves; a stranger has less.
	if b.each < maxBody {
		r.Body = http.MaxBytesReader(w, r.Body, b.each)
	}
	if r.ContentLength < 0 {
		r.Body = &measuredBody{ReadCloser: r.Body, rest: held, left: b.each}
	}
	return held
}

func (w *bodyWriter) release() { w.budget.used.Add(-w.held.Swap(0)) }

// shrink gives back what a body did not take.
func (w *bodyWriter) shrink(n int64) {
	// Unless the answer has begun, which gives back everything.
	if old := w.held.Load(); n > 0 && n <= old && w.held.CompareAndSwap(old, old-n) {
		w.budget.used.Add(-n)
	}
}

func (w *bodyWriter) WriteHeader(status int) {
	w.release()
	w.ResponseWriter.WriteHeader(status)
}

func (w *bodyWriter) Write(p []byte) (int, error) {
	w.release()
	return w.ResponseWriter.Write(p)
}

// Flush implements http.Flusher, which streams look for.
func (w *bodyWriter) Flush() {
	w.release()
	_ = http.NewResponseController(w.ResponseWriter).Flush() // an error means that the client has disconnected
}

// Unwrap is for http.ResponseController.
func (w *bodyWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// A measuredBody is a body whose length is known only once it has been read.
type measuredBody struct {
	io.ReadCloser
	rest *bodyWriter
	left int64 // of its share
}

// Read implements io.Reader.
func (b *measuredBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.left -= int64(n)
	if errors.Is(err, io.EOF) {
		b.rest.shrink(b.left)
		b.left = 0
	}
	return n, err
}
