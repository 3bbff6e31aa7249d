package sqlstore

import (
	"context"
	"database/sql"
	"strings"

	"github.com/hapax-id/hapax/store/driver"
)

// A shape tells what kinds of changes a step has.
type shape int

const (
	updates shape = 1 << iota
	deletes       // of rows
	inserts       // that are made or not
	founds        // inserts that are made, or nothing is done
	raises        // of rows that may be missing
)

func shapeOf(items []*item) (s shape) {
	for _, it := range items {
		switch {
		case it.role == beats:
			s |= updates
		case it.role == raised:
			s |= updates | raises
		case it.swaps() && it.next == nil:
			s |= deletes
		case it.swaps():
			s |= updates
		case it.adds() && it.role == each:
			s |= inserts
		case it.adds():
			s |= founds
		}
	}
	return s
}

const (
	postgresGet = "SELECT 0::bigint, value FROM {meta} WHERE name = '" + metaStoreID + "' AND value = ? UNION ALL SELECT k.i, {value}" +
		" FROM unnest(CAST(CAST(? AS text) AS text[]), CAST(CAST(? AS text) AS text[])) WITH ORDINALITY AS k(tbl, name, i) JOIN {rows} r ON r.tbl = k.tbl AND r.name = k.name"

	// The rows are locked one after the other, in the order of the items, and each is then as it
	// is now, which may be later than the statement's snapshot. Changes follow when all were
	// judged. A fence is that of the snapshot: one that was acknowledged before the statement
	// began is seen.
	//nolint:unqueryvet // all columns are those of the item above
	postgresStep = `WITH here AS (SELECT EXISTS (SELECT 1 FROM {meta} WHERE name = '` + metaStoreID + `' AND value = ?) AS here),
		item AS (SELECT u.*, CASE WHEN u.role IN ('a', 'k')
				THEN (SELECT r.value FROM {rows} r WHERE r.tbl = u.tbl AND r.name = u.name)
				ELSE (SELECT r.value FROM {rows} r WHERE r.tbl = u.tbl AND r.name = u.name FOR UPDATE) END AS value
			FROM unnest(CAST(CAST(? AS text) AS text[]), CAST(CAST(? AS text) AS text[]), CAST(CAST(? AS text) AS text[]),
				CAST(CAST(? AS text) AS text[]), CAST(CAST(? AS text) AS text[])) WITH ORDINALITY AS u(role, tbl, name, old, next, i) OFFSET 0),
		judged AS (SELECT *, CASE WHEN role = 'a' THEN value IS NULL
				WHEN role IN ('s', 't', 'e') THEN value COLLATE "C" IS NOT DISTINCT FROM old
				WHEN role IN ('l', 'b') THEN COALESCE(value COLLATE "C" >= old, false) ELSE true END AS fits FROM item),
		met AS (SELECT (SELECT here FROM here) AND COALESCE(bool_and(fits OR role = 'e'), true)
				AND COALESCE(bool_or(fits) FILTER (WHERE role IN ('t', 'e')), true) AS met FROM judged)`
	postgresUpdates = `, change AS (UPDATE {rows} r SET value = j.next FROM judged j WHERE (SELECT met FROM met) AND r.tbl = j.tbl AND r.name = j.name
			AND j.fits AND j.next IS NOT NULL AND (j.role IN ('t', 'e') OR j.value COLLATE "C" < j.next))`
	postgresDeletes = `, removal AS (DELETE FROM {rows} r USING judged j WHERE (SELECT met FROM met) AND r.tbl = j.tbl AND r.name = j.name
			AND j.fits AND j.next IS NULL AND j.role IN ('t', 'e'))`
	postgresAdds = `INSERT INTO {rows} AS r (tbl, name, value) SELECT j.tbl, j.name, j.next FROM judged j
			WHERE (SELECT met FROM met) AND j.fits AND j.value IS NULL AND j.next IS NOT NULL AND j.role = `
	postgresInserts = ", addition AS (" + postgresAdds + "'e' ON CONFLICT DO NOTHING RETURNING r.tbl, r.name)"
	postgresFounds  = ", foundation AS (" + postgresAdds + "'t')"
	postgresRaises  = ", raise AS (" + postgresAdds + "'r' ON CONFLICT (tbl, name) DO UPDATE SET value = excluded.value WHERE r.value < excluded.value)"
	// What has changed nothing has nothing to make durable: its locks, which others wait for, end
	// without a sync.
	postgresTell = ` SELECT 0::bigint, met, CASE WHEN NOT met THEN set_config('synchronous_commit', 'off', true) END, NULL::text FROM here CROSS JOIN met WHERE here
		UNION ALL SELECT i, true, CASE WHEN value IS NULL THEN NULL ELSE {value} END, NULL FROM judged WHERE NOT fits OR role IN ('k', 'x') OR NOT (SELECT met FROM met)`
	postgresTellInserts = " UNION ALL SELECT -1, true, tbl, name FROM addition"
)

// postgresGrant is the statement of a step that changes one row under a pulse, as most grants
// do: postgresStep, which lists the rows first, takes the server half as long again. The rows are
// locked in the same order.
var postgresGrant = `WITH l AS MATERIALIZED (SELECT EXISTS (SELECT 1 FROM {meta} WHERE name = '` + metaStoreID + `' AND value = ?) AS here,
		(SELECT r.value FROM {rows} r WHERE r.tbl = ? AND r.name = ? FOR UPDATE) AS tag,
		(SELECT r.value FROM {rows} r WHERE r.tbl = ? AND r.name = ? FOR UPDATE) AS own,
		(SELECT {value} FROM {rows} WHERE tbl = ? AND name = ?) AS fence,
		(SELECT {value} FROM {rows} WHERE tbl = ? AND name = ?) AS look),
	m AS MATERIALIZED (SELECT here, tag, own, fence, look, COALESCE(here AND tag = ? AND own >= ? AND fence IS NULL, false) AS met FROM l),
	change AS (UPDATE {rows} r SET value = ? WHERE (SELECT met FROM m) AND r.tbl = ? AND r.name = ?),
	raise AS (UPDATE {rows} r SET value = ? WHERE (SELECT met FROM m) AND r.tbl = ? AND r.name = ? AND r.value < ?)
	SELECT met, CASE WHEN NOT met THEN set_config('synchronous_commit', 'off', true) END,
		CASE WHEN NOT met AND tag IS NOT NULL THEN ` + strings.ReplaceAll(bounded, "value", "tag") + ` END,
		CASE WHEN NOT met AND own IS NOT NULL THEN ` + strings.ReplaceAll(bounded, "value", "own") + ` END, fence, look FROM m WHERE here`

// postgresGrantAt is its place among the statements of steps.
const postgresGrantAt = int(raises << 1)

// postgresSteps are the statements of all shapes, and postgresGrant.
func postgresSteps() []string {
	all := make([]string, postgresGrantAt, postgresGrantAt+1)
	for i := range all {
		text, tell := postgresStep, postgresTell
		for _, part := range []struct {
			of   shape
			text string
		}{{updates, postgresUpdates}, {deletes, postgresDeletes}, {inserts, postgresInserts}, {founds, postgresFounds}, {raises, postgresRaises}} {
			if shape(i)&part.of != 0 {
				text += part.text
			}
		}
		if shape(i)&inserts != 0 {
			tell += postgresTellInserts
		}
		all[i] = text + tell
	}
	return append(all, postgresGrant)
}

// postgresFind reads the items' rows, or locks them, too, by a step that changes nothing.
func postgresFind(ctx context.Context, c *sql.Conn, s *Store, items []*item, lock bool) error {
	if lock {
		_, _, err := postgresTry(ctx, c, s, items)
		return err
	}
	var tables, names []*string
	for _, it := range items {
		tables, names, it.now = append(tables, &it.Table), append(names, &it.Name), &driver.Cell{Known: true}
	}
	return s.read(ctx, c, s.sql.get, []any{s.id, textArray(tables), textArray(names)}, false, func(rows *sql.Rows) (here bool, err error) {
		var i int
		var value []byte
		if err := rows.Scan(&i, &value); err != nil || i == 0 {
			return true, err
		}
		it := items[i-1]
		it.now.Value, err = s.dialect.value(it.Key, value)
		return false, err
	})
}

// postgresStepRows makes a step by one statement. It is made anew where another process has
// added a row meanwhile that all else hangs on.
func postgresStepRows(ctx context.Context, c *sql.Conn, s *Store, step driver.Step, items []*item, locked lockedRows) (driver.Result, error) {
	if g := grantOf(items); g != nil {
		met, err := g.try(ctx, c, s)
		if err != nil {
			return driver.Result{}, err
		}
		return resultOf(step, items, met, func(*item) bool { return true }), nil
	}
	for {
		met, added, err := postgresTry(ctx, c, s, items)
		if err == nil {
			// The answer names rows that do not fit. A row to be added by itself may fit and have been added by
			// another step first.
			return resultOf(step, items, met, func(it *item) bool {
				return it.now == nil && (it.role == then || it.old != nil || added[it.Key])
			}), nil
		}
		// A failed statement has ended the transaction: nothing can be tried again within.
		if locked != nil || s.dialect.classify(err) != exists {
			return driver.Result{}, err
		}
	}
}

// A grant is a step of postgresGrant's form.
type grant struct{ tag, beat, fence, look *item }

// grantOf returns nil for a step of another form.
func grantOf(items []*item) *grant {
	var g grant
	for _, it := range items {
		switch {
		case it.role == each && it.swaps() && it.next != nil && g.tag == nil && g.beat == nil: // locked first, as by all steps
			g.tag = it
		case it.role == beats && g.beat == nil:
			g.beat = it
		case it.role == absent && g.fence == nil:
			g.fence = it
		case it.role == looks && g.look == nil:
			g.look = it
		default:
			return nil
		}
	}
	if g.tag == nil || g.beat == nil || g.fence == nil || g.look == nil {
		return nil
	}
	return &g
}

// try makes the statement, notes the rows that it tells of, and returns whether the step was done.
func (g *grant) try(ctx context.Context, c *sql.Conn, s *Store) (met bool, err error) {
	tag, beat := g.tag, g.beat
	now := s.textOf(beat.next)
	args := []any{
		s.id, tag.Table, tag.Name, beat.Table, beat.Name, g.fence.Table, g.fence.Name, g.look.Table, g.look.Name,
		s.textOf(tag.old), s.textOf(beat.old), s.textOf(tag.next), tag.Table, tag.Name, now, beat.Table, beat.Name, now,
	}
	found := []*item{tag, beat, g.fence, g.look}
	err = s.read(ctx, c, s.sql.steps[postgresGrantAt], args, false, func(rows *sql.Rows) (here bool, err error) {
		var values [5]sql.NullString
		if err := rows.Scan(&met, &values[0], &values[1], &values[2], &values[3], &values[4]); err != nil {
			return false, err
		}
		for i, it := range found {
			if it.now = nil; met && it != g.look {
				continue
			}
			it.now = &driver.Cell{Known: true}
			if value := values[i+1]; value.Valid {
				if it.now.Value, err = s.dialect.value(it.Key, []byte(value.String)); err != nil {
					return false, err
				}
			}
		}
		return true, nil
	})
	return met, err
}

// postgresTry makes the statement, notes the rows that it tells of, and returns whether the
// conditions held and which rows were added by themselves.
func postgresTry(ctx context.Context, c *sql.Conn, s *Store, items []*item) (met bool, added map[driver.Key]bool, err error) {
	columns := [5][]*string{}
	for _, it := range items {
		r := string(it.role)
		for i, text := range []*string{&r, &it.Table, &it.Name, s.textOf(it.old), s.textOf(it.next)} {
			columns[i] = append(columns[i], text)
		}
		it.now = nil
	}
	args := []any{s.id}
	for _, column := range columns {
		args = append(args, textArray(column))
	}
	added = map[driver.Key]bool{}
	err = s.read(ctx, c, s.sql.steps[shapeOf(items)], args, false, func(rows *sql.Rows) (here bool, err error) {
		var i int
		var yes bool
		var value, name sql.NullString
		if err := rows.Scan(&i, &yes, &value, &name); err != nil {
			return false, err
		}
		switch {
		case i == 0:
			met = yes
			return true, nil
		case i < 0:
			added[driver.Key{Table: value.String, Name: name.String}] = true
			return false, nil
		}
		it := items[i-1]
		it.now = &driver.Cell{Known: true}
		if value.Valid {
			it.now.Value, err = s.dialect.value(it.Key, []byte(value.String))
		}
		return false, err
	})
	return met, added, err
}

// textOf is a value as a text; nil where there is none.
func (s *Store) textOf(value []byte) *string {
	if value == nil {
		return nil
	}
	text := string(s.dialect.text(value))
	return &text
}

// textArray is an array of texts as PostgreSQL reads one; nil is NULL.
func textArray(texts []*string) string {
	var b strings.Builder
	b.WriteByte('{')
	for i, text := range texts {
		if i > 0 {
			b.WriteByte(',')
		}
		if text == nil {
			b.WriteString("NULL")
			continue
		}
		b.WriteByte('"')
		for _, part := range []byte(*text) {
			if part == '"' || part == '\\' {
				b.WriteByte('\\')
			}
			b.WriteByte(part)
		}
		b.WriteByte('"')
	}
	b.WriteByte('}')
	return b.String()
}
