package redisstore

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/redis/go-redis/v9"

	"github.com/hapax-id/hapax"
)

const (
	defineAttempts = 100 // how often a definition that changed meanwhile is judged again
	pageSize       = 500 // tags read in one round trip
)

// A record is a tag with the revision of its definition. Grants leave the
// revision as it is.
type record struct {
	hapax.Tag
	rev int64
}

// Allocate implements hapax.SegmentStore. It is one round trip.
func (s *Store) Allocate(ctx context.Context, tag string, n int64) (hapax.Allocation, error) {
	if err := hapax.ValidateName("tag", tag); err != nil {
		return hapax.Allocation{}, err
	}
	asked := n
	if n > hapax.MaxStep {
		asked = -1 // refused by the script; Advance tells why
	}
	return request(ctx, s, "allocate", func(ctx context.Context) (hapax.Allocation, error) {
		r, err := s.evalTag(ctx, allocateScript, tag, asked)
		if err != nil {
			return hapax.Allocation{}, err
		}
		t, err := s.decodeTag(tag, r.fields(1))
		if err != nil {
			return hapax.Allocation{}, err
		}
		if r.text(0) != saidOK {
			_, _, err := t.Advance(n)
			if err == nil {
				err = fmt.Errorf("%w: redis: tag %q was refused for no reason that is known", hapax.ErrStoreCorrupt, tag)
			}
			return hapax.Allocation{}, err
		}
		if n == 0 {
			n = t.Step
		}
		return hapax.Allocation{Grant: hapax.Grant{Lo: t.Mark - n, Hi: t.Mark}, Tag: t.Tag}, nil
	})
}

// evalTag runs a script on a tag's key.
func (s *Store) evalTag(ctx context.Context, sc script, tag string, args ...any) (reply, error) {
	for {
		r, err := s.eval(ctx, sc, []string{s.keys.tag(tag)}, append([]any{s.id}, args...)...)
		if err != nil {
			return nil, err
		}
		switch r.text(0) {
		case saidReplaced:
			return nil, s.same(r.text(1))
		case saidMissing:
			if err := s.tagMissing(ctx, tag); err != nil {
				return nil, err
			}
			continue
		}
		return r, nil
	}
}

// tagMissing returns why a tag has no key: it does not exist, it was lost, or
// the whole store was. It returns nil if the key was made at this moment.
func (s *Store) tagMissing(ctx context.Context, tag string) error {
	known, err := s.lookup(ctx, s.keys.tags(), tag, pendingTag(tag))
	if err != nil {
		return err
	}
	if !known {
		return fmt.Errorf("%w: %q", hapax.ErrTagNotFound, tag)
	}
	n, err := s.rdb.Exists(ctx, s.keys.tag(tag)).Result()
	if err == nil && n == 0 {
		err = lost("tag", tag)
	}
	return err
}

func pendingTag(name string) string { return "tag/" + name }

// lookup tells whether a name is indexed and its key was made.
func (s *Store) lookup(ctx context.Context, index, name, pending string) (bool, error) {
	r, err := s.eval(ctx, lookupScript, []string{s.keys.store(), index, s.keys.pending()}, s.id, name, pending)
	if err != nil {
		return false, err
	}
	if r.text(0) == saidReplaced {
		return false, s.same(r.text(1))
	}
	return r.text(0) == saidOK, nil
}

// CreateTag implements hapax.SegmentStore.
func (s *Store) CreateTag(ctx context.Context, tag hapax.Tag, mode hapax.CreateMode) (hapax.Tag, error) {
	tag, err := tag.WithDefaults()
	if err != nil {
		return hapax.Tag{}, err
	}
	tag.Deleted = false
	return request(ctx, s, "create a tag", func(ctx context.Context) (hapax.Tag, error) {
		for range defineAttempts {
			old, err := s.tag(ctx, tag.Name)
			next := tag
			switch {
			case err == nil:
				if next, err = old.Revive(tag, mode); err != nil {
					return hapax.Tag{}, err
				}
			case !errors.Is(err, hapax.ErrTagNotFound):
				return hapax.Tag{}, err
			default:
				if err := s.indexTag(ctx, tag.Name); err != nil {
					return hapax.Tag{}, err
				}
			}
			stored, ok, err := s.define(ctx, old.rev, next)
			if err != nil || !ok {
				if err != nil {
					return hapax.Tag{}, err
				}
				continue
			}
			if old.rev == 0 {
				err = s.rdb.SRem(ctx, s.keys.pending(), pendingTag(tag.Name)).Err()
			}
			return stored, err
		}
		return hapax.Tag{}, tooOften(tag.Name)
	})
}

func tooOften(name string) error {
	return fmt.Errorf("%w: redis: tag %q changed %d times while it was to be changed", hapax.ErrStoreUnavailable, name, defineAttempts)
}

func (s *Store) indexTag(ctx context.Context, name string) error {
	r, err := s.eval(ctx, indexTagScript, []string{s.keys.store(), s.keys.tags(), s.keys.pending()}, s.id, name, pendingTag(name))
	if err == nil && r.text(0) == saidReplaced {
		err = s.same(r.text(1))
	}
	return err
}

// define stores a tag's definition if its revision is still rev (0: it must not
// exist), and tells whether it did. The mark is raised to the tag's, not set.
func (s *Store) define(ctx context.Context, rev int64, t hapax.Tag) (hapax.Tag, bool, error) {
	expected := ""
	if rev != 0 {
		expected = strconv.FormatInt(rev, 10)
	}
	deleted := "0"
	if t.Deleted {
		deleted = "1"
	}
	r, err := s.evalTag(ctx, defineTagScript, t.Name, expected, t.Mark,
		"rev", rev+1, "kind", string(t.Kind), "deleted", deleted, "start", t.Start,
		"step", t.Step, "min_step", t.MinStep, "max_step", t.MaxStep, "pool", t.Pool)
	if err != nil || r.text(0) != saidOK {
		return hapax.Tag{}, false, err
	}
	stored, err := s.decodeTag(t.Name, r.fields(1))
	return stored.Tag, err == nil, err
}

// change redefines an existing tag by what f makes of it, unless f fails.
func (s *Store) change(ctx context.Context, name, doing string, f func(hapax.Tag) (hapax.Tag, error)) (hapax.Tag, error) {
	if err := hapax.ValidateName("tag", name); err != nil {
		return hapax.Tag{}, err
	}
	return request(ctx, s, doing, func(ctx context.Context) (hapax.Tag, error) {
		for range defineAttempts {
			old, err := s.tag(ctx, name)
			if err != nil {
				return hapax.Tag{}, err
			}
			next, err := f(old.Tag)
			if err != nil {
				return hapax.Tag{}, err
			}
			if stored, ok, err := s.define(ctx, old.rev, next); err != nil || ok {
				return stored, err
			}
		}
		return hapax.Tag{}, tooOften(name)
	})
}

// UpdateTag implements hapax.TagStore.
func (s *Store) UpdateTag(ctx context.Context, name string, u hapax.TagUpdate) (hapax.Tag, error) {
	return s.change(ctx, name, "update a tag", u.Apply)
}

// DeleteTag implements hapax.TagStore.
func (s *Store) DeleteTag(ctx context.Context, name string) (hapax.Tag, error) {
	return s.change(ctx, name, "delete a tag", func(t hapax.Tag) (hapax.Tag, error) {
		if t.Deleted {
			return t, fmt.Errorf("%w: %q", hapax.ErrTagDeleted, name)
		}
		t.Deleted = true
		return t, nil
	})
}

// Tag implements hapax.TagStore.
func (s *Store) Tag(ctx context.Context, name string) (hapax.Tag, error) {
	if err := hapax.ValidateName("tag", name); err != nil {
		return hapax.Tag{}, err
	}
	return request(ctx, s, "read a tag", func(ctx context.Context) (hapax.Tag, error) {
		t, err := s.tag(ctx, name)
		return t.Tag, err
	})
}

// tag reads a tag; without one it returns the zero record and ErrTagNotFound.
func (s *Store) tag(ctx context.Context, name string) (record, error) {
	for {
		m, err := s.rdb.HGetAll(ctx, s.keys.tag(name)).Result()
		if err != nil {
			return record{}, err
		}
		if len(m) > 0 {
			return s.decodeTag(name, m)
		}
		if err := s.tagMissing(ctx, name); err != nil {
			return record{}, err
		}
	}
}

// Tags implements hapax.TagStore. A page takes two round trips for 500 tags.
func (s *Store) Tags(ctx context.Context, after string, limit int) ([]hapax.Tag, error) {
	if limit <= 0 {
		return nil, nil
	}
	return request(ctx, s, "list tags", func(ctx context.Context) ([]hapax.Tag, error) {
		var page []hapax.Tag
		for {
			names, err := s.tagNames(ctx, after, min(limit-len(page), pageSize))
			if err != nil || len(names) == 0 {
				return page, err
			}
			tags, err := s.tagsNamed(ctx, names)
			if err != nil {
				return nil, err
			}
			if page = append(page, tags...); len(page) >= limit {
				return page, nil
			}
			after = names[len(names)-1]
		}
	})
}

func (s *Store) tagNames(ctx context.Context, after string, n int) ([]string, error) {
	from := "-"
	if after != "" {
		from = "(" + after
	}
	pipe := s.rdb.Pipeline()
	id := pipe.HGet(ctx, s.keys.store(), "id")
	names := pipe.ZRangeArgs(ctx, redis.ZRangeArgs{Key: s.keys.tags(), Start: from, Stop: "+", ByLex: true, Count: int64(n)})
	if _, err := pipe.Exec(ctx); err != nil && !errors.Is(err, redis.Nil) {
		return nil, err
	}
	return names.Val(), s.same(id.Val())
}

// tagsNamed reads the tags that are made already.
func (s *Store) tagsNamed(ctx context.Context, names []string) ([]hapax.Tag, error) {
	pipe := s.rdb.Pipeline()
	for _, name := range names {
		pipe.HGetAll(ctx, s.keys.tag(name))
	}
	cmds, err := pipe.Exec(ctx)
	if err != nil {
		return nil, err
	}
	var tags []hapax.Tag
	for i, cmd := range cmds {
		m := cmd.(*redis.MapStringStringCmd).Val()
		var t record
		var err error
		if len(m) > 0 {
			t, err = s.decodeTag(names[i], m)
		} else if t, err = s.tag(ctx, names[i]); errors.Is(err, hapax.ErrTagNotFound) {
			continue
		}
		if err != nil {
			return nil, err
		}
		tags = append(tags, t.Tag)
	}
	return tags, nil
}

// decodeTag reads the fields of a tag's key.
func (s *Store) decodeTag(name string, m map[string]string) (record, error) {
	if m["store"] != s.id {
		return record{}, s.same(m["store"])
	}
	t := record{Tag: hapax.Tag{Name: name, Kind: hapax.Kind(m["kind"]), Pool: m["pool"], Deleted: m["deleted"] == "1"}}
	for field, to := range map[string]*int64{
		"rev": &t.rev, "mark": &t.Mark, "start": &t.Start,
		"step": &t.Step, "min_step": &t.MinStep, "max_step": &t.MaxStep,
	} {
		v, _, err := number(m[field])
		if err != nil {
			return record{}, corrupt(s.keys.tag(name), field, m[field])
		}
		*to = v
	}
	if t.Kind != hapax.KindSegment && t.Kind != hapax.KindSnowflake {
		return record{}, corrupt(s.keys.tag(name), "kind", m["kind"])
	}
	return t, nil
}
