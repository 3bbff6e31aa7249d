package mongostore

import (
	"context"
	"errors"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/hapax-id/hapax/store/driver"
)

// A rowDocument is a row as it is stored.
type rowDocument struct {
	Key   string `bson:"_id"`
	Store string `bson:"store"`
	Value []byte `bson:"value"`
}

// rowKey returns the _id of a row. Names have no control characters.
func rowKey(table, name string) string { return table + "\x01" + name }

// Row implements driver.Rows. It is one round trip for a row that exists.
func (s *Store) Row(ctx context.Context, table, name string) ([]byte, error) {
	var d rowDocument
	err := s.call(ctx, "read a row", func(ctx context.Context) error {
		err := s.rows.FindOne(ctx, bson.D{{Key: "_id", Value: rowKey(table, name)}}).Decode(&d)
		if errors.Is(err, mongo.ErrNoDocuments) {
			return s.check(ctx)
		}
		if err != nil {
			return err
		}
		return s.same(d.Store)
	})
	if err != nil {
		return nil, err
	}
	return d.Value, nil
}

// ListRows implements driver.Rows.
func (s *Store) ListRows(ctx context.Context, table, after string, limit int) ([]driver.Row, error) {
	if limit <= 0 {
		return nil, nil
	}
	var rows []driver.Row
	err := s.call(ctx, "list rows", func(ctx context.Context) error {
		docs, err := find[rowDocument](ctx, s, s.rows,
			bson.D{{Key: "$gt", Value: rowKey(table, after)}, {Key: "$lt", Value: table + "\x02"}}, limit)
		for _, d := range docs {
			if err := s.same(d.Store); err != nil {
				return err
			}
			rows = append(rows, driver.Row{Name: strings.TrimPrefix(d.Key, rowKey(table, "")), Value: d.Value})
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return rows, nil
}

// SwapRow implements driver.Rows. It is one round trip for a row that exists and
// was not changed meanwhile.
func (s *Store) SwapRow(ctx context.Context, table, name string, old, next []byte) (bool, error) {
	if err := driver.CheckSwap(table, name, old, next); err != nil {
		return false, err
	}
	var swapped bool
	err := s.call(ctx, "write a row", func(ctx context.Context) (err error) {
		swapped, err = s.swap(ctx, rowDocument{rowKey(table, name), s.id, next}, old)
		return err
	})
	return swapped && err == nil, err
}

// swap puts a row in the place of the one with the old value, and reports whether
// it was there.
func (s *Store) swap(ctx context.Context, d rowDocument, old []byte) (bool, error) {
	if old == nil {
		if err := s.check(ctx); err != nil {
			return false, err
		}
		_, err := s.rows.InsertOne(ctx, d)
		if mongo.IsDuplicateKeyError(err) {
			return false, nil
		}
		return err == nil, err
	}
	filter := bson.D{{Key: "_id", Value: d.Key}, {Key: "store", Value: s.id}, {Key: "value", Value: old}}
	var n int64
	if d.Value == nil {
		res, err := s.rows.DeleteOne(ctx, filter)
		if err != nil {
			return false, err
		}
		n = res.DeletedCount
	} else {
		res, err := s.rows.UpdateOne(ctx, filter, bson.D{{Key: "$set", Value: bson.D{{Key: "value", Value: d.Value}}}})
		if err != nil {
			return false, err
		}
		n = res.MatchedCount
	}
	if n == 1 {
		return true, nil
	}
	return false, s.check(ctx)
}

// Shared implements driver.Rows.
func (s *Store) Shared() bool { return true }
