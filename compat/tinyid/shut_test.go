package tinyid_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base32"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/compat/tinyid"
	"github.com/hapax-id/hapax/internal/compat/contest"
	"github.com/hapax-id/hapax/internal/compat/testdb"
	"github.com/hapax-id/hapax/internal/moves"
	"github.com/hapax-id/hapax/internal/testservers"
	"github.com/hapax-id/hapax/store/memstore"
)

// contested is a biz_type that the tests of package contest may do anything to. A long one is closed by
// a trigger.
func contested(t *testing.T, server *testservers.Server, bizType string, opened ...func(*tinyid.Store)) contest.Row {
	db := database(t, server)
	return contest.Row{
		Server: server, URL: db.URL, Tag: bizType,
		Writes: func(b []byte) bool {
			return slices.ContainsFunc([]string{"UPDATE tiny_id_info", "CREATE TRIGGER", "DROP TRIGGER"}, func(s string) bool { return bytes.Contains(b, []byte(s)) })
		},
		Reset: func(t *testing.T) {
			rows, err := db.QueryContext(t.Context(), "SELECT TRIGGER_NAME FROM information_schema.TRIGGERS WHERE TRIGGER_SCHEMA = DATABASE()")
			if err != nil {
				t.Fatal(err)
			}
			defer rows.Close()
			for rows.Next() {
				var name string
				if err := rows.Scan(&name); err != nil {
					t.Fatal(err)
				}
				db.Run(t, "DROP TRIGGER "+name)
			}
			db.Run(t, "DELETE FROM tiny_id_info", "INSERT INTO tiny_id_info (biz_type, max_id, step, delta, remainder, version) VALUES ('"+bizType+"', 100, 10, 1, 0, 1)")
		},
		Set: func(t *testing.T, maxID int64) {
			db.Run(t, fmt.Sprintf("UPDATE tiny_id_info SET max_id = %d, version = version + 2", maxID))
		},
		Get: func(t *testing.T) int64 { return db.Number(t, "SELECT max_id FROM tiny_id_info") },
		Takes: func(ctx context.Context) (g hapax.Grant, ok bool) {
			var id, step, version int64
			err := db.QueryRowContext(ctx, "SELECT id, max_id, step, version FROM tiny_id_info WHERE biz_type = ?", bizType).Scan(&id, &g.Lo, &step, &version)
			if err != nil {
				return g, false
			}
			res, err := db.ExecContext(ctx, "UPDATE tiny_id_info SET max_id = ?, update_time = NOW(), version = version + 1 WHERE id = ? AND max_id = ? AND version = ? AND biz_type = ?",
				g.Lo+step, id, g.Lo, version, bizType)
			if err != nil {
				return g, false
			}
			n, err := res.RowsAffected()
			return hapax.Grant{Lo: g.Lo + 1, Hi: g.Lo + step + 1}, err == nil && n == 1
		},
		Open: func(t *testing.T, url string, timeout time.Duration) contest.Commands {
			s := open(t, tinyid.Options{Timeout: timeout}, url)
			for _, do := range opened {
				do(s)
			}
			return commands(s)
		},
	}
}

func commands(s *tinyid.Store) contest.Commands {
	return contest.Commands{
		Plan: func(ctx context.Context, target moves.Target, undo bool) ([]moves.Move, error) {
			if undo {
				return tinyid.PlanReopen(ctx, s, target)
			}
			return tinyid.PlanMoves(ctx, s, target, tinyid.MoveOptions{IgnoreLiving: true, Margin: 1})
		},
		CarryOut: func(ctx context.Context, target moves.Target, all []moves.Move, undo bool) error {
			if undo {
				return tinyid.Reopen(ctx, s, target, all, nil)
			}
			return tinyid.ApplyMoves(ctx, s, target, all, tinyid.MoveOptions{Margin: 1})
		},
	}
}

// TestContest runs against one server; each part has a database of its own.
func TestContest(t *testing.T) {
	server := testservers.SharedMariaDB(t)
	for how, bizType := range map[string]string{"renamed": "a", "trigger": strings.Repeat("x", 60)} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			t.Run("elsewhere", func(t *testing.T) {
				contest.Elsewhere(t, contested(t, server, bizType), func(id string) string {
					sum := sha256.Sum256([]byte(id))
					return "the code " + strings.ToLower(base32.StdEncoding.EncodeToString(sum[:5]))
				})
			})
			if how == "renamed" { // the account sees no triggers
				t.Run("plans only", func(t *testing.T) {
					r := contested(t, server, bizType)
					contest.PlansOnly(t, r, testdb.ReadOnly(t, r.URL))
				})
			}
			t.Run("killed", func(t *testing.T) { contest.Killed(t, contested(t, server, bizType)) })
			t.Run("extremes", func(t *testing.T) { contest.Extremes(t, contested(t, server, bizType)) })
			t.Run("at once", func(t *testing.T) { contest.AtOnce(t, contested(t, server, bizType)) })
		})
	}
	t.Run("at once in a cluster", func(t *testing.T) {
		t.Parallel()
		contest.AtOnce(t, contested(t, server, "a", tinyid.InACluster))
	})
}

// testNameless: what a build closed that noted no store is refused, whatever the store has.
func testNameless(t *testing.T, server *testservers.Server) {
	db := database(t, server, "'~moved~a', 500, 10, 1, 0", "'b', 500, 10, 1, 0")
	db.Run(t, "CREATE TRIGGER hapax_moved_2 BEFORE UPDATE ON tiny_id_info FOR EACH ROW IF OLD.id = 2 AND NEW.version < OLD.version + 2 THEN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'this biz_type was moved to native tags of hapax'; END IF")
	s, native := open(t, tinyid.Options{}, db.URL), memstore.New()
	for _, name := range []string{"a", "b"} {
		def, err := hapax.Tag{Name: name}.WithDefaults()
		if err == nil {
			_, err = native.CreateTag(t.Context(), def, hapax.CreateExplicit)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, undo := range []bool{false, true} {
		all, err := tinyid.PlanMoves(t.Context(), s, native, tinyid.MoveOptions{IgnoreLiving: true})
		if undo {
			all, err = tinyid.PlanReopen(t.Context(), s, native)
		}
		if err != nil || len(all) != 2 {
			t.Fatal(all, err)
		}
		for _, m := range all {
			if !errors.Is(m.Reason, hapax.ErrInvalidArgument) || !strings.Contains(m.Reason.Error(), "names no store") {
				t.Errorf("undo %v: %+v; want it refused", undo, m)
			}
			m.Reason = nil // as if it was planned before
			late := []tinyid.Move{m}
			if undo {
				err = tinyid.Reopen(t.Context(), s, native, late, nil)
			} else {
				late[0].Closed = false
				err = tinyid.ApplyMoves(t.Context(), s, native, late, tinyid.MoveOptions{})
			}
			if err != nil || late[0].Reason == nil {
				t.Errorf("carried out, undo %v: %+v, %v; want it refused", undo, late[0], err)
			}
		}
	}
	if theirs(t, db, "a") || theirs(t, db, "b") || db.Number(t, "SELECT SUM(max_id) FROM tiny_id_info") != 1000 {
		t.Error("a row was opened")
	}
}

// testSeveral: of a biz_type in two databases a command has come by the row of the first when it is cut
// off, and it is repeated.
func testSeveral(t *testing.T, server *testservers.Server) {
	for _, undo := range []bool{false, true} {
		a, b := database(t, server, "'two', 1000, 10, 2, 0"), database(t, server, "'two', 7000, 10, 2, 1")
		if server.Addr == "" {
			t.Skip("needs a server of its own, and an existing one was given")
		}
		proxy, native := testservers.NewProxy(t, server.Addr), memstore.New()
		direct, through := open(t, tinyid.Options{}, a.URL, b.URL), open(t, tinyid.Options{}, a.URL, proxy.URL(b.URL))
		carry := func(s *tinyid.Store, undo bool) error {
			return contest.Commands{Plan: commands(direct).Plan, CarryOut: commands(s).CarryOut}.Do(t.Context(), native, undo)
		}
		if undo {
			if err := carry(direct, false); err != nil {
				t.Fatal(err)
			}
		}
		other := memstore.New()
		early, err := tinyid.PlanMoves(t.Context(), direct, other, tinyid.MoveOptions{IgnoreLiving: true})
		if err != nil {
			t.Fatal(err)
		}
		proxy.CutRequest(testservers.Contains("UPDATE tiny_id_info"))
		if err := carry(through, undo); err == nil || proxy.Fired() != 1 {
			t.Fatalf("undo %v: %v, %d; want it cut off", undo, err, proxy.Fired())
		}
		early[0].Closed, early[0].Reason = false, nil
		// It takes no open row.
		err = tinyid.ApplyMoves(t.Context(), direct, other, early, tinyid.MoveOptions{})
		if err != nil || early[0].Reason == nil || !strings.Contains(early[0].Reason.Error(), "another store") {
			t.Errorf("undo %v, cut off, the move to another store: %+v, %v; want it refused", undo, early[0], err)
		}
		natively, err := native.Allocate(t.Context(), "two", 10, "")
		if err == nil {
			t.Errorf("undo %v, cut off: %v natively", undo, natively.Grant)
		}
		if theirs(t, a, "two") != undo || theirs(t, b, "two") == undo { // the first row was come by, and the second not
			t.Errorf("undo %v, cut off: the rows are not as they should be", undo)
		}
		if err := carry(direct, undo); err != nil {
			t.Fatalf("undo %v, repeated: %v", undo, err)
		}
		_, err = native.Allocate(t.Context(), "two", 10, "")
		if (err == nil) == undo || theirs(t, a, "two") != undo || theirs(t, b, "two") != undo {
			t.Errorf("undo %v, repeated: natively %v", undo, err)
		}
	}
}
