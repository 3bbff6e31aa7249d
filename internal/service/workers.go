package service

import (
	"context"
	"fmt"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/api"
	"github.com/hapax-id/hapax/store/driver"
)

// workers are the worker IDs of pools, as an operator sees them.
type workers struct {
	*core
	*layouts
}

// WorkerStatuses returns the worker IDs of a pool that were ever used.
// ErrPoolNotFound if the pool is not configured and was never used.
func (ws *workers) WorkerStatuses(ctx context.Context, pool string) ([]api.WorkerStatus, error) {
	layout, err := ws.knownPool(ctx, pool)
	if err != nil {
		return nil, err
	}
	workers, err := ws.Workers(ctx, pool)
	if err != nil {
		return nil, err
	}
	statuses := make([]api.WorkerStatus, len(workers))
	for i, w := range workers {
		statuses[i] = ws.status(layout, w)
	}
	return statuses, nil
}

// WorkerStatus returns one worker ID of a pool, which need not have been used.
// ErrInvalidArgument for one that the pool cannot have, ErrPoolNotFound as from
// WorkerStatuses.
func (ws *workers) WorkerStatus(ctx context.Context, pool string, id int64) (api.WorkerStatus, error) {
	layout, err := ws.knownPool(ctx, pool)
	if err != nil {
		return api.WorkerStatus{}, err
	}
	if err := workerIn(layout, id); err != nil {
		return api.WorkerStatus{}, err
	}
	workers, err := ws.Workers(ctx, pool)
	if err != nil {
		return api.WorkerStatus{}, err
	}
	for _, w := range workers {
		if w.ID == id {
			return ws.status(layout, w), nil
		}
	}
	return ws.status(layout, driver.Worker{Pool: pool, ID: id}), nil
}

// workerIn refuses a worker ID that a layout does not have.
func workerIn(layout hapax.Layout, id int64) error {
	if id < 0 || id >= layout.Workers() {
		return outOfRange(hapax.FieldWorker, id, fmt.Sprintf("0 to %d", layout.Workers()-1))
	}
	return nil
}

// RetireWorker takes a worker ID out of use until the clock passes its mark; see
// driver.PoolStore.
func (ws *workers) RetireWorker(ctx context.Context, pool string, id int64) (driver.Worker, error) {
	layout, err := ws.knownPool(ctx, pool)
	if err == nil {
		err = workerIn(layout, id)
	}
	if err != nil {
		return driver.Worker{}, err
	}
	w, err := admin(ctx, ws.core, func(ctx context.Context) (driver.Worker, error) { return ws.store.RetireWorker(ctx, pool, id) })
	ws.Attempted(ctx, "retire worker", err, "pool", pool, "worker", id)
	if err == nil {
		ws.log.Warn("a worker ID was retired", "pool", pool, "worker", id, "fencing_token", w.Token)
	}
	return w, err
}

func (ws *workers) status(layout hapax.Layout, w driver.Worker) api.WorkerStatus {
	now := ws.leaseTime()
	st := api.WorkerStatus{
		Pool: w.Pool, ID: w.ID, State: api.WorkerFree, Mark: w.Mark, Until: layout.TimeOf(w.Mark).UTC(),
		Token: w.Token, Holder: w.Holder, Retired: w.Retired(),
	}
	if w.Expires.UnixMilli() > 0 { // a worker ID that was never leased has the time 0
		st.Expires = w.Expires.UTC()
	}
	if split, err := ws.opts.Pools[w.Pool].split(); err == nil && split != nil && fits(split, layout) == nil {
		st.Parts = split.Parts(w.ID)
	}
	open, leased := st.Until.After(now), w.Expires.After(now)
	switch {
	case open && w.Retired():
		st.State = api.WorkerRetired
	case st.Until.After(now.Add(hapax.PoisonMargin)):
		st.State = api.WorkerPoisoned
	case leased:
		st.State = api.WorkerHeld
	case open:
		st.State = api.WorkerWaiting
	}
	if open {
		st.Free = st.Until
	}
	if leased && w.Expires.After(st.Free) {
		st.Free = st.Expires
	}
	return st
}

// Workers returns the workers of a pool that were ever used, by worker ID.
func (ws *workers) Workers(ctx context.Context, pool string) ([]driver.Worker, error) {
	if err := hapax.ValidateName("pool", pool); err != nil {
		return nil, err
	}
	return admin(ctx, ws.core, func(ctx context.Context) ([]driver.Worker, error) { return ws.store.Workers(ctx, pool) })
}
