package memstore

import (
	"bytes"
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

func (r *rows) cellLocked(key driver.Key) driver.Cell {
	return driver.Cell{Value: r.tables[key.Table][key.Name], Known: true}
}

// Get implements driver.KV.
func (r *rows) Get(_ context.Context, _ driver.Freshness, keys ...driver.Key) ([]driver.Cell, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.cellsLocked(keys), nil
}

func (r *rows) cellsLocked(keys []driver.Key) []driver.Cell {
	cells := make([]driver.Cell, len(keys))
	for i, key := range keys {
		cells[i] = r.cellLocked(key)
	}
	return cells
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
	result := driver.Result{Met: r.meetsLocked(step)}
	if !result.Met {
		for _, c := range step.If {
			result.If = append(result.If, r.cellLocked(c.Key))
		}
	} else {
		for _, p := range step.Raise {
			if bytes.Compare(r.cellLocked(p.Key).Value, p.Value) < 0 {
				r.writeLocked(p.Key, p.Value)
			}
		}
	}
	result.Then = r.changeLocked(step.Then, result.Met)
	result.Each = r.changeLocked(step.Each, result.Met)
	result.Look = r.cellsLocked(step.Look)
	return result, nil
}

// meetsLocked reports whether the conditions of a step hold.
func (r *rows) meetsLocked(step driver.Step) bool {
	for _, c := range step.If {
		now := r.cellLocked(c.Key).Value
		if c.Least != nil && bytes.Compare(now, c.Least) < 0 || c.Least == nil && !same(now, c.Same.Value) {
			return false
		}
	}
	for _, c := range step.Then {
		if !same(r.cellLocked(c.Key).Value, c.Old.Value) {
			return false
		}
	}
	return true
}

// changeLocked makes those changes whose rows are as they were, if they may be made.
func (r *rows) changeLocked(changes []driver.Change, may bool) []driver.Outcome {
	outcomes := make([]driver.Outcome, len(changes))
	for i, c := range changes {
		if outcomes[i].Done = may && same(r.cellLocked(c.Key).Value, c.Old.Value); outcomes[i].Done {
			r.writeLocked(c.Key, c.Next)
		}
		outcomes[i].Now = r.cellLocked(c.Key)
	}
	return outcomes
}

// same reports whether two values are equal; no row is not an empty one.
func same(a, b []byte) bool { return (a == nil) == (b == nil) && bytes.Equal(a, b) }

func (r *rows) writeLocked(key driver.Key, next []byte) {
	table := r.tables[key.Table]
	switch {
	case next == nil:
		delete(table, key.Name)
		return
	case table == nil:
		table = map[string][]byte{}
		r.tables[key.Table] = table
	}
	table[key.Name] = next
}
