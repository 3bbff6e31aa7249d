package model

// newCall returns the next call of p.
func (w *world) newCall(p int, kind uint8) Call {
	pr := &w.P[p]
	pr.Sent++
	if kind == callGrant && !w.m.Split {
		pr.Grants++
	}
	pr.Ready = pr.Ready && kind != callGrant
	c := Call{
		Kind: kind, Phase: sent, P: uint8(p), Row: pr.Row, Was: pr.Count, Now: pr.Sent, Grants: pr.Grants,
		Seen: pr.Surveyed, Known: pr.W.Pairs, KnownJoins: max(pr.W.Joins, pr.SeenJoins), Confirm: pr.PendL != none,
	}
	if !w.m.on(SurveyJoin) {
		c.Seen = pr.SeenJoins
	}
	if kind == callBack {
		c.Line, c.N, c.Tok = pr.HoldL, pr.Hold, pr.HTok
		// Given up when the call is sent: whatever becomes of that, nobody here uses the number any more.
		w.Own[c.Line] &^= bit(c.N)
		pr.HoldL = none
	}
	return c
}

// carryOut is what the store does with a call.
func (w *world) carryOut(c *Call) {
	s := &w.S
	c.Phase, c.Joins, c.Prim, c.Fenced = answered, s.Joins, s.Prim, s.Fence != 0
	if r := &s.Rows[c.Row]; !w.m.Split || c.Kind == callBeat {
		c.Met = r.alive() && r.Count >= c.Was && (s.Fence == 0 || !w.m.on(OneTrip))
		if !c.Met {
			return
		}
		// Calls arrive in any order: a row only rises, so that a late beat undoes no later one.
		if r.Count < c.Now {
			r.Count, r.Grants, r.Seen = c.Now, c.Grants, c.Seen
		}
	}
	c.Met = true
	line := &s.Lines[c.Line]
	switch c.Kind {
	case callGrant:
		c.N = line.Mark
		line.Mark++
		c.Pair = *line
	case callBack:
		// A later grant has moved the mark, and an earlier delivery of this call the token.
		if line.Mark == c.N+1 && (line.Tok == c.Tok || !w.m.on(BackToken)) {
			line.Mark = c.N
			line.Tok++
		}
	}
}

// excuse says what a listed case has to do with a call.
func (c *Call) excuse() excuse {
	switch {
	case c.Fenced:
		return never
	case c.Across:
		return always
	}
	return asProcess
}

// receive is what the process does with the answer.
func (w *world) receive(c *Call) {
	p := int(c.P)
	pr := &w.P[p]
	w.contact(p)
	granted := c.Kind == callGrant && c.Met
	if pr.St != serving && pr.St != joining || c.Row != pr.Row || pr.Long && w.m.on(Rejoin) {
		// A fence, another row or W without contact came between question and answer: the number may be
		// one of a store that has gone back.
		if granted && !w.m.on(Abandon) {
			w.own(p, c.Line, c.N, c.Grants, c.Pair, never)
		}
		return
	}
	if !c.Met {
		w.judge(p)
		return
	}
	if !w.m.Split || c.Kind == callBeat {
		if c.Joins < c.KnownJoins {
			w.raise(p)
			return
		}
		pr.Count = max(pr.Count, c.Now)
		pr.W.TrueDec = w.S.Decided
		pr.SeenJoins = max(pr.SeenJoins, c.Joins)
		if c.Prim != pr.Prim && w.m.on(Question) {
			w.question(p)
			return
		}
		pr.Prim = c.Prim
	}
	switch {
	case granted:
		// Answers of one process overtake each other: a later grant has then raised the witness above
		// this one, and nothing is lost.
		known := c.Known[c.Line]
		if !w.m.on(PairAsSent) {
			known = pr.W.Pairs[c.Line]
		}
		if w.lower(c.Pair, known) || c.Pair == known {
			w.raise(p)
			return
		}
		if pr.St != serving {
			return
		}
		if w.m.Split && w.m.on(Confirm) {
			// Between the beat that saw no fence and this grant the store can have gone back: the next beat
			// finds that, and only then is the number used.
			pr.PendL, pr.Pend, pr.PendG, pr.PendPair, pr.PendExcuse = c.Line, c.N, c.Grants, c.Pair, c.excuse()
			return
		}
		w.own(p, c.Line, c.N, c.Grants, c.Pair, c.excuse())
	case c.Kind == callBeat && c.Confirm && pr.PendL != none && pr.St == serving:
		l := pr.PendL
		pr.PendL = none
		w.own(p, l, pr.Pend, pr.PendG, pr.PendPair, pr.PendExcuse)
	}
}

// question lets p wait, at another primary, for all that it knows. A joiner waits on as one.
func (w *world) question(p int) {
	pr := &w.P[p]
	if !w.judge(p) {
		return
	}
	pr.Prim, pr.PendL, pr.Ready = w.S.Prim, none, false
	if pr.St == serving || !w.m.on(JoinerWaits) {
		pr.St, pr.Asked = joining, true
	}
	// The rows as this replica has them are old if it lacks the end: only beats made here from now on
	// tell that their owners found theirs.
	for x, r := range w.S.Rows {
		pr.WaitCount[x] = r.Count
	}
	pr.Excused = false
	w.begin(p)
}
