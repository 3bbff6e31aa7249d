package tinyid_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/compat/tinyid"
	"github.com/hapax-id/hapax/internal/compat/testdb"
	"github.com/hapax-id/hapax/internal/moves"
	"github.com/hapax-id/hapax/internal/testservers"
	"github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/store/memstore"
)

// theirs takes a segment as TinyID does, and reports whether it was granted.
func theirs(t *testing.T, db testdb.Database, bizType string) bool {
	t.Helper()
	var id, maxID, step, version int64
	err := db.QueryRowContext(t.Context(), "SELECT id, max_id, step, version FROM tiny_id_info WHERE biz_type = ?", bizType).Scan(&id, &maxID, &step, &version)
	if err != nil {
		return false
	}
	res, err := db.ExecContext(t.Context(), "UPDATE tiny_id_info SET max_id = ?, update_time = NOW(), version = version + 1 WHERE id = ? AND max_id = ? AND version = ? AND biz_type = ?",
		maxID+step, id, maxID, version, bizType)
	if err != nil {
		return false
	}
	n, err := res.RowsAffected()
	return err == nil && n == 1
}

func testMoves(t *testing.T, server *testservers.Server) {
	a := database(t, server, "'one', 500, 10, 2, 0", "'two', 1000, 10, 2, 0", "'same', 0, 10, 2, 0", "'there', 0, 10, 2, 0")
	b := database(t, server, "'two', 7000, 10, 2, 1", "'same', 0, 10, 2, 0")
	both, single := open(t, tinyid.Options{}, a.URL, b.URL), open(t, tinyid.Options{}, a.URL)
	native := memstore.New()
	def, err := hapax.Tag{Name: "there"}.WithDefaults()
	if err == nil {
		_, err = native.CreateTag(t.Context(), def, hapax.CreateExplicit)
	}
	if err != nil {
		t.Fatal(err)
	}
	all, err := tinyid.PlanMoves(t.Context(), both, native, tinyid.MoveOptions{IgnoreLiving: true})
	if err != nil || len(all) != 4 || all[0].Tag.Name != "two" || all[0].After != 7101 || all[0].Tag.Delta != 1 || all[1].Reason == nil || all[2].Reason == nil || all[3].Reason == nil {
		t.Fatalf("plan: %+v, error %v", all, err)
	}
	if !theirs(t, b, "two") { // after the plan
		t.Fatal("TinyID cannot take a segment")
	}
	for range 2 {
		if err := tinyid.ApplyMoves(t.Context(), both, native, all, tinyid.MoveOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if g, err := native.Allocate(t.Context(), "two", 1, ""); err != nil || g.Grant.Lo != 7111 {
		t.Errorf("got %v, error %v; want from 7111, above what TinyID took after the plan", g.Grant, err)
	}
	if theirs(t, a, "two") || theirs(t, b, "two") || !theirs(t, a, "same") {
		t.Error("TinyID takes segments of what was moved, or none of what was not")
	}
	if g, err := both.Allocate(t.Context(), "two", 0, ""); !errors.Is(err, hapax.ErrTagNotFound) && !errors.Is(err, hapax.ErrTagDeleted) {
		t.Errorf("beside it: %v, %v", g.Grant, err)
	}
	if tags, err := both.Tags(t.Context(), "", 10); err != nil || slices.ContainsFunc(tags, func(t hapax.Tag) bool { return strings.Contains(t.Name, "two") }) {
		t.Errorf("it is there still: %+v, %v", tags, err)
	}

	all, err = tinyid.PlanMoves(t.Context(), single, native, tinyid.MoveOptions{IgnoreLiving: true, Margin: 1})
	if err != nil || len(all) != 4 || all[0].Tag.Name != "one" || all[0].After != 502 || all[0].Tag.Delta != 2 || !errors.Is(all[2].Reason, hapax.ErrKindMismatch) || all[3].Changes() {
		t.Errorf("of one database: %+v, error %v; want delta and remainder kept, the tag that is there refused, and nothing to do for what is closed", all, err)
	}
	if _, err := tinyid.PlanMoves(t.Context(), single, native, tinyid.MoveOptions{Watch: time.Millisecond}); !errors.Is(err, hapax.ErrStoreUnsafe) {
		t.Errorf("with another session: %v; want ErrStoreUnsafe", err)
	}

	// The way back goes on above all that was issued natively.
	back, err := tinyid.PlanReopen(t.Context(), both, native)
	if err != nil || len(back) != 1 || back[0].Before != 7112 {
		t.Fatalf("the way back: %+v, %v", back, err)
	}
	for range 2 {
		if err := tinyid.Reopen(t.Context(), both, native, back, nil); err != nil {
			t.Fatal(err)
		}
	}
	for _, db := range []testdb.Database{a, b} {
		if got := db.Number(t, "SELECT max_id FROM tiny_id_info WHERE biz_type = 'two'"); got != 7111 || !theirs(t, db, "two") {
			t.Errorf("after the way back max_id is %d", got)
		}
	}
	if g, err := native.Allocate(t.Context(), "two", 1, ""); err == nil {
		t.Errorf("natively there is still %v", g.Grant)
	}
	a.Run(t, "DELETE FROM tiny_id_info")
	if all, err := tinyid.PlanMoves(t.Context(), single, native, tinyid.MoveOptions{IgnoreLiving: true}); !errors.Is(err, hapax.ErrInvalidArgument) {
		t.Errorf("of an empty table: %+v, %v", all, err)
	}
}

// testMoveByTrigger: a row whose name cannot be changed is closed by a trigger, and one for
// which the account may do neither is not moved.
func testMoveByTrigger(t *testing.T, server *testservers.Server) {
	long := strings.Repeat("x", 63)
	db := database(t, server, "'"+long+"', 500, 10, 1, 0", "'short', 500, 10, 1, 0")
	native := memstore.New()
	s := open(t, tinyid.Options{}, db.URL)
	move := func(s *tinyid.Store) []tinyid.Move {
		t.Helper()
		all, err := tinyid.PlanMoves(t.Context(), s, native, tinyid.MoveOptions{IgnoreLiving: true})
		if err == nil {
			err = tinyid.ApplyMoves(t.Context(), s, native, all, tinyid.MoveOptions{})
		}
		if err != nil || len(all) != 2 {
			t.Fatalf("%+v, %v", all, err)
		}
		return all
	}
	// An account that may change marks alone.
	name := "u" + db.Name[1:20]
	db.Run(t, fmt.Sprintf("CREATE USER %s@'127.0.0.1' IDENTIFIED BY 'p'", name),
		fmt.Sprintf("GRANT SELECT, UPDATE (max_id, version, update_time) ON %s.tiny_id_info TO %s@'127.0.0.1'", db.Name, name))
	weak := open(t, tinyid.Options{}, strings.Replace(db.URL, db.URL[len("mysql://"):strings.Index(db.URL, "@")], name+":p", 1))
	for _, m := range move(weak) {
		if m.Reason == nil || m.Closed || !strings.Contains(m.Reason.Error(), "UPDATE or TRIGGER") || !theirs(t, db, m.Tag.Name) {
			t.Errorf("without the right to close it: %+v", m)
		}
		if _, err := native.Tag(t.Context(), m.Tag.Name); !errors.Is(err, hapax.ErrTagNotFound) {
			t.Errorf("natively it is there: %v", err)
		}
	}

	for _, m := range move(s) {
		if m.Reason != nil || !m.Closed || strings.Contains(m.Closes, "trigger") != (m.Tag.Name == long) || theirs(t, db, m.Tag.Name) {
			t.Errorf("moved: %+v", m)
		}
	}
	if g, err := s.Allocate(t.Context(), long, 0, ""); !errors.Is(err, hapax.ErrLineExhausted) {
		t.Errorf("beside it: %v, %v", g.Grant, err)
	}
	back, err := tinyid.PlanReopen(t.Context(), s, native)
	if err == nil {
		err = tinyid.Reopen(t.Context(), s, native, back, nil)
	}
	if err != nil || len(back) != 2 {
		t.Fatalf("the way back: %+v, %v", back, err)
	}
	for _, m := range back {
		if !theirs(t, db, m.Tag.Name) {
			t.Errorf("after the way back TinyID takes nothing of %s", m.Tag.Name)
		}
	}
}

// Two commands for two stores have planned to move a row while it was open: the second one is told
// that it was closed, and makes no tag.
func testTwoStores(t *testing.T, server *testservers.Server) {
	db := database(t, server, "'a', 500, 10, 1, 0")
	s := open(t, tinyid.Options{}, db.URL)
	var plans [2][]tinyid.Move
	var stores [2]*memstore.Store
	for k := range stores {
		stores[k] = memstore.New()
		all, err := tinyid.PlanMoves(t.Context(), s, stores[k], tinyid.MoveOptions{IgnoreLiving: true})
		if err != nil || len(all) != 1 {
			t.Fatal(all, err)
		}
		plans[k] = all
	}
	for k, store := range stores {
		err := tinyid.ApplyMoves(t.Context(), s, store, plans[k], tinyid.MoveOptions{})
		_, missing := store.Tag(t.Context(), "a")
		if reason := plans[k][0].Reason; err != nil || errors.Is(reason, hapax.ErrInvalidArgument) != (k == 1) || errors.Is(missing, hapax.ErrTagNotFound) != (k == 1) {
			t.Errorf("store %d: %v, %v; its tag: %v", k, err, reason, missing)
		}
	}
}

// killed is a store for which no tag is made any more.
type killed struct{ *memstore.Store }

var errKilled = errors.New("killed")

func (killed) CreateTag(context.Context, hapax.Tag, hapax.CreateMode) (hapax.Tag, error) {
	return hapax.Tag{}, errKilled
}

func (killed) UpdateTag(context.Context, string, driver.TagUpdate) (hapax.Tag, error) {
	return hapax.Tag{}, errKilled
}

// testKilledMove: a command that is killed once the rows are closed, and before the tag is there or
// raised, can be repeated or undone, for its own store alone.
func testKilledMove(t *testing.T, server *testservers.Server) {
	long := strings.Repeat("x", 60)
	for _, c := range []struct{ name, bizType string }{{"renamed", "a"}, {"trigger", long}} {
		for _, there := range []bool{false, true} {
			for _, undo := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/%v/%v", c.name, there, undo), func(t *testing.T) { killedMove(t, server, c.bizType, there, undo) })
			}
		}
	}
}

func killedMove(t *testing.T, server *testservers.Server, bizType string, there, undo bool) {
	db := database(t, server, "'"+bizType+"', 5000, 10, 1, 0")
	s := open(t, tinyid.Options{}, db.URL)
	native, other := memstore.New(), memstore.New()
	if there { // and its mark is far behind
		for _, store := range []*memstore.Store{native, other} {
			def, err := hapax.Tag{Name: bizType}.WithDefaults()
			if err == nil {
				_, err = store.CreateTag(t.Context(), def, hapax.CreateExplicit)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	plan := func(target moves.Target) []tinyid.Move {
		t.Helper()
		all, err := tinyid.PlanMoves(t.Context(), s, target, tinyid.MoveOptions{IgnoreLiving: true})
		if err != nil || len(all) != 1 {
			t.Fatal(all, err)
		}
		return all
	}
	if err := tinyid.ApplyMoves(t.Context(), s, killed{native}, plan(native), tinyid.MoveOptions{}); !errors.Is(err, errKilled) {
		t.Fatalf("killed: %v", err)
	}
	if theirs(t, db, bizType) {
		t.Fatal("TinyID takes a segment of a closed row")
	}
	if all := plan(other); all[0].Reason == nil || !strings.Contains(all[0].Reason.Error(), "another store") {
		t.Errorf("for another store: %+v", all[0])
	}
	if all, err := tinyid.PlanReopen(t.Context(), s, other); err != nil || len(all) != 1 || all[0].Reason == nil {
		t.Errorf("undone by another store: %+v, %v", all, err)
	}
	if undo {
		all, err := tinyid.PlanReopen(t.Context(), s, native)
		if err == nil {
			err = tinyid.Reopen(t.Context(), s, native, all, nil)
		}
		if err != nil || len(all) != 1 || all[0].Reason != nil || all[0].Closed {
			t.Fatalf("the way back: %+v, %v", all, err)
		}
		if got := db.Number(t, "SELECT max_id FROM tiny_id_info"); got < 5000 || !theirs(t, db, bizType) {
			t.Errorf("after the way back max_id is %d", got)
		}
		return
	}
	for range 2 { // also where all is done
		all := plan(native)
		if err := tinyid.ApplyMoves(t.Context(), s, native, all, tinyid.MoveOptions{}); err != nil || all[0].Reason != nil || !all[0].Closed {
			t.Fatalf("once more: %+v, %v", all, err)
		}
	}
	if g, err := native.Allocate(t.Context(), bizType, 1, ""); err != nil || g.Grant.Lo <= 5000 {
		t.Errorf("natively: %v, %v; want a number above 5000", g.Grant, err)
	}
	if theirs(t, db, bizType) {
		t.Error("TinyID takes a segment of what was moved")
	}
	if all := plan(native); all[0].Changes() || all[0].Reason != nil {
		t.Errorf("what was moved: %+v", all[0])
	}
	if all, err := tinyid.PlanReopen(t.Context(), s, native); err != nil || len(all) != 1 || all[0].Reason != nil {
		t.Errorf("the way back: %+v, %v", all, err)
	}
}
