package sequences

import (
	"context"
	"fmt"
	"math"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/mongostore"
)

// mongoCounters reads a collection of counters: documents with a name and a number.
type mongoCounters struct {
	db   *mongo.Database
	opts Options
}

// mongoNumbers are the fields that such collections count in.
var mongoNumbers = []string{"seq", "sequence_value", "seq_value", "count", "value"}

func openMongo(ctx context.Context, raw string, o Options) (*mongoCounters, error) {
	db, err := mongostore.NewDatabase(raw, o.Timeout)
	if err != nil {
		return nil, err
	}
	m := &mongoCounters{db, o}
	if err := db.Client().Ping(ctx, nil); err != nil {
		_ = m.Close()
		return nil, dbError(err)
	}
	return m, nil
}

func (m *mongoCounters) Close() error { return m.db.Client().Disconnect(context.Background()) }

// Sources implements Database.
func (m *mongoCounters) Sources(ctx context.Context, like string) (all []*Source, others []string, err error) {
	found, err := m.db.Collection(m.opts.Collection).Find(ctx, bson.D{})
	if err != nil {
		return nil, nil, dbError(err)
	}
	defer func() { _ = found.Close(ctx) }()
	for found.Next(ctx) {
		var doc bson.M
		if err := found.Decode(&doc); err != nil {
			return nil, nil, dbError(err)
		}
		name, named := counterName(doc)
		p := part{name: name, id: doc["_id"], step: 1, cache: 1, max: math.MaxInt64}
		for _, field := range mongoNumbers {
			if value, ok := doc[field]; ok {
				var ok bool
				if p.position, p.closed, ok = documentCounter(value); ok {
					p.field = field
				}
				break
			}
		}
		if p.field == "" || !named {
			if matches(like, name) {
				others = append(others, fmt.Sprintf("%s in %s: no document {_id: NAME, %s: NUMBER}, or with a NAME in model, id or name", name, m.opts.Collection, strings.Join(mongoNumbers, " or ")))
			}
			continue
		}
		s := &Source{Tag: name, Kind: "counter", Names: []string{name}, parts: []part{p}}
		if p.closed != nil {
			s.Tag = p.closed.Tag
		}
		if of := doc["reference_value"]; of != nil {
			s.wrong("%s counts for %v alone, so its numbers repeat: take a tag for each of them", name, of)
		}
		s.note("which fields it feeds is not known here: see that they hold nothing above it")
		s.conclude()
		if s.matchesAny(like) {
			all = append(all, s)
		}
	}
	return all, others, dbError(found.Err())
}

// documentCounter reads a counter, or what is in its place; false for anything else.
func documentCounter(value any) (at int64, closed *Mark, ok bool) {
	switch n := value.(type) {
	case int32:
		return int64(n), nil, true
	case int64:
		return n, nil, true
	case float64:
		// A double beyond 2^53 does not tell any more which number it was.
		at = int64(n)
		return at, nil, float64(at) == n && math.Abs(n) <= 1<<53
	case string:
		if closed = readMark(n); closed != nil {
			return closed.At, closed, true
		}
	}
	return 0, nil, false
}

// counterName returns the name of a counter: its _id, or, beside a random one, what plugins of
// Mongoose call it.
func counterName(doc bson.M) (name string, ok bool) {
	if name, ok = doc["_id"].(string); ok {
		return name, true
	}
	for _, field := range []string{"model", "id", "name"} {
		if name, ok = doc[field].(string); ok {
			return name, true
		}
	}
	return fmt.Sprint(doc["_id"]), false
}

func (m *mongoCounters) one(ctx context.Context, s *Source) (int64, *Mark, error) {
	p := s.parts[0]
	var doc bson.M
	if err := m.db.Collection(m.opts.Collection).FindOne(ctx, bson.D{{Key: "_id", Value: p.id}}).Decode(&doc); err != nil {
		return 0, nil, dbError(err)
	}
	at, closed, ok := documentCounter(doc[p.field])
	if !ok {
		return 0, nil, fmt.Errorf("%w: %s of %s in %s is not a counter any more", hapax.ErrInvalidArgument, p.field, p.name, m.opts.Collection)
	}
	return at, closed, nil
}

// Position implements Database.
func (m *mongoCounters) Position(ctx context.Context, s *Source) (int64, error) {
	at, _, err := m.one(ctx, s)
	return at, err
}

// Steps implements Database.
func (m *mongoCounters) Steps(s *Source, how Switch, first int64) ([]string, error) {
	if err := oneCounter(how); err != nil || s.Closed != nil {
		return nil, err
	}
	p, mark := s.parts[0], s.counterMark(m.opts, first)
	return []string{fmt.Sprintf(`for (;;) {
  const all = db.getCollection(%[1]s), at = all.findOne({_id: %[2]s})[%[3]s];
  if (typeof at === "string") {
    if (at.includes(%[8]s)) break; // it is shut
    throw new Error(%[5]s + " is shut for another store: " + at);
  }
  if (Number(String(at)) >= %[4]d) throw new Error(%[5]s + " is past the tag's first number: make the plan anew");
  if (all.updateOne({_id: %[2]s, %[3]s: at}, {$set: {%[3]s: %[6]s.replace(%[7]s, '"at":' + at)}}).matchedCount === 1) break;
}`, jsText(m.opts.Collection), p.shellID(), jsText(p.field), first, jsText(p.name), jsText(mark.text()), jsText(atText), jsText(mark.own()))}, nil
}

// shellID returns a document's _id as mongosh reads it.
func (p part) shellID() string {
	if id, ok := p.id.(bson.ObjectID); ok {
		return fmt.Sprintf("ObjectId(%q)", id.Hex())
	}
	if id, ok := p.id.(string); ok {
		return jsText(id)
	}
	text, _ := bson.MarshalExtJSON(bson.D{{Key: "id", Value: p.id}}, true, false) // it was read, so that it has a form
	return fmt.Sprintf("EJSON.parse(%s).id", jsText(string(text)))
}

// Script implements Database.
func (m *mongoCounters) Script(variable string, steps []string) string {
	var b strings.Builder
	for _, step := range steps {
		document, text := hereDocument(step)
		fmt.Fprintf(&b, "mongosh --quiet \"$%s\" --eval \"$(%s %s\n%s)\"\n", variable, ForStore, document, text)
	}
	return b.String()
}

// Shut implements Database: a text takes the number's place, which $inc refuses, if the
// number is still what was read.
func (m *mongoCounters) Shut(ctx context.Context, s *Source, how Switch, first int64) error {
	if err := oneCounter(how); err != nil || s.Closed != nil {
		return err
	}
	p, mark := s.parts[0], s.counterMark(m.opts, first)
	for {
		at, shut, err := m.one(ctx, s)
		if err != nil {
			return err
		}
		if shut != nil {
			if shut.own() == mark.own() {
				return nil
			}
			return &TakenError{By: shut}
		}
		if at >= first {
			return &PassedError{At: at}
		}
		// Compared with the number that was read: an $inc that comes between has it read again.
		text := strings.Replace(mark.text(), atText, fmt.Sprintf(`"at":%d`, at), 1)
		done, err := m.db.Collection(m.opts.Collection).UpdateOne(ctx, bson.D{{Key: "_id", Value: p.id}, {Key: p.field, Value: at}}, bson.D{{Key: "$set", Value: bson.D{{Key: p.field, Value: text}}}})
		if err != nil || done.MatchedCount == 1 {
			return dbError(err)
		}
	}
}

// BackSteps implements Database.
func (m *mongoCounters) BackSteps(s *Source, next int64) ([]string, error) {
	p := s.parts[0]
	return []string{fmt.Sprintf("db.getCollection(%s).updateOne({_id: %s}, {$set: {%s: NumberLong(%q)}})", jsText(m.opts.Collection), p.shellID(), jsText(p.field), fmt.Sprint(next-1))}, nil
}

// Reopen implements Database.
func (m *mongoCounters) Reopen(ctx context.Context, s *Source, next int64) error {
	p := s.parts[0]
	// Only while it is shut: a call that is repeated must not set a counter back that is in use again.
	done, err := m.db.Collection(m.opts.Collection).UpdateOne(ctx, bson.D{{Key: "_id", Value: p.id}, {Key: p.field, Value: s.Closed.text()}}, bson.D{{Key: "$set", Value: bson.D{{Key: p.field, Value: next - 1}}}})
	if err != nil || done.MatchedCount == 1 {
		return dbError(err)
	}
	_, by, err := m.one(ctx, s)
	if err != nil {
		return err
	}
	return &TakenError{By: by}
}
