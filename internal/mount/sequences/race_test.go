package sequences

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/compat/sequences"
	"github.com/hapax-id/hapax/internal/mount"
	"github.com/hapax-id/hapax/internal/moves"
	"github.com/hapax-id/hapax/internal/patience"
	"github.com/hapax-id/hapax/internal/service"
	"github.com/hapax-id/hapax/internal/service/define"
	"github.com/hapax-id/hapax/internal/testservers"
	"github.com/hapax-id/hapax/store/memstore"
	"github.com/hapax-id/hapax/store/mongostore"
	"github.com/hapax-id/hapax/store/redisstore"
)

// A contested source is the only one of its database, and its tag is orders.
type contested struct {
	name string
	make func(t *testing.T) (address string)
	take func(ctx context.Context, address string) ([]int64, error) // as the old writers do
	hows []sequences.Switch
	like string
	all  bool // the other command comes in at every point
}

func contestedSources(t *testing.T) []contested {
	t.Helper()
	const (
		generator = "CREATE TABLE hibernate_sequences (sequence_name VARCHAR(100) PRIMARY KEY, next_val BIGINT)"
		generated = "INSERT INTO hibernate_sequences VALUES ('orders', 1)"
		fed       = "CREATE TABLE orders (id BIGINT, KEY (id))"
		counted   = "CREATE TABLE orders (id BIGINT AUTO_INCREMENT PRIMARY KEY)"
	)
	postgres := func(statements ...string) func(t *testing.T) string {
		return func(t *testing.T) string {
			address, db := newPostgres(t)
			do(t, db, statements...)
			return address
		}
	}
	mysql := func(server *testservers.Server, statements ...string) func(t *testing.T) string {
		return func(t *testing.T) string {
			address, db := newMariaDB(t, server)
			do(t, db, statements...)
			return address
		}
	}
	maria, mysql8, redis, mongo := testservers.SharedMariaDB(t), testservers.MySQL8(t), testservers.Redis(t), testservers.MongoDB(t)
	all, stop := []sequences.Switch{sequences.Stop, sequences.Gap, sequences.Parity}, []sequences.Switch{sequences.Stop}
	return []contested{
		{name: "postgres", make: postgres("CREATE TABLE orders (id bigserial PRIMARY KEY)"), take: takeSQL("SELECT nextval('orders_id_seq')"), hows: all, all: true},
		{name: "postgres, two sequences", make: postgres("CREATE SEQUENCE s INCREMENT 2", "CREATE SEQUENCE s2 INCREMENT 2 START 2", "CREATE TABLE orders (id bigint PRIMARY KEY DEFAULT nextval('s'))", "ALTER SEQUENCE s2 OWNED BY orders.id"), take: takeSQL("SELECT nextval('s')", "SELECT nextval('s2')"), hows: stop},
		{name: "postgres, generator", make: postgres(generator, generated, "CREATE TABLE orders (id bigint PRIMARY KEY)"), take: takeGenerated, hows: stop},
		{name: "mariadb, generator", make: mysql(maria, generator, generated, fed), take: takeGenerated, hows: stop},
		{name: "mariadb, sequence", make: mysql(maria, "CREATE SEQUENCE s", "CREATE TABLE orders (id BIGINT DEFAULT NEXTVAL(s), KEY (id))"), take: takeSQL("SELECT NEXTVAL(s)"), hows: all},
		{name: "mariadb, auto_increment", make: mysql(maria, counted), take: takeInserted, hows: stop},
		{name: "mysql 8, auto_increment", make: mysql(mysql8, counted), take: takeInserted, hows: stop},
		{name: "mysql 8, generator", make: mysql(mysql8, generator, generated, fed), take: takeGenerated, hows: stop},
		{name: "redis", hows: stop, like: "orders", all: true, take: takeCounted, make: func(t *testing.T) string {
			c, err := redisstore.NewClient(redis.URL, patience.Call)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if err := c.Set(t.Context(), "orders", 41, 0).Err(); err != nil {
				t.Fatal(err)
			}
			return redis.URL
		}},
		{name: "mongodb", hows: stop, take: takeDocument, make: func(t *testing.T) string {
			address := mongo.URL[:strings.LastIndex(mongo.URL, "/")] + fmt.Sprintf("/seq%d", databases.Add(1))
			db, err := mongostore.NewDatabase(address, patience.Call)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = db.Client().Disconnect(context.Background()) }()
			if _, err := db.Collection("counters").InsertOne(t.Context(), bson.D{{Key: "_id", Value: "orders"}, {Key: "seq", Value: int64(41)}}); err != nil {
				t.Fatal(err)
			}
			return address
		}},
	}
}

// interrupted is a target, and databases, at which something else happens before one of the
// changes of a move, or after the last of them.
type interrupted struct {
	moves.Target

	at, changes int
	by          func()
}

func (i *interrupted) change() {
	if i.changes == i.at {
		i.by()
	}
	i.changes++
}

func (i *interrupted) CreateTag(ctx context.Context, tag hapax.Tag, mode hapax.CreateMode) (hapax.Tag, error) {
	i.change()
	return i.Target.CreateTag(ctx, tag, mode)
}

func (i *interrupted) DeleteTag(ctx context.Context, name string) (hapax.Tag, error) {
	i.change()
	return i.Target.DeleteTag(ctx, name)
}

// interruptedDatabase has Shut and Reopen as changes.
type interruptedDatabase struct {
	sequences.Database

	i *interrupted
}

func (d interruptedDatabase) Shut(ctx context.Context, s *sequences.Source, how sequences.Switch, first int64) error {
	d.i.change()
	return d.Database.Shut(ctx, s, how, first)
}

func (d interruptedDatabase) Reopen(ctx context.Context, s *sequences.Source, next int64) error {
	d.i.change()
	return d.Database.Reopen(ctx, s, next)
}

// A rival is a command for a store of its own.
type rival struct {
	store *memstore.Store
	read  *imported
}

func (r *rival) move(ctx context.Context, to moves.Target, undo bool) error {
	all, err := r.read.Move(ctx, to, mount.MoveOptions{Apply: true, Undo: undo, IgnoreLiving: true, Bar: quietly})
	for _, one := range all.Tags {
		err = errors.Join(err, one.Reason)
	}
	return err
}

func (r *rival) id(t *testing.T) string {
	t.Helper()
	id, err := r.store.StoreID(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// issues reports whether a rival's tag issues numbers.
func (r *rival) issues(t *testing.T) bool {
	t.Helper()
	_, err := r.store.Allocate(t.Context(), "orders", 2, "")
	if err != nil && !errors.Is(err, hapax.ErrTagDeleted) && !errors.Is(err, hapax.ErrTagNotFound) {
		t.Fatal(err)
	}
	return err == nil
}

// cannotCreate sees that a server refuses to open the deleted tag, as the error of its first use
// says that it should be: its numbers are the other store's.
func (r *rival) cannotCreate(t *testing.T) {
	t.Helper()
	svc, err := service.New(t.Context(), r.store, service.Options{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = svc.Close(context.Background()) }()
	for _, def := range []hapax.Tag{{Name: "orders"}, {Name: "orders", Start: 1 << 40, Extra: define.CodeExtra("O-{id:6+}", "")}} {
		if have, err := svc.Tag(t.Context(), "orders"); err == nil {
			def.Delta, def.Remainder = have.Delta, have.Remainder
		}
		if _, err := svc.CreateTag(t.Context(), def, hapax.CreateExplicit); !errors.Is(err, hapax.ErrInvalidArgument) || !strings.Contains(err.Error(), "hapax import --apply") {
			t.Errorf("created with %+v: %v; want it refused", def, err)
		}
	}
}

// Two commands for two stores have read a source while it was open, and the second one comes in
// at any point of the first: one of them has the source and a tag, and the other one is told
// whose it is, and has no tag that issues.
func TestTwoStores(t *testing.T) {
	for _, c := range contestedSources(t) {
		for _, how := range c.hows {
			points := []int{1, 2} // its changes: it holds the tag, shuts the source, opens the tag
			if c.all && how == sequences.Stop {
				points = []int{0, 1, 2, 3}
			}
			for _, at := range points {
				t.Run(fmt.Sprintf("%s/%s/%d", c.name, how, at), func(t *testing.T) { c.race(t, how, at) })
			}
		}
		t.Run(c.name+"/at once", func(t *testing.T) { c.atOnce(t) })
	}
}

func (c contested) rivals(t *testing.T, how sequences.Switch) (address string, a, b *rival) {
	t.Helper()
	address = c.make(t)
	i := importing{how: string(how), like: c.like, opts: sequences.Options{Collection: "counters"}}
	return address, &rival{memstore.New(), read(t, i, address)}, &rival{memstore.New(), read(t, i, address)}
}

func (c contested) race(t *testing.T, how sequences.Switch, at int) {
	address, a, b := c.rivals(t, how)
	var errB error
	i := &interrupted{Target: a.store, at: at, by: func() { errB = b.move(t.Context(), b.store, false) }}
	a.read.opened = func(db sequences.Database) sequences.Database { return interruptedDatabase{db, i} }
	errA := a.move(t.Context(), i, false)
	if i.changes == at {
		i.change()
	}
	if i.changes <= at {
		t.Fatalf("a move has %d changes", i.changes)
	}
	won, lost, told := a, b, errB
	if at < 2 { // it was shut before the first one shut it
		won, lost, told = b, a, errA
	}
	if errA != nil && errB != nil || told == nil || !strings.Contains(told.Error(), won.id(t)) {
		t.Fatalf("the first command: %v; the second: %v; want one told of store %s", errA, errB, won.id(t))
	}
	if !won.issues(t) || lost.issues(t) {
		t.Fatalf("the store that has the source issues: %v, the other one: %v", won.issues(t), lost.issues(t))
	}
	c.after(t, address, how, won, lost)
}

// after repeats everything: the store that has the source goes on, and the other one can neither
// take it nor open it.
func (c contested) after(t *testing.T, address string, how sequences.Switch, won, lost *rival) {
	again := func(r *rival) *rival {
		r.read = read(t, importing{how: string(how), like: c.like, opts: sequences.Options{Collection: "counters"}}, address)
		return r
	}
	for _, r := range []*rival{won, lost} {
		verdicts, err := again(r).read.Verify(t.Context(), r.store)
		if err != nil || len(verdicts) != 1 {
			t.Fatalf("verified: %+v, %v", verdicts, err)
		}
		if wrong := strings.Join(verdicts[0].Wrong, "; "); (wrong != "") != (r == lost) || !strings.Contains(wrong, "store") && r == lost {
			t.Errorf("verified, as the one that lost %v: %q", r == lost, wrong)
		}
		for _, undo := range []bool{false, true} {
			if undo && r == won {
				continue
			}
			if err := again(r).move(t.Context(), r.store, undo); (err != nil) != (r == lost) {
				t.Errorf("moved, back %v, as the one that lost %v: %v", undo, r == lost, err)
			}
		}
	}
	lost.cannotCreate(t)
	if !won.issues(t) || lost.issues(t) {
		t.Fatalf("the store that has the source issues: %v, the other one: %v", won.issues(t), lost.issues(t))
	}

	// A way back that was planned before the source went to the other store leaves it alone.
	late := &rival{won.store, again(won).read}
	var errs []error
	i := &interrupted{Target: won.store, at: 1, by: func() { // before Reopen
		errs = append(errs, again(won).move(t.Context(), won.store, true), again(lost).move(t.Context(), lost.store, false))
	}}
	late.read.opened = func(db sequences.Database) sequences.Database { return interruptedDatabase{db, i} }
	err := late.move(t.Context(), i, true)
	if errors.Join(errs...) != nil || len(errs) != 2 {
		t.Fatalf("the way back, and the other store's move: %v", errs)
	}
	if err == nil || !strings.Contains(err.Error(), lost.id(t)) {
		t.Errorf("the way back that is late: %v; want it refused", err)
	}
	if won.issues(t) || !lost.issues(t) {
		t.Errorf("after it went over, the old store issues: %v, the new one: %v", won.issues(t), lost.issues(t))
	}
	won.cannotCreate(t)
	if verdicts, err := again(lost).read.Verify(t.Context(), lost.store); err != nil || len(verdicts) != 1 || len(verdicts[0].Wrong) > 0 {
		t.Errorf("verified: %+v, %v", verdicts, err)
	}
}

// atOnce lets both go together.
func (c contested) atOnce(t *testing.T) {
	_, a, b := c.rivals(t, sequences.Stop)
	var wg sync.WaitGroup
	errs := make([]error, 2)
	for k, r := range []*rival{a, b} {
		wg.Go(func() { errs[k] = r.move(t.Context(), r.store, false) })
	}
	wg.Wait()
	if (errs[0] == nil) == (errs[1] == nil) || a.issues(t) != (errs[0] == nil) || b.issues(t) != (errs[1] == nil) {
		t.Errorf("%v; %v; want one of them refused, and the other one's tag", errs[0], errs[1])
	}
}
