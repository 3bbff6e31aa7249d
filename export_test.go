package hapax

// SetRandom replaces the source of random choices and returns how to undo that.
func SetRandom(n func(int64) int64) (undo func()) {
	old := randomN
	randomN = n
	return func() { randomN = old }
}

// Want asks for a segment as a caller does who found none.
func (s *Segment) Want() error { return s.supply.want() }
