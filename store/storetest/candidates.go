package storetest

import (
	"errors"
	"fmt"
	"time"

	"github.com/hapax-id/hapax"
)

// checkAmong: of a list of worker IDs each is taken once, and no other.
func checkAmong(e *env) {
	req := e.request("pool")
	req.IDs, req.Among = hapax.Grant{Lo: 1, Hi: 100}, []int64{3, 7, 99}
	seen := map[int64]bool{}
	for i := range 3 {
		seen[e.acquire(at(req, fmt.Sprint("holder ", i), 0)).Worker] = true
	}
	equal(e, "the workers taken", fmt.Sprint(seen), "map[3:true 7:true 99:true]")
	_, err := e.workers.AcquireWorker(e.ctx, at(req, "x", 0))
	if no, ok := errors.AsType[*hapax.NoWorkerError](err); !ok || no.Size != 3 {
		e.Errorf("a list in use: error is %+v; want a NoWorkerError of size 3", err)
	}
	equal(e, "the worker of one that comes back", e.acquire(at(req, "holder 1", 200)).Worker, 7)
}

// checkRetire: a retired worker has no holder, and keeps its mark and what was
// granted; it is free when the clock has passed the mark, and not before.
func checkRetire(e *env) {
	req := e.request("pool")
	req.IDs = hapax.Grant{Lo: 1, Hi: 2}
	store := e.handle.(hapax.WorkerStore)
	_, err := hapax.RetireWorker(e.ctx, store, req.Pool, 1)
	e.wantErr("retiring a worker that was never used", err, hapax.ErrInvalidArgument)

	lease := e.extend(e.acquire(at(req, "a", 0)), 1_000_000)
	retired, err := hapax.RetireWorker(e.ctx, store, req.Pool, 1)
	e.must(err)
	row := e.row(lease)
	if row.Mark != 1_000_000 || row.Epoch <= lease.Epoch || !row.Retired() || row.Expires.After(now) || retired.Epoch != row.Epoch || retired.Mark != row.Mark {
		e.Errorf("the worker is %+v, returned was %+v; want the mark of %+v, a higher epoch, no holder and no lease", row, retired, lease)
	}
	_, err = e.workers.ExtendWorker(e.ctx, lease, e.extension(2_000_000))
	e.wantLost("extend after the worker was retired", err, row)
	e.wantLost("seal after the worker was retired", e.workers.SealWorker(e.ctx, lease, 1050), row)

	req.Poison = 500_000
	_, err = e.workers.AcquireWorker(e.ctx, at(req, "b", 100_000))
	no, ok := errors.AsType[*hapax.NoWorkerError](err)
	if want := now.Add((1_000_000 - 1000) * time.Millisecond); !ok || !no.NextFree.Equal(want) {
		e.Errorf("before the mark: error is %+v; want a NoWorkerError until %v", err, want)
	}
	req.Poison = 1 << 39
	equal(e, "the first tick after the mark", e.acquire(at(req, "b", 999_000)).Grant.Lo, 1_000_000)
}
