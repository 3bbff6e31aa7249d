package hapax

import "time"

// Limits, and the defaults of options.
const (
	// MaxMark is where every line of numbers ends: the highest number of a segment
	// tag is MaxMark-1. The 2^32 numbers above stay unused, so that refused
	// attempts at the very end of a line can never overflow.
	MaxMark = 1<<63 - 1<<32

	// Of a tag.
	MaxTagBytes    = 128       // length of a tag's or pool's name, in bytes
	DefaultStep    = 1000      // numbers in a segment, until the rate is known
	DefaultMaxStep = 1_000_000 // the largest segment that the rate can lead to
	MaxStep        = 1 << 40   // the largest segment that can be asked for
	MaxDelta       = 1 << 20   // the largest delta
	MaxExtraBytes  = 2048      // length of Tag.Extra

	// Of a pool and its workers. A mark that lies further ahead of the clock than
	// [PoisonMargin] is absurd: one of them is wrong.
	DefaultPool  = "default" // the pool that is used when none is named
	PoisonMargin = 24 * time.Hour

	// Of a [Snowflake].
	DefaultLease    = 30 * time.Second // how long past its grant a silent worker keeps its ID
	DefaultGrant    = 10 * time.Second // the first grant
	DefaultMaxGrant = 5 * time.Minute  // what grants double up to
	DefaultMaxAhead = 10 * time.Millisecond
	DefaultMaxSkew  = 10 * time.Second // how far the local clock may differ from the store's

	// Of [HoldWorker].
	DefaultHoldGrant = time.Minute      // the first grant
	DefaultRunAhead  = time.Second      // how far a generator's numbers may lead the clock
	DefaultHoldGrace = 10 * time.Second // how long before the end a holder is told

	// DefaultStoreTimeout bounds one answer of a store.
	DefaultStoreTimeout = 5 * time.Second
)
