package mongostore

import (
	"bytes"
	"context"
	"strings"
	"sync/atomic"
	"unicode/utf8"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/hapax-id/hapax/store/driver"
)

const raceMost = 100 // how often a row is raised that others change meanwhile

// A space is the store's documents; it implements driver.KV.
type space struct {
	calls     driver.Calls
	id        string            // the store ID
	meta      *mongo.Collection // identity
	tags      *mongo.Collection
	rows      *mongo.Collection
	primaries *primaries

	// beaten is the row that the last step has raised, if its conditions held: the next step
	// raises it before it looks at the others, as far as the row's own condition allows.
	beaten atomic.Pointer[driver.Key]
}

// A document is a row, or a tag, as it is stored.
type document struct {
	Key   string        `bson:"_id"`
	Store string        `bson:"store"`
	Value value         `bson:"value"`
	By    bson.ObjectID `bson:"by"` // of the last write
}

// A value is a text in the document, which people can read, unless it is none. Texts and
// other bytes never equal each other, so that there is one form for each value.
type value []byte

// MarshalBSONValue implements bson.ValueMarshaler.
func (v value) MarshalBSONValue() (byte, []byte, error) {
	var in any = []byte(v)
	if utf8.Valid(v) && bytes.IndexByte(v, 0) < 0 {
		in = string(v)
	}
	kind, data, err := bson.MarshalValue(in)
	return byte(kind), data, err
}

// valueIn is the value in a document. One that is empty where it is none, or is longer than a row may
// be, blocks its own row alone: it equals nothing that is expected.
func valueIn(raw bson.RawValue) value {
	if text, ok := raw.StringValueOK(); ok && len(text) <= driver.MaxValueBytes {
		return value(text)
	}
	if _, data, ok := raw.BinaryOK(); ok && len(data) <= driver.MaxValueBytes {
		return append(value{}, data...)
	}
	return value{}
}

// documentIn reads a document, and reports whether it names a store: one that does not is none of
// ours, and has no value.
func documentIn(raw bson.Raw) (d document, named bool) {
	d.Key, _ = raw.Lookup("_id").StringValueOK()
	d.By, _ = raw.Lookup("by").ObjectIDOK()
	d.Value = value{}
	if d.Store, named = raw.Lookup("store").StringValueOK(); named {
		d.Value = valueIn(raw.Lookup("value"))
	}
	return d, named
}

// rowKey returns the _id of a row. Names have no control characters.
func rowKey(table, name string) string { return table + "\x01" + name }

// place returns where a row lies.
func (s *space) place(key driver.Key) (*mongo.Collection, string) {
	if key.Table == "" {
		return s.tags, key.Name
	}
	return s.rows, rowKey(key.Table, key.Name)
}

// same checks a store ID that the server gave.
func (s *space) same(id string) error {
	if id == s.id {
		return nil
	}
	return driver.OtherStore("mongodb", id, s.id)
}

// check asks the server whether it holds the store that was opened.
func (s *space) check(ctx context.Context) error {
	m, err := s.readMeta(ctx)
	if err != nil {
		return err
	}
	return s.same(m.ID)
}

// proof is the _id of a row of each store that a process has joined. It is asked for with others, since
// an answer without documents does not say which store it is of.
var proof = rowKey(driver.TableGuard, driver.RowJoins)

// find returns the documents whose _id matches, in its order, and makes sure that they are
// those of the store that was opened.
func (s *space) find(ctx context.Context, c *mongo.Collection, id any, opts *options.FindOptionsBuilder) ([]document, error) {
	cursor, err := c.Find(ctx, bson.D{{Key: "_id", Value: id}}, opts)
	if err != nil {
		return nil, err
	}
	defer func() { _ = cursor.Close(ctx) }()
	var docs []document
	sure := false
	for cursor.Next(ctx) {
		d, named := documentIn(cursor.Current)
		if named {
			if err := s.same(d.Store); err != nil {
				return nil, err
			}
			sure = true
		}
		docs = append(docs, d)
	}
	if err := cursor.Err(); err != nil {
		return nil, err
	}
	if !sure && len(docs) > 0 {
		err = s.check(ctx)
	}
	return docs, err
}

// Get implements driver.KV. It is a round trip for tags and one for other rows, and another
// one where it finds neither any nor the proof.
func (s *space) Get(ctx context.Context, _ driver.Freshness, keys ...driver.Key) ([]driver.Cell, error) {
	found, err := s.read(ctx, keys)
	if err != nil {
		return nil, s.failed(ctx, err)
	}
	cells := make([]driver.Cell, len(keys))
	for i, key := range keys {
		cells[i] = found.cell(key)
	}
	return cells, nil
}

// rows are the documents that one read has found.
type rows map[driver.Key]document

func (r rows) cell(key driver.Key) driver.Cell { return driver.Cell{Value: r[key].Value, Known: true} }

// read reads rows.
func (s *space) read(ctx context.Context, keys []driver.Key) (rows, error) {
	found, sure := rows{}, false
	for _, c := range []*mongo.Collection{s.tags, s.rows} {
		at := map[string]driver.Key{}
		var ids bson.A
		for _, key := range keys {
			in, id := s.place(key)
			if _, ok := at[id]; in == c && !ok {
				at[id], ids = key, append(ids, id)
			}
		}
		if len(ids) == 0 {
			continue
		}
		if _, asked := at[proof]; c == s.rows && !asked {
			ids = append(ids, proof)
		}
		var match any = bson.D{{Key: "$in", Value: ids}}
		if len(ids) == 1 {
			match = ids[0]
		}
		docs, err := s.find(ctx, c, match, options.Find())
		if err != nil {
			return nil, err
		}
		for _, d := range docs {
			sure = true
			if key, asked := at[d.Key]; asked {
				found[key] = d
			}
		}
	}
	if !sure {
		return found, s.check(ctx)
	}
	return found, nil
}

// Scan implements driver.KV.
func (s *space) Scan(ctx context.Context, table, after string, limit int) ([]driver.Row, error) {
	c, from := s.place(driver.Key{Table: table, Name: after})
	match := bson.D{{Key: "$gt", Value: from}}
	if table != "" {
		// A table's rows have the byte 1 after its name: the byte 2 is where they end.
		match = append(match, bson.E{Key: "$lt", Value: table + "\x02"})
	}
	docs, err := s.find(ctx, c, match, options.Find().SetSort(bson.D{{Key: "_id", Value: 1}}).SetLimit(int64(limit)))
	if err == nil && len(docs) == 0 {
		err = s.check(ctx)
	}
	if err != nil {
		return nil, s.failed(ctx, err)
	}
	page := make([]driver.Row, len(docs))
	_, prefix := s.place(driver.Key{Table: table})
	for i, d := range docs {
		page[i] = driver.Row{Name: strings.TrimPrefix(d.Key, prefix), Value: d.Value}
	}
	return page, nil
}
