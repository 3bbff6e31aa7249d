package driver

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/hapax-id/hapax"
)

// swapAttempts bounds how often a lost race is tried again.
const swapAttempts = 1000

// Leases are the pools and workers of a store, over its rows. They implement
// hapax.WorkerStore and [PoolStore].
type Leases struct{ rows Rows }

// LeasesIn returns the leases that the rows hold.
func LeasesIn(rows Rows) Leases { return Leases{rows} }

// A poolRow is a pool as it is stored.
type poolRow struct {
	Layout  string `json:"layout"`
	Deleted string `json:"deleted,omitempty"` // of a tombstone: a random text
}

// A workerRow is a worker as it is stored.
type workerRow struct {
	Mark    int64  `json:"mark"`
	From    int64  `json:"from"`
	Token   int64  `json:"token"`
	KeyHash string `json:"key_hash,omitempty"` // empty: nobody holds the worker
	Holder  string `json:"holder,omitempty"`
	Expires int64  `json:"expires_ms,omitempty"` // Unix milliseconds
	Node    string `json:"node,omitempty"`       // earlier versions wrote it; it is dropped
}

// A worker is a row together with the bytes it was read from, by which it is
// swapped.
type worker struct {
	Worker
	keyHash string
	raw     []byte // nil: there is no row
}

func (w worker) encode() []byte {
	return EncodeRow(workerRow{w.Mark, w.From, w.Token, w.keyHash, w.Holder, w.Expires.UnixMilli(), ""})
}

// RowOfWorker returns the row of a worker that nobody holds a lease on, for stores that
// kept workers otherwise before.
func RowOfWorker(w Worker) (table, name string, value []byte) {
	w.From = w.Mark
	return tableWorkers + w.Pool, workerName(w.ID), worker{Worker: w}.encode()
}

// EncodeRow returns a row as JSON. It takes a struct of strings, numbers and truth values.
func EncodeRow(row any) []byte {
	raw, err := json.Marshal(row)
	if err != nil {
		panic(err) // rows hold nothing else
	}
	return raw
}

// DecodeRow reads a row's value as JSON into row. A field that is not known was
// written by a later version or by hand: it is refused, because rewriting the
// row would drop it.
func DecodeRow(table, name string, value []byte, row any) error {
	if err := decodeStrictly(table, name, value, row); err != nil {
		return fmt.Errorf("%w: %w", hapax.ErrStoreCorrupt, err)
	}
	return nil
}

func decodeStrictly(table, name string, value []byte, row any) error {
	d := json.NewDecoder(bytes.NewReader(value))
	d.DisallowUnknownFields()
	err := d.Decode(row)
	// Whatever follows would be dropped when the row is written anew, as would an unknown field.
	if err == nil && len(bytes.TrimSpace(value[d.InputOffset():])) > 0 {
		err = fmt.Errorf("something follows the object")
	}
	if err != nil {
		return fmt.Errorf("row %q of table %q: %w", name, table, err)
	}
	return nil
}

// DecodeIdentity reads what a store says of itself, as JSON, into row, and returns the store's ID.
// The place is where it stands, and known the format of this build.
func DecodeIdentity(place, name string, value []byte, known int64, row any) (id string, err error) {
	var said struct { // another format may come with other fields
		ID     any
		Format int64
	}
	if json.Unmarshal(value, &said) == nil {
		if err := CheckFormat(place, said.Format, known); err != nil {
			return "", err
		}
	}
	if err := DecodeRow("store", name, value, row); err != nil {
		return "", err
	}
	if id, _ = said.ID.(string); id == "" {
		err = fmt.Errorf("%w: %s: id is missing", hapax.ErrStoreCorrupt, place)
	}
	return id, err
}

// workerName returns the name of a worker's row: digits that sort as numbers do.
func workerName(id int64) string { return fmt.Sprintf("%019d", id) }

func decodeWorker(pool, name string, raw []byte) (worker, error) {
	table := tableWorkers + pool
	id, err := strconv.ParseInt(name, 10, 64)
	// Under another spelling of its ID a worker would have two timelines.
	if err != nil || workerName(id) != name {
		return worker{}, fmt.Errorf("%w: row %q of table %q is not named after a worker ID", hapax.ErrStoreCorrupt, name, table)
	}
	var row workerRow
	if err := DecodeRow(table, name, raw, &row); err != nil {
		return worker{}, err
	}
	if row.Token < 1 || row.Token >= MaxToken || row.Mark < 0 || row.From < 0 || row.From > row.Mark {
		return worker{}, fmt.Errorf("%w: row %q of table %q has token %d, mark %d and from %d", hapax.ErrStoreCorrupt, name, table, row.Token, row.Mark, row.From)
	}
	return worker{Worker{
		Pool: pool, ID: id, Mark: row.Mark, From: row.From, Token: row.Token, Holder: row.Holder, Expires: time.UnixMilli(row.Expires).UTC(),
	}, row.KeyHash, raw}, nil
}

// read returns one worker; the zero Token says that it was never used.
func (l Leases) read(ctx context.Context, pool string, id int64) (worker, error) {
	raw, err := l.rows.Row(ctx, tableWorkers+pool, workerName(id))
	if err != nil || raw == nil {
		return worker{Worker: Worker{Pool: pool, ID: id}}, err
	}
	return decodeWorker(pool, workerName(id), raw)
}

// swap writes next if the row is still old's.
func (l Leases) swap(ctx context.Context, old, next worker) (bool, error) {
	return l.rows.SwapRow(ctx, tableWorkers+old.Pool, workerName(old.ID), old.raw, next.encode())
}

// list returns the workers of a pool that were ever used, by ID.
func (l Leases) list(ctx context.Context, pool string) ([]worker, error) {
	var workers []worker
	err := AllRows(ctx, l.rows, tableWorkers+pool, func(r Row) error {
		w, err := decodeWorker(pool, r.Name, r.Value)
		workers = append(workers, w)
		return err
	})
	if err != nil {
		return nil, err
	}
	return workers, nil
}

// Workers implements [PoolStore].
func (l Leases) Workers(ctx context.Context, pool string) ([]Worker, error) {
	if err := hapax.ValidateName("pool", pool); err != nil {
		return nil, err
	}
	rows, err := l.list(ctx, pool)
	var workers []Worker
	for _, w := range rows {
		workers = append(workers, w.Worker)
	}
	return workers, err
}

// AcquireWorker implements hapax.WorkerStore.
//
// Eligible is a worker whose mark is at or below the caller's clock plus
// Term.Ahead, so that its grant is not open, and that nobody else holds a
// running lease on. One's own previous worker comes first, then one that was
// never used, then the one whose mark is oldest. After a lost race the choice is
// random, so that many instances that start at once spread out.
func (l Leases) AcquireWorker(ctx context.Context, req hapax.AcquireRequest) (hapax.Lease, error) {
	a, err := newAcquisition(req)
	if err != nil {
		return hapax.Lease{}, err
	}
	if err := l.freezePool(ctx, req.Pool, req.Layout.String()); err != nil {
		return hapax.Lease{}, err
	}
	for attempt := range swapAttempts {
		rows, err := l.candidates(ctx, a)
		if err != nil {
			return hapax.Lease{}, err
		}
		old, err := a.pick(rows, attempt)
		if err != nil {
			return hapax.Lease{}, err
		}
		lo := max(old.Mark, a.floor, 0)
		if lo >= a.end {
			return hapax.Lease{}, fmt.Errorf("%w: pool %q, worker %d", hapax.ErrTimeExhausted, req.Pool, old.ID)
		}
		next := old
		key, hash := NewKey()
		next.Mark, next.From = a.reach(lo), lo
		next.Token++
		next.keyHash, next.Holder, next.Expires = hash, req.Holder, expiry(req.Term)
		ok, err := l.swap(ctx, old, next)
		if err != nil {
			return hapax.Lease{}, err
		}
		if !ok {
			continue
		}
		// The pool may have been deleted, and created with another layout, since
		// it was looked at.
		if err := l.freezePool(ctx, req.Pool, req.Layout.String()); err != nil {
			if old.raw == nil && errors.Is(err, hapax.ErrLayoutMismatch) {
				err = errors.Join(err, l.takeBack(ctx, next))
			}
			return hapax.Lease{}, err
		}
		return hapax.Lease{
			Pool: req.Pool, Worker: next.ID, Token: next.Token, Key: key, Holder: next.Holder,
			Grant: hapax.Grant{Lo: lo, Hi: next.Mark}, From: lo, Expires: next.Expires,
		}, nil
	}
	return hapax.Lease{}, lostRaces("pool", req.Pool)
}

// takeBack ends the first lease of a worker of which nothing was used, and whose mark counts the ticks of
// a layout that its pool does not have any more: by those of the other one it may be centuries ahead. The
// token is raised as by a seal, so that the row is not behind itself.
func (l Leases) takeBack(ctx context.Context, w worker) error {
	w.raw = w.encode()
	next := w
	next.Mark, next.From, next.keyHash, next.Expires = 0, 0, "", time.UnixMilli(0)
	next.Token++
	_, err := l.swap(ctx, w, next) // not done: somebody has changed the row meanwhile
	return err
}

// candidates returns the existing rows among the worker IDs that may be used.
func (l Leases) candidates(ctx context.Context, a acquisition) ([]worker, error) {
	if a.size() == 1 {
		w, err := l.read(ctx, a.Pool, a.nth(0))
		if err != nil || w.raw == nil {
			return nil, err
		}
		return []worker{w}, nil
	}
	rows, err := l.list(ctx, a.Pool)
	return slices.DeleteFunc(rows, func(w worker) bool { return !a.allows(w.ID) }), err
}

// ExtendWorker implements hapax.WorkerStore. Where the last answer got through
// it is one round trip.
func (l Leases) ExtendWorker(ctx context.Context, lease hapax.Lease, layout hapax.Layout, term hapax.Term) (hapax.Lease, error) {
	t, err := newTicks(layout, term)
	if err != nil {
		return lease, err
	}
	if err := checkLease(lease, layout); err != nil {
		return lease, err
	}
	// As if the last answer had got through, which saves the read: the swap fails where it did not.
	old := asLeased(lease)
	for attempt := range swapAttempts {
		if attempt > 0 {
			if old, err = l.read(ctx, lease.Pool, lease.Worker); err != nil {
				return lease, err
			}
			if err := old.heldUnder(lease); err != nil {
				return lease, err
			}
		}
		if lease.Grant.Hi >= t.end {
			return lease, fmt.Errorf("%w: pool %q, worker %d", hapax.ErrTimeExhausted, lease.Pool, lease.Worker)
		}
		next := old
		// The row is further where an extension was made whose answer was lost, and that is this lease's, too.
		next.Mark = max(old.Mark, t.reach(lease.Grant.Hi))
		next.Expires = expiry(term)
		if bytes.Equal(next.encode(), old.raw) { // an extension whose answer was lost, in the same millisecond
			next.Expires = next.Expires.Add(time.Millisecond)
		}
		ok, err := l.swap(ctx, old, next)
		if err != nil {
			return lease, err
		}
		if ok {
			lease.Grant, lease.Expires = hapax.Grant{Lo: lease.Grant.Hi, Hi: next.Mark}, next.Expires
			lease.From = next.From
			return lease, nil
		}
	}
	return lease, lostRaces("worker of pool", lease.Pool)
}

// expiry returns when a term ends for others, as rows keep it.
func expiry(t hapax.Term) time.Time { return t.Now.Add(t.TTL).Truncate(time.Millisecond).UTC() }

// asLeased returns the worker as it is stored while nothing has changed since the
// lease was granted.
func asLeased(l hapax.Lease) worker {
	w := worker{Worker: Worker{
		Pool: l.Pool, ID: l.Worker, Mark: l.Grant.Hi, From: l.From, Token: l.Token, Holder: l.Holder, Expires: l.Expires,
	}, keyHash: HashKey(l.Key)}
	w.raw = w.encode()
	return w
}

// heldUnder returns why a lease does not hold the worker, or nil. Fencing tokens
// and marks only grow, and a token is given once: a row that is behind the lease,
// or that somebody else has under the same token, was put back. The error does
// not tell what would have been right.
func (w worker) heldUnder(lease hapax.Lease) error {
	switch {
	case w.Token < lease.Token, w.Token == lease.Token && !holds(lease.Key, w.keyHash), w.Token == lease.Token && w.Mark < lease.Grant.Hi:
		return fmt.Errorf("%w: pool %q, worker %d: the row is behind the lease", hapax.ErrStoreRolledBack, lease.Pool, lease.Worker)
	case w.Token > lease.Token:
		return notHeld(lease)
	}
	return nil
}

func notHeld(lease hapax.Lease) error {
	return fmt.Errorf("%w: pool %q, worker %d", hapax.ErrLeaseLost, lease.Pool, lease.Worker)
}

// checkLease judges what the caller calls its lease.
func checkLease(lease hapax.Lease, layout hapax.Layout) error {
	if err := hapax.ValidateName("pool", lease.Pool); err != nil {
		return err
	}
	switch {
	case lease.Worker < 0 || !layout.IsZero() && lease.Worker >= layout.Workers():
		return &hapax.ValueError{Field: "worker", Value: lease.Worker, Allowed: "a worker ID of the pool's layout", Err: hapax.ErrInvalidArgument}
	case lease.Token < 1:
		return &hapax.ValueError{Field: "token", Value: lease.Token, Allowed: "1 or more", Err: hapax.ErrInvalidArgument}
	case lease.Grant.Lo < 0 || lease.Grant.Hi < lease.Grant.Lo:
		return &hapax.ValueError{Field: "grant", Value: fmt.Sprintf("[%d, %d)", lease.Grant.Lo, lease.Grant.Hi), Allowed: "a stretch of ticks", Err: hapax.ErrInvalidArgument}
	}
	return nil
}

// SealWorker implements hapax.WorkerStore. The raised token makes a late or
// repeated seal do nothing. The row keeps the name of its last holder, who thus
// finds its own worker ID again.
func (l Leases) SealWorker(ctx context.Context, lease hapax.Lease, last int64) error {
	if err := checkLease(lease, hapax.Layout{}); err != nil {
		return err
	}
	// Read and not guessed: where the answer to an extension was lost the mark is higher, and nothing may be
	// lowered.
	old, err := l.read(ctx, lease.Pool, lease.Worker)
	switch {
	case err != nil:
		return err
	case old.Token != lease.Token || !holds(lease.Key, old.keyHash) || old.Mark != lease.Grant.Hi:
		return notHeld(lease)
	case last < old.From || last > old.Mark:
		return &hapax.ValueError{Field: "last", Value: last, Allowed: "a tick that was granted under this lease, or the end of its grant", Err: hapax.ErrInvalidArgument}
	}
	next := old
	next.Mark, next.From = last, last
	next.Token++
	next.keyHash, next.Expires = "", time.UnixMilli(0)
	ok, err := l.swap(ctx, old, next)
	if err == nil && !ok {
		err = notHeld(lease)
	}
	return err
}

// RetireWorker implements [PoolStore]. The worker has no holder then.
func (l Leases) RetireWorker(ctx context.Context, pool string, id int64) (Worker, error) {
	return l.changeWorker(ctx, pool, id, func(w *worker) error {
		if w.raw == nil {
			return &hapax.ValueError{Field: hapax.FieldWorker, Value: id, Allowed: fmt.Sprintf("a worker ID of pool %q that was used", pool), Err: hapax.ErrInvalidArgument}
		}
		w.Holder = ""
		return nil
	})
}

// RaiseWorker sets a worker's mark to at least mark and ends the lease on it, for
// an operator sure that the store is behind.
func (l Leases) RaiseWorker(ctx context.Context, pool string, id, mark int64) (Worker, error) {
	if id < 0 || mark < 0 {
		return Worker{}, &hapax.ValueError{Field: "worker", Value: fmt.Sprintf("%d with mark %d", id, mark), Allowed: "0 or more each", Err: hapax.ErrInvalidArgument}
	}
	return l.changeWorker(ctx, pool, id, func(w *worker) error {
		w.Mark, w.Holder = max(w.Mark, mark), ""
		return nil
	})
}

// HealWorker implements [Healing]. A worker ID that somebody held is left to its
// holder, which finds it again as after a seal.
func (l Leases) HealWorker(ctx context.Context, layout string, w Worker) (Worker, error) {
	if w.ID < 0 || w.Mark < 0 || w.Token < 0 || w.Token >= MaxToken {
		return Worker{}, &hapax.ValueError{Field: "worker", Value: fmt.Sprintf("%d with mark %d and token %d", w.ID, w.Mark, w.Token), Allowed: fmt.Sprintf("0 or more each, and a token below %d", int64(MaxToken)), Err: hapax.ErrInvalidArgument}
	}
	_, err := l.changePool(ctx, w.Pool, func(p Pool) (Pool, error) {
		switch {
		case p.Layout == "":
			p.Layout = layout
			return p, checkLayout(layout)
		case p.Layout != layout:
			return p, otherLayout(p, layout)
		}
		return p, errUnchanged
	})
	if err != nil {
		return Worker{}, err
	}
	return l.changeWorker(ctx, w.Pool, w.ID, func(next *worker) error {
		if next.raw == nil {
			next.Holder = w.Holder
		}
		next.Mark, next.Token = max(next.Mark, w.Mark), max(next.Token, w.Token)
		return nil
	})
}

// changeWorker applies f to a worker and ends the lease on it.
func (l Leases) changeWorker(ctx context.Context, pool string, id int64, f func(*worker) error) (Worker, error) {
	if err := hapax.ValidateName("pool", pool); err != nil {
		return Worker{}, err
	}
	for range swapAttempts {
		old, err := l.read(ctx, pool, id)
		if err != nil {
			return Worker{}, err
		}
		next := old
		if err := f(&next); err != nil {
			return Worker{}, err
		}
		next.Token++
		next.From, next.keyHash, next.Expires = next.Mark, "", time.UnixMilli(0).UTC()
		if ok, err := l.swap(ctx, old, next); err != nil || ok {
			return next.Worker, err
		}
	}
	return Worker{}, lostRaces("worker of pool", pool)
}

func lostRaces(what, name string) error {
	return fmt.Errorf("%w: %s %q: lost %d races", hapax.ErrStoreUnavailable, what, name, swapAttempts)
}
