package leaf

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/compat/keeper"
	"github.com/hapax-id/hapax/internal/durable"
)

// AcquireWorker implements hapax.WorkerStore. It grants this process's worker ID,
// above all that its node and its row tell of.
func (t *Tree) AcquireWorker(ctx context.Context, req hapax.AcquireRequest) (hapax.Lease, error) {
	if t.node == "" {
		return hapax.Lease{}, fmt.Errorf("%w: the tree was opened without an address, to look at", hapax.ErrNotSupported)
	}
	if req.Pool != hapax.DefaultPool { // else the worker IDs of the two would have two marks
		return hapax.Lease{}, &hapax.ValueError{Field: "pool", Value: req.Pool, Allowed: fmt.Sprintf("%q, the one pool of the tree", hapax.DefaultPool), Err: hapax.ErrInvalidArgument}
	}
	if req.Layout != t.layout {
		return hapax.Lease{}, fmt.Errorf("%w: the tree is for layout %s, the caller asks for %s", hapax.ErrLayoutMismatch, t.layout, req.Layout)
	}
	if !req.Workers.Contains(t.worker) {
		return hapax.Lease{}, &hapax.ValueError{Field: "workers", Value: fmt.Sprintf("[%d, %d)", req.Workers.Lo, req.Workers.Hi), Allowed: fmt.Sprintf("a range with %d, the worker ID of %s in the tree", t.worker, t.opts.Address), Err: hapax.ErrInvalidArgument}
	}
	req.Workers, req.Among = hapax.WorkerRange{Lo: t.worker, Hi: t.worker + 1}, nil
	if err := t.enter(ctx); err != nil {
		return hapax.Lease{}, err
	}
	defer t.leave()
	t.held = false
	c, err := t.session.Get(ctx, t.node)
	if err != nil {
		return hapax.Lease{}, err
	}
	if c.Raw == nil {
		return hapax.Lease{}, t.gone()
	}
	if err := t.takeOver(ctx, req, c); err != nil {
		return hapax.Lease{}, err
	}
	lease, err := t.Leases.AcquireWorker(ctx, req)
	if err != nil {
		return lease, err
	}
	t.ours, t.at = [][]byte{c.Raw}, c.Version
	t.disturbed.Store(nil)
	return lease, t.granted(ctx, lease, req.Term.Now)
}

// takeOver makes sure that whoever used the worker ID before has ended, and that
// the row's mark is above all that it used.
func (t *Tree) takeOver(ctx context.Context, req hapax.AcquireRequest, c keeper.Content) error {
	reported, err := decodeEndpoint(t.node, c.Raw)
	if err != nil {
		return err
	}
	mark, err := t.rowMark(ctx)
	if err != nil {
		return err
	}
	switch {
	case reported.Sub(req.Term.Now) > hapax.PoisonMargin:
		return fmt.Errorf("%w: node %s has the timestamp %s, the clock says %s: correct the clock that is wrong", hapax.ErrWorkerPoisoned, t.node, stamp(reported), stamp(req.Term.Now))
	case reported.Equal(mark), t.wrote(c.Raw):
		return nil // as this process left it, or the one before it; the row's mark counts
	}
	free := reported.Add(leafSilence)
	if free.After(mark) {
		tick, err := t.layout.TickOf(free)
		if err != nil {
			return err
		}
		if _, err := t.RaiseWorker(ctx, req.Pool, t.worker, tick); err != nil {
			return err
		}
	}
	if free.After(req.Term.Now.Add(req.Term.Ahead)) {
		return fmt.Errorf("node %s was written at %s: its process may be alive, or the clock here (%s) is behind: stop the one or correct the other: %w",
			t.node, stamp(reported), stamp(req.Term.Now), &hapax.NoWorkerError{Pool: req.Pool, Size: 1, NextFree: free})
	}
	return nil
}

// rowMark returns the time up to which the worker's row grants, or ErrStoreRolledBack if that is
// behind the file.
func (t *Tree) rowMark(ctx context.Context) (mark time.Time, err error) {
	saved, err := t.readFile()
	if err != nil {
		return mark, err
	}
	workers, err := t.Workers(ctx, hapax.DefaultPool)
	if err != nil {
		return mark, err
	}
	for _, w := range workers {
		if w.ID == t.worker {
			mark = t.layout.TimeOf(w.Mark)
		}
	}
	if saved.mark.After(mark) {
		return mark, fmt.Errorf("%w: the tree grants worker ID %d from %s, but by file %s it was used up to %s: wait for that time, and remove the file if nothing else runs under that ID",
			hapax.ErrStoreRolledBack, t.worker, stamp(mark), t.opts.File, stamp(saved.mark))
	}
	return mark, nil
}

// resume goes on with a lease that an earlier process of this address had, and that was
// kept in a file: as long as nobody else has written to the node since.
func (t *Tree) resume(ctx context.Context, lease hapax.Lease) error {
	if t.node == "" || lease.Pool != hapax.DefaultPool || lease.Worker != t.worker {
		return fmt.Errorf("%w: pool %q, worker ID %d", hapax.ErrLeaseLost, lease.Pool, lease.Worker)
	}
	c, err := t.session.Get(ctx, t.node)
	if err != nil {
		return err
	}
	if c.Raw == nil {
		return t.gone()
	}
	reported, err := decodeEndpoint(t.node, c.Raw)
	if err != nil {
		return err
	}
	mark, err := t.rowMark(ctx)
	if err != nil {
		return err
	}
	if !reported.Equal(mark) && !t.wrote(c.Raw) {
		return t.disturb(fmt.Errorf("%w: worker ID %d: node %s was written at %s, and not by who had the lease", hapax.ErrLeaseLost, t.worker, t.node, stamp(reported)))
	}
	t.ours, t.at, t.held = [][]byte{c.Raw}, c.Version, true
	return nil
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) }

// wrote reports whether a value is one that this process wrote or took over.
func (t *Tree) wrote(raw []byte) bool {
	for _, o := range t.ours {
		if bytes.Equal(o, raw) {
			return true
		}
	}
	return false
}

// ExtendWorker implements hapax.WorkerStore.
func (t *Tree) ExtendWorker(ctx context.Context, lease hapax.Lease, layout hapax.Layout, term hapax.Term) (hapax.Lease, error) {
	if err := t.enter(ctx); err != nil {
		return lease, err
	}
	defer t.leave()
	if !t.held {
		if err := t.resume(ctx, lease); err != nil {
			return lease, err
		}
	}
	next, err := t.Leases.ExtendWorker(ctx, lease, layout, term)
	if err != nil {
		t.held = t.held && !errors.Is(err, hapax.ErrLeaseLost)
		return lease, err
	}
	if err := t.granted(ctx, next, term.Now); err != nil {
		return lease, err
	}
	return next, nil
}

// granted writes down a grant in the file and in the node before it is used.
func (t *Tree) granted(ctx context.Context, lease hapax.Lease, now time.Time) error {
	mark := t.layout.TimeOf(lease.Grant.Hi)
	if err := t.writeFile(mark); err != nil {
		return err
	}
	t.mark, t.now, t.then = mark, now, time.Now()
	t.held = true
	return t.report(ctx, mark)
}

// SealWorker implements hapax.WorkerStore.
func (t *Tree) SealWorker(ctx context.Context, lease hapax.Lease, last int64) error {
	if err := t.enter(ctx); err != nil {
		return err
	}
	defer t.leave()
	mark := t.layout.TimeOf(last)
	// The file comes first: nothing above last was issued, and it must not be
	// ahead of the row.
	if !t.held {
		_ = t.resume(ctx, lease) // if it fails, only the row is sealed
	}
	held := t.held
	t.held = false
	if held {
		if err := t.writeFile(mark); err != nil {
			return err
		}
	}
	if err := t.Leases.SealWorker(ctx, lease, last); err != nil {
		return err
	}
	if held {
		return t.report(ctx, mark)
	}
	return nil
}

// enter waits for the turn to write to the node.
func (t *Tree) enter(ctx context.Context) error {
	select {
	case t.busy <- struct{}{}:
		return nil
	case <-ctx.Done():
		return t.session.Fail(ctx, context.Cause(ctx))
	}
}

func (t *Tree) leave() { <-t.busy }

// report writes a timestamp, unless somebody else has written to the node.
func (t *Tree) report(ctx context.Context, at time.Time) error {
	data := t.encode(at)
	// Noted before it is sent: it may arrive, and its answer be lost.
	t.ours = append(t.ours[max(0, len(t.ours)-8):], data)
	for range 2 {
		stat, err := keeper.Call(ctx, t.session, func(conn *zk.Conn) (*zk.Stat, error) { return conn.Set(t.node, data, t.at) })
		if err == nil {
			t.ours, t.at = [][]byte{data}, stat.Version
			return nil
		}
		if errors.Is(err, zk.ErrNoNode) {
			return t.disturb(t.gone())
		}
		if !errors.Is(err, zk.ErrBadVersion) {
			return t.session.Fail(ctx, err)
		}
		// It may have been an earlier write of ours whose answer was lost.
		c, err := t.session.Get(ctx, t.node)
		if err != nil {
			return err
		}
		if !t.wrote(c.Raw) {
			break
		}
		t.at = c.Version
	}
	return t.disturb(fmt.Errorf("%w: somebody else writes to node %s: another process runs as %s; stop it, or give one of them another port", hapax.ErrStoreUnsafe, t.node, t.opts.Address))
}

// disturb ends the lease.
func (t *Tree) disturb(why error) error {
	t.held = false
	t.disturbed.Store(&why)
	return why
}

// reportOften writes the timestamp as often as Leaf does.
func (t *Tree) reportOften(ctx context.Context) {
	tick := time.NewTicker(reportEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if t.enter(ctx) != nil {
			return
		}
		if t.held {
			at := t.now.Add(time.Since(t.then))
			if at.Before(t.mark) {
				at = t.mark
			}
			_ = t.report(ctx, at) // another writer is reported by Disturbed, and at the next extension
		}
		t.leave()
	}
}

// A memo is the content of the file; worker is -1 if there is no file.
type memo struct {
	worker int64
	mark   time.Time
}

const maxFileBytes = 4 << 10

// readFile reads the file beside the tree: workerID=N as Leaf writes it, and the
// mark, which Leaf does not.
func (t *Tree) readFile() (memo, error) {
	m := memo{worker: -1}
	if t.opts.File == "" {
		return m, nil
	}
	raw, err := os.ReadFile(t.opts.File)
	if errors.Is(err, os.ErrNotExist) {
		return m, nil
	}
	if err != nil {
		return m, fmt.Errorf("%w: file: %w", hapax.ErrInvalidArgument, err)
	}
	bad := fmt.Errorf("%w: file %s: want workerID=N and timestamp=MILLISECONDS", hapax.ErrStoreCorrupt, t.opts.File)
	if len(raw) > maxFileBytes {
		return m, bad
	}
	for line := range strings.Lines(string(raw)) {
		line = strings.TrimSpace(line)
		key, value, ok := strings.Cut(line, "=")
		if line == "" || line[0] == '#' {
			continue
		}
		n, err := strconv.ParseInt(value, 10, 64)
		switch {
		case !ok || err != nil || n < 0 || n > maxTimestamp:
			return m, bad
		case key == "workerID":
			m.worker = n
		case key == "timestamp":
			m.mark = time.UnixMilli(n)
		}
	}
	if m.worker < 0 {
		return m, bad
	}
	return m, nil
}

// writeFile replaces the file, durably.
func (t *Tree) writeFile(mark time.Time) error {
	if t.opts.File == "" {
		return nil
	}
	err := os.MkdirAll(filepath.Dir(t.opts.File), 0o750)
	if err == nil {
		err = durable.Replace(durable.OS, t.opts.File, func(*os.File) ([]byte, error) {
			return fmt.Appendf(nil, "workerID=%d\ntimestamp=%d\n", t.worker, mark.UnixMilli()), nil
		})
	}
	if err != nil {
		return fmt.Errorf("%w: file %s: %w", hapax.ErrStoreUnavailable, t.opts.File, err)
	}
	return nil
}
