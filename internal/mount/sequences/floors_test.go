package sequences

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/api"
	"github.com/hapax-id/hapax/compat/sequences"
	"github.com/hapax-id/hapax/internal/mount"
	"github.com/hapax-id/hapax/internal/moves"
	"github.com/hapax-id/hapax/internal/service/define"
	"github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/store/memstore"
)

// A move has tags name the columns that their sources fed, by reference: never a URL, and
// nothing where none was given by reference, with a note of the missing columns.
func TestMoveWritesFloors(t *testing.T) {
	const secret = "s3cret"
	address, db := newPostgres(t)
	do(t, db, postgresShop, "ALTER ROLE postgres PASSWORD '"+secret+"'")
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.UserPassword(u.User.Username(), secret)
	t.Setenv("SEQUENCES_TEST_DB", u.String())
	const reference = "env:SEQUENCES_TEST_DB"
	store := memstore.New()
	floors := func(name string) []api.FloorFrom {
		t.Helper()
		tag, err := store.Tag(t.Context(), name)
		if err != nil || strings.Contains(tag.Extra, secret) || strings.Contains(tag.Extra, "postgres://") {
			t.Fatalf("%+v, %v", tag, err)
		}
		return define.Shown(tag).FloorFrom
	}
	move := func(to moves.Target, given string, undo bool) mount.Moves {
		t.Helper()
		all, err := read(t, importing{}, given).Move(t.Context(), to, mount.MoveOptions{Apply: true, Undo: undo, IgnoreLiving: true, Bar: quietly})
		if err != nil || strings.Contains(fmt.Sprint(all), secret) {
			t.Fatalf("%v, %v", all, err)
		}
		return all
	}
	notes := strings.Join(move(store, u.String(), false).Notes, "; ")
	if got := floors("orders"); len(got) > 0 || !strings.Contains(notes, "tag orders has no floor_from: the URL was given itself") {
		t.Errorf("with a URL: %+v, noted is %s", got, notes)
	}

	// A server without the variable says no; that fails no move, and it is said.
	notes = strings.Join(move(withoutVariable{store}, reference, false).Notes, "; ")
	if got := floors("orders"); len(got) > 0 || !strings.Contains(notes, "tag orders has no floor_from") || !strings.Contains(notes, "SEQUENCES_TEST_DB is not set") {
		t.Errorf("without the variable: %+v, noted is %s", got, notes)
	}

	// The same command, repeated with a reference, adds them: the sources are shut already.
	notes = strings.Join(move(store, reference, false).Notes, "; ")
	for tag, want := range map[string]api.FloorFrom{
		"orders":      {URL: reference, Table: "public.orders", Column: "id"},
		"events":      {URL: reference, Table: "public.events", Column: "id"},
		`Odd.one.a"b`: {URL: reference, Table: `"Odd.one"."a""b"`, Column: "i'd"},
	} {
		got := floors(tag)
		if len(got) != 1 || got[0] != want {
			t.Errorf("%s has %+v, want %+v; noted is %s", tag, got, want, notes)
			continue
		}
		if most, err := sequences.Highest(t.Context(), got[0].URL, got[0].Table, got[0].Column); err != nil || most < 1 {
			t.Errorf("%s: the column's highest number is read as %d, %v", tag, most, err)
		}
	}
	if got := floors("shared"); len(got) != 2 {
		t.Errorf("two columns of a sequence: %+v", got)
	}
	if got := floors("small"); len(got) > 0 || !strings.Contains(notes, "small.id has no index") {
		t.Errorf("without an index: %+v, noted is %s", got, notes)
	}

	// What a person set stays.
	own := []api.FloorFrom{{URL: "file:/run/secrets/db", Table: "orders", Column: "id"}}
	extra, err := define.WithFloors("", own)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := store.UpdateTag(t.Context(), "orders", driver.TagUpdate{Extra: &extra}); err != nil {
		t.Fatal(err)
	}
	move(store, reference, false)
	if got := floors("orders"); len(got) != 1 || got[0] != own[0] {
		t.Errorf("a person's are %+v now", got)
	}

	// The plan has them, too, as commands and as configuration.
	move(store, reference, true)
	m := read(t, importing{}, reference)
	native, err := m.NativeYAML(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"hapax tags set orders --floor-from env:SEQUENCES_TEST_DB,public.orders,id \"$@\"", "#   small: small.id has no index"} {
		if !strings.Contains(m.YAML(""), want) {
			t.Errorf("the plan lacks %s:\n%s", want, m.YAML(""))
		}
	}
	if want := `- {url: "env:SEQUENCES_TEST_DB", table: "public.orders", column: "id"}`; !strings.Contains(native, want) {
		t.Errorf("the configuration lacks %s:\n%s", want, native)
	}
}

// A command that was killed has its tag made after the next one has planned, and numbers are
// issued from it: the source ends below that tag's first number, not the planned one.
func TestTagMadeSinceThePlan(t *testing.T) {
	address, db := newPostgres(t)
	do(t, db, "CREATE TABLE orders (id bigserial PRIMARY KEY)", "INSERT INTO orders SELECT FROM generate_series(1, 10)")
	store := memstore.New()
	done := apply(t, read(t, importing{how: string(sequences.Gap)}, address), lateTag{store, t}, mount.MoveOptions{Apply: true, Margin: 5000})
	if r := done["orders"].Reason; r != nil {
		t.Fatal(r)
	}
	if n := number(t, db, "SELECT seqmax FROM pg_sequence WHERE seqrelid = 'orders_id_seq'::regclass"); n != 1999 {
		t.Errorf("the source ends at %d, and the tag issued numbers from 2000 on", n)
	}
}

// lateTag is a server at which another command's tag is there, and used, when one is created.
type lateTag struct {
	*memstore.Store

	t *testing.T
}

func (l lateTag) CreateTag(ctx context.Context, tag hapax.Tag, mode hapax.CreateMode) (hapax.Tag, error) {
	if _, err := l.Store.CreateTag(ctx, must(hapax.Tag{Name: tag.Name, Start: 2000}.WithDefaults()), hapax.CreateExplicit); err == nil {
		if _, err := l.Allocate(ctx, tag.Name, 9000, ""); err != nil {
			l.t.Error(err)
		}
	}
	return l.Store.CreateTag(ctx, tag, mode)
}

// withoutVariable is a server that does not know the variable.
type withoutVariable struct{ moves.Target }

func (w withoutVariable) UpdateTag(ctx context.Context, name string, u driver.TagUpdate) (hapax.Tag, error) {
	if u.Extra != nil {
		return hapax.Tag{}, errors.Join(hapax.ErrInvalidArgument, errors.New("the variable SEQUENCES_TEST_DB is not set"))
	}
	return w.Target.UpdateTag(ctx, name, u)
}
