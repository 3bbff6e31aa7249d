// Package boltstore keeps a store in one local file, with bbolt. It is
// the store of a single process: the file is locked while it is open.
//
// A grant is acknowledged when its transaction is synced to disk; grants that
// are asked for while another transaction is being written share the next one.
// There is one transaction per grant at most, and never one per number.
//
// # File
//
// The bucket "store" holds the format, the store ID and the identity of file and
// machine; "tags" and "rows" hold a record each per tag or row. A record is JSON,
// or a row's value, after a CRC-32C of its key and itself, and a total over all
// of them is kept beside the header, so that a mark that has decayed on disk is
// not taken for one, nor a record that has vanished for one that never was.
//
// # Copies
//
// Two copies of the file would both grant the same numbers. Open therefore
// refuses a file that is not the one it was when the store was created, by its
// time of birth where the file system tells it and else by its inode, or that
// is on another machine by /etc/machine-id. What cannot be told is not
// compared: a container's machine ID says nothing about the machine, and device
// numbers change from boot to boot. So a restart, a move within a file system
// and a container that mounts the file from outside raise no alarm; a restored
// backup, a copied directory and a disk moved to another machine do, until Adopt
// has raised every mark.
//
// A backup that was written into the existing file has the file's identity. On
// Linux and macOS, where the file system has extended attributes, such a file is
// told by its generation: a random text, renewed by every Open and Close, which
// stands in the file and in an attribute beside the data. A file that has been
// put back does not agree with the attribute, or has lost it.
//
// What cannot be told: a cloned disk image, whose file and machine are the same;
// a backup that brings its own attribute back into the existing file (cp -a, a
// restored snapshot of the file system); a backup that was made since the last
// Open of a process that was killed, put back before the next Open; and any of
// these where there are no extended attributes. Keep a witness elsewhere.
package boltstore

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/batch"
	"github.com/hapax-id/hapax/internal/durable"
	"github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/store/internal/fileid"
)

var _ driver.Store = (*Store)(nil)

// base gives a Store its methods without a field that outsiders see.
type base = driver.Base

// Options configure a store. The zero value is ready to use.
type Options struct {
	// LockWait is how long to wait for another process to let go of the file;
	// default 1 s.
	LockWait time.Duration

	// SkipIdentity opens the file even if it or the machine is another one. It
	// is for file systems that tell no lasting identity, such as some network
	// and user-space ones; nothing then protects against a copy.
	SkipIdentity bool

	// Look has Open change nothing: where it would have to, it fails with a
	// *driver.WouldChangeError. The store that it returns can be read, and grants nothing.
	Look bool
}

// Limits of one step, which is part of a transaction.
const (
	maxChanges = 10_000
	maxBytes   = 16 << 20
)

// A Store is an open file. Its methods are safe for concurrent use.
type Store struct {
	*base // tags and rows
	calls driver.Calls

	path   string
	db     *bbolt.DB
	handle *os.File    // bbolt's own
	file   os.FileInfo // of the open file

	writes   *batch.Batch[request, error]
	closing  sync.Once
	closeErr error

	failed atomic.Pointer[error] // why nothing more is granted; set by commit
	full   atomic.Pointer[error] // a change found no room on the disk; set by commit, cleared by Ping
}

// Open opens the store in the file at path, and creates it if there is none;
// its directory must exist. It reads and checks every record.
//
// It fails with ErrStoreLocked if the file is open already, with ErrStoreCopied
// if the file or the machine is not the one that the store was created with,
// with ErrStoreCorrupt if the file is damaged or not a store, and with
// ErrStoreUnavailable if the file cannot be opened or written.
func Open(ctx context.Context, path string, opts Options) (*Store, error) {
	return openStore(ctx, path, opts, identify)
}

// openStore is Open with a given way to tell the identity.
func openStore(ctx context.Context, path string, opts Options, identify identifier) (*Store, error) {
	if info, err := os.Stat(path); opts.Look && (errors.Is(err, fs.ErrNotExist) || err == nil && info.Mode().IsRegular() && info.Size() == 0) {
		return nil, &driver.WouldChangeError{What: driver.NewStore}
	}
	s, file, err := openFile(ctx, path, opts.LockWait, opts.Look)
	if err != nil {
		return nil, err
	}
	err = guard(func() error {
		if err := checkMeta(file, s.db.Info().PageSize); err != nil {
			return err
		}
		return s.prepare(ctx, file, opts, identify)
	})
	if err != nil {
		s.db.Close()
		return nil, explain(path, err)
	}
	if opts.Look {
		s.failed.Store(&errLooks)
		s.writes.Close()
	}
	return s, nil
}

// errLooks refuses grants of a store that was opened with Options.Look.
var errLooks = fmt.Errorf("%w: it was opened to be looked at only", hapax.ErrNotSupported)

// openFile opens and locks the file.
func openFile(ctx context.Context, path string, wait time.Duration, readOnly bool) (*Store, *os.File, error) {
	if err := context.Cause(ctx); err != nil {
		return nil, nil, unavailable(err)
	}
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() {
		return nil, nil, &hapax.ValueError{Field: "path", Value: path, Allowed: "a file, or a name for a new one in an existing directory", Err: hapax.ErrInvalidArgument}
	}
	if wait <= 0 {
		wait = time.Second
	}
	if deadline, ok := ctx.Deadline(); ok {
		wait = max(1, min(wait, time.Until(deadline)))
	}
	var file *os.File
	var db *bbolt.DB
	err := guard(func() (err error) {
		db, err = bbolt.Open(path, 0o600, &bbolt.Options{
			Timeout:      wait,
			ReadOnly:     readOnly,
			FreelistType: bbolt.FreelistMapType,
			// bbolt shows nobody its file, of which the identity is asked.
			OpenFile: func(name string, flag int, _ os.FileMode) (f *os.File, err error) {
				f, err = durable.OpenFile(name, flag)
				file = f
				return f, err
			},
		})
		return err
	})
	if err == nil {
		var info os.FileInfo
		if info, err = file.Stat(); err == nil {
			s := &Store{path: path, db: db, handle: file, file: info}
			s.writes = s.writing()
			s.calls = driver.Calls{Service: path, Timeout: -1}
			s.base = driver.NewBase(&s.calls, kv{s}, driver.BaseOptions{MaxChanges: maxChanges, MaxBytes: maxBytes, Near: true})
			return s, file, nil
		}
	}
	if file != nil {
		file.Close() // bbolt has closed it already, unless it panicked
	}
	if _, ok := errors.AsType[syscall.Errno](err); !ok && !errors.Is(err, bolterrors.ErrTimeout) {
		err = fmt.Errorf("%w: %w", errDamaged, err) // the system lets it be read, and bbolt cannot
	}
	return nil, nil, explain(path, err)
}

// prepare creates the store in an empty file, or checks the one that is there.
func (s *Store) prepare(ctx context.Context, file *os.File, opts Options, identify identifier) error {
	now, err := identify(file)
	if err != nil {
		return err
	}
	var head header
	err = s.db.View(func(tx *bbolt.Tx) error {
		if head, err = readHeader(tx); err != nil || head.ID == "" {
			return err
		}
		if err := driver.CheckClosed(ctx, head.Closed); err != nil {
			return err
		}
		return verify(tx)
	})
	if err != nil {
		return err
	}
	switch {
	case head.ID == "" && opts.Look:
		return &driver.WouldChangeError{What: driver.NewStore}
	case head.ID == "":
		head = header{ID: driver.NewStoreID(ctx), Closed: driver.NewClosed(ctx), Identity: now}
	case !opts.SkipIdentity:
		if err := s.compare(file, head, now); err != nil {
			return err
		}
		head.Identity = head.Identity.Merge(now)
	}
	if opts.Look {
		return nil
	}
	if err := s.db.Update(func(tx *bbolt.Tx) error {
		return writeHeader(tx, head)
	}); err != nil {
		return err
	}
	if err := s.renew(); err != nil {
		return err
	}
	// A new file whose name is not on disk is gone after a power loss, and what was granted from it is granted
	// anew.
	return durable.OS.SyncDir(filepath.Dir(s.path))
}

// compare refuses a file that is a copy, or was put back.
func (s *Store) compare(file *os.File, head header, now identity) error {
	if diff := append(head.Identity.Compare(now), compareGeneration(file, head)...); len(diff) > 0 {
		return copied(s.path, diff)
	}
	return nil
}

// compareGeneration returns what shows that the file's contents are not those
// that were there when it was last open.
func compareGeneration(file *os.File, head header) []string {
	beside, ok := fileid.Attribute(file)
	switch {
	case !ok, head.Generation == "", beside == head.Generation, beside == head.Before:
		return nil
	case beside == "":
		return []string{"the attribute with the file's generation is gone"}
	}
	return []string{"the file's contents are not those that were here last"}
}

// renew gives the file's contents another generation: first in the file, which
// then agrees with the attribute before and after it is set.
func (s *Store) renew() error {
	beside, ok := fileid.Attribute(s.handle)
	if !ok {
		return nil
	}
	fresh := rand.Text()
	if err := s.db.Update(func(tx *bbolt.Tx) error {
		head, err := readHeader(tx)
		if err != nil {
			return err
		}
		head.Generation, head.Before = fresh, beside
		return writeHeader(tx, head)
	}); err != nil {
		return err
	}
	return fileid.SetAttribute(s.handle, fresh)
}

// Close lets go of the file, after the transaction that is being written. Later
// calls, and those that wait for another transaction, fail with ErrClosed.
func (s *Store) Close() error {
	s.calls.End()
	s.closing.Do(func() {
		s.writes.Close()
		if s.failed.Load() == nil && s.checkPath() == nil {
			// So a backup that was made while the file was open can be told from it.
			s.closeErr = guard(s.renew)
		}
		s.closeErr = errors.Join(s.closeErr, s.db.Close())
	})
	return s.closeErr
}

// Ping implements driver.Store. It writes nothing, unless a change found no room: then it
// tries whether there is some beside the file.
func (s *Store) Ping(ctx context.Context) error {
	if failed := s.failed.Load(); failed != nil {
		return *failed
	}
	if full := s.full.Load(); full != nil {
		if err := tryRoom(filepath.Dir(s.path)); err != nil {
			return explain(s.path, err)
		}
		s.full.CompareAndSwap(full, nil)
	}
	if _, err := s.StoreID(ctx); err != nil {
		return err
	}
	return s.checkPath()
}

// room is what must fit on the disk for a store that was full not to be: more than the
// pages of one change.
const room = 64 << 10

// tryRoom returns why a small file cannot be written in a directory.
func tryRoom(dir string) error {
	f, err := os.CreateTemp(dir, ".room-*")
	if err != nil {
		return err
	}
	_, err = f.Write(make([]byte, room))
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close(), os.Remove(f.Name()))
}

// checkPath fails if the store's path does not lead to the open file any more:
// the next start would find another store or none.
func (s *Store) checkPath() error {
	info, err := os.Stat(s.path)
	switch {
	case err == nil && os.SameFile(info, s.file):
		return nil
	case err == nil:
		err = errors.New("another file is in its place")
	}
	return fmt.Errorf("%w: the open file is no longer at %s: %w; put it back, or restart", hapax.ErrStoreReplaced, s.path, err)
}

// Shared implements driver.Rows: the file is locked by one process.
func (s *Store) Shared() bool { return false }

// StoreID implements driver.Store.
func (s *Store) StoreID(ctx context.Context) (string, error) {
	return read(ctx, s, func(tx *bbolt.Tx) (string, error) {
		head, err := readHeader(tx)
		return head.ID, err
	})
}

// OpenToAll implements driver.Founded.
func (s *Store) OpenToAll(context.Context) error {
	err := guard(func() error {
		return s.db.Update(func(tx *bbolt.Tx) error {
			head, err := readHeader(tx)
			if err != nil || head.Closed == "" {
				return err
			}
			head.Closed = ""
			return writeHeader(tx, head)
		})
	})
	if err != nil {
		return explain(s.path, err)
	}
	return nil
}

// read runs f in a transaction that sees what was committed.
func read[T any](ctx context.Context, s *Store, f func(*bbolt.Tx) (T, error)) (T, error) {
	var result, zero T
	if err := context.Cause(ctx); err != nil {
		return zero, unavailable(err)
	}
	err := guard(func() error {
		return s.db.View(func(tx *bbolt.Tx) (err error) {
			result, err = f(tx)
			return err
		})
	})
	if err != nil {
		return zero, explain(s.path, err)
	}
	return result, nil
}

// errDamaged marks what explain turns into ErrStoreCorrupt.
var errDamaged = errors.New("it is damaged or not a store")

// guard runs f and turns its panics into errDamaged: bbolt panics, or faults on
// its memory map, when a page makes no sense.
func guard(f func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: %v", errDamaged, p)
		}
	}()
	return f()
}

// explain gives an error that has none its sentinel, and tells what to do.
func explain(path string, err error) error {
	if _, ok := errors.AsType[*hapax.Error](err); ok {
		return err
	}
	if _, ok := errors.AsType[*driver.WouldChangeError](err); ok {
		return err
	}
	switch {
	case errors.Is(err, bolterrors.ErrTimeout):
		return fmt.Errorf("%w: another process has %s open; stop it, or use another data directory", hapax.ErrStoreLocked, path)
	case errors.Is(err, bolterrors.ErrDatabaseNotOpen):
		return errClosed(path)
	case errors.Is(err, errDamaged), errors.Is(err, bolterrors.ErrInvalid), errors.Is(err, bolterrors.ErrVersionMismatch), errors.Is(err, bolterrors.ErrChecksum):
		return fmt.Errorf("%w: %s: %w; use another file, or restore a backup and raise its marks above all that was issued since with: hapax adopt", hapax.ErrStoreCorrupt, path, err)
	}
	return fmt.Errorf("%w: %s: %w", hapax.ErrStoreUnavailable, path, err)
}

func unavailable(cause error) error {
	return fmt.Errorf("%w: %w", hapax.ErrStoreUnavailable, cause)
}

func errClosed(path string) error { return fmt.Errorf("%w: the store in %s", hapax.ErrClosed, path) }
