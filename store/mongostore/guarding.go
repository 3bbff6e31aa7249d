package mongostore

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"sync"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
)

// Split implements driver.Guarding. A transaction of several documents would need a
// replica set and a session for each call; two beats do without.
func (s *Store) Split() bool { return true }

// maxBeats bounds the rows that are remembered; a process has one.
const maxBeats = 1000

// beats remembers what this handle has found in the rows of processes.
type beats struct {
	mu sync.Mutex // guards m
	m  map[string][]byte
}

func (b *beats) get(row string) []byte {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.m[row]
}

func (b *beats) set(row string, value []byte) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.m == nil || len(b.m) >= maxBeats {
		b.m = map[string][]byte{}
	}
	b.m[row] = value
}

// Beat implements driver.Guarding. It is two round trips where this handle has made
// the beat before: the write, on condition of the value that was written last, and
// a look at the fence and the joins after it; another one where it has a new connection.
func (s *Store) Beat(ctx context.Context, p driver.Pulse) (contact driver.Contact, err error) {
	if err := p.Check(); err != nil {
		return contact, err
	}
	err = s.call(ctx, "make a heartbeat", func(ctx context.Context) error {
		contact, err = s.beat(ctx, p)
		return err
	})
	if err != nil {
		return driver.Contact{}, err
	}
	return contact, nil
}

func (s *Store) beat(ctx context.Context, p driver.Pulse) (driver.Contact, error) {
	was, now := p.Was.Encode(), p.Now.Encode()
	own := s.beats.get(p.Row)
	var last contactRows
	for range attempts {
		if own == nil || bytes.Compare(own, was) < 0 {
			var err error
			if last, err = s.contactRows(ctx, p); err != nil {
				return driver.Contact{}, err
			}
			if own = last.own; own == nil || bytes.Compare(own, was) < 0 || last.fence != nil {
				return p.Judge(own, last.fence, last.joins)
			}
		}
		next := own
		if bytes.Compare(own, now) < 0 {
			next = now
			ok, err := s.swap(ctx, rowDocument{rowKey(driver.TableBeats, p.Row), s.id, now}, own)
			if err != nil {
				return driver.Contact{}, err
			}
			if !ok {
				own = nil
				continue
			}
		}
		var err error
		if last, err = s.contactRows(ctx, p); err != nil {
			return driver.Contact{}, err
		}
		c, err := p.Judge(last.own, last.fence, last.joins)
		if bytes.Compare(last.own, next) < 0 { // it went back, or has ended
			c.Met, c.Row, c.Fence = false, last.own, last.fence
		}
		if err != nil || !c.Met {
			return c, err
		}
		s.beats.set(p.Row, last.own)
		if c.Primary, err = s.primary(ctx); err != nil {
			return c, err
		}
		return c.Tell(p, last.changes, last.watched)
	}
	return driver.Contact{}, tooOften(p.Row)
}

// contactRows are the rows that a contact shows; nil: there is none.
type contactRows struct{ own, fence, joins, changes, watched []byte }

// contactRows reads the rows in one round trip.
func (s *Store) contactRows(ctx context.Context, p driver.Pulse) (found contactRows, err error) {
	keys := map[string]*[]byte{
		rowKey(driver.TableBeats, p.Row):             &found.own,
		rowKey(driver.TableFence, driver.RowFence):   &found.fence,
		rowKey(driver.TableGuard, driver.RowJoins):   &found.joins,
		rowKey(driver.TableGuard, driver.RowChanges): &found.changes,
	}
	if p.Watch != "" && p.Watch != p.Row {
		keys[rowKey(driver.TableBeats, p.Watch)] = &found.watched
	}
	var ids []string
	for key := range keys {
		ids = append(ids, key)
	}
	cursor, err := s.rows.Find(ctx, bson.D{{Key: "_id", Value: bson.D{{Key: "$in", Value: ids}}}})
	if err != nil {
		return found, err
	}
	var docs []rowDocument
	if err := cursor.All(ctx, &docs); err != nil {
		return found, err
	}
	for _, d := range docs {
		if err := s.same(d.Store); err != nil {
			return found, err
		}
		*keys[d.Key] = d.Value
	}
	if len(docs) == 0 {
		err = s.check(ctx)
	}
	return found, err
}

// AllocateWith implements driver.Guarding; see driver.Around.
func (s *Store) AllocateWith(ctx context.Context, p driver.Pulse, tag string, n int64, last hapax.GrantKey) (hapax.Allocation, driver.Contact, error) {
	return driver.Around(ctx, p, s.Beat, func() (hapax.Allocation, error) { return s.Allocate(ctx, tag, n, last) })
}

// TagsNamed implements driver.Guarding.
func (s *Store) TagsNamed(ctx context.Context, names []string) ([]hapax.Tag, error) {
	if len(names) == 0 {
		return nil, nil
	}
	return s.findTags(ctx, "read tags", bson.D{{Key: "$in", Value: names}}, len(names))
}

// HandBackWith implements driver.Guarding; see driver.Around.
func (s *Store) HandBackWith(ctx context.Context, p driver.Pulse, a hapax.Allocation, next int64) (driver.Contact, error) {
	_, c, err := driver.Around(ctx, p, s.Beat, func() (none struct{}, _ error) { return none, s.HandBack(ctx, a, next) })
	return c, err
}

// HandsBackTogether implements driver.Together.
func (s *Store) HandsBackTogether() bool { return true }

// HandBackAllWith implements driver.Together; see driver.Around.
func (s *Store) HandBackAllWith(ctx context.Context, p driver.Pulse, all []driver.HandBackOf) ([]bool, driver.Contact, error) {
	for _, h := range all {
		if err := driver.CheckHandBack(h.Allocation, h.Next); err != nil {
			return nil, driver.Contact{}, err
		}
	}
	given, c, err := driver.Around(ctx, p, s.Beat, func() (given []bool, err error) {
		err = s.call(ctx, "hand back", func(ctx context.Context) error {
			given, err = s.handBackAll(ctx, all)
			return err
		})
		return given, err
	})
	if given == nil {
		given = make([]bool, len(all))
	}
	return given, c, err
}

// SwapRowWith implements driver.Guarding; see driver.Around.
func (s *Store) SwapRowWith(ctx context.Context, p driver.Pulse, table, name string, old, next []byte) (bool, driver.Contact, error) {
	if err := p.CheckSwap(table, name, old, next); err != nil {
		return false, driver.Contact{}, err
	}
	return driver.Around(ctx, p, s.Beat, func() (bool, error) { return s.SwapRow(ctx, table, name, old, next) })
}

// HealTag implements driver.Healing. It is one write, of two that are each made only
// in their own case; a tag that is unknown takes another one.
func (s *Store) HealTag(ctx context.Context, def hapax.Tag) (t hapax.Tag, err error) {
	healed, err := driver.Heal(driver.Tag{}, def)
	if err != nil {
		return hapax.Tag{}, err
	}
	err = s.call(ctx, "heal a tag", func(ctx context.Context) error {
		for range attempts {
			d, ok, err := s.healTag(ctx, healed.Tag)
			if err != nil || ok {
				t = d.tag().Tag
				return err
			}
			old, err := s.readTag(ctx, def.Name)
			switch {
			case err == nil:
				if _, err := driver.Heal(old.tag(), def); err != nil {
					return err
				}
				continue // made meanwhile
			case !errors.Is(err, hapax.ErrTagNotFound):
				return err
			}
			if err := s.insertTag(ctx, healed.Tag); !mongo.IsDuplicateKeyError(err) {
				t = healed.Tag
				return err
			}
		}
		return tooOften(def.Name)
	})
	if err != nil {
		return hapax.Tag{}, err
	}
	return t, nil
}

// healTag raises the mark of a tag that exists, and its token to at least the one of
// t, and reports whether there is one of that kind.
func (s *Store) healTag(ctx context.Context, t hapax.Tag) (d tagDocument, ok bool, err error) {
	filter := bson.D{
		{Key: "_id", Value: t.Name},
		{Key: "store", Value: s.id},
		{Key: "kind", Value: string(t.Kind)},
		{Key: "pool", Value: t.Pool},
		{Key: "mark", Value: bson.D{isLong}},
	}
	set := bson.D{{Key: "run", Value: int64(0)}, {Key: "key_hash", Value: ""}}
	raise := bson.E{Key: "$max", Value: bson.D{{Key: "mark", Value: t.Mark}}}
	if below := t.Token - 1; below > 0 {
		higher := bson.E{Key: "token", Value: bson.D{{Key: "$not", Value: bson.D{{Key: "$gte", Value: below}}}}}
		d, ok, err = s.updateTag(ctx, append(slices.Clip(filter), higher), bson.D{{Key: "$set", Value: append(slices.Clip(set), bson.E{Key: "token", Value: t.Token})}, raise, now})
		if err != nil || ok {
			return d, ok, err
		}
		filter = append(filter, bson.E{Key: "token", Value: bson.D{{Key: "$gte", Value: below}}})
	}
	return s.updateTag(ctx, filter, bson.D{{Key: "$set", Value: set}, {Key: "$inc", Value: bson.D{{Key: "token", Value: int64(1)}}}, raise, now})
}
