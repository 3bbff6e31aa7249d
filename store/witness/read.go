package witness

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/hapax-id/hapax/store/driver"
)

// The reader of all rows. A beat brings two numbers: how many have joined, and how often somebody
// has left or was marked silent since. Where one of the two has moved each node reads all
// rows. Otherwise one does, the reader, every half of the time that a living node takes to
// meet the store: it marks the silent, and moves the number then. So the reads of a fleet
// grow with its nodes, and not with their square.
//
// The reader is the living process with the lowest row. The others watch that row with their
// beats; where it stands still the next one reads in its place, and marks it silent.

// readsMark stands in the rows of processes that read as told above, after their random part. A process of a version that did not has a row without it: it marks the silent and
// leaves without moving the number, which the reader does in its place.
const readsMark = "."

// reads reports whether the process of a row reads as told above.
func reads(row string) bool {
	at := len(rowName(0, "")) + runLength
	return len(row) > at && row[at:at+len(readsMark)] == readsMark
}

// A watch is how a process that is not the reader sees that there is one.
type watch struct {
	row   string          // the lowest row that is not known to stand still; empty: none yet
	value string          // as it was seen last
	since time.Duration   // since when it has been so
	still map[string]bool // rows that stood still for longer than a living node's does
}

// watchedLocked returns the row to watch, empty where this process is the reader.
func (g *Guarded) watchedLocked(now time.Duration) string {
	w := &g.watch
	for _, name := range slices.Sorted(maps.Keys(g.peers)) {
		at := g.peers[name]
		if name >= g.me.row || at.how != "" || !reads(name) || w.still[name] {
			continue
		}
		if w.row != name {
			// Watched from now on: how long it stood still before, nobody has observed.
			w.row, w.value, w.since = name, "", now
		}
		if now-w.since <= waitOf(at.every(g.opts)) {
			return name
		}
		if w.still == nil {
			w.still = map[string]bool{}
		}
		w.still[name] = true
		if w.value != "" && w.since >= at.at { // this process has seen it stand still: it may be marked at once
			at.value, at.at = w.value, w.since
		}
	}
	w.row = ""
	return ""
}

// every returns how often the process writes its heartbeat at least.
func (at *sighting) every(o Options) time.Duration {
	return max(o.Heartbeat, min(time.Duration(at.interval)*time.Millisecond, time.Minute))
}

// sawLocked notes the observed row of the process that is watched. Its count of grants is
// evidence, as if all rows had been read.
func (g *Guarded) sawLocked(row string, value []byte) {
	w := &g.watch
	if row != w.row || string(value) == w.value {
		return
	}
	w.value, w.since = string(value), g.now()
	beat, _, err := driver.DecodeBeat(row, value)
	if at := g.peers[row]; err == nil && at != nil && at.beat.Count < beat.Count {
		at.beat = beat
	}
}

// noteBeat notes the rest of a beat's answer.
func (g *Guarded) noteBeat(p pulse, c driver.Contact) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !c.Met || g.me.row != p.Row {
		return
	}
	g.me.changes = c.Changes
	if p.Watch != "" {
		g.me.watches = c.Watches
	}
	if c.Watches {
		g.sawLocked(p.Watch, c.Watched)
	}
}

// look has the work done that is due besides the beats of a serving process.
func (g *Guarded) look() {
	g.mu.Lock()
	now, m := g.now(), &g.me
	if g.state != Serving || m.row == "" {
		g.mu.Unlock()
		return
	}
	// Unequal and not greater: the number of a healed store may be lower.
	moved := m.joins > m.seen || m.changes != m.learnt
	watched := g.watchedLocked(now)
	reader := watched == ""
	survey := moved || now >= m.again
	period := g.waitLocked() / 2
	if m.late { // somebody did not advance between the last two times
		period = 0
	}
	if survey || m.busy { // a survey reads all rows itself, and a connection for another reading has to be dialled
		period = g.waitLocked()
	}
	due := now-m.read >= period && (reader || !m.watches)
	g.mu.Unlock()
	if survey {
		g.surveyLater()
	}
	compare := g.used.due(now)
	// A handle for calls that was dropped is dialled here, before a caller needs it.
	if !due && !compare && g.calls.peek() != nil {
		return
	}
	g.lookLater(func(ctx context.Context, s store) (err error) {
		switch {
		case due && reader:
			err = g.read(ctx, s)
		case due:
			err = g.peek(ctx, s, watched)
		}
		if err == nil && compare {
			err = g.compare(ctx, s)
		}
		return err
	})
}

// lookLater does some work beside the heartbeats, unless such is under way. It has the time that a
// living node may take, and the handle for calls: on that of the heartbeats one that takes longer
// than the rest of an interval would cost them their connection, and a distant store takes longer
// than several intervals to make another.
func (g *Guarded) lookLater(work func(context.Context, store) error) {
	g.mu.Lock()
	busy, limit := g.looks, g.waitLocked()
	g.looks = true
	g.mu.Unlock()
	if busy {
		return
	}
	g.loop.Go(func() {
		err := g.beside(g.calls, limit, work)
		g.mu.Lock()
		g.looks = false
		g.mu.Unlock()
		if err != nil && g.life.Err() == nil {
			g.opts.Log.Debug("the look at the rows of others has failed, and is taken again", "err", err)
		}
	})
}

// beside does some work on a handle beside the heartbeats.
func (g *Guarded) beside(h *handle, limit time.Duration, work func(context.Context, store) error) error {
	ctx, cancel := context.WithTimeout(g.life, limit)
	defer cancel()
	s, err := h.get(ctx)
	if err != nil {
		return err
	}
	began := g.now()
	alive, end := h.while(ctx, s)
	defer end()
	err = g.replaceLost(h, s, work(alive, s))
	if errors.Is(err, errHangs) {
		h.drop(s)
	}
	h.answered(s, began, err == nil || ctx.Err() == nil, g.opts.Timeout)
	return err
}

// peek looks at the row to watch, where the store does not do so with a beat.
func (g *Guarded) peek(ctx context.Context, s store, row string) error {
	value, err := s.Row(ctx, driver.TableBeats, row)
	if err != nil {
		return unavailable(err)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.me.read = g.now()
	g.sawLocked(row, value)
	return nil
}

// read reads the rows of all, as the reader, marks the silent, and has a survey made where
// somebody has ended.
func (g *Guarded) read(ctx context.Context, s store) error {
	began := g.now()
	rows, err := readRows(ctx, s, driver.TableBeats)
	if err != nil {
		return err
	}
	news, err := g.noteRows(rows, began)
	if err != nil {
		return err
	}
	marked, err := g.markSilent(ctx, s, rows, news.silent)
	if err != nil {
		return err
	}
	if marked {
		if err := tellChange(ctx, g.pulsed(s)); err != nil {
			return err
		}
	}
	if news.due || marked {
		g.mu.Lock()
		g.me.rowsAgain = g.now() // even if neither number has moved
		g.mu.Unlock()
		g.surveyLater()
	}
	return nil
}

// markSilent marks rows, and reports whether it has marked any. The number is to be moved
// after that: a process that observes the move finds the marks.
func (g *Guarded) markSilent(ctx context.Context, s store, rows map[string][]byte, silent []string) (marked bool, err error) {
	for _, name := range silent {
		beat, _, err := driver.DecodeBeat(name, rows[name])
		if err != nil {
			return marked, err
		}
		// The last look before a mark that nothing takes back: see isLate.
		if late, err := g.isLate(ctx, s, name); err != nil || !late {
			if err != nil {
				return marked, err
			}
			continue
		}
		ok, err := g.pulsed(s).SwapRow(ctx, driver.TableBeats, name, rows[name], beat.EncodeEnded("silent"))
		if err != nil {
			return marked, err
		}
		marked = marked || ok
	}
	return marked, nil
}

// isLate reports whether a row that stands still has done so for longer than its process takes,
// as that says of itself now: it may have come to beat less often since it was surveyed, of which
// it tells nobody, since all would read all rows for that.
func (g *Guarded) isLate(ctx context.Context, s store, name string) (bool, error) {
	raw, err := s.Row(ctx, driver.TableNodes, name)
	if err != nil || raw == nil {
		return true, unavailable(err)
	}
	var about nodeRow
	if err := driver.DecodeRow(driver.TableNodes, name, raw, &about); err != nil {
		return false, err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	at := g.peers[name]
	if at == nil {
		return false, nil
	}
	now := sighting{interval: about.Every}
	return g.now()-at.at > waitOf(now.every(g.opts)), nil
}

// tellChange moves the number of changes, after somebody has ended. Where another has moved
// it meanwhile that was after this end, too.
func tellChange(ctx context.Context, rows driver.Rows) error {
	n, raw, err := readCounter(ctx, rows, driver.RowChanges)
	if err != nil {
		return err
	}
	_, err = rows.SwapRow(ctx, driver.TableGuard, driver.RowChanges, raw, driver.EncodeCounter(n+1))
	return err
}

// News is the part of the rows that this process has not surveyed.
type news struct {
	due    bool     // there is any
	silent []string // nodes that have not advanced for as long as a living one may take
}

// noteRows notes the rows of all, whose reading began at a time. Several read at the same time:
// rows read before others were noted, or before this process began to wait for all, would look
// as if a row had advanced that has not.
func (g *Guarded) noteRows(rows map[string][]byte, since time.Duration) (n news, err error) {
	known, compacted := g.witness.peersKnown()
	g.mu.Lock()
	defer g.mu.Unlock()
	now, isLate := g.now(), since < g.noted
	n.due = g.me.joins > g.me.seen
	if !isLate {
		g.me.late, g.me.read, g.noted = false, now, now
	}
	for name, raw := range rows {
		beat, how, err := driver.DecodeBeat(name, raw)
		if err != nil {
			return n, err
		}
		if name == g.me.row || joinOf(name) <= compacted {
			continue
		}
		p, surveyed := known[name]
		if !surveyed || p.How != how {
			n.due = true
		}
		if isLate {
			continue
		}
		at := g.peers[name]
		switch {
		case at == nil:
			at = &sighting{value: string(raw), at: now, beat: beat, how: how}
			g.peers[name] = at
		case at.value != string(raw):
			// A row that is seen for the first time may have stood there since before a restore: only its
			// next beat shows a living process.
			at.met = at.met || at.value != "" && beat.Count >= at.beat.Count
			if at.beat.Count < beat.Count {
				at.beat = beat
			}
			at.value, at.at, at.how = string(raw), now, how
			delete(g.watch.still, name)
		default:
			g.me.late = g.me.late || how == ""
		}
		at.interval = p.Every
		if how == "" && now-at.at > waitOf(at.every(g.opts)) {
			n.silent = append(n.silent, name)
		}
	}
	if isLate {
		return n, nil
	}
	// Compacted or lost; a loss is found by the survey, which compares with the witness.
	for name := range g.peers {
		if _, ok := rows[name]; !ok {
			delete(g.peers, name)
		}
	}
	return n, nil
}
