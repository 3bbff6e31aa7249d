package hapax

import "sync/atomic"

// SetRandom replaces the source of random choices and returns how to undo that.
func SetRandom(n func(int64) int64) (undo func()) {
	old := randomN
	randomN = n
	return func() { randomN = old }
}

// Want asks for a segment as a caller does who found none.
func (s *Segment) Want() error { return s.supply.want() }

// Deafen keeps the lane from learning that it has to look at its block again.
func (l *Lane) Deafen() {
	still := new(atomic.Int64)
	still.Store(l.turn.Load())
	l.turn = still
}

// Left returns how many numbers the lane has at hand.
func (l *Lane) Left() int64 { return l.left() }

// AdmitsAt reports whether a single add may have the cursor that is so far above the first one
// that the clock or the grant forbids.
func (s *Snowflake) AdmitsAt(above int64) bool {
	r := s.cur.Load()
	tick, err := s.tick()
	return err == nil && s.admit(r, r.bound(tick, s.ahead)+above, r.limit.Load())
}
