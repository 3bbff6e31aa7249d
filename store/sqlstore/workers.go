package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/hapax-id/hapax"
)

// maxLayoutBytes bounds a pool's layout specification.
const maxLayoutBytes = 1024

// FreezePool implements hapax.WorkerTable.
func (s *Store) FreezePool(ctx context.Context, pool, layout string) (frozen string, err error) {
	if err := hapax.ValidateName("pool", pool); err != nil {
		return "", err
	}
	if len(layout) > maxLayoutBytes {
		return "", &hapax.ValueError{Field: "layout", Value: layout, Allowed: fmt.Sprintf("at most %d bytes", maxLayoutBytes), Err: hapax.ErrInvalidLayout}
	}
	err = s.do(ctx, "freeze a pool", func(ctx context.Context) error {
		err := s.queryRow(ctx, s.sql.pool, []any{pool}, &frozen)
		if !errors.Is(err, sql.ErrNoRows) {
			return err
		}
		added, err := s.insert(ctx, s.sql.poolInsert, []any{pool, layout, s.id})
		if added || err != nil {
			frozen = layout
			return err
		}
		if err := s.checkID(ctx); err != nil {
			return err
		}
		return s.queryRow(ctx, s.sql.pool, []any{pool}, &frozen)
	})
	return frozen, err
}

// Pools implements hapax.WorkerStore.
func (s *Store) Pools(ctx context.Context) (pools []hapax.Pool, err error) {
	err = s.do(ctx, "list the pools", func(ctx context.Context) error {
		pools = nil
		rows, err := s.db.QueryContext(ctx, s.sql.pools)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			var p hapax.Pool
			if err := rows.Scan(&p.Name, &p.Layout); err != nil {
				return err
			}
			pools = append(pools, p)
		}
		return rows.Err()
	})
	return pools, err
}

// Worker implements hapax.WorkerTable.
func (s *Store) Worker(ctx context.Context, pool string, id int64) (w hapax.Worker, err error) {
	if err := hapax.ValidateName("pool", pool); err != nil {
		return w, err
	}
	err = s.do(ctx, "read a worker", func(ctx context.Context) error {
		w, err = scanWorker(s.db.QueryRowContext(ctx, s.sql.worker, s.dialect.args([]any{pool, id})...))
		if errors.Is(err, sql.ErrNoRows) {
			w = hapax.Worker{}
			return nil
		}
		return err
	})
	return w, err
}

// Workers implements hapax.WorkerTable and hapax.WorkerStore.
func (s *Store) Workers(ctx context.Context, pool string) (workers []hapax.Worker, err error) {
	if err := hapax.ValidateName("pool", pool); err != nil {
		return nil, err
	}
	err = s.do(ctx, "list the workers", func(ctx context.Context) error {
		workers = nil
		rows, err := s.db.QueryContext(ctx, s.sql.workers, s.dialect.args([]any{pool})...)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			w, err := scanWorker(rows)
			if err != nil {
				return err
			}
			workers = append(workers, w)
		}
		return rows.Err()
	})
	return workers, err
}

// scanWorker reads a row; the expiry is stored in milliseconds since 1970, and
// 0 is the zero time.
func scanWorker(row interface{ Scan(dest ...any) error }) (hapax.Worker, error) {
	var w hapax.Worker
	var expires int64
	if err := row.Scan(&w.Pool, &w.ID, &w.Mark, &w.Epoch, &w.Holder, &expires); err != nil {
		return hapax.Worker{}, err
	}
	if w.Epoch < 1 || w.Mark < 0 {
		return hapax.Worker{}, fmt.Errorf("%w: pool %q, worker %d has epoch %d and mark %d", hapax.ErrStoreCorrupt, w.Pool, w.ID, w.Epoch, w.Mark)
	}
	if expires != 0 {
		w.Expires = time.UnixMilli(expires)
	}
	return w, nil
}

// SwapWorker implements hapax.WorkerTable.
func (s *Store) SwapWorker(ctx context.Context, old, next hapax.Worker) (swapped bool, err error) {
	if err := hapax.ValidateName("pool", next.Pool); err != nil {
		return false, err
	}
	if len(next.Holder) > hapax.MaxTagBytes {
		return false, &hapax.ValueError{Field: "holder", Value: next.Holder, Allowed: "at most 128 bytes", Err: hapax.ErrInvalidArgument}
	}
	var expires int64
	if !next.Expires.IsZero() {
		expires = next.Expires.UnixMilli()
	}
	holder := []byte(next.Holder)
	err = s.do(ctx, "write a worker", func(ctx context.Context) error {
		if old.Epoch == 0 {
			swapped, err = s.insert(ctx, s.sql.workerInsert, []any{next.Pool, next.ID, next.Mark, next.Epoch, holder, expires, s.id})
		} else {
			var n int64
			n, err = s.exec(ctx, s.sql.workerUpdate, []any{next.Mark, next.Epoch, holder, expires, next.Pool, next.ID, old.Epoch, old.Mark, s.id})
			swapped = n == 1
		}
		if err == nil && !swapped {
			err = s.checkID(ctx)
		}
		return err
	})
	return swapped && err == nil, err
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
