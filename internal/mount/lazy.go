package mount

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/hapax-id/hapax"
)

// reopenAfter is how long a table that could not be opened is not tried again.
const reopenAfter = 300 * time.Millisecond

// A Lazy handle is opened when its database or tree first answers, and tried again
// until then.
type Lazy[T io.Closer] struct {
	open func(context.Context) (T, error)
	turn chan struct{} // held by the one who opens

	mu     sync.Mutex // guards the fields below
	value  T
	have   bool
	closed bool
	err    error
	tried  time.Time
}

// NewLazy returns a handle that is not open yet.
func NewLazy[T io.Closer](open func(context.Context) (T, error)) *Lazy[T] {
	return &Lazy[T]{open: open, turn: make(chan struct{}, 1)}
}

// known returns what is known, and whether it should be tried.
func (l *Lazy[T]) known() (value T, err error, due bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.closed:
		return value, hapax.ErrClosed, false
	case l.have:
		return l.value, nil, false
	}
	return value, l.err, l.err == nil || time.Since(l.tried) >= reopenAfter
}

// Get returns what is open, and opens it where it is due.
func (l *Lazy[T]) Get(ctx context.Context) (T, error) {
	value, err, due := l.known()
	if !due {
		return value, err
	}
	select {
	case l.turn <- struct{}{}:
		defer func() { <-l.turn }()
	case <-ctx.Done():
		return value, fmt.Errorf("%w: %w", hapax.ErrStoreUnavailable, context.Cause(ctx))
	}
	if value, err, due = l.known(); !due {
		return value, err
	}
	value, err = l.open(ctx)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.tried, l.err = time.Now(), err; err != nil {
		return value, err
	}
	if l.closed {
		return value, errors.Join(hapax.ErrClosed, value.Close())
	}
	l.value, l.have = value, true
	return value, nil
}

// Peek returns what is open; false if nothing is.
func (l *Lazy[T]) Peek() (value T, open bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.value, l.have
}

// Close closes what was opened.
func (l *Lazy[T]) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed = true; !l.have {
		return nil
	}
	l.have = false
	return l.value.Close()
}
