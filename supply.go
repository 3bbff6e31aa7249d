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

// supply keeps an issuer supplied with grants: one fetch at a time, tried again
// with backoff while the store is in trouble, and callers that wait for it.
type supply struct {
	fetch    func(context.Context) error // takes the next grant and publishes it
	timeout  time.Duration
	elapsed  func() time.Duration // a monotonic clock
	observe  func(Event)
	life     context.Context // ends when the issuer begins to close
	stop     context.CancelFunc
	work     context.Context // ends when Close waits no longer for a call that is under way
	abandon  context.CancelFunc
	children sync.WaitGroup // fetches and other goroutines of the issuer
	waits    atomic.Int64   // waits for the store so far

	mu       sync.Mutex // guards the fields below
	closed   bool
	fetching bool
	changed  chan struct{} // closed at the next change that callers may wait for
	trouble  error         // why the running fetch has not succeeded yet
	lostAt   time.Duration // when the store stopped answering
	lost     bool
	failure  error // why the last fetch gave up
	failedAt time.Duration
	refusal  error // set once: the store is behind what was used here, and asking again would only hide it
}

func (s *supply) init(fetch func(context.Context) error, timeout time.Duration, clock *engineClock, observe func(Event)) {
	if timeout <= 0 {
		timeout = DefaultStoreTimeout
	}
	s.fetch, s.timeout, s.elapsed, s.observe = fetch, timeout, clock.elapsed, observe
	s.life, s.stop = context.WithCancel(context.Background())
	s.work, s.abandon = context.WithCancel(context.Background())
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
	case s.failure != nil && s.elapsed()-s.failedAt < lifeOf(s.failure):
		return s.failure
	}
	s.fetching, s.trouble = true, nil
	s.children.Go(s.run)
	return nil
}

func (s *supply) run() {
	for failures := 1; ; failures++ {
		ctx, cancel := context.WithTimeout(s.work, s.timeout)
		err := s.fetch(ctx)
		cancel()
		err = StoreError(err)
		if s.life.Err() != nil {
			err = ErrClosed
		}
		again := err != nil && IsTransient(err)
		s.report(err, again)
		if !again {
			return
		}
		select {
		case <-s.life.Done():
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
		s.lost, s.lostAt = true, s.elapsed()
		event = Event{Kind: EventStoreLost, Err: err}
	case !unavailable && s.lost && err != ErrClosed:
		s.lost = false
		event = Event{Kind: EventStoreBack, Took: s.elapsed() - s.lostAt}
	}
	s.fetching, s.trouble = again, err
	told := errors.Is(err, ErrFenced) && errors.Is(s.failure, ErrFenced) // and asked anew since, often
	if !again {
		s.failure, s.failedAt = err, s.elapsed()
	}
	if errors.Is(err, ErrStoreRolledBack) && !errors.Is(err, ErrFenced) { // a fence is lifted by an operator
		s.refusal = err
	}
	s.wakeLocked()
	s.mu.Unlock()
	if event.Kind != "" {
		s.observe(event)
	}
	if err != nil && !again && !told && err != ErrClosed {
		s.observe(Event{Kind: eventOf(err), Err: err})
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
			return nil
		case <-s.life.Done(): // the change may have been before watch was called
			return ErrClosed
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
	s.wakeLocked()
	s.mu.Unlock()
	s.stop()
	ended := make(chan struct{})
	go func() { s.children.Wait(); close(ended) }()
	select {
	case <-ended:
		s.abandon()
		return first, nil
	case <-ctx.Done():
		s.abandon()
		return first, waitError(ctx, ErrClosed)
	}
}
