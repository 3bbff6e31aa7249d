package strategy

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/journal"
)

// HistoryDir is the directory in which a server keeps its history, within its data
// directory.
const HistoryDir = "history"

const (
	historyPrefix = "issued"

	flushHistory = 100 * time.Millisecond // how long what was issued may stay in memory
	maxRuns      = 1 << 18                // runs of numbers that are kept in memory
	recordRuns   = 300                    // runs in a record

	maxIssues = 100 // that FindHistory returns
)

// HistoryOptions are the settings of a [History]; the zero value is useful.
type HistoryOptions struct {
	// Sync makes a call wait until its record is durable; where it cannot be
	// written the call fails, and its numbers are burnt. Otherwise records are
	// written within a tenth of a second and durable within a further second: that
	// much a crash may take, or a power loss.
	Sync bool

	Bytes int64         // how much its files hold at most; default 256 MiB
	Age   time.Duration // how long it goes back; default 90 days

	// Caller returns the name and the address of a caller; default CallerOf and nothing.
	Caller func(ctx context.Context) (name, address string)
}

// A History records which numbers were issued to which caller and when, in files of its
// own, which are bounded in age and size. What one caller takes of one tag within
// a tenth of a second is one record.
//
// Its memory is bounded: what comes faster than the disk takes it is lost, and
// counted, and the history says when.
type History struct {
	dir     string
	opts    HistoryOptions
	journal *journal.Journal
	wake    chan struct{} // something waits to be written
	stop    chan struct{}
	ended   chan struct{}

	mu     sync.Mutex // guards what follows
	closed bool
	batch  *historyBatch
	before *historyBatch // the one before it, which may be being written
}

// A historyBatch is what waits to be written.
type historyBatch struct {
	entries map[historyKey]*historyEntry
	runs    int
	done    chan struct{} // closed when it is durable, or err tells why not; with Sync
	err     error
}

type historyKey struct{ tag, strategy, caller, address string }

type historyEntry struct {
	first, last time.Time
	runs        []historyRun
}

// A historyRun is the numbers from lo to hi, both included.
type historyRun struct{ lo, hi hapax.ID }

func newHistoryBatch() *historyBatch {
	return &historyBatch{entries: map[historyKey]*historyEntry{}, done: make(chan struct{})}
}

// OpenHistory opens the history in a directory, which is made if it does not
// exist. One process has it open at a time. Close must be called.
func OpenHistory(dir string, opts HistoryOptions) (*History, error) {
	h := NewHistory(opts)
	if err := h.Open(dir, nil); err != nil {
		return nil, err
	}
	return h, nil
}

// NewHistory returns a history whose directory is not known yet. Until Open its
// plugin fails.
func NewHistory(opts HistoryOptions) *History {
	if opts.Caller == nil {
		opts.Caller = func(ctx context.Context) (string, string) { return CallerOf(ctx), "" }
	}
	return &History{
		opts: opts, closed: true, batch: newHistoryBatch(),
		wake: make(chan struct{}, 1), stop: make(chan struct{}), ended: make(chan struct{}),
	}
}

// Open opens the history in a directory. It must be called once, and before the
// first number is issued. If trouble is not nil, it is told when records cannot be
// written, and with nil when they can again.
func (h *History) Open(dir string, trouble func(error)) error {
	if err := h.open(dir, trouble); err != nil {
		return err
	}
	go h.run()
	return nil
}

func (h *History) open(dir string, trouble func(error)) error {
	j, err := journal.Open(dir, historyPrefix, journal.Options{Bytes: h.opts.Bytes, Age: h.opts.Age, Trouble: trouble})
	if err != nil {
		return fmt.Errorf("the history cannot be written: %w", err)
	}
	h.dir, h.journal = dir, j
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = false
	return nil
}

// Plugin returns the plugin, which serves all lines. It sees what callers get if
// its order is behind that of plugins which replace numbers.
func (h *History) Plugin(name string, order int) Plugin {
	return Plugin{Name: name, Order: order, After: h.add, Strict: h.opts.Sync, history: h}
}

// add notes what was issued.
func (h *History) add(ctx context.Context, c Call, ids Numbers) error {
	name, address := h.opts.Caller(ctx)
	now := time.Now()
	h.mu.Lock()
	if h.closed {
		h.mu.Unlock()
		return errors.New("the history is closed")
	}
	b := h.batch
	// Runs are counted only where they might not fit. An empty batch takes any call: a large one would fit into
	// none.
	if b.runs+ids.Len() > maxRuns && b.runs > 0 && b.runs+h.runsOf(ids) > maxRuns {
		h.mu.Unlock()
		h.journal.Lose(1)
		if h.opts.Sync {
			return errors.New("more is issued than the history can write")
		}
		return nil
	}
	k := historyKey{c.Tag(), c.Strategy(), name, address}
	e := b.entries[k]
	if e == nil {
		e = &historyEntry{first: now}
		b.entries[k] = e
	}
	e.last = now
	before := len(e.runs)
	for id := range ids.All() {
		if n := len(e.runs); n > 0 && e.runs[n-1].hi+1 == id {
			e.runs[n-1].hi = id
		} else {
			e.runs = append(e.runs, historyRun{id, id})
		}
	}
	b.runs += len(e.runs) - before
	h.mu.Unlock()
	select {
	case h.wake <- struct{}{}:
	default:
	}
	if !h.opts.Sync {
		return nil
	}
	select {
	case <-b.done:
		return b.err
	case <-ctx.Done():
		return fmt.Errorf("waiting for the history: %w", context.Cause(ctx))
	}
}

// runsOf counts the runs of a batch.
func (h *History) runsOf(ids Numbers) (runs int) {
	var last hapax.ID
	for id := range ids.All() {
		if runs == 0 || id != last+1 {
			runs++
		}
		last = id
	}
	return runs
}

// run writes what waits until Close.
func (h *History) run() {
	defer close(h.ended)
	for stopped := false; !stopped; {
		select {
		case <-h.wake:
		case <-h.stop:
			stopped = true
		}
		// So that what a caller takes one by one is one record.
		if !h.opts.Sync && !stopped {
			select {
			case <-time.After(flushHistory):
			case <-h.stop:
				stopped = true
			}
		}
		h.mu.Lock()
		b := h.batch
		if len(b.entries) == 0 {
			h.mu.Unlock()
			continue
		}
		h.batch, h.before = newHistoryBatch(), b
		h.mu.Unlock()
		h.write(b)
	}
}

func (h *History) write(b *historyBatch) {
	var text strings.Builder
	for k, e := range b.entries {
		for runs := e.runs; len(runs) > 0; {
			n := min(len(runs), recordRuns)
			text.Reset()
			for i, r := range runs[:n] {
				if i > 0 {
					text.WriteByte(',')
				}
				text.WriteString(r.lo.String())
				if r.hi > r.lo {
					text.WriteString("..")
					text.WriteString(r.hi.String())
				}
			}
			h.journal.Buffer(journal.Stamp(e.first), journal.Stamp(e.last), k.tag, k.strategy, k.caller, k.address, text.String())
			runs = runs[n:]
		}
	}
	b.err = h.journal.Flush()
	switch {
	case !h.opts.Sync:
	case b.err != nil:
		h.journal.Forget() // these calls fail, and nobody gets their numbers
	default:
		b.err = h.journal.Sync()
	}
	close(b.done)
}

// HistoryStats are the counts of a history since it was opened.
type HistoryStats struct {
	Written int64 // records in files
	Waiting int64 // records in memory, because they could not be written
	Lost    int64 // records lost, because there were too many to keep
}

// Stats returns the counts.
func (h *History) Stats() HistoryStats {
	if h.journal == nil {
		return HistoryStats{}
	}
	return HistoryStats(h.journal.Stats())
}

// Close writes what waits. Calls that come later are not recorded.
func (h *History) Close() error {
	if h.journal == nil {
		return nil
	}
	h.mu.Lock()
	first := !h.closed
	// Before the stop: what was added until then is in the batch that is written last.
	h.closed = true
	h.mu.Unlock()
	if first {
		close(h.stop)
	}
	<-h.ended
	return h.journal.Close()
}

// An Issue tells that a number was issued.
type Issue struct {
	Tag, Strategy string
	First, Last   hapax.ID // the run of numbers that it lay in
	Caller        string
	Address       string

	// From and Until tell when: between them, both included.
	From, Until time.Time
}

// A HistoryFinding is what a history tells of a number.
type HistoryFinding struct {
	Issues  []Issue   // oldest first
	More    bool      // there were too many to tell
	Since   time.Time // when the first record was written; zero if there is none
	Damaged int       // records that cannot be read
	Lost    int64     // records lost while they were written
}

// Find looks a number up among the issues of the tags that are wanted; nil stands
// for all.
func (h *History) Find(ctx context.Context, id hapax.ID, wanted func(tag, strategy string) bool) (HistoryFinding, error) {
	if h.journal == nil {
		return HistoryFinding{}, nil
	}
	if err := h.settle(ctx); err != nil {
		return HistoryFinding{}, err
	}
	return FindHistory(ctx, h.dir, id, wanted)
}

// settle waits until what was issued before is written.
func (h *History) settle(ctx context.Context) error {
	h.mu.Lock()
	b := h.batch
	if len(b.entries) == 0 {
		b = h.before
	}
	h.mu.Unlock()
	if b == nil {
		return nil
	}
	select {
	case <-b.done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// FindHistory is Find for the history in a directory, which need not be open.
func FindHistory(ctx context.Context, dir string, id hapax.ID, wanted func(tag, strategy string) bool) (HistoryFinding, error) {
	var found HistoryFinding
	damaged, err := journal.Read(ctx, dir, historyPrefix, func(record []byte) error {
		found.read(string(record), id, wanted)
		return nil
	})
	found.Damaged += damaged
	return found, err
}

// read looks at one record.
func (f *HistoryFinding) read(record string, id hapax.ID, wanted func(tag, strategy string) bool) {
	fields := strings.Split(record, "\t")
	if fields[0] == journal.Lost && len(fields) > 3 {
		n, _ := strconv.ParseInt(fields[3], 10, 64) // a checksum stands for it
		f.Lost += n
	}
	remark := strings.HasPrefix(record, "#")
	if remark && len(fields) > 1 {
		fields = fields[1:]
	}
	from, err := journal.ParseStamp(fields[0])
	if err != nil {
		f.Damaged++
		return
	}
	if f.Since.IsZero() {
		f.Since = from
	}
	switch {
	case remark:
		return
	case len(fields) < 7:
		f.Damaged++
		return
	case wanted != nil && !wanted(fields[2], fields[3]):
		return
	}
	until, err := journal.ParseStamp(fields[1])
	if err != nil {
		f.Damaged++
		return
	}
	for run := range strings.SplitSeq(fields[6], ",") {
		first, last, isRun := strings.Cut(run, "..")
		if !isRun {
			last = first
		}
		lo, err := hapax.ParseID(first)
		hi, err2 := hapax.ParseID(last)
		if err != nil || err2 != nil {
			f.Damaged++
			return
		}
		if id < lo || id > hi {
			continue
		}
		if len(f.Issues) >= maxIssues {
			f.More = true
			return
		}
		f.Issues = append(f.Issues, Issue{
			Tag: fields[2], Strategy: fields[3], First: lo, Last: hi, Caller: fields[4], Address: fields[5], From: from, Until: until,
		})
	}
}
