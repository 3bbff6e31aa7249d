// Package journal keeps records in files that are only appended to, bounded in age
// and size. A record is a line of text with its checksum behind it,
//
//	field \t field ... \t checksum \n
//
// the checksum being CRC-32C of the line up to the last tab, in eight
// hexadecimal digits. So a torn or damaged record costs itself and no other, and
// the files can be read as text. They are named
// PREFIX-NUMBER-SECOND.tsv, after their place in the order and the Unix time of
// their first record; the last one is written to.
//
//	Append --> tail in memory --write--> file --Sync, or within a second--> disk
//
// A record that Append has returned from without an error survives the process,
// kill -9 included; a power loss may take those of the last second, unless Sync
// was called. What cannot be written, because the disk is full, is kept in memory
// and written when it can be. Where that would be too much, records are lost and
// counted, and a record says so as soon as one can be written.
package journal

import (
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hapax-id/hapax/internal/durable"
)

// Limits and defaults.
const (
	MaxRecord = 16 << 10 // bytes in a record

	DefaultAge   = 90 * 24 * time.Hour
	DefaultBytes = 256 << 20
	MinBytes     = 1 << 20

	maxTail   = 1 << 20     // bytes kept in memory while the disk does not take them
	syncEvery = time.Second // how long what was written may stay unsynced
	parts     = 16          // how many files share the size and the age that are kept
)

// The records that a journal writes itself. They begin with the sign that makes them
// comments to others that read the files.
const (
	Opened = "# opened" // Opened, time, and what Options.Opened says
	Lost   = "# lost"   // Lost, time of the first, time, how many records
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Options tune a journal. The zero value suits most uses.
type Options struct {
	Bytes int64         // how much all files hold at most, MinBytes or more; default 256 MiB
	Age   time.Duration // how old the last record of a file becomes before it is removed; default 90 days

	// Opened are further fields of the record that each start begins with.
	Opened []string

	// Trouble, if set, is told when records cannot be written, and with nil when
	// they can again.
	Trouble func(error)

	// Open is for tests: it opens a file to append to, and makes it where it is
	// missing. Default durable.OpenFile.
	Open func(path string) (File, error)

	// Now is for tests; default time.Now.
	Now func() time.Time
}

// A File is a file that is appended to.
type File interface {
	Write(p []byte) (int, error)
	Sync() error
	Truncate(size int64) error
	Close() error
}

// A Journal is written by one process at a time. Its methods are safe for
// concurrent use.
type Journal struct {
	dir, prefix string
	opts        Options

	syncing chan struct{} // held by the one who syncs and removes files
	stop    chan struct{}
	loop    sync.WaitGroup

	mu      sync.Mutex // guards what follows; held while a record is written, and never while one is synced
	closed  bool
	file    File
	retired []File // rotated away, not yet synced
	number  int64  // of the file
	began   time.Time
	size    int64  // bytes that the file holds
	tail    []byte // records that are not in the file yet
	dirty   bool
	written int64 // records
	waiting int64 // records in tail
	lost    int64 // records
	unsaid  int64 // of those, the ones that no record tells of yet
	lostAt  time.Time
	trouble error
}

// Open opens the journal in a directory, which is made if it does not exist.
// Close must be called.
func Open(dir, prefix string, opts Options) (*Journal, error) {
	if opts.Bytes == 0 {
		opts.Bytes = DefaultBytes
	}
	if opts.Age == 0 {
		opts.Age = DefaultAge
	}
	if opts.Bytes < MinBytes {
		return nil, fmt.Errorf("journal: %d bytes are too few; want %d or more", opts.Bytes, MinBytes)
	}
	if opts.Age < time.Second {
		return nil, fmt.Errorf("journal: an age of %v is too short; want 1s or more", opts.Age)
	}
	if opts.Open == nil {
		opts.Open = openFile
	}
	if opts.Now == nil {
		opts.Now = time.Now
	}
	if err := durable.MkdirAll(dir); err != nil {
		return nil, err
	}
	j := &Journal{dir: dir, prefix: prefix, opts: opts, syncing: make(chan struct{}, 1), stop: make(chan struct{})}
	files, err := list(dir, prefix)
	if err != nil {
		return nil, err
	}
	if n := len(files); n > 0 {
		last := files[n-1]
		j.number, j.began = last.number, last.began
		if err := j.resume(last); err != nil {
			return nil, err
		}
	}
	j.loop.Go(j.run)
	j.mu.Lock()
	defer j.mu.Unlock()
	j.addLocked(append([]string{Opened, Stamp(opts.Now())}, opts.Opened...))
	j.flushLocked()
	return j, nil
}

func openFile(path string) (File, error) {
	return durable.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND)
}

// resume goes on with a file, past what a crash left of its last record.
func (j *Journal) resume(last listed) error {
	path := filepath.Join(j.dir, last.name)
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	if j.file, err = j.opts.Open(path); err != nil {
		return err
	}
	j.size = info.Size()
	whole, err := endsWhole(path, j.size)
	if err != nil {
		return errors.Join(err, j.file.Close())
	}
	if !whole {
		j.tail = append(j.tail, '\n')
	}
	return nil
}

// endsWhole reports whether a file ends with a line's end.
func endsWhole(path string, size int64) (bool, error) {
	if size == 0 {
		return true, nil
	}
	f, err := os.Open(path)
	if err != nil {
		return false, err
	}
	defer f.Close()
	var last [1]byte
	_, err = f.ReadAt(last[:], size-1)
	return last[0] == '\n', err
}

// Stamp writes a time as records have it.
func Stamp(t time.Time) string { return t.UTC().Format(stamp) }

const stamp = "2006-01-02T15:04:05.000Z"

// ParseStamp reads a time that Stamp wrote.
func ParseStamp(text string) (time.Time, error) { return time.Parse(stamp, text) }

// Append adds a record. Tabs and line ends in its fields become spaces. An error
// means that the record is not in a file yet; it is kept in memory, or counted as
// lost.
func (j *Journal) Append(fields ...string) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.closed {
		return os.ErrClosed
	}
	j.addLocked(fields)
	j.flushLocked()
	return j.trouble
}

// Buffer adds a record that Flush writes, or this when there are many.
func (j *Journal) Buffer(fields ...string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.closed {
		return
	}
	j.addLocked(fields)
	// Not while it fails: the loop tries again, and each record would, too.
	if len(j.tail) > maxTail/8 && j.trouble == nil {
		j.flushLocked()
	}
}

// Flush writes what Buffer has added.
func (j *Journal) Flush() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.flushLocked()
	return j.trouble
}

// Forget takes back what Buffer has added and is in no file yet. The journal's own records stay.
func (j *Journal) Forget() {
	j.mu.Lock()
	defer j.mu.Unlock()
	kept, waiting := j.tail[:0], int64(0) // each line goes to where it is, or before that
	for line := range bytes.Lines(j.tail) {
		own := bytes.HasPrefix(line, []byte(Opened+"\t")) || bytes.HasPrefix(line, []byte(Lost+"\t"))
		if own {
			waiting++
		}
		if own || len(line) == 1 { // ends a record that is torn
			kept = append(kept, line...)
		}
	}
	j.tail, j.waiting = kept, waiting
}

// Ready reports whether records can be written, and writes those that wait.
func (j *Journal) Ready() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.closed {
		return os.ErrClosed
	}
	j.probeLocked()
	return j.trouble
}

var clean = strings.NewReplacer("\t", " ", "\n", " ", "\r", " ")

// addLocked puts a record behind those that wait.
func (j *Journal) addLocked(fields []string) {
	size := 0
	for _, f := range fields {
		size += len(f) + 1
	}
	if len(j.tail)+size > maxTail || size > MaxRecord-9 {
		j.loseLocked(1, j.opts.Now())
		return
	}
	// Before it, since the gap is there.
	j.sayLocked()
	j.putLocked(fields)
}

// sayLocked has the journal tell of records that were lost.
func (j *Journal) sayLocked() {
	if n := j.unsaid; n > 0 {
		j.unsaid = 0
		j.putLocked([]string{Lost, Stamp(j.lostAt), Stamp(j.opts.Now()), strconv.FormatInt(n, 10)})
	}
}

func (j *Journal) loseLocked(n int64, now time.Time) {
	if j.unsaid == 0 {
		j.lostAt = now
	}
	j.unsaid += n
	j.lost += n
}

// Lose counts records that were lost before they came here.
func (j *Journal) Lose(n int64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.loseLocked(n, j.opts.Now())
}

func (j *Journal) putLocked(fields []string) {
	from := len(j.tail)
	for i, f := range fields {
		if i > 0 {
			j.tail = append(j.tail, '\t')
		}
		j.tail = append(j.tail, clean.Replace(f)...)
	}
	sum := crc32.Checksum(j.tail[from:], castagnoli)
	j.tail = append(j.tail, '\t')
	j.tail = fmt.Appendf(j.tail, "%08x\n", sum)
	j.waiting++
}

// flushLocked writes what waits, and remembers why it could not.
func (j *Journal) flushLocked() {
	if len(j.tail) == 0 {
		return
	}
	err := j.writeLocked()
	if (err == nil) != (j.trouble == nil) && j.opts.Trouble != nil {
		told := err
		j.loop.Go(func() { j.opts.Trouble(told) }) // not under the lock
	}
	j.trouble = err
}

// probeLocked tries again what failed, and tells what was lost.
func (j *Journal) probeLocked() {
	j.flushLocked()
	if j.trouble == nil && j.unsaid > 0 {
		j.sayLocked()
		j.flushLocked()
	}
}

func (j *Journal) writeLocked() error {
	if err := j.rotateLocked(); err != nil {
		return err
	}
	n, err := j.file.Write(j.tail)
	if err != nil {
		if n > 0 && j.file.Truncate(j.size) != nil { // a torn record stays; the next one begins a line of its own
			j.size += int64(n)
			if j.tail[0] != '\n' {
				j.tail = append([]byte{'\n'}, j.tail...)
			}
		}
		return err
	}
	j.size += int64(n)
	j.written += j.waiting
	j.tail, j.waiting, j.dirty = j.tail[:0], 0, true
	if cap(j.tail) > maxTail/8 {
		j.tail = nil
	}
	return nil
}

// rotateLocked begins a new file where there is none, or it is large or old enough.
func (j *Journal) rotateLocked() error {
	now := j.opts.Now()
	// An empty file is good for all that waits: the next one would have no more room.
	if j.file != nil && (j.size == 0 || j.size+int64(len(j.tail)) <= j.opts.Bytes/parts && now.Sub(j.began) < j.opts.Age/parts) {
		return nil
	}
	f, err := j.opts.Open(filepath.Join(j.dir, nameOf(j.prefix, j.number+1, now)))
	if err != nil {
		return err
	}
	if j.file != nil {
		j.retired = append(j.retired, j.file)
	}
	j.file, j.number, j.began, j.size, j.dirty = f, j.number+1, now, 0, true
	return nil
}

// Sync makes durable what was written before.
func (j *Journal) Sync() error {
	j.syncing <- struct{}{}
	defer func() { <-j.syncing }()
	return j.sync()
}

// sync is for the holder of syncing.
func (j *Journal) sync() error {
	j.mu.Lock()
	file, retired, dirty, trouble := j.file, j.retired, j.dirty, j.trouble
	j.retired, j.dirty = nil, false
	j.mu.Unlock()
	errs := []error{trouble}
	var left []File
	for _, f := range retired {
		err := f.Sync()
		if err == nil {
			err = f.Close()
		} else { // the next call promises its records, too
			left = append(left, f)
		}
		errs = append(errs, err)
	}
	if dirty && file != nil {
		errs = append(errs, file.Sync())
	}
	// A new file outlives a power loss only once its directory is synced, too.
	if len(retired) > 0 || dirty && trouble == nil {
		errs = append(errs, syncDir(j.dir))
	}
	err := errors.Join(errs...)
	if err != nil {
		j.mu.Lock()
		j.dirty, j.retired = true, append(left, j.retired...)
		j.mu.Unlock()
	}
	return err
}

func syncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	_ = d.Sync() // not every system can
	return d.Close()
}

// run syncs, tries again and removes old files until Close.
func (j *Journal) run() {
	tick := time.NewTicker(syncEvery)
	defer tick.Stop()
	var swept time.Time
	var sweptAt int64
	for {
		j.mu.Lock()
		number := j.number
		j.mu.Unlock()
		if now := j.opts.Now(); number != sweptAt || now.Sub(swept) >= time.Minute {
			swept, sweptAt = now, number
			j.syncing <- struct{}{}
			_ = j.sweep() // tried again soon
			<-j.syncing
		}
		select {
		case <-j.stop:
			return
		case <-tick.C:
		}
		j.mu.Lock()
		j.probeLocked()
		due := j.dirty || len(j.retired) > 0
		j.mu.Unlock()
		if due {
			_ = j.Sync() // what a power loss may take is said above
		}
	}
}

// sweep removes files that are too old or too many. The one that is written to
// stays.
func (j *Journal) sweep() error {
	files, err := list(j.dir, j.prefix)
	if err != nil {
		return err
	}
	j.mu.Lock()
	current := j.number
	j.mu.Unlock()
	var errs []error
	var kept int64
	for _, f := range slices.Backward(files) {
		path := filepath.Join(j.dir, f.name)
		info, err := os.Stat(path)
		switch {
		case errors.Is(err, fs.ErrNotExist): // somebody else was quicker
			continue
		case err != nil:
			errs = append(errs, err)
			continue
		}
		kept += info.Size()
		if f.number < current && (kept > j.opts.Bytes || j.opts.Now().Sub(info.ModTime()) > j.opts.Age) {
			if err := os.Remove(path); !errors.Is(err, fs.ErrNotExist) {
				errs = append(errs, err)
			}
		}
	}
	return errors.Join(errs...)
}

// Stats are the counts of a journal since it was opened.
type Stats struct {
	Written int64 // records in files
	Waiting int64 // records in memory, because they could not be written
	Lost    int64 // records lost, because there were too many to keep
}

// Stats returns the counts.
func (j *Journal) Stats() Stats {
	j.mu.Lock()
	defer j.mu.Unlock()
	return Stats{j.written, j.waiting, j.lost}
}

// Close writes and syncs what waits. It is idempotent.
func (j *Journal) Close() error {
	j.mu.Lock()
	first := !j.closed
	if first {
		j.probeLocked()
	}
	j.closed = true
	j.mu.Unlock()
	if !first {
		return nil
	}
	close(j.stop)
	j.loop.Wait()
	err := j.Sync()
	for _, f := range append(j.retired, j.file) {
		if f != nil {
			err = errors.Join(err, f.Close())
		}
	}
	return err
}
