// Package memstore keeps tags and workers in memory. It is for tests and for
// programs that need no uniqueness across restarts: what it granted is
// forgotten with the process.
package memstore

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
)

var (
	_ driver.Store    = (*Store)(nil)
	_ driver.Guarding = (*Store)(nil)
	_ driver.Healing  = (*Store)(nil)
)

// A Store is a store in memory. Its methods are safe for concurrent use.
type Store struct {
	driver.Leases

	mu     sync.Mutex // guards everything below
	state  state
	closed bool
}

// state is what a store remembers; the values of its maps are never changed in
// place.
type state struct {
	id   string
	tags map[string]driver.Tag
	rows map[rowKey][]byte
}

type rowKey struct{ table, name string }

// New returns an empty store with a random identity.
func New() *Store {
	return open(state{rand.Text(), map[string]driver.Tag{}, map[rowKey][]byte{}})
}

func open(st state) *Store {
	s := &Store{state: st}
	s.Leases = driver.LeasesIn(s)
	return s
}

// Snapshot returns an independent store in the same state and with the same
// identity, as a backup would be. It works on a closed store too.
func (s *Store) Snapshot() *Store {
	s.mu.Lock()
	defer s.mu.Unlock()
	return open(s.state.clone())
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
	return state{s.id, maps.Clone(s.tags), maps.Clone(s.rows)}
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
		return fmt.Errorf("%w: the memory store", hapax.ErrClosed)
	}
	return nil
}

// StoreID implements driver.Store.
func (s *Store) StoreID(ctx context.Context) (string, error) {
	if err := s.lock(ctx); err != nil {
		return "", err
	}
	defer s.mu.Unlock()
	return s.state.id, nil
}

// Ping implements driver.Store.
func (s *Store) Ping(ctx context.Context) error {
	if err := s.lock(ctx); err != nil {
		return err
	}
	s.mu.Unlock()
	return nil
}

// Close implements driver.Store. Later calls fail with ErrClosed; the
// state stays available to Snapshot.
func (s *Store) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	return nil
}

// Allocate implements hapax.SegmentStore.
func (s *Store) Allocate(ctx context.Context, tag string, n int64, last hapax.GrantKey) (hapax.Allocation, error) {
	var a hapax.Allocation
	err := s.change(ctx, tag, func(t driver.Tag) (next driver.Tag, err error) {
		a, next, err = driver.Advance(t, n, last)
		return next, err
	})
	if err != nil {
		return hapax.Allocation{}, err
	}
	return a, nil
}

// HandBack implements hapax.SegmentStore.
func (s *Store) HandBack(ctx context.Context, a hapax.Allocation, next int64) error {
	return s.change(ctx, a.Tag.Name, func(t driver.Tag) (driver.Tag, error) { return driver.HandBack(t, a, next) })
}

// UpdateTag implements driver.TagStore.
func (s *Store) UpdateTag(ctx context.Context, name string, u driver.TagUpdate) (hapax.Tag, error) {
	return s.redefine(ctx, name, func(t hapax.Tag) (hapax.Tag, error) { return driver.Update(t, u) })
}

// DeleteTag implements driver.TagStore.
func (s *Store) DeleteTag(ctx context.Context, name string) (hapax.Tag, error) {
	return s.redefine(ctx, name, driver.Delete)
}

// redefine replaces the definition of an existing tag by what f makes of it.
func (s *Store) redefine(ctx context.Context, name string, f func(hapax.Tag) (hapax.Tag, error)) (hapax.Tag, error) {
	var defined hapax.Tag
	err := s.change(ctx, name, func(t driver.Tag) (driver.Tag, error) {
		var err error
		defined, err = f(t.Tag)
		return t.Redefined(defined), err
	})
	if err != nil {
		return hapax.Tag{}, err
	}
	return defined, nil
}

// change replaces an existing tag by what f makes of it, unless f fails.
func (s *Store) change(ctx context.Context, name string, f func(driver.Tag) (driver.Tag, error)) error {
	if err := s.lock(ctx); err != nil {
		return err
	}
	defer s.mu.Unlock()
	return s.changeLocked(name, f)
}

func (s *Store) changeLocked(name string, f func(driver.Tag) (driver.Tag, error)) error {
	t, ok := s.state.tags[name]
	if !ok {
		return notFound(name)
	}
	t, err := f(t)
	if err != nil {
		return err
	}
	s.state.tags[name] = t
	return nil
}

func notFound(name string) error { return fmt.Errorf("%w: %q", hapax.ErrTagNotFound, name) }

// CreateTag implements hapax.SegmentStore.
func (s *Store) CreateTag(ctx context.Context, tag hapax.Tag, mode hapax.CreateMode) (hapax.Tag, error) {
	tag, err := tag.WithDefaults()
	if err != nil {
		return hapax.Tag{}, err
	}
	tag.Deleted, tag.Token = false, 0
	if err := s.lock(ctx); err != nil {
		return hapax.Tag{}, err
	}
	defer s.mu.Unlock()
	stored := s.state.tags[tag.Name]
	if stored.Name != "" {
		if tag, err = driver.Revive(stored.Tag, tag, mode); err != nil {
			return hapax.Tag{}, err
		}
	}
	s.state.tags[tag.Name] = stored.Redefined(tag)
	return tag, nil
}

// Tag implements driver.TagStore.
func (s *Store) Tag(ctx context.Context, name string) (hapax.Tag, error) {
	if err := s.lock(ctx); err != nil {
		return hapax.Tag{}, err
	}
	defer s.mu.Unlock()
	t, ok := s.state.tags[name]
	if !ok {
		return hapax.Tag{}, notFound(name)
	}
	return t.Tag, nil
}

// Tags implements driver.TagStore.
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
			page = append(page, s.state.tags[name].Tag)
		}
	}
	return page, nil
}

// Row implements driver.Rows.
func (s *Store) Row(ctx context.Context, table, name string) ([]byte, error) {
	if err := s.lock(ctx); err != nil {
		return nil, err
	}
	defer s.mu.Unlock()
	return s.state.rows[rowKey{table, name}], nil
}

// ListRows implements driver.Rows.
func (s *Store) ListRows(ctx context.Context, table, after string, limit int) ([]driver.Row, error) {
	if err := s.lock(ctx); err != nil {
		return nil, err
	}
	defer s.mu.Unlock()
	var rows []driver.Row
	for k, v := range s.state.rows {
		if k.table == table && k.name > after {
			rows = append(rows, driver.Row{Name: k.name, Value: v})
		}
	}
	slices.SortFunc(rows, func(a, b driver.Row) int { return cmp.Compare(a.Name, b.Name) })
	return rows[:min(len(rows), max(0, limit))], nil
}

// SwapRow implements driver.Rows.
func (s *Store) SwapRow(ctx context.Context, table, name string, old, next []byte) (bool, error) {
	if err := driver.CheckSwap(table, name, old, next); err != nil {
		return false, err
	}
	if err := s.lock(ctx); err != nil {
		return false, err
	}
	defer s.mu.Unlock()
	return s.swapLocked(table, name, old, next), nil
}

func (s *Store) swapLocked(table, name string, old, next []byte) bool {
	key := rowKey{table, name}
	stored, exists := s.state.rows[key]
	if exists != (old != nil) || !bytes.Equal(stored, old) {
		return false
	}
	if next == nil {
		delete(s.state.rows, key)
	} else {
		s.state.rows[key] = bytes.Clone(next)
	}
	return true
}

// Shared implements driver.Rows: several issuers of a process may stand for
// several nodes.
func (s *Store) Shared() bool { return true }
