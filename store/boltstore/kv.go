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

// value returns a copy of a row's value, nil if there is none.
func value(tx *bbolt.Tx, key driver.Key) ([]byte, error) {
	bucket, name := place(key)
	stored := tx.Bucket(bucket).Get(name)
	if stored == nil {
		return nil, nil
	}
	raw, err := unseal(bucket, name, stored)
	// A copy: bbolt's memory belongs to the transaction.
	return bytes.Clone(raw), err
}

// Get implements driver.KV.
func (k kv) Get(ctx context.Context, _ driver.Freshness, keys ...driver.Key) ([]driver.Cell, error) {
	return read(ctx, k.s, func(tx *bbolt.Tx) ([]driver.Cell, error) { return cells(tx, keys) })
}

func cells(tx *bbolt.Tx, keys []driver.Key) ([]driver.Cell, error) {
	return driver.CellsOf(keys, func(key driver.Key) ([]byte, error) { return value(tx, key) })
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

// Step implements driver.KV: it shares a transaction with other requests. That may still run when
// the caller has left, so the caller must not change the step's values afterwards.
func (k kv) Step(ctx context.Context, step driver.Step) (driver.Result, error) {
	return write(ctx, k.s, func(tx *transaction) (driver.Result, error) { return driver.Apply(tx, step) })
}

// Value implements driver.Tx.
func (tx *transaction) Value(key driver.Key) ([]byte, error) { return value(tx.Tx, key) }

// Write implements driver.Tx.
func (tx *transaction) Write(key driver.Key, next []byte) error {
	bucket, name := place(key)
	if next != nil {
		next = seal(bucket, name, next)
	}
	return tx.replace(bucket, name, next)
}

// within is the primitive as one transaction sees it.
type within struct{ tx *transaction }

func (w within) Get(_ context.Context, _ driver.Freshness, keys ...driver.Key) ([]driver.Cell, error) {
	return cells(w.tx.Tx, keys)
}

func (w within) Scan(_ context.Context, table, after string, limit int) ([]driver.Row, error) {
	return scan(w.tx.Tx, table, after, limit)
}

func (w within) Step(_ context.Context, step driver.Step) (driver.Result, error) {
	return driver.Apply(w.tx, step)
}
