package model

// wait lets W pass for p: each process that was in reach all the time has met the
// store since; the others were out of contact for W.
func (w *world) wait(p int) bool {
	pr := &w.P[p]
	if !pr.up() || !pr.Conn || pr.Waited || pr.St != joining && pr.St != fenced && pr.St != refusing {
		return false
	}
	for q := range w.P {
		if q == p || !w.P[q].up() || (pr.Gap|pr.Met)&(1<<q) != 0 || !w.m.on(LongW) && w.Hung&(1<<q) != 0 {
			continue
		}
		return false
	}
	pr.Waited = true
	for q := range w.P {
		// A process that was out of reach, and met the store at no time of the wait, has been out of
		// contact for W: it joins again before it uses a grant.
		if q != p && w.P[q].up() && pr.Met&(1<<q) == 0 && pr.Gap&(1<<q) != 0 {
			w.P[q].Long, w.P[q].Excused = true, false
		}
		if pr.After&(1<<q) != 0 && w.m.on(QuickSoon) {
			w.P[q].Quick = false
		}
	}
	return true
}

// putBack notes that the store is another state of history.
func (w *world) putBack() {
	w.Restores++
	w.Dirty = true
	for p := range w.P {
		pr := &w.P[p]
		if pr.up() {
			w.Hung |= 1 << p
			// The processes met before the connection broke were met in another history.
			if w.m.on(WaitAnew) {
				w.begin(p)
			}
		}
		if w.m.AtOnce && (pr.St == fenced || pr.St == refusing) && !pr.Long && w.explained(&pr.W) && w.S.DecSaid&(1<<p) != 0 {
			pr.Excused = true // was in contact for the decision, which the copy holds
			continue
		}
		pr.Excused = (pr.up() || pr.Excused) && !pr.Long && pr.St != fenced && pr.St != refusing && !w.lacks(p)
	}
	for i := range w.Call {
		if w.Call[i].Kind != 0 && w.Call[i].Phase == sent {
			w.Call[i].Across = true
		}
	}
}

// dropCalls forgets whose calls p's are: the process ends.
func (w *world) dropCalls(p int) {
	for i := range w.Call {
		if c := &w.Call[i]; c.Kind != 0 && c.P == uint8(p) {
			if c.Phase == answered {
				*c = Call{}
			} else {
				c.P = none
			}
		}
	}
}

// readHalf is one half of a survey.
func (w *world) readHalf(p int, rows bool) {
	if rows {
		w.readRows(&w.P[p].Survey)
	} else {
		w.P[p].Survey.Pairs = w.S.Lines
	}
}

// take takes a survey that was read whole, after a beat that was made.
func (w *world) take(p int) {
	pr := &w.P[p]
	if pr.Reading == 2 && (pr.St == serving || pr.St == joining) {
		// A store that was put back between the halves, or after them, fails the beat, which ends the survey.
		sv := pr.Survey
		w.learn(p, &sv)
	}
}

// compact takes the rows that ended long ago, from the first join on.
func (w *world) compact() bool {
	s := &w.S
	k := s.K
	for j := s.K + 1; j <= s.Joins; j++ {
		found := false
		for x := range uint8(Rows) {
			if w.JoinOf[x] != j || s.Rows[x].St == absent {
				continue
			}
			found = s.Rows[x].ended()
			for q := range w.P {
				found = found && !(w.P[q].up() && w.P[q].Row == x)
			}
		}
		// One number says that all below it are absent: it stops at the first that is not.
		if !found {
			break
		}
		k = j
	}
	if k == s.K {
		return false
	}
	s.K = k
	for x := range uint8(Rows) {
		if s.Rows[x].St != absent && w.JoinOf[x] <= k {
			s.Rows[x] = Row{}
		}
	}
	return true
}

// heard reports whether an operator's statement is accepted: everyone in reach
// has spoken.
func (w *world) heard() bool {
	for p := range w.P {
		// A process in reach can know more than the operator assumes.
		if w.P[p].up() && w.P[p].Conn && w.S.Ev.Said&(1<<p) == 0 {
			return false
		}
	}
	return w.S.Fence != 0 && w.S.Ev.Said != 0
}

// statement sets the floor of an operator's statement.
func (w *world) statement(low bool) {
	e := &w.S.Ev
	if low {
		e.Low = true
		return
	}
	for l := range w.m.Lines {
		for n := range uint8(Nums) {
			if w.Own[l]&bit(n) != 0 {
				e.Floor[l] = max(e.Floor[l], n+1)
			}
		}
	}
}

// Initial returns a world in which n processes serve.
func (m *Model) Initial(n int) State {
	var s State
	s.S.ID, s.NextID = 1, 1
	for l := range s.S.Lines {
		s.S.Lines[l] = Pair{1, 0}
	}
	for p := range s.P {
		s.P[p] = Proc{Row: none, HoldL: none, PendL: none, Owes: none, Conn: true}
	}
	w := world{m: m, State: &s}
	for p := range n {
		w.start(p)
		for q := range p {
			w.learnAll(q)
			w.quick(q, callBeat, 0, false)
		}
		w.P[p].Waited = true
		w.learnAll(p)
		w.serve(p)
	}
	for p := range n {
		// Every search begins with a fleet at peace, in which all have seen all joins: getting there costs no budget.
		for range 2 {
			w.quick(p, callBeat, 0, false)
			w.learnAll(p)
		}
	}
	for p := range n {
		s.P[p].Excused = false
		s.P[p].Waited = false
		w.begin(p)
	}
	return s
}

// Apply does a step. It reports whether the step was possible, and what it violated.
func (m *Model) Apply(s *State, st Step) (ok bool, bad string) {
	sp := &ops[st.Op]
	w := world{m: m, State: s}
	if sp.budget >= 0 && !w.spend(sp.budget) {
		return false, ""
	}
	return sp.do(&w, int(st.P), int(st.Arg)), w.bad
}
