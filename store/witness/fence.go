package witness

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
)

// A State is how a node stands with its store.
type State string

// The states of a node.
const (
	Serving  State = ""         // it is
	Refusing State = "refusing" // it found out that the store went back or was replaced
	Fenced   State = "fenced"   // another node did
)

// A Status is what stands against a node's being granted anything.
type Status struct {
	State State
	Why   string // empty while it is serving
	Fence *Fence // the fence in the store, where there is one and it was seen
	err   error
}

// A Fence stands in the store while nobody is granted anything.
type Fence struct {
	ID   string    `json:"id"`
	Node string    `json:"node"` // identity of the node that raised it
	Name string    `json:"name"` // what operators know that node by
	At   time.Time `json:"at"`
	Why  string    `json:"why"`

	// Replaces are the fences that stood before this one and were not lifted: the
	// evidence for them may be older than what was found since.
	Replaces []string `json:"replaces,omitempty"`
}

// The names of the fence's rows.
const (
	rowFence    = "fence"
	rowLifted   = "lifted/"   // followed by the identity of a fence that was lifted
	rowReplaces = "replaces/" // followed by the identity of a store that was lost, and adopted to be replaced by this one
)

// A liftedRow tells the nodes that an operator has decided about a fence.
type liftedRow struct {
	Store string    `json:"store"` // identity of the store that is to be used from now on
	At    time.Time `json:"at"`
}

// Status returns what stands against this node's being granted anything.
func (g *Guarded) Status() Status {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.status
}

// Refused returns why nothing is granted, or nil.
func (g *Guarded) Refused() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.status.error()
}

func (s Status) error() error {
	switch {
	case s.State == Serving:
		return nil
	case s.err != nil:
		return fmt.Errorf("%w (%w)", s.err, hapax.ErrFenced)
	case s.State == Refusing: // known from the witness alone
		return fmt.Errorf("%w: %s", hapax.ErrFenced, s.Why)
	}
	return fmt.Errorf("%w: node %q found at %s: %s", hapax.ErrFenced, s.Fence.Name, s.Fence.At.UTC().Format(time.RFC3339), s.Fence.Why)
}

// setStatus replaces the status unless a weightier one stands, and tells of it.
func (g *Guarded) setStatus(next Status) {
	g.mu.Lock()
	old := g.status
	keep := old.State == Refusing && next.State == Fenced
	if keep {
		next.State, next.Why, next.err = old.State, old.Why, old.err
	}
	g.status = next
	g.mu.Unlock()
	if old.State != next.State && g.opts.Changed != nil {
		g.opts.Changed(next)
	}
}

// refuse makes the node refuse from now on, and raises the fence. It returns the
// refusal.
func (g *Guarded) refuse(ctx context.Context, cause error) error {
	g.unraised.Store(true)
	err := g.refuseAlone(cause)
	g.mu.Lock()
	store := g.store
	g.mu.Unlock()
	if r, ok := rows(store); ok {
		_ = g.raise(ctx, store, r) // else the watch does it
	}
	return err
}

// refuseAlone is refuse without a fence: what is wrong is wrong with this node.
func (g *Guarded) refuseAlone(cause error) error {
	g.trusted.Store(false)
	_ = g.witness.setRefusal(hapax.Message(cause)) // else the next change writes it; it is in force
	g.setStatus(Status{State: Refusing, Why: hapax.Message(cause), err: cause})
	g.watch()
	return g.Refused()
}

// maxReplaced bounds how many fences one replaces.
const maxReplaced = 100

// raise puts the fence into the store, unless what is wrong is wrong with this node
// alone: it is a copy, or was pointed at a store of others, who are not to suffer
// for it. Where there is a fence it stays, unless this node has found something
// anew: the fence, and the evidence for it, may have come back with the store.
func (g *Guarded) raise(ctx context.Context, store hapax.Store, r driver.Rows) error {
	anew := g.unraised.Swap(false)
	err := g.raiseOnce(ctx, store, r, anew)
	if err != nil && anew {
		g.unraised.Store(true)
	}
	return err
}

func (g *Guarded) raiseOnce(ctx context.Context, store hapax.Store, r driver.Rows, anew bool) error {
	st := g.Status()
	if errors.Is(st.err, hapax.ErrStoreCopied) {
		return nil
	}
	id, err := store.StoreID(ctx)
	if err != nil {
		return err
	}
	if known := g.witness.StoreID(); known != "" && known != id && g.isElsewhere(ctx, r) {
		return nil
	}
	fence := Fence{ID: rand.Text(), Node: g.witness.Node(), Name: g.opts.Name, At: time.Now().UTC(), Why: st.Why}
	old, err := r.Row(ctx, driver.TableFence, rowFence)
	if err != nil {
		return err
	}
	if old != nil && anew {
		var stands Fence
		if err := driver.DecodeRow(driver.TableFence, rowFence, old, &stands); err != nil {
			return err
		}
		fence.Replaces = slices.Concat(stands.Replaces, []string{stands.ID})
		fence.Replaces = fence.Replaces[max(0, len(fence.Replaces)-maxReplaced):]
	}
	raw, err := json.Marshal(fence)
	if err != nil {
		return err
	}
	if old == nil || anew {
		ok, err := r.SwapRow(ctx, driver.TableFence, rowFence, old, raw)
		if err == nil && !ok {
			err = fmt.Errorf("%w: the fence was changed meanwhile", hapax.ErrStoreUnavailable)
		}
		if err != nil {
			return err
		}
	}
	_, err = g.seeFence(ctx, r)
	return err
}

// checkFence returns an error while there is a fence.
func (g *Guarded) checkFence(ctx context.Context, r driver.Rows) error {
	fence, err := g.seeFence(ctx, r)
	if err != nil || fence == nil {
		return err
	}
	g.watch()
	return g.Refused()
}

// seeFence returns the fence, if there is one, and heeds it.
func (g *Guarded) seeFence(ctx context.Context, r driver.Rows) (*Fence, error) {
	fence, err := readFence(ctx, r)
	if err != nil || fence == nil {
		return nil, err
	}
	g.trusted.Store(false)
	g.setStatus(Status{State: Fenced, Why: fence.Why, Fence: fence})
	if g.Status().State == Refusing {
		err = g.witness.setFence(fence.ID) // so that a restart knows which fence to see lifted
	}
	return fence, err
}

func readFence(ctx context.Context, r driver.Rows) (*Fence, error) {
	raw, err := r.Row(ctx, driver.TableFence, rowFence)
	if err != nil || raw == nil {
		return nil, err
	}
	fence := new(Fence)
	return fence, driver.DecodeRow(driver.TableFence, rowFence, raw, fence)
}

// watch starts the goroutine that beats, and that minds a fence, unless it runs.
func (g *Guarded) watch() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.watching || g.closed {
		return
	}
	g.watching = true
	g.loop.Go(func() {
		for {
			select {
			case <-g.life.Done():
				return
			case <-time.After(g.opts.Heartbeat / 2):
			}
			ctx, cancel := context.WithTimeout(g.life, g.opts.Timeout)
			g.tend(ctx)
			cancel()
		}
	})
}

// tend makes a heartbeat where one is due. While the node refuses or is fenced it
// sees to the fence and to the evidence, and looks whether the fence was lifted.
// What fails is tried again soon.
func (g *Guarded) tend(ctx context.Context) {
	store, err := g.opened(ctx)
	if err != nil {
		return
	}
	r, ok := rows(store)
	if !ok {
		return
	}
	if g.Refused() != nil {
		_ = g.heed(ctx, store, g.mind(ctx, store, r))
		return
	}
	if !r.Shared() {
		return
	}
	h := &g.heart
	h.mu.Lock()
	due := h.joined && time.Since(h.at) >= g.opts.Heartbeat/2
	h.mu.Unlock()
	if !due {
		return
	}
	select {
	case h.slot <- struct{}{}:
		defer func() { <-h.slot }()
		err := g.beatLocked(ctx, r)
		if err == nil {
			err = g.look(ctx, r)
		}
		_ = g.heed(ctx, store, err) // a refusal is in force already
	case <-ctx.Done():
	}
}

// mind goes one step from a refusal to serving again.
func (g *Guarded) mind(ctx context.Context, store hapax.Store, r driver.Rows) error {
	if g.unraised.Load() && g.Status().State == Refusing {
		if err := g.raise(ctx, store, r); err != nil {
			return err
		}
	}
	seen := g.witness.fence()
	if st := g.Status(); st.Fence != nil {
		seen = st.Fence.ID
	}
	fence, err := g.seeFence(ctx, r)
	switch {
	case err != nil:
		return err
	case fence != nil && r.Shared():
		if err := g.rejoin(ctx, r); err != nil {
			return err
		}
		return g.testify(ctx, r, fence.ID)
	case fence != nil:
		return g.testify(ctx, r, fence.ID)
	}
	id, err := g.isSound(ctx, store, r, seen)
	switch {
	case err != nil:
		return err
	case id == "":
		return g.raise(ctx, store, r)
	case r.Shared():
		if err := g.rejoin(ctx, r); err != nil {
			return err
		}
	}
	return g.resume(id)
}

// rejoin keeps the node's row alive, whatever became of it, so that the operator
// sees who is there.
func (g *Guarded) rejoin(ctx context.Context, r driver.Rows) error {
	h := &g.heart
	select {
	case h.slot <- struct{}{}:
		defer func() { <-h.slot }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	raw, row, err := g.readBeat(ctx, r)
	if err != nil {
		return err
	}
	now := time.Now()
	h.mu.Lock()
	if h.run == "" {
		h.run = rand.Text()
	}
	if raw == nil || row.Since == 0 {
		h.since = now.UnixMilli()
	} else {
		h.since = row.Since
	}
	beat := max(h.beat, row.Beat) + 1
	h.row, h.beat, h.unsure = raw, beat-1, true // until the answer is there
	h.mu.Unlock()
	next := g.encodeBeat(beat, now)
	ok, err := r.SwapRow(ctx, driver.TableNodes, g.witness.Node(), raw, next)
	if err == nil && !ok {
		err = fmt.Errorf("%w: the row of this node was changed meanwhile", hapax.ErrStoreUnavailable)
	}
	if err != nil {
		return err
	}
	h.acknowledged(beat, next, 0, now)
	return nil
}

// isSound returns the store's identity if an operator has lifted the fence that this
// node has seen, for the store as it is now, which has every line that the witness
// knows at or above its mark.
func (g *Guarded) isSound(ctx context.Context, store hapax.Store, r driver.Rows, seen string) (string, error) {
	if seen == "" {
		return "", nil
	}
	raw, err := r.Row(ctx, driver.TableFence, rowLifted+seen)
	if err != nil || raw == nil {
		return "", err
	}
	var lifted liftedRow
	if err := driver.DecodeRow(driver.TableFence, rowLifted+seen, raw, &lifted); err != nil {
		return "", err
	}
	id, err := store.StoreID(ctx)
	if err != nil || id != lifted.Store {
		return "", err
	}
	behind, err := compare(ctx, store, g.witness.Lines())
	if err != nil || len(behind) > 0 {
		return "", err
	}
	return id, nil
}

// resume ends a refusal. The node goes on as one that has just registered.
func (g *Guarded) resume(store string) error {
	if err := g.witness.settleFor(store); err != nil {
		return err
	}
	g.heart.mu.Lock()
	g.heart.looked = time.Time{}
	g.heart.mu.Unlock()
	g.setStatus(Status{})
	return nil
}

// Limits of a row of evidence.
const (
	evidenceLines = 500
	evidenceDone  = "done"
)

// testify publishes the witness as evidence for a fence: rows of lines and, last,
// one that says that they are complete.
func (g *Guarded) testify(ctx context.Context, r driver.Rows, fence string) error {
	prefix := fence + "/" + g.witness.Node() + "/"
	lines := g.witness.testimony()
	var sum int64 // of the marks: they only grow, but for what is handed back
	for _, mark := range lines {
		sum += mark
	}
	done := map[string]int64{"parts": int64((len(lines) + evidenceLines - 1) / evidenceLines), "sum": sum}
	said, err := r.Row(ctx, driver.TableEvidence, prefix+evidenceDone)
	if err != nil {
		return err
	}
	if raw, err := json.Marshal(done); err != nil || bytes.Equal(raw, said) {
		return err
	}
	part := 0
	for names := range slices.Chunk(slices.Sorted(maps.Keys(lines)), evidenceLines) {
		some := make(map[string]int64, len(names))
		for _, name := range names {
			some[name] = lines[name]
		}
		if err := putRow(ctx, r, driver.TableEvidence, fmt.Sprintf("%s%09d", prefix, part), some); err != nil {
			return err
		}
		part++
	}
	return putRow(ctx, r, driver.TableEvidence, prefix+evidenceDone, done)
}

// putRow writes a row that nobody else writes.
func putRow(ctx context.Context, r driver.Rows, table, name string, value any) error {
	next, err := json.Marshal(value)
	if err != nil {
		return err
	}
	old, err := r.Row(ctx, table, name)
	if err != nil || string(old) == string(next) {
		return err
	}
	ok, err := r.SwapRow(ctx, table, name, old, next)
	if err == nil && !ok {
		err = fmt.Errorf("%w: row %q of table %q was changed meanwhile", hapax.ErrStoreUnavailable, name, table)
	}
	return err
}
