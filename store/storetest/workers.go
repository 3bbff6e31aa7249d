package storetest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
)

var workerChecks = []check{
	{"workers/acquire", always, checkAcquire},
	{"workers/layout is frozen", always, checkFrozen},
	{"workers/all in use", always, checkAllInUse},
	{"workers/recycle", always, checkRecycle},
	{"workers/own worker first", always, checkOwnFirst},
	{"workers/range", always, checkRange},
	{"workers/list", always, checkAmong},
	{"workers/retire", always, checkRetire},
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

// The layout of most pools, and another one.
var (
	layout      = layoutAt("time:41,worker:10,sequence:12", 1000)
	otherLayout = layoutAt("time:41,worker:9,sequence:13", 1000)
)

// layoutAt returns the layout with the given fields whose tick is now.
func layoutAt(fields string, tick int64) hapax.Layout {
	l, err := hapax.ParseLayout(fmt.Sprintf("%s,unit=1ms,epoch=%dms", fields, now.UnixMilli()-tick))
	if err != nil {
		panic(err)
	}
	return l
}

const ttl = 10 * time.Second

// request asks for a worker of four, for the ticks from 1000 to 1100.
func (e *env) request(pool string) hapax.AcquireRequest {
	return hapax.AcquireRequest{
		Pool:    e.name(pool),
		Layout:  layout,
		Workers: hapax.WorkerRange{Lo: 0, Hi: 4},
		Holder:  "holder",
		Term:    hapax.Term{Now: now, Length: 100 * time.Millisecond, TTL: ttl},
	}
}

// at returns the request as made by the holder some ticks later.
func at(r hapax.AcquireRequest, holder string, ticks int64) hapax.AcquireRequest {
	r.Holder = holder
	r.Term.Now = r.Term.Now.Add(time.Duration(ticks) * time.Millisecond)
	return r
}

// extension asks for time up to a tick.
func (e *env) extension(to int64) hapax.Term {
	return hapax.Term{Now: now, Length: time.Duration(max(0, to-1000)) * time.Millisecond, TTL: ttl}
}

func (e *env) acquire(req hapax.AcquireRequest) hapax.Lease {
	e.Helper()
	lease, err := e.workers.AcquireWorker(e.ctx, req)
	e.must(err)
	return lease
}

func (e *env) extend(lease hapax.Lease, to int64) hapax.Lease {
	e.Helper()
	lease, err := e.workers.ExtendWorker(e.ctx, lease, layout, e.extension(to))
	e.must(err)
	return lease
}

// row returns one worker of a pool.
func (e *env) row(lease hapax.Lease) driver.Worker {
	e.Helper()
	rows, err := e.pools.Workers(e.ctx, lease.Pool)
	e.must(err)
	for _, w := range rows {
		if w.ID == lease.Worker {
			return w
		}
	}
	e.Fatalf("pool %q has no worker %d", lease.Pool, lease.Worker)
	return driver.Worker{}
}

// wantRow reports a row that is not the one of the held lease.
func (e *env) wantRow(lease hapax.Lease, expires time.Time) {
	e.Helper()
	want := driver.Worker{Pool: lease.Pool, ID: lease.Worker, Mark: lease.Grant.Hi, From: lease.From, Token: lease.Token, Holder: lease.Holder}
	got := e.row(lease)
	if !got.Expires.Equal(expires) {
		e.Errorf("worker %d expires at %v; want %v", got.ID, got.Expires, expires)
	}
	got.Expires = time.Time{}
	equal(e, "the worker", got, want)
}

// wantLost reports a row that is not as it was before a call that had to do
// nothing.
func (e *env) wantLost(what string, err error, before driver.Worker) {
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
	rows, err := e.pools.Workers(e.ctx, req.Pool)
	e.must(err)
	equal(e, "the number of workers before the first use", len(rows), 0)
	seen, keys := map[int64]bool{}, map[hapax.GrantKey]bool{}
	for i := range 4 {
		req.Holder = fmt.Sprint("holder ", i)
		lease := e.acquire(req)
		if seen[lease.Worker] || lease.Worker < 0 || lease.Worker >= 4 {
			e.Errorf("worker %d; want another of 0 to 3", lease.Worker)
		}
		seen[lease.Worker] = true
		if lease.Token < 1 {
			e.Errorf("the first token is %d; want 1 at least", lease.Token)
		}
		if lease.Key == "" || keys[lease.Key] || !lease.Expires.Equal(now.Add(ttl).Truncate(time.Millisecond)) {
			e.Errorf("the lease's key is empty or was there before, or it expires at %v and not at %v", lease.Expires, now.Add(ttl))
		}
		keys[lease.Key] = true
		want := hapax.Lease{
			Pool: req.Pool, Worker: lease.Worker, Token: lease.Token, Key: lease.Key, Holder: req.Holder,
			Grant: hapax.Grant{Lo: 1000, Hi: 1100}, From: 1000, Expires: lease.Expires,
		}
		equal(e, "the lease", lease, want)
		e.wantRow(lease, now.Add(ttl))
	}
}

// checkFrozen: the first layout of a pool is its last.
func checkFrozen(e *env) {
	req := e.request("pool")
	e.acquire(req)
	req.Layout = otherLayout
	_, err := e.workers.AcquireWorker(e.ctx, req)
	e.wantErr("AcquireWorker with another layout", err, hapax.ErrLayoutMismatch)

	other := e.request("other")
	e.acquire(other)
	pools, err := e.pools.Pools(e.ctx)
	e.must(err)
	found := map[string]string{}
	for i, p := range pools {
		if i > 0 && p.Name <= pools[i-1].Name {
			e.Errorf("pool %q comes after %q", p.Name, pools[i-1].Name)
		}
		found[p.Name] = p.Layout
	}
	equal(e, "the pool's layout", found[req.Pool], layout.String())
	equal(e, "the other pool's layout", found[other.Pool], layout.String())

	var mu sync.Mutex // guards won
	won := map[string]bool{}
	inParallel(e, e.handles(4), func(ctx context.Context, h roles) error {
		r := e.request("race")
		r.Layout = layoutAt("time:41,worker:10,sequence:12", 1000+rand.Int64N(1e9))
		r.Holder = fmt.Sprint("holder of ", r.Layout)
		_, err := h.workers.AcquireWorker(ctx, r)
		switch {
		case err == nil:
			mu.Lock()
			won[r.Layout.String()] = true
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
	req.Workers = hapax.WorkerRange{Lo: 0, Hi: 2}
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
	req.Workers = hapax.WorkerRange{Lo: 2, Hi: 3}
	first := e.acquire(at(req, "a", 0))
	_, err := e.workers.AcquireWorker(e.ctx, at(req, "b", ttl.Milliseconds()-1))
	e.wantErr("before the lease has run out", err, hapax.ErrNoWorker)
	second := e.acquire(at(req, "b", ttl.Milliseconds()))
	if second.Worker != first.Worker || second.Token <= first.Token || second.Grant.Lo < first.Grant.Hi {
		e.Errorf("after the lease has run out: %+v; want worker 2 above token and mark of %+v", second, first)
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
	if again.Token <= mine.Token {
		e.Errorf("the token went from %d to %d", mine.Token, again.Token)
	}
}

// checkRange: only the worker IDs that were asked for are looked at.
func checkRange(e *env) {
	req := e.request("pool")
	for i, id := range []int64{100, 2, 11, 5, 6} {
		req.Workers = hapax.WorkerRange{Lo: id, Hi: id + 1}
		req.Holder = fmt.Sprint("holder ", i)
		equal(e, "the worker", e.acquire(req).Worker, id)
	}
	rows, err := e.pools.Workers(e.ctx, req.Pool)
	e.must(err)
	var ids []int64
	for _, w := range rows {
		ids = append(ids, w.ID)
	}
	equal(e, "the order of the workers", fmt.Sprint(ids), "[2 5 6 11 100]")

	req.Workers = hapax.WorkerRange{Lo: 5, Hi: 8}
	equal(e, "the free worker in the range", e.acquire(at(req, "x", 0)).Worker, 7)
	_, err = e.workers.AcquireWorker(e.ctx, at(req, "y", 0))
	if no, ok := errors.AsType[*hapax.NoWorkerError](err); !ok || no.Size != 3 {
		e.Errorf("a full range: error is %+v; want a NoWorkerError of size 3", err)
	}
}

// dayAndMore is how far ahead a mark is absurd.
const dayAndMore = int64(30 * time.Hour / time.Millisecond)

// checkPoisoned: a mark that is absurdly far ahead is refused, unless another
// worker is free.
func checkPoisoned(e *env) {
	req := e.request("pool")
	req.Workers = hapax.WorkerRange{Lo: 1, Hi: 2}
	e.acquire(at(req, "a", dayAndMore))
	_, err := e.workers.AcquireWorker(e.ctx, at(req, "a", 0))
	e.wantErr("AcquireWorker", err, hapax.ErrWorkerPoisoned)
	req.Pool = e.name("other") // the highest mark that is not absurd is waited for
	e.acquire(at(req, "a", hapax.PoisonMargin.Milliseconds()-req.Term.Length.Milliseconds()))
	_, err = e.workers.AcquireWorker(e.ctx, at(req, "a", 0))
	e.wantErr("AcquireWorker", err, hapax.ErrNoWorker)
	_, err = e.workers.AcquireWorker(e.ctx, at(req, "a", -1))
	e.wantErr("AcquireWorker a tick earlier", err, hapax.ErrWorkerPoisoned)
	req.Pool = e.name("pool")
	req.Workers.Hi = 3
	equal(e, "the worker that is not poisoned", e.acquire(at(req, "a", 0)).Worker, 2)
	req.Workers.Hi = 2
	equal(e, "the first tick when the clock has come", e.acquire(at(req, "b", dayAndMore+20_000)).Grant.Lo, 1000+dayAndMore+20_000)
}

// checkTimeEnd: no grant passes the end of the layout's time.
func checkTimeEnd(e *env) {
	const end = 1 << 20
	req := e.request("pool")
	req.Layout = layoutAt("time:20,worker:10,sequence:12", end-50)
	req.Workers.Hi = 1
	lease := e.acquire(req)
	equal(e, "the grant at the end of time", lease.Grant, hapax.Grant{Lo: end - 50, Hi: end})
	_, err := e.workers.ExtendWorker(e.ctx, lease, req.Layout, req.Term)
	e.wantErr("ExtendWorker at the end of time", err, hapax.ErrTimeExhausted)
	last := at(req, req.Holder, 49)
	last.Term.Ahead = time.Millisecond
	_, err = e.workers.AcquireWorker(e.ctx, last)
	e.wantErr("AcquireWorker in the last tick, which is granted already", err, hapax.ErrTimeExhausted)
	_, err = e.workers.AcquireWorker(e.ctx, at(req, "b", 50))
	e.wantErr("AcquireWorker after the end of time", err, hapax.ErrTimeExhausted)
}

// checkExtremes: worker IDs and ticks may be any that fit a layout.
func checkExtremes(e *env) {
	const worker = 1<<13 - 1
	req := e.request("pool")
	req.Layout = layoutAt("time:49,worker:13,sequence:1", 1<<44)
	req.Workers = hapax.WorkerRange{Lo: worker, Hi: worker + 1}
	lease := e.acquire(req)
	equal(e, "the worker", lease.Worker, worker)
	equal(e, "the grant", lease.Grant, hapax.Grant{Lo: 1 << 44, Hi: 1<<44 + 100})
	req.Term.Length = hapax.PoisonMargin
	lease, err := e.workers.ExtendWorker(e.ctx, lease, req.Layout, req.Term)
	e.must(err)
	equal(e, "the extension", lease.Grant, hapax.Grant{Lo: 1<<44 + 100, Hi: 1<<44 + hapax.PoisonMargin.Milliseconds()})
	e.wantRow(lease, now.Add(ttl))
	e.must(e.workers.SealWorker(e.ctx, lease, lease.Grant.Hi))

	zero := e.request("zero")
	zero.Layout = layoutAt("time:41,worker:10,sequence:12", 0)
	zero.Term.Length, zero.Term.Behind = 0, time.Hour
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
		{"no workers", func(r *hapax.AcquireRequest) { r.Workers = hapax.WorkerRange{} }, hapax.ErrInvalidArgument},
		{"negative workers", func(r *hapax.AcquireRequest) { r.Workers.Lo = -1 }, hapax.ErrInvalidArgument},
		{"a list outside the range", func(r *hapax.AcquireRequest) { r.Among = []int64{3, 4} }, hapax.ErrInvalidArgument},
		{"a list in disorder", func(r *hapax.AcquireRequest) { r.Among = []int64{2, 1} }, hapax.ErrInvalidArgument},
		{"no holder", func(r *hapax.AcquireRequest) { r.Holder = "" }, hapax.ErrInvalidArgument},
		{"a long holder", func(r *hapax.AcquireRequest) { r.Holder = strings.Repeat("x", 129) }, hapax.ErrInvalidArgument},
		{"workers that the layout has not", func(r *hapax.AcquireRequest) { r.Workers.Hi = 1025 }, hapax.ErrInvalidArgument},
		{"no layout", func(r *hapax.AcquireRequest) { r.Layout = hapax.Layout{} }, hapax.ErrInvalidLayout},
		{"a clock before the epoch", func(r *hapax.AcquireRequest) { r.Term.Now = now.Add(-time.Hour) }, hapax.ErrFieldRange},
		{"a grant that would be absurd", func(r *hapax.AcquireRequest) { r.Term.Length = hapax.PoisonMargin + time.Second }, hapax.ErrInvalidArgument},
		{"a negative lease", func(r *hapax.AcquireRequest) { r.Term.TTL = -1 }, hapax.ErrInvalidArgument},
	} {
		req := e.request("pool")
		c.change(&req)
		_, err := e.workers.AcquireWorker(e.ctx, req)
		e.wantErr(c.name, err, c.sentinel)
	}
	rows, err := e.pools.Workers(e.ctx, e.name("pool"))
	e.must(err)
	equal(e, "the number of workers after bad requests", len(rows), 0)
}

// checkPoolNames: every valid name is a pool of its own, and a holder is any
// short text.
func checkPoolNames(e *env) {
	names := append([]string{strings.Repeat("x", hapax.MaxTagBytes-len(e.prefix))}, oddNames...)
	for i, name := range names {
		req := e.request(name)
		req.Workers = hapax.WorkerRange{Lo: int64(i), Hi: int64(i + 1)}
		req.Holder = strings.Repeat("h", i%hapax.MaxTagBytes) + "é"
		lease := e.acquire(req)
		e.wantRow(lease, now.Add(ttl))
	}
	for i, name := range names {
		rows, err := e.pools.Workers(e.ctx, e.name(name))
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
		req.Workers = hapax.WorkerRange{Lo: 0, Hi: instances}
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
			req.Workers.Hi, req.Term.TTL = 3, time.Millisecond
			lease, err := h.workers.AcquireWorker(ctx, req)
			if errors.Is(err, hapax.ErrNoWorker) {
				continue
			}
			if err != nil {
				return err
			}
			last := lease.Grant.Hi
			if rand.IntN(2) == 0 {
				longer, err := h.workers.ExtendWorker(ctx, lease, layout, e.extension(last+rand.Int64N(30)))
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
	if got.Mark != 1010 || got.Token != row.Token || got.Holder != row.Holder || got.Expires.After(now) {
		e.Errorf("the sealed worker is %+v; want %+v", got, row)
	}
	req.Layout = otherLayout
	_, err := e.workers.AcquireWorker(e.ctx, req)
	e.wantErr("AcquireWorker with another layout", err, hapax.ErrLayoutMismatch)
	equal(e, "the extension under the next handle", e.extend(held, 2000).Grant, hapax.Grant{Lo: 1234, Hi: 2000})
}

// checkAmong: of a list of worker IDs each is taken once, and no other.
func checkAmong(e *env) {
	req := e.request("pool")
	req.Workers, req.Among = hapax.WorkerRange{Lo: 1, Hi: 100}, []int64{3, 7, 99}
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
	req.Workers = hapax.WorkerRange{Lo: 1, Hi: 2}
	_, err := e.pools.RetireWorker(e.ctx, req.Pool, 1)
	e.wantErr("retiring a worker that was never used", err, hapax.ErrInvalidArgument)

	lease := e.acquire(at(req, "a", dayAndMore))
	mark := lease.Grant.Hi
	_, err = e.workers.AcquireWorker(e.ctx, at(req, "b", 0))
	e.wantErr("AcquireWorker before the worker is retired", err, hapax.ErrWorkerPoisoned)
	retired, err := e.pools.RetireWorker(e.ctx, req.Pool, 1)
	e.must(err)
	row := e.row(lease)
	if row.Mark != mark || row.Token <= lease.Token || !row.Retired() || row.Expires.After(now) || retired.Token != row.Token || retired.Mark != row.Mark {
		e.Errorf("the worker is %+v, returned was %+v; want the mark of %+v, a higher token, no holder and no lease", row, retired, lease)
	}
	_, err = e.workers.ExtendWorker(e.ctx, lease, layout, e.extension(2_000_000))
	e.wantLost("extend after the worker was retired", err, row)
	e.wantLost("seal after the worker was retired", e.workers.SealWorker(e.ctx, lease, lease.From), row)

	_, err = e.workers.AcquireWorker(e.ctx, at(req, "b", 0))
	no, ok := errors.AsType[*hapax.NoWorkerError](err)
	if want := now.Add(time.Duration(mark-1000) * time.Millisecond); !ok || !no.NextFree.Equal(want) {
		e.Errorf("before the mark: error is %+v; want a NoWorkerError until %v", err, want)
	}
	equal(e, "the first tick after the mark", e.acquire(at(req, "b", mark-1000)).Grant.Lo, mark)
}
