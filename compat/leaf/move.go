package leaf

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/compat/mysqldb"
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

const (
	// closedMark is the max_id of a row that was moved. Leaf adds a step to it in SQL, and
	// MySQL refuses a sum beyond 64 bits (error 1690), whatever sql_mode says.
	closedMark = math.MaxInt64

	// adaptedStep is the largest step that Leaf adapts to.
	adaptedStep = 1_000_000
)

var closes = fmt.Sprintf("max_id is %d, which no Leaf can add to", int64(closedMark))

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
	var defs []hapax.Tag
	var others []Move
	var closed []string
	err := t.rows(ctx, "", func(r row) bool {
		if r.maxID == closedMark {
			closed = append(closed, r.tag)
			return true
		}
		err := r.check()
		mark := int64(0)
		if err == nil {
			mark, err = r.above(o.Margin)
		}
		if err != nil {
			others = append(others, Move{Tag: hapax.Tag{Name: r.tag, Mark: r.maxID}, Reason: err})
			return true
		}
		defs = append(defs, r.native(mark))
		return true
	})
	if err != nil {
		return nil, err
	}
	for _, tag := range closed {
		m, err := moves.PlanClosed(ctx, target, tag, closes)
		if err != nil {
			return nil, err
		}
		others = append(others, m)
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

// ApplyMoves creates the native tags or raises their marks, and closes the rows: from then
// on no Leaf, nor a hapax that runs beside it, is granted anything from them. A row is held
// from before its mark is read until it is closed, so that a Leaf that is alive after
// all cannot come in between. It can be repeated; Reopen is the way back.
func ApplyMoves(ctx context.Context, t *Table, target moves.Target, all []Move, o MoveOptions) error {
	return moves.Apply(ctx, all, func(ctx context.Context, m *Move) error {
		if m.Closed {
			return nil
		}
		return t.move(ctx, target, m, o.Margin)
	}, o.Progress)
}

// move moves one row.
func (t *Table) move(ctx context.Context, target moves.Target, m *Move, margin int64) error {
	err := t.hold(ctx, m.Tag.Name, func(ctx context.Context, r row, tx held) error {
		if r.maxID == closedMark { // another command was faster, and has made the tag: in this store?
			done, err := moves.PlanClosed(ctx, target, m.Tag.Name, closes)
			return errors.Join(err, done.Reason)
		}
		if err := r.check(); err != nil {
			return fmt.Errorf("%w: %w", hapax.ErrInvalidArgument, err)
		}
		mark, err := r.above(margin)
		if err != nil {
			return err
		}
		// Above where the row is by now, and not below what the plan has shown.
		mark = max(mark, m.Tag.Mark)
		m.Tag.Start, m.Tag.Mark = mark, mark
		// Before the native tag is made: a row that stays open for Leaf gets none.
		if err := tx.close(ctx); err != nil {
			return err
		}
		return moves.Create(ctx, target, m) // nobody sees the row closed before the commit
	})
	m.Closed = err == nil
	return err
}

// A held row is one that nobody else can change until the transaction is over.
type held struct {
	*sql.Tx

	table *Table
	tag   string
}

// set changes the row's max_id.
func (h held) set(ctx context.Context, maxID int64) error {
	_, err := h.ExecContext(ctx, "UPDATE leaf_alloc SET max_id = ?"+exactly, maxID, h.tag, h.tag)
	return err
}

// close closes the row, and sees that Leaf's own statement fails there: in a column of
// another type than Leaf's script has, it may not.
func (h held) close(ctx context.Context) error {
	err := h.set(ctx, closedMark)
	if err == nil {
		_, err = h.ExecContext(ctx, "UPDATE leaf_alloc SET max_id = max_id + step"+exactly, h.tag, h.tag)
		if mysqldb.OutOfRange(err) {
			return nil
		}
	}
	if err == nil || mysqldb.OutOfRange(err) {
		return fmt.Errorf("%w: row %q of leaf_alloc stays open for Leaf, so that it is not moved: max_id cannot be closed in a column of this type: make it bigint, as Leaf's own script does (ALTER TABLE leaf_alloc MODIFY max_id bigint NOT NULL DEFAULT 1)", hapax.ErrInvalidArgument, h.tag)
	}
	return h.table.db.Fail(ctx, "leaf_alloc", err)
}

// hold calls f with a row that nobody else can change until it is over, in a transaction.
func (t *Table) hold(ctx context.Context, tag string, f func(ctx context.Context, r row, tx held) error) error {
	limited, cancel := t.db.Limit(ctx)
	defer cancel()
	tx, err := t.db.SQL.BeginTx(limited, nil)
	if err != nil {
		return t.db.Fail(ctx, "leaf_alloc", err)
	}
	defer func() { _ = tx.Rollback() }() // does nothing after the commit
	r := row{tag: tag}
	err = tx.QueryRowContext(limited, "SELECT max_id, step FROM leaf_alloc"+exactly+" FOR UPDATE", tag, tag).Scan(&r.maxID, &r.step)
	if errors.Is(err, sql.ErrNoRows) {
		return fmt.Errorf("%w: row %q is gone from leaf_alloc", hapax.ErrInvalidArgument, tag)
	}
	if err != nil {
		return t.db.Fail(ctx, "leaf_alloc", err)
	}
	if err := f(limited, r, held{tx, t, tag}); err != nil {
		return err
	}
	return t.db.Fail(ctx, "leaf_alloc", tx.Commit())
}

// PlanReopen tells for each row that a move closed which max_id it gets, and writes
// nothing.
func PlanReopen(ctx context.Context, t *Table, target moves.Target) ([]Move, error) {
	var closed []string
	if err := t.rows(ctx, "", func(r row) bool {
		if r.maxID == closedMark {
			closed = append(closed, r.tag)
		}
		return true
	}); err != nil {
		return nil, err
	}
	return moves.PlanReopen(ctx, target, closed, closes)
}

// Reopen gives the rows back to Leaf: it deletes each native tag, whose mark is above all
// that was and can be issued natively, and sets the row to that. It can be repeated.
func Reopen(ctx context.Context, t *Table, target moves.Target, all []Move, progress func(done, total int)) error {
	return moves.Apply(ctx, all, func(ctx context.Context, m *Move) error {
		return t.hold(ctx, m.Tag.Name, func(ctx context.Context, r row, tx held) error {
			if r.maxID != closedMark {
				return nil
			}
			// Before the row is opened: at no time do both issue the tag's numbers.
			mark, err := moves.Withdraw(ctx, target, r.tag)
			if err != nil {
				return err
			}
			m.Before, m.After, m.Closed = mark, mark, false
			return t.db.Fail(ctx, "leaf_alloc", tx.set(ctx, mark))
		})
	}, progress)
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
