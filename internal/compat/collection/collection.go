// Package collection reads and writes the MongoDB collection in which an issuer with Redis
// and MongoDB keeps what it has granted. It has a document for each business type:
//
//	bizTag     its name
//	max        the last number of the last segment
//	step       how many numbers that segment has
//	timestamp  when it was granted, in ms since 1970
//
// Nothing is granted from it here. It is read to carry the tags over, and written for
// programs that watch it. A document that is closed, so that the old service can grant
// nothing from it, has a text as its max, and keeps the number in a field of its own. One
// whose tag was moved, closed or not, has the ID of the hapax store that took it in another.
package collection

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/hapax-id/hapax"
)

// The fields of a document.
const (
	fieldTag       = "bizTag"
	fieldMax       = "max"
	fieldStep      = "step"
	fieldTimestamp = "timestamp"

	fieldMoved = "hapaxMax"       // the max of a document that is closed
	fieldStore = "hapaxStore"     // the ID of the store that the tag was moved to
	fieldToken = "hapaxToken"     // the token of that tag when it was, or was to be, moved
	textMoved  = "moved to hapax" // its max then: nothing can be added to a text
)

const (
	maxDocuments = 1_000_000 // that are read
	fieldClass   = "_class"  // which Spring adds to every document
	maxShown     = 50        // bytes of a value that cannot be read
)

// A Document is what the collection tells of a tag.
type Document struct {
	Tag       string
	Max, Step int64
	Timestamp int64    // ms since 1970
	Closed    bool     // the old service can grant nothing from it
	Stores    []string // IDs of the hapax stores that the tag was moved to; one, or two by a mistake
	Token     int64    // the highest token for which it was
	Others    []string // names of fields that mean nothing here
	Err       error    // why it cannot be used; then Tag is as much as can be told
}

// Read returns all documents, or those of tags, in the order of the collection.
func Read(ctx context.Context, c *mongo.Collection, tags ...string) (all []Document, err error) {
	filter := bson.D{}
	if len(tags) > 0 {
		filter = bson.D{{Key: fieldTag, Value: bson.D{{Key: "$in", Value: tags}}}}
	}
	cursor, err := c.Find(ctx, filter, options.Find().SetLimit(maxDocuments+1))
	if err != nil {
		return nil, unavailable(err)
	}
	defer func() { err = errors.Join(err, unavailable(cursor.Close(ctx))) }()
	for cursor.Next(ctx) {
		if len(all) == maxDocuments {
			return nil, &hapax.ValueError{Field: "collection", Value: c.Name(), Allowed: fmt.Sprintf("one of up to %d documents", maxDocuments), Err: hapax.ErrInvalidArgument}
		}
		all = append(all, decode(cursor.Current))
	}
	return all, unavailable(cursor.Err())
}

func unavailable(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w: mongodb: %w", hapax.ErrStoreUnavailable, err)
}

// decode reads a document whose numbers may be of any of MongoDB's types.
func decode(raw bson.Raw) (d Document) {
	elements, _ := raw.Elements() // those of one that breaks off are too few
	d.Max = -1
	text, _ := raw.Lookup(fieldMax).StringValueOK()
	d.Closed = text == textMoved
	refuse := func(field, value, allowed string) {
		if d.Err == nil {
			d.Err = &hapax.ValueError{Field: field + " of the document", Value: value[:min(len(value), maxShown)], Allowed: allowed, Err: hapax.ErrInvalidArgument}
		}
	}
	for _, e := range elements {
		value, ok := e.Value(), true
		switch e.Key() {
		case fieldTag:
			d.Tag, ok = value.StringValueOK()
		case fieldMax:
			if !d.Closed {
				d.Max, ok = whole(value)
			}
		case fieldMoved: // of one that is open it is left from before
			if d.Closed {
				d.Max, ok = whole(value)
			}
		case fieldStore:
			var store string
			if store, ok = value.StringValueOK(); ok {
				d.Stores = []string{store}
			}
		case fieldToken:
			d.Token, ok = whole(value)
		case fieldStep:
			d.Step, ok = whole(value)
		case fieldTimestamp:
			if at, isTime := value.TimeOK(); isTime {
				d.Timestamp = at.UnixMilli()
			} else {
				d.Timestamp, ok = whole(value)
			}
		case "_id", fieldClass:
		default:
			d.Others = append(d.Others, e.Key())
		}
		switch {
		case ok:
		case e.Key() == fieldTag:
			refuse(fieldTag, value.String(), "the tag's name as text")
		case e.Key() == fieldStore:
			refuse(fieldStore, value.String(), "the ID of a store as text")
		default:
			refuse(e.Key(), value.String(), "a whole number from 0")
		}
	}
	if d.Tag == "" {
		refuse(fieldTag, "", "the tag's name as text")
		id := raw.Lookup("_id").String()
		d.Tag = "(_id " + id[:min(len(id), maxShown)] + ")"
	}
	if d.Max < 0 {
		refuse(fieldMax, "", "a whole number from 0")
	}
	return d
}

// whole returns a whole number from 0.
func whole(v bson.RawValue) (int64, bool) {
	switch v.Type {
	case bson.TypeInt32, bson.TypeInt64:
		n := v.AsInt64()
		return n, n >= 0
	case bson.TypeDouble:
		f := v.Double()
		// Above it, a double does not hold every whole number.
		return int64(f), f >= 0 && f <= 1<<53 && f == math.Trunc(f)
	default:
		return 0, false
	}
}

// Merge returns one document for each tag: where there are several, the one with the
// highest max, which is what they all have granted, closed if all of them are.
func Merge(all []Document) map[string]Document {
	merged := map[string]Document{}
	for _, d := range all {
		was, there := merged[d.Tag]
		switch {
		// One document that cannot be used keeps the tag from being carried over by another.
		case there && was.Err != nil:
			continue
		case there && d.Err == nil && was.Max >= d.Max:
			d, was = was, d
		}
		if there {
			d.Closed = d.Closed && was.Closed
		}
		d.Token = max(d.Token, was.Token)
		d.Others, d.Stores = union(d.Others, was.Others), union(d.Stores, was.Stores)
		merged[d.Tag] = d
	}
	return merged
}

// union returns what either has.
func union(a, b []string) []string {
	for _, text := range b {
		if !slices.Contains(a, text) {
			a = append(a, text)
		}
	}
	return a
}

// A TakenError tells that a tag was moved to another store than the one that a change is for.
type TakenError struct{ By string } // its ID; empty where a build that noted none closed the document

func (e *TakenError) Error() string { return "the document was taken by store " + e.By }

// ofStore fails for a document that another store than this one has taken.
func (d Document) ofStore(store string) error {
	switch {
	case len(d.Stores) > 0 && d.Stores[0] != store:
		return &TakenError{d.Stores[0]}
	case len(d.Stores) == 0 && d.Closed:
		return new(TakenError)
	}
	return nil
}

// A LateError tells that a command has taken a tag with a later token than the one of a change.
type LateError struct{}

func (*LateError) Error() string { return "another command has taken the document since" }

// Close closes the documents of a tag for a store: an addition to their max fails from then
// on. Where there is none it makes one that is closed, since an old service would make one
// that begins at 0. Each notes the token, unless it has a later one. It can be repeated, and
// fails with a TakenError where another store has one.
func Close(ctx context.Context, c *mongo.Collection, tag, store string, token int64) error {
	err := c.FindOne(ctx, bson.D{{Key: fieldTag, Value: tag}}).Err()
	if errors.Is(err, mongo.ErrNoDocuments) {
		_, err = c.InsertOne(ctx, bson.D{{Key: "_id", Value: tag}, {Key: fieldTag, Value: tag}, {Key: fieldMax, Value: textMoved}, {Key: fieldMoved, Value: int64(0)}, {Key: fieldStore, Value: store}, {Key: fieldToken, Value: token}})
	}
	// A document that has come meanwhile is closed below, as others are.
	if err != nil && !mongo.IsDuplicateKeyError(err) {
		return unavailable(err)
	}
	return each(ctx, c, tag, store, func(d Document, raw bson.Raw) (bson.D, error) {
		switch {
		case !d.Closed:
			return set(bson.D{{Key: fieldMax, Value: textMoved}, {Key: fieldMoved, Value: raw.Lookup(fieldMax)}, {Key: fieldStore, Value: store}, {Key: fieldToken, Value: max(token, d.Token)}}), nil
		case d.Token < token:
			return set(bson.D{{Key: fieldToken, Value: token}}), nil
		}
		return nil, nil
	})
}

// Take notes in the documents of a tag which store has taken it, and leaves them open. Else it
// is as Close.
func Take(ctx context.Context, c *mongo.Collection, tag, store string, token int64) error {
	return each(ctx, c, tag, store, func(d Document, _ bson.Raw) (bson.D, error) {
		if len(d.Stores) > 0 && d.Token >= token {
			return nil, nil
		}
		return set(bson.D{{Key: fieldStore, Value: store}, {Key: fieldToken, Value: max(token, d.Token)}}), nil
	})
}

// Reopen gives the documents of a tag that a store has taken back to the old service, whose
// next number is above top. It can be repeated: what is open is only raised. It fails with a LateError
// where one was taken with that token, or a later one.
func Reopen(ctx context.Context, c *mongo.Collection, tag, store string, token, top int64) error {
	return each(ctx, c, tag, store, func(d Document, _ bson.Raw) (bson.D, error) {
		// In one that stayed open the last segments may not be noted.
		unread := d.Err != nil
		switch {
		case len(d.Stores) == 0 && (unread || d.Max >= top):
			return nil, nil //nolint:nilerr // what it notes does not count: it stayed open
		case len(d.Stores) > 0 && d.Token >= token:
			return nil, new(LateError)
		}
		change := bson.D{{Key: "$unset", Value: bson.D{{Key: fieldMoved, Value: ""}, {Key: fieldStore, Value: ""}, {Key: fieldToken, Value: ""}}}}
		if d.Closed || !unread && d.Max < top {
			change = append(change, set(bson.D{{Key: fieldMax, Value: max(top, d.Max)}})...)
		}
		return change, nil //nolint:nilerr // it is opened, whatever it notes
	})
}

func set(values bson.D) bson.D { return bson.D{{Key: "$set", Value: values}} }

// each changes the documents of a tag, unless change returns nothing, each of them only while
// its max, its store and its token are what the change was made for: the old service may grant a segment
// meanwhile, and another store may take the tag.
func each(ctx context.Context, c *mongo.Collection, tag, store string, change func(Document, bson.Raw) (bson.D, error)) error {
	for {
		cursor, err := c.Find(ctx, bson.D{{Key: fieldTag, Value: tag}})
		if err != nil {
			return unavailable(err)
		}
		var all []bson.Raw
		if err := cursor.All(ctx, &all); err != nil {
			return unavailable(err)
		}
		lost := false
		for _, raw := range all {
			d := decode(raw)
			if err := d.ofStore(store); err != nil {
				return err
			}
			to, err := change(d, raw)
			if err != nil {
				return err
			}
			if to == nil {
				continue
			}
			as := bson.D{{Key: "_id", Value: raw.Lookup("_id")}, {Key: fieldMax, Value: raw.Lookup(fieldMax)}}
			for _, field := range []string{fieldStore, fieldToken} {
				if was, err := raw.LookupErr(field); err == nil {
					as = append(as, bson.E{Key: field, Value: was})
				} else {
					as = append(as, bson.E{Key: field, Value: bson.D{{Key: "$exists", Value: false}}})
				}
			}
			r, err := c.UpdateOne(ctx, as, to)
			if err != nil {
				return unavailable(err)
			}
			lost = lost || r.MatchedCount == 0
		}
		if !lost {
			return nil
		}
	}
}

// errClosed tells that a document was closed by a move, so that nothing is noted in it.
var errClosed = errors.New("the document is closed: a move without --keep-collection has closed it for the old service; --undo opens it, and --apply with --keep-collection keeps it open")

// write puts a grant into the collection, unless a later one is there.
func write(ctx context.Context, c *mongo.Collection, d Document) error {
	lower := bson.D{{Key: fieldTag, Value: d.Tag}, {Key: fieldMax, Value: bson.D{{Key: "$lt", Value: d.Max}}}}
	values := bson.D{{Key: fieldMax, Value: d.Max}, {Key: fieldStep, Value: d.Step}, {Key: fieldTimestamp, Value: d.Timestamp}}
	for {
		found, err := c.FindOne(ctx, bson.D{{Key: fieldTag, Value: d.Tag}}).Raw()
		if err == nil && decode(found).Closed {
			return errClosed
		}
		if err == nil {
			_, err = c.UpdateOne(ctx, lower, bson.D{{Key: "$set", Value: values}})
		}
		if !errors.Is(err, mongo.ErrNoDocuments) {
			return err
		}
		// The name is the _id too, so that of two writers one finds the other's document.
		_, err = c.InsertOne(ctx, append(bson.D{{Key: "_id", Value: d.Tag}, {Key: fieldTag, Value: d.Tag}}, values...))
		if !mongo.IsDuplicateKeyError(err) {
			return err
		}
	}
}

// now is the timestamp of a grant.
func now() int64 { return time.Now().UnixMilli() }
