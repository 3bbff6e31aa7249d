package leaf

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
)

// A PoolTarget is the native store that worker IDs are carried over to.
type PoolTarget interface {
	hapax.WorkerStore
	CreatePool(ctx context.Context, pool, layout string) (driver.Pool, error)
	Workers(ctx context.Context, pool string) ([]driver.Worker, error)
}

// A WorkerMove is what is to be done for one worker ID of the tree: the native one
// must begin above what the node may have issued.
type WorkerMove struct {
	Node   Node
	Above  time.Time // the node's timestamp and 5 s: a Leaf reports every 3 s, and may be late
	Before time.Time // the native mark now; zero: the worker ID was never used
}

// Changes reports whether the move changes anything.
func (m WorkerMove) Changes() bool { return m.Before.Before(m.Above) }

// PlanWorkers tells for each node of the tree what is to be done for its worker ID in
// a native pool, and writes nothing. Nodes with the same worker ID are one move.
func PlanWorkers(ctx context.Context, t *Tree, target PoolTarget, pool string) ([]WorkerMove, error) {
	nodes, err := t.Nodes(ctx)
	if err != nil {
		return nil, err
	}
	marks := map[int64]time.Time{}
	workers, err := target.Workers(ctx, pool)
	if err != nil && !errors.Is(err, hapax.ErrPoolNotFound) {
		return nil, err
	}
	for _, w := range workers {
		marks[w.ID] = t.layout.TimeOf(w.Mark)
	}
	var all []WorkerMove
	for _, n := range nodes { // by worker ID
		m := WorkerMove{Node: n, Above: n.Reported.Add(leafSilence), Before: marks[n.Worker]}
		if n.Worker >= workerIDs {
			continue
		}
		if last := len(all) - 1; last >= 0 && all[last].Node.Worker == n.Worker {
			if m.Above.After(all[last].Above) {
				all[last] = m
			}
			continue
		}
		all = append(all, m)
	}
	return all, nil
}

// ApplyWorkers raises the marks of the native pool, by leasing each worker ID for a
// moment, and makes the pool if there is none. A node whose timestamp is not 5 s past
// is refused: it may be alive, or the clock behind. It can be repeated.
func ApplyWorkers(ctx context.Context, target PoolTarget, pool string, all []WorkerMove, progress func(done, total int)) error {
	layout, err := hapax.ParseLayout(hapax.LayoutLeaf)
	if err != nil {
		return err
	}
	if _, err := target.CreatePool(ctx, pool, layout.String()); err != nil {
		return err
	}
	for i, m := range all {
		if m.Changes() {
			if err := raiseWorker(ctx, target, pool, layout, m); err != nil {
				return fmt.Errorf("worker ID %d of node %s: %w", m.Node.Worker, m.Node.Name, err)
			}
		}
		if progress != nil {
			progress(i+1, len(all))
		}
	}
	return nil
}

func raiseWorker(ctx context.Context, target PoolTarget, pool string, layout hapax.Layout, m WorkerMove) error {
	now := time.Now()
	if now.Before(m.Above) {
		return fmt.Errorf("%w: it has the timestamp %s and the clock here says %s: wait until it is 5 s past, or correct the clock",
			hapax.ErrStoreUnsafe, stamp(m.Node.Reported), stamp(now))
	}
	lease, err := target.AcquireWorker(ctx, hapax.AcquireRequest{
		Pool: pool, Layout: layout, Workers: hapax.WorkerRange{Lo: m.Node.Worker, Hi: m.Node.Worker + 1}, Holder: "import of Leaf",
		Term: hapax.Term{Now: now, Length: time.Second, TTL: time.Second},
	})
	if err != nil {
		return err
	}
	if begins := layout.TimeOf(lease.Grant.Lo); begins.Before(m.Above) {
		return fmt.Errorf("%w: it was granted from %s, which is not above %s: the store's clock is behind", hapax.ErrClockSkew, stamp(begins), stamp(m.Above))
	}
	// Given back to where it began, which is above all that the node can have issued.
	return target.SealWorker(ctx, lease, lease.Grant.Lo)
}

// CheckIdle refuses a pool of which a worker ID is leased (ErrStoreUnsafe): its holder issues numbers that
// a Leaf of the reopened tree might, too.
func CheckIdle(ctx context.Context, target PoolTarget, pool string) error {
	workers, err := target.Workers(ctx, pool)
	if err != nil && !errors.Is(err, hapax.ErrPoolNotFound) {
		return err
	}
	for _, w := range workers {
		if !w.Retired() && w.Expires.After(time.Now()) {
			return fmt.Errorf("%w: worker ID %d of pool %s is leased to %s until %s: stop it first, and repeat", hapax.ErrStoreUnsafe, w.ID, pool, w.Holder, stamp(w.Expires))
		}
	}
	return nil
}
