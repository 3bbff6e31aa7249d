package fleet

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/hapax-id/hapax/compat/leaf"
	"github.com/hapax-id/hapax/compat/tinyid"
	"github.com/hapax-id/hapax/internal/compat/testdb"
	"github.com/hapax-id/hapax/internal/moves"
	"github.com/hapax-id/hapax/internal/testservers"
	"github.com/hapax-id/hapax/store/sqlstore"
	"github.com/hapax-id/hapax/store/sqlstore/mysqlstore"
)

func hapaxNative(ctx context.Context, j job, out *output) error {
	store, err := mysqlstore.Open(ctx, j.URLs[0], sqlstore.Options{})
	if err != nil {
		return err
	}
	defer store.Close()
	return issueSegment(ctx, store, j.Tag, out)
}

// A moving is a system that is moved to native tags, and back.
type moving struct {
	kinds  []string // of processes beside each other
	old    job      // what they do
	plan   func(t *testing.T, native moves.Target, margin int64) []moves.Move
	apply  func(t *testing.T, native moves.Target, all []moves.Move, margin int64) error
	reopen func(t *testing.T, native moves.Target) error
	undo   func(t *testing.T) // opens the rows as they were, without asking anybody
}

func movingLeaf(t *testing.T, j job) moving {
	db := leafTable(t)
	table, err := leaf.OpenTable(t.Context(), db.URL, leaf.TableOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = table.Close() })
	j.URLs, j.Tag = []string{db.URL}, "test"
	was := int64(0)
	return moving{
		kinds: []string{"leaf", "leaf", "hapax-leaf"}, old: j,
		plan: func(t *testing.T, native moves.Target, margin int64) []moves.Move {
			was = db.Number(t, "SELECT max_id FROM leaf_alloc")
			all, err := leaf.PlanMoves(t.Context(), table, native, leaf.MoveOptions{IgnoreLiving: true, Margin: margin})
			if err != nil {
				t.Fatal(err)
			}
			return all
		},
		apply: func(t *testing.T, native moves.Target, all []moves.Move, margin int64) error {
			return leaf.ApplyMoves(t.Context(), table, native, all, leaf.MoveOptions{Margin: margin})
		},
		reopen: func(t *testing.T, native moves.Target) error {
			all, err := leaf.PlanReopen(t.Context(), table, native)
			if err != nil {
				return err
			}
			return leaf.Reopen(t.Context(), table, native, all, nil)
		},
		undo: func(t *testing.T) { db.Run(t, fmt.Sprintf("UPDATE leaf_alloc SET max_id = %d", was)) },
	}
}

func movingTinyID(t *testing.T, j job) moving {
	server := testservers.SharedMariaDB(t)
	var dbs []testdb.Database
	for i := range 2 {
		db := testdb.New(t, server, testdb.TinyID...)
		db.Run(t, fmt.Sprintf("INSERT INTO tiny_id_info (biz_type, max_id, step, delta, remainder, version) VALUES ('test', %d, 200, 2, %d, 1)", 100*i, i))
		dbs = append(dbs, db)
		j.URLs = append(j.URLs, db.URL)
	}
	j.Tag = "test"
	store, err := tinyid.Open(t.Context(), j.URLs, tinyid.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	return moving{
		kinds: []string{"tinyid", "tinyid", "hapax-tinyid"}, old: j,
		plan: func(t *testing.T, native moves.Target, margin int64) []moves.Move {
			all, err := tinyid.PlanMoves(t.Context(), store, native, tinyid.MoveOptions{IgnoreLiving: true, Margin: margin})
			if err != nil {
				t.Fatal(err)
			}
			return all
		},
		apply: func(t *testing.T, native moves.Target, all []moves.Move, margin int64) error {
			return tinyid.ApplyMoves(t.Context(), store, native, all, tinyid.MoveOptions{Margin: margin})
		},
		reopen: func(t *testing.T, native moves.Target) error {
			all, err := tinyid.PlanReopen(t.Context(), store, native)
			if err != nil {
				return err
			}
			return tinyid.Reopen(t.Context(), store, native, all, nil)
		},
		undo: func(t *testing.T) {
			for _, db := range dbs {
				db.Run(t, "UPDATE tiny_id_info SET biz_type = 'test'")
			}
		},
	}
}

// native makes a native store, and returns it with its processes' work.
func native(t *testing.T, j job) (*sqlstore.Store, job) {
	db := testdb.New(t, testservers.SharedMariaDB(t))
	store, err := mysqlstore.Open(t.Context(), db.URL, sqlstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	j.URLs = []string{db.URL}
	return store, j
}

// moved moves, and checks that every row is closed.
func (m moving) moved(t *testing.T, store moves.Target, margin int64) {
	t.Helper()
	all := m.plan(t, store, margin)
	err := m.apply(t, store, all, margin)
	if err != nil || len(all) != 1 || all[0].Reason != nil || !all[0].Closed {
		t.Fatalf("the move: %+v, %v", all, err)
	}
}

// TestMove: a mixed fleet, the move, what of the old fleet is started again, the new fleet,
// and the way back: no number comes twice, and the old fleet issues nothing while it is
// closed.
func TestMove(t *testing.T) {
	t.Parallel()
	target, pause := soak(60_000, 5_000_000)
	for name, begin := range map[string]func(*testing.T, job) moving{"Leaf": movingLeaf, "TinyID": movingTinyID} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := begin(t, job{Pause: pause, Life: shortLife})
			store, after := native(t, m.old)
			f := new(fleet)
			twice := f.run(t, slots(m.kinds, m.old), target/2, 2)
			m.moved(t, store, 0)
			for _, j := range slots(m.kinds, m.old) {
				if told, err := f.start(t.Context(), j[0]); err == nil || told > 0 {
					t.Errorf("%s, started again after the move, issues %d numbers, error %v", j[0].Kind, told, err)
				}
			}
			twice += f.run(t, slots([]string{"hapax-native", "hapax-native", "hapax-native"}, after), target, 2)
			if err := m.reopen(t, store); err != nil {
				t.Fatal(err)
			}
			if told, err := f.start(t.Context(), job{Kind: "hapax-native", URLs: after.URLs, Tag: after.Tag, Life: after.Life}); err == nil || told > 0 {
				t.Errorf("after the way back %d numbers are issued natively, error %v", told, err)
			}
			if twice += f.run(t, slots(m.kinds, m.old), target+target/4, 1); twice > 0 {
				t.Errorf("%d numbers were issued twice", twice)
			}
		})
	}
}

// TestMoveControls: the same test sees a move that leaves the old rows open.
func TestMoveControls(t *testing.T) {
	t.Parallel()
	for name, begin := range map[string]func(*testing.T, job) moving{"Leaf": movingLeaf, "TinyID": movingTinyID} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := begin(t, job{Pause: 5 * time.Millisecond, Life: shortLife})
			store, after := native(t, m.old)
			m.moved(t, store, 1)
			m.undo(t)
			all := append(slots(m.kinds, m.old), slots([]string{"hapax-native"}, after)...)
			if new(fleet).run(t, all, 10_000, 1) == 0 {
				t.Error("an open row was not seen")
			}
		})
	}
}
