// Package batch makes calls share trips: those that come while one is under way go together in
// the next, so that the more callers there are, the more of them a trip is for, and none waits for
// company.
//
//	         +--- there is room beside the trips under way ---+
//	         |                                                v
//	call ----+---> waits, in order of coming ---------> in a trip ---> answered
//	                  |                                       |
//	                  +--> left: in no trip                   +--> left: its answer is abandoned
//
// The trip of a lone call is made by its caller, whose context ends it. A trip of calls that have
// waited belongs to none of them: it ends early once all of them have left.
package batch

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
)

// Options tell what a trip is, and how many there may be. Trip, Most, Left and Closed are needed.
type Options[Q, A any] struct {
	// Trip makes one trip, and returns an answer to each ask; an error is that of all of them.
	// So is a panic.
	Trip func(context.Context, []Q) ([]A, error)

	Most  int // asks in a trip
	Trips int // under way at a time; default 1
	Few   int // asks under way, from which on no further trip begins; at most, and by default, Most

	Key  func(Q) string // nil, or at most one trip with a given key is under way
	Once bool           // a trip has at most one ask with a given key

	// Apart is for trips that do not end with their context: a lone call, too, leaves its trip behind.
	Apart bool

	Life   context.Context   // ends all trips with it; default: nothing does
	Left   func(error) error // what a caller is told whose context has ended for this cause
	Closed error             // what callers are told after Close
}

// A Batch gathers calls. Its methods are safe for concurrent use.
type Batch[Q, A any] struct {
	opts Options[Q, A]

	mu      sync.Mutex // guards what follows; not held during a trip
	waiting []*call[Q, A]
	trips   int             // under way
	asks    int             // in them
	keys    map[string]bool // of these
	closed  bool
	idle    chan struct{} // closed once no trip is under way; nil: nobody waits for that
}

// A call is a caller of Do.
type call[Q, A any] struct {
	ask  Q
	trip *trip[Q, A]   // nil while it waits
	done chan struct{} // closed when the fields below are set; nil for a lone call

	value A
	err   error
}

// get returns the answer, which stands.
func (c *call[Q, A]) get() (A, error) {
	if p, ok := errors.AsType[*panicked](c.err); ok {
		panic(p)
	}
	return c.value, c.err
}

// A panicked is a trip's panic, which goes on in each of its callers.
type panicked struct {
	value any
	stack []byte
}

func (p *panicked) Error() string { return fmt.Sprintf("a trip panicked: %v\n\n%s", p.value, p.stack) }

type trip[Q, A any] struct {
	calls  []*call[Q, A]
	stay   int                // how many have not left
	ctx    context.Context    // nil for a lone call's
	cancel context.CancelFunc // likewise
}

// New returns a batch without calls.
func New[Q, A any](opts Options[Q, A]) *Batch[Q, A] {
	opts.Trips = max(opts.Trips, 1)
	if opts.Few = min(opts.Few, opts.Most); opts.Few <= 0 {
		opts.Few = opts.Most
	}
	if opts.Life == nil {
		opts.Life = context.Background()
	}
	return &Batch[Q, A]{opts: opts, keys: map[string]bool{}}
}

// Do makes a call. Where the context ends before its answer, the call was not made, or its outcome
// is unknown.
func (b *Batch[Q, A]) Do(ctx context.Context, ask Q) (value A, err error) {
	if ctx.Err() != nil {
		return value, b.opts.Left(context.Cause(ctx))
	}
	c := &call[Q, A]{ask: ask}
	lone, err := b.enter(c)
	if err != nil {
		return value, err
	}
	if lone != nil {
		b.alone(ctx, lone)
		return c.get()
	}
	select {
	case <-c.done:
	case <-ctx.Done():
		if b.leave(c) {
			return value, b.opts.Left(context.Cause(ctx))
		}
	}
	return c.get()
}

// Waiting returns how many calls are in no trip yet.
func (b *Batch[Q, A]) Waiting() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.waiting)
}

// Close refuses all that waits and comes, and returns once no trip is under way.
func (b *Batch[Q, A]) Close() {
	b.mu.Lock()
	b.closed = true
	for _, c := range b.waiting {
		c.err = b.opts.Closed
		close(c.done)
	}
	b.waiting = nil
	if b.idle == nil && b.trips > 0 {
		b.idle = make(chan struct{})
	}
	idle := b.idle
	b.mu.Unlock()
	if idle != nil {
		<-idle
	}
}

// enter has a call wait, or begins a trip with it alone, which is returned where the caller is to
// make it.
func (b *Batch[Q, A]) enter(c *call[Q, A]) (lone *trip[Q, A], err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return nil, b.opts.Closed
	}
	// Where there is room for a trip, whatever waits does so for its key: nothing is overtaken.
	begins := b.trips < b.opts.Trips && b.asks < b.opts.Few && !b.isBusyLocked(c)
	if !begins || b.opts.Apart {
		c.done = make(chan struct{})
	}
	if !begins {
		b.waiting = append(b.waiting, c)
		return nil, nil
	}
	t := &trip[Q, A]{calls: []*call[Q, A]{c}}
	b.beginLocked(t)
	if b.opts.Apart {
		go b.serve(t)
		return nil, nil
	}
	return t, nil
}

func (b *Batch[Q, A]) isBusyLocked(c *call[Q, A]) bool {
	return b.opts.Key != nil && b.keys[b.opts.Key(c.ask)]
}

func (b *Batch[Q, A]) beginLocked(t *trip[Q, A]) {
	b.trips++
	b.asks += len(t.calls)
	t.stay = len(t.calls)
	if len(t.calls) > 1 || t.calls[0].done != nil {
		t.ctx, t.cancel = context.WithCancel(b.opts.Life) //nolint:gosec // called when the trip ends, or nobody stays
	}
	for _, c := range t.calls {
		c.trip = t
		if b.opts.Key != nil {
			b.keys[b.opts.Key(c.ask)] = true
		}
	}
}

// alone makes the trip of a lone call.
func (b *Batch[Q, A]) alone(ctx context.Context, t *trip[Q, A]) {
	if b.opts.Life.Done() != nil {
		life, cancel := context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(b.opts.Life, cancel)()
		ctx = life
	}
	b.makeTrip(ctx, t)
	runtime.Gosched() // callers that have come at the same moment share the next trip, even if this one had nothing to wait for
	// The calls that have come meanwhile are served elsewhere: this caller has its answer and owes
	// them nothing.
	if next := b.next(t); next != nil {
		go b.serve(next)
	}
}

// serve makes trips for as long as calls wait.
func (b *Batch[Q, A]) serve(t *trip[Q, A]) {
	for ; t != nil; t = b.next(t) {
		b.makeTrip(t.ctx, t)
		t.cancel()
		b.mustBeHeard(t)
		for _, c := range t.calls {
			close(c.done)
		}
		runtime.Gosched() // callers answered just now may ask again, and then share the next trip
	}
}

// makeTrip makes a trip, and notes the answers of its calls.
func (b *Batch[Q, A]) makeTrip(ctx context.Context, t *trip[Q, A]) {
	asks := make([]Q, len(t.calls))
	for i, c := range t.calls {
		asks[i] = c.ask
	}
	values, err := b.try(ctx, asks)
	for i, c := range t.calls {
		if c.err = err; err == nil {
			c.value = values[i]
		}
	}
}

// try returns a panic as an error, so that it reaches all callers of the trip.
func (b *Batch[Q, A]) try(ctx context.Context, asks []Q) (values []A, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = &panicked{p, debug.Stack()}
		}
	}()
	values, err = b.opts.Trip(ctx, asks)
	if err == nil && len(values) != len(asks) {
		panic(fmt.Sprintf("%d answers to %d asks", len(values), len(asks)))
	}
	return values, err
}

// mustBeHeard goes on with a panic whose callers have all left: it is a defect, which nobody
// would hear of.
func (b *Batch[Q, A]) mustBeHeard(t *trip[Q, A]) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if p, ok := errors.AsType[*panicked](t.calls[0].err); ok && t.stay == 0 {
		panic(p)
	}
}

// leave takes a caller away, unless it was answered at the same moment.
func (b *Batch[Q, A]) leave(c *call[Q, A]) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	select {
	case <-c.done:
		return false
	default:
	}
	if c.trip == nil {
		b.waiting = slices.DeleteFunc(b.waiting, func(w *call[Q, A]) bool { return w == c })
		return true
	}
	if c.trip.stay--; c.trip.stay == 0 {
		c.trip.cancel()
	}
	return true
}

// next ends a trip, and begins the next one of the calls that wait.
func (b *Batch[Q, A]) next(over *trip[Q, A]) *trip[Q, A] {
	b.mu.Lock()
	defer b.mu.Unlock()
	// The end of a trip and the beginning of the next are one: no call can come in between and
	// overtake those that wait.
	b.trips--
	b.asks -= len(over.calls)
	for _, c := range over.calls {
		if b.opts.Key != nil {
			delete(b.keys, b.opts.Key(c.ask))
		}
	}
	t := &trip[Q, A]{}
	if b.asks < b.opts.Few { // else the end of another trip begins the next
		t.calls = b.takeLocked()
	}
	if len(t.calls) > 0 {
		b.beginLocked(t)
		return t
	}
	if b.idle != nil && b.trips == 0 {
		close(b.idle)
	}
	return nil
}

// takeLocked takes the calls of the next trip from those that wait.
func (b *Batch[Q, A]) takeLocked() (some []*call[Q, A]) {
	if b.opts.Key == nil {
		n := min(len(b.waiting), b.opts.Most)
		some = slices.Clone(b.waiting[:n])
		b.waiting = slices.Delete(b.waiting, 0, n)
		return some
	}
	named := map[string]bool{}
	var rest []*call[Q, A]
	for _, c := range b.waiting {
		key := b.opts.Key(c.ask)
		if len(some) == b.opts.Most || b.keys[key] || b.opts.Once && named[key] {
			rest = append(rest, c)
			continue
		}
		named[key] = true
		some = append(some, c)
	}
	b.waiting = rest
	return some
}
