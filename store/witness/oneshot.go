package witness

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
)

// rowCommands is the row of driver.TableBeats under which commands look for the fence.
// It is of no process that has joined, and never advances, so that commands do not wait
// for each other.
var rowCommands = rowName(0, runCommands)

// IsRowOfCommands reports whether a row of driver.TableBeats is the one of all commands, which every command
// leaves in a store, whatever it does there.
func IsRowOfCommands(name string) bool { return name == rowCommands }

// commandPulse is the pulse of all commands.
func commandPulse() driver.Pulse {
	still := driver.Beat{Count: 1}
	return driver.Pulse{Row: rowCommands, Was: still, Now: still}
}

// OneShot returns the store for a command that takes some numbers and ends. It does not join, and
// so waits for nobody. It is granted nothing while a fence stands, for which each grant looks in
// its own transaction. In a shared store with a living node each grant leaves the row of a process
// that has left, so that the nodes survey the store within a heartbeat: until then only the store
// knows of the grant. Close closes the store.
func OneShot(s driver.Store) (driver.Store, error) {
	guarding, ok := s.(store)
	if !ok {
		return nil, fmt.Errorf("%w: %T has no room for heartbeats and a fence", hapax.ErrNotSupported, s)
	}
	return &oneShot{guarding}, nil
}

type oneShot struct{ store }

var (
	_ driver.Store = (*oneShot)(nil)
	_ driver.Clock = (*oneShot)(nil)
)

// pulsed makes a guarded call, and refuses where a fence stands.
func (o *oneShot) pulsed(ctx context.Context, call func(driver.Pulse) (driver.Contact, error)) error {
	for made := false; ; made = true {
		c, err := call(commandPulse())
		switch {
		case c.Fence != nil:
			f, err := decodeFence(c.Fence)
			return cmp.Or(err, fenceError(f))
		case err != nil || c.Met:
			return unavailable(err)
		// The row was written in the round before.
		case made:
			return fmt.Errorf("%w: the row of commands does not stay in the store", hapax.ErrStoreUnavailable)
		}
		if _, err := o.store.SwapRow(ctx, driver.TableBeats, rowCommands, nil, commandPulse().Now.Encode()); err != nil {
			return unavailable(err)
		}
	}
}

func fenceError(f *Fence) error {
	if len(f.Missing) > 0 {
		return fmt.Errorf("%w: %s; missing: %s", hapax.ErrFenced, f.text(), nodesText(f.Missing))
	}
	return fmt.Errorf("%w: %s", hapax.ErrFenced, f.text())
}

// open refuses while a fence stands.
func (o *oneShot) open(ctx context.Context) error {
	f, _, err := readFence(ctx, o)
	if err == nil && f != nil {
		err = fenceError(f)
	}
	return err
}

// unfenced makes a change that is not one of the guarded calls.
func unfenced[T any](ctx context.Context, o *oneShot, change func(driver.Store) (T, error)) (T, error) {
	if err := o.open(ctx); err != nil {
		var zero T
		return zero, err
	}
	return change(o.store)
}

// tell has the living nodes survey the store, and attest for the numbers that the command was
// granted: to them it looks as if one more process had joined and left. Commands at the same time
// share that row. A command that finds the counter raised meanwhile is done: that was after its own
// grant, too.
func (o *oneShot) tell(ctx context.Context) error {
	if !o.Shared() {
		return nil
	}
	if alive, err := o.isAnyAlive(ctx); err != nil || !alive {
		return err
	}
	joins, raw, err := readCounter(ctx, o, driver.RowJoins)
	if err != nil {
		return err
	}
	host, _ := os.Hostname()
	row, rows := rowName(joins+1, runCommands), commandRows{o.store, o}
	// The counter last, as for a process that joins: whichever node sees it raised finds the row.
	for _, r := range []struct {
		table, name string
		old, next   []byte
	}{
		{driver.TableNodes, row, nil, nodeRow{Name: "hapax command on " + host}.encode()},
		{driver.TableBeats, row, nil, driver.Beat{Count: 1, Grants: 1}.EncodeEnded("left")},
		{driver.TableGuard, driver.RowJoins, raw, driver.EncodeCounter(joins + 1)},
	} {
		if _, err := rows.SwapRow(ctx, r.table, r.name, r.old, r.next); err != nil {
			return err
		}
	}
	return nil
}

// runCommands stands in the rows of commands for the random part of others'.
const runCommands = "commands"

// isAnyAlive reports whether there is a process that can survey the store. Without one no row is
// written, so that those of commands do not pile up; the next process to join surveys all.
func (o *oneShot) isAnyAlive(ctx context.Context) (bool, error) {
	rows, err := readRows(ctx, o.store, driver.TableBeats)
	for name, raw := range rows {
		if _, how, err := driver.DecodeBeat(name, raw); err != nil || how == "" {
			return true, err
		}
	}
	return false, err
}

// commandRows are the rows of a store as a command changes them.
type commandRows struct {
	driver.Rows
	o *oneShot
}

// SwapRow implements driver.Rows.
func (r commandRows) SwapRow(ctx context.Context, table, name string, old, next []byte) (ok bool, err error) {
	err = r.o.pulsed(ctx, func(p driver.Pulse) (c driver.Contact, err error) {
		ok, c, err = r.o.SwapRowWith(ctx, p, table, name, old, next)
		return c, err
	})
	return ok, err
}

func (o *oneShot) leases() driver.Leases { return driver.LeasesIn(commandRows{o.store, o}) }

// StoreTime implements driver.Clock for stores that do.
func (o *oneShot) StoreTime(ctx context.Context) (time.Time, error) {
	if clock, ok := o.store.(driver.Clock); ok {
		return clock.StoreTime(ctx)
	}
	return time.Time{}, hapax.ErrNotSupported
}

// Ping implements driver.Store: it reports whether the store can grant now and may.
func (o *oneShot) Ping(ctx context.Context) error {
	if err := o.store.Ping(ctx); err != nil {
		return err
	}
	return o.open(ctx)
}

// Allocate implements hapax.SegmentStore.
func (o *oneShot) Allocate(ctx context.Context, tag string, n int64, last hapax.GrantKey) (hapax.Allocation, error) {
	var all []driver.Allocated
	err := o.pulsed(ctx, func(p driver.Pulse) (c driver.Contact, err error) {
		all, c, err = o.AllocateAllWith(ctx, p, []driver.AllocateOf{{Tag: tag, N: n, Last: last}})
		return c, err
	})
	if err == nil {
		err = all[0].Err
	}
	// Told before the numbers are used: until then only the store knows of them, and a copy of it
	// would not.
	if err == nil {
		err = o.tell(ctx)
	}
	if err == nil {
		err = o.judgeOwed(ctx, tag, all[0].Allocation)
	}
	if err != nil {
		return hapax.Allocation{}, err
	}
	return all[0].Allocation, nil
}

// HandBack implements hapax.SegmentStore.
func (o *oneShot) HandBack(ctx context.Context, a hapax.Allocation, next int64) error {
	return o.pulsed(ctx, func(p driver.Pulse) (driver.Contact, error) {
		given, c, err := o.HandBackAllWith(ctx, p, []driver.HandBackOf{{Allocation: a, Next: next}})
		if err == nil && c.Met && !given[0] {
			err = driver.NotHeld(a.Tag.Name)
		}
		return c, err
	})
}

// AcquireWorker implements hapax.WorkerStore.
func (o *oneShot) AcquireWorker(ctx context.Context, req hapax.AcquireRequest) (hapax.Lease, error) {
	l, err := o.leases().AcquireWorker(ctx, req)
	if err == nil {
		err = o.tell(ctx)
	}
	if err != nil {
		return hapax.Lease{}, err
	}
	return l, nil
}

// ExtendWorker implements hapax.WorkerStore.
func (o *oneShot) ExtendWorker(ctx context.Context, lease hapax.Lease, layout hapax.Layout, term hapax.Term) (hapax.Lease, error) {
	l, err := o.leases().ExtendWorker(ctx, lease, layout, term)
	if err == nil {
		err = o.tell(ctx)
	}
	if err != nil {
		return lease, err
	}
	return l, nil
}

// SealWorker implements hapax.WorkerStore.
func (o *oneShot) SealWorker(ctx context.Context, lease hapax.Lease, last int64) error {
	return o.leases().SealWorker(ctx, lease, last)
}

// CreateTag implements hapax.SegmentStore.
func (o *oneShot) CreateTag(ctx context.Context, tag hapax.Tag, mode hapax.CreateMode) (hapax.Tag, error) {
	return unfenced(ctx, o, func(s driver.Store) (hapax.Tag, error) { return s.CreateTag(ctx, tag, mode) })
}

// UpdateTag implements driver.TagStore.
func (o *oneShot) UpdateTag(ctx context.Context, name string, u driver.TagUpdate) (hapax.Tag, error) {
	return unfenced(ctx, o, func(s driver.Store) (hapax.Tag, error) { return s.UpdateTag(ctx, name, u) })
}

// DeleteTag implements driver.TagStore.
func (o *oneShot) DeleteTag(ctx context.Context, name string) (hapax.Tag, error) {
	return unfenced(ctx, o, func(s driver.Store) (hapax.Tag, error) { return s.DeleteTag(ctx, name) })
}

// CreatePool implements driver.PoolStore.
func (o *oneShot) CreatePool(ctx context.Context, pool, layout string) (driver.Pool, error) {
	return unfenced(ctx, o, func(s driver.Store) (driver.Pool, error) { return s.CreatePool(ctx, pool, layout) })
}

// DeletePool implements driver.PoolStore.
func (o *oneShot) DeletePool(ctx context.Context, pool string) (driver.Pool, error) {
	return unfenced(ctx, o, func(s driver.Store) (driver.Pool, error) { return s.DeletePool(ctx, pool) })
}

// RetireWorker implements driver.PoolStore.
func (o *oneShot) RetireWorker(ctx context.Context, pool string, id int64) (driver.Worker, error) {
	return unfenced(ctx, o, func(s driver.Store) (driver.Worker, error) { return s.RetireWorker(ctx, pool, id) })
}
