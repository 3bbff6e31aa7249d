// Package filestore keeps pools and workers in one small local file, so that
// a snowflake issuer without a database survives restarts safely.
//
// Every change writes a new file, syncs it, and renames it over the old one, so
// that a crash leaves the one or the other, whole. Between reading and renaming
// the file next to it with the ending ".lock" is locked, so that any number of
// processes of one machine can share the file and get workers of their own.
//
// It knows nothing of other machines: give each machine a range of worker IDs
// of its own, and do not take the file to another one while the first goes on.
package filestore

import (
	"bytes"
	"context"
	"crypto/rand"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/durable"
	"github.com/hapax-id/hapax/store/driver"
)

var (
	_ hapax.WorkerStore = (*Store)(nil)
	_ driver.PoolStore  = (*Store)(nil)
	_ driver.Rows       = (*Store)(nil)
)

// Options configure a store. There is nothing to configure yet.
type Options struct{}

// lockWait bounds a call whose context has a later deadline or none; tests lengthen it.
var lockWait = 5 * time.Second

// A Store is a file of worker states. Its methods are safe for concurrent use.
// It holds nothing open between calls.
type Store struct {
	driver.Leases

	disk   durable.Disk
	path   string
	id     string        // of the store that Open found or created
	turn   chan struct{} // holds the right to lock the file, within this process
	closed atomic.Bool
}

// Open opens the store in the file at path, and creates it if there is none;
// its directory must exist and be writable. Errors: ErrInvalidArgument for what
// is not a regular file, ErrStoreCorrupt for a file that is damaged or something
// else, ErrStoreUnavailable if it cannot be read, written or locked.
func Open(ctx context.Context, path string, _ Options) (*Store, error) {
	if target, err := filepath.EvalSymlinks(path); err == nil {
		path = target // else the rename would replace the link
	}
	if info, err := os.Stat(path); path == "" || err == nil && !info.Mode().IsRegular() {
		return nil, &hapax.ValueError{Field: "path", Value: path, Allowed: "a file, or a name for a new one in an existing directory", Err: hapax.ErrInvalidArgument}
	}
	return open(ctx, path, durable.OS)
}

func open(ctx context.Context, path string, disk durable.Disk) (*Store, error) {
	s := &Store{disk: disk, path: path, turn: make(chan struct{}, 1)}
	s.Leases = driver.LeasesIn(s)
	st, err := s.change(ctx, func(st *state) bool {
		fresh := st.ID == ""
		if fresh {
			st.Format, st.ID = format, rand.Text()
		}
		return fresh
	})
	if err != nil {
		return nil, err
	}
	s.id = st.ID
	return s, nil
}

// Close makes later calls fail with ErrClosed.
func (s *Store) Close() error {
	s.closed.Store(true)
	return nil
}

// Ping reports whether the file can be read.
func (s *Store) Ping(ctx context.Context) error {
	_, err := s.read(ctx)
	return err
}

// StoreID returns the random identity that the file was created with.
func (s *Store) StoreID(ctx context.Context) (string, error) {
	st, err := s.read(ctx)
	if err != nil {
		return "", err
	}
	return st.ID, nil
}

// Row implements driver.Rows.
func (s *Store) Row(ctx context.Context, table, name string) ([]byte, error) {
	st, err := s.read(ctx)
	if err != nil {
		return nil, err
	}
	return st.Tables[table][name], nil
}

// ListRows implements driver.Rows.
func (s *Store) ListRows(ctx context.Context, table, after string, limit int) ([]driver.Row, error) {
	st, err := s.read(ctx)
	if err != nil {
		return nil, err
	}
	var page []driver.Row
	for _, name := range slices.Sorted(maps.Keys(st.Tables[table])) {
		if name > after && len(page) < limit {
			page = append(page, driver.Row{Name: name, Value: st.Tables[table][name]})
		}
	}
	return page, nil
}

// SwapRow implements driver.Rows.
func (s *Store) SwapRow(ctx context.Context, table, name string, old, next []byte) (bool, error) {
	if err := driver.CheckSwap(table, name, old, next); err != nil {
		return false, err
	}
	swapped := false
	_, err := s.change(ctx, func(st *state) bool {
		stored, exists := st.Tables[table][name]
		if exists != (old != nil) || !bytes.Equal(stored, old) {
			return false
		}
		swapped = true
		if next == nil {
			delete(st.Tables[table], name)
			return true
		}
		if st.Tables[table] == nil {
			st.Tables[table] = map[string][]byte{}
		}
		st.Tables[table][name] = next
		return true
	})
	return swapped && err == nil, err
}

// Shared implements driver.Rows: other processes of the machine may use the file.
func (s *Store) Shared() bool { return true }
