package hapax

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// refill takes one grant of time from the store and publishes it. It runs in
// one goroutine at a time.
func (s *Snowflake) refill(ctx context.Context) error {
	if err := s.checkSkew(ctx); err != nil {
		return err
	}
	began := s.clock.Elapsed()
	lease, err := s.obtain(ctx)
	if err != nil {
		return err
	}
	if err := s.accept(lease); err != nil {
		return err
	}
	if !s.publish(lease) {
		return fmt.Errorf("%w: pool %q, worker %d: the machine was asleep when the store answered", ErrLeaseLost, lease.Pool, lease.Worker)
	}
	s.observeOn(lease.Worker, Event{Kind: EventGrant, Grant: lease.Grant, Took: s.clock.Elapsed() - began})
	s.warnOfEnd()
	return nil
}

// obtain extends the lease, or acquires a worker ID where there is none to extend.
func (s *Snowflake) obtain(ctx context.Context) (Lease, error) {
	// Not extended: two copies of a suspended machine would extend one lease, each with the right token and key.
	if s.dropped.Swap(false) {
		s.forget()
	}
	if !s.held {
		return s.acquire(ctx)
	}
	lease, err := s.extend(ctx)
	if errors.Is(err, ErrLeaseLost) {
		return s.acquire(ctx)
	}
	return lease, err
}

// publish makes an accepted grant available: an adjacent extension lengthens
// the current stretch, anything else takes its place (condition 5). It is false for a grant
// that is to be given up with all that was in hand before.
func (s *Snowflake) publish(l Lease) bool {
	s.mu.Lock()
	if s.retired { // Close did not wait for this refill
		s.mu.Unlock()
		return true
	}
	if s.dropped.Load() {
		s.mu.Unlock()
		return false
	}
	s.lease, s.held = l, true
	s.grants++
	r := s.cur.Load()
	// The token, too: under another one the lease was lost between, though worker and ticks seem to adjoin.
	if r.worker == l.Worker && r.token == l.Token && r.hi.Load() == l.Grant.Lo {
		if invariants && l.Grant.Hi < r.hi.Load() {
			violatedf(5, "an extension ends at tick %d, the stretch at %d", l.Grant.Hi, r.hi.Load())
		}
		r.reach(l.Grant, s.end)
		s.mu.Unlock()
		return true
	}
	first := l.Grant.Lo << s.line.bits
	next := s.retireLocked(r)
	if r.worker >= 0 { // stay above what was issued, also under another worker ID
		first = max(first, ceilTick(next, s.line.bits)<<s.line.bits)
	}
	s.cur.Store(s.newStretch(l, first))
	s.mu.Unlock()
	s.observeOn(l.Worker, Event{Kind: EventSwapped, Grant: l.Grant})
	return true
}

func (s *Snowflake) newStretch(l Lease, first int64) *stretch {
	r := &stretch{worker: l.Worker, token: l.Token, first: first}
	r.timeline = s.line
	r.next.Store(first)
	r.reach(l.Grant, s.end)
	r.pop = &r.cursor
	switch {
	case s.opts.Mutex:
		r.pop = &mutexCursor{timeline: s.line, next: first}
	case s.opts.Populate != nil:
		r.pop = &chosenCursor{mutexCursor{timeline: s.line, next: first}, s.opts.Populate}
	}
	enc, err := s.layout.encoder(l.Worker, s.opts.Fields)
	if err != nil {
		panic(err) // the options were checked, and accept checked the worker
	}
	r.enc = enc
	return r
}

// warnOfEnd announces the end of the layout's time, once a day in its last year.
func (s *Snowflake) warnOfEnd() {
	now, _ := s.clock.Now()
	ends := s.layout.Ends()
	if ends.Sub(now) < timeWarning && now.Sub(s.warned) >= 24*time.Hour {
		s.warned = now
		s.observe(Event{Kind: EventTimeRunningOut, Until: ends})
	}
}
