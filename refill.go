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
	if err := s.identity.verify(ctx, s.workers, s.opts.Witness); err != nil {
		return err
	}
	if err := s.checkSkew(ctx); err != nil {
		s.identity.doubt(err)
		return err
	}
	began := s.clock.elapsed()
	lease, err := s.obtain(ctx)
	if err != nil {
		s.identity.doubt(err)
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
	now, _ := s.clock.now()
	tick, err := s.layout.TickOf(now)
	if err != nil {
		return Lease{}, err
	}
	if s.dropped.Swap(false) {
		s.held, s.span = false, s.opts.Grant
	}
	if s.held {
		lease, err := s.workers.ExtendWorker(ctx, s.lease, ExtendRequest{
			To: tick + s.ticks(s.span), End: s.end, Now: now, TTL: s.span + s.opts.Lease,
		})
		if errors.Is(err, ErrStoreRolledBack) {
			s.held = false // time goes on: a later grant may lie above what was used
		}
		switch {
		case errors.Is(err, ErrLeaseLost):
			s.held, s.span = false, s.opts.Grant
			s.observeOn(s.lease.Worker, Event{Kind: EventWorkerLost, Err: err})
		case err == nil && lease.Grant.Lo > max(s.lease.Grant.Hi, tick+s.ahead):
			// The answer to an earlier extension was lost, and its time abandoned.
			// What comes after it begins too far ahead: another worker issues now,
			// if there is one.
			s.span = s.opts.Grant
			if other, err := s.acquire(ctx, now, tick); err == nil {
				return other, nil
			}
			return lease, nil
		default:
			if err == nil {
				s.span = min(2*s.span, s.opts.MaxGrant)
			}
			return lease, err
		}
	}
	return s.acquire(ctx, now, tick)
}

func (s *Snowflake) acquire(ctx context.Context, now time.Time, tick int64) (Lease, error) {
	lease, err := s.workers.AcquireWorker(ctx, AcquireRequest{
		Pool: s.opts.Pool, Layout: s.spec, IDs: s.opts.Workers, Among: s.opts.Among, Holder: s.opts.Holder,
		Floor: max(0, tick-s.behind), Latest: tick + s.ahead, To: tick + s.ticks(s.span), End: s.end,
		Poison: tick + s.ticks(PoisonMargin), Now: now, TTL: s.span + s.opts.Lease, Tick: s.layout.Unit(),
	})
	if err == nil {
		s.observeOn(lease.Worker, Event{Kind: EventWorkerAcquired, Grant: lease.Grant})
	}
	return lease, err
}

// ticks returns a duration in whole ticks, rounded up.
func (s *Snowflake) ticks(d time.Duration) int64 {
	unit := s.layout.Unit()
	return int64((d + unit - 1) / unit)
}

// accept decides whether a lease can be used, and records it with the witness.
func (s *Snowflake) accept(l Lease) error {
	g := l.Grant
	if !s.opts.mayUse(l.Worker) || g.Lo < 0 || g.Len() <= 0 || g.Hi > s.end || l.Epoch < 1 {
		return fmt.Errorf("%w: pool %q: the store granted worker %d ticks [%d, %d) under epoch %d", ErrStoreCorrupt, s.opts.Pool, l.Worker, g.Lo, g.Hi, l.Epoch)
	}
	if mark := s.marks[l.Worker]; g.Lo < mark {
		return fmt.Errorf("%w: pool %q, worker %d: the store granted ticks from %d, but those below %d are taken", ErrStoreRolledBack, s.opts.Pool, l.Worker, g.Lo, mark)
	}
	if s.opts.Witness != nil {
		if err := s.opts.Witness.Accept(WorkerLine(s.opts.Pool, l.Worker), g, s.witnessed(l.Worker)); err != nil {
			return err
		}
	}
	s.marks[l.Worker] = g.Hi
	return nil
}

// mayUse tells whether the options allow a worker ID.
func (o *SnowflakeOptions) mayUse(worker int64) bool {
	return worker >= o.Workers.Lo && worker < o.Workers.Hi && (len(o.Among) == 0 || isIn(o.Among, worker))
}

// witnessed returns the mark of a worker that the witness knows. Only this
// issuer uses the pool's workers here, so it has not changed since the store was
// asked.
func (s *Snowflake) witnessed(worker int64) int64 {
	mark, _ := s.opts.Witness.Mark(WorkerLine(s.opts.Pool, worker))
	return mark
}

// publish makes an accepted grant available: an adjacent extension lengthens
// the current stretch, anything else takes its place. It is false for a grant
// that is to be given up with all that was in hand before.
func (s *Snowflake) publish(l Lease) bool {
	s.mu.Lock()
	if s.supply.life.Err() != nil { // Close did not wait for this refill
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
	if r.worker == l.Worker && r.epoch == l.Epoch && r.hi.Load() == l.Grant.Lo {
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
	r := &stretch{worker: l.Worker, epoch: l.Epoch, first: first}
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
