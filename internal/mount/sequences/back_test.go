package sequences

import (
	"context"
	"errors"
	"net/url"
	"strings"
	"testing"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/compat/sequences"
	"github.com/hapax-id/hapax/internal/mount"
	"github.com/hapax-id/hapax/internal/service/define"
	"github.com/hapax-id/hapax/internal/testservers"
	"github.com/hapax-id/hapax/store/memstore"
)

// A sequence whose own end the tag has passed comes back above the tag, and one that its database
// refuses keeps no other from coming back.
func TestBackAboveTheEnd(t *testing.T) {
	t.Run("postgres", func(t *testing.T) {
		address, db := newPostgres(t)
		do(t, db, "CREATE SEQUENCE ends MAXVALUE 100", "CREATE TABLE bounded (id bigint PRIMARY KEY DEFAULT nextval('ends'))",
			"CREATE SEQUENCE small AS integer MAXVALUE 100", "CREATE TABLE short (id bigint PRIMARY KEY DEFAULT nextval('small'))", "CREATE TABLE orders (id bigserial PRIMARY KEY)")
		store := memstore.New()
		apply(t, read(t, importing{}, address), store, mount.MoveOptions{Apply: true})
		done := apply(t, read(t, importing{}, address), store, mount.MoveOptions{Apply: true, Undo: true})
		for _, name := range []string{"bounded", "short", "orders"} {
			if m := done[name]; m.Reason != nil || m.After == 0 {
				t.Errorf("%s: %+v", name, m)
			}
			do(t, db, "INSERT INTO "+name+" DEFAULT VALUES")
			if n := number(t, db, "SELECT max(id) FROM "+name); n < done[name].After {
				t.Errorf("%s goes on with %d, below %d", name, n, done[name].After)
			}
		}
	})
	t.Run("mariadb", func(t *testing.T) {
		address, db := newMariaDB(t, testservers.SharedMariaDB(t))
		do(t, db, "CREATE SEQUENCE ends MAXVALUE 100", "CREATE TABLE bounded (id bigint PRIMARY KEY DEFAULT NEXT VALUE FOR ends, what int)")
		store := memstore.New()
		apply(t, read(t, importing{like: "bounded"}, address), store, mount.MoveOptions{Apply: true})
		done := apply(t, read(t, importing{like: "bounded"}, address), store, mount.MoveOptions{Apply: true, Undo: true})
		do(t, db, "INSERT INTO bounded (what) VALUES (1)")
		if n := number(t, db, "SELECT max(id) FROM bounded"); done["bounded"].Reason != nil || n < done["bounded"].After || n < 1000 {
			t.Errorf("goes on with %d, after %+v", n, done)
		}
	})
	t.Run("one refused", func(t *testing.T) {
		address, db := newPostgres(t)
		do(t, db, "CREATE TABLE a (id bigserial PRIMARY KEY)", "CREATE TABLE b (id bigserial PRIMARY KEY)")
		store := memstore.New()
		apply(t, read(t, importing{}, address), store, mount.MoveOptions{Apply: true})
		m := read(t, importing{}, address)
		do(t, db, "DROP TABLE a") // since it was read
		done := apply(t, m, store, mount.MoveOptions{Apply: true, Undo: true})
		if done["a"].Reason == nil || done["b"].Reason != nil {
			t.Errorf("%+v; want a refused, and b back", done)
		}
		do(t, db, "INSERT INTO b DEFAULT VALUES")
	})
}

// An account that may only read shuts no sequence and brings none back: there is one source of
// numbers before and after.
func TestBackWithoutRights(t *testing.T) {
	address, db := newPostgres(t)
	do(t, db, "CREATE TABLE orders (id bigserial PRIMARY KEY)", "CREATE ROLE sequences_reader LOGIN", "GRANT SELECT ON ALL TABLES IN SCHEMA public TO sequences_reader", "GRANT SELECT ON ALL SEQUENCES IN SCHEMA public TO sequences_reader")
	t.Cleanup(func() {
		for _, s := range []string{"DROP OWNED BY sequences_reader", "DROP ROLE sequences_reader"} {
			if _, err := db.ExecContext(context.Background(), s); err != nil {
				t.Error(err)
			}
		}
	})
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.User("sequences_reader")
	const given = "env:SEQUENCES_TEST_DB"
	store := memstore.New()
	t.Setenv("SEQUENCES_TEST_DB", u.String())
	if done := apply(t, read(t, importing{}, given), store, mount.MoveOptions{Apply: true})["orders"]; !errors.Is(done.Reason, hapax.ErrNotSupported) {
		t.Errorf("%+v; want it refused", done)
	}
	if _, err := store.Allocate(t.Context(), "orders", 10, ""); !errors.Is(err, hapax.ErrTagDeleted) {
		t.Errorf("the tag beside a sequence that is open: %v; want ErrTagDeleted", err)
	}
	t.Setenv("SEQUENCES_TEST_DB", address)
	if done := apply(t, read(t, importing{}, given), store, mount.MoveOptions{Apply: true})["orders"]; done.Reason != nil {
		t.Errorf("with the rights: %+v", done)
	}
	before, err := store.Allocate(t.Context(), "orders", 10, "")
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("SEQUENCES_TEST_DB", u.String())
	if done := apply(t, read(t, importing{}, given), store, mount.MoveOptions{Apply: true, Undo: true})["orders"]; !errors.Is(done.Reason, hapax.ErrNotSupported) {
		t.Errorf("%+v; want it refused", done)
	}
	after, err := store.Allocate(t.Context(), "orders", 10, "")
	if err != nil || after.Grant.Lo < before.Grant.Hi || after.Tag.Start != before.Tag.Start || len(define.Shown(after.Tag).FloorFrom) != 1 {
		t.Errorf("the tag goes on with %+v, %v, after %+v", after, err, before)
	}
	t.Setenv("SEQUENCES_TEST_DB", address)
	if done := apply(t, read(t, importing{}, given), store, mount.MoveOptions{Apply: true, Undo: true})["orders"]; done.Reason != nil {
		t.Errorf("%+v", done)
	}
	do(t, db, "INSERT INTO orders DEFAULT VALUES")
	if n := number(t, db, "SELECT max(id) FROM orders"); n < after.Grant.Hi {
		t.Errorf("the sequence goes on with %d, below %d", n, after.Grant.Hi)
	}
}

// A gap cannot become every other number: the sequence ends below its tag.
func TestParityAfterGap(t *testing.T) {
	address, db := newPostgres(t)
	do(t, db, "CREATE TABLE orders (id bigserial PRIMARY KEY)")
	store := memstore.New()
	apply(t, read(t, importing{how: string(sequences.Gap)}, address), store, mount.MoveOptions{Apply: true})
	m := read(t, importing{how: string(sequences.Parity)}, address)
	if done := apply(t, m, store, mount.MoveOptions{Apply: true}); done["orders"].Reason == nil || !strings.Contains(done["orders"].Reason.Error(), "--switch gap") {
		t.Errorf("%+v; want it refused", done)
	}
	if plan := m.YAML(""); !strings.Contains(plan, "# Not moved:\n#   orders (") {
		t.Errorf("the plan is %s", plan)
	}
}

// A tag that issues every number cannot share them with a source that issues every other one,
// also if it was withdrawn: its definition stays.
func TestParityOntoAWholeTag(t *testing.T) {
	for _, undo := range []bool{false, true} {
		address, db := newPostgres(t)
		do(t, db, "CREATE TABLE orders (id bigserial PRIMARY KEY)")
		store := memstore.New()
		if undo {
			apply(t, read(t, importing{}, address), store, mount.MoveOptions{Apply: true})
			apply(t, read(t, importing{}, address), store, mount.MoveOptions{Apply: true, Undo: true})
		} else if def, err := (hapax.Tag{Name: "orders", Start: 5000}).WithDefaults(); err != nil {
			t.Fatal(err)
		} else if _, err := store.CreateTag(t.Context(), def, hapax.CreateExplicit); err != nil {
			t.Fatal(err)
		}
		if done := apply(t, read(t, importing{how: string(sequences.Parity)}, address), store, mount.MoveOptions{Apply: true})["orders"]; done.Reason == nil || !strings.Contains(done.Reason.Error(), "cannot change") {
			t.Errorf("undone before: %v: %+v; want it refused", undo, done)
		}
	}
}

// Two databases have a table of one name: the tag is the first one's, and stays so.
func TestTagOfAnotherDatabase(t *testing.T) {
	store := memstore.New()
	for _, name := range []string{"SEQUENCES_TEST_A", "SEQUENCES_TEST_B"} {
		address, db := newPostgres(t)
		do(t, db, "CREATE TABLE orders (id bigserial PRIMARY KEY)")
		t.Setenv(name, address)
	}
	a, b := "env:SEQUENCES_TEST_A", "env:SEQUENCES_TEST_B"
	first := apply(t, read(t, importing{}, a), store, mount.MoveOptions{Apply: true})["orders"]
	for _, how := range []sequences.Switch{sequences.Stop, sequences.Gap, sequences.Parity} {
		if done := apply(t, read(t, importing{how: string(how)}, b), store, mount.MoveOptions{Apply: true})["orders"]; done.Reason == nil || !strings.Contains(done.Reason.Error(), "--prefix") {
			t.Errorf("%s: %+v; want it refused", how, done)
		}
	}
	if done := apply(t, read(t, importing{prefix: "b."}, b), store, mount.MoveOptions{Apply: true}); done["b.orders"].Reason != nil {
		t.Errorf("with a prefix: %+v", done)
	}
	if done := apply(t, read(t, importing{}, a), store, mount.MoveOptions{Apply: true, Undo: true}); done["orders"].Reason != nil || done["orders"].After < first.After {
		t.Errorf("the way back: %+v", done)
	}
}

// What shut a source may be lost, as with a table that was made anew: both then issue.
func TestOpenBesideItsTag(t *testing.T) {
	address, db := newPostgres(t)
	do(t, db, "CREATE TABLE orders (id bigserial PRIMARY KEY)", "CREATE TABLE items (id bigserial PRIMARY KEY)")
	t.Setenv("SEQUENCES_TEST_DB", address)
	const given = "env:SEQUENCES_TEST_DB"
	store := memstore.New()
	apply(t, read(t, importing{}, given), store, mount.MoveOptions{Apply: true})
	do(t, db, "ALTER SEQUENCE orders_id_seq MAXVALUE 1000000", "COMMENT ON SEQUENCE orders_id_seq IS NULL")
	verdicts, err := read(t, importing{}, given).Verify(t.Context(), store)
	if err != nil || len(verdicts) != 2 {
		t.Fatalf("%+v, %v", verdicts, err)
	}
	for _, v := range verdicts {
		if wrong := len(v.Wrong) > 0; wrong != (v.Tag == "orders") {
			t.Errorf("%+v", v)
		}
	}
	done := apply(t, read(t, importing{}, given), store, mount.MoveOptions{Apply: true, Undo: true})
	if done["orders"].Reason == nil || done["items"].Reason != nil {
		t.Errorf("the way back: %+v; want orders refused", done)
	}
	if tag, err := store.Tag(t.Context(), "orders"); err != nil || tag.Deleted {
		t.Errorf("the tag is %+v, %v", tag, err)
	}
}
