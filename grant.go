package hapax

// A Grant is the half-open stretch [Lo, Hi) of a line from which exactly one
// process image may issue. On a tag's line the unit is the number, on a
// worker's timeline it is the tick.
//
// # The life of a grant
//
//	             Allocate, AcquireWorker, ExtendWorker
//	+---------+          +--------------+          +----------------+
//	| nobody's|--------->| granted in   |--------->| recorded       |
//	+---------+          | the store    |          | (store/witness)|
//	     ^               +--------------+          +----------------+
//	     |                      | lost answer              | published by a pointer swap,
//	     |                      v                          v or adjoins the live one
//	     |                  abandoned               +-------------+
//	     |                                          | issued from |<-+ Next: one add,
//	     |                                          +-------------+--+ below the limit
//	     |                                             |       |
//	     |         rest handed back: HandBack, Seal    |       | Drop, crash
//	     +---------------------------------------------+       v
//	                                                         burnt
//
// # Why no number is issued twice
//
// These conditions hold; the lines that enforce one name its number.
//
//  1. Encoding is injective: every field of a layout is range-checked, none is
//     masked, and the sign bit is set by no overflow.
//  2. What gives a number its meaning is frozen at first use: a tag's kind, delta
//     and remainder, a pool's layout with its unit and epoch.
//  3. The store changes a line's mark in one atomic and durable step, and it only
//     grows, but for condition 6. An issuer takes no grant that lies below one it
//     took before. A segment whose answer was lost is abandoned; a lease's extension is asked
//     for again, from the end that its holder knows.
//  4. A grant has one cursor, and a limit that never lies beyond its end. A number
//     is issued to the caller whose own add or compare-and-swap produced it, and
//     only below a limit that was read before. Time and sequence are one word.
//  5. No cursor moves backwards. A grant that does not adjoin is a new object,
//     published by one pointer swap; only an adjoining one, under the same fencing
//     token, lengthens a live stretch.
//  6. A hand-back or a seal first moves the cursor above every limit; what lies at
//     or above the cursor before was never issued and never will be. Then one
//     conditional write lowers the mark to there, valid only while mark and key
//     are still the grant's.
//  7. A deleted tag leaves a tombstone with its mark.
//  8. A grant is recorded outside the store before it is used, and a store that
//     went back is refused for good (package store/witness).
//
// Clocks, pauses and leases are no part of this: a clock only pushes a cursor
// forward within what was granted, and the expiry of a lease only says when a
// worker ID may be granted to somebody else, from above its mark.
type Grant struct{ Lo, Hi int64 }

// Len returns how many units the grant holds.
func (g Grant) Len() int64 { return g.Hi - g.Lo }

// numbersIn returns how many numbers that are delta apart lie in the rest of a grant, which begins where the grant
// does or at one of them.
func numbersIn(rest Grant, delta int64) int64 { return (rest.Len() + delta - 1) / max(1, delta) }
