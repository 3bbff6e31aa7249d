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
	{"linearizable/swap", hasRows, checkSwapLinear},
}

// recorder collects a history of calls. Its clock only orders them.
type recorder struct {
	clock atomic.Int64
	mu    sync.Mutex // guards ops
	ops   []porcupine.Operation
}

// record adds one call that client made, with its arguments and results.
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
				a, err := h.store.Allocate(ctx, tag.Name, in.n, "")
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

// swapCall is a swap of a row's value, or, if both are empty, a read. An empty
// value stands for no row.
type swapCall struct{ old, next string }

// swapResult reports whether the swap was done, or what was read.
type swapResult struct {
	ok    bool
	value string
}

// checkSwapLinear does the same for the swaps and reads of one row. Values come
// again, and the row goes and comes back.
func checkSwapLinear(e *env) {
	var r recorder
	var clients atomic.Int64
	inParallel(e, e.handles(4), func(ctx context.Context, h roles) error {
		client := clients.Add(1)
		known := ""
		for range 20 {
			var in swapCall
			if rand.IntN(3) > 0 {
				in = swapCall{known, []string{"", "a", "b", "c"}[rand.IntN(4)]}
				if in.next == in.old {
					in.next = known + "'"
				}
			}
			if err := r.record(client, in, func() (any, error) {
				if in == (swapCall{}) {
					value, err := h.rows.Row(ctx, e.name("table"), "row")
					known = string(value)
					return swapResult{value: known}, err
				}
				ok, err := h.rows.SwapRow(ctx, e.name("table"), "row", valueOf(in.old), valueOf(in.next))
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
		Init: func() any { return "" },
		Step: func(state, input, output any) (bool, any) {
			value, in, out := state.(string), input.(swapCall), output.(swapResult)
			switch {
			case in == (swapCall{}):
				return out.value == value, value
			case out.ok:
				return in.old == value, in.next
			}
			return in.old != value, value
		},
	})
}

// valueOf returns a row's value, nil for no row.
func valueOf(s string) []byte {
	if s == "" {
		return nil
	}
	return []byte(s)
}
