package api

import (
	"time"

	"github.com/hapax-id/hapax"
)

// A WorkerState is whether a worker ID can be had, and why not.
type WorkerState string

// The states of a worker ID.
const (
	WorkerFree     WorkerState = "free"     // any instance may take it
	WorkerHeld     WorkerState = "held"     // an instance's lease on it runs
	WorkerWaiting  WorkerState = "waiting"  // no instance holds it, and its granted time is not over
	WorkerRetired  WorkerState = "retired"  // taken out of use until the clock passes its mark
	WorkerPoisoned WorkerState = "poisoned" // its mark lies more than a day ahead: a clock is or was wrong
)

// WorkerStates returns every state.
func WorkerStates() []WorkerState {
	return []WorkerState{WorkerFree, WorkerHeld, WorkerWaiting, WorkerRetired, WorkerPoisoned}
}

// A WorkerStatus is a worker ID as an operator sees it. Times are in UTC.
type WorkerStatus struct {
	Pool    string       `json:"pool"`
	ID      int64        `json:"worker"`
	State   WorkerState  `json:"state"`
	Mark    int64        `json:"mark"`              // in ticks: the next grant starts here or later
	Until   time.Time    `json:"until"`             // the time of the mark, up to which time was granted
	Token   int64        `json:"token"`             // fencing token; 0: never used
	Holder  string       `json:"holder,omitempty"`  // the instance that holds it, or held it last
	Expires time.Time    `json:"expires,omitzero"`  // the end of the lease, while one runs or may run
	Free    time.Time    `json:"free,omitzero"`     // when others may have it, unless it is extended; zero: now
	Parts   hapax.Fields `json:"parts,omitempty"`   // of the worker ID, where the pool's split is configured
	Retired bool         `json:"retired,omitempty"` // taken out of use at least once, and not used since
}
