package model

// start lets a process begin on the disk of its machine.
func (w *world) start(p int) {
	wit := w.P[p].W
	w.P[p] = Proc{St: joining, Row: none, Conn: w.P[p].Conn, HoldL: none, PendL: none, Owes: none, Quick: w.P[p].Quick, Excused: w.P[p].Excused, W: wit}
	pr := &w.P[p]
	w.unreachable(p)
	w.contact(p)
	if !w.m.on(Latch) {
		pr.W.Latch, pr.W.Lost = 0, false
	}
	if pr.W.Latch != 0 || pr.W.Lost {
		pr.St = fenced
		if pr.W.Lost {
			pr.St = refusing
		}
		w.begin(p)
		return
	}
	w.enter(p)
}

// enter lets a process join that is not refused.
func (w *world) enter(p int) bool {
	pr := &w.P[p]
	if !w.judge(p) {
		return true
	}
	if pr.W.Has && !w.m.on(OwnRow) {
		for x := uint8(Rows); x > 0; x-- {
			if r := w.S.Rows[x-1]; pr.W.Mine&bit(x-1) != 0 && r.St != absent {
				w.resume(p, x-1)
				return true
			}
		}
	}
	// Asked before registration: the new row would look like another's.
	quick, excused := pr.Quick && w.untouched(p), pr.Excused
	pr.Quick = false
	if !w.register(p) {
		return false
	}
	if quick {
		pr.Excused = excused
		w.learnAll(p)
		w.serve(p)
	}
	return true
}

// resume is how the broken twin takes up an earlier row.
func (w *world) resume(p int, x uint8) {
	pr := &w.P[p]
	r := &w.S.Rows[x]
	r.St = live
	pr.Row, pr.Count, pr.Sent, pr.Grants, pr.Prim, pr.St = x, r.Count, r.Count, r.Grants, w.S.Prim, joining
	pr.SeenJoins, pr.Long, pr.Excused = w.S.Joins, false, false
	pr.W.Latch, pr.W.Lost = 0, false
	w.begin(p)
}

// untouched reports whether p finds the store as it left it, alone: whether it
// may serve at once.
func (w *world) untouched(p int) bool {
	wit := &w.P[p].W
	if wit.Joins != w.S.Joins {
		return false
	}
	last := false
	for x, r := range w.S.Rows {
		if r.alive() {
			return false
		}
		if w.JoinOf[x] == wit.Joins && wit.Mine&bit(uint8(x)) != 0 && r.St == left && r.Count == wit.Count[x] {
			last = true
		}
	}
	return last
}

// learnAll is a survey in one step.
func (w *world) learnAll(p int) {
	var sv Witness
	w.readRows(&sv)
	sv.Pairs = w.S.Lines
	w.learn(p, &sv)
}

// mayServe reports whether a joiner's wait is over, and which rows are silent.
func (w *world) mayServe(p int) (bool, uint16) {
	pr := &w.P[p]
	var missing uint16
	served := false
	for x, r := range w.S.Rows {
		if !r.alive() || uint8(x) == pr.Row {
			continue
		}
		// That a row has seen this join can stand in a replica that lacks the end: its process has met
		// this store only if the row has moved since the wait began.
		advanced := r.Count > pr.WaitCount[x]
		seen := r.Seen >= w.JoinOf[pr.Row] && (advanced || !w.m.on(JoinerWaits))
		if pr.Asked {
			seen = advanced
		} else if !w.m.on(WaitSeen) {
			seen = true
		}
		if !seen {
			missing |= bit(uint8(x))
		} else if r.St == live {
			served = true
		}
	}
	// Nobody left to ask is no consent: a copy of a time when all had left looks the same.
	ok := missing == 0 && (served || pr.Asked && !pr.Back || !w.m.on(WaitServing)) || pr.Waited
	return ok, missing
}

// serve ends the wait of p.
func (w *world) serve(p int) {
	pr := &w.P[p]
	w.excuse(p)
	_, missing := w.mayServe(p)
	for x := range uint8(Rows) {
		if missing&bit(x) != 0 {
			w.silence(p, x)
		}
	}
	if missing != 0 {
		w.S.Changes++
	}
	// Not before the wait is over: the nodes of a wiped store would take a new ID for another store,
	// and refuse alone, instead of raising a fence that stops this process.
	if w.S.ID == 0 {
		w.NextID++
		w.S.ID = w.NextID
		if pr.Excused {
			w.BlindID |= bit(w.S.ID)
		}
	}
	pr.W.ID = w.S.ID
	pr.St, pr.Asked, pr.Back = serving, false, false
	r := &w.S.Rows[pr.Row]
	r.St = live
	pr.Sent++
	pr.Count = pr.Sent
	r.Count, r.Grants, r.Seen = pr.Count, pr.Grants, pr.Surveyed
}

// excuse notes whether p begins to serve after a loss that nobody in reach, all
// through its wait, could know.
func (w *world) excuse(p int) {
	pr := &w.P[p]
	if pr.Waited {
		pr.Excused = false
	}
	knower := pr.W.Warned
	for q := range w.P {
		if q == p || !w.P[q].up() || !w.P[q].Conn || pr.Gap&(1<<q) != 0 {
			continue
		}
		knower = knower || w.ahead(q) && !w.unheard(q)
	}
	pr.Excused = !pr.W.Warned && pr.Excused || !knower
	if pr.Back && !pr.Waited { // the copy is younger than the last contact of all who are there
		pr.Excused = true
		for q := range w.P {
			x := w.P[q].Row
			if q != p && w.P[q].up() && x != none && w.S.Rows[x].alive() && w.ahead(q) {
				pr.Excused = false
			}
		}
	}
}

// unchanged reports whether p, out of contact for W, finds its row as it left it.
func (w *world) unchanged(p int) bool {
	pr := &w.P[p]
	if !pr.Conn || pr.St != serving || !pr.Long || pr.Row == none || w.S.Fence != 0 || w.explained(&pr.W) || w.verdict(p) != fine {
		return false
	}
	r := w.S.Rows[pr.Row]
	return r.alive() && r.Count >= pr.Count && r.Count <= pr.Sent
}

// back lets p, which was out of contact for W, go on under its row.
func (w *world) back(p int) bool {
	pr := &w.P[p]
	if !w.unchanged(p) {
		return false
	}
	w.contact(p)
	pr.Long, pr.Excused, pr.PendL, pr.Ready = false, false, none, false
	if w.m.Resume {
		return true
	}
	pr.St, pr.Asked, pr.Back = joining, true, true
	for x, r := range w.S.Rows {
		// Beats from before tell of the store as it was then.
		pr.WaitCount[x] = r.Count
		if !w.m.on(MetSince) {
			pr.WaitCount[x] = 0
		}
	}
	w.begin(p)
	return true
}

// silence marks a row silent.
func (w *world) silence(p int, x uint8) {
	blind := w.Dirty && w.P[p].Excused && w.lost(x)
	for q := range w.P {
		blind = blind && (q == p || !w.P[q].up() || !w.P[q].Conn || !w.ahead(q))
	}
	if blind {
		w.Blind |= bit(x)
	}
	w.end(x, silent)
}

// lost reports whether a number of row x lies above the store's mark.
func (w *world) lost(x uint8) bool {
	for l := range w.Own {
		for n := w.S.Lines[l].Mark; n < Nums; n++ {
			if w.Own[l]&bit(n) != 0 && w.Owner[l][n] == x {
				return true
			}
		}
	}
	return false
}

// ousted reports whether p's row has ended though p did not end it.
func (w *world) ousted(p int) bool {
	return !w.S.Rows[w.P[p].Row].alive()
}

// look is the contact of a process without a grant.
func (w *world) look(p int) bool {
	pr, s := &w.P[p], &w.S
	w.contact(p)
	v := w.verdict(p)
	switch {
	case v == another:
		pr.St = other
	case pr.St == other && !pr.W.Lost && pr.W.Latch == 0:
		w.rejoin(p)
	case s.Fence != 0:
		if pr.W.Latch != s.Fence {
			w.seeFence(p)
		}
		if v == behind && !pr.W.Lost {
			pr.W.Lost, pr.St = true, refusing
		}
		if pr.W.Lost {
			w.found(p)
		}
	default:
		// A fence that is gone was decided upon, or the store that held it was put back. A decision known
		// before the fence was seen says nothing about it.
		decided := w.explained(&pr.W)
		if !w.m.on(NewDecision) {
			decided = s.LastDec != 0
		}
		if !decided && w.m.on(RaiseAgain) {
			w.raise(p)
			return true
		}
		pr.W.Latch, pr.W.Lost = 0, false
		return w.resumeServing(p, decided)
	}
	return true
}

// resumeServing lets a stopped process join again, and serve at once where it
// spoke for the decision and has been in contact since.
func (w *world) resumeServing(p int, decided bool) bool {
	pr := &w.P[p]
	atOnce := decided && !pr.Long && w.S.DecSaid&(1<<p) != 0 && w.m.AtOnce
	before, excused := pr.Row, pr.Excused
	if !w.rejoin(p) {
		return false
	}
	if atOnce && pr.St == joining && pr.Row != before {
		pr.Excused = excused
		w.learnAll(p)
		w.serve(p)
	}
	return true
}

// rejoin gives a running process a new row, if it finds nothing wrong.
func (w *world) rejoin(p int) bool {
	pr := &w.P[p]
	w.contact(p)
	if !w.judge(p) {
		return true
	}
	if !w.m.on(HealEnds) && pr.Row != none && w.S.Rows[pr.Row].alive() && !pr.Long {
		pr.St = serving
		return true
	}
	return w.register(p)
}
