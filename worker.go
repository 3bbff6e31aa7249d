package hapax

import "time"

// A Lease is a worker ID held under a fencing token, with its current grant.
type Lease struct {
	Pool   string
	Worker int64
	Token  int64
	Key    GrantKey // proves to the store that the caller holds the lease
	Holder string
	Grant  Grant // the latest grant, in ticks since the layout's epoch
	From   int64 // where the lease began: no seal goes below

	// Expires is when others may have the worker ID; precision 1 ms.
	Expires time.Time
}

// A WorkerRange is the worker IDs from Lo up to, and without, Hi.
type WorkerRange struct{ Lo, Hi int64 }

// Len returns how many worker IDs the range holds.
func (r WorkerRange) Len() int64 { return r.Hi - r.Lo }

// Contains reports whether a worker ID lies in the range.
func (r WorkerRange) Contains(id int64) bool { return id >= r.Lo && id < r.Hi }

// An AcquireRequest says what worker is wanted, and for how long.
type AcquireRequest struct {
	Pool    string
	Layout  Layout      // frozen at the pool's first use
	Workers WorkerRange // the worker IDs that may be used
	Among   []int64     // if not empty, only these within Workers may be used; ascending
	Holder  string      // identity of the instance, 1 to 128 bytes
	Term    Term
}

// A Term is the time that a grant on a worker's timeline is for.
type Term struct {
	Now    time.Time     // the issuer's clock
	Length time.Duration // how long past Now the grant should reach
	Ahead  time.Duration // how far past Now the mark of a free worker may lie
	Behind time.Duration // how far before Now the grant may begin
	TTL    time.Duration // how long past Now nobody else may have the worker ID
}
