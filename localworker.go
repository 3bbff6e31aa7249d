package hapax

import (
	"context"
	"time"
)

// localWorker stands in for a store: one worker ID, remembered no longer than
// the issuer lives. Its first grant begins above whatever a previous process
// with a correct clock can have issued, which makes the issuer wait out a tick.
type localWorker struct {
	mark int64 // used by one refill at a time
}

func (w *localWorker) AcquireWorker(_ context.Context, req AcquireRequest) (Lease, error) {
	latest, err := req.Layout.TickOf(req.Term.Now)
	if err != nil {
		return Lease{}, err
	}
	// The ID is asked for again after the machine was asleep, and the issuer refuses time that it took before.
	w.mark = max(w.mark, latest+int64(req.Term.Ahead/req.Layout.Unit())+1)
	lease := Lease{Pool: req.Pool, Worker: req.Workers.Lo, Token: 1, Holder: req.Holder, From: w.mark, Grant: Grant{w.mark, w.mark}}
	return w.ExtendWorker(context.Background(), lease, req.Layout, req.Term)
}

func (w *localWorker) ExtendWorker(_ context.Context, lease Lease, layout Layout, term Term) (Lease, error) {
	end := layout.EndTick()
	if w.mark >= end {
		return lease, ErrTimeExhausted
	}
	to, err := layout.TickOf(term.Now.Add(term.Length))
	if err != nil {
		to = end
	}
	lease.Grant = Grant{w.mark, min(max(to, w.mark+1), end)}
	lease.Expires = term.Now.Add(term.TTL).Truncate(time.Millisecond)
	w.mark = lease.Grant.Hi
	return lease, nil
}

func (*localWorker) SealWorker(context.Context, Lease, int64) error { return nil }
