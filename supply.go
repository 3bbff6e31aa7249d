package hapax

import (
	"context"
	"errors"
	"math"
	"sync"
	"sync/atomic"
	"time"
)

// How long a definite failure answers for the store. That a fence stands takes no question
// to the store, and is over for all tags when it ends.
const (
	failureLife = time.Second
	fencedLife  = 50 * time.Millisecond
)

// supplied is an issuer as its supply sees it.
type supplied interface {
	refill(ctx context.Context) error // takes the next grant and publishes it
	observe(e Event)
	elapsed() time.Duration // a monotonic clock
}

// supply keeps an issuer supplied with grants: one fetch at a time, tried again
// with backoff while the store is in trouble, and callers that wait for it.
//
// A server has as many as it has tags, most of them idle: what only somebody at work
// needs, such as channels and contexts, is made for him and let go of.
type supply struct {
	of       supplied
	timeout  time.Duration
	children sync.WaitGroup // fetches and other goroutines of the issuer
	waits    atomic.Int64   // waits for the store so far

	mu       sync.Mutex // guards the fields below
	closed   bool
	fetching bool
	lost     bool
	abandon  context.CancelFunc // ends the calls of the running fetch
	ending   chan struct{}      // closed when the issuer begins to close; nil: nobody waits for that
	changed  chan struct{}      // closed at the next change that callers may wait for; nil: nobody waits
	trouble  error              // why the running fetch has not succeeded yet
	lostAt   time.Duration      // when the store stopped answering
	failure  error              // why the last fetch gave up
	failedAt time.Duration
	refusal  error // set once: the store is behind what was used here, and asking again would only hide it
}

func (s *supply) init(of supplied, timeout time.Duration) {
	if timeout <= 0 {
		timeout = DefaultStoreTimeout
	}
	s.of, s.timeout = of, timeout
}

// over is closed from the start.
var over = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

// ends returns a channel that is closed when the issuer begins to close.
func (s *supply) ends() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return over
	}
	if s.ending == nil {
		s.ending = make(chan struct{})
	}
	return s.ending
}

func (s *supply) isClosed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closed
}

// start runs f in a goroutine that close waits for, unless the issuer is closed.
func (s *supply) start(f func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.children.Go(f)
	return true
}

func lifeOf(failure error) time.Duration {
	if errors.Is(failure, ErrFenced) {
		return fencedLife
	}
	return failureLife
}

// want sees to it that a fetch is under way. It returns a failure instead if
// the last fetch gave up just now.
func (s *supply) want() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return ErrClosed
	case s.refusal != nil:
		return s.refusal
	case s.fetching:
		return nil
	case s.failure != nil && s.of.elapsed()-s.failedAt < lifeOf(s.failure):
		return s.failure
	}
	s.fetching, s.trouble = true, nil
	var work context.Context
	// Not under the caller's context: the fetch goes on for all others when that one gives up.
	work, s.abandon = context.WithCancel(context.Background())
	s.children.Go(func() { s.run(work) })
	return nil
}

func (s *supply) run(work context.Context) {
	for failures := 1; ; failures++ {
		ctx, cancel := context.WithTimeout(work, s.timeout)
		err := s.of.refill(ctx)
		cancel()
		err = StoreError(err)
		// close has ended the call, so that its error says nothing of the store.
		if s.isClosed() {
			err = ErrClosed
		}
		again := err != nil && IsTransient(err)
		s.report(err, again)
		if !again {
			return
		}
		select {
		case <-s.ends():
		case <-time.After(retryDelay(err, failures)):
		}
	}
}

// retryDelay returns how long to wait after so many failures. A worker ID that frees
// up later is worth waiting for.
func retryDelay(err error, failures int) time.Duration {
	if e, ok := errors.AsType[*NoWorkerError](err); ok && !e.NextFree.IsZero() {
		return Backoff(math.MaxInt)
	}
	return Backoff(failures)
}

// report records how an attempt ended and wakes those who wait.
func (s *supply) report(err error, again bool) {
	var event Event
	s.mu.Lock()
	unavailable := err != nil && CodeOf(err) == ErrStoreUnavailable.code
	switch {
	case unavailable && !s.lost:
		s.lost, s.lostAt = true, s.of.elapsed()
		event = Event{Kind: EventStoreLost, Err: err}
	case !unavailable && s.lost && err != ErrClosed:
		s.lost = false
		event = Event{Kind: EventStoreBack, Took: s.of.elapsed() - s.lostAt}
	}
	s.fetching, s.trouble = again, err
	told := errors.Is(err, ErrFenced) && errors.Is(s.failure, ErrFenced) // and asked anew since, often
	if !again {
		s.failure, s.failedAt = err, s.of.elapsed()
		s.abandon()
		s.abandon = nil
	}
	if errors.Is(err, ErrStoreRolledBack) && !errors.Is(err, ErrFenced) { // a fence is lifted by an operator
		s.refusal = err
	}
	s.wakeLocked()
	s.mu.Unlock()
	if event.Kind != "" {
		s.of.observe(event)
	}
	if err != nil && !again && !told && err != ErrClosed {
		s.of.observe(Event{Kind: eventOf(err), Err: err})
	}
}

func eventOf(err error) EventKind {
	switch CodeOf(err) {
	case ErrLineExhausted.code:
		return EventLineExhausted
	case ErrTimeExhausted.code:
		return EventTimeExhausted
	case ErrTagDeleted.code:
		return EventTagDeleted
	case ErrClockSkew.code:
		return EventClockSkew
	}
	return EventRefused
}

// watch returns a channel that is closed at the next change. Take it before
// looking whether there is anything to wait for.
func (s *supply) watch() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return over
	}
	if s.changed == nil {
		s.changed = make(chan struct{})
	}
	return s.changed
}

// signal wakes those who wait.
func (s *supply) signal() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wakeLocked()
}

func (s *supply) wakeLocked() {
	if s.changed != nil {
		close(s.changed)
		s.changed = nil
	}
}

// wait blocks until the change that watch promised, or fails with the context.
// The cause is what the caller waits for; nil means the store.
func (s *supply) wait(ctx context.Context, change <-chan struct{}, cause error) error {
	if ctx.Err() == nil { // else the caller does not mean to wait
		if cause == nil {
			s.waits.Add(1)
		}
		select {
		case <-change:
			if s.isClosed() {
				return ErrClosed
			}
			return nil
		case <-ctx.Done():
		}
	}
	if cause == nil {
		cause = s.cause()
	}
	return waitError(ctx, cause)
}

// cause tells why the next grant is not there yet.
func (s *supply) cause() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.trouble != nil {
		return s.trouble
	}
	return ErrRefillPending
}

// last makes the last call on the store. One that goes on after its time is over is
// left behind: it can only give back what nobody issues from any more.
func (s *supply) last(ctx context.Context, call func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	answer := make(chan error, 1)
	go func() { answer <- call(ctx) }()
	select {
	case err := <-answer:
		return err
	case <-ctx.Done():
	}
	select {
	case err := <-answer: // it heeded the context, and may say more
		return err
	default:
		return waitError(ctx, ErrStoreUnavailable)
	}
}

// close ends all waits and goroutines, as far as the store's time-out allows. A call
// to the store that is under way is waited for: what it is granted goes back with
// the rest, and nothing goes back from below a grant whose answer was not heard. It
// reports whether this call was the first.
func (s *supply) close(ctx context.Context) (first bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	s.mu.Lock()
	first, s.closed = !s.closed, true
	if s.ending != nil {
		close(s.ending)
		s.ending = nil
	}
	s.wakeLocked()
	s.mu.Unlock()
	ended := make(chan struct{})
	go func() { s.children.Wait(); close(ended) }()
	select {
	case <-ended:
		return first, nil
	case <-ctx.Done():
	}
	s.mu.Lock()
	if s.abandon != nil {
		s.abandon()
	}
	s.mu.Unlock()
	return first, waitError(ctx, ErrClosed)
}
