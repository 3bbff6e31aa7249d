package leaf

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"regexp"
	"strconv"

	"github.com/go-sql-driver/mysql"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/compat/mysqldb"
	"github.com/hapax-id/hapax/internal/moves"
)

// A row and its native tag are never both open. On the way there the row is closed first, for one
// store alone, and that is committed and read back; then the tag is opened while the row is held.
// On the way back the tag is deleted first. Each step can be repeated, by either command, once it
// was cut off:
//
//	row open            --shut-->  closed, moving   the row's old max_id is in its description
//	closed, moving      --Create-> closed, moved    from here on the tag's mark counts, too
//	closed, either way  --Reopen-> open             above both

// A shutMark is what the description of a closed row says.
type shutMark struct {
	store string // which has the tag, or will
	at    int64  // max_id before
	moved bool   // the tag was there
	was   sql.NullString
}

var shutText = regexp.MustCompile(`^(moving|moved) to hapax store (.+?) \(max_id was ([0-9]{1,19})\)(?s:: (.*))?$`)

func (m shutMark) text() string {
	state, was := "moving", ""
	if m.moved {
		state = "moved"
	}
	if m.was.Valid {
		was = ": " + m.was.String
	}
	return fmt.Sprintf("%s to hapax store %s (max_id was %d)%s", state, m.store, m.at, was)
}

// readShut reads a description. Without a mark in it all of it is what was there before.
func readShut(description sql.NullString) shutMark {
	found := shutText.FindStringSubmatchIndex(description.String)
	if found == nil {
		return shutMark{was: description}
	}
	part := func(k int) string { return description.String[found[2*k]:found[2*k+1]] }
	m := shutMark{store: part(2), moved: part(1) == "moved"}
	var err error
	if m.at, err = strconv.ParseInt(part(3), 10, 64); err != nil {
		return shutMark{was: description}
	}
	if found[8] >= 0 {
		m.was = sql.NullString{String: part(4), Valid: true}
	}
	return m
}

// A shutRow is a row, and what its description says.
type shutRow struct {
	row
	shutMark
}

func (r shutRow) closed() bool { return r.maxID == closedMark }

// before returns the row as it was before it was closed.
func (r shutRow) before() row {
	if r.closed() {
		return row{r.tag, r.at, r.step}
	}
	return r.row
}

// notOurs refuses a closed row that another store has: both would issue its numbers.
func (r shutRow) notOurs(store string) error {
	if r.store == "" {
		return fmt.Errorf("%w: row %q of leaf_alloc is closed, and its description names no hapax store: a build that noted none has closed it, or the description was changed: give --undo of that build, or set max_id by hand above all that was issued natively",
			hapax.ErrInvalidArgument, r.tag)
	}
	return moves.NotOurs(fmt.Sprintf("row %q of leaf_alloc", r.tag), r.store, store)
}

// shutRows returns all rows, with their descriptions read.
func (t *Table) shutRows(ctx context.Context) (all []shutRow, err error) {
	limited, cancel := t.db.Limit(ctx)
	defer cancel()
	rows, err := t.db.SQL.QueryContext(limited, "SELECT "+byteKey+", max_id, step, description FROM leaf_alloc ORDER BY "+byteKey)
	if err != nil {
		return nil, t.shutError(ctx, err)
	}
	defer rows.Close()
	for rows.Next() {
		var r shutRow
		var description sql.NullString
		if err := rows.Scan(&r.tag, &r.maxID, &r.step, &description); err != nil {
			return nil, t.shutError(ctx, err)
		}
		r.shutMark = readShut(description)
		all = append(all, r)
	}
	return all, t.shutError(ctx, rows.Err())
}

// shutError is db.Fail where the description matters.
func (t *Table) shutError(ctx context.Context, err error) error {
	if e, ok := errors.AsType[*mysql.MySQLError](err); ok && e.Number == 1054 {
		return fmt.Errorf("%w: leaf_alloc at %s has no column description, which notes the hapax store that a row was moved to: add it, as in Leaf's own script (ALTER TABLE leaf_alloc ADD COLUMN description varchar(256) DEFAULT NULL): %w",
			hapax.ErrInvalidArgument, t.db.Address, err)
	}
	return t.db.Fail(ctx, "leaf_alloc", err)
}

// A held row is one that nobody else can change until the transaction is over.
type held struct {
	shutRow

	tx    *sql.Tx
	table *Table
}

// hold calls f with a row that nobody else can change until it is over, in a transaction.
func (t *Table) hold(ctx context.Context, tag string, f func(ctx context.Context, h held) error) error {
	limited, cancel := t.db.Limit(ctx)
	defer cancel()
	tx, err := t.db.SQL.BeginTx(limited, nil)
	if err != nil {
		return t.db.Fail(ctx, "leaf_alloc", err)
	}
	defer func() { _ = tx.Rollback() }() // does nothing after the commit
	h := held{shutRow: shutRow{row: row{tag: tag}}, tx: tx, table: t}
	var description sql.NullString
	err = tx.QueryRowContext(limited, "SELECT max_id, step, description FROM leaf_alloc"+exactly+" FOR UPDATE", tag, tag).Scan(&h.maxID, &h.step, &description)
	if errors.Is(err, sql.ErrNoRows) {
		return fmt.Errorf("%w: row %q is gone from leaf_alloc", hapax.ErrInvalidArgument, tag)
	}
	if err != nil {
		return t.shutError(ctx, err)
	}
	h.shutMark = readShut(description)
	if err := f(limited, h); err != nil {
		return err
	}
	return t.db.Fail(ctx, "leaf_alloc", tx.Commit())
}

// set changes the row, if it is as it was read: in a table without transactions nobody is held off.
func (h held) set(ctx context.Context, maxID int64, description sql.NullString) error {
	done, err := h.tx.ExecContext(ctx, "UPDATE leaf_alloc SET max_id = ?, description = ?"+exactly+" AND max_id = ?", maxID, description, h.tag, h.tag, h.maxID)
	if err != nil {
		return err
	}
	if n, err := done.RowsAffected(); err != nil || n == 1 {
		return err
	}
	return fmt.Errorf("%w: row %q of leaf_alloc was changed since it was read: repeat", hapax.ErrInvalidArgument, h.tag)
}

// say sets what the description says of a row that is closed.
func (h held) say(ctx context.Context, m shutMark) error {
	err := h.set(ctx, closedMark, sql.NullString{String: m.text(), Valid: true})
	if mysqldb.Denied(err) {
		return fmt.Errorf("%w: row %q of leaf_alloc stays open for Leaf, so that it is not moved: its description has no room for the note %q, or this account may not change it; shorten the description, or make its column longer: %w",
			hapax.ErrInvalidArgument, h.tag, shutMark{store: m.store, at: m.at}.text(), err)
	}
	return err
}

// shut closes an open row for a store, and sees that Leaf's own statement fails there: in a column
// of another type than Leaf's script has, it may not.
func (h held) shut(ctx context.Context, store string) error {
	err := h.say(ctx, shutMark{store: store, at: h.maxID, was: h.was})
	if err == nil {
		_, err = h.tx.ExecContext(ctx, "UPDATE leaf_alloc SET max_id = max_id + step"+exactly, h.tag, h.tag)
		if mysqldb.OutOfRange(err) {
			return nil
		}
	}
	if err == nil || mysqldb.OutOfRange(err) {
		return fmt.Errorf("%w: row %q of leaf_alloc stays open for Leaf, so that it is not moved: max_id cannot be closed in a column of this type: make it bigint, as Leaf's own script does (ALTER TABLE leaf_alloc MODIFY max_id bigint NOT NULL DEFAULT 1)", hapax.ErrInvalidArgument, h.tag)
	}
	return h.table.db.Fail(ctx, "leaf_alloc", err)
}

const (
	// closedMark is the max_id of a row that was moved. Leaf adds a step to it in SQL, and
	// MySQL refuses a sum beyond 64 bits (error 1690), whatever sql_mode says.
	closedMark = math.MaxInt64

	// adaptedStep is the largest step that Leaf adapts to.
	adaptedStep = 1_000_000
)

var closes = fmt.Sprintf("max_id is %d, which no Leaf can add to", int64(closedMark))

// move moves one row.
func (t *Table) move(ctx context.Context, target moves.Target, m *Move, margin int64) error {
	store, err := target.StoreID(ctx)
	if err != nil {
		return err
	}
	// Committed before the tag is made: one that stays open for Leaf gets none. Where the answer of the commit
	// is lost, this ends here.
	err = t.hold(ctx, m.Tag.Name, func(ctx context.Context, h held) error {
		if h.closed() {
			return h.notOurs(store)
		}
		if err := h.check(); err != nil {
			return fmt.Errorf("%w: %w", hapax.ErrInvalidArgument, err)
		}
		if _, err := h.above(margin); err != nil {
			return err
		}
		return h.shut(ctx, store)
	})
	if err != nil {
		return err
	}
	opens := false
	err = t.hold(ctx, m.Tag.Name, func(ctx context.Context, h held) error {
		if err := t.stillOurs(h, store); err != nil {
			return err
		}
		if h.moved { // another command was faster
			done, err := moves.PlanClosed(ctx, target, h.tag, closes)
			m.After = done.After
			return errors.Join(err, done.Reason)
		}
		mark, err := h.before().above(margin)
		if err != nil {
			return err
		}
		// Above where the row came to, and not below what the plan has shown.
		mark = max(mark, m.Tag.Mark)
		m.Tag.Start, m.Tag.Mark = mark, mark
		opens = true
		if err := moves.Create(ctx, target, m); err != nil {
			return fmt.Errorf("%w: its row is closed already; correct that and repeat, or open it with --undo", err)
		}
		h.moved = true
		return t.db.Fail(ctx, "leaf_alloc", h.say(ctx, h.shutMark))
	})
	if err != nil && opens {
		err = errors.Join(err, t.retract(ctx, target, store, m.Tag.Name))
	}
	m.Closed = err == nil
	return err
}

// stillOurs refuses a row that was closed for a store, and is not any more.
func (t *Table) stillOurs(h held, store string) error {
	if !h.closed() {
		return fmt.Errorf("%w: row %q of leaf_alloc was opened again by another command: repeat this if it is still to be moved", hapax.ErrInvalidArgument, h.tag)
	}
	return h.notOurs(store)
}

// retract deletes the tag of a move that failed while it was opened, if the row is not closed for the
// store any more: its lock was lost with the connection, and the way back came before the tag.
func (t *Table) retract(ctx context.Context, target moves.Target, store, tag string) (verdict error) {
	_ = t.hold(context.WithoutCancel(ctx), tag, func(ctx context.Context, h held) error { // if it fails, the error of the move tells
		if verdict = t.stillOurs(h, store); verdict != nil {
			_, _, err := moves.Withdraw(ctx, target, tag)
			if !errors.Is(err, hapax.ErrTagNotFound) {
				verdict = errors.Join(verdict, err)
			}
		}
		return nil
	})
	return verdict
}

// PlanReopen tells for each row that a move closed which max_id it gets, and writes
// nothing. Rows of other stores than the target are refused.
func PlanReopen(ctx context.Context, t *Table, target moves.Target) ([]Move, error) {
	store, err := target.StoreID(ctx)
	if err != nil {
		return nil, err
	}
	rows, err := t.shutRows(ctx)
	if err != nil {
		return nil, err
	}
	var all []Move
	for _, r := range rows {
		if !r.closed() {
			continue
		}
		m := Move{Tag: hapax.Tag{Name: r.tag}, Closed: true, Closes: closes, Reason: r.notOurs(store)}
		if m.Reason == nil {
			planned, err := moves.PlanReopen(ctx, target, []string{r.tag}, closes)
			if err != nil {
				return nil, err
			}
			if m = planned[0]; !r.moved { // without a tag nothing was issued natively
				m.Reason = nil
			}
			m.Before = max(m.Before, r.at)
			m.After = m.Before
		}
		all = append(all, m)
	}
	return all, nil
}

// Reopen gives the rows back to Leaf: it deletes each native tag, whose mark is above all
// that was and can be issued natively, and sets the row to that. It can be repeated.
func Reopen(ctx context.Context, t *Table, target moves.Target, all []Move, progress func(done, total int)) error {
	return moves.Apply(ctx, all, func(ctx context.Context, m *Move) error {
		store, err := target.StoreID(ctx)
		if err != nil {
			return err
		}
		return t.hold(ctx, m.Tag.Name, func(ctx context.Context, h held) error {
			if !h.closed() {
				return nil
			}
			if err := h.notOurs(store); err != nil { // another store's move may have come after the plan
				return err
			}
			// Before the row is opened: at no time do both issue the tag's numbers.
			was, _, err := moves.Withdraw(ctx, target, h.tag)
			if errors.Is(err, hapax.ErrTagNotFound) && !h.moved {
				err = nil
			}
			if err != nil {
				return err
			}
			// A move that was cut off may have left a tag that is behind the row.
			mark := max(was.Mark, h.at)
			m.Before, m.After, m.Closed = mark, mark, false
			return t.db.Fail(ctx, "leaf_alloc", h.set(ctx, mark, h.was))
		})
	}, progress)
}
