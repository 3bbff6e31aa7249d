package storetest

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hapax-id/hapax"
)

var workerChecks = []check{
	{"workers/acquire", always, checkAcquire},
	{"workers/layout is frozen", always, checkFrozen},
	{"workers/all in use", always, checkAllInUse},
	{"workers/recycle", always, checkRecycle},
	{"workers/own worker first", always, checkOwnFirst},
	{"workers/range", always, checkRange},
	{"workers/list", always, checkAmong},
	{"workers/retire", table, checkRetire},
	{"workers/extend", always, checkExtend},
	{"workers/extend under an old epoch", always, checkExtendOldEpoch},
	{"workers/seal", always, checkSeal},
	{"workers/late seal", always, checkLateSeal},
	{"workers/lost acknowledgement", always, checkLostAcknowledgement},
	{"workers/poisoned", always, checkPoisoned},
	{"workers/end of time", always, checkTimeEnd},
	{"workers/extremes", always, checkExtremes},
	{"workers/bad requests", always, checkBadRequests},
	{"workers/names", always, checkPoolNames},
	{"workers/start together", always, checkStartTogether},
	{"workers/churn", always, checkChurn},
	{"workers/next handle", durable, checkWorkersStay},
}

// now is the suite's clock; tick 1000 is now, and a tick is a millisecond.
var now = time.UnixMilli(1_700_000_000_123)

const ttl = 10 * time.Second

// request asks for a worker of four, for the ticks from 1000 to 1100.
func (e *env) request(pool string) hapax.AcquireRequest {
	return hapax.AcquireRequest{
		Pool:   e.name(pool),
		Layout: "layout of " + pool,
		IDs:    hapax.Grant{Lo: 0, Hi: 4},
		Holder: "holder",
		Floor:  1000,
		Latest: 1000,
		To:     1100,
		End:    1 << 40,
		Poison: 1 << 39,
		Now:    now,
		TTL:    ttl,
		Tick:   time.Millisecond,
	}
}

// at returns the request as made by the holder some ticks later.
func at(r hapax.AcquireRequest, holder string, ticks int64) hapax.AcquireRequest {
	r.Holder = holder
	r.Floor, r.Latest, r.To = r.Floor+ticks, r.Latest+ticks, r.To+ticks
	r.Now = r.Now.Add(time.Duration(ticks) * r.Tick)
	return r
}

// extension asks for time up to a tick.
func (e *env) extension(to int64) hapax.ExtendRequest {
	return hapax.ExtendRequest{To: to, End: 1 << 40, Now: now, TTL: ttl}
}

func (e *env) acquire(req hapax.AcquireRequest) hapax.Lease {
	e.Helper()
	lease, err := e.workers.AcquireWorker(e.ctx, req)
	e.must(err)
	return lease
}

func (e *env) extend(lease hapax.Lease, to int64) hapax.Lease {
	e.Helper()
	lease, err := e.workers.ExtendWorker(e.ctx, lease, e.extension(to))
	e.must(err)
	return lease
}

// row returns one worker of a pool.
func (e *env) row(lease hapax.Lease) hapax.Worker {
	e.Helper()
	rows, err := e.workers.Workers(e.ctx, lease.Pool)
	e.must(err)
	for _, w := range rows {
		if w.ID == lease.Worker {
			return w
		}
	}
	e.Fatalf("pool %q has no worker %d", lease.Pool, lease.Worker)
	return hapax.Worker{}
}

// wantRow reports a row that is not the one of the held lease.
func (e *env) wantRow(lease hapax.Lease, expires time.Time) {
	e.Helper()
	want := hapax.Worker{Pool: lease.Pool, ID: lease.Worker, Mark: lease.Grant.Hi, Epoch: lease.Epoch, Holder: lease.Holder}
	got := e.row(lease)
	if !got.Expires.Equal(expires) {
		e.Errorf("worker %d expires at %v; want %v", got.ID, got.Expires, expires)
	}
	got.Expires = time.Time{}
	equal(e, "the worker", got, want)
}

// wantLost reports a row that is not as it was before a call that had to do
// nothing.
func (e *env) wantLost(what string, err error, before hapax.Worker) {
	e.Helper()
	e.wantErr(what, err, hapax.ErrLeaseLost)
	after := e.row(hapax.Lease{Pool: before.Pool, Worker: before.ID})
	if !after.Expires.Equal(before.Expires) {
		e.Errorf("%s changed the expiry", what)
	}
	after.Expires, before.Expires = time.Time{}, time.Time{}
	equal(e, "the worker after: "+what, after, before)
}

func checkAcquire(e *env) {
	req := e.request("pool")
	rows, err := e.workers.Workers(e.ctx, req.Pool)
	e.must(err)
	equal(e, "the number of workers before the first use", len(rows), 0)
	seen := map[int64]bool{}
	for i := range 4 {
		req.Holder = fmt.Sprint("holder ", i)
		lease := e.acquire(req)
		if seen[lease.Worker] || lease.Worker < 0 || lease.Worker >= 4 {
			e.Errorf("worker %d; want another of 0 to 3", lease.Worker)
		}
		seen[lease.Worker] = true
		if lease.Epoch < 1 {
			e.Errorf("the first epoch is %d; want 1 at least", lease.Epoch)
		}
		want := hapax.Lease{Pool: req.Pool, Worker: lease.Worker, Epoch: lease.Epoch, Holder: req.Holder, Grant: hapax.Grant{Lo: 1000, Hi: 1100}, From: 1000}
		equal(e, "the lease", lease, want)
		e.wantRow(lease, now.Add(ttl))
	}
}

// checkFrozen: the first layout of a pool is its last.
func checkFrozen(e *env) {
	req := e.request("pool")
	e.acquire(req)
	req.Layout += " changed"
	_, err := e.workers.AcquireWorker(e.ctx, req)
	e.wantErr("AcquireWorker with another layout", err, hapax.ErrLayoutMismatch)

	other := e.request("other")
	e.acquire(other)
	pools, err := e.workers.Pools(e.ctx)
	e.must(err)
	found := map[string]string{}
	for i, p := range pools {
		if i > 0 && p.Name <= pools[i-1].Name {
			e.Errorf("pool %q comes after %q", p.Name, pools[i-1].Name)
		}
		found[p.Name] = p.Layout
	}
	equal(e, "the pool's layout", found[req.Pool], "layout of pool")
	equal(e, "the other pool's layout", found[other.Pool], "layout of other")

	var mu sync.Mutex // guards won
	won := map[string]bool{}
	inParallel(e, e.handles(4), func(ctx context.Context, h roles) error {
		r := e.request("race")
		r.Layout = fmt.Sprint("layout ", rand.Uint64())
		r.Holder = r.Layout
		_, err := h.workers.AcquireWorker(ctx, r)
		switch {
		case err == nil:
			mu.Lock()
			won[r.Layout] = true
			mu.Unlock()
		case !errors.Is(err, hapax.ErrLayoutMismatch):
			return err
		}
		return nil
	})
	equal(e, "the number of layouts frozen in a race", len(won), 1)
}

// checkAllInUse: the error tells pool, size and the time of the next free
// worker, be it kept by its lease or by its granted time.
func checkAllInUse(e *env) {
	req := e.request("pool")
	req.IDs = hapax.Grant{Lo: 0, Hi: 2}
	e.acquire(at(req, "a", 0))
	e.acquire(at(req, "b", 50))
	for name, c := range map[string]struct {
		holder string
		want   time.Time
	}{
		"another's lease": {"c", now.Add(ttl)},
		"own open grant":  {"a", now.Add(100 * time.Millisecond)},
	} {
		_, err := e.workers.AcquireWorker(e.ctx, at(req, c.holder, 60))
		e.wantErr(name, err, hapax.ErrNoWorker)
		no, ok := errors.AsType[*hapax.NoWorkerError](err)
		if !ok || no.Pool != req.Pool || no.Size != 2 || !no.NextFree.Equal(c.want) {
			e.Errorf("%s: error is %+v; want a NoWorkerError for %q of size 2, next free at %v", name, err, req.Pool, c.want)
		}
	}
}

// checkRecycle: a worker that was not sealed is free when its lease has run out
// and its granted time is over, and not before.
func checkRecycle(e *env) {
	req := e.request("pool")
	req.IDs = hapax.Grant{Lo: 2, Hi: 3}
	first := e.acquire(at(req, "a", 0))
	_, err := e.workers.AcquireWorker(e.ctx, at(req, "b", ttl.Milliseconds()-1))
	e.wantErr("before the lease has run out", err, hapax.ErrNoWorker)
	second := e.acquire(at(req, "b", ttl.Milliseconds()))
	if second.Worker != first.Worker || second.Epoch <= first.Epoch || second.Grant.Lo < first.Grant.Hi {
		e.Errorf("after the lease has run out: %+v; want worker 2 above epoch and mark of %+v", second, first)
	}
	e.extend(second, 100_000)
	_, err = e.workers.AcquireWorker(e.ctx, at(req, "c", 50_000))
	e.wantErr("before the granted time is over", err, hapax.ErrNoWorker)
	third := e.acquire(at(req, "c", 99_000))
	equal(e, "the first tick of the next holder", third.Grant.Lo, 100_000)
}

// checkOwnFirst: an instance that comes back gets the worker it had, when that
// one's granted time is over.
func checkOwnFirst(e *env) {
	req := e.request("pool")
	e.acquire(at(req, "a", 0))
	mine := e.acquire(at(req, "b", 0))
	e.acquire(at(req, "c", 0))
	if early := e.acquire(at(req, "b", 50)); early.Worker == mine.Worker {
		e.Error("a worker was granted again while its grant was open")
	}
	again := e.acquire(at(req, "b", 100))
	equal(e, "the worker of an instance that comes back", again.Worker, mine.Worker)
	equal(e, "its first tick", again.Grant.Lo, 1100)
	if again.Epoch <= mine.Epoch {
		e.Errorf("the epoch went from %d to %d", mine.Epoch, again.Epoch)
	}
}

// checkRange: only the worker IDs that were asked for are looked at.
func checkRange(e *env) {
	req := e.request("pool")
	for i, id := range []int64{100, 2, 11, 5, 6} {
		req.IDs = hapax.Grant{Lo: id, Hi: id + 1}
		req.Holder = fmt.Sprint("holder ", i)
		equal(e, "the worker", e.acquire(req).Worker, id)
	}
	rows, err := e.workers.Workers(e.ctx, req.Pool)
	e.must(err)
	var ids []int64
	for _, w := range rows {
		ids = append(ids, w.ID)
	}
	equal(e, "the order of the workers", fmt.Sprint(ids), "[2 5 6 11 100]")

	req.IDs = hapax.Grant{Lo: 5, Hi: 8}
	equal(e, "the free worker in the range", e.acquire(at(req, "x", 0)).Worker, 7)
	_, err = e.workers.AcquireWorker(e.ctx, at(req, "y", 0))
	if no, ok := errors.AsType[*hapax.NoWorkerError](err); !ok || no.Size != 3 {
		e.Errorf("a full range: error is %+v; want a NoWorkerError of size 3", err)
	}
}

// checkExtend: an extension grants from the mark that is stored to the tick
// that was asked for, one tick at least.
func checkExtend(e *env) {
	lease := e.acquire(e.request("pool"))
	epoch := lease.Epoch
	for _, c := range []struct{ to, lo, hi int64 }{{1200, 1100, 1200}, {1150, 1200, 1201}, {math.MinInt64, 1201, 1202}, {1 << 30, 1202, 1 << 30}} {
		lease = e.extend(lease, c.to)
		equal(e, "the extension", lease.Grant, hapax.Grant{Lo: c.lo, Hi: c.hi})
		equal(e, "the lease's first tick", lease.From, 1000)
		equal(e, "the epoch", lease.Epoch, epoch)
	}
	req := e.extension(1<<30 + 1)
	req.Now, req.TTL = now.Add(time.Hour), time.Minute
	lease, err := e.workers.ExtendWorker(e.ctx, lease, req)
	e.must(err)
	e.wantRow(lease, now.Add(time.Hour+time.Minute))
}

func checkExtendOldEpoch(e *env) {
	req := e.request("pool")
	req.IDs = hapax.Grant{Lo: 1, Hi: 2}
	lost := e.acquire(at(req, "a", 0))
	e.acquire(at(req, "b", 20_000))
	row := e.row(lost)
	_, err := e.workers.ExtendWorker(e.ctx, lost, e.extension(30_000))
	e.wantLost("extend after somebody else took the worker", err, row)

	same := lost // even if the mark is by chance the one that the lease knows
	same.Grant.Hi = row.Mark
	_, err = e.workers.ExtendWorker(e.ctx, same, e.extension(30_000))
	e.wantLost("extend under an old epoch from the right mark", err, row)

	req.IDs = hapax.Grant{Lo: 2, Hi: 3}
	sealed := e.acquire(at(req, "c", 0))
	e.must(e.workers.SealWorker(e.ctx, sealed, sealed.Grant.Hi))
	row = e.row(sealed)
	_, err = e.workers.ExtendWorker(e.ctx, sealed, e.extension(30_000))
	e.wantLost("extend after the seal", err, row)

	never := hapax.Lease{Pool: req.Pool, Worker: 3, Epoch: 1, Holder: "a", Grant: hapax.Grant{Lo: 1, Hi: 2}, From: 1}
	_, err = e.workers.ExtendWorker(e.ctx, never, e.extension(30_000))
	e.wantErr("extend of a worker that was never acquired", err, hapax.ErrLeaseLost)
}

// checkSeal: a seal gives the unused rest of the lease to the next holder, who
// need not wait, and grows the epoch.
func checkSeal(e *env) {
	req := e.request("pool")
	req.IDs = hapax.Grant{Lo: 1, Hi: 2}
	epoch, mark := int64(0), int64(1000)
	for i, c := range []struct {
		name    string
		extends int
		last    func(hapax.Lease) int64
	}{
		{"after some ticks", 0, func(l hapax.Lease) int64 { return l.From + 7 }},
		{"after none", 0, func(l hapax.Lease) int64 { return l.From }},
		{"at the end", 0, func(l hapax.Lease) int64 { return l.Grant.Hi }},
		{"in an extension", 2, func(l hapax.Lease) int64 { return l.Grant.Lo + 3 }},
		{"before the extension began", 1, func(l hapax.Lease) int64 { return l.From + 1 }},
	} {
		r := at(req, fmt.Sprint("holder ", i), mark-1000)
		lease := e.acquire(r)
		equal(e, "the first tick "+c.name, lease.Grant.Lo, mark)
		if lease.Epoch <= epoch {
			e.Errorf("%s: the epoch went from %d to %d", c.name, epoch, lease.Epoch)
		}
		for range c.extends {
			lease = e.extend(lease, lease.Grant.Hi+100)
		}
		for _, last := range []int64{lease.From - 1, lease.Grant.Hi + 1, math.MinInt64, math.MaxInt64} {
			e.wantErr("a seal outside the lease", e.workers.SealWorker(e.ctx, lease, last), hapax.ErrInvalidArgument)
		}
		mark = c.last(lease)
		e.must(e.workers.SealWorker(e.ctx, lease, mark))
		row := e.row(lease)
		epoch = row.Epoch
		if row.Mark != mark || row.Epoch <= lease.Epoch || row.Holder != lease.Holder || row.Expires.After(now) {
			e.Errorf("%s: the worker is %+v; want mark %d, an epoch above %d, its last holder and no lease", c.name, row, mark, lease.Epoch)
		}
	}
}

// checkLateSeal: a seal that is repeated or late does nothing.
func checkLateSeal(e *env) {
	req := e.request("pool")
	req.IDs = hapax.Grant{Lo: 1, Hi: 2}
	lease := e.acquire(at(req, "a", 0))
	e.must(e.workers.SealWorker(e.ctx, lease, 1100))
	e.wantLost("a repeated seal", e.workers.SealWorker(e.ctx, lease, 1050), e.row(lease))

	next := e.acquire(at(req, "b", 100))
	e.wantLost("a seal after somebody else took the worker", e.workers.SealWorker(e.ctx, lease, 1050), e.row(lease))
	stale := lease // even if the mark is by chance the one that the lease knows
	stale.Grant.Hi = next.Grant.Hi
	e.wantLost("a seal under an old epoch at the right mark", e.workers.SealWorker(e.ctx, stale, 1050), e.row(lease))

	never := hapax.Lease{Pool: req.Pool, Worker: 3, Epoch: 1, Holder: "a", Grant: hapax.Grant{Lo: 1, Hi: 2}, From: 1}
	e.wantErr("a seal of a worker that was never acquired", e.workers.SealWorker(e.ctx, never, 1), hapax.ErrLeaseLost)
}

// checkLostAcknowledgement: a lease that does not know of its own extension is
// granted what comes after it, and cannot be sealed below it.
func checkLostAcknowledgement(e *env) {
	lease := e.acquire(e.request("pool"))
	e.extend(lease, 1200) // the answer is lost
	e.wantLost("a seal that does not know the mark", e.workers.SealWorker(e.ctx, lease, 1050), e.row(lease))
	again := e.extend(lease, 1200)
	equal(e, "the extension after a lost one", again.Grant, hapax.Grant{Lo: 1200, Hi: 1201})
	equal(e, "the lease's first tick", again.From, 1000)
	e.must(e.workers.SealWorker(e.ctx, again, 1201))
}

// checkPoisoned: a mark that is absurdly far ahead is refused, unless another
// worker is free.
func checkPoisoned(e *env) {
	req := e.request("pool")
	req.IDs = hapax.Grant{Lo: 1, Hi: 2}
	e.extend(e.acquire(at(req, "a", 0)), 1_000_000)
	req.Poison = 500_000
	_, err := e.workers.AcquireWorker(e.ctx, at(req, "a", 100_000))
	e.wantErr("AcquireWorker", err, hapax.ErrWorkerPoisoned)
	req.IDs.Hi = 3
	equal(e, "the worker that is not poisoned", e.acquire(at(req, "a", 100_000)).Worker, 2)
	req.IDs.Hi = 2
	req.Poison = 1 << 39
	equal(e, "the first tick when the clock has come", e.acquire(at(req, "b", 1_000_000)).Grant.Lo, 1_001_000)
}

// checkTimeEnd: no grant passes the end of the layout's time.
func checkTimeEnd(e *env) {
	req := e.request("pool")
	req.End = 1050
	lease := e.acquire(req)
	equal(e, "the grant at the end of time", lease.Grant, hapax.Grant{Lo: 1000, Hi: 1050})
	ext := e.extension(1100)
	ext.End = 1050
	_, err := e.workers.ExtendWorker(e.ctx, lease, ext)
	e.wantErr("ExtendWorker at the end of time", err, hapax.ErrTimeExhausted)
	_, err = e.workers.AcquireWorker(e.ctx, at(req, "b", 50))
	e.wantErr("AcquireWorker at the end of time", err, hapax.ErrTimeExhausted)
	ext.End = 1060
	lease, err = e.workers.ExtendWorker(e.ctx, lease, ext)
	e.must(err)
	equal(e, "the extension to the end of time", lease.Grant, hapax.Grant{Lo: 1050, Hi: 1060})
}

// checkExtremes: worker IDs and ticks may be any that fit.
func checkExtremes(e *env) {
	req := e.request("pool")
	req.IDs = hapax.Grant{Lo: math.MaxInt64 - 1, Hi: math.MaxInt64}
	req.Floor, req.Latest, req.To = math.MaxInt64-1000, math.MaxInt64-1000, math.MaxInt64-500
	req.End, req.Poison = math.MaxInt64, math.MaxInt64
	lease := e.acquire(req)
	equal(e, "the worker", lease.Worker, math.MaxInt64-1)
	equal(e, "the grant", lease.Grant, hapax.Grant{Lo: math.MaxInt64 - 1000, Hi: math.MaxInt64 - 500})
	ext := e.extension(math.MaxInt64)
	ext.End = math.MaxInt64
	lease, err := e.workers.ExtendWorker(e.ctx, lease, ext)
	e.must(err)
	equal(e, "the extension", lease.Grant, hapax.Grant{Lo: math.MaxInt64 - 500, Hi: math.MaxInt64})
	e.wantRow(lease, now.Add(ttl))
	_, err = e.workers.ExtendWorker(e.ctx, lease, ext)
	e.wantErr("ExtendWorker at the last tick", err, hapax.ErrTimeExhausted)
	e.must(e.workers.SealWorker(e.ctx, lease, math.MaxInt64))

	zero := e.request("zero")
	zero.Floor, zero.Latest, zero.To = -5, 0, 0
	lease = e.acquire(zero)
	equal(e, "the first grant of all", lease.Grant, hapax.Grant{Lo: 0, Hi: 1})
	e.must(e.workers.SealWorker(e.ctx, lease, 0))
	equal(e, "the mark after nothing was used", e.row(lease).Mark, 0)
}

func checkBadRequests(e *env) {
	for _, c := range []struct {
		name     string
		change   func(*hapax.AcquireRequest)
		sentinel *hapax.Error
	}{
		{"no pool", func(r *hapax.AcquireRequest) { r.Pool = "" }, hapax.ErrInvalidTag},
		{"a control character", func(r *hapax.AcquireRequest) { r.Pool = "a\n" }, hapax.ErrInvalidTag},
		{"a long pool", func(r *hapax.AcquireRequest) { r.Pool = strings.Repeat("x", 129) }, hapax.ErrInvalidTag},
		{"no workers", func(r *hapax.AcquireRequest) { r.IDs = hapax.Grant{} }, hapax.ErrInvalidArgument},
		{"negative workers", func(r *hapax.AcquireRequest) { r.IDs.Lo = -1 }, hapax.ErrInvalidArgument},
		{"a list outside the range", func(r *hapax.AcquireRequest) { r.Among = []int64{3, 4} }, hapax.ErrInvalidArgument},
		{"a list in disorder", func(r *hapax.AcquireRequest) { r.Among = []int64{2, 1} }, hapax.ErrInvalidArgument},
		{"no holder", func(r *hapax.AcquireRequest) { r.Holder = "" }, hapax.ErrInvalidArgument},
		{"a long holder", func(r *hapax.AcquireRequest) { r.Holder = strings.Repeat("x", 129) }, hapax.ErrInvalidArgument},
		{"no tick", func(r *hapax.AcquireRequest) { r.Tick = 0 }, hapax.ErrInvalidArgument},
		{"a grant that would be absurd", func(r *hapax.AcquireRequest) { r.To = r.Poison + 1 }, hapax.ErrInvalidArgument},
	} {
		req := e.request("pool")
		c.change(&req)
		_, err := e.workers.AcquireWorker(e.ctx, req)
		e.wantErr(c.name, err, c.sentinel)
	}
	rows, err := e.workers.Workers(e.ctx, e.name("pool"))
	e.must(err)
	equal(e, "the number of workers after bad requests", len(rows), 0)
}

// checkPoolNames: every valid name is a pool of its own, and a holder is any
// short text.
func checkPoolNames(e *env) {
	names := append([]string{strings.Repeat("x", hapax.MaxTagBytes-len(e.prefix))}, oddNames...)
	for i, name := range names {
		req := e.request(name)
		req.IDs = hapax.Grant{Lo: int64(i), Hi: int64(i + 1)}
		req.Holder = strings.Repeat("h", i%hapax.MaxTagBytes) + "é"
		lease := e.acquire(req)
		e.wantRow(lease, now.Add(ttl))
	}
	for i, name := range names {
		rows, err := e.workers.Workers(e.ctx, e.name(name))
		e.must(err)
		if len(rows) != 1 || rows[0].ID != int64(i) || rows[0].Pool != e.name(name) {
			e.Errorf("the workers of pool %q are %+v; want worker %d alone", e.name(name), rows, i)
		}
	}
}

// checkStartTogether: as many instances as there are worker IDs can start at
// once, and each gets its own.
func checkStartTogether(e *env) {
	const instances = 8
	var mu sync.Mutex // guards taken
	taken := map[int64]int{}
	var n atomic.Int64
	inParallel(e, e.handles(instances), func(ctx context.Context, h roles) error {
		req := e.request("pool")
		req.IDs = hapax.Grant{Lo: 0, Hi: instances}
		req.Holder = fmt.Sprint("holder ", n.Add(1))
		lease, err := h.workers.AcquireWorker(ctx, req)
		mu.Lock()
		defer mu.Unlock()
		taken[lease.Worker]++
		return err
	})
	equal(e, "the number of workers taken", len(taken), instances)
}

// checkChurn: instances that come and go at random, some without a seal and
// some with stale leases, are never granted the same tick of a worker.
func checkChurn(e *env) {
	var mu sync.Mutex // guards used
	used := map[int64][]hapax.Grant{}
	var clock atomic.Int64
	var n atomic.Int64
	inParallel(e, e.handles(6), func(ctx context.Context, h roles) error {
		holder := fmt.Sprint("holder ", n.Add(1))
		var stale hapax.Lease
		for range 8 {
			req := at(e.request("pool"), holder, clock.Add(40))
			req.IDs.Hi, req.TTL = 3, time.Millisecond
			lease, err := h.workers.AcquireWorker(ctx, req)
			if errors.Is(err, hapax.ErrNoWorker) {
				continue
			}
			if err != nil {
				return err
			}
			last := lease.Grant.Hi
			if rand.IntN(2) == 0 {
				longer, err := h.workers.ExtendWorker(ctx, lease, e.extension(last+rand.Int64N(30)))
				switch {
				case errors.Is(err, hapax.ErrLeaseLost): // its time was up
				case err != nil:
					return err
				case longer.Grant.Lo != last:
					return fmt.Errorf("the extension is %v; want it to begin at %d", longer.Grant, last)
				default:
					lease, last = longer, longer.Grant.Hi
				}
			}
			if rand.IntN(2) == 0 {
				part := lease.From + rand.Int64N(last-lease.From+1)
				switch err := h.workers.SealWorker(ctx, lease, part); {
				case err == nil:
					last = part
				case !errors.Is(err, hapax.ErrLeaseLost):
					return err
				}
			}
			if stale.Pool != "" {
				if err := h.workers.SealWorker(ctx, stale, stale.From); err == nil {
					return fmt.Errorf("a stale lease was sealed: %+v", stale)
				}
			}
			if last > lease.From {
				mu.Lock()
				used[lease.Worker] = append(used[lease.Worker], hapax.Grant{Lo: lease.From, Hi: last})
				mu.Unlock()
			}
			if last != lease.Grant.Hi { // sealed for sure
				stale = lease
			}
		}
		return nil
	})
	for id, grants := range used {
		e.disjoint(fmt.Sprint("worker ", id), grants, false)
	}
}

// checkWorkersStay: the next handle finds every worker as the last one left it.
func checkWorkersStay(e *env) {
	req := e.request("pool")
	held := e.extend(e.acquire(at(req, "a", 0)), 1234)
	sealed := e.acquire(at(req, "b", 0))
	e.must(e.workers.SealWorker(e.ctx, sealed, 1010))
	row := e.row(sealed)
	e.reopen()
	e.wantRow(held, now.Add(ttl))
	got := e.row(sealed)
	if got.Mark != 1010 || got.Epoch != row.Epoch || got.Holder != row.Holder || got.Expires.After(now) {
		e.Errorf("the sealed worker is %+v; want %+v", got, row)
	}
	req.Layout += " changed"
	_, err := e.workers.AcquireWorker(e.ctx, req)
	e.wantErr("AcquireWorker with another layout", err, hapax.ErrLayoutMismatch)
	equal(e, "the extension under the next handle", e.extend(held, 2000).Grant, hapax.Grant{Lo: 1234, Hi: 2000})
}
