package hapax

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

const (
	rollbackSlack = 5 * time.Millisecond // a smaller step back is not reported
	timeWarning   = 365 * 24 * time.Hour // when the end of a layout's time is announced
)

// SnowflakeStats describe a [Snowflake] at one moment.
type SnowflakeStats struct {
	Pool       string
	Worker     int64         // the worker ID in use; -1 before the first grant
	Token      int64         // the lease's fencing token
	Issued     int64         // numbers issued
	Grants     int64         // grants taken
	StoreWaits int64         // times a call waited for the store
	TickWaits  int64         // times a call waited for the clock
	Ready      int64         // numbers that can be issued before the clock moves on
	Remaining  time.Duration // how far the grant reaches beyond engine time
	Rollback   time.Duration // how far the wall clock is behind engine time
	Skew       time.Duration // local clock less store clock, where the store has one
	Ends       time.Time     // when the layout's time runs out
}

// A Snowflake issues numbers that hold time, worker and sequence as its layout
// says. Its worker ID comes from a [WorkerStore], which grants it stretches of
// that worker's time: within one, no other process can issue the same numbers,
// whatever happens to clocks, leases and pauses.
type Snowflake struct {
	_   [64]byte
	cur atomic.Pointer[stretch] // read by every issue; written at a swap
	_   [64]byte

	leaseKeeper // its lease is guarded by mu

	supply supply
	line   timeline
	ahead  int64 // MaxAhead in ticks
	behind int64 // MaxBehind in ticks
	epoch  int64 // the layout's epoch in Unix milliseconds
	unit   int64 // the layout's tick in milliseconds
	length int64 // the layout's time in milliseconds

	pacer      pacer
	_          [64]byte
	spares     spares // for lanes; the pacer writes its turn about every millisecond
	_          [64]byte
	sleep      *sleepWatch
	dropped    atomic.Bool // the lease is to be given up at the next refill
	tickWaits  atomic.Int64
	rolledBack atomic.Bool // a rollback was announced and is not over
	warned     time.Time   // when the end of time was last announced; used by refill alone

	mu     sync.Mutex // guards the fields below; never held while waiting
	issued int64      // by stretches past
	grants int64

	retired bool // Close has taken stock: what comes later is nobody's
}

// stretch is one grant on a worker's timeline. Adjacent extensions lengthen it.
type stretch struct {
	enc encoder // beside the limit, which is read with it
	cursor
	_      [64]byte
	pop    populator // the cursor, or a mutexCursor
	worker int64
	token  int64
	first  int64        // the first cursor
	hi     atomic.Int64 // the tick at which the grant ends; raised by refill
	due    atomic.Int64 // the tick at which an extension is due
}

// bound returns the cursor that issuing must stay below at tick (condition 4).
func (r *stretch) bound(tick, ahead int64) int64 {
	return min(r.hi.Load(), tick+ahead+1) << r.bits
}

// reach sets where the stretch ends, and that half-way through its latest grant
// an extension is due, unless that is where the layout's time ends.
func (r *stretch) reach(g Grant, end int64) {
	r.hi.Store(g.Hi)
	if r.due.Store(g.Hi - g.Len()/2); g.Hi >= end {
		r.due.Store(end)
	}
}

// issuedSoFar returns how many numbers the stretch has issued.
func (r *stretch) issuedSoFar(next, skipped int64) int64 { return next - r.first - skipped }

// NewSnowflake returns an issuer with a worker ID of its pool and a first
// grant; it waits for both until the context ends.
//
// A nil store leaves uniqueness across restarts to the clock: the worker ID
// must be fixed by opts.Workers, nobody else may use it, and issuing begins one
// tick after the start.
//
// Errors: [ErrInvalidArgument], [ErrInvalidTag], [ErrFieldRange], [ErrLayoutMismatch],
// [ErrWorkerPoisoned], [ErrTimeExhausted], [ErrClockSkew], [ErrStoreRolledBack],
// [ErrStoreReplaced], and a [*WaitError] (matching [ErrNoWorker], [ErrStoreUnavailable])
// when the context ends.
func NewSnowflake(ctx context.Context, workers WorkerStore, opts SnowflakeOptions) (*Snowflake, error) {
	opts, err := opts.withDefaults(workers == nil)
	if err != nil {
		return nil, err
	}
	if workers == nil {
		workers = &localWorker{}
	}
	s := &Snowflake{
		leaseKeeper: newLeaseKeeper(workers, opts),

		line:   timeline{bits: uint8(opts.Layout.SequenceBits()), start: opts.SequenceStart},
		ahead:  int64(opts.MaxAhead / opts.Layout.Unit()),
		behind: int64(opts.MaxBehind / opts.Layout.Unit()),
		epoch:  opts.Layout.Epoch().UnixMilli(),
		unit:   opts.Layout.Unit().Milliseconds(),
		length: opts.Layout.Ends().UnixMilli() - opts.Layout.Epoch().UnixMilli(),
	}
	s.sleep = newSleepWatch(s.clock.source)
	s.supply.init(s, opts.StoreTimeout)
	none := &stretch{cursor: cursor{timeline: s.line}, worker: -1}
	none.pop = &none.cursor
	s.cur.Store(none)
	if err := s.ready(ctx); err != nil {
		_ = s.Close(ctx)
		return nil, err
	}
	if opts.KeepWarm {
		s.supply.start(s.keepWarm)
	}
	return s, nil
}

// Validate returns the error that [NewSnowflake] would return for these options,
// as far as that can be told without a store.
func (o SnowflakeOptions) Validate() error {
	_, err := o.withDefaults(false)
	return err
}

// observe tells the observer of an event on the current worker.
func (s *Snowflake) observe(e Event) { s.observeOn(s.cur.Load().worker, e) }

// ready waits for the first grant.
func (s *Snowflake) ready(ctx context.Context) error {
	for {
		change := s.supply.watch()
		if s.cur.Load().worker >= 0 {
			return nil
		}
		if err := s.supply.want(); err != nil {
			return err
		}
		if err := s.supply.wait(ctx, change, nil); err != nil {
			return err
		}
	}
}

// Next issues one number. See [Issuer].
//
// A load, an add and a compare are enough for the reasons given at [Segment.Next].
// An adjacent extension raises the end of the live stretch, never the limit that
// this call has read; the pacer raises the limit, and never beyond that end.
func (s *Snowflake) Next(ctx context.Context) (ID, error) {
	r := s.cur.Load()
	if limit := r.limit.Load(); limit != 0 {
		c := r.next.Add(1) - 1
		if c < limit {
			if invariants {
				r.check(c, 1)
			}
			return r.enc.encode(c), nil
		}
		if s.admit(r, c, limit) {
			return r.enc.encode(c), nil
		}
	}
	r, c, _, err := s.claim(ctx, 1)
	if err != nil {
		return 0, err
	}
	s.pacer.open(s, r)
	return r.enc.encode(c), nil
}

// admit decides on a cursor that a single add produced at or beyond the limit.
func (s *Snowflake) admit(r *stretch, c, limit int64) bool {
	tick, err := s.tick()
	// The limit is only as far as the rate let it be raised; what the clock and the grant allow is the bound.
	if err != nil || c >= r.bound(tick, s.ahead) {
		r.refuse(limit)
		return false
	}
	s.pacer.open(s, r)
	return true
}

// TryNext issues one number if there is one without waiting, and reports whether
// there was. Where the grant is used up it asks for the next one.
func (s *Snowflake) TryNext() (ID, bool) {
	r := s.cur.Load()
	if limit := r.limit.Load(); limit != 0 {
		c := r.next.Add(1) - 1
		if c < limit || s.admit(r, c, limit) {
			return r.enc.encode(c), true
		}
	}
	r, tick, c, n, err := s.tryClaim(1)
	if n == 0 {
		s.wantIfUsedUp(r, tick, err)
		return 0, false
	}
	s.pacer.open(s, r)
	return r.enc.encode(c), true
}

// TryNextN fills dst, or the beginning of it, with the numbers that can be issued without
// waiting, and returns how many numbers that are.
func (s *Snowflake) TryNextN(dst []ID) int {
	done := 0
	for done < len(dst) {
		r, tick, lo, n, err := s.tryClaim(int64(len(dst) - done))
		if n == 0 {
			s.wantIfUsedUp(r, tick, err)
			break
		}
		r.enc.fill(dst[done:done+int(n)], lo)
		done += int(n)
	}
	return done
}

// wantIfUsedUp asks for the next grant where nothing but that is missing.
func (s *Snowflake) wantIfUsedUp(r *stretch, tick int64, err error) {
	if err == nil && s.usedUp(r, tick) {
		_ = s.supply.want() // a failure is told to those who will have to wait
	}
}

// NextN fills dst with numbers in ascending order of issue. See [Issuer].
func (s *Snowflake) NextN(ctx context.Context, dst []ID) (int, error) {
	done := 0
	for done < len(dst) {
		r, lo, n, err := s.claim(ctx, int64(len(dst)-done))
		if err != nil {
			return done, err
		}
		r.enc.fill(dst[done:done+int(n)], lo)
		done += int(n)
	}
	return done, nil
}

// tryClaim issues up to most cursors in a row from one stretch, or none if none
// can be issued now.
func (s *Snowflake) tryClaim(most int64) (r *stretch, tick, lo, n int64, err error) {
	r = s.cur.Load()
	if tick, err = s.tick(); err != nil {
		return r, 0, 0, 0, err
	}
	if lo, n = r.pop.take(1, most, tick-s.behind, r.bound(tick, s.ahead)); n > 0 {
		if invariants {
			r.check(lo, n)
		}
		if (lo+n-1)>>r.bits > tick {
			s.pacer.overtook(s)
		}
		s.extendIfDue(r, tick)
	}
	return r, tick, lo, n, nil
}

// claim issues up to most cursors in a row from one stretch, waiting as needed.
func (s *Snowflake) claim(ctx context.Context, most int64) (r *stretch, lo, n int64, err error) {
	for {
		r, _, lo, n, err := s.tryClaim(most)
		if n > 0 || err != nil {
			return r, lo, n, err
		}
		change := s.supply.watch()
		r, tick, lo, n, err := s.tryClaim(most) // once more, lest the change is missed
		if n > 0 || err != nil {
			return r, lo, n, err
		}
		if err := s.await(ctx, change, r, tick); err != nil {
			return nil, 0, 0, err
		}
	}
}

// usedUp reports whether nothing is left of a stretch at tick.
func (s *Snowflake) usedUp(r *stretch, tick int64) bool {
	next, _ := r.pop.position()
	return r.enter(next, tick-s.behind) >= r.hi.Load()<<r.bits
}

// await blocks until there may be a number to issue: until the clock moves on,
// or, where the grant is used up, until the store has answered.
func (s *Snowflake) await(ctx context.Context, change <-chan struct{}, r *stretch, tick int64) error {
	if !s.usedUp(r, tick) {
		if !s.pacer.enter(s) {
			return ErrClosed
		}
		defer s.pacer.leave()
		if ctx.Err() == nil {
			s.tickWaits.Add(1)
		}
		return s.supply.wait(ctx, change, ErrTickExhausted)
	}
	if err := s.supply.want(); err != nil {
		return err
	}
	return s.supply.wait(ctx, change, nil)
}

// tick returns the current tick of engine time.
func (s *Snowflake) tick() (int64, error) {
	now, lag := s.clock.Now()
	if slept := s.sleep.woke(now); slept > 0 {
		s.drop(slept)
	}
	if err := s.noteRollback(lag); err != nil {
		return 0, err
	}
	if ms := now.UnixMilli() - s.epoch; ms >= 0 && ms < s.length {
		return ms / s.unit, nil
	}
	return s.layout.TickOf(now) // says what is wrong
}

// drop gives up the grant after the machine was asleep: whoever restores a
// suspended machine may do so twice, so what it had in hand is not used.
func (s *Snowflake) drop(slept time.Duration) {
	s.mu.Lock()
	s.dropped.Store(true)
	r := s.cur.Load()
	// The end before the turn: a lane that has seen the new turn must find the stretch without time.
	r.hi.Store(0)
	s.spares.turn.Add(1)
	s.mu.Unlock()
	s.pacer.shut(r)
	s.observe(Event{Kind: EventSuspended, By: slept})
}

// noteRollback announces a rollback once, and refuses if that is the policy.
func (s *Snowflake) noteRollback(lag time.Duration) error {
	if lag <= rollbackSlack {
		// Only once the wall clock leads again: one that hovers about the slack would be announced at each
		// reading.
		if lag == 0 && s.rolledBack.Load() {
			s.rolledBack.Store(false)
		}
		return nil
	}
	if s.rolledBack.CompareAndSwap(false, true) {
		s.observe(Event{Kind: EventRollback, By: lag})
	}
	if s.opts.OnRollback == RollbackRefuse {
		return fmt.Errorf("%w: it is %v behind what it was; set it right, or wait", ErrClockRollback, lag)
	}
	return nil
}

// extendIfDue asks for more time when half of the grant is over.
func (s *Snowflake) extendIfDue(r *stretch, tick int64) {
	if tick >= r.due.Load() {
		_ = s.supply.want() // a failure is told to those who will have to wait
	}
}

// keepWarm extends the grant of an idle issuer when that is due. It looks at
// least twice a minute, since clocks can be set.
func (s *Snowflake) keepWarm() {
	ends := s.supply.ends()
	for {
		now, _ := s.clock.Now()
		due := s.layout.TimeOf(s.cur.Load().due.Load()).Sub(now)
		select {
		case <-ends:
			return
		case <-time.After(min(max(due, time.Second), 30*time.Second)):
		}
		if tick, err := s.tick(); err == nil {
			s.extendIfDue(s.cur.Load(), tick)
		}
	}
}

// Stats returns the issuer's counts, derived from its cursors.
func (s *Snowflake) Stats() SnowflakeStats {
	now, lag := s.clock.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.cur.Load()
	st := SnowflakeStats{
		Pool: s.opts.Pool, Worker: r.worker, Token: r.token, Grants: s.grants, Issued: s.issued,
		StoreWaits: s.supply.waits.Load(), TickWaits: s.tickWaits.Load(),
		Rollback: lag, Skew: s.clock.Skew(), Ends: s.layout.Ends(),
	}
	if lag <= rollbackSlack {
		st.Rollback = 0
	}
	if next, skipped := r.pop.position(); next < sealedCursor {
		st.Issued += r.issuedSoFar(next, skipped)
		st.Remaining = max(0, s.layout.TimeOf(r.hi.Load()).Sub(now))
		if tick, err := s.layout.TickOf(now); err == nil {
			st.Ready = max(0, r.bound(tick, s.ahead)-r.enter(next, tick-s.behind))
		}
	}
	return st
}

// Close stops issuing and seals the lease: the worker ID and the time that was
// not used are free again at once. A seal that does not reach the store costs
// the next holder no more than a crash would.
func (s *Snowflake) Close(ctx context.Context) error {
	first, err := s.supply.close(ctx)
	if !first {
		return err
	}
	s.mu.Lock()
	s.retired = true
	r := s.cur.Load()
	// The seal before the turn: a lane that has seen the new turn must find the cursor sealed.
	next := s.retireLocked(r)
	s.spares.turn.Add(1)
	lease := s.lease
	s.mu.Unlock()
	if err != nil || !s.held || r.worker < 0 {
		return err // with a refill still under way, what there is to seal is unknown
	}
	// A tick of which one number was issued is used up. Refused adds may have left the cursor beyond the grant.
	last := max(min(ceilTick(next, r.bits), lease.Grant.Hi), lease.From)
	err = s.supply.last(ctx, func(ctx context.Context) error { return s.workers.SealWorker(ctx, lease, last) })
	if errors.Is(err, ErrLeaseLost) {
		return nil // somebody else goes on from a mark above ours
	}
	if err == nil {
		s.observeOn(lease.Worker, Event{Kind: EventWorkerSealed, Value: last})
	}
	return err
}

// retireLocked seals a stretch (condition 6), adds it to the books, and returns the first
// cursor that it never issued.
func (s *Snowflake) retireLocked(r *stretch) int64 {
	r.limit.Store(0)
	_, skipped := r.pop.position()
	next := r.pop.seal()
	if r.worker >= 0 && next < sealedCursor {
		s.issued += r.issuedSoFar(next, skipped)
	}
	return next
}
