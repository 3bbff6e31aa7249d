package witness

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"sync/atomic"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/durable"
)

// A log is the file of a Witness. It is lines of text,
//
//	checksum \t kind \t JSON
//
// the checksum in hexadecimal over all that follows it. The first one is a
// snapshot; the others are changes, one for each write, and before them the rest of a
// snapshot with many lines. A crash can damage only the change that was not yet acknowledged,
// the last line: any other damage is corruption. The log is
// shortened by writing a new snapshot to another file and renaming it, and mended in
// the same way after a failed write.
type log struct {
	path string
	disk durable.Disk
	lock io.Closer
	file logFile // nil while it is being replaced, and after a write that failed
	size int64   // bytes in the file
	long int64   // the size at which the log is rewritten

	syncs atomic.Int64 // of changes, for tests
}

// A logFile is the part of os.File that a log is appended with.
type logFile interface {
	io.WriteCloser
	Sync() error
}

// The kinds of records. The snapshot's carries the version of the format.
const (
	kindSnapshot = "hapax-witness-3"
	kindChange   = "change"
)

// lockSuffix ends the name of the file that keeps other processes from the witness.
const lockSuffix = ".lock"

// logSlack is how many bytes a log may grow by before it is rewritten, if the snapshot is
// not larger than that.
const logSlack = 1 << 20

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// openLog locks the log, reads the state and leaves a fresh snapshot of it, so
// that half a record left by a crash is gone; but not of a long log that ends well. Where the
// disk is full, full tells so, and the snapshot is left to the first change.
func openLog(path string, disk durable.Disk) (l *log, state record, full, err error) {
	lock, err := durable.TryLock(path + lockSuffix)
	switch {
	case errors.Is(err, durable.ErrLocked):
		return nil, record{}, nil, fmt.Errorf("%w: %w", hapax.ErrStoreLocked, err)
	case err != nil:
		return nil, record{}, nil, fmt.Errorf("%w: %w", hapax.ErrWitnessFailed, err)
	}
	l = &log{path: path, disk: disk, lock: lock}
	state, reuse, err := readLog(path)
	if err == nil && reuse {
		err = l.reopen(state)
	}
	if err == nil && l.isDue() {
		err = l.rewrite(state)
		if durable.IsFull(err) {
			full, err = err, nil
		}
	}
	if err != nil {
		return nil, record{}, nil, errors.Join(err, l.close())
	}
	return l, state, full, nil
}

// append makes a change durable. After an error the file's end is unknown, and
// the log is to be rewritten.
func (l *log) append(change record) error {
	data := change.encode(kindChange)
	_, err := l.file.Write(data)
	if err == nil {
		l.syncs.Add(1)
		err = l.file.Sync()
	}
	l.size += int64(len(data))
	if err != nil {
		_ = l.closeFile()
	}
	return l.failed("cannot be written", err)
}

// isDue reports whether the log is to be rewritten: it is long, or an earlier
// write failed.
func (l *log) isDue() bool { return l.file == nil || l.size >= l.long }

// rewrite replaces the log by a snapshot in one atomic step.
func (l *log) rewrite(state record) error {
	data := state.encodeAll()
	_ = l.closeFile() // its content is about to be replaced
	if err := durable.Replace(l.disk, l.path, func(*os.File) ([]byte, error) { return data, nil }); err != nil {
		return l.failed("cannot be replaced", err)
	}
	f, err := os.OpenFile(l.path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return l.failed("cannot be opened", err)
	}
	l.file = f
	l.grewFrom(int64(len(data)))
	l.size = int64(len(data))
	return nil
}

// reopen goes on with a log as it is. The records read may be in the cache alone, and not on disk yet:
// an earlier process may have been killed before its fsync.
func (l *log) reopen(state record) error {
	f, err := os.OpenFile(l.path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return l.failed("cannot be opened", err)
	}
	l.file = f
	info, err := f.Stat()
	if err == nil {
		err = f.Sync()
	}
	if err != nil {
		return l.failed("cannot be used", err)
	}
	snapshot := int64(0)
	for name := range state.Lines {
		snapshot += int64(len(name)) + bytesOfPair
	}
	l.grewFrom(snapshot)
	l.size = info.Size()
	return nil
}

// bytesOfPair is about how many bytes the pair of a line takes in a snapshot.
const bytesOfPair = 25

// grewFrom sets how long the log may get that began with a snapshot of a size.
func (l *log) grewFrom(size int64) { l.long = size + max(size, logSlack) }

func (l *log) close() error { return errors.Join(l.closeFile(), l.lock.Close()) }

func (l *log) closeFile() error {
	if l.file == nil {
		return nil
	}
	err := l.file.Close()
	l.file = nil
	return err
}

func (l *log) failed(what string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w: the witness %s %s: %w; make room on its disk, or give it another", hapax.ErrWitnessFailed, l.path, what, err)
}

// readLog returns the record in the file at path; an empty one if there is none. It reports whether
// the log is long, and such that changes may follow.
func readLog(path string) (state record, reuse bool, err error) {
	state = newRecord()
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return state, false, nil
	}
	if err != nil {
		return state, false, fmt.Errorf("%w: %w", hapax.ErrWitnessFailed, err)
	}
	defer f.Close()
	size, whole, err := state.replay(f, path)
	return state, size > logSlack && whole, err
}

// replay applies all the records of the log that was opened at path. It returns how long the
// log is, and whether its last record is whole.
func (r *record) replay(log io.Reader, path string) (size int64, whole bool, err error) {
	in := bufio.NewReaderSize(log, 1<<16)
	kind := kindSnapshot
	damaged := int64(-1) // where the first line begins that is not intact
	for offset := int64(0); ; {
		line, err := in.ReadBytes('\n')
		if err != nil && err != io.EOF {
			return 0, false, fmt.Errorf("%w: %w", hapax.ErrWitnessFailed, err)
		}
		if len(line) == 0 && kind == kindChange {
			return offset, damaged < 0, nil
		}
		payload, intact := verify(line)
		switch {
		case kind == kindSnapshot && !intact:
			return 0, false, fmt.Errorf("%w: the witness %s does not begin with an intact snapshot", hapax.ErrStoreCorrupt, path)
		case damaged >= 0 && intact:
			return 0, false, fmt.Errorf("%w: the witness %s: the record at byte %d is damaged and not the last", hapax.ErrStoreCorrupt, path, damaged)
		case intact:
			if kind == kindSnapshot {
				if err := checkKind(payload, path); err != nil {
					return 0, false, err
				}
			}
			if err := r.apply(payload, kind); err != nil {
				return 0, false, fmt.Errorf("%w: the witness %s: the record at byte %d: %w", hapax.ErrStoreCorrupt, path, offset, err)
			}
		case damaged < 0:
			damaged = offset
		}
		kind = kindChange
		offset += int64(len(line))
	}
}

// apply applies the payload of one record.
func (r *record) apply(payload []byte, kind string) error {
	found, text, _ := bytes.Cut(payload, []byte{'\t'})
	if string(found) != kind {
		return fmt.Errorf("%.40q is not a record of kind %s", payload, kind)
	}
	if bulk, ok := readBulk(string(text)); ok {
		for _, line := range bulk {
			r.Lines[line.name] = r.Lines[line.name].max(line.Pair)
		}
		return nil
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	var change record
	if err := d.Decode(&change); err != nil {
		return err
	}
	r.merge(change)
	return nil
}

// encode returns the record as a line of the log.
func (r record) encode(kind string) []byte {
	if kind == kindChange && r.isBulk() {
		return r.appendBulk(nil)
	}
	text, err := json.Marshal(r)
	if err != nil {
		panic(err) // a record holds strings and numbers
	}
	return appendRecord(nil, kind, text)
}

// appendRecord appends a line of the log.
func appendRecord(b []byte, kind string, text []byte) []byte {
	head := []byte(kind + "\t")
	sum := crc32.Update(crc32.Checksum(head, castagnoli), castagnoli, text)
	b = fmt.Appendf(b, "%08x\t%s", sum, head)
	return append(append(b, text...), '\n')
}

// verify returns the payload of a line, and whether the line is whole and its
// checksum right.
func verify(line []byte) (payload []byte, intact bool) {
	line, whole := bytes.CutSuffix(line, []byte{'\n'})
	sum, rest, found := bytes.Cut(line, []byte{'\t'})
	want := fmt.Sprintf("%08x", crc32.Checksum(rest, castagnoli))
	return rest, whole && found && string(sum) == want
}
