package storetest

import (
	"context"
	"math"
	"sync/atomic"
	"time"

	"github.com/hapax-id/hapax"
)

var tableChecks = []check{
	{"table/swap", table, checkSwap},
	{"table/values", table, checkRowValues},
	{"table/freeze", table, checkFreeze},
	{"table/one swap wins", table, checkSwapRace},
}

// checkSwap: a row is written if there is none and none is expected, or if its
// epoch and mark are the expected ones; nothing else is compared.
func checkSwap(e *env) {
	base := hapax.Worker{Pool: e.name("pool"), ID: 3, Mark: 100, Epoch: 5, Holder: "a", Expires: now}
	change := func(f func(*hapax.Worker)) hapax.Worker { w := base; f(&w); return w }
	none := hapax.Worker{}
	current := none
	for _, c := range []struct {
		name      string
		old, next hapax.Worker
		want      bool
	}{
		{"expected, but there is no row", base, base, false},
		{"first", none, base, true},
		{"first again", none, change(func(w *hapax.Worker) { w.Holder = "b" }), false},
		{"another epoch", change(func(w *hapax.Worker) { w.Epoch = 4 }), change(func(w *hapax.Worker) { w.Epoch = 6 }), false},
		{"another mark", change(func(w *hapax.Worker) { w.Mark = 99 }), change(func(w *hapax.Worker) { w.Epoch = 6 }), false},
		{"without a change", base, base, true},
		{"other holder and expiry expected", hapax.Worker{Mark: 100, Epoch: 5, Holder: "z"}, change(func(w *hapax.Worker) { w.Mark = 200 }), true},
		{"seal", change(func(w *hapax.Worker) { w.Mark = 200 }), hapax.Worker{Pool: base.Pool, ID: 3, Mark: 150, Epoch: 6}, true},
		{"no row expected after a seal", none, base, false},
	} {
		ok, err := e.table.SwapWorker(e.ctx, c.old, c.next)
		e.must(err)
		equal(e, "swap: "+c.name, ok, c.want)
		if ok {
			current = c.next
		}
		got, err := e.table.Worker(e.ctx, base.Pool, base.ID)
		e.must(err)
		if got.Epoch != current.Epoch || got.Mark != current.Mark || got.Holder != current.Holder {
			e.Errorf("the row after %s is %+v; want %+v", c.name, got, current)
		}
	}
	other, err := e.table.Worker(e.ctx, base.Pool, 4)
	e.must(err)
	equal(e, "the epoch of a row that does not exist", other.Epoch, 0)
}

// checkRowValues: rows come back as they were written, to the millisecond.
func checkRowValues(e *env) {
	for i, w := range []hapax.Worker{
		{ID: 0, Mark: 0, Epoch: 1, Holder: "a", Expires: now},
		{ID: math.MaxInt64, Mark: math.MaxInt64, Epoch: math.MaxInt64, Holder: "日本", Expires: time.UnixMilli(253_402_300_799_999)},
		{ID: 1 << 53, Mark: 1<<53 + 1, Epoch: 1<<53 + 3, Holder: `'"\%`, Expires: time.UnixMilli(1)},
		{ID: 9, Mark: 7, Epoch: 2},
	} {
		w.Pool = e.name("pool")
		ok, err := e.table.SwapWorker(e.ctx, hapax.Worker{}, w)
		e.must(err)
		equal(e, "the first swap of a row", ok, true)
		got, err := e.table.Worker(e.ctx, w.Pool, w.ID)
		e.must(err)
		if !got.Expires.Equal(w.Expires) && (w.Holder != "" || got.Expires.After(time.UnixMilli(0))) {
			e.Errorf("row %d expires at %v; want %v", i, got.Expires, w.Expires)
		}
		got.Expires = w.Expires
		equal(e, "the row", got, w)
		next := w
		next.Holder = "next"
		if ok, err = e.table.SwapWorker(e.ctx, got, next); err != nil || !ok {
			e.Errorf("a swap of row %d: %v, error %v", i, ok, err)
		}
	}
	rows, err := e.table.Workers(e.ctx, e.name("pool"))
	e.must(err)
	equal(e, "the number of rows", len(rows), 4)
	equal(e, "the last row's ID", rows[len(rows)-1].ID, math.MaxInt64)
}

func checkFreeze(e *env) {
	for range 2 {
		for _, layout := range []string{"first", "second"} {
			got, err := e.table.FreezePool(e.ctx, e.name("pool"), layout)
			e.must(err)
			equal(e, "the frozen layout", got, "first")
		}
	}
}

// checkSwapRace: of swaps from the same row at the same time one succeeds.
func checkSwapRace(e *env) {
	handles := e.handles(6)
	old := hapax.Worker{Pool: e.name("pool"), ID: 1}
	for round := range int64(4) {
		var won atomic.Int64
		next := old
		next.Epoch, next.Mark = round+1, round*10
		inParallel(e, handles, func(ctx context.Context, h roles) error {
			ok, err := h.table.SwapWorker(ctx, old, next)
			if ok {
				won.Add(1)
			}
			return err
		})
		equal(e, "the number of swaps that succeeded", won.Load(), 1)
		old = next
	}
}
