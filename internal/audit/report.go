package audit

import (
	"cmp"
	"slices"
	"time"

	"github.com/hapax-id/hapax"
)

// A Report is what an audit found. Lists are bounded by Options.Show; the counts
// are exact.
type Report struct {
	Numbers    int64         `json:"numbers"` // read, repetitions included
	Distinct   int64         `json:"distinct"`
	Min        *hapax.ID     `json:"min,omitempty"` // nil if there are no numbers
	Max        *hapax.ID     `json:"max,omitempty"`
	Duplicates Findings      `json:"duplicates"`
	Invalid    Invalid       `json:"invalid"`
	Unreadable []Unreadable  `json:"unreadable"`
	Misfits    *Findings     `json:"misfits,omitempty"`       // numbers that the layout cannot have; nil without one
	Outside    *Findings     `json:"outside,omitempty"`       // numbers outside every grant; nil without grants
	Nodes      []NodeCount   `json:"nodes,omitempty"`         // by the grants
	Workers    []WorkerCount `json:"workers,omitempty"`       // by the layout
	Others     int64         `json:"other_workers,omitempty"` // numbers of the workers that the bounded list lacks
	Days       []DayCount    `json:"days,omitempty"`          // by the layout, in UTC
}

// Findings are numbers that something is wrong with, the smallest first.
type Findings struct {
	Numbers int64     `json:"numbers"` // how many different ones
	Times   int64     `json:"times"`   // how often they stand in the dump
	List    []Finding `json:"list"`

	last hapax.ID // the one that was added last, if Numbers is above 0
}

// A Finding is a number that something is wrong with. Places are the first ones;
// those in standard input and pipes, which cannot be read again, are not known.
type Finding struct {
	ID     hapax.ID `json:"id"`
	Times  int64    `json:"times"`
	Places []Place  `json:"places,omitempty"`
}

// A Place is a line of a file, counted from 1; in CSV, the one that a record
// begins in.
type Place struct {
	File string `json:"file"`
	Line int64  `json:"line"`
}

// Invalid are the lines and records that hold no number.
type Invalid struct {
	Lines int64         `json:"lines"`
	List  []InvalidLine `json:"list"`
}

// An InvalidLine holds no number.
type InvalidLine struct {
	Place
	Text string `json:"text"` // its beginning
	file int
}

// Unreadable is a file that could not be read to its end.
type Unreadable struct {
	File  string `json:"file"`
	Lines int64  `json:"lines"` // that could be read, and were
	Error string `json:"error"`
}

// A NodeCount is how many numbers come from a node.
type NodeCount struct {
	Node    string `json:"node"`
	Numbers int64  `json:"numbers"`
}

// A WorkerCount is how many numbers carry a worker ID.
type WorkerCount struct {
	Worker  int64 `json:"worker"`
	Numbers int64 `json:"numbers"`
}

// A DayCount is how many numbers carry a time of a day in UTC.
type DayCount struct {
	Day     string `json:"day"` // as in 2026-01-02
	Numbers int64  `json:"numbers"`
}

// add counts a number, which is not below those before it.
func (f *Findings) add(id hapax.ID, show int) {
	f.Times++
	if f.Numbers == 0 || id != f.last {
		f.Numbers++
		f.last = id
		if len(f.List) < show {
			f.List = append(f.List, Finding{ID: id})
		}
	}
	if n := len(f.List); n > 0 && f.List[n-1].ID == id {
		f.List[n-1].Times++
	}
}

// join adds what was found among larger numbers.
func (f *Findings) join(g Findings, show int) {
	f.Numbers += g.Numbers
	f.Times += g.Times
	f.List = append(f.List, g.List[:min(len(g.List), show-len(f.List))]...)
}

// trim keeps the first lines.
func (v *Invalid) trim(show int) {
	slices.SortFunc(v.List, func(a, b InvalidLine) int {
		return cmp.Or(cmp.Compare(a.file, b.file), cmp.Compare(a.Line, b.Line))
	})
	v.List = v.List[:min(len(v.List), show)]
}

func dayText(unixDay int64) string {
	return time.Unix(unixDay*secondsPerDay, 0).UTC().Format(time.DateOnly)
}
