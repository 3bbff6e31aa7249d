package witness

import (
	"cmp"
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

// Rows of driver.TableEvidence that hold operators' statements; the rest of the name is the
// identity of the fence, a slash and the row that was spoken for.
const (
	rowSaid  = "said/"
	rowFiles = "file/" // followed by the parts of a witness file besides
)

// DefaultAhead is how far past now the timelines of worker IDs are raised for a process
// that was spoken for with a floor: as far as a grant reaches.
const DefaultAhead = hapax.DefaultMaxGrant

// A Statement is an operator's statement about a missing process that can know of grants.
type Statement struct {
	// Row is the name of a row, or of a node. Empty: all missing nodes.
	Row string

	// Witness is the testimony of the missing process's witness. Several may be given.
	Witness []Testimony

	// Floor is above all that it can have used: every segment tag is raised to it. It
	// is not accepted below a mark that anybody knows. Zero: the witness tells.
	Floor int64

	// Ahead is how far past now the timelines of worker IDs are raised, with a floor;
	// default DefaultAhead.
	Ahead time.Duration

	// DryRun changes nothing, and accepts exactly as much as the statement itself would.
	DryRun bool

	// Wait is how long to wait for the nodes that live; default twice as long as a
	// living node takes to meet the store, and 5 s.
	Wait time.Duration
}

// An Adoption is the result of Adopt or Settle.
type Adoption struct {
	StoreID  string
	Other    string   // identity of the store that this node knows, where it is not this one
	Fence    *Fence   // the fence that stands; nil: nothing is wrong
	Spoke    int      // how many processes have given evidence
	Missing  []Node   // missing nodes, with the statement taken for evidence
	Stated   []Node   // nodes that the statement is about
	Raised   []Raised // lines that will be raised
	Proposed int64    // a floor above all that a missing node can have used, if its segments were no larger than the tags allow
}

// statement is a Statement as it is stored.
type statement struct {
	Floor int64         `json:"floor,omitempty"`
	Ahead time.Duration `json:"ahead_ns,omitempty"`
	At    time.Time     `json:"at"`             // by the clock of the node that took it
	Name  string        `json:"name,omitempty"` // of the node that was spoken for
}

// readStatements returns the operators' statements about a fence, and the witness files that
// they gave.
func readStatements(ctx context.Context, s store, fence string) (map[string]statement, map[string]evidence, error) {
	stated := map[string]statement{}
	prefix := rowSaid + fence + "/"
	for after, more := prefix, true; more; {
		page, err := s.ListRows(ctx, driver.TableEvidence, after, evidencePage)
		if err != nil {
			return nil, nil, unavailable(err)
		}
		more = len(page) == evidencePage
		for _, r := range page {
			row, ok := strings.CutPrefix(r.Name, prefix)
			if !ok { // the rows of another fence follow
				more = false
				break
			}
			var st statement
			if err := driver.DecodeRow(driver.TableEvidence, r.Name, r.Value, &st); err != nil {
				return nil, nil, unavailable(err)
			}
			after, stated[row] = r.Name, st
		}
	}
	files, err := readEvidence(ctx, s, rowFiles+fence+"/")
	return stated, files, err
}

// Adopt states for an operator that the store is to be used as it is now: it speaks for the
// missing nodes, a fleet with Options.Manual may be healed, and a store that is not this
// node's goes on in place of the one that is. ErrInvalidArgument for a floor below a mark
// that is known; ErrFenced if a process is still missing.
func (g *Guarded) Adopt(ctx context.Context, st Statement) (Adoption, error) {
	st.Row = ""
	return g.declare(ctx, st)
}

// Settle speaks for one process that is missing. Where no fence stands it ends the row
// of one that does not advance, so that nobody waits for it. The errors are Adopt's;
// ErrInvalidArgument also for a node that is not missing.
func (g *Guarded) Settle(ctx context.Context, st Statement) (Adoption, error) {
	if st.Row == "" {
		return Adoption{}, &hapax.ValueError{Field: "node", Value: "", Allowed: "the name or the row of a node", Err: hapax.ErrInvalidArgument}
	}
	return g.declare(ctx, st)
}

func (g *Guarded) declare(ctx context.Context, st Statement) (Adoption, error) {
	a, err := g.declared(ctx, st)
	if errors.Is(err, hapax.ErrClosed) && g.life.Err() == nil {
		err = errReplacedInUse()
	}
	return a, err
}

func (g *Guarded) declared(ctx context.Context, st Statement) (Adoption, error) {
	if st.Floor < 0 || st.Floor > maxFloor {
		return Adoption{}, &hapax.ValueError{Field: "floor", Value: st.Floor, Allowed: fmt.Sprintf("1 to %d, or 0 for none", int64(maxFloor)), Err: hapax.ErrInvalidArgument}
	}
	if st.Ahead == 0 {
		st.Ahead = DefaultAhead
	}
	if st.Wait == 0 {
		st.Wait = 2*g.opts.wait() + 5*time.Second
	}
	ctx, cancel := context.WithTimeout(ctx, 2*st.Wait+g.opts.Timeout)
	defer cancel()
	s, err := g.calls.get(ctx)
	if err != nil {
		return Adoption{}, err
	}
	a := Adoption{}
	if a.StoreID, err = s.StoreID(ctx); err != nil {
		return a, unavailable(err)
	}
	if err := haveMoved(ctx, s, a.StoreID, st.Witness); err != nil {
		return a, err
	}
	wrong, err := g.awaitDeclarable(ctx, s, st.Wait)
	if err != nil {
		return a, err
	}
	// To speak for one node says nothing about which store is right.
	if wrong && st.Row != "" {
		return a, g.Refused()
	}
	if wrong {
		a.Other = g.witness.StoreID()
		if err := g.judgeOther(ctx, s, st, &a); err != nil || st.DryRun {
			return a, err
		}
		g.mu.Lock()
		g.accepted = a.StoreID
		g.mu.Unlock()
		g.wake()
		a = Adoption{StoreID: a.StoreID, Other: a.Other}
	}
	f, err := g.awaitAccount(ctx, s, st.Wait)
	if err != nil {
		return a, err
	}
	if f == nil {
		if st.Row != "" {
			a.Stated, err = g.endRow(ctx, s, st)
		}
		return a, err
	}
	a.Fence = f
	if err := g.speakFor(ctx, s, f, st, &a); err != nil || st.DryRun {
		return a, err
	}
	g.mu.Lock()
	g.approved = f.ID
	g.mu.Unlock()
	return a, g.awaitDecision(ctx, s, f.ID, st, &a)
}

// awaitVerdict waits until this node has judged the store, and reports whether that is
// another than its own.
func (g *Guarded) awaitVerdict(ctx context.Context, wait time.Duration) (wrong bool, err error) {
	for began := g.now(); ; {
		g.mu.Lock()
		judged, cause := g.state != Joining || g.me.row != "", g.cause
		wrong = errors.Is(g.cause, errOther)
		g.mu.Unlock()
		if judged {
			return wrong, nil
		}
		if g.now()-began > wait {
			return false, cmp.Or(cause, fmt.Errorf("%w: this node has not been able to join the store; try again", hapax.ErrStoreUnavailable))
		}
		if err := g.rest(ctx); err != nil {
			return false, err
		}
	}
}

// judgeOther judges a statement about another store than this node's before anything is
// written to that: as if all processes that advance their rows there had given evidence, and
// those that lived on this node's store.
func (g *Guarded) judgeOther(ctx context.Context, s store, st Statement, a *Adoption) error {
	before, err := readRows(ctx, s, driver.TableBeats)
	if err != nil {
		return err
	}
	// Long enough for each living process there to advance its row.
	if err := g.pause(ctx, g.opts.wait()); err != nil {
		return err
	}
	r := g.witness.snapshot()
	r.Own = g.ownRows()
	mine := evidenceOf(r)
	// As a finder, since it would be one once the store is accepted.
	mine.Finder, mine.Lines, mine.Defs = true, r.Lines, r.Defs
	f, _, err := readFence(ctx, s)
	if err != nil {
		return err
	}
	h, err := g.inquire(ctx, s, cmp.Or(f, new(Fence)))
	if err != nil {
		return err
	}
	h.said[g.run] = mine
	for row, p := range r.Peers {
		if p.How == "" {
			h.said[row] = evidence{Own: map[string]own{row: {Count: p.Count, Grants: p.Grants}}}
		}
	}
	for row, p := range h.present {
		if old, ok := before[row]; !ok || string(old) != string(h.beats[row]) {
			h.said[row] = evidence{Own: map[string]own{row: {Count: p.Count, Grants: p.Grants}}}
		}
	}
	_, err = g.judgeStatement(ctx, s, st, h, a)
	return err
}

// awaitAccount waits until the fence names the missing nodes, or says that it waits for a
// person; nil if there is none, or none any more.
func (g *Guarded) awaitAccount(ctx context.Context, s store, wait time.Duration) (*Fence, error) {
	for began := g.now(); ; {
		f, _, err := readFence(ctx, s)
		if err != nil {
			return nil, err
		}
		g.mu.Lock()
		heard := g.opts.Hold && f != nil && g.heard == f.Ask
		g.mu.Unlock()
		settled := f == nil && g.Refused() == nil || f != nil && f.Ask != "" && (len(f.Missing) > 0 || f.Manual || heard)
		if settled {
			return f, nil
		}
		if g.now()-began > wait {
			return nil, fmt.Errorf("%w: the nodes that live have not said yet what they used; try again", hapax.ErrStoreUnavailable)
		}
		if err := g.rest(ctx); err != nil {
			return nil, err
		}
	}
}

// rest waits for a fraction of a heartbeat.
func (g *Guarded) rest(ctx context.Context) error { return g.pause(ctx, g.opts.Heartbeat/4) }

func (g *Guarded) pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", hapax.ErrStoreUnavailable, context.Cause(ctx))
	}
}

// speakFor judges a statement, and makes it unless it is a dry run.
func (g *Guarded) speakFor(ctx context.Context, s store, f *Fence, st Statement, a *Adoption) error {
	h, err := g.inquire(ctx, s, f)
	if err != nil {
		return err
	}
	stated, err := g.judgeStatement(ctx, s, st, h, a)
	if err != nil || st.DryRun {
		return err
	}
	return g.write(ctx, s, f, st, stated, h.stated)
}

// judgeStatement judges a statement by those before it, and returns all that
// is stated with it.
func (g *Guarded) judgeStatement(ctx context.Context, s store, st Statement, h *inquiry, a *Adoption) (map[string]statement, error) {
	missing := h.findMissing().missing
	a.Spoke = len(h.said)
	unsaid := *h // as if no operator had said anything yet
	unsaid.stated, unsaid.files = nil, nil
	targets := slices.DeleteFunc(unsaid.findMissing().missing, func(n Node) bool {
		return st.Row != "" && !n.isNamed(st.Row)
	})
	if st.Row != "" && len(targets) == 0 {
		return nil, &hapax.ValueError{Field: "node", Value: st.Row, Allowed: "one of those that are missing: " + nodesText(missing), Err: hapax.ErrInvalidArgument}
	}
	with := *h
	with.files = maps.Clone(h.files)
	for i, t := range st.Witness {
		with.files[fmt.Sprintf("%s-%d", g.run, i)] = evidenceOfFile(t)
	}
	still := with.findMissing().missing
	with.stated = maps.Clone(h.stated)
	for _, n := range targets {
		said, before := h.stated[n.Row]
		if st.Floor > said.Floor && (before || isAmong(n, still)) {
			with.stated[n.Row] = statement{Floor: st.Floor, Ahead: max(st.Ahead, said.Ahead), At: time.Now().UTC(), Name: n.Name}
		} else if !isAmong(n, missing) {
			n.State = settled
		}
		a.Stated = append(a.Stated, n)
	}
	now := with.findMissing()
	have, err := readLines(ctx, s, now.lines)
	if err != nil {
		return nil, unavailable(err)
	}
	a.Missing = now.missing
	a.Stated = slices.DeleteFunc(a.Stated, func(n Node) bool { return isAmong(n, now.missing) })
	known, tag := highest(now.lines, have.lines)
	a.Proposed = proposedFloor(now.lines, have.lines)
	for line, p := range now.lacking(have) {
		a.Raised = append(a.Raised, raisedOf(line, have.pairs[line].Mark, p.Mark))
	}
	slices.SortFunc(a.Raised, func(x, y Raised) int { return strings.Compare(x.String(), y.String()) })
	for _, n := range targets {
		if isAmong(n, now.missing) {
			return nil, fmt.Errorf("%w: %s is missing and not spoken for: start it, give its own witness file, or give a floor above all that it can have used, %d or more", hapax.ErrFenced, n, a.Proposed)
		}
	}
	if st.Floor != 0 && st.Floor < known {
		return nil, &hapax.ValueError{Field: "floor", Value: st.Floor, Allowed: fmt.Sprintf("at least %d, which tag %q is known to have reached; proposed is %d", known, tag, a.Proposed), Err: hapax.ErrInvalidArgument}
	}
	return with.stated, nil
}

func isAmong(n Node, nodes []Node) bool {
	return slices.ContainsFunc(nodes, func(m Node) bool { return m.Row == n.Row })
}

// evidenceOfFile returns the evidence of a process that does not run, from its witness.
func evidenceOfFile(t Testimony) evidence {
	e := evidenceOf(t.said)
	e.Lines, e.Defs = t.said.Lines, t.said.Defs
	return e
}

func nodesText(nodes []Node) string {
	var names []string
	for _, n := range nodes {
		names = append(names, n.String())
	}
	return strings.Join(names, ", ")
}

// write makes a statement.
func (g *Guarded) write(ctx context.Context, s store, f *Fence, st Statement, stated, old map[string]statement) error {
	for i, t := range st.Witness {
		prefix := fmt.Sprintf("%s%s/%s-%d/", rowFiles, f.ID, g.run, i)
		if err := publish(ctx, s, prefix, evidenceOf(t.said).parts(t.said)); err != nil {
			return err
		}
	}
	for row, said := range stated {
		if old[row] == said {
			continue
		}
		if err := g.say(ctx, s, rowSaid+f.ID+"/"+row, said); err != nil {
			return err
		}
	}
	// After the statements: the approval may end the fence at once.
	for st.Row == "" && f.Manual {
		now, raw, err := readFence(ctx, s)
		if err != nil || now == nil || now.ID != f.ID || now.Approved {
			return err
		}
		now.Approved = true
		if err := putFence(ctx, s, raw, now); err == nil { // the next turn takes it: it may be decided about by now
			break
		}
		if err := g.rest(ctx); err != nil {
			return err
		}
	}
	g.wake()
	return nil
}

// awaitDecision waits until the fence is gone, or waits for somebody else.
func (g *Guarded) awaitDecision(ctx context.Context, s store, id string, st Statement, a *Adoption) error {
	for began := g.now(); g.now()-began <= st.Wait; {
		if f, _, err := readFence(ctx, s); err != nil {
			return err
		} else if f == nil || f.ID != id {
			return inTime(ctx, s, id, st, a)
		}
		if err := g.rest(ctx); err != nil {
			return err
		}
	}
	if len(a.Missing) > 0 {
		return fmt.Errorf("%w: what was said is recorded; missing still: %s", hapax.ErrFenced, nodesText(a.Missing))
	}
	return fmt.Errorf("%w: what was said is recorded in the store and stays there, but no node has acted on it yet: the next one that runs for some seconds does; hapax nodes shows when nothing is missing any more", hapax.ErrFenced)
}

// endRow ends the row of a process that does not advance, where no fence stands. Of one that
// has ended already it returns that.
func (g *Guarded) endRow(ctx context.Context, s store, st Statement) ([]Node, error) {
	before, err := g.Nodes(ctx)
	if err != nil {
		return nil, err
	}
	before = slices.DeleteFunc(before, func(n Node) bool { return n.Self || !n.isNamed(st.Row) })
	if len(before) == 0 {
		if said, err := settledBefore(ctx, s, st); err != nil || len(said) > 0 {
			return said, err
		}
		return nil, &hapax.ValueError{Field: "node", Value: st.Row, Allowed: "another node that the store knows; hapax nodes --all lists them", Err: hapax.ErrInvalidArgument}
	}
	latest := slices.Clone(before[len(before)-1:]) // the deletion below leaves zeros behind
	before = slices.DeleteFunc(before, func(n Node) bool { return n.hasEnded() })
	if len(before) == 0 {
		return latest, nil
	}
	// Long enough to observe a living process advance: the row of one would be ended under it.
	if err := g.pause(ctx, g.opts.wait()); err != nil {
		return nil, err
	}
	for _, n := range before {
		raw, err := s.Row(ctx, driver.TableBeats, n.Row)
		if err != nil {
			return nil, unavailable(err)
		}
		if raw == nil { // compacted meanwhile
			continue
		}
		beat, how, err := driver.DecodeBeat(n.Row, raw)
		switch {
		case err != nil:
			return nil, err
		case how != "":
			continue
		case beat.Count != n.Beats:
			return nil, &hapax.ValueError{Field: "node", Value: st.Row, Allowed: "a node that does not run; this one has just written its heartbeat", Err: hapax.ErrInvalidArgument}
		case st.DryRun:
			continue
		}
		if _, err := g.pulsed(s).SwapRow(ctx, driver.TableBeats, n.Row, raw, beat.EncodeEnded("silent")); err != nil {
			return nil, err
		}
		if err := tellChange(ctx, g.pulsed(s)); err != nil {
			return nil, err
		}
	}
	return before, nil
}

// Nodes returns the processes that the store knows, by row, and those that are missing
// while a fence stands.
func (g *Guarded) Nodes(ctx context.Context) ([]Node, error) {
	return ask(ctx, g, func(ctx context.Context, s store) ([]Node, error) {
		about, err := readNodes(ctx, s)
		if err != nil {
			return nil, err
		}
		began := g.now()
		beats, err := readRows(ctx, s, driver.TableBeats)
		if err != nil {
			return nil, err
		}
		st, missing := g.Status(), map[string]Node{}
		if st.Fence != nil && st.Fence.More > 0 {
			h, err := g.inquire(ctx, s, st.Fence)
			if err != nil {
				return nil, err
			}
			st.Missing = h.findMissing().missing
		}
		for _, n := range st.Missing {
			missing[n.Row] = n
		}
		if _, err := g.noteRows(beats, began); err != nil { // only the reader has read them lately
			return nil, err
		}
		var nodes []Node
		g.mu.Lock()
		defer g.mu.Unlock()
		for _, row := range slices.Sorted(maps.Keys(beats)) {
			beat, how, _ := driver.DecodeBeat(row, beats[row]) // noteRows has decoded it, too
			n := Node{Row: row, Name: about[row].Name, Address: about[row].Address, State: how, Beats: beat.Count, Grants: beat.Grants, Self: row == g.me.row}
			if at := g.peers[row]; at != nil {
				n.Seen = max(g.now()-at.at, 1)
			}
			switch _, lacks := missing[row]; {
			case lacks:
				n.State = "missing"
				delete(missing, row)
			case how == "" && st.Fence != nil: // even if it reports that it serves
				n.State = string(Fenced)
			case how == "" && about[row].Serves:
				n.State = "serving"
			case how == "":
				n.State = "joining"
			}
			nodes = append(nodes, n)
		}
		nodes = slices.AppendSeq(nodes, maps.Values(missing))
		slices.SortFunc(nodes, func(x, y Node) int { return strings.Compare(x.Row, y.Row) })
		return nodes, nil
	})
}

// amend raises the lines of a node that comes late to a decision, where it knows more than
// was assumed. It compares marks and not pairs, since the decision has raised all tokens.
// Numbers that it used above the assumed mark may have been granted again: they are told,
// and nobody is stopped.
func (g *Guarded) amend(ctx context.Context, s store, before record, have stored, d *decision) error {
	healer, err := healing(s)
	if err != nil {
		return err
	}
	var mine []statement
	for row := range before.Own {
		for _, name := range []string{row, rowName(joinOf(row), "")} {
			if st, ok := d.Stated[name]; ok {
				mine = append(mine, st)
			}
		}
	}
	for _, line := range slices.Sorted(maps.Keys(before.Lines)) {
		p, now := before.Lines[line], have.pairs[line]
		if have.unread[line] {
			if err := owe(ctx, s, line, owedLine{p, before.Defs[line]}); err != nil {
				return err
			}
			continue
		}
		assumed := d.raisedTo(line)
		for _, st := range mine {
			assumed = max(assumed, st.assumed(line, before.Defs))
		}
		// Either alone: healing has raised tokens, so that an equal pair proves nothing.
		lacks := now.Token < p.Token || now.Mark < p.Mark
		if to := min(p.Mark, now.Mark); to > assumed && (lacks || len(mine) > 0) {
			g.opts.Log.Error("numbers may have been used twice: this node had used them, and the store was healed without its word",
				"line", line, "from", assumed, "to", to)
		}
		if lacks {
			if err := healLine(ctx, healer, line, p.above(now), before.Defs); err != nil {
				return unavailable(err)
			}
		}
	}
	return nil
}

// assumed returns up to where a statement said that a line was used; 0: it did not.
func (st statement) assumed(line string, defs map[string]def) int64 {
	if _, ok := CutTagLine(line); ok {
		if defs[line].Kind != "" {
			return 0
		}
		return st.Floor
	}
	pool, _, _ := CutWorkerLine(line)
	layout, err := hapax.ParseLayout(defs[poolDef(pool)].Layout)
	if err != nil || st.Ahead == 0 {
		return 0
	}
	tick, err := layout.TickOf(st.At.Add(st.Ahead))
	if err != nil {
		return 0
	}
	return tick
}
