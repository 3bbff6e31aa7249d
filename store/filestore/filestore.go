// Package filestore keeps the state of workers in one small local file, so that
// a snowflake issuer without a database survives restarts safely.
//
// Every change writes a new file, syncs it, and renames it over the old one, so
// that a crash leaves the one or the other, whole. Between reading and renaming
// the file next to it with the ending ".lock" is locked, so that any number of
// processes of one machine can share the file and get workers of their own.
//
// It knows nothing of other machines: give each machine a range of worker IDs
// of its own, and do not take the file to another one while the first goes on.
//
// A Cache is something else: the lease of a shared store, kept in a local file so
// that an issuer can start again while that store is away.
package filestore

import (
	"context"
	"crypto/rand"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"

	"github.com/hapax-id/hapax"
)

var (
	_ hapax.WorkerStore = (*Store)(nil)
	_ hapax.WorkerTable = (*Store)(nil)
)

// Options configure a store. There is nothing to configure yet.
type Options struct{}

// A Store is a file of worker states. Its methods are safe for concurrent use.
// It holds nothing open between calls.
type Store struct {
	path   string
	id     string        // of the store that Open found or created
	turn   chan struct{} // holds the right to lock the file, within this process
	closed atomic.Bool
}

// Open opens the store in the file at path, and creates it if there is none;
// its directory must exist and be writable. Errors: ErrInvalidArgument for what
// is not a regular file, ErrStoreCorrupt for a file that is damaged or something
// else, ErrStoreUnavailable if it cannot be read or written, and
// ErrNotSupported where files cannot be locked.
func Open(ctx context.Context, path string, _ Options) (*Store, error) {
	if target, err := filepath.EvalSymlinks(path); err == nil {
		path = target // else the rename would replace the link
	}
	if info, err := os.Stat(path); path == "" || err == nil && !info.Mode().IsRegular() {
		return nil, &hapax.ValueError{Field: "path", Value: path, Allowed: "a file, or a name for a new one in an existing directory", Err: hapax.ErrInvalidArgument}
	}
	s := &Store{path: path, turn: make(chan struct{}, 1)}
	st, err := s.change(ctx, func(st *state) (bool, error) {
		if st.ID != "" {
			return false, nil
		}
		st.Format, st.ID = format, rand.Text()
		return true, nil
	})
	if err != nil {
		return nil, err
	}
	s.id = st.ID
	return s, nil
}

// Close makes later calls fail with ErrStoreUnavailable.
func (s *Store) Close() error {
	s.closed.Store(true)
	return nil
}

// Ping reports whether the file can be read.
func (s *Store) Ping(ctx context.Context) error {
	_, err := s.read(ctx)
	return err
}

// StoreID implements hapax.WorkerStore.
func (s *Store) StoreID(ctx context.Context) (string, error) {
	st, err := s.read(ctx)
	return st.ID, err
}

// FreezePool implements hapax.WorkerTable.
func (s *Store) FreezePool(ctx context.Context, name, layout string) (string, error) {
	if err := hapax.ValidateName("pool", name); err != nil {
		return "", err
	}
	st, err := s.read(ctx)
	if err == nil && st.layout(name) == "" {
		st, err = s.change(ctx, func(st *state) (bool, error) {
			if st.layout(name) != "" {
				return false, nil
			}
			st.pool(name).Layout = layout
			return true, nil
		})
	}
	return st.layout(name), err
}

// Pools implements hapax.WorkerStore.
func (s *Store) Pools(ctx context.Context) ([]hapax.Pool, error) {
	st, err := s.read(ctx)
	if err != nil {
		return nil, err
	}
	var pools []hapax.Pool
	for _, name := range slices.Sorted(maps.Keys(st.Pools)) {
		if p := st.Pools[name]; p.Layout != "" {
			pools = append(pools, hapax.Pool{Name: name, Layout: p.Layout})
		}
	}
	return pools, nil
}

// Worker implements hapax.WorkerTable.
func (s *Store) Worker(ctx context.Context, pool string, id int64) (hapax.Worker, error) {
	st, err := s.read(ctx)
	if err != nil {
		return hapax.Worker{}, err
	}
	return st.worker(pool, id), nil
}

// Workers implements hapax.WorkerTable and hapax.WorkerStore.
func (s *Store) Workers(ctx context.Context, pool string) ([]hapax.Worker, error) {
	st, err := s.read(ctx)
	if err != nil || st.Pools[pool] == nil {
		return nil, err
	}
	var rows []hapax.Worker
	for _, id := range slices.Sorted(maps.Keys(st.Pools[pool].Workers)) {
		rows = append(rows, st.worker(pool, id))
	}
	return rows, nil
}

// SwapWorker implements hapax.WorkerTable.
func (s *Store) SwapWorker(ctx context.Context, old, next hapax.Worker) (bool, error) {
	if err := hapax.ValidateName("pool", next.Pool); err != nil {
		return false, err
	}
	swapped := false
	_, err := s.change(ctx, func(st *state) (bool, error) {
		row := st.worker(next.Pool, next.ID)
		if row.Epoch != old.Epoch || row.Epoch != 0 && row.Mark != old.Mark {
			return false, nil
		}
		st.pool(next.Pool).Workers[next.ID] = worker{next.Mark, next.Epoch, next.Holder, next.Expires.UnixMilli()}
		swapped = true
		return true, nil
	})
	return swapped && err == nil, err
}

// AcquireWorker implements hapax.WorkerStore.
func (s *Store) AcquireWorker(ctx context.Context, req hapax.AcquireRequest) (hapax.Lease, error) {
	return hapax.AcquireWorker(ctx, s, req)
}

// ExtendWorker implements hapax.WorkerStore.
func (s *Store) ExtendWorker(ctx context.Context, lease hapax.Lease, req hapax.ExtendRequest) (hapax.Lease, error) {
	return hapax.ExtendWorker(ctx, s, lease, req)
}

// SealWorker implements hapax.WorkerStore.
func (s *Store) SealWorker(ctx context.Context, lease hapax.Lease, last int64) error {
	return hapax.SealWorker(ctx, s, lease, last)
}
