package leaf

import (
	"context"
	"fmt"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/moves"
)

// A Move is what is to be done for one tag on its way to a native one.
type Move = moves.Move

// MoveOptions tune PlanMoves and ApplyMoves.
type MoveOptions struct {
	// Margin is how far above a row's max_id the native mark is set; default ten times
	// the largest step that a Leaf node comes to, which is 1,000,000 or the row's.
	Margin int64

	// Watch is how long the table is watched for nodes that are alive; default
	// 10 s.
	Watch time.Duration

	// Tree, if set, is watched too.
	Tree *Tree

	// IgnoreLiving plans although nodes are alive.
	IgnoreLiving bool

	// Note, if set, is told what could not be looked at.
	Note func(text string)

	// Progress, if set, is called as the rows are compared with the native tags, or
	// moved.
	Progress func(done, total int)
}

// above returns the native mark of a row.
func (r row) above(margin int64) (int64, error) {
	return moves.Above(r.maxID, max(r.step, adaptedStep), margin)
}

// native returns the native tag of a row, with its mark.
func (r row) native(mark int64) hapax.Tag {
	return hapax.Tag{Name: r.tag, Start: mark, Step: r.step, Mark: mark}
}

// PlanMoves tells for each row which mark its native tag has and will have, and
// writes nothing; without a table it only watches the tree. It fails with ErrStoreUnsafe while it sees nodes that are alive:
// rows that move, sessions of other clients in the database, nodes of the tree
// that report, or have a timestamp ahead of the clock. A table without rows is refused.
func PlanMoves(ctx context.Context, t *Table, target moves.Target, o MoveOptions) ([]Move, error) {
	if o.Watch <= 0 {
		o.Watch = 10 * time.Second
	}
	if !o.IgnoreLiving {
		signs, err := signsOfLife(ctx, t, o)
		if err == nil {
			err = moves.Alive(signs)
		}
		if err != nil {
			return nil, err
		}
	}
	if t == nil {
		return nil, nil
	}
	store, err := target.StoreID(ctx)
	if err != nil {
		return nil, err
	}
	rows, err := t.shutRows(ctx)
	if err != nil {
		return nil, err
	}
	var defs []hapax.Tag
	var others []Move
	for _, r := range rows {
		if r.closed() {
			m := Move{Tag: hapax.Tag{Name: r.tag}, Closed: true, Closes: closes, Reason: r.notOurs(store)}
			if m.Reason == nil && r.moved {
				if m, err = moves.PlanClosed(ctx, target, r.tag, closes); err != nil {
					return nil, err
				}
			}
			if m.Reason != nil || r.moved {
				others = append(others, m)
				continue
			}
		}
		was := r.before()
		err := was.check()
		mark := int64(0)
		if err == nil {
			mark, err = was.above(o.Margin)
		}
		if err != nil {
			others = append(others, Move{Tag: hapax.Tag{Name: r.tag, Mark: r.maxID}, Reason: err})
			continue
		}
		defs = append(defs, was.native(mark))
	}
	if len(defs)+len(others) == 0 {
		return nil, fmt.Errorf("%w: leaf_alloc at %s has no rows: nothing is to be moved; is this the database that Leaf uses?", hapax.ErrInvalidArgument, t.db.Address)
	}
	all, err := moves.Plan(ctx, target, defs, o.Progress)
	for i := range all {
		all[i].Closes = closes
	}
	return append(all, others...), err
}

// ApplyMoves closes the rows, so that no Leaf, nor a hapax that runs beside it, is granted
// anything from them any more, and then creates the native tags or raises their marks. The
// description of a row notes the store that it was closed for, and no other one can open it.
// A row is held from before its mark is read until it is closed, so that a Leaf that is alive
// after all cannot come in between. It can be repeated; Reopen is the way back.
func ApplyMoves(ctx context.Context, t *Table, target moves.Target, all []Move, o MoveOptions) error {
	return moves.Apply(ctx, all, func(ctx context.Context, m *Move) error {
		if m.Closed {
			return nil
		}
		return t.move(ctx, target, m, o.Margin)
	}, o.Progress)
}

// signsOfLife watches the table, and the tree if there is one.
func signsOfLife(ctx context.Context, t *Table, o MoveOptions) ([]string, error) {
	marks := func() (map[string]int64, error) {
		m := map[string]int64{}
		if t == nil {
			return m, nil
		}
		err := t.rows(ctx, "", func(r row) bool { m[r.tag] = r.maxID; return true })
		return m, err
	}
	nodes := func() (map[string]time.Time, error) {
		m := map[string]time.Time{}
		if o.Tree == nil {
			return m, nil
		}
		all, err := o.Tree.Nodes(ctx)
		for _, n := range all {
			if !n.Own {
				m[n.Name] = n.Reported
			}
		}
		return m, err
	}
	rows, err := marks()
	if err != nil {
		return nil, err
	}
	reports, err := nodes()
	if err != nil {
		return nil, err
	}
	select {
	case <-time.After(o.Watch):
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	var signs []string
	later, err := marks()
	if err != nil {
		return nil, err
	}
	for tag, maxID := range later {
		if before, ok := rows[tag]; ok && before != maxID {
			signs = append(signs, fmt.Sprintf("row %s went from %d to %d", tag, before, maxID))
		}
	}
	now, err := nodes()
	if err != nil {
		return nil, err
	}
	for name, at := range now {
		if at.After(reports[name]) {
			signs = append(signs, "node "+name+" reports")
		} else if at.After(time.Now()) { // a hapax writes there until when it was granted its worker ID
			signs = append(signs, "node "+name+" has time until "+stamp(at))
		}
	}
	if t == nil {
		return signs, nil
	}
	others, unseen, err := t.db.Others(ctx)
	if err != nil {
		return nil, err
	}
	if others > 0 {
		signs = append(signs, fmt.Sprintf("%d other sessions in the database", others))
	}
	if unseen != "" && o.Note != nil {
		o.Note(unseen)
	}
	return signs, nil
}

// A Row is one row of the table, as it is.
type Row struct {
	Tag     string
	MaxID   int64
	Step    int64
	Updated string // as the table has it; empty if it is not known
}

// Rows returns up to limit rows, also such that cannot be used, by key.
func (t *Table) Rows(ctx context.Context, limit int) ([]Row, error) {
	limited, cancel := t.db.Limit(ctx)
	defer cancel()
	rows, err := t.db.SQL.QueryContext(limited, "SELECT biz_tag, max_id, step, CAST(update_time AS CHAR) FROM leaf_alloc ORDER BY biz_tag LIMIT ?", limit)
	if err != nil {
		return nil, t.db.Fail(ctx, "leaf_alloc", err)
	}
	defer rows.Close()
	var all []Row
	for rows.Next() {
		var r Row
		var updated *string
		if err := rows.Scan(&r.Tag, &r.MaxID, &r.Step, &updated); err != nil {
			return nil, t.db.Fail(ctx, "leaf_alloc", err)
		}
		if updated != nil {
			r.Updated = *updated
		}
		all = append(all, r)
	}
	return all, t.db.Fail(ctx, "leaf_alloc", rows.Err())
}
