package sequences

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/compat/sequences"
	"github.com/hapax-id/hapax/internal/mount"
	"github.com/hapax-id/hapax/internal/moves"
	"github.com/hapax-id/hapax/internal/patience"
	"github.com/hapax-id/hapax/internal/service/define"
	"github.com/hapax-id/hapax/internal/testservers"
	"github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/store/memstore"
)

// errKilled ends a move where the test wants it.
var errKilled = errors.New("killed")

// killing is a target, and databases, at which a move ends at one of its changes: before it
// for an even point, after it for an odd one, as if the answer were lost.
type killing struct {
	moves.Target

	point, changes int
	killed         bool
}

func (k *killing) change(do func() error) error {
	at := k.changes
	k.changes++
	if k.killed || k.point == 2*at {
		k.killed = true
		return errKilled
	}
	err := do()
	if k.point == 2*at+1 {
		k.killed = true
		return errKilled
	}
	return err
}

func (k *killing) CreateTag(ctx context.Context, tag hapax.Tag, mode hapax.CreateMode) (t hapax.Tag, err error) {
	err = k.change(func() (err error) { t, err = k.Target.CreateTag(ctx, tag, mode); return err })
	return t, err
}

func (k *killing) UpdateTag(ctx context.Context, name string, u driver.TagUpdate) (t hapax.Tag, err error) {
	err = k.change(func() (err error) { t, err = k.Target.UpdateTag(ctx, name, u); return err })
	return t, err
}

func (k *killing) DeleteTag(ctx context.Context, name string) (t hapax.Tag, err error) {
	err = k.change(func() (err error) { t, err = k.Target.DeleteTag(ctx, name); return err })
	return t, err
}

// killedDatabase has Shut as a change; one that is broken does not shut at all.
type killedDatabase struct {
	sequences.Database

	k      *killing
	broken bool
}

func (d killedDatabase) Shut(ctx context.Context, s *sequences.Source, how sequences.Switch, first int64) error {
	return d.k.change(func() error {
		if d.broken {
			return nil
		}
		return d.Database.Shut(ctx, s, how, first)
	})
}

// A crowd writes rows with numbers of a source, and of its tag once that is there, into a
// column that has no unique index.
type crowd struct {
	t     *testing.T
	db    *sql.DB
	store *memstore.Store
	how   sequences.Switch

	stop     atomic.Bool
	old, new atomic.Int64 // rows that were written
	wg       sync.WaitGroup
}

const (
	crowdTag = "orders"
	newRow   = "INSERT INTO orders (id, new) VALUES (%d, true)"
)

// start starts writers that go on the old way, until it is refused or they are told to end.
func (c *crowd) start(writers int, old func(k int) write) {
	for k := range writers {
		write := old(k)
		c.wg.Go(func() {
			for !c.stop.Load() {
				if err := write(c.db); err == nil {
					c.old.Add(1)
				} else {
					patience.Again() // it is shut
				}
			}
		})
	}
}

// A write writes one row, with a number of the source.
type write func(db *sql.DB) error

// inserting has writers insert rows, each in one of these ways.
func inserting(statements ...string) func(k int) write {
	return func(k int) write {
		return func(db *sql.DB) error {
			_, err := db.ExecContext(context.Background(), statements[k%len(statements)])
			return err
		}
	}
}

// pooling has writers take numbers as Hibernate's pooled optimizer does: fifty at once, from
// a row of a table, for the rows to come.
func pooling(int) write {
	var next, end int64
	return func(db *sql.DB) error {
		if next == end {
			tx, err := db.BeginTx(context.Background(), nil)
			if err != nil {
				return err
			}
			defer func() { _ = tx.Rollback() }() // unless it is committed
			var n int64
			if err := tx.QueryRowContext(context.Background(), "SELECT next_val FROM hibernate_sequences WHERE sequence_name = 'orders' FOR UPDATE").Scan(&n); err != nil {
				return err
			}
			if _, err := tx.ExecContext(context.Background(), fmt.Sprintf("UPDATE hibernate_sequences SET next_val = %d WHERE next_val = %d AND sequence_name = 'orders'", n+50, n)); err != nil {
				return err
			}
			if err := tx.Commit(); err != nil {
				return err
			}
			next, end = n, n+50
		}
		_, err := db.ExecContext(context.Background(), fmt.Sprintf("INSERT INTO orders (id) VALUES (%d)", next))
		next++
		return err
	}
}

// startNew starts writers of the tag.
func (c *crowd) startNew(writers int) {
	for range writers {
		c.wg.Go(func() {
			for !c.stop.Load() {
				a, err := c.store.Allocate(context.Background(), crowdTag, 3, "")
				if err != nil {
					patience.Again() // it is not there, or made anew
					continue
				}
				for n := a.Grant.Lo; n < a.Grant.Hi; n++ {
					if n%a.Tag.Delta != a.Tag.Remainder {
						continue
					}
					if _, err := c.db.ExecContext(context.Background(), fmt.Sprintf(newRow, n)); err == nil {
						c.new.Add(1)
					}
				}
			}
		})
	}
}

// await waits until so many more rows were written.
func (c *crowd) await(n *atomic.Int64, more int64) {
	c.t.Helper()
	from := n.Load()
	patience.Until(c.t, fmt.Sprintf("%d more rows", more), func() bool { return n.Load() >= from+more })
}

// Writers that go on with the old source during a switch, which is killed at each of its
// changes and repeated, write no number twice, and none at or above the tag's first number.
func TestCrowd(t *testing.T) { crowds(t, 3, []int{0, 1, 2, 3, 4, 5, 6, 7, -1}, []int{2, 3, -1}) }

// As TestCrowd, with twenty writers of each kind.
func TestCrowdSoak(t *testing.T) {
	patience.Soak(t, "forty writers on three servers")
	points := []int{0, 1, 2, 3, 4, 5, 6, 7, 2, 3, -1}
	crowds(t, 20, points, points)
}

// An outlet is a table that a source feeds.
type outlet struct {
	name   string
	make   func(*testing.T) (string, *sql.DB)
	old    func(k int) write
	hows   []sequences.Switch
	broken bool // the source is not shut
	all    bool // it is killed at all points
	late   bool // its counter moves above every number that is inserted
}

// outlets are sources of every kind.
func outlets(t *testing.T) []outlet {
	postgres := func(statements ...string) func(t *testing.T) (string, *sql.DB) {
		return func(t *testing.T) (string, *sql.DB) {
			address, db := newPostgres(t)
			do(t, db, statements...)
			return address, db
		}
	}
	maria := func(server *testservers.Server, statements ...string) func(t *testing.T) (string, *sql.DB) {
		return func(t *testing.T) (string, *sql.DB) {
			address, db := newMariaDB(t, server)
			do(t, db, statements...)
			return address, db
		}
	}
	increments := []string{"--auto-increment-increment=3", "--auto-increment-offset=2"}
	shared, apart, mysql8 := testservers.SharedMariaDB(t), testservers.MariaDB(t, increments...), testservers.MySQL8(t, increments...)
	all, unsplit, stop := []sequences.Switch{sequences.Stop, sequences.Gap, sequences.Parity}, []sequences.Switch{sequences.Stop, sequences.Gap}, []sequences.Switch{sequences.Stop}
	row := inserting("INSERT INTO orders (new) VALUES (false)")
	cached := postgres("CREATE SEQUENCE s CACHE 100", "CREATE TABLE orders (id bigint DEFAULT nextval('s'), new boolean DEFAULT false)", "ALTER SEQUENCE s OWNED BY orders.id", "CREATE INDEX ON orders (id)")
	const (
		counted   = "CREATE TABLE orders (id BIGINT AUTO_INCREMENT, new BOOLEAN DEFAULT FALSE, KEY (id))"
		sequenced = "CREATE TABLE orders (id BIGINT DEFAULT NEXTVAL(s), new BOOLEAN DEFAULT FALSE, KEY (id))"
		generator = "CREATE TABLE hibernate_sequences (sequence_name VARCHAR(100) PRIMARY KEY, next_val BIGINT)"
		generated = "INSERT INTO hibernate_sequences VALUES ('orders', 1)"
	)
	return []outlet{
		{name: "postgres", make: cached, old: row, hows: all, all: true},
		{name: "postgres, not shut", make: cached, old: row, hows: []sequences.Switch{sequences.Gap}, broken: true},
		{name: "identity", make: postgres("CREATE TABLE orders (id bigint GENERATED ALWAYS AS IDENTITY (CACHE 100), new boolean DEFAULT false)", "CREATE INDEX ON orders (id)"), old: row, hows: all},
		{name: "partitions", make: postgres("CREATE TABLE orders (id bigserial, new boolean DEFAULT false) PARTITION BY LIST (new)", "CREATE TABLE orders_old PARTITION OF orders FOR VALUES IN (false)", "CREATE TABLE orders_new PARTITION OF orders FOR VALUES IN (true)", "CREATE INDEX ON orders (id)"), old: row, hows: all},
		{
			name: "two sequences", make: postgres("CREATE SEQUENCE s INCREMENT 2 CACHE 50", "CREATE SEQUENCE s2 INCREMENT 2 START 2", "CREATE TABLE orders (id bigint DEFAULT nextval('s'), new boolean DEFAULT false)", "ALTER SEQUENCE s2 OWNED BY orders.id", "CREATE INDEX ON orders (id)"),
			old: inserting("INSERT INTO orders (new) VALUES (false)", "INSERT INTO orders (id) VALUES (nextval('s2'))"), hows: unsplit,
		},
		{name: "hibernate_sequences", make: postgres(generator, generated, "CREATE TABLE orders (id bigint, new boolean DEFAULT false)", "CREATE INDEX ON orders (id)"), old: pooling, hows: stop},
		{name: "hibernate_sequences in mariadb", make: maria(shared, generator, generated, "CREATE TABLE orders (id BIGINT, new BOOLEAN DEFAULT FALSE, KEY (id))"), old: pooling, hows: stop},
		{name: "mariadb sequence", make: maria(shared, "CREATE SEQUENCE s CACHE 100", sequenced), old: row, hows: all, all: true},
		{name: "mariadb sequence, server increments", make: maria(apart, "CREATE SEQUENCE s INCREMENT BY 0 CACHE 100", sequenced), old: row, hows: unsplit},
		{name: "auto_increment", make: maria(shared, counted), old: row, hows: stop, all: true, late: true},
		{name: "auto_increment, server increments", make: maria(apart, counted), old: row, hows: stop, late: true},
		{name: "mysql 8, server increments", make: maria(mysql8, counted), old: row, hows: stop, late: true},
	}
}

func crowds(t *testing.T, writers int, all, some []int) {
	for _, o := range outlets(t) {
		for _, how := range o.hows {
			points := some
			switch {
			case o.broken:
				points = []int{-1}
			case o.all:
				points = all
			}
			for _, point := range points {
				t.Run(fmt.Sprintf("%s/%s/killed at %d", o.name, how, point), func(t *testing.T) { o.move(t, how, writers, point) })
			}
		}
	}
}

// move switches a source while writers go on.
func (o outlet) move(t *testing.T, how sequences.Switch, writers, point int) {
	address, db := o.make(t)
	const reference = "env:SEQUENCES_TEST_DB"
	t.Setenv("SEQUENCES_TEST_DB", address)
	db.SetMaxOpenConns(2*writers + 4)
	db.SetMaxIdleConns(2*writers + 4)
	c := &crowd{t: t, db: db, store: memstore.New(), how: how}
	c.start(writers, o.old)
	end := sync.OnceFunc(func() { c.stop.Store(true); c.wg.Wait() })
	defer end()
	c.await(&c.old, 50)
	if !o.late {
		c.startNew(writers)
	}

	k := &killing{Target: c.store, point: point}
	move := func() error {
		m := read(t, importing{how: string(how)}, reference)
		if s := m.source(t, crowdTag); s.Closed == nil && len(s.Feeds) != 1 {
			t.Fatalf("the source feeds %v", s.Feeds)
		}
		m.opened = func(db sequences.Database) sequences.Database { return killedDatabase{db, k, o.broken} }
		opts := mount.MoveOptions{Apply: true, IgnoreLiving: true, Bar: quietly, Margin: 1_000_000} // no rate is measured here
		if o.broken {
			opts.Margin = 200
		}
		all, err := m.Move(t.Context(), k, opts)
		for _, one := range all.Tags {
			err = errors.Join(err, one.Reason)
		}
		if k.killed { // columns that cannot be named are no error
			err = errKilled
		}
		return err
	}
	if err := move(); (err != nil) != (point >= 0) || err != nil && !errors.Is(err, errKilled) {
		t.Fatalf("the move: %v", err)
	}
	k.point, k.killed = -1, false
	if point >= 0 {
		if err := move(); err != nil {
			t.Fatalf("the move, repeated: %v", err)
		}
	}
	if o.late {
		c.startNew(writers)
	}
	c.await(&c.new, 50)
	if how == sequences.Parity {
		c.await(&c.old, 50)
	}
	if o.broken {
		c.await(&c.old, 600)
	}
	end()
	o.judge(c, reference)
}

// judge counts what came twice, or to the wrong side of the tag's first number.
func (o outlet) judge(c *crowd, reference string) {
	t := c.t
	tag, err := c.store.Tag(t.Context(), crowdTag)
	if err != nil {
		t.Fatal(err)
	}
	if all := define.Shown(tag).FloorFrom; len(all) != 1 || all[0].URL != reference || all[0].Column != "id" {
		t.Errorf("the tag has floor_from %+v", all)
	}
	t.Logf("%d rows the old way, %d the new one", c.old.Load(), c.new.Load())
	twice := number(t, c.db, "SELECT count(*) - count(DISTINCT id) FROM orders")
	if (twice > 0) != o.broken {
		t.Errorf("%d numbers are there twice; %d rows the old way, %d the new one", twice, c.old.Load(), c.new.Load())
	}
	wrong := number(t, c.db, fmt.Sprintf("SELECT count(*) FROM orders WHERE new AND id < %d", tag.Start))
	if c.how != sequences.Parity && !o.broken {
		wrong += number(t, c.db, fmt.Sprintf("SELECT count(*) FROM orders WHERE NOT new AND id >= %d", tag.Start))
	}
	if wrong > 0 {
		t.Errorf("%d rows are on the wrong side of %d", wrong, tag.Start)
	}
}
