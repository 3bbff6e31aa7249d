// Package ondemand keeps a handle that is opened when it is first needed, and again after a pause
// where that failed: by one caller at a time, for all.
//
//	closed <- pausing -> open -> closed
//	             ^        |
//	             +--------+ taken
package ondemand

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/hapax-id/hapax"
)

// Options tell what is opened, and when. All but Due are needed.
type Options[T io.Closer] struct {
	Open  func(context.Context) (T, error)
	Pause time.Duration        // after a failure, of which callers are told meanwhile
	Clock func() time.Duration // for the pause
	Due   func() bool          // whether the next call ends the pause; nil: none does
	Ended error                // what callers are told after the end
}

// A Handle is opened by its users. Its methods are safe for concurrent use.
type Handle[T io.Closer] struct {
	opts Options[T]
	turn chan struct{} // holds an element while somebody opens

	mu    sync.Mutex // guards what follows; never held during I/O
	value T
	have  bool
	ended bool
	err   error // of the last attempt
	tried time.Duration
}

// New returns a handle that is not open yet.
func New[T io.Closer](opts Options[T]) *Handle[T] {
	return &Handle[T]{opts: opts, turn: make(chan struct{}, 1)}
}

// Get returns what is open, and opens it unless that has failed just now.
func (h *Handle[T]) Get(ctx context.Context) (value T, err error) {
	value, err, due := h.known()
	if !due {
		return value, err
	}
	select {
	case h.turn <- struct{}{}:
		defer func() { <-h.turn }()
	case <-ctx.Done():
		return value, fmt.Errorf("%w: %w", hapax.ErrStoreUnavailable, context.Cause(ctx))
	}
	// Whoever had the turn before may have opened it, or failed: then it is not tried again at once
	// by each of those that waited.
	if value, err, due = h.known(); !due {
		return value, err
	}
	value, err = h.opts.Open(ctx)
	h.mu.Lock()
	// A caller that has left tells nothing of the value that it wanted: the next one tries for itself.
	if err == nil || !errors.Is(ctx.Err(), context.Canceled) {
		h.tried, h.err = h.opts.Clock(), err
	}
	ended := h.ended
	if err == nil && !ended {
		h.value, h.have = value, true
	}
	h.mu.Unlock()
	if err == nil && ended { // nobody else knows of it
		err = errors.Join(h.opts.Ended, value.Close())
	}
	if err != nil {
		var none T
		return none, err
	}
	return value, nil
}

// known returns what is known, and whether it should be opened.
func (h *Handle[T]) known() (value T, err error, due bool) {
	early := h.opts.Due != nil && h.opts.Due() // it may have a lock of its own
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.ended:
		return value, h.opts.Ended, false
	case h.have:
		return h.value, nil, false
	}
	return value, h.err, h.err == nil || early || h.opts.Clock()-h.tried >= h.opts.Pause
}

// Peek returns what is open; false if nothing is.
func (h *Handle[T]) Peek() (value T, open bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.value, h.have
}

// Take returns what is open, which is the caller's to close then; the next Get opens anew.
func (h *Handle[T]) Take() (value T, open bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.takeLocked()
}

func (h *Handle[T]) takeLocked() (value T, open bool) {
	var none T
	value, open = h.value, h.have
	h.value, h.have, h.err = none, false, nil
	return value, open
}

// End is Take for good: nothing is opened any more.
func (h *Handle[T]) End() (value T, open bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ended = true
	return h.takeLocked()
}

// Close is End, and closes what was open.
func (h *Handle[T]) Close() error {
	if value, open := h.End(); open {
		return value.Close()
	}
	return nil
}
