// Package audit proves that a dump of numbers holds each of them once, and tells
// what is wrong where it does not.
//
// The files are read once, in blocks that all cores take apart. Each core collects
// keys until its buffer is full, sorts them, and keeps them as a run: packed, in
// memory as long as there is room, then in a temporary file. The runs are merged,
// each core merging a span of the keys, and what comes out in order is counted.
// So any number of numbers takes a fixed amount of memory. Only if something is
// wrong, and for those numbers alone, the files are read once more to tell where
// they stand.
package audit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hapax-id/hapax"
)

// The ranges of the options.
const (
	MinMemory     = 1 << 20
	MaxMemory     = 1 << 40
	DefaultMemory = 1 << 30
	MaxShow       = 1 << 20
	DefaultShow   = 20

	maxCores  = 8 // more of them would make the runs short
	maxColumn = 1 << 12
	maxText   = 64 // bytes of a line that is no number
	maxPlaces = 3  // of a number
	perCore   = 4  // spans, so that the cores end together

	enoughToSort = 256 << 20 // bytes: longer runs would be neither sorted nor merged quicker
)

// Options tell how to audit. The zero value is useful.
type Options struct {
	Column    string       // CSV: the name of the column, or its place from 1; default "", text with a number a line
	Separator byte         // of CSV; default ','
	Memory    int64        // bytes for sorting, MinMemory to MaxMemory; default DefaultMemory
	Temp      string       // directory of the temporary file; default os.TempDir()
	Show      int          // how many of each kind of findings to list, up to MaxShow; 0: none
	Layout    hapax.Layout // to count by worker and day; default: none
	Grants    *Grants      // to hold the numbers against; default: none
	Of        string       // the tag, or with a layout the pool, whose grants count; default: the only one

	Progress func(Progress) // told about every 200 ms, never by two goroutines at once; default: nobody
}

// Progress tells how far an audit has come.
type Progress struct {
	Phase   string        // "reading", "merging", "locating"
	Done    int64         // bytes, or numbers where the phase is merging
	Total   int64         // 0: unknown
	Numbers int64         // that were read
	Elapsed time.Duration // of the phase
}

// audit is one run of Run.
type audit struct {
	files   []string
	again   []bool // whether a file can be read a second time
	stdin   io.Reader
	opts    Options
	form    form
	header  string
	granted *granted
	cores   int

	blockSize int
	chunk     int // keys that a core collects, with room for as many to sort them
	sorted    *runs
	merging   int64 // bytes for it

	read    atomic.Int64 // bytes
	numbers atomic.Int64
	merged  atomic.Int64
	phase   atomic.Pointer[phase]

	mu     sync.Mutex // guards report while files are read
	report Report
}

type phase struct {
	name  string
	done  *atomic.Int64
	total int64
	since time.Time
}

// Run audits files; "-" is stdin. The error tells that the audit could not be made;
// what is wrong with the numbers is in the report.
func Run(ctx context.Context, files []string, stdin io.Reader, opts Options) (*Report, error) {
	a, err := newAudit(files, stdin, opts)
	if err != nil {
		return nil, err
	}
	return a.run(ctx)
}

func newAudit(files []string, stdin io.Reader, opts Options) (*audit, error) {
	a := &audit{files: files, stdin: stdin, opts: opts, cores: min(runtime.GOMAXPROCS(0), maxCores), blockSize: blockSize}
	if err := a.check(); err != nil {
		return nil, err
	}
	// What is for sorting serves for merging afterwards; the rest keeps runs.
	a.merging = max(min(a.opts.Memory/2, enoughToSort), a.opts.Memory/4)
	a.chunk = int(a.merging / int64(a.cores) / 16)
	a.sorted = &runs{dir: opts.Temp, room: a.opts.Memory - a.merging}
	return a, nil
}

func (a *audit) run(ctx context.Context) (report *Report, err error) {
	size, err := a.stat()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, a.sorted.close()) }()
	defer a.tell()()
	a.begin("reading", &a.read, size)
	if err := a.sort(ctx); err != nil {
		return nil, err
	}
	a.begin("merging", &a.merged, a.numbers.Load())
	if err := a.merge(ctx); err != nil {
		return nil, err
	}
	if err := a.locate(ctx); err != nil {
		return nil, err
	}
	return &a.report, nil
}

func (a *audit) check() error {
	o := &a.opts
	refuse := func(field string, value any, allowed string) error {
		return &hapax.ValueError{Field: field, Value: value, Allowed: allowed, Err: hapax.ErrInvalidArgument}
	}
	if o.Memory == 0 {
		o.Memory = DefaultMemory
	}
	if o.Memory < MinMemory || o.Memory > MaxMemory {
		return refuse("memory", o.Memory, fmt.Sprintf("%d to %d bytes", MinMemory, int64(MaxMemory)))
	}
	if o.Show < 0 || o.Show > MaxShow {
		return refuse("show", o.Show, fmt.Sprintf("0 to %d", MaxShow))
	}
	if o.Separator == 0 {
		o.Separator = ','
	}
	if o.Separator == '"' || o.Separator == '\n' || o.Separator == '\r' {
		return refuse("separator", strconv.QuoteRune(rune(o.Separator)), "one byte that is no quote and no end of a line")
	}
	if o.Column != "" {
		a.form = form{csv: true, separator: o.Separator}
		if n, err := strconv.Atoi(o.Column); err != nil {
			a.header = o.Column
		} else if n < 1 || n > maxColumn {
			return refuse("column", o.Column, fmt.Sprintf("a name from the first record, or a place from 1 to %d", maxColumn))
		} else {
			a.form.column = n - 1
		}
	}
	if o.Grants != nil {
		var err error
		if a.granted, err = o.Grants.of(o.Of, !o.Layout.IsZero()); err != nil {
			return err
		}
	}
	return nil
}

// stat looks at the files before the first is read, so that a wrong name is not
// found out after an hour. It returns how many bytes there are to read, or 0 if
// that is unknown.
func (a *audit) stat() (size int64, err error) {
	a.again = make([]bool, len(a.files))
	known := true
	var infos []os.FileInfo
	for i, name := range a.files {
		if name == "-" {
			if slices.Contains(a.files[:i], name) {
				return 0, &hapax.ValueError{Field: "file", Value: name, Allowed: "each file once", Err: hapax.ErrInvalidArgument}
			}
			known = false
			continue
		}
		info, err := os.Stat(name)
		if err != nil {
			cause := err
			if e, ok := errors.AsType[*fs.PathError](err); ok {
				cause = e.Err
			}
			return 0, &hapax.ValueError{Field: "file", Value: name, Allowed: fmt.Sprintf("a file that can be read, or - for standard input: %v", cause), Err: hapax.ErrInvalidArgument}
		}
		if info.IsDir() {
			return 0, &hapax.ValueError{Field: "file", Value: name, Allowed: "a file; this is a directory", Err: hapax.ErrInvalidArgument}
		}
		for _, earlier := range infos {
			if os.SameFile(info, earlier) {
				return 0, &hapax.ValueError{Field: "file", Value: name, Allowed: "each file once", Err: hapax.ErrInvalidArgument}
			}
		}
		infos = append(infos, info)
		// A pipe gives its bytes once.
		a.again[i] = info.Mode().IsRegular()
		known = known && a.again[i]
		size += info.Size()
	}
	if !known {
		return 0, nil
	}
	return size, nil
}

func (a *audit) begin(name string, done *atomic.Int64, total int64) {
	a.phase.Store(&phase{name, done, total, time.Now()})
}

// tell reports the progress until the function that it returns is called.
func (a *audit) tell() (stop func()) {
	if a.opts.Progress == nil {
		return func() {}
	}
	var wg sync.WaitGroup
	done := make(chan struct{})
	wg.Go(func() {
		tick := time.NewTicker(200 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-done:
				return
			case now := <-tick.C:
				if p := a.phase.Load(); p != nil {
					a.opts.Progress(Progress{p.name, p.done.Load(), p.total, a.numbers.Load(), now.Sub(p.since)})
				}
			}
		}
	})
	return func() {
		close(done)
		wg.Wait()
	}
}

// readAll reads the files, and has as many workers as there are cores take the
// blocks. It returns the first error, when all have ended.
func (a *audit) readAll(ctx context.Context, r *reader, work func(blocks <-chan *block, done func(*block)) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	// Two for each core, one at work and one that waits, and one for the reader.
	blocks := 2*a.cores + 1
	r.files, r.form, r.header, r.read, r.blockSize = a.files, a.form, a.header, &a.read, a.blockSize
	r.free, r.full = make(chan *block, blocks), make(chan *block, blocks) // no block ever waits for room
	for range blocks {
		r.free <- newBlock(a.blockSize)
	}
	var wg sync.WaitGroup
	for range a.cores {
		wg.Go(func() {
			if err := work(r.full, func(b *block) { r.free <- b }); err != nil {
				cancel(err)
			}
		})
	}
	if err := r.run(ctx); err != nil {
		cancel(err)
	}
	wg.Wait()
	return context.Cause(ctx)
}

// sort reads all numbers into sorted runs.
func (a *audit) sort(ctx context.Context) error {
	r := &reader{stdin: a.stdin, invalid: a.invalid, broken: func(file int, lines int64, err error) {
		a.report.Unreadable = append(a.report.Unreadable, Unreadable{a.files[file], lines, err.Error()})
	}}
	err := a.readAll(ctx, r, func(blocks <-chan *block, done func(*block)) error {
		keys, scratch := make([]uint64, 0, a.chunk), make([]uint64, a.chunk)
		flush := func(keys []uint64) error {
			if len(keys) == 0 {
				return nil
			}
			return a.sorted.add(sortKeys(keys, scratch[:len(keys)]))
		}
		file := 0
		s := scanner{keys: keys, flush: flush, invalid: func(line int64, text []byte) { a.invalid(file, line, text) }}
		for b := range blocks {
			file = b.file
			before := s.taken
			if err := s.scan(b); err != nil {
				return err
			}
			a.numbers.Add(s.taken - before)
			done(b)
		}
		return flush(s.keys)
	})
	a.report.Invalid.trim(a.opts.Show)
	return err
}

// invalid counts a line that is no number.
func (a *audit) invalid(file int, line int64, text []byte) {
	a.mu.Lock()
	defer a.mu.Unlock()
	v := &a.report.Invalid
	v.Lines++
	v.List = append(v.List, InvalidLine{Place{a.files[file], line}, string(text[:min(len(text), maxText)]), file})
	// Cut once in a while: a file of nothing but such lines is not kept.
	if len(v.List) > 2*a.opts.Show+100 {
		v.trim(a.opts.Show)
	}
}

// merge counts what is in the runs.
func (a *audit) merge(ctx context.Context) error {
	r := &a.report
	// Not nil, so that JSON shows lists where there is nothing to list.
	r.Duplicates.List, r.Unreadable = []Finding{}, append([]Unreadable{}, r.Unreadable...)
	r.Invalid.List = append([]InvalidLine{}, r.Invalid.List...)
	if !a.opts.Layout.IsZero() {
		r.Misfits = &Findings{List: []Finding{}}
	}
	if a.granted != nil {
		r.Outside = &Findings{List: []Finding{}}
	}
	if len(a.sorted.list) == 0 {
		return nil
	}
	most := max(int(a.merging/mergeBytes), 2)
	narrowed, err := a.sorted.narrowed(ctx, most)
	if a.sorted = narrowed; err != nil {
		return err
	}
	cores := min(a.cores, max(most/len(a.sorted.list), 1)) // so many fit in memory
	parts := spans(a.sorted.list, perCore*a.cores)
	tallies := make([]*tally, len(parts))
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var next atomic.Int64
	var wg sync.WaitGroup
	for range min(cores, len(parts)) {
		wg.Go(func() {
			for {
				i := int(next.Add(1)) - 1
				if i >= len(parts) {
					return
				}
				var err error
				if tallies[i], err = a.mergeSpan(ctx, parts[i]); err != nil {
					cancel(err)
					return
				}
			}
		})
	}
	wg.Wait()
	if err := context.Cause(ctx); err != nil {
		return err
	}
	r.fill(tallies, a.opts.Show)
	return nil
}

func (a *audit) mergeSpan(ctx context.Context, part span) (*tally, error) {
	t := newTally(a.opts.Show, a.opts.Layout, a.granted)
	return t, a.sorted.merge(ctx, a.sorted.list, part, func(keys []uint64) error {
		t.take(keys)
		a.merged.Add(int64(len(keys)))
		return nil
	})
}
