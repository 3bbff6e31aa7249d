package mongostore

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/hapax-id/hapax"
)

const (
	attempts = 100    // how often a document that changed meanwhile is judged again
	maxSteps = 50_000 // tags whose step is remembered
)

// A tagDocument is a tag as it is stored.
type tagDocument struct {
	Name    string `bson:"_id"`
	Store   string `bson:"store"`
	Rev     exact  `bson:"rev"` // of the definition
	Kind    string `bson:"kind"`
	Deleted bool   `bson:"deleted"`
	Mark    exact  `bson:"mark"`
	Start   exact  `bson:"start"`
	Step    exact  `bson:"step"`
	MinStep exact  `bson:"min_step"`
	MaxStep exact  `bson:"max_step"`
	Pool    string `bson:"pool"`
}

func (d tagDocument) tag() hapax.Tag {
	return hapax.Tag{
		Name: d.Name, Kind: hapax.Kind(d.Kind), Deleted: d.Deleted, Mark: int64(d.Mark), Start: int64(d.Start),
		Step: int64(d.Step), MinStep: int64(d.MinStep), MaxStep: int64(d.MaxStep), Pool: d.Pool,
	}
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
		{Key: "pool", Value: t.Pool},
	}
}

// now sets the time of the last change, for people to read.
var now = bson.E{Key: "$currentDate", Value: bson.D{{Key: "updated", Value: true}}}

// steps remembers the tags' own steps: a grant of one step names the number, and
// asks that it still is the step.
type steps struct {
	mu sync.Mutex // guards m
	m  map[string]int64
}

func (s *steps) get(tag string) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.m[tag]
}

func (s *steps) set(tag string, step int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.m == nil || len(s.m) >= maxSteps {
		s.m = map[string]int64{}
	}
	s.m[tag] = step
}

// Allocate implements hapax.SegmentStore. It is one round trip, unless n is 0
// and the tag's step is not the one that is remembered.
func (s *Store) Allocate(ctx context.Context, tag string, n int64) (hapax.Allocation, error) {
	if err := hapax.ValidateName("tag", tag); err != nil {
		return hapax.Allocation{}, err
	}
	ctx, cancel := s.deadline(ctx)
	defer cancel()
	for range attempts {
		a, ok, err := s.advance(ctx, tag, n)
		if err != nil || ok {
			return a, failed(ctx, "allocate", err)
		}
		t, err := s.readTag(ctx, tag)
		if err != nil {
			return hapax.Allocation{}, failed(ctx, "allocate", err)
		}
		if _, _, err := t.tag().Advance(n); err != nil {
			return hapax.Allocation{}, err
		}
		s.steps.set(tag, int64(t.Step))
	}
	return hapax.Allocation{}, tooOften(tag)
}

func tooOften(name string) error {
	return fmt.Errorf("%w: mongodb: tag %q changed %d times while it was to be changed", hapax.ErrStoreUnavailable, name, attempts)
}

// advance tries to raise the mark by n or by the remembered step, and tells
// whether the tag was as it must be for that.
func (s *Store) advance(ctx context.Context, tag string, n int64) (hapax.Allocation, bool, error) {
	filter := bson.D{
		{Key: "_id", Value: tag},
		{Key: "store", Value: s.id},
		{Key: "kind", Value: string(hapax.KindSegment)},
		{Key: "deleted", Value: false},
	}
	if n == 0 {
		n = s.steps.get(tag)
		filter = append(filter, bson.E{Key: "step", Value: n})
	}
	if n < 1 || n > hapax.MaxStep {
		return hapax.Allocation{}, false, nil
	}
	// A mark that is no 64-bit integer would round.
	filter = append(filter, bson.E{Key: "mark", Value: bson.D{{Key: "$gte", Value: int64(1)}, {Key: "$lte", Value: hapax.MaxMark - n}, {Key: "$type", Value: "long"}}})
	update := bson.D{{Key: "$inc", Value: bson.D{{Key: "mark", Value: n}}}, now}
	var d tagDocument
	err := s.tags.FindOneAndUpdate(ctx, filter, update, options.FindOneAndUpdate().SetReturnDocument(options.After)).Decode(&d)
	if errors.Is(err, mongo.ErrNoDocuments) {
		return hapax.Allocation{}, false, nil
	}
	if err != nil {
		return hapax.Allocation{}, false, err
	}
	t := d.tag()
	return hapax.Allocation{Grant: hapax.Grant{Lo: t.Mark - n, Hi: t.Mark}, Tag: t}, true, nil
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
	if k != hapax.KindSegment && k != hapax.KindSnowflake || k == hapax.KindSegment && (d.Mark < 1 || d.Step < 1) {
		return fmt.Errorf("%w: mongodb: tag %q has kind %.20q, mark %d and step %d", hapax.ErrStoreCorrupt, d.Name, d.Kind, d.Mark, d.Step)
	}
	return nil
}

// CreateTag implements hapax.SegmentStore.
func (s *Store) CreateTag(ctx context.Context, tag hapax.Tag, mode hapax.CreateMode) (hapax.Tag, error) {
	tag, err := tag.WithDefaults()
	if err != nil {
		return hapax.Tag{}, err
	}
	tag.Deleted = false
	ctx, cancel := s.deadline(ctx)
	defer cancel()
	for range attempts {
		if err := s.insertTag(ctx, tag); err == nil {
			return tag, nil
		} else if !mongo.IsDuplicateKeyError(err) {
			return hapax.Tag{}, failed(ctx, "create a tag", err)
		}
		old, err := s.readTag(ctx, tag.Name)
		if errors.Is(err, hapax.ErrTagNotFound) {
			continue
		}
		if err != nil {
			return hapax.Tag{}, failed(ctx, "create a tag", err)
		}
		next, err := old.tag().Revive(tag, mode)
		if err != nil {
			return hapax.Tag{}, err
		}
		if t, ok, err := s.define(ctx, old, next); err != nil || ok {
			return t, failed(ctx, "create a tag", err)
		}
	}
	return hapax.Tag{}, tooOften(tag.Name)
}

func (s *Store) insertTag(ctx context.Context, t hapax.Tag) error {
	if err := s.check(ctx); err != nil {
		return err
	}
	d := append(bson.D{{Key: "_id", Value: t.Name}, {Key: "store", Value: s.id}, {Key: "rev", Value: int64(1)}, {Key: "mark", Value: t.Mark}}, definition(t)...)
	_, err := s.tags.InsertOne(ctx, d)
	return err
}

// define stores a tag's definition if it still has old's revision, and tells
// whether it did. The mark is raised to the tag's, not set.
func (s *Store) define(ctx context.Context, old tagDocument, next hapax.Tag) (hapax.Tag, bool, error) {
	filter := bson.D{{Key: "_id", Value: old.Name}, {Key: "store", Value: s.id}, {Key: "rev", Value: old.Rev}}
	update := bson.D{
		{Key: "$set", Value: definition(next)},
		{Key: "$max", Value: bson.D{{Key: "mark", Value: next.Mark}}},
		{Key: "$inc", Value: bson.D{{Key: "rev", Value: int64(1)}}},
		now,
	}
	var d tagDocument
	err := s.tags.FindOneAndUpdate(ctx, filter, update, options.FindOneAndUpdate().SetReturnDocument(options.After)).Decode(&d)
	if errors.Is(err, mongo.ErrNoDocuments) {
		return hapax.Tag{}, false, nil
	}
	return d.tag(), err == nil, err
}

// change redefines an existing tag by what f makes of it, unless f fails.
func (s *Store) change(ctx context.Context, name, doing string, f func(hapax.Tag) (hapax.Tag, error)) (hapax.Tag, error) {
	if err := hapax.ValidateName("tag", name); err != nil {
		return hapax.Tag{}, err
	}
	ctx, cancel := s.deadline(ctx)
	defer cancel()
	for range attempts {
		old, err := s.readTag(ctx, name)
		if err != nil {
			return hapax.Tag{}, failed(ctx, doing, err)
		}
		next, err := f(old.tag())
		if err != nil {
			return hapax.Tag{}, err
		}
		if t, ok, err := s.define(ctx, old, next); err != nil || ok {
			return t, failed(ctx, doing, err)
		}
	}
	return hapax.Tag{}, tooOften(name)
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
	ctx, cancel := s.deadline(ctx)
	defer cancel()
	d, err := s.readTag(ctx, name)
	if err != nil {
		return hapax.Tag{}, failed(ctx, "read a tag", err)
	}
	return d.tag(), nil
}

// Tags implements hapax.TagStore.
func (s *Store) Tags(ctx context.Context, after string, limit int) ([]hapax.Tag, error) {
	if limit <= 0 {
		return nil, nil
	}
	ctx, cancel := s.deadline(ctx)
	defer cancel()
	docs, err := find[tagDocument](ctx, s, s.tags, bson.D{{Key: "_id", Value: bson.D{{Key: "$gt", Value: after}}}}, "_id", limit)
	if err != nil {
		return nil, failed(ctx, "list tags", err)
	}
	var page []hapax.Tag
	for _, d := range docs {
		if err := s.ownTag(d); err != nil {
			return nil, err
		}
		page = append(page, d.tag())
	}
	return page, nil
}

// find returns the documents that match, in the order of a field; limit 0 is
// all. It makes sure that they are those of the store that was opened.
func find[T any](ctx context.Context, s *Store, c *mongo.Collection, filter bson.D, order string, limit int) ([]T, error) {
	if err := s.check(ctx); err != nil {
		return nil, err
	}
	cursor, err := c.Find(ctx, filter, options.Find().SetSort(bson.D{{Key: order, Value: 1}}).SetLimit(int64(limit)))
	if err != nil {
		return nil, err
	}
	var docs []T
	err = cursor.All(ctx, &docs)
	return docs, err
}
