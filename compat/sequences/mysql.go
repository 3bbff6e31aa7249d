package sequences

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"net/url"
	"strings"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/compat/mysqldb"
)

// mySQL reads MySQL and MariaDB.
type mySQL struct {
	db      *mysqldb.DB
	opts    Options
	schema  string
	step    int64 // auto_increment_increment of the server
	offset  int64
	maria   bool
	cluster bool // other servers take writes, too

	before func(step string) error // for tests: called before each statement that shuts or opens; may be nil

	version int  // of MySQL: 8_00_29 is 8.0.29
	old     bool // MySQL 5
}

// freshCounters has MySQL's views tell where counters are now.
const freshCounters = "SET SESSION information_schema_stats_expiry = 0"

// know takes the text of VERSION() in.
func (m *mySQL) know(version string) {
	m.maria = strings.Contains(version, "MariaDB")
	var major, minor, patch int
	if n, _ := fmt.Sscanf(version, "%d.%d.%d", &major, &minor, &patch); n == 3 && !m.maria {
		m.version = major*1_00_00 + minor*1_00 + patch
		m.old = major < 8
	}
}

// openMySQL connects. mysqldb refuses a replica, which may be behind.
func openMySQL(ctx context.Context, raw string, o Options) (*mySQL, error) {
	db, err := mysqldb.Open(raw, mysqldb.Options{Timeout: o.Timeout})
	if err != nil {
		return nil, err
	}
	m := &mySQL{db: db, opts: o}
	if u, err := url.Parse(raw); err == nil {
		m.schema = strings.Trim(u.Path, "/")
	}
	var version string
	err = db.SQL.QueryRowContext(ctx, "SELECT VERSION(), @@global.auto_increment_increment, @@global.auto_increment_offset").Scan(&version, &m.step, &m.offset)
	if err != nil {
		return nil, errors.Join(m.fail(ctx, "the server's settings", err), db.Close())
	}
	m.know(version)
	err = m.rows(ctx, "SHOW GLOBAL VARIABLES WHERE Variable_name IN ('wsrep_on', 'group_replication_group_name')", func(scan func(...any) error) error {
		var name, value string
		err := scan(&name, &value)
		m.cluster = m.cluster || value != "" && value != "OFF"
		return err
	})
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return m, nil
}

func (m *mySQL) Close() error { return m.db.Close() }

func (m *mySQL) fail(ctx context.Context, what string, err error) error {
	return m.db.Fail(ctx, what, err)
}

// rows runs a query in a transaction that changes nothing, and calls each for each row.
func (m *mySQL) rows(ctx context.Context, query string, each func(scan func(...any) error) error, args ...any) error {
	tx, err := m.db.SQL.BeginTx(ctx, &sql.TxOptions{ReadOnly: true})
	if err != nil {
		return m.fail(ctx, "a transaction", err)
	}
	defer func() { _ = tx.Rollback() }() // it read
	rows, err := tx.QueryContext(ctx, query, args...)
	if err != nil {
		return m.fail(ctx, "a query", err)
	}
	defer rows.Close()
	for rows.Next() {
		if err := each(rows.Scan); err != nil {
			return m.fail(ctx, "a query", err)
		}
	}
	return m.fail(ctx, "a query", rows.Err())
}

// mysqlCounters are the AUTO_INCREMENT columns, with the trigger that shuts each.
const mysqlCounters = `
SELECT c.TABLE_NAME, c.COLUMN_NAME, c.COLUMN_TYPE, COALESCE(t.AUTO_INCREMENT, 1), t.TABLE_COMMENT,
  EXISTS (SELECT 1 FROM information_schema.STATISTICS s WHERE s.TABLE_SCHEMA = c.TABLE_SCHEMA AND s.TABLE_NAME = c.TABLE_NAME
          AND s.COLUMN_NAME = c.COLUMN_NAME AND s.SEQ_IN_INDEX = 1 AND s.INDEX_TYPE = 'BTREE'),
  NOT EXISTS (SELECT 1 FROM information_schema.STATISTICS s WHERE s.TABLE_SCHEMA = c.TABLE_SCHEMA AND s.TABLE_NAME = c.TABLE_NAME
          AND s.COLUMN_NAME = c.COLUMN_NAME AND s.SEQ_IN_INDEX = 1),
  COALESCE((SELECT g.ACTION_STATEMENT FROM information_schema.TRIGGERS g WHERE g.EVENT_OBJECT_SCHEMA = c.TABLE_SCHEMA
          AND g.EVENT_OBJECT_TABLE = c.TABLE_NAME AND g.ACTION_STATEMENT LIKE '%hapax_shut TEXT%' LIMIT 1), '')
FROM information_schema.COLUMNS c JOIN information_schema.TABLES t ON t.TABLE_SCHEMA = c.TABLE_SCHEMA AND t.TABLE_NAME = c.TABLE_NAME
WHERE c.TABLE_SCHEMA = ? AND c.EXTRA LIKE '%auto_increment%' ORDER BY 1`

// mysqlUnfed are integer keys that nothing in the database makes.
const mysqlUnfed = `
SELECT c.TABLE_NAME, c.COLUMN_NAME, COALESCE(c.COLUMN_DEFAULT, '') FROM information_schema.COLUMNS c
WHERE c.TABLE_SCHEMA = ? AND c.COLUMN_KEY = 'PRI' AND c.DATA_TYPE IN ('tinyint', 'smallint', 'mediumint', 'int', 'bigint', 'decimal')
  AND c.EXTRA NOT LIKE '%auto_increment%' AND COALESCE(c.COLUMN_DEFAULT, '') NOT LIKE '%nextval(%'
  AND (SELECT COUNT(*) FROM information_schema.COLUMNS k WHERE k.TABLE_SCHEMA = c.TABLE_SCHEMA AND k.TABLE_NAME = c.TABLE_NAME AND k.COLUMN_KEY = 'PRI') = 1
  AND NOT EXISTS (SELECT 1 FROM information_schema.KEY_COLUMN_USAGE f WHERE f.TABLE_SCHEMA = c.TABLE_SCHEMA AND f.TABLE_NAME = c.TABLE_NAME
          AND f.COLUMN_NAME = c.COLUMN_NAME AND f.REFERENCED_TABLE_NAME IS NOT NULL)
ORDER BY 1`

// mysqlLast is the largest number of each type.
var mysqlLast = map[string][2]int64{ // signed, unsigned
	"tinyint": {math.MaxInt8, math.MaxUint8}, "smallint": {math.MaxInt16, math.MaxUint16}, "mediumint": {1<<23 - 1, 1<<24 - 1},
	"int": {math.MaxInt32, math.MaxUint32}, "bigint": {math.MaxInt64, math.MaxInt64},
}

// lastOf returns the largest number that fits into a column; 0: it is of no whole numbers.
func lastOf(columnType string) int64 {
	base, rest, _ := strings.Cut(strings.ToLower(columnType), "(")
	base, more, _ := strings.Cut(base, " ")
	last := mysqlLast[base]
	if strings.Contains(rest+more, "unsigned") {
		return last[1]
	}
	return last[0]
}

// Sources implements Database.
func (m *mySQL) Sources(ctx context.Context, like string) (all []*Source, others []string, err error) {
	counters, err := m.counters(ctx)
	if err != nil {
		return nil, nil, err
	}
	sequences, err := m.sequences(ctx)
	if err != nil {
		return nil, nil, err
	}
	for _, s := range append(counters, sequences...) {
		if !s.matchesAny(like) {
			continue
		}
		if p := &s.parts[0]; s.Kind == "auto_increment" && !m.maria && len(s.Wrong) == 0 { // see fresh
			at, err := m.fresh(ctx, p.name)
			if err != nil {
				return nil, nil, err
			}
			p.position = max(p.position, at)
		}
		if err := m.columns(ctx, s); err != nil {
			return nil, nil, err
		}
		all = append(all, s)
	}
	generators, strange, err := generatorsOf(ctx, m, "DATABASE()", m.opts, like)
	if err != nil {
		return nil, nil, err
	}
	all, others = append(all, generators...), strange
	err = m.rows(ctx, mysqlUnfed, func(scan func(...any) error) error {
		var table, column, standard string
		err := scan(&table, &column, &standard)
		if err == nil && matches(like, table) && !feedsAny(all, table, column) {
			others = append(others, unfedText(table, column, standard))
		}
		return err
	}, m.schema)
	return all, others, err
}

// named returns a column of this database whose table, name and type were read, with the statements that
// change it; made is how its numbers are made.
func (m *mySQL) named(c Column, made string) Column {
	c.Table, c.Qualified, c.schema, c.Last = c.table, c.table, m.schema, lastOf(c.Type)
	c.Create = fmt.Sprintf("CREATE INDEX %s ON %s (%s)", quoteTick("hapax_"+c.Name), quoteTick(c.table), quoteTick(c.Name))
	c.Widen = mysqlWiden(c, made)
	return c
}

// counters returns the AUTO_INCREMENT columns.
func (m *mySQL) counters(ctx context.Context) (all []*Source, err error) {
	err = m.rows(ctx, mysqlCounters, func(scan func(...any) error) error {
		var c Column
		var next, trigger, comment string // next: it may be above 63 bits
		var grouped bool
		if err := scan(&c.table, &c.Name, &c.Type, &next, &comment, &c.Index, &grouped, &trigger); err != nil {
			return err
		}
		c = m.named(c, " AUTO_INCREMENT")
		p := part{schema: m.schema, name: c.table, step: m.step, cache: 1, field: c.Name, closed: triggerMark(trigger), columns: []Column{c}, max: c.Last}
		s := &Source{Tag: c.table, Kind: "auto_increment", Names: []string{c.String()}, Feeds: []Column{c}}
		at, err := positionOf(next, -1)
		if err != nil {
			s.wrong("%s is at %s: beyond 2^63-1, the largest number of a tag", c, next)
		}
		p.position = at
		if grouped { // MyISAM and Aria
			s.wrong("%s counts anew for each value of the columns before it in its index, so its numbers repeat: take a tag for each of them", c)
		}
		if m.step > 1 {
			s.note("the server's auto_increment_increment is %d and its offset %d: others may issue the numbers between", m.step, m.offset)
		}
		if p.closed != nil {
			s.Tag = p.closed.Tag
		}
		s.parts = []part{p}
		all = append(all, s)
		return nil
	}, m.schema)
	return all, err
}

func mysqlWiden(c Column, more string) string {
	return fmt.Sprintf("ALTER TABLE %s MODIFY %s BIGINT NOT NULL%s", quoteTick(c.table), quoteTick(c.Name), more)
}

// positionOf reads the number that would be next, and returns that before it.
func positionOf(next string, add int64) (int64, error) {
	var n int64
	if _, err := fmt.Sscan(next, &n); err != nil {
		return 0, fmt.Errorf("%w: %s is no number of 63 bits", hapax.ErrInvalidArgument, next)
	}
	return n + add, nil
}

// sequences returns MariaDB's sequences; MySQL has none.
func (m *mySQL) sequences(ctx context.Context) ([]*Source, error) {
	if !m.maria {
		return nil, nil
	}
	names := map[string]string{}
	err := m.rows(ctx, "SELECT TABLE_NAME, TABLE_COMMENT FROM information_schema.TABLES WHERE TABLE_SCHEMA = ? AND TABLE_TYPE = 'SEQUENCE' ORDER BY 1", func(scan func(...any) error) error {
		var name, comment string
		err := scan(&name, &comment)
		names[name] = comment
		return err
	}, m.schema)
	if err != nil || len(names) == 0 {
		return nil, err
	}
	feeds := map[string][]Column{}
	err = m.rows(ctx, `SELECT c.TABLE_NAME, c.COLUMN_NAME, c.COLUMN_TYPE, c.COLUMN_DEFAULT,
		EXISTS (SELECT 1 FROM information_schema.STATISTICS s WHERE s.TABLE_SCHEMA = c.TABLE_SCHEMA AND s.TABLE_NAME = c.TABLE_NAME
			AND s.COLUMN_NAME = c.COLUMN_NAME AND s.SEQ_IN_INDEX = 1 AND s.INDEX_TYPE = 'BTREE')
		FROM information_schema.COLUMNS c WHERE c.TABLE_SCHEMA = ? AND c.COLUMN_DEFAULT LIKE '%nextval(%' ORDER BY 1, 2`, func(scan func(...any) error) error {
		var c Column
		var standard string
		if err := scan(&c.table, &c.Name, &c.Type, &standard, &c.Index); err != nil {
			return err
		}
		c = m.named(c, " DEFAULT "+standard)
		for name := range names {
			if strings.Contains(standard, quoteTick(m.schema)+"."+quoteTick(name)) {
				feeds[name] = append(feeds[name], c)
			}
		}
		return nil
	}, m.schema)
	if err != nil {
		return nil, err
	}
	parts := map[int64]*part{}
	kinds := map[*part]string{}
	for name, comment := range names {
		p := &part{schema: m.schema, name: name, comment: comment, closed: readMark(comment), columns: feeds[name]}
		if err := given(ctx, m, m.opts, p, name); err != nil {
			return nil, err
		}
		var next string
		err := m.rows(ctx, "SELECT CAST(next_not_cached_value AS CHAR), minimum_value, maximum_value, increment, cache_size, cycle_option FROM "+quoteTick(name), func(scan func(...any) error) error {
			return scan(&next, &p.min, &p.max, &p.step, &p.cache, &p.cycle)
		})
		if err != nil {
			return nil, err
		}
		if p.step == 0 {
			p.step, p.servers = m.step, true
		}
		if p.position, err = positionOf(next, -1); err != nil {
			p.position = math.MaxInt64
		} else if p.closed != nil && p.closed.How == Parity && !p.unfinished() { // it counts by two
			p.position--
		}
		parts[int64(len(parts))] = p
		kinds[p] = "sequence"
	}
	all := group(parts, kinds)
	for _, s := range all {
		for k, n := range s.Names {
			s.Names[k] = strings.TrimPrefix(n, m.schema+".")
		}
		s.Tag = strings.TrimPrefix(s.Tag, m.schema+".")
		for _, p := range s.parts {
			s.Unfinished = s.Unfinished || p.unfinished()
			switch {
			case p.step < 0:
				s.wrong("%s descends by %d: hapax only counts up", p.name, -p.step)
			case p.cycle && p.closed == nil:
				s.wrong("%s cycles: after %d it begins again at %d; ALTER SEQUENCE %s NOCYCLE first", p.name, p.max, p.min, quoteTick(p.name))
			}
		}
	}
	return all, nil
}

// columns finds the highest numbers in a source's columns.
func (m *mySQL) columns(ctx context.Context, s *Source) error {
	for k := range s.Feeds {
		c := &s.Feeds[k]
		if c.Last == 0 {
			s.wrong("%s is %s: no column of whole numbers", c, c.Type)
			c.Last = math.MaxInt64
			continue
		}
		if !c.Index {
			s.note("%s has no index that begins with it, so that its highest number takes a scan: %s", c, c.Create)
		}
		most, err := m.max(ctx, *c)
		if errors.Is(err, context.DeadlineExceeded) {
			s.wrong("the highest number in %s was not found within %v: %s", c, m.opts.Timeout, c.Create)
			continue
		}
		if err != nil {
			return err
		}
		if c.Max, err = positionOf(most, 0); err != nil {
			s.wrong("%s holds %s: beyond 2^63-1, the largest number of a tag", c, most)
		}
		if strings.Contains(strings.ToLower(c.Type), "bigint") && strings.Contains(strings.ToLower(c.Type), "unsigned") {
			s.note("%s is unsigned: a tag ends at 2^63-1", c)
		}
	}
	s.conclude()
	return nil
}

// max returns the highest number in a column, which may not fit into 63 bits.
func (m *mySQL) max(ctx context.Context, c Column) (most string, err error) {
	ctx, cancel := context.WithTimeout(ctx, m.opts.Timeout)
	defer cancel()
	err = m.rows(ctx, fmt.Sprintf("SELECT CAST(COALESCE(MAX(%s), 0) AS CHAR) FROM %s", quoteTick(c.Name), quoteTick(c.table)), func(scan func(...any) error) error {
		return scan(&most)
	})
	// The server's error about a query that was broken off does not tell why.
	if err != nil && ctx.Err() != nil {
		err = fmt.Errorf("%w: %w", err, ctx.Err())
	}
	return most, err
}

// Position implements Database.
func (m *mySQL) Position(ctx context.Context, s *Source) (int64, error) {
	most := int64(math.MinInt64)
	for _, p := range s.parts {
		var next string
		query, args := "SELECT CAST(next_not_cached_value AS CHAR) FROM "+quoteTick(p.name), []any(nil)
		switch {
		case p.row != "" || s.Kind == generatorKind:
			at, err := m.generatorAt(ctx, p)
			if err != nil {
				return 0, err
			}
			most = max(most, at)
			continue
		case s.Kind == "auto_increment":
			if !m.maria {
				at, err := m.fresh(ctx, p.name)
				if err != nil {
					return 0, err
				}
				most = max(most, at)
				continue
			}
			query, args = "SELECT CAST(COALESCE(AUTO_INCREMENT, 1) AS CHAR) FROM information_schema.TABLES WHERE TABLE_SCHEMA = ? AND TABLE_NAME = ?", []any{m.schema, p.name}
		}
		if err := m.rows(ctx, query, func(scan func(...any) error) error { return scan(&next) }, args...); err != nil {
			return 0, err
		}
		at, err := positionOf(next, -1)
		if err != nil {
			return 0, err
		}
		most = max(most, at)
	}
	return most, nil
}

// fresh reads a counter of MySQL, which since version 8 keeps what the view tells for a
// day, unless the session says otherwise. Older versions do not know that setting.
func (m *mySQL) fresh(ctx context.Context, table string) (int64, error) {
	conn, err := m.db.SQL.Conn(ctx)
	if err != nil {
		return 0, m.fail(ctx, "a session", err)
	}
	defer conn.Close()
	if !m.old {
		if _, err := conn.ExecContext(ctx, freshCounters); err != nil {
			return 0, m.fail(ctx, "a session", err)
		}
	}
	var next string
	err = conn.QueryRowContext(ctx, "SELECT CAST(COALESCE(AUTO_INCREMENT, 1) AS CHAR) FROM information_schema.TABLES WHERE TABLE_SCHEMA = ? AND TABLE_NAME = ?", m.schema, table).Scan(&next)
	if err != nil {
		return 0, m.fail(ctx, "a counter", err)
	}
	return positionOf(next, -1)
}

func quoteTick(name string) string { return "`" + strings.ReplaceAll(name, "`", "``") + "`" }
