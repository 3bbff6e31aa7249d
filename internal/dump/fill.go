package dump

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/store/witness"
)

// A Place is where a store is, or may be.
type Place struct {
	URL string // without secrets

	// Look opens the store to be looked at. It makes none: a *driver.WouldChangeError.
	Look func(context.Context) (Store, error)

	// Open opens the store, and makes it where there is none.
	Open func(context.Context) (Store, error)
}

// A target is a store that is being filled, which nobody else can use.
type target struct {
	Store
	closed string // why
	fence  []byte // the row that keeps everybody from it
	found  bool   // it was there, and anybody can open it; it is open to be looked at only
}

// reopen opens a store that was found, to be written to.
func (t *target) reopen(ctx context.Context, to Place) (err error) {
	if err := t.Close(); err != nil {
		return err
	}
	t.Store, err = to.Open(ctx)
	return err
}

// establish makes a store that is to be filled, or opens one that was made so before, as mine reports of why it
// is closed. It is closed from the moment in which it is there. A store that anybody can open is returned as
// it was found, and nothing has been written to it. With only, no store is made.
func establish(ctx context.Context, to Place, f driver.Founding, only bool, mine func(closed string) bool) (t target, err error) {
	// Between the look and the opening somebody else may make a store there, or remove it.
	for range 3 {
		looked, err := to.Look(ctx)
		if err == nil {
			t.Store, t.found = looked, true
			return t, nil
		}
		closed, isClosed := errors.AsType[*driver.ClosedError](err)
		would, wouldChange := errors.AsType[*driver.WouldChangeError](err)
		switch {
		case isClosed && !mine(closed.Closed):
			return t, fmt.Errorf("%w: in %s another store is being made: %s", hapax.ErrInvalidArgument, to.URL, closed.Closed)
		case isClosed:
			t.closed = closed.Closed
			t.fence = fenceOf(t.closed)
			t.Store, err = to.Open(driver.WithFounding(ctx, driver.Founding{ID: f.ID, Closed: t.closed}))
			return t, err
		case !wouldChange || would.What != driver.NewStore:
			return t, err
		case only:
			return t, fmt.Errorf("%w: there is no store in %s", hapax.ErrInvalidArgument, to.URL)
		}
		made, err := to.Open(driver.WithFounding(ctx, f))
		if err != nil {
			if _, isClosed := errors.AsType[*driver.ClosedError](err); isClosed {
				continue // somebody else was first
			}
			return t, err
		}
		// The next round opens it as what it is from here on: closed.
		if err := made.Close(); err != nil {
			return t, err
		}
	}
	return t, fmt.Errorf("%w: the store in %s comes and goes", hapax.ErrStoreUnavailable, to.URL)
}

// fenceOf is the fence's row of a store that is being filled.
func fenceOf(closed string) []byte {
	return driver.EncodeRow(struct {
		Closed string `json:"closed"`
	}{closed})
}

// shut raises the fence that the rows are loaded under, unless an earlier attempt has.
func (t target) shut(ctx context.Context) error {
	fence, err := t.Row(ctx, driver.TableFence, driver.RowFence)
	if err != nil || string(fence) == string(t.fence) {
		return err
	}
	if fence == nil {
		ok, err := t.SwapRow(ctx, driver.TableFence, driver.RowFence, nil, t.fence)
		if err != nil || ok {
			return err
		}
	}
	return fmt.Errorf("%w: the store that is being filled has another fence, %.200q: somebody else has used its place; empty that, and run the command again", hapax.ErrStoreUnavailable, fence)
}

// open lets everybody use the store, whose rows are all there. Its identity says so first, the
// fence last: it is what was copied, nil for none.
func (t target) open(ctx context.Context, fence []byte) error {
	if err := t.OpenToAll(ctx); err != nil {
		return err
	}
	ok, err := t.SwapRow(ctx, driver.TableFence, driver.RowFence, t.fence, fence)
	if err == nil && !ok {
		var now []byte
		if now, err = t.Row(ctx, driver.TableFence, driver.RowFence); err == nil && string(now) == string(t.fence) {
			err = fmt.Errorf("%w: the fence that the store was filled under is still there; run the command again", hapax.ErrStoreUnavailable)
		} // else another run has lifted it
	}
	return err
}

// used returns the tables of a store that have rows, but for the one that every command leaves.
func used(ctx context.Context, s Store) (tables []string, err error) {
	for _, table := range driver.CopyTables() {
		rows, err := s.ListRows(ctx, table, "", 2)
		if err != nil {
			return nil, err
		}
		if table == driver.TableBeats {
			rows = slices.DeleteFunc(rows, func(r driver.Row) bool { return witness.IsRowOfCommands(r.Name) })
		}
		if len(rows) == 0 {
			continue
		}
		if table == "" {
			table = "tags"
		}
		tables = append(tables, table)
	}
	slices.Sort(tables)
	return tables, nil
}

// refuseUsed is the refusal of a place with a store in use.
func refuseUsed(to Place, id string, tables []string) error {
	what := "without rows"
	if len(tables) > 0 {
		what = "with rows in " + strings.Join(tables, ", ")
	}
	return fmt.Errorf("%w: in %s is store %s, %s: give a place without a store", hapax.ErrInvalidArgument, to.URL, id, what)
}

// A loader writes rows by pages.
type loader struct {
	target
	rows []driver.Put
}

func (l *loader) add(ctx context.Context, row driver.Put) error {
	if l.rows = append(l.rows, row); len(l.rows) < page {
		return nil
	}
	return l.flush(ctx)
}

func (l *loader) flush(ctx context.Context) error {
	rows := l.rows
	l.rows = nil
	return l.LoadRows(ctx, l.fence, rows, false)
}
