package model

import "fmt"

// Judgeable reports whether every possible witness is alive and in reach, or
// spoken for: whether the fleet must go on without a person.
func (m *Model) Judgeable(s *State) bool {
	up, id := 0, s.S.ID
	for p := range s.P {
		pr := &s.P[p]
		if !pr.up() {
			continue
		}
		up++
		if !pr.Conn || id != 0 && pr.W.ID != 0 && pr.W.ID != id {
			return false // some know another store than others
		}
		if s.S.ID == 0 && pr.W.ID == 0 && pr.W.Has {
			return false // is about to make a store ID of its own
		}
		id = max(id, pr.W.ID)
	}
	// Each may have to join twice more until all serve: without slots for that it is the model that ends.
	if up == 0 || s.NextRow > Rows-2*Procs {
		return false
	}
	for x := range s.NextRow {
		spoken := false
		for p := range s.P {
			pr := &s.P[p]
			if pr.up() && pr.W.Mine&bit(x) != 0 && (pr.Row == x || pr.W.Grants[x] >= s.TrueG[x] && !further(s, pr, x)) {
				spoken = true
			}
			if pr.up() && m.vouches(s, p, x) {
				spoken = true
			}
		}
		if !spoken {
			return false
		}
	}
	return true
}

// vouches reports whether p can speak for row x, of which it knows all and that
// it has ended: only one who found the loss can.
func (m *Model) vouches(s *State, p int, x uint8) bool {
	w := world{m: m, State: s}
	pr := &s.P[p]
	saw := s.S.Rows[x].ended() && !m.on(Vouch) || pr.W.Gone&bit(x) != 0
	most := max(s.TrueG[x], s.S.Rows[x].Grants, s.S.FoundG[x])
	for q := range s.P {
		most = max(most, s.P[q].W.SeenG[x])
	}
	return saw && pr.W.SeenG[x] >= most && (pr.W.Lost || w.verdict(p) == behind)
}

// further reports whether anybody knows more of row x than the witness of pr.
func further(s *State, pr *Proc, x uint8) bool {
	g := max(s.S.Rows[x].Grants, s.S.FoundG[x])
	for p := range s.P {
		g = max(g, s.P[p].W.SeenG[x])
	}
	return g > pr.W.Grants[x]
}

// rounds bounds how long a fair continuation may take until everyone serves.
const rounds = 14

// Fair runs everyone in reach, in turn, and lets time pass. The answer says who
// is still stopped, if somebody is.
func (m *Model) Fair(s State) string {
	bad, _ := m.fair(s)
	return bad
}

func (m *Model) fair(s State) (string, []Step) {
	var steps []Step
	for b := range s.B {
		s.B[b] = 0
	}
	for i := range s.Call {
		// The calls under way are lost: the processes must go on by themselves, without late answers.
		s.Call[i] = Call{}
	}
	var bad string
	do := func(o Op, p int) bool {
		if b := ops[o].budget; b >= 0 {
			s.B[b] = 1
		}
		n := s
		ok, b := m.Apply(&n, Step{o, uint8(p), 0})
		if ok {
			if n != s {
				steps = append(steps, Step{o, uint8(p), 0})
			}
			s = n
			if bad == "" && b != "" {
				bad = b
			}
		}
		if b := ops[o].budget; b >= 0 {
			s.B[b] = 0
		}
		return ok
	}
	for range rounds {
		for p := range s.P {
			if !s.P[p].up() {
				continue
			}
			do(opLook, p)
			// One healer is enough: each further word throws away the evidence given under the one before.
			if s.S.Word == 0 || !s.asker() {
				do(opAsk, p)
			}
			do(opSpeak, p)
			do(opHeal, p)
			do(opRejoin, p)
			do(opBeat, p)
			do(opSurvey, p)
			do(opBeat, p)
			do(opGoOn, p)
		}
		for p := range s.P {
			do(opWait, p)
		}
		if bad != "" {
			return bad, steps
		}
		if s.quiet() {
			break
		}
	}
	for p := range s.P {
		if s.P[p].up() && s.P[p].St != serving {
			w := world{m: m, State: &s}
			rows, joins := w.missing()
			return fmt.Sprintf("%c is stopped (state %d) though everyone who can know is there; missing rows %b, joins %v", 'A'+p, s.P[p].St, rows, joins), steps
		}
	}
	return "", steps
}

// quiet reports whether everyone serves and has seen all joins.
func (s *State) quiet() bool {
	for p := range s.P {
		if pr := &s.P[p]; pr.up() && (pr.St != serving || pr.Surveyed < s.S.Joins || pr.Long) {
			return false
		}
	}
	return true
}

// asker reports whether the healer whose word stands is there.
func (s *State) asker() bool {
	for p := range s.P {
		if s.P[p].up() && s.P[p].Conn && s.P[p].Word == s.S.Word {
			return true
		}
	}
	return false
}
