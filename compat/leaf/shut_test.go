package leaf_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/compat/leaf"
	"github.com/hapax-id/hapax/internal/compat/contest"
	"github.com/hapax-id/hapax/internal/compat/testdb"
	"github.com/hapax-id/hapax/internal/moves"
	"github.com/hapax-id/hapax/internal/testservers"
	"github.com/hapax-id/hapax/store/memstore"
)

// contested is a row of Leaf that the tests of package contest may do anything to.
func contested(t *testing.T, server *testservers.Server) contest.Row {
	db := testdb.New(t, server, testdb.Leaf)
	return contest.Row{
		Server: server, URL: db.URL, Tag: "a", Writes: testservers.Contains("COMMIT"),
		Reset: func(t *testing.T) {
			db.Run(t, "DELETE FROM leaf_alloc", "INSERT INTO leaf_alloc (biz_tag, max_id, step) VALUES ('a', 101, 10)")
		},
		Set: func(t *testing.T, maxID int64) { db.Run(t, fmt.Sprintf("UPDATE leaf_alloc SET max_id = %d", maxID)) },
		Get: func(t *testing.T) int64 { return db.Number(t, "SELECT max_id FROM leaf_alloc") },
		Takes: func(ctx context.Context) (g hapax.Grant, ok bool) {
			tx, err := db.BeginTx(ctx, nil)
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
		},
		Open: func(t *testing.T, url string, timeout time.Duration) contest.Commands {
			return commands(openTable(t, url, leaf.TableOptions{Timeout: timeout}))
		},
	}
}

func commands(table *leaf.Table) contest.Commands {
	return contest.Commands{
		Plan: func(ctx context.Context, target moves.Target, undo bool) ([]moves.Move, error) {
			if undo {
				return leaf.PlanReopen(ctx, table, target)
			}
			return leaf.PlanMoves(ctx, table, target, leaf.MoveOptions{IgnoreLiving: true, Margin: 1})
		},
		CarryOut: func(ctx context.Context, target moves.Target, all []moves.Move, undo bool) error {
			if undo {
				return leaf.Reopen(ctx, table, target, all, nil)
			}
			return leaf.ApplyMoves(ctx, table, target, all, leaf.MoveOptions{Margin: 1})
		},
	}
}

func testUndoElsewhere(t *testing.T, server *testservers.Server) {
	contest.Elsewhere(t, contested(t, server), func(id string) string { return id })
}

func testExtremes(t *testing.T, server *testservers.Server) {
	contest.Extremes(t, contested(t, server))
}

func testPlansOnly(t *testing.T, server *testservers.Server) {
	r := contested(t, server)
	contest.PlansOnly(t, r, testdb.ReadOnly(t, r.URL))
}

func testKilled(t *testing.T, server *testservers.Server) { contest.Killed(t, contested(t, server)) }

func testAtOnce(t *testing.T, server *testservers.Server) { contest.AtOnce(t, contested(t, server)) }

// testNotes: the description of a row comes back as it was, whatever it was, and one that has no room,
// or is not there, or names no store, is told.
func testNotes(t *testing.T, server *testservers.Server) {
	db := testdb.New(t, server, testdb.Leaf)
	both := commands(openTable(t, db.URL, leaf.TableOptions{}))
	do := func(target moves.Target, undo bool) error { return both.Do(t.Context(), target, undo) }
	reset := func(description string) {
		db.Run(t, "DELETE FROM leaf_alloc", "INSERT INTO leaf_alloc (biz_tag, max_id, step) VALUES ('a', 101, 10)", description)
	}
	description := func() (d sql.NullString) {
		t.Helper()
		if err := db.QueryRowContext(t.Context(), "SELECT description FROM leaf_alloc").Scan(&d); err != nil {
			t.Fatal(err)
		}
		return d
	}
	for _, was := range []string{"NULL", "''", `'two\nlines: it''s'`, "REPEAT('订', 150)"} {
		reset("UPDATE leaf_alloc SET description = " + was)
		native, before := memstore.New(), description()
		id, err := native.StoreID(t.Context())
		if err = errors.Join(err, do(native, false)); err != nil {
			t.Fatal(err)
		}
		if note := description().String; !strings.HasPrefix(note, "moved to hapax store "+id+" (max_id was 101)") {
			t.Errorf("%s: it notes %q", was, note)
		}
		if err := do(native, true); err != nil || description() != before {
			t.Errorf("%s: the description is %q, %v; want %q", was, description().String, err, before.String)
		}
	}
	for _, wrong := range []struct{ do, want string }{
		{"UPDATE leaf_alloc SET description = REPEAT('x', 250)", "shorten the description"},
		{"UPDATE leaf_alloc SET max_id = 9223372036854775807", "names no hapax store"},
		{"ALTER TABLE leaf_alloc DROP COLUMN description", "ADD COLUMN description"},
	} {
		reset(wrong.do)
		native, before := memstore.New(), db.Number(t, "SELECT max_id FROM leaf_alloc")
		for _, undo := range []bool{false, true} {
			if undo && strings.HasPrefix(wrong.want, "shorten") {
				continue // nothing was closed
			}
			if err := do(native, undo); !errors.Is(err, hapax.ErrInvalidArgument) || !strings.Contains(err.Error(), wrong.want) {
				t.Errorf("%s, undo %v: %v; want %q", wrong.do, undo, err, wrong.want)
			}
		}
		if _, err := native.Tag(t.Context(), "a"); !errors.Is(err, hapax.ErrTagNotFound) || db.Number(t, "SELECT max_id FROM leaf_alloc") != before {
			t.Errorf("%s: something was changed: %v", wrong.do, err)
		}
	}
}
