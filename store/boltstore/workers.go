package boltstore

import (
	"bytes"
	"context"

	"go.etcd.io/bbolt"

	"github.com/hapax-id/hapax"
)

// FreezePool implements hapax.WorkerTable.
func (s *Store) FreezePool(ctx context.Context, pool, layout string) (string, error) {
	if err := hapax.ValidateName("pool", pool); err != nil {
		return "", err
	}
	frozen, err := read(ctx, s, func(tx *bbolt.Tx) (string, error) { return getLayout(tx, pool) })
	if err != nil || frozen != "" {
		return frozen, err
	}
	return write(ctx, s, func(tx *transaction) (string, error) {
		if frozen, err := getLayout(tx.Tx, pool); err != nil || frozen != "" {
			return frozen, err
		}
		return layout, tx.put(bucketPools, []byte(pool), poolRecord{layout})
	})
}

// getLayout returns the empty string if the pool does not exist.
func getLayout(tx *bbolt.Tx, pool string) (string, error) {
	var r poolRecord
	_, err := get(tx, bucketPools, []byte(pool), &r)
	return r.Layout, err
}

// Pools implements hapax.WorkerStore.
func (s *Store) Pools(ctx context.Context) ([]hapax.Pool, error) {
	return read(ctx, s, pools)
}

func pools(tx *bbolt.Tx) ([]hapax.Pool, error) {
	var all []hapax.Pool
	err := tx.Bucket(bucketPools).ForEach(func(key, value []byte) error {
		var r poolRecord
		if err := decode(bucketPools, key, value, &r); err != nil {
			return err
		}
		all = append(all, hapax.Pool{Name: string(key), Layout: r.Layout})
		return nil
	})
	return all, err
}

// Worker implements hapax.WorkerTable.
func (s *Store) Worker(ctx context.Context, pool string, id int64) (hapax.Worker, error) {
	return read(ctx, s, func(tx *bbolt.Tx) (hapax.Worker, error) { return getWorker(tx, workerKey(pool, id)) })
}

// getWorker returns the zero worker if there is no row.
func getWorker(tx *bbolt.Tx, key []byte) (hapax.Worker, error) {
	var r workerRecord
	ok, err := get(tx, bucketWorkers, key, &r)
	if err != nil || !ok {
		return hapax.Worker{}, err
	}
	return r.worker(key), nil
}

// Workers implements hapax.WorkerTable and hapax.WorkerStore.
func (s *Store) Workers(ctx context.Context, pool string) ([]hapax.Worker, error) {
	return read(ctx, s, func(tx *bbolt.Tx) ([]hapax.Worker, error) { return workers(tx, pool) })
}

func workers(tx *bbolt.Tx, pool string) ([]hapax.Worker, error) {
	var rows []hapax.Worker
	prefix := workerPrefix(pool)
	c := tx.Bucket(bucketWorkers).Cursor()
	for key, value := c.Seek(prefix); bytes.HasPrefix(key, prefix); key, value = c.Next() {
		var r workerRecord
		if err := decode(bucketWorkers, key, value, &r); err != nil {
			return nil, err
		}
		rows = append(rows, r.worker(key))
	}
	return rows, nil
}

// SwapWorker implements hapax.WorkerTable.
func (s *Store) SwapWorker(ctx context.Context, old, next hapax.Worker) (bool, error) {
	if err := hapax.ValidateName("pool", next.Pool); err != nil {
		return false, err
	}
	return write(ctx, s, func(tx *transaction) (bool, error) {
		key := workerKey(next.Pool, next.ID)
		row, err := getWorker(tx.Tx, key)
		if err != nil || row.Epoch != old.Epoch || row.Epoch != 0 && row.Mark != old.Mark {
			return false, err
		}
		return true, putWorker(tx, next)
	})
}

func putWorker(tx *transaction, w hapax.Worker) error {
	return tx.put(bucketWorkers, workerKey(w.Pool, w.ID), workerRecord{w.Mark, w.Epoch, w.Holder, w.Expires.UnixMilli()})
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
