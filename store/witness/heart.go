package witness

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
)

// A nodeRow is a node's heartbeat as it is stored. Only the node writes it.
type nodeRow struct {
	Beat  int64  `json:"beat"`     // how often it was written
	Run   string `json:"run"`      // the process that wrote it
	Name  string `json:"name"`     // what operators know the node by
	Every int64  `json:"every_ms"` // how often it is written at least
	Since int64  `json:"since_ms"` // when the row was first written, by the node's clock, in Unix milliseconds
	At    int64  `json:"at_ms"`    // when it was last written, likewise
}

// forgottenAfter is how long after its last heartbeat the row of a node that did
// not leave in good order is removed.
const forgottenAfter = 7 * 24 * time.Hour

// A heart is a node's heartbeat in a shared store.
//
// The store went back if the row is gone or behind what was acknowledged. After
// a lost answer the row may be as the node tried to write it, and no further.
type heart struct {
	slot chan struct{} // holds an element while somebody writes the row

	mu     sync.Mutex // guards the fields below; never held during I/O
	run    string     // identity of this process in the row
	joined bool
	others map[string]int64 // heartbeats of the other nodes when this one joined, of those that it still waits for; nil: not known yet
	least  time.Time        // when a node that joins may have its first grant at the earliest
	most   time.Time        // and when it waits no longer for nodes that are silent
	left   bool             // the node has left, and writes its row no more
	since  int64            // as in the row
	beat   int64            // the last heartbeat that was acknowledged
	row    []byte           // the row as acknowledged
	unsure bool             // an answer was lost, so that the row may be one heartbeat further
	begun  int64            // heartbeats begun
	done   int64            // the highest number of a heartbeat that was acknowledged, counted by begun
	at     time.Time
	looked time.Time // when it last looked who else is there
}

// lookEvery is how often a node looks who else is there, so that it can tell after
// a loss of the store.
const lookEvery = 30 * time.Second

// look remembers who else is there.
func (g *Guarded) look(ctx context.Context, r driver.Rows) error {
	h := &g.heart
	h.mu.Lock()
	due := time.Since(h.looked) >= lookEvery
	if due {
		h.looked = time.Now()
	}
	h.mu.Unlock()
	if !due {
		return nil
	}
	nodes, err := listNodes(ctx, r)
	if err != nil {
		return err
	}
	return g.witness.meet(nodes)
}

// beatAfter makes one heartbeat that begins after the call, or shares one.
func (g *Guarded) beatAfter(ctx context.Context, store hapax.Store) error {
	r, ok := rows(store)
	if !ok {
		return nil
	}
	if !r.Shared() {
		return g.checkFence(ctx, r)
	}
	h := &g.heart
	h.mu.Lock()
	after := h.begun
	h.mu.Unlock()
	select {
	case h.slot <- struct{}{}:
		defer func() { <-h.slot }()
	case <-ctx.Done():
		return fmt.Errorf("%w: the heartbeat: %w", hapax.ErrStoreUnavailable, context.Cause(ctx))
	}
	h.mu.Lock()
	shared := h.done > after
	h.mu.Unlock()
	if shared {
		return g.Refused()
	}
	return g.beatLocked(ctx, r)
}

// beatLocked writes the row and looks for a fence. The caller has the slot.
func (g *Guarded) beatLocked(ctx context.Context, r driver.Rows) error {
	h := &g.heart
	h.mu.Lock()
	h.begun++
	number, old, beat := h.begun, h.row, h.beat+1
	left := h.left
	h.mu.Unlock()
	if left {
		return errClosed()
	}
	now := time.Now()
	next := g.encodeBeat(beat, now)

	fence := make(chan error, 1)
	go func() { fence <- g.checkFence(ctx, r) }()
	ok, err := r.SwapRow(ctx, driver.TableNodes, g.witness.Node(), old, next)
	fenced := <-fence
	switch {
	case err != nil:
		h.mu.Lock()
		h.unsure = true
		h.mu.Unlock()
		return fmt.Errorf("the heartbeat: %w", err)
	case !ok:
		return g.lostBeat(ctx, r)
	}
	h.acknowledged(beat, next, number, now)
	return fenced
}

// acked returns the last heartbeat that was acknowledged, 0 if none was.
func (h *heart) acked() int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.beat
}

func (h *heart) acknowledged(beat int64, row []byte, number int64, now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.beat, h.row, h.unsure, h.done, h.at = beat, row, false, max(h.done, number), now
}

func (g *Guarded) encodeBeat(beat int64, now time.Time) []byte {
	g.heart.mu.Lock()
	run, since := g.heart.run, g.heart.since
	g.heart.mu.Unlock()
	raw, err := json.Marshal(nodeRow{beat, run, g.opts.Name, g.opts.Heartbeat.Milliseconds(), since, now.UnixMilli()})
	if err != nil {
		panic(err) // strings and numbers
	}
	return raw
}

// lostBeat judges a row that is not as it was acknowledged last. It may be as this
// node tried to write it: a heartbeat whose answer was lost, or that was given up and
// has arrived since. That one began before whatever the next one is for, which is
// written at once.
func (g *Guarded) lostBeat(ctx context.Context, r driver.Rows) error {
	raw, row, err := g.readBeat(ctx, r)
	if err != nil {
		return err
	}
	h := &g.heart
	h.mu.Lock()
	arrived := h.arrivedLocked(raw, row)
	h.mu.Unlock()
	if arrived {
		return g.beatLocked(ctx, r)
	}
	return g.judgeBeat(ctx, raw, row)
}

// arrivedLocked reports whether the row is an attempt whose answer was lost, and
// takes it for acknowledged then.
func (h *heart) arrivedLocked(raw []byte, row nodeRow) bool {
	if !h.unsure || raw == nil || row.Run != h.run || row.Beat != h.beat+1 {
		return false
	}
	h.row, h.beat, h.unsure = raw, row.Beat, false
	return true
}

// readBeat returns this node's row, nil if it is gone.
func (g *Guarded) readBeat(ctx context.Context, r driver.Rows) (raw []byte, row nodeRow, err error) {
	raw, err = r.Row(ctx, driver.TableNodes, g.witness.Node())
	if err == nil && raw != nil {
		err = driver.DecodeRow(driver.TableNodes, g.witness.Node(), raw, &row)
	}
	return raw, row, err
}

// judgeBeat refuses to go on, since the row is not as this node left it.
func (g *Guarded) judgeBeat(ctx context.Context, raw []byte, row nodeRow) error {
	h := &g.heart
	h.mu.Lock()
	beat, run := h.beat, h.run
	h.mu.Unlock()
	switch {
	case raw == nil:
		return g.refuse(ctx, fmt.Errorf("%w: it lacks this node's heartbeat %d", hapax.ErrStoreRolledBack, beat))
	case row.Beat <= beat || row.Run == run:
		return g.refuse(ctx, fmt.Errorf("%w: it has this node's heartbeat %d, and has acknowledged %d", hapax.ErrStoreRolledBack, row.Beat, beat))
	}
	return g.refuseAlone(fmt.Errorf("%w: another process writes the heartbeat of this node; was its data directory, or the machine's image, copied?", hapax.ErrStoreCopied))
}

// verify makes sure, at first and after trouble, that the store is the one that
// the witness knows, and that nothing stands against being granted something.
func (g *Guarded) verify(ctx context.Context, store hapax.Store) error {
	if err := g.Refused(); err != nil {
		return err
	}
	if g.trusted.Load() {
		return nil
	}
	if err := g.lock(ctx); err != nil {
		return err
	}
	defer g.unlock()
	if g.trusted.Load() {
		return g.Refused()
	}
	if err := g.verifyLocked(ctx, store); err != nil {
		return err
	}
	g.trusted.Store(true)
	return nil
}

func (g *Guarded) verifyLocked(ctx context.Context, store hapax.Store) error {
	id, err := store.StoreID(ctx)
	if err != nil {
		return err
	}
	r, hasRows := rows(store)
	if known := g.witness.StoreID(); known != "" && known != id {
		if hasRows && g.isElsewhere(ctx, r) {
			return g.refuseAlone(fmt.Errorf("%w: this node knows the store %q, this is the store %q of other nodes", hapax.ErrStoreReplaced, known, id))
		}
		return g.refuse(ctx, fmt.Errorf("%w: this node knows the store %q, this is the store %q", hapax.ErrStoreReplaced, known, id))
	}
	if err := g.witness.setStore(id); err != nil {
		return err
	}
	if !hasRows {
		return nil
	}
	if err := g.checkFence(ctx, r); err != nil || !r.Shared() {
		return err
	}
	return g.join(ctx, store, r)
}

// isElsewhere reports whether the store is another one, which this node was pointed
// at by mistake, and not its own after a loss: it has no node that this one has seen
// in its own, and one that has been there for longer than this one has been away
// from its own. Each of the two durations is measured by one clock; clocks that
// differ do not matter.
func (g *Guarded) isElsewhere(ctx context.Context, r driver.Rows) bool {
	_, last := g.witness.beat()
	away := time.Since(last) + time.Minute
	nodes, err := listNodes(ctx, r)
	if err != nil || slices.ContainsFunc(nodes, func(n node) bool { return g.witness.knows(n.id) }) {
		return false
	}
	return slices.ContainsFunc(nodes, func(n node) bool { return n.at().Sub(time.UnixMilli(n.row.Since)) > away })
}

// join registers the node, and waits for one heartbeat where others are there.
// Where it has joined before it only goes on.
func (g *Guarded) join(ctx context.Context, store hapax.Store, r driver.Rows) error {
	h := &g.heart
	select {
	case h.slot <- struct{}{}:
		defer func() { <-h.slot }()
	case <-ctx.Done():
		return fmt.Errorf("%w: the heartbeat: %w", hapax.ErrStoreUnavailable, context.Cause(ctx))
	}
	h.mu.Lock()
	joined, known := h.joined, h.run != ""
	h.mu.Unlock()
	if !known {
		if err := g.register(ctx, store, r); err != nil {
			return err
		}
	}
	if err := g.beatLocked(ctx, r); err != nil {
		return err
	}
	if !joined {
		if err := g.awaitOthers(ctx, r); err != nil {
			return err
		}
	}
	h.mu.Lock()
	h.joined = true
	h.mu.Unlock()
	if !joined {
		g.watch()
	}
	return nil
}

// register takes over the row that this node wrote before, or writes the first.
// A store that went back while the node was stopped may have a row that is right:
// that of a node which had stopped in good order, or which made its last heartbeat
// before its last grant. So the lines are compared, once, before anybody is granted
// anything through this node.
func (g *Guarded) register(ctx context.Context, store hapax.Store, r driver.Rows) error {
	raw, row, err := g.readBeat(ctx, r)
	if err != nil {
		return err
	}
	if beat, at := g.witness.beat(); row.Beat < beat {
		return g.refuse(ctx, fmt.Errorf("%w: it has this node's heartbeat %d, and had acknowledged %d at %s", hapax.ErrStoreRolledBack, row.Beat, beat, at.UTC().Format(time.RFC3339)))
	}
	if lines := g.witness.Lines(); len(lines) > 0 {
		behind, err := compare(ctx, store, lines)
		if err != nil {
			return err
		}
		if len(behind) > 0 {
			return g.refuse(ctx, fmt.Errorf("%w: %s, and %d lines in all are behind what this node used", hapax.ErrStoreRolledBack, behind[0], len(behind)))
		}
	}
	if row.Since == 0 {
		row.Since = time.Now().UnixMilli()
	}
	h := &g.heart
	h.mu.Lock()
	h.run, h.since, h.beat, h.row = rand.Text(), row.Since, row.Beat, raw
	h.mu.Unlock()
	return nil
}

// silence is how many heartbeats a node that joins waits for one that is silent.
const silence = 3

// awaitOthers waits until every other node has made a heartbeat since this one has
// registered: one that finds its own row gone or behind raises the fence instead.
// It waits for one heartbeat at least, and for a node that is silent, since it may
// just have lost its connection with the store, a few. A call that ends before
// leaves the rest to the next one.
func (g *Guarded) awaitOthers(ctx context.Context, r driver.Rows) error {
	h := &g.heart
	h.mu.Lock()
	known := h.others != nil
	h.mu.Unlock()
	if !known {
		if err := g.findOthers(ctx, r); err != nil {
			return err
		}
	}
	for {
		h.mu.Lock()
		waiting, least, most := len(h.others) > 0, h.least, h.most
		h.mu.Unlock()
		now := time.Now()
		if !now.Before(most) || !waiting && !now.Before(least) {
			return nil
		}
		select {
		case <-time.After(min(most.Sub(now), g.opts.Heartbeat/4)):
		case <-ctx.Done():
			return &hapax.WaitError{
				Cause:   fmt.Errorf("%w: this node joins others, and waits for a heartbeat of theirs, until %s at most", hapax.ErrStoreUnavailable, most.UTC().Format(time.RFC3339Nano)),
				Context: context.Cause(ctx),
			}
		}
		if err := g.checkFence(ctx, r); err != nil {
			return err
		}
		if err := g.hearOthers(ctx, r); err != nil {
			return err
		}
	}
}

// findOthers notes the other nodes, and forgets those that have been silent for
// long.
func (g *Guarded) findOthers(ctx context.Context, r driver.Rows) error {
	nodes, err := listNodes(ctx, r)
	if err != nil {
		return err
	}
	others, slowest := map[string]int64{}, time.Duration(0)
	for _, n := range nodes {
		if n.id == g.witness.Node() {
			continue
		}
		if time.Since(n.at()) > forgottenAfter {
			_, _ = r.SwapRow(ctx, driver.TableNodes, n.id, n.raw, nil) // whoever joins next tries again
			continue
		}
		others[n.id] = n.row.Beat
		slowest = max(slowest, g.opts.Heartbeat, min(n.every(), time.Minute))
	}
	h := &g.heart
	h.mu.Lock()
	defer h.mu.Unlock()
	h.others, h.least, h.most = others, time.Now().Add(slowest), time.Now().Add(silence*slowest)
	return nil
}

// hearOthers waits no longer for the nodes that have made a heartbeat, or left.
func (g *Guarded) hearOthers(ctx context.Context, r driver.Rows) error {
	nodes, err := listNodes(ctx, r)
	if err != nil {
		return err
	}
	beats := map[string]int64{}
	for _, n := range nodes {
		beats[n.id] = n.row.Beat
	}
	h := &g.heart
	h.mu.Lock()
	defer h.mu.Unlock()
	maps.DeleteFunc(h.others, func(id string, beat int64) bool {
		now, there := beats[id]
		return !there || now != beat
	})
	return nil
}

// leave removes the node's row, so that nobody waits for it.
func (g *Guarded) leave(store hapax.Store) error {
	r, ok := rows(store)
	h := &g.heart
	ctx, cancel := context.WithTimeout(context.Background(), g.opts.Timeout)
	defer cancel()
	select {
	case h.slot <- struct{}{}: // nobody else writes the row now
		defer func() { <-h.slot }()
	case <-ctx.Done():
		return nil
	}
	h.mu.Lock()
	row, joined := h.row, h.joined
	h.left = true
	h.mu.Unlock()
	if !ok || !joined || g.Refused() != nil {
		return nil
	}
	if err := g.witness.setBeat(-1, time.Now()); err != nil {
		return err
	}
	_, err := r.SwapRow(ctx, driver.TableNodes, g.witness.Node(), row, nil)
	if errors.Is(err, hapax.ErrStoreUnavailable) {
		return nil // the row is forgotten in time
	}
	return err
}

// A node is a row of the nodes' table.
type node struct {
	id  string
	row nodeRow
	raw []byte
}

func (n node) at() time.Time        { return time.UnixMilli(n.row.At) }
func (n node) every() time.Duration { return time.Duration(n.row.Every) * time.Millisecond }

func listNodes(ctx context.Context, r driver.Rows) ([]node, error) {
	var nodes []node
	err := driver.AllRows(ctx, r, driver.TableNodes, func(row driver.Row) error {
		n := node{id: row.Name, raw: row.Value}
		nodes = append(nodes, n)
		return driver.DecodeRow(driver.TableNodes, row.Name, row.Value, &nodes[len(nodes)-1].row)
	})
	return nodes, err
}
