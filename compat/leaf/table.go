// Package leaf issues numbers from the table and the ZooKeeper tree of Meituan
// Leaf, beside Leaf's own nodes.
//
// # The table
//
// A Table is a hapax.SegmentStore over leaf_alloc, as it is. A segment is taken
// in Leaf's own transaction:
//
//	UPDATE leaf_alloc SET max_id = max_id + step WHERE biz_tag = …
//	SELECT max_id, step FROM leaf_alloc WHERE biz_tag = …
//
// and is [max_id - step, max_id) of the new value. So any number of Leaf nodes
// and of hapax nodes share a table: each update is one atomic step of the server.
// The account needs SELECT and UPDATE, and other columns than these three do not
// matter.
//
// The table has no room for an identity, a tombstone or a fencing token. What is
// missing is made up for as far as possible: a handle remembers the highest mark of
// each tag that it was granted, in TableOptions.Witness where that is set, and
// refuses a row that is behind it (ErrStoreRolledBack); nothing is ever handed
// back; and a row is created by whoever runs the table, never by use.
//
// # The tree
//
// A Tree is a hapax.WorkerStore over the nodes below /snowflake/NAME. See Tree.
package leaf

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/compat/mysqldb"
	"github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/store/witness"
)

var (
	_ hapax.SegmentStore = (*Table)(nil)
	_ driver.TagStore    = (*Table)(nil)
)

// TableOptions tune a Table. The zero value suits most uses.
type TableOptions struct {
	// Timeout bounds one call; default 5 s.
	Timeout time.Duration

	// AcceptFailover lets a handle go on when another server answers than the
	// one it met first. It is safe only where the new primary has every commit
	// that the old one acknowledged: by default that is ErrStoreReplaced.
	AcceptFailover bool

	// Witness, if set, remembers what was granted, and outlives the process. A row
	// that is behind it is refused, and that row alone, also after a restart, until
	// Adopt. It stays the caller's to close, after the table.
	Witness *witness.Witness

	// Warn receives what an operator should know, with a stable code:
	// "not_durable" (the server may lose what it acknowledged), "bad_row" (a row that
	// cannot be used, and why) and "fenced" (the witness refuses a row from now on).
	Warn func(code, message string)
}

// A Table grants segments of the tags in leaf_alloc.
type Table struct {
	db      *mysqldb.DB
	warn    func(code, message string)
	marks   *witness.Marks // how far each tag was granted
	checked atomic.Bool    // all rows were compared with the marks
}

// OpenTable opens leaf_alloc in the database mysql://user:password@host/database,
// and returns once the table has answered. Errors: ErrInvalidArgument,
// ErrStoreUnavailable, ErrStoreUnsafe, ErrStoreCorrupt where the table is not
// there.
func OpenTable(ctx context.Context, url string, opts TableOptions) (*Table, error) {
	db, err := mysqldb.Open(url, mysqldb.Options{Timeout: opts.Timeout, AcceptFailover: opts.AcceptFailover, Warn: opts.Warn})
	if err != nil {
		return nil, err
	}
	t := newTable(db, opts)
	if err := t.probe(ctx); err != nil {
		_ = t.Close()
		return nil, err
	}
	return t, nil
}

// CheckTable judges a database's URL without connecting to it.
func CheckTable(url string) error {
	db, err := mysqldb.Open(url, mysqldb.Options{})
	if err != nil {
		return err
	}
	return db.Close()
}

func newTable(db *mysqldb.DB, opts TableOptions) *Table {
	if opts.Warn == nil {
		opts.Warn = func(string, string) {}
	}
	return &Table{db: db, warn: opts.Warn, marks: witness.NewMarks(opts.Witness, opts.Warn)}
}

// A row is what a row of leaf_alloc tells.
type row struct {
	tag         string
	maxID, step int64
}

// maxStep is the largest step that a row may have. 64 bits throughout: Leaf's own
// arithmetic overflows above 1,073,741,823.
const maxStep = hapax.MaxStep

// check returns why a row cannot be used, or nil.
func (r row) check() error {
	bad := func(column string, value int64, allowed string) error {
		return fmt.Errorf("%w: row %q of leaf_alloc: %s is %d; allowed is %s: correct the row", hapax.ErrStoreCorrupt, r.tag, column, value, allowed)
	}
	if err := hapax.ValidateName("tag", r.tag); err != nil {
		return fmt.Errorf("%w: row %q of leaf_alloc: biz_tag: %w", hapax.ErrStoreCorrupt, r.tag, err)
	}
	switch {
	case r.maxID == closedMark:
		return fmt.Errorf("%w: row %q of leaf_alloc was moved to native tags (hapax import leaf --apply), and --undo opens it again", hapax.ErrLineExhausted, r.tag)
	case r.step < 1 || r.step > maxStep:
		return bad("step", r.step, fmt.Sprintf("1 to %d", int64(maxStep)))
	case r.maxID < 0 || r.maxID > hapax.MaxMark:
		return bad("max_id", r.maxID, fmt.Sprintf("0 to %d", int64(hapax.MaxMark)))
	}
	return nil
}

// asTag returns the row as a tag.
func (r row) asTag() hapax.Tag {
	return hapax.Tag{
		Name: r.tag, Kind: hapax.KindSegment, Start: 1, Step: r.step, MinStep: r.step,
		MaxStep: max(r.step, hapax.DefaultMaxStep), Mark: r.maxID, Delta: 1,
	}
}

// exactly selects a row by its key, and by the bytes of its key: the column's
// collation ignores case and trailing spaces, which Leaf's own cache does not.
const exactly = " WHERE biz_tag = ? AND " + byteKey + " = CAST(? AS BINARY)"

// byteKey is a row's key as bytes.
const byteKey = "CAST(CONVERT(biz_tag USING utf8mb4) AS BINARY)"

// Allocate implements hapax.SegmentStore. The allocation has no key: nothing can
// be handed back.
func (t *Table) Allocate(ctx context.Context, tag string, n int64, _ hapax.GrantKey) (hapax.Allocation, error) {
	if err := driver.CheckAllocate(tag, n); err != nil {
		return hapax.Allocation{}, err
	}
	limited, cancel := t.db.Limit(ctx)
	defer cancel()
	if err := t.compare(limited); err != nil {
		return hapax.Allocation{}, t.db.Fail(ctx, "leaf_alloc", err)
	}
	c, err := t.marks.Begin(witness.TagLine(tag))
	if err != nil {
		return hapax.Allocation{}, err
	}
	r, g, err := t.advance(limited, tag, n, c.Since)
	if errors.Is(err, hapax.ErrStoreRolledBack) {
		err = t.marks.Behind(witness.TagLine(tag), err)
	}
	if err != nil {
		return hapax.Allocation{}, t.db.Fail(ctx, "leaf_alloc", err)
	}
	if err := c.Accept(g); err != nil {
		return hapax.Allocation{}, err
	}
	return hapax.Allocation{Grant: g, Tag: r.asTag(), From: g.Lo}, nil
}

// compare looks at all rows once before the first is used, and refuses those that are
// behind the witness. A row without a mark may hold anything: it is judged when it is
// used.
func (t *Table) compare(ctx context.Context) error {
	if !t.marks.Durable() || t.checked.Load() {
		return nil
	}
	known := t.marks.Lines() // from before the rows are read
	err := t.rows(ctx, "", func(r row) bool {
		if mark, ok := known[witness.TagLine(r.tag)]; ok && r.maxID < mark {
			_ = t.marks.Behind(witness.TagLine(r.tag), t.behind(r, mark)) // told where the row is used
		}
		return true
	})
	if err != nil {
		return err
	}
	t.checked.Store(true)
	return nil
}

// behind is the error for a row that is behind a mark.
func (t *Table) behind(r row, mark int64) error {
	return fmt.Errorf("%w: row %q of leaf_alloc has max_id %d, but numbers up to %d are taken: set max_id to %d or more",
		hapax.ErrStoreRolledBack, r.tag, r.maxID, mark-1, mark)
}

// advance raises the row's max_id and returns the row after that, with the
// segment. What is refused is not committed: a row that cannot be used, and one
// below what this handle was granted before, which was set back, stays as it is, so
// that asking again does not move it past the refusal. An error of the commit
// leaves it unknown whether the row was raised.
func (t *Table) advance(ctx context.Context, tag string, n, taken int64) (row, hapax.Grant, error) {
	none := hapax.Grant{}
	// Both statements in one transaction: between them another node could raise the row once more.
	tx, err := t.db.SQL.BeginTx(ctx, nil)
	if err != nil {
		return row{}, none, err
	}
	defer func() { _ = tx.Rollback() }() // does nothing after the commit
	if n == 0 {
		_, err = tx.ExecContext(ctx, "UPDATE leaf_alloc SET max_id = max_id + step"+exactly, tag, tag)
	} else {
		_, err = tx.ExecContext(ctx, "UPDATE leaf_alloc SET max_id = max_id + ?"+exactly, n, tag, tag)
	}
	if mysqldb.OutOfRange(err) {
		return row{}, none, fmt.Errorf("%w: row %q of leaf_alloc", hapax.ErrLineExhausted, tag)
	}
	if err != nil {
		return row{}, none, err
	}
	r := row{tag: tag}
	err = tx.QueryRowContext(ctx, "SELECT max_id, step FROM leaf_alloc"+exactly, tag, tag).Scan(&r.maxID, &r.step)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return row{}, none, t.missing(tag)
	case err != nil:
		return row{}, none, err
	}
	width := n
	if n == 0 {
		width = r.step
	}
	g := hapax.Grant{Lo: r.maxID - width, Hi: r.maxID}
	before := row{tag, g.Lo, r.step}
	if err := before.check(); err != nil {
		return row{}, none, err
	}
	if g.Hi > hapax.MaxMark {
		return row{}, none, driver.Exhausted(before.asTag(), width)
	}
	if g.Lo < taken {
		return row{}, none, t.behind(before, taken)
	}
	return r, g, tx.Commit()
}

// missing returns the error for a tag without a row: ErrTagDeleted where there
// was one.
func (t *Table) missing(tag string) error {
	if _, used := t.marks.Mark(witness.TagLine(tag)); used {
		return fmt.Errorf("%w: row %q is gone from leaf_alloc", hapax.ErrTagDeleted, tag)
	}
	return fmt.Errorf("%w: leaf_alloc has no row %q", hapax.ErrTagNotFound, tag)
}

// HandBack implements hapax.SegmentStore: the table has no token that would tell
// a late hand-back from a good one.
func (t *Table) HandBack(context.Context, hapax.Allocation, int64) error {
	return fmt.Errorf("%w: leaf_alloc takes no numbers back", hapax.ErrNotSupported)
}

// CreateTag implements hapax.SegmentStore: Leaf's tags are rows that whoever runs
// the table inserts.
func (t *Table) CreateTag(_ context.Context, tag hapax.Tag, _ hapax.CreateMode) (hapax.Tag, error) {
	return hapax.Tag{}, fmt.Errorf("%w: tags of leaf_alloc are made by hand: INSERT INTO leaf_alloc (biz_tag, max_id, step, description) VALUES (%s, %d, %d, '')",
		hapax.ErrNotSupported, mysqldb.Quote(tag.Name), max(tag.Start, 1), max(tag.Step, 1))
}

// Tag implements driver.TagStore.
func (t *Table) Tag(ctx context.Context, name string) (hapax.Tag, error) {
	if err := hapax.ValidateName("tag", name); err != nil {
		return hapax.Tag{}, err
	}
	limited, cancel := t.db.Limit(ctx)
	defer cancel()
	c, err := t.marks.Begin(witness.TagLine(name))
	if err != nil {
		return hapax.Tag{}, err
	}
	r := row{tag: name}
	err = t.db.SQL.QueryRowContext(limited, "SELECT max_id, step FROM leaf_alloc"+exactly, name, name).Scan(&r.maxID, &r.step)
	if errors.Is(err, sql.ErrNoRows) {
		return hapax.Tag{}, fmt.Errorf("%w: leaf_alloc has no row %q", hapax.ErrTagNotFound, name)
	}
	if err == nil {
		err = r.check()
	}
	if err == nil && t.marks.Durable() && r.maxID < c.Since {
		err = t.marks.Behind(witness.TagLine(name), t.behind(r, c.Since))
	}
	return r.asTag(), t.db.Fail(ctx, "leaf_alloc", err)
}

// Tags implements driver.TagStore. Rows that cannot be used are left out, and told
// to TableOptions.Warn.
func (t *Table) Tags(ctx context.Context, after string, limit int) ([]hapax.Tag, error) {
	if limit <= 0 {
		return nil, nil
	}
	var tags []hapax.Tag
	err := t.rows(ctx, after, func(r row) bool {
		switch err := r.check(); {
		case err == nil:
			tags = append(tags, r.asTag())
		case r.maxID != closedMark:
			t.warn("bad_row", err.Error())
		}
		return len(tags) < limit
	})
	return tags, err
}

// rows calls f for the rows whose keys come after the given one, in the byte order of
// keys, until f returns false. After "" come all, also the row whose key is empty, the
// column's default: no Leaf issues from it, but whoever moves the table is told of it.
func (t *Table) rows(ctx context.Context, after string, f func(row) bool) error {
	limited, cancel := t.db.Limit(ctx)
	defer cancel()
	rows, err := t.db.SQL.QueryContext(limited, "SELECT "+byteKey+", max_id, step FROM leaf_alloc WHERE ? = '' OR "+byteKey+
		" > CAST(? AS BINARY) ORDER BY "+byteKey, after, after)
	if err != nil {
		return t.db.Fail(ctx, "leaf_alloc", err)
	}
	defer rows.Close()
	for rows.Next() {
		var r row
		if err := rows.Scan(&r.tag, &r.maxID, &r.step); err != nil {
			return t.db.Fail(ctx, "leaf_alloc", err)
		}
		if !f(r) {
			return nil
		}
	}
	return t.db.Fail(ctx, "leaf_alloc", rows.Err())
}

// UpdateTag implements driver.TagStore: rows are changed in the table.
func (t *Table) UpdateTag(_ context.Context, name string, _ driver.TagUpdate) (hapax.Tag, error) {
	return hapax.Tag{}, fmt.Errorf("%w: change the row instead: UPDATE leaf_alloc SET step = … WHERE biz_tag = %s; it counts from the next segment on", hapax.ErrNotSupported, mysqldb.Quote(name))
}

// DeleteTag implements driver.TagStore: rows are removed in the table.
func (t *Table) DeleteTag(_ context.Context, name string) (hapax.Tag, error) {
	return hapax.Tag{}, fmt.Errorf("%w: remove the row instead: DELETE FROM leaf_alloc WHERE biz_tag = %s; keep its max_id, as the table keeps no tombstone", hapax.ErrNotSupported, mysqldb.Quote(name))
}

// Ping reports whether the table answers. Rows that are behind the witness are found
// by the first call, too; see Refused.
func (t *Table) Ping(ctx context.Context) error {
	if err := t.probe(ctx); err != nil {
		return err
	}
	limited, cancel := t.db.Limit(ctx)
	defer cancel()
	return t.db.Fail(ctx, "leaf_alloc", t.compare(limited))
}

// Refused returns why rows are refused until Adopt, by tag.
func (t *Table) Refused() map[string]error { return refused(t.marks.RefusedLines()) }

// refused returns lines that are refused by tag.
func refused(lines map[string]string) map[string]error {
	all := map[string]error{}
	for line, why := range lines {
		if tag, ok := witness.CutTagLine(line); ok {
			all[tag] = fmt.Errorf("%w: %s", hapax.ErrFenced, why)
		}
	}
	return all
}

func (t *Table) probe(ctx context.Context) error {
	return t.db.Probe(ctx, "leaf_alloc", "SELECT biz_tag, max_id, step FROM leaf_alloc LIMIT 1")
}

// Close closes the handle, unless it is the caller's.
func (t *Table) Close() error { return t.db.Close() }
