package hapax

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// refill takes one grant of time from the store and publishes it. It runs in
// one goroutine at a time.
func (s *Snowflake) refill(ctx context.Context) error {
	if err := s.checkSkew(ctx); err != nil {
		return err
	}
	began := s.clock.elapsed()
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
	s.observeOn(lease.Worker, Event{Kind: EventGrant, Grant: lease.Grant, Took: s.clock.elapsed() - began})
	s.warnOfEnd()
	return nil
}

// checkSkew compares the local clock with the store's, where it has one.
func (s *Snowflake) checkSkew(ctx context.Context) error {
	clock, ok := s.workers.(StoreClock)
	if !ok {
		return nil
	}
	before, began := s.clock.source.Now()
	theirs, err := clock.StoreTime(ctx)
	if errors.Is(err, ErrNotSupported) {
		return nil
	}
	if err != nil {
		return err
	}
	round := s.clock.elapsed() - began
	ours := before.Add(round / 2)
	skew := ours.Sub(theirs)
	s.skew.Store(int64(skew))
	if skew.Abs() > s.opts.MaxSkew+round/2 {
		return fmt.Errorf("%w: here it is %s, there %s; allowed is %v: set the clock that is wrong", ErrClockSkew,
			ours.UTC().Format(time.RFC3339Nano), theirs.UTC().Format(time.RFC3339Nano), s.opts.MaxSkew)
	}
	return nil
}

// obtain extends the lease, or acquires a worker ID where there is none to extend.
func (s *Snowflake) obtain(ctx context.Context) (Lease, error) {
	if s.dropped.Swap(false) {
		s.held, s.span = false, s.opts.Grant
	}
	if !s.held {
		return s.acquire(ctx)
	}
	lease, err := s.workers.ExtendWorker(ctx, s.lease, ExtendRequest{Layout: s.layout, Term: s.term()})
	switch {
	case errors.Is(err, ErrLeaseLost):
		s.held, s.span = false, s.opts.Grant
		s.observeOn(s.lease.Worker, Event{Kind: EventWorkerLost, Err: err})
		return s.acquire(ctx)
	case err == nil && lease.Grant.Lo != s.lease.Grant.Hi:
		return lease, fmt.Errorf("%w: pool %q, worker %d: the store extended a grant that ends at tick %d from tick %d on", ErrStoreCorrupt, s.opts.Pool, lease.Worker, s.lease.Grant.Hi, lease.Grant.Lo)
	case err == nil:
		s.span = min(2*s.span, s.opts.MaxGrant)
	}
	return lease, err
}

func (s *Snowflake) acquire(ctx context.Context) (Lease, error) {
	lease, err := s.workers.AcquireWorker(ctx, AcquireRequest{
		Pool: s.opts.Pool, Layout: s.layout, Workers: s.opts.Workers, Among: s.opts.Among, Holder: s.opts.Holder, Term: s.term(),
	})
	if err == nil {
		s.observeOn(lease.Worker, Event{Kind: EventWorkerAcquired, Grant: lease.Grant})
	}
	return lease, err
}

// term returns what the next grant is for. It reaches beyond what numbers may
// lead the clock by, so that a cursor far ahead does not need a grant a tick.
func (s *Snowflake) term() Term {
	now, _ := s.clock.now()
	return Term{Now: now, Length: s.span + s.opts.MaxAhead, Ahead: s.opts.MaxAhead, Behind: s.opts.MaxBehind, TTL: s.span + s.opts.MaxAhead + s.opts.Lease}
}

// accept decides whether a lease can be used: its grant must lie above all that
// this issuer took of that worker before (condition 3). What may be given back can
// begin within it: an extension through one node, whose answer was lost, and another
// through a second node, which gives back nothing of the first one's.
func (s *Snowflake) accept(l Lease) error {
	g := l.Grant
	if !s.opts.mayUse(l.Worker) || g.Lo < 0 || g.Len() <= 0 || g.Hi > s.end || l.Token < 1 || l.From < 0 || l.From > g.Hi {
		return fmt.Errorf("%w: pool %q: the store granted worker %d ticks [%d, %d) from %d under token %d", ErrStoreCorrupt, s.opts.Pool, l.Worker, g.Lo, g.Hi, l.From, l.Token)
	}
	if mark := s.marks[l.Worker]; g.Lo < mark {
		return fmt.Errorf("%w: pool %q, worker %d: the store granted ticks from %d, but those below %d are taken", ErrStoreRolledBack, s.opts.Pool, l.Worker, g.Lo, mark)
	}
	s.marks[l.Worker] = g.Hi
	return nil
}

// mayUse reports whether the options allow a worker ID.
func (o *SnowflakeOptions) mayUse(worker int64) bool {
	return o.Workers.Contains(worker) && (len(o.Among) == 0 || slices.Contains(o.Among, worker))
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
	if s.opts.Populator == PopulatorMutex {
		r.pop = &mutexCursor{timeline: s.line, next: first}
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
	now, _ := s.clock.now()
	ends := s.layout.Ends()
	if ends.Sub(now) < timeWarning && now.Sub(s.warned) >= 24*time.Hour {
		s.warned = now
		s.observe(Event{Kind: EventTimeRunningOut, Until: ends})
	}
}
