package driver

import "bytes"

// A Tx is a transaction on rows, between whose calls nothing else happens. See [Apply].
type Tx interface {
	// Value returns a row's value, which the caller may keep; nil where there is no such row.
	Value(key Key) ([]byte, error)

	// Write writes a row; nil removes it.
	Write(key Key, next []byte) error
}

// Apply makes a step in a transaction, for an engine that compares rows by their values in this
// process. It judges everything before it writes the first row, so that a step that fails in
// judging leaves nothing behind.
func Apply(tx Tx, step Step) (r Result, err error) {
	r = Result{Met: true, Then: make([]Outcome, len(step.Then)), Each: make([]Outcome, len(step.Each))}
	if r.Look, err = CellsOf(step.Look, tx.Value); err != nil {
		return r, err
	}
	for _, c := range step.If {
		now, err := tx.Value(c.Key)
		if err != nil {
			return r, err
		}
		r.Met = r.Met && c.Holds(now)
		r.If = append(r.If, Cell{Value: now, Known: true})
	}
	raise := make([]Put, 0, 1)
	for _, p := range step.Raise {
		now, err := tx.Value(p.Key)
		if err != nil {
			return r, err
		}
		if bytes.Compare(now, p.Value) < 0 {
			raise = append(raise, p)
		}
	}
	for i, c := range step.Then {
		if r.Then[i], err = c.judge(tx); err != nil {
			return r, err
		}
		r.Met = r.Met && r.Then[i].Done
	}
	for i, c := range step.Each {
		if r.Each[i], err = c.judge(tx); err != nil {
			return r, err
		}
	}
	// Some were judged done before another one failed: an outcome must not tell of a change that was not written.
	if !r.Met {
		for _, outcomes := range [][]Outcome{r.Then, r.Each} {
			for i := range outcomes {
				outcomes[i].Done = false
			}
		}
		return r, nil
	}
	for _, p := range raise {
		if err := tx.Write(p.Key, p.Value); err != nil {
			return r, err
		}
	}
	if err := write(tx, step.Then, r.Then); err != nil {
		return r, err
	}
	return r, write(tx, step.Each, r.Each)
}

// CellsOf returns the cells of keys, with the values that value returns.
func CellsOf(keys []Key, value func(Key) ([]byte, error)) ([]Cell, error) {
	cells := make([]Cell, len(keys))
	for i, key := range keys {
		now, err := value(key)
		if err != nil {
			return nil, err
		}
		cells[i] = Cell{Value: now, Known: true}
	}
	return cells, nil
}

// Holds reports whether the condition holds for a row that is recognised by its value.
func (c Cond) Holds(now []byte) bool {
	if c.Least != nil {
		return bytes.Compare(now, c.Least) >= 0
	}
	return sameValue(now, c.Same.Value)
}

// judge reports whether a change may be made, and how its row is now.
func (c Change) judge(tx Tx) (Outcome, error) {
	now, err := tx.Value(c.Key)
	return Outcome{Done: sameValue(now, c.Old.Value), Now: Cell{Value: now, Known: err == nil}}, err
}

// write makes those changes that may be made.
func write(tx Tx, changes []Change, outcomes []Outcome) error {
	for i, c := range changes {
		if !outcomes[i].Done {
			continue
		}
		outcomes[i].Now = Cell{Value: c.Next, Known: true}
		if err := tx.Write(c.Key, c.Next); err != nil {
			return err
		}
	}
	return nil
}

// sameValue reports whether two values are equal; nil, for no row, differs from an empty one.
func sameValue(a, b []byte) bool { return (a == nil) == (b == nil) && bytes.Equal(a, b) }
