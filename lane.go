package hapax

import (
	"context"
	"iter"
	"sync"
	"sync/atomic"
)

const (
	laneMost  = 1024 // numbers that a lane takes at a time, at the most
	sparesMax = 64   // blocks of closed lanes that wait for others
)

// A Lane issues numbers of one issuer to one goroutine, strictly increasing. It takes
// them in blocks from the issuer, and hands them out with no atomic write: so lanes on
// many cores do not wait for each other, as callers of the issuer's Next do for the one
// word that they all add to.
//
// Numbers of two lanes interleave in blocks, and those of one lane and of the issuer's
// own Next too. Blocks are small at first and grow to 1,024 numbers, or a 64th of the numbers that
// the issuer was granted, while they are used up. What a lane has in hand counts as
// issued; what is left of it when the issuer is closed is burnt.
//
// A Lane must not be used by two goroutines at the same time. Close it after use.
type Lane struct {
	_ [64]byte // no two lanes share a cache line
	block
	turn   *atomic.Int64
	source laneSource
	size   int64 // of the next block
	closed bool
	_      [64]byte
}

// block is a run of numbers that were claimed from an issuer's cursor and belong to one
// lane.
type block struct {
	id, end ID    // the next number, and the one behind the last
	seen    int64 // the issuer's turn when the block was last found good
	step    ID    // from each number to the one after it

	of     *stretch // of a snowflake's block
	lo, hi int64    // its cursors in ticks behind the one of id
}

// laneSource is an issuer as its lanes see it.
type laneSource interface {
	// renew makes sure that the lane has a number to issue: it looks whether its block
	// is still good, and gives it another one if need be.
	renew(ctx context.Context, l *Lane) error
	NextN(ctx context.Context, dst []ID) (int, error)
	spareBlocks() *spares
}

// spares are what an issuer keeps for its lanes.
type spares struct {
	// turn changes when every lane has to look at its block again. All lanes read it
	// for each number.
	turn atomic.Int64
	// drops counts those turns that took away what calls had, too.
	drops atomic.Int64

	mu     sync.Mutex // guards blocks; never held while waiting
	blocks []block
}

// newLane returns a lane, with the rest of another one's block if there is such a rest. No
// cursor moves backwards by that: the new lane has issued nothing yet.
func newLane(source laneSource) *Lane {
	s := source.spareBlocks()
	l := &Lane{source: source, turn: &s.turn, size: 1}
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := len(s.blocks); n > 0 {
		l.block, s.blocks = s.blocks[n-1], s.blocks[:n-1]
	}
	return l
}

// TryNext issues one number of those that the lane has in hand, and reports whether there
// is one. It never waits, and is small enough for the compiler to put it into a loop, where
// it takes less than an atomic add; [Lane.Next] is a call. Where it reports false, Next
// gets the lane more.
//
// The load of turn comes before the number is handed out, so that what a lane had when
// its issuer was closed or dropped its grants is not issued after that was done.
func (l *Lane) TryNext() (ID, bool) {
	id := l.id
	if id == l.end || l.turn.Load() != l.seen {
		return 0, false
	}
	l.id = id + l.step
	return id, true
}

// Next issues one number. The context is consulted only when the call must wait. The
// errors are those of the issuer's Next; after Close it returns [ErrClosed].
func (l *Lane) Next(ctx context.Context) (ID, error) {
	if id, ok := l.TryNext(); ok {
		return id, nil
	}
	return l.renewed(ctx)
}

// renewed is Next where the block has to be looked at first.
func (l *Lane) renewed(ctx context.Context) (ID, error) {
	if err := l.renew(ctx); err != nil {
		return 0, err
	}
	id := l.id
	l.id += l.step
	return id, nil
}

// NextN fills dst in ascending order, waiting as needed. dst[:n] is issued even when
// err is not nil.
func (l *Lane) NextN(ctx context.Context, dst []ID) (n int, err error) {
	if len(dst) == 0 {
		return 0, nil
	}
	if l.id == l.end || l.turn.Load() != l.seen {
		if err := l.renew(ctx); err != nil {
			return 0, err
		}
	}
	drops := l.source.spareBlocks().drops.Load()
	n = int(min(l.left(), int64(len(dst))))
	fillSteps(dst[:n], l.id, l.step)
	l.id += ID(n) * l.step
	for n < len(dst) && l.hi > l.lo && err == nil { // the rest of the block first, since what follows lies above it
		var more int
		more, err = l.NextN(ctx, dst[n:])
		n += more
	}
	for n < len(dst) && err == nil {
		var more int
		more, err = l.source.NextN(ctx, dst[n:])
		if now := l.source.spareBlocks().drops.Load(); now != drops {
			copy(dst, dst[n:n+more]) // what the lane had was dropped while it waited
			n, drops = 0, now
		}
		n += more
	}
	return n, err
}

// All issues numbers until the loop ends, or with an error, which comes last.
func (l *Lane) All(ctx context.Context) iter.Seq2[ID, error] {
	return func(yield func(ID, error) bool) {
		for {
			var err error
			id, ok := l.TryNext()
			if !ok {
				id, err = l.renewed(ctx)
			}
			if !yield(id, err) || err != nil {
				return
			}
		}
	}
}

// Close leaves what the lane has in hand to the issuer's next lane. It is idempotent.
func (l *Lane) Close() {
	if l.closed {
		return
	}
	l.closed = true
	s := l.source.spareBlocks()
	s.mu.Lock()
	defer s.mu.Unlock()
	if l.rest() > 0 && len(s.blocks) < sparesMax {
		s.blocks = append(s.blocks, l.block)
	}
	l.block = block{}
}

func (l *Lane) renew(ctx context.Context) error {
	if l.closed {
		return ErrClosed
	}
	return l.source.renew(ctx, l)
}

// left returns how many numbers lie from id to end.
func (b *block) left() int64 {
	if b.id == b.end {
		return 0
	}
	return int64((b.end - b.id) / b.step)
}

// rest returns how many numbers of the block were not issued.
func (b *block) rest() int64 { return b.left() + b.hi - b.lo }

// grow has the next block be larger than the one that was used up, up to most.
func (l *Lane) grow(most int64) int64 {
	l.size = max(1, min(2*l.size, most, laneMost))
	return l.size
}

// waste gives up the lane's block and returns how many numbers that are.
func (l *Lane) waste() int64 {
	n := l.rest()
	// Smaller from now on: a lane too slow for its block would burn as many again.
	l.block, l.size = block{}, max(1, l.size/4)
	return n
}

// Lane returns a lane, an issuer of this tag's numbers for one goroutine.
func (s *Segment) Lane() *Lane { return newLane(s) }

func (s *Segment) spareBlocks() *spares { return &s.spares }

// renew gives a lane a block. What it still has was claimed from a grant that was
// dropped since, or the issuer is closed: a segment's turn changes only then.
func (s *Segment) renew(ctx context.Context, l *Lane) error {
	turn := s.spares.turn.Load() // before the claim: if grants are dropped after it, the block is not used
	if l.rest() > 0 {
		n := l.waste()
		s.mu.Lock()
		s.past.issued -= n
		s.past.burnt += n
		s.mu.Unlock()
	}
	r, lo, n, err := s.claim(ctx, 1, l.grow(s.cur.Load().size()/64))
	if err != nil {
		return err
	}
	l.block = block{id: r.id(lo), end: r.id(lo + n), step: ID(r.delta), seen: turn}
	return nil
}

// Lane returns a lane, an issuer of this pool's numbers for one goroutine. Like the
// issuer, it lags the clock by at most two ticks or 10 ms: what is older is skipped.
func (s *Snowflake) Lane() *Lane { return newLane(s) }

func (s *Snowflake) spareBlocks() *spares { return &s.spares }

// renew looks at the lane's block whenever the pacer has: it is good while it belongs
// to the live stretch and is not stale. The pacer runs while a lane has a block, or
// changes the turn as it ends, so that no lane falls behind the clock unnoticed.
func (s *Snowflake) renew(ctx context.Context, l *Lane) error {
	turn := s.spares.turn.Load() // before the look: what happens after it is seen by the next call
	if l.rest() > 0 {
		good, err := s.isGood(l)
		if err != nil {
			return err
		}
		if !good {
			n := l.waste()
			s.mu.Lock()
			s.issued -= n
			s.mu.Unlock()
		}
	}
	if l.rest() == 0 {
		r, lo, n, err := s.claim(ctx, l.grow((s.cur.Load().enc.seqMask+1)/4))
		if err != nil {
			return err
		}
		l.block = block{of: r, lo: lo, hi: lo + n}
	}
	if l.id == l.end { // the numbers of one tick are each a step above the one before
		enc := &l.of.enc
		n := min(l.hi-l.lo, enc.seqMask+1-l.lo&enc.seqMask)
		l.id, l.step = enc.encode(l.lo), ID(enc.seqUnit)
		l.end = l.id + ID(n)*l.step
		l.lo += n
	}
	if !s.pacer.follow(s) {
		return ErrClosed
	}
	l.seen = turn
	return nil
}

// isGood reports whether the lane may go on with its block: its stretch is neither
// sealed nor dropped, and the clock is no more than a tick beyond it.
func (s *Snowflake) isGood(l *Lane) (bool, error) {
	r := l.of
	tick, err := s.tick()
	if err != nil {
		return false, err
	}
	at := (l.lo - l.left()) >> r.bits
	next, _ := r.pop.position()
	return next < sealedCursor && at < r.hi.Load() && at >= tick-s.behind-1, nil
}
