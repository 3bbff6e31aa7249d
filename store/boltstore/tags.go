package boltstore

import (
	"bytes"
	"context"
	"fmt"

	"go.etcd.io/bbolt"

	"github.com/hapax-id/hapax"
)

// getTag reads a tag. ErrTagNotFound.
func getTag(tx *bbolt.Tx, name string) (hapax.Tag, error) {
	var r tagRecord
	ok, err := get(tx, bucketTags, []byte(name), &r)
	if err == nil && !ok {
		err = fmt.Errorf("%w: %q", hapax.ErrTagNotFound, name)
	}
	return r.tag([]byte(name)), err
}

func putTag(tx *transaction, t hapax.Tag) error {
	return tx.put(bucketTags, []byte(t.Name), recordOf(t))
}

// Allocate implements hapax.SegmentStore.
func (s *Store) Allocate(ctx context.Context, tag string, n int64) (hapax.Allocation, error) {
	return write(ctx, s, func(tx *transaction) (hapax.Allocation, error) {
		old, err := getTag(tx.Tx, tag)
		if err != nil {
			return hapax.Allocation{}, err
		}
		g, t, err := old.Advance(n)
		if err != nil {
			return hapax.Allocation{}, err
		}
		return hapax.Allocation{Grant: g, Tag: t}, putTag(tx, t)
	})
}

// CreateTag implements hapax.SegmentStore.
func (s *Store) CreateTag(ctx context.Context, tag hapax.Tag, mode hapax.CreateMode) (hapax.Tag, error) {
	tag, err := tag.WithDefaults()
	if err != nil {
		return hapax.Tag{}, err
	}
	tag.Deleted = false
	return write(ctx, s, func(tx *transaction) (hapax.Tag, error) {
		t := tag
		var r tagRecord
		switch exists, err := get(tx.Tx, bucketTags, []byte(t.Name), &r); {
		case err != nil:
			return t, err
		case exists:
			if t, err = r.tag([]byte(t.Name)).Revive(t, mode); err != nil {
				return t, err
			}
		}
		return t, putTag(tx, t)
	})
}

// UpdateTag implements hapax.TagStore.
func (s *Store) UpdateTag(ctx context.Context, name string, u hapax.TagUpdate) (hapax.Tag, error) {
	return s.changeTag(ctx, name, u.Apply)
}

// DeleteTag implements hapax.TagStore.
func (s *Store) DeleteTag(ctx context.Context, name string) (hapax.Tag, error) {
	return s.changeTag(ctx, name, func(t hapax.Tag) (hapax.Tag, error) {
		if t.Deleted {
			return t, fmt.Errorf("%w: %q", hapax.ErrTagDeleted, name)
		}
		t.Deleted = true
		return t, nil
	})
}

// changeTag replaces a tag by what f makes of it, unless f fails.
func (s *Store) changeTag(ctx context.Context, name string, f func(hapax.Tag) (hapax.Tag, error)) (hapax.Tag, error) {
	return write(ctx, s, func(tx *transaction) (hapax.Tag, error) {
		t, err := getTag(tx.Tx, name)
		if err != nil {
			return t, err
		}
		if t, err = f(t); err != nil {
			return t, err
		}
		return t, putTag(tx, t)
	})
}

// Tag implements hapax.TagStore.
func (s *Store) Tag(ctx context.Context, name string) (hapax.Tag, error) {
	return read(ctx, s, func(tx *bbolt.Tx) (hapax.Tag, error) { return getTag(tx, name) })
}

// Tags implements hapax.TagStore.
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
			page = append(page, r.tag(key))
		}
		return page, nil
	})
}
