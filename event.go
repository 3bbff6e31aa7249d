package hapax

import "time"

// EventKind names what happened.
type EventKind string

// The kinds of events, and which fields of Event they set beyond Kind, Tag or
// Pool, and Worker.
const (
	EventGrant          EventKind = "grant"            // a grant was taken: Grant, Took
	EventSwapped        EventKind = "swapped"          // issuing moved on to a grant that is not adjacent: Grant
	EventStepChanged    EventKind = "step_changed"     // the step in use changed: Value
	EventLineExhausted  EventKind = "line_exhausted"   // the line has no numbers left: Err
	EventTimeExhausted  EventKind = "time_exhausted"   // the layout's time is over: Err
	EventTimeRunningOut EventKind = "time_running_out" // the layout's time ends within a year: Until
	EventTickUsed       EventKind = "tick_used"        // the tick has no numbers left, and those of the next ones are taken ahead of the clock
	EventTickExhausted  EventKind = "tick_exhausted"   // callers wait for the clock
	EventTickResumed    EventKind = "tick_resumed"     // callers no longer wait for the clock
	EventRollback       EventKind = "rollback"         // the wall clock went back: By
	EventSuspended      EventKind = "suspended"        // the machine was asleep, and the grant is dropped: By
	EventClockSkew      EventKind = "clock_skew"       // local and store clock differ too much: By, Err
	EventWorkerAcquired EventKind = "worker_acquired"  // a worker ID was acquired: Grant
	EventWorkerLost     EventKind = "worker_lost"      // the lease was lost to somebody else: Err
	EventWorkerSealed   EventKind = "worker_sealed"    // the lease was given back: Value is the mark
	EventHandedBack     EventKind = "handed_back"      // numbers that were not issued went back to the store: Grant; Value is how many
	EventBurnt          EventKind = "burnt"            // numbers of a closed issuer can neither be issued nor go back: Grant; Value is how many; Err is why, nil or ErrLeaseLost where another was granted numbers above them
	EventTagCreated     EventKind = "tag_created"      // first use created the tag
	EventTagDeleted     EventKind = "tag_deleted"      // the tag was found deleted: Err
	EventStoreLost      EventKind = "store_lost"       // the store stopped answering: Err
	EventStoreBack      EventKind = "store_back"       // the store answers again: Took is how long it was gone
	EventRefused        EventKind = "refused"          // the store answered, but what it said cannot be trusted or used: Err
)

// An Event tells the Observer of an issuer's options what happened. That is called off the
// hot path, from several goroutines, with no lock held; it must return soon and must not
// call the issuer.
type Event struct {
	Kind   EventKind
	Tag    string // of a segment issuer
	Pool   string // of a snowflake issuer
	Worker int64
	Grant  Grant
	Value  int64
	Took   time.Duration
	By     time.Duration
	Until  time.Time
	Err    error
}
