package api

import (
	"time"

	"github.com/hapax-id/hapax"
)

// A Trace is what one node knows of a number.
type Trace struct {
	Number  hapax.ID      `json:"number"`
	Node    string        `json:"node"`  // who says so
	Lines   []TraceLine   `json:"lines"` // on which the number was granted, or would have been
	More    bool          `json:"more,omitempty"`
	Ledger  TraceCoverage `json:"ledger"`
	History TraceCoverage `json:"history"`
}

// TraceCoverage is how much the records of a node tell.
type TraceCoverage struct {
	On      bool       `json:"on"`
	Since   *time.Time `json:"since,omitempty"` // the first record
	Lost    int64      `json:"lost,omitempty"`  // records that could not be written
	Damaged int64      `json:"damaged,omitempty"`
}

// A Verdict is what a trace comes to on one line.
type Verdict string

// The verdicts, the strongest first.
const (
	VerdictIssued       Verdict = "issued"        // the history has it
	VerdictGranted      Verdict = "granted"       // and what became of it is not recorded
	VerdictHandedBack   Verdict = "handed_back"   // granted here, and given back without being issued
	VerdictElsewhere    Verdict = "elsewhere"     // below the mark, and not in this ledger
	VerdictNeverGranted Verdict = "never_granted" // nor, therefore, issued
	VerdictUnknown      Verdict = "unknown"       // the store was not asked, and this ledger does not have it
)

// A TraceLine is a number as one tag's, or one worker's.
type TraceLine struct {
	Name    string         `json:"line"`             // tag/NAME, or worker/POOL/ID; SYSTEM/ before it where a foreign table grants it
	System  string         `json:"system,omitempty"` // a foreign one, whose table grants the line
	Tag     string         `json:"tag,omitempty"`
	Pool    string         `json:"pool,omitempty"`
	Worker  *int64         `json:"worker,omitempty"`
	Layout  string         `json:"layout,omitempty"`
	Time    *time.Time     `json:"time,omitempty"`      // that the number holds
	Shown   *hapax.ID      `json:"shown_for,omitempty"` // the line's own number, where a plugin shows another
	Verdict Verdict        `json:"verdict"`
	Why     string         `json:"why"`
	Grants  []TraceGrant   `json:"grants"` // in the order of the records
	Issued  []TraceHandout `json:"issued"` // oldest first
}

// A TraceGrant is a stretch of a line in which the number lies.
type TraceGrant struct {
	Lo      int64     `json:"lo,string"`
	Hi      int64     `json:"hi,string"`
	Node    string    `json:"node"`
	Time    time.Time `json:"time"`
	Key     string    `json:"key,omitempty"`           // reference of a segment's key
	Token   string    `json:"fencing_token,omitempty"` // of a worker's lease
	Holder  string    `json:"holder,omitempty"`        // of a worker's lease
	Caller  string    `json:"caller,omitempty"`        // the lessee; none: the node issues from it
	Address string    `json:"address,omitempty"`

	// Given is "back" if the number was handed back, at GivenAt, and "offered"
	// where it is not known whether the store took it.
	Given   string     `json:"given,omitempty"`
	GivenAt *time.Time `json:"given_at,omitempty"`
}

// A TraceHandout is an entry of the history.
type TraceHandout struct {
	Tag     string    `json:"tag"`
	First   hapax.ID  `json:"first"` // the run of numbers in which it lies
	Last    hapax.ID  `json:"last"`
	Caller  string    `json:"caller,omitempty"`
	Address string    `json:"address,omitempty"`
	From    time.Time `json:"from"` // issued between the two
	Until   time.Time `json:"until"`
}

// A NodeTrace is what one node of a fleet knows of a number.
type NodeTrace struct {
	Name  string
	Err   string // why it told nothing; empty: it did
	Trace Trace
}
