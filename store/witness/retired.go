package witness

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
)

// A store that was copied elsewhere is retired: its fence says where it went, and stands for good.
// Who has seen that refuses, also after a restart, and where a backup from before is put in the
// place of the store, until it finds the store that goes on: the one with the row of the copy.

// isRetired reports whether this node has seen that its store was copied elsewhere.
func (l latch) isRetired() bool { return l.Retired != nil }

// retires is isRetired of one that may not be there.
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
	if err := g.witness.commit(func(b *record) error { b.Latch = &latch{}; return nil }); err != nil {
		return err
	}
	g.opts.Log.Info("this is the store that goes on where another was copied", "copy", r.Copy)
	g.apply(decided, nil, nil)
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

// GoesOn reports whether this node, which has seen its store retired, may be on the store that goes on in its
// place, and so only has to join there: it is, or the store has not answered yet.
func (g *Guarded) GoesOn(ctx context.Context) bool {
	l := g.witness.latch()
	if !l.isRetired() { // it has found the store meanwhile
		return true
	}
	goes, err := ask(ctx, g, func(ctx context.Context, s store) (bool, error) { return g.goesOn(ctx, s, *l.Retired) })
	return err != nil || goes
}

// mayDeclare refuses an operator's word about a store that is retired.
func (g *Guarded) mayDeclare(ctx context.Context, s store) error {
	r := g.witness.latch()
	if !r.isRetired() {
		return nil
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

// A retiredRefusal is a refusal that callers take as one under a fence, and that says nothing of one.
type retiredRefusal struct{ error }

func (r retiredRefusal) Unwrap() []error { return []error{r.error, hapax.ErrFenced} }

// retiredCommand tells what an operator may do.
func retiredCommand(r driver.Retirement) string {
	return fmt.Sprintf("set store to %s, and start the node again", r.To)
}
