package coord

import (
	"context"
	"fmt"

	"github.com/hapax-id/hapax"
)

// Allocate implements hapax.SegmentStore. It is one round trip while nobody
// else has changed the tag since this handle last saw it.
func (r *Rows) Allocate(ctx context.Context, tag string, n int64) (hapax.Allocation, error) {
	var a hapax.Allocation
	_, err := r.changeTag(ctx, tag, func(t hapax.Tag) (hapax.Tag, error) {
		var err error
		a.Grant, a.Tag, err = t.Advance(n)
		return a.Tag, err
	})
	if err != nil {
		return hapax.Allocation{}, err
	}
	return a, nil
}

// UpdateTag implements hapax.TagStore.
func (r *Rows) UpdateTag(ctx context.Context, name string, u hapax.TagUpdate) (hapax.Tag, error) {
	return r.changeTag(ctx, name, u.Apply)
}

// DeleteTag implements hapax.TagStore.
func (r *Rows) DeleteTag(ctx context.Context, name string) (hapax.Tag, error) {
	return r.changeTag(ctx, name, func(t hapax.Tag) (hapax.Tag, error) {
		if t.Deleted {
			return t, fmt.Errorf("%w: %q", hapax.ErrTagDeleted, name)
		}
		t.Deleted = true
		return t, nil
	})
}

// changeTag replaces an existing tag by what f makes of it, unless f fails.
func (r *Rows) changeTag(ctx context.Context, name string, f func(hapax.Tag) (hapax.Tag, error)) (hapax.Tag, error) {
	if err := hapax.ValidateName("tag", name); err != nil {
		return hapax.Tag{}, err
	}
	var changed hapax.Tag
	key := tagKey(name)
	err := r.update(ctx, key, func(raw []byte) ([]byte, error) {
		if raw == nil {
			return nil, notFound(name)
		}
		t, err := decodeTag(key, raw)
		if err != nil {
			return nil, err
		}
		if changed, err = f(t); err != nil {
			return nil, err
		}
		return Encode(tagRow(changed)), nil
	})
	if err != nil {
		return hapax.Tag{}, err
	}
	return changed, nil
}

func notFound(name string) error { return fmt.Errorf("%w: %q", hapax.ErrTagNotFound, name) }

// CreateTag implements hapax.SegmentStore.
func (r *Rows) CreateTag(ctx context.Context, tag hapax.Tag, mode hapax.CreateMode) (hapax.Tag, error) {
	def, err := tag.WithDefaults()
	if err != nil {
		return hapax.Tag{}, err
	}
	def.Deleted = false
	var created hapax.Tag
	key := tagKey(def.Name)
	err = r.update(ctx, key, func(raw []byte) ([]byte, error) {
		created = def
		if raw != nil {
			old, err := decodeTag(key, raw)
			if err != nil {
				return nil, err
			}
			if created, err = old.Revive(def, mode); err != nil {
				return nil, err
			}
		}
		return Encode(tagRow(created)), nil
	})
	if err != nil {
		return hapax.Tag{}, err
	}
	return created, nil
}

// Tag implements hapax.TagStore.
func (r *Rows) Tag(ctx context.Context, name string) (hapax.Tag, error) {
	if err := hapax.ValidateName("tag", name); err != nil {
		return hapax.Tag{}, err
	}
	key := tagKey(name)
	raw, err := r.get(ctx, key)
	if err != nil {
		return hapax.Tag{}, err
	}
	if raw == nil {
		return hapax.Tag{}, notFound(name)
	}
	return decodeTag(key, raw)
}

// Tags implements hapax.TagStore.
func (r *Rows) Tags(ctx context.Context, after string, limit int) ([]hapax.Tag, error) {
	var tags []hapax.Tag
	err := r.list(ctx, tagKey(""), after, limit, func(name string, raw []byte) error {
		tag, err := decodeTag(tagKey(name), raw)
		tags = append(tags, tag)
		return err
	})
	if err != nil {
		return nil, err
	}
	return tags, nil
}

func tagKey(name string) Key { return Key{Table: "tags", Name: name} }
