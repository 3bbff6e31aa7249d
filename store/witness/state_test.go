package witness

import "testing"

// Every pair of state and event has a rule, and the rules keep what the guard promises.
func TestStates(t *testing.T) {
	states := []State{Joining, Serving, Fenced, Refusing, Leaving, Left}
	events := []event{joined, lost, unsure, fenced, behind, other, decided, leave, left}
	if len(next) != len(states) {
		t.Errorf("the table has %d states; want %d", len(next), len(states))
	}
	want := map[State]string{ // the states after each event, in the order above, by their first letters
		Joining:  "S J J F R R J L J",
		Serving:  "S J J F R R S L S",
		Fenced:   "F F F F R R J X F",
		Refusing: "R R R R R R J X R",
		Leaving:  "L X L X X X L L X",
		Left:     "X X X X X X X X X",
	}
	letter := map[State]string{Joining: "J", Serving: "S", Fenced: "F", Refusing: "R", Leaving: "L", Left: "X"}
	for _, s := range states {
		if len(next[s]) != len(events) {
			t.Errorf("state %s has rules for %d events; want %d", s, len(next[s]), len(events))
		}
		got := ""
		for i, e := range events {
			if i > 0 {
				got += " "
			}
			got += letter[s.after(e)]
		}
		if got != want[s] {
			t.Errorf("state %s goes to %s; want %s", s, got, want[s])
		}
	}
	for _, s := range states {
		for _, e := range events {
			to := s.after(e)
			if to == Serving && s != Serving && (s != Joining || e != joined) {
				t.Errorf("%s serves after %s: only who has joined may", s, e)
			}
			if (s == Fenced || s == Refusing) && to != Fenced && to != Refusing && e != decided && e != leave {
				t.Errorf("%s ends with %s: only a decision ends it", s, e)
			}
		}
	}
}
