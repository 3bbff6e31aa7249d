package leaf_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/compat/leaf"
	"github.com/hapax-id/hapax/internal/compat/testdb"
	"github.com/hapax-id/hapax/internal/moves"
	"github.com/hapax-id/hapax/internal/testservers"
	"github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/store/memstore"
)

// A contest is a row that Leaf and two stores may come to issue from.
type contest struct {
	db     testdb.Database
	table  *leaf.Table
	stores [2]*memstore.Store
	taken  map[hapax.Grant]string // by whom
}

// newContest begins anew with a row of a database.
func newContest(t *testing.T, db testdb.Database, table *leaf.Table) *contest {
	db.Run(t, "DELETE FROM leaf_alloc", "INSERT INTO leaf_alloc (biz_tag, max_id, step, description) VALUES ('a', 101, 10, 'what sales use: 订单')")
	return &contest{db, table, [2]*memstore.Store{memstore.New(), memstore.New()}, map[hapax.Grant]string{{Lo: 1, Hi: 101}: "Leaf"}}
}

// leafTakes takes a segment as Leaf does.
func (c *contest) leafTakes(ctx context.Context) (g hapax.Grant, ok bool) {
	tx, err := c.db.BeginTx(ctx, nil)
	if err != nil {
		return g, false
	}
	defer func() { _ = tx.Rollback() }()
	var step int64
	if _, err = tx.ExecContext(ctx, "UPDATE leaf_alloc SET max_id = max_id + step WHERE biz_tag = 'a'"); err == nil {
		err = tx.QueryRowContext(ctx, "SELECT max_id, step FROM leaf_alloc WHERE biz_tag = 'a'").Scan(&g.Hi, &step)
	}
	g.Lo = g.Hi - step
	return g, err == nil && tx.Commit() == nil
}

// issue has everybody issue who can, and returns who that is; more than one, and numbers that come
// twice, are errors.
func (c *contest) issue(t *testing.T) string {
	t.Helper()
	var who []string
	for range 3 { // far enough to meet
		who = nil
		note := func(by string, g hapax.Grant) {
			who = append(who, by)
			for other, whose := range c.taken {
				if g.Lo < other.Hi && other.Lo < g.Hi {
					t.Errorf("%s issues %v, and %s had %v", by, g, whose, other)
				}
			}
			c.taken[g] = by
		}
		if g, ok := c.leafTakes(t.Context()); ok {
			note("Leaf", g)
		}
		for k, store := range c.stores {
			a, err := store.Allocate(t.Context(), "a", 10, "")
			if err == nil {
				note(fmt.Sprintf("store %d", k), a.Grant)
			} else if !errors.Is(err, hapax.ErrTagDeleted) && !errors.Is(err, hapax.ErrTagNotFound) {
				t.Error(err)
			}
		}
	}
	if len(who) > 1 {
		t.Errorf("%s issue at the same time", strings.Join(who, " and "))
	}
	return strings.Join(who, " and ")
}

// plan plans a move of the row, or its way back.
func (c *contest) plan(ctx context.Context, table *leaf.Table, target moves.Target, undo bool) ([]leaf.Move, error) {
	if undo {
		return leaf.PlanReopen(ctx, table, target)
	}
	return leaf.PlanMoves(ctx, table, target, leaf.MoveOptions{IgnoreLiving: true, Margin: 1})
}

// carryOut carries out what was planned.
func (c *contest) carryOut(ctx context.Context, table *leaf.Table, target moves.Target, all []leaf.Move, undo bool) error {
	var err error
	if undo {
		err = leaf.Reopen(ctx, table, target, all, nil)
	} else {
		err = leaf.ApplyMoves(ctx, table, target, all, leaf.MoveOptions{Margin: 1})
	}
	for _, m := range all {
		err = errors.Join(err, m.Reason)
	}
	return err
}

// deletedTag has a store know a tag that somebody made, and deleted.
func (c *contest) deletedTag(t *testing.T, store *memstore.Store, start int64) {
	t.Helper()
	def, err := hapax.Tag{Name: "a", Start: start}.WithDefaults()
	if err == nil {
		_, err = store.CreateTag(t.Context(), def, hapax.CreateExplicit)
	}
	if err == nil {
		_, err = store.DeleteTag(t.Context(), "a")
	}
	if err != nil {
		t.Fatal(err)
	}
}

// do plans, and carries out.
func (c *contest) do(ctx context.Context, target moves.Target, undo bool) error {
	all, err := c.plan(ctx, c.table, target, undo)
	return errors.Join(err, c.carryOut(ctx, c.table, target, all, undo))
}

func (c *contest) must(t *testing.T, target moves.Target, undo bool) {
	t.Helper()
	if err := c.do(t.Context(), target, undo); err != nil {
		t.Fatalf("undo %v: %v", undo, err)
	}
}

func id(t *testing.T, store *memstore.Store) string {
	t.Helper()
	id, err := store.StoreID(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// testUndoElsewhere: a store that had the row once, or has a tag of its name, does not give back
// what another store has taken since, whenever it planned to.
func testUndoElsewhere(t *testing.T, server *testservers.Server) {
	db := testdb.New(t, server, testdb.Leaf)
	table := openTable(t, db.URL, leaf.TableOptions{})
	for _, withdrawn := range []bool{false, true} {
		c := newContest(t, db, table)
		a, b := c.stores[0], c.stores[1]
		var early []leaf.Move
		if withdrawn {
			c.must(t, a, false)
			var err error
			if early, err = c.plan(t.Context(), table, a, true); err != nil {
				t.Fatal(err)
			}
			c.must(t, a, true)
		}
		c.must(t, b, false)
		if who := c.issue(t); who != "store 1" {
			t.Fatalf("%s issues", who)
		}
		if !withdrawn {
			c.deletedTag(t, a, 1<<40)
		}
		if err := c.carryOut(t.Context(), table, a, early, true); withdrawn && (err == nil || !strings.Contains(err.Error(), id(t, b))) {
			t.Errorf("the way back, planned early: %v; want it refused, with store %s", err, id(t, b))
		}
		for _, undo := range []bool{true, false} {
			if all, err := c.plan(t.Context(), table, a, undo); err != nil || len(all) != 1 || all[0].Reason == nil || all[0].Changes() {
				t.Errorf("undo %v is planned: %+v, %v; want it refused", undo, all, err)
			}
			if err := c.do(t.Context(), a, undo); err == nil || !strings.Contains(err.Error(), id(t, b)) || !strings.Contains(err.Error(), id(t, a)) {
				t.Errorf("undo %v: %v; want it refused, with the stores %s and %s", undo, err, id(t, a), id(t, b))
			}
			if who := c.issue(t); who != "store 1" {
				t.Errorf("undo %v: then %s issues", undo, who)
			}
		}
		c.must(t, b, true)
		if who := c.issue(t); who != "Leaf" {
			t.Errorf("after the way back %s issues", who)
		}
		var note string
		if err := db.QueryRowContext(t.Context(), "SELECT description FROM leaf_alloc").Scan(&note); err != nil || note != "what sales use: 订单" {
			t.Errorf("the description is %q, %v; want it as it was", note, err)
		}
	}
}

// A struck is a target at one of whose calls something happens: before it, or after it is done
// and before that is known.
type struck struct {
	moves.Target

	at, calls int
	after     bool
	by        func() error
	dead      atomic.Bool // the command was killed: it calls nothing any more
}

var errKilled = fmt.Errorf("%w: killed", hapax.ErrStoreUnavailable)

func strike[T any](s *struck, do func() (T, error)) (T, error) {
	var none T
	if s.dead.Load() {
		return none, errKilled
	}
	s.calls++
	hit := s.calls == s.at
	if hit && !s.after {
		if err := s.by(); err != nil {
			return none, err
		}
	}
	v, err := do()
	if hit && s.after {
		err = errors.Join(err, s.by())
	}
	return v, err
}

func (s *struck) Tag(ctx context.Context, name string) (hapax.Tag, error) {
	return strike(s, func() (hapax.Tag, error) { return s.Target.Tag(ctx, name) })
}

func (s *struck) CreateTag(ctx context.Context, tag hapax.Tag, mode hapax.CreateMode) (hapax.Tag, error) {
	return strike(s, func() (hapax.Tag, error) { return s.Target.CreateTag(ctx, tag, mode) })
}

func (s *struck) UpdateTag(ctx context.Context, name string, u driver.TagUpdate) (hapax.Tag, error) {
	return strike(s, func() (hapax.Tag, error) { return s.Target.UpdateTag(ctx, name, u) })
}

func (s *struck) DeleteTag(ctx context.Context, name string) (hapax.Tag, error) {
	return strike(s, func() (hapax.Tag, error) { return s.Target.DeleteTag(ctx, name) })
}

// testStruckMove: wherever a move or its way back is killed, before a statement or its answer, or
// before a call of the store or its answer, never do both issue, and either command goes on from there.
func testStruckMove(t *testing.T, server *testservers.Server) {
	if server.Addr == "" {
		t.Skip("needs a server of its own, and an existing one was given")
	}
	db := testdb.New(t, server, testdb.Leaf)
	proxy := testservers.NewProxy(t, server.Addr)
	direct, struckTable := openTable(t, db.URL, leaf.TableOptions{}), openTable(t, proxy.URL(db.URL), leaf.TableOptions{})
	hits := 0
	for _, undo := range []bool{false, true} {
		for _, where := range []string{"statement", "answer of a COMMIT", "call", "answer of a call"} {
			for at, hit := 1, true; hit; at++ {
				for _, back := range []bool{false, true} {
					c := newContest(t, db, direct)
					own := c.stores[0]
					if at%2 == 0 { // far behind the row
						c.deletedTag(t, own, 5)
					}
					if undo {
						c.must(t, own, false)
						c.issue(t)
					}
					all, err := c.plan(t.Context(), direct, own, undo)
					if err != nil {
						t.Fatal(err)
					}
					target := &struck{Target: own, after: where == "answer of a call"}
					target.by = func() error {
						target.dead.Store(true)
						return errKilled
					}
					nth := testservers.Nth(at)
					isCommit := testservers.Contains("COMMIT")
					match := func(b []byte) bool {
						return (where == "statement" || isCommit(b)) && nth(b) && target.by() != nil
					}
					fired := proxy.Fired()
					switch where {
					case "statement":
						proxy.CutRequest(match)
					case "answer of a COMMIT":
						proxy.CutReply(match)
					default:
						target.at = at
					}
					err = c.carryOut(t.Context(), struckTable, target, all, undo)
					proxy.Pass()
					hit = proxy.Fired() > fired || target.at > 0 && target.calls >= target.at
					name := fmt.Sprintf("undo %v, %s %d and it is killed (%v)", undo, where, at, err)
					if hit {
						hits++
					}
					c.issue(t)
					want := "store 0"
					err = c.do(t.Context(), own, back)
					if undo && !back && err != nil && strings.Contains(err.Error(), "--undo opens the row again") { // its tag is deleted already
						back, err = true, c.do(t.Context(), own, true)
					}
					if back {
						want = "Leaf"
					}
					if who := c.issue(t); err != nil || who != want {
						t.Errorf("%s: after undo %v, %v, %s issues; want %s", name, back, err, who, want)
					}
					if t.Failed() {
						t.Fatal(name)
					}
				}
			}
		}
	}
	if hits < 30 {
		t.Errorf("only %d commands were struck", hits)
	}
}

// testCommandsAtOnce: another command that comes in at any statement or call of a move, or of its way
// back, finds the row its own or is refused: nobody issues what somebody else does.
func testCommandsAtOnce(t *testing.T, server *testservers.Server) {
	if server.Addr == "" {
		t.Skip("needs a server of its own, and an existing one was given")
	}
	db := testdb.New(t, server, testdb.Leaf)
	proxy := testservers.NewProxy(t, server.Addr)
	direct, held := openTable(t, db.URL, leaf.TableOptions{}), openTable(t, proxy.URL(db.URL), leaf.TableOptions{})
	late := openTable(t, db.URL, leaf.TableOptions{Timeout: 50 * time.Millisecond}) // it may have to wait for the row
	for _, undo := range []bool{false, true} {
		for _, comes := range []struct {
			name   string
			store  int
			undo   bool
			cutOff bool // the command in the middle of which it comes loses its connections before
		}{
			{"the same", 0, undo, false},
			{"its opposite", 0, !undo, false},
			{"its opposite, once the row is let go", 0, !undo, true},
			{"another store's move", 1, false, false},
			{"another store's way back", 1, true, false},
			{"another store's, once the row is let go", 1, false, true},
		} {
			for _, where := range []string{"statement", "call", "answer of a call"} {
				if comes.cutOff && where == "statement" {
					continue // the proxy is in the middle of it
				}
				for at, hit := 1, true; hit; at++ {
					c := newContest(t, db, direct)
					own := c.stores[0]
					if undo {
						c.must(t, own, false)
						c.issue(t)
					}
					all, err := c.plan(t.Context(), direct, own, undo)
					if err != nil {
						t.Fatal(err)
					}
					hit = false
					come := func() error {
						hit = true
						with := late
						if comes.cutOff {
							proxy.Cut()
							proxy.Pass()
							with = direct
						}
						theirs, err := c.plan(t.Context(), with, c.stores[comes.store], comes.undo)
						if err == nil {
							_ = c.carryOut(t.Context(), with, c.stores[comes.store], theirs, comes.undo)
						}
						return nil
					}
					target := &struck{Target: own, after: where == "answer of a call", by: come}
					if where == "statement" {
						nth := testservers.Nth(at)
						proxy.CutRequest(func(b []byte) bool { return nth(b) && come() != nil })
					} else {
						target.at = at
					}
					err = c.carryOut(t.Context(), held, target, all, undo)
					proxy.Pass()
					c.issue(t)
					for _, store := range c.stores { // whose it is not is refused
						_ = c.do(t.Context(), store, true)
					}
					if who := c.issue(t); who != "Leaf" {
						t.Errorf("after the way back %q issues", who)
					}
					if t.Failed() {
						t.Fatalf("undo %v, and %s comes in at %s %d: %v", undo, comes.name, where, at, err)
					}
				}
			}
		}
	}
}

// testNotes: the description of a row comes back as it was, whatever it was, and one that has no room,
// or is not there, or names no store, is told.
func testNotes(t *testing.T, server *testservers.Server) {
	db := testdb.New(t, server, testdb.Leaf)
	table := openTable(t, db.URL, leaf.TableOptions{})
	description := func() (d sql.NullString) {
		t.Helper()
		if err := db.QueryRowContext(t.Context(), "SELECT description FROM leaf_alloc").Scan(&d); err != nil {
			t.Fatal(err)
		}
		return d
	}
	for _, was := range []string{"NULL", "''", `'two\nlines: it''s'`, "REPEAT('订', 150)"} {
		c := newContest(t, db, table)
		db.Run(t, "UPDATE leaf_alloc SET description = "+was)
		before := description()
		c.must(t, c.stores[0], false)
		if note := description().String; !strings.HasPrefix(note, "moved to hapax store "+id(t, c.stores[0])+" (max_id was 101)") {
			t.Errorf("%s: it notes %q", was, note)
		}
		c.must(t, c.stores[0], true)
		if after := description(); after != before {
			t.Errorf("%s: the description is %q; want %q", was, after.String, before.String)
		}
	}
	for _, wrong := range []struct{ do, want string }{
		{"UPDATE leaf_alloc SET description = REPEAT('x', 250)", "shorten the description"},
		{"UPDATE leaf_alloc SET max_id = 9223372036854775807", "names no hapax store"},
		{"ALTER TABLE leaf_alloc DROP COLUMN description", "ADD COLUMN description"},
	} {
		c := newContest(t, db, table)
		db.Run(t, wrong.do)
		before := db.Number(t, "SELECT max_id FROM leaf_alloc")
		for _, undo := range []bool{false, true} {
			if undo && strings.HasPrefix(wrong.want, "shorten") {
				continue // nothing was closed
			}
			if err := c.do(t.Context(), c.stores[0], undo); !errors.Is(err, hapax.ErrInvalidArgument) || !strings.Contains(err.Error(), wrong.want) {
				t.Errorf("%s, undo %v: %v; want %q", wrong.do, undo, err, wrong.want)
			}
		}
		if _, err := c.stores[0].Tag(t.Context(), "a"); !errors.Is(err, hapax.ErrTagNotFound) || db.Number(t, "SELECT max_id FROM leaf_alloc") != before {
			t.Errorf("%s: something was changed: %v", wrong.do, err)
		}
	}
}
