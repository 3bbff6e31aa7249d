package redisstore

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hapax-id/hapax"
)

const scanCount = 4096 // workers read in one round trip

// FreezePool implements hapax.WorkerTable. It is one round trip once the pool
// exists.
func (s *Store) FreezePool(ctx context.Context, pool, layout string) (string, error) {
	if err := hapax.ValidateName("pool", pool); err != nil {
		return "", err
	}
	return request(ctx, s, "freeze a pool", func(ctx context.Context) (string, error) {
		r, err := s.eval(ctx, freezePoolScript, []string{s.keys.store(), s.keys.pools(), s.keys.pending()},
			s.id, pool, layout, pendingPool(pool))
		if err != nil {
			return "", err
		}
		switch r.text(0) {
		case saidReplaced:
			return "", s.same(r.text(1))
		case saidNo:
			if err := s.makeWorkers(ctx, pool); err != nil {
				return "", err
			}
		}
		return r.text(1), nil
	})
}

func pendingPool(pool string) string { return "pool/" + pool }

// makeWorkers makes the pool's key for workers.
func (s *Store) makeWorkers(ctx context.Context, pool string) error {
	r, err := s.eval(ctx, makeWorkersScript, []string{s.keys.workers(pool)}, s.id)
	if err != nil {
		return err
	}
	if err := s.same(r.text(1)); err != nil {
		return err
	}
	return s.rdb.SRem(ctx, s.keys.pending(), pendingPool(pool)).Err()
}

// Pools implements hapax.WorkerStore.
func (s *Store) Pools(ctx context.Context) ([]hapax.Pool, error) {
	return request(ctx, s, "list pools", func(ctx context.Context) ([]hapax.Pool, error) {
		pipe := s.rdb.Pipeline()
		id := pipe.HGet(ctx, s.keys.store(), "id")
		layouts := pipe.HGetAll(ctx, s.keys.pools())
		if _, err := pipe.Exec(ctx); err != nil && !errors.Is(err, redis.Nil) {
			return nil, err
		}
		var pools []hapax.Pool
		for _, name := range slices.Sorted(maps.Keys(layouts.Val())) {
			pools = append(pools, hapax.Pool{Name: name, Layout: layouts.Val()[name]})
		}
		return pools, s.same(id.Val())
	})
}

// Worker implements hapax.WorkerTable.
func (s *Store) Worker(ctx context.Context, pool string, id int64) (hapax.Worker, error) {
	return request(ctx, s, "read a worker", func(ctx context.Context) (hapax.Worker, error) {
		field := strconv.FormatInt(id, 10)
		r, err := s.rdb.HMGet(ctx, s.keys.workers(pool), "store", field).Result()
		if err != nil {
			return hapax.Worker{}, err
		}
		if err := s.ownWorkers(ctx, pool, reply(r).text(0)); err != nil {
			return hapax.Worker{}, err
		}
		if r[1] == nil {
			return hapax.Worker{}, nil
		}
		return s.decodeWorker(pool, field, reply(r).text(1))
	})
}

// Workers implements hapax.WorkerTable and hapax.WorkerStore.
func (s *Store) Workers(ctx context.Context, pool string) ([]hapax.Worker, error) {
	return request(ctx, s, "list workers", func(ctx context.Context) ([]hapax.Worker, error) {
		byID := map[int64]hapax.Worker{} // a scan may return one twice
		store := ""
		scan := s.rdb.HScan(ctx, s.keys.workers(pool), 0, "", scanCount).Iterator()
		for scan.Next(ctx) {
			field := scan.Val()
			if !scan.Next(ctx) {
				break
			}
			if field == "store" {
				store = scan.Val()
				continue
			}
			w, err := s.decodeWorker(pool, field, scan.Val())
			if err != nil {
				return nil, err
			}
			byID[w.ID] = w
		}
		if err := scan.Err(); err != nil {
			return nil, err
		}
		if err := s.ownWorkers(ctx, pool, store); err != nil {
			return nil, err
		}
		var rows []hapax.Worker
		for _, id := range slices.Sorted(maps.Keys(byID)) {
			rows = append(rows, byID[id])
		}
		return rows, nil
	})
}

// ownWorkers checks the store ID of a pool's key, "" where there is no key.
func (s *Store) ownWorkers(ctx context.Context, pool, store string) error {
	if store != "" {
		return s.same(store)
	}
	known, err := s.lookup(ctx, s.keys.pools(), pool, pendingPool(pool))
	if err != nil || !known {
		return err
	}
	// It may have been made between the two looks.
	n, err := s.rdb.Exists(ctx, s.keys.workers(pool)).Result()
	if err == nil && n == 0 {
		err = lost("pool", pool)
	}
	return err
}

// SwapWorker implements hapax.WorkerTable. It is one round trip.
func (s *Store) SwapWorker(ctx context.Context, old, next hapax.Worker) (bool, error) {
	if err := hapax.ValidateName("pool", next.Pool); err != nil {
		return false, err
	}
	expected := ""
	if old.Epoch != 0 {
		expected = fmt.Sprintf("%d %d", old.Epoch, old.Mark)
	}
	return request(ctx, s, "write a worker", func(ctx context.Context) (bool, error) {
		for range 2 {
			r, err := s.eval(ctx, swapWorkerScript, []string{s.keys.workers(next.Pool)}, s.id, next.ID, expected, encodeWorker(next))
			if err != nil {
				return false, err
			}
			switch r.text(0) {
			case saidReplaced:
				return false, s.same(r.text(1))
			case saidOK, saidNo:
				return r.text(0) == saidOK, nil
			}
			if err := s.ownWorkers(ctx, next.Pool, ""); err != nil {
				return false, err
			}
			if err := s.makeWorkers(ctx, next.Pool); err != nil {
				return false, err
			}
		}
		return false, lost("pool", next.Pool)
	})
}

// encodeWorker writes a row; the holder comes last because it may hold spaces.
func encodeWorker(w hapax.Worker) string {
	var expires int64
	if !w.Expires.IsZero() {
		expires = w.Expires.UnixMilli()
	}
	return fmt.Sprintf("%d %d %d %s", w.Epoch, w.Mark, expires, w.Holder)
}

func (s *Store) decodeWorker(pool, field, row string) (hapax.Worker, error) {
	w := hapax.Worker{Pool: pool}
	words := strings.SplitN(row, " ", 4)
	id, canonical, err := number(field)
	if err != nil || !canonical || len(words) != 4 {
		return w, corrupt(s.keys.workers(pool), field, row)
	}
	var expires int64
	for i, to := range []*int64{&w.Epoch, &w.Mark, &expires} {
		v, _, err := number(words[i])
		if err != nil {
			return w, corrupt(s.keys.workers(pool), field, row)
		}
		*to = v
	}
	if w.ID, w.Holder = id, words[3]; expires != 0 {
		w.Expires = time.UnixMilli(expires)
	}
	return w, nil
}

// number reads a decimal, and tells whether it is written as one would.
func number(text string) (n int64, canonical bool, err error) {
	n, err = strconv.ParseInt(text, 10, 64)
	return n, err == nil && strconv.FormatInt(n, 10) == text, err
}

// AcquireWorker implements hapax.WorkerStore.
func (s *Store) AcquireWorker(ctx context.Context, req hapax.AcquireRequest) (hapax.Lease, error) {
	return hapax.AcquireWorker(ctx, s, req)
}

// ExtendWorker implements hapax.WorkerStore. It is one round trip.
func (s *Store) ExtendWorker(ctx context.Context, lease hapax.Lease, req hapax.ExtendRequest) (hapax.Lease, error) {
	return hapax.ExtendWorker(ctx, s, lease, req)
}

// SealWorker implements hapax.WorkerStore. It is one round trip.
func (s *Store) SealWorker(ctx context.Context, lease hapax.Lease, last int64) error {
	return hapax.SealWorker(ctx, s, lease, last)
}
