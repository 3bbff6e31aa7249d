package witness

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
)

// rowCompacted of driver.TableGuard counts up to which join all rows are gone: these
// processes have ended, and all their grants are in the lines.
const rowCompacted = "compacted"

// errOther marks the refusal of a store that is not this node's.
var errOther = errors.New("another store")

// isBehind takes the verdict that the store is behind its acknowledgements, and returns
// the refusal.
func (g *Guarded) isBehind(cause error) error {
	g.apply(behind, cause, nil)
	g.wake()
	if err := g.Refused(); err != nil {
		return err
	}
	return cause
}

// A verdict is a judgement of a store by its identity.
type verdict int

const (
	isSame  verdict = iota // it is this node's, or was nobody's yet
	isLost                 // it stands in the place of this node's, which was lost
	isOther                // it is another one: nothing is ever written to it
)

// identify judges the identity of the store.
func (g *Guarded) identify(ctx context.Context, s store) (v verdict, id string, cause, err error) {
	if id, err = s.StoreID(ctx); err != nil {
		return isSame, "", nil, unavailable(err)
	}
	if id == "" {
		return isSame, "", nil, fmt.Errorf("%w: the store has no identity", hapax.ErrStoreUnavailable)
	}
	// Before all that may have this node go on: it is the node's own store, and goes on elsewhere.
	gone, err := g.movedOn(ctx, s, id)
	if err != nil {
		return isSame, "", nil, err
	}
	if gone != nil {
		return isOther, id, fmt.Errorf("%w; this is the store as it was before that, which counts as %w", gone.Err(), errOther), nil
	}
	known := g.witness.stores()
	if len(known) == 0 || known[0] == id {
		return isSame, id, nil, nil
	}
	raw, err := s.Row(ctx, driver.TableGuard, rowReplaces+known[0])
	if err != nil {
		return isSame, "", nil, unavailable(err)
	}
	if raw != nil { // it was decided that this store goes on in place of the one before
		return isSame, id, nil, g.witness.commit(func(b *record) error { b.Store = id; return nil })
	}
	cause = fmt.Errorf("%w: this node knows the store %q, this is the store %q", hapax.ErrStoreReplaced, known[0], id)
	g.mu.Lock()
	accepted := g.accepted == id
	g.mu.Unlock()
	switch {
	case accepted:
		return isLost, id, fmt.Errorf("%w, which an operator has accepted in its place", cause), nil
	case slices.Contains(known, id):
		return isLost, id, fmt.Errorf("%w, in whose place that one had gone on", cause), nil
	}
	f, _, err := readFence(ctx, s)
	switch {
	case err != nil:
		return isSame, "", nil, err
	case f != nil && slices.Contains(f.Stores, known[0]):
		return isLost, id, fmt.Errorf("%w, where others have found that it stands in its place", cause), nil
	}
	// An empty store stands in the place of this node's. One with lines may be somebody else's, and
	// nothing is ever written to that.
	tags, err := s.Tags(ctx, "", 1)
	if err != nil {
		return isSame, "", nil, unavailable(err)
	}
	pools, err := s.Pools(ctx)
	if err != nil {
		return isSame, "", nil, unavailable(err)
	}
	if len(tags) == 0 && len(pools) == 0 {
		return isLost, id, fmt.Errorf("%w, which holds no line at all", cause), nil
	}
	return isOther, id, fmt.Errorf("%w (%w)", cause, errOther), nil
}

// checkStore refuses a store that is not this node's.
func (g *Guarded) checkStore(ctx context.Context, s store) error {
	v, _, cause, err := g.identify(ctx, s)
	switch {
	case err != nil:
		return err
	case v == isLost:
		return g.isBehind(cause)
	case v == isOther:
		g.apply(other, cause, nil)
		return g.Refused()
	}
	return nil
}

// goneFor is how many times as long as a living node may take a store is waited for that is gone
// altogether, before one is made in its place: it may be put back statement by statement, and
// tables made meanwhile would be in the way.
const goneFor = 3

// seeIfGone takes the end of a turn: whether there was no store at all, which a node that knows
// one never makes before it has refused and waited.
func (g *Guarded) seeIfGone(err error) {
	would, _ := errors.AsType[*driver.WouldChangeError](err)
	g.mu.Lock()
	now, before := g.now(), g.gone
	if g.gone = would != nil && would.What == driver.NewStore; g.gone && !before {
		g.goneAt = now
	}
	// One turn without tables is no proof that they stay away.
	gone, long := g.gone, now-g.goneAt >= goneFor*g.opts.wait()
	g.mu.Unlock()
	switch known := g.witness.StoreID(); {
	case gone && known != "":
		if g.witness.latch().State != Refusing {
			_ = g.isBehind(fmt.Errorf("%w: this node knows the store %q, and there is none now: its tables or keys are gone", hapax.ErrStoreReplaced, known))
		}
		g.witness.mayMake(long && !g.witness.latch().isRetired())
	case err == nil:
		g.witness.mayMake(false)
	}
}

// judge takes the answer to a call that made no beat.
func (g *Guarded) judge(ctx context.Context, s store, p pulse, c driver.Contact) error {
	// Its identity first: the row that is missing may be missing in another store.
	if err := g.checkStore(ctx, s); err != nil {
		return err
	}
	g.mu.Lock()
	mine := g.me.row == p.Row
	g.mu.Unlock()
	if !mine {
		return errAbandoned()
	}
	if c.Fence != nil {
		f, err := decodeFence(c.Fence)
		if err != nil {
			return g.ifRetired(err)
		}
		if !g.takeFenceUnder(p.Row, f) {
			return errAbandoned()
		}
	}
	// By the beat that was acknowledged when the call was sent, since that was before the row was
	// read.
	ended, cause, err := g.judgeRow(ctx, s, p.Row, p.Was.Count, c.Row)
	if err == nil && cause != nil {
		d, err := g.newDecision(ctx, s)
		if err != nil {
			return err
		}
		if d != nil { // it explains the loss
			ended, cause = "healed", nil
		}
	}
	switch {
	case err != nil:
		return err
	case cause != nil:
		return g.isBehind(cause)
	case c.Fence != nil:
		return g.Refused()
	case ended != "":
		err := fmt.Errorf("%w: this node's row was ended as %s; it joins again", hapax.ErrStoreUnavailable, ended)
		g.apply(lost, err, nil)
		g.wake()
		return err
	}
	return fmt.Errorf("%w: the fence was lifted meanwhile", hapax.ErrStoreUnavailable)
}

// judgeRow returns how a row of this node has ended, and the cause if the store is
// behind the beat that it has acknowledged under it.
func (g *Guarded) judgeRow(ctx context.Context, s store, row string, count int64, value []byte) (ended string, cause, err error) {
	if value == nil {
		upTo, _, err := readCounter(ctx, s, rowCompacted)
		switch {
		case err != nil:
			return "", nil, err
		// A row is removed only long after it has ended.
		case joinOf(row) <= upTo:
			return "compacted", nil, nil
		}
		return "", fmt.Errorf("%w: it lacks this node's row, and has acknowledged heartbeat %d of it", hapax.ErrStoreRolledBack, count), nil
	}
	beat, ended, err := driver.DecodeBeat(row, value)
	if err != nil {
		return "", nil, err
	}
	if beat.Count < count {
		return "", fmt.Errorf("%w: it has this node's heartbeat %d, and has acknowledged %d", hapax.ErrStoreRolledBack, beat.Count, count), nil
	}
	return ended, nil, nil
}

// takeFence takes a fence that stands in the store.
func (g *Guarded) takeFence(f *Fence) {
	g.apply(fenced, fmt.Errorf("%w: %s", hapax.ErrFenced, f.text()), f)
	g.wake()
}

// takeFenceUnder is takeFence of one that stood when a call was made under a row, and reports whether the
// process still has that row. The row ends with the decision about the fence: taken after that, the fence
// would be missed, and raised again by a node that has found nothing, and so attests for nobody.
func (g *Guarded) takeFenceUnder(row string, f *Fence) bool {
	g.verdicts.Lock()
	g.mu.Lock()
	mine := g.me.row == row
	g.mu.Unlock()
	owes := false
	if mine {
		_, owes = g.applyLocked(fenced, fmt.Errorf("%w: %s", hapax.ErrFenced, f.text()), f)
	}
	g.verdicts.Unlock()
	g.writeLatch(owes)
	if mine {
		g.tell()
		g.wake()
	}
	return mine
}

// readFence returns the fence, and its row; nil if there is none.
func readFence(ctx context.Context, r driver.Rows) (*Fence, []byte, error) {
	raw, err := r.Row(ctx, driver.TableFence, driver.RowFence)
	if err != nil || raw == nil {
		return nil, nil, unavailable(err)
	}
	f, err := decodeFence(raw)
	return f, raw, err
}

func decodeFence(raw []byte) (*Fence, error) {
	f := new(Fence)
	err := driver.DecodeRow(driver.TableFence, driver.RowFence, raw, f)
	switch {
	case err != nil:
	case f.Retired != nil:
		err = f.Retired.Err()
	case f.Closed != "":
		err = &driver.ClosedError{Closed: f.Closed}
	}
	return f, err
}
