package sequences

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/compat/sequences"
	"github.com/hapax-id/hapax/internal/mount"
	"github.com/hapax-id/hapax/internal/moves"
	"github.com/hapax-id/hapax/internal/patience"
	"github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/store/memstore"
	"github.com/hapax-id/hapax/store/mongostore"
	"github.com/hapax-id/hapax/store/redisstore"
)

// withSQL calls do with a connection to the database at an address.
func withSQL(address string, do func(db *sql.DB) error) error {
	name, dsn := "pgx", address
	if rest, ok := strings.CutPrefix(address, "mysql://"); ok {
		account, where, _ := strings.Cut(rest, "@")
		host, database, _ := strings.Cut(where, "/")
		name, dsn = "mysql", fmt.Sprintf("%s@tcp(%s)/%s", account, host, database)
	}
	db, err := sql.Open(name, dsn)
	if err != nil {
		return err
	}
	return errors.Join(do(db), db.Close())
}

func takeSQL(queries ...string) func(context.Context, string) ([]int64, error) {
	return func(ctx context.Context, address string) (all []int64, err error) {
		err = withSQL(address, func(db *sql.DB) error {
			for _, q := range queries {
				var n int64
				if err := db.QueryRowContext(ctx, q).Scan(&n); err != nil {
					return err
				}
				all = append(all, n)
			}
			return nil
		})
		return all, err
	}
}

func takeGenerated(ctx context.Context, address string) (all []int64, err error) {
	err = withSQL(address, func(db *sql.DB) error {
		if _, err := db.ExecContext(ctx, "UPDATE hibernate_sequences SET next_val = next_val + 1 WHERE sequence_name = 'orders'"); err != nil {
			return err
		}
		var n int64
		err := db.QueryRowContext(ctx, "SELECT next_val - 1 FROM hibernate_sequences WHERE sequence_name = 'orders'").Scan(&n)
		all = []int64{n}
		return err
	})
	return all, err
}

func takeInserted(ctx context.Context, address string) (all []int64, err error) {
	err = withSQL(address, func(db *sql.DB) error {
		done, err := db.ExecContext(ctx, "INSERT INTO orders VALUES ()")
		if err != nil {
			return err
		}
		n, err := done.LastInsertId()
		all = []int64{n}
		return err
	})
	return all, err
}

func takeCounted(ctx context.Context, address string) ([]int64, error) {
	c, err := redisstore.NewClient(address, patience.Call)
	if err != nil {
		return nil, err
	}
	n, err := c.Incr(ctx, "orders").Result()
	return []int64{n}, errors.Join(err, c.Close())
}

func takeDocument(ctx context.Context, address string) ([]int64, error) {
	db, err := mongostore.NewDatabase(address, patience.Call)
	if err != nil {
		return nil, err
	}
	defer func() { _ = db.Client().Disconnect(context.Background()) }()
	var doc struct{ Seq int64 }
	err = db.Collection("counters").FindOneAndUpdate(ctx, bson.D{{Key: "_id", Value: "orders"}}, bson.D{{Key: "$inc", Value: bson.D{{Key: "seq", Value: 1}}}},
		options.FindOneAndUpdate().SetReturnDocument(options.After)).Decode(&doc)
	return []int64{doc.Seq}, err
}

// A struck is a target, and databases, at one of whose changes something happens: before it, or, for
// an odd point, after it was done.
type struck struct {
	moves.Target

	point, changes int
	by             func() error
	hit, dead      bool
}

func (s *struck) change(do func() error) error {
	at := 2 * s.changes
	s.changes++
	if s.dead {
		return errKilled
	}
	strike := func() error {
		s.hit = true
		err := s.by()
		s.dead = err != nil
		return err
	}
	if s.point == at {
		if err := strike(); err != nil {
			return err
		}
	}
	err := do()
	if s.point == at+1 {
		err = errors.Join(err, strike())
	}
	return err
}

func (s *struck) CreateTag(ctx context.Context, tag hapax.Tag, mode hapax.CreateMode) (t hapax.Tag, err error) {
	err = s.change(func() (err error) { t, err = s.Target.CreateTag(ctx, tag, mode); return err })
	return t, err
}

func (s *struck) UpdateTag(ctx context.Context, name string, u driver.TagUpdate) (t hapax.Tag, err error) {
	err = s.change(func() (err error) { t, err = s.Target.UpdateTag(ctx, name, u); return err })
	return t, err
}

func (s *struck) DeleteTag(ctx context.Context, name string) (t hapax.Tag, err error) {
	err = s.change(func() (err error) { t, err = s.Target.DeleteTag(ctx, name); return err })
	return t, err
}

// struckDatabase has Shut and Reopen as changes.
type struckDatabase struct {
	sequences.Database

	s *struck
}

func (d struckDatabase) Shut(ctx context.Context, s *sequences.Source, how sequences.Switch, first int64) error {
	return d.s.change(func() error { return d.Database.Shut(ctx, s, how, first) })
}

func (d struckDatabase) Reopen(ctx context.Context, s *sequences.Source, next int64) error {
	return d.s.change(func() error { return d.Database.Reopen(ctx, s, next) })
}

// An opposed source may issue beside the one store whose commands move it.
type opposed struct {
	contested

	t       *testing.T
	how     sequences.Switch
	address string
	store   *memstore.Store
	issued  map[int64]string
}

func (o *opposed) read() *imported {
	o.t.Helper()
	return read(o.t, importing{how: string(o.how), like: o.like, opts: sequences.Options{Collection: "counters", AllocationSize: 1}}, o.address)
}

// run has a command that has read the source go to its end.
func (o *opposed) run(m *imported, to moves.Target, undo bool) error {
	all, err := m.Move(o.t.Context(), to, mount.MoveOptions{Apply: true, Undo: undo, IgnoreLiving: true, Margin: 1, Bar: quietly})
	for _, one := range all.Tags {
		err = errors.Join(err, one.Reason)
	}
	return err
}

// strike has something happen at a point of a command that has read the source.
func (o *opposed) strike(m *imported, undo bool, point int, by func() error) (hit bool, err error) {
	s := &struck{Target: o.store, point: point, by: by}
	m.opened = func(db sequences.Database) sequences.Database { return struckDatabase{db, s} }
	err = o.run(m, s, undo)
	return s.hit, err
}

// issue has both sides take numbers, and returns who could at the end: more than one, after the
// switch stop, and a number twice are errors.
func (o *opposed) issue() string {
	o.t.Helper()
	var who []string
	for range 3 {
		who = nil
		note := func(by string, all ...int64) {
			who = append(who, by)
			for _, n := range all {
				if other, twice := o.issued[n]; twice {
					o.t.Errorf("%s issues %d, and %s had it", by, n, other)
				}
				o.issued[n] = by
			}
		}
		if all, err := o.take(o.t.Context(), o.address); err == nil {
			note("the source", all...)
		}
		a, err := o.store.Allocate(o.t.Context(), "orders", 2, "")
		switch {
		case err == nil:
			for n := a.Grant.Lo; n < a.Grant.Hi; n++ {
				if a.Tag.Delta <= 1 || n%a.Tag.Delta == a.Tag.Remainder {
					note("the tag", n)
				}
			}
		case !errors.Is(err, hapax.ErrTagDeleted) && !errors.Is(err, hapax.ErrTagNotFound):
			o.t.Error(err)
		}
	}
	open := strings.Join(who, " and ")
	if o.how == sequences.Stop && strings.Contains(open, "source") && strings.Contains(open, "tag") {
		o.t.Errorf("%s issue at the same time", open)
	}
	return open
}

// begin makes a source, and has an --apply killed at a point of it, unless that is below 0.
func (c contested) begin(t *testing.T, how sequences.Switch, killed int) (o *opposed, hit bool) {
	o = &opposed{contested: c, t: t, how: how, address: c.make(t), store: memstore.New(), issued: map[int64]string{}}
	if killed < 0 {
		return o, true
	}
	hit, _ = o.strike(o.read(), false, killed, func() error { return errKilled })
	o.issue()
	return o, hit
}

// The points of an --apply and of an --undo at which they have done the half.
const (
	pointShut      = 3 // the source is shut, and the tag is not open yet
	pointWithdrawn = 3 // the tag is withdrawn, and the source is not open yet
)

// At every step of an --apply, also of one that goes on where another was killed, an --undo of the same
// store runs from its reading to its end, and the reverse: no number is issued twice, at most one side
// is open, and either command goes on from there.
func TestOpposed(t *testing.T) {
	for _, c := range contestedSources(t) {
		for _, how := range c.hows {
			t.Run(c.name+"/"+string(how), func(t *testing.T) {
				if c.name == "redis" { // the fastest of them
					c.opposeAll(t, how, -1)
					c.opposeAll(t, how, pointShut)
					return
				}
				c.oppose(t, how, false, pointShut, -1)
				c.oppose(t, how, true, pointWithdrawn, -1)
			})
		}
	}
}

// The same at every step of every source, wherever an --apply was killed before.
func TestOpposedSoak(t *testing.T) {
	patience.Soak(t, "a thousand pairs of commands on databases")
	for _, c := range contestedSources(t) {
		for _, how := range c.hows {
			t.Run(c.name+"/"+string(how), func(t *testing.T) {
				for killed := -1; c.opposeAll(t, how, killed); killed++ {
				}
			})
		}
	}
}

// opposeAll is oppose at every point, and reports whether an --apply could be killed where it should be.
func (c contested) opposeAll(t *testing.T, how sequences.Switch, killed int) bool {
	for _, undo := range []bool{false, true} {
		for point, hit := 0, true; hit; point++ {
			var could bool
			if hit, could = c.oppose(t, how, undo, point, killed); !could {
				return false
			}
			if t.Failed() {
				t.Fatalf("undo %v, its opposite comes in at %d, an --apply was killed at %d before", undo, point, killed)
			}
		}
	}
	return true
}

func (c contested) oppose(t *testing.T, how sequences.Switch, undo bool, point, killed int) (hit, could bool) {
	t.Helper()
	o, could := c.begin(t, how, killed)
	if !could {
		return false, false
	}
	if undo && killed < 0 {
		if err := o.run(o.read(), o.store, false); err != nil {
			t.Fatal(err)
		}
		o.issue()
	}
	var other error
	hit, wrong := o.strike(o.read(), undo, point, func() error {
		other = o.run(o.read(), o.store, !undo)
		o.issue()
		return nil
	})
	o.issue()
	for _, back := range []bool{point%2 == 0, point%2 != 0} {
		want := map[bool]string{false: "the tag", true: "the source"}[back]
		err := o.run(o.read(), o.store, back)
		if who := o.issue(); !strings.Contains(who, want) {
			t.Errorf("after %v, and its opposite %v, undo %v: %v, and %q issues; want %s", wrong, other, back, err, who, want)
		}
	}
	return hit, true
}
