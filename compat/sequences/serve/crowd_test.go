package serve

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
	"github.com/hapax-id/hapax/internal/service"
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

	stop          atomic.Bool
	old, new      atomic.Int64 // rows that were written
	wg            sync.WaitGroup
	oldIns, newIn string // statements
}

const crowdTag = "orders"

func (c *crowd) start(writers int) {
	for range writers {
		c.wg.Go(func() { // the old way, until it is refused or told to end
			for !c.stop.Load() {
				if _, err := c.db.ExecContext(context.Background(), c.oldIns); err == nil {
					c.old.Add(1)
				}
			}
		})
	}
}

// startNew starts writers of the tag.
func (c *crowd) startNew(writers int) {
	for range writers {
		c.wg.Go(func() {
			for !c.stop.Load() {
				a, err := c.store.Allocate(context.Background(), crowdTag, 3, "")
				if err != nil {
					continue // it is not there, or made anew
				}
				for n := a.Grant.Lo; n < a.Grant.Hi; n++ {
					if n%a.Tag.Delta != a.Tag.Remainder {
						continue
					}
					if _, err := c.db.ExecContext(context.Background(), fmt.Sprintf(c.newIn, n)); err == nil {
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
func TestCrowd(t *testing.T) { crowds(t, 3, []int{0, 1, 2, 3, 4, 5, -1}) }

// As TestCrowd, with twenty writers of each kind.
func TestCrowdSoak(t *testing.T) {
	patience.Soak(t, "forty writers on two servers")
	crowds(t, 20, []int{0, 1, 2, 3, 4, 5, 1, 2, 3, -1})
}

func crowds(t *testing.T, writers int, points []int) {
	postgres := func(t *testing.T) (string, *sql.DB) {
		address, db := newPostgres(t)
		do(t, db, "CREATE SEQUENCE s CACHE 100", "CREATE TABLE orders (id bigint DEFAULT nextval('s'), new boolean DEFAULT false)", "ALTER SEQUENCE s OWNED BY orders.id", "CREATE INDEX ON orders (id)")
		return address, db
	}
	maria := func(statements ...string) func(t *testing.T) (string, *sql.DB) {
		return func(t *testing.T) (string, *sql.DB) {
			address, db := newMariaDB(t, testservers.SharedMariaDB(t))
			do(t, db, statements...)
			return address, db
		}
	}
	mariaSequence := maria("CREATE SEQUENCE s CACHE 100", "CREATE TABLE orders (id BIGINT DEFAULT NEXTVAL(s), new BOOLEAN DEFAULT FALSE, KEY (id))")
	auto := maria("CREATE TABLE orders (id BIGINT AUTO_INCREMENT, new BOOLEAN DEFAULT FALSE, KEY (id))")
	for _, tt := range []struct {
		name   string
		make   func(*testing.T) (string, *sql.DB)
		how    sequences.Switch
		broken bool
	}{
		{"postgres", postgres, sequences.Stop, false},
		{"postgres", postgres, sequences.Gap, false},
		{"postgres", postgres, sequences.Parity, false},
		{"postgres, not shut", postgres, sequences.Gap, true},
		{"mariadb sequence", mariaSequence, sequences.Gap, false},
		{"mariadb sequence", mariaSequence, sequences.Parity, false},
		{"auto_increment", auto, sequences.Stop, false},
	} {
		for _, point := range points {
			if tt.broken && point >= 0 {
				continue
			}
			t.Run(fmt.Sprintf("%s/%s/killed at %d", tt.name, tt.how, point), func(t *testing.T) {
				address, db := tt.make(t)
				const reference = "env:SEQUENCES_TEST_DB"
				t.Setenv("SEQUENCES_TEST_DB", address)
				db.SetMaxOpenConns(2*writers + 4)
				db.SetMaxIdleConns(2*writers + 4)
				c := &crowd{t: t, db: db, store: memstore.New(), how: tt.how, oldIns: "INSERT INTO orders (new) VALUES (false)", newIn: "INSERT INTO orders (id, new) VALUES (%d, true)"}
				c.start(writers)
				end := sync.OnceFunc(func() { c.stop.Store(true); c.wg.Wait() })
				defer end()
				c.await(&c.old, 50)
				early := tt.name != "auto_increment" // whose counter moves above every number that is inserted
				if early {
					c.startNew(writers)
				}

				k := &killing{Target: c.store, point: point}
				move := func() error {
					i := importing{how: string(tt.how)}
					m := read(t, i, reference)
					if s := m.source(t, crowdTag); s.Closed == nil && len(s.Feeds) != 1 {
						t.Fatalf("the source feeds %v", s.Feeds)
					}
					m.opened = func(db sequences.Database) sequences.Database { return killedDatabase{db, k, tt.broken} }
					o := mount.MoveOptions{Apply: true, IgnoreLiving: true, Bar: quietly, Margin: 1_000_000} // no rate is measured here
					if tt.broken {
						o.Margin = 200
					}
					all, err := m.Move(t.Context(), k, o)
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
				if !early {
					c.startNew(writers)
				}
				c.await(&c.new, 50)
				if tt.how == sequences.Parity {
					c.await(&c.old, 50)
				}
				if tt.broken {
					c.await(&c.old, 600)
				}
				end()
				tag, err := c.store.Tag(t.Context(), crowdTag)
				if err != nil {
					t.Fatal(err)
				}
				if all := service.FloorsOf(tag); len(all) != 1 || all[0].URL != reference || all[0].Column != "id" {
					t.Errorf("the tag has floor_from %+v", all)
				}
				t.Logf("%d rows the old way, %d the new one", c.old.Load(), c.new.Load())
				twice := number(t, db, "SELECT count(*) - count(DISTINCT id) FROM orders")
				if (twice > 0) != tt.broken {
					t.Errorf("%d numbers are there twice; %d rows the old way, %d the new one", twice, c.old.Load(), c.new.Load())
				}
				wrong := number(t, db, fmt.Sprintf("SELECT count(*) FROM orders WHERE new AND id < %d", tag.Start))
				if tt.how != sequences.Parity && !tt.broken {
					wrong += number(t, db, fmt.Sprintf("SELECT count(*) FROM orders WHERE NOT new AND id >= %d", tag.Start))
				}
				if wrong > 0 {
					t.Errorf("%d rows are on the wrong side of %d", wrong, tag.Start)
				}
			})
		}
	}
}
