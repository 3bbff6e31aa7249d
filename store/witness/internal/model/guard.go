package model

// A Model is the guard with all its rules but those that are off.
type Model struct {
	Split  bool // beat, fence check and grant are not one step
	Lines  int  // how many lines are in use
	AtOnce bool // who spoke for a decision serves at once
	Resume bool // a process that was out of contact for W and finds its row unchanged goes on under it at once
	Return bool // ... when everyone whose row is there has met the store too, and there is one
	off    uint64
}

// Without returns the model with a rule broken.
func (m Model) Without(rules ...Rule) Model {
	for _, r := range rules {
		m.off |= 1 << r
	}
	return m
}

func (m *Model) on(r Rule) bool { return m.off&(1<<r) == 0 }

// A world is a state under change, by one step.
type world struct {
	m *Model
	*State
	bad string // what was violated
}

func bit(i uint8) uint16 { return 1 << i }

// contact notes that p met the store.
func (w *world) contact(p int) {
	for q := range w.P {
		w.P[q].Met |= 1 << p
	}
	w.Hung &^= 1 << p
}

// begin lets p's wait of W begin.
func (w *world) begin(p int) {
	pr := &w.P[p]
	pr.Met, pr.Gap, pr.After, pr.Waited = 0, 0, 0, false
	for q := range w.P {
		if !w.P[q].up() || !w.P[q].Conn {
			pr.Gap |= 1 << q
		}
		if w.P[q].Quick {
			pr.After |= 1 << q
		}
	}
}

// unreachable notes a gap in p's contact.
func (w *world) unreachable(p int) {
	for q := range w.P {
		w.P[q].Gap |= 1 << p
	}
}

// The verdicts on a store.
const (
	fine       = iota
	behind     // it lacks what was acknowledged, or is wiped
	another    // it is another store
	healedLess // a healing assumed less than this witness knows
)

// acked returns the highest beat acknowledged under p's row x.
func (w *world) acked(p int, x uint8) uint8 {
	if x == w.P[p].Row {
		return w.P[p].Count
	}
	return w.P[p].W.Count[x]
}

// explained reports whether the store's latest decision is one that the witness
// does not know: it explains whatever the store lacks.
func (w *world) explained(wit *Witness) bool {
	return wit.Has && w.S.LastDec != 0 && wit.Dec&bit(w.S.LastDec) == 0
}

// verdict compares the store with all that p knows.
func (w *world) verdict(p int) int {
	wit, s := &w.P[p].W, &w.S
	if wit.ID != s.ID && wit.ID != 0 {
		if s.ID == 0 {
			return behind
		}
		return another
	}
	lower, less := false, false
	for l := range w.m.Lines {
		lower = lower || w.lower(s.Lines[l], wit.Pairs[l])
		less = less || s.Lines[l].max(wit.Pairs[l]) != s.Lines[l] // a healing raises tokens: pairs do not tell
	}
	healed, lacks := w.explained(wit), w.lacks(p) || w.lacksPeer(p)
	switch {
	case healed && less:
		return healedLess
	case healed:
		return fine
	case lower || lacks:
		return behind
	}
	return fine
}

// lacks reports whether the store lacks p's last beat, a join or a decision.
func (w *world) lacks(p int) bool {
	wit, s := &w.P[p].W, &w.S
	if s.Joins < max(wit.Joins, w.P[p].SeenJoins) || wit.Dec&^s.Decided != 0 {
		return true
	}
	x := wit.Last
	if !wit.Has || w.JoinOf[x] <= s.K && w.m.on(Compacted) {
		return false
	}
	return s.Rows[x].St == absent || s.Rows[x].Count < w.acked(p, x)
}

// lacksPeer reports whether the store lacks a row that p surveyed, or grants under it.
func (w *world) lacksPeer(p int) bool {
	wit := &w.P[p].W
	for y, r := range w.S.Rows {
		// Grants alone: another's beat that is lost without one cost nobody a number.
		if wit.Know&bit(uint8(y)) != 0 && w.JoinOf[y] > w.S.K && (r.St == absent || r.Grants < wit.SeenG[y]) {
			return w.m.on(PeersTell)
		}
	}
	return false
}

func (w *world) lower(a, b Pair) bool {
	if !w.m.on(Pairs) {
		return a.Mark < b.Mark
	}
	return a.less(b)
}

// raise puts up the fence, or adds p to it: p found the store behind.
func (w *world) raise(p int) {
	pr, s := &w.P[p], &w.S
	wiped := s.ID == 0 && pr.W.ID != 0
	if !w.Dirty && !wiped && (w.Exc == ([Lines]uint16{}) || w.explained(&pr.W)) {
		w.bad = "false fence: nothing was lost"
	}
	// A second finder joins the fence that stands: a new name would throw away evidence that was given.
	if s.Fence == 0 {
		w.NextFence++
		s.Fence, s.Word, s.Seal, s.Found, s.Finders, s.Ev = w.NextFence, 0, 0, 0, 0, Evidence{}
		s.FoundG = [Rows]uint8{}
	}
	pr.W.Lost, pr.St = true, refusing
	w.stop(p)
	w.found(p)
}

// found adds p's rows and their grant counts to the fence.
func (w *world) found(p int) {
	wit := &w.P[p].W
	w.S.Finders |= wit.Mine
	if !w.m.on(FoundSpeaks) {
		return
	}
	for x := range uint8(Rows) {
		if wit.Mine&bit(x) != 0 && w.JoinOf[x] > w.S.K {
			w.S.Found |= bit(x)
			w.S.FoundG[x] = max(w.S.FoundG[x], wit.Grants[x])
		}
	}
}

// seeFence stops p at a fence that stands.
func (w *world) seeFence(p int) {
	if w.P[p].St != refusing {
		w.P[p].St = fenced
	}
	w.stop(p)
}

// stop latches the fence, abandons what is unconfirmed and begins the wait.
func (w *world) stop(p int) {
	pr := &w.P[p]
	pr.W.Latch, pr.PendL, pr.Reading, pr.Ready, pr.Asked, pr.Back = w.S.Fence, none, 0, false, false, false
	pr.W.Warned = true
	if w.m.on(AskAnew) {
		// A copy that is put back can hold the old word, with evidence from when others knew less.
		pr.Word = 0
	}
	if pr.Row != none { // calls under way will be abandoned, whatever they say
		pr.W.Count[pr.Row], pr.W.Grants[pr.Row] = pr.Count, pr.Grants
		pr.W.Joins = max(pr.W.Joins, pr.SeenJoins)
	}
	w.begin(p)
}

// judge looks at all of the store. It reports whether p may go on as it is.
func (w *world) judge(p int) bool {
	switch w.verdict(p) {
	case behind:
		w.raise(p)
		return false
	case another:
		w.P[p].St = other
		return false
	case healedLess:
		if w.S.Fence == 0 {
			w.returned(p)
		}
	}
	if w.S.Fence != 0 {
		w.seeFence(p)
		return false
	}
	return true
}

// returned raises the lines of a process that knows more than a healing assumed.
func (w *world) returned(p int) {
	wit := &w.P[p].W
	for l := range w.m.Lines {
		for n := range uint8(Nums) { // what was not issued again is safe from now on
			if w.Own[l]&bit(n) != 0 && n >= w.S.Lines[l].Mark && n < wit.Pairs[l].Mark {
				w.Exc[l] &^= bit(n)
			}
		}
		if !w.m.on(ReturnRaises) {
			continue
		}
		to := w.S.Lines[l].max(wit.Pairs[l])
		// The token, too: a hand-back from before the healing must not lower the mark again.
		to.Tok++
		w.S.Lines[l], wit.Pairs[l] = to, to
	}
	w.S.Joins = max(w.S.Joins, wit.Joins)
}

// register gives p a row, and closes its earlier ones.
func (w *world) register(p int) bool {
	if w.NextRow == Rows || w.S.Fence != 0 {
		return false
	}
	pr, s := &w.P[p], &w.S
	if pr.Row != none {
		pr.W.Count[pr.Row], pr.W.Grants[pr.Row] = pr.Count, pr.Grants // an answer that comes yet is abandoned
	}
	for y := range uint8(Rows) {
		r := &s.Rows[y]
		if pr.W.Mine&bit(y) == 0 || r.St == absent {
			continue
		}
		// More was granted under the row than this file knows: a copy of the directory runs, or the file
		// is an old one. Its word for the row would be too low.
		if r.Grants > pr.W.Grants[y] {
			pr.W.Stale |= bit(y)
		}
		switch {
		case r.Grants > pr.W.Grants[y] && w.m.on(Further):
			pr.W.Mine &^= bit(y)
		case r.alive():
			w.end(y, left)
		}
	}
	if w.explained(&pr.W) {
		pr.W.Warned = false
	}
	if w.lacks(p) && (s.LastDec == 0 || pr.W.TrueDec&bit(s.LastDec) != 0) {
		pr.W.Warned = true
	}
	x := w.NextRow
	w.NextRow++
	s.Joins++
	w.JoinOf[x] = s.Joins
	s.Rows[x] = Row{St: registered, Count: 1}
	pr.Row, pr.Count, pr.Sent, pr.Grants = x, 1, 1, 0
	pr.W.Has, pr.W.Last, pr.W.Mine, pr.W.Count[x] = true, x, pr.W.Mine|bit(x), 1
	if s.ID == 0 && !w.m.on(LateID) {
		w.NextID++
		s.ID = w.NextID
	}
	if pr.W.ID == 0 {
		pr.W.ID = s.ID
	}
	pr.W.Joins, pr.SeenJoins, pr.Surveyed = s.Joins, s.Joins, 0
	if pr.W.Dec != s.Decided { // a decision ended them
		pr.W.Know, pr.W.Gone, pr.W.SeenG = 0, 0, [Rows]uint8{}
		pr.W.K = max(pr.W.K, s.DecJoins) // who takes it speaks for all before it
		for l := range pr.W.Pairs {
			if pr.W.Pairs[l].less(s.Lines[l]) {
				pr.W.Pairs[l] = s.Lines[l]
			}
		}
	}
	pr.W.Dec, pr.W.TrueDec = s.Decided, s.Decided
	pr.St, pr.Prim, pr.Long, pr.Asked, pr.Back, pr.Reading, pr.PendL = joining, s.Prim, false, false, false, 0, none
	pr.Ready, pr.Excused, pr.HoldL, pr.WaitCount, pr.Owes, pr.Learnt = false, false, none, [Rows]uint8{}, none, none
	pr.W.Latch, pr.W.Lost = 0, false
	w.begin(p)
	return true
}

// end makes a row a tombstone.
func (w *world) end(x, how uint8) {
	if !w.m.on(KeepBeat) {
		// A row that is gone looks like a loss to its owner.
		w.S.Rows[x] = Row{}
		return
	}
	w.S.Rows[x].St = how
}

// learn takes a survey into the witness.
func (w *world) learn(p int, sv *Witness) {
	pr := &w.P[p]
	wit := &pr.W
	for x := range uint8(Rows) { // nobody has told it
		if (sv.Gone&^wit.Gone)&bit(x) != 0 && w.JoinOf[x] <= pr.Surveyed && sv.Changes == pr.Learnt && w.S.Changes == pr.Learnt && w.m.on(ReaderTells) {
			w.S.Changes++
		}
	}
	wit.Know |= sv.Know
	if w.m.on(Vouch) {
		wit.Gone |= sv.Gone
	}
	for x := range wit.SeenG {
		wit.SeenG[x] = max(wit.SeenG[x], sv.SeenG[x])
	}
	for l := range wit.Pairs {
		if wit.Pairs[l].less(sv.Pairs[l]) {
			wit.Pairs[l] = sv.Pairs[l]
		}
	}
	wit.Joins, wit.K = max(wit.Joins, sv.Joins), max(wit.K, sv.K)
	pr.Surveyed = max(pr.Surveyed, sv.Joins)
	pr.SeenJoins = max(pr.SeenJoins, sv.Joins)
	pr.Learnt = sv.Changes
	pr.Reading = 0
	if pr.Row != none {
		w.sync(p)
	}
}

func (w *world) readRows(sv *Witness) {
	sv.Joins, sv.K, sv.Changes = w.S.Joins, w.S.K, w.S.Changes
	for x, r := range w.S.Rows {
		if r.St == absent {
			continue
		}
		sv.Know |= bit(uint8(x))
		sv.SeenG[x] = r.Grants
		if r.ended() {
			sv.Gone |= bit(uint8(x))
		}
	}
}

// sync writes what p knows of its own row.
func (w *world) sync(p int) {
	pr := &w.P[p]
	pr.W.Count[pr.Row] = max(pr.W.Count[pr.Row], pr.Count)
	pr.W.Joins = max(pr.W.Joins, pr.SeenJoins)
	// Answers come in any order: a count above a grant still under way claims to know that one, too,
	// and a copy of this file would speak for the row without it.
	g := pr.Grants
	for i := range w.Call {
		if c := &w.Call[i]; c.Kind == callGrant && c.P == uint8(p) && c.Row == pr.Row && w.m.on(Contiguous) {
			g = min(g, c.Grants-1)
		}
	}
	if pr.Ready || pr.PendL != none {
		g = min(g, pr.Grants-1)
	}
	pr.W.Grants[pr.Row] = max(pr.W.Grants[pr.Row], g)
}

// ahead reports whether p knows anything that the store lacks.
func (w *world) ahead(p int) bool {
	pr := &w.P[p]
	return pr.St == fenced || pr.St == refusing || w.verdict(p) != fine
}

// own gives p a number, and judges whether it may.
func (w *world) own(p int, l, n, g uint8, pair Pair, e excuse) {
	pr := &w.P[p]
	exc := e == always || e == asProcess && pr.Excused && w.Dirty
	if w.Own[l]&bit(n) != 0 && !exc && w.Exc[l]&bit(n) == 0 {
		w.bad = "a number twice"
	}
	if exc {
		w.Exc[l] |= bit(n)
	}
	w.Own[l] |= bit(n)
	w.Owner[l][n] = pr.Row
	if pr.Row != none {
		w.TrueG[pr.Row] = max(w.TrueG[pr.Row], g)
		if pr.St == serving {
			if pr.W.Pairs[l].less(pair) {
				pr.W.Pairs[l] = pair
			}
			w.sync(p)
		}
	}
	pr.HoldL, pr.Hold, pr.HTok = l, n, pair.Tok
}
