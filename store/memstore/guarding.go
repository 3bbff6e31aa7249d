package memstore

import (
	"bytes"
	"context"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
)

// withBeat makes the beat and, where it was made, calls f, all under the lock. A beat alone
// has no f.
func (s *Store) withBeat(ctx context.Context, p driver.Pulse, f func() error) (driver.Contact, error) {
	if err := p.Check(); err != nil {
		return driver.Contact{}, err
	}
	if err := s.lock(ctx); err != nil {
		return driver.Contact{}, err
	}
	defer s.mu.Unlock()
	beat, fence := rowKey{driver.TableBeats, p.Row}, rowKey{driver.TableFence, driver.RowFence}
	c, err := p.Judge(s.state.rows[beat], s.state.rows[fence], s.state.rows[rowKey{driver.TableGuard, driver.RowJoins}])
	if err == nil && f == nil {
		c, err = c.Tell(p, s.state.rows[rowKey{driver.TableGuard, driver.RowChanges}], s.state.rows[rowKey{driver.TableBeats, p.Watch}])
	}
	if err != nil || !c.Met {
		return c, err
	}
	if next := p.Now.Encode(); bytes.Compare(next, s.state.rows[beat]) > 0 {
		s.state.rows[beat] = next
	}
	if f == nil {
		return c, nil
	}
	return c, f()
}

// Beat implements driver.Guarding.
func (s *Store) Beat(ctx context.Context, p driver.Pulse) (driver.Contact, error) {
	return s.withBeat(ctx, p, nil)
}

// AllocateWith implements driver.Guarding.
func (s *Store) AllocateWith(ctx context.Context, p driver.Pulse, tag string, n int64, last hapax.GrantKey) (a hapax.Allocation, c driver.Contact, err error) {
	c, err = s.withBeat(ctx, p, func() error {
		return s.changeLocked(tag, func(t driver.Tag) (next driver.Tag, err error) {
			a, next, err = driver.Advance(t, n, last)
			return next, err
		})
	})
	return a, c, err
}

// AllocateAllWith implements driver.TogetherAllocating.
func (s *Store) AllocateAllWith(ctx context.Context, p driver.Pulse, all []driver.AllocateOf) (made []driver.Allocated, c driver.Contact, err error) {
	c, err = s.withBeat(ctx, p, func() error {
		made = make([]driver.Allocated, len(all))
		for i, of := range all {
			made[i].Err = s.changeLocked(of.Tag, func(t driver.Tag) (next driver.Tag, err error) {
				made[i].Allocation, next, err = driver.Advance(t, of.N, of.Last)
				return next, err
			})
		}
		return nil
	})
	return made, c, err
}

// HandBackWith implements driver.Guarding.
func (s *Store) HandBackWith(ctx context.Context, p driver.Pulse, a hapax.Allocation, next int64) (driver.Contact, error) {
	return s.withBeat(ctx, p, func() error {
		return s.changeLocked(a.Tag.Name, func(t driver.Tag) (driver.Tag, error) { return driver.HandBack(t, a, next) })
	})
}

// SwapRowWith implements driver.Guarding.
func (s *Store) SwapRowWith(ctx context.Context, p driver.Pulse, table, name string, old, next []byte) (ok bool, c driver.Contact, err error) {
	if err := p.CheckSwap(table, name, old, next); err != nil {
		return false, driver.Contact{}, err
	}
	c, err = s.withBeat(ctx, p, func() error {
		ok = s.swapLocked(table, name, old, next)
		return nil
	})
	return ok, c, err
}

// TagsNamed implements driver.Guarding.
func (s *Store) TagsNamed(ctx context.Context, names []string) ([]hapax.Tag, error) {
	if err := s.lock(ctx); err != nil {
		return nil, err
	}
	defer s.mu.Unlock()
	var tags []hapax.Tag
	for _, name := range names {
		if t, ok := s.state.tags[name]; ok {
			tags = append(tags, t.Tag)
		}
	}
	return tags, nil
}

// Split implements driver.Guarding.
func (s *Store) Split() bool { return false }

// HealTag implements driver.Healing.
func (s *Store) HealTag(ctx context.Context, def hapax.Tag) (hapax.Tag, error) {
	if err := s.lock(ctx); err != nil {
		return hapax.Tag{}, err
	}
	defer s.mu.Unlock()
	healed, err := driver.Heal(s.state.tags[def.Name], def)
	if err != nil {
		return hapax.Tag{}, err
	}
	s.state.tags[def.Name] = healed
	return healed.Tag, nil
}
