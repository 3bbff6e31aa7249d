package witness

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
)

// A State is how a node stands with its store.
type State string

// The states of a node.
const (
	Joining  State = "joining"  // it waits until every living node has met the store
	Serving  State = "serving"  // it is granted numbers
	Fenced   State = "fenced"   // a fence stands in the store: another node found a loss
	Refusing State = "refusing" // it found a loss itself, or another store than its own
	Leaving  State = "leaving"  // it is being closed
	Left     State = "left"
)

// An event changes how a node stands with its store.
type event string

// The events.
const (
	joined  event = "joined"  // every living node has met the store since this one joined
	lost    event = "lost"    // the node's row was ended by others
	unsure  event = "unsure"  // it was out of contact for too long, or another primary answers than before
	fenced  event = "fenced"  // a fence stands
	behind  event = "behind"  // the store lacks what was acknowledged to this node, or everything
	other   event = "other"   // the store is another one
	retired event = "retired" // the store was copied elsewhere, and is used no more
	decided event = "decided" // the fence that stood was ended by a decision; or the store is the right one again
	leave   event = "leave"   // the node is closed
	left    event = "left"    // its row says so
)

// next is the state after each event in each state. A pair that is not listed
// cannot be: a test walks them all.
var next = map[State]map[event]State{
	Joining: {
		joined: Serving, lost: Joining, unsure: Joining, fenced: Fenced, behind: Refusing, other: Refusing,
		retired: Refusing, decided: Joining, leave: Leaving, left: Joining,
	},
	Serving: {
		joined: Serving, lost: Joining, unsure: Joining, fenced: Fenced, behind: Refusing, other: Refusing,
		retired: Refusing, decided: Serving, leave: Leaving, left: Serving,
	},
	Fenced: { // nobody leaves while a fence stands: the row stays as it is
		joined: Fenced, lost: Fenced, unsure: Fenced, fenced: Fenced, behind: Refusing, other: Refusing,
		retired: Refusing, decided: Joining, leave: Left, left: Fenced,
	},
	Refusing: {
		joined: Refusing, lost: Refusing, unsure: Refusing, fenced: Refusing, behind: Refusing, other: Refusing,
		retired: Refusing, decided: Joining, leave: Left, left: Refusing,
	},
	Leaving: { // a loss found now is latched in the witness for the next start
		joined: Leaving, lost: Left, unsure: Leaving, fenced: Left, behind: Left, other: Left,
		retired: Left, decided: Leaving, leave: Leaving, left: Left,
	},
	Left: {
		joined: Left, lost: Left, unsure: Left, fenced: Left, behind: Left, other: Left,
		retired: Left, decided: Left, leave: Left, left: Left,
	},
}

// after returns the state after an event.
func (s State) after(e event) State {
	n, ok := next[s][e]
	if !ok {
		panic(fmt.Sprintf("witness: no rule for %s in state %s", e, s))
	}
	return n
}

// A Status is how a node stands with its store, for people and programs: readiness,
// metrics, commands and the log all tell it.
type Status struct {
	State   State
	Code    hapax.Code // empty while the node is serving
	Why     string     // likewise
	Command string     // for an operator; empty: nothing is needed
	Fence   *Fence     // the fence in the store, where one was seen
	Missing []Node     // nodes whose evidence the fence waits for: the first of them
	Disk    error      // why the witness cannot be written; nil: it can
	Trouble bool       // while joining: an error keeps it from it, or it takes longer than it should
	Waits   bool       // while joining: the store answers, and the others are waited for
	Split   bool       // a step of the store is several writes, each of one row by itself
	Slow    string     // how long a heartbeat takes and may take, where that is more than a third of its time; empty: less
}

// Ready reports whether the node is granted numbers.
func (s Status) Ready() bool { return s.State == Serving && s.Disk == nil }

// A Node is the row of a process in the store, or one that somebody knows.
type Node struct {
	Row     string        `json:"row"`            // its name in the store: a join number and a random text
	Name    string        `json:"name,omitempty"` // its name for operators
	Address string        `json:"address,omitempty"`
	State   string        `json:"state"`             // "serving", "joining", "left" or "silent"; "fenced" while a fence stands; "missing" where it must give evidence and has not
	Beats   int64         `json:"beats,omitempty"`   // how often it has written to the store
	Grants  int64         `json:"grants,omitempty"`  // how often it has asked for numbers, as far as is known
	Seen    time.Duration `json:"seen_ns,omitempty"` // how long ago this process saw its heartbeat advance; 0: it did not
	Self    bool          `json:"self,omitempty"`    // it is this process
}

// hasEnded reports whether the process's row says that it has ended.
func (n Node) hasEnded() bool { return n.State == "left" || n.State == "silent" }

// Short returns the process's join number and the beginning of its random text.
func (n Node) Short() string {
	number, run, _ := strings.Cut(n.Row, "-")
	number = strings.TrimLeft(number, "0")
	return strings.TrimSuffix(number+"-"+run[:min(len(run), 3)], "-")
}

// word returns the process's name in commands: its name or its row, unless a shell
// would read that as more than a word, since the writer of the row chooses both.
func (n Node) word() string {
	plain := func(r rune) bool {
		return r >= '0' && r <= '9' || r >= 'A' && r <= 'Z' || r >= 'a' && r <= 'z' || strings.ContainsRune("-_./:@%+=,", r)
	}
	for _, word := range []string{n.Name, n.Short()} {
		if word != "" && word[0] != '-' && strings.TrimFunc(word, plain) == "" {
			return word
		}
	}
	return "NODE"
}

// isNamed reports whether an operator's name for a node means this one: its name, its row, the
// beginning of that as commands print it, or its join number.
func (n Node) isNamed(name string) bool {
	name = strings.TrimSuffix(name, "…")
	number, _, _ := strings.Cut(n.Row, "-")
	short := strings.TrimLeft(number, "0")
	full := short + strings.TrimPrefix(n.Row, number)
	return name != "" && (name == n.Name || name == n.Row || name == short || strings.HasPrefix(name, short+"-") && strings.HasPrefix(full, name))
}

// String names the node for people.
func (n Node) String() string {
	text := n.Name
	if text == "" {
		text = "a node of which only the number is known"
	}
	if n.Address != "" {
		text += " at " + n.Address
	}
	return fmt.Sprintf("%s (row %s, %d grants known)", text, n.Row, n.Grants)
}

// A Fence stands in the store while nobody is granted anything.
type Fence struct {
	ID   string    `json:"id"`
	Node string    `json:"node"` // name of the node that raised it
	Row  string    `json:"row"`  // of the process that raised it
	At   time.Time `json:"at"`   // by that node's clock
	Why  string    `json:"why"`
	Code string    `json:"code"`

	// Found are the rows of all nodes that have found the store behind, with the beat
	// that was acknowledged to each.
	Found map[string]int64 `json:"found,omitempty"`

	// Stores are the identities of all stores that those nodes know: a node that knows
	// one of them has lost it, too.
	Stores []string `json:"stores,omitempty"`

	Ask     string `json:"ask,omitempty"`     // evidence counts under this word alone
	Healer  string `json:"healer,omitempty"`  // row of the process that asks
	Raised  string `json:"raised,omitempty"`  // set once every line was raised under Ask
	Turn    int    `json:"turn,omitempty"`    // grows while the process that asks lives
	Missing []Node `json:"missing,omitempty"` // nodes without evidence: the first of them
	More    int    `json:"more,omitempty"`    // and how many others

	// Closed, alone, says why nothing is granted to anybody: the rows of the store are not
	// all there. No node heals that, and no decision ends it.
	Closed string `json:"closed,omitempty"`

	// Retired, alone, says where the store was copied to. Nothing ends that.
	Retired *driver.Retirement `json:"retired,omitempty"`

	// Manual says that a node wants a person to decide; Approved that one has.
	Manual   bool `json:"manual,omitempty"`
	Approved bool `json:"approved,omitempty"`
}

// missingBytes is how many bytes of a fence's row the missing nodes take at most.
const missingBytes = driver.MaxValueBytes / 8

// lacks notes the missing nodes, and reports whether that is news.
func (f *Fence) lacks(missing []Node, manual bool) bool {
	n, size := 0, 0
	for ; n < len(missing); n++ {
		text, err := json.Marshal(missing[n])
		if err != nil {
			panic(err) // strings, numbers and truth values
		}
		if size += len(text); size > missingBytes {
			break
		}
	}
	more := len(missing) - n
	isNew := !slices.Equal(f.Missing, missing[:n]) || f.More != more || f.Manual != manual
	f.Missing, f.More, f.Manual = missing[:n], more, manual
	return isNew
}

// text describes the fence.
func (f *Fence) text() string {
	return fmt.Sprintf("node %q found at %s: %s", f.Node, f.At.UTC().Format(time.RFC3339), f.Why)
}

// States returns all states.
func States() []State { return []State{Joining, Serving, Fenced, Refusing, Leaving, Left} }
