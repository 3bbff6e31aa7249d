package witness

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
)

// Rows of driver.TableGuard.
const (
	rowDecision = "decision"  // the latest decision about a fence
	rowReplaces = "replaces/" // followed by the identity of a store that was lost, and in whose place this one goes on
)

// A decisionID tells decisions apart, also where a store that went back was healed anew.
type decisionID struct {
	Number int64  `json:"number"`
	ID     string `json:"id"`
}

// A decision is how a fence was ended. It explains every loss to a node that does not know it:
// there was evidence of all grants, and all rows had ended.
type decision struct {
	decisionID

	Fence  Fence                `json:"fence"`
	Store  string               `json:"store"`
	Joins  int64                `json:"joins"` // all that joined up to here are attested
	At     time.Time            `json:"at"`
	Parts  int                  `json:"parts,omitempty"`  // how many rows tell more of the two below
	Heard  []string             `json:"heard"`            // the processes that gave evidence
	Stated map[string]statement `json:"stated,omitempty"` // rows that operators spoke for
	Raised int                  `json:"raised"`
	Most   []Raised             `json:"most,omitempty"` // lines that were raised, the first of them
}

// A decisionPart is a row that tells more of a decision than the first holds.
type decisionPart struct {
	Heard  []string             `json:"heard,omitempty"`
	Stated map[string]statement `json:"stated,omitempty"`
}

// decisionRows is how many processes, and how many statements, one row of a decision holds.
const decisionRows = 300

// split leaves in the decision as much as a row holds, and returns the rest.
func (d *decision) split() []decisionPart {
	heard := slices.Collect(slices.Chunk(d.Heard, decisionRows))
	stated := slices.Collect(slices.Chunk(slices.Sorted(maps.Keys(d.Stated)), decisionRows))
	all := make([]decisionPart, max(1, len(heard), len(stated)))
	for i := range all {
		all[i].Stated = map[string]statement{}
		if i < len(heard) {
			all[i].Heard = heard[i]
		}
		if i < len(stated) {
			for _, row := range stated[i] {
				all[i].Stated[row] = d.Stated[row]
			}
		}
	}
	d.Heard, d.Stated, d.Parts = all[0].Heard, all[0].Stated, len(all)-1
	return all[1:]
}

// prefix begins the names of the rows of driver.TableGuard that tell more of a decision.
func (d *decision) prefix() string { return rowDecision + "/" + d.ID + "/" }

// complete reads the parts of a decision that its first row has no room for.
func (d *decision) complete(ctx context.Context, s store) error {
	if d.Stated == nil {
		d.Stated = map[string]statement{}
	}
	for i := range d.Parts {
		var part decisionPart
		name := partName(d.prefix(), i)
		raw, err := s.Row(ctx, driver.TableGuard, name)
		switch {
		case err != nil:
			return unavailable(err)
		case raw == nil:
			return fmt.Errorf("%w: another decision was made while this one was read", hapax.ErrStoreUnavailable)
		}
		if err := driver.DecodeRow(driver.TableGuard, name, raw, &part); err != nil {
			return err
		}
		d.Heard = append(d.Heard, part.Heard...)
		maps.Copy(d.Stated, part.Stated)
	}
	return nil
}

// raisedTo returns where the decision set a line, as far as it tells.
func (d *decision) raisedTo(line string) int64 {
	for _, r := range d.Most {
		if r == raisedOf(line, r.From, r.To) {
			return r.To
		}
	}
	return 0
}

// readDecision returns the latest decision, nil if there is none.
func readDecision(ctx context.Context, s store) (*decision, []byte, error) {
	raw, err := s.Row(ctx, driver.TableGuard, rowDecision)
	if err != nil || raw == nil {
		return nil, nil, unavailable(err)
	}
	d := new(decision)
	return d, raw, driver.DecodeRow(driver.TableGuard, rowDecision, raw, d)
}

// newDecision returns the latest decision, if it is one that this node does not know.
func (g *Guarded) newDecision(ctx context.Context, s store) (*decision, error) {
	d, _, err := readDecision(ctx, s)
	if err != nil || !g.isNew(d) {
		return nil, err
	}
	return d, nil
}

// isNew reports whether a decision is one that this node does not know.
func (g *Guarded) isNew(d *decision) bool {
	known := g.witness.decision()
	return d != nil && known.Number <= d.Number && known != d.decisionID
}

// heal goes as far as it can from a refusal to serving again.
func (g *Guarded) heal(ctx context.Context, s store) error {
	if l := g.witness.latch(); l.isRetired() {
		return g.follow(ctx, s, *l.Retired)
	}
	verdict, id, cause, err := g.identify(ctx, s)
	if err != nil {
		return err
	}
	g.mu.Lock()
	g.shared, g.answers = s.Shared(), true
	wrong := errors.Is(g.cause, errOther)
	g.mu.Unlock()
	switch {
	case verdict == isOther:
		g.apply(other, cause, nil)
		return nil
	// It goes on: a fence is raised in the store that stands there.
	case verdict == isLost:
		g.apply(behind, cause, nil)
	case wrong && verdict == isSame && // the URL was corrected
		g.witness.latch().State == "":
		g.apply(decided, nil, nil)
		g.wake()
		return nil
	}
	began := g.now()
	f, raw, err := readFence(ctx, s)
	if err != nil {
		return g.ifRetired(err)
	}
	if f == nil {
		return g.afterFence(ctx, s, id, verdict)
	}
	g.mu.Lock()
	// From before it was read: it may have been lifted right after.
	g.stoodAt = began
	g.mu.Unlock()
	g.apply(fenced, fmt.Errorf("%w: %s", hapax.ErrFenced, f.text()), f)
	// Before any evidence: the inquiry is about all that have found the loss.
	if found, err := g.findOwn(ctx, s, f, raw); err != nil || found {
		return err
	}
	if err := g.tellCopies(ctx, s, id); err != nil {
		return err
	}
	if f.Ask != "" {
		if err := g.giveEvidence(ctx, s, f.Ask); err != nil {
			return err
		}
	}
	if err := g.askAndDecide(ctx, s, f, raw); err != nil {
		return err
	}
	return g.propose(ctx, s, f)
}

// findOwn adds this node to those that have found the store behind, if it has. The inquiry
// begins anew then: evidence given under the word so far may lack the new finder's knowledge, and
// an approval was given without it.
func (g *Guarded) findOwn(ctx context.Context, s store, f *Fence, raw []byte) (changed bool, err error) {
	if l := g.witness.latch(); l.State != Refusing {
		cause, err := g.judgeAll(ctx, s)
		if err != nil {
			return false, err
		}
		if cause != nil {
			g.apply(behind, cause, nil)
		}
	}
	found := g.finders(f.Found)
	if g.witness.latch().State != Refusing || len(found) == len(f.Found) {
		return false, nil
	}
	next := *f
	next.Found = found
	next.Stores = slices.Compact(slices.Sorted(slices.Values(append(g.witness.stores(), f.Stores...))))
	next.Ask, next.Healer, next.Raised, next.Missing, next.More, next.Approved = "", "", "", nil, 0, false
	return true, g.swapFence(ctx, s, raw, &next)
}

// finders adds this node to those that have found the store behind: by all rows that its
// directory has had, since another may know none of them, and a process that has just
// started has none of its own.
func (g *Guarded) finders(before map[string]int64) map[string]int64 {
	found := map[string]int64{g.run: 0}
	for row, o := range g.ownRows() {
		if o.Count > 1 { // else nothing was granted under it
			found[row] = max(before[row], o.Count)
			delete(found, g.run)
		}
	}
	for row, count := range before {
		found[row] = max(found[row], count)
	}
	return found
}

// judgeAll judges the store by the latest decision, this node's latest row, how many have
// joined, and the rows of others that it has surveyed. A decision that it does not know
// explains every loss.
func (g *Guarded) judgeAll(ctx context.Context, s store) (cause, err error) {
	d, _, err := readDecision(ctx, s)
	if err != nil || g.isNew(d) {
		return nil, err
	}
	// The latest decision outlives all rows, which it has removed.
	if known := g.witness.decision(); known.Number > 0 && (d == nil || d.Number < known.Number) {
		return fmt.Errorf("%w: it lacks decision %d about a fence, which this node knows", hapax.ErrStoreRolledBack, known.Number), nil
	}
	if cause, err = g.judgeLatest(ctx, s, g.ownRows()); err != nil || cause != nil {
		return cause, err
	}
	joins, _, err := readCounter(ctx, s, driver.RowJoins)
	if err != nil {
		return nil, err
	}
	if cause := g.lacksJoins(joins); cause != nil {
		return cause, nil
	}
	compacted, _, err := readCounter(ctx, s, rowCompacted)
	if err != nil {
		return nil, err
	}
	rows, err := readRows(ctx, s, driver.TableBeats)
	if err != nil {
		return nil, err
	}
	known, _ := g.witness.peersKnown()
	for name, p := range known {
		raw, ok := rows[name]
		switch {
		case joinOf(name) <= compacted:
			continue
		case !ok:
			return fmt.Errorf("%w: it lacks the row %s of %q, which this node has surveyed", hapax.ErrStoreRolledBack, name, p.Name), nil
		}
		beat, _, err := driver.DecodeBeat(name, raw)
		if err != nil {
			return nil, err
		}
		if beat.Count < p.Count {
			return fmt.Errorf("%w: it has heartbeat %d of %q, and had %d when this node surveyed it", hapax.ErrStoreRolledBack, beat.Count, p.Name, p.Count), nil
		}
	}
	return nil, nil
}

// lacksJoins returns the cause if fewer have joined than this node knows.
func (g *Guarded) lacksJoins(joins int64) error {
	if known := g.witness.rows().Joins; joins < known {
		return fmt.Errorf("%w: %d nodes have joined it, and %d had", hapax.ErrStoreRolledBack, joins, known)
	}
	return nil
}

// ownRows are the rows of this process and of those before it in its directory, as far as
// each is known.
func (g *Guarded) ownRows() map[string]own {
	rows := g.witness.rows().Own
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.me.row != "" { // calls under way will be abandoned
		rows[g.me.row] = own{Count: g.me.acked.Count, Grants: g.me.acked.Grants, Asked: g.me.beat.Grants}
	}
	return rows
}

// swapFence replaces the fence, and takes it; nil for next lifts it.
func (g *Guarded) swapFence(ctx context.Context, s store, raw []byte, next *Fence) error {
	err := putFence(ctx, s, raw, next)
	if err == nil && next != nil {
		g.takeFence(next)
	}
	return err
}

// putFence replaces the fence.
func putFence(ctx context.Context, s store, raw []byte, next *Fence) error {
	var value []byte
	if next != nil {
		var err error
		if value, err = json.Marshal(next); err != nil {
			return err
		}
	}
	ok, err := s.SwapRow(ctx, driver.TableFence, driver.RowFence, raw, value)
	if err == nil && !ok {
		err = fmt.Errorf("%w: the fence was changed meanwhile", hapax.ErrStoreUnavailable)
	}
	return unavailable(err)
}

// afterFence looks for the decision about the fence that stood. Where there is none, it
// is raised, or raised again. A decision explains nothing of another store than its own.
func (g *Guarded) afterFence(ctx context.Context, s store, id string, v verdict) error {
	if d, err := g.newDecision(ctx, s); err != nil || d != nil && v == isSame {
		if err == nil {
			err = g.catchUp(ctx, s, d, id)
		}
		return err
	}
	l := g.witness.latch()
	f := &Fence{ID: rand.Text(), Node: g.opts.Name, Row: l.Row, At: time.Now().UTC(), Why: l.Why, Code: l.Code}
	if l.State == Refusing {
		f.Found, f.Stores = g.finders(nil), g.witness.stores()
	}
	return g.swapFence(ctx, s, nil, f)
}

// catchUp takes a decision that this node does not know. The node joins again. Where it was
// heard for the decision, and has been in contact since, so that it has not missed another
// loss, it waits for the other processes that were heard alone. Where it was not heard, and knows
// more than was assumed of it, it raises the lines itself.
func (g *Guarded) catchUp(ctx context.Context, s store, d *decision, id string) error {
	if err := d.complete(ctx, s); err != nil {
		return err
	}
	heard := slices.Contains(d.Heard, g.run)
	before := g.witness.snapshot()
	have, err := readLines(ctx, s, before.lines())
	if err != nil {
		return unavailable(err)
	}
	// The lines were read after the decision; that it still stands shows that they are of a store
	// that has it.
	switch still, _, err := readDecision(ctx, s); {
	case err != nil:
		return err
	case still == nil || still.decisionID != d.decisionID: // the lines may be of a copy from before
		return fmt.Errorf("%w: the store has gone back while it was read", hapax.ErrStoreUnavailable)
	}
	owed, err := readOwed(ctx, s)
	if err != nil {
		return err
	}
	if !heard && len(before.Lines) > 0 {
		if err := g.amend(ctx, s, before, have, d); err != nil {
			return err
		}
	}
	was := g.witness.latch()
	g.verdicts.Lock()
	err = g.witness.enter(func(b *record) error {
		if g.witness.state.Latch.retires() { // found meanwhile
			return g.witness.state.Latch.Retired.Err()
		}
		// In one change: a half of it would make the store look behind, or hide that it is.
		b.Store, b.Decision, b.Joins, b.Compacted, b.Latch = id, &d.decisionID, d.Joins, d.Joins, &latch{}
		b.Lines, b.Defs = have.pairs, have.defsFor(before) // from now on it attests for all that had joined
		// With their definitions: those that were read may be of the row that blocks the line.
		pairs, defs := owed.newTo(before)
		for line, p := range pairs {
			b.Lines[line], b.Defs[line] = b.Lines[line].max(p), defs[line]
		}
		return nil
	})
	if err == nil {
		g.mu.Lock()
		if g.me.heard = nil; heard && g.now()-g.stoodAt <= g.opts.wait() {
			g.me.heard = d.Heard
		}
		g.mu.Unlock()
		g.applyLocked(decided, nil, nil)
	}
	g.verdicts.Unlock()
	// The state may come first: nobody joins before the row is in the witness, and so this, too.
	if err == nil {
		err = g.witness.flush()
	}
	if err != nil {
		return err
	}
	if was.State != "" {
		g.opts.Log.Info("the store was healed, and numbers are granted again", "fence", d.Fence.ID, "lines_raised", d.Raised)
	}
	g.tell()
	g.wake()
	return nil
}

// askAndDecide asks, and decides when all have given evidence.
func (g *Guarded) askAndDecide(ctx context.Context, s store, f *Fence, raw []byte) error {
	g.mu.Lock()
	now, wait := g.now(), g.waitLocked()
	if !g.shared {
		wait = 0
	}
	if string(raw) != g.fenceRaw {
		g.fenceRaw, g.fenceAt = string(raw), now
	}
	met := now-max(g.seenAt, g.beats.dialledAt()) >= wait
	still, patience := now-g.fenceAt, 2*max(wait, g.healing)
	g.mu.Unlock()
	mine := f.Healer == g.run
	switch {
	case !met: // every living node has the time to find the loss first, so that its evidence is asked for
		return nil
	// The healer is gone; another takes its place, lest the fleet stands still. A process whose own turns have
	// proved too short leaves another one's as much time, or each would take the other's place for ever.
	case f.Ask == "", !mine && still > patience:
		next := *f
		next.Ask, next.Healer, next.Raised, next.Missing, next.More = rand.Text(), g.run, "", nil, 0
		return g.swapFence(ctx, s, raw, &next)
	case !mine:
		return nil
	}
	h, err := g.inquire(ctx, s, f)
	if err != nil {
		return err
	}
	a := h.findMissing()
	next := *f
	told := !next.lacks(a.missing, a.manual)
	switch waits := len(a.missing) > 0 || next.Manual && !next.Approved || g.holds(f); {
	case len(a.missing) > len(f.Missing)+f.More && still < 2*g.opts.Heartbeat: // they have just been asked
		return nil
	case !told, waits && still > wait:
		next.Turn++ // tells the others that somebody presides
		return g.swapFence(ctx, s, raw, &next)
	case waits:
		return nil
	}
	return g.decide(ctx, s, f, raw, a)
}

// holds reports whether this process waits for an operator, although all have given evidence.
func (g *Guarded) holds(f *Fence) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.heard = f.Ask
	return g.opts.Hold && g.approved != f.ID
}

// decide raises every line above the evidence, records the decision and lifts the
// fence: only if nothing was added to it since, and only where the raised lines are,
// since they were all read again after the word was written that it is lifted under.
func (g *Guarded) decide(ctx context.Context, s store, f *Fence, raw []byte, a *account) error {
	id, err := s.StoreID(ctx)
	if err != nil {
		return unavailable(err)
	}
	// Before the decision: a node that knows one of them refuses this store until it finds such a
	// row.
	for _, old := range slices.Compact(slices.Sorted(slices.Values(append(a.stores, f.Stores...)))) {
		if old != id && old != "" {
			if err := putRow(ctx, s, driver.TableGuard, rowReplaces+old, f.ID); err != nil {
				return err
			}
		}
	}
	raised, err := g.raise(ctx, s, a)
	if err != nil {
		return err
	}
	// A process that has joined since the evidence was read is not accounted for.
	joins, had, err := readCounter(ctx, s, driver.RowJoins)
	if err != nil {
		return err
	}
	if joins > a.joins {
		return fmt.Errorf("%w: another node has joined meanwhile", hapax.ErrStoreUnavailable)
	}
	// A join number must not be given twice: one that the store lost may have an owner with a
	// witness.
	if joins < a.joins {
		if ok, err := s.SwapRow(ctx, driver.TableGuard, driver.RowJoins, had, driver.EncodeCounter(a.joins)); err != nil || !ok {
			return errors.Join(unavailable(err), fmt.Errorf("%w: another node has joined meanwhile", hapax.ErrStoreUnavailable))
		}
	}
	// The fence gets a new random text after the raising: in a store that is put back once more,
	// that fence is gone and cannot be lifted.
	final := *f
	final.Raised, final.Missing, final.More = rand.Text(), nil, 0
	if err := g.swapFence(ctx, s, raw, &final); err != nil {
		return err
	}
	have, err := readLines(ctx, s, a.lines)
	if err != nil {
		return unavailable(err)
	}
	owed, err := readOwed(ctx, s)
	if err != nil {
		return err
	}
	if len(a.lacking(have)) > 0 || !owed.covers(a, have) { // a copy from before was put back before that text was written
		return fmt.Errorf("%w: the store has gone back while it was healed", hapax.ErrStoreUnavailable)
	}
	latest, old, err := readDecision(ctx, s)
	if err != nil {
		return err
	}
	d := decision{
		decisionID: decisionID{a.decision + 1, rand.Text()},
		Fence:      final, Store: id, Joins: a.joins, At: time.Now().UTC(), Heard: a.heard, Stated: a.statements, Raised: len(raised), Most: raised[:min(len(raised), 100)],
	}
	if latest != nil {
		d.Number = max(d.Number, latest.Number+1)
	}
	d.Fence.Found = nil // all have given evidence by now
	for i, part := range d.split() {
		if err := putRow(ctx, s, driver.TableGuard, partName(d.prefix(), i), part); err != nil {
			return err
		}
	}
	// Its parts stand before the row that names them, and old ones go after it.
	value, err := json.Marshal(d)
	if err != nil {
		return err
	}
	if ok, err := s.SwapRow(ctx, driver.TableGuard, rowDecision, old, value); err != nil || !ok {
		return errors.Join(unavailable(err), fmt.Errorf("%w: another decision was made meanwhile", hapax.ErrStoreUnavailable))
	}
	// While the fence stands, so that nobody is granted anything under a row that is being
	// removed.
	if err := g.removeUpTo(ctx, s, a.joins); err != nil {
		return err
	}
	if err := dropParts(ctx, s, d.prefix()); err != nil {
		return err
	}
	last, err := json.Marshal(final)
	if err != nil {
		return err
	}
	if err := g.swapFence(ctx, s, last, nil); err != nil {
		return err
	}
	g.opts.Log.Warn("the store had gone back, and was healed", "fence", f.ID, "why", f.Why, "lines_raised", len(raised), "first", raised[:min(len(raised), 3)])
	g.wake()
	return g.forget(ctx, s)
}

// dropParts removes the parts of all decisions but the one whose rows begin so.
func dropParts(ctx context.Context, s store, prefix string) error {
	rows, err := readRows(ctx, s, driver.TableGuard)
	for name, raw := range rows {
		if err == nil && strings.HasPrefix(name, rowDecision+"/") && !strings.HasPrefix(name, prefix) {
			_, err = s.SwapRow(ctx, driver.TableGuard, name, raw, nil)
		}
	}
	return unavailable(err)
}

// putRow writes a row of which all writers write the same, or that has one writer.
func putRow(ctx context.Context, r driver.Rows, table, name string, value any) error {
	next, err := json.Marshal(value)
	if err != nil {
		return err
	}
	old, err := r.Row(ctx, table, name)
	if err != nil || string(old) == string(next) {
		return unavailable(err)
	}
	ok, err := r.SwapRow(ctx, table, name, old, next)
	if err == nil && !ok {
		err = fmt.Errorf("%w: row %q of table %q was changed meanwhile", hapax.ErrStoreUnavailable, name, table)
	}
	return unavailable(err)
}
