package hapax

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// SegmentOptions tune a [Segment]. The zero value suits most uses.
type SegmentOptions struct {
	// Start, Step, MinStep, MaxStep, Delta and Remainder define the tag if this
	// issuer is the first to use it (see Tag for the defaults). An existing tag
	// keeps its own.
	Start, Step, MinStep, MaxStep, Delta, Remainder int64

	// NoCreate makes the use of an unknown tag an error, ErrTagNotFound.
	NoCreate bool

	// StoreTimeout bounds one refill, and each other question to the store; default 5 s.
	StoreTimeout time.Duration

	// Observer, if set, receives events.
	Observer func(Event)

	// Clock is where the time is read; default SystemClock.
	Clock Clock
}

// SegmentStats describe a [Segment] at one moment.
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
// A server has one for each tag that it was asked for, so that its size counts.
type Segment struct {
	cur      atomic.Pointer[segment] // read by every issue; written at a swap, as seldom as its neighbours
	store    SegmentStore
	tag      string
	create   *Tag // what the tag is made as; nil: it is not made
	observer func(Event)
	clock    Clock
	spares   spares // for lanes
	supply   supply

	mu   sync.Mutex // guards the fields below; never held while waiting
	next *segment   // the segment after cur, once it has arrived
	need int64      // numbers in a row that a caller of Reserve waits for
	past struct {
		issued, burnt int64         // numbers of segments that were retired
		grants        int64         // taken so far
		took          time.Duration // how long the store took for the last one
	}
	pace   stepPace
	since  time.Duration // when cur became the current segment
	lasted time.Duration // how long it lasted, once it has run dry

	retired bool // Close has taken stock: what comes later is nobody's
	ebb     ebb

	mark int64    // below it numbers are taken; used by refill alone
	last GrantKey // of the last grant, used by refill alone
}

// segment is one grant being issued from. Its cursor counts the tag's numbers:
// those of the line that leave remainder when divided by delta.
//
// The cursor's next comes last, and the allocator fills the object up to whole cache lines:
// so next has the last line to itself. A test holds that.
type segment struct {
	from      Allocation
	lo, hi    int64 // the cursors of the grant, [lo, hi)
	threshold int64 // when issuing gets here, the next segment is fetched
	delta     int64
	remainder int64
	cursor
}

func newSegment(a Allocation) *segment {
	r := &segment{from: a, delta: max(1, a.Tag.Delta), remainder: a.Tag.Remainder}
	r.lo, r.hi = r.cursorAt(a.Grant.Lo), r.cursorAt(a.Grant.Hi)
	r.threshold = r.lo + (r.hi-r.lo)/10
	r.next.Store(r.lo)
	return r
}

// noSegment returns one that was never granted.
func noSegment() *segment { return newSegment(Allocation{}) }

// size returns how many numbers the grant holds.
func (r *segment) size() int64 { return r.hi - r.lo }

// id returns the number of a cursor.
func (r *segment) id(c int64) ID { return ID(c*r.delta + r.remainder) }

// cursorAt returns the cursor of the first number at or above n.
func (r *segment) cursorAt(n int64) int64 {
	return (max(0, n-r.remainder) + r.delta - 1) / r.delta
}

// unissued returns the first number of the grant that was not issued where
// issuing has reached next.
func (r *segment) unissued(next int64) int64 {
	if next <= r.lo {
		return r.from.Grant.Lo
	}
	return min(int64(r.id(next)), r.from.Grant.Hi)
}

// NewSegment returns an issuer of the tag's numbers, once it has a first
// grant; it waits for the store until the context ends.
//
// On first use it creates the tag unless opts.NoCreate is set. Errors:
// [ErrInvalidTag], [ErrInvalidArgument], [ErrTagNotFound], [ErrTagDeleted],
// [ErrKindMismatch], [ErrLineExhausted], [ErrStoreRolledBack], [ErrStoreReplaced], and
// a [*WaitError] when the context ends.
func NewSegment(ctx context.Context, store SegmentStore, tag string, opts SegmentOptions) (*Segment, error) {
	def, err := opts.definition(tag)
	if err != nil {
		return nil, err
	}
	if store == nil {
		return nil, &ValueError{"store", "", "a store, such as memstore.New() or one that boltstore.Open returns", ErrInvalidArgument}
	}
	if opts.Clock == nil {
		opts.Clock = SystemClock{}
	}
	s := &Segment{store: store, tag: tag, observer: opts.Observer, clock: opts.Clock}
	if !opts.NoCreate {
		s.create = &def
	}
	s.supply.init(s, opts.StoreTimeout)
	s.cur.Store(noSegment())
	if err := s.ready(ctx); err != nil {
		_ = s.Close(ctx)
		return nil, err
	}
	return s, nil
}

func (o SegmentOptions) definition(tag string) (Tag, error) {
	return Tag{
		Name: tag, Kind: KindSegment, Start: o.Start, Step: o.Step, MinStep: o.MinStep, MaxStep: o.MaxStep,
		Delta: o.Delta, Remainder: o.Remainder,
	}.WithDefaults()
}

func (s *Segment) observe(e Event) {
	e.Tag = s.tag
	if s.observer != nil {
		s.observer(e)
	}
}

func (s *Segment) elapsed() time.Duration {
	_, mono := s.clock.Now()
	return mono
}

// ready waits for the first grant.
func (s *Segment) ready(ctx context.Context) error {
	for {
		if s.promote(s.cur.Load()) {
			return nil
		}
		change := s.supply.watch()
		if s.promote(s.cur.Load()) { // once more, lest the change is missed
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
// A load, an add and a compare are enough, whatever happens at the same time:
// the add alone makes the number this caller's, and it is issued only below a
// limit that was read before the add and never lies beyond the grant (condition
// 4). A seal moves the cursor above every limit, so that an add after it is
// refused, while one before it is below the cursor that the seal returns. A swap
// publishes another object; adds on the old one stay within the old grant.
func (s *Segment) Next(ctx context.Context) (ID, error) {
	r := s.cur.Load()
	if limit := r.limit.Load(); limit != 0 {
		n := r.next.Add(1) - 1
		if n < limit {
			if invariants {
				r.check(n, 1)
			}
			return r.id(n), nil
		}
		if s.admit(r, n, limit) {
			return r.id(n), nil
		}
	}
	r, lo, _, err := s.claim(ctx, 1, 1)
	if err != nil {
		return 0, err
	}
	return r.id(lo), nil
}

// TryNext issues one number if there is one without waiting, and reports whether
// there was. Where there is none it asks for the next segment.
func (s *Segment) TryNext() (ID, bool) {
	r := s.cur.Load()
	if limit := r.limit.Load(); limit != 0 {
		n := r.next.Add(1) - 1
		if n < limit || s.admit(r, n, limit) {
			return r.id(n), true
		}
	}
	r, lo, n := s.tryClaim(1, 1)
	if n == 0 {
		_ = s.supply.want() // a failure is told to those who will have to wait
		return 0, false
	}
	return r.id(lo), true
}

// admit decides on a number that a single add produced at or beyond the limit.
func (s *Segment) admit(r *segment, n, limit int64) bool {
	if n >= r.hi { // condition 4
		r.refuse(limit)
		return false
	}
	s.taken(r, n+1)
	return true
}

// NextN fills dst with numbers in ascending order. See [Issuer]. Of what it had when Drop was called
// while it waited for more, nothing is in dst.
func (s *Segment) NextN(ctx context.Context, dst []ID) (int, error) {
	done, drops := 0, s.spares.drops.Load()
	for done < len(dst) {
		r, lo, n, err := s.claim(ctx, 1, int64(len(dst)-done))
		if now := s.spares.drops.Load(); now != drops {
			s.mu.Lock()
			s.past.issued -= int64(done)
			s.past.burnt += int64(done)
			s.mu.Unlock()
			done, drops = 0, now
		}
		if err != nil {
			return done, err
		}
		fillSteps(dst[done:done+int(n)], r.id(lo), ID(r.delta))
		done += int(n)
	}
	return done, nil
}

// TryNextN fills dst, or the beginning of it, with the numbers that can be issued without
// waiting, and returns how many numbers that are.
func (s *Segment) TryNextN(dst []ID) int {
	done := 0
	for done < len(dst) {
		r, lo, n := s.tryClaim(1, int64(len(dst)-done))
		if n == 0 {
			_ = s.supply.want() // a failure is told to those who will have to wait
			break
		}
		fillSteps(dst[done:done+int(n)], r.id(lo), ID(r.delta))
		done += int(n)
	}
	return done
}

// Reserve issues n numbers in a row, 1 to [MaxStep], as the grant [Lo, Hi) that
// they lie in: Lo is the first of them, and each of the others is the tag's delta
// above the one before. It may burn what is left of the current segment.
func (s *Segment) Reserve(ctx context.Context, n int64) (Grant, error) {
	if n < 1 || n > MaxStep {
		return Grant{}, &ValueError{"n", n, fmt.Sprintf("1 to %d", int64(MaxStep)), ErrInvalidArgument}
	}
	r, lo, _, err := s.claim(ctx, n, n)
	if err != nil {
		return Grant{}, err
	}
	return Grant{int64(r.id(lo)), int64(r.id(lo + n))}, nil
}

// tryClaim issues between least and most numbers in a row, or none if they are
// not there.
func (s *Segment) tryClaim(least, most int64) (r *segment, lo, n int64) {
	for {
		r := s.cur.Load()
		if lo, n := r.take(least, most, 0, r.hi); n > 0 {
			if invariants {
				r.check(lo, n)
			}
			s.taken(r, lo+n)
			return r, lo, n
		}
		if !s.promote(r) {
			return r, 0, 0
		}
	}
}

// claim issues between least and most numbers in a row, waiting as needed.
func (s *Segment) claim(ctx context.Context, least, most int64) (r *segment, lo, n int64, err error) {
	for {
		r, lo, n := s.tryClaim(least, most)
		if n > 0 {
			return r, lo, n, nil
		}
		change := s.supply.watch()
		if r, lo, n = s.tryClaim(least, most); n > 0 { // once more, lest the change is missed
			return r, lo, n, nil
		}
		s.ranDry(r, least)
		if err := s.supply.want(); err != nil {
			return nil, 0, 0, err
		}
		if err := s.supply.wait(ctx, change, nil); err != nil {
			return nil, 0, 0, err
		}
	}
}

// ranDry notes that nothing was left in r for a caller who wants so many.
func (s *Segment) ranDry(r *segment, least int64) {
	now := s.elapsed()
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
	if next < r.threshold || r.limit.Load() == r.hi {
		return
	}
	r.limit.Store(r.hi)
	_ = s.supply.want() // a failure is told to those who will have to wait
}

// promote makes the next segment the current one in place of old, by one pointer
// swap (condition 5), burning what is left of old. It reports whether there is a new current segment.
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
	if invariants && r.from.Grant.Lo < old.from.Grant.Hi {
		violatedf(3, "after [%d, %d) comes [%d, %d)", old.from.Grant.Lo, old.from.Grant.Hi, r.from.Grant.Lo, r.from.Grant.Hi)
	}
	s.since, s.lasted = s.elapsed(), 0
	r.limit.Store(r.threshold)
	s.cur.Store(r)
	return true
}

// retireLocked seals a segment, adds it to the books, and returns the first
// cursor that was not issued.
func (s *Segment) retireLocked(r *segment) int64 {
	r.limit.Store(0)
	// Refused adds may have left the cursor beyond the end.
	next := min(r.seal(), r.hi)
	s.past.issued += next - r.lo
	s.past.burnt += r.hi - next
	return next
}

// refill takes one grant from the store and publishes it as the next segment, unless
// there is one: it may have come between a caller's look and its wish. It runs in one
// goroutine at a time.
func (s *Segment) refill(ctx context.Context) error {
	s.mu.Lock()
	if s.ebb.dry() {
		s.mu.Unlock()
		return ErrClosed
	}
	if s.next != nil && s.need <= s.next.hi-s.next.lo {
		s.mu.Unlock()
		return nil
	}
	ask := max(s.ebb.or(s.pace.ask()), s.need)
	s.mu.Unlock()
	began := s.elapsed()
	a, err := Allocate(ctx, s.store, AllocateRequest{Tag: s.tag, N: ask, Last: s.last, Mark: s.mark, Create: s.create, Observer: s.observe})
	if err != nil {
		return err
	}
	s.mark, s.last = a.Grant.Hi, a.Key
	if a.Tag.Name == s.tag {
		a.Tag.Name = s.tag // one copy of it is enough
	}
	s.publish(a, began, s.elapsed()-began)
	return nil
}

// publish makes an accepted grant the next segment, in place of one that was
// too short for a caller of Reserve.
func (s *Segment) publish(a Allocation, began, took time.Duration) {
	r := newSegment(a)
	s.mu.Lock()
	if s.retired { // Close did not wait for this refill
		s.mu.Unlock()
		return
	}
	if s.next != nil {
		s.retireLocked(s.next)
	}
	s.next = r
	if s.need <= r.hi-r.lo {
		s.need = 0
	}
	s.past.grants++
	s.past.took = took
	changed := s.pace.taken(a.Tag, began, took, s.cur.Load().size(), s.lasted)
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
	if next >= sealedCursor || next <= r.lo {
		return 0, false
	}
	return r.id(min(next, r.hi) - 1), true
}

// Stats returns the issuer's counts, derived from its cursors.
func (s *Segment) Stats() SegmentStats {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := SegmentStats{Issued: s.past.issued, Burnt: s.past.burnt, Refills: s.past.grants, Took: s.past.took}
	r := s.cur.Load()
	if next, _ := r.position(); next < sealedCursor {
		next = min(next, r.hi)
		st.Issued += next - r.lo
		st.Remaining = r.hi - next
	}
	if s.next != nil {
		st.Remaining += s.next.size()
	}
	st.Step = s.pace.step
	st.Waits = s.supply.waits.Load()
	return st
}

// Drop burns what is granted and not issued, so that the next call waits for the
// store; so does a call of NextN that waits already, with what it has. It is for those who
// learn that the grants must not be used any more, and for machines resumed from one image: a
// Segment, unlike a [Snowflake], notices no sleep, and both would issue what was in hand.
func (s *Segment) Drop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.spares.drops.Add(1)
	s.retireLocked(s.cur.Load())
	s.cur.Store(noSegment())
	if s.next != nil {
		s.retireLocked(s.next)
		s.next = nil
	}
	s.since, s.lasted = s.elapsed(), 0
	s.spares.turn.Add(1)
}

// Close stops issuing and hands back what is left (condition 6), so that the next caller goes
// on where this issuer stopped. What others' grants lie above is burnt, and so
// is what cannot be handed back because the store is away: the error says so,
// and nothing else is lost.
func (s *Segment) Close(ctx context.Context) error {
	first, err := s.supply.close(ctx)
	if !first {
		return err
	}
	s.mu.Lock()
	r, following := s.cur.Load(), s.next
	s.next, s.retired = nil, true
	rest := r.unissued(s.retireLocked(r))
	if following != nil {
		s.retireLocked(following)
	}
	s.spares.turn.Add(1)
	s.mu.Unlock()
	last := r.from
	if following != nil {
		last = following.from
		if r.from.Grant.Hi != last.Grant.Lo || rest < last.From { // others were granted what lies between, or it is held apart
			s.burnt(Grant{rest, r.from.Grant.Hi}, r.delta, nil)
			rest = last.Grant.Lo
		}
	}
	if err != nil { // with a refill still under way, what there is to hand back is unknown
		s.burnt(Grant{rest, last.Grant.Hi}, r.delta, err)
		return err
	}
	return s.handBack(ctx, last, rest)
}

// handBack gives back what lies from next on in the last grant, with the ones
// before that adjoin it.
func (s *Segment) handBack(ctx context.Context, last Allocation, next int64) error {
	if next >= last.Grant.Hi {
		return nil
	}
	rest := Grant{next, last.Grant.Hi}
	if last.Key == "" {
		s.burnt(rest, last.Tag.Delta, ErrNotSupported)
		return nil
	}
	err := s.supply.last(ctx, func(ctx context.Context) error { return s.store.HandBack(ctx, last, next) })
	if err != nil {
		s.burnt(rest, last.Tag.Delta, err)
	}
	switch {
	case err == nil:
		s.mu.Lock()
		s.past.burnt -= numbersIn(rest, last.Tag.Delta)
		s.mu.Unlock()
		s.observe(Event{Kind: EventHandedBack, Grant: rest, Value: numbersIn(rest, last.Tag.Delta)})
	case errors.Is(err, ErrLeaseLost), errors.Is(err, ErrTagDeleted), errors.Is(err, ErrNotSupported):
		return nil // somebody else goes on from a mark above ours
	}
	return err
}

// burnt reports numbers that were granted and can neither be issued nor go back; a
// nil error says that they lie below what another was granted.
func (s *Segment) burnt(g Grant, delta int64, err error) {
	if g.Len() > 0 {
		s.observe(Event{Kind: EventBurnt, Grant: g, Value: numbersIn(g, delta), Err: err})
	}
}
