package hapax

import (
	"sync"
	"sync/atomic"
)

// sealedCursor lies above every limit and, with room for refused adds, below
// the end of int64.
const sealedCursor = MaxMark + 1<<31

// The values of SnowflakeOptions.SequenceStart that are not random.
const (
	SequenceZero     = 0
	SequenceContinue = -1
)

// timeline tells how cursors of a line of ticks are built: tick<<bits | sequence.
// The zero value suits a line of plain numbers.
type timeline struct {
	bits  uint8
	start int64 // SnowflakeOptions.SequenceStart
}

// enter returns where issuing goes on at tick: the cursor itself unless it lies
// in an earlier tick.
func (t timeline) enter(cursor, tick int64) int64 {
	if cursor>>t.bits >= tick {
		return cursor
	}
	first := tick << t.bits
	switch {
	case t.start == SequenceContinue:
		first |= cursor & (1<<t.bits - 1)
	case t.start > 0:
		first |= randomN(t.start)
	}
	return first
}

// ceilTick returns the first tick of which no cursor below next is part.
func ceilTick(next int64, bits uint8) int64 {
	return (next + 1<<bits - 1) >> bits
}

// A populator produces the cursors of one grant: each at most once, rising.
// Both kinds are held to one test suite and to each other.
type populator interface {
	// take claims between least and most consecutive cursors below limit, from
	// where issuing goes on at tick. It returns n = 0 if there are too few.
	take(least, most, tick, limit int64) (lo, n int64)

	// position returns the next cursor, and how many were skipped so far.
	position() (next, skipped int64)

	// seal refuses every later claim (condition 6) and returns the first cursor that was
	// never claimed. Later seals return a value above every limit.
	seal() int64
}

// cursor is the lock-free populator, and the pair of words that the hot path
// works on: an issuer adds one to next and may use what it got if that lies
// below the limit it read before.
type cursor struct {
	timeline

	// limit is what single adds must stay below; 0 parks them, and issuing goes
	// through take. Every issue reads it; slow paths and the pacer write it, and
	// never beyond the end of the grant (condition 4). It shares its line with read-only words.
	limit   atomic.Int64
	skipped atomic.Int64 // cursors passed over without being issued
	_       [48]byte
	// next is the next cursor to issue. Every issue writes it, so no word that others read
	// at the same time is on its cache line; a struct that embeds a cursor keeps the fields behind it off that line.
	next atomic.Int64
}

func (c *cursor) take(least, most, tick, limit int64) (lo, n int64) {
	for {
		old := c.next.Load()
		lo := c.enter(old, tick)
		n := min(most, limit-lo)
		if n < least {
			return 0, 0
		}
		// Not by an add, as in Next: one that came out too high would burn what it passed, at each try of a
		// waiting caller.
		if c.next.CompareAndSwap(old, lo+n) {
			c.skipped.Add(lo - old)
			return lo, n
		}
	}
}

// refuse parks single adds after one of them came out at or above limit, so
// that callers who have to wait do not run the cursor away.
func (c *cursor) refuse(limit int64) {
	// Only the limit that this caller has read: the pacer may have raised it since, for callers that are below.
	c.limit.CompareAndSwap(limit, 0)
	// The add has moved the cursor for good (condition 5): its number was passed over.
	c.skipped.Add(1)
}

func (c *cursor) position() (next, skipped int64) { return c.next.Load(), c.skipped.Load() }

func (c *cursor) seal() int64 { return c.next.Swap(sealedCursor) }

// mutexCursor is the populator with a lock: the readable reference, and a
// choice for those who prefer it.
type mutexCursor struct {
	timeline

	mu      sync.Mutex // guards next and skipped
	next    int64
	skipped int64
}

func (m *mutexCursor) take(least, most, tick, limit int64) (lo, n int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	lo = m.enter(m.next, tick)
	n = min(most, limit-lo)
	if n < least {
		return 0, 0
	}
	m.skipped += lo - m.next
	m.next = lo + n
	return lo, n
}

func (m *mutexCursor) position() (next, skipped int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.next, m.skipped
}

func (m *mutexCursor) seal() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	old := m.next
	m.next = sealedCursor
	return old
}

// A chosenCursor is the populator of a user: of the free numbers it issues those that a function
// chooses. So the function can pass numbers over, and cannot repeat one.
type chosenCursor struct {
	mutexCursor
	choose func(free Grant, most int64, sequenceBits int) (first, n int64)
}

func (c *chosenCursor) take(least, most, tick, limit int64) (lo, n int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	free := Grant{c.enter(c.next, tick), limit}
	lo, n = free.Lo, min(most, free.Len())
	if n < least {
		return 0, 0
	}
	// With none to claim the pacer only moves the cursor into the clock's tick: there is nothing to choose.
	if most > 0 {
		// A choice below what is free would repeat numbers, so it counts as none.
		if first, chosen := c.choose(free, most, int(c.bits)); first >= free.Lo && chosen > 0 {
			lo, n = first, min(chosen, most, limit-first)
		}
		if n < max(least, 1) { // it lies beyond what is free now
			return 0, 0
		}
	}
	c.skipped += lo - c.next
	c.next = lo + n
	return lo, n
}

// fill encodes consecutive cursors from lo on.
func (e *encoder) fill(dst []ID, lo int64) {
	for len(dst) > 0 {
		n := min(int64(len(dst)), e.seqMask+1-lo&e.seqMask) // up to the end of the tick
		fillSteps(dst[:n], e.encode(lo), ID(e.seqUnit))
		dst, lo = dst[n:], lo+n
	}
}

// fillSteps fills dst with id, id+step, and so on. Four at a time let the
// stores overlap.
func fillSteps(dst []ID, id, step ID) {
	for len(dst) >= 4 {
		d := (*[4]ID)(dst)
		d[0], d[1], d[2], d[3] = id, id+step, id+2*step, id+3*step
		id += 4 * step
		dst = dst[4:]
	}
	for i := range dst {
		dst[i] = id
		id += step
	}
}
