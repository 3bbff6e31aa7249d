package leaf_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/compat/leaf"
	"github.com/hapax-id/hapax/internal/compat/testdb"
	"github.com/hapax-id/hapax/internal/patience"
	"github.com/hapax-id/hapax/internal/testservers"
	"github.com/hapax-id/hapax/store/memstore"
)

func testMoves(t *testing.T, server *testservers.Server) {
	db := testdb.New(t, server, testdb.Leaf, "INSERT INTO leaf_alloc (biz_tag, max_id, step) VALUES ('a', 2001, 1000), ('b', 7, 10), ('bad', 1, -7), ('', 1, 10)")
	table := openTable(t, db.URL, leaf.TableOptions{})
	native := memstore.New()
	def, err := hapax.Tag{Name: "b", Start: 5000}.WithDefaults()
	if err == nil {
		_, err = native.CreateTag(t.Context(), def, hapax.CreateExplicit)
	}
	if err != nil {
		t.Fatal(err)
	}
	plan := func(o leaf.MoveOptions) []leaf.Move {
		t.Helper()
		o.Watch = time.Millisecond
		all, err := leaf.PlanMoves(t.Context(), table, native, o)
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	// The session of the test's own handle is one of another client.
	if _, err := leaf.PlanMoves(t.Context(), table, native, leaf.MoveOptions{Watch: time.Millisecond}); !errors.Is(err, hapax.ErrStoreUnsafe) || !strings.Contains(err.Error(), "sessions") {
		t.Errorf("with another session: %v; want ErrStoreUnsafe", err)
	}
	all := plan(leaf.MoveOptions{IgnoreLiving: true})
	if len(all) != 4 || all[0].Before != 0 || all[0].After != 10_002_001 || all[1].Before != 5000 || all[1].After != 10_000_007 {
		t.Fatalf("plan: %+v", all)
	}
	for _, m := range all[2:] { // the row without a name, and the bad one
		if !errors.Is(m.Reason, hapax.ErrStoreCorrupt) || strings.Contains(m.Reason.Error(), "margin") {
			t.Errorf("row %q: the reason is %v; want ErrStoreCorrupt", m.Tag.Name, m.Reason)
		}
	}
	if _, err := native.Tag(t.Context(), "a"); !errors.Is(err, hapax.ErrTagNotFound) {
		t.Errorf("a plan has written something: %v", err)
	}
	if with := plan(leaf.MoveOptions{IgnoreLiving: true, Margin: 50000}); with[0].After != 52001 || with[1].After != 50007 {
		t.Errorf("with a margin: %+v", with)
	}

	// A row that moves meanwhile is a sign of life.
	moving, stop := context.WithCancel(t.Context())
	var mover sync.WaitGroup
	mover.Go(func() {
		for moving.Err() == nil {
			if _, err := table.Allocate(t.Context(), "a", 1, ""); err != nil {
				t.Error(err)
				return
			}
			patience.Again()
		}
	})
	patience.Await(t, "a row that moves", func() (error, error) {
		_, err := leaf.PlanMoves(t.Context(), table, native, leaf.MoveOptions{Watch: 100 * time.Millisecond})
		return err, nil
	}, func(err error) bool {
		return errors.Is(err, hapax.ErrStoreUnsafe) && strings.Contains(err.Error(), "row a went from 2")
	})
	stop()
	mover.Wait()

	// What a Leaf takes between the plan and the move counts, too.
	moved := db.Number(t, "SELECT max_id FROM leaf_alloc WHERE biz_tag = 'a'")
	if a, err := table.Allocate(t.Context(), "a", 100_002_002-moved, ""); err != nil || a.Grant.Hi != 100_002_002 {
		t.Fatalf("got %+v, %v", a.Grant, err)
	}
	steps := 0
	for range 2 { // safe to repeat
		if err := leaf.ApplyMoves(t.Context(), table, native, all, leaf.MoveOptions{Progress: func(int, int) { steps++ }}); err != nil {
			t.Fatal(err)
		}
	}
	if steps != 8 || all[0].After != 110_002_002 || !all[0].Closed || all[2].Closed || all[3].Closed {
		t.Errorf("progress was told %d times; want 8; %+v", steps, all)
	}
	for _, m := range plan(leaf.MoveOptions{IgnoreLiving: true}) {
		if m.Changes() || m.Reason == nil && !m.Closed {
			t.Errorf("after the move there is something left to do: %+v", m)
		}
	}
	if a, err := native.Allocate(t.Context(), "a", 1, ""); err != nil || a.Grant.Lo != 110_002_002 || a.Tag.Step != 1000 {
		t.Errorf("got %+v, error %v; want from 110002002 with step 1000", a, err)
	}

	// Neither Leaf's own statement nor a hapax beside it gets anything more, whatever
	// sql_mode says.
	for _, mode := range []string{"", "STRICT_ALL_TABLES"} {
		db.SetMaxOpenConns(1)
		db.Run(t, "SET SESSION sql_mode = '"+mode+"'")
		for _, step := range []string{"step", "1"} {
			if _, err := db.ExecContext(t.Context(), "UPDATE leaf_alloc SET max_id = max_id + "+step+" WHERE biz_tag = 'a'"); err == nil || !strings.Contains(err.Error(), "1690") {
				t.Errorf("Leaf's statement, with sql_mode %q: %v; want error 1690", mode, err)
			}
		}
	}
	if a, err := table.Allocate(t.Context(), "a", 0, ""); !errors.Is(err, hapax.ErrLineExhausted) {
		t.Errorf("beside it: %v, %v", a.Grant, err)
	}
	if tags, err := table.Tags(t.Context(), "", 10); err != nil || len(tags) != 0 {
		t.Errorf("rows are left: %+v, %v", tags, err)
	}

	// The way back goes on above all that was issued natively.
	back, err := leaf.PlanReopen(t.Context(), table, native)
	if err != nil || len(back) != 2 || back[0].Before != 110_002_003 {
		t.Fatalf("the way back: %+v, %v", back, err)
	}
	if _, err := native.DeleteTag(t.Context(), "a"); err != nil { // as if it was cut off
		t.Fatal(err)
	}
	for range 2 {
		if err := leaf.Reopen(t.Context(), table, native, back, nil); err != nil {
			t.Fatal(err)
		}
	}
	if got := db.Number(t, "SELECT max_id FROM leaf_alloc WHERE biz_tag = 'a'"); got != 110_002_003 {
		t.Errorf("after the way back max_id is %d", got)
	}
	if a, err := native.Allocate(t.Context(), "a", 1, ""); err == nil {
		t.Errorf("natively there is still %v", a.Grant)
	}
	again := plan(leaf.MoveOptions{IgnoreLiving: true})
	if err := leaf.ApplyMoves(t.Context(), table, native, again, leaf.MoveOptions{}); err != nil || again[0].After < 110_002_003 || !again[0].Closed {
		t.Errorf("a second move: %+v, %v", again, err)
	}
	// In a column of another type the row could not be closed: it stays as it is, and no
	// native tag is made.
	for _, kind := range []string{"bigint unsigned", "int"} {
		db.Run(t, "DELETE FROM leaf_alloc", "ALTER TABLE leaf_alloc MODIFY max_id "+kind+" NOT NULL DEFAULT 1", "INSERT INTO leaf_alloc (biz_tag, max_id, step) VALUES ('odd', 7, 10)")
		odd := plan(leaf.MoveOptions{IgnoreLiving: true})
		if err := leaf.ApplyMoves(t.Context(), table, native, odd, leaf.MoveOptions{}); err != nil || len(odd) != 1 || odd[0].Closed || odd[0].Reason == nil || !strings.Contains(odd[0].Reason.Error(), "bigint") {
			t.Errorf("max_id %s: %+v, %v", kind, odd, err)
		}
		if _, err := native.Tag(t.Context(), "odd"); !errors.Is(err, hapax.ErrTagNotFound) || db.Number(t, "SELECT max_id FROM leaf_alloc") != 7 {
			t.Errorf("max_id %s: something was changed: %v", kind, err)
		}
	}
	db.Run(t, "DELETE FROM leaf_alloc")
	if all, err := leaf.PlanMoves(t.Context(), table, native, leaf.MoveOptions{Watch: time.Millisecond, IgnoreLiving: true}); !errors.Is(err, hapax.ErrInvalidArgument) {
		t.Errorf("of an empty table: %+v, %v", all, err)
	}
}

// Two commands for two stores have planned to move a row while it was open: the second one is told
// that the row is another store's, and makes no tag.
func testTwoStores(t *testing.T, server *testservers.Server) {
	db := testdb.New(t, server, testdb.Leaf, "INSERT INTO leaf_alloc (biz_tag, max_id, step) VALUES ('a', 2001, 1000)")
	table := openTable(t, db.URL, leaf.TableOptions{})
	var plans [2][]leaf.Move
	var stores [2]*memstore.Store
	for k := range stores {
		stores[k] = memstore.New()
		all, err := leaf.PlanMoves(t.Context(), table, stores[k], leaf.MoveOptions{IgnoreLiving: true})
		if err != nil || len(all) != 1 {
			t.Fatal(all, err)
		}
		plans[k] = all
	}
	for k, store := range stores {
		err := leaf.ApplyMoves(t.Context(), table, store, plans[k], leaf.MoveOptions{})
		_, missing := store.Tag(t.Context(), "a")
		if reason := plans[k][0].Reason; err != nil || errors.Is(reason, hapax.ErrInvalidArgument) != (k == 1) || errors.Is(missing, hapax.ErrTagNotFound) != (k == 1) {
			t.Errorf("store %d: %v, %v; its tag: %v", k, err, reason, missing)
		}
	}
}
