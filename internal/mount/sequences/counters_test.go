package sequences

import (
	"database/sql"
	"fmt"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/hapax-id/hapax/compat/sequences"
	"github.com/hapax-id/hapax/internal/mount"
	"github.com/hapax-id/hapax/internal/patience"
	"github.com/hapax-id/hapax/internal/testservers"
	"github.com/hapax-id/hapax/store/memstore"
	"github.com/hapax-id/hapax/store/mongostore"
	"github.com/hapax-id/hapax/store/redisstore"
)

// The tables of JPA's generators, on both engines.
func TestGeneratorTables(t *testing.T) {
	for name, start := range map[string]func(*testing.T) (string, *sql.DB){
		"postgres": newPostgres,
		"mariadb": func(t *testing.T) (string, *sql.DB) {
			return newMariaDB(t, testservers.SharedMariaDB(t))
		},
	} {
		t.Run(name, func(t *testing.T) {
			address, db := start(t)
			do(t, db,
				"CREATE TABLE hibernate_sequences (sequence_name VARCHAR(100) PRIMARY KEY, next_val BIGINT)",
				"INSERT INTO hibernate_sequences VALUES ('orders', 301), ('nowhere', 51), ('it''s', 1)",
				"CREATE TABLE hibernate_sequence (next_val BIGINT)", "INSERT INTO hibernate_sequence VALUES (7)",
				"CREATE TABLE openjpa_sequence_table (id SMALLINT PRIMARY KEY, sequence_value BIGINT)", "INSERT INTO openjpa_sequence_table VALUES (0, 101)",
				"CREATE TABLE odd (next_val BIGINT, a INT, b INT)",
				"CREATE TABLE older (sequence_name VARCHAR(100) PRIMARY KEY, sequence_next_hi_value BIGINT)",
				"CREATE TABLE orders (id BIGINT PRIMARY KEY)", "INSERT INTO orders VALUES (340)",
				"CREATE TABLE tickets (no BIGINT PRIMARY KEY)")
			i := importing{feeds: []string{"hibernate_sequence=tickets.no", "it's=tickets.no", "0=tickets.no", "0=orders.id"}}
			m := read(t, i, address)
			if s := m.source(t, "orders"); s.Highest != 351 || len(s.Wrong) > 0 {
				t.Errorf("orders is at %d: %q", s.Highest, s.Wrong)
			}
			if s := m.source(t, "nowhere"); len(s.Wrong) == 0 || !strings.Contains(s.Wrong[0], "--feeds nowhere=") {
				t.Errorf("nowhere: %q", s.Wrong)
			}
			if others := strings.Join(m.all[0].others, "; "); !strings.Contains(others, "older: its column") || !strings.Contains(others, "odd: its column next_val") {
				t.Errorf("others: %s", others)
			}
			if s := m.source(t, "openjpa_sequence_table.0"); s.Highest != 340 || len(s.Feeds) != 2 || len(s.Wrong) > 0 {
				t.Errorf("the row of OpenJPA is at %d, feeds %v: %q", s.Highest, s.Feeds, s.Wrong)
			}
			store := memstore.New()
			for range 2 {
				done := apply(t, read(t, i, address), store, mount.MoveOptions{Apply: true})
				if r := done["orders"].Reason; r != nil {
					t.Fatal(r)
				}
			}
			if _, err := db.ExecContext(t.Context(), "UPDATE hibernate_sequences SET next_val = 351 WHERE sequence_name = 'orders'"); err == nil {
				t.Error("the generator goes on")
			}
			for _, counts := range []string{"DELETE FROM hibernate_sequences WHERE sequence_name = 'orders'", "INSERT INTO hibernate_sequences VALUES ('orders', 351)"} {
				if _, err := db.ExecContext(t.Context(), counts); err == nil || !strings.Contains(err.Error(), "these numbers come from hapax") {
					t.Errorf("%s: %v; want it refused", counts, err)
				}
			}
			do(t, db, "UPDATE hibernate_sequences SET next_val = 101 WHERE sequence_name = 'nowhere'", "INSERT INTO hibernate_sequences VALUES ('new', 1)",
				"DELETE FROM hibernate_sequences WHERE sequence_name = 'new'")
			if number(t, db, "SELECT COUNT(*) FROM hibernate_sequences WHERE sequence_name = 'new'") != 0 {
				t.Error("another row cannot be deleted")
			}
			a, err := store.Allocate(t.Context(), "orders", 10, "")
			if err != nil || a.Grant.Lo <= 351 {
				t.Fatal(a.Grant, err)
			}
			apply(t, read(t, i, address), store, mount.MoveOptions{Undo: true, Apply: true})
			if n := number(t, db, "SELECT next_val FROM hibernate_sequences WHERE sequence_name = 'orders'"); n < a.Grant.Hi {
				t.Errorf("the generator goes on at %d after %d", n, a.Grant.Hi)
			}
			do(t, db, "UPDATE hibernate_sequences SET next_val = next_val + 50 WHERE sequence_name = 'orders'", "UPDATE hibernate_sequence SET next_val = next_val + 1")
		})
	}
}

func TestRedisCounters(t *testing.T) {
	server := testservers.Redis(t)
	c, err := redisstore.NewClient(server.URL, patience.Call)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for key, value := range map[string]any{"n:orders": 41, "n:text": "x", "other": 7} {
		if err := c.Set(t.Context(), key, value, 0).Err(); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.Set(t.Context(), "n:today", 5, time.Hour).Err(); err != nil {
		t.Fatal(err)
	}
	i, store := importing{like: "n:*"}, memstore.New()
	m := read(t, i, server.URL)
	if s := m.source(t, "n:today"); !strings.Contains(strings.Join(s.Wrong, ""), "n:today ends in 1h0m0s, and then begins at 1 again") {
		t.Errorf("a counter that ends: %q", s.Wrong)
	}
	if s := m.source(t, "n:orders"); s.Highest != 41 || len(m.all[0].sources) != 2 || len(m.all[0].others) != 1 {
		t.Errorf("found %+v and %q", s, m.all[0].others)
	}
	if r := apply(t, read(t, importing{like: "n:*", how: string(sequences.Gap)}, server.URL), store, mount.MoveOptions{})["n:orders"].Reason; r == nil {
		t.Error("a counter has a gap")
	}
	for range 2 {
		apply(t, read(t, i, server.URL), store, mount.MoveOptions{Apply: true})
	}
	if n, err := c.Incr(t.Context(), "n:orders").Result(); err == nil {
		t.Errorf("the counter goes on with %d", n)
	}
	verdicts, err := read(t, i, server.URL).Verify(t.Context(), store)
	if err != nil || len(verdicts) != 1 || len(verdicts[0].Wrong) > 0 {
		t.Errorf("verified: %+v, %v", verdicts, err)
	}
	a, err := store.Allocate(t.Context(), "n:orders", 10, "")
	if err != nil || a.Grant.Lo <= 41 {
		t.Fatal(a.Grant, err)
	}
	apply(t, read(t, i, server.URL), store, mount.MoveOptions{Undo: true, Apply: true})
	if n, err := c.Incr(t.Context(), "n:orders").Result(); err != nil || n < a.Grant.Hi {
		t.Errorf("the counter goes on with %d, %v", n, err)
	}
}

func TestMongoCounters(t *testing.T) {
	server := testservers.MongoDB(t)
	address := strings.TrimSuffix(server.URL, "/") + fmt.Sprintf("/seq%d", databases.Add(1))
	if at := strings.LastIndex(server.URL, "/"); at > len("mongodb://") {
		address = server.URL[:at] + fmt.Sprintf("/seq%d", databases.Add(1))
	}
	db, err := mongostore.NewDatabase(address, patience.Call)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Client().Disconnect(t.Context()) }()
	counters := db.Collection("counters")
	for _, doc := range []bson.D{
		{{Key: "_id", Value: "orders"}, {Key: "seq", Value: int64(41)}},
		{{Key: "_id", Value: "odd"}, {Key: "seq", Value: "x"}},
		{{Key: "_id", Value: "doubles"}, {Key: "seq", Value: 1_000_000.0}},                            // as mongosh writes numbers
		{{Key: "id", Value: "tickets"}, {Key: "reference_value", Value: nil}, {Key: "seq", Value: 5}}, // as mongoose-sequence writes them
		{{Key: "id", Value: "seats"}, {Key: "reference_value", Value: "room 7"}, {Key: "seq", Value: 9}},
	} {
		if _, err := counters.InsertOne(t.Context(), doc); err != nil {
			t.Fatal(err)
		}
	}
	inc := func() error {
		return counters.FindOneAndUpdate(t.Context(), bson.D{{Key: "_id", Value: "orders"}}, bson.D{{Key: "$inc", Value: bson.D{{Key: "seq", Value: 1}}}}).Err()
	}
	i, store := importing{opts: sequences.Options{Collection: "counters"}}, memstore.New()
	m := read(t, i, address)
	if s := m.source(t, "seats"); !strings.Contains(strings.Join(s.Wrong, ""), "counts for room 7 alone") {
		t.Errorf("a counter of one room: %q", s.Wrong)
	}
	if s := m.source(t, "orders"); s.Highest != 41 || len(m.all[0].others) != 1 {
		t.Errorf("found %+v and %q", s, m.all[0].others)
	}
	for range 2 {
		apply(t, read(t, i, address), store, mount.MoveOptions{Apply: true})
	}
	if err := inc(); err == nil {
		t.Error("the counter goes on")
	}
	if s := read(t, i, address).source(t, "doubles"); s.Closed == nil || s.Closed.At != 1_000_000 {
		t.Errorf("the counter that is a double is %+v", s)
	}
	if r := counters.FindOneAndUpdate(t.Context(), bson.D{{Key: "id", Value: "tickets"}}, bson.D{{Key: "$inc", Value: bson.D{{Key: "seq", Value: 1}}}}); r.Err() == nil {
		t.Error("a counter of mongoose-sequence goes on")
	}
	a, err := store.Allocate(t.Context(), "orders", 10, "")
	if err != nil || a.Grant.Lo <= 41 {
		t.Fatal(a.Grant, err)
	}
	apply(t, read(t, i, address), store, mount.MoveOptions{Undo: true, Apply: true})
	if s := read(t, i, address).source(t, "tickets"); s.Closed != nil || s.Position < 1000 {
		t.Errorf("the counter of mongoose-sequence is %+v", s)
	}
	if err := inc(); err != nil {
		t.Errorf("the counter does not go on: %v", err)
	}
	if s := read(t, i, address).source(t, "orders"); s.Position < a.Grant.Hi {
		t.Errorf("the counter goes on at %d after %d", s.Position, a.Grant.Hi)
	}
}
