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

// An AdoptRequest says how an operator decides about a store that went back, was
// restored or replaced.
type AdoptRequest struct {
	// Lines are what witnesses say whose nodes do not live: their lines with their
	// marks, and whose they are; see Read.
	Lines []map[string]int64

	// Floor, if set, is what every segment tag is raised to at least.
	Floor int64

	// Ahead is how far past now the timeline of every known worker is raised when
	// nodes are missing whose grants nobody knows; default 15 min.
	Ahead time.Duration

	// WithoutMissing goes on although nodes that the store knows have not said
	// what they used. It needs Floor.
	WithoutMissing bool

	// NoOthers states that no node has used the store but those that are heard. A
	// store that was replaced does not know who used the one before, so that there
	// Adopt needs this statement or Floor.
	NoOthers bool

	// DryRun changes nothing but to raise the fence where there is none and
	// Stop is set.
	DryRun bool

	// Wait is how long nodes may take to speak; default 5 s.
	Wait time.Duration
}

// An Adoption is what Adopt found and did.
type Adoption struct {
	StoreID  string
	Fence    *Fence   // the fence that stood; nil: nothing was wrong
	Spoke    []string // nodes that have published what they used, by name
	Missing  []string // nodes that the store knows and that have not
	Unheard  []string // further nodes that those who were heard have seen in the store, or in the one that it replaces
	Replaced bool     // the store is another one than that which was used
	Raised   []Raised // in a dry run: what would be raised
}

// Raised is one mark that was raised.
type Raised struct {
	Tag      string // of a tag
	Pool     string // of a worker
	Worker   int64
	From, To int64
}

// Adopt raises every mark of the store above what the living nodes and the given
// witnesses know, and lifts the fence. It is the way out of a refusal, for an
// operator who knows why the store went back. Where there is no fence, and the
// given lines are not ahead of the store, it changes nothing.
//
// It waits for the nodes that live. ErrFenced if a node that the store knows has
// not said what it used, unless the request goes without it: raise the floor above
// all that it can have issued, or give its witness.
func Adopt(ctx context.Context, store hapax.Store, req AdoptRequest) (Adoption, error) {
	var a Adoption
	r, ok := rows(store)
	if !ok {
		return a, fmt.Errorf("%w: %T has no room for a fence; raise the tags' floors by hand", hapax.ErrNotSupported, store)
	}
	if req.Wait == 0 {
		req.Wait = 5 * time.Second
	}
	if req.Ahead == 0 {
		req.Ahead = 15 * time.Minute
	}
	if req.WithoutMissing && req.Floor < 1 {
		return a, &hapax.ValueError{Field: "floor", Value: req.Floor, Allowed: "a number above all that the missing nodes can have issued", Err: hapax.ErrInvalidArgument}
	}
	var err error
	if a.StoreID, err = store.StoreID(ctx); err != nil {
		return a, err
	}
	lines := merge(req.Lines...)
	if a.Fence, err = readFence(ctx, r); err != nil {
		return a, err
	}
	if a.Fence != nil {
		if err := a.hear(ctx, r, req, lines); err != nil {
			return a, err
		}
	}
	decided, err := a.weigh(ctx, r, lines)
	if err != nil {
		return a, err
	}
	if a.Fence == nil { // nor is there one any more
		a.Raised, err = compare(ctx, store, lines)
		if err != nil || len(a.Raised) == 0 && req.Floor == 0 && !a.Replaced {
			return a, err
		}
	}
	unknown := len(a.Missing) > 0 || a.Replaced && !decided && (len(a.Unheard) > 0 || !req.NoOthers)
	if a.Raised, err = plan(ctx, store, lines, req, unknown); err != nil {
		return a, err
	}
	if req.DryRun {
		return a, nil
	}
	if len(a.Missing) > 0 && !req.WithoutMissing {
		return a, fmt.Errorf("%w: %d nodes that the store knows have not said what they used: %s; start them, give their witness files, or give a floor above all that they can have issued",
			hapax.ErrFenced, len(a.Missing), strings.Join(a.Missing, ", "))
	}
	if !decided {
		if err := a.demand(req); err != nil {
			return a, err
		}
	}
	for _, raise := range a.Raised {
		if err := raise.apply(ctx, store); err != nil {
			return a, err
		}
	}
	if err := a.decide(ctx, r, lines); err != nil {
		return a, err
	}
	return a, a.lift(ctx, r)
}

// weigh finds out from what was said whether the store is another one, and which
// nodes were seen and not heard; and whether an operator has decided about that
// already, so that a node which comes back later is no reason to ask again.
func (a *Adoption) weigh(ctx context.Context, r driver.Rows, lines map[string]int64) (decided bool, err error) {
	a.Replaced, a.Unheard, decided = false, nil, true
	if !r.Shared() {
		return true, nil
	}
	for _, line := range slices.Sorted(maps.Keys(lines)) {
		if id, ok := strings.CutPrefix(line, saidStore); ok && id != a.StoreID {
			a.Replaced = true
			raw, err := r.Row(ctx, driver.TableFence, rowReplaces+id)
			if err != nil {
				return false, err
			}
			decided = decided && raw != nil
		}
		if peer, ok := strings.CutPrefix(line, saidPeer); ok {
			id, name, _ := strings.Cut(peer, "/")
			if _, heard := lines[saidSelf+id]; !heard && !slices.Contains(a.Missing, name) && !slices.Contains(a.Unheard, name) {
				a.Unheard = append(a.Unheard, name)
			}
		}
	}
	return decided, nil
}

// decide records that an operator has decided what the store replaces.
func (a *Adoption) decide(ctx context.Context, r driver.Rows, lines map[string]int64) error {
	if !a.Replaced {
		return nil
	}
	for line := range lines {
		if id, ok := strings.CutPrefix(line, saidStore); ok && id != a.StoreID {
			if err := putRow(ctx, r, driver.TableFence, rowReplaces+id, liftedRow{a.StoreID, time.Now().UTC()}); err != nil {
				return err
			}
		}
	}
	return nil
}

// demand returns an error unless all is known that a store which was replaced has
// forgotten.
func (a *Adoption) demand(req AdoptRequest) error {
	if !a.Replaced || req.Floor > 0 || req.NoOthers && len(a.Unheard) == 0 {
		return nil
	}
	const way = "give the witness files of all nodes that used it and state that there were no others, or give a floor above all that they can have issued"
	if len(a.Unheard) > 0 {
		return fmt.Errorf("%w: the store was replaced, and %d nodes that used the one before have not said what they used: %s; %s", hapax.ErrFenced, len(a.Unheard), strings.Join(a.Unheard, ", "), way)
	}
	return fmt.Errorf("%w: the store was replaced, and does not know which nodes used the one before; %s", hapax.ErrFenced, way)
}

// merge returns the highest mark of each line.
func merge(witnesses ...map[string]int64) map[string]int64 {
	all := map[string]int64{}
	for _, lines := range witnesses {
		for line, mark := range lines {
			all[line] = max(all[line], mark)
		}
	}
	return all
}

// settle is how many heartbeats a fence on a shared store is watched before it is
// lifted.
// A node that joined after the backup was made has no row in the store, and is
// heard of only when it has seen the fence.
const settle = 2

// hear waits until every node that the store knows has published its evidence, and
// adds it to lines.
func (a *Adoption) hear(ctx context.Context, r driver.Rows, req AdoptRequest, lines map[string]int64) error {
	began, given := time.Now(), maps.Clone(lines)
	slowest := time.Duration(0)
	if r.Shared() {
		slowest = DefaultHeartbeat
	}
	for {
		now, err := readFence(ctx, r)
		switch {
		case err != nil:
			return err
		case now == nil: // another adoption has lifted it
			a.Fence, a.Spoke, a.Missing = nil, nil, nil
			return nil
		case now.ID != a.Fence.ID: // a node has found something anew
			a.Fence, began = now, time.Now()
		}
		spoken, err := a.evidence(ctx, r, lines)
		if err != nil {
			return err
		}
		nodes, err := listNodes(ctx, r)
		if err != nil {
			return err
		}
		a.Spoke, a.Missing = nil, nil
		for _, n := range nodes {
			slowest = max(slowest, min(n.every(), time.Minute))
			if _, known := given[saidSelf+n.id]; known || spoken[n.id] {
				a.Spoke = append(a.Spoke, n.row.Name)
			} else {
				a.Missing = append(a.Missing, n.row.Name)
			}
		}
		if !r.Shared() {
			a.Missing = nil
		}
		waited := time.Since(began) - settle*slowest
		if len(a.Missing) == 0 && waited >= 0 || waited >= req.Wait {
			return nil
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", hapax.ErrStoreUnavailable, context.Cause(ctx))
		}
	}
}

// evidence adds what was published for the fence to lines, and returns the nodes
// whose evidence is complete: that which is being brought up to date is not.
func (a *Adoption) evidence(ctx context.Context, r driver.Rows, lines map[string]int64) (map[string]bool, error) {
	type account struct{ parts, sum int64 }
	found, said, complete := map[string]account{}, map[string]account{}, map[string]bool{}
	err := driver.AllRows(ctx, r, driver.TableEvidence, func(row driver.Row) error {
		rest, ok := strings.CutPrefix(row.Name, a.Fence.ID+"/")
		node, part, ok2 := strings.Cut(rest, "/")
		if !ok || !ok2 {
			return nil
		}
		var some map[string]int64
		if err := driver.DecodeRow(driver.TableEvidence, row.Name, row.Value, &some); err != nil {
			return err
		}
		if part == evidenceDone {
			said[node] = account{some["parts"], some["sum"]}
			return nil
		}
		total := found[node]
		total.parts++
		for _, mark := range some {
			total.sum += mark
		}
		found[node] = total
		maps.Copy(lines, merge(lines, some))
		return nil
	})
	for node, told := range said {
		complete[node] = found[node] == told
	}
	return complete, err
}

// lift ends the fence and removes the evidence.
func (a *Adoption) lift(ctx context.Context, r driver.Rows) error {
	if a.Fence == nil {
		return nil
	}
	raw, err := r.Row(ctx, driver.TableFence, rowFence)
	if err != nil || raw == nil {
		return err
	}
	var now Fence
	if err := driver.DecodeRow(driver.TableFence, rowFence, raw, &now); err != nil {
		return err
	}
	if now.ID != a.Fence.ID {
		return fmt.Errorf("%w: node %q found anew, meanwhile, at %s: %s; run adopt again", hapax.ErrFenced, now.Name, now.At.UTC().Format(time.RFC3339), now.Why)
	}
	lifted := liftedRow{a.StoreID, time.Now().UTC()}
	for _, id := range append(now.Replaces, now.ID) {
		if err := putRow(ctx, r, driver.TableFence, rowLifted+id, lifted); err != nil {
			return err
		}
	}
	if ok, err := r.SwapRow(ctx, driver.TableFence, rowFence, raw, nil); err != nil || !ok {
		return errors.Join(err, fmt.Errorf("%w: the fence was changed meanwhile; run adopt again", hapax.ErrFenced))
	}
	var old []driver.Row
	err = driver.AllRows(ctx, r, driver.TableEvidence, func(row driver.Row) error {
		old = append(old, row)
		return nil
	})
	for _, row := range old {
		if err == nil {
			_, err = r.SwapRow(ctx, driver.TableEvidence, row.Name, row.Value, nil)
		}
	}
	return err
}

// compare returns what would have to be raised for the store to be at or above
// the lines.
func compare(ctx context.Context, store hapax.Store, lines map[string]int64) ([]Raised, error) {
	return plan(ctx, store, lines, AdoptRequest{}, false)
}

// plan returns what has to be raised, tags first, by name.
func plan(ctx context.Context, store hapax.Store, lines map[string]int64, req AdoptRequest, missing bool) ([]Raised, error) {
	tags, pools := map[string]int64{}, map[string]map[int64]int64{}
	for line, mark := range lines {
		if name, ok := CutTagLine(line); ok {
			tags[name] = mark
		} else if pool, id, ok := CutWorkerLine(line); ok {
			if pools[pool] == nil {
				pools[pool] = map[int64]int64{}
			}
			pools[pool][id] = mark
		}
	}
	raised, err := planTags(ctx, store, tags, req.Floor)
	if err != nil {
		return nil, err
	}
	known, err := store.Pools(ctx)
	if err != nil {
		return nil, err
	}
	layouts := map[string]hapax.Layout{}
	for _, p := range known {
		layouts[p.Name], _ = hapax.ParseLayout(p.Layout) // one that cannot be read has no time to raise to
		if missing && pools[p.Name] == nil {
			pools[p.Name] = map[int64]int64{}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(pools)) {
		more, err := planWorkers(ctx, store, name, layouts[name], pools[name], req.Ahead, missing)
		if err != nil {
			return nil, err
		}
		raised = append(raised, more...)
	}
	return raised, nil
}

const tagPage = 500

func planTags(ctx context.Context, store hapax.Store, tags map[string]int64, floor int64) ([]Raised, error) {
	var raised []Raised
	after := ""
	for {
		page, err := store.Tags(ctx, after, tagPage)
		if err != nil {
			return nil, err
		}
		for _, t := range page {
			after = t.Name
			to := tags[t.Name]
			delete(tags, t.Name)
			if t.Kind == hapax.KindSegment {
				if to = max(to, floor); to > t.Mark {
					raised = append(raised, Raised{Tag: t.Name, From: t.Mark, To: to})
				}
			}
		}
		if len(page) < tagPage {
			break
		}
	}
	for _, name := range slices.Sorted(maps.Keys(tags)) { // the store lost them
		raised = append(raised, Raised{Tag: name, To: max(tags[name], floor)})
	}
	return raised, nil
}

func planWorkers(ctx context.Context, store hapax.Store, pool string, layout hapax.Layout, marks map[int64]int64, ahead time.Duration, missing bool) ([]Raised, error) {
	var raised []Raised
	workers, err := store.Workers(ctx, pool)
	if err != nil {
		return nil, err
	}
	var least int64
	if missing && !layout.IsZero() {
		if least, err = layout.TickOf(time.Now().Add(ahead)); err != nil {
			return nil, err
		}
	}
	for _, w := range workers {
		to := max(marks[w.ID], least)
		delete(marks, w.ID)
		if to > w.Mark {
			raised = append(raised, Raised{Pool: pool, Worker: w.ID, From: w.Mark, To: to})
		}
	}
	for _, id := range slices.Sorted(maps.Keys(marks)) { // the store lost them
		raised = append(raised, Raised{Pool: pool, Worker: id, To: max(marks[id], least)})
	}
	return raised, nil
}

// A raiser sets a worker's mark to at least mark, and ends the lease on it.
type raiser interface {
	RaiseWorker(ctx context.Context, pool string, id, mark int64) (hapax.Worker, error)
}

// String returns what is behind, for people.
func (r Raised) String() string {
	line := fmt.Sprintf("tag %q", r.Tag)
	if r.Pool != "" {
		line = fmt.Sprintf("pool %q, worker %d", r.Pool, r.Worker)
	}
	return fmt.Sprintf("%s is at %d, and was used below %d", line, r.From, r.To)
}

// apply raises the mark.
func (r Raised) apply(ctx context.Context, store hapax.Store) error {
	if r.Pool != "" {
		w, ok := store.(raiser)
		if !ok {
			return fmt.Errorf("%w: %T cannot raise a worker's mark", hapax.ErrNotSupported, store)
		}
		_, err := w.RaiseWorker(ctx, r.Pool, r.Worker, r.To)
		return err
	}
	_, err := store.UpdateTag(ctx, r.Tag, hapax.TagUpdate{Floor: &r.To})
	deleted := errors.Is(err, hapax.ErrTagDeleted)
	if !deleted && !errors.Is(err, hapax.ErrTagNotFound) {
		return err
	}
	def := hapax.Tag{Name: r.Tag, Start: r.To}
	if deleted { // a tombstone rises by coming alive for a moment
		old, err := store.Tag(ctx, r.Tag)
		if err != nil {
			return err
		}
		def = old
		def.Deleted, def.Mark = false, r.To
	}
	def, err = def.WithDefaults()
	if err != nil {
		return err
	}
	if _, err := store.CreateTag(ctx, def, hapax.CreateExplicit); err != nil {
		return err
	}
	if deleted {
		_, err = store.DeleteTag(ctx, r.Tag)
	}
	return err
}

// AdoptWith is Adopt for a node that does not live: its witness is among those
// that are heard, and accepts the store.
func AdoptWith(ctx context.Context, store hapax.Store, w *Witness, req AdoptRequest) (Adoption, error) {
	req.Lines = append(slices.Clone(req.Lines), w.testimony())
	a, err := Adopt(ctx, store, req)
	if err != nil || req.DryRun {
		return a, err
	}
	return a, w.settleFor(a.StoreID)
}

// Adopt is the function of that name on the guarded store; this node's witness is
// heard as those of the other nodes.
func (g *Guarded) Adopt(ctx context.Context, req AdoptRequest) (Adoption, error) {
	store, err := g.opened(ctx)
	if err == nil {
		err = g.heed(ctx, store, store.Ping(ctx))
	}
	if hasMoved(err) && !errors.Is(err, hapax.ErrFenced) && g.opts.Accept != nil && !req.DryRun {
		store, err = g.accept(ctx, err)
	}
	if errors.Is(err, hapax.ErrFenced) { // it was found just now
		store, err = g.opened(ctx)
	}
	if r, ok := rows(store); err == nil && ok && g.Refused() != nil {
		err = g.heed(ctx, store, g.mind(ctx, store, r)) // the fence for what was found just now stands before it is lifted, not after
	}
	if err != nil {
		return Adoption{}, err
	}
	req.Lines = append(slices.Clone(req.Lines), g.witness.testimony())
	a, err := Adopt(ctx, store, req)
	return a, g.heed(ctx, store, err)
}

// hasMoved reports whether a driver refuses the store because it is on another
// server than before.
func hasMoved(err error) bool {
	return errors.Is(err, hapax.ErrStoreReplaced) || errors.Is(err, hapax.ErrStoreUnsafe)
}

// accept opens a store that has moved, and raises the fence: it may lack what was
// acknowledged where it was before.
func (g *Guarded) accept(ctx context.Context, cause error) (hapax.Store, error) {
	if err := g.lock(ctx); err != nil {
		return nil, err
	}
	defer g.unlock()
	store, err := g.opts.Accept(ctx)
	if err != nil {
		return nil, err
	}
	g.mu.Lock()
	old, closed := g.store, g.closed
	if !closed {
		g.store, g.openErr = store, nil
	}
	if old != nil && !closed {
		g.loop.Go(func() { _ = old.Close() })
	}
	g.mu.Unlock()
	if closed {
		return nil, errors.Join(errClosed(), store.Close())
	}
	_ = g.refuse(ctx, cause)
	if r, ok := rows(store); ok {
		return store, g.raise(ctx, store, r) // if that was not possible just now
	}
	return store, nil
}

// A Node is a node that the store knows.
type Node struct {
	ID    string
	Name  string
	At    time.Time // its last heartbeat, by its own clock
	Since time.Time // when it joined, likewise
}

// Nodes returns the nodes that the store knows, by identity. ErrNotSupported for a
// store that has no room for them.
func (g *Guarded) Nodes(ctx context.Context) ([]Node, error) {
	return ask(ctx, g, func(ctx context.Context, s hapax.Store) ([]Node, error) {
		r, ok := rows(s)
		if !ok {
			return nil, fmt.Errorf("%w: the store has no room for nodes", hapax.ErrNotSupported)
		}
		stored, err := listNodes(ctx, r)
		var nodes []Node
		for _, n := range stored {
			nodes = append(nodes, Node{n.id, n.row.Name, n.at().UTC(), time.UnixMilli(n.row.Since).UTC()})
		}
		return nodes, err
	})
}
