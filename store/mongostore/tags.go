package mongostore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
)

const (
	attempts  = 100    // how often a document that changed meanwhile is judged again
	maxShapes = 50_000 // tags whose shape is remembered
)

// A tagDocument is a tag as it is stored.
type tagDocument struct {
	Name      string `bson:"_id"`
	Store     string `bson:"store"`
	Rev       exact  `bson:"rev"` // of the definition
	Kind      string `bson:"kind"`
	Deleted   bool   `bson:"deleted"`
	Mark      exact  `bson:"mark"`
	Token     exact  `bson:"token"` // missing: 0
	Run       exact  `bson:"run"`
	KeyHash   string `bson:"key_hash"`
	Start     exact  `bson:"start"`
	Step      exact  `bson:"step"`
	MinStep   exact  `bson:"min_step"`
	MaxStep   exact  `bson:"max_step"`
	Delta     exact  `bson:"delta"`
	Remainder exact  `bson:"remainder"`
	Pool      string `bson:"pool"`
	Extra     string `bson:"extra"`
}

func (d tagDocument) tag() driver.Tag {
	return driver.Tag{Tag: hapax.Tag{
		Name: d.Name, Kind: hapax.Kind(d.Kind), Deleted: d.Deleted, Mark: int64(d.Mark), Token: int64(d.Token), Start: int64(d.Start),
		Step: int64(d.Step), MinStep: int64(d.MinStep), MaxStep: int64(d.MaxStep),
		Delta: int64(d.Delta), Remainder: int64(d.Remainder), Pool: d.Pool, Extra: d.Extra,
	}, KeyHash: d.KeyHash, Run: int64(d.Run)}
}

// definition is what a change of the definition sets; the mark is not in it.
func definition(t hapax.Tag) bson.D {
	return bson.D{
		{Key: "kind", Value: string(t.Kind)},
		{Key: "deleted", Value: t.Deleted},
		{Key: "start", Value: t.Start},
		{Key: "step", Value: t.Step},
		{Key: "min_step", Value: t.MinStep},
		{Key: "max_step", Value: t.MaxStep},
		{Key: "delta", Value: t.Delta},
		{Key: "remainder", Value: t.Remainder},
		{Key: "pool", Value: t.Pool},
		{Key: "extra", Value: t.Extra},
	}
}

// marked is a mark to set that adjoins no allocation.
func marked(mark int64) bson.D {
	return bson.D{{Key: "mark", Value: mark}, {Key: "run", Value: int64(0)}, {Key: "key_hash", Value: ""}}
}

// tokenIs asks that a tag has the token. Tags that were made before there were any
// have none, which is 0.
func tokenIs(token int64) bson.E {
	if token == 0 {
		return bson.E{Key: "token", Value: bson.D{{Key: "$in", Value: bson.A{int64(0), nil}}}}
	}
	return bson.E{Key: "token", Value: token}
}

// now sets the time of the last change, for people to read.
var now = bson.E{Key: "$currentDate", Value: bson.D{{Key: "updated", Value: true}}}

// A shape is what says how far n numbers raise a tag's mark. A grant names the
// number, and asks that the tag still has the shape.
type shape struct{ step, delta int64 }

// shapes remembers the tags' shapes.
type shapes struct {
	mu sync.Mutex // guards m
	m  map[string]shape
}

// get returns a tag's shape; the guess where none is remembered has no step.
func (s *shapes) get(tag string) shape {
	s.mu.Lock()
	defer s.mu.Unlock()
	if sh, ok := s.m[tag]; ok {
		return sh
	}
	return shape{delta: 1}
}

func (s *shapes) set(tag string, sh shape) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.m == nil || len(s.m) >= maxShapes {
		s.m = map[string]shape{}
	}
	s.m[tag] = sh
}

// Allocate implements hapax.SegmentStore. It is one round trip where the tag's
// shape is the one that is remembered, and nobody else was granted anything since
// the caller's last allocation, if it has one; otherwise it takes another for each.
func (s *Store) Allocate(ctx context.Context, tag string, n int64, last hapax.GrantKey) (hapax.Allocation, error) {
	if err := hapax.ValidateName("tag", tag); err != nil {
		return hapax.Allocation{}, err
	}
	var a hapax.Allocation
	err := s.call(ctx, "allocate", func(ctx context.Context) error {
		for range attempts {
			granted, ok, err := s.advance(ctx, tag, n, last)
			if err != nil || ok {
				a = granted
				return err
			}
			d, err := s.readTag(ctx, tag)
			if err != nil {
				return err
			}
			if _, _, err := driver.Advance(d.tag(), n, last); err != nil {
				return err
			}
			s.shapes.set(tag, shape{int64(d.Step), int64(d.Delta)})
		}
		return tooOften(tag)
	})
	if err != nil {
		return hapax.Allocation{}, err
	}
	return a, nil
}

func tooOften(name string) error {
	return fmt.Errorf("%w: mongodb: tag %q changed %d times while it was to be changed", hapax.ErrStoreUnavailable, name, attempts)
}

// isLong asks that a number is a 64-bit integer: another one would round.
var isLong = bson.E{Key: "$type", Value: "long"}

// advance tries to raise the mark by the remembered shape, and reports
// whether the tag was as it must be for that.
func (s *Store) advance(ctx context.Context, tag string, n int64, last hapax.GrantKey) (hapax.Allocation, bool, error) {
	sh := s.shapes.get(tag)
	filter := bson.D{
		{Key: "_id", Value: tag},
		{Key: "store", Value: s.id},
		{Key: "kind", Value: string(hapax.KindSegment)},
		{Key: "deleted", Value: false},
		{Key: "delta", Value: sh.delta},
	}
	if n == 0 {
		filter = append(filter, bson.E{Key: "step", Value: sh.step})
	}
	width, err := driver.Width(hapax.Tag{Kind: hapax.KindSegment, Step: sh.step, Delta: sh.delta}, n)
	if err != nil || width == 0 {
		return hapax.Allocation{}, false, nil //nolint:nilerr // what the stored tag says is what the caller is told
	}
	filter = append(filter,
		bson.E{Key: "mark", Value: bson.D{{Key: "$gte", Value: int64(1)}, {Key: "$lte", Value: hapax.MaxMark - width}, isLong}},
		bson.E{Key: "run", Value: bson.D{{Key: "$gte", Value: int64(0)}, isLong}})
	key, hash := driver.NewKey()
	set := bson.D{{Key: "key_hash", Value: hash}}
	raise := bson.D{{Key: "mark", Value: width}}

	// The run goes on under the caller's last key, and begins anew under any other
	// one: each write is made only in its own case.
	if held := driver.HashKey(last); held != "" {
		a, ok, err := s.grant(ctx, append(slices.Clip(filter), bson.E{Key: "key_hash", Value: held}),
			bson.D{{Key: "$inc", Value: append(raise[:1:1], bson.E{Key: "run", Value: width})}, {Key: "$set", Value: set}, now}, width, key)
		if err != nil || ok {
			return a, ok, err
		}
		filter = append(filter, bson.E{Key: "key_hash", Value: bson.D{{Key: "$ne", Value: held}}})
	}
	return s.grant(ctx, filter,
		bson.D{{Key: "$inc", Value: raise}, {Key: "$set", Value: append(set, bson.E{Key: "run", Value: width})}, now}, width, key)
}

// grant makes one update that raises a mark, and reports whether the filter matched.
func (s *Store) grant(ctx context.Context, filter, update bson.D, width int64, key hapax.GrantKey) (hapax.Allocation, bool, error) {
	d, ok, err := s.updateTag(ctx, filter, update)
	if err != nil || !ok {
		return hapax.Allocation{}, false, err
	}
	t := d.tag()
	return hapax.Allocation{Grant: hapax.Grant{Lo: t.Mark - width, Hi: t.Mark}, Tag: t.Tag, Key: key, From: t.Mark - t.Run}, true, nil
}

// updateTag changes the tag that matches, and returns it as it is afterwards.
func (s *Store) updateTag(ctx context.Context, filter, update bson.D) (d tagDocument, ok bool, err error) {
	err = s.tags.FindOneAndUpdate(ctx, filter, update, options.FindOneAndUpdate().SetReturnDocument(options.After)).Decode(&d)
	if errors.Is(err, mongo.ErrNoDocuments) {
		return d, false, nil
	}
	return d, err == nil, err
}

// handBack returns a hand-back as an update: what it asks of the tag, and what it changes.
func (s *Store) handBack(a hapax.Allocation, next int64) (filter, update bson.D) {
	filter = bson.D{
		{Key: "_id", Value: a.Tag.Name},
		{Key: "store", Value: s.id},
		{Key: "deleted", Value: false},
		{Key: "mark", Value: bson.D{{Key: "$eq", Value: a.Grant.Hi}, isLong}},
		{Key: "key_hash", Value: driver.HashKey(a.Key)},
		{Key: "run", Value: bson.D{{Key: "$gte", Value: a.Grant.Hi - next}, isLong}},
		tokenIs(a.Tag.Token),
	}
	return filter, bson.D{{Key: "$set", Value: marked(next)}, {Key: "$inc", Value: bson.D{{Key: "token", Value: int64(1)}}}, now}
}

// HandBack implements hapax.SegmentStore. It is one round trip.
func (s *Store) HandBack(ctx context.Context, a hapax.Allocation, next int64) error {
	if err := driver.CheckHandBack(a, next); err != nil {
		return err
	}
	filter, update := s.handBack(a, next)
	return s.call(ctx, "hand back", func(ctx context.Context) error {
		_, ok, err := s.updateTag(ctx, filter, update)
		if err != nil || ok {
			return err
		}
		d, err := s.readTag(ctx, a.Tag.Name)
		if err != nil {
			return err
		}
		if _, err = driver.HandBack(d.tag(), a, next); err == nil {
			err = fmt.Errorf("%w: mongodb: tag %q refused a hand-back for no reason that is known", hapax.ErrStoreUnavailable, a.Tag.Name)
		}
		return err
	})
}

// handBackAll makes the hand-backs that are held by one bulk write, and reports which were
// made. The tags are read first, since the server tells only how many it has changed.
func (s *Store) handBackAll(ctx context.Context, all []driver.HandBackOf) (given []bool, err error) {
	given = make([]bool, len(all))
	found, err := s.tagsOf(ctx, all)
	if err != nil {
		return nil, err
	}
	var updates []mongo.WriteModel
	for i, h := range all {
		if _, err := driver.HandBack(found[h.Tag.Name], h.Allocation, h.Next); err == nil {
			filter, update := s.handBack(h.Allocation, h.Next)
			updates = append(updates, mongo.NewUpdateOneModel().SetFilter(filter).SetUpdate(update))
			given[i] = true
		}
	}
	if len(updates) == 0 {
		return given, nil
	}
	done, err := s.tags.BulkWrite(ctx, updates, options.BulkWrite().SetOrdered(false))
	if err != nil || done.MatchedCount == int64(len(updates)) {
		return given, err
	}
	// Others have changed some of them meanwhile. Nothing but the hand-back raises the
	// token and leaves the mark below where it was.
	if found, err = s.tagsOf(ctx, all); err != nil {
		return nil, err
	}
	for i, h := range all {
		t := found[h.Tag.Name]
		given[i] = given[i] && t.Token == h.Tag.Token+1 && t.Mark < h.Grant.Hi
	}
	return given, nil
}

// tagsOf reads the tags of hand-backs. Those that are not there have no name.
func (s *Store) tagsOf(ctx context.Context, all []driver.HandBackOf) (map[string]driver.Tag, error) {
	names := make(bson.A, len(all))
	for i, h := range all {
		names[i] = h.Tag.Name
	}
	docs, err := find[tagDocument](ctx, s, s.tags, bson.D{{Key: "$in", Value: names}}, len(all))
	found := make(map[string]driver.Tag, len(docs))
	for _, d := range docs {
		if err := s.ownTag(d); err != nil {
			return nil, err
		}
		found[d.Name] = d.tag()
	}
	return found, err
}

// readTag reads a tag of this store.
func (s *Store) readTag(ctx context.Context, name string) (tagDocument, error) {
	var d tagDocument
	err := s.tags.FindOne(ctx, bson.D{{Key: "_id", Value: name}}).Decode(&d)
	if errors.Is(err, mongo.ErrNoDocuments) {
		if err := s.check(ctx); err != nil {
			return d, err
		}
		return d, fmt.Errorf("%w: %q", hapax.ErrTagNotFound, name)
	}
	if err != nil {
		return d, err
	}
	return d, s.ownTag(d)
}

// ownTag checks that a document is a tag of this store.
func (s *Store) ownTag(d tagDocument) error {
	if err := s.same(d.Store); err != nil {
		return err
	}
	k := hapax.Kind(d.Kind)
	if k != hapax.KindSegment && k != hapax.KindSnowflake || k == hapax.KindSegment && (d.Mark < 1 || d.Step < 1 || d.Delta < 1) || d.Token < 0 || d.Run < 0 || d.Run > d.Mark {
		return fmt.Errorf("%w: mongodb: tag %q has kind %.20q, mark %d, run %d, step %d and delta %d", hapax.ErrStoreCorrupt, d.Name, d.Kind, d.Mark, d.Run, d.Step, d.Delta)
	}
	return nil
}

// CreateTag implements hapax.SegmentStore.
func (s *Store) CreateTag(ctx context.Context, tag hapax.Tag, mode hapax.CreateMode) (hapax.Tag, error) {
	tag, err := tag.WithDefaults()
	if err != nil {
		return hapax.Tag{}, err
	}
	tag.Deleted, tag.Token = false, 0
	stored := tag
	err = s.call(ctx, "create a tag", func(ctx context.Context) error {
		if err := s.insertTag(ctx, tag); !mongo.IsDuplicateKeyError(err) {
			return err
		}
		stored, err = s.redefine(ctx, tag.Name, 0, func(old hapax.Tag) (hapax.Tag, error) { return driver.Revive(old, tag, mode) })
		return err
	})
	if err != nil {
		return hapax.Tag{}, err
	}
	return stored, nil
}

func (s *Store) insertTag(ctx context.Context, t hapax.Tag) error {
	if err := s.check(ctx); err != nil {
		return err
	}
	d := append(bson.D{{Key: "_id", Value: t.Name}, {Key: "store", Value: s.id}, {Key: "rev", Value: int64(1)}, {Key: "token", Value: t.Token}}, marked(t.Mark)...)
	_, err := s.tags.InsertOne(ctx, append(d, definition(t)...))
	return err
}

// redefine replaces the definition of an existing tag by the one that f makes of it,
// unless f fails.
func (s *Store) redefine(ctx context.Context, name string, floor int64, f func(hapax.Tag) (hapax.Tag, error)) (hapax.Tag, error) {
	for range attempts {
		old, err := s.readTag(ctx, name)
		if err != nil {
			return hapax.Tag{}, err
		}
		next, err := f(old.tag().Tag)
		if err != nil {
			return hapax.Tag{}, err
		}
		if t, ok, err := s.define(ctx, old, next, floor); err != nil || ok {
			return t, err
		}
	}
	return hapax.Tag{}, tooOften(name)
}

// define stores a tag's definition if it still has old's revision, and reports
// whether it did. A mark that the definition raises is a floor: what was granted
// meanwhile may have raised it further, and stays. Nothing brings the mark below the floor again.
func (s *Store) define(ctx context.Context, old tagDocument, next hapax.Tag, floor int64) (hapax.Tag, bool, error) {
	filter := bson.D{{Key: "_id", Value: old.Name}, {Key: "store", Value: s.id}, {Key: "rev", Value: old.Rev}}
	update := func(set bson.D) bson.D {
		return bson.D{{Key: "$set", Value: set}, {Key: "$inc", Value: bson.D{{Key: "rev", Value: int64(1)}}}, now}
	}
	if floor > 0 {
		to := old.tag().Redefined(next).Floored(floor)
		filter = append(filter, bson.E{Key: "mark", Value: int64(old.Mark)}, tokenIs(int64(old.Token)))
		set := append(definition(next), bson.D{
			{Key: "mark", Value: to.Mark},
			{Key: "run", Value: to.Run},
			{Key: "key_hash", Value: to.KeyHash},
			{Key: "token", Value: to.Token},
		}...)
		d, ok, err := s.updateTag(ctx, filter, update(set))
		return d.tag().Tag, ok, err
	}
	if next.Mark > int64(old.Mark) {
		below := slices.Concat(filter, bson.D{{Key: "mark", Value: bson.D{{Key: "$lt", Value: next.Mark}}}})
		d, ok, err := s.updateTag(ctx, below, update(append(definition(next), marked(next.Mark)...)))
		if err != nil || ok {
			return d.tag().Tag, ok, err
		}
		filter = append(filter, bson.E{Key: "mark", Value: bson.D{{Key: "$gte", Value: next.Mark}}})
	}
	d, ok, err := s.updateTag(ctx, filter, update(definition(next)))
	return d.tag().Tag, ok, err
}

// change redefines an existing tag as f makes it, unless f fails.
func (s *Store) change(ctx context.Context, name, doing string, floor int64, f func(hapax.Tag) (hapax.Tag, error)) (t hapax.Tag, err error) {
	if err := hapax.ValidateName("tag", name); err != nil {
		return hapax.Tag{}, err
	}
	err = s.call(ctx, doing, func(ctx context.Context) error {
		t, err = s.redefine(ctx, name, floor, f)
		return err
	})
	return t, err
}

// UpdateTag implements driver.TagStore.
func (s *Store) UpdateTag(ctx context.Context, name string, u driver.TagUpdate) (hapax.Tag, error) {
	floor := int64(0)
	if u.Floor != nil {
		floor = *u.Floor
	}
	return s.change(ctx, name, "update a tag", floor, func(t hapax.Tag) (hapax.Tag, error) { return driver.Update(t, u) })
}

// DeleteTag implements driver.TagStore.
func (s *Store) DeleteTag(ctx context.Context, name string) (hapax.Tag, error) {
	return s.change(ctx, name, "delete a tag", 0, driver.Delete)
}

// Tag implements driver.TagStore.
func (s *Store) Tag(ctx context.Context, name string) (hapax.Tag, error) {
	if err := hapax.ValidateName("tag", name); err != nil {
		return hapax.Tag{}, err
	}
	var d tagDocument
	err := s.call(ctx, "read a tag", func(ctx context.Context) (err error) {
		d, err = s.readTag(ctx, name)
		return err
	})
	if err != nil {
		return hapax.Tag{}, err
	}
	return d.tag().Tag, nil
}

// Tags implements driver.TagStore.
func (s *Store) Tags(ctx context.Context, after string, limit int) ([]hapax.Tag, error) {
	if limit <= 0 {
		return nil, nil
	}
	return s.findTags(ctx, "list tags", bson.D{{Key: "$gt", Value: after}}, limit)
}

// findTags returns up to limit tags whose names match, in their order.
func (s *Store) findTags(ctx context.Context, op string, names bson.D, limit int) ([]hapax.Tag, error) {
	var page []hapax.Tag
	err := s.call(ctx, op, func(ctx context.Context) error {
		docs, err := find[tagDocument](ctx, s, s.tags, names, limit)
		for _, d := range docs {
			if err := s.ownTag(d); err != nil {
				return err
			}
			page = append(page, d.tag().Tag)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return page, nil
}

// find returns up to limit documents whose _id matches, in its order. It makes
// sure that they are those of the store that was opened.
func find[T any](ctx context.Context, s *Store, c *mongo.Collection, id bson.D, limit int) ([]T, error) {
	if err := s.check(ctx); err != nil {
		return nil, err
	}
	cursor, err := c.Find(ctx, bson.D{{Key: "_id", Value: id}}, options.Find().SetSort(bson.D{{Key: "_id", Value: 1}}).SetLimit(int64(limit)))
	if err != nil {
		return nil, err
	}
	var docs []T
	err = cursor.All(ctx, &docs)
	return docs, err
}
