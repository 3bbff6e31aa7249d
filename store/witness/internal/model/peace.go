package model

// peace lets twice W pass in which nothing happens to those in reach: they beat, read where
// one of the two numbers has moved, and one reads the rows of all. It finds those who have
// ended and were not surveyed by everyone.
func (w *world) peace() bool {
	if !w.quietBefore() {
		return false
	}
	for p := range w.P {
		if w.P[p].Owes != none && w.active(p) {
			w.finish(p)
		}
	}
	for range 3 {
		w.beats()
		if p := w.reader(); p != none {
			w.read(int(p))
		}
	}
	w.beats()
	for p := range w.P {
		if w.active(p) && !w.hasSurveyedAll(p) {
			w.bad = "somebody has ended, and was not surveyed in twice W"
		}
	}
	return true
}

// quietBefore reports whether all in reach serve, and nothing is under way.
func (w *world) quietBefore() bool {
	if w.S.Fence != 0 || w.S.ID == 0 || !w.m.on(Vouch) {
		return false
	}
	for i := range w.Call {
		if w.Call[i].Kind != 0 {
			return false
		}
	}
	serves := false
	for p := range w.P {
		pr := &w.P[p]
		if !pr.up() || !pr.Conn {
			continue
		}
		if pr.St != serving || pr.Long || pr.Row == none || w.ousted(p) || w.verdict(p) != fine || pr.Prim != w.S.Prim || pr.PendL != none || pr.Ready {
			return false
		}
		serves = true
	}
	return serves
}

// beats lets everybody in reach beat, and survey where a number has moved.
func (w *world) beats() {
	for p := range w.P {
		if !w.active(p) {
			continue
		}
		pr := &w.P[p]
		w.quick(p, callBeat, 0, false)
		if pr.SeenJoins > pr.Surveyed || w.S.Changes != pr.Learnt {
			w.learnAll(p)
		}
	}
}

// reader returns who reads: the process of the lowest row that lives, or of the next one where
// that stands still.
func (w *world) reader() uint8 {
	if !w.m.on(Reader) {
		return none
	}
	for j := uint8(1); j <= w.S.Joins; j++ {
		for x := range uint8(Rows) {
			if w.JoinOf[x] != j || !w.S.Rows[x].alive() {
				continue
			}
			if p := w.living(x); p != none || !w.m.on(NextReader) {
				return p
			}
		}
	}
	return none
}

// living returns the process in reach that beats under a row.
func (w *world) living(x uint8) uint8 {
	for p := range w.P {
		if w.active(p) && w.P[p].Row == x {
			return uint8(p)
		}
	}
	return none
}

// read is what the reader does every half of W.
func (w *world) read(p int) {
	told := false
	for x := range uint8(Rows) {
		if w.S.Rows[x].alive() && w.living(x) == none {
			w.begun(p, x)
			w.beats() // of the others, between the mark and the number
			w.finish(p)
			told = true
		}
	}
	if w.hasSurveyedAll(p) {
		return
	}
	if !told && w.S.Changes == w.P[p].Learnt && w.m.on(ReaderTells) {
		w.S.Changes++
	}
	w.learnAll(p)
}

// begun is the first half of marking row x silent: the mark.
func (w *world) begun(p int, x uint8) {
	w.P[p].Owes = x
	for q := range w.P {
		if pr := &w.P[q]; pr.up() && pr.Row == x {
			pr.Long, pr.Excused = true, false
		}
	}
	// If the process ends between the two, a mark without its number is found by the next reader;
	// a number without its mark has sent everybody to read too early.
	if w.m.on(MarkFirst) {
		w.silence(p, x)
		return
	}
	w.S.Changes++
}

// finish is the second half: the number.
func (w *world) finish(p int) {
	x := w.P[p].Owes
	w.P[p].Owes = none
	if w.m.on(MarkFirst) {
		w.S.Changes++
		return
	}
	if w.S.Rows[x].alive() {
		w.silence(p, x)
	}
}

// hasSurveyedAll reports whether p knows of all who have ended that they have, and what they
// were granted, and nobody else has.
func (w *world) hasSurveyedAll(p int) bool {
	wit := &w.P[p].W
	for x, r := range w.S.Rows {
		switch {
		case r.St == absent || w.JoinOf[x] <= w.S.K:
		case r.alive() && w.living(uint8(x)) == none:
			return false
		case r.ended() && (wit.Gone&bit(uint8(x)) == 0 || wit.SeenG[x] < r.Grants) && w.P[p].Row != uint8(x):
			return false
		}
	}
	return true
}

// leave ends the process of p in good order. One of an older version does not tell it.
func (w *world) leave(p int, tells bool) bool {
	pr := &w.P[p]
	ok := w.active(p) && pr.St == serving
	if !w.m.on(NoEndFenced) {
		ok = ok || w.stopped(p) && pr.Row != none && w.S.Rows[pr.Row].alive()
	}
	if !ok || pr.PendL != none || pr.Ready {
		return false
	}
	w.contact(p)
	if w.m.on(NoEndFenced) && (!w.judge(p) || w.ousted(p)) {
		return true
	}
	// Before the witness is written: nobody uses the grants under way any more, so that the file may
	// say that it knows all of its row.
	w.dropCalls(p)
	pr.Sent++
	pr.Count = pr.Sent
	w.S.Rows[pr.Row].Count, w.S.Rows[pr.Row].Grants = pr.Count, pr.Grants
	w.end(pr.Row, left)
	if tells {
		w.S.Changes++
	}
	w.sync(p)
	pr.W.Latch, pr.W.Lost = 0, false
	w.unreachable(p)
	w.P[p] = Proc{Row: none, HoldL: none, PendL: none, Owes: none, Conn: true, Quick: true, Excused: pr.Excused, W: pr.W}
	return true
}

// maySilence reports whether p may mark row x silent: it serves, and the row's process has not
// been in reach for as long as a living one may take.
func (w *world) maySilence(p, x int) bool {
	if !w.S.Rows[x].alive() || w.P[p].Row == uint8(x) || !w.active(p) && !(w.stopped(p) && !w.m.on(NoEndFenced)) || w.active(p) && w.P[p].St != serving {
		return false
	}
	for q := range w.P {
		pr := &w.P[q]
		if pr.up() && pr.Row == uint8(x) {
			if pr.Conn && !pr.Long {
				return false
			}
			pr.Long, pr.Excused = true, false
		}
	}
	return true
}
