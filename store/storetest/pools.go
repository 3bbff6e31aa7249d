package storetest

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
)

var poolChecks = []check{
	{"pools/create", always, checkCreatePool},
	{"pools/delete unused", always, checkDeleteUnused},
	{"pools/delete used", always, checkDeleteUsed},
	{"pools/one layout wins", always, checkPoolRace},
	{"pools/delete while acquiring", always, checkDeleteRace},
	{"pools/next handle", durable, checkPoolsStay},
}

// pool returns one pool, without a layout if there is none.
func (e *env) pool(name string) driver.Pool {
	e.Helper()
	pools, err := e.pools.Pools(e.ctx)
	e.must(err)
	for i, p := range pools {
		if i > 0 && p.Name <= pools[i-1].Name {
			e.Errorf("pool %q comes after %q", p.Name, pools[i-1].Name)
		}
	}
	for _, p := range pools {
		if p.Name == e.name(name) {
			return p
		}
	}
	return driver.Pool{Name: e.name(name)}
}

func (e *env) createPool(name string, l hapax.Layout) {
	e.Helper()
	want := driver.Pool{Name: e.name(name), Layout: l.String()}
	got, err := e.pools.CreatePool(e.ctx, want.Name, want.Layout)
	e.must(err)
	equal(e, "the created pool", got, want)
	equal(e, "the stored pool", e.pool(name), want)
}

// checkCreatePool: the first layout of a pool is its last, and the first use
// finds it.
func checkCreatePool(e *env) {
	e.createPool("pool", layout)
	e.createPool("pool", layout)
	_, err := e.pools.CreatePool(e.ctx, e.name("pool"), otherLayout.String())
	e.wantErr("CreatePool with another layout", err, hapax.ErrLayoutMismatch)
	req := e.request("pool")
	req.Layout = otherLayout
	_, err = e.workers.AcquireWorker(e.ctx, req)
	e.wantErr("AcquireWorker with another layout", err, hapax.ErrLayoutMismatch)
	e.acquire(e.request("pool"))
	for name, sentinel := range map[string]*hapax.Error{"": hapax.ErrInvalidTag, "\xff": hapax.ErrInvalidTag, "a\x00": hapax.ErrInvalidTag} {
		_, err := e.pools.CreatePool(e.ctx, name, layout.String())
		e.wantErr("CreatePool with a bad name", err, sentinel)
		_, err = e.pools.DeletePool(e.ctx, name)
		e.wantErr("DeletePool with a bad name", err, sentinel)
	}
	for _, bad := range []string{"", "x", "time:41"} {
		_, err := e.pools.CreatePool(e.ctx, e.name("bad"), bad)
		e.wantErr("CreatePool with a layout that is none", err, hapax.ErrInvalidLayout)
	}
	equal(e, "the pool that was not created", e.pool("bad"), driver.Pool{Name: e.name("bad")})
	for _, odd := range oddNames {
		_, err := e.pools.CreatePool(e.ctx, e.name(odd), layout.String())
		e.must(err)
	}
	pools, err := e.pools.Pools(e.ctx)
	e.must(err)
	found := map[string]bool{}
	for _, p := range pools {
		found[p.Name] = true
	}
	for _, odd := range oddNames {
		if !found[e.name(odd)] {
			e.Errorf("pool %q is not listed", odd)
		}
	}
}

// checkDeleteUnused: a pool that was never used goes for good, and may come back
// with another layout.
func checkDeleteUnused(e *env) {
	_, err := e.pools.DeletePool(e.ctx, e.name("pool"))
	e.wantErr("DeletePool of a pool that does not exist", err, hapax.ErrPoolNotFound)
	for _, l := range []hapax.Layout{layout, otherLayout} {
		e.createPool("pool", l)
		gone, err := e.pools.DeletePool(e.ctx, e.name("pool"))
		e.must(err)
		equal(e, "the deleted pool", gone, driver.Pool{Name: e.name("pool"), Deleted: true})
		equal(e, "the stored pool", e.pool("pool"), driver.Pool{Name: e.name("pool")})
		_, err = e.pools.DeletePool(e.ctx, e.name("pool"))
		e.wantErr("DeletePool again", err, hapax.ErrPoolNotFound)
	}
	e.acquire(e.request("pool")) // the first use creates it
}

// checkDeleteUsed: of a pool that was used a tombstone stays, which keeps layout
// and marks; an explicit creation alone revives it, with the layout it had.
func checkDeleteUsed(e *env) {
	req := e.request("pool")
	req.Workers = hapax.WorkerRange{Lo: 1, Hi: 2}
	lease := e.acquire(req)
	dead := driver.Pool{Name: req.Pool, Layout: layout.String(), Deleted: true}
	for range 2 {
		got, err := e.pools.DeletePool(e.ctx, req.Pool)
		e.must(err)
		equal(e, "the deleted pool", got, dead)
		equal(e, "the stored pool", e.pool("pool"), dead)
	}
	_, err := e.workers.AcquireWorker(e.ctx, at(req, "b", 1_000_000))
	e.wantErr("AcquireWorker from a deleted pool", err, hapax.ErrPoolDeleted)
	equal(e, "the worker's mark", e.row(lease).Mark, lease.Grant.Hi)
	_, err = e.pools.CreatePool(e.ctx, req.Pool, otherLayout.String())
	e.wantErr("CreatePool with another layout", err, hapax.ErrLayoutMismatch)
	equal(e, "the stored pool", e.pool("pool"), dead)
	e.createPool("pool", layout)
	if next := e.acquire(at(req, req.Holder, 100)); next.Grant.Lo < lease.Grant.Hi || next.Token <= lease.Token {
		e.Errorf("after the revival: %+v; want it above %+v", next, lease)
	}
}

// checkPoolRace: of layouts given to a new pool at the same time one wins.
func checkPoolRace(e *env) {
	var n, won atomic.Int64
	inParallel(e, e.handles(6), func(ctx context.Context, h roles) error {
		l := layoutAt("time:41,worker:10,sequence:12", n.Add(1))
		switch _, err := h.pools.CreatePool(ctx, e.name("pool"), l.String()); {
		case err == nil:
			won.Add(1)
		case !errors.Is(err, hapax.ErrLayoutMismatch):
			return err
		}
		return nil
	})
	equal(e, "the number of layouts that won", won.Load(), 1)
}

// checkDeleteRace: while a pool is deleted, created and used at the same time, no
// worker ID is granted under two layouts.
func checkDeleteRace(e *env) {
	for round := range 6 {
		name := fmt.Sprint("pool ", round)
		var n atomic.Int64
		var used [2]atomic.Int64
		layouts := [2]hapax.Layout{layout, otherLayout}
		inParallel(e, e.handles(6), func(ctx context.Context, h roles) error {
			i := n.Add(1)
			l := i % 2
			for range 4 {
				var err error
				switch i {
				case 1, 2:
					_, err = h.pools.DeletePool(ctx, e.name(name))
				case 3, 4:
					_, err = h.pools.CreatePool(ctx, e.name(name), layouts[l].String())
				default:
					req := e.request(name)
					req.Layout, req.Holder = layouts[l], fmt.Sprint("holder ", i)
					if _, err = h.workers.AcquireWorker(ctx, req); err == nil {
						used[l].Add(1)
						return nil
					}
				}
				switch {
				case err == nil, errors.Is(err, hapax.ErrPoolNotFound), errors.Is(err, hapax.ErrPoolDeleted), errors.Is(err, hapax.ErrLayoutMismatch):
				default:
					return err
				}
			}
			return nil
		})
		if used[0].Load() > 0 && used[1].Load() > 0 {
			e.Errorf("worker IDs of pool %q were granted under two layouts", name)
		}
		for l := range used {
			if used[l].Load() > 0 {
				equal(e, "the layout of a pool in use", e.pool(name).Layout, layouts[l].String())
			}
		}
	}
}

// checkPoolsStay: the next handle finds every pool as the last one left it.
func checkPoolsStay(e *env) {
	e.createPool("a", layout)
	e.createPool("unused", layout)
	e.acquire(e.request("used"))
	for _, name := range []string{"unused", "used"} {
		_, err := e.pools.DeletePool(e.ctx, e.name(name))
		e.must(err)
	}
	e.reopen()
	equal(e, "the pool", e.pool("a"), driver.Pool{Name: e.name("a"), Layout: layout.String()})
	equal(e, "the pool that is gone", e.pool("unused"), driver.Pool{Name: e.name("unused")})
	equal(e, "the tombstone", e.pool("used"), driver.Pool{Name: e.name("used"), Layout: layout.String(), Deleted: true})
}
