package storetest

import (
	"fmt"
	"math"
	"time"

	"github.com/hapax-id/hapax"
)

var leaseChecks = []check{
	{"leases/extend", always, checkExtend},
	{"leases/extend under an old token", always, checkExtendOldToken},
	{"leases/lost answer", always, checkLostAnswer},
	{"leases/key", always, checkLeaseKey},
	{"leases/rolled back", always, checkRolledBack},
	{"leases/seal", always, checkSeal},
	{"leases/late seal", always, checkLateSeal},
	{"leases/bad requests", always, checkBadLeases},
}

// checkExtend: an extension grants from the mark that is stored to the tick
// that was asked for, one tick at least.
func checkExtend(e *env) {
	lease := e.acquire(e.request("pool"))
	token := lease.Token
	for _, c := range []struct{ to, lo, hi int64 }{{1200, 1100, 1200}, {1150, 1200, 1201}, {0, 1201, 1202}, {80_000_000, 1202, 80_000_000}} {
		lease = e.extend(lease, c.to)
		equal(e, "the extension", lease.Grant, hapax.Grant{Lo: c.lo, Hi: c.hi})
		equal(e, "the lease's first tick", lease.From, 1000)
		equal(e, "the token", lease.Token, token)
	}
	term := e.extension(80_000_001)
	term.Now, term.TTL = now.Add(time.Hour), time.Minute
	lease, err := e.workers.ExtendWorker(e.ctx, lease, layout, term)
	e.must(err)
	e.wantRow(lease, now.Add(time.Hour+time.Minute))
}

func checkExtendOldToken(e *env) {
	req := e.request("pool")
	req.Workers = hapax.WorkerRange{Lo: 1, Hi: 2}
	lost := e.acquire(at(req, "a", 0))
	e.acquire(at(req, "b", 20_000))
	row := e.row(lost)
	_, err := e.workers.ExtendWorker(e.ctx, lost, layout, e.extension(30_000))
	e.wantLost("extend after somebody else took the worker", err, row)

	same := lost // even if the mark is by chance the one that the lease knows
	same.Grant.Hi = row.Mark
	_, err = e.workers.ExtendWorker(e.ctx, same, layout, e.extension(30_000))
	e.wantLost("extend under an old token from the right mark", err, row)

	req.Workers = hapax.WorkerRange{Lo: 2, Hi: 3}
	sealed := e.acquire(at(req, "c", 0))
	e.must(e.workers.SealWorker(e.ctx, sealed, sealed.Grant.Hi))
	row = e.row(sealed)
	_, err = e.workers.ExtendWorker(e.ctx, sealed, layout, e.extension(30_000))
	e.wantLost("extend after the seal", err, row)
}

// checkSeal: a seal gives the unused rest of the lease to the next holder, who
// need not wait, and grows the token.
func checkSeal(e *env) {
	req := e.request("pool")
	req.Workers = hapax.WorkerRange{Lo: 1, Hi: 2}
	token, mark := int64(0), int64(1000)
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
		if lease.Token <= token {
			e.Errorf("%s: the token went from %d to %d", c.name, token, lease.Token)
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
		token = row.Token
		if row.Mark != mark || row.Token <= lease.Token || row.Holder != lease.Holder || row.Expires.After(now) {
			e.Errorf("%s: the worker is %+v; want mark %d, an token above %d, its last holder and no lease", c.name, row, mark, lease.Token)
		}
	}
}

// checkLateSeal: a seal that is repeated or late does nothing.
func checkLateSeal(e *env) {
	req := e.request("pool")
	req.Workers = hapax.WorkerRange{Lo: 1, Hi: 2}
	lease := e.acquire(at(req, "a", 0))
	e.must(e.workers.SealWorker(e.ctx, lease, 1100))
	e.wantLost("a repeated seal", e.workers.SealWorker(e.ctx, lease, 1050), e.row(lease))

	next := e.acquire(at(req, "b", 100))
	e.wantLost("a seal after somebody else took the worker", e.workers.SealWorker(e.ctx, lease, 1050), e.row(lease))
	stale := lease // even if the mark is by chance the one that the lease knows
	stale.Grant.Hi = next.Grant.Hi
	e.wantLost("a seal under an old token at the right mark", e.workers.SealWorker(e.ctx, stale, 1050), e.row(lease))

	never := hapax.Lease{Pool: req.Pool, Worker: 3, Token: 1, Holder: "a", Grant: hapax.Grant{Lo: 1, Hi: 2}, From: 1}
	e.wantErr("a seal of a worker that was never acquired", e.workers.SealWorker(e.ctx, never, 1), hapax.ErrLeaseLost)
}

// checkLostAnswer: a lease that does not know of its own extension gets what was
// granted then together with later ones, and cannot be sealed before.
func checkLostAnswer(e *env) {
	lease := e.acquire(e.request("pool"))
	e.extend(lease, 1200) // the answer is lost
	e.wantLost("a seal that does not know the mark", e.workers.SealWorker(e.ctx, lease, 1050), e.row(lease))
	for _, c := range []struct{ to, hi int64 }{{1200, 1200}, {1200, 1200}, {1150, 1200}, {1300, 1300}} { // and lost again
		again := e.extend(lease, c.to)
		equal(e, "the extension after a lost one", again.Grant, hapax.Grant{Lo: 1100, Hi: c.hi})
		equal(e, "the mark", e.row(lease).Mark, c.hi)
		equal(e, "the lease's first tick", again.From, 1000)
		equal(e, "the fencing token", again.Token, lease.Token)
		equal(e, "the key", again.Key, lease.Key)
	}
	again := e.extend(lease, 1300)
	e.must(e.workers.SealWorker(e.ctx, again, 1250))
	equal(e, "the mark", e.row(lease).Mark, 1250)
}

// checkLeaseKey: all of a lease but its key allows nothing, and
// every acquisition comes with a key of its own.
func checkLeaseKey(e *env) {
	req := e.request("pool")
	req.Workers = hapax.WorkerRange{Lo: 1, Hi: 2}
	lease := e.acquire(at(req, "a", 0))
	row := e.row(lease)
	for what, key := range map[string]hapax.GrantKey{"no key": "", "another key": "00000000000000000000000000000000", "a longer key": lease.Key + "0"} {
		forged := lease
		forged.Key = key
		_, err := e.workers.ExtendWorker(e.ctx, forged, layout, e.extension(2000))
		if err == nil {
			e.Errorf("an extension with %s was granted", what)
		}
		e.wantLost("a seal with "+what, e.workers.SealWorker(e.ctx, forged, 1000), row)
	}
	lease = e.extend(lease, 1200)
	e.must(e.workers.SealWorker(e.ctx, lease, 1100))
	next := e.acquire(at(req, "a", 100))
	if next.Key == lease.Key {
		e.Error("two acquisitions have the same key")
	}
	forged := next // token, mark and holder are right
	forged.Key = lease.Key
	row = e.row(next)
	e.wantLost("a seal with the key of an earlier lease", e.workers.SealWorker(e.ctx, forged, next.From), row)
	if _, err := e.workers.ExtendWorker(e.ctx, forged, layout, e.extension(2000)); err == nil {
		e.Error("an extension with the key of an earlier lease was granted")
	}
	equal(e, "the mark", e.row(next).Mark, row.Mark)
}

// checkRolledBack: a row that is behind the lease, or gone, tells that the store
// went back.
func checkRolledBack(e *env) {
	lease := e.acquire(e.request("pool"))
	row := e.row(lease)
	for what, ahead := range map[string]func(*hapax.Lease){
		"a lease that was granted more":       func(l *hapax.Lease) { l.Grant.Hi += 10 },
		"a lease under a later token":         func(l *hapax.Lease) { l.Token += 2 },
		"a lease on a worker that has no row": func(l *hapax.Lease) { l.Worker = 3 },
		"a lease of a pool that has no row":   func(l *hapax.Lease) { l.Pool = e.name("no pool") },
	} {
		known := lease
		ahead(&known)
		_, err := e.workers.ExtendWorker(e.ctx, known, layout, e.extension(2000))
		e.wantErr("the extension of "+what, err, hapax.ErrStoreRolledBack)
		e.wantErr("the seal of "+what, e.workers.SealWorker(e.ctx, known, known.From), hapax.ErrLeaseLost)
	}
	equal(e, "the worker", e.row(lease).Mark, row.Mark)
	rows, err := e.pools.Workers(e.ctx, lease.Pool)
	e.must(err)
	equal(e, "the number of workers", len(rows), 1)
}

func checkBadLeases(e *env) {
	lease := e.acquire(e.request("pool"))
	row := e.row(lease)
	for what, bad := range map[string]func(*hapax.Lease){
		"a negative worker":        func(l *hapax.Lease) { l.Worker = -1 },
		"no fencing token":         func(l *hapax.Lease) { l.Token = 0 },
		"a grant that ends before": func(l *hapax.Lease) { l.Grant.Lo = l.Grant.Hi + 1 },
		"negative ticks":           func(l *hapax.Lease) { l.Grant = hapax.Grant{Lo: -2, Hi: -1} },
	} {
		l := lease
		bad(&l)
		_, err := e.workers.ExtendWorker(e.ctx, l, layout, e.extension(2000))
		e.wantErr("the extension of a lease with "+what, err, hapax.ErrInvalidArgument)
		e.wantErr("the seal of a lease with "+what, e.workers.SealWorker(e.ctx, l, 1000), hapax.ErrInvalidArgument)
	}
	equal(e, "the mark", e.row(lease).Mark, row.Mark)
}
