package witness

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"

	"github.com/hapax-id/hapax"
)

// A batcher makes steps of the store of calls that name tags. At most one step with a given tag
// is under way. Calls that wait meanwhile go together: a step costs one heartbeat and one sync
// of the witness, however many calls it is made of.
//
//	         +--- its tag is in no step, and few calls are ---+
//	         |                                                v
//	call ----+---> waits, in order of coming ---------> in a step ---> answered
//	                  |                                       |
//	                  +--> left: in no step                   +--> left: its answer is abandoned
//
// A step of one call is made by its caller, whose context ends it. A step of calls that have
// waited belongs to none of them: one that leaves takes nothing from the others.
type batcher[Q, A any] struct {
	tag    func(Q) string
	merges bool            // a step may be of several calls of one tag
	most   int             // calls in a step
	few    int             // while fewer calls are in steps, another step begins
	start  func(func())    // calls a function elsewhere
	life   context.Context // of steps that belong to no caller

	// step makes a step; an error is that of all its calls.
	step func(context.Context, []Q) ([]A, error)

	mu      sync.Mutex // guards the fields below
	waiting []*turn[Q, A]
	busy    map[string]bool // tags in steps
	calls   int             // in steps
}

// A turn is a call in a batcher.
type turn[Q, A any] struct {
	ask  Q
	done chan answer[A] // has room for one
}

type answer[A any] struct {
	value A
	err   error
}

// do makes a call. Where the context ends before its answer, the call was not made, or its
// outcome is unknown.
func (b *batcher[Q, A]) do(ctx context.Context, ask Q) (value A, err error) {
	if err := context.Cause(ctx); err != nil {
		return value, fmt.Errorf("%w: %w", hapax.ErrStoreUnavailable, err)
	}
	t := &turn[Q, A]{ask, make(chan answer[A], 1)}
	if !b.enter(t) {
		return b.result(ctx, t)
	}
	// Alone it needs no goroutine, and its caller's context may end the step.
	alone := []*turn[Q, A]{t}
	b.makeStep(ctx, alone)
	// The calls that have come meanwhile are served elsewhere: this caller has its answer and owes
	// them nothing.
	if some := b.next(alone); some != nil {
		b.start(func() { b.serve(some) })
	}
	a := <-t.done
	return a.value, a.err
}

func (b *batcher[Q, A]) result(ctx context.Context, t *turn[Q, A]) (value A, err error) {
	select {
	case a := <-t.done:
		return a.value, a.err
	case <-ctx.Done():
		// A call that a step has taken is not there any more: its answer may still come, and is
		// abandoned.
		b.leave(t)
	}
	select {
	case a := <-t.done: // at the same moment: it may be used as well
		return a.value, a.err
	default:
		return value, fmt.Errorf("%w: %w", hapax.ErrStoreUnavailable, context.Cause(ctx))
	}
}

// enter has a call wait, unless it is a step at once: then every waiting call waits for its tag alone.
func (b *batcher[Q, A]) enter(t *turn[Q, A]) (begins bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.calls < b.few && !b.busy[b.tag(t.ask)] {
		b.beginLocked(t)
		return true
	}
	b.waiting = append(b.waiting, t)
	return false
}

func (b *batcher[Q, A]) beginLocked(t *turn[Q, A]) {
	if b.busy == nil {
		b.busy = map[string]bool{}
	}
	b.busy[b.tag(t.ask)] = true
	b.calls++
}

// leave takes out a call that waits.
func (b *batcher[Q, A]) leave(t *turn[Q, A]) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.waiting = slices.DeleteFunc(b.waiting, func(w *turn[Q, A]) bool { return w == t })
}

// makeStep makes a step, and answers its calls.
func (b *batcher[Q, A]) makeStep(ctx context.Context, some []*turn[Q, A]) {
	asks := make([]Q, len(some))
	for i, t := range some {
		asks[i] = t.ask
	}
	values, err := b.step(ctx, asks)
	for i, t := range some {
		a := answer[A]{err: err}
		if err == nil {
			a.value = values[i]
		}
		t.done <- a
	}
}

// serve makes steps for as long as calls wait.
func (b *batcher[Q, A]) serve(some []*turn[Q, A]) {
	for ; len(some) > 0; some = b.next(some) {
		b.makeStep(b.life, some)
		runtime.Gosched() // callers answered just now may ask again, and then share the next step
	}
}

// next ends a step, and begins the next one of the calls that wait.
func (b *batcher[Q, A]) next(over []*turn[Q, A]) (some []*turn[Q, A]) {
	b.mu.Lock()
	defer b.mu.Unlock()
	// The end of a step and the beginning of the next are one: no call can come in between and
	// overtake those that wait.
	b.calls -= len(over)
	for _, t := range over {
		delete(b.busy, b.tag(t.ask))
	}
	if b.calls >= b.few || len(b.waiting) == 0 {
		return nil // another step is under way, whose end begins the next, or nothing waits
	}
	named := map[string]bool{}
	var rest []*turn[Q, A]
	for _, t := range b.waiting {
		tag := b.tag(t.ask)
		if len(some) == b.most || b.busy[tag] || named[tag] && !b.merges {
			rest = append(rest, t)
			continue
		}
		named[tag] = true
		some = append(some, t)
	}
	for _, t := range some {
		b.beginLocked(t)
	}
	b.waiting = rest
	return some
}
