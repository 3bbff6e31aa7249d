package witness

import (
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/durable"
)

// A Witness is what a node remembers outside the store: which store it works
// with, up to which mark it has used each line, its own heartbeat, and whether it
// refuses to go on. A store that was restored from a backup, replaced or edited
// hands out numbers a second time; the witness tells, because it is written
// before a grant is used.
//
// It is a small file: it guards against a store that goes back, not against the
// loss of the file itself, and it knows only what this node has used.
//
// All methods are safe for concurrent use. Changes that are made at the same
// time share one fsync. When one cannot be made durable, it is refused with
// ErrStoreUnavailable, and the next one writes the whole file anew.
type Witness struct {
	shutOnce func() error // shut, with its result for every later call

	writer sync.Mutex // guards log; held while a batch is written, and taken before mu
	log    *log       // what is durable

	mu     sync.Mutex // guards what follows; not held during I/O
	state  record
	calls  map[string]*calls // lines with calls to the store under way
	next   *batch            // what changes join until its first writer takes it; nil: none
	left   bool              // the node has left the store
	closed bool
}

// A batch is changes that become durable together. The one who opened it writes
// it; the others wait.
type batch struct {
	change record
	done   chan struct{} // closed when err is set
	err    error
}

// calls are the calls for grants of one line that are under way.
type calls struct {
	open  map[*call]struct{}
	taken []hapax.Grant // what was accepted since the oldest of them began
}

// A call is one call for a grant of a line, from before the store is asked.
type call struct {
	line  string
	since int64 // a grant below this is not new
	again bool  // the grant may repeat what its holder was granted before: an extension whose answer was lost
}

// TagLine returns the name of a tag's line.
func TagLine(tag string) string { return "tag/" + tag }

// WorkerLine returns the name of the timeline of a pool's worker.
func WorkerLine(pool string, id int64) string {
	return "worker/" + pool + "/" + strconv.FormatInt(id, 10)
}

// CutTagLine returns the tag whose line has that name, and false for other lines.
func CutTagLine(line string) (tag string, ok bool) { return strings.CutPrefix(line, "tag/") }

// CutWorkerLine returns what WorkerLine was given, and false for other lines.
func CutWorkerLine(line string) (pool string, id int64, ok bool) {
	i := strings.LastIndexByte(line, '/')
	id, err := strconv.ParseInt(line[i+1:], 10, 64)
	_, pool, _ = strings.Cut(line[:max(i, 0)], "/") // a pool may have slashes in its name
	return pool, id, err == nil && line == WorkerLine(pool, id)
}

// Open opens the witness in the file at path, or creates it, readable by its
// owner only. Its directory must exist; a lock file stands beside it. A last
// change that a crash cut short was never acknowledged and is dropped.
//
// ErrStoreLocked if another process has it open (where the operating system can
// tell), ErrStoreCorrupt if the file is damaged, ErrStoreUnavailable if it cannot
// be read or written.
func Open(path string) (*Witness, error) { return openOn(path, durable.OS) }

func openOn(path string, disk durable.Disk) (*Witness, error) {
	log, state, err := openLog(path, disk)
	if err != nil {
		return nil, err
	}
	w := &Witness{log: log, state: state, calls: map[string]*calls{}}
	w.shutOnce = sync.OnceValue(w.shut)
	if state.Node == "" {
		if err := w.commit(func(b *record) error { b.Node = rand.Text(); return nil }); err != nil {
			return nil, errors.Join(err, w.Close())
		}
	}
	return w, nil
}

// Read returns what the witness in the file at path says, which may belong to
// another node; see AdoptRequest.Lines.
func Read(path string) (map[string]int64, error) {
	state, err := readLog(path)
	if err == nil && state.Node == "" {
		err = fmt.Errorf("%w: there is no witness at %s", hapax.ErrStoreUnavailable, path)
	}
	return state.testimony(), err
}

// What a witness says besides its lines begins with these, which no line does.
const (
	saidSelf  = "self/"  // followed by the node's identity: it was heard
	saidPeer  = "peer/"  // followed by the identity of another node, a slash and its name
	saidStore = "store/" // followed by the identity of the store that the node knows
)

// testimony returns the lines with their marks, as Lines does, and who says it.
func (r record) testimony() map[string]int64 {
	said := maps.Clone(r.Marks)
	for line, next := range r.Offers {
		said[line] = min(said[line], next)
	}
	said[saidSelf+r.Node] = 1
	if r.Store != "" {
		said[saidStore+r.Store] = 1
	}
	for id, name := range r.Peers {
		said[saidPeer+id+"/"+name] = 1
	}
	return said
}

func (w *Witness) testimony() map[string]int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.state.testimony()
}

// maxPeers bounds how many other nodes a witness remembers.
const maxPeers = 1000

// meet remembers other nodes of the store.
func (w *Witness) meet(nodes []node) error {
	return w.commit(func(b *record) error {
		for _, n := range nodes {
			if _, known := w.state.Peers[n.id]; !known && n.id != w.state.Node && len(w.state.Peers)+len(b.Peers) < maxPeers {
				b.Peers[n.id] = n.row.Name
			}
		}
		if len(b.Peers) == 0 {
			return errNoChange
		}
		return nil
	})
}

// knows reports whether a node of the store was seen there before.
func (w *Witness) knows(id string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	_, known := w.state.Peers[id]
	return known || id == w.state.Node
}

// settleFor ends a refusal, in one step, for a store that an operator has adopted.
// The other nodes are forgotten: nothing that they used can come again.
func (w *Witness) settleFor(store string) error {
	return w.commit(func(b *record) error {
		served := ""
		b.Store, b.Beat, b.At, b.Alone, b.Refusal = store, -1, time.Now().UnixMilli(), true, &served
		return nil
	})
}

// Node returns the node's identity, which is as old as the file.
func (w *Witness) Node() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.state.Node
}

// StoreID returns the identity of the store that this node works with, empty
// before the first use of one.
func (w *Witness) StoreID() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.state.Store
}

// Refusal returns why this node is granted nothing any more, empty if it is.
func (w *Witness) Refusal() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.state.Refusal == nil {
		return ""
	}
	return *w.state.Refusal
}

// Mark returns the line's mark, the first number that this node has not used,
// and whether the line is known.
func (w *Witness) Mark(line string) (int64, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.markLocked(line)
}

// markLocked returns the lowest mark that a line can have in the store: what a
// hand-back whose outcome is open offers, or else what was used.
func (w *Witness) markLocked(line string) (int64, bool) {
	mark, ok := w.state.Marks[line]
	if next, offered := w.state.Offers[line]; offered {
		mark = min(mark, next)
	}
	return mark, ok
}

// Lines returns a copy of all lines with their marks.
func (w *Witness) Lines() map[string]int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	lines := maps.Clone(w.state.Marks)
	for line := range w.state.Offers {
		lines[line], _ = w.markLocked(line)
	}
	return lines
}

// beat returns the last heartbeat that was acknowledged, 0 if there was none
// since the node was last stopped in good order, and when that was.
func (w *Witness) beat() (int64, time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return max(0, w.state.Beat), time.UnixMilli(w.state.At)
}

// setStore records which store this node works with.
func (w *Witness) setStore(id string) error {
	return w.commit(func(b *record) error {
		if w.state.Store == id {
			return errNoChange
		}
		b.Store = id
		return nil
	})
}

// leave records that the node leaves the store in good order: no heartbeat of its is
// to be found there any more. What is accepted from then on does not change that.
func (w *Witness) leave() error {
	return w.commit(func(b *record) error {
		w.left = true
		b.Beat, b.At = -1, time.Now().UnixMilli()
		return nil
	})
}

// setRefusal records why nothing is granted any more. The first reason stays.
func (w *Witness) setRefusal(reason string) error {
	return w.commit(func(b *record) error {
		if w.state.Refusal != nil && *w.state.Refusal != "" {
			return errNoChange
		}
		b.Refusal, b.Fence = &reason, noFence
		return nil
	})
}

// noFence stands for a refusal whose fence is not known to stand.
const noFence = "-"

// setFence records the fence that stands because of the refusal.
func (w *Witness) setFence(id string) error {
	return w.commit(func(b *record) error {
		if w.state.Fence == id {
			return errNoChange
		}
		b.Fence = id
		return nil
	})
}

// fence returns the fence that was last seen during this refusal, empty if none was.
func (w *Witness) fence() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.state.Fence == noFence {
		return ""
	}
	return w.state.Fence
}

// begin notes what is known of a line before the store is asked for a grant of
// it. The caller ends the call.
func (w *Witness) begin(line string) *call {
	w.mu.Lock()
	defer w.mu.Unlock()
	c := &call{line: line}
	c.since, _ = w.markLocked(line)
	l := w.calls[line]
	if l == nil {
		l = &calls{open: map[*call]struct{}{}}
		w.calls[line] = l
	}
	l.open[c] = struct{}{}
	return c
}

// sinceOf returns the lowest mark that the line can have had since the call began.
func (w *Witness) sinceOf(c *call) int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return c.since
}

// settled reports whether a line was used up to hi here, and no call for more of it
// is under way.
func (w *Witness) settled(line string, hi int64) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	mark, known := w.markLocked(line)
	return known && mark == hi && w.calls[line] == nil
}

func (w *Witness) end(c *call) {
	w.mu.Lock()
	defer w.mu.Unlock()
	l := w.calls[c.line]
	delete(l.open, c)
	if len(l.open) == 0 {
		delete(w.calls, c.line)
	}
}

// accept records that this node is about to use a grant, and returns when that
// is durable. It is ErrStoreRolledBack if the grant begins below what was used
// when the store was asked, or overlaps what was accepted since: a store's marks
// only grow, but for a hand-back. So several grants of one line may be under way
// at a time.
//
// The last heartbeat that was acknowledged is recorded along with it.
func (w *Witness) accept(c *call, g hapax.Grant, beat int64) error {
	if g.Lo < 0 || g.Hi <= g.Lo {
		return fmt.Errorf("%w: line %q: the store granted [%d, %d)", hapax.ErrStoreCorrupt, c.line, g.Lo, g.Hi)
	}
	return w.commit(func(b *record) error {
		if g.Lo < c.since {
			return fmt.Errorf("%w: line %q: the store granted [%d, %d), this node has used what is below %d", hapax.ErrStoreRolledBack, c.line, g.Lo, g.Hi, c.since)
		}
		l := w.calls[c.line]
		for _, t := range l.taken {
			if !c.again && g.Lo < t.Hi && t.Lo < g.Hi {
				return fmt.Errorf("%w: line %q: the store granted [%d, %d) and, at the same time, [%d, %d)", hapax.ErrStoreRolledBack, c.line, t.Lo, t.Hi, g.Lo, g.Hi)
			}
		}
		l.taken = append(l.taken, g)
		mark := max(w.state.Marks[c.line], g.Hi)
		if next, offered := w.state.Offers[c.line]; offered {
			if g.Lo >= next && g.Lo < w.state.Marks[c.line] {
				mark = g.Hi // the hand-back was carried out
			}
			b.Offers[c.line] = -1 // the store's mark has moved on: it can come about no more
		}
		b.Marks[c.line] = mark
		if beat > 0 && !w.left {
			b.Beat, b.At = beat, time.Now().UnixMilli()
		}
		return nil
	})
}

// offer records, before a hand-back or a seal, from where on the line was not
// used, so that the store may go back that far.
func (w *Witness) offer(line string, next int64) error {
	return w.commit(func(b *record) error {
		mark, known := w.markLocked(line)
		if !known || next >= mark {
			return errNoChange
		}
		b.Offers[line] = next
		if l := w.calls[line]; l != nil { // calls under way may be answered after the hand-back
			for c := range l.open {
				c.since = min(c.since, next)
			}
			for i := range l.taken {
				l.taken[i].Hi = max(l.taken[i].Lo, min(l.taken[i].Hi, next))
			}
		}
		return nil
	})
}

// settle ends an offer: the store has taken it, or has refused it for good.
func (w *Witness) settle(line string, taken bool) error {
	return w.commit(func(b *record) error {
		next, offered := w.state.Offers[line]
		if !offered {
			return errNoChange
		}
		b.Offers[line] = -1
		if taken {
			b.Marks[line] = next
		}
		return nil
	})
}

// Close waits for the batch that is being written and releases the file.
// Changes are refused with ErrClosed from then on. Only the first call does
// something; all return its result.
func (w *Witness) Close() error { return w.shutOnce() }

func (w *Witness) shut() error {
	w.mu.Lock()
	w.closed = true
	w.mu.Unlock()
	w.writer.Lock()
	defer w.writer.Unlock()
	return w.log.close()
}

func errWitnessClosed() error { return fmt.Errorf("%w: the witness", hapax.ErrClosed) }

// errNoChange makes commit write nothing.
var errNoChange = errors.New("no change")

// commit makes one change durable. The function runs with mu held; it checks the
// change and describes it in b, which it must not read.
func (w *Witness) commit(change func(b *record) error) error {
	b, first, err := w.join(change)
	switch {
	case err == errNoChange:
		return nil
	case err != nil:
		return err
	case first:
		w.write(b)
	}
	<-b.done
	return b.err
}

// mend writes the witness anew where an earlier write failed, and reports whether it
// can be written.
func (w *Witness) mend() error {
	w.writer.Lock()
	broken := w.log.file == nil
	w.writer.Unlock()
	if !broken {
		return nil
	}
	return w.commit(func(*record) error { return nil })
}

// join adds a change to the open batch and to the state, and reports whether
// that opened the batch: then the caller must write it.
func (w *Witness) join(change func(b *record) error) (b *batch, first bool, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return nil, false, errWitnessClosed()
	}
	one := newRecord()
	if err := change(&one); err != nil {
		return nil, false, err
	}
	w.state.merge(one)
	if w.next == nil {
		w.next, first = &batch{change: newRecord(), done: make(chan struct{})}, true
	}
	w.next.change.join(one)
	return w.next, first, nil
}

// join adds a later change to an earlier one.
func (r *record) join(c record) {
	offers := r.Offers
	r.Offers = map[string]int64{} // merge drops offers that are over; a change has to say so
	r.merge(c)
	maps.Copy(offers, c.Offers)
	r.Offers = offers
}

// write makes a batch durable. While it waits for the batch before, others join.
func (w *Witness) write(b *batch) {
	w.writer.Lock()
	defer w.writer.Unlock()
	w.mu.Lock()
	w.next = nil
	if w.closed {
		b.err = errWitnessClosed()
	}
	w.mu.Unlock()
	if b.err == nil {
		b.err = w.persist(b.change)
	}
	close(b.done)
}

// persist appends a change, or rewrites the log when it has grown too long or an
// earlier write failed. The state may hold changes of the next batch already. It
// does no harm that they become durable early: nobody was told yet.
func (w *Witness) persist(change record) error {
	if !w.log.isDue() {
		return w.log.append(change)
	}
	w.mu.Lock()
	state := w.state.clone()
	w.mu.Unlock()
	return w.log.rewrite(state)
}
