package witness

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/batch"
	"github.com/hapax-id/hapax/store/driver"
)

var (
	_ driver.Store = (*Guarded)(nil)
	_ driver.Clock = (*Guarded)(nil)
)

// A Guarded is a store behind a witness. Its methods are safe for concurrent use.
type Guarded struct {
	opts    Options
	witness *Witness
	closes  bool // Close closes the witness
	calls   *handle
	beats   *handle // for heartbeats; the same as calls where there is one only
	run     string  // random, of this process
	life    context.Context
	stop    context.CancelFunc
	loop    sync.WaitGroup
	kick    chan struct{} // holds an element while the loop is to take a turn at once

	handBacks   *batch.Batch[driver.HandBackOf, bool]
	allocations *batch.Batch[driver.AllocateOf, driver.Allocated]
	used        used

	// Orders verdicts and decisions, so that one from before a decision comes before it in the state and in the
	// witness; taken before mu and the witness's lock, and never held during I/O: what is to be written is written
	// in that order afterwards.
	verdicts sync.Mutex

	mu      sync.Mutex // guards the fields below; never held during I/O
	state   State
	changed chan struct{} // closed when the state changes
	cause   error         // why the state is what it is; nil while serving
	fence   *Fence        // the fence in the store, as last seen
	seenAt  time.Duration // when the fence was first seen as it is
	stoodAt time.Duration // when it was last seen to stand
	shared  bool
	me      member
	peers   map[string]*sighting // other rows of the store, by name
	noted   time.Duration        // when they were noted last
	watch   watch
	dials   bool          // the handle for heartbeats is dialled while the process registers
	looks   bool          // some work that is due besides the heartbeats is under way
	since   time.Duration // when the state began
	toldAt  time.Duration // when Options.Changed was told last
	pace    pace
	told    Status           // as Options.Changed was told last
	fresh   map[string]int64 // lines that were granted lately; see grantedLocked
	damaged string           // rows of copies that could not be read, as they were told last
	blocked map[string]bool  // lines that could not be read; see blocked.go
	sighted owedLines        // what was owed when that was looked for last

	gone     bool          // no store was found where this node's was, in the last turn
	goneAt   time.Duration // since when
	hindered error         // keeps the node from its part in healing, and does not pass with time alone
	healing  time.Duration // how long a turn may take, where that has proved longer; see longTurn
	answers  bool          // the store has answered in the last of them

	surveying time.Duration // likewise of a survey

	attempts int           // to register, each of which has a row of its own
	long     bool          // a survey takes longer than a turn may
	said     spoken        // this process's latest evidence about a fence
	fenceRaw string        // the fence as it was read last
	fenceAt  time.Duration // and since when it has been so
	accepted string        // identity of a store that an operator accepts in place of this node's
	heard    string        // with Options.Hold: the word under which all have given evidence
	approved string        // likewise: the fence that an operator lets this process end
	proposal proposal      // an operator's possible statement for the missing nodes
}

// A member is a process as one that has joined: its row, and its writes.
type member struct {
	row     string // empty: it has not joined
	about   []byte // its own report in driver.TableNodes
	number  int64  // its join number
	beat    driver.Beat
	acked   driver.Beat
	asked   int64         // up to here the witness knows that grants may be asked for
	contact time.Duration // when the last call was sent that the store has acknowledged
	waits   time.Duration // since when every living node is given the time to meet the store
	begun   int64         // how often it has begun to wait for them: a call sent before is of no use after it
	over    int64         // begun, as it was when the wait was over last
	sure    int64         // the last heartbeat that was acknowledged meanwhile
	quick   bool          // it need not wait: nobody else can have been granted anything meanwhile
	heard   []string      // it waits for these processes alone, which were heard for a decision, as it was
	unheard []string      // the nodes that it went on without, where nobody served
	founds  bool          // nobody served when it joined
	primary string
	told    string        // the primary that its row in tablePrimaries names
	asks    bool          // it has served, and another primary answers: it needs no other serving node
	known   bool          // it has surveyed the store
	busy    bool          // a survey is under way
	again   time.Duration // when the lines are surveyed next at the latest
	seen    int64         // up to which join it has surveyed
	joins   int64         // how many have joined, as far as it knows

	learnt    int64         // the number of changes that it has surveyed
	changes   int64         // as its last beat has found that number
	rowsAgain time.Duration // when the rows are surveyed next at the latest
	read      time.Duration // when it has read the rows of all, or the one that it watches, last
	late      bool          // somebody had not advanced since the time before
	watches   bool          // the store shows the row to watch with a beat
}

// A spoken is a process's evidence about a fence: under which word it was given, and its first
// part as stored.
type spoken struct{ ask, first string }

// A sighting is another row as this process has observed it.
type sighting struct {
	value string        // as stored; empty: to be read anew
	at    time.Duration // when it was observed to advance
	beat  driver.Beat
	how   string
	met   bool // it was observed to advance since this process began to wait for the others

	interval int64 // how often the process writes its heartbeat at least, in milliseconds, as it was surveyed
}

// Close ends the heartbeat, says in the store that the node has left if the store
// can be reached and no fence stands, and closes all that was opened.
func (g *Guarded) Close() error {
	if !g.apply(leave, nil, nil) {
		return nil
	}
	g.halt()
	// Nothing is under way, so that no beat comes after the row says that it has left.
	err := g.leave()
	err = errors.Join(err, g.calls.close())
	if g.beats != g.calls {
		err = errors.Join(err, g.beats.close())
	}
	if g.closes {
		err = errors.Join(err, g.witness.Close())
	}
	return err
}

// Kill stops the guard as a crash of the process would: nothing is written any
// more, and the store stays open. It is for tests.
func (g *Guarded) Kill() {
	g.mu.Lock()
	// Without a row nothing can be called any more, not even by calls under way.
	g.state, g.me.row = Left, ""
	g.mu.Unlock()
	g.halt()
}

// halt ends all that is under way, and waits for it.
func (g *Guarded) halt() {
	g.stop()
	g.allocations.Close()
	g.handBacks.Close()
	g.loop.Wait()
}

// Witness returns the witness.
func (g *Guarded) Witness() *Witness { return g.witness }

// Status returns how the node stands with its store.
func (g *Guarded) Status() Status {
	disk := g.witness.Failed()
	split := g.calls != nil && g.calls.isSplit()
	g.mu.Lock()
	defer g.mu.Unlock()
	st := g.statusLocked(disk)
	st.Split = split
	return st
}

func (g *Guarded) statusLocked(disk error) Status {
	st := Status{State: g.state, Disk: disk}
	// A healthy join, too, waits for as long as a living node may take, and for a few round trips.
	st.Trouble = g.state == Joining && (g.cause != nil || g.now()-g.since > 2*g.waitLocked())
	if g.cause != nil && g.state != Serving {
		st.Code, st.Why = hapax.CodeOf(g.cause), hapax.Message(g.cause)
	}
	if f := g.fence; f != nil && (g.state == Fenced || g.state == Refusing) {
		st.Fence, st.Missing = f, f.Missing
	}
	if g.hindered != nil && (g.state == Fenced || g.state == Refusing) {
		st.Why += "; this node cannot go on: " + hapax.Message(g.hindered)
	}
	if st.Slow = g.pace.text(g.opts.Heartbeat); st.Slow != "" && g.state == Joining && st.Why != "" {
		st.Why += "; " + st.Slow
	}
	gone, isRetired := errors.AsType[*driver.RetiredError](g.cause)
	switch {
	case isRetired:
		st.Command = retiredCommand(gone.Retirement)
	case (g.state == Serving || g.state == Joining) && disk != nil:
		st.Code, st.Why = hapax.CodeOf(disk), hapax.Message(disk)
		st.Command = "make room on the witness's disk, or give it another"
	case g.state == Joining && st.Why == "" && g.me.row == "":
		st.Code, st.Why = hapax.ErrStoreUnavailable.Code(), "this node joins, and the store has not answered yet"
	case g.state == Joining && st.Why == "":
		st.Code, st.Why = hapax.ErrStoreUnavailable.Code(), "this node joins, and waits until every living node has met the store"
		st.Waits = true
	case g.state == Refusing && errors.Is(g.cause, errOther):
		st.Command = "check the store's URL; hapax adopt if the store was replaced on purpose"
	case len(st.Missing) > 0:
		n := st.Missing[0]
		floor := "N"
		if g.proposal.floor > 0 && g.proposal.fence == st.Fence.ID {
			floor = fmt.Sprintf("%d, or higher", g.proposal.floor)
		}
		st.Command = fmt.Sprintf("start %s again, or hapax nodes settle %[1]s --witness-file FILE, or --floor %s", n.word(), floor)
		if all := len(st.Missing) + st.Fence.More; all > 1 {
			st.Command += fmt.Sprintf("; hapax nodes lists all %d who are missing", all)
		}
	case st.Fence != nil && st.Fence.Manual && !st.Fence.Approved:
		st.Command = "hapax adopt"
	}
	return st
}

// StandsFor reports whether this node serves from a store that goes on in place of another one: all
// that it has in hand, or is granted, is above what was granted there.
//
// That is so where it has used that one itself. Of a node that has not, the store's own row says too
// little: it may have in hand what it was granted before the store was healed.
func (g *Guarded) StandsFor(id string) bool {
	known := g.witness.stores()
	g.mu.Lock()
	serves := g.state == Serving
	g.mu.Unlock()
	return serves && slices.Contains(known, id)
}

// StandsLater returns what clients of another store wait for where StandsFor is false, and this node has used
// that one, in whose place its own, of the identity id, goes on; nil where nothing is to be waited for.
func (g *Guarded) StandsLater(other, id string) error {
	known := g.witness.stores()
	if len(known) == 0 || known[0] != id || !slices.Contains(known, other) {
		return nil
	}
	return cmp.Or(g.Refused(), errJoins())
}

// Refused returns why nothing is granted while a fence stands or the store is not the
// right one, or nil.
func (g *Guarded) Refused() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.refusedLocked()
}

func (g *Guarded) refusedLocked() error {
	switch g.state {
	case Fenced, Refusing:
		if errors.Is(g.cause, hapax.ErrFenced) {
			return g.cause
		}
		if errors.Is(g.cause, hapax.ErrStoreRetired) {
			return retiredError{g.cause}
		}
		return fmt.Errorf("%w (%w)", g.cause, hapax.ErrFenced)
	case Leaving, Left:
		return errGuardClosed()
	}
	return nil
}

func errGuardClosed() error { return fmt.Errorf("%w: the store", hapax.ErrClosed) }

// serving waits until the node may be granted something. A caller that has waited so long that
// the store's answer would come too late is told to ask again: its numbers would be lost.
func (g *Guarded) serving(ctx context.Context) error {
	for waited := false; ; waited = true {
		g.mu.Lock()
		state, cause, changed, err := g.state, g.cause, g.changed, g.refusedLocked()
		g.mu.Unlock()
		switch {
		case err != nil:
			return err
		case state == Serving:
			if over, ok := ctx.Deadline(); ok && waited && time.Until(over) < g.opts.beatTimeout() {
				return joinsError(context.DeadlineExceeded)
			}
			return nil
		case cause != nil: // it cannot join now
			return cause
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return joinsError(context.Cause(ctx))
		}
	}
}

func joinsError(ended error) error { return &hapax.WaitError{Cause: errJoins(), Context: ended} }

func errJoins() error {
	return fmt.Errorf("%w: this node joins, and waits until every living node has met the store", hapax.ErrStoreUnavailable)
}

// apply takes an event, and reports whether it changed the state. The latch is
// written where it did; that may fail, and the state holds all the same.
func (g *Guarded) apply(e event, cause error, fence *Fence) bool {
	g.verdicts.Lock()
	isNew, owes := g.applyLocked(e, cause, fence)
	g.verdicts.Unlock()
	g.writeLatch(owes)
	if isNew || fence != nil {
		g.tell()
	}
	return isNew
}

// writeLatch writes what applyLocked owes the witness. Where that fails, the next change writes it; it is in
// force.
func (g *Guarded) writeLatch(owes bool) {
	if owes {
		_ = g.witness.flush()
	}
}

// applyLocked is apply with verdicts held: it tells nobody, and reports whether the witness has news to write.
func (g *Guarded) applyLocked(e event, cause error, fence *Fence) (isNew, owes bool) {
	// Before the row is forgotten below.
	if e == lost {
		g.keepRow()
	}
	// Before g.mu, which is taken within the witness's lock elsewhere.
	was := g.witness.latch()
	g.mu.Lock()
	if e == joined && g.me.over != g.me.begun { // another primary has answered since
		g.mu.Unlock()
		return false, false
	}
	old := g.state
	g.state = old.after(e)
	isNew = g.state != old
	if fence != nil {
		if g.fence == nil || g.fence.ID != fence.ID || len(g.fence.Found) != len(fence.Found) {
			g.seenAt = g.now()
		}
		g.fence = fence
	}
	switch {
	case g.state == Serving:
		g.cause = nil
	case g.state == Joining && e != joined:
		g.cause = cause
	case isNew, e == retired, e == other, (e == behind || e == fenced) && errors.Is(g.cause, errOther):
		g.cause = cause
	}
	// Nodes that were granted something before the fence are to be waited for again.
	if e == fenced || e == behind || e == retired {
		g.me.quick, g.me.heard = false, nil
	}
	if g.state == Joining && (e == lost || e == decided) {
		heard := g.me.heard
		g.me = member{}
		// Their rows are of no more use; that they were heard for the decision is.
		if e == decided {
			g.me.heard = heard
		}
		// Rows observed so far may be of the store as it was before it went back.
		g.peers, g.watch, g.noted = map[string]*sighting{}, watch{}, g.now()
		if e == decided {
			g.fence, g.fresh = nil, nil
		}
	}
	if isNew {
		g.since = g.now()
		g.said = spoken{} // it may know more now
		// Callers that wait look again; the next ones wait for the next change.
		close(g.changed)
		g.changed = make(chan struct{})
	}
	// Outside g.mu, which is taken within the witness's lock elsewhere. The state is in force already, so that
	// nothing is granted meanwhile.
	record := e == fenced || e == behind || e == retired
	l, row, all, joins := g.latchLocked(was, e, cause), g.me.row, own{Count: g.me.acked.Count, Grants: g.me.acked.Grants, Asked: g.me.beat.Grants}, g.me.joins
	g.mu.Unlock()
	if e == retired {
		joins = 0 // some may have joined after the copy was read
	}
	return isNew, record && g.witness.noteLatch(l, row, all, joins) == nil
}

// latchLocked returns the latch that the witness is to remember after an event. The first
// finding of the node itself stays.
func (g *Guarded) latchLocked(l latch, e event, cause error) latch {
	gone, _ := errors.AsType[*driver.RetiredError](cause)
	if l.State == "" || l.State == Fenced && e == behind || e == retired {
		l = latch{State: Fenced, Row: g.me.row, Count: g.me.acked.Count, Fence: l.Fence}
		if e == behind || e == retired {
			l.State = Refusing
		}
		if e == retired {
			l.Retired = &gone.Retirement
		}
		if cause != nil {
			l.Code, l.Why = string(hapax.CodeOf(cause)), hapax.Message(cause)
		}
	}
	if g.fence != nil {
		l.Fence = g.fence.ID
	}
	return l
}

// tell tells Options.Changed of a status that differs in state or cause, in the missing nodes,
// or in the operator's command.
func (g *Guarded) tell() {
	st := g.Status()
	g.mu.Lock()
	isNew := st.Trouble && !g.told.Trouble || st.Trouble && st.Why != g.told.Why && g.now()-g.toldAt >= g.opts.wait() ||
		st.State != g.told.State || st.Code != g.told.Code || st.Command != g.told.Command || len(st.Missing) != len(g.told.Missing)
	if isNew {
		g.told, g.toldAt = st, g.now()
	}
	g.mu.Unlock()
	if isNew && g.opts.Changed != nil {
		g.opts.Changed(st)
	}
}
