package witness

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
)

// A store that was copied elsewhere is retired: its fence says where it went, and stands for good.
// Who has seen that refuses, also after a restart, and where a backup from before is put in the
// place of the store, until it finds the store that goes on: the one with the row of the copy.
//
// A node that has used the copy knows its row, and takes a store of the same identity without that row for
// the one from before, also where that was put back from a backup that says nothing of the copy. Others may
// go on in the copy, so that it is another store, and never healed:
//
//	the store with the identity that is known         to a node that has used the copy
//	retired, or from before that                      another store, until the URL is right
//	the copy, or an older backup of it                its own, behind or not
//	a copy of the copy, also back in the first place  its own
//	the copy without any row, such as after TRUNCATE  its own, lost: it is healed, and gets the row again
//	one whose copy no node has used yet               as before
//
// Nothing is latched for it: the witness has the row, and each start judges anew.

// isRetired reports whether this node has seen that its store was copied elsewhere.
func (l latch) isRetired() bool { return l.Retired != nil }

// retires reports whether a latch, if there is one, is that of a retired store.
func (l *latch) retires() bool { return l != nil && l.isRetired() }

// ifRetired takes the verdict that the store is retired where that is what an error says, and returns the
// refusal. What another store than this node's says of itself is no more than why that one cannot be used.
func (g *Guarded) ifRetired(err error) error {
	e, ok := errors.AsType[*driver.RetiredError](err)
	if known := g.witness.StoreID(); !ok || known != "" && known != e.Store {
		return err
	}
	g.apply(retired, e, nil)
	g.wake()
	if refused := g.Refused(); refused != nil {
		return refused
	}
	return err
}

// follow joins the store again where it is the one that goes on in place of the one that was retired. A
// node that has never used that one may join any other.
func (g *Guarded) follow(ctx context.Context, s store, r driver.Retirement) error {
	goes, err := g.goesOn(ctx, s, r)
	if err != nil || !goes {
		return err
	}
	g.verdicts.Lock()
	if err = g.witness.enter(func(b *record) error { b.Latch = &latch{}; return nil }); err == nil {
		g.applyLocked(decided, nil, nil)
	}
	g.verdicts.Unlock()
	if err == nil { // the state may come first: see catchUp
		err = g.witness.flush()
	}
	if err != nil {
		return err
	}
	g.opts.Log.Info("this is the store that goes on where another was copied", "copy", r.Copy)
	g.tell()
	g.wake()
	return nil
}

// goesOn reports whether a store is the one that goes on.
func (g *Guarded) goesOn(ctx context.Context, s store, r driver.Retirement) (bool, error) {
	id, err := s.StoreID(ctx)
	if err != nil {
		return false, unavailable(err)
	}
	if id != r.Store {
		return g.witness.StoreID() == "", nil
	}
	raw, err := s.Row(ctx, driver.TableGuard, driver.RowCopied(r.Copy))
	return raw != nil, unavailable(err)
}

// copies are the copies from which stores came, by the random text of each.
type copies map[string]driver.Retirement

// copiesIn finds them among the rows of driver.TableGuard, and the rows whose values are damaged.
func copiesIn(rows map[string][]byte) (all copies, damaged []string) {
	all = copies{}
	for name, raw := range rows {
		if !strings.HasPrefix(name, driver.RowCopied("")) {
			continue
		}
		var r driver.Retirement
		err := driver.DecodeRow(driver.TableGuard, name, raw, &r)
		// Once, where it took the place of one that was given up. One that names a copy without a row of its
		// own was changed by hand: believed, it would have this store refused from then on.
		if _, ok := rows[driver.RowCopied(r.Copy)]; err != nil || !ok || r.Store == "" {
			damaged = append(damaged, name)
			continue
		}
		all[r.Copy] = r
	}
	slices.Sort(damaged)
	return all, damaged
}

// addDamaged adds the copies of which only the names of rows can be read. These count, lest a backup from before is
// healed by whoever joined since: such a copy is one of the store that has the row, and went nobody knows where.
func (all copies) addDamaged(rows []string, id string) {
	for _, name := range rows {
		number := strings.TrimPrefix(name, driver.RowCopied(""))
		if _, ok := all[number]; !ok {
			all[number] = driver.Retirement{Copy: number, Store: id}
		}
	}
}

// readCopies is copiesIn of the store that a process has opened. Damaged rows are told once: they keep nobody
// out.
func (g *Guarded) readCopies(ctx context.Context, s store, rows map[string][]byte) (copies, error) {
	all, damaged := copiesIn(rows)
	if len(damaged) > 0 { // else the call is one too many, where each takes long
		id, err := ahead{store: s}.StoreID(ctx)
		if err != nil {
			return nil, unavailable(err)
		}
		all.addDamaged(damaged, id)
	}
	names := strings.Join(damaged, ", ")
	g.mu.Lock()
	isNew := names != g.damaged
	g.damaged = names
	g.mu.Unlock()
	if isNew && names != "" {
		g.opts.Log.Warn("rows that name copies of the store cannot be read, and count as they are; put their values back from a backup, and never delete them: the nodes would take this store for one from before its copy, and refuse it",
			"table", driver.TableGuard, "rows", names)
	}
	return all, nil
}

// newTo returns those that are not known, or not by their values.
func (all copies) newTo(known copies) copies {
	all = maps.Clone(all)
	maps.DeleteFunc(all, func(number string, r driver.Retirement) bool {
		old, ok := known[number]
		return ok && (old.To != "" || r.To == "")
	})
	return all
}

// of returns those from which a store came.
func (all copies) of(id string) []driver.Retirement {
	var came []driver.Retirement
	for _, r := range all {
		if r.Store == id {
			came = append(came, r)
		}
	}
	return came
}

// copiesOf returns the known copies from which a store came.
func (w *Witness) copiesOf(id string) []driver.Retirement {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.state.Copies.of(id)
}

// lacking returns the copies of which a store has no row.
func lacking(ctx context.Context, s store, came []driver.Retirement) ([]driver.Retirement, error) {
	var lacks []driver.Retirement
	for _, r := range came {
		raw, err := s.Row(ctx, driver.TableGuard, driver.RowCopied(r.Copy))
		if err != nil {
			return nil, unavailable(err)
		}
		if raw == nil {
			lacks = append(lacks, r)
		}
	}
	return lacks, nil
}

// movedOn returns the latest copy in which this node has used a store, where the one that answers is as it was
// before; nil: it is not. One that nobody has joined has lost its rows.
func (g *Guarded) movedOn(ctx context.Context, s store, id string) (*driver.Retirement, error) {
	return movedOn(ctx, s, g.witness.copiesOf(id))
}

// movedOn returns the latest of the copies from which a store came, where it is as it was before one of them.
func movedOn(ctx context.Context, s store, came []driver.Retirement) (*driver.Retirement, error) {
	lacks, err := lacking(ctx, s, came)
	if err != nil || len(lacks) == 0 {
		return nil, err
	}
	if _, raw, err := readCounter(ctx, s, driver.RowJoins); err != nil || raw == nil {
		return nil, err
	}
	latest := slices.MaxFunc(lacks, func(x, y driver.Retirement) int { return x.At.Compare(y.At) })
	return &latest, nil
}

// learnCopies takes into the witness from which copies a store came, where no survey does so in time.
func (g *Guarded) learnCopies(ctx context.Context, s store) error {
	rows, err := readRows(ctx, s, driver.TableGuard)
	if err != nil {
		return err
	}
	came, err := g.readCopies(ctx, s, rows)
	if err != nil {
		return err
	}
	return g.witness.commit(func(b *record) error {
		if b.Copies = came.newTo(g.witness.state.Copies); len(b.Copies) == 0 {
			return errNoChange
		}
		return nil
	})
}

// tellCopies gives a store the rows of copies again that it has lost, or that the stores had in whose place it
// stands.
func (g *Guarded) tellCopies(ctx context.Context, s store, id string) error {
	var came []driver.Retirement
	for _, of := range slices.Compact(slices.Sorted(slices.Values(append(g.witness.stores(), id)))) {
		came = append(came, g.witness.copiesOf(of)...)
	}
	lacks, err := lacking(ctx, s, came)
	for _, r := range lacks {
		if err == nil {
			err = putRow(ctx, s, driver.TableGuard, driver.RowCopied(r.Copy), r)
		}
	}
	return err
}

// GoesOn reports whether this node, which has seen its store retired, may be on the store that goes on in its
// place, and so only has to join there: it is, or the store has not answered yet.
func (g *Guarded) GoesOn(ctx context.Context) bool {
	goes, err := ask(ctx, g, func(ctx context.Context, s store) (bool, error) {
		if l := g.witness.latch(); l.isRetired() {
			if goes, err := g.goesOn(ctx, s, *l.Retired); err != nil || !goes {
				return false, err
			}
		}
		gone, err := g.hasMoved(ctx, s)
		return gone == nil, err
	})
	return err != nil || goes
}

// hasMoved is movedOn for a store that is asked for its identity.
func (g *Guarded) hasMoved(ctx context.Context, s store) (*driver.Retirement, error) {
	id, err := s.StoreID(ctx)
	if err != nil {
		return nil, unavailable(err)
	}
	return g.movedOn(ctx, s, id)
}

// haveMoved refuses the word of witnesses that know the store as it went on elsewhere.
func haveMoved(ctx context.Context, s store, id string, files []Testimony) error {
	for _, t := range files {
		switch gone, err := movedOn(ctx, s, t.said.Copies.of(id)); {
		case err != nil:
			return err
		case gone != nil:
			return gone.Err()
		}
	}
	return nil
}

// mayDeclare refuses an operator's word about a store that is retired.
func (g *Guarded) mayDeclare(ctx context.Context, s store) error {
	r := g.witness.latch()
	if !r.isRetired() {
		gone, err := g.hasMoved(ctx, s)
		if gone != nil {
			err = gone.Err()
		}
		return err
	}
	if err := g.follow(ctx, s, *r.Retired); err != nil {
		return err
	}
	if g.witness.latch().isRetired() {
		return r.Retired.Err()
	}
	return nil
}

// awaitDeclarable is awaitVerdict of a store of which an operator may say something, before and after.
func (g *Guarded) awaitDeclarable(ctx context.Context, s store, wait time.Duration) (wrong bool, err error) {
	if err := g.mayDeclare(ctx, s); err != nil {
		return false, err
	}
	if wrong, err = g.awaitVerdict(ctx, wait); err == nil {
		err = g.mayDeclare(ctx, s)
	}
	return wrong, err
}

// A retiredError is a refusal that callers take as one under a fence, and that says nothing of one.
type retiredError struct{ error }

func (r retiredError) Unwrap() []error { return []error{r.error, hapax.ErrFenced} }

// retiredCommand tells what an operator may do.
func retiredCommand(r driver.Retirement) string {
	return fmt.Sprintf("set store to %s, and start the node again", r.Place())
}
