package boltstore

import (
	"bytes"
	"context"
	"fmt"

	"go.etcd.io/bbolt"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
)

// getTag reads a tag. ErrTagNotFound.
func getTag(tx *bbolt.Tx, name string) (driver.Tag, error) {
	var r tagRecord
	ok, err := get(tx, bucketTags, []byte(name), &r)
	if err == nil && !ok {
		err = fmt.Errorf("%w: %q", hapax.ErrTagNotFound, name)
	}
	return r.tag([]byte(name)), err
}

func putTag(tx *transaction, t driver.Tag) error {
	return tx.put(bucketTags, []byte(t.Name), recordOf(t))
}

// changeTag replaces a tag by what f makes of it, unless f fails, and returns
// what f returns.
func changeTag[T any](ctx context.Context, s *Store, name string, f func(driver.Tag) (driver.Tag, T, error)) (T, error) {
	return write(ctx, s, func(tx *transaction) (T, error) { return changeIn(tx, name, f) })
}

func changeIn[T any](tx *transaction, name string, f func(driver.Tag) (driver.Tag, T, error)) (result T, err error) {
	t, err := getTag(tx.Tx, name)
	if err != nil {
		return result, err
	}
	if t, result, err = f(t); err != nil {
		return result, err
	}
	return result, putTag(tx, t)
}

// Allocate implements hapax.SegmentStore.
func (s *Store) Allocate(ctx context.Context, tag string, n int64, last hapax.GrantKey) (hapax.Allocation, error) {
	return changeTag(ctx, s, tag, func(t driver.Tag) (driver.Tag, hapax.Allocation, error) {
		a, next, err := driver.Advance(t, n, last)
		return next, a, err
	})
}

// HandBack implements hapax.SegmentStore.
func (s *Store) HandBack(ctx context.Context, a hapax.Allocation, next int64) error {
	_, err := changeTag(ctx, s, a.Tag.Name, func(t driver.Tag) (driver.Tag, struct{}, error) {
		t, err := driver.HandBack(t, a, next)
		return t, struct{}{}, err
	})
	return err
}

// CreateTag implements hapax.SegmentStore.
func (s *Store) CreateTag(ctx context.Context, tag hapax.Tag, mode hapax.CreateMode) (hapax.Tag, error) {
	tag, err := tag.WithDefaults()
	if err != nil {
		return hapax.Tag{}, err
	}
	tag.Deleted, tag.Token = false, 0
	return write(ctx, s, func(tx *transaction) (hapax.Tag, error) {
		t := tag
		var r tagRecord
		exists, err := get(tx.Tx, bucketTags, []byte(t.Name), &r)
		old := r.tag([]byte(t.Name))
		if err == nil && exists {
			t, err = driver.Revive(old.Tag, t, mode)
		}
		if err != nil {
			return t, err
		}
		return t, putTag(tx, old.Redefined(t))
	})
}

// UpdateTag implements driver.TagStore.
func (s *Store) UpdateTag(ctx context.Context, name string, u driver.TagUpdate) (hapax.Tag, error) {
	return s.redefine(ctx, name, func(t hapax.Tag) (hapax.Tag, error) { return driver.Update(t, u) })
}

// DeleteTag implements driver.TagStore.
func (s *Store) DeleteTag(ctx context.Context, name string) (hapax.Tag, error) {
	return s.redefine(ctx, name, driver.Delete)
}

// redefine replaces the definition of a tag by what f makes of it.
func (s *Store) redefine(ctx context.Context, name string, f func(hapax.Tag) (hapax.Tag, error)) (hapax.Tag, error) {
	return changeTag(ctx, s, name, func(t driver.Tag) (driver.Tag, hapax.Tag, error) {
		def, err := f(t.Tag)
		return t.Redefined(def), def, err
	})
}

// Tag implements driver.TagStore.
func (s *Store) Tag(ctx context.Context, name string) (hapax.Tag, error) {
	return read(ctx, s, func(tx *bbolt.Tx) (hapax.Tag, error) {
		t, err := getTag(tx, name)
		return t.Tag, err
	})
}

// Tags implements driver.TagStore.
func (s *Store) Tags(ctx context.Context, after string, limit int) ([]hapax.Tag, error) {
	return read(ctx, s, func(tx *bbolt.Tx) ([]hapax.Tag, error) {
		var page []hapax.Tag
		c := tx.Bucket(bucketTags).Cursor()
		key, value := c.Seek([]byte(after))
		if bytes.Equal(key, []byte(after)) {
			key, value = c.Next()
		}
		for ; key != nil && len(page) < limit; key, value = c.Next() {
			var r tagRecord
			if err := decode(bucketTags, key, value, &r); err != nil {
				return nil, err
			}
			page = append(page, r.tag(key).Tag)
		}
		return page, nil
	})
}
