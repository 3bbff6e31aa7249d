package witness

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
)

var (
	states = States()
	events = []event{joined, lost, unsure, fenced, behind, other, retired, decided, leave, left}

	// transitions are the states after each event, in the order above, by their first letters.
	transitions = map[State]string{
		Joining:  "S J J F R R R J L J",
		Serving:  "S J J F R R R S L S",
		Fenced:   "F F F F R R R J X F",
		Refusing: "R R R R R R R J X R",
		Leaving:  "L X L X X X X L L X",
		Left:     "X X X X X X X X X X",
	}
	letters = map[byte]State{'J': Joining, 'S': Serving, 'F': Fenced, 'R': Refusing, 'L': Leaving, 'X': Left}
)

// Every pair of state and event happens to a guard: it goes where it should, and what it
// grants, tells, remembers and keeps of its row is that of the state that it is in then.
func TestEachEventInEachState(t *testing.T) {
	ways := map[State][]event{Joining: {}, Serving: {joined}, Fenced: {fenced}, Refusing: {behind}, Leaving: {joined, leave}, Left: {leave, left}}
	causes := map[event]error{
		lost: hapax.ErrStoreUnavailable, unsure: hapax.ErrStoreUnavailable, fenced: hapax.ErrFenced,
		behind: hapax.ErrStoreRolledBack, other: fmt.Errorf("%w (%w)", hapax.ErrStoreReplaced, errOther),
		retired: driver.Retirement{Copy: "C", Store: "S", To: "redis://there"}.Err(),
	}
	dir := t.TempDir()
	for _, from := range states {
		for i, e := range events {
			t.Run(string(from)+"/"+string(e), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w, err := OpenFile(filepath.Join(dir, string(from)+string(e)))
					if err != nil {
						t.Fatal(err)
					}
					defer w.Close()
					told := State("")
					opts, err := Options{Changed: func(st Status) { told = st.State }}.withDefaults()
					if err != nil {
						t.Fatal(err)
					}
					g := &Guarded{opts: opts, witness: w, kick: make(chan struct{}, 1), state: Joining, changed: make(chan struct{}), peers: map[string]*sighting{}}
					g.me = member{row: "1-run", number: 1, beat: driver.Beat{Count: 7}, acked: driver.Beat{Count: 7}}
					for _, e := range ways[from] {
						g.apply(e, causes[e], nil)
					}
					before := w.latch().State
					told = ""
					changed := g.changed

					isNew := g.apply(e, causes[e], nil)

					to := letters[transitions[from][2*i]]
					if g.state != to || isNew != (from != to) {
						t.Fatalf("it is %s, and said that this is news: %v; want %s", g.state, isNew, to)
					}
					select {
					case <-changed:
						if !isNew {
							t.Error("who waits was woken for nothing")
						}
					default:
						if isNew {
							t.Error("who waits was not woken")
						}
					}
					if isNew && told != to {
						t.Errorf("it told %q; want %s", told, to)
					}
					if st := g.Status(); st.State != to || st.Ready() != (to == Serving) {
						t.Errorf("the status is %+v", st)
					}
					checkServing(t, g, to)
					latched := before
					switch {
					case e == behind, e == retired:
						latched = Refusing
					case e == fenced && before == "":
						latched = Fenced
					}
					if got := w.latch().State; got != latched {
						t.Errorf("the witness holds %q against grants; want %q", got, latched)
					}
					if kept := g.me.row != ""; kept == (to == Joining && (e == lost || e == decided)) {
						t.Errorf("it kept its row: %v", kept)
					}
				})
			})
		}
	}
}

// checkServing has somebody ask whether the guard grants.
func checkServing(t *testing.T, g *Guarded, in State) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	want := map[State]error{Joining: hapax.ErrStoreUnavailable, Fenced: hapax.ErrFenced, Refusing: hapax.ErrFenced, Leaving: hapax.ErrClosed, Left: hapax.ErrClosed}[in]
	if err := g.serving(ctx); !errors.Is(err, want) {
		t.Errorf("whoever asks is told %v; want %v", err, want)
	}
}

// Every pair of state and event has a rule, and the rules keep what the guard promises.
func TestStates(t *testing.T) {
	if len(next) != len(states) {
		t.Errorf("the table has %d states; want %d", len(next), len(states))
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
		if got != transitions[s] {
			t.Errorf("state %s goes to %s; want %s", s, got, transitions[s])
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

// Whoever writes a row chooses its name: a command that an operator copies has none that a
// shell would read as more than a word.
func TestWords(t *testing.T) {
	for name, want := range map[string]string{
		"db-1:/var/lib/hapax": "db-1:/var/lib/hapax", "": "12-ABC", "--floor": "12-ABC", "a b": "12-ABC", "$(reboot)": "12-ABC", "x;reboot": "12-ABC", "é": "12-ABC", "a\nb": "12-ABC",
	} {
		if got := (Node{Name: name, Row: "0000000000000000012-ABCDEF"}).word(); got != want {
			t.Errorf("%q is called %q, want %q", name, got, want)
		}
	}
	if got := (Node{Name: "`x`", Row: "$(reboot)"}).word(); got != "NODE" {
		t.Errorf("a row that is no word is called %q", got)
	}
}
