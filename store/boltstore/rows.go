package boltstore

import (
	"bytes"
	"context"
	"slices"

	"go.etcd.io/bbolt"

	"github.com/hapax-id/hapax/store/driver"
)

// Row implements driver.Rows.
func (s *Store) Row(ctx context.Context, table, name string) ([]byte, error) {
	return read(ctx, s, func(tx *bbolt.Tx) ([]byte, error) { return getRow(tx, table, name) })
}

// getRow returns a copy of a row's value, nil if there is none.
func getRow(tx *bbolt.Tx, table, name string) ([]byte, error) {
	key := rowKey(table, name)
	value := tx.Bucket(bucketRows).Get(key)
	if value == nil {
		return nil, nil
	}
	raw, err := unseal(bucketRows, key, value)
	return bytes.Clone(raw), err
}

// ListRows implements driver.Rows.
func (s *Store) ListRows(ctx context.Context, table, after string, limit int) ([]driver.Row, error) {
	return read(ctx, s, func(tx *bbolt.Tx) ([]driver.Row, error) { return listRows(tx, table, after, limit) })
}

func listRows(tx *bbolt.Tx, table, after string, limit int) ([]driver.Row, error) {
	var page []driver.Row
	prefix, from := rowKey(table, ""), rowKey(table, after)
	c := tx.Bucket(bucketRows).Cursor()
	key, value := c.Seek(from)
	if bytes.Equal(key, from) {
		key, value = c.Next()
	}
	for ; bytes.HasPrefix(key, prefix) && len(page) < limit; key, value = c.Next() {
		raw, err := unseal(bucketRows, key, value)
		if err != nil {
			return nil, err
		}
		page = append(page, driver.Row{Name: string(key[len(prefix):]), Value: bytes.Clone(raw)})
	}
	return page, nil
}

// SwapRow implements driver.Rows.
func (s *Store) SwapRow(ctx context.Context, table, name string, old, next []byte) (bool, error) {
	if err := driver.CheckSwap(table, name, old, next); err != nil {
		return false, err
	}
	old, next = slices.Clone(old), slices.Clone(next) // the committer may still run when the caller has gone on
	return write(ctx, s, func(tx *transaction) (bool, error) { return swapRow(tx, table, name, old, next) })
}

func swapRow(tx *transaction, table, name string, old, next []byte) (bool, error) {
	stored, err := getRow(tx.Tx, table, name)
	if err != nil || (stored == nil) != (old == nil) || !bytes.Equal(stored, old) {
		return false, err
	}
	key := rowKey(table, name)
	var value []byte
	if next != nil {
		value = seal(bucketRows, key, next)
	}
	return true, tx.replace(bucketRows, key, value)
}

// Shared implements driver.Rows: the file is locked by one process.
func (s *Store) Shared() bool { return false }

// A rowsIn is the rows as one transaction sees them.
type rowsIn struct{ tx *transaction }

func (r rowsIn) Row(_ context.Context, table, name string) ([]byte, error) {
	return getRow(r.tx.Tx, table, name)
}

func (r rowsIn) ListRows(_ context.Context, table, after string, limit int) ([]driver.Row, error) {
	return listRows(r.tx.Tx, table, after, limit)
}

func (r rowsIn) SwapRow(_ context.Context, table, name string, old, next []byte) (bool, error) {
	return swapRow(r.tx, table, name, old, next)
}

func (r rowsIn) Shared() bool { return false }
