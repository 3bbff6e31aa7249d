package boltstore

import (
	"bytes"
	"context"

	"go.etcd.io/bbolt"

	"github.com/hapax-id/hapax/store/driver"
)

// A kv is a store's rows; it implements driver.KV.
type kv struct{ s *Store }

// place returns the bucket and the key of a row. Rows that are no tags are ordered by table and
// name; no name contains a zero byte.
func place(key driver.Key) (bucket, name []byte) {
	if key.Table == "" {
		return bucketTags, []byte(key.Name)
	}
	return bucketRows, []byte(key.Table + "\x00" + key.Name)
}

// value returns a row's value, nil if there is none. It is good for the transaction only.
func value(tx *bbolt.Tx, key driver.Key) ([]byte, error) {
	bucket, name := place(key)
	stored := tx.Bucket(bucket).Get(name)
	if stored == nil {
		return nil, nil
	}
	return unseal(bucket, name, stored)
}

// cells returns copies of rows.
func cells(tx *bbolt.Tx, keys []driver.Key) ([]driver.Cell, error) {
	all := make([]driver.Cell, len(keys))
	for i, key := range keys {
		raw, err := value(tx, key)
		if err != nil {
			return nil, err
		}
		all[i] = driver.Cell{Value: bytes.Clone(raw), Known: true}
	}
	return all, nil
}

// Get implements driver.KV.
func (k kv) Get(ctx context.Context, _ driver.Freshness, keys ...driver.Key) ([]driver.Cell, error) {
	return read(ctx, k.s, func(tx *bbolt.Tx) ([]driver.Cell, error) { return cells(tx, keys) })
}

// Scan implements driver.KV.
func (k kv) Scan(ctx context.Context, table, after string, limit int) ([]driver.Row, error) {
	return read(ctx, k.s, func(tx *bbolt.Tx) ([]driver.Row, error) { return scan(tx, table, after, limit) })
}

func scan(tx *bbolt.Tx, table, after string, limit int) (page []driver.Row, err error) {
	bucket, prefix := place(driver.Key{Table: table})
	_, from := place(driver.Key{Table: table, Name: after})
	c := tx.Bucket(bucket).Cursor()
	name, stored := c.Seek(from)
	if bytes.Equal(name, from) {
		name, stored = c.Next()
	}
	for ; name != nil && bytes.HasPrefix(name, prefix) && len(page) < limit; name, stored = c.Next() {
		raw, err := unseal(bucket, name, stored)
		if err != nil {
			return nil, err
		}
		page = append(page, driver.Row{Name: string(name[len(prefix):]), Value: bytes.Clone(raw)})
	}
	return page, nil
}

// Step implements driver.KV. It is one request of the committer. The rows of the step are not
// changed when the caller has gone on, and the committer may still run.
func (k kv) Step(ctx context.Context, step driver.Step) (driver.Result, error) {
	return write(ctx, k.s, func(tx *transaction) (driver.Result, error) { return tx.step(step) })
}

// step makes a step in a transaction. It judges everything before it writes the first row, so
// that a step that fails leaves nothing behind in the transaction that it shares.
func (tx *transaction) step(step driver.Step) (r driver.Result, err error) {
	r = driver.Result{Met: true, Then: make([]driver.Outcome, len(step.Then)), Each: make([]driver.Outcome, len(step.Each))}
	if r.Look, err = cells(tx.Tx, step.Look); err != nil {
		return r, err
	}
	for _, c := range step.If {
		now, err := value(tx.Tx, c.Key)
		if err != nil {
			return r, err
		}
		r.If = append(r.If, driver.Cell{Value: bytes.Clone(now), Known: true})
		if c.Least != nil {
			r.Met = r.Met && bytes.Compare(now, c.Least) >= 0
		} else {
			r.Met = r.Met && same(now, c.Same.Value)
		}
	}
	var raise []driver.Put
	for _, p := range step.Raise {
		now, err := value(tx.Tx, p.Key)
		if err != nil {
			return r, err
		}
		if bytes.Compare(now, p.Value) < 0 {
			raise = append(raise, p)
		}
	}
	for i, c := range step.Then {
		if r.Then[i], err = tx.judge(c); err != nil {
			return r, err
		}
		r.Met = r.Met && r.Then[i].Done
	}
	for i, c := range step.Each {
		if r.Each[i], err = tx.judge(c); err != nil {
			return r, err
		}
	}
	if !r.Met {
		for _, outcomes := range [][]driver.Outcome{r.Then, r.Each} {
			for i := range outcomes {
				outcomes[i].Done = false
			}
		}
		return r, nil
	}
	for _, p := range raise {
		if err := tx.write(p.Key, p.Value); err != nil {
			return r, err
		}
	}
	if err := tx.change(step.Then, r.Then); err != nil {
		return r, err
	}
	return r, tx.change(step.Each, r.Each)
}

// judge reports whether a change may be made, and how its row is now.
func (tx *transaction) judge(c driver.Change) (driver.Outcome, error) {
	now, err := value(tx.Tx, c.Key)
	return driver.Outcome{Done: same(now, c.Old.Value), Now: driver.Cell{Value: bytes.Clone(now), Known: err == nil}}, err
}

// change makes those changes that may be made.
func (tx *transaction) change(changes []driver.Change, outcomes []driver.Outcome) error {
	for i, c := range changes {
		if !outcomes[i].Done {
			continue
		}
		outcomes[i].Now = driver.Cell{Value: c.Next, Known: true}
		if err := tx.write(c.Key, c.Next); err != nil {
			return err
		}
	}
	return nil
}

// write writes a row, or removes it if its value is nil.
func (tx *transaction) write(key driver.Key, next []byte) error {
	bucket, name := place(key)
	if next == nil {
		return tx.replace(bucket, name, nil)
	}
	return tx.replace(bucket, name, seal(bucket, name, next))
}

// same reports whether two values are equal; no row is not an empty one.
func same(a, b []byte) bool { return (a == nil) == (b == nil) && bytes.Equal(a, b) }

// within is the primitive as one transaction sees it.
type within struct{ tx *transaction }

func (w within) Get(_ context.Context, _ driver.Freshness, keys ...driver.Key) ([]driver.Cell, error) {
	return cells(w.tx.Tx, keys)
}

func (w within) Scan(_ context.Context, table, after string, limit int) ([]driver.Row, error) {
	return scan(w.tx.Tx, table, after, limit)
}

func (w within) Step(_ context.Context, step driver.Step) (driver.Result, error) {
	return w.tx.step(step)
}
