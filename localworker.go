package hapax

import (
	"context"
	"crypto/rand"
)

// localWorker stands in for a store: one worker ID, remembered no longer than
// the issuer lives. Its first grant begins above whatever a previous process
// with a correct clock can have issued, which makes the issuer wait out a tick.
type localWorker struct {
	id   string
	mark int64 // used by one refill at a time
}

func newLocalWorker() *localWorker { return &localWorker{id: rand.Text()} }

func (w *localWorker) StoreID(context.Context) (string, error) { return w.id, nil }

func (w *localWorker) AcquireWorker(_ context.Context, req AcquireRequest) (Lease, error) {
	if req.Latest+1 >= req.End {
		return Lease{}, ErrTimeExhausted
	}
	g := Grant{req.Latest + 1, min(max(req.To, req.Latest+2), req.End)}
	w.mark = g.Hi
	return Lease{Pool: req.Pool, Worker: req.IDs.Lo, Epoch: 1, Holder: req.Holder, Grant: g, From: g.Lo}, nil
}

func (w *localWorker) ExtendWorker(_ context.Context, lease Lease, req ExtendRequest) (Lease, error) {
	if w.mark >= req.End {
		return lease, ErrTimeExhausted
	}
	lease.Grant = Grant{w.mark, min(max(req.To, w.mark+1), req.End)}
	w.mark = lease.Grant.Hi
	return lease, nil
}

func (*localWorker) SealWorker(context.Context, Lease, int64) error { return nil }

func (*localWorker) Workers(context.Context, string) ([]Worker, error) { return nil, ErrNotSupported }

func (*localWorker) Pools(context.Context) ([]Pool, error) { return nil, ErrNotSupported }
