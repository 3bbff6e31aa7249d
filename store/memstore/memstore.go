// Package memstore keeps tags and workers in memory. It is for tests and for
// programs that need no uniqueness across restarts: what it granted is
// forgotten with the process.
package memstore

import (
	"context"
	"crypto/rand"
	"maps"

	"github.com/hapax-id/hapax/store/driver"
)

var _ driver.Store = (*Store)(nil)

// base gives a Store its methods without a field that outsiders see.
type base = driver.Base

// A Store is a store in memory. Its methods are safe for concurrent use.
type Store struct {
	*base // tags and rows
	calls driver.Calls
	rows  rows
}

// New returns an empty store with a random identity.
func New() *Store {
	return open(rand.Text(), map[string]map[string][]byte{})
}

func open(id string, tables map[string]map[string][]byte) *Store {
	s := &Store{calls: driver.Calls{Service: "memory", Timeout: -1}, rows: rows{id: id, tables: tables}}
	s.base = driver.NewBase(&s.calls, &s.rows, driver.BaseOptions{MaxBytes: 1 << 20})
	return s
}

// Snapshot returns an independent store in the same state and with the same
// identity, as a backup would be. It works on a closed store too.
func (s *Store) Snapshot() *Store {
	s.rows.mu.Lock()
	defer s.rows.mu.Unlock()
	tables := make(map[string]map[string][]byte, len(s.rows.tables))
	for name, table := range s.rows.tables {
		tables[name] = maps.Clone(table)
	}
	return open(s.rows.id, tables)
}

// Restore puts s into the state and identity of from, which stays usable. With
// an earlier Snapshot that is a rollback, with another store a replacement.
func (s *Store) Restore(from *Store) {
	// Before the lock: Snapshot takes the one of from, which may be this store.
	c := from.Snapshot()
	s.rows.mu.Lock()
	defer s.rows.mu.Unlock()
	s.rows.id, s.rows.tables = c.rows.id, c.rows.tables
}

// StoreID implements driver.Store.
func (s *Store) StoreID(ctx context.Context) (string, error) {
	if err := s.Ping(ctx); err != nil {
		return "", err
	}
	s.rows.mu.Lock()
	defer s.rows.mu.Unlock()
	return s.rows.id, nil
}

// Ping implements driver.Store.
func (s *Store) Ping(ctx context.Context) error {
	_, cancel, err := s.calls.Begin(ctx)
	if err == nil {
		cancel()
	}
	return err
}

// Close implements driver.Store. Later calls fail with ErrClosed; the
// state stays available to Snapshot.
func (s *Store) Close() error {
	s.calls.End()
	return nil
}
