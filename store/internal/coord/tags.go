package coord

import (
	"context"
	"fmt"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
)

// Allocate implements hapax.SegmentStore. It is one round trip while nobody
// else has changed the tag since this handle last saw it.
func (r *Rows) Allocate(ctx context.Context, tag string, n int64, last hapax.GrantKey) (hapax.Allocation, error) {
	var a hapax.Allocation
	err := r.changeTag(ctx, tag, func(t driver.Tag) (next driver.Tag, err error) {
		a, next, err = driver.Advance(t, n, last)
		return next, err
	})
	if err != nil {
		return hapax.Allocation{}, err
	}
	return a, nil
}

// HandBack implements hapax.SegmentStore.
func (r *Rows) HandBack(ctx context.Context, a hapax.Allocation, next int64) error {
	return r.changeTag(ctx, a.Tag.Name, func(t driver.Tag) (driver.Tag, error) { return driver.HandBack(t, a, next) })
}

// UpdateTag implements driver.TagStore.
func (r *Rows) UpdateTag(ctx context.Context, name string, u driver.TagUpdate) (hapax.Tag, error) {
	return r.redefine(ctx, name, func(t hapax.Tag) (hapax.Tag, error) { return driver.Update(t, u) })
}

// DeleteTag implements driver.TagStore.
func (r *Rows) DeleteTag(ctx context.Context, name string) (hapax.Tag, error) {
	return r.redefine(ctx, name, driver.Delete)
}

// redefine replaces the definition of an existing tag by what f makes of it.
func (r *Rows) redefine(ctx context.Context, name string, f func(hapax.Tag) (hapax.Tag, error)) (hapax.Tag, error) {
	var defined hapax.Tag
	err := r.changeTag(ctx, name, func(t driver.Tag) (_ driver.Tag, err error) {
		defined, err = f(t.Tag)
		return t.Redefined(defined), err
	})
	if err != nil {
		return hapax.Tag{}, err
	}
	return defined, nil
}

// changeTag replaces an existing tag by what f makes of it, unless f fails.
func (r *Rows) changeTag(ctx context.Context, name string, f func(driver.Tag) (driver.Tag, error)) error {
	if err := hapax.ValidateName("tag", name); err != nil {
		return err
	}
	return r.update(ctx, tagKey(name), tagChange(name, f))
}

// tagChange is f as a change of the tag's row.
func tagChange(name string, f func(driver.Tag) (driver.Tag, error)) func(raw []byte) ([]byte, error) {
	return func(raw []byte) ([]byte, error) {
		if raw == nil {
			return nil, notFound(name)
		}
		t, err := decodeTag(name, raw)
		if err != nil {
			return nil, err
		}
		if t, err = f(t); err != nil {
			return nil, err
		}
		return encodeTag(t), nil
	}
}

func notFound(name string) error { return fmt.Errorf("%w: %q", hapax.ErrTagNotFound, name) }

// CreateTag implements hapax.SegmentStore.
func (r *Rows) CreateTag(ctx context.Context, tag hapax.Tag, mode hapax.CreateMode) (hapax.Tag, error) {
	def, err := tag.WithDefaults()
	if err != nil {
		return hapax.Tag{}, err
	}
	def.Deleted, def.Token = false, 0
	var created hapax.Tag
	err = r.update(ctx, tagKey(def.Name), func(raw []byte) ([]byte, error) {
		var old driver.Tag
		created = def
		if raw != nil {
			var err error
			if old, err = decodeTag(def.Name, raw); err != nil {
				return nil, err
			}
			if created, err = driver.Revive(old.Tag, def, mode); err != nil {
				return nil, err
			}
		}
		return encodeTag(old.Redefined(created)), nil
	})
	if err != nil {
		return hapax.Tag{}, err
	}
	return created, nil
}

// Tag implements driver.TagStore.
func (r *Rows) Tag(ctx context.Context, name string) (hapax.Tag, error) {
	if err := hapax.ValidateName("tag", name); err != nil {
		return hapax.Tag{}, err
	}
	raw, err := r.get(ctx, tagKey(name))
	if err != nil {
		return hapax.Tag{}, err
	}
	if raw == nil {
		return hapax.Tag{}, notFound(name)
	}
	t, err := decodeTag(name, raw)
	return t.Tag, err
}

// Tags implements driver.TagStore.
func (r *Rows) Tags(ctx context.Context, after string, limit int) ([]hapax.Tag, error) {
	var tags []hapax.Tag
	err := r.list(ctx, "", after, limit, func(name string, raw []byte) error {
		tag, err := decodeTag(name, raw)
		tags = append(tags, tag.Tag)
		return err
	})
	if err != nil {
		return nil, err
	}
	return tags, nil
}

func tagKey(name string) Key { return Key{Name: name} }
