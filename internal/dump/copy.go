package dump

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"iter"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/store/witness"
)

// CopyOptions tell how a store is copied.
type CopyOptions struct {
	Anew bool         // an operator states that the earlier copy was given up
	Tell func(string) // receives what was found and done, step by step

	// At returns the place at a URL without secrets: that of the copy that was given up, to be looked at.
	At func(url string) (Place, error)

	// Answers reports whether an error of looking there is the answer of a store that is there.
	Answers func(error) bool
}

// Copy makes a store with the same identity of all that is in another one, for good:
//
//	  FROM serves                     FROM is retired
//	------------------+---------------------------------------------------------------------->
//	                  |                                                       TO serves
//	                  |                                                    +----------------->
//	look at both, make TO closed, retire FROM, load all rows, compare them, say in TO's identity
//	that it is open, lift its fence
//
// FROM is retired in one step, on the row that each grant looks at in its own: what is granted was
// granted before the first row is read. Until TO is open nobody but a copy can open it. A copy
// that was broken off, wherever, goes on when it is made again.
func Copy(ctx context.Context, from, to Place, o CopyOptions) (sum Summary, err error) {
	s, err := from.Open(ctx)
	if err != nil {
		return sum, err
	}
	defer func() { err = closing(s, err) }()
	id, err := s.StoreID(ctx)
	if err != nil {
		return sum, err
	}
	if err := witness.CheckFormat(ctx, s); err != nil {
		return sum, err
	}
	gone, err := standing(ctx, s, from)
	if err != nil {
		return sum, err
	}
	if gone != nil && o.Anew {
		if err := givenUp(ctx, *gone, to, o); err != nil {
			return sum, err
		}
	}
	number := rand.Text()
	if gone != nil && !o.Anew {
		number = gone.Copy
	}
	lost := false // to another copy, which was begun at the same time
	t, err := establish(ctx, to, driver.Founding{ID: id, Closed: copying(id, number)}, gone != nil && !o.Anew, func(why string) bool {
		n := copyOf(id, why)
		mine := n != "" && (gone == nil || o.Anew || n == gone.Copy)
		lost = n != "" && !mine
		return mine
	})
	if lost {
		return sum, beaten(gone.Err(), to)
	}
	if err != nil {
		return sum, elsewhere(gone, to, err)
	}
	defer func() { err = closing(t, err) }() // as it is then
	if t.found {
		return sum, finished(ctx, &t, s, to, id, gone, o)
	}
	number = copyOf(id, t.closed)
	if gone != nil && gone.Copy != number && !o.Anew {
		return sum, elsewhere(gone, to, nil)
	}
	if found, err := t.StoreID(ctx); err != nil || found != id {
		return sum, cmp.Or(err, fmt.Errorf("%w: the store that is made in %s is %s", hapax.ErrStoreReplaced, to.URL, found))
	}
	// Before FROM is retired: a place that cannot be shut would leave the fleet without a store.
	if err := t.shut(ctx); err != nil {
		if gone != nil {
			err = fmt.Errorf("%w, with --anew", err)
		}
		return sum, err
	}
	r, err := retire(ctx, s, gone, driver.Retirement{Copy: number, Store: id, To: to.URL, At: time.Now().UTC().Truncate(time.Second)})
	if errors.Is(err, hapax.ErrStoreRetired) {
		return sum, beaten(err, to)
	}
	if err != nil {
		return sum, err
	}
	o.Tell(fmt.Sprintf("store %s in %s is retired: nothing is granted from it any more", id, from.URL))
	again := func(err error) error {
		if err != nil {
			err = fmt.Errorf("%w; nothing is granted until the copy is whole: run the same command again", err)
		}
		return err
	}
	// A step that looked for the fence before FROM was retired may not have ended yet.
	if q, ok := s.(driver.Quieting); ok {
		if err := q.Quiet(ctx); err != nil {
			return sum, again(fmt.Errorf("%w: a transaction is open in %s; it has to end first", err, from.URL))
		}
	}
	if sum, err = t.take(ctx, s, r); err != nil {
		return sum, again(err)
	}
	o.Tell(fmt.Sprintf("%d rows are in %s, %d of them tags, each as it was", sum.Rows, to.URL, sum.Tables[""]))
	// Before TO is open: from then on it may be in use, and no other copy may be made, whether TO is found or not.
	if err := noteWhole(ctx, s, r); err != nil {
		return sum, again(err)
	}
	return sum, again(t.open(ctx, nil))
}

// noteWhole has a retired store say that its copy is whole.
func noteWhole(ctx context.Context, s Store, r driver.Retirement) error {
	if r.Whole { // by an earlier attempt
		return nil
	}
	was := r.Encode()
	r.Whole = true
	ok, err := s.SwapRow(ctx, driver.TableFence, driver.RowFence, was, r.Encode())
	if err != nil || ok {
		return err
	}
	raw, err := s.Row(ctx, driver.TableFence, driver.RowFence)
	if err != nil {
		return err
	}
	if now := driver.RetirementIn(raw); now == nil || now.Copy != r.Copy || !now.Whole { // else another run has said so
		return cmp.Or(witness.FenceIn(raw), fmt.Errorf("%w: the store's fence was changed meanwhile", hapax.ErrStoreUnavailable))
	}
	return nil
}

// beaten returns the error of a copy that lost to another one.
func beaten(err error, to Place) error {
	return fmt.Errorf("%w: that copy was first; what this one has begun in %s serves nobody, and may be removed", err, to.URL)
}

// givenUp refuses to copy anew where the earlier copy can be found: it may be finished, and in use.
func givenUp(ctx context.Context, gone driver.Retirement, to Place, o CopyOptions) error {
	if gone.Whole {
		return fmt.Errorf("%w: that copy was whole, and may have been used: no other one is made. Where its rows are lost, put its backup back, or empty its place: the nodes that used it make it anew", gone.Err())
	}
	if gone.To == to.URL || o.At == nil { // TO is looked at in any case
		return nil
	}
	first, err := o.At(gone.To)
	if err == nil {
		var s Store
		if s, err = first.Look(ctx); err == nil {
			var id string
			id, err = s.StoreID(ctx)
			switch err = errors.Join(err, s.Close()); {
			case err != nil:
				return err
			case id == gone.Store:
				return fmt.Errorf("%w: it is there, and may be in use: no other copy is made", gone.Err())
			}
			err = fmt.Errorf("store %s is there", id)
		}
	}
	if closed, ok := errors.AsType[*driver.ClosedError](err); ok && copyOf(gone.Store, closed.Closed) == gone.Copy {
		return fmt.Errorf("%w: that copy is there, and not finished: finish it, hapax store copy FROM %s, or remove it first", gone.Err(), gone.To)
	}
	if errors.Is(err, hapax.ErrStoreLocked) {
		return fmt.Errorf("%w: another process has it open, so that it is in use: no other copy is made", gone.Err())
	}
	if o.Answers != nil && o.Answers(err) {
		return fmt.Errorf("%w: it answers, and cannot be looked at (%s), so that it may be in use: no other copy is made unless it is gone; to finish it, run hapax store copy FROM %s", gone.Err(), hapax.Message(err), gone.To)
	}
	// A path, or an address of loopback, is another place on another machine.
	o.Tell(fmt.Sprintf("the copy before, made on %s, cannot be found from here, and is taken to be gone, as --anew says: %s: %s", gone.By, gone.To, hapax.Message(err)))
	return nil
}

// standing returns where a store was copied to; nil where nothing keeps it from being copied. Any
// other fence does.
func standing(ctx context.Context, s Store, at Place) (*driver.Retirement, error) {
	raw, err := s.Row(ctx, driver.TableFence, driver.RowFence)
	if err != nil {
		return nil, err
	}
	err = witness.FenceIn(raw)
	if e, ok := errors.AsType[*driver.RetiredError](err); ok {
		return &e.Retirement, nil
	}
	if err != nil {
		err = fmt.Errorf("%w: the store in %s cannot be copied before that is over: hapax nodes, hapax doctor", err, at.URL)
	}
	return nil, err
}

const copyText = "store %s is being copied here, copy %s; if that was broken off, run hapax store copy again"

// copying returns the reason why a store is closed while a copy fills it.
func copying(id, number string) string { return fmt.Sprintf(copyText, id, number) }

var copied = regexp.MustCompile(`, copy ([0-9A-Za-z]{1,40});`)

// copyOf returns the random text of the copy of a store that closes another one; empty: none does.
func copyOf(id, closed string) string {
	m := copied.FindStringSubmatch(closed)
	if m == nil || closed != copying(id, m[1]) {
		return ""
	}
	return m[1]
}

// elsewhere returns the error of a store that was copied to another place before.
func elsewhere(gone *driver.Retirement, to Place, err error) error {
	if gone == nil {
		return err
	}
	why := gone.Err()
	if err != nil {
		why = fmt.Errorf("%w; %w", why, err)
	}
	if gone.Whole {
		return why
	}
	return fmt.Errorf("%w; that copy was not finished: if its place is gone, --anew copies to %s instead", why, to.URL)
}

// finished ends a copy to a store that everybody can open: it is over but for the fence, or over, or that store is
// another one.
func finished(ctx context.Context, t *target, from Store, to Place, id string, gone *driver.Retirement, o CopyOptions) error {
	found, err := t.StoreID(ctx)
	if err != nil {
		return err
	}
	if gone != nil && found == id {
		raw, err := t.Row(ctx, driver.TableGuard, driver.RowCopied(gone.Copy))
		if err != nil {
			return err
		}
		if raw != nil {
			t.fence = fenceOf(copying(id, gone.Copy))
			fence, err := t.Row(ctx, driver.TableFence, driver.RowFence)
			if now := driver.RetirementIn(fence); now != nil {
				return fmt.Errorf("%s went on from %s: %w", to.URL, gone.Store, now.Err())
			}
			if err == nil && string(fence) == string(t.fence) {
				if err = t.reopen(ctx, to); err == nil {
					err = t.open(ctx, nil)
				}
			}
			if err == nil {
				o.Tell(fmt.Sprintf("store %s was copied to %s before: nothing is left to do", id, to.URL))
			}
			return err
		}
	}
	raw, err := t.Row(ctx, driver.TableFence, driver.RowFence)
	if err != nil {
		return err
	}
	if e, ok := errors.AsType[*driver.RetiredError](witness.FenceIn(raw)); ok && (found != id || gone == nil) {
		return fmt.Errorf("%w: it cannot be copied to", e)
	}
	if found == id {
		later, err := wentOn(ctx, from, t.Store)
		switch {
		case err != nil:
			return err
		case later != nil:
			return fmt.Errorf("%w; that store is in %s, and this one is from before: use it no more", later.Err(), to.URL)
		}
		// No other place is named: there would be one store more that grants the same numbers.
		err = fmt.Errorf("%w: in %s is the same store, %s, or a copy that was made otherwise: use the one that was used last, and the other no more", hapax.ErrInvalidArgument, to.URL, id)
		if gone != nil {
			err = fmt.Errorf("%w; %w", gone.Err(), err)
		}
		return err
	}
	tables, err := used(ctx, t.Store)
	if err != nil {
		return err
	}
	return elsewhere(gone, to, refuseUsed(to, found, tables))
}

// wentOn returns a copy from which a store came, and that another of the same identity does not know of, which is
// then from before; nil if there is none.
func wentOn(ctx context.Context, before, after Store) (later *driver.Retirement, err error) {
	err = eachOf(ctx, after, driver.TableGuard, func(row driver.Row) error {
		number, is := strings.CutPrefix(row.Name, driver.RowCopied(""))
		if !is || later != nil {
			return nil
		}
		raw, err := before.Row(ctx, driver.TableGuard, row.Name)
		if err != nil || raw != nil {
			return err
		}
		var r driver.Retirement
		if err := driver.DecodeRow(driver.TableGuard, row.Name, row.Value, &r); err == nil && r.Copy == number {
			later = &r
		}
		return nil
	})
	return later, err
}

// retire retires a store, unless an earlier attempt has, and returns its retirement.
func retire(ctx context.Context, s Store, gone *driver.Retirement, r driver.Retirement) (driver.Retirement, error) {
	if gone != nil && gone.Copy == r.Copy {
		return *gone, nil
	}
	var was []byte
	if gone != nil {
		was = gone.Encode()
		r.Former = append(slices.Clip(gone.Former), gone.Copy)
	}
	r.By, _ = os.Hostname()
	ok, err := s.SwapRow(ctx, driver.TableFence, driver.RowFence, was, r.Encode())
	if err != nil || ok {
		return r, err
	}
	raw, err := s.Row(ctx, driver.TableFence, driver.RowFence)
	if err != nil {
		return r, err
	}
	if now := driver.RetirementIn(raw); now != nil && now.Copy == r.Copy { // another run of the same copy
		return *now, nil
	}
	return r, cmp.Or(witness.FenceIn(raw), fmt.Errorf("%w: the store's fence was changed meanwhile; run the command again", hapax.ErrStoreUnavailable))
}

// take loads all rows of a retired store, which do not change any more, and compares them.
func (t target) take(ctx context.Context, s Store, r driver.Retirement) (sum Summary, err error) {
	rows := loader{target: t}
	r.Whole = false // the copy's rows are the same however often it is made
	for _, number := range append(slices.Clip(r.Former), r.Copy) {
		row := driver.Put{Key: driver.Key{Table: driver.TableGuard, Name: driver.RowCopied(number)}, Value: driver.EncodeRow(r)}
		if err := rows.add(ctx, row); err != nil {
			return sum, err
		}
	}
	read := func(table string, row driver.Row) error {
		key := driver.Key{Table: table, Name: row.Name}
		// TO has a fence of its own until the end.
		if table == driver.TableFence {
			return nil
		}
		if err := driver.CheckRow(key, row.Value); err != nil {
			return err
		}
		sum.add(table)
		return changedSince(rows.add(ctx, driver.Put{Key: key, Value: row.Value}))
	}
	if err = eachRow(ctx, s, read); err == nil {
		err = changedSince(rows.flush(ctx))
	}
	for range comparisons {
		if err != nil {
			break
		}
		var late int
		if late, err = t.compare(ctx, s, r); late == 0 {
			return sum, err
		}
	}
	return sum, cmp.Or(err, fmt.Errorf("%w: rows of the store are changed though it is retired", hapax.ErrStoreUnavailable))
}

// changedSince leaves rows to the comparison of which one was changed since an attempt before has copied it.
func changedSince(err error) error {
	if errors.Is(err, hapax.ErrInvalidArgument) {
		return nil
	}
	return err
}

// comparisons is how often the stores are compared at most, until they are the same.
const comparisons = 5

// compare reads all rows of both stores, and gives the copy those that were changed since they were
// read. That happens where a step is several writes: one that began before the store was retired
// writes after, and nobody uses what it did.
func (t target) compare(ctx context.Context, s Store, r driver.Retirement) (late int, err error) {
	tables := []string{}
	for _, table := range driver.CopyTables() {
		if table != driver.TableFence {
			tables = append(tables, table)
		}
	}
	pools, err := s.Pools(ctx)
	if err != nil {
		return 0, err
	}
	for _, p := range pools {
		tables = append(tables, driver.TableOfWorkers(p.Name))
	}
	mine := map[string]bool{driver.RowCopied(r.Copy): true}
	for _, number := range r.Former {
		mine[driver.RowCopied(number)] = true
	}
	for _, table := range tables {
		n, err := t.compareTable(ctx, s, table, func(row driver.Row) bool { return table == driver.TableGuard && mine[row.Name] })
		if late += n; err != nil {
			return late, err
		}
	}
	return late, nil
}

// compareTable compares the rows of a table, but for those of the copy alone, and returns how many it
// has changed in the copy.
func (t target) compareTable(ctx context.Context, from Store, table string, extra func(driver.Row) bool) (late int, err error) {
	wants, stopWants := iter.Pull2(rowsOf(ctx, from, table))
	defer stopWants()
	copies, stopCopies := iter.Pull2(rowsOf(ctx, t.Store, table))
	defer stopCopies()
	want, err, more := wants()
	row, errCopy, there := copies()
	for more || there {
		var old, next []byte
		name := want.Name
		switch {
		case err != nil || errCopy != nil:
			return late, cmp.Or(err, errCopy)
		case there && extra(row):
			row, errCopy, there = copies()
			continue
		case !there || more && want.Name < row.Name:
			next = want.Value
			want, err, more = wants()
		case !more || row.Name < want.Name:
			name, old = row.Name, row.Value
			row, errCopy, there = copies()
		default:
			old, next = row.Value, want.Value
			want, err, more = wants()
			row, errCopy, there = copies()
		}
		if bytes.Equal(old, next) {
			continue
		}
		late++
		if err := t.LoadRows(ctx, t.fence, []driver.Put{{Key: driver.Key{Table: table, Name: name}, Value: next}}, true); err != nil {
			return late, err
		}
	}
	return late, nil
}

// rowsOf are the rows of a table; an error is the last.
func rowsOf(ctx context.Context, s Store, table string) iter.Seq2[driver.Row, error] {
	return func(yield func(driver.Row, error) bool) {
		errStopped := errors.New("stopped")
		err := eachOf(ctx, s, table, func(row driver.Row) error {
			if !yield(row, nil) {
				return errStopped
			}
			return nil
		})
		if err != nil && err != errStopped {
			yield(driver.Row{}, err)
		}
	}
}
