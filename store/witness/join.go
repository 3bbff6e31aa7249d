package witness

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
)

// join goes as far as it can on the way to serving.
func (g *Guarded) join(ctx context.Context, s store) error {
	g.mu.Lock()
	g.shared = s.Shared()
	registered := g.me.row != ""
	g.mu.Unlock()
	var before ahead
	if !registered { // a heartbeat of its row tells all of this
		var may bool
		var err error
		if before, may, err = g.prepare(ctx, s); err != nil || !may {
			return err
		}
	}
	asked, err := g.compareFresh(ctx, s) // before this turn's heartbeat, which tells the primary
	if err != nil {
		return err
	}
	g.mu.Lock()
	known := g.me.known && (g.me.heard == nil || g.me.joins == g.me.seen)
	g.mu.Unlock()
	if !registered {
		me, err := g.register(ctx, before)
		if err != nil {
			return err
		}
		g.mu.Lock()
		// It was heard for a decision before it had this row.
		me.heard = g.me.heard
		g.me = me
		g.mu.Unlock()
		g.wake() // the next turn has the time that a survey takes at this distance
		return nil
	}
	if !known {
		done, err := g.surveyFirst(ctx, s)
		if err != nil {
			return err
		}
		if known = done; !done && g.maySurveyLater(s) {
			if err := g.learnCopies(ctx, s); err != nil {
				return err
			}
			known = true
		}
	}
	if err := g.beatOnce(ctx, s); err != nil || !known { // reports the survey
		return err
	}
	if err := g.tellPrimary(ctx, s, asked); err != nil {
		return err
	}
	ready, err := g.ready(ctx, s)
	if err != nil || !ready {
		return err
	}
	if err := g.announce(ctx, s); err != nil {
		return err
	}
	id, err := ahead{store: s}.StoreID(ctx)
	if err != nil {
		return unavailable(err)
	}
	// Before the change below, which makes it known.
	isFresh := g.witness.StoreID() == ""
	if err := g.noteFounding(ctx, s); err != nil {
		return err
	}
	err = g.witness.commit(func(b *record) error { // whose store it is shows only now that all had the time to speak up
		hasLeft := g.witness.state.Left != nil && g.witness.state.Left.Row != ""
		if !hasLeft && g.witness.state.Store != "" {
			return errNoChange
		}
		if g.witness.state.Store == "" {
			b.Store = id
		}
		b.Left = &departure{}
		return nil
	})
	if err != nil {
		return err
	}
	if isFresh {
		g.tellUnheard()
	}
	g.apply(joined, nil, nil)
	return nil
}

// prepare finds out whether a process may register, and returns the rows that it needs for that,
// as they are, in two round trips. The quicker one shows how long one takes: the process's row reports
// from the first how often it beats.
func (g *Guarded) prepare(ctx context.Context, s store) (before ahead, may bool, err error) {
	began := g.now()
	fence, err := readAhead(ctx, s, driver.Key{Table: driver.TableFence, Name: driver.RowFence})
	if err != nil {
		return before, false, err
	}
	took := g.now() - began
	keys := g.registering()
	began = g.now()
	if before, err = readAhead(ctx, s, keys...); err != nil { // a decision comes before its fence is lifted
		return before, false, err
	}
	maps.Copy(before.rows, fence.rows)
	before.judged = []driver.Key{{Table: driver.TableFence, Name: driver.RowFence}, guardRow(rowDecision)}
	if latest := latestOf(g.witness.rows().Own); latest != "" {
		before.judged = append(before.judged, beatRow(latest))
	}
	g.mu.Lock()
	g.pace.interval, g.answers = max(g.opts.Heartbeat, intervalFor(min(took, g.now()-began))), true
	g.mu.Unlock()
	if err := g.checkStore(ctx, before); err != nil {
		return before, false, err
	}
	// Nobody joins while a fence stands: the joins counter is part of the decision.
	if f, _, err := readFence(ctx, before); err != nil || f != nil {
		if err == nil {
			g.takeFence(f)
		}
		return before, false, g.ifRetired(err)
	}
	if d, err := g.newDecision(ctx, before); err != nil || d != nil {
		if err == nil {
			err = g.catchUp(ctx, s, d, g.witness.StoreID())
		}
		return before, false, err
	}
	return before, true, nil
}

// surveyFirst makes the survey of a process that joins, and reports whether it is over.
// Where it takes longer than others wait for a heartbeat, the next one is made beside the
// heartbeats, and wakes the loop.
func (g *Guarded) surveyFirst(ctx context.Context, s store) (done bool, err error) {
	g.mu.Lock()
	busy, long, h := g.me.busy, g.long || !g.shared, g.calls // nobody shares it: see maySurveyLater
	if g.shared {
		h = g.beats
	}
	g.mu.Unlock()
	if busy {
		return false, nil
	}
	if err := g.closeEarlier(ctx, s); err != nil {
		return false, err
	}
	if long {
		g.surveyOn(h)
		time.AfterFunc(surveyHead, g.wake)
		return false, nil
	}
	if err = g.survey(ctx, s); err != nil && ctx.Err() != nil {
		g.mu.Lock()
		g.long = true
		g.mu.Unlock()
	}
	return err == nil, err
}

// surveyHead is how long a process waits for its survey of a store that nobody shares.
const surveyHead = 100 * time.Millisecond

// maySurveyLater reports whether a process may serve before its survey is over: on a store
// that nobody shares nobody else waits for its survey, and each grant is compared by
// itself. Where many starts were too short for their surveys, it is to be waited for: their
// rows are removed with it.
func (g *Guarded) maySurveyLater(s store) bool {
	g.mu.Lock()
	waited := g.now() - g.me.waits
	g.mu.Unlock()
	return !s.Shared() && waited >= surveyHead && len(g.witness.rows().Own) < compactAt
}

// runLength is how much of a process's random text stands in its rows.
const runLength = 20

// register takes a number, and a row that stands in the store before the number counts, in one
// step where the store can.
func (g *Guarded) register(ctx context.Context, s store) (member, error) {
	none := member{}
	// With the row, so that no two versions that misread each other have rows at once.
	format, err := claim(ctx, s)
	if err != nil {
		return none, err
	}
	joins, raw, err := readCounter(ctx, s, driver.RowJoins)
	if err != nil {
		return none, err
	}
	before := g.witness.rows()
	// Before anything is written: a join would hide that others were lost.
	if cause := g.lacksJoins(joins); cause != nil {
		return none, g.isBehind(cause)
	}
	if cause, err := g.judgeLatest(ctx, s, before.Own); err != nil || cause != nil {
		if cause != nil {
			err = g.isBehind(cause)
		}
		return none, err
	}
	quick, err := g.isAlone(ctx, s, before, joins)
	if err != nil {
		return none, err
	}
	arrived, err := findArrived(ctx, s, before.Own, joins)
	if err != nil {
		return none, err
	}
	number := joins + 1
	row := rowName(number, g.run[:runLength]+readsMark+strconv.FormatInt(int64(g.tries()), 36))
	// Before the row stands in the store: a process that is killed in between can still close it
	// at its next start. Without a heartbeat: the number may be another's in the end.
	if err := g.witness.commit(func(b *record) error {
		b.Own[row] = own{Asked: askAhead}
		if arrived != "" {
			b.Own[arrived] = own{Count: 1}
		}
		return nil
	}); err != nil {
		return none, err
	}
	// A counted join has a row, which comes first where they are several steps. One in vain is ended.
	first := driver.Beat{Count: 1}
	about := nodeRow{Name: g.opts.Name, Address: g.opts.Address, Every: g.interval().Milliseconds(), Manual: g.opts.Manual}
	all := []driver.Swap{
		{Key: driver.Key{Table: driver.TableNodes, Name: row}, Next: about.encode()},
		{Key: beatRow(row), Next: first.Encode()},
		{Key: guardRow(driver.RowJoins), Old: raw, Next: driver.EncodeCounter(number)},
	}
	if format != nil {
		all = append([]driver.Swap{*format}, all...)
	}
	if before, ok := s.(ahead); ok { // the store may have gone back since these were judged
		for _, key := range before.judged {
			all = append(all, driver.Swap{Key: key, Old: before.rows[key], Next: before.rows[key]})
		}
	}
	ok, err := s.SwapRows(ctx, all...)
	// Where the answer alone was lost, now rather than with the next attempt: should the store go back
	// in between, nobody knew whose the number was that others have heard of.
	if err != nil && !s.Split() {
		if raw, unread := s.Row(ctx, driver.TableBeats, row); unread == nil && raw != nil {
			ok, err = true, nil
		}
	}
	if err != nil || !ok {
		if err == nil {
			if s.Split() {
				_, _ = s.SwapRow(ctx, driver.TableBeats, row, first.Encode(), first.EncodeEnded("left")) // else it falls silent
			}
			err = fmt.Errorf("%w: another node has joined meanwhile, or the store has changed", hapax.ErrStoreUnavailable)
		}
		return none, unavailable(err)
	}
	// At once: without it a crash before the first survey leaves the number to nobody.
	if err := g.witness.commit(func(b *record) error { b.Own[row] = own{Count: 1}; return nil }); err != nil {
		return none, err
	}
	now := g.now()
	return member{row: row, about: about.encode(), number: number, beat: first, acked: first, asked: askAhead, contact: now, waits: now, quick: quick, joins: number}, nil
}

// renew gives a node that serves another row, where its own keeps those of many that
// have ended from being compacted. The old row shows, after the new one stands, that the
// store is still the one that the node has written to all the time.
func (g *Guarded) renew(ctx context.Context, s store) error {
	me, err := g.register(ctx, s)
	if err != nil {
		return err
	}
	// Under the old row: where the store went back while the new one was registered, this finds
	// it.
	if err := g.beatOnce(ctx, s); err != nil {
		return err
	}
	g.mu.Lock()
	old := g.me.row
	if g.state == Serving && old != "" {
		was := &g.me
		me.primary, me.known, me.seen, me.learnt, me.changes = was.primary, true, was.seen, was.learnt, was.changes
		me.again, me.rowsAgain, me.read, me.watches = was.again, was.rowsAgain, was.read, was.watches
		g.me = me
	}
	g.mu.Unlock()
	if err := g.announce(ctx, s); err != nil {
		return err
	}
	return g.closeEarlier(ctx, s)
}

// tries counts attempts to register, each of which has a row of its own.
func (g *Guarded) tries() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.attempts++
	return g.attempts
}

// isAlone reports whether nobody can have been granted anything since this node left:
// it was the last one, it finds its row as it left it and no join since, and it was
// away for less time than a living node may take to meet the store.
func (g *Guarded) isAlone(ctx context.Context, s store, before record, joins int64) (bool, error) {
	gone := before.Left
	if gone == nil || gone.Row == "" || gone.Joins != joins {
		return false, nil
	}
	// By the machine's clock, which goes on while no process of this node runs.
	boot, up := uptime()
	if boot == "" || boot != gone.Boot || up < gone.Up || time.Duration(up-gone.Up)*time.Millisecond > g.opts.wait() {
		return false, nil
	}
	// A row of a process that joined before and has not ended may be granted something by now.
	rows, err := readRows(ctx, s, driver.TableBeats)
	if err != nil {
		return false, err
	}
	for name, raw := range rows {
		beat, how, err := driver.DecodeBeat(name, raw)
		if err != nil {
			return false, err
		}
		if how == "" || name == gone.Row && (how != "left" || beat.Count != before.Own[name].Count) {
			return false, nil
		}
	}
	return rows[gone.Row] != nil, nil
}

// ready reports whether every living node has met the store since this one joined: each
// attests it, with a heartbeat that was observed to come, and one of them serves, or they are
// those that were heard for the decision about a fence; or it has had the time that this takes
// at most. The same holds for a process that was out of contact for long.
// One that asks because the primary has changed, and was in contact, needs nobody else.
func (g *Guarded) ready(ctx context.Context, s store) (bool, error) {
	// Read beside the heartbeats, not after them: a process that comes to beat less often meets the store
	// to say so.
	reports := func() (map[string]nodeRow, error) { return readNodes(ctx, s) }
	if g.readsAtOnce(s) {
		reports = begin(reports)
		defer func() { _, _ = reports() }() // nothing outlasts this call
	}
	began := g.now()
	rows, err := readRows(ctx, s, driver.TableBeats)
	if err != nil {
		return false, err
	}
	if _, err := g.noteRows(rows, began); err != nil {
		return false, err
	}
	if !g.mayBeReady() {
		return false, nil
	}
	nodes, err := reports()
	if err != nil {
		return false, err
	}
	g.mu.Lock()
	asks := g.me.asks
	g.mu.Unlock()
	var primaries map[string][]byte
	if asks {
		if primaries, err = readRows(ctx, s, tablePrimaries); err != nil {
			return false, err
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	m := &g.me
	// Where it need not wait nobody else serves; otherwise the rows below tell.
	if m.founds = true; !g.shared || m.quick {
		m.over = m.begun
		return true, nil
	}
	all, serves, longest := true, false, g.waitLocked()
	for name, other := range g.peers {
		if other.how != "" {
			continue
		}
		about := nodes[name]
		longest = max(longest, waitOf(min(time.Duration(about.Every)*time.Millisecond, time.Minute)))
		at, tells := primaries[name]
		attests := m.isAttestedBy(other) && !(tells && string(at) != m.primary)
		all = all && attests
		serves = serves || attests && about.Serves
	}
	switch {
	case asks != m.asks: // the primary has changed since
		return false, nil
	case all && (serves || m.asks || m.hasHeardLocked(g)):
	case g.now()-max(m.waits, g.beats.dialledAt()) < longest:
		return false, nil
	case !serves:
		m.unheard = g.unheardLocked(nodes)
	}
	m.asks, m.over, m.founds = false, m.begun, !serves
	return true, nil
}

// unheardLocked returns the nodes whose rows have not ended, and that this process has not
// heard.
func (g *Guarded) unheardLocked(nodes map[string]nodeRow) []string {
	var names []string
	for name, other := range g.peers {
		if other.how == "" && !other.met {
			names = append(names, cmp.Or(nodes[name].Name, name))
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// toldOfUnheard is how many nodes are named at most that were not heard.
const toldOfUnheard = 10

// tellUnheard warns of nodes for which nobody attests, if the store was put back: this one
// has not used it before, and no serving node has met it.
func (g *Guarded) tellUnheard() {
	g.mu.Lock()
	names := g.me.unheard
	g.mu.Unlock()
	if len(names) == 0 {
		return
	}
	g.opts.Log.Warn("this node is the first that uses the store, and has not heard nodes that have used it before; if the store was restored from a backup, numbers that they were granted since would be granted again: stop all nodes, and raise each tag above what was used (hapax tags set NAME --floor N)",
		"nodes", strings.Join(names[:min(len(names), toldOfUnheard)], ", "), "count", len(names))
}

// hasHeardLocked reports whether all processes that were heard for the decision have joined
// again, as this process has: from then on each knows of the others.
func (m *member) hasHeardLocked(g *Guarded) bool {
	return m.heard != nil && !slices.ContainsFunc(m.heard, func(run string) bool {
		for row := range g.peers {
			if strings.Contains(row, "-"+run[:runLength]) {
				return false
			}
		}
		return run != g.run
	})
}

// isAttestedBy reports whether another row attests, with a heartbeat that was observed to come,
// that it knows of this process's join.
func (m *member) isAttestedBy(other *sighting) bool { return other.beat.Seen >= m.number && other.met }

// mayBeReady reports whether the other processes' own reports can decide anything.
func (g *Guarded) mayBeReady() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.shared || g.me.quick || g.now()-max(g.me.waits, g.beats.dialledAt()) >= g.opts.wait() {
		return true
	}
	for _, other := range g.peers {
		if other.how == "" && !g.me.isAttestedBy(other) {
			return false
		}
	}
	return true
}

// announce says in the store that this process serves.
func (g *Guarded) announce(ctx context.Context, s store) error {
	g.mu.Lock()
	row, was, every := g.me.row, g.intervalLocked(), g.servingIntervalLocked(s)
	g.mu.Unlock()
	err := g.sayOfItself(ctx, s, row, func(about *nodeRow) {
		about.Serves = true
		about.Every = max(about.Every, every.Milliseconds()) // adapt may have told a longer one meanwhile
	})
	if err != nil {
		return err
	}
	// After the row says so: see adapt.
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.me.row == row && g.intervalLocked() == was { // else adapt has changed it
		g.pace.interval = every
	}
	return nil
}

// sayOfItself changes the process's own report in driver.TableNodes: from its latest report
// and, where another stands there, from that.
func (g *Guarded) sayOfItself(ctx context.Context, s store, row string, change func(about *nodeRow)) error {
	g.mu.Lock()
	raw := g.me.about
	if g.me.row != row {
		raw = nil
	}
	g.mu.Unlock()
	for known := raw != nil; ; known = false {
		if !known {
			var err error
			if raw, err = s.Row(ctx, driver.TableNodes, row); err != nil || raw == nil {
				return unavailable(err)
			}
		}
		var about nodeRow
		if err := driver.DecodeRow(driver.TableNodes, row, raw, &about); err != nil {
			return err
		}
		was := about
		if change(&about); about == was {
			return nil
		}
		next := about.encode()
		ok, err := g.pulsed(s).SwapRow(ctx, driver.TableNodes, row, raw, next)
		switch {
		case err != nil:
			return err
		case ok:
			g.mu.Lock()
			defer g.mu.Unlock()
			if g.me.row == row {
				g.me.about = next
			}
			return nil
		case !known:
			return errAbandoned()
		}
	}
}
