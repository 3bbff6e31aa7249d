package mongostore

import (
	"context"
	"errors"
	"strconv"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/hapax-id/hapax"
)

// A poolDocument is a pool as it is stored.
type poolDocument struct {
	Name   string `bson:"_id"`
	Store  string `bson:"store"`
	Layout string `bson:"layout"`
}

// A workerDocument is a worker as it is stored.
type workerDocument struct {
	Key     string     `bson:"_id"`
	Store   string     `bson:"store"`
	Pool    string     `bson:"pool"`
	Worker  exact      `bson:"worker"`
	Epoch   exact      `bson:"epoch"`
	Mark    exact      `bson:"mark"`
	Holder  string     `bson:"holder"`
	Expires *time.Time `bson:"expires"` // null: the zero time
}

func workerKey(pool string, id int64) string { return pool + "/" + strconv.FormatInt(id, 10) }

func (d workerDocument) worker() hapax.Worker {
	w := hapax.Worker{Pool: d.Pool, ID: int64(d.Worker), Mark: int64(d.Mark), Epoch: int64(d.Epoch), Holder: d.Holder}
	if d.Expires != nil {
		w.Expires = *d.Expires
	}
	return w
}

// FreezePool implements hapax.WorkerTable. It is one round trip once the pool
// exists.
func (s *Store) FreezePool(ctx context.Context, pool, layout string) (string, error) {
	if err := hapax.ValidateName("pool", pool); err != nil {
		return "", err
	}
	ctx, cancel := s.deadline(ctx)
	defer cancel()
	d, err := s.readPool(ctx, pool)
	if errors.Is(err, mongo.ErrNoDocuments) {
		if err = s.check(ctx); err == nil {
			_, err = s.pools.InsertOne(ctx, poolDocument{Name: pool, Store: s.id, Layout: layout})
			if err == nil || mongo.IsDuplicateKeyError(err) {
				d, err = s.readPool(ctx, pool)
			}
		}
	}
	if err == nil {
		err = s.same(d.Store)
	}
	if err != nil {
		return "", failed(ctx, "freeze a pool", err)
	}
	return d.Layout, nil
}

func (s *Store) readPool(ctx context.Context, pool string) (d poolDocument, err error) {
	err = s.pools.FindOne(ctx, bson.D{{Key: "_id", Value: pool}}).Decode(&d)
	return d, err
}

// Pools implements hapax.WorkerStore.
func (s *Store) Pools(ctx context.Context) ([]hapax.Pool, error) {
	ctx, cancel := s.deadline(ctx)
	defer cancel()
	docs, err := find[poolDocument](ctx, s, s.pools, bson.D{}, "_id", 0)
	if err != nil {
		return nil, failed(ctx, "list pools", err)
	}
	var pools []hapax.Pool
	for _, d := range docs {
		if err := s.same(d.Store); err != nil {
			return nil, err
		}
		pools = append(pools, hapax.Pool{Name: d.Name, Layout: d.Layout})
	}
	return pools, nil
}

// Worker implements hapax.WorkerTable.
func (s *Store) Worker(ctx context.Context, pool string, id int64) (hapax.Worker, error) {
	ctx, cancel := s.deadline(ctx)
	defer cancel()
	var d workerDocument
	err := s.workers.FindOne(ctx, bson.D{{Key: "_id", Value: workerKey(pool, id)}}).Decode(&d)
	if errors.Is(err, mongo.ErrNoDocuments) {
		return hapax.Worker{}, failed(ctx, "read a worker", s.check(ctx))
	}
	if err == nil {
		err = s.same(d.Store)
	}
	if err != nil {
		return hapax.Worker{}, failed(ctx, "read a worker", err)
	}
	return d.worker(), nil
}

// Workers implements hapax.WorkerTable and hapax.WorkerStore.
func (s *Store) Workers(ctx context.Context, pool string) ([]hapax.Worker, error) {
	ctx, cancel := s.deadline(ctx)
	defer cancel()
	docs, err := find[workerDocument](ctx, s, s.workers, bson.D{{Key: "pool", Value: pool}}, "worker", 0)
	if err != nil {
		return nil, failed(ctx, "list workers", err)
	}
	var rows []hapax.Worker
	for _, d := range docs {
		if err := s.same(d.Store); err != nil {
			return nil, err
		}
		rows = append(rows, d.worker())
	}
	return rows, nil
}

// SwapWorker implements hapax.WorkerTable. It is one round trip for a row that
// exists.
func (s *Store) SwapWorker(ctx context.Context, old, next hapax.Worker) (bool, error) {
	if err := hapax.ValidateName("pool", next.Pool); err != nil {
		return false, err
	}
	ctx, cancel := s.deadline(ctx)
	defer cancel()
	d := workerDocument{
		Key: workerKey(next.Pool, next.ID), Store: s.id, Pool: next.Pool, Worker: exact(next.ID),
		Epoch: exact(next.Epoch), Mark: exact(next.Mark), Holder: next.Holder,
	}
	if !next.Expires.IsZero() {
		d.Expires = &next.Expires
	}
	if old.Epoch == 0 {
		ok, err := s.insertWorker(ctx, d)
		return ok, failed(ctx, "write a worker", err)
	}
	res, err := s.workers.UpdateOne(ctx,
		bson.D{{Key: "_id", Value: d.Key}, {Key: "store", Value: s.id}, {Key: "epoch", Value: old.Epoch}, {Key: "mark", Value: old.Mark}},
		bson.D{{Key: "$set", Value: bson.D{{Key: "epoch", Value: d.Epoch}, {Key: "mark", Value: d.Mark}, {Key: "holder", Value: d.Holder}, {Key: "expires", Value: d.Expires}}}})
	if err != nil {
		return false, failed(ctx, "write a worker", err)
	}
	return res.MatchedCount == 1, nil
}

func (s *Store) insertWorker(ctx context.Context, d workerDocument) (bool, error) {
	if err := s.check(ctx); err != nil {
		return false, err
	}
	_, err := s.workers.InsertOne(ctx, d)
	if mongo.IsDuplicateKeyError(err) {
		return false, nil
	}
	return err == nil, err
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
