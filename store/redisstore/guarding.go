package redisstore

import (
	"context"

	"github.com/redis/go-redis/v9"

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

// withBeat runs a guarded script and has f read what follows after the contact: a word
// and what the script answers about what it did.
func withBeat[T any](ctx context.Context, s *Store, doing string, p driver.Pulse, sc script, tag string, args []any, f func(context.Context, reply) (T, error)) (T, driver.Contact, error) {
	if err := p.Check(); err != nil {
		var none T
		return none, driver.Contact{}, err
	}
	args = append([]any{field(driver.TableBeats, p.Row), p.Was.Encode(), p.Now.Encode()}, args...)
	o, err := request(ctx, s, doing, func(ctx context.Context) (o outcome[T], err error) {
		var tags []string
		if tag != "" {
			tags = []string{tag}
		}
		for {
			r, err := s.evalRows(ctx, sc, tags, args...)
			if err != nil {
				return o, err
			}
			if o.contact, err = contactOf(r); err != nil || !o.contact.Met {
				return o, err
			}
			if r.text(0) != saidMissing {
				o.value, err = f(ctx, append(reply{r[0]}, r[3:]...))
			} else if err = s.tagMissing(ctx, tag); err == nil {
				continue
			}
			if driver.IsOfTag(err) {
				o.err, err = err, nil
			}
			return o, err
		}
	})
	if err == nil {
		err = o.err
	}
	return o.value, o.contact, err
}

// contactOf reads what every guarded script answers.
func contactOf(r reply) (driver.Contact, error) {
	c := driver.Contact{Met: r.text(0) != saidUnmet, Primary: r.text(2)}
	if !c.Met {
		c.Row, c.Fence = bytesOf(r.text(3)), bytesOf(r.text(4))
	}
	var err error
	c.Joins, err = driver.DecodeCounter(driver.TableGuard, driver.RowJoins, bytesOf(r.text(1)))
	return c, err
}

// bytesOf returns a row's value, nil where there is no row.
func bytesOf(text string) []byte {
	if text == "" {
		return nil
	}
	return []byte(text)
}

// Beat implements driver.Guarding. It is one round trip.
func (s *Store) Beat(ctx context.Context, p driver.Pulse) (driver.Contact, error) {
	watch := ""
	if p.Watch != "" {
		watch = field(driver.TableBeats, p.Watch)
	}
	found, c, err := withBeat(ctx, s, "make a heartbeat", p, beatScript, "", []any{watch}, func(_ context.Context, r reply) (reply, error) { return r, nil })
	if err != nil || !c.Met {
		return c, err
	}
	return c.Tell(p, bytesOf(found.text(1)), bytesOf(found.text(2)))
}

// AllocateWith implements driver.Guarding. It is one round trip; in a Cluster, where
// tags lie apart from rows, it is three.
func (s *Store) AllocateWith(ctx context.Context, p driver.Pulse, tag string, n int64, last hapax.GrantKey) (hapax.Allocation, driver.Contact, error) {
	if err := hapax.ValidateName("tag", tag); err != nil {
		return hapax.Allocation{}, driver.Contact{}, err
	}
	if s.Split() {
		return driver.Around(ctx, p, s.Beat, func() (hapax.Allocation, error) { return s.Allocate(ctx, tag, n, last) })
	}
	key, hash := driver.NewKey()
	return withBeat(ctx, s, "allocate", p, allocateWithScript, tag, []any{asked(n), driver.HashKey(last), hash}, func(_ context.Context, r reply) (hapax.Allocation, error) {
		t, err := s.decodeTag(tag, r.fields())
		if err != nil {
			return hapax.Allocation{}, err
		}
		return allocated(r, t, n, last, key)
	})
}

// TagsNamed implements driver.Guarding. The tags are read in one round trip.
func (s *Store) TagsNamed(ctx context.Context, names []string) ([]hapax.Tag, error) {
	return request(ctx, s, "read tags", func(ctx context.Context) ([]hapax.Tag, error) {
		fields, err := s.readFields(ctx, names)
		if err != nil {
			return nil, err
		}
		var tags []hapax.Tag
		for i, name := range names {
			if len(fields[i]) == 0 {
				continue
			}
			t, err := s.decodeTag(name, fields[i])
			if err != nil {
				return nil, err
			}
			tags = append(tags, t.Tag.Tag)
		}
		return tags, nil
	})
}

// HandBackWith implements driver.Guarding. It is one round trip, three in a Cluster.
func (s *Store) HandBackWith(ctx context.Context, p driver.Pulse, a hapax.Allocation, next int64) (driver.Contact, error) {
	if err := driver.CheckHandBack(a, next); err != nil {
		return driver.Contact{}, err
	}
	if s.Split() {
		_, c, err := driver.Around(ctx, p, s.Beat, func() (none struct{}, _ error) { return none, s.HandBack(ctx, a, next) })
		return c, err
	}
	args := []any{a.Grant.Hi, driver.HashKey(a.Key), a.Tag.Token, next}
	_, c, err := withBeat(ctx, s, "hand back", p, handBackWithScript, a.Tag.Name, args, func(_ context.Context, r reply) (none struct{}, _ error) {
		t, err := s.decodeTag(a.Tag.Name, r.fields())
		if err == nil {
			err = handedBack(r, t, a, next)
		}
		return none, err
	})
	return c, err
}

// SwapRowWith implements driver.Guarding. It is one round trip.
func (s *Store) SwapRowWith(ctx context.Context, p driver.Pulse, table, name string, old, next []byte) (bool, driver.Contact, error) {
	if err := p.CheckSwap(table, name, old, next); err != nil {
		return false, driver.Contact{}, err
	}
	return withBeat(ctx, s, "write a row", p, swapWithScript, "", []any{field(table, name), old, next}, func(_ context.Context, r reply) (bool, error) {
		return r.text(0) == saidOK, nil
	})
}

// Split implements driver.Guarding: in a Cluster tags lie apart from rows.
func (s *Store) Split() bool {
	_, cluster := s.rdb.(*redis.ClusterClient)
	return cluster
}
