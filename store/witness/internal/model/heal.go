package model

// speak adds what p knows to the evidence. finder: p itself found the loss.
func (w *world) speak(p int, wit *Witness, finder bool) {
	e := &w.S.Ev
	e.Said |= 1 << p
	e.ID = max(e.ID, wit.ID)
	for l := range wit.Pairs {
		if w.m.on(RaiseMark) {
			e.Pairs[l] = e.Pairs[l].max(wit.Pairs[l])
		} else if e.Pairs[l].less(wit.Pairs[l]) {
			e.Pairs[l] = wit.Pairs[l]
		}
	}
	e.Joins = max(e.Joins, wit.Joins)
	for x := range uint8(Rows) {
		// To have read a row only raises what its speaker must know.
		if wit.Know&bit(x) != 0 {
			e.Known |= bit(x)
			e.Top[x] = max(e.Top[x], wit.SeenG[x])
		}
		if wit.Mine&bit(x) != 0 {
			e.Known |= bit(x)
			e.Top[x] = max(e.Top[x], wit.Grants[x])
			e.Spoke |= bit(x)
			e.Stale |= wit.Stale & bit(x)
			e.Claim[x] = max(e.Claim[x], wit.Grants[x])
		}
		// Others may have read marks of silence made after the loss, by a joiner that knew nothing of it.
		if wit.Gone&bit(x) != 0 && (finder || !w.m.on(FinderVouches)) {
			e.Ended |= bit(x)
			e.Vouch[x] = max(e.Vouch[x], wit.SeenG[x])
		}
	}
	if finder || !w.m.on(FinderVouches) {
		e.K = max(e.K, wit.K)
	}
}

// said reports whether all that p knows of its rows stands in the evidence
// already. A copy of the store can hold what p said when it knew less.
func (w *world) said(p int) bool {
	e, wit := &w.S.Ev, &w.P[p].W
	if !w.m.on(AskAnew) {
		return e.Said&(1<<p) != 0
	}
	if wit.Mine&^e.Spoke != 0 || wit.Joins > e.Joins {
		return false
	}
	for l := range wit.Pairs {
		if e.Pairs[l].max(wit.Pairs[l]) != e.Pairs[l] && w.m.on(RaiseMark) {
			return false
		}
	}
	return e.Said&(1<<p) != 0
}

// ask writes a fresh word, under which alone evidence counts.
func (w *world) ask(p int) {
	w.NextWord++
	w.S.Word, w.S.Seal = w.NextWord, 0
	w.P[p].Word, w.P[p].Seal, w.P[p].Raised = w.NextWord, 0, 0
	// Evidence counts from here on, so that nothing hangs on the age of a copy's.
	if w.m.on(FreshWord) {
		w.S.Ev.Spoke, w.S.Ev.Ended, w.S.Ev.Said, w.S.Ev.K = 0, 0, 0, 0
		w.S.Ev.Claim, w.S.Ev.Vouch = [Rows]uint8{}, [Rows]uint8{}
	}
}

// top returns the highest grant count that anybody knows of row x.
func (w *world) top(x uint8) uint8 {
	return max(w.S.Ev.Top[x], w.S.Rows[x].Grants, w.S.FoundG[x])
}

// settled reports whether somebody answers for row x.
func (w *world) settled(x uint8) bool {
	e, s := &w.S.Ev, &w.S
	top := uint8(0)
	if w.m.on(TopCount) {
		top = w.top(x)
	}
	switch {
	case e.Spoke&bit(x) != 0 && e.Claim[x] >= top,
		e.Ended&bit(x) != 0 && e.Vouch[x] >= top,
		w.JoinOf[x] <= e.K,
		e.Settle&bit(x) != 0,
		e.Adopt:
		return true
	}
	return !w.m.on(RowsSettleNone) && s.Rows[x].ended()
}

// missing returns the rows for which somebody has still to speak, and whether a
// join number is unaccounted for.
func (w *world) missing() (rows uint16, joins bool) {
	e, s := &w.S.Ev, &w.S
	var accounted uint16
	for x := range uint8(Rows) {
		if e.Known&bit(x) == 0 && s.Found&bit(x) == 0 && s.Rows[x].St == absent {
			continue
		}
		if w.settled(x) {
			accounted |= bit(w.JoinOf[x])
		} else {
			rows |= bit(x)
		}
	}
	// A number without a row may be a node that joined after the copy was made, and was granted
	// anything since.
	for j := e.K + 1; j <= e.Joins; j++ {
		if accounted&bit(j) == 0 && !e.Adopt && w.m.on(AccountJoins) {
			joins = true
		}
	}
	return rows, joins
}

// mayHeal reports whether p may raise and lift.
func (w *world) mayHeal(p int) bool {
	pr := &w.P[p]
	if w.S.Fence == 0 || pr.W.Latch != w.S.Fence || pr.Word == 0 || pr.Word != w.S.Word || w.S.Ev.Said == 0 {
		return false
	}
	// A node whose connection hangs has not met the fence, and alone knows its grants: within W it comes.
	if w.m.on(HealWait) && !pr.Waited {
		return false
	}
	rows, joins := w.missing()
	return rows == 0 && !joins
}

// raiseLine sets a line above everything known.
func (w *world) raiseLine(p, l int) {
	e, line := &w.S.Ev, &w.S.Lines[l]
	// Mark and token each by itself: after a hand-back the greater pair has the lower mark.
	if w.m.on(RaiseMark) || line.less(e.Pairs[l]) {
		line.Mark = max(line.Mark, e.Pairs[l].Mark)
	}
	line.Mark = max(line.Mark, e.Floor[l])
	// A hand-back sent before the loss comes later, and must not find its token.
	if w.m.on(RaiseToken) {
		line.Tok = max(line.Tok, e.Pairs[l].Tok) + 1
	}
	w.P[p].Raised |= 1 << l
}

// raised reports whether all lines stand above the evidence: a healer knows to
// where he raised.
func (w *world) raised(p int) bool { return w.P[p].Raised == 1<<w.m.Lines-1 }

// lift ends the fence by its decision.
func (w *world) lift(p int) {
	s := &w.S
	w.judgeHealing(p)
	if w.m.on(RaiseJoins) {
		s.Joins = max(s.Joins, s.Ev.Joins)
	}
	// A wiped store gets the identity that its nodes know: they would refuse any other.
	if s.ID == 0 {
		s.ID = s.Ev.ID
	}
	w.NextDec++
	s.LastDec, s.DecSaid = w.NextDec, s.Ev.Said
	s.Decided |= bit(s.LastDec)
	s.Fence, s.Word, s.Seal, s.Found, s.Finders = 0, 0, 0, 0, 0
	s.FoundG, s.Ev = [Rows]uint8{}, Evidence{}
	if w.m.on(HealEnds) {
		s.K, s.DecJoins = s.Joins, s.Joins
		s.Rows = [Rows]Row{}
	}
	w.P[p].Word, w.P[p].Seal, w.P[p].Raised, w.P[p].Checked = 0, 0, 0, 0
	w.Dirty = false
}

// judgeHealing finds numbers above which a healing did not raise.
func (w *world) judgeHealing(p int) {
	e := &w.S.Ev
	for l := range w.m.Lines {
		for n := w.S.Lines[l].Mark; n < Nums; n++ {
			if w.Own[l]&bit(n) == 0 || w.Exc[l]&bit(n) != 0 {
				continue
			}
			x := w.Owner[l][n]
			known := (e.Known|w.S.Finders)&bit(x) != 0 || w.S.Rows[x].St != absent
			// In this order: nothing excuses a healing below a number whose owner was there to be asked.
			switch {
			case w.near(p, x):
				w.bad = "healed below a number of a process in reach"
			case e.Low && (e.Adopt || e.Settle&bit(x) != 0): // the operator's word
			case !known && (w.JoinOf[x] > e.Joins || w.namesake(x)): // nobody who found the loss was there when it worked
			case (e.Spoke&^e.Stale)&bit(x) != 0 && e.Claim[x] < w.TrueG[x] && e.Claim[x] >= w.top(x): // an older witness spoke
			case e.Ended&bit(x) != 0 && w.Blind&bit(x) != 0: // nobody who could know was in reach when it was marked
			default:
				w.bad = "healed below a number"
			}
			w.Exc[l] |= bit(n)
		}
		w.Exc[l] &^= bit(w.S.Lines[l].Mark) - 1 // from now on once
	}
}

// namesake reports whether a row of another branch of history has x's join
// number, so that x is not missed.
func (w *world) namesake(x uint8) bool {
	for y := range w.NextRow {
		known := w.S.Ev.Known&bit(y) != 0 || w.S.Rows[y].St != absent
		if y != x && w.JoinOf[y] == w.JoinOf[x] && known {
			return true
		}
	}
	return false
}

// near reports whether the process of row x was in reach of the healer's store
// all the time, and it is not one that takes this store for another, which was made while nobody in
// reach knew: that one refuses alone.
func (w *world) near(p int, x uint8) bool {
	for q := range w.P {
		if w.unheard(q) {
			continue
		}
		if w.P[q].up() && w.P[q].Conn && w.P[p].Gap&(1<<q) == 0 && w.P[q].W.Mine&bit(x) != 0 && w.P[q].W.Grants[x] >= w.TrueG[x] {
			return true
		}
	}
	return false
}

// unheard reports whether q takes the store for another, which was made while nobody in reach knew.
func (w *world) unheard(q int) bool {
	return w.verdict(q) == another && w.BlindID&bit(w.S.ID) != 0
}
