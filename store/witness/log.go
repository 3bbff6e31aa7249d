package hapax

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// A witnessLog is the file of a Witness. It is lines of text,
//
//	checksum \t kind \t store ID \t mark \t line \t mark \t line …
//
// the checksum in hexadecimal over all that follows it. The first one is a
// snapshot; the others are changes, one for each batch, of which an empty store
// ID means no change. A crash can damage only what was not yet acknowledged,
// which is the last line: anything else that is wrong is corruption. The log is
// shortened by writing a new snapshot to another file and renaming it.
type witnessLog struct {
	path string
	lock io.Closer
	file witnessFile // nil while it is being replaced
	size int64       // bytes in the file
	long int64       // the size at which the log is rewritten
}

// A witnessFile is the part of os.File that a log is appended with.
type witnessFile interface {
	io.WriteCloser
	Sync() error
}

// A witnessRecord is a state, or a change of it.
type witnessRecord struct {
	storeID string // empty: unknown, or unchanged
	marks   map[string]int64
}

func newWitnessRecord() witnessRecord { return witnessRecord{marks: map[string]int64{}} }

// The kinds of records. The snapshot's carries the version of the format.
const (
	witnessSnapshot = "hapax-witness-1"
	witnessChange   = "change"
)

const (
	// witnessSlack is what a log may grow by before it is rewritten, if the
	// snapshot is not larger than that.
	witnessSlack = 1 << 20

	// maxWitnessBytes is more than maxWitnessLines can lead to.
	maxWitnessBytes = 1 << 30
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// openWitnessLog locks the log, reads the state and leaves a fresh snapshot of
// it, so that what a crash left behind is gone.
func openWitnessLog(path string) (*witnessLog, witnessRecord, error) {
	lock, err := lockFile(path + ".lock")
	if err != nil {
		return nil, witnessRecord{}, err
	}
	l := &witnessLog{path: path, lock: lock}
	state, err := readWitness(path)
	if err == nil {
		err = l.rewrite(state)
	}
	if err != nil {
		return nil, witnessRecord{}, errors.Join(err, l.close())
	}
	return l, state, nil
}

// append makes a change durable.
func (l *witnessLog) append(change witnessRecord) error {
	data := change.encode(witnessChange)
	_, err := l.file.Write(data)
	if err == nil {
		err = l.file.Sync()
	}
	l.size += int64(len(data))
	return l.unavailable("cannot be written", err)
}

// isLong tells whether rewriting the log is worth it.
func (l *witnessLog) isLong() bool { return l.size >= l.long }

// rewrite replaces the log by a snapshot in one atomic step.
func (l *witnessLog) rewrite(state witnessRecord) error {
	data := state.encode(witnessSnapshot)
	err := errors.Join(l.closeFile(), replaceFile(l.path, data))
	if err != nil {
		return l.unavailable("cannot be replaced", err)
	}
	f, err := os.OpenFile(l.path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return l.unavailable("cannot be opened", err)
	}
	l.file = f
	l.size = int64(len(data))
	l.long = l.size + max(l.size, witnessSlack)
	return nil
}

func (l *witnessLog) close() error { return errors.Join(l.closeFile(), l.lock.Close()) }

func (l *witnessLog) closeFile() error {
	if l.file == nil {
		return nil
	}
	err := l.file.Close()
	l.file = nil
	return err
}

func (l *witnessLog) unavailable(what string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w: the witness %s %s: %w", ErrStoreUnavailable, l.path, what, err)
}

// replaceFile writes a file that is at any time either the old or the new one,
// also when the power fails.
func replaceFile(path string, data []byte) error {
	fresh := path + ".new"
	if err := os.Remove(fresh); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := os.OpenFile(fresh, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := os.Rename(fresh, path); err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
}

// readWitness returns what the file at path says; nothing if there is none.
func readWitness(path string) (witnessRecord, error) {
	state := newWitnessRecord()
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return state, nil
	}
	if err != nil {
		return state, fmt.Errorf("%w: %w", ErrStoreUnavailable, err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return state, fmt.Errorf("%w: %w", ErrStoreUnavailable, err)
	}
	if info.Size() > maxWitnessBytes {
		return state, fmt.Errorf("%w: the witness %s has %d bytes, at most %d are possible", ErrStoreCorrupt, path, info.Size(), maxWitnessBytes)
	}
	return state, state.replay(f, path)
}

// replay applies all the records of the log that was opened at path.
func (r *witnessRecord) replay(log io.Reader, path string) error {
	in := bufio.NewReader(log)
	kind := witnessSnapshot
	damaged := int64(-1) // where the first line begins that is not intact
	for offset := int64(0); ; {
		line, err := in.ReadBytes('\n')
		if err != nil && err != io.EOF {
			return fmt.Errorf("%w: %w", ErrStoreUnavailable, err)
		}
		if len(line) == 0 && kind == witnessChange {
			return nil
		}
		payload, intact := verify(line)
		switch {
		case kind == witnessSnapshot && !intact:
			return fmt.Errorf("%w: the witness %s does not begin with an intact snapshot", ErrStoreCorrupt, path)
		case damaged >= 0 && intact:
			return fmt.Errorf("%w: the witness %s: the record at byte %d is damaged and not the last", ErrStoreCorrupt, path, damaged)
		case intact:
			if err := r.apply(payload, kind); err != nil {
				return fmt.Errorf("%w: the witness %s: the record at byte %d: %w", ErrStoreCorrupt, path, offset, err)
			}
		case damaged < 0:
			damaged = offset
		}
		kind = witnessChange
		offset += int64(len(line))
	}
}

// apply applies the payload of one record.
func (r *witnessRecord) apply(payload, kind string) error {
	fields := strings.Split(payload, "\t")
	if len(fields) < 2 || fields[0] != kind || len(fields)%2 != 0 {
		return fmt.Errorf("%.40q is not a record of kind %s", payload, kind)
	}
	if fields[1] != "" {
		r.storeID = fields[1]
	}
	for pair := range slices.Chunk(fields[2:], 2) {
		mark, err := strconv.ParseInt(pair[0], 10, 64)
		if err != nil {
			return err
		}
		r.marks[pair[1]] = mark
	}
	return nil
}

// encode returns the record as a line of the log.
func (r witnessRecord) encode(kind string) []byte {
	const sum = len("00000000\t")
	line := make([]byte, sum, sum+len(kind)+len(r.storeID)+64*(len(r.marks)+1))
	line = append(line, kind...)
	line = append(line, '\t')
	line = append(line, r.storeID...)
	for _, name := range slices.Sorted(maps.Keys(r.marks)) {
		line = append(line, '\t')
		line = strconv.AppendInt(line, r.marks[name], 10)
		line = append(line, '\t')
		line = append(line, name...)
	}
	copy(line, fmt.Sprintf("%08x\t", crc32.Checksum(line[sum:], castagnoli)))
	return append(line, '\n')
}

// verify returns the payload of a line, and whether the line is whole and its
// checksum right.
func verify(line []byte) (payload string, intact bool) {
	line, whole := bytes.CutSuffix(line, []byte{'\n'})
	sum, rest, found := bytes.Cut(line, []byte{'\t'})
	want := fmt.Sprintf("%08x", crc32.Checksum(rest, castagnoli))
	return string(rest), whole && found && string(sum) == want
}
