package etcdstore

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/hapax-id/hapax"
)

// FreezePool implements hapax.WorkerTable.
func (s *Store) FreezePool(ctx context.Context, pool, layout string) (string, error) {
	if err := hapax.ValidateName("pool", pool); err != nil {
		return "", err
	}
	var frozen string
	key := s.poolKey(pool)
	err := s.update(ctx, key, func(raw []byte) ([]byte, error) {
		if raw == nil {
			frozen = layout
			return encode(poolRow{layout}), nil
		}
		row, err := decode[poolRow](key, raw)
		if err != nil {
			return nil, err
		}
		frozen = row.Layout
		return nil, errAsItIs
	})
	if err != nil && !errors.Is(err, errAsItIs) {
		return "", err
	}
	return frozen, nil
}

// errAsItIs ends an update that leaves the value as it is.
var errAsItIs = errors.New("nothing to change")

// Pools implements hapax.WorkerStore.
func (s *Store) Pools(ctx context.Context) ([]hapax.Pool, error) {
	var pools []hapax.Pool
	err := s.list(ctx, s.poolKey(""), s.poolKey(""), math.MaxInt, func(name, key string, raw []byte) error {
		row, err := decode[poolRow](key, raw)
		pools = append(pools, hapax.Pool{Name: name, Layout: row.Layout})
		return err
	})
	if err != nil {
		return nil, err
	}
	return pools, nil
}

// Worker implements hapax.WorkerTable.
func (s *Store) Worker(ctx context.Context, pool string, id int64) (hapax.Worker, error) {
	if err := validWorker(pool, id); err != nil {
		return hapax.Worker{}, err
	}
	key := s.workerKey(pool, id)
	raw, err := s.get(ctx, key)
	if err != nil || raw == nil {
		return hapax.Worker{}, err
	}
	return decodeWorker(key, pool, id, raw)
}

// Workers implements hapax.WorkerTable and hapax.WorkerStore.
func (s *Store) Workers(ctx context.Context, pool string) ([]hapax.Worker, error) {
	if err := hapax.ValidateName("pool", pool); err != nil {
		return nil, err
	}
	var rows []hapax.Worker
	dir := s.workerDir(pool)
	err := s.list(ctx, dir, dir, math.MaxInt, func(name, key string, raw []byte) error {
		id, err := strconv.ParseInt(name, 10, 64)
		if err != nil || s.workerKey(pool, id) != key {
			return fmt.Errorf("%w: etcd key %q: it does not end in a worker ID", hapax.ErrStoreCorrupt, key)
		}
		row, err := decodeWorker(key, pool, id, raw)
		rows = append(rows, row)
		return err
	})
	if err != nil {
		return nil, err
	}
	return rows, nil
}

// SwapWorker implements hapax.WorkerTable. It is one round trip if this handle
// has written the row before.
func (s *Store) SwapWorker(ctx context.Context, old, next hapax.Worker) (bool, error) {
	if err := validWorker(next.Pool, next.ID); err != nil {
		return false, err
	}
	if !utf8.ValidString(next.Holder) {
		return false, &hapax.ValueError{Field: "holder", Value: next.Holder, Allowed: "valid UTF-8", Err: hapax.ErrInvalidArgument}
	}
	key := s.workerKey(next.Pool, next.ID)
	err := s.update(ctx, key, func(raw []byte) ([]byte, error) {
		var row hapax.Worker
		if raw != nil {
			var err error
			if row, err = decodeWorker(key, next.Pool, next.ID, raw); err != nil {
				return nil, err
			}
		}
		if row.Epoch != old.Epoch || raw != nil && row.Mark != old.Mark {
			return nil, errAsItIs
		}
		return encodeWorker(next), nil
	})
	if errors.Is(err, errAsItIs) {
		return false, nil
	}
	return err == nil, err
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

func validWorker(pool string, id int64) error {
	if id < 0 {
		return &hapax.ValueError{Field: "worker", Value: id, Allowed: "0 or more", Err: hapax.ErrInvalidArgument}
	}
	return hapax.ValidateName("pool", pool)
}

func (s *Store) poolKey(pool string) string { return s.prefix + "pools/" + pool }

// slashes makes a pool's name one part of a path: a worker's key goes on after
// it, and no pool's keys may lie among another's.
var slashes = strings.NewReplacer("/", "%2F", "%", "%25")

func (s *Store) workerDir(pool string) string {
	return s.prefix + "workers/" + slashes.Replace(pool) + "/"
}

// workerKey pads the ID so that the order of keys is the order of IDs.
func (s *Store) workerKey(pool string, id int64) string {
	return fmt.Sprintf("%s%019d", s.workerDir(pool), id)
}
