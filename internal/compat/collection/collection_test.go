package collection_test

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/compat/collection"
	"github.com/hapax-id/hapax/internal/patience"
	"github.com/hapax-id/hapax/internal/testservers"
	"github.com/hapax-id/hapax/store/mongostore"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func open(t testing.TB, server *testservers.Server, name string) *mongo.Collection {
	t.Helper()
	db, err := mongostore.NewDatabase(server.URL, patience.Call)
	must(t, err)
	t.Cleanup(func() { _ = db.Client().Disconnect(context.Background()) })
	return db.Collection(name)
}

func TestRead(t *testing.T) {
	c := open(t, testservers.MongoDB(t), "sequence")
	at := time.Date(2026, 11, 22, 0, 0, 0, 0, time.UTC)
	_, err := c.InsertMany(t.Context(), []any{
		bson.D{{Key: "bizTag", Value: "long"}, {Key: "max", Value: int64(1 << 60)}, {Key: "step", Value: int32(1000)}, {Key: "timestamp", Value: at.UnixMilli()}, {Key: "_class", Value: "x.Segment"}},
		bson.D{{Key: "bizTag", Value: "shell"}, {Key: "max", Value: 5000.0}, {Key: "step", Value: 50.0}, {Key: "timestamp", Value: at}, {Key: "owner", Value: "me"}},
		bson.D{{Key: "bizTag", Value: "shell"}, {Key: "max", Value: int64(7000)}, {Key: "note", Value: "later"}},
		bson.D{{Key: "bizTag", Value: "half"}, {Key: "max", Value: 1.5}},
		bson.D{{Key: "bizTag", Value: "text"}, {Key: "max", Value: "12"}},
		bson.D{{Key: "bizTag", Value: "below"}, {Key: "max", Value: int64(-1)}},
		bson.D{{Key: "bizTag", Value: "none"}},
		bson.D{{Key: "_id", Value: "nameless"}, {Key: "max", Value: int64(3)}},
	})
	must(t, err)
	all, err := collection.Read(t.Context(), c)
	must(t, err)
	tags := collection.Merge(all)
	for name, want := range map[string]collection.Document{
		"long":  {Max: 1 << 60, Step: 1000, Timestamp: at.UnixMilli()},
		"shell": {Max: 7000, Others: []string{"note", "owner"}},
	} {
		got := tags[name]
		want.Tag = name
		if got.Max != want.Max || got.Step != want.Step || got.Timestamp != want.Timestamp || !slices.Equal(got.Others, want.Others) || got.Err != nil {
			t.Errorf("got %+v, want %+v", got, want)
		}
	}
	for name, names := range map[string]string{"half": "invalid max of", "text": "invalid max of", "below": "invalid max of", "none": "missing max of", `(_id "nameless")`: "missing bizTag of"} {
		if err := tags[name].Err; !errors.Is(err, hapax.ErrInvalidArgument) || !strings.Contains(err.Error(), names) {
			t.Errorf("%s: %v; want it to say %q", name, err, names)
		}
	}
	if len(tags) != 7 {
		t.Errorf("there are %v", slices.Sorted(maps.Keys(tags)))
	}
}

// Writers that know different segments leave the latest, in one document, whatever the
// order, and through an outage.
func TestWriters(t *testing.T) {
	server := testservers.MongoDB(t)
	server.MustControl()
	c := open(t, server, "sequence")
	_, err := c.InsertOne(t.Context(), bson.D{{Key: "bizTag", Value: "there"}, {Key: "max", Value: int64(10)}, {Key: "step", Value: int64(10)}, {Key: "name", Value: "kept"}})
	must(t, err)
	var mu sync.Mutex
	var told []bool // whether it works
	tell := func(err error) {
		mu.Lock()
		defer mu.Unlock()
		told = append(told, err == nil)
	}
	a, z := collection.NewWriter(c, tell), collection.NewWriter(open(t, server, "sequence"), func(error) {})
	is := func(tag string, last, step int64) bool {
		all, err := collection.Read(t.Context(), c)
		must(t, err)
		n := 0
		for _, d := range all {
			if d.Tag == tag {
				n++
			}
		}
		d := collection.Merge(all)[tag]
		return n == 1 && d.Max == last && d.Step == step && d.Timestamp > 0
	}
	for _, tag := range []string{"there", "new"} {
		for k := range int64(20) {
			a.Granted(tag, 100*k+50, 7)
			z.Granted(tag, 100*k+100, k)
		}
		patience.Until(t, "the last segment of "+tag, func() bool { return is(tag, 2000, 19) })
	}
	server.Kill()
	a.Granted("new", 3000, 5)
	a.Granted("new", 2500, 4)
	patience.Until(t, "word that it fails", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(told) == 1 && !told[0]
	})
	server.Start()
	patience.Until(t, "the segment of the outage", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(told) == 2 && told[1]
	})
	if !is("new", 3000, 5) {
		t.Error("the segment of the outage is not there")
	}
	z.Granted("new", 4000, 6)
	must(t, z.Close(t.Context()))
	must(t, a.Close(t.Context()))
	if !is("new", 4000, 6) {
		t.Error("the last segment is not there")
	}
	if name := c.FindOne(t.Context(), bson.D{{Key: "bizTag", Value: "there"}}); name.Err() != nil {
		t.Error(name.Err())
	} else if raw, err := name.Raw(); err != nil || raw.Lookup("name").StringValue() != "kept" {
		t.Errorf("a field of somebody else's is gone: %s, %v", raw, err)
	}
}

// A document that is closed takes no addition and no note, and tells what its max was; what
// is opened again goes on above what was issued meanwhile. Both can be repeated.
func TestClose(t *testing.T) {
	c := open(t, testservers.MongoDB(t), "sequence")
	_, err := c.InsertMany(t.Context(), []any{
		bson.D{{Key: "bizTag", Value: "orders"}, {Key: "max", Value: int32(500)}, {Key: "step", Value: int32(100)}},
		bson.D{{Key: "bizTag", Value: "orders"}, {Key: "max", Value: 400.0}},
		bson.D{{Key: "bizTag", Value: "users"}, {Key: "max", Value: int64(7)}},
	})
	must(t, err)
	read := func(tag string) collection.Document {
		all, err := collection.Read(t.Context(), c, tag)
		must(t, err)
		return collection.Merge(all)[tag]
	}
	add := func(tag string) error {
		_, err := c.UpdateMany(t.Context(), bson.D{{Key: "bizTag", Value: tag}}, bson.D{{Key: "$inc", Value: bson.D{{Key: "max", Value: int64(10)}}}})
		return err
	}
	for range 2 {
		for tag, want := range map[string]int64{"orders": 500, "none": 0} {
			must(t, collection.Close(t.Context(), c, tag, "A", 1))
			if d := read(tag); d.Max != want || !d.Closed || d.Err != nil || len(d.Others) > 0 {
				t.Errorf("%s is %+v; want it closed at %d", tag, d, want)
			}
			if err := add(tag); err == nil {
				t.Errorf("%s takes an addition while it is closed", tag)
			}
		}
	}
	told := make(chan error, 1)
	w := collection.NewWriter(c, func(err error) { told <- err })
	w.Granted("orders", 900, 100)
	if err := <-told; err == nil || !strings.Contains(err.Error(), "--keep-collection") {
		t.Errorf("a note in a closed document: %v", err)
	}
	if err := w.Close(t.Context()); err == nil {
		t.Error("what is left is written into a closed document")
	}
	must(t, errors.Join(collection.Reopen(t.Context(), c, "orders", "A", 2, 899), collection.Reopen(t.Context(), c, "none", "A", 2, 20), add("orders"), add("users")))
	must(t, collection.Reopen(t.Context(), c, "orders", "A", 2, 3)) // it is open
	for tag, want := range map[string]int64{"orders": 909, "none": 20, "users": 17} {
		if d := read(tag); d.Max != want || d.Closed || d.Err != nil {
			t.Errorf("%s is %+v; want it open at %d", tag, d, want)
		}
	}
}

// A document that one store has taken, closed or left open, is no other store's, and what was
// left open is raised above what that store issued, of which nothing need be noted.
func TestTaken(t *testing.T) {
	c := open(t, testservers.MongoDB(t), "taken")
	read := func(tag string) collection.Document {
		all, err := collection.Read(t.Context(), c, tag)
		must(t, err)
		return collection.Merge(all)[tag]
	}
	for tag, take := range map[string]func(context.Context, *mongo.Collection, string, string, int64) error{"closed": collection.Close, "left open": collection.Take} {
		_, err := c.InsertOne(t.Context(), bson.D{{Key: "bizTag", Value: tag}, {Key: "max", Value: int64(7)}})
		must(t, errors.Join(err, take(t.Context(), c, tag, "A", 2), take(t.Context(), c, tag, "A", 1)))
		if d := read(tag); d.Max != 7 || d.Closed != (tag == "closed") || !slices.Equal(d.Stores, []string{"A"}) || d.Err != nil || len(d.Others) > 0 {
			t.Errorf("%s is %+v", tag, d)
		}
		for name, err := range map[string]error{
			"closes": collection.Close(t.Context(), c, tag, "B", 9), "takes": collection.Take(t.Context(), c, tag, "B", 9), "opens": collection.Reopen(t.Context(), c, tag, "B", 9, 5000),
		} {
			if taken, ok := errors.AsType[*collection.TakenError](err); !ok || taken.By != "A" {
				t.Errorf("another store %s it, %s: %v", name, tag, err)
			}
		}
		for _, token := range []int64{1, 2, 3} { // it was taken with the second
			err := collection.Reopen(t.Context(), c, tag, "A", token, 50)
			if _, late := errors.AsType[*collection.LateError](err); late != (token < 3) || token == 3 && err != nil {
				t.Errorf("%s, opened with token %d: %v", tag, token, err)
			}
		}
		if d := read(tag); d.Max != 50 || d.Closed || len(d.Stores) > 0 || d.Err != nil {
			t.Errorf("%s is %+v after the way back", tag, d)
		}
		must(t, take(t.Context(), c, tag, "B", 1))
	}
}
