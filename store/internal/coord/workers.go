package coord

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"unicode/utf8"

	"github.com/hapax-id/hapax"
)

// FreezePool implements hapax.WorkerTable.
func (r *Rows) FreezePool(ctx context.Context, pool, layout string) (string, error) {
	if err := hapax.ValidateName("pool", pool); err != nil {
		return "", err
	}
	var frozen string
	key := poolKey(pool)
	err := r.update(ctx, key, func(raw []byte) ([]byte, error) {
		if raw == nil {
			frozen = layout
			return Encode(poolRow{layout}), nil
		}
		row, err := Decode[poolRow](key, raw)
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
func (r *Rows) Pools(ctx context.Context) ([]hapax.Pool, error) {
	var pools []hapax.Pool
	err := r.list(ctx, poolKey(""), "", math.MaxInt, func(name string, raw []byte) error {
		row, err := Decode[poolRow](poolKey(name), raw)
		pools = append(pools, hapax.Pool{Name: name, Layout: row.Layout})
		return err
	})
	if err != nil {
		return nil, err
	}
	return pools, nil
}

// Worker implements hapax.WorkerTable.
func (r *Rows) Worker(ctx context.Context, pool string, id int64) (hapax.Worker, error) {
	if err := validWorker(pool, id); err != nil {
		return hapax.Worker{}, err
	}
	key := workerKey(pool, id)
	raw, err := r.get(ctx, key)
	if err != nil || raw == nil {
		return hapax.Worker{}, err
	}
	return decodeWorker(key, id, raw)
}

// Workers implements hapax.WorkerTable and hapax.WorkerStore.
func (r *Rows) Workers(ctx context.Context, pool string) ([]hapax.Worker, error) {
	if err := hapax.ValidateName("pool", pool); err != nil {
		return nil, err
	}
	var rows []hapax.Worker
	err := r.list(ctx, Key{Table: "workers", Pool: pool}, "", math.MaxInt, func(name string, raw []byte) error {
		id, err := strconv.ParseInt(name, 10, 64)
		key := workerKey(pool, id)
		if err != nil || key.Name != name {
			return fmt.Errorf("%w: %q in workers/%q is no worker ID of 19 digits", hapax.ErrStoreCorrupt, name, pool)
		}
		row, err := decodeWorker(key, id, raw)
		rows = append(rows, row)
		return err
	})
	if err != nil {
		return nil, err
	}
	return rows, nil
}

// SwapWorker implements hapax.WorkerTable. It is one round trip if this handle
// has read or written the row before.
func (r *Rows) SwapWorker(ctx context.Context, old, next hapax.Worker) (bool, error) {
	if err := validWorker(next.Pool, next.ID); err != nil {
		return false, err
	}
	if !utf8.ValidString(next.Holder) {
		return false, &hapax.ValueError{Field: "holder", Value: next.Holder, Allowed: "valid UTF-8", Err: hapax.ErrInvalidArgument}
	}
	key := workerKey(next.Pool, next.ID)
	err := r.update(ctx, key, func(raw []byte) ([]byte, error) {
		var row hapax.Worker
		if raw != nil {
			var err error
			if row, err = decodeWorker(key, next.ID, raw); err != nil {
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
func (r *Rows) AcquireWorker(ctx context.Context, req hapax.AcquireRequest) (hapax.Lease, error) {
	return hapax.AcquireWorker(ctx, r, req)
}

// ExtendWorker implements hapax.WorkerStore.
func (r *Rows) ExtendWorker(ctx context.Context, lease hapax.Lease, req hapax.ExtendRequest) (hapax.Lease, error) {
	return hapax.ExtendWorker(ctx, r, lease, req)
}

// SealWorker implements hapax.WorkerStore.
func (r *Rows) SealWorker(ctx context.Context, lease hapax.Lease, last int64) error {
	return hapax.SealWorker(ctx, r, lease, last)
}

func validWorker(pool string, id int64) error {
	if id < 0 {
		return &hapax.ValueError{Field: "worker", Value: id, Allowed: "0 or more", Err: hapax.ErrInvalidArgument}
	}
	return hapax.ValidateName("pool", pool)
}

func poolKey(pool string) Key { return Key{Table: "pools", Name: pool} }

// workerKey pads the ID so that the order of names is the order of IDs.
func workerKey(pool string, id int64) Key {
	return Key{Table: "workers", Pool: pool, Name: fmt.Sprintf("%019d", id)}
}
