package witness

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/durable"
	"github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/store/internal/fileid"
)

// A Witness is a node's memory outside the store: a small file that is synced
// before a grant is used. Its methods are safe for concurrent use. Changes that are
// made at the same time share one fsync. When one cannot be made durable, it is
// refused with ErrWitnessFailed, and the next one writes the whole file anew.
type Witness struct {
	shutOnce func() error // shut, with its result for every later call

	turn chan struct{} // full while a caller writes to log, and no other may; taken before mu
	log  *log          // the durable part

	mu      sync.Mutex // guards the fields below; not held during I/O
	state   record
	noted   record // changes that the next write makes durable
	entered int64  // changes that a caller wants to be durable
	written int64  // up to which of them the last write was for
	closed  bool
	failed  error // why the last write could not be made durable
	make    bool  // a store may be made in place of the one that was lost
}

// A record is a witness's knowledge, or a change of it.
type record struct {
	Store     string            `json:"store,omitempty"`     // the store's identity; empty: unknown, or unchanged
	Former    []string          `json:"former,omitempty"`    // identities of stores in whose place others went on
	Copies    copies            `json:"copies,omitempty"`    // from which the stores came that it has used
	Home      *fileid.Identity  `json:"home,omitempty"`      // of the lock file; nil: unchanged
	Own       map[string]own    `json:"own,omitempty"`       // rows of earlier starts that it can attest for, and of this one
	Lines     map[string]Pair   `json:"lines,omitempty"`     // how far each line was granted
	Defs      map[string]def    `json:"defs,omitempty"`      // of lines, but for segment tags with the defaults
	Joins     int64             `json:"joins,omitempty"`     // how many processes have joined
	Decision  *decisionID       `json:"decision,omitempty"`  // the latest that it knows; nil: unchanged. The joins and rows so far are forgotten with it
	Compacted int64             `json:"compacted,omitempty"` // all that joined up to here have ended, and are attested
	Peers     map[string]peer   `json:"peers,omitempty"`     // rows of others
	Latch     *latch            `json:"latch,omitempty"`     // nil: unchanged; without a state: nothing stands against a grant
	Left      *departure        `json:"left,omitempty"`      // nil: unchanged; without a row: it has not left
	Refused   map[string]string `json:"refused,omitempty"`   // lines of a foreign table that are refused, and why; empty: no longer
}

// askAhead is how many grants may be asked for before the witness is written again.
const askAhead = 64

// An own row is that of a start of this directory's process.
type own struct {
	Count  int64 `json:"c,omitempty"`      // the last beat that is known to be acknowledged; 0: its number may be another's
	Grants int64 `json:"g,omitempty"`      // the latest grant that was recorded
	Asked  int64 `json:"a,omitempty"`      // up to here grants may be asked for before the witness is written again
	Copied bool  `json:"copied,omitempty"` // the witness is a copy of the process's
	Gone   bool  `json:"gone,omitempty"`
}

// A peer is the row of another process as a survey found it.
type peer struct {
	Name    string `json:"n,omitempty"`
	Address string `json:"a,omitempty"`
	Count   int64  `json:"c,omitempty"`
	Grants  int64  `json:"g,omitempty"`
	Every   int64  `json:"e,omitempty"`   // how often it writes its heartbeat at least, in milliseconds
	How     string `json:"how,omitempty"` // how it has ended, before all lines were read; empty: it had not
}

// A latch is why nothing may be granted to this node, also after a restart.
type latch struct {
	State State  `json:"state,omitempty"` // Fenced or Refusing
	Code  string `json:"code,omitempty"`
	Why   string `json:"why,omitempty"`
	Fence string `json:"fence,omitempty"` // identity of the fence that was seen last; empty: none yet
	Row   string `json:"row,omitempty"`   // of the process that was behind
	Count int64  `json:"count,omitempty"` // and its acknowledged beat

	Retired *driver.Retirement `json:"retired,omitempty"` // where the store was copied to
}

// A departure tells how the node left in good order.
type departure struct {
	Row   string `json:"row,omitempty"`
	Joins int64  `json:"joins,omitempty"`
	Boot  string `json:"boot,omitempty"`  // of the machine
	Up    int64  `json:"up_ms,omitempty"` // how long the machine had been up, with the time it was asleep
}

func newRecord() record {
	return record{Copies: copies{}, Own: map[string]own{}, Lines: map[string]Pair{}, Defs: map[string]def{}, Peers: map[string]peer{}, Refused: map[string]string{}}
}

// clone returns a copy that shares nothing with r.
func (r record) clone() record {
	lines, defs := maps.Clone(r.Lines), maps.Clone(r.Defs)
	r = r.withoutLines()
	r.Lines, r.Defs = lines, defs
	return r
}

// withoutLines returns a copy of all but the lines and their definitions.
func (r record) withoutLines() record {
	r.Copies, r.Own, r.Peers, r.Refused = maps.Clone(r.Copies), maps.Clone(r.Own), maps.Clone(r.Peers), maps.Clone(r.Refused)
	r.Lines, r.Defs = nil, nil
	return r
}

// merge applies a change. The knowledge of lines and rows only grows.
func (r *record) merge(c record) {
	former := c.Former
	if c.Store != "" && c.Store != r.Store {
		former = append(slices.Clip(former), r.Store)
		r.Store = c.Store
	}
	for _, id := range former {
		if id != "" && !slices.Contains(r.Former, id) {
			r.Former = append(slices.Clip(r.Former), id)
		}
	}
	maps.Copy(r.Copies, c.Copies)
	if c.Home != nil {
		r.Home = c.Home
	}
	// A decision ends all rows before it; what follows in the same change belongs to the time
	// after.
	if c.Decision != nil {
		r.Decision, r.Joins, r.Compacted = c.Decision, 0, 0
		clear(r.Own)
		clear(r.Peers)
	}
	r.Joins, r.Compacted = max(r.Joins, c.Joins), max(r.Compacted, c.Compacted)
	for name, o := range c.Own {
		if o.Gone {
			delete(r.Own, name)
			continue
		}
		was := r.Own[name]
		r.Own[name] = own{Count: max(was.Count, o.Count), Grants: max(was.Grants, o.Grants), Asked: max(was.Asked, o.Asked), Copied: was.Copied || o.Copied}
	}
	for line, p := range c.Lines {
		r.Lines[line] = r.Lines[line].max(p)
	}
	for name, d := range c.Defs {
		if r.Defs[name] = d; d == (def{}) {
			delete(r.Defs, name)
		}
	}
	maps.Copy(r.Peers, c.Peers)
	if c.Compacted > 0 {
		maps.DeleteFunc(r.Peers, func(name string, _ peer) bool { return joinOf(name) <= r.Compacted })
	}
	if c.Latch != nil {
		r.Latch = c.Latch
	}
	if c.Left != nil {
		r.Left = c.Left
	}
	for line, why := range c.Refused {
		if why == "" {
			delete(r.Refused, line)
		} else {
			r.Refused[line] = why
		}
	}
}

// join adds a later change to an earlier one that is not written yet.
func (r *record) join(c record) {
	gone, usual, readmitted := map[string]own{}, map[string]def{}, map[string]string{}
	for name, o := range c.Own {
		if o.Gone {
			gone[name] = o
		}
	}
	for name, d := range c.Defs {
		if d == (def{}) {
			usual[name] = d
		}
	}
	for line, why := range c.Refused {
		if why == "" {
			readmitted[line] = why
		}
	}
	r.merge(c)
	maps.Copy(r.Own, gone) // merge drops ended entries; a change has to name them
	maps.Copy(r.Defs, usual)
	maps.Copy(r.Refused, readmitted)
}

// rowName returns the name of a process's row, from its join number and random text.
func rowName(join int64, run string) string { return fmt.Sprintf("%019d-%s", join, run) }

// joinOf returns the join number in a row's name.
func joinOf(row string) int64 {
	number, _, _ := strings.Cut(row, "-")
	n, _ := strconv.ParseInt(number, 10, 64)
	return n
}

// OpenFile opens the witness in the file at path, or creates it, readable by its
// owner only. Its directory must exist; a lock file stands beside it. A last
// change that a crash cut short was never acknowledged and is dropped.
//
// ErrStoreLocked if another process has it open (where the operating system can
// tell), ErrStoreCorrupt if the file is damaged or of another format,
// ErrWitnessFailed if it cannot be read or written. A full disk is no error: then Failed
// tells of it, and nothing is granted until there is room.
func OpenFile(path string) (*Witness, error) { return openOn(path, durable.OS) }

func openOn(path string, disk durable.Disk) (*Witness, error) {
	log, state, full, err := openLog(path, disk)
	if err != nil {
		return nil, err
	}
	w := &Witness{turn: make(chan struct{}, 1), log: log, state: state, noted: newRecord(), failed: full}
	w.shutOnce = sync.OnceValue(w.shut)
	if err := w.findCopied(path + lockSuffix); err != nil && !durable.IsFull(err) {
		return nil, errors.Join(err, w.Close())
	}
	return w, nil
}

// findCopied finds out whether the witness is that of the process before, or a copy of it,
// whose original may have gone on.
func (w *Witness) findCopied(lock string) error {
	f, err := os.Open(lock)
	if err != nil {
		return fmt.Errorf("%w: %w", hapax.ErrWitnessFailed, err)
	}
	defer f.Close()
	home, err := fileid.Of(f)
	if err != nil {
		return fmt.Errorf("%w: %w", hapax.ErrWitnessFailed, err)
	}
	return w.commit(func(b *record) error {
		if w.state.Home == nil || *w.state.Home != home {
			b.Home = &home
		}
		// Where the file system tells no identity, each start counts as a copy: that is safe, and only
		// slower.
		if w.state.Home == nil || home.Inode == 0 || len(w.state.Home.Compare(home)) > 0 {
			for row, o := range w.state.Own {
				o.Copied = true
				b.Own[row] = o
			}
		}
		if len(b.Own) == 0 && b.Home == nil {
			return errNoChange
		}
		return nil
	})
}

// StoreID returns the identity of the store that this node works with, empty
// before the first use of one.
func (w *Witness) StoreID() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.state.Store
}

// KnowsStore reports whether this node must not make a store where it finds none: it knows
// one, and has not waited long enough for that to come back. It is for the option Existing of
// the stores.
func (w *Witness) KnowsStore() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.state.Store != "" && !w.make
}

// mayMake says whether a store may be made in place of the one that was lost.
func (w *Witness) mayMake(may bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.make = may
}

// stores returns the identity of the store and of those in whose place it went on.
func (w *Witness) stores() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.state.Store == "" {
		return nil
	}
	return append([]string{w.state.Store}, w.state.Former...)
}

// Pair returns how far a line is known to be granted, and whether it is known.
func (w *Witness) Pair(line string) (Pair, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	p, ok := w.state.Lines[line]
	return p, ok
}

// def returns how a line is defined that the witness knows.
func (w *Witness) def(line string) (d def, known bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	_, known = w.state.Lines[line]
	return w.state.Defs[line], known
}

// pairsOf returns the pairs of the timelines of a pool's workers.
func (w *Witness) pairsOf(pool string) map[string]Pair {
	prefix := "worker/" + pool + "/"
	w.mu.Lock()
	defer w.mu.Unlock()
	some := map[string]Pair{}
	for line, p := range w.state.Lines {
		if strings.HasPrefix(line, prefix) {
			some[line] = p
		}
	}
	return some
}

// decision returns the latest decision that the witness knows.
func (w *Witness) decision() decisionID {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.state.Decision == nil {
		return decisionID{}
	}
	return *w.state.Decision
}

// Lines returns a copy of all lines with their pairs.
func (w *Witness) Lines() map[string]Pair {
	w.mu.Lock()
	defer w.mu.Unlock()
	return maps.Clone(w.state.Lines)
}

// snapshot returns a copy of all that the witness knows.
func (w *Witness) snapshot() record {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.state.clone()
}

// rows returns a copy of the witness's record, without the lines: there may be a million.
func (w *Witness) rows() record {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.state.withoutLines()
}

// latch returns the reason against a grant; its state is empty where there is none.
func (w *Witness) latch() latch {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.state.Latch == nil {
		return latch{}
	}
	return *w.state.Latch
}

// noteLatch enters the reason against a grant, how many have joined, and the process's own
// row as far as it is known: calls under way for it will be abandoned. Where it returns nil, flush is to follow.
func (w *Witness) noteLatch(l latch, row string, all own, joins int64) error {
	return w.enter(func(b *record) error {
		if w.state.Latch.retires() && l.Retired == nil { // it was found meanwhile, and stays
			return errNoChange
		}
		if w.state.Latch != nil && *w.state.Latch == l && (row == "" || w.state.Own[row].Grants >= all.Grants) {
			return errNoChange
		}
		b.Latch, b.Joins = &l, joins
		if row != "" {
			b.Own[row] = all
		}
		return nil
	})
}

// Failed returns why the last change could not be made durable; nil if it was.
func (w *Witness) Failed() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.failed
}

// rewrite writes the witness anew where an earlier write failed, and reports whether it
// can be written.
func (w *Witness) rewrite() error {
	if w.Failed() == nil {
		return nil
	}
	return w.commit(func(*record) error { return nil })
}

// Close waits for the changes that are being written and releases the file.
// Changes are refused with ErrClosed from then on. Only the first call does
// something; all return its result.
func (w *Witness) Close() error { return w.shutOnce() }

func (w *Witness) shut() error {
	w.mu.Lock()
	w.closed = true
	w.mu.Unlock()
	w.turn <- struct{}{}
	defer func() { <-w.turn }()
	return w.log.close()
}

func errWitnessClosed() error { return fmt.Errorf("%w: the witness", hapax.ErrClosed) }

// errNoChange makes commit write nothing.
var errNoChange = errors.New("no change")

// commit makes one change durable. The function runs with mu held; it describes the
// change in b, which it must not read.
func (w *Witness) commit(change func(b *record) error) error {
	switch err := w.enter(change); {
	case err == errNoChange:
		return nil
	case err != nil:
		return err
	}
	return w.flush()
}

// flush makes durable what was entered, in that order. Of the callers that wait for a write, the first
// makes the next one for all of them.
func (w *Witness) flush() error {
	w.mu.Lock()
	mine := w.entered
	w.mu.Unlock()
	w.turn <- struct{}{}
	defer func() { <-w.turn }()
	return w.write(mine)
}

// write makes durable what was noted, unless another caller's write was for mine, too. The caller
// has the turn.
func (w *Witness) write(mine int64) error {
	w.mu.Lock()
	change, all, failed := w.noted, w.entered, w.failed
	done, closed := w.written >= mine, w.closed
	if !done && !closed {
		w.noted = newRecord()
	}
	w.mu.Unlock()
	switch {
	case done: // all that failed with that write are told so: the next one writes everything
		return failed
	case closed:
		return errWitnessClosed()
	}
	err := w.persist(change)
	w.mu.Lock()
	w.written, w.failed = all, err
	w.mu.Unlock()
	return err
}

// upTo returns up to which grant the witness knows all that were used: a grant that the
// process had asked for, and had not recorded when it ended, was not used.
func (o own) upTo() int64 {
	if o.Copied {
		return o.Grants
	}
	return max(o.Grants, o.Asked)
}

// enter adds a change to the state, and to the next write.
func (w *Witness) enter(change func(b *record) error) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return errWitnessClosed()
	}
	one := newRecord()
	if err := change(&one); err != nil {
		return err
	}
	w.addLocked(one)
	w.entered++
	return nil
}

// note makes a change that becomes durable with the next one.
func (w *Witness) note(change func(b *record)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	one := newRecord()
	change(&one)
	w.addLocked(one)
}

func (w *Witness) addLocked(one record) {
	// At once, and before it is durable: a comparison must never know less than a call under way.
	w.state.merge(one)
	w.noted.join(one)
}

// persist appends a change, or rewrites the log when it has grown too long or an
// earlier write failed. The state may hold changes of the next write already. It
// does no harm that they become durable early: nobody was told yet.
func (w *Witness) persist(change record) error {
	if !w.log.isDue() {
		return w.log.append(change)
	}
	return w.log.rewrite(w.snapshot())
}

// A Testimony is the content of a witness file whose node does not run.
type Testimony struct{ said record }

// Read returns the testimony of the witness in the file at path, without a lock: its node
// must not run.
func Read(path string) (Testimony, error) {
	state, _, err := readLog(path)
	return testimony(state, path, err)
}

// ReadFrom is [Read] for a file's content; errors call it by name.
func ReadFrom(file io.Reader, name string) (Testimony, error) {
	state := newRecord()
	_, _, err := state.replay(file, name)
	return testimony(state, name, err)
}

func testimony(state record, name string, err error) (Testimony, error) {
	if err == nil && len(state.Own)+len(state.Lines)+len(state.Peers) == 0 {
		err = &hapax.ValueError{Field: "witness file", Value: name, Allowed: "the witness of a node that used the store", Err: hapax.ErrInvalidArgument}
	}
	return Testimony{state}, err
}

// Encode returns the testimony as text, for [DecodeTestimony].
func (t Testimony) Encode() []byte { return t.said.encode(kindSnapshot) }

// DecodeTestimony reads a testimony that Encode has written. ErrStoreCorrupt.
func DecodeTestimony(text []byte) (Testimony, error) {
	t := Testimony{newRecord()}
	payload, intact := verify(text)
	if !intact {
		return t, fmt.Errorf("%w: the testimony is not whole", hapax.ErrStoreCorrupt)
	}
	if err := t.said.apply(payload, kindSnapshot); err != nil {
		return t, fmt.Errorf("%w: the testimony: %w", hapax.ErrStoreCorrupt, err)
	}
	return t, nil
}

// Rows returns the rows that the witness attests for, by name.
func (t Testimony) Rows() []string { return slices.Sorted(maps.Keys(t.said.Own)) }
