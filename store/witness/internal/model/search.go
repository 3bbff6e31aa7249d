package model

import (
	"hash/maphash"
	"math/rand/v2"
	"strconv"
	"strings"
)

// A Budget says how often the steps that have one may happen.
type Budget [nBudgets]uint8

// Budgets reads "beat=4,grant=2".
func Budgets(text string) (b Budget) {
	for part := range strings.SplitSeq(text, ",") {
		name, value, _ := strings.Cut(part, "=")
		for i, n := range budgetNames {
			if n == name {
				v, _ := strconv.ParseUint(value, 10, 8)
				b[i] = uint8(v)
			}
		}
	}
	return b
}

// A Trace is a way to a state, and what is wrong there.
type Trace struct {
	Steps []Step
	Bad   string
}

func (t Trace) String() string {
	var b strings.Builder
	for _, st := range t.Steps {
		b.WriteString("\n  " + st.String())
	}
	return b.String() + "\n  => " + t.Bad
}

// A Result is what a search found.
type Result struct {
	States, Steps, Walks, Judged int
	Complete                     bool
	Found                        *Trace
	Count                        int // walks that found something
}

// possible reports whether a step has budget left.
func possible(s *State, st Step) bool {
	b := ops[st.Op].budget
	return b < 0 || s.B[b] > 0
}

// Search goes through all states that the budget allows, breadth first, so that
// the first trace found is a shortest one.
func (m *Model) Search(s State, b Budget, most int, live bool) Result {
	s.B = b
	seed := maphash.MakeSeed()
	type node struct {
		parent int32
		step   Step
	}
	nodes := []node{{parent: -1}}
	// States are remembered by 64 bits instead of 1.5 kB: among three million, two that look the same,
	// of which one would be left out, have a chance of one in four million.
	seen := map[uint64]struct{}{maphash.Comparable(seed, s): {}}
	level, ids := []State{s}, []int32{0}
	var r Result
	trace := func(id int32, last *Step, bad string) *Trace {
		var t Trace
		if last != nil {
			t.Steps = append(t.Steps, *last)
		}
		for ; id > 0; id = nodes[id].parent {
			t.Steps = append(t.Steps, nodes[id].step)
		}
		for i, j := 0, len(t.Steps)-1; i < j; i, j = i+1, j-1 {
			t.Steps[i], t.Steps[j] = t.Steps[j], t.Steps[i]
		}
		t.Bad = bad
		return &t
	}
	for len(level) > 0 {
		var next []State
		var nextIDs []int32
		for i := range level {
			for _, st := range all {
				if !possible(&level[i], st) {
					continue
				}
				n := level[i]
				ok, bad := m.Apply(&n, st)
				if !ok {
					continue
				}
				r.Steps++
				if bad != "" {
					r.Found, r.States = trace(ids[i], &st, bad), len(seen)
					return r
				}
				h := maphash.Comparable(seed, n)
				if _, old := seen[h]; old {
					continue
				}
				seen[h] = struct{}{}
				nodes = append(nodes, node{ids[i], st})
				id := int32(len(nodes) - 1)
				if live && m.Judgeable(&n) {
					r.Judged++
					if bad := m.Fair(n); bad != "" {
						r.Found, r.States = trace(id, nil, bad), len(seen)
						return r
					}
				}
				next, nextIDs = append(next, n), append(nextIDs, id)
			}
			level[i] = State{}
			if len(seen) > most {
				r.States = len(seen)
				return r
			}
		}
		level, ids = next, nextIDs
	}
	r.States, r.Complete = len(seen), true
	return r
}

// replay runs steps from s and leaves out those that are impossible.
func (m *Model) replay(s State, steps []Step) (got []Step, bad string, end State) {
	for _, st := range steps {
		n := s
		if !possible(&n, st) {
			continue
		}
		ok, bad := m.Apply(&n, st)
		if !ok {
			continue
		}
		got = append(got, st)
		if bad != "" {
			return got, bad, n
		}
		s = n
	}
	return got, "", s
}

// wrong runs steps and reports what is wrong on the way or at the end.
func (m *Model) wrong(s State, steps []Step, live bool) ([]Step, string) {
	got, bad, end := m.replay(s, steps)
	if bad == "" && live && m.Judgeable(&end) {
		bad = m.Fair(end)
	}
	return got, bad
}

// Walk takes n random walks, each with a part of the budget, judges availability
// on the way, and shrinks what it finds.
func (m *Model) Walk(root State, b Budget, n int, seed uint64, depth int, stop func() bool) Result {
	rng := rand.New(rand.NewPCG(seed, 7))
	var r Result
	steps := make([]Step, len(all))
	for ; r.Walks < n && !stop(); r.Walks++ {
		s := root
		for i := range b {
			s.B[i] = uint8(rng.IntN(int(b[i]) + 1))
		}
		// Without these nothing is found, or healed: every walk has all of them, and some of the troubles.
		s.B[bBeat], s.B[bGrant], s.B[bAsk] = b[bBeat], b[bGrant], b[bAsk]
		start := s
		var path []Step
		for range depth {
			copy(steps, all)
			moved, bad := false, ""
			for k := len(steps); k > 0 && !moved; k-- {
				i := rng.IntN(k)
				st := steps[i]
				steps[i] = steps[k-1]
				// Drawn without repetition: a walk ends where nothing at all is possible, not by bad luck.
				if !possible(&s, st) {
					continue
				}
				nx := s
				ok, b := m.Apply(&nx, st)
				if !ok || b == "" && nx == s {
					continue
				}
				s, moved, bad = nx, true, b
				path = append(path, st)
			}
			if !moved {
				break
			}
			r.Steps++
			if bad == "" && r.Steps%4 == 0 && m.Judgeable(&s) {
				r.Judged++
				bad = m.Fair(s)
			}
			if bad != "" {
				r.Count++
				if t := m.shrink(start, path); r.Found == nil || len(t.Steps) < len(r.Found.Steps) {
					r.Found = t
				}
				break
			}
		}
	}
	return r
}

// shrink leaves out steps as long as something is still wrong.
func (m *Model) shrink(s State, path []Step) *Trace {
	path, bad := m.wrong(s, path, true)
	for size := len(path) / 2; size > 0; {
		shorter := false
		for i := 0; i+size <= len(path); i++ {
			try := append(append([]Step{}, path[:i]...), path[i+size:]...)
			if got, b := m.wrong(s, try, true); b != "" {
				path, bad, shorter = got, b, true
				break
			}
		}
		if !shorter {
			size /= 2
		}
	}
	return &Trace{path, bad}
}
