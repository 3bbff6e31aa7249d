// Package watch is the store as a service sees it: it notes what the calls tell of the
// store's health, and has every grant recorded in the ledger before it is used.
package watch

import (
	"context"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/ledger"
	"github.com/hapax-id/hapax/internal/service/define"
	"github.com/hapax-id/hapax/store/driver"
)

// A Store is a store that is watched.
type Store struct {
	*watched
	reason    *Reason     // how the last grant went; may be nil
	tag       *define.Tag // the tag that it is for; may be nil
	impatient bool        // questions are answered at once while the store is known to be away
}

// watched is what all views of a store share: there is one view for each tag in use.
type watched struct {
	driver.Store
	*health

	ledger  *ledger.Ledger // nil: nothing is recorded
	timeout time.Duration  // bounds one answer
	maker   func(define.Tag) string

	admitLine    func(ctx context.Context, tag string) error // before a grant; may be nil
	admitWorkers func(ctx context.Context, req *hapax.AcquireRequest) error
}

// Admit has a grant of a tag's, and a lease on a pool's worker, admitted first. It is
// called before the store is used.
func (w *Store) Admit(line func(ctx context.Context, tag string) error, workers func(ctx context.Context, req *hapax.AcquireRequest) error) {
	w.admitLine, w.watched.admitWorkers = line, workers
}

var (
	_ driver.Store = (*Store)(nil)
	_ driver.Clock = (*Store)(nil)
)

// New returns a store of which one answer may take so long. The ledger, which may be nil,
// records each grant with the maker of other numbers from a tag's.
func New(store driver.Store, l *ledger.Ledger, timeout time.Duration, maker func(define.Tag) string) *Store {
	h := &health{asked: map[*time.Time]struct{}{}, refused: map[Line]error{}}
	return &Store{watched: &watched{Store: store, health: h, ledger: l, timeout: timeout, maker: maker}}
}

// Telling returns the same store for one opening issuer: the reason is how each grant went,
// which is what callers wait for.
func (w *Store) Telling(reason *Reason) *Store {
	return &Store{w.watched, reason, w.tag, w.impatient}
}

// Impatient returns the same store for a cache in front of it, which can do without: while
// the store is known to be away, questions about it are answered at once.
func (w *Store) Impatient() *Store {
	return &Store{w.watched, w.reason, w.tag, true}
}

// Of returns the same store for grants of one tag, lest each has its Extra read anew.
func (w *Store) Of(t define.Tag) *Store {
	if t.Extra == "" { // nothing to read, and there is a view for each tag in use
		return w
	}
	return &Store{w.watched, w.reason, &t, w.impatient}
}

// known returns the trouble with the store, for a caller that does not wait.
func (w *Store) known() error {
	if !w.impatient {
		return nil
	}
	return w.Trouble()
}

// granted notes how a grant of a line went.
func (w *Store) granted(line Line, err error) {
	w.Note(line, err)
	if w.reason != nil {
		w.reason.Set(err)
	}
}

// call makes one call and notes what it tells of the store.
func call[T any](ctx context.Context, w *Store, f func(context.Context) (T, error)) (T, error) {
	defer w.begin()()
	// A bound of its own, lest the caller's end hide that the store hangs: what is told below is the
	// store's trouble, which readiness shows.
	asking, cancel := context.WithTimeout(ctx, w.timeout)
	defer cancel()
	v, err := f(asking)
	err = hapax.StoreError(err)
	switch {
	case isGuarded(err):
	case isBarred(err):
		w.Tell(err)
	// Any other error is an answer, so that the store is there.
	case !IsAway(err):
		w.Tell(nil)
	case ctx.Err() == nil: // else it was the caller who did not wait
		w.Tell(err)
	}
	return v, err
}

// StoreID implements driver.Store.
func (w *Store) StoreID(ctx context.Context) (string, error) {
	if err := w.known(); err != nil {
		return "", err
	}
	return w.Store.StoreID(ctx)
}

// Ping implements driver.Store.
func (w *Store) Ping(ctx context.Context) error {
	_, err := call(ctx, w, func(ctx context.Context) (struct{}, error) { return struct{}{}, w.Store.Ping(ctx) })
	if err == nil {
		w.admit()
	}
	return err
}

// Tag implements driver.TagStore.
func (w *Store) Tag(ctx context.Context, name string) (hapax.Tag, error) {
	return call(ctx, w, func(ctx context.Context) (hapax.Tag, error) { return w.Store.Tag(ctx, name) })
}

// Definition returns a tag with its Extra read. Errors are those of Tag.
func (w *Store) Definition(ctx context.Context, name string) (define.Tag, error) {
	t, err := w.Tag(ctx, name)
	return define.Read(t), err
}

// Tags implements driver.TagStore.
func (w *Store) Tags(ctx context.Context, after string, limit int) ([]hapax.Tag, error) {
	return call(ctx, w, func(ctx context.Context) ([]hapax.Tag, error) { return w.Store.Tags(ctx, after, limit) })
}

// Pools implements driver.PoolStore.
func (w *Store) Pools(ctx context.Context) ([]driver.Pool, error) {
	if err := w.known(); err != nil {
		return nil, err
	}
	return call(ctx, w, func(ctx context.Context) ([]driver.Pool, error) { return w.Store.Pools(ctx) })
}

// StoreTime implements driver.Clock for stores that do.
func (w *Store) StoreTime(ctx context.Context) (time.Time, error) {
	if err := w.known(); err != nil {
		return time.Time{}, err
	}
	clock, ok := w.Store.(driver.Clock)
	if !ok {
		return time.Time{}, hapax.ErrNotSupported
	}
	return call(ctx, w, func(ctx context.Context) (time.Time, error) { return clock.StoreTime(ctx) })
}

// Allocate implements hapax.SegmentStore.
func (w *Store) Allocate(ctx context.Context, tag string, n int64, last hapax.GrantKey) (hapax.Allocation, error) {
	// Before the store is asked: a grant that cannot be recorded is not to be taken.
	if err := w.ledger.Ready(); err != nil {
		return hapax.Allocation{}, err
	}
	if w.admitLine != nil {
		if err := w.admitLine(ctx, tag); err != nil {
			w.granted(Tag(tag), err)
			return hapax.Allocation{}, err
		}
	}
	a, err := call(ctx, w, func(ctx context.Context) (hapax.Allocation, error) { return w.Store.Allocate(ctx, tag, n, last) })
	w.granted(Tag(tag), err)
	// Recorded before it is used: on an error nobody gets the segment, which is a gap then.
	if err == nil {
		var known define.Tag
		if w.tag != nil {
			known = *w.tag
		}
		err = w.ledger.Allocated(a, grantee(ctx), w.maker(known.Now(a.Tag)))
	}
	return a, err
}

// HandBack implements hapax.SegmentStore.
func (w *Store) HandBack(ctx context.Context, a hapax.Allocation, next int64) error {
	err := w.Store.HandBack(ctx, a, next)
	w.ledger.HandedBack(a, next, grantee(ctx), err)
	return err
}

// AcquireWorker implements hapax.WorkerStore.
func (w *Store) AcquireWorker(ctx context.Context, req hapax.AcquireRequest) (hapax.Lease, error) {
	if err := w.ledger.Ready(); err != nil {
		return hapax.Lease{}, err
	}
	if w.admitWorkers != nil {
		if err := w.admitWorkers(ctx, &req); err != nil {
			w.granted(Pool(req.Pool), err)
			return hapax.Lease{}, err
		}
	}
	l, err := call(ctx, w, func(ctx context.Context) (hapax.Lease, error) { return w.Store.AcquireWorker(ctx, req) })
	w.granted(Pool(req.Pool), err)
	if err == nil {
		err = w.ledger.Acquired(l, req.Layout, grantee(ctx))
	}
	return l, err
}

// ExtendWorker implements hapax.WorkerStore.
func (w *Store) ExtendWorker(ctx context.Context, lease hapax.Lease, layout hapax.Layout, term hapax.Term) (hapax.Lease, error) {
	if err := w.ledger.Ready(); err != nil {
		return lease, err
	}
	l, err := call(ctx, w, func(ctx context.Context) (hapax.Lease, error) { return w.Store.ExtendWorker(ctx, lease, layout, term) })
	w.Note(Pool(lease.Pool), err)
	if err == nil {
		err = w.ledger.Extended(l, layout, grantee(ctx))
	}
	// As if it had not been extended: the holder asks again from the end that it knows.
	if err != nil {
		return lease, err
	}
	return l, nil
}

// SealWorker implements hapax.WorkerStore.
func (w *Store) SealWorker(ctx context.Context, lease hapax.Lease, last int64) error {
	err := w.Store.SealWorker(ctx, lease, last)
	w.ledger.Sealed(lease, last, grantee(ctx), err)
	return err
}

type granteeKey struct{}

// For returns a context in which grants are for the caller, and not for this node.
func For(ctx context.Context, by ledger.By) context.Context {
	return context.WithValue(ctx, granteeKey{}, by)
}

// grantee returns the caller for which a grant is taken.
func grantee(ctx context.Context) ledger.By {
	by, _ := ctx.Value(granteeKey{}).(ledger.By)
	return by
}
