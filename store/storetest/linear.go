package storetest

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/hapax-id/hapax"
)

var linearChecks = []check{
	{"linearizable/allocate", segments, checkAllocateLinear},
	{"linearizable/swap", table, checkSwapLinear},
}

// recorder collects a history of calls. Its clock only orders them.
type recorder struct {
	clock atomic.Int64
	mu    sync.Mutex // guards ops
	ops   []porcupine.Operation
}

// record adds one call that client made, with what it was given and returned.
func (r *recorder) record(client int64, input any, call func() (any, error)) error {
	began := r.clock.Add(1)
	output, err := call()
	if err != nil {
		return err
	}
	op := porcupine.Operation{ClientId: int(client), Input: input, Call: began, Output: output, Return: r.clock.Add(1)}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ops = append(r.ops, op)
	return nil
}

func (r *recorder) check(e *env, model porcupine.Model) {
	e.Helper()
	if result := porcupine.CheckOperationsTimeout(model, r.ops, 30*time.Second); result != porcupine.Ok {
		e.Errorf("the history of %d calls is not linearizable: %s", len(r.ops), result)
	}
}

// Calls on a tag's line: an allocation of n numbers, or, with n = 0, a read.
type (
	lineCall   struct{ n int64 }
	lineResult struct{ grant hapax.Grant }
)

// checkAllocateLinear: allocations and reads of the mark take effect one after
// the other, each between its call and its return.
func checkAllocateLinear(e *env) {
	tag := e.segment("t", 10)
	var r recorder
	var clients atomic.Int64
	inParallel(e, e.handles(4), func(ctx context.Context, h roles) error {
		client := clients.Add(1)
		for range 20 {
			in := lineCall{rand.Int64N(4)}
			if err := r.record(client, in, func() (any, error) {
				if in.n == 0 {
					t, err := h.store.Tag(ctx, tag.Name)
					return lineResult{hapax.Grant{Lo: t.Mark, Hi: t.Mark}}, err
				}
				a, err := h.store.Allocate(ctx, tag.Name, in.n)
				return lineResult{a.Grant}, err
			}); err != nil {
				return err
			}
		}
		return nil
	})
	r.check(e, porcupine.Model{
		Init: func() any { return tag.Mark },
		Step: func(state, input, output any) (bool, any) {
			mark, n := state.(int64), input.(lineCall).n
			return output.(lineResult).grant == hapax.Grant{Lo: mark, Hi: mark + n}, mark + n
		},
	})
}

// rowState is what SwapWorker compares; the zero value is no row.
type rowState struct{ epoch, mark int64 }

func stateOf(w hapax.Worker) rowState { return rowState{w.Epoch, w.Mark} }

// swapCall is a swap, or, if next is zero, a read.
type swapCall struct{ old, next rowState }

// swapResult tells whether the swap was done, or what was read.
type swapResult struct {
	ok  bool
	row rowState
}

// checkSwapLinear does the same for the swaps and reads of one row.
func checkSwapLinear(e *env) {
	var r recorder
	var clients atomic.Int64
	inParallel(e, e.handles(4), func(ctx context.Context, h roles) error {
		client := clients.Add(1)
		var known rowState
		for range 20 {
			in := swapCall{old: known}
			if rand.IntN(3) > 0 {
				in.next = rowState{known.epoch + rand.Int64N(2), known.mark + rand.Int64N(3)}
				in.next.epoch = max(1, in.next.epoch)
			}
			if err := r.record(client, in, func() (any, error) {
				if in.next == (rowState{}) {
					w, err := h.table.Worker(ctx, e.name("pool"), 1)
					known = stateOf(w)
					return swapResult{row: known}, err
				}
				ok, err := h.table.SwapWorker(ctx, e.worker(in.old), e.worker(in.next))
				if ok {
					known = in.next
				}
				return swapResult{ok: ok}, err
			}); err != nil {
				return err
			}
		}
		return nil
	})
	r.check(e, porcupine.Model{
		Init: func() any { return rowState{} },
		Step: func(state, input, output any) (bool, any) {
			row, in, out := state.(rowState), input.(swapCall), output.(swapResult)
			switch {
			case in.next == (rowState{}):
				return out.row == row, row
			case out.ok:
				return in.old == row, in.next
			}
			return in.old != row, row
		},
	})
}

// worker returns the row with the given epoch and mark.
func (e *env) worker(s rowState) hapax.Worker {
	return hapax.Worker{Pool: e.name("pool"), ID: 1, Epoch: s.epoch, Mark: s.mark, Holder: "h", Expires: now}
}
