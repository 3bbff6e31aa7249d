package sqlstore

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
)

// A guardedCall names a query of a guarded call.
type guardedCall int

const (
	guardedBeat  guardedCall = iota // in another call's transaction
	guardedAlone                    // a beat alone, which tells more
	guardedAllocate
	guardedHandBack
	guardedHandBackAll
	guardedUpdate
	guardedInsert
	guardedDelete
	guardedLook   // reads what guardedAnswer holds, and changes nothing
	guardedJoins  // reads the counter alone
	guardedFollow // is added to a call whose row should be as far as Now; see driver.Convoy
)

// A guardedQuery is a query with {row}, {now}, {was}, {id}, {joins} and {watch} in place of the
// pulse's arguments, the store's ID and the counter as it was last, and question marks
// for the others.
type guardedQuery struct {
	text  string
	order []string // of the arguments: a name, or empty for the next of the others
}

func (q *guardedQuery) compile(d *dialect, tables *strings.Replacer) {
	var b strings.Builder
	rest := tables.Replace(q.text)
	for {
		i := strings.IndexAny(rest, "{?")
		if i < 0 {
			break
		}
		b.WriteString(rest[:i] + "?")
		if rest[i] == '?' {
			q.order, rest = append(q.order, ""), rest[i+1:]
			continue
		}
		name, after, _ := strings.Cut(rest[i+1:], "}")
		q.order, rest = append(q.order, name), after
	}
	q.text = d.bind(b.String() + rest)
}

// A pulse is a driver.Pulse as arguments.
type pulse struct {
	row      string
	was, now []byte
	id       string // of the store
	follows  bool   // the row should be as far as now; see driver.Convoy
	joins    []byte // the counter as it was found last
	watch    string // another process's row to look at; empty: none
}

// args returns a query's arguments in order.
func (q *guardedQuery) args(p pulse, others []any) []any {
	args := make([]any, 0, len(q.order))
	for _, name := range q.order {
		switch name {
		case "row":
			args = append(args, p.row)
		case "was":
			args = append(args, p.was)
		case "now":
			args = append(args, p.now)
		case "id":
			args = append(args, p.id)
		case "joins":
			args = append(args, p.joins)
		case "watch":
			args = append(args, p.watch)
		default:
			args, others = append(args, others[0]), others[1:]
		}
	}
	return args
}

// A guardedAnswer is what a guarded query found and did.
type guardedAnswer struct {
	here              bool // the store is the one that New found
	met               bool // the beat was made
	changed           bool
	own, fence, joins []byte  // rows; own and fence may be missing where met is true
	changes, watched  []byte  // rows that a beat alone has found besides
	watches           bool    // watched was looked at
	mark, run         int64   // of a tag that was changed, as swap returns them
	all               []int64 // which of many were changed
}

// guarded runs f, which makes guarded queries by its argument, and returns the
// contact of the last one.
func (s *Store) guarded(ctx context.Context, op string, p driver.Pulse, f func(ctx context.Context, c *sql.Conn, query query) error) (contact driver.Contact, err error) {
	if err := p.Check(); err != nil {
		return contact, err
	}
	waits, cancel := context.WithTimeout(ctx, s.opts.Timeout)
	now, leads, ended, err := s.convoy.Join(waits, p.Row, p.Now.Encode())
	cancel()
	if err != nil {
		return contact, s.fail(ctx, op, err)
	}
	defer func() { ended(contact.Met) }()
	args := pulse{row: p.Row, was: p.Was.Encode(), now: now, id: s.id, follows: !leads, watch: p.Watch}
	err = s.do(ctx, op, func(ctx context.Context, c *sql.Conn) error {
		contact = driver.Contact{}
		query := func(call guardedCall, others ...any) (guardedAnswer, error) {
			args.joins = s.lastJoins()
			m, err := s.dialect.answer(ctx, c, s, call, args, others)
			if err != nil {
				return m, err
			}
			s.noteJoins(m.joins)
			if !m.here {
				if err := s.missed(ctx, c); err != nil {
					return m, err
				}
				return m, fmt.Errorf("%w: the store was another one for a moment", hapax.ErrStoreUnavailable)
			}
			contact.Joins, err = driver.DecodeCounter(driver.TableGuard, driver.RowJoins, m.joins)
			contact.Met, contact.Row, contact.Fence, contact.Primary = m.met, nil, nil, s.primaryOf(c)
			if !m.met {
				contact.Row, contact.Fence = m.own, m.fence
			}
			return m, err
		}
		err := f(ctx, c, query)
		if errors.Is(err, errNoBeat) {
			err = nil
		}
		return err
	})
	if err != nil && !driver.IsOfTag(err) {
		contact = driver.Contact{}
	}
	return contact, err
}

// lastJoins returns the counter of joins as a guarded call found it last, which is what a change
// in MySQL expects.
func (s *Store) lastJoins() []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	return counted(s.joins)
}

func (s *Store) noteJoins(joins []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.joins = joins
}

// Beat implements driver.Guarding. It is one statement, of which MySQL tells no row to watch.
func (s *Store) Beat(ctx context.Context, p driver.Pulse) (driver.Contact, error) {
	var found guardedAnswer
	c, err := s.guarded(ctx, "make a heartbeat", p, func(_ context.Context, _ *sql.Conn, query query) (err error) {
		found, err = query(guardedAlone)
		return err
	})
	if err != nil || !c.Met {
		return c, err
	}
	if !found.watches {
		p.Watch = ""
	}
	return c.Tell(p, found.changes, found.watched)
}

// AllocateWith implements driver.Guarding. It takes what Allocate takes.
func (s *Store) AllocateWith(ctx context.Context, p driver.Pulse, tag string, n int64, last hapax.GrantKey) (a hapax.Allocation, contact driver.Contact, err error) {
	if err := hapax.ValidateName("tag", tag); err != nil {
		return a, contact, err
	}
	contact, err = s.guarded(ctx, "allocate", p, func(ctx context.Context, c *sql.Conn, query query) (err error) {
		a, err = s.advance(ctx, c, tag, n, last, func(args []any) (mark, run int64, ok bool, err error) {
			m, err := query(guardedAllocate, args...)
			if err == nil && !m.met {
				err = errNoBeat
			}
			return m.mark, m.run, m.changed, err
		})
		return err
	})
	return a, contact, err
}

// HandBackWith implements driver.Guarding. It is one statement, and more only
// where nothing is handed back.
func (s *Store) HandBackWith(ctx context.Context, p driver.Pulse, a hapax.Allocation, next int64) (driver.Contact, error) {
	if err := driver.CheckHandBack(a, next); err != nil {
		return driver.Contact{}, err
	}
	return s.guarded(ctx, "hand numbers back", p, func(ctx context.Context, c *sql.Conn, query query) error {
		m, err := query(guardedHandBack, endArgs(a, next)...)
		switch {
		case err != nil || !m.met:
			return err
		case m.changed:
			s.ended(a)
			return nil
		}
		return s.notHeld(ctx, c, a.Tag.Name)
	})
}

// SwapRowWith implements driver.Guarding. It is one statement; MySQL takes another
// one to add or remove a row.
func (s *Store) SwapRowWith(ctx context.Context, p driver.Pulse, table, name string, old, next []byte) (swapped bool, contact driver.Contact, err error) {
	if err := p.CheckSwap(table, name, old, next); err != nil {
		return false, contact, err
	}
	call, args := guardedUpdate, []any{next, table, name, old}
	switch {
	case old == nil:
		call, args = guardedInsert, []any{table, name, next}
	case next == nil:
		call, args = guardedDelete, []any{table, name, old}
	}
	contact, err = s.guarded(ctx, "write a row", p, func(_ context.Context, _ *sql.Conn, query query) error {
		m, err := query(call, args...)
		swapped = m.changed
		return err
	})
	return swapped && err == nil, contact, err
}

// TagsNamed implements driver.Guarding.
func (s *Store) TagsNamed(ctx context.Context, names []string) (tags []hapax.Tag, err error) {
	if len(names) == 0 {
		return nil, nil
	}
	args := make([]any, len(names))
	for i, name := range names {
		args[i] = name
	}
	query := s.sql.tagsNamed + s.dialect.bind(" WHERE name IN (?"+strings.Repeat(", ?", len(names)-1)+")")
	err = s.do(ctx, "read tags", func(ctx context.Context, c *sql.Conn) error {
		tags, err = s.readTags(ctx, c, query, args)
		return err
	})
	return tags, err
}

// Split implements driver.Guarding.
func (s *Store) Split() bool { return false }

// postgresGuarded makes each call one statement. Its own row is locked before the
// tag or row that it changes, and not at all if it is far enough already. The
// fence is that of the statement's snapshot: one that was acknowledged before the
// statement began is seen.
func postgresGuarded(d *dialect, here, same string) map[guardedCall]*guardedQuery {
	const (
		beat = `, beat AS (UPDATE {rows} SET value = GREATEST(value, {now}) WHERE tbl = 'beats' AND name = {row} AND value >= {was}
			AND (SELECT here AND fence IS NULL AND own < {now} FROM seen) RETURNING 1),
			met AS (SELECT COALESCE(here AND fence IS NULL AND (own >= {now} OR EXISTS (SELECT 1 FROM beat)), false) AS met FROM seen)`
		met     = "(SELECT met FROM met)"
		nothing = " RETURNING 0::bigint AS mark, 0::bigint AS run"
	)
	seen := `WITH seen AS (SELECT EXISTS (SELECT 1` + strings.Replace(here, "?", "{id}", 1) + `) AS here,
		(SELECT value FROM {rows} WHERE tbl = 'beats' AND name = {row}) AS own,
		(SELECT value FROM {rows} WHERE tbl = 'fence' AND name = 'loss') AS fence,
		(SELECT value FROM {rows} WHERE tbl = 'guard' AND name = 'joins') AS joins)`
	with := func(change string) *guardedQuery {
		return &guardedQuery{text: seen + beat + ", change AS (" + change + `)
			SELECT here, met, own, fence, joins, mark IS NOT NULL, COALESCE(mark, 0), COALESCE(run, 0)
			FROM seen CROSS JOIN met LEFT JOIN change ON true`}
	}
	return map[guardedCall]*guardedQuery{
		guardedBeat: {text: seen + beat + " SELECT here, met, own, fence, joins, false, 0, 0 FROM seen CROSS JOIN met"},
		guardedAlone: {text: strings.TrimSuffix(seen, ")") + `,
			(SELECT value FROM {rows} WHERE tbl = 'guard' AND name = 'changes') AS changes,
			(SELECT value FROM {rows} WHERE tbl = 'beats' AND name = {watch}) AS watched)` + beat +
			" SELECT here, met, own, fence, joins, false, 0, 0, changes, watched FROM seen CROSS JOIN met"},
		guardedAllocate: with("UPDATE {tags} SET " + d.allocate + " WHERE name = ? AND " + same + " AND mark <= ? AND " + met + " RETURNING mark, run"),
		guardedHandBack: with("UPDATE {tags} SET " + ending + " WHERE name = ? AND " + held + " AND " + met + " RETURNING mark, run"),
		guardedHandBackAll: with(`UPDATE {tags} t SET key_hash = '', run = 0, token = t.token + 1, mark = h.next
			FROM json_to_recordset(CAST(? AS json)) AS h(i bigint, name text COLLATE "C", mark bigint, token bigint, hash text COLLATE "C", next bigint)
			WHERE t.name = h.name AND NOT t.deleted AND t.mark = h.mark AND t.token = h.token AND t.key_hash = h.hash AND t.mark - t.run <= h.next AND ` + met + ` RETURNING h.i AS mark, 0::bigint AS run`),
		guardedUpdate: with("UPDATE {rows} SET value = ? WHERE tbl = ? AND name = ? AND value = ? AND " + met + nothing),
		guardedInsert: with("INSERT INTO {rows} (tbl, name, value) SELECT ?, ?, ? WHERE " + met + " ON CONFLICT DO NOTHING" + nothing),
		guardedDelete: with("DELETE FROM {rows} WHERE tbl = ? AND name = ? AND value = ? AND " + met + nothing),
	}
}

func postgresAnswer(ctx context.Context, c *sql.Conn, s *Store, call guardedCall, p pulse, args []any) (m guardedAnswer, err error) {
	q := s.sql.guarded[call]
	rows, err := c.QueryContext(ctx, q.text, q.args(p, args)...)
	if err != nil {
		return m, err
	}
	defer rows.Close()
	found := false
	dest := []any{&m.here, &m.met, &m.own, &m.fence, &m.joins, &m.changed, &m.mark, &m.run}
	if m.watches = call == guardedAlone; m.watches {
		dest = append(dest, &m.changes, &m.watched)
	}
	for rows.Next() {
		if err := rows.Scan(dest...); err != nil {
			return m, err
		}
		if found = true; m.changed {
			m.all = append(m.all, m.mark)
		}
	}
	if err := rows.Err(); err != nil || found {
		return m, err
	}
	return m, sql.ErrNoRows
}

// mysqlSmall is above each number of which two have room in one that is signed.
const mysqlSmall = 1 << 31

// mysqlGuarded makes each call one UPDATE of the rows that it changes, joined with
// the ones that it looks at. The server locks those too, so that a fence is either
// seen or has to wait. The answer has room for one number: the mark of an
// allocation, or of a beat the joins and, where it is made alone, the changes. So a change is
// made where the joins are what they were last; where they are not, they are read first. A beat
// alone takes one round trip also where both have moved, since a distant store leaves no time
// for more; where a number is too large to have room, it is read besides.
//
// A call that follows only reads the process's own row, so that any number of them goes
// on at the same time.
//
// A row is added by one statement too, which finds the process's own row taken and
// advances it instead. One is removed after a beat, if that is still there.
func mysqlGuarded(d *dialect, here, same string) map[guardedCall]*guardedQuery {
	const (
		own   = "b.tbl = 'beats' AND b.name = {row} AND b.value >= {was} AND f.name IS NULL"
		fence = " LEFT JOIN {rows} f ON f.tbl = 'fence' AND f.name = 'loss'"
		joins = " LEFT JOIN {rows} j ON j.tbl = 'guard' AND j.name = 'joins'"
		count = "COALESCE(CAST(j.value AS UNSIGNED), 0)"
	)
	tell := func(number string) string {
		return "b.value = IF(LAST_INSERT_ID(" + number + " + 1) > 0, GREATEST(b.value, {now}), b.value)"
	}
	small := func(row string) string {
		return " AND (" + row + ".value IS NULL OR " + row + ".value < '" + string(driver.EncodeCounter(mysqlSmall)) + "')"
	}
	here = strings.Replace(here, "?", "{id}", 1)
	still := " AND EXISTS (SELECT 1" + here + ")"
	change := func(what, set, where string) (leads, follows *guardedQuery) {
		from := "UPDATE {rows} b JOIN " + what + fence + joins + " SET "
		where = " WHERE " + where + " AND COALESCE(j.value, '" + string(driver.EncodeCounter(0)) + "') = {joins}" + still + " AND "
		return &guardedQuery{text: from + "b.value = GREATEST(b.value, {now}), " + set + where + own},
			&guardedQuery{text: from + set + where + strings.Replace(own, "{was}", "{now}", 1)}
	}
	queries := map[guardedCall]*guardedQuery{
		guardedBeat: {text: "UPDATE {rows} b" + fence + joins + " SET " + tell(count) + " WHERE " + own + still},
		guardedAlone: {text: "UPDATE {rows} b" + fence + joins + " LEFT JOIN {rows} c ON c.tbl = 'guard' AND c.name = 'changes'" +
			" SET " + tell(count+" * "+strconv.Itoa(mysqlSmall)+" + COALESCE(CAST(c.value AS UNSIGNED), 0)") +
			" WHERE " + own + small("j") + small("c") + still},
		guardedInsert: {text: "INSERT INTO {rows} (tbl, name, value) SELECT n.tbl, n.name, n.value" +
			" FROM (SELECT 'beats' AS tbl, {row} AS name, {now} AS value UNION ALL SELECT ?, ?, ?) n" +
			" WHERE EXISTS (SELECT 1 FROM {rows} b WHERE b.tbl = 'beats' AND b.name = {row} AND b.value >= {was})" +
			" AND NOT EXISTS (SELECT 1 FROM {rows} f WHERE f.tbl = 'fence' AND f.name = 'loss')" + still +
			" ON DUPLICATE KEY UPDATE value = IF({rows}.tbl = 'beats' AND {rows}.name = {row}, GREATEST({rows}.value, VALUES(value)), {rows}.value)"},
		guardedDelete: {text: "DELETE r FROM {rows} r JOIN {rows} b" + fence + " WHERE r.tbl = ? AND r.name = ? AND r.value = ?" +
			" AND b.tbl = 'beats' AND b.name = {row} AND b.value >= {now} AND f.name IS NULL" + still},
		guardedLook: {text: "SELECT EXISTS (SELECT 1" + here + ")," +
			" (SELECT value FROM {rows} WHERE tbl = 'beats' AND name = {row})," +
			" (SELECT value FROM {rows} WHERE tbl = 'fence' AND name = 'loss')," +
			" (SELECT value FROM {rows} WHERE tbl = 'guard' AND name = 'joins')," +
			" (SELECT value FROM {rows} WHERE tbl = 'guard' AND name = 'changes')"},
		guardedJoins: {text: "SELECT (SELECT value FROM {rows} WHERE tbl = 'guard' AND name = 'joins')"},
	}
	for call, q := range map[guardedCall][3]string{
		guardedAllocate: {"{tags} t", d.allocate, "t.name = ? AND " + same + " AND mark <= ?"},
		guardedHandBack: {"{tags} t", ending, "t.name = ? AND " + held},
		guardedUpdate:   {"{rows} r", "r.value = ?", "r.tbl = ? AND r.name = ? AND r.value = ?"},
	} {
		queries[call], queries[guardedFollow+call] = change(q[0], q[1], q[2])
	}
	return queries
}

func mysqlAnswer(ctx context.Context, c *sql.Conn, s *Store, call guardedCall, p pulse, args []any) (m guardedAnswer, err error) {
	if call == guardedDelete {
		if m, err := mysqlAnswer(ctx, c, s, guardedBeat, p, nil); err != nil || !m.met {
			return m, err
		}
	}
	q := s.sql.guarded[call]
	if follow := s.sql.guarded[guardedFollow+call]; follow != nil && p.follows {
		q = follow
	}
	res, err := c.ExecContext(ctx, q.text, s.dialect.args(q.args(p, args))...)
	if err != nil {
		return m, err
	}
	n, err := res.RowsAffected()
	if err != nil {
		return m, err
	}
	id, err := res.LastInsertId()
	if err != nil {
		return m, err
	}
	m.here, m.met, m.changed = true, true, true
	switch {
	case call == guardedBeat && id > 0:
		m.joins, m.changed = driver.EncodeCounter(id-1), false
		return m, nil
	case call == guardedAlone && id > 0:
		m.joins, m.changes, m.changed = driver.EncodeCounter((id-1)/mysqlSmall), driver.EncodeCounter((id-1)%mysqlSmall), false
		return m, nil
	case call == guardedAllocate && n > 0:
		if m.joins, m.mark = p.joins, id; id < 0 {
			m.mark, m.run = id-mysqlKeyHeld, -1
		}
		return m, nil
	case (call == guardedHandBack || call == guardedUpdate) && n > 0:
		m.joins = p.joins
		return m, nil
	case call == guardedInsert && n > 0:
		m.changed = n%2 == 1 // a row that is added counts once, one that is advanced twice
	case call == guardedDelete && n > 0:
	default:
		return mysqlMissed(ctx, c, s, call, p, args)
	}
	q = s.sql.guarded[guardedJoins]
	err = s.queryRow(ctx, c, q.text, q.args(p, nil), &m.joins)
	return m, err
}

// mysqlMissed finds out why a guarded query changed nothing. Where others have joined, or
// the row is not as far as those say who are followed, it is made anew; where it was not
// for the beat, the beat is made now, if it is not yet.
func mysqlMissed(ctx context.Context, c *sql.Conn, s *Store, call guardedCall, p pulse, args []any) (m guardedAnswer, err error) {
	q := s.sql.guarded[guardedLook]
	err = s.queryRow(ctx, c, q.text, q.args(p, nil), &m.here, &m.own, &m.fence, &m.joins, &m.changes)
	if err != nil || !m.here || m.fence != nil || bytes.Compare(m.own, p.was) < 0 {
		return m, err
	}
	m.changes = counted(m.changes)
	joins, reached := counted(m.joins), bytes.Compare(m.own, p.now) >= 0
	switch {
	case s.sql.guarded[guardedFollow+call] != nil && (!bytes.Equal(joins, p.joins) || p.follows && !reached):
		p.joins, p.follows = joins, p.follows && reached
		return mysqlAnswer(ctx, c, s, call, p, args)
	case !reached:
		made, err := mysqlAnswer(ctx, c, s, guardedBeat, p, nil)
		if call == guardedAlone { // a number has no room in its answer
			made.changes = m.changes
		}
		return made, err
	}
	m.met = true
	return m, nil
}

// counted is the counter in a row that may be missing.
func counted(row []byte) []byte {
	if row == nil {
		return driver.EncodeCounter(0)
	}
	return row
}
