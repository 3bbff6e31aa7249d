package mongostore_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/event"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/testservers"
	"github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/store/mongostore"
	"github.com/hapax-id/hapax/store/storetest"
)

// A disturbed store calls a function once, before or after an update of tags.
type disturbed struct {
	*mongostore.Store
	before, after func()
	armed         atomic.Bool
}

func disturb(t testing.TB, srv *testservers.Server) *disturbed {
	t.Helper()
	d := &disturbed{}
	var requests sync.Map // of updates of tags
	monitor := &event.CommandMonitor{
		Started: func(_ context.Context, e *event.CommandStartedEvent) {
			if e.CommandName == "update" && e.Command.Lookup("update").StringValue() == "hapax_tags" && d.armed.CompareAndSwap(true, false) {
				requests.Store(e.RequestID, true)
				if d.before != nil {
					d.before()
				}
			}
		},
		Succeeded: func(_ context.Context, e *event.CommandSucceededEvent) {
			if _, ours := requests.LoadAndDelete(e.RequestID); ours && d.after != nil {
				d.after()
			}
		},
	}
	c := must[*mongo.Client](t)(mongo.Connect(options.Client().ApplyURI(srv.URL).SetMonitor(monitor)))
	t.Cleanup(func() { _ = c.Disconnect(context.Background()) })
	d.Store = must[*mongostore.Store](t)(mongostore.New(t.Context(), c.Database("hapax"), mongostore.Options{}))
	return d
}

// beats registers a process, and returns its next beat.
func beats(t testing.TB, s driver.Rows) func() driver.Pulse {
	t.Helper()
	count := int64(1)
	must[bool](t)(s.SwapRow(t.Context(), driver.TableBeats, "n", nil, driver.Beat{Count: 1}.Encode()))
	return func() driver.Pulse {
		count++
		return driver.Pulse{Row: "n", Was: driver.Beat{Count: count - 1}, Now: driver.Beat{Count: count}}
	}
}

// looksOnce is the broken twin of a store that is Split: it does not look after the change.
type looksOnce struct{ driver.KV }

func (l looksOnce) Step(ctx context.Context, s driver.Step) (driver.Result, error) {
	each := s.Each
	s.Each = nil
	r, err := l.KV.Step(ctx, s)
	if r.Each = make([]driver.Outcome, len(each)); err != nil || !r.Met {
		return r, err
	}
	done, err := l.KV.Step(ctx, driver.Step{Each: each})
	r.Each = done.Each
	return r, err
}

// TestHalfStep: a grant during which a fence was raised, or the row of the process went back, is
// not used: it is as if its answer had been lost.
func TestHalfStep(t *testing.T) {
	for name, happens := range map[string]func(s driver.Rows) (bool, error){
		"a fence": func(s driver.Rows) (bool, error) {
			return s.SwapRow(context.Background(), driver.TableFence, driver.RowFence, nil, []byte("x"))
		},
		"a row that went back": func(s driver.Rows) (bool, error) {
			old, err := s.Row(context.Background(), driver.TableBeats, "n")
			if err != nil {
				return false, err
			}
			return s.SwapRow(context.Background(), driver.TableBeats, "n", old, driver.Beat{Count: 1}.Encode())
		},
	} {
		t.Run(name, func(t *testing.T) {
			used := func(t *testing.T, twin func(*mongostore.Store) driver.Guarding) bool {
				t.Helper()
				srv := own(t)
				d, other := disturb(t, srv), open(t, srv.URL, mongostore.Options{})
				next := beats(t, other)
				create(t, other, hapax.Tag{Name: "t"})
				s := twin(d.Store)
				for range 2 { // the handle knows the row, and the tag
					if _, c, err := storetest.AllocateWith(t.Context(), s, next(), "t", 10, ""); err != nil || !c.Met {
						t.Fatalf("the contact is %+v, error %v", c, err)
					}
				}
				d.before = func() {
					if ok, err := happens(other); err != nil || !ok {
						t.Errorf("%v, %v", ok, err)
					}
				}
				d.armed.Store(true)
				a, c, err := storetest.AllocateWith(t.Context(), s, next(), "t", 10, "")
				if err != nil {
					t.Fatal(err)
				}
				if mark := must[hapax.Tag](t)(other.Tag(t.Context(), "t")).Mark; mark != 31 {
					t.Errorf("the mark is %d; want 31, after a grant that is not used", mark)
				}
				return c.Met || a.Grant.Len() > 0
			}
			if used(t, func(s *mongostore.Store) driver.Guarding { return s }) {
				t.Error("the grant is used")
			}
			if !used(t, func(s *mongostore.Store) driver.Guarding {
				return driver.NewBase(&driver.Calls{Service: "twin"}, looksOnce{s.KV()}, driver.BaseOptions{Split: true})
			}) {
				t.Error("a twin that looks once is not caught")
			}
		})
	}
}

// TestOvertaken: of many grants, one that is refused makes the others be read again. One that
// another grant has followed by then is made anew, and all of them are disjoint.
func TestOvertaken(t *testing.T) {
	srv := own(t)
	d, other, ctx := disturb(t, srv), open(t, srv.URL, mongostore.Options{}), t.Context()
	next := beats(t, other)
	granted := map[string][]hapax.Grant{}
	grant := func(tag string) { granted[tag] = append(granted[tag], allocate(t, other, tag, 7)) }
	var all []driver.AllocateOf
	for _, tag := range []string{"a", "b", "c"} {
		create(t, other, hapax.Tag{Name: tag})
		all = append(all, driver.AllocateOf{Tag: tag, N: 10})
	}
	d.before = func() { grant("b") } // which refuses this one
	d.after = func() { grant("a") }  // which follows
	for _, armed := range []bool{false, true} {
		d.armed.Store(armed)
		made, c, err := d.AllocateAllWith(ctx, next(), all)
		if err != nil || !c.Met {
			t.Fatalf("the contact is %+v, error %v", c, err)
		}
		for i, a := range made {
			if a.Err != nil {
				t.Error(a.Err)
			}
			granted[all[i].Tag] = append(granted[all[i].Tag], a.Grant)
		}
	}
	want := map[string]int64{"a": 10 + 10 + 7 + 10, "b": 10 + 7 + 10, "c": 10 + 10}
	for tag, grants := range granted {
		slices.SortFunc(grants, func(x, y hapax.Grant) int { return int(x.Lo - y.Lo) })
		for i := 1; i < len(grants); i++ {
			if grants[i].Lo < grants[i-1].Hi {
				t.Errorf("of tag %s, %v and %v were granted", tag, grants[i-1], grants[i])
			}
		}
		if mark := must[hapax.Tag](t)(other.Tag(ctx, tag)).Mark; mark != 1+want[tag] {
			t.Errorf("the mark of tag %s is %d; want %d", tag, mark, 1+want[tag])
		}
	}
}

// TestRoundTrips: in the steady state a grant is four commands, that of many tags likewise, and a
// heartbeat is two.
func TestRoundTrips(t *testing.T) {
	srv := own(t)
	var made atomic.Int64
	monitor := &event.CommandMonitor{Started: func(context.Context, *event.CommandStartedEvent) { made.Add(1) }}
	counted := must[*mongo.Client](t)(mongo.Connect(options.Client().ApplyURI(srv.URL).SetMonitor(monitor)))
	defer func() { _ = counted.Disconnect(context.Background()) }()
	s, ctx := must[*mongostore.Store](t)(mongostore.New(t.Context(), counted.Database("hapax"), mongostore.Options{})), t.Context()
	next := beats(t, s)
	create(t, s, hapax.Tag{Name: "a"})
	create(t, s, hapax.Tag{Name: "b"})
	for name, c := range map[string]struct {
		call func() (driver.Contact, error)
		want int64
	}{
		"a heartbeat": {func() (driver.Contact, error) { return s.Beat(ctx, next()) }, 2},
		"a grant": {func() (driver.Contact, error) {
			_, c, err := storetest.AllocateWith(ctx, s, next(), "a", 10, "")
			return c, err
		}, 4},
		"two grants": {func() (driver.Contact, error) {
			_, c, err := s.AllocateAllWith(ctx, next(), []driver.AllocateOf{{Tag: "a", N: 10}, {Tag: "b", N: 10}})
			return c, err
		}, 4},
	} {
		for _, warm := range []bool{true, false} {
			before := made.Load()
			contact, err := c.call()
			// A client that is not ours has the server asked each time who it is.
			if n := made.Load() - before - 1; !warm && n != c.want || err != nil || !contact.Met {
				t.Errorf("%s: %d commands, contact %+v, error %v; want %d", name, n, contact, err, c.want)
			}
		}
	}
}

// contents returns all documents of a database.
func contents(t testing.TB, db *mongo.Database) map[string][]bson.M {
	t.Helper()
	all := map[string][]bson.M{}
	for _, name := range must[[]string](t)(db.ListCollectionNames(t.Context(), bson.D{})) {
		var docs []bson.M
		if err := must[*mongo.Cursor](t)(db.Collection(name).Find(t.Context(), bson.D{})).All(t.Context(), &docs); err != nil {
			t.Fatal(err)
		}
		all[name] = docs
	}
	return all
}

// TestOtherFormat: a store of an earlier or a later format, or of none, is refused by its
// number, and left as it is.
func TestOtherFormat(t *testing.T) {
	srv := own(t)
	db, ctx := raw(t, srv), t.Context()
	for _, format := range []any{int64(1), int64(2), int64(3), int64(9), nil} {
		if err := db.Drop(ctx); err != nil {
			t.Fatal(err)
		}
		meta := bson.D{{Key: "_id", Value: "store"}, {Key: "id", Value: "OLD"}}
		number := int64(0)
		if format != nil {
			number = format.(int64)
			meta = append(meta, bson.E{Key: "format", Value: format})
		}
		must[*mongo.InsertOneResult](t)(db.Collection("hapax_store").InsertOne(ctx, meta))
		must[*mongo.InsertOneResult](t)(db.Collection("hapax_tags").InsertOne(ctx, bson.D{{Key: "_id", Value: "t"}, {Key: "store", Value: "OLD"}, {Key: "mark", Value: int64(5)}}))
		before := contents(t, db)
		_, err := mongostore.Open(ctx, srv.URL, mongostore.Options{})
		wantErr(t, fmt.Sprint("format ", format), err, hapax.ErrStoreCorrupt)
		if want := fmt.Sprintf("hapax_store says format %d, and this version", number); !strings.Contains(fmt.Sprint(err), want) {
			t.Errorf("format %v: error is %v; want it to say %q", format, err, want)
		}
		if after := contents(t, db); !reflect.DeepEqual(after, before) {
			t.Errorf("format %v: %v is left of %v", format, after, before)
		}
	}
}

// blocksItself expects that a tag cannot be read, and that nothing else is concerned.
func blocksItself(t testing.TB, s *mongostore.Store, name string) {
	t.Helper()
	_, err := s.Tag(t.Context(), name)
	if _, ok := errors.AsType[*driver.UnreadableError](err); !ok {
		t.Errorf("%s: read with %v; want an error of this tag alone", name, err)
	}
	if tags, err := s.Tags(t.Context(), "", 10); err != nil || !slices.Contains(tags, hapax.Tag{Name: name, Kind: hapax.KindUnreadable}) {
		t.Errorf("%s: the tags are %.300v, %v", name, tags, err)
	}
	if tags, err := s.TagsNamed(t.Context(), []string{"good", name}); err != nil || len(tags) != 1 || tags[0].Name != "good" {
		t.Errorf("%s: the tags by name are %.300v, %v", name, tags, err)
	}
	allocate(t, s, "good", 1)
}

// TestEditedByHand: what a hand's edit made of a tag is refused where it is none, not rounded
// and not guessed.
func TestEditedByHand(t *testing.T) {
	srv := own(t)
	s, fresh := open(t, srv.URL, mongostore.Options{}), open(t, srv.URL, mongostore.Options{})
	db, ctx := raw(t, srv), t.Context()
	create(t, s, hapax.Tag{Name: "good"})
	mark := func(with string) string {
		return `{"kind":"segment","start":1,"step":1000,"min_step":1000,"max_step":1000000,"delta":1,"mark":` + with + `}`
	}
	for i, value := range []any{
		5000.0, int32(5000), int64(5000), nil,
		bson.D{{Key: "mark", Value: int64(5000)}},
		"", "{}",
		bson.A{mark("5000")},
		[]byte{},
		[]byte(mark("5000")[1:]),
		strings.Repeat("1", driver.MaxValueBytes+1), make([]byte, 1<<20),
		mark("5000.5"), mark(`"5000"`), mark("null"), mark("-5"), mark("1e3"), mark("9223372036854775808"),
	} {
		name := fmt.Sprint("t", i)
		create(t, s, hapax.Tag{Name: name})
		must[*mongo.UpdateResult](t)(db.Collection("hapax_tags").UpdateByID(ctx, name, bson.D{{Key: "$set", Value: bson.D{{Key: "value", Value: value}}}}))
		for _, handle := range []*mongostore.Store{s, fresh} {
			for _, n := range []int64{1, 0} {
				a, err := handle.Allocate(ctx, name, n, "")
				if wantErr(t, fmt.Sprintf("value %.80v (%T), granted %v", value, value, a.Grant), err, hapax.ErrStoreCorrupt); err == nil {
					break
				}
			}
			blocksItself(t, handle, name)
		}
		must[*mongo.DeleteResult](t)(db.Collection("hapax_tags").DeleteOne(ctx, bson.D{{Key: "_id", Value: name}}))
	}
	for what, change := range map[string]bson.D{
		"no value":      {{Key: "$unset", Value: bson.D{{Key: "value", Value: ""}}}},
		"no store":      {{Key: "$unset", Value: bson.D{{Key: "store", Value: ""}}}},
		"another store": {{Key: "$set", Value: bson.D{{Key: "store", Value: int64(1)}}}},
		"by nobody":     {{Key: "$set", Value: bson.D{{Key: "by", Value: "x"}, {Key: "value", Value: "x"}}}},
	} {
		create(t, s, hapax.Tag{Name: what})
		must[*mongo.UpdateResult](t)(db.Collection("hapax_tags").UpdateByID(ctx, what, change))
		for _, handle := range []*mongostore.Store{s, fresh} {
			_, err := handle.Allocate(ctx, what, 1, "")
			wantErr(t, what, err, hapax.ErrStoreCorrupt)
			blocksItself(t, handle, what)
		}
		must[*mongo.DeleteResult](t)(db.Collection("hapax_tags").DeleteOne(ctx, bson.D{{Key: "_id", Value: what}}))
	}
	name := "right"
	create(t, s, hapax.Tag{Name: name})
	must[*mongo.UpdateResult](t)(db.Collection("hapax_tags").UpdateByID(ctx, name, bson.D{{Key: "$set", Value: bson.D{{Key: "value", Value: mark("5000")}}}}))
	for _, handle := range []*mongostore.Store{s, fresh} {
		if g := allocate(t, handle, name, 1); g.Lo < 5000 || g.Lo > 5001 {
			t.Errorf("%v was granted from a mark of 5000 that a hand has set", g)
		}
	}
}

// TestWithoutToken: a tag whose row has no token is at 0.
func TestWithoutToken(t *testing.T) {
	srv := own(t)
	s, ctx := open(t, srv.URL, mongostore.Options{}), t.Context()
	tags := raw(t, srv).Collection("hapax_tags")
	ends := map[string]func(hapax.Allocation) error{
		"handed back": func(a hapax.Allocation) error { return s.HandBack(ctx, a, a.Grant.Lo) },
		"healed":      func(a hapax.Allocation) error { _, err := s.HealTag(ctx, hapax.Tag{Name: a.Tag.Name}); return err },
		"healed from 7": func(a hapax.Allocation) error {
			_, err := s.HealTag(ctx, hapax.Tag{Name: a.Tag.Name, Token: 7})
			return err
		},
	}
	for _, name := range slices.Sorted(maps.Keys(ends)) {
		create(t, s, hapax.Tag{Name: name})
		var stored struct{ Value string }
		if err := tags.FindOne(ctx, bson.D{{Key: "_id", Value: name}}).Decode(&stored); err != nil || !strings.HasPrefix(stored.Value, `{"kind":"segment"`) || strings.Contains(stored.Value, "token") {
			t.Errorf("a new tag is stored as %q, error %v", stored.Value, err)
		}
		a := must[hapax.Allocation](t)(s.Allocate(ctx, name, 5, ""))
		if err := ends[name](a); a.Tag.Token != 0 || err != nil {
			t.Errorf("%s: allocated under token %d, then error %v", name, a.Tag.Token, err)
		}
		want := int64(1)
		if name == "healed from 7" {
			want = 8
		}
		if tag := must[hapax.Tag](t)(s.Tag(ctx, name)); tag.Token != want {
			t.Errorf("%s: the tag is %+v; want token %d", name, tag, want)
		}
	}
}
