package api

import "time"

// A Statement is what an operator says about processes that can know what was granted, and are
// missing while a fence stands.
type Statement struct {
	DryRun  bool          `json:"dry_run,omitempty"` // only say what would be done; accepts exactly what would be accepted
	Floor   int64         `json:"floor,omitempty"`   // above all that they can have used; not accepted below a mark that is known
	Ahead   time.Duration `json:"ahead,omitempty"`   // how far past now the timelines of worker IDs are raised, with a floor; 0: as far as a grant reaches
	Witness [][]byte      `json:"witness,omitempty"` // what witness files say whose nodes do not run
}

// An Adoption is what an operator's word about missing processes found and did.
type Adoption struct {
	StoreID  string   `json:"store"`
	Other    string   `json:"other,omitempty"` // the store that the node knows, where it is another one
	Fence    *Fence   `json:"fence,omitempty"` // the fence that stood; nil: nothing was wrong
	Spoke    int      `json:"spoke"`           // how many processes have said what they used
	Missing  []Node   `json:"missing,omitempty"`
	Stated   []Node   `json:"stated,omitempty"`         // nodes whose use was stated for them
	Raised   []Raised `json:"raised,omitempty"`         // marks that are raised, or would be
	Proposed int64    `json:"proposed_floor,omitempty"` // the lowest floor that is proposed
}

// A ForeignAdoption is what an operator's word about the rows of a foreign table found and
// did.
type ForeignAdoption struct {
	Why     []string `json:"why,omitempty"`     // why rows are refused
	Raised  []Raised `json:"raised,omitempty"`  // the rows that are raised, or would be
	Skipped []string `json:"skipped,omitempty"` // why a row was left as it is: it is not valid, and nothing is granted from it
}

// Raised is a mark that was raised, or would be.
type Raised struct {
	Tag    string `json:"tag,omitempty"` // of a tag
	Pool   string `json:"pool,omitempty"`
	Worker *int64 `json:"worker,omitempty"` // of a pool
	From   int64  `json:"from,string"`
	To     int64  `json:"to,string"`
}
