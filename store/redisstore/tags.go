package redisstore

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/redis/go-redis/v9"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
)

const (
	defineAttempts = 100 // how often a definition that changed meanwhile is judged again
	pageSize       = 500 // tags that are read at a time
)

// A record is a tag with the revision of its definition. Grants leave the
// revision as it is.
type record struct {
	driver.Tag
	rev int64
}

// Allocate implements hapax.SegmentStore. It is one round trip.
func (s *Store) Allocate(ctx context.Context, tag string, n int64, last hapax.GrantKey) (hapax.Allocation, error) {
	if err := hapax.ValidateName("tag", tag); err != nil {
		return hapax.Allocation{}, err
	}
	key, hash := driver.NewKey()
	return request(ctx, s, "allocate", func(ctx context.Context) (hapax.Allocation, error) {
		r, t, err := s.evalTag(ctx, allocateScript, tag, asked(n), driver.HashKey(last), hash)
		if err != nil {
			return hapax.Allocation{}, err
		}
		return allocated(r, t, n, last, key)
	})
}

// asked returns how many numbers a script is asked for. What it refuses in any case
// is -1; driver.Width tells why.
func asked(n int64) int64 {
	if n > hapax.MaxStep {
		return -1
	}
	return n
}

// allocated is the allocation that a script has made, or why it did not.
func allocated(r reply, t record, n int64, last, key hapax.GrantKey) (hapax.Allocation, error) {
	if r.text(0) != saidOK {
		_, _, err := driver.Advance(t.Tag, n, last)
		if err == nil {
			err = unexplained(t.Name)
		}
		return hapax.Allocation{}, err
	}
	width, err := driver.Width(t.Tag.Tag, n)
	if err != nil {
		return hapax.Allocation{}, err
	}
	return hapax.Allocation{
		Grant: hapax.Grant{Lo: t.Mark - width, Hi: t.Mark}, Tag: t.Tag.Tag, Key: key, From: t.Mark - t.Run,
	}, nil
}

// unexplained is the error for a script that refused what the rules allow.
func unexplained(tag string) error {
	return fmt.Errorf("%w: redis: tag %q was refused for no reason that is known", hapax.ErrStoreCorrupt, tag)
}

// HandBack implements hapax.SegmentStore. It is one round trip.
func (s *Store) HandBack(ctx context.Context, a hapax.Allocation, next int64) error {
	if err := driver.CheckHandBack(a, next); err != nil {
		return err
	}
	_, err := request(ctx, s, "hand back", func(ctx context.Context) (reply, error) {
		r, t, err := s.evalTag(ctx, handBackScript, a.Tag.Name, a.Grant.Hi, driver.HashKey(a.Key), a.Tag.Token, next)
		if err == nil {
			err = handedBack(r, t, a, next)
		}
		return nil, err
	})
	return err
}

// handedBack returns why a script handed nothing back, or nil.
func handedBack(r reply, t record, a hapax.Allocation, next int64) error {
	if r.text(0) == saidOK {
		return nil
	}
	if _, err := driver.HandBack(t.Tag, a, next); err != nil {
		return err
	}
	return unexplained(a.Tag.Name)
}

// HealTag implements driver.Healing. A tag whose key was lost is made anew.
func (s *Store) HealTag(ctx context.Context, def hapax.Tag) (hapax.Tag, error) {
	healed, err := driver.Heal(driver.Tag{}, def)
	if err != nil {
		return hapax.Tag{}, err
	}
	return request(ctx, s, "heal a tag", func(ctx context.Context) (hapax.Tag, error) {
		for range defineAttempts {
			r, t, err := s.evalTag(ctx, healTagScript, def.Name, string(healed.Kind), healed.Pool, healed.Mark, healed.Token-1)
			switch {
			case err == nil:
				if r.text(0) != saidOK {
					_, err = driver.Heal(t.Tag, def)
				}
				return t.Tag.Tag, err
			case errors.Is(err, hapax.ErrTagNotFound):
				if _, err := s.eval(ctx, indexTagScript, []string{s.keys.store(), s.keys.tags(), s.keys.pending()}, def.Name); err != nil {
					return hapax.Tag{}, err
				}
			case !errors.Is(err, hapax.ErrStoreRolledBack):
				return hapax.Tag{}, err
			}
			made, ok, err := s.define(ctx, record{}, healed.Tag)
			if err != nil {
				return hapax.Tag{}, err
			}
			if ok {
				return made, s.rdb.SRem(ctx, s.keys.pending(), def.Name).Err()
			}
		}
		return hapax.Tag{}, tooOften(def.Name)
	})
}

// evalTag runs a script on a tag's key, and decodes the tag that it answers. A tag
// that does not exist is an error.
func (s *Store) evalTag(ctx context.Context, sc script, tag string, args ...any) (reply, record, error) {
	for {
		r, err := s.eval(ctx, sc, []string{s.keys.tag(tag)}, args...)
		if err != nil {
			return nil, record{}, err
		}
		if r.text(0) == saidMissing {
			if err := s.tagMissing(ctx, tag); err != nil {
				return nil, record{}, err
			}
			continue
		}
		if len(r) == 1 {
			return r, record{}, nil
		}
		t, err := s.decodeTag(tag, r.fields())
		return r, t, err
	}
}

// tagMissing returns why a tag has no key: it does not exist, it was lost, or
// the whole store was. It returns nil if the key was made at this moment.
func (s *Store) tagMissing(ctx context.Context, tag string) error {
	r, err := s.eval(ctx, lookupScript, []string{s.keys.store(), s.keys.tags(), s.keys.pending()}, tag)
	if err != nil {
		return err
	}
	if r.text(0) != saidOK {
		return fmt.Errorf("%w: %q", hapax.ErrTagNotFound, tag)
	}
	n, err := s.rdb.Exists(ctx, s.keys.tag(tag)).Result()
	if err == nil && n == 0 {
		err = lost(tag)
	}
	return err
}

// CreateTag implements hapax.SegmentStore.
func (s *Store) CreateTag(ctx context.Context, tag hapax.Tag, mode hapax.CreateMode) (hapax.Tag, error) {
	tag, err := tag.WithDefaults()
	if err != nil {
		return hapax.Tag{}, err
	}
	tag.Deleted, tag.Token = false, 0
	return request(ctx, s, "create a tag", func(ctx context.Context) (hapax.Tag, error) {
		for range defineAttempts {
			old, err := s.tag(ctx, tag.Name)
			next := tag
			switch {
			case err == nil:
				if next, err = driver.Revive(old.Tag.Tag, tag, mode); err != nil {
					return hapax.Tag{}, err
				}
			case !errors.Is(err, hapax.ErrTagNotFound):
				return hapax.Tag{}, err
			default:
				if _, err := s.eval(ctx, indexTagScript, []string{s.keys.store(), s.keys.tags(), s.keys.pending()}, tag.Name); err != nil {
					return hapax.Tag{}, err
				}
			}
			stored, ok, err := s.define(ctx, old, next)
			if err != nil || !ok {
				if err != nil {
					return hapax.Tag{}, err
				}
				continue
			}
			if old.rev == 0 {
				err = s.rdb.SRem(ctx, s.keys.pending(), tag.Name).Err()
			}
			return stored, err
		}
		return hapax.Tag{}, tooOften(tag.Name)
	})
}

func tooOften(name string) error {
	return fmt.Errorf("%w: redis: tag %q changed %d times while it was to be changed", hapax.ErrStoreUnavailable, name, defineAttempts)
}

// define stores a tag's definition if its revision is still old's (0: the tag must
// not exist), and reports whether it did. A mark that the definition raises is a
// floor: what was granted meanwhile may have raised it further.
func (s *Store) define(ctx context.Context, old record, t hapax.Tag) (hapax.Tag, bool, error) {
	expected, floor, deleted := "", "", "0"
	if old.rev != 0 {
		expected = strconv.FormatInt(old.rev, 10)
	}
	if old.rev == 0 || t.Mark > old.Mark {
		floor = strconv.FormatInt(t.Mark, 10)
	}
	if t.Deleted {
		deleted = "1"
	}
	fields := []any{expected, floor}
	if old.rev == 0 {
		fields = append(fields, "token", t.Token)
	}
	r, stored, err := s.evalTag(ctx, defineTagScript, t.Name, append(fields,
		"rev", old.rev+1, "kind", string(t.Kind), "deleted", deleted, "start", t.Start, "step", t.Step,
		"min_step", t.MinStep, "max_step", t.MaxStep, "delta", t.Delta, "remainder", t.Remainder,
		"pool", t.Pool, "extra", t.Extra)...)
	return stored.Tag.Tag, err == nil && r.text(0) == saidOK, err
}

// change redefines an existing tag as f makes it, unless f fails.
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
			next, err := f(old.Tag.Tag)
			if err != nil {
				return hapax.Tag{}, err
			}
			if stored, ok, err := s.define(ctx, old, next); err != nil || ok {
				return stored, err
			}
		}
		return hapax.Tag{}, tooOften(name)
	})
}

// UpdateTag implements driver.TagStore.
func (s *Store) UpdateTag(ctx context.Context, name string, u driver.TagUpdate) (hapax.Tag, error) {
	return s.change(ctx, name, "update a tag", func(t hapax.Tag) (hapax.Tag, error) { return driver.Update(t, u) })
}

// DeleteTag implements driver.TagStore.
func (s *Store) DeleteTag(ctx context.Context, name string) (hapax.Tag, error) {
	return s.change(ctx, name, "delete a tag", driver.Delete)
}

// Tag implements driver.TagStore.
func (s *Store) Tag(ctx context.Context, name string) (hapax.Tag, error) {
	if err := hapax.ValidateName("tag", name); err != nil {
		return hapax.Tag{}, err
	}
	return request(ctx, s, "read a tag", func(ctx context.Context) (hapax.Tag, error) {
		t, err := s.tag(ctx, name)
		return t.Tag.Tag, err
	})
}

// tag reads a tag; without one it returns the zero record and ErrTagNotFound.
func (s *Store) tag(ctx context.Context, name string) (record, error) {
	_, t, err := s.evalTag(ctx, readTagScript, name)
	return t, err
}

// Tags implements driver.TagStore. It is two round trips for each 500 tags, and one that
// asks again whether the server is the primary.
func (s *Store) Tags(ctx context.Context, after string, limit int) ([]hapax.Tag, error) {
	if limit <= 0 {
		return nil, nil
	}
	return request(ctx, s, "list tags", func(ctx context.Context) ([]hapax.Tag, error) {
		var page []hapax.Tag
		for {
			asked := min(limit-len(page), pageSize)
			names, err := s.tagNames(ctx, after, asked)
			if err != nil {
				return nil, err
			}
			fields, err := s.readFields(ctx, names)
			if err != nil {
				return nil, err
			}
			for i, name := range names {
				if page, err = s.listed(ctx, page, name, fields[i]); err != nil {
					return nil, err
				}
				after = name
			}
			if len(page) >= limit || len(names) < asked {
				_, err := s.tagNames(ctx, after, 0)
				return page, err
			}
		}
	})
}

// afterName is where a range of names begins.
func afterName(name string) string {
	if name == "" {
		return "-"
	}
	return "(" + name
}

// tagNames returns up to n names of tags after the given one.
func (s *Store) tagNames(ctx context.Context, after string, n int) ([]string, error) {
	r, err := s.eval(ctx, listNamesScript, []string{s.keys.store(), s.keys.tags()}, afterName(after), n)
	if err != nil {
		return nil, err
	}
	names := make([]string, len(r)-1)
	for i := range names {
		names[i] = r.text(i + 1)
	}
	return names, nil
}

// readFields returns what the keys of tags hold; nothing for those that there are not.
func (s *Store) readFields(ctx context.Context, names []string) ([]map[string]string, error) {
	if len(names) == 0 {
		return nil, nil
	}
	pipe := s.rdb.Pipeline()
	for _, name := range names {
		pipe.HGetAll(ctx, s.keys.tag(name))
	}
	cmds, err := pipe.Exec(ctx)
	if err != nil {
		return nil, err
	}
	fields := make([]map[string]string, len(cmds))
	for i, cmd := range cmds {
		fields[i] = cmd.(*redis.MapStringStringCmd).Val()
	}
	return fields, nil
}

// listed appends the tag of a name with its fields, unless it is not made yet. One whose
// key was lost is left out as well: whoever knows it finds that the store lacks it, and it
// is made anew when the store is healed.
func (s *Store) listed(ctx context.Context, tags []hapax.Tag, name string, fields map[string]string) ([]hapax.Tag, error) {
	var t record
	var err error
	if len(fields) > 0 {
		t, err = s.decodeTag(name, fields)
	} else if t, err = s.tag(ctx, name); errors.Is(err, hapax.ErrTagNotFound) || errors.Is(err, hapax.ErrStoreRolledBack) {
		return tags, nil
	}
	return append(tags, t.Tag.Tag), err
}

// decodeTag reads the fields of a tag's key.
func (s *Store) decodeTag(name string, m map[string]string) (record, error) {
	if m["store"] != s.id {
		return record{}, s.same(m["store"])
	}
	t := record{Tag: driver.Tag{Tag: hapax.Tag{
		Name: name, Kind: hapax.Kind(m["kind"]), Pool: m["pool"], Extra: m["extra"], Deleted: m["deleted"] == "1",
	}, KeyHash: m["key_hash"]}}
	for _, n := range [...]struct {
		field string
		to    *int64
	}{
		{"rev", &t.rev},
		{"mark", &t.Mark},
		{"run", &t.Run},
		{"start", &t.Start},
		{"step", &t.Step},
		{"min_step", &t.MinStep},
		{"max_step", &t.MaxStep},
		{"delta", &t.Delta},
		{"remainder", &t.Remainder},
		{"token", &t.Token},
	} {
		text := m[n.field]
		if n.field == "token" && text == "" { // made before there were tokens, or never handed back
			continue
		}
		v, canonical, err := number(text)
		if err != nil || !canonical || v < 0 {
			return record{}, corrupt(s.keys.tag(name), n.field, text)
		}
		*n.to = v
	}
	switch {
	case t.Kind != hapax.KindSegment && t.Kind != hapax.KindSnowflake:
		return record{}, corrupt(s.keys.tag(name), "kind", m["kind"])
	case t.Kind == hapax.KindSegment && t.Mark < 1:
		return record{}, corrupt(s.keys.tag(name), "mark", m["mark"])
	case t.Run > t.Mark:
		return record{}, corrupt(s.keys.tag(name), "run", m["run"])
	}
	return t, nil
}

// number reads a decimal, and reports whether it is written as one would.
func number(text string) (n int64, canonical bool, err error) {
	n, err = strconv.ParseInt(text, 10, 64)
	return n, err == nil && strconv.FormatInt(n, 10) == text, err
}
