package hapax

// An ebb bounds what a segment that is about to close still takes from the store.
type ebb struct {
	ebbs bool
	step int64
}

func (e ebb) dry() bool { return e.ebbs && e.step == 0 }

// or returns how many numbers to ask for instead of so many.
func (e ebb) or(ask int64) int64 {
	if e.ebbs {
		return e.step
	}
	return ask
}

// Ebb has the segment ask the store for no more than step numbers at a time from now on;
// 0: for nothing, so that what is in hand is issued, and then calls fail with [ErrClosed].
// It is for a program that is about to call Close while others use the tag, too: what is left
// in hand below another's grant cannot go back. A later call cannot raise the bound again.
func (s *Segment) Ebb(step int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.ebb.ebbs || step < s.ebb.step {
		s.ebb = ebb{true, max(0, step)}
	}
}

// Mark returns where the grants in hand end, as far as they adjoin: the tag's mark, unless
// others were granted numbers since, below which nothing in hand can go back.
func (s *Segment) Mark() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	hi := s.cur.Load().from.Grant.Hi
	if s.next != nil && s.next.from.Grant.Lo == hi {
		return s.next.from.Grant.Hi
	}
	return hi
}
