package hapax

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// The adaptive step aims at one refill every 15 to 30 minutes.
const (
	stepGrowsBelow   = 15 * time.Minute
	stepShrinksAbove = 30 * time.Minute
)

// SegmentOptions tune a Segment. The zero value suits most uses.
type SegmentOptions struct {
	// Start, Step, MinStep and MaxStep define the tag if this issuer is the
	// first to use it (see Tag for the defaults). An existing tag keeps its own.
	Start, Step, MinStep, MaxStep int64

	// NoCreate makes the use of an unknown tag an error, ErrTagNotFound.
	NoCreate bool

	// StoreTimeout bounds one answer of the store; default 5 s.
	StoreTimeout time.Duration

	// Witness, if set, records every grant outside the store before it is used,
	// so that a store that was rolled back or replaced is noticed.
	Witness *Witness

	// Observer, if set, receives events.
	Observer Observer

	// Clock is for tests and simulations; default the system's clocks.
	Clock Clock
}

// SegmentStats describe a Segment at one moment.
type SegmentStats struct {
	Issued    int64         // numbers issued
	Burnt     int64         // numbers granted that will never be issued
	Remaining int64         // numbers granted and not issued yet
	Refills   int64         // grants taken
	Waits     int64         // times a call waited for the store
	Step      int64         // the adaptive step
	Took      time.Duration // how long the store took for the last grant
}

// A Segment issues the numbers of one tag from segments that a store grants.
// It holds up to two: when a tenth of the current one is used, the next one is
// fetched in the background. How many numbers it asks for adapts to the rate.
type Segment struct {
	_   [64]byte
	cur atomic.Pointer[segment] // read by every issue; written at a swap
	_   [64]byte

	supply supply
	store  SegmentStore
	tag    string
	opts   SegmentOptions
	clock  *engineClock

	mu     sync.Mutex // guards the fields below; never held while waiting
	next   *segment   // the segment after cur, once it has arrived
	need   int64      // numbers in a row that a caller of Reserve waits for
	stats  SegmentStats
	pace   stepPace
	since  time.Duration // when cur became the current segment
	lasted time.Duration // how long it lasted, once it has run dry

	identity storeIdentity // used by refill alone
	mark     int64         // the end of the highest grant taken; used by refill alone
}

// segment is one grant being issued from.
type segment struct {
	cursor
	grant     Grant
	threshold int64 // when issuing gets here, the next segment is fetched
}

func newSegment(g Grant) *segment {
	r := &segment{grant: g, threshold: g.Lo + g.Len()/10}
	r.next.Store(g.Lo)
	return r
}

// NewSegment returns an issuer of the tag's numbers, once it has a first
// grant; it waits for the store until the context ends.
//
// On first use it creates the tag unless opts.NoCreate is set. Errors:
// ErrInvalidTag, ErrInvalidArgument, ErrTagNotFound, ErrTagDeleted,
// ErrKindMismatch, ErrLineExhausted, ErrStoreRolledBack, ErrStoreReplaced, and
// a *WaitError when the context ends.
func NewSegment(ctx context.Context, store SegmentStore, tag string, opts SegmentOptions) (*Segment, error) {
	if _, err := opts.definition(tag); err != nil {
		return nil, err
	}
	s := &Segment{store: store, tag: tag, opts: opts, clock: newEngineClock(opts.Clock)}
	s.supply.init(s.refill, opts.StoreTimeout, s.clock, s.observe)
	s.cur.Store(newSegment(Grant{}))
	if err := s.ready(ctx); err != nil {
		_ = s.Close(context.WithoutCancel(ctx))
		return nil, err
	}
	return s, nil
}

func (o SegmentOptions) definition(tag string) (Tag, error) {
	return Tag{Name: tag, Kind: KindSegment, Start: o.Start, Step: o.Step, MinStep: o.MinStep, MaxStep: o.MaxStep}.WithDefaults()
}

func (s *Segment) observe(e Event) {
	e.Tag = s.tag
	s.opts.Observer.observe(e)
}

// ready waits for the first grant.
func (s *Segment) ready(ctx context.Context) error {
	for {
		change := s.supply.watch()
		if s.promote(s.cur.Load()) {
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

// Next issues one number. See Issuer.
func (s *Segment) Next(ctx context.Context) (ID, error) {
	r := s.cur.Load()
	if limit := r.limit.Load(); limit != 0 {
		n := r.next.Add(1) - 1
		if n < limit {
			return ID(n), nil
		}
		if s.admit(r, n, limit) {
			return ID(n), nil
		}
	}
	lo, _, err := s.claim(ctx, 1, 1)
	return ID(lo), err
}

// admit decides on a number that a single add produced at or beyond the limit.
func (s *Segment) admit(r *segment, n, limit int64) bool {
	if n >= r.grant.Hi {
		r.refuse(limit)
		return false
	}
	s.taken(r, n+1)
	return true
}

// NextN fills dst with numbers in ascending order. See Issuer.
func (s *Segment) NextN(ctx context.Context, dst []ID) (int, error) {
	done := 0
	for done < len(dst) {
		lo, n, err := s.claim(ctx, 1, int64(len(dst)-done))
		if err != nil {
			return done, err
		}
		fillSteps(dst[done:done+int(n)], ID(lo), 1)
		done += int(n)
	}
	return done, nil
}

// Reserve issues n numbers in a row, 1 to MaxStep, as the grant [Lo, Lo+n). It
// may burn what is left of the current segment.
func (s *Segment) Reserve(ctx context.Context, n int64) (Grant, error) {
	if n < 1 || n > MaxStep {
		return Grant{}, &ValueError{"n", n, fmt.Sprintf("1 to %d", int64(MaxStep)), ErrInvalidArgument}
	}
	lo, _, err := s.claim(ctx, n, n)
	return Grant{lo, lo + n}, err
}

// claim issues between least and most numbers in a row, waiting as needed.
func (s *Segment) claim(ctx context.Context, least, most int64) (lo, n int64, err error) {
	var change <-chan struct{}
	for {
		r := s.cur.Load()
		if lo, n := r.take(least, most, 0, r.grant.Hi); n > 0 {
			s.taken(r, lo+n)
			return lo, n, nil
		}
		if s.promote(r) {
			continue
		}
		if change == nil { // then look once more, lest the change is missed
			change = s.supply.watch()
			continue
		}
		s.ranDry(r, least)
		if err := s.supply.want(); err != nil {
			return 0, 0, err
		}
		if err := s.supply.wait(ctx, change, nil); err != nil {
			return 0, 0, err
		}
		change = nil
	}
}

// ranDry notes that nothing was left in r for a caller who wants so many.
func (s *Segment) ranDry(r *segment, least int64) {
	now := s.clock.elapsed()
	s.mu.Lock()
	defer s.mu.Unlock()
	if least > 1 {
		s.need = max(s.need, least)
	}
	if s.cur.Load() == r && s.lasted == 0 {
		s.lasted = max(1, now-s.since)
	}
}

// taken is called when issuing has reached next by a slow path: it lets single
// adds go on, and asks for the next segment when that is due.
func (s *Segment) taken(r *segment, next int64) {
	if next < r.threshold || r.limit.Load() == r.grant.Hi {
		return
	}
	r.limit.Store(r.grant.Hi)
	_ = s.supply.want() // a failure is told to those who will have to wait
}

// promote makes the next segment the current one in place of old, burning what
// is left of old. It tells whether there is a new current segment.
func (s *Segment) promote(old *segment) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.cur.Load() != old:
		return true
	case s.next == nil:
		return false
	}
	s.retireLocked(old)
	r := s.next
	s.next = nil
	s.since, s.lasted = s.clock.elapsed(), 0
	r.limit.Store(r.threshold)
	s.cur.Store(r)
	return true
}

// retireLocked seals a segment and adds it to the books.
func (s *Segment) retireLocked(r *segment) {
	r.limit.Store(0)
	next := min(r.seal(), r.grant.Hi)
	s.stats.Issued += next - r.grant.Lo
	s.stats.Burnt += r.grant.Hi - next
}

// refill takes one grant from the store and publishes it as the next segment.
// It runs in one goroutine at a time.
func (s *Segment) refill(ctx context.Context) error {
	if err := s.identity.verify(ctx, s.store, s.opts.Witness); err != nil {
		return err
	}
	s.mu.Lock()
	ask := max(s.pace.ask(), s.need)
	s.mu.Unlock()
	since, _ := s.witnessed()
	began := s.clock.elapsed()
	a, err := s.allocate(ctx, ask)
	if err != nil {
		s.identity.doubt(err)
		return err
	}
	took := s.clock.elapsed() - began
	if err := s.accept(a, since); err != nil {
		return err
	}
	s.publish(a, began, took)
	return nil
}

// allocate asks the store, and creates the tag on first use.
func (s *Segment) allocate(ctx context.Context, n int64) (Allocation, error) {
	a, err := s.store.Allocate(ctx, s.tag, n)
	if !errors.Is(err, ErrTagNotFound) {
		return a, err
	}
	if mark, ok := s.witnessed(); ok {
		return a, fmt.Errorf("%w: it does not know tag %q, which was used up to %d here", ErrStoreRolledBack, s.tag, mark-1)
	}
	if s.opts.NoCreate {
		return a, err
	}
	def, err := s.opts.definition(s.tag)
	if err != nil {
		return a, err
	}
	_, err = s.store.CreateTag(ctx, def, CreateFirstUse)
	switch {
	case err == nil:
		s.observe(Event{Kind: EventTagCreated})
	case !errors.Is(err, ErrTagExists): // else somebody else was first
		return a, err
	}
	return s.store.Allocate(ctx, s.tag, n)
}

// witnessed returns the highest mark that this issuer or the witness knows.
func (s *Segment) witnessed() (int64, bool) {
	mark := s.mark
	if s.opts.Witness != nil {
		if m, ok := s.opts.Witness.Mark(TagLine(s.tag)); ok {
			mark = max(mark, m)
		}
	}
	return mark, mark > 0
}

// accept decides whether a grant can be used, and records it with the witness.
func (s *Segment) accept(a Allocation, since int64) error {
	g := a.Grant
	if g.Lo < 0 || g.Len() <= 0 || g.Hi > MaxMark {
		return fmt.Errorf("%w: tag %q: the store granted [%d, %d)", ErrStoreCorrupt, s.tag, g.Lo, g.Hi)
	}
	if g.Lo < s.mark {
		return fmt.Errorf("%w: tag %q: the store granted [%d, %d), but numbers up to %d are taken; raise the tag's floor above that", ErrStoreRolledBack, s.tag, g.Lo, g.Hi, s.mark-1)
	}
	if s.opts.Witness != nil {
		if err := s.opts.Witness.Accept(TagLine(s.tag), g, since); err != nil {
			return err
		}
	}
	s.mark = g.Hi
	return nil
}

// publish makes an accepted grant the next segment, in place of one that was
// too short for a caller of Reserve.
func (s *Segment) publish(a Allocation, began, took time.Duration) {
	r := newSegment(a.Grant)
	s.mu.Lock()
	if s.supply.life.Err() != nil { // Close did not wait for this refill
		s.mu.Unlock()
		return
	}
	if s.next != nil {
		s.retireLocked(s.next)
	}
	s.next = r
	if s.need <= a.Grant.Len() {
		s.need = 0
	}
	s.stats.Refills++
	s.stats.Took = took
	changed := s.pace.taken(a.Tag, began, took, s.cur.Load().grant.Len(), s.lasted)
	step := s.pace.step
	s.mu.Unlock()
	s.observe(Event{Kind: EventGrant, Grant: a.Grant, Took: took})
	if changed {
		s.observe(Event{Kind: EventStepChanged, Value: step})
	}
}

// Last returns the number issued last, and false if none was issued from the
// current segment. Under concurrent use it may be one that a caller is about to
// receive.
func (s *Segment) Last() (ID, bool) {
	r := s.cur.Load()
	next, _ := r.position()
	if next >= sealedCursor || next <= r.grant.Lo {
		return 0, false
	}
	return ID(min(next, r.grant.Hi) - 1), true
}

// Stats returns the issuer's counts, derived from its cursors.
func (s *Segment) Stats() SegmentStats {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.stats
	r := s.cur.Load()
	if next, _ := r.position(); next < sealedCursor {
		next = min(next, r.grant.Hi)
		st.Issued += next - r.grant.Lo
		st.Remaining = r.grant.Hi - next
	}
	if s.next != nil {
		st.Remaining += s.next.grant.Len()
	}
	st.Step = s.pace.step
	st.Waits = s.supply.waits.Load()
	return st
}

// Drop burns what is granted and not issued, so that the next call waits for the
// store. It is for those who learn that the grants must not be used any more.
func (s *Segment) Drop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.retireLocked(s.cur.Load())
	s.cur.Store(newSegment(Grant{}))
	if s.next != nil {
		s.retireLocked(s.next)
		s.next = nil
	}
	s.since, s.lasted = s.clock.elapsed(), 0
}

// Close stops issuing. What is left of the granted segments is burnt: a tag's
// mark never goes back.
func (s *Segment) Close(ctx context.Context) error {
	first, err := s.supply.close(ctx)
	if !first {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.retireLocked(s.cur.Load())
	if s.next != nil {
		s.retireLocked(s.next)
		s.next = nil
	}
	return err
}

// stepPace adapts the step to the rate of use.
type stepPace struct {
	step    int64 // what the next fetch asks for
	own     int64 // the tag's own step, as last seen
	fetches int
	last    time.Duration // when the last fetch began
}

// ask returns how many numbers to ask for: 0, the tag's own step, until it has
// changed.
func (p *stepPace) ask() int64 {
	if p.step == p.own {
		return 0
	}
	return p.step
}

// taken learns from a grant that was asked for at began and took so long, while
// size numbers lasted so long before callers had to wait (0: they had not). It
// reports whether the step changed.
//
// A fetch sooner than 15 minutes after the last one doubles the step, one later
// than 30 minutes halves it. Where callers had to wait, doubling would let them
// wait again and again: the step goes at once to what four fetches would use at
// that rate, though to no more than 16 times what ran dry.
func (p *stepPace) taken(tag Tag, began, took time.Duration, size int64, lasted time.Duration) bool {
	before, since := p.step, began-p.last
	p.fetches++
	p.last = began
	step := p.step
	if p.own != tag.Step { // the first fetch, or edited in the store
		step, p.own = tag.Step, tag.Step
	}
	switch {
	case lasted > 0:
		step = max(step, int64(float64(size)*min(16, 4*float64(took)/float64(lasted))))
	case p.fetches <= 2:
	case since < stepGrowsBelow:
		step *= 2
	case since > stepShrinksAbove:
		step /= 2
	}
	if tag.MaxStep > 0 {
		step = min(step, tag.MaxStep)
	}
	p.step = max(step, tag.MinStep, 1)
	return p.step != before && before != 0
}
