package sqlstore

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/hapax-id/hapax/store/driver"
)

const (
	// A change applies only in the store that it names.
	mysqlHere   = " JOIN {meta} m ON m.name = '" + metaStoreID + "' AND m.value = ?"
	mysqlInsert = "INSERT INTO {rows} (tbl, name, value) SELECT v.tbl, v.name, v.value FROM ({values}) v" + mysqlHere
	mysqlValues = "SELECT ? AS tbl, ? AS name, ? AS value"
)

// mysqlTold are rows that have room in the answer to a change, which is one number: there is none,
// or they count in 19 digits, below 2^31.
const (
	mysqlTold  = 2
	mysqlSmall = 1<<31 + 1
)

// A mysqlStatement is a statement in the making, with its arguments.
type mysqlStatement struct {
	strings.Builder
	args []any
}

func (m *mysqlStatement) add(text string, args ...any) {
	m.WriteString(text)
	m.args = append(m.args, args...)
}

// repeat adds a text for each item, with a separator between.
func (m *mysqlStatement) repeat(items []*item, text, separator string, args func(*item) []any) {
	for i, it := range items {
		if i > 0 {
			m.WriteString(separator)
		}
		m.add(text, args(it)...)
	}
}

// among adds the condition that a row is one of the items', a list of names for each table: a
// choice among as many keys takes the server four times as long.
func (m *mysqlStatement) among(items []*item) {
	if len(items) == 0 {
		m.WriteString("false")
		return
	}
	for i, it := range items {
		switch {
		case i > 0 && it.Table == items[i-1].Table:
			m.add(", ?", it.Name)
		case i > 0:
			m.add(") OR tbl = ? AND name IN (?", it.Table, it.Name)
		default:
			m.add("tbl = ? AND name IN (?", it.Table, it.Name)
		}
	}
	m.WriteString(")")
}

// join joins the items' rows, each under a name of its own; of a missing row all columns are NULL.
func (m *mysqlStatement) join(as string, items []*item) {
	for i, it := range items {
		m.add(fmt.Sprintf(" LEFT JOIN {rows} %s%d ON %[1]s%[2]d.tbl = ? AND %[1]s%[2]d.name = ?", as, i), keyArgs(it)...)
	}
}

func keyArgs(it *item) []any  { return []any{it.Table, it.Name} }
func oldArgs(it *item) []any  { return []any{it.Table, it.Name, it.old} }
func nextArgs(it *item) []any { return []any{it.Table, it.Name, it.next} }

// mysqlExec makes a statement, and returns how many rows it changed and the number that it told.
func (s *Store) mysqlExec(ctx context.Context, c *sql.Conn, m *mysqlStatement) (changed, told int64, err error) {
	res, err := c.ExecContext(ctx, s.sql.names.Replace(m.String()), mysqlArgs(m.args)...)
	if err != nil {
		return 0, 0, err
	}
	if changed, err = res.RowsAffected(); err == nil {
		told, err = res.LastInsertId()
	}
	return changed, told, err
}

// mysqlFind reads the items' rows in the store that New found, or locks them, too: the tags, whose
// table has no name, last. A pulse locks the row of its process before it waits for a tag, since
// the server reads a row with a known key first; of two steps of one process that locked them in
// another order, each would wait for the other.
func mysqlFind(ctx context.Context, c *sql.Conn, s *Store, items []*item, lock bool) error {
	of := make(map[driver.Key][]*item, len(items))
	var others, tags []*item
	for _, it := range items {
		// What the answer lacks is missing, and known to be.
		it.now = &driver.Cell{Known: true}
		of[it.Key] = append(of[it.Key], it)
		if lock && it.Table != "" {
			others = append(others, it)
		} else {
			tags = append(tags, it)
		}
	}
	var m mysqlStatement
	if !lock {
		m.add("SELECT '' AS tbl, '' AS name, value FROM {meta} WHERE name = '"+metaStoreID+"' AND value = ? UNION ALL ", s.id)
	}
	parts, ending := [][]*item{others, tags}, ") "
	switch {
	case len(others) == 0:
		parts = parts[1:]
	case len(tags) == 0:
		parts = parts[:1]
	}
	if lock {
		ending = " FOR UPDATE) "
	}
	for i, some := range parts {
		if i > 0 {
			m.WriteString("UNION ALL ")
		}
		m.WriteString("(SELECT tbl, name, {value} FROM {rows} WHERE ")
		m.among(some)
		m.WriteString(ending)
	}
	return s.read(ctx, c, s.sql.names.Replace(m.String()), m.args, lock, func(rows *sql.Rows) (here bool, err error) {
		var key driver.Key
		var value []byte
		if err := rows.Scan(&key.Table, &key.Name, &value); err != nil || key.Name == "" {
			return true, err
		}
		value, err = s.dialect.value(key, value)
		for _, it := range of[key] {
			it.now.Value = value
		}
		return false, err
	})
}

// mysqlStepRows makes a step by one statement, where it has one of the forms that grants, beats,
// registrations and single changes have and nobody has changed a row of it; else in a short transaction.
func mysqlStepRows(ctx context.Context, c *sql.Conn, s *Store, step driver.Step, items []*item, locked lockedRows) (driver.Result, error) {
	if p := pulseOf(items); p != nil {
		p.sure = !slices.ContainsFunc(p.swaps, func(it *item) bool { return !locked.hold(it) })
		r, done, err := s.mysqlPulse(ctx, c, step, items, p)
		if err != nil || done {
			return r, err
		}
	}
	if locked != nil {
		return s.mysqlInside(ctx, c, step, items, false)
	}
	if change, fence := oneOf(items); change != nil {
		return s.mysqlOne(ctx, c, step, change, fence)
	}
	if b := bundleOf(items); b != nil {
		r, done, err := s.mysqlBundle(ctx, c, step, items, b)
		if err != nil || done {
			return r, err
		}
	}
	return s.mysqlTransaction(ctx, c, step, items)
}

// oneOf returns the one change that a step consists of, and the row that must not be there
// meanwhile, if any; nil for a step of another form.
func oneOf(items []*item) (change, fence *item) {
	for _, it := range items {
		switch {
		case it.role == each && change == nil:
			change = it
		case it.role == absent && fence == nil:
			fence = it
		default:
			return nil, nil
		}
	}
	return change, fence
}

// mysqlOne makes a step that is one change by itself. The server locks the place of the fence too,
// so that a fence is either seen or has to wait.
func (s *Store) mysqlOne(ctx context.Context, c *sql.Conn, step driver.Step, it, fence *item) (driver.Result, error) {
	var m mysqlStatement
	from := func(text string) {
		m.add(text+" {rows} t"+mysqlHere, s.id)
		if fence != nil {
			m.add(" LEFT JOIN {rows} f ON f.tbl = ? AND f.name = ?", keyArgs(fence)...)
		}
	}
	where := func() {
		m.add(" WHERE t.tbl = ? AND t.name = ? AND t.value = ?", it.Table, it.Name, it.old)
		if fence != nil {
			m.add(" AND f.name IS NULL")
		}
	}
	switch {
	case it.adds():
		m.add("INSERT INTO {rows} (tbl, name, value) SELECT ?, ?, ?"+fromHere, it.Table, it.Name, it.next, s.id)
		if fence != nil {
			m.add(" AND NOT EXISTS (SELECT 1 FROM {rows} f WHERE f.tbl = ? AND f.name = ?)", keyArgs(fence)...)
		}
	case it.next == nil:
		from("DELETE t FROM")
		where()
	default:
		from("UPDATE")
		m.add(" SET t.value = ?", it.next)
		where()
	}
	n, _, err := s.mysqlExec(ctx, c, &m)
	if err != nil && (!it.adds() || s.dialect.classify(err) != exists) {
		return driver.Result{}, err
	}
	items := []*item{it}
	if fence != nil {
		items = append(items, fence)
	}
	met := true
	// Another row, a fence, or a row that was to stay as it is, which MySQL does not count.
	if n == 0 {
		if err := mysqlFind(ctx, c, s, items, false); err != nil {
			return driver.Result{}, err
		}
		met = fence == nil || fence.fits()
	} else if fence != nil {
		fence.now = &driver.Cell{Known: true}
	}
	return resultOf(step, items, met, func(*item) bool { return n == 1 || it.keeps() && it.fits() }), nil
}

// A pulse is what a step is made of that has the form of a beat or a grant.
type pulse struct {
	beat                *item
	add                 *item   // nil: no row is to be added
	absent, swaps, told []*item // swaps: of one table; told: looked at, where they may have room
	sure                bool    // the swaps are locked, and as they are expected
}

// pulseOf returns nil for a step of another form.
func pulseOf(items []*item) *pulse {
	var p pulse
	for _, it := range items {
		switch {
		case it.role == beats && p.beat == nil:
			p.beat = it
		case it.role == absent:
			p.absent = append(p.absent, it)
		case it.role == each && it.swaps() && it.next != nil && !it.keeps() && (len(p.swaps) == 0 || p.swaps[0].Table == it.Table):
			p.swaps = append(p.swaps, it)
		case it.role == each && it.adds() && p.add == nil:
			p.add = it
		case it.role == looks && it.at < mysqlTold:
			p.told = append(p.told, it)
		case it.role == looks:
		default:
			return nil
		}
	}
	if p.beat == nil {
		return nil
	}
	slices.SortFunc(p.told, func(x, y *item) int { return x.at - y.at })
	return &p
}

// mysqlPulse makes a step of the form of a beat or a grant by one statement. It reports false
// where nothing was done.
func (s *Store) mysqlPulse(ctx context.Context, c *sql.Conn, step driver.Step, items []*item, p *pulse) (driver.Result, bool, error) {
	n, told, err := s.mysqlExec(ctx, c, s.pulseStatement(p))
	switch {
	// A row that is looked at is no counter: the long way brings it as it is, for its reader to refuse.
	case mysqlNumber(err) == mysqlNotANumber:
	case err != nil:
		return driver.Result{}, false, err
	case told > 0:
		told--
		for _, it := range slices.Backward(p.told) {
			it.now = &driver.Cell{Known: true}
			if count := told % mysqlSmall; count > 0 {
				it.now.Value = driver.EncodeCounter(count - 1)
			}
			told /= mysqlSmall
		}
		// A row that is added counts once, one that is changed twice.
		return resultOf(step, items, true, func(it *item) bool { return it != p.add || n%2 == 1 }), true, nil
	}
	return s.mysqlWhy(ctx, c, step, items, p)
}

// mysqlNotANumber is the error of a statement that reads a counter which is none.
const mysqlNotANumber = 1292

// pulseStatement returns a statement that adds rows where all is as expected, finds those taken
// that are there, and changes them instead. An UPDATE of two rows of one table would note both in
// temporary tables first, which MariaDB keeps in files: that takes as long as all the rest.
//
// The rows that are changed are locked before they are compared: the process's own first, as by
// mysqlFind. Those that are looked at are locked as by all who look at them, so that a fence is
// either seen or has to wait. The gap where it would be comes last: a registration, which has the
// counter of joins, adds its row there. The limit keeps the server from merging the inner queries.
// Rows that are known to be as expected are not compared again: of a hundred, that takes longer
// than to write them, and all others wait meanwhile.
func (s *Store) pulseStatement(p *pulse) *mysqlStatement {
	rows := slices.Concat([]*item{p.beat}, p.swaps)
	if p.add != nil {
		rows = append(rows, p.add)
	}
	var m mysqlStatement
	m.add("INSERT INTO {rows} (tbl, name, value) SELECT v.tbl, v.name, v.value FROM (")
	m.repeat(rows, mysqlValues, " UNION ALL ", nextArgs)
	number := "0"
	for i := range p.told {
		number = fmt.Sprintf("(%s) * %d + COALESCE(CAST(k%d.value AS UNSIGNED) + 1, 0)", number, mysqlSmall, i)
	}
	m.add(") v JOIN (SELECT " + number + " + 1 AS told FROM (SELECT COUNT(*) AS found FROM {rows} b")
	compared := p.swaps
	if p.sure {
		compared = nil
	}
	if len(compared) > 0 {
		m.add(" JOIN {rows} t FORCE INDEX (PRIMARY)")
	}
	m.add(" WHERE b.tbl = ? AND b.name = ? AND b.value >= ?", p.beat.Table, p.beat.Name, p.beat.old)
	if len(compared) > 0 {
		name := func(it *item) []any { return []any{it.Name} }
		m.add(" AND t.tbl = ? AND t.name IN (", compared[0].Table)
		m.repeat(compared, "?", ", ", name)
		m.add(") AND t.value = ELT(FIELD(t.name")
		m.repeat(compared, ", ?", "", name)
		m.add(")")
		m.repeat(compared, ", ?", "", func(it *item) []any { return []any{it.old} })
		m.add(")")
	}
	m.add(" FOR UPDATE) l"+mysqlHere, s.id)
	m.join("k", p.told)
	m.join("f", p.absent)
	fmt.Fprintf(&m, " WHERE l.found = %d", max(1, len(compared)))
	for i := range p.absent {
		fmt.Fprintf(&m, " AND f%d.name IS NULL", i)
	}
	for i := range p.told {
		fmt.Fprintf(&m, " AND (k%d.value IS NULL OR k%[1]d.value = LPAD(CAST(k%[1]d.value AS UNSIGNED), 19, '0') AND k%[1]d.value < '%s')", i, driver.EncodeCounter(mysqlSmall-1))
	}
	m.add(" LIMIT 1) c WHERE true ON DUPLICATE KEY UPDATE value = IF(LAST_INSERT_ID(c.told) > 0 AND {rows}.tbl = ? AND {rows}.name = ?, GREATEST({rows}.value, VALUES(value)), ", keyArgs(p.beat)...)
	if p.add != nil {
		m.add("IF({rows}.tbl = ? AND {rows}.name = ?, {rows}.value, VALUES(value)))", keyArgs(p.add)...)
	} else {
		m.add("VALUES(value))")
	}
	return &m
}

// A bundle is what a step is made of that has the form of a registration: rows that are changed or
// added together, or none of them.
type bundle struct {
	there, absent []*item // as they are to be found; there: also those that are changed
	writes, adds  []*item // adds: those of the writes that are not there
}

// mysqlBundled bounds the rows of a bundle: of more the statement would name each value twice.
const mysqlBundled = 10

// bundleOf returns nil for a step of another form.
func bundleOf(items []*item) *bundle {
	var b bundle
	for i, it := range items {
		if i > 0 && it.Key == items[i-1].Key {
			return nil // they would be counted once
		}
		switch {
		case it.role == absent:
			b.absent = append(b.absent, it)
		case it.role == same:
			b.there = append(b.there, it)
		case it.role == then && it.adds():
			b.writes, b.adds = append(b.writes, it), append(b.adds, it)
		case it.role == then && it.next != nil && !it.keeps():
			b.writes, b.there = append(b.writes, it), append(b.there, it)
		default:
			return nil
		}
	}
	if len(b.writes) == 0 || len(items) > mysqlBundled {
		return nil
	}
	return &b
}

// mysqlBundle makes a step of the form of a registration by one statement, which is one round trip
// where a transaction takes six. It reports false where nothing was done, although all would fit
// by now.
func (s *Store) mysqlBundle(ctx context.Context, c *sql.Conn, step driver.Step, items []*item, b *bundle) (driver.Result, bool, error) {
	n, _, err := s.mysqlExec(ctx, c, s.bundleStatement(b))
	switch {
	case mysqlNumber(err) == mysqlOutOfRange: // the look below finds the row
	case err != nil:
		return driver.Result{}, false, err
	case n > 0:
		return resultOf(step, items, true, func(*item) bool { return true }), true, nil
	}
	return s.mysqlWhy(ctx, c, step, items, &pulse{})
}

// mysqlOutOfRange is the error of a statement that counts too far.
const mysqlOutOfRange = 1690

// bundleStatement returns a statement that adds rows where all is as expected, and changes those
// that were found instead. One to be added that is there already ends it by an error, which undoes
// all of it: nobody may look for that row before, since of two statements that held the lock of
// one gap neither could fill it.
//
// The rows that are there are locked first, the counter of joins among them, which the heartbeats
// look at before the gap of the fence: so they have left that gap, in which the process's row
// is added, and new ones wait.
func (s *Store) bundleStatement(b *bundle) *mysqlStatement {
	var m mysqlStatement
	m.add("INSERT INTO {rows} (tbl, name, value) SELECT v.tbl, v.name, v.value FROM (")
	m.repeat(b.writes, mysqlValues, " UNION ALL ", nextArgs)
	m.add(") v JOIN (SELECT 1 FROM (SELECT COUNT(*) AS found FROM {rows} t FORCE INDEX (PRIMARY) WHERE false")
	m.repeat(b.there, " OR t.tbl = ? AND t.name = ? AND t.value = ?", "", oldArgs)
	m.add(" FOR UPDATE) l"+mysqlHere, s.id)
	m.join("f", b.absent)
	fmt.Fprintf(&m, " WHERE l.found = %d", len(b.there))
	for i := range b.absent {
		fmt.Fprintf(&m, " AND f%d.name IS NULL", i)
	}
	m.add(" LIMIT 1) c WHERE true ON DUPLICATE KEY UPDATE value = IF(false")
	m.repeat(b.adds, " OR {rows}.tbl = ? AND {rows}.name = ?", "", keyArgs)
	m.add(", 18446744073709551615 + LENGTH({rows}.name), VALUES(value))")
	return &m
}

// mysqlWhy finds out why a step has changed nothing, without waiting for those who hold its rows.
// Where no condition fails, tags that are all others meanwhile were refused together with the
// beat; it reports false where some are as expected.
func (s *Store) mysqlWhy(ctx context.Context, c *sql.Conn, step driver.Step, items []*item, p *pulse) (driver.Result, bool, error) {
	if err := mysqlFind(ctx, c, s, items, false); err != nil {
		return driver.Result{}, false, err
	}
	met, lost := true, 0
	for _, it := range items {
		switch {
		case it.fits(), it == p.add:
		case it.role == each:
			lost++
		default:
			met = false
		}
	}
	return resultOf(step, items, false, nil), !met || lost > 0 && lost == len(p.swaps), nil
}

// mysqlTransaction makes any step: it locks the rows in the order of their keys, but for those
// that are to be added, judges them and changes them.
func (s *Store) mysqlTransaction(ctx context.Context, c *sql.Conn, step driver.Step, items []*item) (driver.Result, error) {
	// A row to be added that is there by now is locked from the second attempt on, and found so.
	for taken := false; ; taken = true {
		r, err := s.mysqlTry(ctx, c, step, items, taken)
		if !errors.Is(err, errTaken) {
			return r, err
		}
	}
}

// errTaken ends a step whose rows are all added, or none, where one is there.
var errTaken = errors.New("a row is there already")

func (s *Store) mysqlTry(ctx context.Context, c *sql.Conn, step driver.Step, items []*item, taken bool) (driver.Result, error) {
	tx, err := c.BeginTx(ctx, nil)
	if err != nil {
		return driver.Result{}, err
	}
	defer func() { _ = tx.Rollback() }() // does nothing after a commit
	r, err := s.mysqlInside(ctx, c, step, items, taken)
	if err == nil && r.Met {
		err = tx.Commit()
	}
	return r, err
}

func (s *Store) mysqlInside(ctx context.Context, c *sql.Conn, step driver.Step, items []*item, taken bool) (r driver.Result, err error) {
	var locked, looked []*item
	for _, it := range items {
		it.now = nil
		switch {
		case it.role == looks:
			looked = append(looked, it)
		// Not yet those to be added: two steps can hold the lock of one gap, and then neither fills it.
		case !it.adds() || taken && it.role == then:
			locked = append(locked, it)
		}
	}
	if err := mysqlFind(ctx, c, s, locked, true); err != nil {
		return r, err
	}
	met := !slices.ContainsFunc(items, func(it *item) bool { return it.role != each && it.now != nil && !it.fits() })
	done, writes := map[*item]bool{}, 0
	if met {
		if writes, err = s.mysqlChange(ctx, c, items, done); err != nil {
			return r, err
		}
	}
	// What has written nothing has not named the store: this look does.
	if len(looked) > 0 || writes == 0 {
		if err := mysqlFind(ctx, c, s, looked, false); err != nil {
			return r, err
		}
	}
	return resultOf(step, items, met, func(it *item) bool { return done[it] }), nil
}

// mysqlChange changes the rows that fit, notes what it has done, and returns how many statements
// that took.
func (s *Store) mysqlChange(ctx context.Context, c *sql.Conn, items []*item, done map[*item]bool) (writes int, err error) {
	var puts, removals, adds []*item
	for _, it := range items {
		switch {
		case it.adds():
			adds = append(adds, it)
		case it.role == beats, it.role == raised:
			if bytes.Compare(it.now.Value, it.next) < 0 {
				puts = append(puts, it)
			}
		case !it.swaps() || !it.fits():
		case it.keeps():
			done[it] = true
		case it.next == nil:
			removals = append(removals, it)
		default:
			puts = append(puts, it)
		}
	}
	write := func(some []*item, before, text, separator, after string, args func(*item) []any) error {
		if len(some) == 0 {
			return nil
		}
		var m mysqlStatement
		m.WriteString(before)
		m.repeat(some, text, separator, args)
		m.add(after, s.id)
		writes++
		n, _, err := s.mysqlExec(ctx, c, &m)
		// Each of these rows becomes another one, so that no change means another store.
		if err == nil && n == 0 {
			err = s.notHere(ctx, c)
		}
		for _, it := range some {
			done[it] = err == nil
		}
		return err
	}
	before, after, _ := strings.Cut(mysqlInsert, "{values}")
	err = write(puts, before, mysqlValues, " UNION ALL ", after+" ON DUPLICATE KEY UPDATE value = VALUES(value)", nextArgs)
	if err == nil {
		err = write(removals, "DELETE r FROM {rows} r JOIN {meta} m WHERE (", "r.tbl = ? AND r.name = ?", " OR ", ") AND m.name = '"+metaStoreID+"' AND m.value = ?", keyArgs)
	}
	// One by one: of those in Each, one that is taken keeps none of the others back.
	for _, it := range adds {
		if err == nil {
			err = write([]*item{it}, before, mysqlValues, "", after, nextArgs)
		}
		if err != nil && s.dialect.classify(err) == exists {
			if err = nil; it.role == then {
				err = errTaken
			}
		}
	}
	return writes, err
}
