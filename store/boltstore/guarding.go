package boltstore

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"slices"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
)

// outcome is what a guarded call returns. Its error is the tag's own and comes
// with the contact.
type outcome[T any] struct {
	value   T
	contact driver.Contact
	err     error
}

// withBeat makes the beat and, where it was made, calls f in the same transaction. f puts
// after it has judged everything, as its last step.
func withBeat[T any](ctx context.Context, s *Store, p driver.Pulse, f func(*transaction) (T, error)) (T, driver.Contact, error) {
	if err := p.Check(); err != nil {
		var none T
		return none, driver.Contact{}, err
	}
	o, err := write(ctx, s, func(tx *transaction) (o outcome[T], err error) {
		own, err := getRow(tx.Tx, driver.TableBeats, p.Row)
		if err != nil {
			return o, err
		}
		fence, err := getRow(tx.Tx, driver.TableFence, driver.RowFence)
		if err != nil {
			return o, err
		}
		joins, err := getRow(tx.Tx, driver.TableGuard, driver.RowJoins)
		if err != nil {
			return o, err
		}
		if o.contact, err = p.Judge(own, fence, joins); err != nil || !o.contact.Met {
			return o, err
		}
		if now := p.Now.Encode(); bytes.Compare(now, own) > 0 {
			key := rowKey(driver.TableBeats, p.Row)
			if err := tx.replace(bucketRows, key, seal(bucketRows, key, now)); err != nil {
				return o, err
			}
		}
		if o.value, err = f(tx); driver.IsOfTag(err) {
			o.err, err = err, nil
		}
		return o, err
	})
	if err == nil {
		err = o.err
	}
	return o.value, o.contact, err
}

// Beat implements driver.Guarding.
func (s *Store) Beat(ctx context.Context, p driver.Pulse) (driver.Contact, error) {
	var changes, watched []byte
	_, c, err := withBeat(ctx, s, p, func(tx *transaction) (none struct{}, err error) {
		if changes, err = getRow(tx.Tx, driver.TableGuard, driver.RowChanges); err == nil && p.Watch != "" {
			watched, err = getRow(tx.Tx, driver.TableBeats, p.Watch)
		}
		return none, err
	})
	if err != nil {
		return c, err
	}
	return c.Tell(p, changes, watched)
}

// AllocateWith implements driver.Guarding.
func (s *Store) AllocateWith(ctx context.Context, p driver.Pulse, tag string, n int64, last hapax.GrantKey) (hapax.Allocation, driver.Contact, error) {
	return withBeat(ctx, s, p, func(tx *transaction) (hapax.Allocation, error) {
		return changeIn(tx, tag, func(t driver.Tag) (driver.Tag, hapax.Allocation, error) {
			a, next, err := driver.Advance(t, n, last)
			return next, a, err
		})
	})
}

// AllocateAllWith implements driver.TogetherAllocating. It is one request of the committer,
// which judges all tags before it writes the first.
func (s *Store) AllocateAllWith(ctx context.Context, p driver.Pulse, all []driver.AllocateOf) ([]driver.Allocated, driver.Contact, error) {
	all = slices.Clone(all) // the committer may still run when the caller has gone on
	return withBeat(ctx, s, p, func(tx *transaction) ([]driver.Allocated, error) {
		made, changed := make([]driver.Allocated, len(all)), make(map[string]driver.Tag, len(all))
		for i, of := range all {
			t, ok := changed[of.Tag]
			var err error
			if !ok {
				t, err = getTag(tx.Tx, of.Tag)
			}
			if err == nil {
				made[i].Allocation, t, err = driver.Advance(t, of.N, of.Last)
			}
			switch {
			case driver.IsOfTag(err):
				made[i].Err = err
			case err != nil:
				return nil, err
			default:
				changed[of.Tag] = t
			}
		}
		for _, name := range slices.Sorted(maps.Keys(changed)) {
			if err := putTag(tx, changed[name]); err != nil {
				return nil, err
			}
		}
		return made, nil
	})
}

// HandBackWith implements driver.Guarding.
func (s *Store) HandBackWith(ctx context.Context, p driver.Pulse, a hapax.Allocation, next int64) (driver.Contact, error) {
	_, c, err := withBeat(ctx, s, p, func(tx *transaction) (struct{}, error) {
		return changeIn(tx, a.Tag.Name, func(t driver.Tag) (driver.Tag, struct{}, error) {
			t, err := driver.HandBack(t, a, next)
			return t, struct{}{}, err
		})
	})
	return c, err
}

// HandsBackTogether implements driver.Together.
func (s *Store) HandsBackTogether() bool { return true }

// HandBackAllWith implements driver.Together. It is one request of the committer, which
// judges all tags before it writes the first.
func (s *Store) HandBackAllWith(ctx context.Context, p driver.Pulse, all []driver.HandBackOf) ([]bool, driver.Contact, error) {
	given := make([]bool, len(all))
	for _, h := range all {
		if err := driver.CheckHandBack(h.Allocation, h.Next); err != nil {
			return given, driver.Contact{}, err
		}
	}
	made, c, err := withBeat(ctx, s, p, func(tx *transaction) ([]bool, error) {
		made, changed := make([]bool, len(all)), make([]driver.Tag, 0, len(all))
		for i, h := range all {
			t, err := getTag(tx.Tx, h.Tag.Name)
			if err == nil {
				t, err = driver.HandBack(t, h.Allocation, h.Next)
			}
			switch {
			case driver.IsOfTag(err):
			case err != nil:
				return nil, err
			default:
				made[i], changed = true, append(changed, t)
			}
		}
		for _, t := range changed {
			if err := putTag(tx, t); err != nil {
				return nil, err
			}
		}
		return made, nil
	})
	copy(given, made)
	return given, c, err
}

// SwapRowWith implements driver.Guarding.
func (s *Store) SwapRowWith(ctx context.Context, p driver.Pulse, table, name string, old, next []byte) (bool, driver.Contact, error) {
	if err := p.CheckSwap(table, name, old, next); err != nil {
		return false, driver.Contact{}, err
	}
	old, next = slices.Clone(old), slices.Clone(next) // the committer may still run when the caller has gone on
	return withBeat(ctx, s, p, func(tx *transaction) (bool, error) { return swapRow(tx, table, name, old, next) })
}

// TagsNamed implements driver.Guarding.
func (s *Store) TagsNamed(ctx context.Context, names []string) (tags []hapax.Tag, err error) {
	for _, name := range names {
		t, err := s.Tag(ctx, name)
		switch {
		case errors.Is(err, hapax.ErrTagNotFound):
			continue
		case err != nil:
			return nil, err
		}
		tags = append(tags, t)
	}
	return tags, nil
}

// Split implements driver.Guarding.
func (s *Store) Split() bool { return false }

// HealTag implements driver.Healing.
func (s *Store) HealTag(ctx context.Context, def hapax.Tag) (hapax.Tag, error) {
	return write(ctx, s, func(tx *transaction) (hapax.Tag, error) {
		var r tagRecord
		exists, err := get(tx.Tx, bucketTags, []byte(def.Name), &r)
		if err != nil {
			return hapax.Tag{}, err
		}
		var old driver.Tag
		if exists {
			old = r.tag([]byte(def.Name))
		}
		healed, err := driver.Heal(old, def)
		if err != nil {
			return hapax.Tag{}, err
		}
		return healed.Tag, putTag(tx, healed)
	})
}
