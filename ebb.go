package hapax

// Ebb has the segment ask the store for nothing more: what is in hand is issued, and then
// calls fail with [ErrClosed]. It is for those who are about to call Close while others
// use the tag, too: what is left in hand below another's grant cannot go back.
func (s *Segment) Ebb() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ebbs = true
}

// Mark returns where the last grant in hand ends: the tag's mark, unless others were
// granted numbers since.
func (s *Segment) Mark() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.next != nil {
		return s.next.from.Grant.Hi
	}
	return s.cur.Load().from.Grant.Hi
}
