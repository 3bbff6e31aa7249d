// Package memstore keeps tags and workers in memory. It is for tests and for
// programs that need no uniqueness across restarts: what it granted is
// forgotten with the process.
package memstore

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/hapax-id/hapax"
)

var (
	_ hapax.Store       = (*Store)(nil)
	_ hapax.WorkerTable = (*Store)(nil)
)

// A Store is a store in memory. Its methods are safe for concurrent use.
type Store struct {
	mu     sync.Mutex // guards everything below
	state  state
	closed bool
}

// state is what a store remembers; its values hold no pointers.
type state struct {
	id      string
	tags    map[string]hapax.Tag
	pools   map[string]string
	workers map[workerKey]hapax.Worker
}

type workerKey struct {
	pool string
	id   int64
}

// New returns an empty store with a random identity.
func New() *Store {
	return &Store{state: state{
		id:      rand.Text(),
		tags:    map[string]hapax.Tag{},
		pools:   map[string]string{},
		workers: map[workerKey]hapax.Worker{},
	}}
}

// Snapshot returns an independent store in the same state and with the same
// identity, as a backup would be. It works on a closed store too.
func (s *Store) Snapshot() *Store {
	s.mu.Lock()
	defer s.mu.Unlock()
	return &Store{state: s.state.clone()}
}

// Restore puts s into the state and identity of from, which stays usable. With
// an earlier Snapshot that is a rollback, with another store a replacement.
func (s *Store) Restore(from *Store) {
	c := from.Snapshot()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state = c.state
}

func (s state) clone() state {
	return state{s.id, maps.Clone(s.tags), maps.Clone(s.pools), maps.Clone(s.workers)}
}

// lock takes the lock unless the call cannot be served. On success the caller
// unlocks.
func (s *Store) lock(ctx context.Context) error {
	if err := context.Cause(ctx); err != nil {
		return fmt.Errorf("%w: %w", hapax.ErrStoreUnavailable, err)
	}
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return fmt.Errorf("%w: the store is closed", hapax.ErrStoreUnavailable)
	}
	return nil
}

// StoreID implements hapax.SegmentStore.
func (s *Store) StoreID(ctx context.Context) (string, error) {
	if err := s.lock(ctx); err != nil {
		return "", err
	}
	defer s.mu.Unlock()
	return s.state.id, nil
}

// Ping implements hapax.Store.
func (s *Store) Ping(ctx context.Context) error {
	if err := s.lock(ctx); err != nil {
		return err
	}
	s.mu.Unlock()
	return nil
}

// Close implements hapax.Store. Later calls fail with ErrStoreUnavailable; the
// state stays available to Snapshot.
func (s *Store) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	return nil
}

// Allocate implements hapax.SegmentStore.
func (s *Store) Allocate(ctx context.Context, tag string, n int64) (hapax.Allocation, error) {
	var a hapax.Allocation
	_, err := s.change(ctx, tag, func(t hapax.Tag) (hapax.Tag, error) {
		g, t, err := t.Advance(n)
		a = hapax.Allocation{Grant: g, Tag: t}
		return t, err
	})
	if err != nil {
		return hapax.Allocation{}, err
	}
	return a, nil
}

// UpdateTag implements hapax.TagStore.
func (s *Store) UpdateTag(ctx context.Context, name string, u hapax.TagUpdate) (hapax.Tag, error) {
	return s.change(ctx, name, u.Apply)
}

// DeleteTag implements hapax.TagStore.
func (s *Store) DeleteTag(ctx context.Context, name string) (hapax.Tag, error) {
	return s.change(ctx, name, func(t hapax.Tag) (hapax.Tag, error) {
		if t.Deleted {
			return t, fmt.Errorf("%w: %q", hapax.ErrTagDeleted, name)
		}
		t.Deleted = true
		return t, nil
	})
}

// change replaces an existing tag by what f makes of it, unless f fails.
func (s *Store) change(ctx context.Context, name string, f func(hapax.Tag) (hapax.Tag, error)) (hapax.Tag, error) {
	if err := s.lock(ctx); err != nil {
		return hapax.Tag{}, err
	}
	defer s.mu.Unlock()
	t, ok := s.state.tags[name]
	if !ok {
		return hapax.Tag{}, notFound(name)
	}
	t, err := f(t)
	if err != nil {
		return hapax.Tag{}, err
	}
	s.state.tags[name] = t
	return t, nil
}

func notFound(name string) error { return fmt.Errorf("%w: %q", hapax.ErrTagNotFound, name) }

// CreateTag implements hapax.SegmentStore.
func (s *Store) CreateTag(ctx context.Context, tag hapax.Tag, mode hapax.CreateMode) (hapax.Tag, error) {
	tag, err := tag.WithDefaults()
	if err != nil {
		return hapax.Tag{}, err
	}
	tag.Deleted = false
	if err := s.lock(ctx); err != nil {
		return hapax.Tag{}, err
	}
	defer s.mu.Unlock()
	if old, ok := s.state.tags[tag.Name]; ok {
		if tag, err = old.Revive(tag, mode); err != nil {
			return hapax.Tag{}, err
		}
	}
	s.state.tags[tag.Name] = tag
	return tag, nil
}

// Tag implements hapax.TagStore.
func (s *Store) Tag(ctx context.Context, name string) (hapax.Tag, error) {
	if err := s.lock(ctx); err != nil {
		return hapax.Tag{}, err
	}
	defer s.mu.Unlock()
	t, ok := s.state.tags[name]
	if !ok {
		return hapax.Tag{}, notFound(name)
	}
	return t, nil
}

// Tags implements hapax.TagStore.
func (s *Store) Tags(ctx context.Context, after string, limit int) ([]hapax.Tag, error) {
	if err := s.lock(ctx); err != nil {
		return nil, err
	}
	defer s.mu.Unlock()
	var page []hapax.Tag
	for _, name := range slices.Sorted(maps.Keys(s.state.tags)) {
		if len(page) >= limit {
			break
		}
		if name > after {
			page = append(page, s.state.tags[name])
		}
	}
	return page, nil
}

// FreezePool implements hapax.WorkerTable.
func (s *Store) FreezePool(ctx context.Context, pool, layout string) (string, error) {
	if err := s.lock(ctx); err != nil {
		return "", err
	}
	defer s.mu.Unlock()
	if frozen, ok := s.state.pools[pool]; ok {
		return frozen, nil
	}
	s.state.pools[pool] = layout
	return layout, nil
}

// Pools implements hapax.WorkerStore.
func (s *Store) Pools(ctx context.Context) ([]hapax.Pool, error) {
	if err := s.lock(ctx); err != nil {
		return nil, err
	}
	defer s.mu.Unlock()
	var pools []hapax.Pool
	for _, name := range slices.Sorted(maps.Keys(s.state.pools)) {
		pools = append(pools, hapax.Pool{Name: name, Layout: s.state.pools[name]})
	}
	return pools, nil
}

// Worker implements hapax.WorkerTable.
func (s *Store) Worker(ctx context.Context, pool string, id int64) (hapax.Worker, error) {
	if err := s.lock(ctx); err != nil {
		return hapax.Worker{}, err
	}
	defer s.mu.Unlock()
	return s.state.workers[workerKey{pool, id}], nil
}

// Workers implements hapax.WorkerTable and hapax.WorkerStore.
func (s *Store) Workers(ctx context.Context, pool string) ([]hapax.Worker, error) {
	if err := s.lock(ctx); err != nil {
		return nil, err
	}
	defer s.mu.Unlock()
	var rows []hapax.Worker
	for k, w := range s.state.workers {
		if k.pool == pool {
			rows = append(rows, w)
		}
	}
	slices.SortFunc(rows, func(a, b hapax.Worker) int { return cmp.Compare(a.ID, b.ID) })
	return rows, nil
}

// SwapWorker implements hapax.WorkerTable.
func (s *Store) SwapWorker(ctx context.Context, old, next hapax.Worker) (bool, error) {
	if err := s.lock(ctx); err != nil {
		return false, err
	}
	defer s.mu.Unlock()
	key := workerKey{next.Pool, next.ID}
	row, exists := s.state.workers[key]
	if exists != (old.Epoch != 0) || exists && (row.Epoch != old.Epoch || row.Mark != old.Mark) {
		return false, nil
	}
	s.state.workers[key] = next
	return true, nil
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
