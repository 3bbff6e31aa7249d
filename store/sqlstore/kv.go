package sqlstore

import (
	"bytes"
	"cmp"
	"context"
	"database/sql"
	"encoding/hex"
	"fmt"
	"math"
	"slices"
	"strconv"
	"unicode/utf8"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
)

// maxItems bounds the rows that one step names.
const maxItems = 2000

// bounded is a row's value as it is read: empty, which no value is, where it is too long.
var bounded = "CASE WHEN OCTET_LENGTH(value) <= " + strconv.Itoa(len(escape)+2*driver.MaxValueBytes) + " THEN value ELSE '' END"

// escape begins a value of PostgreSQL that is no text, or begins so itself. Its bytes follow in
// hexadecimal digits.
const escape = `\x`

// A space is the rows of a store. It implements driver.KV. Values that are equal mean equal
// states, so that cells have no version.
type space struct{ *Store }

var _ driver.LockingKV = space{}

// Get implements driver.KV. Whatever lag is allowed, the primary answers.
func (s space) Get(ctx context.Context, _ driver.Freshness, keys ...driver.Key) (cells []driver.Cell, err error) {
	if len(keys) > maxItems {
		return nil, &hapax.ValueError{Field: "keys", Value: len(keys), Allowed: fmt.Sprintf("at most %d", maxItems), Err: hapax.ErrInvalidArgument}
	}
	err = s.do(ctx, "read rows", func(ctx context.Context, c *sql.Conn) error {
		cells, err = s.find(ctx, c, keys, looks)
		return err
	})
	return cells, err
}

// find returns rows, in the order of their keys.
func (s space) find(ctx context.Context, c *sql.Conn, keys []driver.Key, as role) ([]driver.Cell, error) {
	items := make([]*item, len(keys))
	for i, key := range keys {
		items[i] = &item{role: as, Key: key}
	}
	// A copy in the order of locks: the answer keeps the order of the keys.
	if err := s.dialect.findRows(ctx, c, s.Store, sorted(slices.Clone(items)), as == locks); err != nil {
		return nil, err
	}
	cells := make([]driver.Cell, len(keys))
	for i, it := range items {
		cells[i] = *it.now
	}
	return cells, nil
}

// Scan implements driver.KV.
func (s space) Scan(ctx context.Context, table, after string, limit int) (page []driver.Row, err error) {
	limit = min(max(limit, 0), math.MaxInt32)
	err = s.do(ctx, "list rows", func(ctx context.Context, c *sql.Conn) error {
		// An attempt that failed midway has left rows.
		page = nil
		return s.read(ctx, c, s.sql.scan, []any{s.id, table, after, int64(limit)}, false, func(rows *sql.Rows) (here bool, err error) {
			var row driver.Row
			if err := rows.Scan(&row.Name, &row.Value); err != nil || row.Name == "" {
				return true, err
			}
			row.Value, err = s.dialect.value(driver.Key{Table: table, Name: row.Name}, row.Value)
			page = append(page, row)
			return false, err
		})
	})
	return page, err
}

// Step implements driver.KV.
func (s space) Step(ctx context.Context, step driver.Step) (result driver.Result, err error) {
	items, err := itemsOf(s.dialect, step)
	if err != nil {
		return driver.Result{}, err
	}
	err = s.do(ctx, "change rows", func(ctx context.Context, c *sql.Conn) error {
		result, err = s.dialect.stepRows(ctx, c, s.Store, step, items, nil)
		result.Primary = s.primaryOf(c)
		return err
	})
	if err != nil {
		return driver.Result{}, err
	}
	return result, nil
}

// StepLocked implements driver.LockingKV. It is a transaction.
func (s space) StepLocked(ctx context.Context, keys []driver.Key, f func([]driver.Cell) (driver.Step, error)) (result driver.Result, err error) {
	err = s.do(ctx, "change locked rows", func(ctx context.Context, c *sql.Conn) error {
		tx, err := c.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback() }() // does nothing after a commit
		cells, err := s.find(ctx, c, keys, locks)
		if err != nil {
			return err
		}
		step, err := f(cells)
		if err != nil {
			return err
		}
		items, err := itemsOf(s.dialect, step)
		if err != nil {
			return err
		}
		locked := make(lockedRows, len(keys))
		for i, key := range keys {
			locked[key] = cells[i]
		}
		if result, err = s.dialect.stepRows(ctx, c, s.Store, step, items, locked); err != nil {
			return err
		}
		result.Primary = s.primaryOf(c)
		return tx.Commit()
	})
	if err != nil {
		return driver.Result{}, err
	}
	return result, nil
}

// lockedRows are rows that a transaction has locked, and how they are; nil outside of one.
type lockedRows map[driver.Key]driver.Cell

// hold reports whether a row is locked, and the one that is to be changed.
func (l lockedRows) hold(it *item) bool {
	cell, ok := l[it.Key]
	return ok && cell.Value != nil && bytes.Equal(cell.Value, it.old)
}

// read calls f for each row of a query, one of which tells, as f reports, that the store is the
// one that New found, unless it is known to be here. It reads the statement to its end: what a server reports after the rows,
// such as a failed commit, is an error, too.
func (s *Store) read(ctx context.Context, c *sql.Conn, query string, args []any, here bool, f func(*sql.Rows) (here bool, err error)) error {
	rows, err := c.QueryContext(ctx, query, s.dialect.args(args)...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		says, err := f(rows)
		if err != nil {
			return err
		}
		here = here || says
	}
	if err := rows.Err(); err != nil || here {
		return err
	}
	_ = rows.Close() // the connection is used again
	return s.notHere(ctx, c)
}

// value returns the value of a row that was read. A tag's that is none is empty: package driver
// refuses that tag alone, where an error would end the call for all rows that it names or lists.
func (d *dialect) value(key driver.Key, raw []byte) ([]byte, error) {
	value := raw
	if digits, escaped := bytes.CutPrefix(raw, []byte(escape)); escaped && d.texts {
		value, _ = hex.AppendDecode(nil, digits) // malformed hex gives a value that fits nothing
		// A value has one text, by which rows are compared: a swap of another spelling would never succeed.
		if !bytes.Equal(d.text(value), raw) {
			value = nil
		}
	}
	if len(value) > 0 && len(value) <= driver.MaxValueBytes {
		return value, nil
	}
	if key.Table == "" {
		return []byte{}, nil
	}
	return nil, fmt.Errorf("%w: row %q of table %q is empty, longer than %d bytes or escaped wrongly: %.80q", hapax.ErrStoreCorrupt, key.Name, key.Table, driver.MaxValueBytes, raw)
}

// text returns a value as it is stored. That of no text is not ordered as its bytes are.
func (d *dialect) text(value []byte) []byte {
	if value == nil || !d.texts || utf8.Valid(value) && bytes.IndexByte(value, 0) < 0 && !bytes.HasPrefix(value, []byte(escape)) {
		return value
	}
	return hex.AppendEncode([]byte(escape), value)
}

// A role tells what a step does with a row. PostgreSQL's statement knows them by their letters.
type role string

const (
	absent role = "a" // there is no such row
	same   role = "s" // it is still old
	least  role = "l" // it is at or above old
	beats  role = "b" // least, and raised to next
	raised role = "r" // raised to next
	then   role = "t" // swapped from old to next, or nothing is done
	each   role = "e" // swapped from old to next
	looks  role = "k" // read
	locks  role = "x" // read, and kept from others until the end of the transaction
)

// An item is one row of a step.
type item struct {
	role
	driver.Key
	old, next []byte
	at        int          // which one it is of those of its role; the condition, of beats
	now       *driver.Cell // the row as it was found; nil: unknown
}

// swaps reports whether the row is there and is to be another one.
func (i *item) swaps() bool { return (i.role == then || i.role == each) && i.old != nil }

// keeps reports whether the row stays what it is, which MySQL counts as no change.
func (i *item) keeps() bool { return i.swaps() && bytes.Equal(i.old, i.next) }

// adds reports whether the row is to be there.
func (i *item) adds() bool { return (i.role == then || i.role == each) && i.old == nil }

// fits reports whether the row as it was found lets the item be done.
func (i *item) fits() bool {
	value := i.now.Value
	switch i.role {
	case absent:
		return value == nil
	case same, then, each:
		return (value == nil) == (i.old == nil) && bytes.Equal(value, i.old)
	case least, beats:
		return value != nil && bytes.Compare(value, i.old) >= 0
	}
	return true
}

// itemsOf returns the rows of a step in the order in which PostgreSQL locks them, by which no two
// steps wait for each other. The tags, whose table has no name, come first: a step that waits
// for one keeps nobody from the row of its process, which the heartbeats need. For MySQL's order
// see mysqlFind.
func itemsOf(d *dialect, step driver.Step) ([]*item, error) {
	items := make([]*item, 0, len(step.If)+len(step.Raise)+len(step.Then)+len(step.Each)+len(step.Look))
	for i, c := range step.If {
		it := &item{role: same, Key: c.Key, old: c.Same.Value, at: i}
		switch {
		case c.Least != nil:
			it.role, it.old = least, c.Least
		case c.Same.Value == nil:
			it.role = absent
		}
		items = append(items, it)
	}
raise:
	for i, p := range step.Raise {
		// A beat's condition and its raise are of one row, which a statement may lock and judge once.
		for _, it := range items[:len(step.If)] {
			if it.role == least && it.Key == p.Key {
				it.role, it.next = beats, p.Value
				continue raise
			}
		}
		items = append(items, &item{role: raised, Key: p.Key, next: p.Value, at: i})
	}
	for i, c := range step.Then {
		items = append(items, &item{role: then, Key: c.Key, old: c.Old.Value, next: c.Next, at: i})
	}
	for i, c := range step.Each {
		items = append(items, &item{role: each, Key: c.Key, old: c.Old.Value, next: c.Next, at: i})
	}
	for i, k := range step.Look {
		items = append(items, &item{role: looks, Key: k, at: i})
	}
	if len(items) > maxItems {
		return nil, fmt.Errorf("%w: %d rows; at most %d", driver.ErrTooMany, len(items), maxItems)
	}
	for _, it := range items {
		ordered := it.role == least || it.role == beats || it.role == raised
		for _, value := range [][]byte{it.old, it.next} {
			if len(value) > driver.MaxValueBytes || ordered && !bytes.Equal(d.text(value), value) {
				return nil, &hapax.ValueError{
					Field: "value of row " + strconv.Quote(it.Name), Value: fmt.Sprintf("%.80q", value),
					Allowed: fmt.Sprintf("at most %d bytes, and UTF-8 without NUL where its order matters", driver.MaxValueBytes), Err: hapax.ErrInvalidArgument,
				}
			}
		}
	}
	return sorted(items), nil
}

func sorted(items []*item) []*item {
	slices.SortStableFunc(items, func(x, y *item) int { return cmp.Or(cmp.Compare(x.Table, y.Table), cmp.Compare(x.Name, y.Name)) })
	return items
}

// resultOf is a step's result, from what was found of its rows. done tells what was done of a
// step whose conditions held.
func resultOf(step driver.Step, items []*item, met bool, done func(*item) bool) driver.Result {
	r := driver.Result{
		Met: met, If: make([]driver.Cell, len(step.If)),
		Then: make([]driver.Outcome, len(step.Then)), Each: make([]driver.Outcome, len(step.Each)), Look: make([]driver.Cell, len(step.Look)),
	}
	for _, it := range items {
		var now driver.Cell
		if it.now != nil {
			now = *it.now
		}
		switch it.role {
		case absent, same, least, beats:
			r.If[it.at] = now
		case looks:
			r.Look[it.at] = now
		case then, each:
			o := driver.Outcome{Now: now}
			if o.Done = met && done(it); o.Done {
				o.Now = driver.Cell{Value: it.next, Known: true}
			}
			if it.role == then {
				r.Then[it.at] = o
			} else {
				r.Each[it.at] = o
			}
		}
	}
	return r
}
