package driver

import (
	"context"
	"fmt"

	"github.com/hapax-id/hapax"
)

// UpdateTag implements [TagStore].
func (b *Base) UpdateTag(ctx context.Context, name string, u TagUpdate) (hapax.Tag, error) {
	floor := int64(0)
	if u.Floor != nil {
		floor = *u.Floor
	}
	return b.redefine(ctx, name, floor, func(t hapax.Tag) (hapax.Tag, error) { return Update(t, u) })
}

// DeleteTag implements [TagStore].
func (b *Base) DeleteTag(ctx context.Context, name string) (hapax.Tag, error) {
	return b.redefine(ctx, name, 0, Delete)
}

// redefine replaces the definition of an existing tag by the one that f makes of it. Nothing
// brings its mark below the floor again.
func (b *Base) redefine(ctx context.Context, name string, floor int64, f func(hapax.Tag) (hapax.Tag, error)) (hapax.Tag, error) {
	var next Tag
	err := b.changeTag(ctx, name, func(t Tag) (Tag, error) {
		defined, err := f(t.Tag)
		next = t.Redefined(defined).Floored(floor)
		return next, err
	})
	if err != nil {
		return hapax.Tag{}, err
	}
	return next.Tag, nil
}

// changeTag replaces an existing tag by the one that f makes of it, unless f fails.
func (b *Base) changeTag(ctx context.Context, name string, f func(Tag) (Tag, error)) error {
	if err := hapax.ValidateName("tag", name); err != nil {
		return err
	}
	return b.update(ctx, changeOfTag(name, f))
}

// changeOfTag returns f as a change of the tag's row.
func changeOfTag(name string, f func(Tag) (Tag, error)) *rowChange {
	return &rowChange{key: tagKey(name), to: func(row held) (held, error) {
		t, err := row.tagNamed(name)
		if err == nil && t.Name == "" {
			err = notFound(name)
		}
		if err == nil {
			t, err = f(t)
		}
		if err != nil {
			return held{}, err
		}
		return heldTag(t), nil
	}}
}

// tagNamed returns the tag that a row holds; without a name where there is none.
func (r held) tagNamed(name string) (Tag, error) {
	switch {
	case r.decoded:
		return r.tag, nil
	case r.Value == nil:
		return Tag{}, nil
	}
	return decodeTag(name, r.Value)
}

// heldTag returns the row of a tag.
func heldTag(t Tag) held { return held{Cell: Cell{Value: encodeTag(t)}, tag: t, decoded: true} }

func notFound(name string) error { return fmt.Errorf("%w: %q", hapax.ErrTagNotFound, name) }

func tagKey(name string) Key { return Key{Name: name} }

// CreateTag implements hapax.SegmentStore.
func (b *Base) CreateTag(ctx context.Context, tag hapax.Tag, mode hapax.CreateMode) (hapax.Tag, error) {
	def, err := tag.WithDefaults()
	if err != nil {
		return hapax.Tag{}, err
	}
	var next Tag
	err = b.update(ctx, &rowChange{key: tagKey(def.Name), guess: b.guess(nil), to: func(row held) (held, error) {
		old, err := row.tagNamed(def.Name)
		if err == nil {
			next, err = Create(old, def, mode)
		}
		if err != nil {
			return held{}, err
		}
		return heldTag(next), nil
	}})
	if err != nil {
		return hapax.Tag{}, err
	}
	return next.Tag, nil
}

// HealTag implements [Healing].
func (b *Base) HealTag(ctx context.Context, def hapax.Tag) (hapax.Tag, error) {
	if err := hapax.ValidateName("tag", def.Name); err != nil {
		return hapax.Tag{}, err
	}
	var healed Tag
	err := b.update(ctx, &rowChange{key: tagKey(def.Name), to: func(row held) (held, error) {
		old, err := row.tagNamed(def.Name)
		if err == nil {
			healed, err = Heal(old, def)
		}
		if err != nil {
			return held{}, err
		}
		return heldTag(healed), nil
	}})
	if err != nil {
		return hapax.Tag{}, err
	}
	return healed.Tag, nil
}

// Tag implements [TagStore].
func (b *Base) Tag(ctx context.Context, name string) (hapax.Tag, error) {
	if err := hapax.ValidateName("tag", name); err != nil {
		return hapax.Tag{}, err
	}
	value, err := b.get(ctx, tagKey(name))
	if err != nil {
		return hapax.Tag{}, err
	}
	if value == nil {
		return hapax.Tag{}, notFound(name)
	}
	t, err := decodeTag(name, value)
	return t.Tag, err
}

// Tags implements [TagStore].
func (b *Base) Tags(ctx context.Context, after string, limit int) ([]hapax.Tag, error) {
	rows, err := b.ListRows(ctx, "", after, limit)
	if err != nil {
		return nil, err
	}
	tags := make([]hapax.Tag, len(rows))
	for i, row := range rows {
		t, err := decodeTag(row.Name, row.Value)
		if tags[i] = t.Tag; err != nil {
			tags[i] = hapax.Tag{Name: row.Name, Kind: hapax.KindUnreadable}
		}
	}
	return tags, nil
}

// TagsNamed implements [Guarding].
func (b *Base) TagsNamed(ctx context.Context, names []string) ([]hapax.Tag, error) {
	ctx, cancel, err := b.calls.Begin(ctx)
	if err != nil {
		return nil, err
	}
	defer cancel()
	if len(names) == 0 {
		return nil, nil
	}
	keys := make([]Key, len(names))
	for i, name := range names {
		keys[i] = tagKey(name)
	}
	cells, err := b.kv.Get(ctx, Lagging, keys...)
	if err != nil {
		return nil, err
	}
	var tags []hapax.Tag
	for i, cell := range cells {
		if cell.Value == nil {
			continue
		}
		if t, err := decodeTag(names[i], cell.Value); err == nil {
			tags = append(tags, t.Tag)
		}
	}
	return tags, nil
}
