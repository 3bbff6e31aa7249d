package boltstore

import (
	"encoding/binary"
	"fmt"

	"go.etcd.io/bbolt"
)

// A total sums up all records but those of the bucket "store", so that one that
// has vanished from a damaged page is missed.
type total struct {
	Records int64  `json:"records"`
	Sum     uint32 `json:"sum"` // of the records' checksums, by exclusive or
}

// count takes a stored record into the total, or out of it.
func (t *total) count(value []byte, n int64) {
	t.Records += n
	if len(value) >= 4 {
		t.Sum ^= binary.LittleEndian.Uint32(value)
	}
}

// A transaction writes records and keeps the total.
type transaction struct {
	*bbolt.Tx
	total   total
	changed bool
}

func newTransaction(inner *bbolt.Tx) (*transaction, error) {
	tx := &transaction{Tx: inner}
	_, err := get(inner, bucketStore, keyTotal, &tx.total)
	return tx, err
}

// replace writes one value as it is stored, or removes it if value is nil.
func (tx *transaction) replace(bucket, key, value []byte) error {
	b := tx.Bucket(bucket)
	if old := b.Get(key); old != nil {
		tx.total.count(old, -1)
	}
	tx.changed = true
	if value == nil {
		return b.Delete(key)
	}
	tx.total.count(value, 1)
	return b.Put(key, value)
}

// finish writes the total. The caller commits.
func (tx *transaction) finish() error {
	return putMeta(tx.Tx, keyTotal, tx.total)
}

// putMeta writes one record of the bucket "store".
func putMeta(tx *bbolt.Tx, key []byte, record any) error {
	value, err := encode(bucketStore, key, record)
	if err != nil {
		return err
	}
	return tx.Bucket(bucketStore).Put(key, value)
}

// verify reads every record and compares the total.
func verify(tx *bbolt.Tx) error {
	var found, want total
	if _, err := get(tx, bucketStore, keyTotal, &want); err != nil {
		return err
	}
	for _, bucket := range [][]byte{bucketTags, bucketRows} {
		if err := tx.Bucket(bucket).ForEach(func(key, value []byte) error {
			found.count(value, 1)
			_, err := unseal(bucket, key, value)
			return err
		}); err != nil {
			return err
		}
	}
	if found != want {
		return fmt.Errorf("%w: %d records are there, with sum %08x, instead of %d with sum %08x", errDamaged, found.Records, found.Sum, want.Records, want.Sum)
	}
	return nil
}
