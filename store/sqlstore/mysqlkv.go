package sqlstore

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
)

const (
	mysqlRow = "tbl = ? AND name = ?"

	// A change applies only in the store that it names.
	mysqlHere   = " JOIN {meta} m ON m.name = '" + metaStoreID + "' AND m.value = ?"
	mysqlInsert = "INSERT INTO {rows} (tbl, name, value) SELECT v.tbl, v.name, v.value FROM ({values}) v" + mysqlHere
	mysqlValues = "SELECT ? AS tbl, ? AS name, ? AS value"
	mysqlSwaps  = "SELECT ? AS tbl, ? AS name, ? AS old, ? AS value"
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

func keyArgs(it *item) []any  { return []any{it.Table, it.Name} }
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
		m.repeat(some, mysqlRow, " OR ", keyArgs)
		if len(some) == 0 {
			m.WriteString("false")
		}
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

// mysqlStepRows makes a step by one statement, where it has one of the forms that grants, beats
// and single changes have and nobody has changed a row of it; else in a short transaction.
func mysqlStepRows(ctx context.Context, c *sql.Conn, s *Store, step driver.Step, items []*item, inside bool) (driver.Result, error) {
	if p := pulseOf(step, items); p != nil {
		r, done, err := s.mysqlPulse(ctx, c, step, items, p)
		if err != nil || done {
			return r, err
		}
	}
	if inside {
		return s.mysqlInside(ctx, c, step, items, false)
	}
	if change, fence := oneOf(items); change != nil {
		return s.mysqlOne(ctx, c, step, change, fence)
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
	beat                          *item
	absent, swaps, adds, told, by []*item // by: looked at, and read by themselves where they have no room
}

// pulseOf returns nil for a step of another form.
func pulseOf(step driver.Step, items []*item) *pulse {
	var p pulse
	for _, it := range items {
		switch {
		case it.role == beats && p.beat == nil:
			p.beat = it
		case it.role == absent:
			p.absent = append(p.absent, it)
		case it.role == each && it.swaps() && it.next != nil && !it.keeps():
			p.swaps = append(p.swaps, it)
		case it.role == each && it.adds():
			p.adds = append(p.adds, it)
		case it.role == looks && it.at < mysqlTold:
			p.told = append(p.told, it)
		case it.role == looks:
			p.by = append(p.by, it)
		default:
			return nil
		}
	}
	if p.beat == nil || len(p.adds) > 1 || len(p.adds) == 1 && len(p.swaps) > 0 {
		return nil
	}
	slices.SortFunc(p.told, func(x, y *item) int { return x.at - y.at })
	return &p
}

// mysqlPulse makes a step of the form of a beat or a grant by one UPDATE of the rows that it
// changes, joined with the ones that it looks at. The server locks those too, so that a fence
// is either seen or has to wait. It reports false where nothing was done.
func (s *Store) mysqlPulse(ctx context.Context, c *sql.Conn, step driver.Step, items []*item, p *pulse) (driver.Result, bool, error) {
	if len(p.adds) > 0 {
		return s.mysqlPulseAdd(ctx, c, step, items, p)
	}
	m, most := s.pulseStatement(p)
	n, told, err := s.mysqlExec(ctx, c, m)
	switch number := mysqlNumber(err); {
	case number == mysqlOutOfRange, number == mysqlNotANumber: // a row was changed meanwhile, or counts no number
	case err != nil:
		return driver.Result{}, false, err
	case told > 0 && len(p.swaps) > 1 && n != most:
		return driver.Result{}, false, fmt.Errorf("%w: %d of %d rows were changed", hapax.ErrStoreUnavailable, n, most)
	case told > 0:
		told--
		for _, it := range slices.Backward(p.told) {
			it.now = &driver.Cell{Known: true}
			if count := told % mysqlSmall; count > 0 {
				it.now.Value = driver.EncodeCounter(count - 1)
			}
			told /= mysqlSmall
		}
		return resultOf(step, items, true, func(*item) bool { return true }), true, nil
	}
	return s.mysqlWhy(ctx, c, step, items, p)
}

// Errors by which a statement ends that has found another row than it expects.
const (
	mysqlOutOfRange = 1690
	mysqlNotANumber = 1292
)

// pulseStatement returns the statement, and how many rows it changes if it changes more than one
// tag: then it expects the beat to be behind, so that their number tells what was done, and ends
// with an error, which takes back all, where a tag is another one than is expected.
func (s *Store) pulseStatement(p *pulse) (*mysqlStatement, int64) {
	var m mysqlStatement
	m.add("UPDATE {rows} b"+mysqlHere, s.id)
	for i, it := range p.absent {
		m.add(fmt.Sprintf(" LEFT JOIN {rows} f%d ON f%[1]d.tbl = ? AND f%[1]d.name = ?", i), keyArgs(it)...)
	}
	number := "0"
	for i, it := range p.told {
		m.add(fmt.Sprintf(" LEFT JOIN {rows} k%d ON k%[1]d.tbl = ? AND k%[1]d.name = ?", i), keyArgs(it)...)
		number = fmt.Sprintf("(%s) * %d + COALESCE(CAST(k%d.value AS UNSIGNED) + 1, 0)", number, mysqlSmall, i)
	}
	set := ""
	switch len(p.swaps) {
	case 0:
	case 1:
		m.add(" JOIN {rows} t")
		set = ", t.value = ?"
	default:
		m.add(" JOIN (")
		of := func(it *item) []any { return []any{it.Table, it.Name, it.old, it.next} }
		m.add(mysqlSwaps, of(p.swaps[0])...)
		m.repeat(p.swaps[1:], " UNION ALL SELECT ?, ?, ?, ?", "", of)
		m.add(") v JOIN {rows} t ON t.tbl = v.tbl AND t.name = v.name")
		set = ", t.value = IF(t.value = v.old, v.value, IF(EXP(1000 + LENGTH(t.name)) > 0, t.value, t.value))"
	}
	m.add(" SET b.value = IF(LAST_INSERT_ID("+number+" + 1) > 0, GREATEST(b.value, ?), b.value)"+set, p.beat.next)
	if len(p.swaps) == 1 {
		m.add("", p.swaps[0].next)
	}
	m.add(" WHERE b.tbl = ? AND b.name = ? AND b.value >= ?", p.beat.Table, p.beat.Name, p.beat.old)
	for i := range p.absent {
		fmt.Fprintf(&m, " AND f%d.name IS NULL", i)
	}
	for i := range p.told {
		fmt.Fprintf(&m, " AND (k%d.value IS NULL OR LENGTH(k%[1]d.value) = 19 AND k%[1]d.value >= '0' AND k%[1]d.value < '%s')", i, driver.EncodeCounter(mysqlSmall-1))
	}
	switch it := p.swaps; len(it) {
	case 0:
	case 1:
		m.add(" AND t.tbl = ? AND t.name = ? AND t.value = ?", it[0].Table, it[0].Name, it[0].old)
	default:
		m.add(" AND b.value < ?", p.beat.next)
	}
	return &m, int64(len(p.swaps)) + 1
}

// mysqlPulseAdd adds a row by one statement too, which finds the process's own row taken and
// advances it instead.
func (s *Store) mysqlPulseAdd(ctx context.Context, c *sql.Conn, step driver.Step, items []*item, p *pulse) (driver.Result, bool, error) {
	var m mysqlStatement
	m.add("INSERT INTO {rows} (tbl, name, value) SELECT v.tbl, v.name, v.value FROM (")
	m.repeat([]*item{p.beat, p.adds[0]}, mysqlValues, " UNION ALL ", nextArgs)
	m.add(") v"+mysqlHere+" WHERE EXISTS (SELECT 1 FROM {rows} b WHERE b.tbl = ? AND b.name = ? AND b.value >= ?)", s.id, p.beat.Table, p.beat.Name, p.beat.old)
	for _, it := range p.absent {
		m.add(" AND NOT EXISTS (SELECT 1 FROM {rows} f WHERE f.tbl = ? AND f.name = ?)", keyArgs(it)...)
	}
	m.add(" ON DUPLICATE KEY UPDATE value = IF({rows}.tbl = ? AND {rows}.name = ?, GREATEST({rows}.value, VALUES(value)), {rows}.value)", keyArgs(p.beat)...)
	n, _, err := s.mysqlExec(ctx, c, &m)
	if err != nil || n == 0 {
		return driver.Result{}, false, err
	}
	if err := mysqlFind(ctx, c, s, slices.Concat(p.told, p.by), false); err != nil {
		return driver.Result{}, false, err
	}
	// A row that is added counts once, one that is advanced twice.
	return resultOf(step, items, true, func(*item) bool { return n%2 == 1 }), true, nil
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
		case it.fits():
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
