package memstore

import (
	"context"
	"maps"
	"slices"
	"sync"

	"github.com/hapax-id/hapax/store/driver"
)

// rows are a store's state; they implement driver.KV. The values are never changed in place,
// and equal ones mean equal states, so that cells have no version.
type rows struct {
	mu     sync.Mutex // guards what follows
	id     string
	tables map[string]map[string][]byte // by table and name
}

// Get implements driver.KV.
func (r *rows) Get(_ context.Context, _ driver.Freshness, keys ...driver.Key) ([]driver.Cell, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return driver.CellsOf(keys, locked{r}.Value)
}

// Scan implements driver.KV.
func (r *rows) Scan(_ context.Context, table, after string, limit int) (page []driver.Row, _ error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	names := slices.Sorted(maps.Keys(r.tables[table]))
	from, found := slices.BinarySearch(names, after)
	if found {
		from++
	}
	for _, name := range names[from : from+min(len(names)-from, limit)] {
		page = append(page, driver.Row{Name: name, Value: r.tables[table][name]})
	}
	return page, nil
}

// Step implements driver.KV.
func (r *rows) Step(_ context.Context, step driver.Step) (driver.Result, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return driver.Apply(locked{r}, step)
}

// locked are the rows while the lock is held; they implement driver.Tx.
type locked struct{ *rows }

func (r locked) Value(key driver.Key) ([]byte, error) { return r.tables[key.Table][key.Name], nil }

func (r locked) Write(key driver.Key, next []byte) error {
	table := r.tables[key.Table]
	switch {
	case next == nil:
		delete(table, key.Name)
		return nil
	case table == nil:
		table = map[string][]byte{}
		r.tables[key.Table] = table
	}
	table[key.Name] = next
	return nil
}
