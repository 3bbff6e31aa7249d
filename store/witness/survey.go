package witness

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
)

// A nodeRow describes a process in driver.TableNodes. Only the process writes it: when
// it joins, and once more when it begins to serve.
type nodeRow struct {
	Name    string `json:"name"`
	Address string `json:"address,omitempty"`
	Every   int64  `json:"every_ms"`         // how often it writes its heartbeat at least
	Manual  bool   `json:"manual,omitempty"` // a person decides about fences
	Serves  bool   `json:"serves,omitempty"`
}

func (r nodeRow) encode() []byte {
	raw, err := json.Marshal(r)
	if err != nil {
		panic(err) // strings, numbers and truth values
	}
	return raw
}

// readRows returns all rows of a table by name.
func readRows(ctx context.Context, s store, table string) (map[string][]byte, error) {
	rows := map[string][]byte{}
	err := driver.AllRows(ctx, s, table, func(r driver.Row) error {
		if r.Name != rowCommands {
			rows[r.Name] = r.Value
		}
		return nil
	})
	return rows, unavailable(err)
}

// readNodes returns the own reports of the store's processes.
func readNodes(ctx context.Context, s store) (map[string]nodeRow, error) {
	raw, err := readRows(ctx, s, driver.TableNodes)
	if err != nil {
		return nil, err
	}
	nodes := make(map[string]nodeRow, len(raw))
	for name, value := range raw {
		var r nodeRow
		if err := driver.DecodeRow(driver.TableNodes, name, value, &r); err != nil {
			return nil, err
		}
		nodes[name] = r
	}
	return nodes, nil
}

// readCounter returns a counter of driver.TableGuard.
func readCounter(ctx context.Context, s driver.Rows, name string) (n int64, raw []byte, err error) {
	raw, err = s.Row(ctx, driver.TableGuard, name)
	if err != nil {
		return 0, nil, unavailable(err)
	}
	n, err = driver.DecodeCounter(driver.TableGuard, name, raw)
	return n, raw, err
}

// An ahead is a store of which some rows were read, in one round trip. It is of use until
// something is written to them.
type ahead struct {
	store
	rows   map[driver.Key][]byte
	judged []driver.Key // those that may not have changed when the process registers
}

// readAhead reads rows.
func readAhead(ctx context.Context, s store, keys ...driver.Key) (ahead, error) {
	a := ahead{store: s, rows: make(map[driver.Key][]byte, len(keys))}
	values, err := s.RowsNamed(ctx, keys...)
	if err != nil {
		return a, unavailable(err)
	}
	for i, key := range keys {
		a.rows[key] = values[i]
	}
	return a, nil
}

// Row implements driver.Rows.
func (a ahead) Row(ctx context.Context, table, name string) ([]byte, error) {
	if value, ok := a.rows[driver.Key{Table: table, Name: name}]; ok {
		return value, nil
	}
	return a.store.Row(ctx, table, name)
}

// StoreID implements driver.Store. The rows were read in the store that was opened, where the
// driver sees to that.
func (a ahead) StoreID(ctx context.Context) (string, error) {
	if s, ok := a.store.(driver.Opened); ok {
		return s.OpenedID(), nil
	}
	return a.store.StoreID(ctx)
}

// registering are the rows that prepare and register look at.
func (g *Guarded) registering() []driver.Key {
	var keys []driver.Key
	for _, name := range []string{rowDecision, rowFormat, driver.RowJoins, rowCompacted} {
		keys = append(keys, guardRow(name))
	}
	if known := g.witness.stores(); len(known) > 0 {
		keys = append(keys, guardRow(rowReplaces+known[0]))
	}
	known := g.witness.rows()
	for number := range known.Copies {
		keys = append(keys, guardRow(driver.RowCopied(number)))
	}
	rows := known.Own
	for _, row := range []string{latestOf(rows), unansweredOf(rows)} {
		if row != "" {
			keys = append(keys, beatRow(row))
		}
	}
	return keys
}

// guardRow names a row of driver.TableGuard.
func guardRow(name string) driver.Key { return driver.Key{Table: driver.TableGuard, Name: name} }

// beatRow names the row of a process.
func beatRow(name string) driver.Key { return driver.Key{Table: driver.TableBeats, Name: name} }

// A survey is made at least so often, so that lines that were set back by themselves are
// found even if they are not used; less often where it takes more than a small part of that time. It
// reads the rows, where nothing tells that they have changed, so seldom that all nodes
// together read no more the more they are.
const (
	surveyEvery = time.Minute
	surveyPart  = 100
	surveyRow   = 2 * time.Second // for each
)

// surveyTimeouts bounds one survey, which may read many lines, in time-outs of a call. After one whose time was
// over the next has twice as much: nothing is kept that is read from a store that may be behind.
const surveyTimeouts = 4

// surveyLater makes a survey while the node serves, unless one is under way.
func (g *Guarded) surveyLater() { g.surveyOn(g.calls) }

// surveyOn makes a survey on a handle, unless one is under way.
func (g *Guarded) surveyOn(h *handle) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.me.busy || g.me.row == "" || g.state != Serving && g.state != Joining {
		return
	}
	// A later row has a survey of its own: see the end.
	g.me.busy = true
	row, seen := g.me.row, g.me.seen
	limit, over := max(surveyTimeouts*g.opts.Timeout, g.surveying), false
	g.loop.Go(func() {
		err := g.beside(h, limit, func(ctx context.Context, s store) error {
			err := g.survey(ctx, s)
			over = err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded)
			return err
		})
		g.mu.Lock()
		if over {
			g.surveying = g.longer(limit)
		}
		if g.me.row == row {
			g.me.busy = false
		}
		// A process that has joined waits until this one says that it has seen that: with a heartbeat, of
		// which there are few where the store is far away.
		awaited := g.state == Joining || g.intervalLocked() > g.opts.Heartbeat && g.me.row == row && g.me.seen > seen
		g.mu.Unlock()
		if awaited && err == nil {
			g.wake()
		}
		if err != nil && g.life.Err() == nil {
			g.opts.Log.Debug("the survey of the store has failed, and is made again", "err", err)
		}
	})
}

// errHangs ends a survey that does not get as far as its first heartbeat.
var errHangs = errors.New("nothing answers")

// survey reads first the rows and then all lines into the witness: from then on this
// node attests for all whose rows had ended. It begins and ends with a heartbeat, so
// that the store cannot have gone back in between; nothing is learnt from a store that is
// behind. Rows are read where somebody has joined or ended since, and else seldom.
func (g *Guarded) survey(ctx context.Context, s store) error {
	began := g.now()
	soon, cancel := context.WithTimeout(ctx, g.opts.Timeout) // a survey takes long; that nothing answers shows sooner
	err := g.beatOnce(soon, s)
	hangs := soon.Err() != nil && ctx.Err() == nil
	cancel()
	if err != nil {
		if hangs {
			err = fmt.Errorf("%w (%w)", err, errHangs)
		}
		return err
	}
	g.mu.Lock()
	row, changes := g.me.row, g.me.changes // as it was before the rows are read
	whole := !g.me.known || g.me.joins > g.me.seen || changes != g.me.learnt || g.now() >= g.me.rowsAgain
	g.mu.Unlock()
	if !whole {
		return g.surveyLines(ctx, s, row, began)
	}
	// Before the store is read: what the witness learns meanwhile may be later than the pages read
	// so far.
	before := g.witness.snapshot()
	guard, err := readRows(ctx, s, driver.TableGuard)
	if err != nil {
		return err
	}
	counters := ahead{rows: map[driver.Key][]byte{}} // of both rows, so that no store is asked
	for _, name := range []string{driver.RowJoins, rowCompacted} {
		counters.rows[guardRow(name)] = guard[name]
	}
	owed, err := owedIn(guard)
	if err != nil {
		return err
	}
	came, err := g.readCopies(ctx, s, guard)
	if err != nil {
		return err
	}
	if err := g.learnOwed(owed, before); err != nil {
		return err
	}
	joins, _, err := readCounter(ctx, counters, driver.RowJoins)
	if err != nil {
		return err
	}
	compacted, _, err := readCounter(ctx, counters, rowCompacted)
	if err != nil {
		return err
	}
	// After the counters: who says that he has seen a join has read the rows up to it.
	reports, err := aside(g.readsAtOnce(s), func() (map[string]nodeRow, error) { return readNodes(ctx, s) })
	if err != nil {
		return err
	}
	since := g.now()
	beats, err := readRows(ctx, s, driver.TableBeats)
	nodes, failed := reports()
	if err = cmp.Or(err, failed); err != nil {
		return err
	}
	news, err := g.noteRows(beats, since)
	if err != nil {
		return err
	}
	found, err := g.compareAll(ctx, s, before) // the lines after the rows
	if err != nil {
		return unavailable(err)
	}
	// A beat after the reading: the store still has this row, so that it had not gone back meanwhile.
	if err := g.beatOnce(ctx, s); err != nil {
		return err
	}
	switch {
	case joins < before.Joins:
		return g.isBehind(fmt.Errorf("%w: %d nodes have joined it, and %d had", hapax.ErrStoreRolledBack, joins, before.Joins))
	case found.behind:
		return g.isBehind(found.cause())
	}
	peers, err := peersOf(nodes, beats, compacted)
	if err != nil {
		return err
	}
	delete(peers, row)
	// Before the survey is learnt, which makes these ends known.
	untold := g.isUntold(before.Peers, peers, changes)
	if err := g.learn(before, found.news, peers, came, joins, compacted, row); err != nil {
		return err
	}
	if err := g.settleUnread(ctx, s, before, found.unread, owed); err != nil {
		return err
	}
	g.mu.Lock()
	if g.me.row == row {
		g.me.seen, g.me.learnt, g.me.known = max(g.me.seen, joins), changes, true
		g.me.again = g.now() + max(surveyEvery, surveyPart*(g.now()-began))
		g.me.rowsAgain = g.now() + max(surveyEvery, time.Duration(len(beats))*surveyRow)
	}
	serving := g.state == Serving && g.shared
	g.mu.Unlock()
	if serving { // the reader should mark them; but it may be one that can beat and cannot read
		marked, err := g.markSilent(ctx, s, beats, news.silent)
		if err != nil {
			return err
		}
		untold = untold || marked
	}
	if untold {
		if err := tellChange(ctx, g.pulsed(s)); err != nil {
			return err
		}
	}
	// After the survey is in the witness: the rows that are removed are attested by it from now
	// on.
	return g.compact(ctx, s, beats, compacted)
}

// compareAll is compareLines, which reads the pools beside the tags where the store is far away.
func (g *Guarded) compareAll(ctx context.Context, s store, known record) (comparison, error) {
	if !g.readsAtOnce(s) {
		return compareLines(ctx, s, known)
	}
	ctx, cancel := context.WithCancel(ctx)
	pools := begin(func() ([]driver.Pool, error) { return s.Pools(ctx) })
	defer func() { cancel(); _, _ = pools() }()
	return compareLines(ctx, &pooled{store: s, pools: pools}, known)
}

// A pooled is a store whose pools are being read, for the first that asks.
type pooled struct {
	store
	pools func() ([]driver.Pool, error) // nil: they were asked for
}

// Pools implements driver.PoolStore.
func (p *pooled) Pools(ctx context.Context) ([]driver.Pool, error) {
	pools := p.pools
	if p.pools = nil; pools == nil {
		return p.store.Pools(ctx)
	}
	return pools()
}

// readsAtOnce reports whether readings that do not depend on each other are made at once: where the store
// is far away, and no connection has to be dialled for that.
func (g *Guarded) readsAtOnce(s store) bool {
	d, ok := s.(driver.Dialling)
	return g.interval() > g.opts.Heartbeat && !(ok && d.DialsForCalls())
}

// begin begins a reading. Its result is that of wait, which is to be called.
func begin[T any](read func() (T, error)) (wait func() (T, error)) {
	var value T
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		value, err = read()
	}()
	return func() (T, error) {
		<-done
		return value, err
	}
}

// aside is begin where readings are made at once; else this one is made now.
func aside[T any](atOnce bool, read func() (T, error)) (wait func() (T, error), err error) {
	if atOnce {
		return begin(read), nil
	}
	value, err := read()
	return func() (T, error) { return value, nil }, err
}

// isUntold reports whether somebody has ended since the last survey, and the number of changes
// was not moved: one of an older version, or one that was killed before it could move it. The
// others do not know. A process that joined since is surveyed by all.
func (g *Guarded) isUntold(before, now map[string]peer, changes int64) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.shared || !g.me.known || changes != g.me.learnt {
		return false
	}
	for name, p := range now {
		if p.How != "" && before[name].How == "" && joinOf(name) <= g.me.seen {
			return true
		}
	}
	return false
}

// surveyLines reads all lines, where the rows are as they were surveyed.
func (g *Guarded) surveyLines(ctx context.Context, s store, row string, began time.Duration) error {
	before := g.witness.snapshot()
	var owed owedLines
	if g.blocks() {
		var err error
		if owed, err = readOwed(ctx, s); err != nil {
			return err
		}
		if err := g.learnOwed(owed, before); err != nil {
			return err
		}
	}
	found, err := g.compareAll(ctx, s, before)
	if err != nil {
		return unavailable(err)
	}
	if err := g.beatOnce(ctx, s); err != nil {
		return err
	}
	if found.behind {
		return g.isBehind(found.cause())
	}
	rest, err := g.learnLines(found.news)
	if err != nil {
		return err
	}
	if len(rest.pairs)+len(rest.defs) > 0 {
		if err := g.witness.commit(func(b *record) error { b.Lines, b.Defs = rest.pairs, rest.defs; return nil }); err != nil {
			return err
		}
	}
	if err := g.settleUnread(ctx, s, before, found.unread, owed); err != nil {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.me.row == row {
		g.me.again = g.now() + max(surveyEvery, surveyPart*(g.now()-began))
	}
	return nil
}

// learnLines takes the news of lines into the witness, so many at a time that grants do
// not wait for them, and returns the last part.
func (g *Guarded) learnLines(news lines) (rest lines, err error) {
	return news.inParts(bulkLines, func(part lines) error {
		return g.witness.commit(func(b *record) error { b.Lines, b.Defs = part.pairs, part.defs; return nil })
	})
}

// learn takes the news of a survey into the witness, the lines first: a row that counts as ended
// is attested from then on, and so its lines have to be known before.
func (g *Guarded) learn(before record, news lines, peers map[string]peer, came copies, joins, compacted int64, row string) error {
	rest, err := g.learnLines(news)
	if err != nil {
		return err
	}
	return g.witness.commit(func(b *record) error {
		b.Lines, b.Defs, b.Copies = rest.pairs, rest.defs, came.newTo(g.witness.state.Copies)
		for name, p := range peers {
			if before.Peers[name] != p {
				b.Peers[name] = p
			}
		}
		for name, o := range before.Own {
			p, there := peers[name]
			switch {
			case name == row:
			case joinOf(name) <= compacted:
				b.Own[name] = own{Gone: true}
			case there && p.Grants > o.upTo():
				g.opts.Log.Warn("an earlier row of this node is further than its witness knows: the data directory was copied or restored, or the node was killed within a grant; the node does not speak for it", "row", name)
				b.Own[name] = own{Gone: true}
			}
		}
		b.Joins, b.Compacted = joins, compacted
		return nil
	})
}

// peersOf returns the rows of others as a survey keeps them.
func peersOf(nodes map[string]nodeRow, beats map[string][]byte, compacted int64) (map[string]peer, error) {
	peers := make(map[string]peer, len(beats))
	for name, raw := range beats {
		if joinOf(name) <= compacted {
			continue
		}
		beat, how, err := driver.DecodeBeat(name, raw)
		if err != nil {
			return nil, err
		}
		about := nodes[name]
		peers[name] = peer{Name: about.Name, Address: about.Address, Count: beat.Count, Grants: beat.Grants, Every: about.Every, How: how}
	}
	return peers, nil
}

// Limits of compaction: rows of processes that have ended are removed when there are
// so many of them that joined before any that lives, but for the latest.
const (
	compactAt   = 100
	compactKeep = 50
)

// compact removes the rows of processes that have ended long ago. Where this process's
// own is in the way it takes another.
func (g *Guarded) compact(ctx context.Context, s store, beats map[string][]byte, compacted int64) error {
	var first, ended []string // those that ended before any that lives, and all
	lowest := ""
	for _, name := range slices.Sorted(maps.Keys(beats)) {
		_, how, err := driver.DecodeBeat(name, beats[name])
		switch {
		case err != nil:
			return err
		case how == "" && joinOf(name) > compacted:
			if lowest == "" {
				lowest = name
			}
			continue
		case lowest == "":
			first = append(first, name)
		}
		ended = append(ended, name)
	}
	g.mu.Lock()
	inTheWay := g.state == Serving && lowest == g.me.row
	g.mu.Unlock()
	switch {
	case len(first) >= compactAt:
		return g.removeUpTo(ctx, g.pulsed(s), joinOf(first[len(first)-compactKeep-1]))
	case len(ended) >= compactAt && inTheWay:
		return g.renew(ctx, s)
	}
	return nil
}

// removeUpTo raises the counter of compacted rows, and removes the rows up to it.
func (g *Guarded) removeUpTo(ctx context.Context, rows driver.Rows, upTo int64) error {
	n, raw, err := readCounter(ctx, rows, rowCompacted)
	if err != nil {
		return err
	}
	// The counter first: a row that is gone and not counted would look like a loss.
	if n < upTo {
		if ok, err := rows.SwapRow(ctx, driver.TableGuard, rowCompacted, raw, driver.EncodeCounter(upTo)); err != nil || !ok {
			return unavailable(err) // somebody else compacts
		}
	}
	// The beats last: a process killed in between leaves rows that the next one finds and removes.
	for _, table := range []string{tablePrimaries, driver.TableNodes, driver.TableBeats} {
		var old []driver.Row
		err := driver.AllRows(ctx, rows, table, func(r driver.Row) error {
			if joinOf(r.Name) <= upTo {
				old = append(old, r)
			}
			return nil
		})
		for _, r := range old {
			if err == nil {
				_, err = rows.SwapRow(ctx, table, r.Name, r.Value, nil)
			}
		}
		if err != nil {
			return unavailable(err)
		}
	}
	return nil
}
