package hapax

import (
	"errors"
	"fmt"
	"maps"
	"strconv"
	"sync"
	"unicode"
	"unicode/utf8"
)

const (
	// maxWitnessName bounds a store ID and the name of a line, in bytes.
	maxWitnessName = 256

	// maxWitnessLines bounds how much a witness keeps.
	maxWitnessLines = 1 << 20
)

// A Witness is what a node remembers outside the store: which store it works
// with, and up to which mark it has used each line. A store that was restored
// from a backup, replaced or edited hands out numbers a second time; the
// witness tells, because it is written before a grant is used.
//
// It is a small file: it guards against a store that goes back, not against the
// loss of the file itself, and it knows only what this node has used.
//
// All methods are safe for concurrent use. Changes that are made at the same
// time share one fsync. When one cannot be made durable, what is on disk is
// unknown: from then on every change is refused with ErrStoreUnavailable until
// the witness is opened again.
type Witness struct {
	shutOnce func() error // shut, with its result for every later call

	writer sync.Mutex  // guards log; held while a batch is written, and taken before mu
	log    *witnessLog // what is durable

	mu      sync.Mutex // guards what follows; not held during I/O
	state   witnessRecord
	next    *witnessBatch // what changes join until its first writer takes it; nil: none
	refusal error         // once set, no change is taken any more
}

// A witnessBatch is changes that become durable together. The one who opened it
// writes it; the others wait.
type witnessBatch struct {
	record witnessRecord
	done   chan struct{} // closed when err is set
	err    error
}

// TagLine returns the name of a tag's line.
func TagLine(tag string) string { return "tag/" + tag }

// WorkerLine returns the name of the timeline of a pool's worker.
func WorkerLine(pool string, id int64) string {
	return "worker/" + pool + "/" + strconv.FormatInt(id, 10)
}

// OpenWitness opens the witness in the file at path, or creates it, readable by
// its owner only. Its directory must exist; a lock file stands beside it. A last
// change that a crash cut short was never acknowledged and is dropped.
//
// ErrStoreLocked if another process has it open (where the operating system can
// tell), ErrStoreCorrupt if the file is damaged, ErrStoreUnavailable if it cannot
// be read or written.
func OpenWitness(path string) (*Witness, error) {
	log, state, err := openWitnessLog(path)
	if err != nil {
		return nil, err
	}
	w := &Witness{log: log, state: state}
	w.shutOnce = sync.OnceValue(w.shut)
	return w, nil
}

// Store checks that the store with the given ID is the one that this node has
// worked with, or ErrStoreReplaced. The first call records the ID.
func (w *Witness) Store(id string) error {
	if err := checkWitnessName("store ID", id); err != nil {
		return err
	}
	return w.commit(func(b *witnessRecord) error {
		switch known := w.state.storeID; known {
		case id:
			return errNoChange
		case "":
			w.state.storeID, b.storeID = id, id
			return nil
		default:
			return fmt.Errorf("%w: this node knows the store %q, this is the store %q", ErrStoreReplaced, known, id)
		}
	})
}

// Adopt accepts the store with the given ID from now on. The marks stay: a line
// that is behind in the new store is still refused.
func (w *Witness) Adopt(id string) error {
	if err := checkWitnessName("store ID", id); err != nil {
		return err
	}
	return w.commit(func(b *witnessRecord) error {
		if w.state.storeID == id {
			return errNoChange
		}
		w.state.storeID, b.storeID = id, id
		return nil
	})
}

// Accept records that this node is about to use a grant, and returns when that
// is durable. It is ErrStoreRolledBack if the grant begins below since, which is
// what Mark returned before the store was asked: a store's marks only grow. So
// several grants of one line may be under way at a time.
func (w *Witness) Accept(line string, g Grant, since int64) error {
	if err := checkWitnessName("line", line); err != nil {
		return err
	}
	if g.Lo < 0 || g.Hi <= g.Lo {
		return &ValueError{"grant", fmt.Sprintf("[%d, %d)", g.Lo, g.Hi), "a stretch of at least one number, none negative", ErrInvalidArgument}
	}
	return w.commit(func(b *witnessRecord) error {
		mark, known := w.state.marks[line]
		switch {
		case g.Lo < since:
			return fmt.Errorf("%w: line %q: the store granted [%d, %d), this node has used what is below %d; if the store was restored or edited, raise the line's floor to %d or higher",
				ErrStoreRolledBack, line, g.Lo, g.Hi, since, since)
		case !known && len(w.state.marks) >= maxWitnessLines:
			return fmt.Errorf("%w: the witness keeps at most %d lines", ErrLimitExceeded, maxWitnessLines)
		}
		mark = max(mark, g.Hi)
		w.state.marks[line], b.marks[line] = mark, mark
		return nil
	})
}

// Lower takes back what was accepted above mark and not used, before a seal
// gives it back to the store. A line that is unknown or at mark or below stays
// as it is.
func (w *Witness) Lower(line string, mark int64) error {
	if mark < 0 {
		return &ValueError{"mark", mark, "0 or more", ErrInvalidArgument}
	}
	return w.commit(func(b *witnessRecord) error {
		if known, ok := w.state.marks[line]; !ok || known <= mark {
			return errNoChange
		}
		w.state.marks[line], b.marks[line] = mark, mark
		return nil
	})
}

// Mark returns the line's mark, the first number that this node has not used,
// and whether the line is known.
func (w *Witness) Mark(line string) (int64, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	mark, ok := w.state.marks[line]
	return mark, ok
}

// Lines returns a copy of all lines with their marks.
func (w *Witness) Lines() map[string]int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return maps.Clone(w.state.marks)
}

// Close waits for the batch that is being written and releases the file.
// Changes are refused with ErrClosed from then on. Only the first call does
// something; all return its result.
func (w *Witness) Close() error { return w.shutOnce() }

func (w *Witness) shut() error {
	w.refuse(fmt.Errorf("%w: the witness", ErrClosed))
	w.writer.Lock()
	defer w.writer.Unlock()
	return w.log.close()
}

// errNoChange tells commit that there is nothing to write.
var errNoChange = errors.New("no change")

// commit makes one change durable. The function runs with mu held; it checks
// the change, applies it to the state, and adds it to the batch's record.
func (w *Witness) commit(change func(b *witnessRecord) error) error {
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

// join adds a change to the open batch, and tells whether that opened it: then
// the caller must write it.
func (w *Witness) join(change func(b *witnessRecord) error) (b *witnessBatch, first bool, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.refusal != nil {
		return nil, false, w.refusal
	}
	b = w.next
	if b == nil {
		b = &witnessBatch{record: newWitnessRecord(), done: make(chan struct{})}
	}
	if err := change(&b.record); err != nil {
		return nil, false, err
	}
	first = w.next == nil
	w.next = b
	return b, first, nil
}

// write makes a batch durable. While it waits for the batch before, others join.
func (w *Witness) write(b *witnessBatch) {
	w.writer.Lock()
	defer w.writer.Unlock()

	w.mu.Lock()
	w.next = nil
	b.err = w.refusal
	w.mu.Unlock()

	if b.err == nil {
		if b.err = w.persist(b.record); b.err != nil {
			w.refuse(b.err)
		}
	}
	close(b.done)
}

// persist appends a record, or rewrites the log when it has grown too long. The
// state may hold changes of the next batch already. It does no harm that they
// become durable early: nobody was told yet.
func (w *Witness) persist(r witnessRecord) error {
	if !w.log.isLong() {
		return w.log.append(r)
	}
	w.mu.Lock()
	state := witnessRecord{w.state.storeID, maps.Clone(w.state.marks)}
	w.mu.Unlock()
	return w.log.rewrite(state)
}

// refuse lets no further change in. The first reason stays.
func (w *Witness) refuse(reason error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.refusal == nil {
		w.refusal = reason
	}
}

// checkWitnessName lets through what can stand between the tabs of a record.
func checkWitnessName(what, name string) error {
	ok := len(name) >= 1 && len(name) <= maxWitnessName && utf8.ValidString(name)
	if ok {
		for _, r := range name {
			ok = ok && !unicode.IsControl(r)
		}
	}
	if !ok {
		return &ValueError{what, name, fmt.Sprintf("valid UTF-8 of 1 to %d bytes without control characters", maxWitnessName), ErrInvalidArgument}
	}
	return nil
}
