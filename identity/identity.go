// Package identity tells an instance which worker IDs of its pool it may use.
//
// Most instances take any that is free, and the store sees to it that no two
// have the same: that is Pool. The other providers are for those whose worker ID
// is settled elsewhere, by an operator, an orchestrator or the order of starts.
// None of them is trusted: whatever a provider says, a worker ID is used only
// under a lease of the store, so that two instances which are told the same
// number wait for each other instead of issuing the same numbers.
//
// A provider that finds nothing fails. It never falls back to worker 0.
package identity

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hapax-id/hapax"
)

// A Request asks a provider for worker IDs.
type Request struct {
	Pool  string
	IDs   hapax.WorkerRange  // the worker IDs that may be used, [Lo, Hi)
	Store hapax.SegmentStore // counts starts; only Disposable needs it
}

// A Choice is which worker IDs an instance may use.
type Choice struct {
	IDs   hapax.WorkerRange // [Lo, Hi)
	Among []int64           // if not empty, only these, ascending

	// Counted is true if every start uses up a worker ID for good. Left is how
	// many more starts there can be.
	Counted bool
	Left    int64
}

// FixedGrant is the grant of an instance that has one worker ID, unless its options
// have another. With one worker ID the grant is a trade: it is extended in time for an
// outage of the store of a quarter of a grant at least to be ridden out, wherever it
// falls; and a start after a crash waits until the grant is over, so for a whole one
// at most.
const FixedGrant = 20 * time.Second

// OutageShare is the part of a grant that an outage of the store may last at least.
const OutageShare = 4

// Apply puts the choice into the options of an issuer. A worker ID that no later
// start will use may be lost in a crash, so its grants are as long as a pool's; the
// only one of an instance is granted for [FixedGrant] at a time.
func (c Choice) Apply(o *hapax.SnowflakeOptions) {
	o.Workers, o.Among = c.IDs, c.Among
	switch {
	case o.Grant != 0 || o.MaxGrant != 0:
	case c.Counted:
		o.Grant, o.MaxGrant = hapax.DefaultGrant, hapax.DefaultMaxGrant
	case c.IsFixed():
		grant := FixedGrant
		if !o.Layout.IsZero() {
			grant = max(grant, 4*o.Layout.Unit())
		}
		o.Grant, o.MaxGrant = grant, grant
	}
}

// IsFixed reports whether there is one worker ID to choose from, which a later start
// will have to use again.
func (c Choice) IsFixed() bool { return !c.Counted && (c.IDs.Len() == 1 || len(c.Among) == 1) }

// A Provider knows which worker IDs this instance may use.
type Provider interface {
	// Choose returns worker IDs within the request's. It is asked once a start.
	// Errors are a *hapax.ValueError for the field "identity", or the store's.
	Choose(ctx context.Context, r Request) (Choice, error)
}

// Pool leaves the choice to the store: any worker ID of the pool that is free.
type Pool struct{}

// Choose implements [Provider].
func (Pool) Choose(_ context.Context, r Request) (Choice, error) { return Choice{IDs: r.IDs}, nil }

// Fixed is one worker ID, the same at every start.
type Fixed int64

// Choose implements [Provider].
func (f Fixed) Choose(_ context.Context, r Request) (Choice, error) {
	return r.one(fmt.Sprintf("fixed:%d", int64(f)), int64(f))
}

// List is a list of worker IDs to roll along: the instance keeps to one while it
// can, and goes on with another when that one's granted time is not over, as
// after a crash.
type List []int64

// Choose implements [Provider].
func (l List) Choose(_ context.Context, r Request) (Choice, error) {
	ids := slices.Compact(slices.Sorted(slices.Values(l)))
	if len(ids) == 0 {
		return Choice{}, r.refused("list:", "the list is empty")
	}
	for _, id := range ids {
		if _, err := r.one(fmt.Sprintf("list:%d", id), id); err != nil {
			return Choice{}, err
		}
	}
	return Choice{IDs: hapax.WorkerRange{Lo: ids[0], Hi: ids[len(ids)-1] + 1}, Among: ids}, nil
}

// one returns the choice of one worker ID, if it may be used.
func (r Request) one(provider string, id int64) (Choice, error) {
	if id < r.IDs.Lo || id >= r.IDs.Hi {
		return Choice{}, r.refused(provider, fmt.Sprintf("worker ID %d is outside", id))
	}
	return Choice{IDs: hapax.WorkerRange{Lo: id, Hi: id + 1}}, nil
}

// refused is the error of a provider that has no worker ID to offer.
func (r Request) refused(provider, reason string) error {
	return &hapax.ValueError{
		Field: "identity", Value: provider,
		Allowed: fmt.Sprintf("what leads to a worker ID from %d to %d: %s", r.IDs.Lo, r.IDs.Hi-1, reason),
		Err:     hapax.ErrInvalidArgument,
	}
}

// startsTag begins the name of the tag that counts a pool's starts.
const startsTag = "hapax/starts/"

// Disposable gives every start a worker ID of its own, which no later start ever
// gets: there is no slot to recycle and nothing to wait for, and in the end no
// worker ID is left. A segment tag, "hapax/starts/" and the pool's name, counts
// the starts.
type Disposable struct{}

// Choose implements [Provider]. hapax.ErrLineExhausted when every worker ID is used up.
func (Disposable) Choose(ctx context.Context, r Request) (Choice, error) {
	if r.Store == nil {
		return Choice{}, r.refused("disposable", "there is no store to count the starts")
	}
	tag := startsTag + r.Pool
	if err := hapax.ValidateName("tag", tag); err != nil {
		return Choice{}, r.refused("disposable", fmt.Sprintf("the pool's name is longer than %d bytes", hapax.MaxTagBytes-len(startsTag)))
	}
	start, err := count(ctx, r.Store, tag)
	if err != nil {
		return Choice{}, err
	}
	left := r.IDs.Len() - start
	if left < 0 {
		return Choice{}, fmt.Errorf("%w: pool %q: its %d worker IDs are used up, one by each start, and this was start %d; use another pool, with more bits for the worker or an identity that recycles",
			hapax.ErrLineExhausted, r.Pool, r.IDs.Len(), start)
	}
	id := r.IDs.Lo + start - 1
	return Choice{IDs: hapax.WorkerRange{Lo: id, Hi: id + 1}, Counted: true, Left: left}, nil
}

// count takes the next number of a tag, from 1, which is created at first use.
func count(ctx context.Context, store hapax.SegmentStore, name string) (int64, error) {
	tag, err := hapax.Tag{Name: name, Step: 1, MaxStep: 1}.WithDefaults()
	if err != nil {
		return 0, err
	}
	// A lost answer uses up a worker ID: no two starts ever have the same.
	a, err := hapax.Allocate(ctx, store, hapax.AllocateRequest{Tag: name, N: 1, Create: &tag})
	return a.Grant.Lo, err
}

// Forms lists what Parse reads.
const Forms = "pool, fixed:ID, env:VARIABLE, statefulset, statefulset:BASE, address:IP,IP, list:ID,ID or disposable"

// Parse reads a provider as settings spell it. Errors are a *hapax.ValueError for
// the field "identity".
func Parse(text string) (Provider, error) {
	kind, value, given := strings.Cut(text, ":")
	var p Provider
	var err error
	switch {
	case kind == "pool" && !given:
		return Pool{}, nil
	case kind == "disposable" && !given:
		return Disposable{}, nil
	case kind == "statefulset" && !given:
		return StatefulSet{}, nil
	case kind == "statefulset":
		var base int64
		base, err = parseID(value)
		p = StatefulSet{Base: base}
	case kind == "fixed":
		var id int64
		id, err = parseID(value)
		p = Fixed(id)
	case kind == "env" && value != "":
		return Env(value), nil
	case kind == "address":
		p, err = parseAddresses(value)
	case kind == "list":
		p, err = parseList(value)
	default:
		err = fmt.Errorf("there is no such identity")
	}
	if err != nil {
		return nil, &hapax.ValueError{Field: "identity", Value: text, Allowed: Forms, Err: hapax.ErrInvalidArgument}
	}
	return p, nil
}
